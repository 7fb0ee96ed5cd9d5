//! Checks references in documents: the files and headings of links, and the tests and planted bugs of
//! invariants.

use crate::tidy::Files;
use std::collections::BTreeSet;

/// The file with the invariants, and the file with the names of planted bugs.
const INVARIANTS: &str = "ARCHITECTURE.md";
const BUGS: &str = "testing/simulator/src/planted_rules.rs";

/// Every reference without a target, each as `path:line: what`.
pub(crate) fn findings(files: &Files) -> Vec<String> {
    let documents = files.iter().filter(|(path, _)| path.ends_with(".md"));
    let mut findings: Vec<String> =
        documents.clone().flat_map(|(path, text)| broken_links(files, path, text)).collect();
    findings.extend(documents.flat_map(|(path, text)| missing_sources(files, path, text)));
    findings.extend(files.get(INVARIANTS).into_iter().flat_map(|text| missing_proofs(files, text)));
    findings
}

/// The lines outside of code blocks, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        (!fence && !in_code).then_some((index + 1, line))
    })
}

fn broken_links(files: &Files, path: &str, text: &str) -> Vec<String> {
    let links = prose(text).flat_map(|(number, line)| {
        let targets = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
        targets.map(move |(target, _)| (number, target))
    });
    let broken = links.filter(|(_, target)| !target.contains("://") && !leads_somewhere(files, path, target));
    broken.map(|(number, target)| format!("{path}:{number}: no such place: {target}")).collect()
}

/// Source files that a document names in backquotes and that do not exist.
fn missing_sources(files: &Files, path: &str, text: &str) -> Vec<String> {
    let below = path.strip_suffix("README.md").filter(|folder| !folder.is_empty()).unwrap_or("");
    let is_there = |name: &str| {
        let end = format!("/{name}");
        files.keys().any(|file| file.starts_with(below) && (file.ends_with(&end) || file == name))
    };
    let names = |line: &str| line.split('`').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let named =
        prose(text).flat_map(|(number, line)| names(line).into_iter().map(move |name| (number, name)));
    let gone =
        named.filter(|(_, name)| name.ends_with(".rs") && !name.contains(['*', ' ', '{']) && !is_there(name));
    gone.map(|(number, name)| format!("{path}:{number}: no such source file: {name}")).collect()
}

fn leads_somewhere(files: &Files, from: &str, target: &str) -> bool {
    let (file, heading) =
        target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
    let file = if file.is_empty() { from.to_owned() } else { resolved(from, file) };
    match (files.get(&file), heading) {
        (Some(text), Some(heading)) => headings(text).contains(heading),
        (Some(_), None) => true,
        (None, _) => {
            files.keys().any(|path| path.strip_prefix(&file).is_some_and(|rest| rest.starts_with('/')))
        }
    }
}

/// Turns a path relative to the file `from` into one from the project's root.
fn resolved(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            ".." if parts.pop().is_none() => parts.push(".."),
            ".." => {}
            "." | "" => {}
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The headings, in the form that links use.
fn headings(text: &str) -> BTreeSet<String> {
    let named = |title: &str| {
        let kept =
            title.trim().chars().filter(|&char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| named(line.trim_start_matches('#')))
        .collect()
}

/// Tests and bugs that the invariants name and that do not exist. An invariant names its tests as a file and
/// a function, and its bugs as `--plant` does.
fn missing_proofs(files: &Files, text: &str) -> Vec<String> {
    let quoted: Vec<&str> = text.split('`').skip(1).step_by(2).collect();
    let tests = quoted.windows(2).filter(|pair| pair[0].ends_with(".rs") && is_test(pair[1]));
    let untested = tests.filter(|pair| {
        let function = format!("fn {}(", pair[1]);
        files.get(pair[0]).is_none_or(|text| !text.contains(&function))
    });
    let untested = untested.map(|pair| format!("{INVARIANTS}:1: no such test: {} in {}", pair[1], pair[0]));
    let bugs =
        text.lines().filter(|line| line.trim_start().starts_with("Bug")).flat_map(|line| line.split('`'));
    let unplanted = bugs.filter(|name| is_bug(name)).filter(|name| {
        let variant = format!("{},", camel_case(name));
        files.get(BUGS).is_none_or(|text| !text.contains(&variant))
    });
    let unplanted = unplanted.map(|name| format!("{INVARIANTS}:1: no such bug can be planted: {name}"));
    untested.chain(unplanted).collect()
}

/// Whether `name` is in snake case, as a test's name is.
fn is_test(name: &str) -> bool {
    name.contains('_')
        && name.chars().all(|char| char.is_ascii_lowercase() || char.is_ascii_digit() || char == '_')
}

fn is_bug(name: &str) -> bool {
    name.contains('-') && name.chars().all(|char| char.is_ascii_lowercase() || char == '-')
}

fn camel_case(name: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('-').filter(|part| !part.is_empty()).map(word).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn a_link_to_a_file_a_folder_or_a_heading_that_is_not_there_is_found() {
        let good =
            "# One's title: `a`\n[a](b/c.md) [b](b) [c](#ones-title-a) [d](b/c.md#two)\n```\n[e](f)\n```\n";
        let there = [("a.md", good), ("b/c.md", "## Two\n[a](../a.md) [web](https://weir.example)\n")];
        assert_eq!(findings(&files(&there)), [] as [&str; 0]);
        for bad in ["[a](c.md)", "[a](d)", "[a](#two)", "[a](b/c.md#three)", "[a](../a.md)"] {
            assert_eq!(findings(&files(&[("a.md", bad), ("b/c.md", "## Two\n")])).len(), 1, "{bad}");
        }
    }

    #[test]
    fn a_test_or_a_bug_that_is_named_and_not_there_is_found() {
        let invariant = "1. Test: `a/b.rs`,\n   `what_is_so_is_so`.\n   Bugs: `one-root`, `two-roots`.\n";
        let of = |test, bugs| files(&[(INVARIANTS, invariant), ("a/b.rs", test), (BUGS, bugs)]);
        let there = of("fn what_is_so_is_so() {", "OneRoot,\nTwoRoots,\n");
        assert_eq!(findings(&there), [] as [&str; 0]);
        assert_eq!(findings(&of("fn what_is() {", "OneRoot,\nTwoRoots,\n")).len(), 1);
        assert_eq!(findings(&of("fn what_is_so_is_so() {", "OneRoot,\n")).len(), 1);
    }

    #[test]
    fn a_source_file_that_is_named_and_not_there_is_found() {
        let of = |named: &str| {
            let text = format!("Read `{named}` first.\n");
            findings(&files(&[
                ("crates/a/README.md", &text),
                ("crates/a/src/one.rs", ""),
                ("crates/b/src/two.rs", ""),
            ]))
        };
        assert_eq!(of("one.rs"), [] as [&str; 0]);
        assert_eq!(of("two.rs").len(), 1, "it is another crate's");
    }
}

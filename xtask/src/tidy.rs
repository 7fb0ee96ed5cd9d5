//! The project's own rules about its text, as pure functions of files. The compiler and clippy do not check
//! them.

use crate::documents;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The crates that may use `unsafe`: one talks to the machine, the others to programs in C.
const UNSAFE: [&str; 3] = ["crates/host/", "crates/library-c/", "crates/shim/"];
/// The folders of the product, of the tools that test and measure it, and of record and replay.
const RINGS: [&str; 3] = ["crates/", "testing/", "trace/"];

/// The project's files: path from the root, and text. A file that is not text is empty here.
pub(crate) type Files = BTreeMap<String, String>;

/// Checks all files that git knows, and prints the findings. Returns `false` if there are any.
pub(crate) fn command() -> bool {
    let files = match tracked_files() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("error: listing the project's files: {error}");
            return false;
        }
    };
    let findings = check(&files);
    findings.iter().for_each(|finding| eprintln!("{finding}"));
    eprintln!("tidy: {} files, {} findings", files.len(), findings.len());
    findings.is_empty()
}

fn tracked_files() -> Result<Files, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies in the project's root")?;
    let output = Command::new("git").arg("-C").arg(root).args(["ls-files", "-z"]).output();
    let output = output.map_err(|error| format!("git cannot be started: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let paths = String::from_utf8(output.stdout).map_err(|error| error.to_string())?;
    // Files deleted without a commit have no lines to check.
    let text = |path: &str| std::fs::read(root.join(path)).ok().map(text_of);
    let files = paths.split('\0').filter(|path| !path.is_empty());
    Ok(files.filter_map(|path| Some((path.to_owned(), text(path)?))).collect())
}

/// The text of a file; empty if the file is not text. A document may link to a picture, which has no lines to check.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_default()
}

/// Every finding, each as `path:line: what`.
fn check(files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for (path, text) in files.iter().filter(|(path, _)| path.ends_with(".rs")) {
        findings.extend(words(path, text));
    }
    findings.extend(documents::findings(files));
    findings.extend(crates_without_readme(files));
    findings.extend(formats_without_description(files));
    findings.extend(files.get("Cargo.toml").into_iter().flat_map(|text| dependencies_without_reason(text)));
    findings
}

/// The line without its comment and without the content of its strings.
fn code_of(line: &str) -> String {
    let mut code = String::new();
    let mut rest = line;
    loop {
        match (rest.find('"'), rest.find("//")) {
            (Some(quote), comment) if comment.is_none_or(|comment| quote < comment) => {
                code.push_str(&rest[..quote]);
                let after = &rest[quote + 1..];
                rest = &after[end_of_string(after)..];
            }
            (_, Some(comment)) => return code + &rest[..comment],
            (_, None) => return code + rest,
        }
    }
}

/// The start of the text after the quote that ends a string.
fn end_of_string(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'"' if !escaped => return at + 1,
            b'\\' => escaped = !escaped,
            _ => escaped = false,
        }
    }
    text.len()
}

fn words(path: &str, text: &str) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let code = code_of(line);
        let place = format!("{path}:{}", index + 1);
        let is_word = |byte: char| byte.is_alphanumeric() || byte == '_';
        let mut in_code = code.split(|byte| !is_word(byte));
        if in_code.any(|word| word == concat!("uns", "afe"))
            && !UNSAFE.iter().any(|allowed| path.starts_with(allowed))
        {
            findings.push(format!(
                "{place}: unsafe code outside {}: ask such a crate to do it",
                UNSAFE.join(", ")
            ));
        }
        if code.contains("#[ignore") {
            findings.push(format!("{place}: a test that does not run proves nothing: repair or remove it"));
        }
        if ["todo!(", "unimplemented!("].iter().any(|unfinished| code.contains(unfinished)) {
            findings.push(format!("{place}: unfinished: write it or leave it out"));
        }
    }
    findings
}

/// The folders of the crates, of all three rings.
fn crates(files: &Files) -> Vec<String> {
    let mut crates: Vec<String> = files
        .keys()
        .filter(|path| RINGS.iter().any(|ring| path.starts_with(ring)))
        .filter_map(|path| path.strip_suffix("/Cargo.toml"))
        .map(str::to_owned)
        .collect();
    crates.dedup();
    crates
}

fn crates_without_readme(files: &Files) -> Vec<String> {
    let mut findings = Vec::new();
    for krate in crates(files) {
        if !files.contains_key(&format!("{krate}/README.md")) {
            findings.push(format!("{krate}/README.md:1: missing: say what the crate is and promises"));
        }
        let root = format!("{krate}/src/lib.rs");
        let includes = |text: &String| text.contains("#![doc = include_str!(\"../README.md\")]");
        if files.get(&root).is_some_and(|text| !includes(text)) {
            findings.push(format!("{root}:1: does not include its README.md as documentation"));
        }
    }
    findings
}

fn formats_without_description(files: &Files) -> Vec<String> {
    let described = |krate: &str| {
        ["FORMAT.md", "src/FORMAT.md"].iter().any(|file| files.contains_key(&format!("{krate}/{file}")))
    };
    // Only a layout of bytes needs a description. A `format.rs` may instead hold a command of that name.
    let has_format = |krate: &String| {
        let text = |file| files.get(&format!("{krate}/{file}"));
        ["src/format.rs", "src/format/mod.rs"]
            .into_iter()
            .filter_map(text)
            .any(|text| text.contains("#[repr(C"))
    };
    let missing = crates(files).into_iter().filter(has_format).filter(|krate| !described(krate));
    missing.map(|krate| format!("{krate}/FORMAT.md:1: missing: describe the bytes of format.rs")).collect()
}

fn dependencies_without_reason(manifest: &str) -> Vec<String> {
    let lines = manifest.lines().enumerate();
    let section = lines.skip_while(|(_, line)| *line != "[workspace.dependencies]").skip(1);
    let mut findings = Vec::new();
    let mut before = "";
    for (index, line) in section.take_while(|(_, line)| !line.starts_with('[')) {
        let ours = line.contains("path = ");
        if line.contains('=') && !line.starts_with('#') && !ours && !before.starts_with('#') {
            findings.push(format!("Cargo.toml:{}: no comment above says why: {line}", index + 1));
        }
        before = line;
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const MANIFEST: (&str, &str) = ("crates/a/Cargo.toml", "");

    fn files(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn the_forbidden_word_is_found_outside_a_few_crates_only() {
        assert_eq!(words("crates/fs/src/a.rs", "    unsafe { f() }").len(), 1);
        assert_eq!(words("crates/host/src/a.rs", "    unsafe { f() }").len(), 0);
        assert_eq!(words("crates/shim/src/a.rs", "    unsafe { f() }").len(), 0);
        assert_eq!(
            words("crates/fs/src/a.rs", "// unsafe\nlet unsafe_code = \"unsafe \\\" unsafe\";").len(),
            0
        );
    }

    #[test]
    fn tests_that_do_not_run_and_unfinished_functions_are_found() {
        assert_eq!(words("a.rs", "#[ignore]").len(), 1);
        assert_eq!(words("a.rs", "#[ignore = \"slow\"]").len(), 1);
        assert_eq!(words("a.rs", "    todo!()").len(), 1);
        assert_eq!(words("a.rs", "    unimplemented!(\"later\")").len(), 1);
        assert_eq!(words("a.rs", "    // todo!()").len(), 0);
    }

    #[test]
    fn a_crate_without_a_readme_or_that_hides_it_is_found() {
        let root = "#![doc = include_str!(\"../README.md\")]\nmod a;\n";
        let good = files(&[MANIFEST, ("crates/a/README.md", "# a"), ("crates/a/src/lib.rs", root)]);
        assert_eq!(crates_without_readme(&good), [] as [&str; 0]);
        assert_eq!(crates_without_readme(&files(&[MANIFEST, ("crates/a/src/lib.rs", root)])).len(), 1);
        let hidden = files(&[MANIFEST, ("crates/a/README.md", "# a"), ("crates/a/src/lib.rs", "mod a;\n")]);
        assert_eq!(crates_without_readme(&hidden).len(), 1);
    }

    #[test]
    fn a_format_that_nobody_describes_is_found() {
        let layout = "#[repr(C)]\nstruct Header;\n";
        let bare = files(&[
            MANIFEST,
            ("crates/a/src/format.rs", layout),
            ("crates/b/Cargo.toml", ""),
            ("crates/b/src/format.rs", "fn format() {}"),
        ]);
        assert_eq!(formats_without_description(&bare).len(), 1);
        let described = files(&[MANIFEST, ("crates/a/FORMAT.md", ""), ("crates/a/src/format.rs", layout)]);
        assert_eq!(formats_without_description(&described), [] as [&str; 0]);
    }

    #[test]
    fn a_dependency_without_a_reason_is_found() {
        let with = |lines: &str| {
            let manifest =
                format!("[workspace]\nresolver = \"3\"\n[workspace.dependencies]\n{lines}\n[x]\ny = 1\n");
            dependencies_without_reason(&manifest).len()
        };
        assert_eq!(with("a = { path = \"crates/a\" }\n\n# Why.\nb = \"1\""), 0);
        assert_eq!(with("b = \"1\""), 1);
        assert_eq!(with("# Why.\nb = \"1\"\nc = \"2\""), 1);
    }

    #[test]
    fn a_link_to_a_picture_leads_somewhere() {
        let mut project = files(&[("a.md", "![b](b.png)\n")]);
        assert_eq!(check(&project).len(), 1);
        project.insert("b.png".to_owned(), text_of(b"\x89PNG\r\n".to_vec()));
        assert_eq!(check(&project), [] as [&str; 0]);
    }

    #[test]
    fn every_rule_is_part_of_the_check() {
        let bad = files(&[
            ("Cargo.toml", "[workspace.dependencies]\nb = \"1\"\n"),
            MANIFEST,
            ("crates/a/src/lib.rs", "todo!()\n"),
            ("crates/a/src/format.rs", "#[repr(C)]\n"),
            ("a.md", "[b](b.md)\n"),
        ]);
        assert_eq!(check(&bad).len(), 6, "{:?}", check(&bad));
    }
}

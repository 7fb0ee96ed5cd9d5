//! Files of a crate that import each other in a circle: none of them can be read, tested or changed without the others.

use std::collections::{BTreeMap, BTreeSet};

/// As many files may be in one circle.
const FILES_MAX: usize = 4;

/// Path from the root, and text.
type Files = BTreeMap<String, String>;

/// The largest circle of each crate.
pub(crate) fn largest(files: &Files) -> BTreeMap<String, Vec<String>> {
    let sources = files.iter().filter_map(|(path, text)| {
        let (krate, module) = module_of(path)?;
        Some((krate.to_owned(), (module, (path, text))))
    });
    let mut crates: BTreeMap<String, BTreeMap<Module, (&String, &String)>> = BTreeMap::new();
    for (krate, (module, file)) in sources {
        crates.entry(krate).or_default().insert(module, file);
    }
    crates.into_iter().map(|(krate, modules)| (krate, circle(&modules))).collect()
}

/// What is wrong, as `path:line: what`.
pub(crate) fn findings(files: &Files) -> Vec<String> {
    let too_large = largest(files).into_iter().filter(|(_, circle)| circle.len() > FILES_MAX);
    let finding = |(krate, circle): (String, Vec<String>)| {
        let (first, count, names) = (&circle[0], circle.len(), circle.join(", "));
        format!("{first}:1: {count} files of {krate} import each other, more than {FILES_MAX}: {names}")
    };
    too_large.map(finding).collect()
}

/// A module's path below its crate's root, which is the empty one.
type Module = Vec<String>;

/// The crate's folder and the module of a source file that ships; none for tests, and for a crate's root, which only says what there
/// is.
fn module_of(path: &str) -> Option<(&str, Module)> {
    let (krate, file) = path.split_once("/src/")?;
    let names: Vec<&str> = file.strip_suffix(".rs")?.split('/').collect();
    let is_test = names.iter().any(|name| matches!(*name, "tests" | "test" | "golden"));
    let names: Vec<&str> = if names.last() == Some(&"mod") { names[..names.len() - 1].into() } else { names };
    let is_root = matches!(names[..], ["lib" | "main"]);
    (!is_test && !is_root).then(|| (krate, names.into_iter().map(str::to_owned).collect()))
}

/// The largest set of files each of which leads to each other one.
fn circle(modules: &BTreeMap<Module, (&String, &String)>) -> Vec<String> {
    let imports: BTreeMap<&Module, BTreeSet<&Module>> =
        modules.iter().map(|(module, (_, text))| (module, imported(module, text, modules))).collect();
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        modules.keys().map(|from| (from, reached_from(from, &imports))).collect();
    let circles = modules.keys().map(|one| {
        let others = reached[one].iter().filter(|other| reached[*other].contains(one));
        others.map(|module| modules[*module].0.clone()).collect::<Vec<String>>()
    });
    // Of circles of one size the first one, so that the answer is always the same.
    circles.fold(Vec::new(), |largest, circle| if circle.len() > largest.len() { circle } else { largest })
}

fn reached_from<'a>(
    from: &'a Module,
    imports: &BTreeMap<&Module, BTreeSet<&'a Module>>,
) -> BTreeSet<&'a Module> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        next.extend(imports[module].iter().filter(|import| reached.insert(**import)));
    }
    reached
}

/// The modules that the text names, by `crate::`, `super::` or `self::`, tests left out.
fn imported<'a>(
    module: &Module,
    text: &str,
    modules: &'a BTreeMap<Module, (&String, &String)>,
) -> BTreeSet<&'a Module> {
    let shipped = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: Vec<&str> = shipped.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let code = code.join(" ");
    let mut found = BTreeSet::new();
    for (start, base) in
        [("crate::", 0), ("super::", module.len().saturating_sub(1)), ("self::", module.len())]
    {
        for (at, _) in code.match_indices(start) {
            let ends_a_word = code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_');
            if !ends_a_word && !code[..at].ends_with("::") {
                named(&module[..base], &code[at + start.len()..], modules, &mut found);
            }
        }
    }
    // A module's own modules need no prefix.
    for child in modules.keys().filter(|child| child.len() == module.len() + 1 && child.starts_with(module)) {
        let path = format!("{}::", child[module.len()]);
        for (at, _) in code.match_indices(&path) {
            let is_whole =
                !code[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before));
            if is_whole {
                named(module, &code[at..], modules, &mut found);
            }
        }
    }
    found.remove(module);
    found
}

/// Adds the modules that a path, or a list of paths in braces, leads to from `base`.
fn named<'a>(
    base: &[String],
    path: &str,
    modules: &'a BTreeMap<Module, (&String, &String)>,
    found: &mut BTreeSet<&'a Module>,
) {
    if let Some(list) = path.strip_prefix('{') {
        let mut depth = 0;
        let mut begins = true;
        for (at, byte) in list.char_indices() {
            match byte {
                '{' => depth += 1,
                '}' if depth == 0 => return,
                '}' => depth -= 1,
                ',' if depth == 0 => begins = true,
                byte if begins && !byte.is_whitespace() => {
                    begins = false;
                    named(base, &list[at..], modules, found);
                }
                _ => {}
            }
        }
        return;
    }
    if let Some(rest) = path.strip_prefix("super::") {
        return named(&base[..base.len().saturating_sub(1)], rest, modules, found);
    }
    let name: String = path.chars().take_while(|name| name.is_alphanumeric() || *name == '_').collect();
    let module: Module = base.iter().cloned().chain([name.clone()]).collect();
    let goes_on = path[name.len()..].strip_prefix("::").filter(|_| modules.contains_key(&module));
    match goes_on {
        Some(rest) => named(&module, rest, modules, found),
        // A name of the module `base`, or that module itself.
        None => {
            found.extend(modules.get_key_value(&module).or(modules.get_key_value(base)).map(|(key, _)| key))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate `crates/x` with these files.
    fn tree(files: &[(&str, &str)]) -> Files {
        files.iter().map(|(name, text)| (format!("crates/x/src/{name}"), (*text).to_owned())).collect()
    }

    fn largest_of(files: &[(&str, &str)]) -> Vec<String> {
        let circle = largest(&tree(files)).remove("crates/x").expect("the crate");
        circle.iter().map(|path| path.trim_start_matches("crates/x/src/").to_owned()).collect()
    }

    #[test]
    fn files_that_import_each_other_are_a_circle_however_they_say_it() {
        let found = largest_of(&[
            ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::{other, c::{C, D}};"),
            ("c/mod.rs", "mod inner;"),
            ("c/inner.rs", "fn f() { crate::a::f() }"),
            ("d.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, [""; 0], "nothing that b imports leads back");
        let found = largest_of(&[
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use crate::{other, c::{C, inner::I}};"),
            ("c/mod.rs", "fn f() { self::inner::f() }"),
            ("c/inner.rs", "fn f() { crate::a::f(); super::super::b::g() }"),
            ("d.rs", "use crate::a::A;"),
        ]);
        assert_eq!(found, ["a.rs", "b.rs", "c/mod.rs", "c/inner.rs"]);
    }

    #[test]
    fn comments_tests_and_a_crates_root_are_no_imports() {
        let found = largest_of(&[
            ("lib.rs", "use a::A; use b::B;"),
            ("a.rs", "use crate::{B, b::C};"),
            ("b.rs", "// crate::a::A\nuse crate::A;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn a_circle_of_five_is_a_finding_and_one_of_four_is_none() {
        let ring = |count: usize| -> Files {
            let file = |at: usize| {
                (format!("crates/x/src/m{at}.rs"), format!("use crate::m{}::X;", (at + 1) % count))
            };
            (0..count).map(file).collect()
        };
        assert_eq!(findings(&ring(4)), [""; 0]);
        let found = findings(&ring(5));
        assert!(
            found.len() == 1 && found[0].contains("5 files of crates/x import each other, more than 4"),
            "{found:?}"
        );
    }
}

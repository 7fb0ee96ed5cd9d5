//! `docs/status.md` is made from the comments of the fields.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const SOURCE: &str = include_str!("../src/lib.rs");

const HEAD: &str = "\
# The fields of `weir status --json`

`weir space --json` prints the part `space` alone. [The schema](json.md) says which fields may change, and which units they have.

| field | meaning |
|---|---|
";

const WAITS_HEAD: &str = "
# The fields of `weir why --json`

| field | meaning |
|---|---|
";

/// A field of a struct: its name, its type as written, and its comment in one line.
struct SourceField {
    name: String,
    type_name: String,
    comment: String,
}

/// The structs of the source, by name.
fn structs() -> BTreeMap<String, Vec<SourceField>> {
    let mut structs: BTreeMap<String, Vec<SourceField>> = BTreeMap::new();
    let mut current = String::new();
    let mut comment = String::new();
    for line in SOURCE.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("/// ") {
            let separator = if comment.is_empty() { "" } else { " " };
            comment = format!("{comment}{separator}{text}");
        } else if let Some(rest) = line.strip_prefix("pub struct ") {
            current = rest.trim_end_matches(" {").to_owned();
            structs.insert(current.clone(), Vec::new());
            comment.clear();
        } else if let Some((name, type_name)) =
            line.strip_prefix("pub ").and_then(|field| field.trim_end_matches(',').split_once(": "))
        {
            let (name, type_name) = (name.to_owned(), type_name.to_owned());
            let field = SourceField { name, type_name, comment: std::mem::take(&mut comment) };
            structs.get_mut(&current).expect("a field is in a struct").push(field);
        }
    }
    structs
}

/// Adds a row for each field of the struct `name`, and for those of the structs in it.
fn describe(structs: &BTreeMap<String, Vec<SourceField>>, name: &str, path: &str, rows: &mut String) {
    for SourceField { name, type_name, comment } in &structs[name] {
        writeln!(rows, "| `{path}{name}` | {comment} |").expect("a string takes everything");
        let inner = type_name.trim_end_matches('>').rsplit(['<', ' ']).next().expect("a type has a name");
        if structs.contains_key(inner) {
            let each = match type_name.split('<').next() {
                Some("Vec" | "Option") if type_name.contains("Vec<") => "[].",
                Some("BTreeMap") => ".KIND.",
                _ => ".",
            };
            describe(structs, inner, &format!("{path}{name}{each}"), rows);
        }
    }
}

#[test]
fn list_has_every_field_with_its_comment() {
    let mut list = HEAD.to_owned();
    describe(&structs(), "StatusReport", "", &mut list);
    list += WAITS_HEAD;
    describe(&structs(), "WaitsReport", "", &mut list);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/status.md");
    if std::env::var_os("WEIR_WRITE_DOCS").is_some() {
        std::fs::write(&path, &list).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(&path).expect("docs/status.md exists");
    assert!(
        written == list,
        "docs/status.md is out of date: `WEIR_WRITE_DOCS=1 cargo test -p weir-status` writes it"
    );
}

//! `docs/errors.md` has an entry for each error and warning that weir can print, and for nothing else.
//!
//! The texts come from the sources: `#[error("...")]` of enums and structs, `write!` in a `Display` of an error, and the messages
//! of `tracing::error!`, `tracing::warn!` and `ProblemNews`, up to their end or a new line. In the page, a placeholder is the name of its
//! value in capitals: `{}: not blank: it holds {found}` with `path.display()` is `PATH: not blank: it holds FOUND`, and of a value
//! without a name `N`. A placeholder without a character between it and a word or another placeholder is `…`: it stands for an addition
//! that may be empty. An error that is nothing but one placeholder is another error's text, and so is a message without a word of its
//! own: these have no entry.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::parse::{Parse, ParseStream, Parser};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprIf, Ident, Lit, Stmt, Token};

const PAGE: &str = "docs/errors.md";

/// Where the errors are that the commands, the daemon and `weir-trace` print.
const SOURCES: [&str; 2] = ["crates", "trace"];

/// The words of `weir status` for the health of a mount: what a daemon reports, and what a mount without a report is.
const HEALTH: &str = "crates/status/src/health.rs";
const HEALTH_WITHOUT_REPORT: &str = "crates/weir/src/mount_list.rs";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the project's root")
}

/// The texts of the errors in a source file, as the page has them, each with the places that it comes from.
#[derive(Default)]
struct ErrorTexts {
    file: String,
    texts: BTreeMap<String, Vec<String>>,
    /// Whether `write!` makes the text of an error here.
    is_display: bool,
    /// The enum, struct or type with the next texts.
    owner: String,
}

impl ErrorTexts {
    /// Adds the texts of the source file `file`.
    fn read(&mut self, file: &str, source: &str) {
        let parsed = syn::parse_file(source).unwrap_or_else(|error| panic!("{file}: {error}"));
        file.clone_into(&mut self.file);
        self.visit_file(&parsed);
    }

    fn add_error(&mut self, name: &str, template: &Template) {
        let place = format!("{} ({}{name})", self.file, self.owner);
        let pieces = template.pieces().unwrap_or_else(|problem| panic!("{place}: {problem}"));
        if !matches!(pieces[..], [Piece::Value(_)]) {
            self.add(&place, &pieces);
        }
    }

    /// Adds a message of the log. Its help follows after a new line.
    fn add_message(&mut self, message: &syn::Macro) {
        let Ok(mut template) = message.parse_body::<Template>() else { return };
        template.format.truncate(template.format.find('\n').unwrap_or(template.format.len()));
        let place = self.file.clone();
        let pieces = template.pieces().unwrap_or_else(|problem| panic!("{place}: {problem}"));
        let has_words =
            |piece: &Piece| matches!(piece, Piece::Text(text) if text.contains(char::is_alphanumeric));
        if pieces.iter().any(has_words) {
            self.add(&place, &pieces);
        }
    }

    fn add(&mut self, place: &str, pieces: &[Piece]) {
        let texts = texts(pieces);
        for text in texts {
            self.texts.entry(text).or_default().push(place.to_owned());
        }
    }

    fn add_attributes(&mut self, name: &str, attributes: &[Attribute]) {
        for attribute in attributes.iter().filter(|attribute| attribute.path().is_ident("error")) {
            if attribute.parse_args::<Ident>().is_ok_and(|word| word == "transparent") {
                continue;
            }
            let template: Template =
                attribute.parse_args().unwrap_or_else(|error| panic!("{}: {name}: {error}", self.file));
            self.add_error(name, &template);
        }
    }
}

impl<'ast> Visit<'ast> for ErrorTexts {
    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        if !is_for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_enum(&mut self, item: &'ast syn::ItemEnum) {
        self.owner = format!("{}::", item.ident);
        for variant in &item.variants {
            self.add_attributes(&variant.ident.to_string(), &variant.attrs);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
        self.owner = String::new();
        self.add_attributes(&item.ident.to_string(), &item.attrs);
    }

    fn visit_item_impl(&mut self, item: &'ast syn::ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(path, _)| path.segments.last());
        let is_display = of_trait.is_some_and(|segment| segment.ident == "Display");
        let name = last_word(&item.self_ty);
        self.is_display = is_display && name.ends_with("Error");
        self.owner = name;
        visit::visit_item_impl(self, item);
        self.is_display = false;
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && function.path.segments.first().is_some_and(|segment| segment.ident == "ProblemNews")
            && let [Expr::Macro(message)] = &call.args.iter().collect::<Vec<_>>()[..]
        {
            self.add_message(&message.mac);
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_macro(&mut self, invoked: &'ast syn::Macro) {
        let path: Vec<String> = invoked.path.segments.iter().map(|word| word.ident.to_string()).collect();
        if path == ["tracing", "error"] || path == ["tracing", "warn"] {
            self.add_message(invoked);
        }
        if self.is_display && invoked.path.is_ident("write") {
            let after_formatter = |input: ParseStream<'_>| {
                input.parse::<Expr>()?;
                input.parse::<Token![,]>()?;
                Template::parse(input)
            };
            let template = after_formatter.parse2(invoked.tokens.clone());
            let template = template.unwrap_or_else(|error| panic!("{}: write!: {error}", self.file));
            self.add_error("", &template);
        }
    }
}

/// Whether an item is compiled for tests only.
fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_test =
        |attribute: &Attribute| attribute.parse_args::<Ident>().is_ok_and(|condition| condition == "test");
    attributes.iter().any(|attribute| attribute.path().is_ident("cfg") && is_test(attribute))
}

fn last_word(of_type: &syn::Type) -> String {
    match of_type {
        syn::Type::Path(path) => {
            path.path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
        }
        _ => String::new(),
    }
}

/// A format string and its values.
struct Template {
    format: String,
    values: Vec<Expr>,
}

impl Parse for Template {
    fn parse(input: ParseStream<'_>) -> syn::Result<Template> {
        let format: syn::LitStr = input.parse()?;
        let mut values = Vec::new();
        if input.parse::<Option<Token![,]>>()?.is_some() {
            values.extend(Punctuated::<Expr, Token![,]>::parse_terminated(input)?);
        }
        Ok(Template { format: format.value(), values })
    }
}

/// A part of a format string.
#[derive(Debug, PartialEq)]
enum Piece {
    Text(String),
    /// What stands there instead of the value: several if the source chooses between literals.
    Value(Vec<String>),
}

impl Template {
    fn pieces(&self) -> Result<Vec<Piece>, String> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut chars = self.format.chars().peekable();
        let mut values = self.values.iter();
        while let Some(char) = chars.next() {
            match char {
                '{' | '}' if chars.next_if_eq(&char).is_some() => text.push(char),
                '{' => {
                    if !text.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut text)));
                    }
                    let inside: String = chars.by_ref().take_while(|char| *char != '}').collect();
                    let name = inside.split(':').next().unwrap_or_default();
                    pieces.push(Piece::Value(match name {
                        "" => stands_for(values.next().ok_or("a value is missing")?)?,
                        "0" => vec!["N".into()],
                        name => vec![name.to_uppercase()],
                    }));
                }
                _ => text.push(char),
            }
        }
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        Ok(pieces)
    }
}

/// What the page says: one text, or several if a value is one of several literals.
fn texts(pieces: &[Piece]) -> Vec<String> {
    let mut texts = vec![String::new()];
    let mut is_after_value = false;
    for piece in pieces {
        let choices = match piece {
            Piece::Text(text) => std::slice::from_ref(text),
            Piece::Value(choices) => choices,
        };
        let is_value = matches!(piece, Piece::Value(_));
        let longer = |before: &String, choice: &String| {
            let is_addition = is_after_value || before.ends_with(char::is_alphanumeric);
            if !(is_value && is_addition) {
                format!("{before}{choice}")
            } else if before.ends_with('…') {
                before.clone()
            } else {
                format!("{before}…")
            }
        };
        texts = texts.iter().flat_map(|before| choices.iter().map(|next| longer(before, next))).collect();
        is_after_value = is_value;
    }
    texts
}

/// What stands in the page for a value: its name in capitals, literals as they are, and `…` for what a function adds.
fn stands_for(value: &Expr) -> Result<Vec<String>, String> {
    match value {
        Expr::Path(path) => {
            let name = path.path.segments.last().ok_or("an empty path")?;
            Ok(vec![name.ident.to_string().to_uppercase()])
        }
        Expr::Field(field) => match &field.member {
            syn::Member::Named(name) => Ok(vec![name.to_string().to_uppercase()]),
            syn::Member::Unnamed(_) => Err("a value without a name".into()),
        },
        Expr::MethodCall(call) => stands_for(&call.receiver),
        Expr::Unary(unary) => stands_for(&unary.expr),
        Expr::Reference(reference) => stands_for(&reference.expr),
        Expr::Paren(paren) => stands_for(&paren.expr),
        Expr::Call(_) => Ok(vec!["…".into()]),
        Expr::If(choice) => literals(choice).ok_or_else(|| "an `if` without literals".into()),
        _ => Err("a value of a kind for which this test has no rule".into()),
    }
}

/// The literals between which an `if` chooses.
fn literals(choice: &ExprIf) -> Option<Vec<String>> {
    let literal = |expression: &Expr| match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::Block(block) => only_literal(&block.block.stmts),
        _ => None,
    };
    let (_, other) = choice.else_branch.as_ref()?;
    Some(vec![only_literal(&choice.then_branch.stmts)?, literal(other)?])
}

fn only_literal(statements: &[Stmt]) -> Option<String> {
    match statements {
        [Stmt::Expr(Expr::Lit(literal), None)] => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// The words for the health of a mount: what the `match` of a `Display` chooses from.
#[derive(Default)]
struct HealthWords(BTreeSet<String>);

impl<'ast> Visit<'ast> for HealthWords {
    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Expr::Lit(literal) = &*arm.body
            && let Lit::Str(word) = &literal.lit
        {
            self.0.insert(word.value());
        }
        visit::visit_arm(self, arm);
    }
}

fn health_words() -> BTreeSet<String> {
    let mut words = HealthWords::default();
    for file in [HEALTH, HEALTH_WITHOUT_REPORT] {
        words.visit_file(&syn::parse_file(&text_of(&root().join(file))).expect("Rust"));
    }
    words.0
}

fn text_of(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The Rust files below `dir` that are in `src` folders.
fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    for path in entries.map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs")
            && path.components().any(|part| part.as_os_str() == "src")
        {
            found.push(path);
        }
    }
}

fn texts_of_sources() -> BTreeMap<String, Vec<String>> {
    let mut files = Vec::new();
    SOURCES.iter().for_each(|dir| sources(&root().join(dir), &mut files));
    files.sort();
    let mut texts = ErrorTexts::default();
    for file in files {
        let name = file.strip_prefix(root()).expect("below the root").display().to_string();
        texts.read(&name, &text_of(&file));
    }
    texts.texts
}

/// An entry of the page: one heading, or several that share a paragraph.
#[derive(Debug, Default, PartialEq)]
struct PageEntry {
    texts: Vec<String>,
    body: String,
}

fn entries(page: &str) -> Vec<PageEntry> {
    let mut entries: Vec<PageEntry> = Vec::new();
    let mut is_open = false;
    for line in page.lines() {
        let text = line.strip_prefix("#### `").and_then(|rest| rest.strip_suffix('`'));
        // A text with backquotes stands between two, and blanks.
        let quoting = text.and_then(|text| text.strip_prefix("` ")?.strip_suffix(" `"));
        let text = quoting.or(text);
        match (text, entries.last_mut()) {
            (Some(text), Some(entry)) if is_open && entry.body.is_empty() => entry.texts.push(text.into()),
            (Some(text), _) => {
                entries.push(PageEntry { texts: vec![text.into()], body: String::new() });
                is_open = true;
            }
            (None, _) if line.starts_with('#') => is_open = false,
            (None, Some(entry)) if is_open => entry.body.push_str(line),
            _ => {}
        }
    }
    entries
}

/// All that is wrong with the page, each as a line.
fn findings(page: &str, errors: &BTreeMap<String, Vec<String>>, health: &BTreeSet<String>) -> Vec<String> {
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for PageEntry { texts, body } in entries(page) {
        if !body.trim_start().starts_with("**") {
            findings.push(format!("does not begin with what it means for the data, in bold: {texts:?}"));
        }
        for text in texts {
            if !errors.contains_key(&text) && !health.contains(&text) {
                findings.push(format!("no error has this text: {text}"));
            }
            if !seen.insert(text.clone()) {
                findings.push(format!("two entries for: {text}"));
            }
        }
    }
    let missing = errors.iter().filter(|(text, _)| !seen.contains(*text));
    let quoted = |text: &str| if text.contains('`') { format!("`` {text} ``") } else { format!("`{text}`") };
    findings.extend(
        missing.map(|(text, places)| format!("no entry for {}:\n#### {}", places.join(", "), quoted(text))),
    );
    let missing = health.iter().filter(|word| !seen.contains(*word));
    findings.extend(missing.map(|word| format!("no entry for the health:\n#### `{word}`")));
    findings
}

#[test]
fn every_error_and_no_other_has_an_entry() {
    let found = findings(&text_of(&root().join(PAGE)), &texts_of_sources(), &health_words());
    assert!(found.is_empty(), "{PAGE}:\n{}", found.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<String> {
        let mut texts = ErrorTexts::default();
        texts.read("a.rs", source);
        texts.texts.into_keys().collect()
    }

    /// The texts of an error with this attribute.
    fn of(attribute: &str) -> Vec<String> {
        texts(&format!("enum AnError {{ #[error({attribute})] One }}"))
    }

    #[test]
    fn placeholder_is_the_name_of_its_value() {
        assert_eq!(of(r#""{}: {what:?}, {n:04x}", path.display()"#), ["PATH: WHAT, N"]);
        assert_eq!(of(r#""{} {} {{}}", *pid, self.device"#), ["PID DEVICE {}"]);
        assert_eq!(of(r#""{}: {a}{}", path.iter().map(|x| x.y()).join(), more(*n)"#), ["PATH: A…"]);
        assert_eq!(of(r#""{0} are more""#), ["N are more"]);
        assert_eq!(of(r#""damaged{why}; nothing""#), ["damaged…; nothing"]);
        assert_eq!(of(r#""damaged{a}{b}""#), ["damaged…"]);
        assert_eq!(of(r#""on {}", if *a { "one" } else { "two" }"#), ["on one", "on two"]);
    }

    #[test]
    fn error_of_another_one_has_no_text() {
        assert_eq!(of("transparent"), [] as [&str; 0]);
        assert_eq!(of(r#""{source}""#), [] as [&str; 0]);
        assert_eq!(of(r#""{}", about(path, source)"#), [] as [&str; 0]);
        assert_eq!(of(r#""{path}: {source}""#), ["PATH: SOURCE"]);
    }

    #[test]
    fn message_with_words_of_its_own_has_a_text() {
        let of = |statement: &str| texts(&format!("fn f() {{ {statement}; }}"));
        assert_eq!(of(r#"tracing::warn!("{}: new {what}", a.b.display())"#), ["B: new WHAT"]);
        assert_eq!(of(r#"tracing::error!("no {what}\n  help: {help}")"#), ["no WHAT"]);
        assert_eq!(of(r#"tracing::error!("{}: {error}{more}", a.b)"#), [] as [&str; 0]);
        assert_eq!(of(r#"tracing::info!("all is well")"#), [] as [&str; 0]);
        assert_eq!(of(r#"news.push(ProblemNews::Error(format!("{why}: read-only")))"#), ["WHY: read-only"]);
    }

    #[test]
    fn texts_of_structs_and_of_display_count_and_those_of_tests_do_not() {
        let structure = r#"#[error("line {line}")] struct AnError { line: u8 }"#;
        assert_eq!(texts(structure), ["line LINE"]);
        let display = |name: &str| {
            format!(
                r#"impl fmt::Display for {name} {{ fn fmt(&self) -> R {{ write!(f, "a {{}}", self.n) }} }}"#
            )
        };
        assert_eq!(texts(&display("AnError")), ["a N"]);
        assert_eq!(texts(&display("Number")), [] as [&str; 0]);
        assert_eq!(texts(&format!("#[cfg(test)] mod tests {{ {structure} }}")), [] as [&str; 0]);
    }

    #[test]
    fn page_with_an_entry_more_or_less_is_found() {
        let errors = BTreeMap::from([("PATH: full".to_owned(), vec![]), ("empty".to_owned(), vec![])]);
        let health = BTreeSet::from(["ok".to_owned()]);
        let of = |page: &str| findings(page, &errors, &health);
        let good = "#### `PATH: full`\n#### `empty`\n**Nothing was changed.** Wait.\n\n## Health\n#### `ok`\n**All is well.**\n";
        assert_eq!(of(good), [] as [&str; 0]);
        assert_eq!(of(&good.replace("#### `empty`\n", "")).len(), 1);
        assert_eq!(of(&good.replace("#### `ok`\n", "")).len(), 1);
        assert_eq!(of(&good.replace("`empty`", "`emptier`")).len(), 2, "one is missing, one has no error");
        assert_eq!(of(&good.replace("**Nothing was changed.** Wait.", "Wait.")).len(), 1);
        assert_eq!(of(&format!("{good}#### `ok`\n**Again.**\n")).len(), 1);
        let errors = BTreeMap::from([("run `a`".to_owned(), vec![])]);
        assert_eq!(findings("#### `` run `a` ``\n**Safe.**\n", &errors, &BTreeSet::new()), [] as [&str; 0]);
    }

    #[test]
    fn sources_have_errors_of_every_kind() {
        let texts = texts_of_sources();
        for text in ["PATH: not blank: it holds FOUND", "line LINE: PROBLEM", "DEVICE: flushing: REASON"] {
            assert!(texts.contains_key(text), "{text}: {texts:?}");
        }
        assert!(health_words().is_superset(&["ok", "dead"].map(String::from).into()), "{:?}", health_words());
    }
}

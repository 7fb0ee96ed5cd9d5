//! The site of the documents, `make site`, leads to every page.

use std::collections::BTreeSet;
use std::path::Path;

/// The pages of a folder, and the index of each folder in it. Such an index leads to the pages of its own folder.
fn pages(docs: &Path) -> BTreeSet<String> {
    let mut pages = BTreeSet::new();
    for entry in std::fs::read_dir(docs).expect("documents") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.join("README.md").is_file() {
            pages.insert(format!("{name}/README.md"));
        } else if name.ends_with(".md") && name != "SUMMARY.md" {
            pages.insert(name);
        }
    }
    pages
}

/// The pages of its own folder to which a summary leads.
fn linked(summary: &str) -> BTreeSet<String> {
    let links = summary.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    links.map(|(target, _)| target.to_owned()).filter(|target| !target.starts_with("../")).collect()
}

#[test]
fn every_page_is_in_the_summary() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
    let summary = std::fs::read_to_string(docs.join("SUMMARY.md")).expect("docs/SUMMARY.md");
    assert_eq!(linked(&summary), pages(&docs), "docs/SUMMARY.md names each page of docs");
}

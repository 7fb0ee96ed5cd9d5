//! Pages for administrators that are lists of commands: each command is run, below a directory of the test.

use crate::common::{Sandbox, can_mount, succeeds, weir};
use crate::guide::{Cleanup, Guide};
use crate::kills::have;
use std::collections::BTreeSet;
use std::path::Path;

/// What a page says if a test here runs it.
const PROMISE: &str = "A test runs every command of this page";

/// The pages' directories, and what the test has instead.
const DIRECTORIES: [(&str, &str); 3] =
    [("/var/lib/weir/", "@ROOT@/stores/"), ("/mnt/", "@ROOT@/mounts/"), ("/srv", "@ROOT@/srv")];

/// What the pages run beside weir.
const PROGRAMS: [&str; 6] = ["bash", "find", "jq", "rsync", "sqlite3", "tar"];

/// The pages, each with the stores that it leaves behind.
const PAGES: [(&str, &str, &[&str]); 6] = [
    ("buffer.md", include_str!("../../../../docs/buffer.md"), &["db"]),
    ("data.md", include_str!("../../../../docs/data.md"), &["db"]),
    ("first-hour.md", include_str!("../../../../docs/first-hour.md"), &["db"]),
    ("grow.md", include_str!("../../../../docs/grow.md"), &["db"]),
    ("lost.md", include_str!("../../../../docs/lost.md"), &["db"]),
    ("upgrade.md", include_str!("../../../../docs/upgrade.md"), &["db", "new"]),
];

/// Runs the page from top to bottom. Its stores must be sound in the end, and nothing else may be left.
#[track_caller]
fn works(name: &str) {
    if !have(&PROGRAMS.map(Path::new)) || !can_mount() {
        return;
    }
    let (_, page, stores) = PAGES.iter().find(|(page, ..)| *page == name).expect("a page");
    let sandbox = Sandbox::new();
    let cleanup = Cleanup::new(sandbox.path("").canonicalize().expect("it is there"), None);
    let mut guide = Guide::new(page, &cleanup.root, &DIRECTORIES);
    assert!(guide.blocks.len() > 1, "{name} has commands");
    guide.run_all();
    cleanup.assert_nothing_left();
    for store in *stores {
        succeeds(weir().arg("check").arg(cleanup.root.join("stores").join(store)));
    }
}

#[test]
fn first_hour() {
    works("first-hour.md");
}

#[test]
fn data_in_and_out() {
    works("data.md");
}

#[test]
fn choosing_a_buffer() {
    works("buffer.md");
}

#[test]
fn growing() {
    works("grow.md");
}

#[test]
fn upgrading() {
    works("upgrade.md");
}

#[test]
fn lost_buffer() {
    works("lost.md");
}

#[test]
fn every_page_with_the_promise_is_run() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let pages = std::fs::read_dir(docs).expect("documents").map(|entry| entry.expect("an entry").path());
    let promises = |page: &std::path::PathBuf| {
        page.is_file() && std::fs::read_to_string(page).is_ok_and(|text| text.contains(PROMISE))
    };
    let named = |page: std::path::PathBuf| page.file_name().expect("a name").to_string_lossy().into_owned();
    let promised: BTreeSet<String> = pages.filter(promises).map(named).collect();
    assert_eq!(promised, PAGES.iter().map(|(name, ..)| (*name).to_owned()).collect());
}

/// A block of another kind would be a command that no test runs, and that does not say so.
#[test]
fn commands_are_run_or_have_a_prompt() {
    for (name, page, _) in PAGES {
        for block in page.split("```").skip(1).step_by(2) {
            let (kind, commands) = block.split_once('\n').expect("a block has lines");
            let has_prompts = commands.lines().all(|line| line.starts_with("# "));
            assert!(kind == "sh" || (kind == "console" && has_prompts), "{name}: {block}");
        }
    }
}

//! What the command says when something goes wrong: whole, in words of its own, with the next step.

mod common;

use common::{Sandbox, fails, weir};
use std::fs::File;

#[track_caller]
fn assert_says(said: &str, part: &str) {
    assert!(said.contains(part), "said {said:?}, not {part:?}");
}

#[test]
fn a_name_with_a_semicolon_stands_whole_in_the_message() {
    let sandbox = Sandbox::new();
    File::create(sandbox.path("file")).expect("a file");
    let inside = sandbox.path("file").join("a; b");
    let said = fails(weir().arg("format").arg(&inside));
    assert_says(&said, &format!("error: {}: ", inside.display()));
}

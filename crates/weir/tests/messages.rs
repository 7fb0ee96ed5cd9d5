//! What the command says when something goes wrong: whole, in words of its own, with the next step.

mod common;

use common::{Sandbox, assert_says, can_mount, fails, weir};
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};

fn full() -> Stdio {
    File::options().write(true).open("/dev/full").expect("a device that is full").into()
}

#[test]
fn a_name_with_a_semicolon_stands_whole_in_the_message() {
    let sandbox = Sandbox::new();
    File::create(sandbox.path("file")).expect("a file");
    let inside = sandbox.path("file").join("a; b");
    let said = fails(weir().arg("format").arg(&inside));
    assert_says(&said, &format!("error: {}: ", inside.display()));
}

#[test]
fn a_name_with_a_newline_makes_no_second_line() {
    let sandbox = Sandbox::new();
    let said = fails(weir().args(["volume", "list"]).arg(sandbox.path("a\nall is lost\x1b[2J")));
    assert_says(&said, r"a\nall is lost\u{1b}[2J");
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    let sandbox = Sandbox::formatted();
    let is_told = |command: &mut Command| assert_says(&fails(command.stdout(full())), "standard output");
    is_told(weir().arg("check").arg(sandbox.store()));
    is_told(weir().args(["volume", "list"]).arg(sandbox.store()));
    is_told(weir().args(["trace", "calls"]));
    is_told(weir().arg("--help"));
    if can_mount() {
        let mounted = sandbox.mount();
        is_told(weir().arg("status").arg(mounted.dir()));
        is_told(weir().arg("space").arg(mounted.dir()));
        mounted.unmount();
    }
}

#[test]
fn a_daemon_whose_messages_cannot_be_written_goes_on() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let mut mounted = sandbox.mount_saying_to(full());
    let open = File::create(mounted.path("file")).expect("a file");
    // Busy, which it says.
    mounted.signal("TERM");
    std::thread::sleep(std::time::Duration::from_millis(300));
    (&open).write_all(b"still there").expect("it goes on");
    drop(open);
    assert_eq!(mounted.ended().code(), Some(0));
}

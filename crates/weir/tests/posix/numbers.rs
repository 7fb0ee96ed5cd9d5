//! System calls with the smallest and largest numbers of their types: no request of a program ends a mount.

use crate::common::{Mounted, Sandbox, can_mount, succeeds, weir};
use crate::open_to_all;
use std::fs;
use std::path::Path;
use std::process::Command;

/// Fails unless `mounted` still keeps written data, and still has its first daemon.
fn assert_lives(mounted: &Mounted) {
    fs::write(mounted.path("after"), b"it lives").expect("a file");
    succeeds(weir().arg("sync").arg(mounted.dir()));
    assert_eq!(fs::read(mounted.path("after")).expect("the file"), b"it lives");
    assert_eq!(mounted.status().pid, mounted.pid());
    let messages = mounted.messages();
    assert!(!messages.contains("error"), "{messages}");
}

#[test]
fn calls_with_the_ends_of_their_types_are_answered_and_the_mount_lives() {
    if !can_mount() {
        return;
    }
    let sandbox = Sandbox::formatted();
    let program = sandbox.path("numbers");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/posix/numbers.c");
    succeeds(
        Command::new("cc")
            .args(["-O1", "-Wall", "-Werror", "-Wno-unused-result", "-o"])
            .args([&program, &source]),
    );
    let mounted = open_to_all(&sandbox);
    let output = Command::new(&program).current_dir(mounted.dir()).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    assert!(output.status.success(), "{said}; {}", mounted.messages());
    assert!(said.parse::<u64>().expect("a number") > 10_000, "{said} calls");
    assert_lives(&mounted);
    mounted.unmount();
    succeeds(weir().arg("check").arg(sandbox.store()));
    let mounted = sandbox.mount();
    assert_eq!(fs::read(mounted.path("after")).expect("the file"), b"it lives");
    mounted.unmount();
}

//! `weir trace` runs `weir-trace`: the one beside `weir`, or else that in PATH.

use crate::common::{Sandbox, assert_says, copy_program, fails, weir};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

/// A program of this name that is a shell script.
fn script(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
    fs::write(path, format!("#!/bin/sh\n{text}\n")).expect("a script");
    fs::set_permissions(path, Permissions::from_mode(0o755)).expect("it is ours");
}

/// A copy of `weir`, with nothing beside it, and only `path` to look in for programs.
fn weir_alone(sandbox: &Sandbox, path: &Path) -> Command {
    let program = sandbox.path("bin/weir");
    if !program.exists() {
        fs::create_dir_all(sandbox.path("bin")).expect("a directory");
        copy_program(env!("CARGO_BIN_EXE_weir"), &program);
    }
    let mut command = Command::new(program);
    command.env("PATH", path);
    command
}

#[test]
fn weir_trace_gets_the_arguments_and_decides_how_it_ends() {
    let sandbox = Sandbox::new();
    let nowhere = sandbox.path("nowhere");
    script(&sandbox.path("bin/weir-trace"), "echo \"$@\"; [ \"$1\" = kill ] && kill -9 $$; exit 7");
    let run = |arguments: &[&str]| {
        let output = weir_alone(&sandbox, &nowhere).arg("trace").args(arguments).output().expect("it starts");
        (output.status, String::from_utf8_lossy(&output.stdout).into_owned())
    };
    for arguments in [&["record", "-o", "x", "--", "true", "--help"][..], &["--help"], &["replay", "-h"], &[]]
    {
        let (status, said) = run(arguments);
        assert_eq!((status.code(), said.trim_end()), (Some(7), &arguments.join(" ")[..]));
    }
    assert_eq!(run(&["kill"]).0.signal(), Some(9));
}

#[test]
fn weir_trace_beside_weir_comes_before_the_one_in_path() {
    let sandbox = Sandbox::new();
    let path = sandbox.path("path");
    script(&path.join("weir-trace"), "echo in PATH");
    let said = || {
        let output = weir_alone(&sandbox, &path).args(["trace", "calls"]).output().expect("it starts");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(said(), "in PATH\n");
    script(&sandbox.path("bin/weir-trace"), "echo beside");
    assert_eq!(said(), "beside\n");
}

#[test]
fn a_missing_weir_trace_is_named_with_the_next_step() {
    let sandbox = Sandbox::new();
    let said = fails(weir_alone(&sandbox, &sandbox.path("nowhere")).args(["trace", "calls"]));
    assert_says(&said, "weir-trace: No such file");
    assert_says(&said, "install it");
}

#[test]
fn manual_pages_leave_that_of_weir_trace_to_weir_trace() {
    let sandbox = Sandbox::new();
    let output = weir().arg("man").arg(sandbox.mount_point()).output().expect("it starts");
    assert!(output.status.success());
    for page in ["weir.1", "weir-mount.1", "weir-volume.1", "weir-volume-clone.1"] {
        assert!(sandbox.mount_point().join(page).exists(), "{page}");
    }
    assert!(!sandbox.mount_point().join("weir-trace.1").exists());
    let page = fs::read_to_string(sandbox.mount_point().join("weir.1")).expect("a page");
    assert_says(&page, "weir\\-trace(1)");
}

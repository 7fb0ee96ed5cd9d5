//! Hostile traces and unfit targets: nothing outside the target changes, every failure is counted and named,
//! and exit codes distinguish the causes.

use crate::common::{DirectoryContents, TestDirectory, copy_program, succeeds, weir_trace};
use serde_json::Value;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn compile(sandbox: &TestDirectory, trace: &str) -> PathBuf {
    let (text, compiled) = (sandbox.path("hostile.strace"), sandbox.path("hostile.compiled"));
    fs::write(&text, trace).expect("a trace");
    succeeds(weir_trace().args(["compile"]).arg(&text).arg("-o").arg(&compiled));
    fs::set_permissions(&compiled, Permissions::from_mode(0o644)).expect("it is ours");
    compiled
}

fn report(output: &Output) -> Value {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    serde_json::from_slice(&output.stdout).expect("a report is JSON")
}

/// A trace that tries every way out of a directory by path, while another thread renames the directories on
/// the way.
fn ways_out(victim: &Path) -> String {
    let victim = victim.display();
    let mut calls = vec![
        "1 mkdir(\"/a\", 0777) = 0".to_owned(),
        "1 mkdir(\"/a/b\", 0777) = 0".into(),
        "1 mkdir(\"/a/b/c\", 0777) = 0".into(),
        format!("1 symlink(\"{victim}\", \"/link\") = 0"),
        "1 symlink(\"/proc/self/root\", \"/a/magic\") = 0".into(),
        "1 symlink(\"../../../../../../../..\", \"/a/up\") = 0".into(),
    ];
    let up = "../".repeat(30);
    let traps = [
        format!("{victim}"),
        format!("/{up}{victim}"),
        format!("/a/b/c/{up}{victim}"),
        format!("/a/up/{victim}"),
        "/link".into(),
        format!("/a/magic/{victim}"),
        format!("/proc/1/root/{victim}"),
        format!("/proc/self/cwd/{up}{victim}"),
    ];
    for round in 0..50 {
        calls.push("2 rename(\"/a/b/c\", \"/moved\") = 0".into());
        calls.push(format!("1 chdir(\"/moved\") = {}", "0"));
        calls.push("2 rename(\"/moved\", \"/a/b/c\") = 0".into());
        for trap in &traps {
            calls.push(format!("1 openat(AT_FDCWD, \"{trap}\", O_WRONLY|O_CREAT|O_TRUNC, 0666) = 3"));
            calls.push("1 write(3, \"\"..., 6) = 6".into());
            calls.push("1 close(3) = 0".into());
            calls.push(format!("1 unlink(\"{trap}.{round}\") = -1 ENOENT (No such file or directory)"));
        }
        calls.push(format!("1 unlink(\"{up}{victim}\") = 0"));
    }
    let line = |(number, call): (usize, &String)| {
        let (thread, call) = call.split_once(' ').expect("a thread and a call");
        format!("{thread} 1700000000.{:06} {call} <0.000001>\n", number * 2)
    };
    calls.iter().enumerate().map(line).collect()
}

fn nothing_escapes(nobody: bool) {
    let sandbox = TestDirectory::new();
    let open = Permissions::from_mode(0o777);
    for dir in ["", "outside", "target"] {
        fs::create_dir_all(sandbox.path(dir)).expect("a directory");
        fs::set_permissions(sandbox.path(dir), open.clone()).expect("it is ours");
    }
    let victim = sandbox.path("outside/victim");
    fs::write(&victim, b"precious").expect("a file");
    fs::set_permissions(&victim, Permissions::from_mode(0o666)).expect("it is ours");
    let compiled = compile(&sandbox, &ways_out(&victim));
    let before = DirectoryContents::below(&sandbox.path("outside"));
    for order in ["weir", "unconstrained"] {
        let mut command = weir_trace();
        if nobody {
            copy_program(env!("CARGO_BIN_EXE_weir-trace"), &sandbox.path("weir-trace"));
            fs::set_permissions(sandbox.path("weir-trace"), open.clone()).expect("it is ours");
            command = Command::new(sandbox.path("weir-trace"));
            command.uid(65534).gid(65534);
        }
        command.args(["replay", "--json", "--no-single", "--order", order, "--on"]);
        let output = command.arg(sandbox.path("target")).arg(&compiled).output().expect("it starts");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        if nobody && output.status.code() == Some(4) && said.contains("cannot be confined") {
            eprintln!("skipped: users may not make namespaces here");
            return;
        }
        let report = report(&output);
        // The replay did write to the same names, inside the target.
        assert!(report["calls"]["openat"]["count"].as_u64() > Some(100), "{report:#}");
        before.assert_unchanged(&sandbox.path("outside"));
    }
}

#[test]
fn nothing_escapes_a_replay() {
    if rustix::process::geteuid().is_root() {
        nothing_escapes(false);
    }
}

#[test]
fn nothing_escapes_a_replay_without_root() {
    nothing_escapes(rustix::process::geteuid().is_root());
}

const SMALL: &str = "1 1700000000.000001 openat(AT_FDCWD, \"/f\", O_WRONLY|O_CREAT, 0666) = 3 <0.000001>\n\
                     1 1700000000.000003 write(3, \"\"..., 4096) = 4096 <0.000001>\n\
                     1 1700000000.000005 close(3) = 0 <0.000001>\n";

#[test]
fn a_target_that_is_no_directory_has_an_exit_code_of_its_own() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, SMALL);
    fs::write(sandbox.path("file"), b"").expect("a file");
    let mut command = weir_trace();
    command.args(["replay", "--on"]).arg(sandbox.path("file/below")).arg(&compiled);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("file/below") && said.contains("  help: "), "{said}");
}

#[test]
fn a_tree_that_does_not_fit_is_refused_before_anything_is_written() {
    let sandbox = TestDirectory::new();
    let stat = "1 1700000000.000001 stat(\"/huge\", {st_mode=S_IFREG|0644, st_size=4611686018427387904, ...}) = 0 <0.1>\n";
    let compiled = compile(&sandbox, stat);
    let mut command = weir_trace();
    command.args(["replay", "--on"]).arg(sandbox.path("target")).arg(&compiled);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("bytes, and"), "{said}");
    assert_eq!(fs::read_dir(sandbox.path("target")).expect("a listing").count(), 0);
}

#[test]
fn fewer_descriptors_than_needed_are_counted_and_named() {
    let sandbox = TestDirectory::new();
    let opens = (3..103).map(|fd| {
        let at = fd * 2;
        format!(
            "1 1700000000.{at:06} openat(AT_FDCWD, \"/f{fd}\", O_WRONLY|O_CREAT, 0666) = {fd} <0.000001>\n"
        )
    });
    let compiled = compile(&sandbox, &opens.collect::<String>());
    let script = "ulimit -n 40; exec \"$0\" replay --json --on \"$1\" \"$2\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_weir-trace")]).arg(sandbox.path("target")).arg(&compiled);
    let report = report(&shell.output().expect("it starts"));
    assert!(report["causes"]["descriptors"].as_u64() > Some(50), "{report:#}");
    assert_eq!(report["groups"][0]["replayed"], "EMFILE", "{report:#}");
}

#[test]
fn repeated_runs_are_compared_and_the_time_line_is_json() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox, SMALL);
    let mut files = Vec::new();
    for (cache, reuse) in [("cold", false), ("warm", true)] {
        let mut command = weir_trace();
        command.args(["replay", "--json", "--runs", "3", "--cache", cache, "--natural", "--time-line"]);
        command.arg(sandbox.path("line")).arg("--on").arg(sandbox.path("target")).arg(&compiled);
        if reuse {
            command.arg("--reuse");
        }
        let output = command.output().expect("it starts");
        let found = report(&output);
        assert_eq!(found["runs"].as_array().map(Vec::len), Some(3));
        assert!(found["cache"].as_str().is_some_and(|done| done.starts_with(cache)), "{found:#}");
        files.push(sandbox.path(cache));
        fs::write(sandbox.path(cache), &output.stdout).expect("a report");
        let line: Value =
            serde_json::from_slice(&fs::read(sandbox.path("line")).expect("a time line")).expect("JSON");
        let slices = line.as_array().expect("events").iter().filter(|event| event["ph"] == "X");
        let names: Vec<_> = slices.map(|event| &event["name"]).collect();
        assert_eq!(names, ["openat", "write", "close"]);
    }
    let output = succeeds(weir_trace().args(["compare", "--json"]).args(&files));
    let comparison: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(comparison["rows"][0]["what"], "elapsed");
    assert!(comparison["rows"][0]["differs"][1].is_boolean(), "{comparison:#}");
    assert_eq!(comparison["rows"].as_array().map(Vec::len), Some(4));
}

//! Several compiled traces replayed at the same time, in one target.

use crate::common::{TestDirectory, succeeds, weir_trace};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A program with two threads that reads an initial file and makes its own directory.
fn program(sandbox: &TestDirectory, name: &str, there: &str, bytes: u64) -> PathBuf {
    let (text, compiled) = (sandbox.path(&format!("{name}.strace")), sandbox.path(name));
    let mut calls = vec![
        format!("1 openat(AT_FDCWD, \"{there}\", O_RDONLY) = 3</{there}>"),
        format!("1 pread64(3, \"\"..., 4096, {}) = 4096", bytes - 4096),
        "1 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2".to_owned(),
        format!("1 mkdir(\"/{name}.dir\", 0755) = 0"),
    ];
    for file in 0..50 {
        calls.push(format!("2 openat(AT_FDCWD, \"/{name}.dir/{file}\", O_WRONLY|O_CREAT|O_EXCL, 0644) = 4"));
        calls.push("1 write(4, \"\"..., 100) = 100".to_owned());
        calls.push("2 close(4) = 0".to_owned());
    }
    let line = |(number, call): (usize, &String)| {
        let (thread, call) = call.split_once(' ').expect("a thread and a call");
        format!("{thread} 1700000000.{:06} {call} <0.000001>\n", number * 2)
    };
    fs::write(&text, calls.iter().enumerate().map(line).collect::<String>()).expect("a trace");
    succeeds(weir_trace().args(["compile"]).arg(&text).arg("-o").arg(&compiled));
    compiled
}

fn together(traces: &[&Path], target: &Path, options: &[&str]) -> (i32, Value, String) {
    let mut command = weir_trace();
    command.args(["replay", "--json"]).args(options).arg("--on").arg(target).args(traces);
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or(Value::Null);
    (output.status.code().expect("no signal ends it"), report, said)
}

#[test]
fn programs_replay_side_by_side_and_each_has_a_report() {
    let sandbox = TestDirectory::new();
    let one = program(&sandbox, "one", "/shared", 4096);
    let other = program(&sandbox, "other", "/shared", 8192);
    for order in ["weir", "root", "single"] {
        let options = ["--strict", "--runs", "2", "--order", order];
        let (code, report, said) = together(&[&one, &other], &sandbox.path("target"), &options);
        assert_eq!(code, 0, "{said}");
        // The shared file gets the larger of the two sizes, and the replay says so.
        assert!(said.contains("/shared: the larger size"), "{said}");
        let whole = &report["whole"];
        assert_eq!(whole["causes"], serde_json::json!({}), "{order}: {whole:#}");
        assert_eq!(whole["threads"].as_array().map(Vec::len), Some(4), "{order}");
        assert_eq!(whole["calls"]["openat"]["count"], 102, "{order}");
        let each = report["each"].as_array().expect("a list of reports");
        assert_eq!(each.len(), 2);
        for (own, name) in each.iter().zip(["one", "other"]) {
            assert!(own["compiled"].as_str().is_some_and(|path| path.ends_with(name)), "{own:#}");
            let own = &own["report"];
            assert_eq!(
                (own["calls"]["openat"]["count"].as_u64(), own["runs"].as_array().map(Vec::len)),
                (Some(51), Some(2))
            );
            assert!(own["elapsed_ns"].as_u64() <= whole["elapsed_ns"].as_u64(), "{order}");
            assert_eq!(own["causes"], serde_json::json!({}), "{order}");
        }
    }
}

#[test]
fn what_cannot_be_laid_over_each_other_is_named_before_anything_is_done() {
    let sandbox = TestDirectory::new();
    let one = program(&sandbox, "one", "/shared", 4096);
    let other = program(&sandbox, "other", "/shared/below", 4096);
    let target = sandbox.path("target");
    let (code, _, said) = together(&[&one, &other], &target, &[]);
    assert_eq!(code, 1, "{said}");
    assert!(said.contains("/shared is a file in ") && said.contains(" and a directory in "), "{said}");
    assert!(said.contains("  help: ") && !target.exists(), "{said}");
}

#[test]
fn two_programs_that_make_the_same_file_differ_and_the_report_says_where() {
    let sandbox = TestDirectory::new();
    let one = program(&sandbox, "one", "/shared", 4096);
    let (code, report, said) = together(&[&one, &one], &sandbox.path("target"), &[]);
    assert_eq!(code, 0, "{said}");
    let whole: u64 =
        report["whole"]["causes"].as_object().expect("causes").values().filter_map(Value::as_u64).sum();
    assert!(whole > 0, "one of them finds what the other made: {report:#}");
}

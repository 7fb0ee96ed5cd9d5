//! Every exit code that `weir-trace` documents, each from a command that ends with it.

use crate::common::{TestDirectory, copy_program, weir_trace};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

const OPEN: &str = "1 openat(AT_FDCWD, \"/f\", O_RDWR|O_CREAT, 0644) = 3";

/// Compiles calls, one after the other.
fn compiled(sandbox: &TestDirectory, calls: &[String], options: &[&str]) -> PathBuf {
    let (text, compiled) = (sandbox.path("trace"), sandbox.path("compiled"));
    let line = |(number, call): (usize, &String)| {
        let (thread, call) = call.split_once(' ').expect("a thread and a call");
        format!("{thread} 1700000000.{:06} {call} <0.000001>\n", number * 2)
    };
    fs::write(&text, calls.iter().enumerate().map(line).collect::<String>()).expect("a trace");
    let mut command = weir_trace();
    command.args(["compile"]).args(options).arg(&text).arg("-o").arg(&compiled);
    assert_eq!(code(&mut command).0, 0);
    compiled
}

/// The exit code of a command, and its messages.
fn code(command: &mut Command) -> (i32, String) {
    let output = command.output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().expect("no signal ends it"), said)
}

fn clone_of(thread: usize) -> String {
    format!("1 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = {thread}")
}

/// Two threads that take turns: in each round, one finds a directory that the other made before.
fn turns() -> Vec<String> {
    let mut calls = vec![clone_of(2)];
    for round in 0..20 {
        let (maker, finder) = if round % 2 == 0 { (1, 2) } else { (2, 1) };
        for made in 0..50 {
            calls.push(format!("{maker} mkdir(\"/{round}.{made}\", 0755) = 0"));
        }
        calls.push(format!("{finder} access(\"/{round}.49\", F_OK) = 0"));
    }
    calls
}

#[test]
fn zero_is_done_whatever_differs_and_three_is_strict() {
    let sandbox = TestDirectory::new();
    let compiled = compiled(&sandbox, &turns(), &[]);
    let replay = |options: &[&str]| {
        let mut command = weir_trace();
        command.args(["replay"]).args(options).arg("--on").arg(sandbox.path("t")).arg(&compiled);
        code(&mut command).0
    };
    assert_eq!(replay(&["--strict"]), 0);
    assert_eq!(replay(&["--order", "unconstrained"]), 0);
    assert_eq!(replay(&["--order", "unconstrained", "--strict"]), 3);
}

#[test]
fn compile_fails_where_little_is_used_unless_that_is_asked_for() {
    let sandbox = TestDirectory::new();
    let (text, compiled) = (sandbox.path("trace"), sandbox.path("compiled"));
    let unreadable = "what is this?\n".repeat(9);
    fs::write(&text, format!("mkdir(\"/a\", 0755) = 0\n{unreadable}")).expect("a trace");
    let compile = |options: &[&str]| {
        code(weir_trace().args(["compile"]).args(options).arg(&text).arg("-o").arg(&compiled))
    };
    let (found, said) = compile(&[]);
    let why = "1 of 10 calls can be used (10 %), and 50 % are asked for. Why the others cannot: 9: no call";
    assert!(found == 1 && said.contains(why) && said.contains("--min-used"), "{found}: {said}");
    assert!(!compiled.exists());
    assert_eq!(compile(&["--min-used", "10"]).0, 0);
    assert_eq!(compile(&["--min-used", "11"]).0, 1);
    assert_eq!(compile(&["--min-used", "101"]).0, 2);
}

#[test]
fn one_is_failed_and_two_is_nonsense_for_every_verb() {
    let sandbox = TestDirectory::new();
    let garbage = sandbox.path("garbage");
    fs::write(&garbage, "no compiled trace, no trace, no report\n".repeat(10)).expect("a file");
    let (garbage, target) = (garbage.display().to_string(), sandbox.path("t").display().to_string());
    let compiled = compiled(&sandbox, &[OPEN.into()], &[]).display().to_string();
    let missing = sandbox.path("missing/file").display().to_string();
    let output = sandbox.path("output").display().to_string();
    let failing: &[&[&str]] = &[
        &["record", "-o", &missing, "--", "true"],
        &["compile", &garbage, "-o", &output],
        &["compile", &missing, "-o", &output],
        &["compile", &garbage, "-o", &missing],
        &["info", &garbage],
        &["replay", &garbage, "--on", &target],
        &["replay", &compiled, &missing, "--on", &target],
        &["compare", &garbage, &garbage],
        &["explain", &compiled, "1"],
    ];
    for arguments in failing {
        let (found, said) = code(weir_trace().args(*arguments));
        assert!(
            found == 1 && said.starts_with("error: ") && said.contains("  help: "),
            "{arguments:?}: {said}"
        );
    }
    for verb in ["record", "compile", "info", "replay", "compare", "explain"] {
        assert_eq!(code(weir_trace().args([verb, "--no-such-option"])).0, 2, "{verb}");
        assert_eq!(code(weir_trace().args([verb])).0, 2, "{verb}: what it needs is missing");
    }
    assert_eq!(code(weir_trace().args(["calls"])).0, 0);
}

#[test]
fn four_is_a_target_that_cannot_hold_the_tree() {
    let sandbox = TestDirectory::new();
    let compiled = compiled(&sandbox, &[OPEN.into()], &[]);
    let (found, said) = code(weir_trace().args(["replay", "--on", "/proc/self/fdinfo"]).arg(&compiled));
    assert_eq!(found, 4, "{said}");
}

#[test]
fn five_is_a_replay_that_cannot_go_on_and_does_nothing_without_all_of_its_threads() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root may become a user of whom nothing else runs");
        return;
    }
    // A user with a low limit on threads, whom no other process uses.
    const USER: u32 = 3_141_592;
    let sandbox = TestDirectory::new();
    let calls: Vec<String> = (2..80)
        .map(clone_of)
        .chain((2..80).map(|made| format!("{made} mkdir(\"/{made}\", 0755) = 0")))
        .collect();
    let compiled = compiled(&sandbox, &calls, &[]);
    let program = sandbox.path("weir-trace");
    copy_program(env!("CARGO_BIN_EXE_weir-trace"), &program);
    let target = sandbox.path("target");
    fs::create_dir(&target).expect("a directory");
    for path in [&sandbox.path(""), &target, &program, &compiled] {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    }
    let script = "ulimit -u 30; exec \"$0\" replay --no-single --on \"$1\" \"$2\"";
    let mut shell = Command::new("bash");
    shell.args(["-c", script]).arg(&program).arg(&target).arg(&compiled).uid(USER).gid(USER);
    let (found, said) = code(&mut shell);
    if found == 4 && said.contains("cannot be confined") {
        eprintln!("skipped: users may not make namespaces here");
        return;
    }
    assert!(found == 5 && said.contains("threads could not be started"), "{found}: {said}");
    assert_eq!((2..80).find(|made| target.join(made.to_string()).exists()), None);
}

#[test]
fn a_recorded_program_keeps_its_own_code() {
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("skipped: strace is not installed");
        return;
    }
    let sandbox = TestDirectory::new();
    let record = |script: &str| {
        let mut command = weir_trace();
        command.args(["record", "-o"]).arg(sandbox.path("trace")).args(["--tree"]);
        code(command.arg(sandbox.path("")).args(["--", "sh", "-c", script])).0
    };
    assert_eq!((record("exit 0"), record("exit 7"), record("exit 3")), (0, 7, 3));
}

#[test]
fn output_that_cannot_be_written_is_an_error_and_no_panic() {
    for arguments in ["calls", "--help"] {
        let full = fs::File::options().write(true).open("/dev/full").expect("a full device");
        let (found, said) = code(weir_trace().arg(arguments).stdout(full));
        assert!(found == 1 && said.contains("standard output") && said.contains("  help: "), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
}

#[test]
fn manual_pages_are_of_the_program_and_of_each_verb() {
    let sandbox = TestDirectory::new();
    assert_eq!(code(weir_trace().arg("man").arg(sandbox.path(""))).0, 0);
    for page in ["weir-trace.1", "weir-trace-record.1", "weir-trace-compile.1", "weir-trace-replay.1"] {
        let text = fs::read_to_string(sandbox.path(page)).expect(page);
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
}

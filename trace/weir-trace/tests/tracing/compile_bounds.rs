//! Limits for hostile traces: a trace with very many tasks compiles in bounded memory, or fails with an error
//! that names the line.

use crate::common::{TestDirectory, weir_trace};
use std::fmt::Write;
use std::fs;
use std::process::{Command, Output};

/// Compiles with at most `memory_kib` of memory. The process aborts if it needs more.
fn compile(sandbox: &TestDirectory, text: &str, memory_kib: u64) -> Output {
    let trace = sandbox.path("trace");
    fs::write(&trace, text).expect("a trace");
    let script = format!("ulimit -v {memory_kib}; exec \"$0\" compile \"$1\" -o \"$2\"");
    let mut shell = Command::new("bash");
    shell.args(["-c", &script]).arg(weir_trace().get_program()).arg(trace).arg(sandbox.path("compiled"));
    shell.output().expect("bash")
}

fn line(text: &mut String, task: usize, at: usize, call: &str) {
    writeln!(text, "{task} 1700000000.{at:09} {call} <0.000000001>").expect("memory does not fail");
}

#[test]
fn tasks_that_each_make_a_name_and_then_list_the_directory_cost_memory_in_proportion() {
    const TASKS: usize = 12_000;
    let mut text = String::new();
    for task in 1..=TASKS {
        line(&mut text, task, 4 * task, &format!("mkdir(\"/d/{task}\", 0755) = 0"));
    }
    for task in 1..=TASKS {
        let at = 4 * (TASKS + task);
        line(&mut text, task, at, "openat(AT_FDCWD, \"/d\", O_RDONLY|O_DIRECTORY) = 3</d>");
        line(&mut text, task, at + 2, "getdents64(3</d>, [], 32768) = 48");
    }
    let output = compile(&TestDirectory::new(), &text, 1 << 20);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains(&format!("by {TASKS} threads")), "{told}");
}

#[test]
fn more_descriptors_than_four_million_are_refused_in_words() {
    let (mut text, mut at) = (String::new(), 0);
    let mut next = || {
        at += 4;
        at
    };
    for fd in 3..1003 {
        line(&mut text, 1, next(), &format!("openat(AT_FDCWD, \"/f\", O_RDONLY) = {fd}</f>"));
    }
    for child in 2..20_002 {
        line(&mut text, 1, next(), &format!("clone(child_stack=NULL, flags=SIGCHLD) = {child}"));
    }
    let output = compile(&TestDirectory::new(), &text, 2 << 20);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    // A child inherits its parent's 1000 descriptors, so the 4194th child exceeds the limit.
    assert!(
        said.contains("trace:5194: more than 4,194,304 descriptors") && said.contains("  help: "),
        "{said}"
    );
}

#[test]
fn more_tasks_than_a_million_are_refused_in_words() {
    let mut text = String::new();
    for task in 2..(1 << 20) + 100 {
        line(
            &mut text,
            1,
            4 * task,
            &format!("clone(child_stack=0x7f, flags=CLONE_FILES|CLONE_FS|CLONE_THREAD) = {task}"),
        );
    }
    let output = compile(&TestDirectory::new(), &text, 2 << 20);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("trace:1048576: more than 1,048,576 tasks") && said.contains("  help: "), "{said}");
}

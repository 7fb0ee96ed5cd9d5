//! One program, recorded by strace 6.1 with many sets of options. The compiled trace must be the same for
//! all.
//!
//! The program makes files, has a thread and a child, and finally calls exec in a second thread with an open
//! descriptor. Its file names have quotes, brackets, a backslash and an accent. In the names of the traces,
//! `f-` stands for `-f -o FILE`, `err` for `-f` to standard error, and `one` for neither; the rest is the
//! other options.

use std::io::BufReader;
use std::path::PathBuf;
use trace_compile::{CompileSettings, Source, Strace, TaskFiles};
use trace_file::{CompiledTrace, Fate, Op, Rule};

fn source(file: &str) -> (Box<dyn Source>, u32) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/forms").join(file);
    let text = BufReader::new(trace_compile::open_text(&path).expect("the trace is there"));
    (Box::new(Strace::new(text)), TaskFiles::task_of(&path).unwrap_or(0))
}

/// Compiles a trace. Every line must be used and every call followed, in both orders.
fn whole(source: &mut dyn Source, name: &str) -> CompiledTrace {
    let compiled = trace_compile::compile(source, name.as_ref(), &CompileSettings::default())
        .expect("the trace compiles");
    let about = &compiled.about;
    assert_eq!((&about.problems[..], about.used), (&[][..], about.lines), "{name}");
    let skipped = compiled.actions.iter().find(|action| matches!(action.fate, Fate::Skipped(_)));
    // In two traces, a call of the first thread ends with that thread.
    assert!(
        skipped
            .is_none_or(|action| name.starts_with("busy") && action.fate.text().contains("never returned")),
        "{name}: {skipped:?}"
    );
    for order in ["weir", "root"] {
        let verification = trace_verify::verify(&compiled, order, 100, 1).expect("the order is compiled");
        assert!(verification.holds() && verification.unjudged.is_empty(), "{name}: {verification}");
    }
    compiled
}

fn compiled(name: &str) -> CompiledTrace {
    whole(&mut *source(&format!("{name}.strace")).0, name)
}

/// The executed actions: thread, call, name and result. Closes by the ends of tasks are left out, because
/// their lines may be missing.
fn executed(compiled: &CompiledTrace) -> Vec<String> {
    let names = &compiled.names;
    let executed = compiled.actions.iter().filter(|action| action.fate == Fate::Executed);
    let mut all: Vec<(u32, u64, String)> = executed
        .filter(|action| !names.show(action.name).starts_with('+'))
        .map(|action| {
            let path = if let Op::Open { at, .. } = &action.op { names.show(at.path) } else { String::new() };
            let said = format!("{} {} {path} {:?}", action.thread, names.show(action.name), action.recorded);
            (action.thread, action.line, said)
        })
        .collect();
    all.sort();
    all.into_iter().map(|(_, _, said)| said).collect()
}

/// Asserts that all traces of a kind have the same actions as the first.
fn same(names: &[&str], calls: usize) {
    let first = executed(&compiled(names[0]));
    assert_eq!(first.len(), calls, "{first:#?}");
    for name in &names[1..] {
        assert_eq!(executed(&compiled(name)), first, "{name}");
    }
}

/// Number of executed calls of the program, its thread, its child, and the program after exec.
const CALLS: usize = 23;

#[test]
fn clocks_mean_the_same() {
    same(&["plain", "f-r", "f-r-ttt", "f-r-tt-ns", "f-ttt-T-y", "f-seconds", "f-r-seconds"], CALLS);
}

#[test]
fn numbers_of_calls_and_pointers_mean_the_same() {
    same(&["plain", "f-n-i", "f-t-n-i"], CALLS);
}

#[test]
fn names_of_programs_and_of_descriptors_mean_the_same() {
    same(&["plain", "f-Y-y", "f-Y-yy-xx"], CALLS);
}

#[test]
fn flags_as_numbers_mean_the_same() {
    same(&["plain", "f-raw-y", "f-verbose-y", "err-raw"], CALLS);
}

#[test]
fn standard_error_means_the_same() {
    same(&["plain", "err", "err-q", "err-qq", "err-r", "err-t-r", "err-Y-y"], CALLS);
}

#[test]
fn lines_without_tasks_mean_the_same() {
    same(&["one", "one-seconds", "one-r", "one-r-seconds", "one-n-i", "one-t-r"], 6);
}

#[test]
fn clock_keeps_pauses_of_relative_stamps() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/forms/f-r.strace");
    let text = std::fs::read_to_string(path).expect("the trace is there");
    let pause = |line: &str| -> Option<u64> { line.split_whitespace().nth(1)?.replace('.', "").parse().ok() };
    let microseconds: u64 = text.lines().map(|line| pause(line).expect("each line has a pause")).sum();
    let last = compiled("f-r").actions.iter().map(|action| action.end).max();
    assert!(microseconds > 0);
    assert_eq!(last, Some(1000 * microseconds));
}

/// Asserts that the program after exec writes to a file that its predecessor opened, in the thread that
/// called exec.
fn keeps_descriptors(compiled: &CompiledTrace, name: &str) {
    let names = &compiled.names;
    let exec = compiled.actions.iter().rfind(|action| names.show(action.name) == "execve");
    let exec = exec.unwrap_or_else(|| panic!("{name}: there is an exec"));
    let after = compiled.actions.iter().filter(|action| {
        action.thread == exec.thread && action.line > exec.line && action.fate == Fate::Executed
    });
    let after = after.map(|action| names.show(action.name)).filter(|name| !name.starts_with('+'));
    let after: Vec<String> = after.collect();
    assert_eq!(after, ["write", "pread64", "close", "unlinkat", "unlinkat"], "{name}");
    assert_eq!(compiled.about.repairs.descriptors, 0, "{name}");
    assert_eq!(compiled.about.threads, 4, "{name}");
}

#[test]
fn exec_of_a_thread_keeps_descriptors() {
    // In `busy`, the first thread is in another call meanwhile. With `qqq`, its end is not printed.
    for name in ["plain", "busy", "busy-qqq", "f-qqq", "err", "err-qq"] {
        keeps_descriptors(&compiled(name), name);
    }
}

#[test]
fn exec_of_a_thread_keeps_descriptors_in_a_file_for_each_task() {
    let files = ["ff.24186", "ff.24187", "ff.24189", "ff.24190"].map(source);
    let mut merged = TaskFiles::new(files.into());
    let compiled = whole(&mut merged, "ff");
    let names = &compiled.names;
    let after = compiled.actions.iter().find(|action| names.show(action.name) == "pread64");
    assert_eq!(after.map(|action| action.fate), Some(Fate::Executed));
    assert_eq!(executed(&compiled).len(), CALLS);
}

/// The inherited files of a trace with relative names: its working directory.
fn directory_of_relative_names(text: &str) -> Vec<String> {
    let compiled = whole(&mut Strace::new(text.as_bytes()), "relative");
    assert_eq!(compiled.actions.iter().filter(|action| action.fate == Fate::Executed).count(), 4);
    compiled.inherited.iter().map(|inherited| compiled.names.show(inherited.path)).collect()
}

#[test]
fn relative_names_need_no_known_directory() {
    let text = "mkdir(\"d\", 0755) = 0\nopenat(AT_FDCWD, \"d/a\", O_RDWR|O_CREAT, 0644) = 3\n\
        write(3, \"\"..., 5) = 5\nrename(\"d/a\", \"/b\") = 0\n";
    assert_eq!(directory_of_relative_names(text), ["/working-directory"]);
    let told = format!("getcwd(\"/srv/app\", 4096) = 9\n{text}");
    assert_eq!(directory_of_relative_names(&told), ["/srv/app"]);
}

#[test]
fn wait_for_a_process_whose_thread_called_exec_is_for_its_last_end() {
    let text = "1 100000001.1 clone(child_stack=NULL, flags=SIGCHLD) = 2 <0.0001>\n\
        2 100000001.2 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 3 <0.0001>\n\
        1 100000001.3 wait4(2,  <unfinished ...>\n\
        3 100000001.4 execve(\"/bin/x\", [\"x\"], 0x7f /* 0 vars */ <pid changed to 2 ...>\n\
        2 100000001.5 +++ superseded by execve in pid 3 +++\n\
        2 100000001.6 <... execve resumed>) = 0 <0.2>\n\
        2 100000001.7 mkdir(\"/srv/d\", 0755) = 0 <0.0001>\n\
        2 100000001.8 exit_group(0) = ?\n\
        2 100000001.9 +++ exited with 0 +++\n\
        1 100000001.95 <... wait4 resumed>[{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 2 <0.65>\n";
    let compiled = whole(&mut Strace::new(text.as_bytes()), "wait");
    let place = |line: u64| {
        compiled.actions.iter().position(|action| action.line == line).expect("the line has an action") as u32
    };
    let order = compiled.order("root").expect("both orders are compiled");
    let ends = order.of(place(3)).iter().filter(|wait| wait.rule == Rule::ChildEnd).map(|wait| wait.on);
    assert_eq!(ends.collect::<Vec<_>>(), [place(9)]);
}

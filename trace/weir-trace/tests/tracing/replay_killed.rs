//! Killed replays: a replay uses only directories that it made, and ends without leaving files however it is
//! killed.

use crate::common::{TestDirectory, succeeds, weir_trace};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use test_support::stop_ignoring_interrupts;

/// Time within which a killed replay must have ended. Nothing waits in it, and its tree is small.
const SOON: Duration = Duration::from_secs(5);

/// Time within which a replay has started on a busy machine.
const STARTED: Duration = Duration::from_secs(50);

/// A trace that makes a file and closes it after a minute.
const LONG: &str = "1 1700000000.000001 openat(AT_FDCWD, \"/made\", O_WRONLY|O_CREAT, 0666) = 3 <0.000001>\n\
                    1 1700000060.000003 close(3) = 0 <0.000001>\n";

fn compile(sandbox: &TestDirectory) -> PathBuf {
    let (text, compiled) = (sandbox.path("trace"), sandbox.path("compiled"));
    fs::write(&text, LONG).expect("a trace");
    succeeds(weir_trace().args(["compile"]).arg(&text).arg("-o").arg(&compiled));
    compiled
}

fn replay(compiled: &Path, target: &Path, options: &[&str]) -> Command {
    let mut command = weir_trace();
    command.args(["replay", "--no-single"]).args(options).arg("--on").arg(target).arg(compiled);
    command
}

/// Starts a replay and waits for its first call. Also returns the processes below it.
fn started(compiled: &Path, target: &Path) -> (Child, Vec<Pid>) {
    let mut command = replay(compiled, target, &["--natural"]);
    stop_ignoring_interrupts();
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it starts");
    assert!(makes_its_first_call(target));
    let below = below(pid(&child));
    assert!(!below.is_empty(), "a replay is a process of its own");
    (child, below)
}

/// Waits for the file of the first call.
fn makes_its_first_call(target: &Path) -> bool {
    within(STARTED, || walk(target).iter().any(|path| path.ends_with("made")))
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().cast_signed()).expect("a process")
}

/// The state letter of a process, and its parent; `None` if there is no such process.
fn state(pid: Pid) -> Option<(char, i32)> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn is_over(pid: Pid) -> bool {
    state(pid).is_none_or(|(state, _)| state == 'Z')
}

/// All descendants of a process.
fn below(parent: Pid) -> Vec<Pid> {
    let entries = fs::read_dir("/proc").expect("proc").filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw));
    let own: Vec<Pid> =
        pids.filter(|pid| state(*pid).is_some_and(|(_, of)| of == parent.as_raw_nonzero().get())).collect();
    own.iter().flat_map(|pid| [vec![*pid], below(*pid)].concat()).collect()
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    entries
        .flat_map(|path| {
            let inner = if path.is_dir() && !path.is_symlink() { walk(&path) } else { Vec::new() };
            [vec![path], inner].concat()
        })
        .collect()
}

fn soon(is_so: impl Fn() -> bool) -> bool {
    within(SOON, is_so)
}

fn within(time: Duration, is_so: impl Fn() -> bool) -> bool {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if is_so() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    is_so()
}

#[track_caller]
fn ends_and_leaves_nothing(signal: Signal) {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let target = sandbox.path("target");
    let (mut child, processes) = started(&compiled, &target);
    kill_process(pid(&child), signal).expect("it is there");
    child.wait().expect("it ends");
    let over = soon(|| processes.iter().all(|pid| is_over(*pid)));
    for pid in processes.iter().filter(|pid| !is_over(**pid)) {
        kill_process(*pid, Signal::KILL).expect("it is there");
    }
    assert!(over, "a child goes on");
    assert!(soon(|| walk(&target).is_empty()), "{:?}", walk(&target));
}

#[test]
fn a_replay_that_is_killed_ends_its_child_and_removes_its_tree_within_five_seconds() {
    ends_and_leaves_nothing(Signal::KILL);
}

#[test]
fn a_replay_that_is_terminated_ends_its_child_and_removes_its_tree() {
    ends_and_leaves_nothing(Signal::TERM);
}

#[test]
fn a_replay_that_is_interrupted_ends_its_child_and_removes_its_tree() {
    ends_and_leaves_nothing(Signal::INT);
}

/// Interrupts a replay during its pause, and returns its output.
fn interrupted(sandbox: &TestDirectory, signal: Signal, options: &[&str]) -> Output {
    let (compiled, target) = (compile(sandbox), sandbox.path("target"));
    let mut command = replay(&compiled, &target, &[&["--natural"], options].concat());
    stop_ignoring_interrupts();
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    assert!(makes_its_first_call(&target));
    let begun = Instant::now();
    kill_process(pid(&child), signal).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(walk(&target), Vec::<PathBuf>::new());
    output
}

#[test]
fn an_interrupted_replay_reports_what_it_replayed_and_another_one_works() {
    let sandbox = TestDirectory::new();
    let output = interrupted(&sandbox, Signal::INT, &[]);
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(report.starts_with("INCOMPLETE     stopped after 1 of 2 actions"), "{report}");
    assert!(report.contains("call                   1  openat") && !report.contains("close:"), "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.starts_with("interrupted: 1 of 2 actions were replayed") && said.lines().count() == 1,
        "{said}"
    );
    let whole = succeeds(&mut replay(&sandbox.path("compiled"), &sandbox.path("target"), &["--json"]));
    let report: serde_json::Value = serde_json::from_slice(&whole.stdout).expect("JSON");
    assert_eq!(report.get("incomplete"), None, "{report}");
    assert_eq!(String::from_utf8_lossy(&whole.stderr), "");
}

#[test]
fn a_terminated_replay_says_in_its_json_that_it_is_incomplete() {
    let sandbox = TestDirectory::new();
    let output = interrupted(&sandbox, Signal::TERM, &["--json"]);
    assert_eq!(output.status.code(), Some(143), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(report["incomplete"], serde_json::json!({"replayed": 1, "actions": 2}));
    assert!(report["elapsed_ns"].as_u64().expect("a number") < 60_000_000_000, "{report}");
}

/// As when a container or machine stops.
#[test]
fn what_a_replay_leaves_that_was_killed_with_all_its_processes_is_removed_by_the_next_one() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let target = sandbox.path("target");
    let (mut child, processes) = started(&compiled, &target);
    let others = target.join("weir-replay-1-0");
    fs::create_dir_all(others.join("tree")).expect("a directory that no replay made");
    // The reader is stopped, so it does nothing when the keeper is killed. The kernel then ends the replayer.
    kill_process(pid(&child), Signal::STOP).expect("it is there");
    kill_process(processes[0], Signal::KILL).expect("it is there");
    kill_process(pid(&child), Signal::KILL).expect("it is there");
    child.wait().expect("it ends");
    assert!(soon(|| processes.iter().all(|pid| is_over(*pid))));
    assert!(walk(&target).iter().any(|path| path.ends_with("made")), "nobody could remove it");
    let output = succeeds(&mut replay(&compiled, &target, &[]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("warning: ") && said.contains("killed"), "{said}");
    assert_eq!(walk(&target), [others.clone(), others.join("tree")]);
}

#[test]
fn a_replay_whose_child_is_killed_says_so_and_leaves_nothing() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let target = sandbox.path("target");
    let mut command = replay(&compiled, &target, &["--natural"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
    assert!(makes_its_first_call(&target));
    let last = *below(pid(&child)).last().expect("a replay is a process of its own");
    kill_process(last, Signal::KILL).expect("it is there");
    let output = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains("SIGKILL"), "{said}");
    assert_eq!(walk(&target), Vec::<PathBuf>::new());
}

#[test]
fn no_option_names_the_directory_that_a_replay_empties() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let precious = sandbox.path("precious");
    fs::create_dir(&precious).expect("a directory");
    fs::write(precious.join("file"), b"precious").expect("a file");
    let inside = precious.display().to_string();
    let output =
        replay(&compiled, &sandbox.path("target"), &["--inside", &inside]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(2), "there is no such option");
    assert_eq!(fs::read(precious.join("file")).expect("it is there"), b"precious");
}

/// Asserts that a replay refuses a foreign file or directory in the place of a kept tree.
#[track_caller]
fn is_not_taken(put: impl Fn(&Path, &Path)) {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let (target, precious) = (sandbox.path("target"), sandbox.path("precious"));
    fs::create_dir_all(precious.join("tree")).expect("a directory");
    fs::create_dir(&target).expect("a directory");
    fs::write(precious.join("tree/file"), b"precious").expect("a file");
    let kept = target.join("weir-replay-tree");
    put(&precious, &kept);
    let output = replay(&compiled, &target, &["--reuse"]).output().expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(4), "{said}");
    assert!(said.contains("weir-replay-tree") && said.contains("  help: "), "{said}");
    assert_eq!(fs::read(kept.join("tree/file")).expect("it is there"), b"precious");
}

#[test]
fn a_directory_that_somebody_else_made_is_not_taken_for_a_kept_tree() {
    is_not_taken(|precious, kept| fs::rename(precious, kept).expect("it is ours"));
}

#[test]
fn a_link_is_not_taken_for_a_kept_tree() {
    is_not_taken(|precious, kept| symlink(precious, kept).expect("a link"));
}

#[test]
fn a_kept_tree_whose_inside_was_replaced_by_a_link_is_refused() {
    let sandbox = TestDirectory::new();
    let compiled = compile(&sandbox);
    let (target, precious) = (sandbox.path("target"), sandbox.path("precious"));
    succeeds(&mut replay(&compiled, &target, &["--reuse"]));
    fs::create_dir(&precious).expect("a directory");
    fs::write(precious.join("file"), b"precious").expect("a file");
    let tree = target.join("weir-replay-tree/tree");
    assert!(tree.join("made").is_file(), "it was kept");
    fs::remove_dir_all(&tree).expect("it is ours");
    symlink(&precious, &tree).expect("a link");
    let output = replay(&compiled, &target, &["--reuse"]).output().expect("it starts");
    assert_eq!(output.status.code(), Some(4), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(precious.join("file")).expect("it is there"), b"precious");
}

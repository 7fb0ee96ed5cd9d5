//! Tests of small programs: their compiled traces, and the results of random orders.

mod rules;

use super::*;
use trace_compile::{CompileSettings, Strace, Switches, compile};
use trace_file::{Fate, Rule};

/// The number of random orders for one example. The smallest example has a handful of different ones.
const ORDERS: u64 = 2000;

/// The beginning of every example: thread 2 of the same process, and a file that both have open.
const THREADS: &str = "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR|O_CREAT, 0644) = 3</srv/a>\n\
    1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n\
    1 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2\n\
    2 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 4</srv/a>\n";

/// Compiles lines without stamps: each call follows the one before it.
fn compiled(lines: &str, switches: Switches) -> CompiledTrace {
    let stamped: String = (100_000_001u64..)
        .zip(lines.lines())
        .map(|(second, line)| {
            let (task, call) = line.trim().split_once(' ').expect("a task and a call");
            format!("{task} {second}.000000 {call}\n")
        })
        .collect();
    let mut source = Strace::new(stamped.as_bytes());
    let settings = CompileSettings { switches, ..CompileSettings::default() };
    let compiled = compile(&mut source, "example".as_ref(), &settings).expect("the example compiles");
    assert_eq!(compiled.about.problems, [], "{lines}");
    compiled
}

fn verified(lines: &str, order: &str, switches: Switches) -> Verification {
    let verification = verify(&compiled(lines, switches), order, ORDERS, 1).expect("the order is compiled");
    assert_eq!(verification.unjudged_calls, BTreeMap::new(), "{lines}");
    verification
}

#[test]
fn a_close_that_loses_locks_says_so() {
    let compiled = compiled(&format!("{THREADS}{}", rules::LOST_WITH_ANY), Switches::default());
    let unlocked = |action: &&trace_file::Action| match &action.op {
        trace_file::Op::Close { all, unlocked } => all.len() == 1 && unlocked.len() == 1,
        _ => false,
    };
    assert_eq!(compiled.actions.iter().filter(unlocked).count(), 1);
}

#[test]
fn locks_of_processes_that_share_a_description_are_not_mixed_up() {
    let lines = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
        1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = 0\n\
        9 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = -1 EAGAIN (Try again)\n";
    let compiled = compiled(&format!("{THREADS}{lines}"), Switches::default());
    let fates = compiled.fates();
    assert_eq!(fates.get(&Fate::Modelled(trace_file::Modelled::SharedLock)), Some(&1), "{fates:?}");
}

#[test]
fn a_terminal_that_is_not_there_cannot_be_opened() {
    let tty = "1 openat(AT_FDCWD</srv>, \"/dev/tty\", O_RDWR) = -1 ENXIO (No such device or address)\n";
    assert!(verified(&format!("{THREADS}{tty}"), "weir", Switches::default()).holds());
}

#[test]
fn what_a_pipe_or_socket_takes_from_a_file_is_read_from_it() {
    let lines = "1 pipe2([5<pipe:[7]>, 6<pipe:[7]>], O_CLOEXEC) = 0\n\
        1 splice(3</srv/a>, NULL, 6<pipe:[7]>, NULL, 4096, 0) = 4096\n\
        1 lseek(3</srv/a>, 0, SEEK_CUR) = 4096\n\
        2 splice(5<pipe:[7]>, NULL, 4</srv/a>, NULL, 100, 0) = 100\n2 lseek(4</srv/a>, 0, SEEK_CUR) = 100\n\
        1 pwritev2(3</srv/a>, [{iov_base=\"\"..., iov_len=5}], 1, -1, RWF_APPEND) = 5\n\
        1 lseek(3</srv/a>, 0, SEEK_END) = 4101\n";
    let verification = verified(&format!("{THREADS}{lines}"), "weir", Switches::default());
    assert!(verification.holds() && verification.judged == 9, "{verification}");
}

#[test]
fn a_seed_shows_a_difference_again() {
    let lines = format!("{THREADS}1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n");
    let compiled = compiled(&lines, Switches::without([Rule::Name]));
    let first = verify(&compiled, "weir", ORDERS, 1).expect("the order is compiled");
    let seed = first.results[0].seed;
    let again = verify(&compiled, "weir", 1, seed).expect("the order is compiled");
    assert_eq!(again.results[0].what.action, first.results[0].what.action);
}

#[test]
fn what_comes_of_orders_does_not_depend_on_the_number_of_processors() {
    let lines = format!("{THREADS}1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n");
    let compiled = compiled(&lines, Switches::without([Rule::Name]));
    let order = compiled.order("weir").expect("it is compiled");
    let run = |processors| Judge::new(&compiled, order).0.run_all(ORDERS, 1, processors);
    let one = run(1);
    assert_eq!(one.changed.len(), 1);
    assert_eq!(one, run(3));
}

#[test]
fn a_descriptor_that_was_sent_is_closed_by_who_received_it() {
    let compiled = compiled(&format!("{THREADS}{}", rules::SENT), Switches::default());
    // The receiving process closes the descriptor, so there is one close, and none for the sender.
    let closes = compiled.actions.iter().filter(|action| matches!(action.op, trace_file::Op::Close { .. }));
    assert_eq!((closes.count(), compiled.about.repairs.descriptors), (1, 0));
}

/// A thread that sleeps on a condition variable.
const SLEEP: &str = "2 futex(0x7f10, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>\n";

#[test]
fn a_wake_that_nobody_answered_wakes_nobody_who_sleeps_later() {
    let wake = "1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n";
    let lines = format!(
        "{THREADS}{wake}{SLEEP}1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n{wake}2 <... futex resumed>) = 0\n"
    );
    let compiled = compiled(&lines, Switches::default());
    let order = compiled.order("weir").expect("it is compiled");
    let woken_by: Vec<u64> = order
        .edges()
        .filter(|edge| edge.wait.rule == Rule::Wake)
        .map(|edge| compiled.actions[edge.from as usize].line)
        .collect();
    assert_eq!(woken_by, [8]);
}

#[test]
fn who_wakes_a_thread_at_last_would_have_ended_its_naps_before() {
    let nap = |word: &str| {
        format!(
            "2 futex({word}, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, {{tv_sec=1, tv_nsec=0}}, FUTEX_BITSET_MATCH_ANY) = -1 ETIMEDOUT (Connection timed out)\n"
        )
    };
    // The second word of the same condition variable, and a variable that no thread woke.
    let lines = format!(
        "{THREADS}{}{}{}{SLEEP}1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n2 <... futex resumed>) = 0\n",
        nap("0x7f10"),
        nap("0x7f14"),
        nap("0x7f18")
    );
    let compiled = compiled(&lines, Switches::default());
    let line = |action: u32| compiled.actions[action as usize].line;
    let naps: Vec<_> =
        compiled.about.naps.iter().map(|nap| (line(nap.action), line(nap.ends_with))).collect();
    assert_eq!(naps, [(5, 9), (6, 9)]);
}

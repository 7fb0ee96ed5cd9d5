//! Overlapping calls whose results determine their order. The lines have durations, so that entry and return
//! are known.

use crate::compile::{CompileSettings, compile};
use crate::parse::Strace;
use trace_file::{CompiledTrace, Fate, Op};
use trace_verify::verify;

/// Makes a directory in the trace, a file in it, and a second thread.
const BEGIN: &str = "1 000100 mkdir(\"/srv/d\", 0755) = 0 <0.000010>\n\
    1 000200 openat(AT_FDCWD</srv>, \"/srv/d/a\", O_RDWR|O_CREAT, 0644) = 3</srv/d/a> <0.000010>\n\
    1 000300 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2 <0.000010>\n";

/// Compiles lines that begin with a task and microseconds. The model must explain every result, and both
/// orders must hold.
fn explained(lines: &str) -> CompiledTrace {
    let stamped: String = format!("{BEGIN}{lines}")
        .lines()
        .map(|line| {
            let mut parts = line.trim().splitn(3, ' ');
            let mut next = || parts.next().expect("a task, microseconds and a call");
            format!("{} 100000001.{} {}\n", next(), next(), next())
        })
        .collect();
    let mut source = Strace::new(stamped.as_bytes());
    let compiled =
        compile(&mut source, "example".as_ref(), &CompileSettings::default()).expect("it compiles");
    let about = &compiled.about;
    assert_eq!((&about.problems[..], about.repairs.races, about.repairs.outside), (&[][..], 0, 0), "{lines}");
    for order in ["weir", "root"] {
        let verification = verify(&compiled, order, 500, 1).expect("the order is compiled");
        assert!(verification.unjudged.is_empty() && verification.results.is_empty(), "{verification}");
        assert!(order == "root" || verification.holds(), "{verification}");
    }
    compiled
}

fn place(compiled: &CompiledTrace, is: impl Fn(&Op<u32>) -> bool) -> usize {
    let found = |action: &trace_file::Action| action.fate == Fate::Executed && is(&action.op);
    compiled.actions.iter().position(found).expect("the action is there")
}

#[test]
fn a_later_position_tells_which_of_two_calls_came_first() {
    let lines = "1 001000 write(3</srv/d/a>, \"\"..., 100 <unfinished ...>\n\
        2 001010 lseek(3</srv/d/a>, 10, SEEK_SET <unfinished ...>\n\
        1 001020 <... write resumed>) = 100 <0.000020>\n\
        2 001030 <... lseek resumed>) = 10 <0.000020>\n";
    let untold = explained(lines);
    let is_write = |op: &Op<u32>| matches!(op, Op::Write { .. });
    let is_seek = |op: &Op<u32>| matches!(op, Op::Seek { .. });
    assert!(place(&untold, is_write) < place(&untold, is_seek));
    let told = explained(&format!("{lines}1 002000 lseek(3</srv/d/a>, 0, SEEK_CUR) = 110 <0.000010>\n"));
    assert!(place(&told, is_seek) < place(&told, is_write));
}

#[test]
fn a_later_size_tells_which_of_two_calls_came_first_although_others_came_between() {
    let between: String =
        (0..40).map(|call| format!("2 0020{call:02} access(\"/srv/d/a\", F_OK) = 0 <0.000000>\n")).collect();
    let lines = format!(
        "1 001000 ftruncate(3</srv/d/a>, 50 <unfinished ...>\n\
        2 001010 pwrite64(3</srv/d/a>, \"\"..., 100, 0 <unfinished ...>\n\
        1 001020 <... ftruncate resumed>) = 0 <0.000020>\n\
        2 001030 <... pwrite64 resumed>) = 100 <0.000020>\n{between}\
        1 003000 lseek(3</srv/d/a>, 0, SEEK_END) = 50 <0.000010>\n"
    );
    let told = explained(&lines);
    let resize = place(&told, |op| matches!(op, Op::Resize { .. }));
    assert!(place(&told, |op| matches!(op, Op::Write { .. })) < resize);
}

#[test]
fn a_name_that_an_overlapping_call_makes_was_not_there_before() {
    explained(
        "2 001000 access(\"/srv/d/x\", F_OK) = -1 ENOENT (No such file or directory) <0.000010>\n\
        1 001100 openat(AT_FDCWD</srv>, \"/srv/d/x\", O_RDWR|O_CREAT, 0644 <unfinished ...>\n\
        2 001110 chmod(\"/srv/d/x\", 0600 <unfinished ...>\n\
        2 001120 <... chmod resumed>) = 0 <0.000010>\n\
        1 001130 <... openat resumed>) = 4</srv/d/x> <0.000030>\n",
    );
}

#[test]
fn a_call_may_end_a_little_later_than_its_duration_says() {
    explained(
        "2 001000 openat(AT_FDCWD</srv>, \"/srv/d/x\", O_RDWR|O_CREAT|O_EXCL, 0644 <unfinished ...>\n\
        1 001060 link(\"/srv/d/a\", \"/srv/d/x\") = 0 <0.000010>\n\
        2 001090 <... openat resumed>) = -1 EEXIST (File exists) <0.000055>\n",
    );
}

#[test]
fn a_write_that_fails_behind_the_end_moves_nothing() {
    explained(
        "1 001000 openat(AT_FDCWD</srv>, \"/srv/d/a\", O_RDONLY) = 4</srv/d/a> <0.000010>\n\
        1 001100 pwrite64(4</srv/d/a>, \"\"..., 100, 5000) = -1 EBADF (Bad file descriptor) <0.000010>\n\
        2 001200 pread64(3</srv/d/a>, \"\", 100, 0) = 0 <0.000010>\n\
        2 001300 lseek(3</srv/d/a>, 0, SEEK_END) = 0 <0.000010>\n",
    );
}

#[test]
fn a_rename_between_two_names_of_one_file_leaves_both() {
    explained(
        "1 001000 link(\"/srv/d/a\", \"/srv/d/b\") = 0 <0.000010>\n\
        1 001100 rename(\"/srv/d/a\", \"/srv/d/b\") = 0 <0.000010>\n\
        2 001200 access(\"/srv/d/a\", F_OK) = 0 <0.000010>\n\
        2 001300 access(\"/srv/d/b\", F_OK) = 0 <0.000010>\n\
        1 001400 renameat2(AT_FDCWD</srv>, \"/srv/d/a\", AT_FDCWD</srv>, \"/srv/d/b\", RENAME_EXCHANGE) = 0 <0.000010>\n\
        1 001500 unlink(\"/srv/d/a\") = 0 <0.000010>\n\
        2 001600 access(\"/srv/d/b\", F_OK) = 0 <0.000010>\n",
    );
}

#[test]
fn a_directory_that_cannot_be_moved_into_itself_does_not_show_the_other_name() {
    explained(
        "1 001000 rename(\"/srv/d\", \"/srv/d/e\") = -1 EINVAL (Invalid argument) <0.000010>\n\
        2 001100 access(\"/srv/d/e\", F_OK) = -1 ENOENT (No such file or directory) <0.000010>\n",
    );
}

#[test]
fn a_lock_that_a_replay_leaves_out_refuses_nobody_there() {
    let compiled = explained(
        "1 001000 clone(child_stack=NULL, flags=SIGCHLD) = 9 <0.000010>\n\
        1 001100 fcntl(3</srv/d/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = 0 <0.000010>\n\
        9 001200 fcntl(3</srv/d/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=5, l_len=1}) = 0 <0.000010>\n\
        1 001300 fcntl(3</srv/d/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=5, l_len=1}) = -1 EAGAIN (Resource temporarily unavailable) <0.000010>\n",
    );
    let left_out = Fate::Modelled(trace_file::Modelled::SharedLock);
    assert_eq!(compiled.fates().get(&left_out), Some(&2));
}

#[test]
fn one_choice_that_explains_all_is_found_beside_one_that_explains_most() {
    let mut lines = String::from(
        "1 000400 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 5 <0.000010>\n\
        1 000500 openat(AT_FDCWD</srv>, \"/srv/d/b\", O_RDWR|O_CREAT, 0644) = 4</srv/d/b> <0.000010>\n\
        1 000600 openat(AT_FDCWD</srv>, \"/srv/d/c\", O_RDWR|O_CREAT, 0644) = 6</srv/d/c> <0.000010>\n\
        1 000700 ftruncate(3</srv/d/a>, 50) = 0 <0.000010>\n",
    );
    // Pairs of calls, either of which may come first.
    for pair in 0..24 {
        let at = 1000 + 50 * pair;
        let [first, second] = [(1, at), (2, at + 5)]
            .map(|(task, at)| format!("{task} {at:06} chmod(\"/srv/d/c\", 0600 <unfinished ...>\n"));
        let [third, fourth] = [(1, at + 10), (2, at + 20)]
            .map(|(task, at)| format!("{task} {at:06} <... chmod resumed>) = 0 <0.000005>\n"));
        lines += &[first, second, third, fourth].concat();
    }
    // The truncated file is the old one. If the stat came before the rename, the sizes would fit, but the
    // order would be wrong.
    lines += "1 003000 rename(\"/srv/d/a\", \"/srv/d/b\" <unfinished ...>\n\
        2 003010 truncate(\"/srv/d/b\", 14471 <unfinished ...>\n\
        1 003050 <... rename resumed>) = 0 <0.000045>\n\
        5 003060 openat(AT_FDCWD</srv>, \"/srv/d/a\", O_RDONLY <unfinished ...>\n\
        2 003080 <... truncate resumed>) = 0 <0.000065>\n\
        5 003100 <... openat resumed>) = -1 ENOENT (No such file or directory) <0.000030>\n";
    // Both calls end before the next calls of their threads.
    lines += "2 003150 access(\"/srv/d/c\", F_OK) = 0 <0.000005>\n5 003160 access(\"/srv/d/c\", F_OK) = 0 <0.000005>\n";
    for look in 0..4 {
        lines += &format!("1 0032{look}0 lseek(3</srv/d/b>, 0, SEEK_END) = 50 <0.000005>\n");
    }
    let told = explained(&lines);
    let rename = place(&told, |op| matches!(op, Op::Rename { .. }));
    assert!(place(&told, |op| matches!(op, Op::Resize { size: 14471, .. })) < rename);
}

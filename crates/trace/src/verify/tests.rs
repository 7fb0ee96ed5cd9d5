//! For each rule a small program that needs it: with the rules that would do the same switched off, all orders still give the
//! recorded results; with the rule off too, some order does not.

use super::*;
use crate::action::{Fate, Rule};
use crate::benchmark::{CompileSettings, compile};
use crate::order::Switches;
use crate::parse::Strace;

/// Random orders for one example: the smallest has a handful of different ones.
const ORDERS: u64 = 2000;

/// The beginning of every example: thread 2 of the same process, and a file that both have open.
const THREADS: &str = "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR|O_CREAT, 0644) = 3</srv/a>\n\
    1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n\
    1 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2\n\
    2 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 4</srv/a>\n";

/// Compiles lines without stamps: each call follows the one before it.
fn compiled(lines: &str, switches: Switches) -> Benchmark {
    let stamped: String = (100_000_001u64..)
        .zip(lines.lines())
        .map(|(second, line)| {
            let (task, call) = line.trim().split_once(' ').expect("a task and a call");
            format!("{task} {second}.000000 {call}\n")
        })
        .collect();
    let mut source = Strace::new(stamped.as_bytes());
    let settings = CompileSettings { switches, ..CompileSettings::default() };
    let benchmark = compile(&mut source, "example".as_ref(), &settings).expect("the example compiles");
    assert_eq!(benchmark.about.problems, [], "{lines}");
    benchmark
}

fn verified(lines: &str, order: &str, switches: Switches) -> Verification {
    let verification = verify(&compiled(lines, switches), order, ORDERS, 1).expect("the order is compiled");
    assert_eq!(verification.unjudged_calls, BTreeMap::new(), "{lines}");
    verification
}

/// A rule, the order that has it, those that subsume it, and a program.
fn needs(rule: Rule, order: &str, subsuming: &[Rule], lines: &str) {
    let lines = format!("{THREADS}{lines}");
    let all = verified(&lines, order, Switches::default());
    assert!(all.holds(), "{all}");
    let with = verified(&lines, order, Switches::without(subsuming.iter().copied()));
    assert!(with.holds(), "{rule:?}: {with}");
    let off = subsuming.iter().copied().chain([rule]);
    let without = verified(&lines, order, Switches::without(off));
    assert!(!without.holds(), "{rule:?} is not needed: {without}");
}

#[test]
fn bytes_are_read_after_they_were_written() {
    let lines =
        "1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n2 pread64(4</srv/a>, \"\"..., 4096, 0) = 4096";
    needs(Rule::Bytes, "weir", &[], lines);
    needs(Rule::FileSequence, "root", &[], lines);
}

#[test]
fn the_end_of_a_file_is_found_after_it_moved() {
    let lines = "1 pwrite64(3</srv/a>, \"\"..., 4096, 4096) = 4096\n2 lseek(4</srv/a>, 0, SEEK_END) = 8192";
    needs(Rule::Size, "weir", &[], lines);
}

#[test]
fn attributes_are_seen_after_they_changed() {
    let lines = "1 chmod(\"/srv/a\", 0600) = 0\n2 stat(\"/srv/a\", {st_mode=S_IFREG|0600, st_size=4096}) = 0";
    needs(Rule::Attributes, "weir", &[], lines);
}

#[test]
fn names_are_used_after_they_were_made_and_before_they_go() {
    let made = "1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0";
    let gone = "1 rename(\"/srv/a\", \"/srv/b\") = 0\n2 access(\"/srv/a\", F_OK) = -1 ENOENT (No such file)";
    for lines in [made, gone] {
        needs(Rule::Name, "weir", &[], lines);
        needs(Rule::PathName, "root", &[Rule::FileSequence], lines);
        needs(Rule::PathStage, "root", &[Rule::FileSequence], lines);
    }
}

#[test]
fn emptiness_is_found_after_it_ended() {
    let lines = "1 mkdir(\"/srv/d\", 0755) = 0\n1 write(3</srv/a>, \"\"..., 1) = 1\n2 access(\"/srv/d\", F_OK) = 0\n\
        1 mkdir(\"/srv/d/e\", 0755) = 0\n2 rmdir(\"/srv/d\") = -1 ENOTEMPTY (Directory not empty)";
    needs(Rule::Listing, "weir", &[], lines);
    needs(Rule::PathStage, "root", &[Rule::FileSequence], lines);
    let renamed = "1 mkdir(\"/srv/d\", 0755) = 0\n1 mkdir(\"/srv/f\", 0755) = 0\n1 write(3</srv/a>, \"\"..., 1) = 1\n\
        2 access(\"/srv/d\", F_OK) = 0\n2 access(\"/srv/f\", F_OK) = 0\n1 mkdir(\"/srv/d/e\", 0755) = 0\n\
        2 rename(\"/srv/f\", \"/srv/d\") = -1 ENOTEMPTY (Directory not empty)";
    needs(Rule::Listing, "weir", &[], renamed);
    needs(Rule::PathStage, "root", &[Rule::FileSequence], renamed);
}

#[test]
fn a_descriptions_position_and_life_keep_their_order() {
    let position = "1 lseek(3</srv/a>, 100, SEEK_SET) = 100\n2 lseek(3</srv/a>, 0, SEEK_CUR) = 100";
    needs(Rule::Description, "weir", &[], position);
    needs(Rule::DescriptorSequence, "root", &[Rule::FileSequence], position);
    let life = "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n2 fdatasync(5</srv/a>) = 0";
    needs(Rule::Description, "weir", &[], life);
    let subsuming = [Rule::FileSequence, Rule::DescriptorSequence, Rule::DescriptionStage];
    needs(Rule::DescriptorStage, "root", &subsuming, life);
}

#[test]
fn a_description_that_processes_share_is_closed_by_the_last_of_them() {
    let lines = "1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
        1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 fdatasync(5</srv/a>) = 0\n9 close(5</srv/a>) = 0\n\
        1 close(5</srv/a>) = 0";
    needs(Rule::DescriptionStage, "root", &[], lines);
}

#[test]
fn a_lock_is_taken_after_it_was_given_back() {
    let lines = "1 flock(3</srv/a>, LOCK_EX) = 0\n1 flock(3</srv/a>, LOCK_UN) = 0\n\
        2 flock(4</srv/a>, LOCK_EX) = 0\n2 flock(4</srv/a>, LOCK_UN) = 0";
    needs(Rule::Lock, "weir", &[], lines);
}

#[test]
fn what_was_exclusive_is_shared_before_others_share_it() {
    let whole =
        "1 flock(3</srv/a>, LOCK_EX) = 0\n1 flock(3</srv/a>, LOCK_SH) = 0\n2 flock(4</srv/a>, LOCK_SH) = 0";
    needs(Rule::Lock, "weir", &[], whole);
    let ranges = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
        9 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
        1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=2}) = 0\n\
        9 fcntl(5</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=1, l_len=1}) = -1 EAGAIN (Try again)\n\
        1 fcntl(3</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=0, l_len=2}) = 0\n\
        9 fcntl(5</srv/a>, F_SETLK, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=1, l_len=1}) = 0\n";
    needs(Rule::Lock, "weir", &[], ranges);
    needs(Rule::FileSequence, "root", &[], ranges);
}

#[test]
fn a_lock_that_cannot_be_converted_is_lost() {
    let lines = "1 flock(3</srv/a>, LOCK_SH) = 0\n2 flock(4</srv/a>, LOCK_SH) = 0\n\
        1 flock(3</srv/a>, LOCK_EX|LOCK_NB) = -1 EAGAIN (Try again)\n2 flock(4</srv/a>, LOCK_EX|LOCK_NB) = 0";
    needs(Rule::Lock, "weir", &[], lines);
}

#[test]
fn a_process_loses_its_locks_on_a_file_with_any_descriptor_of_it() {
    let lines = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
        9 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 5</srv/a>\n\
        1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 6</srv/a>\n\
        1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=0}) = 0\n\
        1 close(6</srv/a>) = 0\n\
        9 fcntl(5</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=7, l_len=1}) = 0\n";
    needs(Rule::Lock, "weir", &[], lines);
    needs(Rule::FileSequence, "root", &[], lines);
    let benchmark = compiled(&format!("{THREADS}{lines}"), Switches::default());
    let unlocked = |action: &&crate::action::Action| match &action.op {
        crate::op::Op::Close { all, unlocked } => all.len() == 1 && unlocked.len() == 1,
        _ => false,
    };
    assert_eq!(benchmark.actions.iter().filter(unlocked).count(), 1);
}

#[test]
fn locks_of_processes_that_share_a_description_are_not_mixed_up() {
    let lines = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
        1 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = 0\n\
        9 fcntl(3</srv/a>, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = -1 EAGAIN (Try again)\n";
    let benchmark = compiled(&format!("{THREADS}{lines}"), Switches::default());
    let fates = benchmark.fates();
    assert_eq!(fates.get(&Fate::Modelled(crate::action::Modelled::SharedLock)), Some(&1), "{fates:?}");
}

#[test]
fn attributes_appended_bytes_and_nameless_files_keep_their_order() {
    let extended = "1 setxattr(\"/srv/a\", \"user.x\", \"\"..., 4, 0) = 0\n\
        2 fgetxattr(4</srv/a>, \"user.x\", \"\"..., 64) = 4\n\
        1 removexattr(\"/srv/a\", \"user.x\") = 0\n2 getxattr(\"/srv/a\", \"user.x\", 0x7f, 64) = -1 ENODATA (No data)";
    needs(Rule::Attributes, "weir", &[], extended);
    needs(Rule::FileSequence, "root", &[], extended);
    let of_directory = "1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n\
        1 setxattr(\"/srv/d\", \"user.x\", \"\"..., 4, 0) = 0\n2 getxattr(\"/srv/d\", \"user.x\", \"\"..., 64) = 4";
    needs(Rule::FileSequence, "root", &[], of_directory);
    let append = "1 fcntl(3</srv/a>, F_SETFL, O_RDWR|O_APPEND) = 0\n1 write(3</srv/a>, \"\"..., 4096) = 4096\n\
        2 write(3</srv/a>, \"\"..., 100) = 100\n2 lseek(3</srv/a>, 0, SEEK_CUR) = 8292";
    needs(Rule::Description, "weir", &[Rule::Size, Rule::Bytes], append);
    let nameless = "1 openat(AT_FDCWD</srv>, \"/srv\", O_RDWR|O_TMPFILE, 0600) = 5</srv/#1>(deleted)\n\
        1 linkat(5</srv/#1>(deleted), \"\", AT_FDCWD</srv>, \"/srv/t\", AT_EMPTY_PATH) = 0\n\
        1 linkat(AT_FDCWD</srv>, \"/proc/self/fd/5\", AT_FDCWD</srv>, \"/srv/u\", AT_SYMLINK_FOLLOW) = 0\n\
        2 access(\"/srv/t\", F_OK) = 0\n2 access(\"/srv/u\", F_OK) = 0";
    needs(Rule::Name, "weir", &[], nameless);
    needs(Rule::PathName, "root", &[Rule::FileSequence], nameless);
}

#[test]
fn sockets_get_names_and_cannot_be_opened() {
    let lines = "1 socket(AF_UNIX, SOCK_STREAM, 0) = 5<socket:[1]>\n\
        1 bind(5<socket:[1]>, {sa_family=AF_UNIX, sun_path=\"/srv/s\"}, 110) = 0\n\
        2 openat(AT_FDCWD</srv>, \"/srv/s\", O_RDWR) = -1 ENXIO (No such device or address)\n\
        2 unlink(\"/srv/s\") = 0\n1 mknodat(AT_FDCWD</srv>, \"/srv/s\", S_IFREG|0644) = 0\n";
    needs(Rule::Name, "weir", &[], lines);
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
fn a_task_acts_after_it_was_made() {
    let lines = "1 mkdir(\"/srv/d\", 0755) = 0\n1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 access(\"/srv/d\", F_OK) = 0";
    needs(Rule::Clone, "weir", &[Rule::Name], lines);
    needs(Rule::Clone, "root", &[Rule::PathStage], lines);
}

#[test]
fn what_a_child_did_is_there_once_it_was_waited_for() {
    let lines = "1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n9 mkdir(\"/srv/d\", 0755) = 0\n9 +++ exited with 0 +++\n\
        1 wait4(9, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 9\n1 access(\"/srv/d\", F_OK) = 0";
    needs(Rule::ChildEnd, "weir", &[Rule::Name], lines);
    needs(Rule::ChildEnd, "root", &[Rule::PathStage], lines);
}

#[test]
fn a_vforks_parent_goes_on_after_its_child_has_left() {
    let lines = "1 vfork() = 9\n9 mkdir(\"/srv/d\", 0755) = 0\n9 execve(\"/bin/x\", [], 0x7f) = 0\n\
        1 access(\"/srv/d\", F_OK) = 0";
    needs(Rule::Hold, "weir", &[Rule::Name], lines);
    needs(Rule::Hold, "root", &[Rule::PathStage], lines);
}

#[test]
fn a_pipe_is_read_after_it_was_written() {
    let lines = "1 pipe2([5<pipe:[7]>, 6<pipe:[7]>], O_CLOEXEC) = 0\n1 mkdir(\"/srv/d\", 0755) = 0\n\
        1 write(6<pipe:[7]>, \"\"..., 1) = 1\n2 read(5<pipe:[7]>, \"\"..., 1) = 1\n2 access(\"/srv/d\", F_OK) = 0";
    needs(Rule::Pipe, "weir", &[Rule::Name], lines);
    needs(Rule::Pipe, "root", &[Rule::PathStage], lines);
}

#[test]
fn requests_are_collected_after_they_were_submitted() {
    let lines = "1 io_setup(8, [0x7f00]) = 0\n\
        1 io_submit(0x7f00, 1, [{aio_data=0, aio_lio_opcode=IOCB_CMD_PREAD, aio_fildes=3</srv/a>, aio_nbytes=4096, aio_offset=0}]) = 1\n\
        2 io_getevents(0x7f00, 1, 1, [{data=0, obj=0x7f, res=4096, res2=0}], NULL) = 1";
    needs(Rule::AioStage, "weir", &[], lines);
    needs(Rule::AioStage, "root", &[], lines);
}

#[test]
fn one_action_at_a_time_needs_no_other_rule() {
    let lines = format!(
        "{THREADS}1 chmod(\"/srv/a\", 0600) = 0\n2 lseek(4</srv/a>, 0, SEEK_END) = 4096\n\
        1 rename(\"/srv/a\", \"/srv/b\") = 0\n2 access(\"/srv/b\", F_OK) = 0\n"
    );
    for order in ["weir", "root"] {
        let none = || Switches::without(Rule::SWITCHABLE);
        let alone = verified(&lines, order, none().with_program_sequence());
        assert!(alone.holds() && alone.distinct == 1, "{alone}");
        assert!(!verified(&lines, order, none()).holds());
    }
}

/// A listing among the calls of another platform, each with what it must have become.
#[test]
fn calls_of_other_platforms_become_the_most_similar_ones_here() {
    let mut names = Vec::new();
    for (call, by, shown) in [
        ("getattrlist(\"/srv/a\", {}, 0x7f, 64, FSOPT_NOFOLLOW) = 0", "getattrlist", "Stat"),
        ("fgetattrlist(3</srv/a>, {}, 0x7f, 64, 0) = 0", "fgetattrlist", "Stat"),
        ("setattrlist(\"/srv/a\", {}, 0x7f, 64, 0) = 0", "setattrlist", "SetTimes"),
        ("fsetattrlist(3</srv/a>, {}, 0x7f, 64, 0) = 0", "fsetattrlist", "SetTimes"),
        ("getdirentriesattr(7</srv>, {}, 0x7f, 4096) = 0", "getdirentriesattr", "List"),
        ("chflags(\"/srv/a\", 0) = 0", "chflags", "SetTimes"),
        ("fchflags(3</srv/a>, 0) = 0", "fchflags", "SetTimes"),
        ("extattr_set_file(\"/srv/a\", 1, \"x\", \"\"..., 4) = 4", "extattr_set_file", "SetAttribute"),
        ("extattr_get_file(\"/srv/a\", 1, \"x\", 0x7f, 64) = 4", "extattr_get_file", "GetAttribute"),
        ("extattr_list_file(\"/srv/a\", 1, 0x7f, 64) = 2", "extattr_list_file", "ListAttributes"),
        ("extattr_delete_file(\"/srv/a\", 1, \"x\") = 0", "extattr_delete_file", "RemoveAttribute"),
        ("fcntl(3</srv/a>, F_RDADVISE, {ra_offset=0, ra_count=4096}) = 0", "fcntl(F_RDADVISE)", "Advise"),
        ("fcntl(3</srv/a>, F_NOCACHE, 1) = 0", "fcntl(F_NOCACHE)", "Advise"),
        ("fcntl(3</srv/a>, F_PREALLOCATE, {fst_length=8192}) = 0", "fcntl(F_PREALLOCATE)", "Allocate"),
        ("fsctl(\"/srv/a\", 0x1, 0x7f, 0) = 0", "fsctl", "Stat"),
        ("ffsctl(3</srv/a>, 0x1, 0x7f, 0) = 0", "ffsctl", "Stat"),
        ("fsgetpath(0x7f, 1024, {}, 2) = 6", "fsgetpath", "StatFs"),
        ("fcntl(3</srv/a>, F_FULLFSYNC) = 0", "fcntl(F_FULLFSYNC)", "Sync"),
        ("exchangedata(\"/srv/a\", \"/srv/b\", 0) = 0", "exchangedata", "Exchange"),
    ] {
        let lines = format!(
            "{THREADS}1 openat(AT_FDCWD</srv>, \"/srv/b\", O_RDWR|O_CREAT, 0644) = 5</srv/b>\n\
            1 openat(AT_FDCWD</srv>, \"/srv\", O_RDONLY|O_DIRECTORY) = 7</srv>\n1 {call}\n"
        );
        let benchmark = compiled(&lines, Switches::default());
        let last = benchmark.actions.last().expect("there are actions");
        assert_eq!(last.fate, Fate::Executed, "{call}");
        assert!(format!("{:?}", last.op).starts_with(&format!("{shown} {{")), "{call}: {:?}", last.op);
        names.push(by);
    }
    names.sort_unstable();
    let mut listed = crate::decode::EMULATED.map(|(name, _)| name);
    listed.sort_unstable();
    assert_eq!(names, listed);
}

#[test]
fn data_that_are_exchanged_are_found_under_the_other_name() {
    let lines = "1 openat(AT_FDCWD</srv>, \"/srv/b\", O_RDWR|O_CREAT, 0644) = 5</srv/b>\n\
        1 exchangedata(\"/srv/a\", \"/srv/b\", 0) = 0\n\
        2 stat_nocancel(\"/srv/b\", {st_mode=S_IFREG|0644, st_size=4096}) = 0\n\
        2 stat(\"/srv/a\", {st_mode=S_IFREG|0644, st_size=0}) = 0";
    needs(Rule::Name, "weir", &[], lines);
    needs(Rule::PathName, "root", &[Rule::FileSequence], lines);
}

#[test]
fn a_seed_shows_a_difference_again() {
    let lines = format!("{THREADS}1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n");
    let benchmark = compiled(&lines, Switches::without([Rule::Name]));
    let first = verify(&benchmark, "weir", ORDERS, 1).expect("the order is compiled");
    let seed = first.results[0].seed;
    let again = verify(&benchmark, "weir", 1, seed).expect("the order is compiled");
    assert_eq!(again.results[0].what.action, first.results[0].what.action);
}

#[test]
fn what_comes_of_orders_does_not_depend_on_the_number_of_processors() {
    let lines = format!("{THREADS}1 mkdir(\"/srv/d\", 0755) = 0\n2 access(\"/srv/d\", F_OK) = 0\n");
    let benchmark = compiled(&lines, Switches::without([Rule::Name]));
    let order = benchmark.order("weir").expect("it is compiled");
    let run = |processors| Judge::new(&benchmark, order).0.run_all(ORDERS, 1, processors);
    let one = run(1);
    assert_eq!(one.changed.len(), 1);
    assert_eq!(one, run(3));
}

#[test]
fn a_descriptor_is_used_by_another_process_after_it_was_sent() {
    let lines = "1 socketpair(AF_UNIX, SOCK_STREAM, 0, [5<socket:[1]>, 6<socket:[2]>]) = 0\n\
        1 clone(child_stack=NULL, flags=SIGCHLD) = 9\n\
        1 openat(AT_FDCWD</srv>, \"/srv/a\", O_RDWR) = 7</srv/a>\n1 mkdir(\"/srv/d\", 0755) = 0\n\
        1 sendmsg(5<socket:[1]>, {msg_iov=[{iov_base=\"\"..., iov_len=1}], msg_control=[{cmsg_len=20, cmsg_level=SOL_SOCKET, cmsg_type=SCM_RIGHTS, cmsg_data=[7</srv/a>]}]}, 0) = 1\n\
        1 close(7</srv/a>) = 0\n\
        9 recvmsg(6<socket:[2]>, {msg_iov=[{iov_base=\"\"..., iov_len=1}], msg_control=[{cmsg_len=20, cmsg_level=SOL_SOCKET, cmsg_type=SCM_RIGHTS, cmsg_data=[8</srv/a>]}]}, 0) = 1\n\
        9 access(\"/srv/d\", F_OK) = 0\n9 fdatasync(8</srv/a>) = 0\n9 close(8</srv/a>) = 0\n";
    needs(Rule::Passed, "weir", &[Rule::Name], lines);
    needs(Rule::Passed, "root", &[Rule::PathStage], lines);
    let benchmark = compiled(&format!("{THREADS}{lines}"), Switches::default());
    // It is open until the process that received it closes it: one close, and none for the sender.
    let closes = benchmark.actions.iter().filter(|action| matches!(action.op, crate::op::Op::Close { .. }));
    assert_eq!((closes.count(), benchmark.about.repairs.descriptors), (1, 0));
}

#[test]
fn names_that_are_exchanged_keep_their_files() {
    let lines = "1 mkdir(\"/srv/d\", 0755) = 0\n\
        1 renameat2(AT_FDCWD</srv>, \"/srv/a\", AT_FDCWD</srv>, \"/srv/d\", RENAME_EXCHANGE) = 0\n\
        2 rmdir(\"/srv/a\") = 0\n2 openat(AT_FDCWD</srv>, \"/srv/d\", O_RDWR) = 5</srv/d>\n\
        1 renameat2(AT_FDCWD</srv>, \"/srv/d\", AT_FDCWD</srv>, \"/srv/e\", RENAME_NOREPLACE) = 0\n";
    needs(Rule::Name, "weir", &[], lines);
}

/// How a thread sleeps on a condition variable.
const SLEEP: &str = "2 futex(0x7f10, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, NULL, FUTEX_BITSET_MATCH_ANY <unfinished ...>\n";

#[test]
fn who_was_woken_goes_on_after_the_wake() {
    let lines = format!(
        "{SLEEP}1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n\
        2 <... futex resumed>) = 0\n2 pread64(4</srv/a>, \"\"..., 4096, 0) = 4096\n"
    );
    needs(Rule::Wake, "weir", &[Rule::Bytes], &lines);
    needs(Rule::Wake, "root", &[Rule::FileSequence], &lines);
}

#[test]
fn a_wake_that_nobody_answered_wakes_nobody_who_sleeps_later() {
    let wake = "1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n";
    let lines = format!(
        "{THREADS}{wake}{SLEEP}1 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n{wake}2 <... futex resumed>) = 0\n"
    );
    let benchmark = compiled(&lines, Switches::default());
    let order = benchmark.order("weir").expect("it is compiled");
    let woken_by: Vec<u64> = order
        .edges()
        .filter(|edge| edge.wait.rule == Rule::Wake)
        .map(|edge| benchmark.actions[edge.from as usize].line)
        .collect();
    assert_eq!(woken_by, [8]);
}

#[test]
fn who_waits_for_a_thread_goes_on_after_its_last_call() {
    let lines = "1 clone3({flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD|CLONE_CHILD_CLEARTID, child_tid=0x7f20}, 88) = 3\n\
        3 pwrite64(3</srv/a>, \"\"..., 4096, 0) = 4096\n3 exit(0) = ?\n\
        1 futex(0x7f20, FUTEX_WAIT_BITSET|FUTEX_CLOCK_REALTIME, 3, NULL, FUTEX_BITSET_MATCH_ANY) = 0\n\
        1 pread64(3</srv/a>, \"\"..., 4096, 0) = 4096\n3 +++ exited with 0 +++\n";
    needs(Rule::Wake, "weir", &[Rule::Bytes], lines);
}

#[test]
fn who_wakes_a_thread_at_last_would_have_ended_its_naps_before() {
    let nap = |word: &str| {
        format!(
            "2 futex({word}, FUTEX_WAIT_BITSET_PRIVATE|FUTEX_CLOCK_REALTIME, 0, {{tv_sec=1, tv_nsec=0}}, FUTEX_BITSET_MATCH_ANY) = -1 ETIMEDOUT (Connection timed out)\n"
        )
    };
    // The second word of the same condition variable, and another one, where nobody woke it.
    let lines = format!(
        "{THREADS}{}{}{}{SLEEP}1 futex(0x7f10, FUTEX_WAKE_PRIVATE, 1) = 1\n2 <... futex resumed>) = 0\n",
        nap("0x7f10"),
        nap("0x7f14"),
        nap("0x7f18")
    );
    let benchmark = compiled(&lines, Switches::default());
    let line = |action: u32| benchmark.actions[action as usize].line;
    let naps: Vec<_> =
        benchmark.about.naps.iter().map(|nap| (line(nap.action), line(nap.ends_with))).collect();
    assert_eq!(naps, [(5, 9), (6, 9)]);
}

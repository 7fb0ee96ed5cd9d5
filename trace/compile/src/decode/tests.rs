use super::*;
use crate::call::Share;
use crate::parse::{Source, Strace};
use trace_file::{LockKind, LockOwner, Op, RequestKind};

fn call(line: &str) -> (Call, Names, Coverage) {
    let (mut names, mut coverage) = (Names::default(), Coverage::default());
    let mut source = Strace::new(line.as_bytes());
    let event = source.next_event().expect("memory does not fail").expect("a call");
    (decode(&event, &mut names, &mut coverage), names, coverage)
}

/// The operation of a call that is fully understood.
fn ask(line: &str) -> Ask {
    let (call, _, coverage) = call(line);
    assert_eq!(coverage.problems.keys().collect::<Vec<_>>(), Vec::<&String>::new(), "{line}");
    call.ask
}

fn outcome(line: &str) -> Outcome {
    call(line).0.outcome
}

#[test]
fn llseek_is_lseek_with_the_position_as_its_result() {
    let (call, ..) = call("_llseek(3</a>, -10, [4294967301], SEEK_CUR) = 0");
    assert_eq!(call.ask, Ask::File(Op::Seek { on: 3, offset: -10, whence: libc::SEEK_CUR as u32 }));
    assert_eq!(call.outcome, Outcome::Value(4_294_967_301));
    assert_eq!(
        outcome("_llseek(99, 0, 0x41d2a040, SEEK_SET) = -1 EBADF (Bad file descriptor)"),
        Outcome::Error(libc::EBADF)
    );
}

#[test]
fn errors_have_numbers_with_and_without_a_name() {
    assert_eq!(outcome("fsync(3) = -1 (errno 3000) (INJECTED)"), Outcome::Error(3000));
    assert_eq!(outcome("mkdir(\"a\", 0755) = -1 ENOTSUPP (Unknown error 524)"), Outcome::Error(524));
    assert_eq!(outcome("mkdir(\"a\", 0755) = -1 ERRNO_523 (Unknown error 523)"), Outcome::Error(523));
    assert_eq!(
        outcome("write(3, \"\", 1) = -1 EUCLEAN (Structure needs cleaning)"),
        Outcome::Error(libc::EUCLEAN)
    );
    assert_eq!(outcome("write(3, \"\", 1) = -1"), Outcome::Unknown);
}

#[test]
fn calls_mean_the_same_with_numbers_for_flags() {
    for (named, raw) in [
        ("unlinkat(AT_FDCWD, \"a\", AT_REMOVEDIR) = 0", "unlinkat(-100, \"a\", 0x200) = 0"),
        ("unlinkat(AT_FDCWD, \"a\", 0) = 0", "unlinkat(0xffffff9c, \"a\", 0) = 0"),
        ("dup3(3, 4, O_CLOEXEC) = 4", "dup3(3, 4, 0x80000 /* O_CLOEXEC */) = 4"),
        ("newfstatat(3, \"a\", {}, AT_SYMLINK_NOFOLLOW) = 0", "newfstatat(3, \"a\", {}, 0x100) = 0"),
        ("fcntl(3, F_DUPFD_CLOEXEC, 5) = 5", "fcntl(3, 0x406, 5) = 5"),
        ("fcntl(3, F_DUPFD, 5) = 5", "fcntl(3, 0 /* F_DUPFD */, 5) = 5"),
        ("fcntl(3, F_SETFD, FD_CLOEXEC) = 0", "fcntl(3, 0x2, 0x1) = 0"),
        ("fcntl(3, F_SETFL, O_RDWR|O_APPEND) = 0", "fcntl(3, 0x4, 0x402) = 0"),
        (
            "fcntl(3, F_SETLK, {l_type=F_WRLCK, l_whence=SEEK_SET, l_start=0, l_len=1}) = 0",
            "fcntl(3, 0x6, {l_type=0x1, l_whence=0, l_start=0, l_len=1}) = 0",
        ),
        ("pipe2([3, 4], O_CLOEXEC) = 0", "pipe2([3, 4], 0x80000) = 0"),
        ("socket(AF_UNIX, SOCK_STREAM|SOCK_CLOEXEC, 0) = 3", "socket(0x1, 0x1|0x80000, 0) = 3"),
        ("lseek(3, 5, SEEK_SET) = 5", "lseek(3, 5, 0 /* SEEK_SET */) = 5"),
        ("futex(0x7f, FUTEX_WAKE_PRIVATE, 1) = 1", "futex(0x7f, 0x81, 0x1) = 1"),
        (
            "clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD|SIGCHLD) = 9",
            "clone(child_stack=0x7f, flags=0x10700|17) = 9",
        ),
    ] {
        assert_eq!(ask(named), ask(raw), "{raw}");
        assert_ne!(ask(raw), Ask::Idle, "{raw}");
    }
}

#[test]
fn range_that_is_marked_for_exec_is_not_closed() {
    for flag in ["CLOSE_RANGE_CLOEXEC", "0x4", "0x4 /* CLOSE_RANGE_CLOEXEC */"] {
        assert_eq!(call(&format!("close_range(3, 5, {flag}) = 0")).0.ask, Ask::Unsupported, "{flag}");
    }
}

#[test]
fn raw_numbers_say_what_is_shared_locked_and_submitted() {
    let shared = Share { files: true, directory: true, process: true, hold: false };
    let thread = ask("clone3({flags=0x3d0f00, child_tid=0x7f, exit_signal=0} => {parent_tid=[9]}, 88) = 9");
    assert_eq!(thread, Ask::Clone { child: Some(9), share: shared, wakes: Some(0x7f) });
    let lock = ask("fcntl64(3, F_SETLKW64, {l_type=F_RDLCK, l_whence=SEEK_SET, l_start=4, l_len=1}) = 0");
    let owner = LockOwner::Process;
    assert_eq!(lock, Ask::File(Op::Lock { on: 3, kind: LockKind::Shared, start: 4, bytes: 1, owner }));
    let submitted = ask(
        "io_submit(0x7f1, 1, [{aio_data=0, aio_lio_opcode=0x1, aio_fildes=3, aio_buf=\"\", aio_nbytes=8, aio_offset=0}]) = 1",
    );
    let Ask::AioSubmit { requests, .. } = submitted else { panic!("{submitted:?}") };
    assert_eq!(requests[0].kind, RequestKind::Write);
}

#[test]
fn open_keeps_its_meaning_beside_flags_that_nobody_knows() {
    let open = |flags: &str| ask(&format!("openat(AT_FDCWD, \"a\", {flags}, 0644) = 3"));
    let known = open("O_RDWR|O_CREAT");
    assert_eq!(open("O_RDWR|O_CREAT|O_SOMETHING_NEW"), known);
    assert_eq!(open("O_RDWR|O_CREAT|__O_SYNC|O_DSYNC"), open("O_RDWR|O_CREAT|O_SYNC"));
}

#[test]
fn call_with_another_unknown_flag_is_no_other_call() {
    let (call, _, coverage) = call("renameat2(AT_FDCWD, \"a\", AT_FDCWD, \"b\", RENAME_SOMETHING_NEW) = 0");
    assert_eq!(call.ask, Ask::Unsupported);
    assert!(coverage.problems.contains_key("renameat2: a flag is unknown"));
}

#[test]
fn names_of_tasks_are_no_descriptors() {
    for line in [
        "wait4(26470<a\\76 ]b>, NULL, 0, NULL) = 26470<a\\76 ]b>",
        "kill(7<cat>, SIGTERM) = 0",
        "fcntl(3, F_SETOWN, 7<cat>) = 0",
        "sendmsg(3, {msg_control=[{cmsg_type=SCM_CREDENTIALS, cmsg_data={pid=7<cat>, uid=0}}]}, 0) = 1",
    ] {
        assert_eq!(call(line).0.notes, Box::default(), "{line}");
    }
    assert_eq!(ask("wait4(26470<cat>, NULL, 0, NULL) = 26470<cat>"), Ask::Wait { child: Some(26470) });
    assert_eq!(call("fcntl(3</a>, F_GETFL) = 2").0.notes.len(), 1);
}

#[test]
fn names_of_older_and_32_bit_programs_are_known() {
    let same = [
        ("ftruncate64(3, 7) = 0", "ftruncate(3, 7) = 0"),
        ("truncate64(\"a\", 7) = 0", "truncate(\"a\", 7) = 0"),
        ("chown32(\"a\", 1, 2) = 0", "chown(\"a\", 1, 2) = 0"),
        ("fadvise64_64(3, 0, 7, POSIX_FADV_DONTNEED) = 0", "fadvise64(3, 0, 7, POSIX_FADV_DONTNEED) = 0"),
        ("statfs64(\"a\", 84, {}) = 0", "statfs(\"a\", {}) = 0"),
    ];
    for (old, usual) in same {
        assert_eq!(ask(old), ask(usual), "{old}");
    }
}

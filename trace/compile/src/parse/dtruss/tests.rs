use super::*;

fn events(text: &str) -> (Vec<TraceEvent>, Coverage) {
    let mut source = Dtruss::new(text.as_bytes());
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("memory does not fail") {
        events.push(event);
    }
    (events, source.coverage().clone())
}

fn one(text: &str) -> (String, Vec<Value>, Recorded) {
    let (mut events, coverage) = events(text);
    assert_eq!((events.len(), coverage.problems.len()), (1, 0), "{text}: {coverage:?}");
    match events.remove(0).what {
        EventKind::Call { name, args, result } => (name, args, result),
        what => panic!("{text}: {what:?}"),
    }
}

fn numbers(text: &str) -> Vec<i64> {
    let number = |value| if let Value::Number(number) = value { Some(number) } else { None };
    one(text).1.into_iter().filter_map(number).collect()
}

/// The tasks and calls, in the order of the events.
fn calls(text: &str) -> Vec<String> {
    let shown = events(text).0.into_iter().map(|event| match event.what {
        EventKind::Call { name, result: Recorded::Value(value, _), .. } => {
            format!("{} {name} {value}", event.task)
        }
        what => format!("{} {what:?}", event.task),
    });
    shown.collect()
}

#[test]
fn trace_of_dtruss_is_known_by_its_header_or_a_call() {
    for text in [
        "\tPID/THRD  RELATIVE  ELAPSD    CPU SYSCALL(args) \t\t = return\n",
        "what is this?\nclose(0x3)\t\t = 0 0\n",
        "stat64(\"/a\\0\", 0x7FFEE0, 0x0)\t\t = -1 Err#2\n",
        "  31/0x2a:  close(0x3) = -1 9",
    ] {
        assert!(is_dtruss(text.as_bytes()), "{text}");
    }
    for text in [
        "close(3) = 0\n",
        "7 12:00:00 close(3)                        = -1 EBADF (Bad file descriptor) <0.000005>\n",
        "write(1, \"close(0x3) = 0 0\\n\", 17) = 17\n",
        "write(1, \"SYSCALL(args) = return\\n\", 23) = 23\n",
        "select(4, [3], NULL, NULL, {tv_sec=1, tv_usec=0}) = 0 (Timeout)\n",
        "",
    ] {
        assert!(!is_dtruss(text.as_bytes()), "{text}");
    }
}

#[test]
fn texts_end_before_their_zero_and_are_cut_off_at_255_bytes() {
    let path = |text: &str| match one(text).1.remove(0) {
        Value::Text { bytes, whole } => (bytes, whole),
        value => panic!("{value:?}"),
    };
    assert_eq!(
        path("unlink(\"a \\\"b\\\" = 1 \\303\\251\\a\\0\", 0x0, 0x0) = 0 0\n").0,
        "a \"b\" = 1 é\x07".as_bytes()
    );
    for (length, whole) in [(254, true), (255, false)] {
        let text = format!("unlink(\"{}\\0\", 0x0, 0x0) = 0 0\n", "a".repeat(length));
        assert_eq!(path(&text), (vec![b'a'; length], whole));
    }
}

#[test]
fn results_are_values_and_errors() {
    let result = |text: &str| one(&format!("close(0x3)\t\t = {text}\n")).2;
    let error = |name: &str| Recorded::Error(name.into());
    assert_eq!(result("3 0"), Recorded::Value(3, None));
    assert_eq!(result("0 Err#-2"), Recorded::Value(0, None));
    assert_eq!(result("0x10ED4F000 0"), Recorded::Value(0x1_0ED4_F000, None));
    assert_eq!(result("-1 Err#2"), error("ENOENT"));
    assert_eq!(result("-1 2"), error("ENOENT"));
    // The numbers of these differ from Linux's.
    assert_eq!(result("-1 Err#11"), error("EDEADLK"));
    assert_eq!(result("-1 Err#35"), error("EAGAIN"));
    assert_eq!(result("-1 Err#66"), error("ENOTEMPTY"));
    assert_eq!(result("-1 Err#78"), error("ENOSYS"));
    assert_eq!(result("-1 Err#93"), error("ENODATA"));
    assert_eq!(result("-1 Err#102"), error("EOPNOTSUPP"));
    assert_eq!(result("-1 Err#106"), Recorded::Unknown);
    assert_eq!(result("-1 Err#316"), Recorded::Unknown);
}

#[test]
fn flags_become_those_of_linux() {
    let flags = i64::from(libc::O_WRONLY | libc::O_CREAT | libc::O_TRUNC | libc::O_CLOEXEC);
    assert_eq!(numbers("open_nocancel(\"a\\0\", 0x1000601, 0x81A4) = 3 0\n"), [flags, 0o644]);
    let flags = i64::from(libc::O_RDWR | libc::O_APPEND | libc::O_EXCL);
    assert_eq!(numbers("openat(0x4, \"a\\0\", 0x80A, 0x0) = 3 0\n"), [4, flags, 0]);
    assert_eq!(numbers("unlinkat(0x4, \"a\\0\", 0x80) = 0 0\n"), [4, libc::AT_REMOVEDIR.into()]);
    assert_eq!(numbers("lseek(0x4, 0x10, 0x4) = 16 0\n"), [4, 16, libc::SEEK_DATA.into()]);
    assert_eq!(
        one("unlinkat(0xFFFFFFFFFFFFFFFE, \"a\\0\", 0x0) = 0 0\n").1[0],
        Value::Symbol("AT_FDCWD".into())
    );
    assert_eq!(one("fcntl_nocancel(0x4, 0x9, 0x7FFEE0) = 0 0\n").1[1], Value::Symbol("F_SETLKW".into()));
    assert_eq!(one("fcntl(0x4, 0x6D, 0x7FFEE0) = 0 0\n").1[1], Value::Symbol("F_109".into()));
}

#[test]
fn position_of_more_than_32_bits_is_completed() {
    assert_eq!(one("lseek(0x4, 0x180000000, 0x0) = -2147483648 0\n").2, Recorded::Value(0x1_8000_0000, None));
    assert_eq!(one("lseek(0x4, 0x0, 0x2) = -2147483648 0\n").2, Recorded::Value(0x8000_0000, None));
}

#[test]
fn registers_behind_the_arguments_are_left_out() {
    assert_eq!(numbers("dup2(0x4, 0x5, 0x7FFEFF80000) = 5 0\n"), [4, 5]);
    assert_eq!(numbers("open(\"a\\0\", 0x0, 0xFFFFFFFFE1B5FB00) = 3 0\n"), [0, 0]);
}

#[test]
fn lines_without_a_call_are_used_or_counted() {
    let used = "dtrace: system integrity protection is on, some features will not be available\n\n\
        SYSCALL(args) \t\t = return\n  \n\
        dtrace: error on enabled probe ID 9 (ID 5: syscall::sysctl:return): invalid kernel access\n\
        \x20             libsystem_kernel.dylib`__open+0xa\n              0x7fff5fc0\n\
        sysctl([CTL_KERN, 14, 1, 31, 0, 0] (4), 0x7FFEE0, 0x7FFEE8, 0x0, 0x0)\t\t = 0 0\n\
        sysctlbyname(kern.bootargs, 0xD, 0x7FFEE0, 0x7FFEE8, 0x0)\t\t = 0 0\n\
        Enter a name: close(0x3)\t\t = 0 0\n\
        \nCALL                                        COUNT\nclose                                           1\n";
    let (events, coverage) = events(used);
    assert_eq!((events.len(), coverage.used), (3, coverage.lines), "{coverage:?}");

    let unread = "dtrace: error on enabled probe ID 9 (ID 5: syscall::read:return): invalid kernel access\n\
        dtrace: 1347 dynamic variable drops with non-empty dirty list\nhello world\nprint(a) = 1\n";
    let (_, coverage) = self::events(unread);
    let counts: Vec<_> = coverage.problems.iter().map(|(kind, problem)| (&kind[..], problem.count)).collect();
    assert_eq!(counts, [("call that dtruss could not print", 2), ("no call of dtruss", 2)]);
    assert_eq!((coverage.lines, coverage.used), (4, 0));
}

#[test]
fn clock_adds_calls_and_the_computing_between_them() {
    let text = "\tPID/THRD  RELATIVE  ELAPSD    CPU SYSCALL(args) \t\t = return\n\
        \x20 31/0x2a:      1000      10      5 close(0x3)\t\t = 0 0\n\
        \x20 31/0x2a:      1105     300     20 close(0x4)\t\t = 0 0\n\
        \x20 31/0x2b:        70     200     20 close(0x5)\t\t = 0 0\n\
        \x20 31/0x2a:      1135      10     10 close(0x6)\t\t = 0 0\n";
    let (events, _) = events(text);
    let times: Vec<_> = events.iter().map(|event| (event.start, event.end)).collect();
    // The first thread computes for 85 us between its first calls, and for 20 us after the second. The third
    // event makes the other thread.
    let expected =
        [(0, 10_000), (95_000, 395_000), (395_000, 395_000), (395_000, 395_001), (415_000, 425_000)];
    assert_eq!(times, expected);
}

#[test]
fn lines_without_times_follow_each_other() {
    let (events, _) = events("close(0x3)\t\t = 0 0\nclose(0x4)\t\t = 0 0\n");
    let times: Vec<_> = events.iter().map(|event| (event.start, event.end)).collect();
    assert_eq!(times, [(1, 1), (2, 2)]);
}

#[test]
fn thread_shares_the_descriptors_of_its_process() {
    let text = "31/0x2a:  dup(0x3, 0x0, 0x0)\t\t = 4 0\n31/0x2b:  dup(0x4, 0x0, 0x0)\t\t = 5 0\n";
    let made = THREAD_NUMBER_MIN;
    assert_eq!(calls(text), ["31 dup 4".into(), format!("31 clone {made}"), format!("{made} dup 5")]);
}

#[test]
fn text_of_the_program_before_the_columns_is_left_out() {
    assert_eq!(calls("A name, please: 31/0x2a:  dup(0x3, 0x0, 0x0)\t\t = 4 0\n"), ["31 dup 4"]);
}

#[test]
fn child_begins_after_its_fork_and_ends_before_the_wait_for_it() {
    let child = ["32/0x2b:  fork()\t\t = 0 0\n", "32/0x2b:  dup(0x3, 0x0, 0x0)\t\t = 4 0\n"];
    let fork = "31/0x2a:  fork()\t\t = 32 0\n";
    let expected = ["31 dup 3", "31 fork 32", "32 fork 0", "32 dup 4", "32 Ended", "31 wait4 32"];
    for lines in [[fork, child[0], child[1]], [child[0], fork, child[1]], [child[0], child[1], fork]] {
        let begin = "31/0x2a:  dup(0x2, 0x0, 0x0)\t\t = 3 0\n";
        let end = "31/0x2a:  wait4(0xFFFFFFFFFFFFFFFF, 0x7FFEE0, 0x0)\t\t = 32 0\n";
        assert_eq!(calls(&format!("{begin}{}{end}", lines.concat())), expected, "{lines:?}");
    }
}

#[test]
fn child_whose_fork_is_missing_loses_no_call() {
    let begin = "31/0x2a:  dup(0x2, 0x0, 0x0)\t\t = 3 0\n32/0x2b:  fork()\t\t = 0 0\n";
    let text = begin.to_owned() + &"32/0x2b:  dup(0x3, 0x0, 0x0)\t\t = 4 0\n".repeat(ORPHAN_CALLS_MAX + 10);
    assert_eq!(calls(begin), ["31 dup 3", "32 fork 0"]);
    assert_eq!(calls(&text).len(), ORPHAN_CALLS_MAX + 12);
}

#[test]
fn every_cut_of_a_line_is_read() {
    let line = b"  31/0x2a:      1105     300     20 open(\"a \\\"b\\0\", 0x601, 0x1B6)\t\t = -1 Err#2";
    for end in 0..=line.len() {
        for begin in 0..=end {
            drop(super::line::line(&line[begin..end]));
        }
    }
}

use super::*;
use crate::event::Value;
use trace_file::TRACER_NOTE;

fn events(text: &str) -> (Vec<TraceEvent>, Coverage) {
    let mut source = Strace::new(text.as_bytes());
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("memory does not fail") {
        events.push(event);
    }
    (events, source.coverage().clone())
}

fn one(text: &str) -> TraceEvent {
    let (mut events, coverage) = events(text);
    assert_eq!((events.len(), coverage.problems.len()), (1, 0), "{coverage:?}");
    events.remove(0)
}

fn args(event: &TraceEvent) -> &[Value] {
    match &event.what {
        EventKind::Call { args, .. } => args,
        _ => panic!("not a call"),
    }
}

#[test]
fn the_stamp_of_a_whole_line_is_its_entry_and_that_of_a_second_half_its_exit() {
    let whole = one("7  100000000.000001 close(3) = 0 <0.000005>\n");
    assert_eq!((whole.task, whole.start % SECOND, whole.end - whole.start), (7, 1000, 5000));
    let halves = one(
        "7 100000000.000001 close(3 <unfinished ...>\n7 100000000.000009 <... close resumed>) = 0 <0.000008>\n",
    );
    assert_eq!((halves.start % SECOND, halves.end % SECOND, halves.line), (1000, 9000, 1));
}

#[test]
fn a_duration_counts_in_two_halves_only_where_the_clock_is_too_coarse_to_show_it() {
    let end = |second: &str, took: &str| {
        let halves =
            format!("7 100000000 fsync(3 <unfinished ...>\n7 {second} <... fsync resumed>) = 0 <{took}>\n");
        one(&halves).end % (100 * SECOND)
    };
    // The tracer took the first 20 us, before it began to measure.
    assert_eq!(end("100000000.000120", "0.000100"), 120_000);
    assert_eq!(end("100000000", "0.250000"), SECOND / 4);
    assert_eq!(end("100000001", "0.250000"), SECOND);
}
const SECOND: u64 = 1_000_000_000;

#[test]
fn a_result_is_split_off_outside_of_brackets_and_quotes_only() {
    let wait =
        one("9 100000000.1 wait4(9769, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 9769 <0.1>\n");
    let EventKind::Call { result, .. } = &wait.what else { panic!() };
    assert_eq!(*result, Recorded::Value(9769, None));
    let odd = one("9 100000000.1 unlink(\"a) = 5\\\" b\") = -1 ENOENT (No such file or directory) <0.1>\n");
    assert_eq!(args(&odd)[0], Value::Text { bytes: b"a) = 5\" b".to_vec(), whole: true });
    let clone = one(
        "9 100000000.1 clone3({flags=CLONE_VM|CLONE_FS, stack=0x7f} => {parent_tid=[9746]}, 88) = 9746\n",
    );
    assert_eq!(args(&clone)[0].field("flags"), Some(&Value::Symbol("CLONE_VM|CLONE_FS".into())));
    assert_eq!(args(&clone).len(), 2);
}

#[test]
fn names_are_bytes_and_escapes_are_undone() {
    let event = one("mkdir(\"\\303\\251\\n\\x41\\0\", 0755) = 0\n");
    assert_eq!(args(&event)[0], Value::Text { bytes: b"\xc3\xa9\nA\0".to_vec(), whole: true });
    assert_eq!(args(&event)[1], Value::Number(0o755));
}

#[test]
fn notes_beside_descriptors_may_hold_what_ends_them() {
    let event = one("5 100000000.1 openat(AT_FDCWD</srv>, \"a>b\", O_RDONLY) = 3</srv/a>b>(deleted) <0.1>\n");
    assert_eq!(args(&event)[0], Value::Descriptor { number: libc::AT_FDCWD, note: b"/srv".to_vec() });
    let EventKind::Call { result, .. } = &event.what else { panic!() };
    assert_eq!(*result, Recorded::Value(3, Some(b"/srv/a>b (deleted)".to_vec())));
    let raw = one("fchdir(-100 /* AT_FDCWD */</srv>) = 0\n");
    assert_eq!(args(&raw)[0], Value::Descriptor { number: -100, note: b"/srv".to_vec() });
}

#[test]
fn the_three_forms_of_a_task_and_midnight_are_understood() {
    assert_eq!(one("[pid  12] 23:59:59.5 close(3) = 0\n").task, 12);
    assert_eq!(one("100000000.5 close(3) = 0\n").task, 0);
    let (both, _) = events("1 23:59:59.5 close(3) = 0\n1 00:00:00.5 close(4) = 0\n");
    assert_eq!(both[1].start - both[0].start, SECOND);
    let (relative, _) = events("1 0.000000 close(3) = 0\n1 0.5 close(4) = 0\n");
    assert_eq!(relative[1].start - relative[0].start, SECOND / 2);
}

#[test]
fn a_call_that_never_resumes_has_an_unknown_result() {
    let (found, coverage) = events(
        "1 100000000.1 futex(0x7f, FUTEX_WAIT <unfinished ...>\n1 100000000.2 +++ exited with 0 +++\n",
    );
    let EventKind::Call { result, .. } = &found[0].what else { panic!() };
    assert_eq!((result, coverage.unfinished), (&Recorded::Unknown, 1));
    assert_eq!(found[1].what, EventKind::Ended);
}

#[test]
fn garbage_is_counted_by_kind_with_its_first_line() {
    let deep = format!("1 f({}\n", "[".repeat(100_000));
    let text = format!("\u{1}\u{2}\n1 close(3\n1 <... x resumed>) = 0\n--- SIGCHLD {{}} ---\n\n{deep}");
    let (found, coverage) = events(&text);
    assert_eq!((found.len(), coverage.lines, coverage.used), (0, 6, 2));
    assert_eq!(coverage.problems["call that cannot be read"].count, 2);
    assert_eq!(coverage.problems["call that cannot be read"].line, 2);
    assert_eq!(coverage.problems["resumed, but never begun"].line, 3);
}

#[test]
fn a_call_that_a_signal_interrupts_and_the_kernel_makes_again_is_one() {
    let again = one(
        "1 100000000.1 wait4(-1, 0x7f, 0, NULL) = ? ERESTARTSYS (To be restarted if SA_RESTART is set) <0.1>\n\
        1 100000000.2 --- SIGCHLD {si_signo=SIGCHLD} ---\n\
        1 100000000.3 wait4(-1, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 7 <0.2>\n",
    );
    let EventKind::Call { result, .. } = &again.what else { panic!() };
    assert_eq!(
        (result, again.line, again.end - again.start),
        (&Recorded::Value(7, None), 1, SECOND * 4 / 10)
    );
    let resumed = one(
        "1 100000000.1 nanosleep({tv_sec=1}, 0x7f) = ? ERESTART_RESTARTBLOCK (Interrupted by signal) <0.1>\n\
        1 100000000.3 restart_syscall(<... resuming interrupted nanosleep ...>) = 0 <0.5>\n",
    );
    let EventKind::Call { name, result, .. } = &resumed.what else { panic!() };
    assert_eq!((name.as_str(), result), ("nanosleep", &Recorded::Value(0, None)));
}

#[test]
fn an_interrupted_call_that_never_goes_on_has_no_result() {
    let (found, _) = events(
        "1 100000000.1 read(3</a>, 0x7f, 10) = ? ERESTARTSYS (To be restarted) <0.1>\n\
        1 100000000.2 close(3</a>) = 0 <0.1>\n2 100000000.3 read(4</a>, 0x7f, 10) = ? ERESTARTSYS (x)\n",
    );
    let results: Vec<&Recorded> = found
        .iter()
        .filter_map(|event| match &event.what {
            EventKind::Call { result, .. } => Some(result),
            _ => None,
        })
        .collect();
    assert_eq!(results, [&Recorded::Unknown, &Recorded::Value(0, None), &Recorded::Unknown]);
}

#[test]
fn files_of_one_task_each_are_merged_by_their_stamps() {
    let first = Strace::new(&b"100000000.1 close(3) = 0 <0.1>\n100000000.9 close(4) = 0 <0.1>\n"[..]);
    let second = Strace::new(&b"100000000.5 close(5) = 0 <0.1>\n"[..]);
    let mut merged = crate::parse::TaskFiles::new(vec![(Box::new(first), 11), (Box::new(second), 12)]);
    let mut tasks = Vec::new();
    while let Some(event) = merged.next_event().expect("memory does not fail") {
        tasks.push(event.task);
    }
    assert_eq!((tasks, merged.coverage().lines), (vec![11, 12, 11], 3));
    assert_eq!(crate::parse::TaskFiles::task_of("trace.123".as_ref()), Some(123));
    assert_eq!(crate::parse::TaskFiles::task_of("trace.strace".as_ref()), None);
}

#[test]
fn remark_between_a_call_and_its_end_is_taken_out() {
    for (first, rest) in [
        ("clone(child_stack=NULL, flags=SIGCHLDstrace: Process 8 attached", ", child_tidptr=0x7f) = 8"),
        ("clone(Process 8 attached", "child_stack=0, flags=SIGCHLD, child_tidptr=0x7f) = 8"),
        ("clone3({flags=SIGCHLD, tls=0x7f}strace: Process 8 attached", " => {parent_tid=[8]}, 88) = 8"),
        (
            "clone(child_stack=NULL, flags=SIGCHLDstrace: Process 8 attached\nstrace: Process 9 attached",
            ") = 8",
        ),
    ] {
        let event = one(&format!("{first}\n{rest}\n"));
        let EventKind::Call { name, result, .. } = &event.what else { panic!() };
        assert!(name.starts_with("clone") && *result == Recorded::Value(8, None), "{first}");
    }
    let halves = one(
        "wait4(-1, strace: Process 8 attached\n <unfinished ...>\n<... wait4 resumed>NULL, 0, NULL) = 8\n",
    );
    assert_eq!(args(&halves).len(), 4);
}

#[test]
fn call_whose_end_never_comes_after_a_remark_is_counted() {
    let (found, coverage) = events("clone(flags=SIGCHLDstrace: Process 8 attached\nclose(3) = 0\n");
    assert_eq!((found.len(), coverage.used, coverage.lines), (1, 1, 2));
    assert_eq!(coverage.problems["call without its end"].line, 1);
}

#[test]
fn lines_without_a_number_belong_to_the_only_task() {
    let tasks = |text: &str| -> Vec<u32> { events(text).0.iter().map(|event| event.task).collect() };
    let fork = "fork() = 8\n[pid 7] close(3) = 0\n[pid 8] close(3) = 0\n";
    let ended = |pid: u32| format!("[pid {pid}] +++ exited with 0 +++\nclose(4) = 0\n");
    // The first task keeps the name that it had before its number was known.
    assert_eq!(tasks(&format!("close(2) = 0\n{fork}{}", ended(8))), [0, 0, 0, 8, 8, 0]);
    // The child goes on alone.
    assert_eq!(tasks(&format!("close(2) = 0\n{fork}{}", ended(7))), [0, 0, 0, 8, 0, 8]);
    // The child comes first, while the call that makes it is under way.
    let early = "vfork( <unfinished ...>\n[pid 8] close(3) = 0\n[pid 7] <... vfork resumed>) = 8\n";
    assert_eq!(tasks(early), [8, 0]);
    // A remark tells the number of the task that strace is attached to.
    assert_eq!(
        tasks("strace: Process 7 attached\nclose(2) = 0\nfork() = 8\n[pid 7] close(3) = 0\n"),
        [7, 7, 7]
    );
}

#[test]
fn lines_beside_calls_are_no_problem() {
    let text = "7 close(3) = 0\n > /usr/lib/libc.so.6(__close+0x5b) [0xf7f3b]\n | 00000  7f 45 4c 46   .ELF |\n\
        Process 9 suspended\n7 read(3,  <detached ...>\n[ Process PID=7 runs in 32 bit mode. ]\n";
    let (found, coverage) = events(text);
    assert_eq!((found.len(), coverage.used, coverage.problems.len()), (2, 6, 0));
}

#[test]
fn exec_of_a_thread_ends_the_first_task_and_takes_its_number() {
    let superseded = "7 +++ superseded by execve in pid 8 +++\n";
    let resumed = "7 <... execve resumed>) = 0\n7 close(3) = 0\n";
    let own = "7 read(3,  <unfinished ...>\n";
    let unfinished =
        "8 execve(\"/x\", [\"x\"], 0x7f <unfinished ...>\n7 <... read resumed> <unfinished ...>) = ?\n";
    let renumbered = "8 execve(\"/x\", [\"x\"], 0x7f <pid changed to 7 ...>\n";
    for text in [
        format!("{own}{unfinished}{superseded}{resumed}"),
        format!("{own}{renumbered}{superseded}{resumed}"),
        format!("{own}{unfinished}{resumed}"),
        format!("{own}{renumbered}{resumed}"),
    ] {
        let (found, coverage) = events(&text);
        let said: Vec<_> = found
            .iter()
            .map(|event| match &event.what {
                EventKind::Call { name, result, .. } => (event.task, name.clone(), result.clone()),
                EventKind::Superseded { by } => {
                    (event.task, format!("superseded by {by}"), Recorded::Unknown)
                }
                EventKind::Ended => (event.task, "end".into(), Recorded::Unknown),
            })
            .collect();
        let expected = [
            (7, "read", Recorded::Unknown),
            (8, "execve", Recorded::Value(0, None)),
            (7, "superseded by 8", Recorded::Unknown),
            (7, "close", Recorded::Value(0, None)),
        ];
        assert_eq!(said, expected.map(|(task, name, result)| (task, name.to_owned(), result)), "{text}");
        assert_eq!(coverage.used, coverage.lines, "{text}");
    }
}

#[test]
fn half_an_exec_of_an_unknown_task_is_no_thread_of_another() {
    let (found, coverage) =
        events("8 execve(\"/x\", [\"x\"], 0x7f <unfinished ...>\n7 <... execve resumed>) = 0\n");
    assert!(found.iter().all(|event| !matches!(event.what, EventKind::Superseded { .. })));
    assert_eq!(coverage.problems["resumed, but never begun"].line, 2);
}

#[test]
fn notes_beside_descriptors_have_their_escapes_undone() {
    let note = |text: &str| match args(&one(&format!("close({text}) = 0\n"))) {
        [Value::Descriptor { number: 3, note }] => note.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(note(r#"3</a \"\0741\76\\ \303\251>"#), b"/a \"<1>\\ \xc3\xa9");
    assert_eq!(note(r"3<\x2f\x61\x3e>"), b"/a>");
    assert_eq!(note("3</dev/null<char 1:3>>"), b"/dev/null");
    assert_eq!(note("3</dev/sda<block 8:0>>(deleted)"), b"/dev/sda (deleted)");
    // Old straces print names as they are.
    assert_eq!(note(r"3</a\9>"), br"/a\9");
}

#[test]
fn error_needs_no_name() {
    let result = |text: &str| match one(&format!("fsync(3) = {text}\n")).what {
        EventKind::Call { result, .. } => result,
        other => panic!("{other:?}"),
    };
    assert_eq!(result("-1 (errno 3000) (INJECTED)"), Recorded::Error("3000".into()));
    assert_eq!(result("-1 ERRNO_523 (Unknown error 523)"), Recorded::Error("ERRNO_523".into()));
    assert_eq!(result("-1"), Recorded::Unknown);
}

/// Real lines, whole and in halves, of every shape that the parser knows.
const SAMPLE: &str = include_str!("../../../tests/data/shapes.strace");

/// The same to standard error, where lines have no numbers at times and remarks stand in between.
const UNNUMBERED: &str = include_str!("../../../tests/data/forms/err-Y-y.strace");

#[test]
fn no_line_of_the_sample_is_unusable() {
    let (_, coverage) = events(SAMPLE);
    assert_eq!(coverage.problems.keys().collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn damaged_traces_compile_or_are_refused_and_never_panic() {
    use device::SeededRng;
    const ROUNDS: u64 = 3000;
    const MARKS: &[u8] = b"<>()[]{}\"\\,|=-9\n";
    for seed in 0..ROUNDS {
        let mut random = SeededRng::new(seed);
        let mut text = if seed % 2 == 0 { SAMPLE } else { UNNUMBERED }.as_bytes().to_vec();
        for _ in 0..=random.index(20) {
            let (at, other) = (random.index(text.len()), random.index(text.len()));
            match random.index(6) {
                0 => text[at] = random.next_u64() as u8,
                1 if text.len() > 1 => drop(text.remove(at)),
                2 => text.insert(at, MARKS[random.index(MARKS.len())]),
                3 => text.truncate(at.max(1)),
                4 => text.extend_from_within(at.min(other)..at.max(other)),
                _ => text.swap(at, other),
            }
        }
        let settings = crate::compile::CompileSettings { used_percent_min: 0, ..Default::default() };
        let compiled = crate::compile::compile(&mut Strace::new(&text[..]), "fuzz".as_ref(), &settings);
        if let Ok(compiled) = compiled {
            let lines = text.split(|byte| *byte == b'\n').count() as u64;
            assert!(
                compiled.about.used <= compiled.about.lines && compiled.about.lines <= lines,
                "seed {seed}"
            );
            drop(trace_verify::verify(&compiled, "weir", 1, seed).expect("the order is compiled"));
        }
    }
}

#[test]
fn what_the_tracer_costs_is_noted_in_the_trace_and_is_no_problem() {
    let cost = TracerCost { busy: 14200, after_wait: 31000 };
    for (note, cost) in [(cost.note(), cost), (format!("{TRACER_NOTE}14200"), TracerCost::same(14200))] {
        let text = format!("7  100000000.000001 close(3) = 0 <0.000005>\n{note}\n");
        let mut source = Strace::new(text.as_bytes());
        while source.next_event().expect("memory does not fail").is_some() {}
        assert_eq!(source.tracer(), Some(cost));
        let Coverage { lines, used, problems, .. } = source.coverage();
        assert_eq!((*lines, *used, problems.len()), (2, 2, 0));
    }
}

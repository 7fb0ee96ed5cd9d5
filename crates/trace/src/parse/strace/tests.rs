use super::*;
use crate::event::Value;

fn events(text: &str) -> (Vec<Event>, Coverage) {
    let mut source = Strace::new(text.as_bytes());
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("memory does not fail") {
        events.push(event);
    }
    (events, source.coverage().clone())
}

fn one(text: &str) -> Event {
    let (mut events, coverage) = events(text);
    assert_eq!((events.len(), coverage.problems.len()), (1, 0), "{coverage:?}");
    events.remove(0)
}

fn args(event: &Event) -> &[Value] {
    match &event.what {
        What::Call { args, .. } => args,
        What::Ended => panic!("not a call"),
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
const SECOND: u64 = 1_000_000_000;

#[test]
fn a_result_is_split_off_outside_of_brackets_and_quotes_only() {
    let wait =
        one("9 100000000.1 wait4(9769, [{WIFEXITED(s) && WEXITSTATUS(s) == 0}], 0, NULL) = 9769 <0.1>\n");
    let What::Call { result, .. } = &wait.what else { panic!() };
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
    let What::Call { result, .. } = &event.what else { panic!() };
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
    let What::Call { result, .. } = &found[0].what else { panic!() };
    assert_eq!((result, coverage.unfinished), (&Recorded::Unknown, 1));
    assert_eq!(found[1].what, What::Ended);
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

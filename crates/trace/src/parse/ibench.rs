//! The dtrace form of the iBench traces, **unverified**: what its lines look like is published nowhere, and no line of a real one
//! was seen. It is read as what DTrace scripts for system calls print, one line for each call when it returns:
//!
//! ```text
//! PID/0xTHREAD: ENTRY ELAPSED [CPU] call(arguments) = result error
//! ```
//!
//! ENTRY, ELAPSED and CPU are microseconds; arguments are as `dtruss` prints them, numbers in hex, with the flags and errors of
//! macOS; an error is `Err#2`. Lines that begin with `#` say nothing. If a real trace differs, this file alone must change.

use super::source::Source;
use super::strace::read_call;
use crate::coverage::Coverage;
use crate::event::{Event, Recorded, Value, What};
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead, Read};

/// A longer line is garbage.
const LINE_BYTES_MAX: u64 = 1 << 20;
/// Threads that are told apart; beyond it, the trace is garbage.
const THREADS_MAX: usize = 1 << 20;
/// How every account of such a trace begins.
const UNVERIFIED: &str = "this form is unverified: no real iBench trace was ever read";

/// Reads the dtrace form of the iBench traces.
pub struct IBench<R> {
    input: R,
    /// Processes and their threads, as tasks.
    tasks: HashMap<(u32, Option<u64>), u32>,
    ready: VecDeque<Event>,
    coverage: Coverage,
}

/// The columns of a line.
struct Line<'a> {
    process: u32,
    thread: u64,
    /// Nanoseconds.
    start: u64,
    took: u64,
    call: &'a [u8],
}

impl<R: BufRead> IBench<R> {
    /// A reader of `input`.
    pub fn new(input: R) -> IBench<R> {
        let (tasks, ready, coverage) = Default::default();
        IBench { input, tasks, ready, coverage }
    }

    fn take_line(&mut self, text: &[u8]) {
        let number = self.coverage.lines;
        if number == 1 {
            self.coverage.problem(UNVERIFIED, number, text);
        }
        if text.is_empty() || text.starts_with(b"#") {
            self.coverage.used += 1;
            return;
        }
        let Some((line, (name, mut args, result, _))) =
            columns(text).and_then(|line| read_call(line.call).map(|call| (line, call)))
        else {
            return self.coverage.problem("no line of DTrace", number, text);
        };
        let Some(task) = self.task(&line, number) else {
            return self.coverage.problem("too many threads", number, text);
        };
        let result = self.result(result, text);
        translate(&name, &mut args);
        let end = line.start.saturating_add(line.took);
        self.coverage.used += 1;
        let what = What::Call { name, args, result };
        self.ready.push_back(Event { task, start: line.start, end, line: number, what });
    }

    /// The thread's task. Such a trace does not show how threads begin, so a task that stands for the process makes them: it
    /// shares what threads share, and does nothing else.
    fn task(&mut self, line: &Line<'_>, number: u64) -> Option<u32> {
        let (process, start) = (line.process, line.start);
        if let Some(task) = self.tasks.get(&(process, Some(line.thread))) {
            return Some(*task);
        }
        if self.tasks.len() >= THREADS_MAX {
            return None;
        }
        let next = self.tasks.len() as u32 + 1;
        let maker = *self.tasks.entry((process, None)).or_insert(next);
        let task = self.tasks.len() as u32 + 1;
        self.tasks.insert((process, Some(line.thread)), task);
        let flags = "CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_SIGHAND|CLONE_THREAD";
        let text = format!("clone(child_stack=0x1, flags={flags}) = {task}");
        let (name, args, result, _) = read_call(text.as_bytes()).expect("a call as strace prints it");
        let what = What::Call { name, args, result };
        self.ready.push_back(Event { task: maker, start, end: start, line: number, what });
        Some(task)
    }

    fn result(&mut self, result: Recorded, text: &[u8]) -> Recorded {
        let Recorded::Error(printed) = &result else { return result };
        match printed.strip_prefix("Err#").and_then(|number| number.parse().ok()).and_then(error) {
            Some(name) => Recorded::Error(name),
            None => {
                self.coverage.problem("an error without a counterpart", self.coverage.lines, text);
                Recorded::Unknown
            }
        }
    }
}

fn columns(text: &[u8]) -> Option<Line<'_>> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let call = text[..open].iter().rposition(u8::is_ascii_whitespace)? + 1;
    let mut words = std::str::from_utf8(&text[..call]).ok()?.split_ascii_whitespace();
    let (process, thread) = words.next()?.strip_suffix(':')?.split_once('/')?;
    let thread = u64::from_str_radix(thread.strip_prefix("0x")?, 16).ok()?;
    let mut micros = || words.next()?.parse::<u64>().ok()?.checked_mul(1000);
    let (start, took) = (micros()?, micros()?);
    Some(Line { process: process.parse().ok()?, thread, start, took, call: &text[call..] })
}

impl<R: BufRead> Source for IBench<R> {
    fn next_event(&mut self) -> io::Result<Option<Event>> {
        let mut text = Vec::new();
        while self.ready.is_empty() {
            text.clear();
            if Read::take(&mut self.input, LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
                break;
            }
            self.coverage.lines += 1;
            self.take_line(text.trim_ascii());
        }
        Ok(self.ready.pop_front())
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

/// Arguments as Linux has them: flags, commands, and names without the zero that ends them.
fn translate(name: &str, args: &mut [Value]) {
    for arg in args.iter_mut() {
        if let Value::Text { bytes, .. } = arg
            && bytes.last() == Some(&0)
        {
            bytes.pop();
        }
    }
    let (name, second) = (name.strip_suffix("_nocancel").unwrap_or(name), args.get_mut(1));
    match (name, second) {
        ("open", Some(Value::Number(flags))) => *flags = open_flags(*flags),
        ("fcntl", Some(command)) => {
            let known = |number: i64| COMMANDS.iter().find(|(known, _)| *known == number);
            let found = if let Value::Number(number) = command { known(*number) } else { None };
            if let Some((_, name)) = found {
                *command = Value::Symbol((*name).into());
            }
        }
        _ => {}
    }
}

fn open_flags(flags: i64) -> i64 {
    let access = flags & i64::from(libc::O_ACCMODE);
    FLAGS
        .iter()
        .filter(|(theirs, _)| flags & theirs != 0)
        .fold(access, |sum, (_, ours)| sum | i64::from(*ours))
}

const FLAGS: [(i64, i32); 11] = [
    (0x4, libc::O_NONBLOCK),
    (0x8, libc::O_APPEND),
    (0x80, libc::O_SYNC),
    (0x100, libc::O_NOFOLLOW),
    (0x200, libc::O_CREAT),
    (0x400, libc::O_TRUNC),
    (0x800, libc::O_EXCL),
    (0x2_0000, libc::O_NOCTTY),
    (0x10_0000, libc::O_DIRECTORY),
    (0x40_0000, libc::O_DSYNC),
    (0x100_0000, libc::O_CLOEXEC),
];

const COMMANDS: [(i64, &str); 13] = [
    (0, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (3, "F_GETFL"),
    (4, "F_SETFL"),
    (7, "F_GETLK"),
    (8, "F_SETLK"),
    (9, "F_SETLKW"),
    (42, "F_PREALLOCATE"),
    (44, "F_RDADVISE"),
    (48, "F_NOCACHE"),
    (51, "F_FULLFSYNC"),
    (67, "F_DUPFD_CLOEXEC"),
];

/// The name of an error by macOS's number: the old ones are those of every Unix, but one.
fn error(number: i32) -> Option<String> {
    Some(match number {
        11 => "EDEADLK".into(),
        1..=34 => crate::decode::errno_name(number),
        35 => "EAGAIN".into(),
        45 | 102 => "EOPNOTSUPP".into(),
        62 => "ELOOP".into(),
        63 => "ENAMETOOLONG".into(),
        66 => "ENOTEMPTY".into(),
        69 => "EDQUOT".into(),
        70 => "ESTALE".into(),
        93 => "ENODATA".into(),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{CompileSettings, compile};

    const SAMPLE: &str = "# made up: the form is unverified\n\
        \n\
        10/0x1f: 100 20 5 open_nocancel(\"/Users/a\\0\", 0x601, 0x1B6)\t\t = 3 0\n\
        10/0x2a: 130 10 write(0x3, \"x\\0\", 0x10)\t\t = 16 0\n\
        10/0x1f: 150 10 5 open(\"/Users/none\\0\", 0x0, 0x0)\t\t = -1 Err#2\n\
        10/0x1f: 170 10 5 rmdir(\"/Users\\0\", 0x0, 0x0)\t\t = -1 Err#66\n\
        10/0x1f: 190 10 5 fcntl(0x3, 0x33, 0x0)\t\t = 0 0\n\
        10/0x1f: 210 10 5 getattrlist(\"/Users/a\\0\", 0x7FFF, 0x7FFF)\t\t = 0 0\n\
        10/0x2a: 230 10 5 close(0x3)\t\t = 0 0\n\
        what is this\n";

    #[test]
    fn threads_of_a_process_share_its_descriptors_and_flags_and_errors_are_translated() {
        let settings = CompileSettings::default();
        let mut source = IBench::new(SAMPLE.as_bytes());
        let benchmark = compile(&mut source, "sample".as_ref(), &settings).expect("it compiles");
        let problems: Vec<_> = benchmark.about.problems.iter().map(|(kind, ..)| kind.as_str()).collect();
        assert_eq!(problems, ["no line of DTrace", UNVERIFIED]);
        assert_eq!((benchmark.about.lines, benchmark.about.used, benchmark.about.threads), (10, 9, 3));
        let shown: Vec<String> = benchmark
            .actions
            .iter()
            .filter(|action| action.fate == crate::Fate::Executed)
            .map(|action| format!("{} {:?}", benchmark.names.show(action.name), action.recorded))
            .collect();
        assert_eq!(
            shown,
            [
                "open_nocancel Value(3)",
                "write Value(16)",
                "open Error(2)",
                "rmdir Error(39)",
                "fcntl Value(0)",
                "getattrlist Value(0)",
                "close Value(0)",
            ]
        );
        assert_eq!(benchmark.about.repairs.races, 0);
        let verification = crate::verify::verify(&benchmark, "weir", 20, 1).expect("the order is compiled");
        assert!(verification.holds(), "{verification}");
    }

    #[test]
    fn damaged_lines_are_counted_and_never_panic() {
        for cut in 0..SAMPLE.len() {
            let mut source = IBench::new(&SAMPLE.as_bytes()[cut..]);
            while source.next_event().expect("memory does not fail").is_some() {}
            assert!(source.coverage().used <= source.coverage().lines, "cut at {cut}");
        }
    }
}

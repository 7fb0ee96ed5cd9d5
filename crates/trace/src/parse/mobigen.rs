//! MobiGen scripts (Mobibench): `task microseconds call arguments... result`, grouped by task.
//!
//! They hold less than a trace: no durations, no error numbers, no sizes that reads and writes asked for, and only the first
//! two components of most paths. Rules of names mean little on them.

use super::source::Source;
use crate::coverage::Coverage;
use crate::event::{Event, Recorded, Value, What};
use std::collections::VecDeque;
use std::io::{self, BufRead, Read};

/// A longer line is garbage: calls have at most five arguments.
const LINE_BYTES_MAX: u64 = 64 << 10;
/// The file is grouped by task, so all of it must be read before the first event; published scripts have 30,000 lines.
const EVENTS_MAX: usize = 10_000_000;

/// Reads a MobiGen script.
pub struct MobiGen<R> {
    input: Option<R>,
    events: VecDeque<Event>,
    coverage: Coverage,
}

impl<R: BufRead> MobiGen<R> {
    /// A reader of `input`.
    pub fn new(input: R) -> MobiGen<R> {
        MobiGen { input: Some(input), events: VecDeque::new(), coverage: Coverage::default() }
    }

    fn read_all(&mut self, mut input: R) -> io::Result<()> {
        let mut events = Vec::new();
        let mut text = Vec::new();
        loop {
            text.clear();
            if Read::take(&mut input, LINE_BYTES_MAX).read_until(b'\n', &mut text)? == 0 {
                break;
            }
            self.coverage.lines += 1;
            let line = text.trim_ascii();
            match event(line, self.coverage.lines) {
                _ if events.len() >= EVENTS_MAX => {
                    self.coverage.problem("too many lines", self.coverage.lines, line)
                }
                Some(event) => {
                    self.coverage.used += 1;
                    events.push(event);
                }
                None if line.is_empty() => self.coverage.used += 1,
                None => self.coverage.problem("no line of a MobiGen script", self.coverage.lines, line),
            }
        }
        events.sort_by_key(|event| (event.start, event.line));
        self.events = events.into();
        Ok(())
    }
}

impl<R: BufRead> Source for MobiGen<R> {
    fn next_event(&mut self) -> io::Result<Option<Event>> {
        if let Some(input) = self.input.take() {
            self.read_all(input)?;
        }
        Ok(self.events.pop_front())
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

fn event(line: &[u8], number: u64) -> Option<Event> {
    let text = String::from_utf8_lossy(line);
    let mut words = text.split_ascii_whitespace();
    let task = words.next()?.parse::<u32>().ok()?.checked_add(1)?;
    let start = words.next()?.parse::<u64>().ok()?.checked_mul(1000)?;
    let call = words.next()?;
    let rest: Vec<&str> = words.collect();
    let (result, args) = rest.split_last()?;
    let result: i64 = result.parse().ok()?;
    let (name, args) = arguments(call, args, result)?;
    let result = match result {
        // The error's number is lost; that of an absent name is by far the most common.
        ..0 => Recorded::Error("ENOENT".into()),
        _ => Recorded::Value(result, None),
    };
    let what = What::Call { name: name.into(), args, result };
    Some(Event { task, start, end: start, line: number, what })
}

/// The call as Linux names it, with the arguments that strace would show.
fn arguments<'a>(call: &'a str, args: &[&str], result: i64) -> Option<(&'a str, Vec<Value>)> {
    let number = |at: usize| Some(Value::Number(args.get(at)?.parse().ok()?));
    let path = |text: &str| {
        let bytes = text.trim_matches('"').as_bytes();
        // Most paths have lost their first slash with their quotes.
        let slash: &[u8] = if bytes.starts_with(b"/") { b"" } else { b"/" };
        Value::Text { bytes: [slash, bytes].concat(), whole: true }
    };
    let moved = Value::Number(result.max(0));
    Some(match call {
        "open" => ("open", vec![path(args.first()?), Value::Symbol((*args.get(1)?).into())]),
        "close" | "fsync" | "fdatasync" => (call, vec![number(0)?]),
        "read" | "write" => (call, vec![number(0)?, Value::Elided, moved]),
        "pread" | "pwrite" => (call, vec![number(0)?, Value::Elided, moved, number(1)?]),
        "stat64" | "lstat64" => (call, vec![path(args.first()?), Value::Elided]),
        "access" => (call, vec![path(args.first()?), Value::Number(0)]),
        "unlink" => (call, vec![path(args.first()?)]),
        "fstat64" => (call, vec![number(0)?, Value::Elided]),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_grouped_by_task_comes_in_the_order_of_its_stamps() {
        let script = "0 10 open \"/data/a\" O_RDONLY 5\n0 30 pread 5 4096 100\n1 20 access \"/data/b\" -1\n\nnothing\n";
        let mut source = MobiGen::new(script.as_bytes());
        let mut found = Vec::new();
        while let Some(event) = source.next_event().expect("memory does not fail") {
            found.push((event.task, event.start, event.line));
        }
        assert_eq!(found, [(1, 10_000, 1), (2, 20_000, 3), (1, 30_000, 2)]);
        let coverage = source.coverage();
        assert_eq!((coverage.lines, coverage.used), (5, 4));
        assert_eq!(coverage.problems["no line of a MobiGen script"].line, 5);
    }

    #[test]
    fn a_read_asks_for_what_it_got_and_paths_get_their_slash_back() {
        let read = event(b"3 7 pread 9 4096 512", 1).expect("a line of a script");
        let What::Call { args, .. } = read.what else { panic!("it is a call") };
        assert_eq!(args[2..], [Value::Number(512), Value::Number(4096)]);
        let open = event(b"0 1 open data/app O_RDWR|O_CREAT 7", 1).expect("a line of a script");
        let What::Call { args, result, .. } = open.what else { panic!("it is a call") };
        assert_eq!(args[0], Value::Text { bytes: b"/data/app".to_vec(), whole: true });
        assert_eq!(result, Recorded::Value(7, None));
    }
}

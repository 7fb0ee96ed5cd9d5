//! One line of dtruss:
//!
//! ```text
//!  1234/0x56789:       702      15     12 open("notes.txt\0", 0x601, 0x1B6)  = 3 0
//! process/thread   RELATIVE  ELAPSD    CPU  call and arguments                result, error
//! ```
//!
//! Each column may be missing. `RELATIVE` is the time that the thread has computed since its beginning, up to
//! the return of the call. `ELAPSD` is the duration of the call, and `CPU` is the part of it in which the
//! thread computed. All are in microseconds.

use super::macos;
use crate::event::{Recorded, Value};
use crate::parse::strace::value::name_and_arguments;

/// A line, by its kind.
#[derive(Debug, PartialEq)]
pub(super) enum DtrussLine {
    /// The names of the columns.
    Header(TimeColumns),
    Call(DtrussCall),
    /// dtruss could not print a call or several.
    Lost,
    /// The beginning of the table of counts, which is the end of the trace.
    Counts,
    /// Another remark, a stack, or an empty line.
    Nothing,
}

/// One call, with macOS's numbers.
#[derive(Debug, PartialEq)]
pub(super) struct DtrussCall {
    /// The process and thread; zeros if the trace does not show them.
    pub(super) thread: (u32, u64),
    /// The columns of times that the line has.
    pub(super) times: Vec<u64>,
    pub(super) name: String,
    pub(super) args: Vec<Value>,
    pub(super) result: Recorded,
}

/// The columns of times that the trace has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TimeColumns {
    pub(super) relative: bool,
    pub(super) elapsed: bool,
    pub(super) cpu: bool,
}

/// The times of a call, in microseconds.
pub(super) struct CallTimes {
    pub(super) relative: Option<u64>,
    pub(super) elapsed: Option<u64>,
    pub(super) cpu: Option<u64>,
}

impl TimeColumns {
    pub(super) fn times_of(self, call: &DtrussCall) -> CallTimes {
        let mut times = call.times.iter().copied();
        let mut next = |shown: bool| if shown { times.next() } else { None };
        CallTimes { relative: next(self.relative), elapsed: next(self.elapsed), cpu: next(self.cpu) }
    }
}

/// Reads a line. `None` if its kind is unknown, as of text that the program printed.
pub(super) fn line(text: &[u8]) -> Option<DtrussLine> {
    let has = |part: &[u8]| text.windows(part.len()).any(|window| window == part);
    if let Some(call) = call(text) {
        return Some(DtrussLine::Call(call));
    }
    if has(b"SYSCALL(args)") && text.trim_ascii_end().ends_with(b"= return") {
        let columns =
            TimeColumns { relative: has(b"RELATIVE"), elapsed: has(b"ELAPSD"), cpu: has(b"CPU SYSCALL") };
        return Some(DtrussLine::Header(columns));
    }
    if text.starts_with(b"dtrace: ") {
        // sysctl touches no file, so its loss is none.
        let lost = has(b" drops") || has(b":return)") && !has(b"syscall::sysctl");
        return Some(if lost { DtrussLine::Lost } else { DtrussLine::Nothing });
    }
    let words = || text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    if words().eq([&b"CALL"[..], b"COUNT"]) {
        return Some(DtrussLine::Counts);
    }
    let is_nothing = match words().next() {
        None => true,
        // A stack.
        Some(first) => text.starts_with(b" ") && (has(b"`") || first.starts_with(b"0x")),
    };
    is_nothing.then_some(DtrussLine::Nothing)
}

fn call(text: &[u8]) -> Option<DtrussCall> {
    // Strings come before the result, so the last equals sign is the result's.
    let equals = text.windows(3).rposition(|window| window == b" = ")?;
    let result = result(&text[equals + 3..])?;
    let open = text.iter().position(|byte| *byte == b'(')?;
    let begin = text[..open].iter().rposition(u8::is_ascii_whitespace).map_or(0, |space| space + 1);
    let (name, args, _) = name_and_arguments(&text[begin..equals])?;
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return None;
    }
    // The program may have printed text before the columns.
    let columns: Vec<&str> =
        std::str::from_utf8(&text[..begin]).unwrap_or_default().split_ascii_whitespace().collect();
    let shown = columns.iter().enumerate().rev().find_map(|(at, column)| Some((at, thread(column)?)));
    let (first, thread) = shown.map_or((0, (0, 0)), |(at, thread)| (at + 1, thread));
    let times = columns[first..].iter().map_while(|time| time.trim_end_matches(':').parse().ok()).collect();
    Some(DtrussCall { thread, times, name, args, result })
}

/// Reads `1234/0x56789:`.
fn thread(column: &str) -> Option<(u32, u64)> {
    let (process, thread) = column.strip_suffix(':')?.split_once('/')?;
    let thread = u64::from_str_radix(thread.strip_prefix("0x")?, 16).ok()?;
    Some((process.parse().ok()?, thread))
}

/// Reads `3 0`, `-1 Err#2` or `-1 2`: the value, of which dtruss prints 32 bits, and the error.
fn result(text: &[u8]) -> Option<Recorded> {
    let (value, error) = std::str::from_utf8(text).ok()?.trim().split_once(' ')?;
    let value = match value.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
        None => value.parse().ok()?,
    };
    let error: i32 = error.strip_prefix("Err#").unwrap_or(error).parse().ok()?;
    Some(if value == -1 && error != 0 { macos::error(error) } else { Recorded::Value(value, None) })
}

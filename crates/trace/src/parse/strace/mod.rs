//! strace's output, with and without `-f`, `-y`, and any of its clocks.
//!
//! Lines are in the order in which they were printed. A call that another task's line interrupts is printed in two halves:
//! `unfinished` carries the entry stamp, `resumed` the exit stamp. A task has at most one call under way.

mod line;
mod restart;
mod value;

pub(super) use value::call as read_call;

use super::source::Source;
use crate::coverage::Coverage;
use crate::event::{Event, Recorded, What};
use crate::tracer::TracerCost;
use line::{Body, Clock, Line};
use restart::Restarts;
use std::collections::{HashMap, VecDeque};
use std::io::{self, BufRead};

/// A longer line is garbage, or an attack: strace cuts strings and arrays far below it.
const LINE_BYTES_MAX: usize = 1 << 20;
/// Tasks with a call under way; beyond it, the trace is garbage.
const PENDING_MAX: usize = 1 << 16;

/// Reads strace's output.
pub struct Strace<R> {
    input: R,
    clock: Clock,
    pending: HashMap<u32, Half>,
    ready: VecDeque<Event>,
    restarts: Restarts,
    coverage: Coverage,
    tracer: Option<TracerCost>,
}

/// A call whose second half has not come yet.
struct Half {
    text: Vec<u8>,
    start: u64,
    line: u64,
}

impl<R: BufRead> Strace<R> {
    /// A reader of `input`.
    pub fn new(input: R) -> Strace<R> {
        let (pending, ready, restarts) = Default::default();
        let (clock, coverage) = (Clock::default(), Coverage::default());
        Strace { input, clock, pending, ready, restarts, coverage, tracer: None }
    }

    fn read_line(&mut self, text: &mut Vec<u8>) -> io::Result<bool> {
        text.clear();
        let mut limited = io::Read::take(&mut self.input, LINE_BYTES_MAX as u64);
        if limited.read_until(b'\n', text)? == 0 {
            return Ok(false);
        }
        self.coverage.lines += 1;
        if text.last() == Some(&b'\n') {
            text.pop();
        } else if text.len() == LINE_BYTES_MAX {
            // Truncated: the rest of it is read away, so that it is not taken for lines of its own.
            while !skip_to_newline(&mut self.input)? {}
            self.coverage.problem("line too long", self.coverage.lines, text);
            text.clear();
        }
        Ok(true)
    }

    fn take_line(&mut self, text: &[u8]) {
        let number = self.coverage.lines;
        if let Some(tracer) = TracerCost::parse(text) {
            self.tracer = tracer;
            self.coverage.used += 1;
            return;
        }
        let Some(line) = Line::parse(text, &mut self.clock, number) else {
            return self.coverage.problem("no call, signal or end of a task", number, text);
        };
        let Line { task, stamp, body } = line;
        let event = match body {
            Body::Nothing => None,
            Body::Ended => {
                self.abandon(task);
                Some(Event { task, start: stamp, end: stamp, line: number, what: What::Ended })
            }
            Body::Unfinished(begin) => {
                self.abandon(task);
                if self.pending.len() >= PENDING_MAX {
                    return self.coverage.problem("too many unfinished calls", number, text);
                }
                self.pending.insert(task, Half { text: begin.to_vec(), start: stamp, line: number });
                None
            }
            Body::Resumed(rest) => match self.pending.remove(&task) {
                Some(half) => self.join(task, half, rest, stamp),
                None => return self.coverage.problem("resumed, but never begun", number, text),
            },
            Body::Call(call) => {
                let Some((name, args, result, took)) = value::call(call) else {
                    return self.coverage.problem("call that cannot be read", number, text);
                };
                let end = stamp.saturating_add(took.unwrap_or(0));
                Some(Event { task, start: stamp, end, line: number, what: What::Call { name, args, result } })
            }
        };
        self.coverage.used += 1;
        if let Some(event) = event {
            self.restarts.pass(event, &mut self.ready);
        }
    }

    fn join(&mut self, task: u32, mut half: Half, rest: &[u8], stamp: u64) -> Option<Event> {
        half.text.extend_from_slice(rest);
        match value::call(&half.text) {
            Some((name, args, result, took)) => {
                // The stamp of the second half is the exit. A duration begins only when strace has written the first half:
                // with it, whoever was woken would seem to go on before the call that woke it. It counts where clocks are
                // too coarse to show that time passed.
                let end = half.start.saturating_add(took.unwrap_or(0)).max(stamp);
                Some(Event {
                    task,
                    start: half.start,
                    end,
                    line: half.line,
                    what: What::Call { name, args, result },
                })
            }
            None => {
                self.coverage.problem("call in two halves that cannot be read", half.line, &half.text);
                None
            }
        }
    }

    /// A call that never returned: by exec in another thread, a kill, or the end of the trace.
    fn abandon(&mut self, task: u32) {
        let Some(half) = self.pending.remove(&task) else { return };
        self.coverage.unfinished += 1;
        let text = [half.text.as_slice(), b"...) = ?"].concat();
        if let Some((name, args, _, _)) = value::call(&text) {
            let what = What::Call { name, args, result: Recorded::Unknown };
            let event = Event { task, start: half.start, end: half.start, line: half.line, what };
            self.restarts.pass(event, &mut self.ready);
        }
    }
}

impl<R: BufRead> Source for Strace<R> {
    fn next_event(&mut self) -> io::Result<Option<Event>> {
        let mut text = Vec::new();
        while self.ready.is_empty() {
            if !self.read_line(&mut text)? {
                let tasks: Vec<u32> = self.pending.keys().copied().collect();
                tasks.into_iter().for_each(|task| self.abandon(task));
                self.restarts.finish(&mut self.ready);
                break;
            }
            self.take_line(&text);
        }
        Ok(self.ready.pop_front())
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    fn tracer(&self) -> Option<TracerCost> {
        self.tracer
    }
}

fn skip_to_newline(input: &mut impl BufRead) -> io::Result<bool> {
    let buffer = input.fill_buf()?;
    let (used, found) = match buffer.iter().position(|byte| *byte == b'\n') {
        Some(at) => (at + 1, true),
        None => (buffer.len(), buffer.is_empty()),
    };
    input.consume(used);
    Ok(found)
}

#[cfg(test)]
mod tests;

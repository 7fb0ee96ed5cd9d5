//! Parses strace's output, with any options.
//!
//! Lines are in the order in which they were printed. If another task's line interrupts a call, the call is
//! printed in two halves: `unfinished` carries the entry stamp, `resumed` the exit stamp. A task has at most
//! one call under way.
//!
//! A line goes through [`LineHead::parse`], then [`body`], both of which look only at the line. Then
//! [`TaskNumbering`] and [`TraceClock`] find its task and time.

mod clock;
mod head;
mod line;
mod numbering;
mod restart;
pub(super) mod value;

use super::lines::read_line;
use super::source::Source;
use crate::coverage::Coverage;
use crate::event::{EventKind, Recorded, TraceEvent};
use clock::TraceClock;
use head::LineHead;
use line::{LineBody, body, cut_by_remark};
use numbering::{TaskNumbering, UNNUMBERED};
use restart::Restarts;
use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{self, BufRead};
use trace_file::TracerCost;

/// Maximum number of tasks with a call under way. With more, the trace is garbage.
const PENDING_MAX: usize = 1 << 16;

/// Reads strace's output.
pub struct Strace<R> {
    input: R,
    clock: TraceClock,
    numbering: TaskNumbering,
    pending: HashMap<u32, UnfinishedCall>,
    /// A call whose second part a remark of strace has cut off.
    cut: Option<CutCall>,
    /// Tasks whose number another thread's exec has taken over, while that exec has not returned yet.
    taken_over: HashSet<u32>,
    ready: VecDeque<TraceEvent>,
    restarts: Restarts,
    coverage: Coverage,
    tracer: Option<TracerCost>,
}

/// A call whose second half has not been read yet.
struct UnfinishedCall {
    text: Vec<u8>,
    start: u64,
    line: u64,
    /// The number under which the call will be resumed, if different.
    renumbered: Option<u32>,
}

/// The second half of a call.
struct Second<'a> {
    name: &'a [u8],
    rest: &'a [u8],
    stamp: u64,
    line: u64,
}

/// The first part of a line whose second part is on the next line.
struct CutCall {
    pid: Option<u32>,
    stamp: u64,
    line: u64,
    text: Vec<u8>,
}

impl UnfinishedCall {
    fn is_exec(&self) -> bool {
        self.text.starts_with(b"execve")
    }

    fn name(&self) -> &[u8] {
        self.text.split(|byte| *byte == b'(').next().unwrap_or_default()
    }
}

/// Whether a call makes a task.
fn makes_task(name: &[u8]) -> bool {
    matches!(name, b"clone" | b"clone2" | b"clone3" | b"fork" | b"vfork")
}

impl<R: BufRead> Strace<R> {
    /// A reader of `input`.
    pub fn new(input: R) -> Strace<R> {
        let (clock, numbering, restarts, coverage) = Default::default();
        let (pending, taken_over, ready) = Default::default();
        Strace {
            input,
            clock,
            numbering,
            pending,
            cut: None,
            taken_over,
            ready,
            restarts,
            coverage,
            tracer: None,
        }
    }

    fn take_line(&mut self, text: &[u8]) {
        let number = self.coverage.lines;
        if let Some(tracer) = TracerCost::parse(text) {
            self.tracer = tracer;
            self.coverage.used += 1;
            return;
        }
        let head = LineHead::parse(text);
        let Some(stamp) = self.clock.nanoseconds(head.stamp, number) else {
            return self.coverage.problem("stamp out of range", number, text);
        };
        let before = self.cut.take();
        if let Some((part, remark)) = cut_by_remark(head.rest) {
            self.drop_cut(before);
            self.remark(&remark);
            let text = part.to_vec();
            self.cut = Some(CutCall { pid: head.pid, stamp, line: number, text });
            return;
        }
        if let Some(cut) = before {
            match body(head.rest) {
                // The rest of the call.
                None | Some(LineBody::Unfinished(b"") | LineBody::Renumbered(b"", _)) => {
                    let whole = [cut.text.as_slice(), head.rest].concat();
                    return self.take_body(cut.pid, cut.stamp, cut.line, 2, &whole);
                }
                // Several remarks may follow each other when several tasks begin.
                Some(LineBody::Attached(_) | LineBody::Detached(_)) => self.cut = Some(cut),
                Some(_) => self.drop_cut(Some(cut)),
            }
        }
        self.take_body(head.pid, stamp, number, 1, head.rest);
    }

    /// Drops a cut call whose second part never came.
    fn drop_cut(&mut self, cut: Option<CutCall>) {
        if let Some(cut) = cut {
            self.coverage.problem("call without its end", cut.line, &cut.text);
        }
    }

    fn remark(&mut self, remark: &LineBody<'_>) {
        match remark {
            LineBody::Attached(pid) => self.numbering.attached(*pid),
            LineBody::Detached(pid) => self.numbering.ended(self.numbering.known_as(*pid)),
            _ => {}
        }
    }

    /// Takes the body of a line, or of several that belong together.
    fn take_body(&mut self, pid: Option<u32>, stamp: u64, line: u64, lines: u64, text: &[u8]) {
        let Some(body) = body(text) else {
            return self.coverage.problem("no call, signal or end of a task", line, text);
        };
        match &body {
            LineBody::Nothing | LineBody::Attached(_) | LineBody::Detached(_) => {
                self.remark(&body);
                self.coverage.used += lines;
                return;
            }
            LineBody::Superseded { by } => self.numbering.ended(self.numbering.known_as(*by)),
            _ => {}
        }
        let was_alive = self.numbering.is_alive(pid);
        let begun = self.pending.get(&UNNUMBERED).map(UnfinishedCall::name).filter(|name| makes_task(name));
        let ends = |begun: &[u8]| matches!(&body, LineBody::Resumed { name, .. } if *name == begun);
        let forking = begun.is_some_and(|begun| !ends(begun));
        let task = self.numbering.task(pid, forking);
        let taken = match body {
            LineBody::Unfinished(begin) => self
                .begin(task, UnfinishedCall { text: begin.to_vec(), start: stamp, line, renumbered: None }),
            LineBody::Renumbered(begin, number) => {
                let mut half = UnfinishedCall { text: begin.to_vec(), start: stamp, line, renumbered: None };
                half.renumbered = half.is_exec().then(|| self.numbering.known_as(number));
                self.begin(task, half)
            }
            LineBody::Resumed { name, rest } => {
                let second = Second { name, rest, stamp, line };
                self.resume(task, was_alive, &second)
            }
            LineBody::Ended => {
                self.abandon(task);
                self.numbering.ended(task);
                self.taken_over.remove(&task);
                self.pass(TraceEvent { task, start: stamp, end: stamp, line, what: EventKind::Ended });
                Ok(())
            }
            LineBody::Superseded { by } => {
                self.take_over(task, self.numbering.known_as(by), stamp, line);
                self.taken_over.insert(task);
                Ok(())
            }
            _ => match value::call(text) {
                Some((name, args, result, took)) => {
                    let end = stamp.saturating_add(took.unwrap_or(0));
                    self.pass(TraceEvent {
                        task,
                        start: stamp,
                        end,
                        line,
                        what: EventKind::Call { name, args, result },
                    });
                    Ok(())
                }
                None => Err("call that cannot be read"),
            },
        };
        match taken {
            Ok(()) => self.coverage.used += lines,
            Err(why) => self.coverage.problem(why, line, text),
        }
    }

    /// Passes an event on, or keeps it if a later one continues it.
    fn pass(&mut self, event: TraceEvent) {
        if let EventKind::Call { name, result: Recorded::Value(made, _), .. } = &event.what
            && makes_task(name.as_bytes())
            && let Ok(made) = u32::try_from(*made)
        {
            self.numbering.made(made);
        }
        self.restarts.pass(event, &mut self.ready);
    }

    fn begin(&mut self, task: u32, half: UnfinishedCall) -> Result<(), &'static str> {
        self.abandon(task);
        if self.pending.len() >= PENDING_MAX {
            return Err("too many unfinished calls");
        }
        self.pending.insert(task, half);
        Ok(())
    }

    fn resume(&mut self, task: u32, was_alive: bool, second: &Second<'_>) -> Result<(), &'static str> {
        let Second { name, rest, stamp, line } = *second;
        let is_exec = name.starts_with(b"execve");
        if is_exec && !self.pending.get(&task).is_some_and(UnfinishedCall::is_exec) {
            if self.taken_over.remove(&task) {
                return Ok(());
            }
            // With `-qqq`, strace does not even print the end of this task's predecessor.
            if let Some(by) = self.exec_that_becomes(task).filter(|_| was_alive) {
                self.take_over(task, by, stamp, line);
                return Ok(());
            }
        }
        let half = self.pending.remove(&task).ok_or("resumed, but never begun")?;
        if self.join(task, half, rest, stamp) {
            Ok(())
        } else {
            self.coverage.used = self.coverage.used.saturating_sub(1);
            Err("call in two halves that cannot be read")
        }
    }

    /// The other task whose exec is under way and will return under this number.
    fn exec_that_becomes(&self, task: u32) -> Option<u32> {
        let execs = || self.pending.iter().filter(|(_, half)| half.is_exec());
        let told = execs().find(|(_, half)| half.renumbered == Some(task));
        told.or_else(|| execs().next().filter(|_| execs().count() == 1)).map(|(by, _)| *by)
    }

    /// Applies a thread's exec, which ends all other threads of its process and gives it the number of the
    /// first.
    fn take_over(&mut self, task: u32, by: u32, stamp: u64, line: u64) {
        self.abandon(task);
        self.complete_exec(by, stamp);
        self.numbering.ended(by);
        self.pass(TraceEvent { task, start: stamp, end: stamp, line, what: EventKind::Superseded { by } });
    }

    /// Completes an exec. One that has ended other threads never fails.
    fn complete_exec(&mut self, task: u32, stamp: u64) {
        if self.pending.get(&task).is_some_and(UnfinishedCall::is_exec)
            && let Some(half) = self.pending.remove(&task)
        {
            self.join(task, half, b") = 0", stamp);
        }
    }

    /// Joins the two halves of a call. Returns whether they form one.
    fn join(&mut self, task: u32, mut half: UnfinishedCall, rest: &[u8], stamp: u64) -> bool {
        half.text.extend_from_slice(rest);
        match value::call(&half.text) {
            Some((name, args, result, took)) => {
                // The stamp of the second half is the exit. A duration is measured only from the moment when
                // strace has written the first half, so by the duration a woken thread would seem to continue
                // before the call that woke it. The duration counts where clocks are too coarse.
                let end = half.start.saturating_add(took.unwrap_or(0)).max(stamp);
                let what = EventKind::Call { name, args, result };
                self.pass(TraceEvent { task, start: half.start, end, line: half.line, what });
                true
            }
            None => false,
        }
    }

    /// Ends a call that never returned, because of exec in another thread, a kill, or the end of the trace.
    fn abandon(&mut self, task: u32) {
        if let Some(half) = self.pending.get(&task)
            && half.renumbered.is_some()
        {
            // The call returned in the file of the other number (`-ff`).
            return self.complete_exec(task, half.start);
        }
        let Some(half) = self.pending.remove(&task) else { return };
        self.coverage.unfinished += 1;
        let text = [half.text.as_slice(), b"...) = ?"].concat();
        if let Some((name, args, _, _)) = value::call(&text) {
            let what = EventKind::Call { name, args, result: Recorded::Unknown };
            let event = TraceEvent { task, start: half.start, end: half.start, line: half.line, what };
            self.pass(event);
        }
    }
}

impl<R: BufRead> Source for Strace<R> {
    fn next_event(&mut self) -> io::Result<Option<TraceEvent>> {
        let mut text = Vec::new();
        while self.ready.is_empty() {
            if !read_line(&mut self.input, &mut text, &mut self.coverage)? {
                let cut = self.cut.take();
                self.drop_cut(cut);
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

#[cfg(test)]
mod tests;

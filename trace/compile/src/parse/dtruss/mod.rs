//! Parses the output of macOS's dtruss, with any options.
//!
//! A line is printed when its call returns. The lines are taken to be in the order of these moments. dtruss
//! prints no clock: [`Dtruss::times`] makes one from the times that the columns show.
//!
//! A process appears with a line `fork()` of its own. A thread appears with its first call. dtruss does not
//! print when a process ends, so it ends when the wait for it returns.

mod line;
mod macos;

use super::lines::read_line;
use super::source::Source;
use crate::coverage::Coverage;
use crate::event::{EventKind, Recorded, TraceEvent, Value};
use line::{CallTimes, DtrussCall, DtrussLine, TimeColumns, line};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, BufRead};

/// Maximum number of threads at one time. With more, the trace is garbage.
const THREADS_MAX: usize = 1 << 16;
/// Maximum number of processes whose parent is unknown, and of the calls kept for each.
const ORPHANS_MAX: usize = 64;
const ORPHAN_CALLS_MAX: usize = 1 << 12;
/// A process's first thread has the process's number, which is lower on macOS. Other threads are numbered
/// from here.
const THREAD_NUMBER_MIN: u32 = 1 << 24;

/// Whether lines at the beginning of a trace are those of dtruss.
pub(super) fn is_dtruss(beginning: &[u8]) -> bool {
    let mut lines = beginning.split(|byte| *byte == b'\n').map(line);
    lines.any(|line| matches!(line, Some(DtrussLine::Header(_) | DtrussLine::Call(_))))
}

/// Reads dtruss's output.
pub(crate) struct Dtruss<R> {
    input: R,
    columns: TimeColumns,
    /// The end of the last call, in nanoseconds.
    now: u64,
    /// The first thread of each process.
    processes: BTreeMap<u32, u64>,
    /// By process and thread.
    threads: BTreeMap<(u32, u64), DtrussThread>,
    threads_made: u32,
    /// Processes whose parent's fork was read before their first line.
    forked: BTreeSet<u32>,
    /// The events of processes whose parent's fork has not been read yet: its line may come later.
    orphans: BTreeMap<u32, Vec<TraceEvent>>,
    /// Whether the table of counts has begun.
    counts: bool,
    ready: VecDeque<TraceEvent>,
    coverage: Coverage,
}

struct DtrussThread {
    /// The number in events.
    task: u32,
    /// The end of the last call, in nanoseconds.
    end: u64,
    /// The earliest time of the next call: `end`, or when this thread was made or made another one.
    free: u64,
    /// The time that the thread had computed at the end of the last call, in microseconds.
    computed: Option<u64>,
}

impl<R: BufRead> Dtruss<R> {
    /// A reader of `input`.
    pub(crate) fn new(input: R) -> Dtruss<R> {
        Dtruss {
            input,
            columns: TimeColumns::default(),
            now: 0,
            processes: BTreeMap::new(),
            threads: BTreeMap::new(),
            threads_made: 0,
            forked: BTreeSet::new(),
            orphans: BTreeMap::new(),
            counts: false,
            ready: VecDeque::new(),
            coverage: Coverage::default(),
        }
    }

    fn take_line(&mut self, text: &[u8]) {
        let number = self.coverage.lines;
        let taken = match line(text) {
            _ if self.counts => Ok(()),
            Some(DtrussLine::Header(columns)) => {
                self.columns = columns;
                Ok(())
            }
            Some(DtrussLine::Counts) => {
                self.counts = true;
                Ok(())
            }
            Some(DtrussLine::Nothing) => Ok(()),
            Some(DtrussLine::Call(call)) => self.take_call(call, number),
            Some(DtrussLine::Lost) => Err("call that dtruss could not print"),
            None => Err("no call of dtruss"),
        };
        match taken {
            Ok(()) => self.coverage.used += 1,
            Err(why) => self.coverage.problem(why, number, text),
        }
    }

    fn take_call(&mut self, mut call: DtrussCall, line: u64) -> Result<(), &'static str> {
        let process = call.thread.0;
        if process >= THREAD_NUMBER_MIN {
            return Err("process number out of range");
        }
        let times = self.columns.times_of(&call);
        let task = self.meet(&call, &times, line)?;
        let (start, end) = self.times(call.thread, &times);
        let child = match call.result {
            Recorded::Value(child, _) => u32::try_from(child).ok().filter(|child| *child > 0),
            _ => None,
        };
        let is_fork = matches!(call.name.as_str(), "fork" | "vfork");
        let is_wait = matches!(call.name.as_str(), "wait4" | "wait4_nocancel");
        macos::translate(&call.name, &mut call.args, &mut call.result);
        let what = EventKind::Call { name: call.name, args: call.args, result: call.result };
        let event = TraceEvent { task, start, end, line, what };
        match child {
            Some(child) if is_fork => self.fork(process, event, child),
            Some(child) if is_wait => {
                self.end_process(child, line);
                self.put(process, event);
            }
            _ => self.put(process, event),
        }
        Ok(())
    }

    /// Passes a fork on, and the events of the child that were read before.
    fn fork(&mut self, process: u32, mut event: TraceEvent, child: u32) {
        let orphan = self.orphans.remove(&child);
        if orphan.is_none() && self.forked.len() < THREADS_MAX {
            self.forked.insert(child);
        }
        let calls = orphan.unwrap_or_default();
        if let Some(first) = calls.first() {
            event.start = event.start.min(first.start.saturating_sub(1));
        }
        self.put(process, event);
        calls.into_iter().for_each(|event| self.put(child, event));
    }

    /// Passes an event of a process on, or keeps it until the process's parent is known.
    fn put(&mut self, process: u32, event: TraceEvent) {
        let Some(calls) = self.orphans.get_mut(&process) else { return self.ready.push_back(event) };
        calls.push(event);
        if calls.len() > ORPHAN_CALLS_MAX {
            self.ready.extend(self.orphans.remove(&process).into_iter().flatten());
        }
    }

    /// The task of a call's thread. A new thread of a known process was made by the process's first thread.
    fn meet(&mut self, call: &DtrussCall, times: &CallTimes, line: u64) -> Result<u32, &'static str> {
        let (process, id) = call.thread;
        if let Some(thread) = self.threads.get(&call.thread) {
            return Ok(thread.task);
        }
        if self.threads.len() >= THREADS_MAX {
            return Err("too many threads");
        }
        let now = self.now;
        let first = self.processes.get(&process).and_then(|first| self.threads.get_mut(&(process, *first)));
        let task = match first {
            Some(first) => {
                let task = THREAD_NUMBER_MIN + self.threads_made;
                self.threads_made += 1;
                first.free = first.free.max(now);
                let flags = Value::Symbol("CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD".into());
                let args = vec![Value::Fields(vec![("flags".into(), flags)])];
                let what = EventKind::Call {
                    name: "clone".into(),
                    args,
                    result: Recorded::Value(task.into(), None),
                };
                self.put(process, TraceEvent { task: process, start: now, end: now, line, what });
                task
            }
            None => {
                let is_child = call.name == "fork" && matches!(call.result, Recorded::Value(0, _));
                let has_parent = is_child && !self.threads.is_empty();
                if !self.forked.remove(&process) && has_parent && self.orphans.len() < ORPHANS_MAX {
                    self.orphans.insert(process, Vec::new());
                }
                self.processes.insert(process, id);
                process
            }
        };
        let elapsed = times.elapsed.unwrap_or(0).saturating_mul(1000);
        let thread = DtrussThread { task, end: now.saturating_sub(elapsed), free: now, computed: None };
        self.threads.insert(call.thread, thread);
        Ok(task)
    }

    /// Ends all threads of a process.
    fn end_process(&mut self, process: u32, line: u64) {
        let now = self.now;
        if self.processes.remove(&process).is_none() {
            return;
        }
        let threads = self.threads.range((process, 0)..=(process, u64::MAX)).map(|(id, _)| *id);
        for id in threads.collect::<Vec<_>>() {
            if let Some(thread) = self.threads.remove(&id) {
                let event =
                    TraceEvent { task: thread.task, start: now, end: now, line, what: EventKind::Ended };
                self.put(process, event);
            }
        }
    }

    /// When a call began and ended, in nanoseconds from the first line. A call ends after the call of the
    /// line before, and after the thread has computed for as long as the columns show.
    fn times(&mut self, thread: (u32, u64), times: &CallTimes) -> (u64, u64) {
        let thread = self.threads.get_mut(&thread).expect("the thread was met");
        let elapsed = times.elapsed.unwrap_or(0);
        let before = thread.computed.or(times.relative).unwrap_or(0);
        let computed = times.relative.map_or(0, |relative| relative.saturating_sub(before));
        let between = computed.saturating_sub(times.cpu.unwrap_or(elapsed));
        let nanoseconds = |micros: u64| micros.saturating_mul(1000);
        let earliest = thread.end.saturating_add(nanoseconds(between)).saturating_add(nanoseconds(elapsed));
        let end = self.now.saturating_add(1).max(earliest);
        let start = end.saturating_sub(nanoseconds(elapsed)).max(thread.free).min(end);
        (thread.end, thread.free) = (end, end);
        thread.computed = thread.computed.max(times.relative);
        self.now = end;
        (start, end)
    }
}

impl<R: BufRead> Source for Dtruss<R> {
    fn next_event(&mut self) -> io::Result<Option<TraceEvent>> {
        let mut text = Vec::new();
        while self.ready.is_empty() {
            if !read_line(&mut self.input, &mut text, &mut self.coverage)? {
                self.ready.extend(std::mem::take(&mut self.orphans).into_values().flatten());
                break;
            }
            self.take_line(&text);
        }
        Ok(self.ready.pop_front())
    }

    fn coverage(&self) -> &Coverage {
        &self.coverage
    }
}

#[cfg(test)]
mod tests;

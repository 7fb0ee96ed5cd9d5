//! Puts overlapping calls into one order, each inside its interval, so that the model explains their results.
//!
//! A call takes effect at some moment between entry and return. By default that is its return, where a lock was granted and
//! a wait ended; for calls that make tasks, write to pipes or replace a program, it is the entry, because others see their
//! effect before they return. If the model contradicts a call's result, calls that have begun by then are tried first; and what
//! a call under way has seen is left as it is until that call is applied.

use super::world::World;
use crate::action::Step;
use crate::names::Names;
use crate::op::{Ask, Call, Fd, Op, Outcome};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// Calls tried before one whose result is contradicted: as many as there are tasks, in practice.
const CANDIDATES_MAX: usize = 64;

/// Races that are listed; all are counted.
const RACES_LISTED_MAX: usize = 1 << 20;

/// Calls that are looked at together. One of them may take effect before all others, whenever it returns; only what comes more
/// than so many calls too late is late, and counted.
pub(super) const WINDOW: usize = 1 << 16;

/// When a call takes effect by default, and its number.
type Moment = (u64, u64, u64);

/// Applies calls as they come, each within a window of those around it, and gives each step to `each`, in the order found.
pub struct Lineariser<'a, Each> {
    world: &'a mut World,
    window: usize,
    /// Calls that are not applied yet, by number.
    calls: HashMap<u64, Call>,
    /// By the moment at which they take effect unless there is a reason for another.
    queue: BTreeMap<Moment, u64>,
    /// Of each task, in its own order.
    per_task: BTreeMap<u32, VecDeque<u64>>,
    /// How many came so far.
    came: u64,
    /// The moment up to which all that came is applied.
    applied: Moment,
    each: Each,
}

impl<'a, Each: FnMut(Step)> Lineariser<'a, Each> {
    /// For calls that come about in the order in which they end.
    pub fn new(world: &'a mut World, each: Each) -> Self {
        Lineariser::with_window(world, WINDOW, each)
    }

    pub(super) fn with_window(world: &'a mut World, window: usize, each: Each) -> Self {
        let (calls, queue, per_task) = Default::default();
        Lineariser { world, window, calls, queue, per_task, came: 0, applied: (0, 0, 0), each }
    }

    /// Takes the next call, and applies the first one if the window is full.
    pub fn add(&mut self, call: Call) {
        let (at, moment) = (self.came, key(&call, self.came, &self.world.names));
        self.came += 1;
        self.world.repairs.late += u64::from(moment < self.applied);
        let own = self.per_task.entry(call.task).or_default();
        let own_place = |at: &u64| self.calls.get(at).map(|other| (other.start, other.line));
        let later = own.iter().rev().take_while(|other| own_place(other) > Some((call.start, call.line)));
        let place = own.len() - later.count();
        own.insert(place, at);
        self.queue.insert(moment, at);
        self.calls.insert(at, call);
        if self.queue.len() > self.window {
            self.advance();
        }
    }

    /// Applies what is left.
    pub fn finish(mut self) {
        while !self.queue.is_empty() {
            self.advance();
        }
    }

    /// Applies the first call, and what must come before it.
    fn advance(&mut self) {
        let Some((moment, first)) = self.queue.pop_first() else { return };
        self.applied = self.applied.max(moment);
        let Some(call) = self.calls.remove(&first) else { return };
        // A task's calls keep their order, whatever their stamps say.
        let mut before = Vec::new();
        let own = self.per_task.get_mut(&call.task).expect("every call has a task");
        while let Some(next) = own.pop_front().filter(|next| *next != first) {
            before.extend(self.calls.remove(&next));
        }
        if own.is_empty() {
            self.per_task.remove(&call.task);
        }
        for call in before {
            self.apply(&call);
        }
        if let Ask::Wait { child: Some(child) } = call.ask {
            self.end_of_child(child);
        }
        if !self.world.explains(&call) {
            self.reorder(&call);
        }
        self.apply(&call);
    }

    /// Calls under way at the end of `call` that come next in their tasks.
    fn overlapping(&self, call: &Call) -> Vec<u64> {
        let overlaps = |at: &u64| {
            let other = self.calls.get(at);
            other.is_some_and(|other| {
                other.start <= call.end && other.task != call.task && self.is_next(other, *at)
            })
        };
        self.queue.values().take(CANDIDATES_MAX).copied().filter(overlaps).collect()
    }

    fn is_next(&self, call: &Call, at: u64) -> bool {
        self.per_task.get(&call.task).and_then(|own| own.front()) == Some(&at)
    }

    /// Tries calls that overlap with `call`, one after the other, until its result is explained.
    fn reorder(&mut self, call: &Call) {
        for at in self.overlapping(call) {
            let Some(other) = self.calls.remove(&at) else { continue };
            // Only a change can help, and only one that is explained itself.
            if !self.is_next(&other, at) || !changes(&other) || !helps(self.world, &other, call) {
                self.calls.insert(at, other);
                continue;
            }
            self.take_early(at, &other);
            if self.world.explains(call) {
                return;
            }
        }
        self.world.repairs.races += 1;
        if self.world.races.len() < RACES_LISTED_MAX {
            self.world.races.push(call.line);
        }
    }

    /// A child that was waited for has ended, even if the line that says so comes later.
    fn end_of_child(&mut self, child: u32) {
        let Some(own) = self.per_task.get(&child) else { return };
        let Some(at) = own.front().copied() else { return };
        if self.calls.get(&at).is_some_and(|call| call.ask == Ask::Exit)
            && let Some(end) = self.calls.remove(&at)
        {
            self.take_early(at, &end);
        }
    }

    fn take_early(&mut self, at: u64, other: &Call) {
        let own = self.per_task.get_mut(&other.task).expect("every call has a task");
        assert_eq!(own.pop_front(), Some(at), "only a task's next call is taken early");
        if own.is_empty() {
            self.per_task.remove(&other.task);
        }
        self.world.repairs.reordered += 1;
        self.apply(other);
    }

    /// Applies a call. If it changes what a call under way has seen as it is now, that one comes first: it may not be
    /// explained any more afterwards.
    fn apply(&mut self, call: &Call) {
        if changes(call) && call.outcome.succeeded() {
            for at in self.overlapping(call) {
                let Some(other) = self.calls.remove(&at) else { continue };
                let observes = !changes(&other) || matches!(other.outcome, Outcome::Error(_));
                if self.is_next(&other, at)
                    && observes
                    && self.world.sees(&other, call)
                    && self.world.explains(&other)
                    && self.world.explains(call)
                {
                    self.take_early(at, &other);
                } else {
                    self.calls.insert(at, other);
                }
            }
        }
        let step = self.world.apply(call);
        (self.each)(step);
    }
}

/// Whether `other` is explained now and concerns a name, number, lock or file that `call` concerns.
fn helps(world: &mut World, other: &Call, call: &Call) -> bool {
    world.explains(other) && (related(world, other, call) || other.task == call.task)
}

fn related(world: &mut World, other: &Call, call: &Call) -> bool {
    let (names, others) = (paths(call), paths(other));
    let descriptors = matches!(
        (&call.ask, &other.ask),
        (
            Ask::File(Op::Open { .. }) | Ask::Opaque { .. } | Ask::Duplicate { .. } | Ask::Pipe { .. },
            Ask::File(Op::Close { .. }) | Ask::Duplicate { .. }
        )
    );
    let looks = matches!(call.ask, Ask::File(Op::Read { .. } | Op::Stat { .. }));
    let bytes = looks && resizes(other) && world.file_meant(call) == world.file_meant(other);
    let locks = matches!(call.ask, Ask::File(Op::Lock { .. } | Op::Flock { .. })) && moves_locks(other);
    let ends = matches!(call.ask, Ask::Wait { .. }) && other.ask == Ask::Exit;
    descriptors || bytes || locks || ends || (!names.is_empty() && !others.is_empty())
}

pub(super) fn resizes(call: &Call) -> bool {
    match &call.ask {
        Ask::File(Op::Write { .. } | Op::WriteWith { .. } | Op::Resize { .. } | Op::Allocate { .. }) => true,
        Ask::File(Op::Open { flags, .. }) => flags & libc::O_TRUNC as u32 != 0,
        _ => false,
    }
}

/// Locks are taken and given back by lock calls, and given back by closes of any kind.
pub(super) fn moves_locks(call: &Call) -> bool {
    let file = matches!(call.ask, Ask::File(Op::Lock { .. } | Op::Flock { .. } | Op::Close { .. }));
    file || matches!(call.ask, Ask::Exit | Ask::Duplicate { .. } | Ask::CloseRange { .. })
}

pub(super) fn paths(call: &Call) -> Vec<crate::names::Name> {
    match &call.ask {
        Ask::File(
            Op::Open { at, .. }
            | Op::Stat { at, .. }
            | Op::Access { at, .. }
            | Op::ReadLink { at, .. }
            | Op::MakeDir { at, .. }
            | Op::MakeNode { at, .. }
            | Op::RemoveDir { at }
            | Op::Unlink { at }
            | Op::Symlink { at, .. }
            | Op::ChangeDir { at, .. },
        ) => vec![at.path],
        Ask::File(
            Op::Rename { from, to, .. } | Op::Link { from, to, .. } | Op::Exchange { one: from, other: to },
        ) => vec![from.path, to.path],
        _ => Vec::new(),
    }
}

pub(super) fn changes(call: &Call) -> bool {
    let op = match &call.ask {
        Ask::File(op) => op,
        Ask::Exit | Ask::Duplicate { .. } | Ask::CloseRange { .. } | Ask::Clone { .. } => return true,
        _ => return false,
    };
    match op {
        Op::Open { flags, .. } => flags & (libc::O_CREAT | libc::O_TRUNC) as u32 != 0,
        Op::Close { .. }
        | Op::Lock { .. }
        | Op::Flock { .. }
        | Op::Write { .. }
        | Op::MakeDir { .. }
        | Op::MakeNode { .. }
        | Op::WriteWith { .. }
        | Op::RemoveDir { .. }
        | Op::Unlink { .. } => true,
        Op::Rename { .. }
        | Op::Exchange { .. }
        | Op::Link { .. }
        | Op::Symlink { .. }
        | Op::Resize { .. }
        | Op::Allocate { .. } => true,
        _ => false,
    }
}

/// When a call takes effect by default; ties keep the order of the lines.
fn key(call: &Call, at: u64, names: &Names) -> Moment {
    let pipe = |fd: Fd| {
        call.notes.iter().any(|(noted, note)| *noted == fd && names.bytes(*note).starts_with(b"pipe:["))
    };
    let early = match &call.ask {
        Ask::Clone { .. } | Ask::Exec | Ask::Wake { .. } => true,
        Ask::File(Op::Write { on, at: None, .. }) => pipe(*on),
        _ => false,
    };
    (if early { call.start } else { call.end }, call.line, at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::action::Action;
    use crate::generated::GeneratedTrace;
    use crate::parse::{Coverage, Source, Strace};
    use std::io::{BufRead, BufReader};

    fn actions(text: impl BufRead, window: usize) -> (Vec<Action>, u64) {
        let mut world = World::new(Names::default());
        let (mut source, mut undecoded) = (Strace::new(text), Coverage::default());
        let mut calls = Vec::new();
        while let Some(event) = source.next_event().expect("memory does not fail") {
            calls.push(crate::decode::decode(&event, &mut world.names, &mut undecoded));
        }
        let mut actions = Vec::new();
        let mut lineariser = Lineariser::with_window(&mut world, window, |step| actions.push(step.action));
        calls.into_iter().for_each(|call| lineariser.add(call));
        lineariser.finish();
        (actions, world.repairs.late)
    }

    #[test]
    fn a_window_that_holds_what_overlaps_gives_what_the_whole_trace_gives() {
        let trace = GeneratedTrace { calls: 20_000, threads: 8, files: 5, seed: 3 };
        let text = || BufReader::new(trace.text());
        assert!(actions(text(), 1000) == actions(text(), usize::MAX));
    }

    #[test]
    fn a_write_into_a_pipe_that_returns_after_the_window_is_late_and_counted() {
        let text = "1 100000001.0 write(5<pipe:[7]>, \"\"..., 1 <unfinished ...>\n\
            2 100000002.0 close(90) = 0 <0.1>\n2 100000003.0 close(91) = 0 <0.1>\n2 100000004.0 close(92) = 0 <0.1>\n\
            1 100000009.0 <... write resumed>) = 1 <8.0>\n";
        let threads = |window| {
            let (actions, late) = actions(text.as_bytes(), window);
            (actions.iter().map(|action| action.line).collect::<Vec<_>>(), late)
        };
        assert_eq!(threads(8), (vec![1, 2, 3, 4], 0));
        assert_eq!(threads(2), (vec![2, 1, 3, 4], 1));
    }
}

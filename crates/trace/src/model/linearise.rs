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
use std::collections::{BTreeMap, VecDeque};

/// Calls tried before one whose result is contradicted: as many as there are tasks, in practice.
const CANDIDATES_MAX: usize = 64;

/// Races that are listed; all are counted.
const RACES_LISTED_MAX: usize = 1 << 20;

/// Applies all calls and gives each step, with its call, to `each`, in the order found.
pub fn linearise(world: &mut World, calls: Vec<Call>, each: impl FnMut(Step)) {
    let mut calls: Vec<Option<Call>> = calls.into_iter().map(Some).collect();
    let mut queue: BTreeMap<(u64, u64, usize), usize> = BTreeMap::new();
    let mut per_task: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
    let mut order: Vec<usize> = (0..calls.len()).collect();
    order.sort_by_key(|at| calls[*at].as_ref().map(|call| (call.start, call.line)));
    for at in order {
        let call = calls[at].as_mut().expect("nothing is applied yet");
        queue.insert(key(call, at, &world.names), at);
        per_task.entry(call.task).or_default().push_back(at);
    }
    Lineariser { world, calls, queue, per_task, each }.run();
}

/// Calls that are not applied yet.
struct Lineariser<'a, Each> {
    world: &'a mut World,
    calls: Vec<Option<Call>>,
    /// By the moment at which they take effect unless there is a reason for another.
    queue: BTreeMap<(u64, u64, usize), usize>,
    /// Of each task, in its own order.
    per_task: BTreeMap<u32, VecDeque<usize>>,
    each: Each,
}

impl<Each: FnMut(Step)> Lineariser<'_, Each> {
    fn run(&mut self) {
        while let Some((_, first)) = self.queue.pop_first() {
            let Some(call) = self.calls[first].take() else { continue };
            // A task's calls keep their order, whatever their stamps say.
            let mut before = Vec::new();
            let own = self.per_task.get_mut(&call.task).expect("every call has a task");
            while let Some(next) = own.pop_front().filter(|next| *next != first) {
                before.extend(self.calls[next].take());
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
    }

    /// Calls under way at the end of `call` that come next in their tasks.
    fn overlapping(&self, call: &Call) -> Vec<usize> {
        let overlaps = |at: &usize| {
            let other = self.calls[*at].as_ref();
            other.is_some_and(|other| {
                other.start <= call.end && other.task != call.task && self.is_next(other, *at)
            })
        };
        self.queue.values().take(CANDIDATES_MAX).copied().filter(overlaps).collect()
    }

    fn is_next(&self, call: &Call, at: usize) -> bool {
        self.per_task.get(&call.task).and_then(|own| own.front()) == Some(&at)
    }

    /// Tries calls that overlap with `call`, one after the other, until its result is explained.
    fn reorder(&mut self, call: &Call) {
        for at in self.overlapping(call) {
            let Some(other) = self.calls[at].take() else { continue };
            // Only a change can help, and only one that is explained itself.
            if !self.is_next(&other, at) || !changes(&other) || !helps(self.world, &other, call) {
                self.calls[at] = Some(other);
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
        if let Some(end) = self.calls[at].take_if(|call| call.ask == Ask::Exit) {
            self.take_early(at, &end);
        }
    }

    fn take_early(&mut self, at: usize, other: &Call) {
        let own = self.per_task.get_mut(&other.task).expect("every call has a task");
        assert_eq!(own.pop_front(), Some(at), "only a task's next call is taken early");
        self.world.repairs.reordered += 1;
        self.apply(other);
    }

    /// Applies a call. If it changes what a call under way has seen as it is now, that one comes first: it may not be
    /// explained any more afterwards.
    fn apply(&mut self, call: &Call) {
        if changes(call) && call.outcome.succeeded() {
            for at in self.overlapping(call) {
                let Some(other) = self.calls[at].take() else { continue };
                let observes = !changes(&other) || matches!(other.outcome, Outcome::Error(_));
                if self.is_next(&other, at)
                    && observes
                    && self.world.sees(&other, call)
                    && self.world.explains(&other)
                    && self.world.explains(call)
                {
                    self.take_early(at, &other);
                } else {
                    self.calls[at] = Some(other);
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
fn key(call: &Call, at: usize, names: &Names) -> (u64, u64, usize) {
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

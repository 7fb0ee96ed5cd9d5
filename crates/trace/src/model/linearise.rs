//! Puts overlapping calls into one order, each inside its interval, so that the model explains their results.
//!
//! A call takes effect at some moment between entry and return. By default that is its return, where a lock was granted and
//! a wait ended; for calls that make tasks, write to pipes or replace a program, it is the entry, because others see their
//! effect before they return. If the model contradicts a call's result, calls that have begun by then are tried first; and what
//! a call under way has seen is left as it is until that call is applied.
//!
//! Where that is not enough, a choice made before was wrong: [`search`](super::search) goes back and makes others.

use super::search::{Checkpoint, Moves};
use super::waiting::{Waiting, Waits};
use super::world::World;
use crate::action::Step;
use crate::op::{Ask, Call, Op, Outcome};
use std::collections::HashSet;
use std::iter::Peekable;
use std::vec::IntoIter;

/// Calls known before they can take effect: those that begin within so many nanoseconds, and at least so many.
const AHEAD_NANOS: u64 = 10_000_000;
const AHEAD_CALLS: usize = 256;

/// Races that are listed; all are counted.
const RACES_LISTED_MAX: usize = 1 << 20;

/// Applies all calls and gives each step, with its call, to `each`, in the order found.
pub fn linearise(world: &mut World, mut calls: Vec<Call>, mut each: impl FnMut(Step)) {
    calls.sort_by_key(|call| (call.start, call.line));
    let mut lineariser = Lineariser {
        world,
        calls: calls.into_iter().peekable(),
        waiting: Waiting::default(),
        past: Vec::new(),
        contradicted: Vec::new(),
        moves: Moves::default(),
        checkpoints: Vec::new(),
        given_up: HashSet::new(),
        applied: 0,
    };
    lineariser.settle(&mut each);
    while lineariser.advance() {
        lineariser.explain_again();
        lineariser.settle(&mut each);
    }
    lineariser.past.drain(..).for_each(|applied| each(applied.step));
}

/// A call that was applied, and can still be taken back.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) one: Waits,
    pub(super) step: Step,
}

/// The order so far, and what is left.
#[derive(Debug)]
pub(super) struct Lineariser<'a> {
    pub(super) world: &'a mut World,
    /// Calls that nothing at the present moment can concern, by their entry.
    calls: Peekable<IntoIter<Call>>,
    pub(super) waiting: Waiting,
    /// What was applied since the older checkpoint.
    pub(super) past: Vec<Applied>,
    /// Calls among them whose result the model did not explain.
    pub(super) contradicted: Vec<usize>,
    /// Choices that differ from the usual ones.
    pub(super) moves: Moves,
    pub(super) checkpoints: Vec<Checkpoint>,
    /// Contradicted calls for which other choices were looked for.
    pub(super) given_up: HashSet<usize>,
    /// Calls applied so far, taken back ones too: what the search costs.
    pub(super) applied: u64,
}

impl Lineariser<'_> {
    /// Applies the next call, and those that must come before it; says whether there was one.
    pub(super) fn advance(&mut self) -> bool {
        self.look_ahead();
        let first = self.waiting.first();
        if let Some((_, at)) = first {
            self.place(at, &mut Vec::new());
        }
        first.is_some()
    }

    /// Takes in all calls that overlap with the next one, and some more: ends that were begun, and what a search looks at.
    fn look_ahead(&mut self) {
        while let Some(call) = self.calls.peek() {
            let until =
                self.waiting.first().map_or(0, |((moment, ..), _)| moment.saturating_add(AHEAD_NANOS));
            if self.waiting.len() >= AHEAD_CALLS && call.start > until {
                return;
            }
            let call = self.calls.next().expect("it was just seen");
            self.waiting.add(call, &self.world.names);
        }
    }

    /// Applies a call after what comes before it: what was moved there, and earlier calls of its task, whatever their stamps say.
    fn place(&mut self, at: usize, within: &mut Vec<usize>) {
        within.push(at);
        for moved in self.moves.before(at) {
            if self.waiting.is_next(moved) && !within.contains(&moved) {
                self.place(moved, within);
            }
        }
        let Some(task) = self.waiting.get(at).map(|one| one.call.task) else { return };
        while let Some(before) = self.waiting.next_of(task).filter(|before| *before != at) {
            let one = self.waiting.take(before);
            self.apply(one);
        }
        let one = self.waiting.take(at);
        if let Ask::Wait { child: Some(child) } = one.call.ask {
            self.end_of_child(child);
        }
        if !self.world.explains(&one.call) {
            self.reorder(&one);
        }
        self.apply(one);
    }

    /// Tries calls that overlap with this one, one after the other, until its result is explained.
    fn reorder(&mut self, one: &Waits) {
        for at in self.waiting.overlapping(&one.call, one.closes) {
            let Some(other) = self.waiting.get(at) else { continue };
            // Only a change can help, and only one that is explained itself.
            let may = self.waiting.is_next(at) && !self.moves.has(one.at, at) && changes(&other.call);
            if !may || !helps(self.world, &other.call, &one.call) {
                continue;
            }
            self.take_early(at);
            if self.world.explains(&one.call) {
                return;
            }
        }
        self.contradicted.push(one.at);
        // Where only the snapshot says otherwise, the trace is right.
        if self.world.contradicts_snapshot(&one.call) {
            return;
        }
        self.world.repairs.races += 1;
        if self.world.races.len() < RACES_LISTED_MAX {
            self.world.races.push(one.call.line);
        }
    }

    /// A child that was waited for has ended, even if the line that says so comes later.
    fn end_of_child(&mut self, child: u32) {
        let Some(at) = self.waiting.next_of(child) else { return };
        if self.waiting.get(at).is_some_and(|one| one.call.ask == Ask::Exit) {
            self.take_early(at);
        }
    }

    fn take_early(&mut self, at: usize) {
        self.world.repairs.reordered += 1;
        let one = self.waiting.take(at);
        self.apply(one);
    }

    /// Applies a call. If it changes what a call under way has seen as it is now, that one comes first: it may not be
    /// explained any more afterwards.
    fn apply(&mut self, one: Waits) {
        let call = &one.call;
        if changes(call) && call.outcome.succeeded() {
            for at in self.waiting.overlapping(call, call.end) {
                let Some(other) = self.waiting.get(at).map(|other| &other.call) else { continue };
                let observes = !changes(other) || matches!(other.outcome, Outcome::Error(_));
                if self.waiting.is_next(at)
                    && observes
                    && !self.moves.has(one.at, at)
                    && self.world.sees(other, call)
                    && self.world.explains(other)
                    && self.world.explains(call)
                {
                    self.take_early(at);
                }
            }
        }
        let step = self.world.apply(&one.call);
        self.applied += 1;
        self.past.push(Applied { one, step });
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
            | Op::Resize { at, .. }
            | Op::SetMode { at, .. }
            | Op::SetOwner { at, .. }
            | Op::SetTimes { at, .. }
            | Op::GetAttribute { at, .. }
            | Op::SetAttribute { at, .. }
            | Op::ListAttributes { at, .. }
            | Op::RemoveAttribute { at, .. }
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

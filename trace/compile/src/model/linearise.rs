//! Puts overlapping calls into one order, each inside its interval, so that the model explains their results.
//!
//! A call takes effect at a moment between entry and return. The default moment is the return, where a lock
//! was granted or a wait ended. Calls that make tasks, write to pipes or replace a program take effect at
//! entry, because other tasks see the effect before the return. If the model contradicts a call's result, the
//! lineariser first tries to apply overlapping calls before it. State that a call under way has observed
//! stays unchanged until that call is applied.
//!
//! If that is not enough, an earlier choice was wrong: [`search`](super::search) goes back and tries other
//! choices.

use super::search::{Checkpoint, Moves};
use super::waiting::{EffectMoment, Waiting, WaitingCall};
use super::world::World;
use crate::call::{Ask, Call, Fd};
use crate::step::Step;
use std::collections::HashSet;
use trace_file::{Op, Operand, Outcome, Place};

/// Races that are listed; all races are counted.
const RACES_LISTED_MAX: usize = 1 << 20;

/// Calls in the window. Within the window, any call may take effect first, however late it returns. A call
/// that comes more than a window too late is counted as late.
pub(super) const WINDOW: usize = 1 << 16;

/// An applied call that can still be undone.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) one: WaitingCall,
    pub(super) step: Step,
}

/// Applies calls in an order that explains their results, within a window, and passes each step to `each` in
/// that order.
pub(crate) struct Lineariser<'a, Each> {
    pub(super) world: &'a mut World,
    window: usize,
    pub(super) waiting: Waiting,
    /// Calls applied since the older checkpoint.
    pub(super) past: Vec<Applied>,
    /// Calls in `past` whose result the model did not explain.
    pub(super) contradicted: Vec<usize>,
    /// Choices that differ from the default order.
    pub(super) moves: Moves,
    pub(super) checkpoints: Vec<Checkpoint>,
    /// Contradicted calls that the search has already tried to explain.
    pub(super) given_up: HashSet<usize>,
    /// Calls applied so far, including undone ones: the cost of the search.
    pub(super) applied: u64,
    /// All calls up to this moment were applied.
    until: EffectMoment,
    /// Calls that arrived after `until` had passed them.
    late: u64,
    pub(super) each: Each,
}

impl<'a, Each: FnMut(Step)> Lineariser<'a, Each> {
    /// A lineariser for calls that arrive roughly in the order of their ends.
    pub(crate) fn new(world: &'a mut World, each: Each) -> Self {
        Lineariser::with_window(world, WINDOW, each)
    }

    pub(super) fn with_window(world: &'a mut World, window: usize, each: Each) -> Self {
        let (waiting, past, contradicted, moves, checkpoints, given_up) = Default::default();
        let (applied, until, late) = Default::default();
        let mut lineariser = Lineariser {
            world,
            window,
            waiting,
            past,
            contradicted,
            moves,
            checkpoints,
            given_up,
            applied,
            until,
            late,
            each,
        };
        lineariser.settle();
        lineariser
    }

    /// Adds a call, and applies the first call in the window if the window is full.
    pub(crate) fn add(&mut self, call: Call) {
        let moment = self.waiting.add(call, &self.world.names);
        self.late += u64::from(moment < self.until);
        if self.waiting.len() > self.window {
            self.go_on();
        }
    }

    /// Whether the trace exceeds a limit. Further calls make no difference then.
    pub(crate) fn is_refused(&self) -> bool {
        self.world.excess.is_some()
    }

    /// Applies the remaining calls.
    pub(crate) fn finish(mut self) {
        while !self.is_refused() && self.go_on() {}
        self.past.drain(..).for_each(|applied| (self.each)(applied.step));
        self.world.repairs.late = self.late;
    }

    /// Applies the next call, searches for another order if needed, and passes on the settled steps. Returns
    /// whether a call was left.
    fn go_on(&mut self) -> bool {
        if let Some((moment, _)) = self.waiting.first() {
            self.until = self.until.max(moment);
        }
        let was_one = self.advance();
        self.explain_again();
        self.settle();
        was_one
    }

    /// Applies the next call and the calls that must come before it. Returns whether a call was left.
    pub(super) fn advance(&mut self) -> bool {
        let first = self.waiting.first();
        if let Some((_, at)) = first {
            self.place(at, &mut Vec::new());
        }
        first.is_some()
    }

    /// Applies a call after the calls moved before it and after earlier calls of its task, whatever their
    /// time stamps say.
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
        match one.call.ask {
            Ask::Wait { child: Some(child) } => self.end_of_child(child),
            Ask::Supersede { by } => self.last_calls(by, one.call.line),
            _ => {}
        }
        if !self.world.explains(&one.call) {
            self.reorder(&one);
        }
        self.apply(one);
    }

    /// Applies overlapping calls early, one by one, until they explain this call's result.
    fn reorder(&mut self, one: &WaitingCall) {
        for at in self.waiting.overlapping(&one.call, one.closes) {
            let Some(other) = self.waiting.get(at) else { continue };
            // Only a change whose own result is explained can help.
            let may = self.may_come(at, one.at) && changes(&other.call);
            if !may || !helps(self.world, &other.call, &one.call) {
                continue;
            }
            self.take_early(at);
            if self.world.explains(&one.call) {
                return;
            }
        }
        self.contradicted.push(one.at);
        // If only the snapshot contradicts the trace, the trace is right.
        if self.world.contradicts_snapshot(&one.call) {
            return;
        }
        self.world.repairs.races += 1;
        if self.world.races.len() < RACES_LISTED_MAX {
            self.world.races.push(one.call.line);
        }
    }

    /// Applies the end of a child that was waited for, even if its line comes later.
    fn end_of_child(&mut self, child: u32) {
        let Some(at) = self.waiting.next_of(child) else { return };
        if self.waiting.get(at).is_some_and(|one| one.call.ask == Ask::Exit) {
            self.take_early(at);
        }
    }

    /// Applies a thread's calls up to a line. From that line on, the thread has another number.
    fn last_calls(&mut self, task: u32, line: u64) {
        while let Some(before) = self.waiting.next_of(task)
            && self.waiting.get(before).is_some_and(|one| one.call.line < line)
        {
            let one = self.waiting.take(before);
            self.apply(one);
        }
    }

    /// Whether call `at` may be applied before call `before`: neither `before` nor a waiting call was moved
    /// before `at`.
    fn may_come(&self, at: usize, before: usize) -> bool {
        let waits = |first: &usize| *first == before || self.waiting.get(*first).is_some();
        self.waiting.is_next(at) && !self.moves.before(at).iter().any(waits)
    }

    fn take_early(&mut self, at: usize) {
        self.world.repairs.reordered += 1;
        let one = self.waiting.take(at);
        self.apply(one);
    }

    /// Applies a call. Calls under way that observed the state before the change come first, because the
    /// change may contradict their results.
    fn apply(&mut self, one: WaitingCall) {
        let call = &one.call;
        if changes(call) && call.outcome.succeeded() {
            for at in self.waiting.overlapping(call, call.end) {
                let Some(other) = self.waiting.get(at).map(|other| &other.call) else { continue };
                let observes = !changes(other) || matches!(other.outcome, Outcome::Error(_));
                if self.may_come(at, one.at)
                    && observes
                    && self.world.sees(other, call)
                    && self.world.explains(other)
                    && self.world.explains(call)
                {
                    self.take_early(at);
                }
            }
        }
        let step = self.world.apply(&one.call);
        self.waiting.applied(one.call.task);
        self.applied += 1;
        self.past.push(Applied { one, step });
    }
}

/// Whether `other` is explained now and concerns the same name, number, lock or file as `call`, or the same
/// task.
fn helps(world: &mut World, other: &Call, call: &Call) -> bool {
    world.explains(other) && (related(world, other, call) || other.task == call.task)
}

fn related(world: &mut World, other: &Call, call: &Call) -> bool {
    let names = !places(call).is_empty() && !places(other).is_empty();
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
    descriptors || bytes || locks || ends || names
}

pub(super) fn resizes(call: &Call) -> bool {
    match &call.ask {
        Ask::File(Op::Write { .. } | Op::WriteWith { .. } | Op::Resize { .. } | Op::Allocate { .. }) => true,
        Ask::File(Op::Open { flags, .. }) => flags & libc::O_TRUNC as u32 != 0,
        _ => false,
    }
}

/// Whether a call takes or releases locks: a lock call or a close of any kind.
pub(super) fn moves_locks(call: &Call) -> bool {
    let file = matches!(call.ask, Ask::File(Op::Lock { .. } | Op::Flock { .. } | Op::Close { .. }));
    file || matches!(call.ask, Ask::Exit | Ask::Duplicate { .. } | Ask::CloseRange { .. })
}

/// The places that a call names.
pub(super) fn places(call: &Call) -> Vec<Place<Fd>> {
    let mut places = Vec::new();
    if let Ask::File(op) = &call.ask {
        op.operands(|part| places.extend(if let Operand::Place(at) = part { Some(*at) } else { None }));
    }
    places
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coverage::Coverage;
    use crate::parse::{Source, Strace};
    use std::io::{BufRead, BufReader};
    use trace_file::{Action, Names};

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
        for name in ["sqlite-wal-6threads", "fio-libaio-2threads"] {
            let path = format!("{}/tests/data/{name}.strace.gz", env!("CARGO_MANIFEST_DIR"));
            let text = || BufReader::new(crate::open_text(path.as_ref()).expect("the trace is there"));
            assert!(actions(text(), 1000) == actions(text(), usize::MAX), "{name}");
        }
    }

    #[test]
    fn a_write_into_a_pipe_that_returns_after_the_window_is_late_and_counted() {
        let text = "1 100000001.0 write(5<pipe:[7]>, \"\"..., 1 <unfinished ...>\n\
            2 100000002.0 mkdir(\"/a\", 0755) = 0 <0.1>\n2 100000003.0 mkdir(\"/b\", 0755) = 0 <0.1>\n\
            2 100000004.0 mkdir(\"/c\", 0755) = 0 <0.1>\n\
            1 100000009.0 <... write resumed>) = 1 <8.0>\n";
        let threads = |window| {
            let (actions, late) = actions(text.as_bytes(), window);
            (actions.iter().map(|action| action.line).collect::<Vec<_>>(), late)
        };
        assert_eq!(threads(8), (vec![1, 2, 3, 4], 0));
        assert_eq!(threads(2), (vec![2, 1, 3, 4], 1));
    }
}

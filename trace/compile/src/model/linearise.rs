//! Puts overlapping calls into one order, each inside its interval, so that the model explains their results.
//!
//! A call takes effect at some moment between entry and return. By default that is its return, where a lock was granted and
//! a wait ended; for calls that make tasks, write to pipes or replace a program, it is the entry, because others see their
//! effect before they return. If the model contradicts a call's result, calls that have begun by then are tried first; and what
//! a call under way has seen is left as it is until that call is applied.
//!
//! Where that is not enough, a choice made before was wrong: [`search`](super::search) goes back and makes others.

use super::search::{Checkpoint, Moves};
use super::waiting::{EffectMoment, Waiting, WaitingCall};
use super::world::World;
use crate::call::{Ask, Call, Fd};
use crate::step::Step;
use std::collections::HashSet;
use trace_file::{Op, Operand, Outcome, Place};

/// Races that are listed; all are counted.
const RACES_LISTED_MAX: usize = 1 << 20;

/// Calls that are looked at together. One of them may take effect before all others, whenever it returns; only what comes more
/// than so many calls too late is late, and counted.
pub(super) const WINDOW: usize = 1 << 16;

/// A call that was applied, and can still be taken back.
#[derive(Debug)]
pub(super) struct Applied {
    pub(super) one: WaitingCall,
    pub(super) step: Step,
}

/// Applies calls as they come, each within a window of those around it, and gives each step to `each`, in the order found.
pub(crate) struct Lineariser<'a, Each> {
    pub(super) world: &'a mut World,
    window: usize,
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
    /// The moment up to which all that came was applied.
    until: EffectMoment,
    /// Calls that came after that.
    late: u64,
    pub(super) each: Each,
}

impl<'a, Each: FnMut(Step)> Lineariser<'a, Each> {
    /// For calls that come about in the order in which they end.
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

    /// Takes the next call, and applies the first one if the window is full.
    pub(crate) fn add(&mut self, call: Call) {
        let moment = self.waiting.add(call, &self.world.names);
        self.late += u64::from(moment < self.until);
        if self.waiting.len() > self.window {
            self.go_on();
        }
    }

    /// Whether the trace has more of something than is kept, so that what follows makes no difference.
    pub(crate) fn is_refused(&self) -> bool {
        self.world.excess.is_some()
    }

    /// Applies what is left.
    pub(crate) fn finish(mut self) {
        while !self.is_refused() && self.go_on() {}
        self.past.drain(..).for_each(|applied| (self.each)(applied.step));
        self.world.repairs.late = self.late;
    }

    /// Applies the next call, looks for another order if one is needed, and gives away what is settled; says whether there was one.
    fn go_on(&mut self) -> bool {
        if let Some((moment, _)) = self.waiting.first() {
            self.until = self.until.max(moment);
        }
        let was_one = self.advance();
        self.explain_again();
        self.settle();
        was_one
    }

    /// Applies the next call, and those that must come before it; says whether there was one.
    pub(super) fn advance(&mut self) -> bool {
        let first = self.waiting.first();
        if let Some((_, at)) = first {
            self.place(at, &mut Vec::new());
        }
        first.is_some()
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

    /// Tries calls that overlap with this one, one after the other, until its result is explained.
    fn reorder(&mut self, one: &WaitingCall) {
        for at in self.waiting.overlapping(&one.call, one.closes) {
            let Some(other) = self.waiting.get(at) else { continue };
            // Only a change can help, and only one that is explained itself.
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

    /// A thread's calls up to a line: from there on, it has another number.
    fn last_calls(&mut self, task: u32, line: u64) {
        while let Some(before) = self.waiting.next_of(task)
            && self.waiting.get(before).is_some_and(|one| one.call.line < line)
        {
            let one = self.waiting.take(before);
            self.apply(one);
        }
    }

    /// Whether a call may be applied before another one: neither that nor what is still to come was put before it.
    fn may_come(&self, at: usize, before: usize) -> bool {
        let waits = |first: &usize| *first == before || self.waiting.get(*first).is_some();
        self.waiting.is_next(at) && !self.moves.before(at).iter().any(waits)
    }

    fn take_early(&mut self, at: usize) {
        self.world.repairs.reordered += 1;
        let one = self.waiting.take(at);
        self.apply(one);
    }

    /// Applies a call. If it changes what a call under way has seen as it is now, that one comes first: it may not be
    /// explained any more afterwards.
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

/// Whether `other` is explained now and concerns a name, number, lock or file that `call` concerns.
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

/// Locks are taken and given back by lock calls, and given back by closes of any kind.
pub(super) fn moves_locks(call: &Call) -> bool {
    let file = matches!(call.ask, Ask::File(Op::Lock { .. } | Op::Flock { .. } | Op::Close { .. }));
    file || matches!(call.ask, Ask::Exit | Ask::Duplicate { .. } | Ask::CloseRange { .. })
}

/// Where the files are that a call names.
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

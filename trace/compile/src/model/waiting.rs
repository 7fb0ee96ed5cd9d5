//! Calls that are not applied yet, ordered by the moment at which they take effect.

use crate::call::{Ask, Call, Fd};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use trace_file::{Names, Op};

/// Calls tried before a call whose result is contradicted. In practice the limit is the number of tasks.
const CANDIDATES_MAX: usize = 64;

/// Nanoseconds by which a call may end later than its time stamp and duration say, if the task makes no other
/// call before. The reason: strace starts to measure the duration after it has printed the call.
const PRINTING: u64 = 1_000_000;

/// A moment, line and number. Ties keep the order of the lines.
pub(super) type EffectMoment = (u64, u64, usize);

/// One call, and its number among all.
#[derive(Debug)]
pub(super) struct WaitingCall {
    pub(super) at: usize,
    pub(super) call: Call,
    /// When the call takes effect by default.
    pub(super) moment: EffectMoment,
    /// The earliest moment of its effect.
    pub(super) opens: u64,
    /// The latest moment of its effect.
    pub(super) closes: u64,
}

/// All waiting calls.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    calls: HashMap<usize, WaitingCall>,
    queue: BTreeMap<EffectMoment, usize>,
    /// The calls of each task, in the task's order.
    per_task: HashMap<u32, VecDeque<usize>>,
    /// The next call of each task, ordered by `opens`.
    open: BTreeSet<(u64, usize)>,
    /// Tasks with a call that was taken and is not applied yet. They have no next call until then.
    taken: Vec<u32>,
    /// When tasks began to end. The kernel may release their resources at any moment from then on.
    ending: HashMap<u32, u64>,
    added: usize,
}

impl Waiting {
    /// Adds a call in its place among the calls of its task. Returns the moment at which it takes effect.
    pub(super) fn add(&mut self, call: Call, names: &Names) -> EffectMoment {
        if matches!(names.bytes(call.name), b"exit" | b"exit_group") {
            self.ending.insert(call.task, call.start);
        }
        let ending = self.ending.get(&call.task).copied().filter(|_| call.ask == Ask::Exit);
        let opens = ending.unwrap_or(call.start).min(call.start);
        let at = self.added;
        self.added += 1;
        let moment = moment(&call, at, names);
        self.queue.insert(moment, at);
        let own = self.per_task.entry(call.task).or_default();
        let own_place = |at: &usize| self.calls.get(at).map(|other| (other.call.start, other.call.line));
        let later = own.iter().rev().take_while(|other| own_place(other) > Some((call.start, call.line)));
        let place = own.len() - later.count();
        let mut closes = call.end.saturating_add(PRINTING);
        if let Some(after) = own.get(place).and_then(|after| self.calls.get(after)) {
            closes = closes.min(after.call.start).max(call.end);
            if place == 0 {
                self.open.remove(&(after.opens, after.at));
            }
        }
        if place == 0 {
            self.open.insert((opens, at));
        } else if let Some(before) = self.calls.get_mut(&own[place - 1]) {
            before.closes = before.closes.min(call.start).max(before.call.end);
        }
        own.insert(place, at);
        self.calls.insert(at, WaitingCall { at, call, moment, opens, closes });
        moment
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn first(&self) -> Option<(EffectMoment, usize)> {
        self.queue.first_key_value().map(|(moment, at)| (*moment, *at))
    }

    /// The moment of the call `further` places behind the next one.
    pub(super) fn later(&self, further: usize) -> Option<EffectMoment> {
        self.queue.keys().nth(further).or(self.queue.keys().next_back()).copied()
    }

    pub(super) fn get(&self, at: usize) -> Option<&WaitingCall> {
        self.calls.get(&at)
    }

    pub(super) fn next_of(&self, task: u32) -> Option<usize> {
        let own = self.per_task.get(&task).filter(|_| !self.taken.contains(&task));
        own.and_then(|own| own.front()).copied()
    }

    pub(super) fn is_next(&self, at: usize) -> bool {
        self.get(at).is_some_and(|one| self.next_of(one.call.task) == Some(at))
    }

    /// Takes the next call of a task. The caller must apply that call before it takes another one of the
    /// task.
    pub(super) fn take(&mut self, at: usize) -> WaitingCall {
        let one = self.calls.remove(&at).expect("it was found here");
        self.queue.remove(&one.moment);
        let own = self.per_task.get_mut(&one.call.task).expect("every call has a task");
        assert_eq!(own.pop_front(), Some(at), "a task's calls keep their order");
        self.open.remove(&(one.opens, at));
        self.taken.push(one.call.task);
        one
    }

    /// Notes that the call taken from this task was applied.
    pub(super) fn applied(&mut self, task: u32) {
        self.taken.retain(|taken| *taken != task);
        match self.per_task.get(&task).and_then(|own| own.front()) {
            Some(next) => drop(self.open.insert((self.calls[next].opens, *next))),
            None => drop(self.per_task.remove(&task)),
        }
    }

    /// Puts a call back. Of a task's calls, the last one taken must come first.
    pub(super) fn put_back(&mut self, one: WaitingCall) {
        self.queue.insert(one.moment, one.at);
        let own = self.per_task.entry(one.call.task).or_default();
        if let Some(next) = own.front() {
            self.open.remove(&(self.calls[next].opens, *next));
        }
        own.push_front(one.at);
        self.open.insert((one.opens, one.at));
        self.calls.insert(one.at, one);
    }

    /// The next calls of other tasks that have begun by `until`, ordered by the moment of their effect.
    pub(super) fn overlapping(&self, call: &Call, until: u64) -> Vec<usize> {
        let mut found: Vec<(EffectMoment, usize)> = self
            .under_way(until)
            .filter(|other| other.call.task != call.task)
            .map(|other| (other.moment, other.at))
            .collect();
        found.sort_unstable();
        found.truncate(CANDIDATES_MAX);
        found.into_iter().map(|(_, at)| at).collect()
    }

    /// The next calls of all tasks that have begun by `until`.
    pub(super) fn under_way(&self, until: u64) -> impl Iterator<Item = &WaitingCall> {
        self.open.range(..=(until, usize::MAX)).map(|(_, at)| &self.calls[at])
    }
}

/// When a call takes effect by default.
fn moment(call: &Call, at: usize, names: &Names) -> EffectMoment {
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

//! The default order: edges only between actions whose effects or results do not commute. There are none
//! between positional reads, between writes that neither overlap nor change the size, and between names made
//! in one directory.

use super::edges::EdgeList;
use super::orderer::Orderer;
use super::paths::Paths;
use super::ranges::{Last, Ranges};
use super::switches::Switches;
use crate::step::{GoneResource, Resource, Step};
use std::collections::{BTreeMap, HashMap};
use trace_file::{Rule, Wait};

/// Maximum number of separate ranges in all files: about 300 bytes each.
const PARTS_MAX: usize = 1 << 18;

/// Files with fewer ranges than this keep all of them.
const FEW: usize = 16;

/// Builds the order `weir`.
#[derive(Debug)]
pub(crate) struct Weir {
    edges: EdgeList,
    whole: HashMap<Resource, Last>,
    names: Paths<Last>,
    ranges: HashMap<Resource, Ranges>,
    /// The number of parts in all of `ranges`, and the number at which they are joined.
    parts: usize,
    parts_max: usize,
}

impl Weir {
    /// An order without actions.
    pub(crate) fn new(switches: &Switches) -> Weir {
        let (whole, ranges) = Default::default();
        Weir {
            edges: EdgeList::new(switches),
            whole,
            names: Paths::default(),
            ranges,
            parts: 0,
            parts_max: PARTS_MAX,
        }
    }

    /// Halves the ranges of files with more than average. If that frees few, because many files have few
    /// ranges each, the limit grows.
    fn coarsen(&mut self) {
        let average = self.parts / self.ranges.len().max(1);
        self.ranges.values_mut().filter(|ranges| ranges.len() >= average.max(FEW)).for_each(Ranges::coarsen);
        self.parts = self.ranges.values().map(Ranges::len).sum();
        self.parts_max = PARTS_MAX.max(self.parts + self.parts / 2);
    }

    /// Forgets resources that no later action can touch.
    fn forget(&mut self, step: &Step) {
        for gone in &step.gone {
            match *gone {
                GoneResource::Description(handle) => drop(self.whole.remove(&Resource::Description(handle))),
                GoneResource::File(file) => {
                    self.names.remove(file);
                    for on in [Resource::Size, Resource::Attributes, Resource::Listing, Resource::Flock] {
                        self.whole.remove(&on(file));
                    }
                    for on in [Resource::Bytes, Resource::Locks] {
                        self.parts -= self.ranges.remove(&on(file)).map_or(0, |ranges| ranges.len());
                    }
                }
            }
        }
    }
}

impl Orderer for Weir {
    fn name(&self) -> &'static str {
        "weir"
    }

    fn add(&mut self, step: &Step, threads: &[u32]) -> &[Wait] {
        let action = self.edges.next();
        let thread = step.action.thread;
        self.edges.add_needs(&step.needs);
        let mut found = Vec::new();
        for touch in &step.touches {
            let mut each = |other| found.push(other);
            match touch.on {
                Resource::Bytes(_) | Resource::Locks(_) => {
                    let ranges = self.ranges.entry(touch.on).or_default();
                    self.parts -= ranges.len();
                    ranges.touch(thread, action, touch.how, touch.range, &mut each);
                    self.parts += ranges.len();
                }
                Resource::Name(dir, name) => {
                    let last = self.names.of(dir, name, (thread, action));
                    last.touch(thread, action, touch.how, &mut each);
                }
                _ => self.whole.entry(touch.on).or_default().touch(thread, action, touch.how, &mut each),
            }
            found.retain(|other| *other != action);
            self.edges.add_all(found.drain(..), touch.on.rule());
        }
        self.forget(step);
        self.names.limit();
        if self.parts > self.parts_max {
            self.coarsen();
        }
        self.edges.close(threads)
    }

    fn finish(self: Box<Self>) -> BTreeMap<Rule, u64> {
        self.edges.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::paths::NAMES_MAX;
    use super::*;
    use crate::step::{Touch, TouchMode};
    use trace_file::{Action, Fate, Name, Op, Outcome};

    fn step(thread: u32, on: Resource, how: TouchMode, range: (u64, u64)) -> Step {
        let (name, fate, recorded) = (Name(0), Fate::Executed, Outcome::Value(0));
        let action = Action { thread, start: 0, end: 0, line: 0, name, fate, op: Op::SyncAll, recorded };
        let touches = vec![Touch { on, how, range }];
        Step { action, touches, series: Vec::new(), needs: Vec::new(), gone: Vec::new() }
    }

    #[test]
    fn ranges_are_bounded_over_all_files_and_what_was_written_is_still_waited_for() {
        let mut order = Weir::new(&Switches::default());
        let mut threads = Vec::new();
        let mut add = |step: &Step| {
            threads.push(step.action.thread);
            let waits = order.add(step, &threads).to_vec();
            (waits, order.parts, order.ranges.len())
        };
        let count = PARTS_MAX as u64 + PARTS_MAX as u64 / 4;
        for at in 0..count {
            let (file, range) = (at as u32 % 2, (at * 10, at * 10 + 5));
            let (_, parts, _) = add(&step(0, Resource::Bytes(file), TouchMode::Write, range));
            assert!(parts <= PARTS_MAX + 3);
        }
        let (waits, ..) = add(&step(1, Resource::Bytes(0), TouchMode::Read, (0, 5)));
        assert_eq!(waits.len(), 1, "it was written");
        let gone = Step {
            gone: vec![GoneResource::File(0), GoneResource::File(1)],
            ..step(1, Resource::Size(0), TouchMode::Read, (0, 1))
        };
        let (_, parts, files) = add(&gone);
        assert_eq!((parts, files), (0, 0));
    }

    #[test]
    fn names_are_bounded_and_what_was_done_to_a_forgotten_one_is_still_waited_for() {
        let mut order = Weir::new(&Switches::default());
        let mut threads = Vec::new();
        let mut add = |step: &Step| {
            threads.push(step.action.thread);
            let waits = order.add(step, &threads).to_vec();
            (waits, order.names.count())
        };
        let name = |number: u32, thread: u32, how: TouchMode| {
            step(thread, Resource::Name(7, Name(number)), how, (0, 1))
        };
        // Forgetting has happened twice by then, and is not due soon.
        let all = NAMES_MAX as u32 / 4 * 7;
        for number in 0..all {
            let (waits, count) = add(&name(number, 0, TouchMode::Write));
            assert!(waits.is_empty() && count <= NAMES_MAX);
        }
        // The first name is forgotten, so the last action on any forgotten name stands for it.
        let (waits, _) = add(&name(0, 1, TouchMode::Read));
        assert!(matches!(waits[..], [wait] if wait.on > 0), "{waits:?}");
        // The thread waits once: the prerequisite of the next forgotten name was done by then, too.
        assert_eq!(add(&name(1, 1, TouchMode::Read)).0, []);
        let (waits, _) = add(&name(0, 0, TouchMode::Write));
        assert!(matches!(waits[..], [wait] if wait.on == all), "{waits:?}");
    }
}

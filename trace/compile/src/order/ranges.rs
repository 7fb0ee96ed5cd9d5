//! The last touches of a resource: of the whole, or of its ranges.

use super::paths::{Newest, THREADS_MAX, Touched, note};
use crate::step::TouchMode;
use std::collections::BTreeMap;
use std::rc::Rc;
use trace_file::ActionId;

/// The last touches of a resource: a group that commutes with each other, and the group before, which does
/// not commute with it.
#[derive(Debug, Clone, Default)]
pub(super) struct Last {
    how: Option<TouchMode>,
    current: Vec<(u32, ActionId)>,
    previous: Vec<(u32, ActionId)>,
    /// For a name: the actions before all known touches.
    forgotten: Option<Rc<Newest>>,
}

impl Last {
    /// Notes a touch, and calls `each` with the actions that do not commute with it.
    pub(super) fn touch(
        &mut self,
        thread: u32,
        action: ActionId,
        how: TouchMode,
        each: &mut impl FnMut(ActionId),
    ) {
        if let Some(forgotten) = &self.forgotten {
            forgotten.values().for_each(|other| each(*other));
            if how == TouchMode::Write {
                // All later touches wait for this action.
                self.forgotten = None;
            } else if forgotten.len() > THREADS_MAX {
                self.forgotten = Some(Rc::new(Newest::from([(thread, action)])));
            }
        }
        let joins = how != TouchMode::Write && self.how == Some(how);
        if !joins && self.current.iter().any(|(_, own)| *own == action) {
            // The action already touched the resource in another mode. The action keeps its place, and now
            // commutes with nothing.
            self.current.retain(|(_, other)| *other != action);
            self.current.iter().for_each(|(_, other)| each(*other));
            (self.how, self.current) = (Some(TouchMode::Write), vec![(thread, action)]);
            return;
        }
        if !joins {
            self.previous = std::mem::take(&mut self.current);
            self.how = Some(how);
        }
        self.previous.iter().for_each(|(_, other)| each(*other));
        if self.previous.len() > THREADS_MAX {
            self.previous = vec![(thread, action)];
        }
        // The last action of each thread is enough, because the others come before it.
        self.current.retain(|(other, _)| *other != thread);
        self.current.push((thread, action));
    }
}

impl Touched for Last {
    fn newest(&self, newest: &mut Newest) {
        self.current.iter().chain(&self.previous).for_each(|(thread, action)| note(newest, *thread, *action));
    }

    fn after(newest: Rc<Newest>) -> Last {
        Last { forgotten: Some(newest), ..Last::default() }
    }
}

impl Last {
    /// Joins two: an action that waits for one waits for the other, too. Ranges forget nothing.
    fn join(self, other: Last) -> Last {
        let newest = |one: Vec<(u32, ActionId)>, other: Vec<(u32, ActionId)>| {
            let mut newest: BTreeMap<u32, ActionId> = BTreeMap::new();
            for (thread, action) in one.into_iter().chain(other) {
                let last = newest.entry(thread).or_default();
                *last = action.max(*last);
            }
            newest.into_iter().collect()
        };
        if self.how == other.how {
            Last {
                how: self.how,
                current: newest(self.current, other.current),
                previous: newest(self.previous, other.previous),
                forgotten: None,
            }
        } else {
            Last {
                how: Some(TouchMode::Write),
                current: newest(
                    [self.current, self.previous].concat(),
                    [other.current, other.previous].concat(),
                ),
                previous: Vec::new(),
                forgotten: None,
            }
        }
    }
}

/// [`Last`] for each range of a resource.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges {
    /// By first byte: the end, and the last touches.
    parts: BTreeMap<u64, (u64, Last)>,
}

impl Ranges {
    pub(super) fn touch(
        &mut self,
        thread: u32,
        action: ActionId,
        how: TouchMode,
        (from, to): (u64, u64),
        each: &mut impl FnMut(ActionId),
    ) {
        self.split(from);
        self.split(to);
        let mut at = from;
        let within: Vec<u64> = self.parts.range(from..to).map(|(start, _)| *start).collect();
        let mut gaps = Vec::new();
        for start in within.iter().copied() {
            if at < start {
                gaps.push((at, start));
            }
            let (end, last) = self.parts.get_mut(&start).expect("it was just listed");
            last.touch(thread, action, how, each);
            at = *end;
        }
        if at < to {
            gaps.push((at, to));
        }
        if how == TouchMode::Write {
            // Later touches wait for this action, so one part replaces all earlier ones.
            within.iter().for_each(|start| drop(self.parts.remove(start)));
            gaps = vec![(from, to)];
        }
        for (start, end) in gaps {
            let mut last = Last::default();
            last.touch(thread, action, how, &mut |_| {});
            self.parts.insert(start, (end, last));
        }
    }

    /// The number of separate ranges.
    pub(super) fn len(&self) -> usize {
        self.parts.len()
    }

    /// Halves the number of ranges by joining neighbours. That may add unneeded edges, but loses none.
    pub(super) fn coarsen(&mut self) {
        let mut parts = std::mem::take(&mut self.parts).into_iter();
        while let Some((start, (end, last))) = parts.next() {
            let joined = match parts.next() {
                Some((_, (other_end, other))) => (other_end, last.join(other)),
                None => (end, last),
            };
            self.parts.insert(start, joined);
        }
    }

    fn split(&mut self, at: u64) {
        let Some((start, (end, last))) = self.parts.range_mut(..at).next_back() else { return };
        if *start < at && at < *end {
            let right = (*end, last.clone());
            *end = at;
            self.parts.insert(at, right);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(
        ranges: &mut Ranges,
        thread: u32,
        action: ActionId,
        how: TouchMode,
        range: (u64, u64),
    ) -> Vec<ActionId> {
        let mut found = Vec::new();
        ranges.touch(thread, action, how, range, &mut |other| found.push(other));
        found.sort_unstable();
        found.dedup();
        found
    }

    #[test]
    fn reads_wait_for_overlapping_writes_only_and_writes_for_both() {
        let mut ranges = Ranges::default();
        assert_eq!(touch(&mut ranges, 0, 0, TouchMode::Write, (0, 10)), [0u32; 0]);
        assert_eq!(touch(&mut ranges, 1, 1, TouchMode::Read, (5, 15)), [0]);
        assert_eq!(touch(&mut ranges, 2, 2, TouchMode::Read, (0, 20)), [0]);
        assert_eq!(touch(&mut ranges, 3, 3, TouchMode::Write, (12, 14)), [1, 2]);
        assert_eq!(touch(&mut ranges, 4, 4, TouchMode::Write, (30, 40)), [0u32; 0]);
        assert_eq!(touch(&mut ranges, 5, 5, TouchMode::Read, (13, 31)), [3, 4]);
    }

    #[test]
    fn ranges_that_are_not_told_apart_any_more_lose_no_edge() {
        let mut ranges = Ranges::default();
        touch(&mut ranges, 0, 0, TouchMode::Write, (0, 10));
        touch(&mut ranges, 1, 1, TouchMode::Read, (20, 30));
        touch(&mut ranges, 2, 2, TouchMode::Read, (40, 50));
        touch(&mut ranges, 3, 3, TouchMode::Read, (60, 70));
        assert_eq!(ranges.len(), 4);
        ranges.coarsen();
        assert_eq!(ranges.len(), 2);
        assert_eq!(touch(&mut ranges, 4, 4, TouchMode::Read, (22, 24)), [0, 1]);
        assert_eq!(touch(&mut ranges, 5, 5, TouchMode::Read, (65, 66)), [0u32; 0]);
        assert_eq!(touch(&mut ranges, 6, 6, TouchMode::Write, (55, 61)), [2, 3]);
    }

    #[test]
    fn changes_that_commute_wait_for_reads_and_not_for_each_other() {
        let mut last = Last::default();
        let mut found = Vec::new();
        last.touch(0, 0, TouchMode::Update, &mut |other| found.push(other));
        last.touch(1, 1, TouchMode::Update, &mut |other| found.push(other));
        assert_eq!(found, [0u32; 0]);
        last.touch(2, 2, TouchMode::Read, &mut |other| found.push(other));
        assert_eq!(found, [0, 1]);
        last.touch(3, 3, TouchMode::Update, &mut |other| found.push(other));
        assert_eq!(found, [0, 1, 2]);
    }
}

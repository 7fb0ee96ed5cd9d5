//! Who touched what last: for a whole resource, and for ranges of one.

use crate::action::{ActionId, How};
use std::collections::BTreeMap;

/// The last touches of a resource: those that commute with each other, and those before them that do not.
#[derive(Debug, Clone, Default)]
pub(super) struct Last {
    how: Option<How>,
    current: Vec<(u32, ActionId)>,
    previous: Vec<(u32, ActionId)>,
}

impl Last {
    /// Notes a touch and gives to `each` the actions that it does not commute with.
    pub(super) fn touch(&mut self, thread: u32, action: ActionId, how: How, each: &mut impl FnMut(ActionId)) {
        let joins = how != How::Write && self.how == Some(how);
        if !joins && self.current.iter().any(|(_, own)| *own == action) {
            // The action touched it already, in another way: it keeps its place, and now commutes with nothing.
            self.current.retain(|(_, other)| *other != action);
            self.current.iter().for_each(|(_, other)| each(*other));
            (self.how, self.current) = (Some(How::Write), vec![(thread, action)]);
            return;
        }
        if !joins {
            self.previous = std::mem::take(&mut self.current);
            self.how = Some(how);
        }
        self.previous.iter().for_each(|(_, other)| each(*other));
        // Of one thread, the last is enough: the others come before it.
        self.current.retain(|(other, _)| *other != thread);
        self.current.push((thread, action));
    }
}

/// [`Last`] for each range of a resource.
#[derive(Debug, Clone, Default)]
pub(super) struct Ranges {
    /// By first byte: the end, and who touched it.
    parts: BTreeMap<u64, (u64, Last)>,
}

impl Ranges {
    pub(super) fn touch(
        &mut self,
        thread: u32,
        action: ActionId,
        how: How,
        (from, to): (u64, u64),
        each: &mut impl FnMut(ActionId),
    ) {
        self.split(from);
        self.split(to);
        let mut at = from;
        let within: Vec<u64> = self.parts.range(from..to).map(|(start, _)| *start).collect();
        let mut gaps = Vec::new();
        for start in within {
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
        if how == How::Write {
            // What came before is behind this action now: one part stands for all.
            self.parts.retain(|start, _| *start < from || *start >= to);
            gaps = vec![(from, to)];
        }
        for (start, end) in gaps {
            let mut last = Last::default();
            last.touch(thread, action, how, &mut |_| {});
            self.parts.insert(start, (end, last));
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
        how: How,
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
        assert_eq!(touch(&mut ranges, 0, 0, How::Write, (0, 10)), [0u32; 0]);
        assert_eq!(touch(&mut ranges, 1, 1, How::Read, (5, 15)), [0]);
        assert_eq!(touch(&mut ranges, 2, 2, How::Read, (0, 20)), [0]);
        assert_eq!(touch(&mut ranges, 3, 3, How::Write, (12, 14)), [1, 2]);
        assert_eq!(touch(&mut ranges, 4, 4, How::Write, (30, 40)), [0u32; 0]);
        assert_eq!(touch(&mut ranges, 5, 5, How::Read, (13, 31)), [3, 4]);
    }

    #[test]
    fn changes_that_commute_wait_for_reads_and_not_for_each_other() {
        let mut last = Last::default();
        let mut found = Vec::new();
        last.touch(0, 0, How::Update, &mut |other| found.push(other));
        last.touch(1, 1, How::Update, &mut |other| found.push(other));
        assert_eq!(found, [0u32; 0]);
        last.touch(2, 2, How::Read, &mut |other| found.push(other));
        assert_eq!(found, [0, 1]);
        last.touch(3, 3, How::Update, &mut |other| found.push(other));
        assert_eq!(found, [0, 1, 2]);
    }
}

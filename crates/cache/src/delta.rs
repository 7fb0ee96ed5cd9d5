//! A delta: disjoint ranges of one page, each bytes or zeros, newer than the store.

use device::{BLOCK_BYTES, Page};
use smallvec::SmallVec;
use std::ops::Range;
use store::DeltaPiece;

/// Disjoint, sorted, never adjacent-and-alike ranges of one page. Its memory is the number of distinct bytes that
/// changed, not of bytes written (*Non-blocking Writes to Files*, section 3.1).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    runs: Runs,
}

/// Most deltas have one run, which then needs no memory of its own.
type Runs = SmallVec<[Run; 1]>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    start: u16,
    content: Content,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Content {
    Bytes(Vec<u8>),
    Zeros(u16),
}

impl Run {
    fn len(&self) -> usize {
        match &self.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Zeros(len) => usize::from(*len),
        }
    }

    fn range(&self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.start) + self.len()
    }

    /// The part of this run within `range`, which overlaps it.
    fn part(&self, range: Range<usize>) -> Run {
        let own = self.range();
        let (start, end) = (own.start.max(range.start), own.end.min(range.end));
        let content = match &self.content {
            Content::Bytes(bytes) => Content::Bytes(bytes[start - own.start..end - own.start].to_vec()),
            Content::Zeros(_) => Content::Zeros((end - start) as u16),
        };
        Run { start: start as u16, content }
    }
}

impl Delta {
    /// Puts `bytes` at `start`, over whatever the delta holds there.
    pub fn write(&mut self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= BLOCK_BYTES, "a delta ends with its page");
        if bytes.is_empty() {
            return;
        }
        // The common cases, without copying what is there: a repeated write within a run, and an append to one.
        let at = self.runs.partition_point(|run| run.range().end < start);
        let next = self.runs.get(at + 1).map_or(BLOCK_BYTES + 1, |run| usize::from(run.start));
        if let Some(Run { start: own, content: Content::Bytes(old) }) = self.runs.get_mut(at)
            && usize::from(*own) <= start
        {
            let from = start - usize::from(*own);
            if from + bytes.len() <= old.len() {
                return old[from..from + bytes.len()].copy_from_slice(bytes);
            }
            if start + bytes.len() < next {
                old.truncate(from);
                return old.extend_from_slice(bytes);
            }
        }
        self.insert(Run { start: start as u16, content: Content::Bytes(bytes.to_vec()) });
    }

    /// Puts `len` zeros at `start`, over whatever the delta holds there.
    pub fn zero(&mut self, start: usize, len: usize) {
        assert!(start + len <= BLOCK_BYTES, "a delta ends with its page");
        if len > 0 {
            self.insert(Run { start: start as u16, content: Content::Zeros(len as u16) });
        }
    }

    fn insert(&mut self, new: Run) {
        if self.runs.is_empty() {
            return self.runs.push(new);
        }
        let range = new.range();
        let first = self.runs.partition_point(|run| run.range().end < range.start);
        let after = self.runs.partition_point(|run| run.range().start <= range.end);
        let mut merged = Runs::new();
        for old in &self.runs[first..after] {
            if old.range().start < range.start {
                push_merging(&mut merged, old.part(0..range.start));
            }
        }
        push_merging(&mut merged, new);
        for old in &self.runs[first..after] {
            if old.range().end > range.end {
                push_merging(&mut merged, old.part(range.end..BLOCK_BYTES));
            }
        }
        self.runs.drain(first..after);
        self.runs.insert_many(first, merged);
    }

    /// True if every byte of `range` is in the delta.
    pub fn covers(&self, range: Range<usize>) -> bool {
        let mut reached = range.start;
        for run in &self.runs {
            if reached >= range.end {
                break;
            }
            if run.range().contains(&reached) {
                reached = run.range().end;
            }
        }
        reached >= range.end
    }

    /// Lays the delta over `page`.
    pub fn apply(&self, page: &mut Page) {
        self.read(0, &mut page.0);
    }

    /// Lays the part of the delta from position `start` on over `into`.
    pub fn read(&self, start: usize, into: &mut [u8]) {
        let end = start + into.len();
        for run in &self.runs {
            let own = run.range();
            let (from, to) = (own.start.max(start), own.end.min(end));
            if from >= to {
                continue;
            }
            match &run.content {
                Content::Bytes(bytes) => {
                    into[from - start..to - start].copy_from_slice(&bytes[from - own.start..to - own.start]);
                }
                Content::Zeros(_) => into[from - start..to - start].fill(0),
            }
        }
    }

    /// Distinct bytes of the page that the delta changes.
    pub fn distinct_bytes(&self) -> usize {
        self.runs.iter().map(Run::len).sum()
    }

    /// Memory that it takes, in bytes, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        let held = |run: &Run| match &run.content {
            Content::Bytes(bytes) => bytes.len(),
            Content::Zeros(_) => 0,
        };
        self.runs.iter().map(|run| size_of::<Run>() + held(run)).sum()
    }

    /// Its ranges, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = DeltaPiece<'_>> {
        self.runs.iter().map(|run| match &run.content {
            Content::Bytes(bytes) => DeltaPiece::Bytes(run.start, bytes),
            Content::Zeros(len) => DeltaPiece::Zeros(run.start, *len),
        })
    }
}

/// Appends `run` to sorted runs that end at or before it, merging it with the last where both are alike.
fn push_merging(runs: &mut Runs, run: Run) {
    if let Some(last) = runs.last_mut()
        && last.range().end == run.range().start
    {
        match (&mut last.content, &run.content) {
            (Content::Bytes(bytes), Content::Bytes(more)) => return bytes.extend_from_slice(more),
            (Content::Zeros(len), Content::Zeros(more)) => return *len += more,
            _ => {}
        }
    }
    runs.push(run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Ranges;
    use proptest::prelude::*;

    fn step() -> impl Strategy<Value = (bool, usize, usize, u8)> {
        (any::<bool>(), 0..BLOCK_BYTES, 0..700usize, any::<u8>())
            .prop_map(|(zero, start, len, byte)| (zero, start, len.min(BLOCK_BYTES - start), byte))
    }

    proptest! {
        #[test]
        fn a_delta_is_the_last_writes_of_each_byte(steps in prop::collection::vec(step(), 0..40)) {
            let mut delta = Delta::default();
            let mut ranges = Ranges::default();
            let mut model = vec![None; BLOCK_BYTES];
            for (zero, start, len, byte) in steps {
                match zero {
                    true => delta.zero(start, len),
                    false => delta.write(start, &vec![byte; len]),
                }
                ranges.insert(start..start + len);
                model[start..start + len].fill(Some(if zero { 0 } else { byte }));
            }
            let mut page = Page([0xee; BLOCK_BYTES]);
            delta.apply(&mut page);
            for (at, expected) in model.iter().enumerate() {
                prop_assert_eq!(page.0[at], expected.unwrap_or(0xee), "position {}", at);
                prop_assert_eq!(delta.covers(at..at + 1), expected.is_some());
                prop_assert_eq!(ranges.iter().any(|range| range.contains(&at)), expected.is_some());
            }
            prop_assert_eq!(delta.distinct_bytes(), model.iter().flatten().count());
            prop_assert_eq!(Ranges::of(&delta), ranges);
            for pair in delta.runs.windows(2) {
                let touching = pair[0].range().end == pair[1].range().start;
                prop_assert!(pair[0].range().end <= pair[1].range().start);
                prop_assert!(!touching || matches!(
                    (&pair[0].content, &pair[1].content),
                    (Content::Bytes(_), Content::Zeros(_)) | (Content::Zeros(_), Content::Bytes(_))
                ), "two runs should have merged");
            }
        }
    }

    #[test]
    fn memory_is_distinct_bytes_and_not_bytes_written() {
        let mut delta = Delta::default();
        (0..1000).for_each(|_| delta.write(100, &[7; 64]));
        assert_eq!(delta.distinct_bytes(), 64);
        assert!(delta.memory_bytes() < 200);
    }

    #[test]
    fn a_range_is_covered_only_without_gaps() {
        let mut delta = Delta::default();
        delta.write(0, &[1; 100]);
        delta.zero(100, 50);
        delta.write(151, &[1; 10]);
        assert!(delta.covers(0..150));
        assert!(!delta.covers(140..155));
        assert!(delta.covers(20..20));
    }
}

//! A delta: the ranges of a page that were written and that the store lacks, each bytes or zeros.

use device::{BLOCK_BYTES, Page};
use smallvec::SmallVec;
use std::num::NonZeroU32;
use std::ops::Range;
use store::DeltaPiece;

/// Ranges of one page: disjoint, sorted, and merged where two of one kind touch. Its memory is the number of
/// distinct bytes that changed, not of bytes written (*Non-blocking Writes to Files*, section 3.1).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageDelta {
    runs: DeltaRuns,
    /// Bytes that the runs hold, and one: counted at each change, because a page of metadata has hundreds of runs. Never
    /// zero, so that an enum of deltas and pages is no larger than a delta.
    held_bytes_and_one: NonZeroU32,
}

impl Default for PageDelta {
    fn default() -> PageDelta {
        PageDelta { runs: DeltaRuns::new(), held_bytes_and_one: NonZeroU32::MIN }
    }
}

/// Most deltas have one run, which then needs no allocation.
type DeltaRuns = SmallVec<[DeltaRun; 1]>;

#[derive(Debug, Clone, PartialEq, Eq)]
struct DeltaRun {
    start: u16,
    content: RunContent,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum RunContent {
    Bytes(Vec<u8>),
    Zeros(u16),
}

impl DeltaRun {
    fn len(&self) -> usize {
        match &self.content {
            RunContent::Bytes(bytes) => bytes.len(),
            RunContent::Zeros(len) => usize::from(*len),
        }
    }

    /// Bytes that it holds outside of itself.
    fn held_bytes(&self) -> u32 {
        match &self.content {
            RunContent::Bytes(bytes) => bytes.len() as u32,
            RunContent::Zeros(_) => 0,
        }
    }

    fn range(&self) -> Range<usize> {
        usize::from(self.start)..usize::from(self.start) + self.len()
    }

    /// The part of this run within `range`, which overlaps it.
    fn part(&self, range: Range<usize>) -> DeltaRun {
        let own = self.range();
        let start = own.start.max(range.start);
        let end = own.end.min(range.end);
        let content = match &self.content {
            RunContent::Bytes(bytes) => RunContent::Bytes(bytes[start - own.start..end - own.start].to_vec()),
            RunContent::Zeros(_) => RunContent::Zeros((end - start) as u16),
        };
        DeltaRun { start: start as u16, content }
    }
}

impl PageDelta {
    /// Puts `bytes` at `start`, over whatever the delta holds there.
    pub fn write(&mut self, start: usize, bytes: &[u8]) {
        assert!(start + bytes.len() <= BLOCK_BYTES, "a delta ends with its page");
        if bytes.is_empty() {
            return;
        }
        // The common cases, without copying what is there: a repeated write within a run, and an append to one.
        let at = self.runs.partition_point(|run| run.range().end < start);
        let next = self.runs.get(at + 1).map_or(BLOCK_BYTES + 1, |run| usize::from(run.start));
        if let Some(DeltaRun { start: own, content: RunContent::Bytes(old) }) = self.runs.get_mut(at)
            && usize::from(*own) <= start
        {
            let from = start - usize::from(*own);
            if from + bytes.len() <= old.len() {
                return old[from..from + bytes.len()].copy_from_slice(bytes);
            }
            if start + bytes.len() < next {
                let grown = (from + bytes.len() - old.len()) as u32;
                old.truncate(from);
                old.extend_from_slice(bytes);
                return self.count_held(grown, 0);
            }
        }
        self.insert(DeltaRun { start: start as u16, content: RunContent::Bytes(bytes.to_vec()) });
    }

    /// Puts `len` zeros at `start`, over whatever the delta holds there.
    pub fn zero(&mut self, start: usize, len: usize) {
        assert!(start + len <= BLOCK_BYTES, "a delta ends with its page");
        if len > 0 {
            self.insert(DeltaRun { start: start as u16, content: RunContent::Zeros(len as u16) });
        }
    }

    fn insert(&mut self, new: DeltaRun) {
        if self.runs.is_empty() {
            self.count_held(new.held_bytes(), 0);
            return self.runs.push(new);
        }
        let range = new.range();
        let first = self.runs.partition_point(|run| run.range().end < range.start);
        let after = self.runs.partition_point(|run| run.range().start <= range.end);
        let mut merged = DeltaRuns::new();
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
        let held = |runs: &[DeltaRun]| runs.iter().map(DeltaRun::held_bytes).sum::<u32>();
        self.count_held(held(&merged), held(&self.runs[first..after]));
        self.runs.drain(first..after);
        self.runs.insert_many(first, merged);
    }

    fn held_bytes(&self) -> u32 {
        self.held_bytes_and_one.get() - 1
    }

    fn count_held(&mut self, more: u32, less: u32) {
        let held = self.held_bytes_and_one.get() + more - less;
        self.held_bytes_and_one = NonZeroU32::new(held).expect("no less than one");
    }

    /// Whether every byte of `range` is in the delta.
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
            let from = own.start.max(start);
            let to = own.end.min(end);
            if from >= to {
                continue;
            }
            match &run.content {
                RunContent::Bytes(bytes) => {
                    into[from - start..to - start].copy_from_slice(&bytes[from - own.start..to - own.start]);
                }
                RunContent::Zeros(_) => into[from - start..to - start].fill(0),
            }
        }
    }

    /// Distinct bytes of the page that the delta changes.
    pub fn distinct_bytes(&self) -> usize {
        self.runs.iter().map(DeltaRun::len).sum()
    }

    /// Memory that it takes, in bytes, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.runs.len() * size_of::<DeltaRun>() + self.held_bytes() as usize
    }

    /// Its ranges, in order.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = DeltaPiece<'_>> {
        self.runs.iter().map(|run| match &run.content {
            RunContent::Bytes(bytes) => DeltaPiece::Bytes(run.start, bytes),
            RunContent::Zeros(len) => DeltaPiece::Zeros(run.start, *len),
        })
    }
}

/// Appends `run` to sorted runs that end at or before it. Merges it with the last run if they touch and are
/// of one kind.
fn push_merging(runs: &mut DeltaRuns, run: DeltaRun) {
    if let Some(last) = runs.last_mut()
        && last.range().end == run.range().start
    {
        match (&mut last.content, &run.content) {
            (RunContent::Bytes(bytes), RunContent::Bytes(more)) => return bytes.extend_from_slice(more),
            (RunContent::Zeros(len), RunContent::Zeros(more)) => return *len += more,
            _ => {}
        }
    }
    runs.push(run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::DirtyRanges;
    use proptest::prelude::*;

    fn step() -> impl Strategy<Value = (bool, usize, usize, u8)> {
        (any::<bool>(), 0..BLOCK_BYTES, 0..700usize, any::<u8>())
            .prop_map(|(zero, start, len, byte)| (zero, start, len.min(BLOCK_BYTES - start), byte))
    }

    proptest! {
            #[test]
            fn a_delta_is_the_last_writes_of_each_byte(steps in prop::collection::vec(step(), 0..40)) {
                let mut delta = PageDelta::default();
                let mut ranges = DirtyRanges::default();
                let mut model = vec![None; BLOCK_BYTES];
                for (zero, start, len, byte) in steps {
                    if zero {
    delta.zero(start, len)
    } else {
    delta.write(start, &vec![byte; len])
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
                prop_assert_eq!(DirtyRanges::of_delta(&delta), ranges);
                let held: u32 = delta.runs.iter().map(DeltaRun::held_bytes).sum();
                prop_assert_eq!(delta.held_bytes(), held);
                for pair in delta.runs.windows(2) {
                    let touching = pair[0].range().end == pair[1].range().start;
                    prop_assert!(pair[0].range().end <= pair[1].range().start);
                    prop_assert!(!touching || matches!(
                        (&pair[0].content, &pair[1].content),
                        (RunContent::Bytes(_), RunContent::Zeros(_)) | (RunContent::Zeros(_), RunContent::Bytes(_))
                    ), "two runs should have merged");
                }
            }
        }

    #[test]
    fn memory_is_distinct_bytes_and_not_bytes_written() {
        let mut delta = PageDelta::default();
        (0..1000).for_each(|_| delta.write(100, &[7; 64]));
        assert_eq!(delta.distinct_bytes(), 64);
        assert!(delta.memory_bytes() < 200);
    }

    #[test]
    fn a_range_is_covered_only_without_gaps() {
        let mut delta = PageDelta::default();
        delta.write(0, &[1; 100]);
        delta.zero(100, 50);
        delta.write(151, &[1; 10]);
        assert!(delta.covers(0..150));
        assert!(!delta.covers(140..155));
        assert!(delta.covers(20..20));
    }
}

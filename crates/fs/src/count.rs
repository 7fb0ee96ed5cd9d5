//! What a file is charged for: the pages that it has, as `du` counts them.
//!
//! Only the store knows which pages it holds, and a write waits for no look into its map. So three things keep the charge, which is
//! never less than the file has:
//!
//! - a write adds the pages that it touches, but for those that are dirty in memory: these were added before;
//! - before pages of a file with holes are removed, they are counted, and removing them takes so many off, unless a clone that is not
//!   stored yet hides them;
//! - pages of a file with holes that were added twice, perhaps, or not taken off, are counted as *unsure*. When they are many, the
//!   file is counted anew in the background. Writes go on meanwhile; what they add is added to what was counted.

use crate::arena::Transaction;
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, Slot};
use crate::fs::Core;
use crate::types::Ino;
use cache::{CacheError, CountBehind};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

/// A file is counted anew when this many pages are unsure, and a part of its charge besides: so counting costs little beside writing.
const UNSURE_MIN: u64 = 64;
const UNSURE_PART: u64 = 8;

/// Places for counters of removals: files that share one spoil each other's counts.
const REMOVALS: usize = 64;

/// What is known of charges, in memory only.
pub(crate) struct Counts {
    drifts: HashMap<Slot, Drift>,
    /// How often pages were removed from files, by their slots.
    removals: [u64; REMOVALS],
    /// A file that is to be counted anew.
    due: Option<Slot>,
}

/// A file with holes that is written to.
#[derive(Default)]
struct Drift {
    unsure: u64,
    /// Pages charged since the count began that is under way.
    added: Option<u64>,
}

/// How many pages of a range a file had.
pub(crate) struct Counted {
    slot: Slot,
    pages: Range<PageNo>,
    data: u64,
    /// The removals before the count.
    removals: u64,
}

impl Default for Counts {
    fn default() -> Counts {
        Counts { drifts: HashMap::new(), removals: [0; REMOVALS], due: None }
    }
}

impl Counts {
    fn removals(&self, slot: Slot) -> u64 {
        self.removals[slot.0 as usize % REMOVALS]
    }

    /// Pages may go from a file: no count that began before says what it has.
    pub(crate) fn removed(&mut self, slot: Slot) {
        self.removals[slot.0 as usize % REMOVALS] += 1;
    }

    /// A file is gone.
    pub(crate) fn forget(&mut self, slot: Slot) {
        self.removed(slot);
        self.drifts.remove(&slot);
    }

    /// A file was charged for holes, perhaps.
    pub(crate) fn doubt(&mut self, slot: Slot, pages: u64, charge: u64) {
        self.charged(slot, 0, pages, charge);
    }

    fn charged(&mut self, slot: Slot, pages: u64, unsure: u64, charge: u64) {
        if unsure == 0 && !self.drifts.contains_key(&slot) {
            return;
        }
        let drift = self.drifts.entry(slot).or_default();
        drift.unsure += unsure;
        match &mut drift.added {
            Some(added) => *added += pages,
            None if drift.unsure >= UNSURE_MIN + charge / UNSURE_PART => self.due = Some(slot),
            None => {}
        }
    }

    /// A file that is to be counted anew, once.
    pub(crate) fn take_due(&mut self) -> Option<Slot> {
        let slot = self.due.take()?;
        self.drifts.insert(slot, Drift { unsure: 0, added: Some(0) });
        Some(slot)
    }

    /// The count that was under way is over. Returns what was charged meanwhile.
    fn end_count(&mut self, slot: Slot) -> Option<u64> {
        let drift = self.drifts.get_mut(&slot)?;
        let added = drift.added.take();
        if drift.unsure == 0 {
            self.drifts.remove(&slot);
        }
        added
    }
}

/// The pages that a range touches.
pub(crate) fn touched(range: Range<u64>) -> Range<PageNo> {
    PageNo(range.start / PAGE)..PageNo(range.end.div_ceil(PAGE))
}

/// The whole pages within a range.
pub(crate) fn whole(range: Range<u64>) -> Range<PageNo> {
    let start = range.start.div_ceil(PAGE);
    PageNo(start)..PageNo((range.end / PAGE).max(start))
}

fn count(pages: &Range<PageNo>) -> u64 {
    pages.end.0 - pages.start.0
}

impl Hot {
    fn size_pages(&self) -> u64 {
        self.size().div_ceil(PAGE)
    }

    /// Whether the file may have holes.
    pub(crate) fn is_sparse(&self) -> bool {
        self.charged_pages() < self.size_pages()
    }

    /// The file has at most so many pages.
    pub(crate) fn charge_at_most(&mut self, pages: u64) {
        self.set_charged_pages(self.charged_pages().min(pages));
    }
}

impl Transaction<'_> {
    /// Charges a file for a range. `before` is the file as it was, `hot` has its new size; `known` pages of the range were there.
    pub(crate) fn charge(&mut self, slot: Slot, before: &Hot, hot: &mut Hot, range: Range<u64>, known: u64) {
        let pages = touched(range);
        let added = count(&pages).saturating_sub(known);
        let behind = pages.end.0.saturating_sub(pages.start.0.max(before.size_pages()));
        let unsure = if before.is_sparse() { added.saturating_sub(behind) } else { 0 };
        hot.set_charged_pages((hot.charged_pages() + added).min(hot.size_pages()));
        self.counts_mut().charged(slot, added, unsure, hot.charged_pages());
    }

    /// Takes off what a file was charged for a range that becomes zeros.
    pub(crate) fn charge_without(&mut self, slot: Slot, hot: &mut Hot, range: Range<u64>) {
        let (holes, had_holes) = (whole(range.clone()), hot.is_sparse());
        let removals = self.counts.removals(slot);
        self.counts_mut().removed(slot);
        let counted = self
            .take_counted()
            .filter(|counted| counted.slot == slot && counted.pages == holes && counted.removals == removals);
        match counted {
            Some(counted) => hot.set_charged_pages(hot.charged_pages().saturating_sub(counted.data)),
            None if had_holes => {
                let most = count(&holes).min(hot.charged_pages());
                self.counts_mut().doubt(slot, most, hot.charged_pages());
            }
            None => {}
        }
        hot.charge_at_most(hot.size_pages().saturating_sub(count(&holes)));
        if !had_holes {
            return;
        }
        // Its edges may be pages now that were none before.
        let before = *hot;
        for edge in [range.start, range.end].into_iter().filter(|edge| !edge.is_multiple_of(PAGE)) {
            self.charge(slot, &before, hot, edge..edge + 1, 0);
        }
    }

    /// After a count of all that a file has.
    fn charge_anew(&mut self, slot: Slot, object: ObjectId, data: Option<u64>) -> Result<(), FsError> {
        let added = self.counts_mut().end_count(slot);
        let (Some(data), Some(added)) = (data, added) else { return Ok(()) };
        let (mut hot, _) = self.used(slot)?;
        if self.object(slot, &hot) == object {
            hot.charge_at_most(data + added);
            self.set_hot(slot, &hot);
        }
        Ok(())
    }
}

impl Core {
    /// Counts the whole pages of a range that is about to become zeros, where that says more than the file's size.
    pub(crate) fn count_before(
        self: &Arc<Core>,
        ino: Ino,
        range: Range<u64>,
        then: impl FnOnce(Option<Counted>) + Send + 'static,
    ) {
        let pages = whole(range);
        let of = pages.clone();
        let state = self.read();
        let found = state.find_file(ino).ok().filter(|(_, hot)| hot.is_written() && hot.is_sparse());
        let Some((slot, hot)) = found.filter(|_| pages.start < pages.end) else {
            drop(state);
            return then(None);
        };
        let (object, removals) = (state.object(slot, &hot), state.counts.removals(slot));
        drop(state);
        // Where the map cannot be read the file's size has to do.
        let counted = move |data: Result<Option<u64>, CacheError>| {
            let data = data.ok().flatten();
            then(data.map(|data| Counted { slot, pages: of, data, removals }));
        };
        self.cache.count(object, pages, CountBehind::GiveUp, Box::new(counted));
    }

    /// Counts all that a file has.
    pub(crate) fn count_anew(self: &Arc<Core>, slot: Slot) {
        let state = self.read();
        let Ok((hot, _)) = state.used(slot) else { return };
        let object = state.object(slot, &hot);
        drop(state);
        let core = self.clone();
        let counted = move |data: Result<Option<u64>, CacheError>| {
            let data = data.ok().flatten();
            let change = move |tx: &mut Transaction<'_>| tx.charge_anew(slot, object, data);
            // One that fails leaves the charge as it was, which is enough.
            core.enter(cost::attributes(false), change, Box::new(|_| {}));
        };
        let all = PageNo(0)..PageNo::of(FILE_BYTES_MAX);
        self.cache.count(object, all, CountBehind::Wait, Box::new(counted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::State;
    use crate::types::Kind;
    use device::VolumeId;

    const FILE: Slot = Slot(5);

    fn file(size: u64) -> Hot {
        let mut hot = Hot::new(Kind::File, 1, 0);
        hot.set_size(size);
        hot
    }

    fn with(work: impl FnOnce(&mut Transaction<'_>)) {
        let mut state = State::blank(VolumeId::MAIN, [1; 16]).expect("an empty file system");
        work(&mut Transaction::begin(&mut state, 0, &[]));
    }

    fn charge(tx: &mut Transaction<'_>, hot: &mut Hot, offset: u64, len: u64) {
        let before = *hot;
        hot.set_size(hot.size().max(offset + len));
        tx.charge(FILE, &before, hot, offset..offset + len, 0);
    }

    #[test]
    fn a_file_that_is_written_once_is_charged_for_what_it_has() {
        with(|tx| {
            let mut hot = file(0);
            (0..100).for_each(|at| charge(tx, &mut hot, at * 1000, 1000));
            assert_eq!(hot.charged_pages(), 100_000_u64.div_ceil(PAGE));
            let mut sparse = file(1 << 40);
            charge(tx, &mut sparse, 1 << 30, 10_000);
            assert_eq!(sparse.charged_pages(), 3);
            charge(tx, &mut sparse, (1 << 40) - 1, 1);
            assert_eq!(sparse.charged_pages(), 4);
        });
    }

    #[test]
    fn a_hole_is_not_charged_for() {
        with(|tx| {
            let mut hot = file(100 * PAGE);
            charge(tx, &mut hot, 0, 100 * PAGE);
            tx.charge_without(FILE, &mut hot, 10 * PAGE..60 * PAGE);
            assert_eq!(hot.charged_pages(), 50);
            tx.charge_without(FILE, &mut hot, 10 * PAGE..60 * PAGE);
            assert_eq!(hot.charged_pages(), 50, "the same hole again");
            tx.charge_without(FILE, &mut hot, 0..100 * PAGE);
            assert_eq!(hot.charged_pages(), 0);
            tx.charge_without(FILE, &mut hot, PAGE + 1..3 * PAGE + 1);
            assert_eq!(hot.charged_pages(), 2, "two pages zeroed in part");
        });
    }

    #[test]
    fn a_count_is_worth_nothing_after_another_removal() {
        let removed = |is_spoiled| {
            let mut left = 0;
            with(|tx| {
                let mut hot = file(100 * PAGE);
                charge(tx, &mut hot, 0, 40 * PAGE);
                let counted = Counted { slot: FILE, pages: PageNo(0)..PageNo(10), data: 10, removals: 0 };
                if is_spoiled {
                    tx.charge_without(FILE, &mut hot, 5 * PAGE..6 * PAGE);
                }
                tx.know(Some(counted));
                tx.charge_without(FILE, &mut hot, 0..10 * PAGE);
                left = hot.charged_pages();
            });
            left
        };
        assert_eq!([removed(false), removed(true)], [30, 40]);
    }

    #[test]
    fn more_pages_than_fit_into_32_bits_are_charged_for_as_the_most_that_do() {
        with(|tx| {
            let mut hot = file(1 << 47);
            charge(tx, &mut hot, 0, 1 << 46);
            assert_eq!(hot.charged_pages(), u64::from(u32::MAX));
        });
    }
}

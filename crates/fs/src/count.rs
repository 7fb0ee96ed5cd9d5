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
use crate::counts::{Counted, count, touched, whole};
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Hot, Slot};
use crate::fs::Core;
use crate::types::Ino;
use cache::{CacheError, CountEffort};
use device::{BLOCK_BYTES, ObjectId, PageNo};
use std::ops::Range;
use std::sync::Arc;

/// A page as a number of bytes.
const PAGE: u64 = BLOCK_BYTES as u64;

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
        let data = self.take_counted().and_then(|counted| counted.data_of(slot, &holes, removals));
        match data {
            Some(data) => hot.set_charged_pages(hot.charged_pages().saturating_sub(data)),
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
            then(data.map(|data| Counted::new(slot, of, data, removals)));
        };
        self.cache.count(object, pages, CountEffort::OneStep, Box::new(counted));
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
            let counts = core.clone();
            // One that is refused leaves the charge as it was, which is enough; a later one may do better.
            let done = move |changed: Result<(), FsError>| {
                if changed.is_err() {
                    counts.change().counts.end_count(slot);
                }
            };
            core.enter(cost::attributes(false), change, Box::new(done));
        };
        let all = PageNo(0)..PageNo::of(FILE_BYTES_MAX);
        self.cache.count(object, all, CountEffort::Whole, Box::new(counted));
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
                let counted = Counted::new(FILE, PageNo(0)..PageNo(10), 10, 0);
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

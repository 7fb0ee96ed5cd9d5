//! The pages that a file is charged for, as `du` reports them.
//!
//! Only the store knows which pages of a file exist, and a write must not wait for a look into the store's
//! map. So the charge is an upper bound, which three mechanisms keep close:
//!
//! - A write adds the pages that it touches, except those that are dirty in memory: they were added before.
//! - Before pages of a sparse file are removed they are counted, and the charge falls by that number, unless
//!   a clone that is not stored yet hides them.
//! - Pages of a sparse file that may have been added twice, or not taken off, are counted as *unsure*. When
//!   there are many, the file's pages are counted again in the background. Writes go on meanwhile, and the
//!   pages that they add are added to the result.

use crate::arena::FsTransaction;
use crate::charge_tracker::{ChargeNote, CountedRange, page_count, touched_pages, whole_pages};
use crate::cost;
use crate::error::FsError;
use crate::format::{FILE_BYTES_MAX, Inode, InodeSlot, PAGE_BYTES};
use crate::fs::FsCore;
use crate::types::Ino;
use cache::{CacheError, CountEffort};
use device::{ObjectId, PageNo};
use std::ops::Range;
use std::sync::Arc;

impl Inode {
    fn size_pages(&self) -> u64 {
        self.size().div_ceil(PAGE_BYTES)
    }

    /// Whether the file may have holes.
    pub(crate) fn is_sparse(&self) -> bool {
        self.charged_pages() < self.size_pages()
    }

    /// Lowers the charge to `pages`, if it is higher.
    pub(crate) fn cap_charge(&mut self, pages: u64) {
        self.set_charged_pages(self.charged_pages().min(pages));
    }
}

impl FsTransaction<'_> {
    /// Charges a file for a written range. `before` is the inode before the write, `inode` has the new size
    /// already. `known` pages of the range are charged already.
    pub(crate) fn charge(
        &mut self,
        slot: InodeSlot,
        before: &Inode,
        inode: &mut Inode,
        range: Range<u64>,
        known: u64,
    ) {
        let pages = touched_pages(range);
        let added = page_count(&pages).saturating_sub(known);
        let behind = pages.end.0.saturating_sub(pages.start.0.max(before.size_pages()));
        let unsure = if before.is_sparse() { added.saturating_sub(behind) } else { 0 };
        inode.set_charged_pages((inode.charged_pages() + added).min(inode.size_pages()));
        let charge = inode.charged_pages();
        self.note_charge(ChargeNote::Charged { slot, pages: added, unsure, charge });
    }

    /// Lowers a file's charge for a range that becomes zeros.
    pub(crate) fn uncharge(&mut self, slot: InodeSlot, inode: &mut Inode, range: Range<u64>) {
        let holes = whole_pages(range.clone());
        let had_holes = inode.is_sparse();
        let removals = self.removals(slot);
        self.note_charge(ChargeNote::Removed(slot));
        let data =
            self.take_removed_pages().and_then(|counted| counted.pages_if_current(slot, &holes, removals));
        match data {
            Some(data) => inode.set_charged_pages(inode.charged_pages().saturating_sub(data)),
            None if had_holes => {
                let most = page_count(&holes).min(inode.charged_pages());
                let charge = inode.charged_pages();
                self.note_charge(ChargeNote::Charged { slot, pages: 0, unsure: most, charge });
            }
            None => {}
        }
        inode.cap_charge(inode.size_pages().saturating_sub(page_count(&holes)));
        if !had_holes {
            return;
        }
        // The edges of the range may be pages that did not exist before.
        let before = *inode;
        for edge in [range.start, range.end].into_iter().filter(|edge| !edge.is_multiple_of(PAGE_BYTES)) {
            self.charge(slot, &before, inode, edge..edge + 1, 0);
        }
    }

    /// Sets a file's charge after all its pages were counted.
    fn apply_recount(&mut self, slot: InodeSlot, object: ObjectId, data: Option<u64>) -> Result<(), FsError> {
        let added = self.charges.added_since_count_began(slot);
        self.note_charge(ChargeNote::Counted(slot));
        let (Some(data), Some(added)) = (data, added) else { return Ok(()) };
        let (mut inode, _) = self.used_inode(slot)?;
        if self.data_object(slot, &inode) == object {
            inode.cap_charge(data + added);
            self.set_inode(slot, &inode);
        }
        Ok(())
    }
}

impl FsCore {
    /// Counts the whole pages of a range that is about to become zeros, if the file is sparse; else the size
    /// says how many there are.
    pub(crate) fn count_before_removal(
        self: &Arc<FsCore>,
        ino: Ino,
        range: Range<u64>,
        then: impl FnOnce(Option<CountedRange>) + Send + 'static,
    ) {
        let pages = whole_pages(range);
        let of = pages.clone();
        let state = self.read_state();
        let found = state.find_file(ino).ok().filter(|(_, inode)| inode.is_written() && inode.is_sparse());
        let Some((slot, inode)) = found.filter(|_| pages.start < pages.end) else {
            drop(state);
            return then(None);
        };
        let object = state.data_object(slot, &inode);
        let removals = state.charges.removals(slot);
        drop(state);
        // If the store's map cannot be read, the charge follows from the file's size.
        let counted = move |data: Result<Option<u64>, CacheError>| {
            let data = data.ok().flatten();
            then(data.map(|data| CountedRange::new(slot, of, data, removals)));
        };
        self.cache.count(object, pages, CountEffort::OneStep, Box::new(counted));
    }

    /// Counts all pages of a file, and sets its charge.
    pub(crate) fn recount(self: &Arc<FsCore>, slot: InodeSlot) {
        let state = self.read_state();
        let Ok((inode, _)) = state.used_inode(slot) else { return };
        let object = state.data_object(slot, &inode);
        drop(state);
        let core = self.clone();
        let counted = move |data: Result<Option<u64>, CacheError>| {
            let data = data.ok().flatten();
            let change = move |tx: &mut FsTransaction<'_>| tx.apply_recount(slot, object, data);
            let counts = core.clone();
            // If the change is refused the charge stays, which is safe; a later count may succeed.
            let done = move |changed: Result<(), FsError>| {
                if changed.is_err() {
                    counts.write_state().charges.note(ChargeNote::Counted(slot));
                }
            };
            core.run_transaction(cost::attributes(false), change, Box::new(done));
        };
        let all = PageNo(0)..PageNo::of(FILE_BYTES_MAX);
        self.cache.count(object, all, CountEffort::Whole, Box::new(counted));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::FsState;
    use crate::types::FileKind;
    use device::VolumeId;

    const FILE: InodeSlot = InodeSlot(5);

    fn file(size: u64) -> Inode {
        let mut inode = Inode::new(FileKind::File, 1, 0);
        inode.set_size(size);
        inode
    }

    fn with(work: impl FnOnce(&mut FsTransaction<'_>)) {
        let mut state = FsState::blank(VolumeId::MAIN, [1; 16]).expect("an empty file system");
        work(&mut FsTransaction::begin(&mut state, 0, &[]));
    }

    fn charge(tx: &mut FsTransaction<'_>, inode: &mut Inode, offset: u64, len: u64) {
        let before = *inode;
        inode.set_size(inode.size().max(offset + len));
        tx.charge(FILE, &before, inode, offset..offset + len, 0);
    }

    #[test]
    fn a_file_that_is_written_once_is_charged_for_what_it_has() {
        with(|tx| {
            let mut inode = file(0);
            (0..100).for_each(|at| charge(tx, &mut inode, at * 1000, 1000));
            assert_eq!(inode.charged_pages(), 100_000_u64.div_ceil(PAGE_BYTES));
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
            let mut inode = file(100 * PAGE_BYTES);
            charge(tx, &mut inode, 0, 100 * PAGE_BYTES);
            tx.uncharge(FILE, &mut inode, 10 * PAGE_BYTES..60 * PAGE_BYTES);
            assert_eq!(inode.charged_pages(), 50);
            tx.uncharge(FILE, &mut inode, 10 * PAGE_BYTES..60 * PAGE_BYTES);
            assert_eq!(inode.charged_pages(), 50, "the same hole again");
            tx.uncharge(FILE, &mut inode, 0..100 * PAGE_BYTES);
            assert_eq!(inode.charged_pages(), 0);
            tx.uncharge(FILE, &mut inode, PAGE_BYTES + 1..3 * PAGE_BYTES + 1);
            assert_eq!(inode.charged_pages(), 2, "two pages zeroed in part");
        });
    }

    #[test]
    fn a_count_is_worth_nothing_after_another_removal() {
        let removed = |is_spoiled| {
            let mut left = 0;
            with(|tx| {
                let mut inode = file(100 * PAGE_BYTES);
                charge(tx, &mut inode, 0, 40 * PAGE_BYTES);
                let counted = CountedRange::new(FILE, PageNo(0)..PageNo(10), 10, 0);
                if is_spoiled {
                    tx.uncharge(FILE, &mut inode, 5 * PAGE_BYTES..6 * PAGE_BYTES);
                }
                tx.set_removed_pages(Some(counted));
                tx.uncharge(FILE, &mut inode, 0..10 * PAGE_BYTES);
                left = inode.charged_pages();
            });
            left
        };
        assert_eq!([removed(false), removed(true)], [30, 40]);
    }

    #[test]
    fn undone_removal_spoils_no_count() {
        let mut state = FsState::blank(VolumeId::MAIN, [1; 16]).expect("an empty file system");
        let counted = || Some(CountedRange::new(FILE, PageNo(0)..PageNo(10), 10, 0));
        let mut inode = file(100 * PAGE_BYTES);
        let mut tx = FsTransaction::begin(&mut state, 0, &[]);
        charge(&mut tx, &mut inode, 0, 40 * PAGE_BYTES);
        tx.keep();
        drop(tx);
        for is_kept in [false, true] {
            let mut removed = inode;
            let mut tx = FsTransaction::begin(&mut state, 0, &[]);
            tx.set_removed_pages(counted());
            tx.uncharge(FILE, &mut removed, 0..10 * PAGE_BYTES);
            assert_eq!(removed.charged_pages(), 30);
            if is_kept {
                tx.keep();
            }
        }
        assert_eq!(state.charges.removals(FILE), 1);
    }

    #[test]
    fn more_pages_than_fit_into_32_bits_are_charged_for_as_the_most_that_do() {
        with(|tx| {
            let mut inode = file(1 << 47);
            charge(tx, &mut inode, 0, 1 << 46);
            assert_eq!(inode.charged_pages(), u64::from(u32::MAX));
        });
    }
}

//! Folding: pages are written whole in the place of their bases and deltas. What is in them stays as it is, and so does their page LSN.
//!
//! Leaves are folded together, and the pages of one lie behind each other afterwards: long runs are read and written. After a crash each
//! page is there as it was or whole, which is the same to whoever reads it.

use crate::bug::{StoreBug, is_planted};
use crate::change::Change;
use crate::counters::count;
use crate::delta::{DeltaBlock, leaf_of};
use crate::entry::{LogEntry, Origin};
use crate::error::StoreError;
use crate::format::LEAF_PAGES;
use crate::map::{FoldCursor, FoldLook};
use crate::policy::SpaceClass;
use crate::shared::{PageRead, StoreShared, StoredPage};
use crate::writer::StoreWriter;
use device::{ObjectId, Page, PageNo, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A round of folding everything. Owned by the store, behind the writer's lock. Gone after a crash: it begins anew.
#[derive(Debug, Default)]
pub(crate) struct Folding {
    /// Where it goes on; `None` between rounds.
    cursor: Option<FoldCursor>,
    /// Blocks of deltas that had been written when the round began.
    began: u64,
    /// The same of the last round that came to its end, or to a node that cannot be read: if there are no more, there is nothing to fold.
    ended: Option<u64>,
}

impl Folding {
    /// Whether a round is under way, or what it would fold is worth looking at every leaf: one block of deltas in so many nodes.
    pub(crate) fn is_worth_it(&self, shared: &StoreShared) -> bool {
        let new = delta_blocks_written(shared) - self.ended.unwrap_or(0);
        self.cursor.is_some() || new >= (shared.map().nodes.table.used() / NODES_PER_DELTA_BLOCK).max(1)
    }

    /// See [`Store::idle_merge_step`](crate::Store::idle_merge_step).
    pub(crate) fn step(
        &mut self,
        shared: &StoreShared,
        writer: &mut StoreWriter,
    ) -> Result<bool, StoreError> {
        let written = delta_blocks_written(shared);
        let from = match self.cursor {
            None if self.ended == Some(written) => return Ok(false),
            None => {
                self.began = written;
                FoldCursor::default()
            }
            Some(cursor) => cursor,
        };
        let look = shared.resolve(|map| map.next_to_fold(from));
        self.cursor = look.as_ref().map_or(None, |look| look.next);
        if self.cursor.is_none() {
            self.ended = Some(self.began);
        }
        let FoldLook { found, next } = look?;
        if let Some((object, page)) = found {
            match writer.fold_leaves(shared, &[(object, page)]) {
                // When there is some space, it goes on here.
                Err(error) if error.is_full() => {
                    self.cursor = Some(from);
                    return Err(error);
                }
                // What cannot be read stays as it is.
                Err(error) if !error.is_read_failure() => return Err(error),
                _ => {}
            }
        }
        Ok(next.is_some())
    }
}

/// Folding while deltas are stored: as many leaves as are paid for by the deltas that went to the store, one after the other in the order of
/// their keys, and round again. So leaves that lie beside each other are folded together, in long runs, and never all leaves at once,
/// though all may fill up at the same pace. Owned by the writer. Gone after a crash: leaves that got their deltas before are folded when
/// they are full, or in quiet times.
#[derive(Debug, Default)]
pub(crate) struct Sweep {
    /// Leaves that got deltas, by their first pages, and how full they are, at most: see [`FULL`].
    leaves: BTreeMap<(ObjectId, PageNo), u64>,
    /// The same for all that was stored and is not paid for by folding.
    owed: u64,
    /// Where it goes on.
    cursor: (ObjectId, PageNo),
}

/// A leaf that is to be folded when its turn comes, in the middle of a long life: 40 blocks of deltas, or two deltas for each of its pages.
/// It may have 52, and eight.
const FULL: u64 = FULL_BLOCKS * FULL_DELTAS;
const FULL_BLOCKS: u64 = 40;
const FULL_DELTAS: u64 = 2 * LEAF_PAGES;
/// One that is not worth a turn: in the first round they are all emptier than later.
const HARDLY_FULL: u64 = FULL / 5;
/// Leaves that are known at most, in 12 MiB: those of 128 GiB. Beyond, all of them are forgotten, those of deleted files, too; what was not
/// folded then is when it is full.
const LEAVES_MAX: usize = 262_144;
/// Leaves looked at for those that are folded together.
const LOOKS_MAX: usize = 1024;
/// Leaves that are folded together.
const SWEPT_TOGETHER: u64 = 16;

impl Sweep {
    /// A block with so many deltas was stored.
    pub(crate) fn stored(&mut self, object: ObjectId, block: &DeltaBlock) {
        let units = FULL_DELTAS.max(FULL_BLOCKS * u64::from(block.bits().count_ones()));
        if self.leaves.len() == LEAVES_MAX {
            self.leaves.clear();
        }
        *self.leaves.entry((object, block.first())).or_default() += units;
        self.owed = (self.owed + units).min(2 * SWEPT_TOGETHER * FULL);
    }

    /// Whether leaves are to be folded for what was stored.
    pub(crate) fn is_due(&self) -> bool {
        self.owed >= SWEPT_TOGETHER * FULL
    }

    /// Takes those whose turn it is.
    fn next(&mut self) -> Vec<(ObjectId, PageNo)> {
        let behind = self.leaves.range(self.cursor..).chain(self.leaves.range(..self.cursor));
        let mut leaves = Vec::new();
        for (&leaf, &units) in behind.take(LOOKS_MAX) {
            if leaves.len() as u64 == SWEPT_TOGETHER {
                break;
            }
            self.cursor = (leaf.0, PageNo(leaf.1.0 + 1));
            leaves.extend((units >= HARDLY_FULL).then_some(leaf));
        }
        for leaf in &leaves {
            self.leaves.remove(leaf);
        }
        self.owed = match leaves.len() as u64 {
            // Nothing to fold yet, or no more.
            count if count < SWEPT_TOGETHER => 0,
            count => self.owed - count * FULL,
        };
        leaves
    }
}

fn delta_blocks_written(shared: &StoreShared) -> u64 {
    shared.medium.counting().now().delta_blocks_written
}

/// What becomes of a page to fold that is damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Damaged {
    /// It stays as it is, and the others are folded.
    Stays,
    /// It is an error.
    Fails,
}

impl StoreWriter {
    /// Folds leaves for deltas that were stored, where that is due. Returns how many pages.
    pub(crate) fn fold_owed(&mut self, shared: &StoreShared) -> Result<u64, StoreError> {
        if !self.sweep().is_due() || shared.map().is_short_of_space() {
            return Ok(0);
        }
        let leaves = self.sweep().next();
        self.fold_leaves(shared, &leaves)
    }

    /// Folds all pages of the leaves in which these lie that nobody else shares, but for damaged ones. Returns how many. What the cleaner
    /// needs stays free: it wins more than folding.
    pub(crate) fn fold_leaves(
        &mut self,
        shared: &StoreShared,
        leaves: &[(ObjectId, PageNo)],
    ) -> Result<u64, StoreError> {
        self.make_ready(shared)?;
        let mut pages = Vec::new();
        for &(object, page) in leaves {
            self.sweep().leaves.remove(&(object, leaf_of(page)));
            let foldable = shared.resolve(|map| map.foldable(object, page))?;
            pages.extend(foldable.into_iter().map(|page| (object, page)));
        }
        self.fold(shared, &pages, SpaceClass::Writer, Damaged::Stays)
    }

    /// Folds those pages that a clone or a move takes out of leaves which it does not take whole: a block of deltas belongs to one leaf.
    /// Where one of several changes may bring deltas to another's source, all that they take. Of a damaged page that stays as it is they
    /// take that it is lost.
    pub(crate) fn fold_for_transfers(
        &mut self,
        shared: &StoreShared,
        vector: &[Change],
        damaged: Damaged,
    ) -> Result<(), StoreError> {
        for change in vector {
            let (Change::Clone { transfer, .. } | Change::Move { transfer, .. }) = change else { continue };
            let pages = shared.resolve(|map| map.deltas_taken(transfer, vector.len() > 1))?;
            let pages: Vec<_> = pages.into_iter().map(|page| (transfer.from, page)).collect();
            self.fold(shared, &pages, SpaceClass::Cleaner, damaged)?;
        }
        Ok(())
    }

    fn fold(
        &mut self,
        shared: &StoreShared,
        pages: &[(ObjectId, PageNo)],
        class: SpaceClass,
        damaged: Damaged,
    ) -> Result<u64, StoreError> {
        let mut folded = 0;
        for some in pages.chunks(READ_TOGETHER) {
            let mut wants: Vec<PageRead> =
                some.iter().map(|&(object, page)| PageRead::new(object, page)).collect();
            shared.read_with_gaps(&mut wants, GAP_BLOCKS);
            let (mut entries, mut bytes): (Vec<LogEntry>, Vec<SharedPage>) = (Vec::new(), Vec::new());
            for PageRead { object, page, result: found } in wants {
                let found = match found {
                    Err(error) if damaged == Damaged::Stays && error.is_damage() => continue,
                    found => found?,
                };
                if let StoredPage::Page { bytes: mut whole, page_lsn } = found {
                    if is_planted(StoreBug::FoldWithoutDeltas) {
                        whole = base_of(shared, object, page)?;
                    }
                    let whole: SharedPage = Arc::from(whole);
                    entries.push(Change::Write { object, page, bytes: whole.clone(), page_lsn }.log_entry());
                    bytes.push(whole);
                }
            }
            for (entries, bytes) in entries.chunks(WRITE_TOGETHER).zip(bytes.chunks(WRITE_TOGETHER)) {
                let data: Vec<Option<&Page>> = bytes.iter().map(|page| Some(page as &Page)).collect();
                // The buffer knows their LSNs since they were stored as deltas.
                self.append(shared, entries.to_vec(), &data, class, Origin::Bypassed)?;
                folded += entries.len() as u64;
            }
        }
        count(&shared.medium.counting().pages_delta_merged, folded);
        Ok(folded)
    }
}

/// A page without its deltas: for a planted bug.
fn base_of(shared: &StoreShared, object: ObjectId, page: PageNo) -> Result<Box<Page>, StoreError> {
    let located = shared.resolve(|map| map.lookup(object, page))?;
    let mut bytes = Page::zeroed();
    if let Some(base) = located.and_then(|located| located.page.base()) {
        shared.medium.device().read(base.place, std::slice::from_mut(&mut *bytes))?;
    }
    Ok(bytes)
}

/// Nodes that a round may read for a block of deltas that it finds: as much as the block cost when it was written.
const NODES_PER_DELTA_BLOCK: u64 = 16;

/// Pages that are read together: those of as many leaves as a sweep folds, so that what was stored together of each is one read.
const READ_TOGETHER: usize = (SWEPT_TOGETHER * LEAF_PAGES) as usize;
/// Blocks between two that are read with them: what is read for nothing is 45 MiB at most.
const GAP_BLOCKS: u64 = 4;
/// Pages of one batch of the log: a MiB.
const WRITE_TOGETHER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta::{DeltaPacker, Piece};
    use device::{StoreId, VolumeId};

    fn block(first: u64, deltas: u64) -> DeltaBlock {
        let mut packer = DeltaPacker::new(StoreId([7; 16]));
        (0..deltas)
            .for_each(|page| assert!(packer.add(PageNo(first + page), [Piece::Bytes(0, &[1])].into_iter())));
        packer.finish().remove(0)
    }

    #[test]
    fn leaves_that_fill_up_together_are_folded_one_after_the_other_in_long_runs() {
        const LEAVES: u64 = 200;
        let object = VolumeId::MAIN.object(5, 1);
        let (mut sweep, mut held, mut folded) = (Sweep::default(), vec![0; LEAVES as usize], Vec::new());
        for round in 0..400 {
            for leaf in 0..LEAVES {
                sweep.stored(object, &block(leaf * LEAF_PAGES, 5));
                held[leaf as usize] += 1;
                if !sweep.is_due() {
                    continue;
                }
                let run: Vec<u64> = sweep.next().iter().map(|(_, first)| first.0 / LEAF_PAGES).collect();
                let follow = |pair: &[u64]| pair[1] == (pair[0] + 1) % LEAVES;
                assert!(run.windows(2).all(follow), "{run:?}");
                folded.extend(run.iter().map(|&leaf| (round, std::mem::take(&mut held[leaf as usize]))));
            }
        }
        let most = folded.iter().map(|(_, blocks)| *blocks).max().expect("some are folded");
        assert!(most < 52, "{most} blocks: one was full before its turn");
        let later: Vec<u64> =
            folded.iter().filter(|(round, _)| *round > 100).map(|(_, blocks)| *blocks).collect();
        assert!(later.iter().all(|blocks| (38..=42).contains(blocks)), "{later:?}");
    }

    #[test]
    fn a_few_leaves_are_folded_when_they_are_full_enough_and_what_was_owed_for_others_is_forgotten() {
        let object = VolumeId::MAIN.object(5, 1);
        let mut sweep = Sweep::default();
        let mut stored = 0;
        while !sweep.is_due() {
            sweep.stored(object, &block(0, 1));
            stored += 1;
        }
        assert_eq!(stored, SWEPT_TOGETHER * FULL_BLOCKS);
        sweep.stored(object, &block(5 * LEAF_PAGES, 1));
        assert_eq!(sweep.next(), [(object, PageNo(0))], "the other one is hardly full");
        assert!(!sweep.is_due() && sweep.next().is_empty());
    }
}

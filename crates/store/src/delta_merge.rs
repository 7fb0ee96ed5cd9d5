//! Delta merge: writes a base page and its deltas as one whole page. The bytes and the page LSN of the page
//! stay the same.
//!
//! Leaves are merged in groups. Afterwards the pages of a leaf lie next to each other on the device, so reads
//! and writes are long runs. After a crash each page is either still a base with deltas or merged. Readers
//! get the same bytes from both.

use crate::bug::{StoreBug, is_planted};
use crate::change::StoreChange;
use crate::counters::count;
use crate::delta_block::{DeltaBlock, leaf_first_page};
use crate::error::StoreError;
use crate::format::LEAF_PAGES;
use crate::log_entry::{BatchOrigin, LogEntry};
use crate::map::{MergeCursor, MergeSearch, SharedDeltas};
use crate::policy::SpaceClass;
use crate::shared::{PageRead, StoreShared, StoredPage};
use crate::writer::StoreWriter;
use device::{ObjectId, Page, PageNo, SharedPage};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A round that merges the deltas of all leaves, one leaf a step, while nothing else is written. Owned by the
/// store. Lost in a crash: the next round begins at the first leaf.
#[derive(Debug, Default)]
pub(crate) struct IdleMergeRound {
    /// Where the next step continues; `None` between rounds.
    cursor: Option<MergeCursor>,
    /// Delta blocks that the store had written when this round began.
    delta_blocks_at_start: u64,
    /// Delta blocks that the store had written when the last round began that reached its end or an
    /// unreadable node. If the store has written no delta block since, there is nothing to merge.
    delta_blocks_at_last_round: Option<u64>,
}

impl IdleMergeRound {
    /// Whether a round is under way, or enough delta blocks were written since the last one to pay for
    /// reading every leaf.
    pub(crate) fn is_worth_it(&self, shared: &StoreShared) -> bool {
        let new = delta_blocks_written(shared) - self.delta_blocks_at_last_round.unwrap_or(0);
        self.cursor.is_some() || new >= (shared.map().nodes.table.used_count() / NODES_PER_DELTA_BLOCK).max(1)
    }

    /// See [`StoreMaintenance::idle_merge_step`](crate::StoreMaintenance::idle_merge_step).
    pub(crate) fn step(
        &mut self,
        shared: &StoreShared,
        writer: &mut StoreWriter,
    ) -> Result<bool, StoreError> {
        let written = delta_blocks_written(shared);
        let from = match self.cursor {
            None if self.delta_blocks_at_last_round == Some(written) => return Ok(false),
            None => {
                self.delta_blocks_at_start = written;
                MergeCursor::default()
            }
            Some(cursor) => cursor,
        };
        let search = shared.resolve(|map| map.next_leaf_to_merge(from));
        self.cursor = search.as_ref().map_or(None, |search| search.next);
        if self.cursor.is_none() {
            self.delta_blocks_at_last_round = Some(self.delta_blocks_at_start);
        }
        let MergeSearch { found, next } = search?;
        if let Some((object, page)) = found {
            // What only clones hold is not written again for the sake of a later write.
            match writer.merge_leaves(shared, &[(object, page)], SharedDeltas::Keep) {
                // The next step tries this leaf again.
                Err(error) if error.is_full() => {
                    self.cursor = Some(from);
                    return Err(error);
                }
                // A leaf that cannot be read keeps its deltas.
                Err(error) if !error.is_read_failure() => return Err(error),
                _ => {}
            }
        }
        Ok(next.is_some())
    }
}

/// Chooses the leaves to merge while write-back stores deltas.
///
/// Each stored delta block adds to a debt. Once the debt pays for a group of leaves, the next leaves in key
/// order are due. After the last key the scheduler starts at the first again. So neighbouring leaves are
/// merged together, in long runs. Leaves that fill up at the same rate do not become due all at once.
///
/// Owned by the writer. Lost in a crash: a leaf that got its deltas before the crash is merged when it is
/// full, or by an [`IdleMergeRound`].
#[derive(Debug, Default)]
pub(crate) struct DeltaMergeScheduler {
    /// For each leaf that got deltas, by its first page, an upper bound of how full it is. Units: see
    /// [`FULL_UNITS`].
    leaves: BTreeMap<(ObjectId, PageNo), u64>,
    /// The units of all deltas stored, less the units that merges have paid for.
    debt: u64,
    /// The key at which the search for due leaves continues.
    cursor: (ObjectId, PageNo),
}

/// Units of a leaf that is merged when its turn comes, in the steady state: 40 delta blocks, or two deltas
/// for each of its pages. A leaf may have 52 blocks, a page eight deltas.
const FULL_UNITS: u64 = FULL_BLOCKS * FULL_DELTAS;
const FULL_BLOCKS: u64 = 40;
const FULL_DELTAS: u64 = 2 * LEAF_PAGES;
/// A leaf with fewer units is passed over. In the first pass all leaves are emptier than later.
const WORTHWHILE_UNITS: u64 = FULL_UNITS / 5;
/// Leaves remembered, in 12 MiB: those of 128 GiB of pages. At this limit all are forgotten, which drops
/// deleted files, too. A forgotten leaf is merged when it is full.
const LEAVES_REMEMBERED_MAX: usize = 262_144;
/// Leaves examined to find one group.
const LEAVES_EXAMINED_MAX: usize = 1024;
/// Leaves of one group, which are merged together.
const LEAVES_TOGETHER: u64 = 16;

impl DeltaMergeScheduler {
    /// Counts a delta block that was stored.
    pub(crate) fn delta_stored(&mut self, object: ObjectId, block: &DeltaBlock) {
        let units = FULL_DELTAS.max(FULL_BLOCKS * u64::from(block.page_bits().count_ones()));
        if self.leaves.len() == LEAVES_REMEMBERED_MAX {
            self.leaves.clear();
        }
        *self.leaves.entry((object, block.first())).or_default() += units;
        self.debt = (self.debt + units).min(2 * LEAVES_TOGETHER * FULL_UNITS);
    }

    /// Whether the debt pays for a group of leaves.
    pub(crate) fn is_due(&self) -> bool {
        self.debt >= LEAVES_TOGETHER * FULL_UNITS
    }

    /// Takes the next group of leaves that are worth a merge.
    fn take_due_leaves(&mut self) -> Vec<(ObjectId, PageNo)> {
        let behind = self.leaves.range(self.cursor..).chain(self.leaves.range(..self.cursor));
        let mut leaves = Vec::new();
        for (&leaf, &units) in behind.take(LEAVES_EXAMINED_MAX) {
            if leaves.len() as u64 == LEAVES_TOGETHER {
                break;
            }
            self.cursor = (leaf.0, PageNo(leaf.1.0 + 1));
            leaves.extend((units >= WORTHWHILE_UNITS).then_some(leaf));
        }
        for leaf in &leaves {
            self.leaves.remove(leaf);
        }
        if (leaves.len() as u64) < LEAVES_TOGETHER {
            // Too few leaves are worth a merge: the debt is forgiven.
            self.debt = 0;
        } else {
            self.debt -= LEAVES_TOGETHER * FULL_UNITS;
        }
        leaves
    }
}

fn delta_blocks_written(shared: &StoreShared) -> u64 {
    shared.medium.counting().now().delta_blocks_written
}

/// How a merge treats a damaged page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DamagedPagePolicy {
    /// Leaves it as it is, and merges the others.
    Skip,
    /// Returns the error.
    Fail,
}

impl StoreWriter {
    /// Merges the leaves that are due for the deltas stored so far. Does nothing while the store is short of
    /// space. Returns the number of pages merged.
    pub(crate) fn merge_due_deltas(&mut self, shared: &StoreShared) -> Result<u64, StoreError> {
        if !self.merge_scheduler().is_due() || shared.map().is_short_of_space() {
            return Ok(0);
        }
        let leaves = self.merge_scheduler().take_due_leaves();
        self.merge_leaves(shared, &leaves, SharedDeltas::Merge)
    }

    /// Merges the pages of the leaves that contain `leaves`, without damaged ones, and without those that clones may
    /// share if `wanted` says so or space is tight. Returns the number of pages merged. Leaves the cleaner the space
    /// it needs: cleaning gains more space than merging.
    pub(crate) fn merge_leaves(
        &mut self,
        shared: &StoreShared,
        leaves: &[(ObjectId, PageNo)],
        wanted: SharedDeltas,
    ) -> Result<u64, StoreError> {
        self.make_ready(shared)?;
        for &(object, page) in leaves {
            self.merge_scheduler().leaves.remove(&(object, leaf_first_page(page)));
        }
        let mut pages = mergeable_pages(shared, leaves, SharedDeltas::Keep)?;
        let mut is_set_aside = false;
        if wanted == SharedDeltas::Merge {
            let all = mergeable_pages(shared, leaves, SharedDeltas::Merge)?;
            // Leaves that are shared no more have shared blocks, too: their pages tell.
            is_set_aside = all.len() > pages.len()
                && shared.map_mut().begin_shared_merge(all.len() as u64, leaves.len() as u64);
            if is_set_aside {
                pages = all;
            }
        }
        let merged = self.merge_pages(shared, &pages, SpaceClass::Writer, DamagedPagePolicy::Skip);
        if is_set_aside {
            shared.map_mut().end_shared_merge();
        }
        merged
    }

    /// Merges the pages that a clone or a move takes out of a leaf without taking the whole leaf, because a
    /// delta block belongs to one leaf.
    ///
    /// In a vector of several changes, one may bring deltas to another's source. Then all pages that the
    /// clones and moves take are merged. A damaged page is not merged if `on_damage` is `Skip`; its target is
    /// then marked as lost.
    pub(crate) fn merge_for_transfers(
        &mut self,
        shared: &StoreShared,
        entries: &[LogEntry],
        on_damage: DamagedPagePolicy,
    ) -> Result<(), StoreError> {
        for transfer in entries.iter().filter_map(LogEntry::transfer) {
            let pages = shared.resolve(|map| map.delta_pages_taken(transfer, entries.len() > 1))?;
            let pages: Vec<_> = pages.into_iter().map(|page| (transfer.from, page)).collect();
            self.merge_pages(shared, &pages, SpaceClass::Cleaner, on_damage)?;
        }
        Ok(())
    }

    fn merge_pages(
        &mut self,
        shared: &StoreShared,
        pages: &[(ObjectId, PageNo)],
        class: SpaceClass,
        on_damage: DamagedPagePolicy,
    ) -> Result<u64, StoreError> {
        let mut merged = 0;
        for group in pages.chunks(PAGES_READ_TOGETHER) {
            let mut wants: Vec<PageRead> =
                group.iter().map(|&(object, page)| PageRead::new(object, page)).collect();
            shared.read_with_gaps(&mut wants, GAP_BLOCKS);
            let mut entries: Vec<LogEntry> = Vec::new();
            let mut bytes: Vec<SharedPage> = Vec::new();
            for PageRead { object, page, result: found } in wants {
                let found = match found {
                    Err(error) if on_damage == DamagedPagePolicy::Skip && error.is_damage() => continue,
                    found => found?,
                };
                if let StoredPage::Page { bytes: mut whole, page_lsn } = found {
                    if is_planted(StoreBug::FoldWithoutDeltas) {
                        whole = base_without_deltas(shared, object, page)?;
                    }
                    let whole: SharedPage = Arc::from(whole);
                    entries.push(
                        StoreChange::Write { object, page, bytes: whole.clone(), page_lsn }.log_entry(),
                    );
                    bytes.push(whole);
                }
            }
            for (entries, bytes) in
                entries.chunks(PAGES_WRITTEN_TOGETHER).zip(bytes.chunks(PAGES_WRITTEN_TOGETHER))
            {
                let data: Vec<Option<&Page>> = bytes.iter().map(|page| Some(page as &Page)).collect();
                // A merge is no new change for the buffer, so the newest logged LSN stays as it is.
                self.append(shared, entries.to_vec(), &data, class, BatchOrigin::Bypassed)?;
                merged += entries.len() as u64;
            }
        }
        count(&shared.medium.counting().pages_delta_merged, merged);
        Ok(merged)
    }
}

fn mergeable_pages(
    shared: &StoreShared,
    leaves: &[(ObjectId, PageNo)],
    wanted: SharedDeltas,
) -> Result<Vec<(ObjectId, PageNo)>, StoreError> {
    let mut pages = Vec::new();
    for &(object, page) in leaves {
        let mergeable = shared.resolve(|map| map.mergeable_pages(object, page, wanted))?;
        pages.extend(mergeable.into_iter().map(|page| (object, page)));
    }
    Ok(pages)
}

/// The base of a page without its deltas, for a planted bug.
fn base_without_deltas(
    shared: &StoreShared,
    object: ObjectId,
    page: PageNo,
) -> Result<Box<Page>, StoreError> {
    let located = shared.resolve(|map| map.lookup(object, page))?;
    let mut bytes = Page::zeroed();
    if let Some(base) = located.and_then(|located| located.page.base()) {
        shared.medium.device().read(base.place, std::slice::from_mut(&mut *bytes))?;
    }
    Ok(bytes)
}

/// Nodes that a round may read for each delta block: reading them costs as much as writing the block did.
const NODES_PER_DELTA_BLOCK: u64 = 16;

/// Pages read together: those of a group of leaves. The delta blocks of neighbouring leaves that were stored
/// together are then one read.
const PAGES_READ_TOGETHER: usize = (LEAVES_TOGETHER * LEAF_PAGES) as usize;
/// Unneeded blocks that a read includes rather than end: at most 45 MiB for the pages read together.
const GAP_BLOCKS: u64 = 4;
/// Pages written in one batch of the log: 1 MiB.
const PAGES_WRITTEN_TOGETHER: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::delta_block::{DeltaPacker, DeltaPiece};
    use device::{StoreId, VolumeId};

    fn block(first: u64, deltas: u64) -> DeltaBlock {
        let mut packer = DeltaPacker::new(StoreId([7; 16]));
        (0..deltas).for_each(|page| {
            assert!(packer.add(PageNo(first + page), [DeltaPiece::Bytes(0, &[1])].into_iter()))
        });
        packer.finish().remove(0)
    }

    #[test]
    fn leaves_that_fill_together_merge_in_runs() {
        const LEAVES: u64 = 200;
        let object = VolumeId::MAIN.object(5, 1);
        let (mut scheduler, mut held, mut folded) =
            (DeltaMergeScheduler::default(), vec![0; LEAVES as usize], Vec::new());
        for round in 0..400 {
            for leaf in 0..LEAVES {
                scheduler.delta_stored(object, &block(leaf * LEAF_PAGES, 5));
                held[leaf as usize] += 1;
                if !scheduler.is_due() {
                    continue;
                }
                let run: Vec<u64> =
                    scheduler.take_due_leaves().iter().map(|(_, first)| first.0 / LEAF_PAGES).collect();
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
    fn few_leaves_merge_when_full_enough() {
        let object = VolumeId::MAIN.object(5, 1);
        let mut scheduler = DeltaMergeScheduler::default();
        let mut stored = 0;
        while !scheduler.is_due() {
            scheduler.delta_stored(object, &block(0, 1));
            stored += 1;
        }
        assert_eq!(stored, LEAVES_TOGETHER * FULL_BLOCKS);
        scheduler.delta_stored(object, &block(5 * LEAF_PAGES, 1));
        assert_eq!(scheduler.take_due_leaves(), [(object, PageNo(0))], "the other one is hardly full");
        assert!(!scheduler.is_due() && scheduler.take_due_leaves().is_empty());
    }
}

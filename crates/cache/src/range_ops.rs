//! Range operations (clones and moves of pages) that the store does not have yet.
//!
//! A range operation gives pages of one object, the target, the contents that pages of another, the source,
//! have at its LSN. Older and newer changes of these pages are kept apart. When it begins, the target's older
//! pages are dropped, and the source's older dirty pages leave the table and become its *dependencies*. From
//! then on, what the table has of these pages is newer than the operation.
//!
//! The store gets everything in the order of LSNs: older punches of both objects, the dependencies, the
//! operation, and then what the operation *blocks*. Until then it is not known what the store will have of
//! the target, so a read of it waits.
//!
//! | what | waits for a pending operation with a lower LSN |
//! | --- | --- |
//! | write-back of a page of its source or target, or of an object that took the source's slot | always |
//! | write-back of a punch, a deletion or a range operation of one of its objects | always |
//! | a fetch of a page of its target, or of the source of a move | always |
//! | a fetch of a page of the source of a clone | if the page is among its dependencies |

use crate::page::CachedPage;
use buffer::{GroupNo, LogRecord};
use device::{Lsn, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;
use store::StoreChange;

/// Leaves of the store's map that an operation may look into if its source and target differ modulo a leaf's
/// span: 128 MiB of pages. If they agree, whole subtrees are shared, however long the range is.
const LEAVES_MAX: u64 = 256;

/// Pages below a leaf of the store's map.
const LEAF_PAGES: u64 = 128;

/// Reserved pages for the map nodes that an operation changes at the edges of its ranges.
const EDGE_PAGES: u64 = 24;

/// The most pages of a clone or a move whose source and target differ modulo 128 pages.
pub const TRANSFER_PAGES_MAX: u64 = LEAVES_MAX * LEAF_PAGES;

/// A clone or a move of pages, and its LSN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangeOp {
    pub(crate) transfer: PageTransfer,
    pub(crate) lsn: Lsn,
}

/// A range operation that is not stored.
#[derive(Debug)]
pub(crate) struct PendingRangeOp {
    pub(crate) op: RangeOp,
    /// The oldest group that the buffer must keep until it is stored: its own, or that of a dependency or of
    /// a change that it removed from memory.
    pub(crate) oldest_group: GroupNo,
    pub(crate) since: Duration,
    /// Recovered from the buffer, and the store was not asked yet whether it has it.
    pub(crate) recovered: bool,
    /// Pages of the source with changes that are older than the operation and not stored.
    dependencies: BTreeMap<PageNo, Box<CachedPage>>,
}

/// All pending range operations. A part of `PageTable`, under the cache's lock; after a crash rebuilt from
/// the buffer's records.
#[derive(Debug, Default)]
pub(crate) struct PendingRangeOps {
    by_lsn: BTreeMap<Lsn, PendingRangeOp>,
    /// The operations of each slot: thousands may wait for space, and few of them share a slot.
    by_slot: BTreeMap<ObjectSlot, BTreeSet<Lsn>>,
}

/// An object's slot, which it shares with the objects that had it before.
type ObjectSlot = (VolumeId, u64);

/// The number of pages of a clone or a move, if that is too many.
pub(crate) fn excess_pages(transfer: &PageTransfer) -> Option<u64> {
    Some(unaligned_pages(transfer)).filter(|&pages| pages > TRANSFER_PAGES_MAX)
}

/// Pages that a clone or a move reserves in the store until it is stored.
pub(crate) fn reserved_pages(transfer: &PageTransfer) -> u64 {
    EDGE_PAGES + unaligned_pages(transfer).div_ceil(LEAF_PAGES)
}

fn unaligned_pages(transfer: &PageTransfer) -> u64 {
    if transfer.first.0.abs_diff(transfer.at.0).is_multiple_of(LEAF_PAGES) {
        0
    } else {
        transfer.end.0 - transfer.first.0
    }
}

impl RangeOp {
    /// The operation of a record.
    pub(crate) fn of(record: &LogRecord<'_>, lsn: Lsn) -> Option<RangeOp> {
        match *record {
            LogRecord::Transfer(transfer) => Some(RangeOp { transfer, lsn }),
            _ => None,
        }
    }

    /// Its record in the buffer.
    pub(crate) fn record(&self) -> LogRecord<'static> {
        LogRecord::Transfer(self.transfer)
    }

    /// Its change for the store.
    pub(crate) fn change(&self) -> StoreChange {
        StoreChange::Transfer { transfer: self.transfer, lsn: self.lsn }
    }

    /// The volumes of source and target.
    pub(crate) fn volumes(&self) -> [VolumeId; 2] {
        [self.transfer.from.volume, self.transfer.to.volume]
    }

    /// The slots of source and target; twice the same if one object is both.
    fn slots(&self) -> [ObjectSlot; 2] {
        [slot_of(self.transfer.from), slot_of(self.transfer.to)]
    }

    /// Whether one of its objects is, or was, in this object's slot.
    pub(crate) fn touches(&self, object: ObjectId) -> bool {
        self.slots().contains(&slot_of(object))
    }

    /// Whether one of the two must be stored before the other.
    pub(crate) fn shares_slot(&self, other: &RangeOp) -> bool {
        self.touches(other.transfer.from) || self.touches(other.transfer.to)
    }

    fn has_source(&self, object: ObjectId, page: PageNo) -> bool {
        object == self.transfer.from && self.transfer.source().contains(&page)
    }

    fn has_target(&self, object: ObjectId, page: PageNo) -> bool {
        object == self.transfer.to && self.transfer.target().contains(&page)
    }

    /// Whether a newer change of this page must not be stored before it.
    fn blocks(&self, object: ObjectId, page: PageNo) -> bool {
        let from = self.transfer.from;
        // The store frees the pages of the object that had the slot before.
        let replaces = slot_of(object) == slot_of(from) && object.generation > from.generation;
        replaces || self.has_source(object, page) || self.has_target(object, page)
    }
}

fn slot_of(object: ObjectId) -> ObjectSlot {
    (object.volume, object.slot)
}

impl PendingRangeOp {
    pub(crate) fn new(op: RangeOp, group: GroupNo, since: Duration, recovered: bool) -> PendingRangeOp {
        PendingRangeOp { op, oldest_group: group, since, recovered, dependencies: BTreeMap::new() }
    }

    /// Makes a page of the source a dependency. The buffer keeps the groups that the page needs.
    pub(crate) fn add_dependency(&mut self, page: PageNo, entry: Box<CachedPage>) {
        self.oldest_group = entry.oldest_group().into_iter().fold(self.oldest_group, GroupNo::min);
        self.dependencies.insert(page, entry);
    }

    /// Pages of the source that must be stored before it.
    pub(crate) fn dependencies(&self) -> impl Iterator<Item = (PageNo, &CachedPage)> {
        self.dependencies.iter().map(|(&page, entry)| (page, &**entry))
    }

    /// Whether a page is a dependency.
    pub(crate) fn has_dependency(&self, page: PageNo) -> bool {
        self.dependencies.contains_key(&page)
    }

    /// A dependency, made if it is absent.
    pub(crate) fn dependency_mut(
        &mut self,
        page: PageNo,
        new: impl FnOnce() -> CachedPage,
    ) -> &mut CachedPage {
        self.dependencies.entry(page).or_insert_with(|| Box::new(new()))
    }

    /// Notes that the operation and its dependencies are in this group or a later one, too.
    pub(crate) fn mark_relogged(&mut self, group: GroupNo) {
        self.oldest_group = group;
        self.dependencies.values_mut().for_each(|entry| entry.mark_relogged(group));
    }

    /// Removes a dependency that is stored.
    pub(crate) fn take_dependency(&mut self, page: PageNo) -> Option<Box<CachedPage>> {
        self.dependencies.remove(&page)
    }
}

impl PendingRangeOps {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_lsn.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_lsn.len()
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PendingRangeOp> {
        self.by_lsn.values()
    }

    pub(crate) fn get(&self, lsn: Lsn) -> Option<&PendingRangeOp> {
        self.by_lsn.get(&lsn)
    }

    pub(crate) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut PendingRangeOp> {
        self.by_lsn.get_mut(&lsn)
    }

    pub(crate) fn insert(&mut self, pending: PendingRangeOp) {
        let op = pending.op;
        let before = self.by_lsn.insert(op.lsn, pending);
        assert!(before.is_none(), "one LSN is one change's");
        for slot in op.slots() {
            self.by_slot.entry(slot).or_default().insert(op.lsn);
        }
    }

    pub(crate) fn remove(&mut self, lsn: Lsn) -> Option<PendingRangeOp> {
        let pending = self.by_lsn.remove(&lsn)?;
        for slot in pending.op.slots() {
            let Some(lsns) = self.by_slot.get_mut(&slot) else { continue };
            lsns.remove(&lsn);
            if lsns.is_empty() {
                self.by_slot.remove(&slot);
            }
        }
        Some(pending)
    }

    /// The LSNs in a range of operations on a slot.
    fn lsns(&self, slot: ObjectSlot, range: impl RangeBounds<Lsn>) -> impl DoubleEndedIterator<Item = Lsn> {
        self.by_slot.get(&slot).into_iter().flat_map(move |lsns| {
            lsns.range((range.start_bound().cloned(), range.end_bound().cloned())).copied()
        })
    }

    /// The operations that touch an object's slot, the oldest first.
    pub(crate) fn touching(&self, object: ObjectId) -> impl DoubleEndedIterator<Item = &PendingRangeOp> {
        self.lsns(slot_of(object), ..).map(|lsn| &self.by_lsn[&lsn])
    }

    /// Whether a pending operation must be stored before a page of the table.
    pub(crate) fn blocks_page(&self, object: ObjectId, page: PageNo) -> bool {
        self.touching(object).any(|one| one.op.blocks(object, page))
    }

    /// Whether a pending operation must be stored before a punch or an operation with this LSN.
    pub(crate) fn blocks_change(&self, object: ObjectId, lsn: Lsn) -> bool {
        self.any_between(object, Lsn(0)..lsn)
    }

    /// Whether an operation with an LSN in this range touches the object's slot.
    pub(crate) fn any_between(&self, object: ObjectId, lsns: Range<Lsn>) -> bool {
        self.lsns(slot_of(object), lsns).next().is_some()
    }

    /// The newest operation for which a read of this page must wait, since it is not known what the store
    /// will have of the page.
    pub(crate) fn read_blocked_by(&self, object: ObjectId, page: PageNo) -> Option<Lsn> {
        let hides = |one: &&PendingRangeOp| {
            let source = || one.op.has_source(object, page);
            let changes = || one.op.transfer.kind == TransferKind::Move || one.has_dependency(page);
            one.op.has_target(object, page) || (source() && changes())
        };
        self.touching(object).rev().find(hides).map(|one| one.op.lsn)
    }

    /// The newest stuck operation among this one and all for which it waits.
    pub(crate) fn stuck_dependency(&self, lsn: Lsn, is_stuck: impl Fn(Lsn) -> bool) -> Option<Lsn> {
        let mut waited_for = BTreeSet::from([lsn]);
        while let Some(lsn) = waited_for.pop_last() {
            if is_stuck(lsn) {
                return Some(lsn);
            }
            let slots = self.by_lsn.get(&lsn).into_iter().flat_map(|one| one.op.slots());
            waited_for.extend(slots.filter_map(|slot| self.lsns(slot, ..lsn).next_back()));
        }
        None
    }

    /// Whether an operation touches the object's slot.
    pub(crate) fn any_touching(&self, object: ObjectId) -> bool {
        self.by_slot.contains_key(&slot_of(object))
    }

    /// Operations that wait for no other, the oldest first.
    pub(crate) fn unblocked(&self) -> impl Iterator<Item = &PendingRangeOp> {
        let is_first = |one: &&PendingRangeOp| {
            one.op.slots().into_iter().all(|slot| self.lsns(slot, ..).next() == Some(one.op.lsn))
        };
        self.iter().filter(is_first)
    }

    /// Where a change belongs that is not the newest of its page. It is a dependency of the next later
    /// operation with the page in its source; that operation overwrites it if it has the page in its target.
    /// `None`: it belongs into the table.
    pub(crate) fn older_change_place(
        &self,
        object: ObjectId,
        page: PageNo,
        lsn: Lsn,
    ) -> Option<OlderChangePlace> {
        let later = self.lsns(slot_of(object), (Bound::Excluded(lsn), Bound::Unbounded));
        later.map(|after| (after, &self.by_lsn[&after].op)).find_map(|(after, op)| {
            if op.has_source(object, page) {
                Some(OlderChangePlace::DependencyOf(after))
            } else if op.has_target(object, page) {
                Some(OlderChangePlace::Overwritten)
            } else {
                None
            }
        })
    }

    /// The operation with a dependency whose change `newest` is being written back.
    pub(crate) fn with_dependency_in_write_back(
        &self,
        object: ObjectId,
        page: PageNo,
        newest: Lsn,
    ) -> Option<Lsn> {
        let is_it = |one: &&PendingRangeOp| {
            let entry = one.dependencies.get(&page).filter(|_| one.op.transfer.from == object);
            entry.is_some_and(|entry| entry.writing().is_some_and(|dirt| dirt.newest == newest))
        };
        self.touching(object).find(is_it).map(|one| one.op.lsn)
    }
}

/// Where a change belongs that is older than a range operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OlderChangePlace {
    /// To the dependencies of the operation with this LSN.
    DependencyOf(Lsn),
    /// Nowhere: the operation overwrote it.
    Overwritten,
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::SeededRng;

    fn object(slot: u64) -> ObjectId {
        VolumeId::MAIN.object(slot, 1)
    }

    fn clone(from: u64, to: u64, lsn: u64) -> PendingRangeOp {
        let transfer = PageTransfer { end: PageNo(8), ..PageTransfer::clone_of(object(from), object(to)) };
        let op = RangeOp { transfer, lsn: Lsn(lsn) };
        PendingRangeOp::new(op, GroupNo(1), Duration::ZERO, false)
    }

    fn lsns<'a>(found: impl Iterator<Item = &'a PendingRangeOp>) -> Vec<u64> {
        found.map(|one| one.op.lsn.0).collect()
    }

    /// An operation and all for which it waits, the newest first, by comparing all pairs.
    fn waited_for(transfers: &PendingRangeOps, lsn: Lsn) -> Vec<Lsn> {
        let mut found: Vec<&PendingRangeOp> = Vec::new();
        for one in transfers.by_lsn.range(..=lsn).rev().map(|(_, one)| one) {
            if found.is_empty() || found.iter().any(|later| later.op.shares_slot(&one.op)) {
                found.push(one);
            }
        }
        found.into_iter().map(|one| one.op.lsn).collect()
    }

    #[test]
    fn what_the_index_finds_is_what_comparing_all_pairs_finds() {
        let mut random = SeededRng::new(7);
        let mut transfers = PendingRangeOps::default();
        for lsn in 1..400 {
            let from = random.below(9);
            let to = random.below(9);
            transfers.insert(clone(from, to, lsn));
            if random.once_in(2) {
                transfers.remove(Lsn(random.below(lsn)));
            }
            let all: Vec<Lsn> = transfers.iter().map(|one| one.op.lsn).collect();
            let first = all.iter().filter(|&&lsn| waited_for(&transfers, lsn).len() == 1);
            assert_eq!(lsns(transfers.unblocked()), first.map(|lsn| lsn.0).collect::<Vec<_>>());
            let object = object(random.below(9));
            let about = || transfers.iter().filter(|one| one.op.touches(object));
            assert_eq!(lsns(transfers.touching(object)), lsns(about()));
            assert_eq!(transfers.any_touching(object), about().next().is_some());
            let one = all[random.below(all.len() as u64) as usize];
            let is_stuck = |lsn: Lsn| lsn.0.is_multiple_of(3);
            let stuck = waited_for(&transfers, one).into_iter().find(|&lsn| is_stuck(lsn));
            assert_eq!(transfers.stuck_dependency(one, is_stuck), stuck);
        }
    }

    /// Comparing all pairs would take minutes under the lock.
    #[test]
    fn a_hundred_thousand_that_wait_are_looked_through_at_once() {
        let mut transfers = PendingRangeOps::default();
        for number in 0..100_000 {
            transfers.insert(clone(2 * number, 2 * number + 1, number + 1));
        }
        assert_eq!(transfers.unblocked().count(), 100_000);
        assert!((0..200_000).all(|slot| transfers.blocks_page(object(slot), PageNo(3))));
        assert!(!transfers.blocks_page(object(200_000), PageNo(3)));
    }
}

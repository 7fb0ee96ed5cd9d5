//! Clones and moves of pages that the store does not have yet.
//!
//! One that is made takes what is older than it out of the table: of its target, for good; of its source, the changes that the store
//! must have before it. So what the table has of its pages is newer than it, and what lies beside it here is older, and the two never
//! meet. The store gets them in the order of their LSNs: older cuts of both objects, the older pages, the clone or move; then what is
//! newer. Until then nobody can tell what the store has of the target, so a read of it waits.
//!
//! | what | waits for a pending one with a lower LSN |
//! | --- | --- |
//! | write-back of a page of its source or target, or of an object that took the source's slot | always |
//! | write-back of a cut, a deletion, a clone or a move of one of its objects | always |
//! | a fetch of a page of its target, or of the source of a move | always |
//! | a fetch of a page of the source of a clone | where changes of that page are to be stored before it |

use crate::page::Entry;
use buffer::{GroupNo, LogRecord};
use device::{Lsn, ObjectId, PageNo, PageTransfer, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;
use store::Change;

/// Leaves of the store's map that a clone or a move may look into where source and target do not agree modulo a leaf's span: 128 MiB
/// of pages. What agrees is shared by whole subtrees, however long it is.
const LEAVES_MAX: u64 = 256;

/// Pages below a leaf of the store's map.
const LEAF_PAGES: u64 = 128;

/// Reservations of the store, in pages, for the nodes that a clone or a move changes at the edges of its ranges.
const EDGE_PAGES: u64 = 24;

/// The most pages that a clone or a move may have whose source and target do not agree modulo 128 pages.
pub const TRANSFER_PAGES_MAX: u64 = LEAVES_MAX * LEAF_PAGES;

/// What becomes of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It stays.
    Clone,
    /// Its pages become holes.
    Move,
}

/// Which pages a clone or a move is about, and where it stands in the one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ordered {
    pub(crate) kind: Kind,
    pub(crate) transfer: PageTransfer,
    pub(crate) lsn: Lsn,
}

/// One that is not stored.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) what: Ordered,
    /// The oldest group that must stay until it is stored: its own, or that of a change that lies here or that it took out of memory.
    pub(crate) group: GroupNo,
    pub(crate) since: Duration,
    /// Found in the buffer, and the store was not asked yet whether it has it.
    pub(crate) recovered: bool,
    /// Pages of the source with changes that are older than it, and that are not stored.
    before: BTreeMap<PageNo, Box<Entry>>,
}

/// All of them. A part of `Pages`, under the cache's lock; after a crash rebuilt from the buffer's records.
#[derive(Debug, Default)]
pub(crate) struct Transfers {
    by_lsn: BTreeMap<Lsn, Pending>,
    /// Those that are about each slot: thousands may wait for space, and few of them share one.
    by_slot: BTreeMap<Slot, BTreeSet<Lsn>>,
}

/// An object's place, which it shares with those that had it before.
type Slot = (VolumeId, u64);

/// How many pages a clone or a move has, if that is too many.
pub(crate) fn too_many(transfer: &PageTransfer) -> Option<u64> {
    Some(unaligned_pages(transfer)).filter(|&pages| pages > TRANSFER_PAGES_MAX)
}

/// Reservations of the store, in pages, that a clone or a move needs until it is stored.
pub(crate) fn pages_reserved(transfer: &PageTransfer) -> u64 {
    EDGE_PAGES + unaligned_pages(transfer).div_ceil(LEAF_PAGES)
}

fn unaligned_pages(transfer: &PageTransfer) -> u64 {
    match transfer.first.0.abs_diff(transfer.at.0).is_multiple_of(LEAF_PAGES) {
        true => 0,
        false => transfer.end.0 - transfer.first.0,
    }
}

impl Ordered {
    /// The one that a record tells of.
    pub(crate) fn of(record: &LogRecord<'_>, lsn: Lsn) -> Option<Ordered> {
        match *record {
            LogRecord::Clone(transfer) => Some(Ordered { kind: Kind::Clone, transfer, lsn }),
            LogRecord::Move(transfer) => Some(Ordered { kind: Kind::Move, transfer, lsn }),
            _ => None,
        }
    }

    /// As the buffer has it.
    pub(crate) fn record(&self) -> LogRecord<'static> {
        match self.kind {
            Kind::Clone => LogRecord::Clone(self.transfer),
            Kind::Move => LogRecord::Move(self.transfer),
        }
    }

    /// What the store is asked for.
    pub(crate) fn change(&self) -> Change {
        let Ordered { transfer, lsn, .. } = *self;
        match self.kind {
            Kind::Clone => Change::Clone { transfer, lsn },
            Kind::Move => Change::Move { transfer, lsn },
        }
    }

    /// Both volumes.
    pub(crate) fn volumes(&self) -> [VolumeId; 2] {
        [self.transfer.from.volume, self.transfer.to.volume]
    }

    /// Where its objects are; twice the same where one object is both.
    fn slots(&self) -> [Slot; 2] {
        [slot_of(self.transfer.from), slot_of(self.transfer.to)]
    }

    /// Whether one of its objects is, or was, in this object's slot.
    pub(crate) fn is_about(&self, object: ObjectId) -> bool {
        self.slots().contains(&slot_of(object))
    }

    /// Whether one must be stored before the other.
    pub(crate) fn shares_slot(&self, other: &Ordered) -> bool {
        self.is_about(other.transfer.from) || self.is_about(other.transfer.to)
    }

    fn has_source(&self, object: ObjectId, page: PageNo) -> bool {
        object == self.transfer.from && self.transfer.source().contains(&page)
    }

    fn has_target(&self, object: ObjectId, page: PageNo) -> bool {
        object == self.transfer.to && self.transfer.target().contains(&page)
    }

    /// Whether a change of this page that is newer must not be stored before it.
    fn holds_back(&self, object: ObjectId, page: PageNo) -> bool {
        let from = self.transfer.from;
        // The store frees the pages of what was in the slot before.
        let replaces = slot_of(object) == slot_of(from) && object.generation > from.generation;
        replaces || self.has_source(object, page) || self.has_target(object, page)
    }
}

fn slot_of(object: ObjectId) -> Slot {
    (object.volume, object.slot)
}

impl Pending {
    pub(crate) fn new(what: Ordered, group: GroupNo, since: Duration, recovered: bool) -> Pending {
        Pending { what, group, since, recovered, before: BTreeMap::new() }
    }

    /// Puts a page of the source beside it, which keeps what that needs.
    pub(crate) fn keep(&mut self, page: PageNo, entry: Box<Entry>) {
        self.group = entry.group().into_iter().fold(self.group, GroupNo::min);
        self.before.insert(page, entry);
    }

    /// The pages of the source that are to be stored before it.
    pub(crate) fn before(&self) -> impl Iterator<Item = (PageNo, &Entry)> {
        self.before.iter().map(|(&page, entry)| (page, &**entry))
    }

    /// Whether a page is among them.
    pub(crate) fn has(&self, page: PageNo) -> bool {
        self.before.contains_key(&page)
    }

    /// One of them, for a change; it is made where it is not there.
    pub(crate) fn page_mut(&mut self, page: PageNo, new: impl FnOnce() -> Entry) -> &mut Entry {
        self.before.entry(page).or_insert_with(|| Box::new(new()))
    }

    /// All that it needs is in this group, too, or in a later one.
    pub(crate) fn was_relogged(&mut self, group: GroupNo) {
        self.group = group;
        self.before.values_mut().for_each(|entry| entry.was_relogged(group));
    }

    /// Takes a page that is stored.
    pub(crate) fn take(&mut self, page: PageNo) -> Option<Box<Entry>> {
        self.before.remove(&page)
    }
}

impl Transfers {
    pub(crate) fn is_empty(&self) -> bool {
        self.by_lsn.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_lsn.len()
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.by_lsn.values()
    }

    pub(crate) fn get(&self, lsn: Lsn) -> Option<&Pending> {
        self.by_lsn.get(&lsn)
    }

    pub(crate) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut Pending> {
        self.by_lsn.get_mut(&lsn)
    }

    pub(crate) fn insert(&mut self, pending: Pending) {
        let what = pending.what;
        let before = self.by_lsn.insert(what.lsn, pending);
        assert!(before.is_none(), "one LSN is one change's");
        for slot in what.slots() {
            self.by_slot.entry(slot).or_default().insert(what.lsn);
        }
    }

    pub(crate) fn remove(&mut self, lsn: Lsn) -> Option<Pending> {
        let pending = self.by_lsn.remove(&lsn)?;
        for slot in pending.what.slots() {
            let Some(lsns) = self.by_slot.get_mut(&slot) else { continue };
            lsns.remove(&lsn);
            if lsns.is_empty() {
                self.by_slot.remove(&slot);
            }
        }
        Some(pending)
    }

    /// The LSNs of those in a range that are about an object's slot.
    fn lsns(&self, slot: Slot, range: impl RangeBounds<Lsn>) -> impl DoubleEndedIterator<Item = Lsn> {
        self.by_slot.get(&slot).into_iter().flat_map(move |lsns| {
            lsns.range((range.start_bound().cloned(), range.end_bound().cloned())).copied()
        })
    }

    /// Those that are about an object, the oldest first.
    pub(crate) fn about(&self, object: ObjectId) -> impl DoubleEndedIterator<Item = &Pending> {
        self.lsns(slot_of(object), ..).map(|lsn| &self.by_lsn[&lsn])
    }

    /// Whether what the table has of a page must not be stored yet.
    pub(crate) fn hold_back(&self, object: ObjectId, page: PageNo) -> bool {
        self.about(object).any(|one| one.what.holds_back(object, page))
    }

    /// Whether a change of a range of an object must not be stored yet.
    pub(crate) fn hold_back_range(&self, object: ObjectId, lsn: Lsn) -> bool {
        self.any_between(object, Lsn(0)..lsn)
    }

    /// Whether one with such an LSN is about an object.
    pub(crate) fn any_between(&self, object: ObjectId, lsns: Range<Lsn>) -> bool {
        self.lsns(slot_of(object), lsns).next().is_some()
    }

    /// The newest for which nobody can tell yet what the store has of a page.
    pub(crate) fn hiding(&self, object: ObjectId, page: PageNo) -> Option<Lsn> {
        let hides = |one: &&Pending| {
            let source = || one.what.has_source(object, page);
            let changes = || one.what.kind == Kind::Move || one.has(page);
            one.what.has_target(object, page) || (source() && changes())
        };
        self.about(object).rev().find(hides).map(|one| one.what.lsn)
    }

    /// Of one and those that it waits for, the newest that is stuck.
    pub(crate) fn stuck_before(&self, lsn: Lsn, is_stuck: impl Fn(Lsn) -> bool) -> Option<Lsn> {
        let mut waited_for = BTreeSet::from([lsn]);
        while let Some(lsn) = waited_for.pop_last() {
            if is_stuck(lsn) {
                return Some(lsn);
            }
            let slots = self.by_lsn.get(&lsn).into_iter().flat_map(|one| one.what.slots());
            waited_for.extend(slots.filter_map(|slot| self.lsns(slot, ..lsn).next_back()));
        }
        None
    }

    /// Whether one is about this object.
    pub(crate) fn are_about(&self, object: ObjectId) -> bool {
        self.by_slot.contains_key(&slot_of(object))
    }

    /// Those that wait for no other, the oldest first.
    pub(crate) fn first(&self) -> impl Iterator<Item = &Pending> {
        let is_first = |one: &&Pending| {
            one.what.slots().into_iter().all(|slot| self.lsns(slot, ..).next() == Some(one.what.lsn))
        };
        self.iter().filter(is_first)
    }

    /// Where a change belongs that is not the newest of its page: beside the oldest that came after it and has the page in its source;
    /// nowhere, if that has it in its target. `None`: into the table.
    pub(crate) fn place_of(&self, object: ObjectId, page: PageNo, lsn: Lsn) -> Option<Belongs> {
        let later = self.lsns(slot_of(object), (Bound::Excluded(lsn), Bound::Unbounded));
        later.map(|after| (after, &self.by_lsn[&after].what)).find_map(|(after, what)| {
            if what.has_source(object, page) {
                Some(Belongs::Before(after))
            } else if what.has_target(object, page) {
                Some(Belongs::Nowhere)
            } else {
                None
            }
        })
    }

    /// The one beside which lies a page of which a write-back with this newest change is under way.
    pub(crate) fn writing(&self, object: ObjectId, page: PageNo, newest: Lsn) -> Option<Lsn> {
        let is_it = |one: &&Pending| {
            let entry = one.before.get(&page).filter(|_| one.what.transfer.from == object);
            entry.is_some_and(|entry| entry.writing().is_some_and(|dirt| dirt.newest == newest))
        };
        self.about(object).find(is_it).map(|one| one.what.lsn)
    }
}

/// Where an older change belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Belongs {
    /// Beside the one with this LSN.
    Before(Lsn),
    /// It has been overwritten.
    Nowhere,
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::SeededRng;

    fn object(slot: u64) -> ObjectId {
        VolumeId::MAIN.object(slot, 1)
    }

    fn clone(from: u64, to: u64, lsn: u64) -> Pending {
        let transfer =
            PageTransfer { end: PageNo(8), ..PageTransfer::whole_object(object(from), object(to)) };
        let what = Ordered { kind: Kind::Clone, transfer, lsn: Lsn(lsn) };
        Pending::new(what, GroupNo(1), Duration::ZERO, false)
    }

    fn lsns<'a>(found: impl Iterator<Item = &'a Pending>) -> Vec<u64> {
        found.map(|one| one.what.lsn.0).collect()
    }

    /// Those that one waits for, and itself, the newest first: by looking at all pairs.
    fn waited_for(transfers: &Transfers, lsn: Lsn) -> Vec<Lsn> {
        let mut found: Vec<&Pending> = Vec::new();
        for one in transfers.by_lsn.range(..=lsn).rev().map(|(_, one)| one) {
            if found.is_empty() || found.iter().any(|later| later.what.shares_slot(&one.what)) {
                found.push(one);
            }
        }
        found.into_iter().map(|one| one.what.lsn).collect()
    }

    #[test]
    fn what_the_index_finds_is_what_comparing_all_pairs_finds() {
        let mut random = SeededRng::new(7);
        let mut transfers = Transfers::default();
        for lsn in 1..400 {
            let (from, to) = (random.below(9), random.below(9));
            transfers.insert(clone(from, to, lsn));
            if random.once_in(2) {
                transfers.remove(Lsn(random.below(lsn)));
            }
            let all: Vec<Lsn> = transfers.iter().map(|one| one.what.lsn).collect();
            let first = all.iter().filter(|&&lsn| waited_for(&transfers, lsn).len() == 1);
            assert_eq!(lsns(transfers.first()), first.map(|lsn| lsn.0).collect::<Vec<_>>());
            let object = object(random.below(9));
            let about = || transfers.iter().filter(|one| one.what.is_about(object));
            assert_eq!(lsns(transfers.about(object)), lsns(about()));
            assert_eq!(transfers.are_about(object), about().next().is_some());
            let one = all[random.below(all.len() as u64) as usize];
            let is_stuck = |lsn: Lsn| lsn.0.is_multiple_of(3);
            let stuck = waited_for(&transfers, one).into_iter().find(|&lsn| is_stuck(lsn));
            assert_eq!(transfers.stuck_before(one, is_stuck), stuck);
        }
    }

    /// Comparing all pairs would take minutes under the lock.
    #[test]
    fn a_hundred_thousand_that_wait_are_looked_through_at_once() {
        let mut transfers = Transfers::default();
        for number in 0..100_000 {
            transfers.insert(clone(2 * number, 2 * number + 1, number + 1));
        }
        assert_eq!(transfers.first().count(), 100_000);
        assert!((0..200_000).all(|slot| transfers.hold_back(object(slot), PageNo(3))));
        assert!(!transfers.hold_back(object(200_000), PageNo(3)));
    }
}

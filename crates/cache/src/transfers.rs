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
use buffer::{GroupNo, Record};
use device::{Lsn, ObjectId, PageNo, Transfer, VolumeId};
use std::collections::BTreeMap;
use std::ops::Range;
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
    pub(crate) transfer: Transfer,
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

/// All of them, by their LSNs. A part of `Pages`, under the cache's lock; after a crash rebuilt from the buffer's records.
#[derive(Debug, Default)]
pub(crate) struct Transfers(BTreeMap<Lsn, Pending>);

/// How many pages a clone or a move has, if that is too many.
pub(crate) fn too_many(transfer: &Transfer) -> Option<u64> {
    Some(unaligned_pages(transfer)).filter(|&pages| pages > TRANSFER_PAGES_MAX)
}

/// Reservations of the store, in pages, that a clone or a move needs until it is stored.
pub(crate) fn pages_reserved(transfer: &Transfer) -> u64 {
    EDGE_PAGES + unaligned_pages(transfer).div_ceil(LEAF_PAGES)
}

fn unaligned_pages(transfer: &Transfer) -> u64 {
    match transfer.first.0.abs_diff(transfer.at.0).is_multiple_of(LEAF_PAGES) {
        true => 0,
        false => transfer.end.0 - transfer.first.0,
    }
}

impl Ordered {
    /// The one that a record tells of.
    pub(crate) fn of(record: &Record<'_>, lsn: Lsn) -> Option<Ordered> {
        match *record {
            Record::Clone(transfer) => Some(Ordered { kind: Kind::Clone, transfer, lsn }),
            Record::Move(transfer) => Some(Ordered { kind: Kind::Move, transfer, lsn }),
            _ => None,
        }
    }

    /// As the buffer has it.
    pub(crate) fn record(&self) -> Record<'static> {
        match self.kind {
            Kind::Clone => Record::Clone(self.transfer),
            Kind::Move => Record::Move(self.transfer),
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

    /// Whether one of its objects is, or was, in this object's slot.
    pub(crate) fn is_about(&self, object: ObjectId) -> bool {
        [self.transfer.from, self.transfer.to].iter().any(|one| same_slot(*one, object))
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
        let replaces = same_slot(object, from) && object.generation > from.generation;
        replaces || self.has_source(object, page) || self.has_target(object, page)
    }
}

fn same_slot(one: ObjectId, other: ObjectId) -> bool {
    (one.volume, one.slot) == (other.volume, other.slot)
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
        self.0.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Pending> {
        self.0.values()
    }

    pub(crate) fn get(&self, lsn: Lsn) -> Option<&Pending> {
        self.0.get(&lsn)
    }

    pub(crate) fn get_mut(&mut self, lsn: Lsn) -> Option<&mut Pending> {
        self.0.get_mut(&lsn)
    }

    pub(crate) fn insert(&mut self, pending: Pending) {
        let before = self.0.insert(pending.what.lsn, pending);
        assert!(before.is_none(), "one LSN is one change's");
    }

    pub(crate) fn remove(&mut self, lsn: Lsn) -> Option<Pending> {
        self.0.remove(&lsn)
    }

    /// Whether what the table has of a page must not be stored yet.
    pub(crate) fn hold_back(&self, object: ObjectId, page: PageNo) -> bool {
        self.iter().any(|one| one.what.holds_back(object, page))
    }

    /// Whether a change of a range of an object must not be stored yet.
    pub(crate) fn hold_back_range(&self, object: ObjectId, lsn: Lsn) -> bool {
        self.any_between(object, Lsn(0)..lsn)
    }

    /// Whether one with such an LSN is about an object.
    pub(crate) fn any_between(&self, object: ObjectId, lsns: Range<Lsn>) -> bool {
        self.0.range(lsns).any(|(_, one)| one.what.is_about(object))
    }

    /// The newest for which nobody can tell yet what the store has of a page.
    pub(crate) fn hiding(&self, object: ObjectId, page: PageNo) -> Option<Lsn> {
        let hides = |one: &&Pending| {
            let source = || one.what.has_source(object, page);
            let changes = || one.what.kind == Kind::Move || one.has(page);
            one.what.has_target(object, page) || (source() && changes())
        };
        self.0.values().rev().find(hides).map(|one| one.what.lsn)
    }

    /// Of one and those that it waits for, the newest that is stuck.
    pub(crate) fn stuck_before(&self, lsn: Lsn, is_stuck: impl Fn(Lsn) -> bool) -> Option<Lsn> {
        let mut objects: Vec<ObjectId> = Vec::new();
        self.0.range(..=lsn).rev().find_map(|(&lsn, one)| {
            if !objects.is_empty() && !objects.iter().any(|&object| one.what.is_about(object)) {
                return None;
            }
            objects.extend([one.what.transfer.from, one.what.transfer.to]);
            is_stuck(lsn).then_some(lsn)
        })
    }

    /// Whether one is about this object.
    pub(crate) fn are_about(&self, object: ObjectId) -> bool {
        self.iter().any(|one| one.what.is_about(object))
    }

    /// Those that wait for no other.
    pub(crate) fn first(&self) -> impl Iterator<Item = &Pending> {
        self.iter()
            .filter(|one| !self.0.range(..one.what.lsn).any(|(_, before)| before.what.shares_slot(&one.what)))
    }

    /// Where a change belongs that is not the newest of its page: beside the oldest that came after it and has the page in its source;
    /// nowhere, if that has it in its target. `None`: into the table.
    pub(crate) fn place_of(&self, object: ObjectId, page: PageNo, lsn: Lsn) -> Option<Belongs> {
        self.0.range(lsn..).find_map(|(&after, one)| match () {
            () if after == lsn => None,
            () if one.what.has_source(object, page) => Some(Belongs::Before(after)),
            () if one.what.has_target(object, page) => Some(Belongs::Nowhere),
            () => None,
        })
    }

    /// The one beside which lies a page of which a write-back with this newest change is under way.
    pub(crate) fn writing(&self, object: ObjectId, page: PageNo, newest: Lsn) -> Option<Lsn> {
        let is_it = |one: &&Pending| {
            let entry = one.before.get(&page).filter(|_| one.what.transfer.from == object);
            entry.is_some_and(|entry| entry.writing().is_some_and(|dirt| dirt.newest == newest))
        };
        self.iter().find(is_it).map(|one| one.what.lsn)
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

//! What callers ask of the map.

use crate::delta::DeltaBlock;
use crate::entry::LogEntry;
use device::{Block, Lsn, ObjectId, Page, PageNo, PageTransfer, SharedPage, VolumeId};
use std::ops::Range;

/// One change of the map, part of an atomic vector.
///
/// An object's slot holds one generation. A `Write`, `Clone` or `Move` for a newer one replaces the object in the slot
/// and frees its pages; every change for an older one is ignored.
#[derive(Debug, Clone)]
pub enum Change {
    /// The page's bytes from now on, and the highest LSN that they contain. Written twice where the object [is
    /// metadata](ObjectId::is_metadata).
    Write {
        /// The object; its slot is below 2^48.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// All its bytes.
        bytes: SharedPage,
        /// The highest LSN whose change these bytes contain.
        page_lsn: Lsn,
    },
    /// What changed in some pages of an object that is no metadata, over what they are. No page may get more deltas than
    /// [`takes_deltas`](crate::Store::takes_deltas) says; a `Write` of it ends them. A vector with deltas has no clone and no move.
    Deltas {
        /// The object; its slot is below 2^48.
        object: ObjectId,
        /// The deltas.
        block: DeltaBlock,
        /// The highest LSN that any of them contains: all of them contain every change of their page up to it.
        page_lsn: Lsn,
    },
    /// Pages become holes, but only those whose page LSN is below `lsn`; none, if the object has had a later clone or move. Looks into
    /// every leaf of the map (128 pages each) that has some of them: a long cut is made in pieces, of as many leaves as
    /// [`list`](crate::Store::list) gives.
    Cut {
        /// The object.
        object: ObjectId,
        /// Which pages.
        pages: Range<PageNo>,
        /// The cut's place in the one order.
        lsn: Lsn,
    },
    /// The object goes, with all its pages, unless it has had a later clone or move: nothing may be written to it afterwards, as a file's
    /// slot and generation are never another's. Those of more than one leaf are freed by [`free_step`](crate::Store::free_step).
    Delete {
        /// The object.
        object: ObjectId,
        /// The deletion's place in the one order.
        lsn: Lsn,
    },
    /// Pages of the target become what those of the source are, holes and page LSNs included. Ignored where either object has had
    /// this clone, or a later clone or move: these and cuts of an object come in the order of their LSNs, but for cuts among
    /// themselves, and before any page of source or target that is newer than they are.
    Clone {
        /// Which pages.
        transfer: PageTransfer,
        /// The clone's place in the one order.
        lsn: Lsn,
    },
    /// The same, and the source's become holes.
    Move {
        /// Which pages.
        transfer: PageTransfer,
        /// The move's place in the one order.
        lsn: Lsn,
    },
}

impl Change {
    /// The same change of what is in the same slots of another volume.
    pub fn in_volume(mut self, volume: VolumeId) -> Change {
        match &mut self {
            Change::Write { object, .. }
            | Change::Deltas { object, .. }
            | Change::Cut { object, .. }
            | Change::Delete { object, .. } => {
                object.volume = volume;
            }
            Change::Clone { transfer, .. } | Change::Move { transfer, .. } => {
                (transfer.from.volume, transfer.to.volume) = (volume, volume);
            }
        }
        self
    }

    /// The log entry for this change; a write's block is not known yet, nor its copy.
    pub(crate) fn log_entry(&self) -> LogEntry {
        match self {
            Change::Write { object, page, bytes, page_lsn } => LogEntry::Write {
                object: *object,
                page: *page,
                page_lsn: *page_lsn,
                place: Block(0),
                copy: None,
                crc: crc32c::crc32c(&bytes.0),
            },
            Change::Deltas { object, block, page_lsn } => LogEntry::Deltas {
                object: *object,
                first: block.first(),
                pages: block.bits(),
                page_lsn: *page_lsn,
                place: Block(0),
                crc: crc32c::crc32c(&block.bytes().0),
            },
            Change::Cut { object, pages, lsn } => {
                LogEntry::Cut { object: *object, pages: pages.clone(), lsn: *lsn }
            }
            Change::Delete { object, lsn } => LogEntry::Delete { object: *object, lsn: *lsn },
            Change::Clone { transfer, lsn } => LogEntry::Clone { transfer: *transfer, lsn: *lsn },
            Change::Move { transfer, lsn } => LogEntry::Move { transfer: *transfer, lsn: *lsn },
        }
    }

    /// The bytes that go with the log entry.
    pub(crate) fn data(&self) -> Option<&Page> {
        match self {
            Change::Write { bytes, .. } => Some(bytes),
            Change::Deltas { block, .. } => Some(block.bytes()),
            _ => None,
        }
    }

    /// The volumes that it changes.
    pub(crate) fn volumes(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let (one, other) = match self {
            Change::Write { object, .. }
            | Change::Deltas { object, .. }
            | Change::Cut { object, .. }
            | Change::Delete { object, .. } => (object.volume, None),
            // Of the source no more is changed than that it shares.
            Change::Clone { transfer, .. } => (transfer.to.volume, None),
            Change::Move { transfer, .. } => (transfer.from.volume, Some(transfer.to.volume)),
        };
        std::iter::once(one).chain(other)
    }

    /// Whether it can only give space back.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, Change::Cut { .. } | Change::Delete { .. })
    }
}

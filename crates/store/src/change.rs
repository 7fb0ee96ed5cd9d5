//! Changes of the map that callers can make.

use crate::delta_block::DeltaBlock;
use crate::log_entry::LogEntry;
use device::{Block, Lsn, ObjectId, Page, PageNo, PageTransfer, SharedPage};
use std::ops::Range;

/// One change of the map, part of an atomic vector.
///
/// A slot holds one generation of an object. A `Write` or `Transfer` for a newer one replaces the object
/// in the slot and frees its pages. Every change for an older one is ignored.
#[derive(Debug, Clone)]
pub enum StoreChange {
    /// Replaces a page. Written twice if the object [is metadata](ObjectId::is_metadata).
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
    /// Lays deltas over pages of an object that is not metadata. No page may get more deltas than
    /// [`takes_deltas`](crate::StoreData::takes_deltas) allows; a `Write` of the page ends them. A vector
    /// with deltas has no clone and no move.
    Deltas {
        /// The object; its slot is below 2^48.
        object: ObjectId,
        /// The deltas.
        block: DeltaBlock,
        /// The highest LSN in any of the deltas. Each delta has every change of its page up to it.
        page_lsn: Lsn,
    },
    /// Makes holes of pages whose page LSN is below `lsn`. Does nothing if the object has had a later clone
    /// or move.
    ///
    /// Looks into every leaf of the map (128 pages each) that has some of the pages. Make a long punch in
    /// parts, of as many leaves as [`list`](crate::StoreData::list) returns.
    Punch {
        /// The object.
        object: ObjectId,
        /// The pages.
        pages: Range<PageNo>,
        /// The punch's LSN.
        lsn: Lsn,
    },
    /// Deletes an object with all its pages, unless it has had a later clone or move. The pages of more than
    /// one leaf are freed by [`free_deleted_step`](crate::StoreMaintenance::free_deleted_step).
    ///
    /// Nothing may be written to the object afterwards: slot and generation of a file are never used again.
    Delete {
        /// The object.
        object: ObjectId,
        /// The deletion's LSN.
        lsn: Lsn,
    },
    /// Makes pages of the target equal to those of the source, holes and page LSNs included. A move then makes
    /// holes of the source's pages. Ignored if either object has had this transfer, or a later one.
    ///
    /// Punches, clones and moves of an object must come in the order of their LSNs; only punches among
    /// themselves may not. All must come before newer pages of source or target.
    Transfer {
        /// The pages.
        transfer: PageTransfer,
        /// The transfer's LSN.
        lsn: Lsn,
    },
}

impl StoreChange {
    /// The log entry of this change, without the places of a write's block and its copy.
    pub(crate) fn log_entry(&self) -> LogEntry {
        match self {
            StoreChange::Write { object, page, bytes, page_lsn } => {
                LogEntry::write(*object, *page, bytes, *page_lsn)
            }
            StoreChange::Deltas { object, block, page_lsn } => LogEntry::Deltas {
                object: *object,
                first: block.first(),
                pages: block.page_bits(),
                page_lsn: *page_lsn,
                place: Block(0),
                crc: crc32c::crc32c(&block.bytes().0),
            },
            StoreChange::Punch { object, pages, lsn } => {
                LogEntry::Punch { object: *object, pages: pages.clone(), lsn: *lsn }
            }
            StoreChange::Delete { object, lsn } => LogEntry::Delete { object: *object, lsn: *lsn },
            StoreChange::Transfer { transfer, lsn } => LogEntry::Transfer { transfer: *transfer, lsn: *lsn },
        }
    }

    /// The data block of the log entry.
    pub(crate) fn data(&self) -> Option<&Page> {
        match self {
            StoreChange::Write { bytes, .. } => Some(bytes),
            StoreChange::Deltas { block, .. } => Some(block.bytes()),
            _ => None,
        }
    }
}

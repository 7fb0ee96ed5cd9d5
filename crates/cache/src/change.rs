//! What callers say: changes and their costs; and what becomes of changes in the buffer, records page by page.

use crate::pages::pages_of;
use crate::transfers::{pages_reserved, too_many};
use buffer::{LogRecord, TRANSFER_BYTES};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer};
use smallvec::SmallVec;

/// A change of one object's bytes, part of an atomic transaction.
#[derive(Debug, Clone, Copy)]
pub enum Change<'a> {
    /// Bytes from `offset` on become `bytes`.
    Write {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// The same for whole pages, whose bytes do not go through the buffer but to the store, soon: after a crash each is as a whole what it
    /// was or what it became. A sync of the object, a change of a part of a page, a clone of it and a [`Settle`](Change::Settle) log
    /// those that the store does not have by then. Logged as any other write where the reservation is for none, or there is no space for
    /// so many.
    BypassWrite {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes: where a page begins.
        offset: u64,
        /// The new bytes, of at least one whole page.
        bytes: &'a [u8],
        /// The object ended at `offset`. Where a crash takes one of these pages, it must end before that: see
        /// [`lost`](crate::Cache::lost).
        grows: bool,
    },
    /// Changes nothing. The bypassed pages of an object are logged before this transaction.
    Settle {
        /// The object.
        object: ObjectId,
    },
    /// Bytes become zeros; whole pages become holes. `len` may reach past everything that exists.
    Zero {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// How many bytes.
        len: u64,
    },
    /// The object and all its pages go; its id is never used again.
    Delete {
        /// The object.
        object: ObjectId,
    },
    /// Pages of one object become what those of another are at this moment, holes included. Nothing is read or copied: both share
    /// what they have. At most [`TRANSFER_PAGES_MAX`](crate::TRANSFER_PAGES_MAX) pages, unless the first ones' numbers are the same
    /// modulo 128. Reads of them wait until the store has it, which it gets next.
    Clone {
        /// Which pages: of two objects, or ranges of one that lie apart.
        transfer: PageTransfer,
    },
    /// The same, and the source's pages become holes.
    Move {
        /// Which pages.
        transfer: PageTransfer,
    },
}

impl Change<'_> {
    /// Pages that this change may make dirty.
    pub(crate) fn pages(&self) -> u64 {
        match *self {
            Change::Write { bytes: [], .. } | Change::Delete { .. } | Change::Settle { .. } => 0,
            Change::Write { offset, bytes, .. } | Change::BypassWrite { offset, bytes, .. } => {
                let last = offset + bytes.len() as u64 - 1;
                last / BLOCK_BYTES as u64 - offset / BLOCK_BYTES as u64 + 1
            }
            // Only the two edges can be pages that are zeroed in part.
            Change::Zero { .. } => 2,
            // As many as its nodes take.
            Change::Clone { transfer } | Change::Move { transfer } => pages_reserved(&transfer),
        }
    }

    /// The bytes that its records carry, without their headers.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Change::Write { bytes, .. } | Change::BypassWrite { bytes, .. } => bytes.len() as u64,
            Change::Zero { .. } | Change::Delete { .. } | Change::Settle { .. } => 0,
            Change::Clone { .. } | Change::Move { .. } => TRANSFER_BYTES,
        }
    }

    /// What it writes to whole pages without logging it.
    pub(crate) fn bypass_bytes(&self) -> Option<&[u8]> {
        match self {
            Change::BypassWrite { bytes, .. } => Some(bytes),
            _ => None,
        }
    }

    /// Its records: one for each page that it touches, and one for a range.
    fn records(&self) -> u64 {
        match self {
            Change::Clone { .. } | Change::Move { .. } => 1,
            Change::Settle { .. } => 0,
            other => other.pages() + 1,
        }
    }

    /// Whether a clone or a move is one of pages to another place.
    pub(crate) fn is_sensible(&self) -> bool {
        match self {
            Change::Clone { transfer } | Change::Move { transfer } => transfer.is_valid(),
            _ => true,
        }
    }

    /// The pages that a clone or a move has, if they are too many.
    pub(crate) fn too_many(&self) -> Option<u64> {
        match self {
            Change::Clone { transfer } | Change::Move { transfer } => too_many(transfer),
            _ => None,
        }
    }
}

/// Which space an operation may take when the store is nearly full, each more than the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum Claim {
    /// What is not kept for anything: it writes data.
    #[default]
    Data,
    /// A little more: it changes names and attributes, so that a full file system can be tidied up (`chmod`, `mv`, `mkdir`). What
    /// it writes takes the place of what was there, but for new names and inodes.
    Names,
    /// All that there is: it only gives space back (`unlink`, `truncate` to less).
    Frees,
}

/// What an operation may need, stated when it enters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Cost {
    /// Pages that it may make dirty.
    pub pages: u64,
    /// Bytes that its records may hold, without their headers.
    pub bytes: u64,
    /// Records that it may write: one for each page that a change touches.
    pub records: u64,
    /// Which space it may take.
    pub claim: Claim,
    /// Of the pages, so many that follow each other in one file, as data.
    pub run: u64,
    /// Of the pages, so many may be written [around the buffer](Change::BypassWrite). Bytes and records count them as if they were logged.
    pub bypass_pages: u64,
}

impl Cost {
    /// Nothing.
    pub const NONE: Cost =
        Cost { pages: 0, bytes: 0, records: 0, claim: Claim::Data, run: 0, bypass_pages: 0 };

    /// What `changes` need.
    pub fn of(changes: &[Change<'_>]) -> Cost {
        changes.iter().fold(Cost::NONE, |cost, change| Cost {
            pages: cost.pages + change.pages(),
            bytes: cost.bytes + change.bytes(),
            records: cost.records + change.records(),
            claim: Claim::Data,
            run: 0,
            bypass_pages: cost.bypass_pages
                + change.bypass_bytes().map_or(0, |bytes| bytes.len() / BLOCK_BYTES) as u64,
        })
    }
}

/// A transaction's records: most have a few, which then need no memory of their own.
pub(crate) type Records<'a> = SmallVec<[LogRecord<'a>; 4]>;

/// A transaction's records, page by page; whether those of bypassing writes do without the bytes.
pub(crate) fn records<'a>(changes: &[Change<'a>], bypassing: bool) -> Records<'a> {
    let mut records = Records::new();
    for change in changes {
        match *change {
            Change::BypassWrite { object, offset, bytes, grows } if bypassing => {
                let (from, to) = (PageNo::of(offset), PageNo::of(offset + bytes.len() as u64));
                assert!(from.offset() == offset && to.offset() == offset + bytes.len() as u64, "whole pages");
                records.push(LogRecord::Bypassed { object, from, to, extends_file: grows });
            }
            Change::Write { object, offset, bytes } | Change::BypassWrite { object, offset, bytes, .. } => {
                for (page, start, range) in pages_of(offset, bytes.len()) {
                    records.push(LogRecord::Write {
                        object,
                        page,
                        start: start as u16,
                        bytes: &bytes[range],
                    });
                }
            }
            Change::Settle { .. } => {}
            Change::Zero { object, offset, len } => zero_records(object, offset, len, &mut records),
            Change::Delete { object } => records.push(LogRecord::Delete { object }),
            Change::Clone { transfer } => records.push(LogRecord::Clone(transfer)),
            Change::Move { transfer } => records.push(LogRecord::Move(transfer)),
        }
    }
    records
}

/// Zeros: whole pages are a cut, the edges are zeroed.
fn zero_records(object: ObjectId, offset: u64, len: u64, records: &mut Records<'_>) {
    let end = offset.saturating_add(len);
    let (first, last) = (PageNo(offset.div_ceil(BLOCK_BYTES as u64)), PageNo::of(end));
    let mut edge = |from: u64, to: u64| {
        if from < to {
            let start = (from % BLOCK_BYTES as u64) as u16;
            records.push(LogRecord::Zero { object, page: PageNo::of(from), start, len: (to - from) as u16 });
        }
    };
    if first > last {
        return edge(offset, end);
    }
    edge(offset, first.offset());
    edge(last.offset(), end);
    if first < last {
        records.push(LogRecord::Punch { object, from: first, to: last });
    }
}

//! Changes of objects, as callers state them, with their costs; and the records of a transaction.

use crate::page_table::{PageKey, PageTable, pages_of};
use crate::range_ops::{excess_pages, reserved_pages};
use buffer::{LogRecord, TRANSFER_BYTES};
use device::{BLOCK_BYTES, ObjectId, Page, PageNo, PageTransfer, TransferKind};
use request::Origin;
use smallvec::SmallVec;
use std::ops::Range;

/// A change of one object, part of an atomic transaction.
#[derive(Debug, Clone, Copy)]
pub enum ObjectChange<'a> {
    /// Bytes from `offset` on become `bytes`.
    Write {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
    },
    /// A write of a file's data. Once the file was written in order for
    /// [long enough](crate::Cache::bypass_after), writes of whole pages bypass the buffer: the log has only a
    /// record that names them, and the bytes soon reach the store. After a crash each page is, as a whole,
    /// what it was or what it became; of pages behind `size`, the first lost one ends the file: see
    /// [`lost_tails`](crate::Cache::lost_tails). A sync of the object, a change of a part of a page, a clone
    /// of it and a [`LogBypassed`](ObjectChange::LogBypassed) log the pages that the store lacks by then.
    /// With [`follows_classes`](crate::CacheSettings::follows_classes) the whole pages of a write bypass
    /// though its first or last page is written in part; that page is logged.
    FileWrite {
        /// The object.
        object: ObjectId,
        /// Position in the object, in bytes.
        offset: u64,
        /// The new bytes.
        bytes: &'a [u8],
        /// The file's size before this write, in bytes.
        size: u64,
    },
    /// Changes nothing. The object's bypassed pages are logged before this transaction.
    LogBypassed {
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
    /// Deletes the object with all its pages. Its id is never used again.
    Delete {
        /// The object.
        object: ObjectId,
    },
    /// Pages of one object become what those of another are now, holes included. Nothing is read or copied:
    /// both share what they have. At most [`TRANSFER_PAGES_MAX`](crate::TRANSFER_PAGES_MAX) pages, unless the
    /// first pages of source and target agree modulo 128. Reads of the target wait until the store has the
    /// transfer, which it gets next. A move then makes holes of the source's pages.
    Transfer(PageTransfer),
}

impl ObjectChange<'_> {
    /// Pages that this change may make dirty.
    pub(crate) fn pages(&self) -> u64 {
        match *self {
            ObjectChange::Write { bytes: [], .. }
            | ObjectChange::Delete { .. }
            | ObjectChange::LogBypassed { .. } => 0,
            ObjectChange::FileWrite { bytes: [], .. } => 0,
            ObjectChange::Write { offset, bytes, .. } | ObjectChange::FileWrite { offset, bytes, .. } => {
                let last = offset + bytes.len() as u64 - 1;
                last / BLOCK_BYTES as u64 - offset / BLOCK_BYTES as u64 + 1
            }
            // Only the two edges can be pages that become zeros in part.
            ObjectChange::Zero { .. } => 2,
            // As many as its map nodes take.
            ObjectChange::Transfer(transfer) => reserved_pages(&transfer),
        }
    }

    /// The bytes that its records carry, without their headers.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            ObjectChange::Write { bytes, .. } | ObjectChange::FileWrite { bytes, .. } => bytes.len() as u64,
            ObjectChange::Zero { .. } | ObjectChange::Delete { .. } | ObjectChange::LogBypassed { .. } => 0,
            ObjectChange::Transfer(_) => TRANSFER_BYTES,
        }
    }

    /// The part of a file's bytes that it writes as whole pages: these may bypass the buffer.
    fn whole_pages(&self) -> Option<Range<u64>> {
        let &ObjectChange::FileWrite { offset, bytes, .. } = self else { return None };
        let page = BLOCK_BYTES as u64;
        let start = offset.next_multiple_of(page);
        let end = (offset + bytes.len() as u64) / page * page;
        (start < end).then_some(start..end)
    }

    /// The number of pages that may bypass the buffer.
    pub(crate) fn bypassable_pages(&self) -> u64 {
        self.whole_pages().map_or(0, |bytes| (bytes.end - bytes.start) / BLOCK_BYTES as u64)
    }

    /// Whether it writes whole pages of a file, and nothing else, as streams do.
    pub(crate) fn is_of_whole_pages(&self) -> bool {
        let &ObjectChange::FileWrite { bytes, .. } = self else { return false };
        self.whole_pages().is_some_and(|whole| whole.end - whole.start == bytes.len() as u64)
    }

    /// The bytes that can bypass the buffer now. A crash that takes them must leave no hole in the file. So
    /// all pages of a write that begins behind the end are logged, and so are those of one with the end
    /// within a page that would bypass.
    fn bypassing_bytes(&self) -> Option<Range<u64>> {
        let &ObjectChange::FileWrite { offset, size, .. } = self else { return None };
        let whole = self.whole_pages()?;
        let has_no_hole = offset <= size
            && (whole.end <= size || size <= whole.start || size.is_multiple_of(BLOCK_BYTES as u64));
        has_no_hole.then_some(whole)
    }

    /// The objects that it changes: the target of a clone, and both objects of a move.
    pub(crate) fn changed_objects(&self) -> impl Iterator<Item = ObjectId> + use<> {
        let (one, other) = match *self {
            ObjectChange::Write { object, .. }
            | ObjectChange::FileWrite { object, .. }
            | ObjectChange::LogBypassed { object }
            | ObjectChange::Zero { object, .. }
            | ObjectChange::Delete { object } => (object, None),
            ObjectChange::Transfer(PageTransfer { kind, from, to, .. }) => {
                (to, Some(from).filter(|_| kind == TransferKind::Move))
            }
        };
        std::iter::once(one).chain(other)
    }

    /// Whether it changes, or copies from, this object.
    fn touches(&self, touched: ObjectId) -> bool {
        match *self {
            ObjectChange::Write { object, .. }
            | ObjectChange::FileWrite { object, .. }
            | ObjectChange::LogBypassed { object }
            | ObjectChange::Zero { object, .. }
            | ObjectChange::Delete { object } => object == touched,
            ObjectChange::Transfer(transfer) => [transfer.from, transfer.to].contains(&touched),
        }
    }

    /// Whether a clone or a move has pages, and a target outside its source.
    pub(crate) fn is_sensible(&self) -> bool {
        match self {
            ObjectChange::Transfer(transfer) => transfer.is_valid(),
            _ => true,
        }
    }

    /// The number of pages of a clone or a move, if that is too many.
    pub(crate) fn excess_pages(&self) -> Option<u64> {
        match self {
            ObjectChange::Transfer(transfer) => excess_pages(transfer),
            _ => None,
        }
    }
}

/// The space that an operation may take when the store is nearly full. Each claim may take more than the one
/// before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SpaceClaim {
    /// No reserved space: the operation writes data.
    #[default]
    Data,
    /// A little reserved space: the operation changes names and attributes, so that a full file system can be
    /// tidied up (`chmod`, `mv`, `mkdir`). Such operations replace older data, except for new names and
    /// inodes.
    Names,
    /// All space: the operation only frees space (`unlink`, `truncate` to less).
    Frees,
}

/// The most that a transaction may need. Reserved only for a transaction that waits or applies later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionCost {
    /// Pages that it may make dirty.
    pub pages: u64,
    /// Bytes that its records may hold, without their headers.
    pub bytes: u64,
    /// Records that it may write: one for each page that a change touches.
    pub records: u64,
    /// Which space it may take.
    pub claim: SpaceClaim,
    /// The number of these pages that are consecutive data pages of one file.
    pub run: u64,
    /// The number of these pages that may bypass the buffer: see [`FileWrite`](ObjectChange::FileWrite).
    /// `bytes` and `records` count them as if they were logged.
    pub bypass_pages: u64,
    /// The number of its changes that are clones or moves of pages. It waits while many earlier ones are pending.
    pub transfers: u64,
    /// Who asks. Critical operations go before others, and leave less of the buffer free.
    pub origin: Origin,
}

impl TransactionCost {
    /// Nothing.
    pub const NONE: TransactionCost = TransactionCost {
        pages: 0,
        bytes: 0,
        records: 0,
        claim: SpaceClaim::Data,
        run: 0,
        bypass_pages: 0,
        transfers: 0,
        origin: Origin::UNMATCHED,
    };

    /// The cost of the same transaction of another origin.
    pub fn by(self, origin: Origin) -> TransactionCost {
        TransactionCost { origin, ..self }
    }

    /// The cost of `changes`.
    pub fn of(changes: &[ObjectChange<'_>]) -> TransactionCost {
        let mut cost = TransactionCost::NONE;
        for change in changes {
            let pages = change.pages();
            cost.pages += pages;
            cost.bytes += change.bytes();
            // One for each page, and one for a range.
            cost.records += match change {
                ObjectChange::Transfer(_) => 1,
                ObjectChange::LogBypassed { .. } => 0,
                _ => pages + 1,
            };
            match change {
                ObjectChange::FileWrite { .. } => {
                    cost.run += pages;
                    cost.bypass_pages += change.bypassable_pages();
                }
                ObjectChange::Transfer(_) => cost.transfers += 1,
                _ => {}
            }
        }
        cost
    }
}

/// A transaction's records. Most transactions have a few, which then need no allocation.
#[derive(Default)]
pub(crate) struct TransactionRecords<'a> {
    pub(crate) records: SmallVec<[LogRecord<'a>; 4]>,
    /// The bytes of each `Bypassed` record, in order: the buffer does not get them.
    pub(crate) bypassing: SmallVec<[&'a [u8]; 2]>,
    /// Bytes in the log of the records that write whole pages of files.
    pub(crate) whole_page_bytes: u64,
    /// Bytes in the log of the records that write parts of such pages.
    pub(crate) part_of_page_bytes: u64,
}

impl<'a> TransactionRecords<'a> {
    /// The records of `changes`, page by page. With `may_bypass`, those of pages that can bypass the buffer
    /// lack the bytes. Where a file's page is whole in `pages`, only what differs is logged: databases write
    /// the last page of their log again and again.
    pub(crate) fn of(
        changes: &[ObjectChange<'a>],
        may_bypass: bool,
        pages: &PageTable,
    ) -> TransactionRecords<'a> {
        let mut made = TransactionRecords::default();
        for change in changes {
            let records = &mut made.records;
            match *change {
                ObjectChange::FileWrite { object, offset, bytes, size } => {
                    let first = records.len();
                    // Other changes of the transaction are not in memory yet.
                    let is_compared = bytes.len() >= COMPARED_BYTES_MIN
                        && changes.iter().filter(|other| other.touches(object)).count() == 1;
                    let before = is_compared.then_some(pages);
                    let part = |range: &Range<u64>| {
                        &bytes[(range.start - offset) as usize..(range.end - offset) as usize]
                    };
                    match may_bypass.then(|| change.bypassing_bytes()).flatten() {
                        None => write_records(before, object, offset, bytes, records),
                        Some(bypassing) => {
                            write_records(before, object, offset, part(&(offset..bypassing.start)), records);
                            // Two records: a crash that takes the pages behind the old end takes the growth
                            // with them.
                            let old_end = size.clamp(bypassing.start, bypassing.end);
                            for (range, extends_file) in
                                [(bypassing.start..old_end, false), (old_end..bypassing.end, true)]
                            {
                                if !range.is_empty() {
                                    let (from, to) = (PageNo::of(range.start), PageNo::of(range.end));
                                    records.push(LogRecord::Bypassed { object, from, to, extends_file });
                                    made.bypassing.push(part(&range));
                                }
                            }
                            let end = offset + bytes.len() as u64;
                            write_records(
                                before,
                                object,
                                bypassing.end,
                                part(&(bypassing.end..end)),
                                records,
                            );
                        }
                    }
                    made.count_data(change.whole_pages().unwrap_or_default(), first);
                }
                ObjectChange::Write { object, offset, bytes } => {
                    write_records(None, object, offset, bytes, records);
                }
                ObjectChange::LogBypassed { .. } => {}
                ObjectChange::Zero { object, offset, len } => zero_records(object, offset, len, records),
                ObjectChange::Delete { object } => records.push(LogRecord::Delete { object }),
                ObjectChange::Transfer(transfer) => records.push(LogRecord::Transfer(transfer)),
            }
        }
        made
    }

    /// Counts the bytes of a file's records from `first` on, of which those in `whole_pages` write whole pages.
    fn count_data(&mut self, whole_pages: Range<u64>, first: usize) {
        for record in &self.records[first..] {
            let LogRecord::Write { page, .. } = record else { continue };
            let is_whole = whole_pages.contains(&page.offset());
            let count = if is_whole { &mut self.whole_page_bytes } else { &mut self.part_of_page_bytes };
            *count += buffer::record_bytes(record);
        }
    }
}

/// Pieces shorter than this are logged as they are: looking the page up would take longer.
pub(crate) const COMPARED_BYTES_MIN: usize = 1024;

/// Bytes that are compared at once: one by one takes longer than logging them.
const COMPARED_TOGETHER: usize = 64;

/// A record for each page; of pages that are whole in `before`, for what differs.
fn write_records<'a>(
    before: Option<&PageTable>,
    object: ObjectId,
    offset: u64,
    bytes: &'a [u8],
    records: &mut SmallVec<[LogRecord<'a>; 4]>,
) {
    for (page, start, range) in pages_of(offset, bytes.len()) {
        let (mut start, mut bytes) = (start, &bytes[range]);
        if bytes.len() >= COMPARED_BYTES_MIN
            && let Some(before) = before.and_then(|pages| pages.logged_page(PageKey { object, page }))
        {
            (start, bytes) = differing_bytes(before, start, bytes);
        }
        records.push(LogRecord::Write { object, page, start: start as u16, bytes });
    }
}

/// `bytes` are to be written from `start` on into the page `before`. Returns the part that differs from what the page has:
/// its start in the page, and its bytes.
pub(crate) fn differing_bytes<'a>(before: &Page, start: usize, bytes: &'a [u8]) -> (usize, &'a [u8]) {
    let differing = differing_range(&before.0[start..start + bytes.len()], bytes);
    (start + differing.start, &bytes[differing])
}

/// The range from the first byte that differs to the last. If none does, the last byte: a record is not empty.
fn differing_range(before: &[u8], after: &[u8]) -> Range<usize> {
    let pieces = || before.chunks(COMPARED_TOGETHER).zip(after.chunks(COMPARED_TOGETHER));
    let Some(first) = pieces().position(|(before, after)| before != after) else {
        return after.len() - 1..after.len();
    };
    let last = pieces().rposition(|(before, after)| before != after).expect("one differs");
    let bytes_of = |piece: usize| {
        let begin = piece * COMPARED_TOGETHER;
        (begin..after.len().min(begin + COMPARED_TOGETHER)).filter(|&at| before[at] != after[at])
    };
    let first = bytes_of(first).next().expect("one differs");
    let last = bytes_of(last).next_back().expect("one differs");
    first..last + 1
}

/// Zeros: whole pages are punched, the edges are zeroed.
fn zero_records(object: ObjectId, offset: u64, len: u64, records: &mut SmallVec<[LogRecord<'_>; 4]>) {
    let end = offset.saturating_add(len);
    let first = PageNo(offset.div_ceil(BLOCK_BYTES as u64));
    let last = PageNo::of(end);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_found() {
        assert_eq!(differing_range(b"abcdef", b"abXdYf"), 2..5);
        assert_eq!(differing_range(b"abc", b"Xbc"), 0..1);
        assert_eq!(differing_range(b"abc", b"abc"), 2..3, "a record has a byte");
    }

    #[test]
    fn what_differs_is_found_across_the_pieces_that_are_compared() {
        let before = [0; 2 * COMPARED_TOGETHER + 10];
        for first in [0, 1, COMPARED_TOGETHER - 1, COMPARED_TOGETHER, before.len() - 1] {
            for last in [first, COMPARED_TOGETHER, 2 * COMPARED_TOGETHER, before.len() - 1] {
                let mut after = before;
                after[first] = 1;
                after[last.max(first)] = 1;
                assert_eq!(differing_range(&before, &after), first..last.max(first) + 1);
            }
        }
    }
}

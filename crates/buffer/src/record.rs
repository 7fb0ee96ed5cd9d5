//! Records and transactions as bytes. They do not depend on their place: the format is the same on every
//! medium.

use crate::format::GROUP_HEADER_BYTES;
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo, PageTransfer, TransferKind};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One visible change, as the log has it. Byte positions are within one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogRecord<'a> {
    /// Bytes of a page change.
    Write {
        /// The object.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// Position of the first byte in the page.
        start: u16,
        /// The new bytes; they end within the page.
        bytes: &'a [u8],
    },
    /// Bytes of a page become zeros.
    Zero {
        /// The object.
        object: ObjectId,
        /// The page.
        page: PageNo,
        /// Position of the first byte in the page.
        start: u16,
        /// How many; they end within the page.
        len: u16,
    },
    /// Whole pages become holes.
    Punch {
        /// The object.
        object: ObjectId,
        /// The first page.
        from: PageNo,
        /// The page after the last.
        to: PageNo,
    },
    /// The object is deleted.
    Delete {
        /// The object.
        object: ObjectId,
    },
    /// Pages become copies of other pages, holes included.
    Transfer(PageTransfer),
    /// Whole pages change, and their bytes bypass the buffer: the store gets them.
    ///
    /// If the store has such a page as of this LSN, older records of the page are obsolete; if not, they
    /// count.
    Bypassed {
        /// The object.
        object: ObjectId,
        /// The first page.
        from: PageNo,
        /// The page after the last.
        to: PageNo,
        /// The file ended where these pages begin, and now ends behind them: it must not keep that size
        /// without them.
        extends_file: bool,
    },
}

/// The bytes of a clone's or a move's target, beside its record header.
pub const TRANSFER_BYTES: u64 = size_of::<TransferTarget>() as u64;

/// The largest overhead of a record beside the bytes it writes.
pub const RECORD_OVERHEAD_BYTES: u64 = size_of::<RecordHeader>() as u64 + 8;

/// The largest overhead of a transaction beside its records, before padding: its frame, and the header of the
/// group that it may have to begin.
pub const TRANSACTION_OVERHEAD_BYTES: u64 = (TRANSACTION_HEADER_BYTES + GROUP_HEADER_BYTES) as u64;

/// The largest number of bytes of the ring that one transaction can take, as if it were committed alone: for
/// `records` records, which write `bytes` bytes together. See
/// [`Buffer::free_bytes`](crate::Buffer::free_bytes).
pub const fn footprint(records: u64, bytes: u64) -> u64 {
    let content = TRANSACTION_OVERHEAD_BYTES + records * RECORD_OVERHEAD_BYTES + bytes;
    content.next_multiple_of(BLOCK_BYTES as u64)
}

/// The LSN of a transaction: whether its records get new LSNs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransactionLsn {
    /// Each record has the next LSN; the first has this one.
    New(Lsn),
    /// The records are the delta of one page, logged again; this is the newest LSN in the delta.
    Relogged(Lsn),
}

/// The header of a transaction.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TransactionHeader {
    /// The length of the whole transaction, this header included.
    pub(crate) bytes: U32,
    pub(crate) checksum: U32,
    /// The number of records; the highest bit marks a relogged transaction.
    pub(crate) records: U32,
    pub(crate) first: U64,
}

/// The header of a record.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct RecordHeader {
    pub(crate) kind: u8,
    pub(crate) reserve: u8,
    pub(crate) slot: [u8; 6],
    pub(crate) volume: U32,
    pub(crate) generation: U32,
    pub(crate) page: U64,
    pub(crate) start: U16,
    pub(crate) len: U16,
}

/// The body of a clone or a move, whose header names the source and its first page.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TransferTarget {
    pub(crate) end: U64,
    pub(crate) slot: U64,
    pub(crate) volume: U32,
    pub(crate) generation: U32,
    pub(crate) at: U64,
}

pub(crate) const TRANSACTION_HEADER_BYTES: usize = size_of::<TransactionHeader>();
pub(crate) const RELOGGED: u32 = 1 << 31;

const _: () = assert!(TRANSACTION_HEADER_BYTES == 20);
const _: () = assert!(size_of::<RecordHeader>() == 28 && size_of::<TransferTarget>() == 32);

impl TransactionHeader {
    pub(crate) fn new(bytes: u32, order: TransactionLsn, records: u32) -> TransactionHeader {
        assert!(records < RELOGGED, "too many records for one transaction");
        let (first, flag) = match order {
            TransactionLsn::New(first) => (first, 0),
            TransactionLsn::Relogged(newest) => (newest, RELOGGED),
        };
        TransactionHeader {
            bytes: bytes.into(),
            checksum: U32::ZERO,
            records: (records | flag).into(),
            first: first.0.into(),
        }
    }

    /// The checksum of the whole transaction, without the checksum itself.
    pub(crate) fn checksum(bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..])
    }
}

/// The limit of slots, which have 48 bits.
pub(crate) const SLOT_END: u64 = 1 << 48;

pub(crate) const KIND_WRITE: u8 = 1;
pub(crate) const KIND_ZERO: u8 = 2;
pub(crate) const KIND_PUNCH: u8 = 3;
pub(crate) const KIND_DELETE: u8 = 4;
pub(crate) const KIND_CLONE: u8 = 5;
pub(crate) const KIND_MOVE: u8 = 6;
pub(crate) const KIND_BYPASSED: u8 = 7;

/// The bytes of a transaction in the log, with its frame.
pub fn transaction_bytes(records: &[LogRecord<'_>]) -> u64 {
    TRANSACTION_HEADER_BYTES as u64 + records.iter().map(record_bytes).sum::<u64>()
}

/// The bytes of a record in the log.
pub fn record_bytes(record: &LogRecord<'_>) -> u64 {
    size_of::<RecordHeader>() as u64 + body(record).len() as u64
}

/// Writes the transaction, which fills `into` exactly.
pub(crate) fn encode_transaction(order: TransactionLsn, records: &[LogRecord<'_>], into: &mut [u8]) {
    let bytes = into.len() as u32;
    let mut at = TRANSACTION_HEADER_BYTES;
    for record in records {
        let head = header(record);
        let body = body(record);
        at = put(into, at, head.as_bytes());
        at = put(into, at, body.bytes());
    }
    assert_eq!(at, into.len(), "a transaction fills its place exactly");
    let mut head = TransactionHeader::new(bytes, order, records.len() as u32);
    put(into, 0, head.as_bytes());
    head.checksum = TransactionHeader::checksum(into).into();
    put(into, 0, head.as_bytes());
}

fn put(into: &mut [u8], at: usize, bytes: &[u8]) -> usize {
    into[at..at + bytes.len()].copy_from_slice(bytes);
    at + bytes.len()
}

/// The body of a record, behind its header.
enum RecordBody<'a> {
    Bytes(&'a [u8]),
    Number([u8; 8]),
    Target(TransferTarget),
}

impl RecordBody<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            RecordBody::Bytes(bytes) => bytes,
            RecordBody::Number(bytes) => bytes,
            RecordBody::Target(target) => target.as_bytes(),
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }
}

fn body<'a>(record: &LogRecord<'a>) -> RecordBody<'a> {
    match *record {
        LogRecord::Write { bytes, .. } => RecordBody::Bytes(bytes),
        LogRecord::Punch { to, .. } | LogRecord::Bypassed { to, .. } => {
            RecordBody::Number(to.0.to_le_bytes())
        }
        LogRecord::Zero { .. } | LogRecord::Delete { .. } => RecordBody::Bytes(&[]),
        LogRecord::Transfer(PageTransfer { end, to, at, .. }) => {
            assert!(to.slot < SLOT_END, "slot {} does not fit 48 bits", to.slot);
            RecordBody::Target(TransferTarget {
                end: end.0.into(),
                slot: to.slot.into(),
                volume: to.volume.0.into(),
                generation: to.generation.into(),
                at: at.0.into(),
            })
        }
    }
}

fn header(record: &LogRecord<'_>) -> RecordHeader {
    let mut head = RecordHeader::new_zeroed();
    match *record {
        LogRecord::Write { object, page, start, bytes } => {
            head.set_object(KIND_WRITE, object, page);
            head.set_range(start, bytes.len());
        }
        LogRecord::Zero { object, page, start, len } => {
            head.set_object(KIND_ZERO, object, page);
            head.set_range(start, usize::from(len));
        }
        LogRecord::Punch { object, from, to } => {
            assert!(from <= to, "a punch of {object} from page {from} back to {to}");
            head.set_object(KIND_PUNCH, object, from);
        }
        LogRecord::Delete { object } => head.set_object(KIND_DELETE, object, PageNo(0)),
        LogRecord::Transfer(PageTransfer { kind, from, first, .. }) => {
            let kind = match kind {
                TransferKind::Clone => KIND_CLONE,
                TransferKind::Move => KIND_MOVE,
            };
            head.set_object(kind, from, first);
        }
        LogRecord::Bypassed { object, from, to, extends_file: grows } => {
            assert!(from < to, "no pages of {object}, from {from} to {to}");
            head.set_object(KIND_BYPASSED, object, from);
            head.start = U16::new(u16::from(grows));
        }
    }
    head
}

impl RecordHeader {
    fn set_object(&mut self, kind: u8, object: ObjectId, page: PageNo) {
        assert!(object.slot < SLOT_END, "slot {} does not fit 48 bits", object.slot);
        self.kind = kind;
        self.slot.copy_from_slice(&object.slot.to_le_bytes()[..6]);
        self.volume = object.volume.0.into();
        self.generation = object.generation.into();
        self.page = page.0.into();
    }

    fn set_range(&mut self, start: u16, len: usize) {
        let end = usize::from(start) + len;
        assert!(end <= BLOCK_BYTES, "a record of bytes {start}..{end} leaves its page");
        self.start = start.into();
        self.len = U16::new(len as u16);
    }
}

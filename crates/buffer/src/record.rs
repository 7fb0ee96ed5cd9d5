//! Records and transactions as bytes. Nothing here knows where they lie: the format is the same on every medium.

use crate::format::GROUP_HEADER_BYTES;
use device::{BLOCK_BYTES, Lsn, ObjectId, PageNo, Transfer};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One visible change, as the buffer keeps it. Byte positions are within one page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Record<'a> {
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
    Cut {
        /// The object.
        object: ObjectId,
        /// The first page.
        from: PageNo,
        /// The page after the last.
        to: PageNo,
    },
    /// The object goes.
    Delete {
        /// The object.
        object: ObjectId,
    },
    /// Pages become what others are, holes included.
    Clone(Transfer),
    /// The same, and the others become holes.
    Move(Transfer),
    /// Whole pages change, whose bytes are not here: the store gets them. Older records of them are older than what the store has, if it
    /// has them as of this LSN; if not, they count.
    Bypassed {
        /// The object.
        object: ObjectId,
        /// The first page.
        from: PageNo,
        /// The page after the last.
        to: PageNo,
        /// The file ended where they begin, and ends behind them now: not without them.
        grows: bool,
    },
}

/// What a clone or a move carries, as a write carries its bytes.
pub const TRANSFER_BYTES: u64 = size_of::<Target>() as u64;

/// The most that a record takes beside the bytes it writes.
pub const RECORD_OVERHEAD_BYTES: u64 = size_of::<RecordHeader>() as u64 + 8;

/// The most that a transaction takes beside its records, before padding: its frame, and the header of the group
/// that it may have to begin.
pub const TRANSACTION_OVERHEAD_BYTES: u64 = (TRANSACTION_HEADER_BYTES + GROUP_HEADER_BYTES) as u64;

/// The most bytes of the ring that one transaction of `records` records, which write `bytes` bytes together, can
/// cost: as much as if it were committed alone. See [`Buffer::free_bytes`](crate::Buffer::free_bytes).
pub fn footprint(records: u64, bytes: u64) -> u64 {
    let content = TRANSACTION_OVERHEAD_BYTES + records * RECORD_OVERHEAD_BYTES + bytes;
    content.next_multiple_of(BLOCK_BYTES as u64)
}

/// Whether the records of a transaction count in the one order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Order {
    /// Each has the next LSN; the first this one.
    New(Lsn),
    /// They are one page's delta, re-logged; its newest LSN is this one.
    Merged(Lsn),
}

/// What starts every transaction.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct TransactionHeader {
    /// Of the whole transaction, this header included.
    pub(crate) bytes: U32,
    pub(crate) checksum: U32,
    /// How many; the highest bit says that they are merged.
    pub(crate) records: U32,
    pub(crate) first: U64,
}

/// What starts every record.
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

/// What follows a clone's or a move's header, which names the source and its first page.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Target {
    pub(crate) end: U64,
    pub(crate) slot: U64,
    pub(crate) volume: U32,
    pub(crate) generation: U32,
    pub(crate) at: U64,
}

pub(crate) const TRANSACTION_HEADER_BYTES: usize = size_of::<TransactionHeader>();
pub(crate) const MERGED: u32 = 1 << 31;

const _: () = assert!(TRANSACTION_HEADER_BYTES == 20);
const _: () = assert!(size_of::<RecordHeader>() == 28 && size_of::<Target>() == 32);

impl TransactionHeader {
    pub(crate) fn new(bytes: u32, order: Order, records: u32) -> TransactionHeader {
        assert!(records < MERGED, "too many records for one transaction");
        let (first, flag) = match order {
            Order::New(first) => (first, 0),
            Order::Merged(newest) => (newest, MERGED),
        };
        TransactionHeader {
            bytes: bytes.into(),
            checksum: U32::ZERO,
            records: (records | flag).into(),
            first: first.0.into(),
        }
    }

    /// Over the whole transaction, without the checksum itself.
    pub(crate) fn checksum(bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&bytes[..4]), &bytes[8..])
    }
}

/// Slots have 48 bits.
pub(crate) const SLOT_END: u64 = 1 << 48;

pub(crate) const KIND_WRITE: u8 = 1;
pub(crate) const KIND_ZERO: u8 = 2;
pub(crate) const KIND_CUT: u8 = 3;
pub(crate) const KIND_DELETE: u8 = 4;
pub(crate) const KIND_CLONE: u8 = 5;
pub(crate) const KIND_MOVE: u8 = 6;
pub(crate) const KIND_BYPASSED: u8 = 7;

/// Bytes of the transaction with its frame.
pub(crate) fn transaction_bytes(records: &[Record<'_>]) -> u64 {
    let each = |record: &Record<'_>| size_of::<RecordHeader>() as u64 + body(record).len() as u64;
    TRANSACTION_HEADER_BYTES as u64 + records.iter().map(each).sum::<u64>()
}

/// Writes the transaction, which fills `into` exactly.
pub(crate) fn encode(order: Order, records: &[Record<'_>], into: &mut [u8]) {
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

/// What follows a record's header.
enum Body<'a> {
    Bytes(&'a [u8]),
    Number([u8; 8]),
    Target(Target),
}

impl Body<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Body::Bytes(bytes) => bytes,
            Body::Number(bytes) => bytes,
            Body::Target(target) => target.as_bytes(),
        }
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }
}

fn body<'a>(record: &Record<'a>) -> Body<'a> {
    match *record {
        Record::Write { bytes, .. } => Body::Bytes(bytes),
        Record::Cut { to, .. } | Record::Bypassed { to, .. } => Body::Number(to.0.to_le_bytes()),
        Record::Zero { .. } | Record::Delete { .. } => Body::Bytes(&[]),
        Record::Clone(Transfer { end, to, at, .. }) | Record::Move(Transfer { end, to, at, .. }) => {
            assert!(to.slot < SLOT_END, "slot {} does not fit 48 bits", to.slot);
            Body::Target(Target {
                end: end.0.into(),
                slot: to.slot.into(),
                volume: to.volume.0.into(),
                generation: to.generation.into(),
                at: at.0.into(),
            })
        }
    }
}

fn header(record: &Record<'_>) -> RecordHeader {
    let mut head = RecordHeader::new_zeroed();
    match *record {
        Record::Write { object, page, start, bytes } => {
            head.name(KIND_WRITE, object, page);
            head.range(start, bytes.len());
        }
        Record::Zero { object, page, start, len } => {
            head.name(KIND_ZERO, object, page);
            head.range(start, usize::from(len));
        }
        Record::Cut { object, from, to } => {
            assert!(from <= to, "a cut of {object} from page {from} back to {to}");
            head.name(KIND_CUT, object, from);
        }
        Record::Delete { object } => head.name(KIND_DELETE, object, PageNo(0)),
        Record::Clone(transfer) => head.name(KIND_CLONE, transfer.from, transfer.first),
        Record::Move(transfer) => head.name(KIND_MOVE, transfer.from, transfer.first),
        Record::Bypassed { object, from, to, grows } => {
            assert!(from < to, "no pages of {object}, from {from} to {to}");
            head.name(KIND_BYPASSED, object, from);
            head.start = U16::new(u16::from(grows));
        }
    }
    head
}

impl RecordHeader {
    fn name(&mut self, kind: u8, object: ObjectId, page: PageNo) {
        assert!(object.slot < SLOT_END, "slot {} does not fit 48 bits", object.slot);
        self.kind = kind;
        self.slot.copy_from_slice(&object.slot.to_le_bytes()[..6]);
        self.volume = object.volume.0.into();
        self.generation = object.generation.into();
        self.page = page.0.into();
    }

    fn range(&mut self, start: u16, len: usize) {
        let end = usize::from(start) + len;
        assert!(end <= BLOCK_BYTES, "a record of bytes {start}..{end} leaves its page");
        self.start = start.into();
        self.len = U16::new(len as u16);
    }
}

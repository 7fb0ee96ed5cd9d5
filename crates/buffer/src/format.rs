//! The bytes of superblock, header slots and group headers, as FORMAT.md describes them.

use crate::ring::{GroupBoundary, GroupNo, LogRing, RingPosition};
use device::{BLOCK_BYTES, Block, BufferId, Incarnation, Lsn, Page, StoreId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The newest format that this code writes and reads.
pub(crate) const VERSION: u32 = 2;
/// The newest record format. The same on every medium.
pub(crate) const RECORD_VERSION: u16 = 2;
/// The medium is addressed in blocks.
pub(crate) const MEDIUM_BLOCK: u16 = 1;

/// The smallest buffer. Below it a quarter of the ring, the limit of a transaction, gets too small to be useful.
pub(crate) const BYTES_MIN: u64 = 1 << 20;
/// The longest group, in blocks (8 MiB). Every opening searches so far behind the log's end for signs of rot.
pub(crate) const GROUP_BLOCKS_MAX: u64 = 2048;
/// Group numbers and LSNs stay below this: a million a second for a hundred thousand years. So sums never wrap.
pub(crate) const NUMBER_END: u64 = 1 << 62;
/// The superblock and two header slots come before the ring.
pub(crate) const RING_START: Block = Block(3);
/// The shortest ring.
pub(crate) const RING_BLOCKS_MIN: u64 = BYTES_MIN / BLOCK_BYTES as u64 - RING_START.0;

pub(crate) const SUPERBLOCK_MAGIC: [u8; 8] = *b"weirbuff";
pub(crate) const SLOT_MAGIC: [u8; 8] = *b"weirslot";
pub(crate) const GROUP_MAGIC: [u8; 8] = *b"weirgrup";

/// Where every one of these structures keeps its checksum, in all versions.
const CHECKSUM: std::ops::Range<usize> = 8..12;

/// Which buffer it is, and of which store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BufferIdentity {
    /// The store whose changes it holds.
    pub store: StoreId,
    /// Drawn when it was formatted, so that a store can tell its buffer from those that it had before.
    pub id: BufferId,
}

/// Of a buffer that no store needs to know again.
impl From<StoreId> for BufferIdentity {
    fn from(store: StoreId) -> BufferIdentity {
        BufferIdentity { store, id: BufferId::default() }
    }
}

/// Block 0. Written by format only; how large the ring is, the header slots say.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct BufferSuperblock {
    pub(crate) magic: [u8; 8],
    pub(crate) checksum: U32,
    pub(crate) version: U32,
    pub(crate) id: [u8; 16],
    pub(crate) store: [u8; 16],
    pub(crate) block_bytes: U32,
    pub(crate) medium: U16,
    pub(crate) reserve: U16,
    pub(crate) ring_start: U64,
}

/// Blocks 1 and 2, written in turn. The higher generation counts.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct HeaderSlotBytes {
    magic: [u8; 8],
    checksum: U32,
    reserve: U32,
    store: [u8; 16],
    generation: U64,
    incarnation: U64,
    first_group: U64,
    durable_group: U64,
    newest: U64,
    tail_block: U64,
    tail_number: U64,
    tail_lsn: U64,
    tail_incarnation: U64,
    tail_predecessor: U32,
    store_batch: U64,
    ring_blocks: U64,
}

/// What starts every commit group.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct GroupHeader {
    pub(crate) magic: [u8; 8],
    pub(crate) checksum: U32,
    pub(crate) version: U16,
    pub(crate) reserve: U16,
    pub(crate) store: [u8; 16],
    pub(crate) incarnation: U64,
    pub(crate) number: U64,
    pub(crate) durable: U64,
    pub(crate) first: U64,
    pub(crate) predecessor: U32,
    pub(crate) bytes: U32,
    pub(crate) transactions: U32,
    pub(crate) records: U32,
}

pub(crate) const GROUP_HEADER_BYTES: usize = size_of::<GroupHeader>();

const _: () = assert!(size_of::<BufferSuperblock>() == 64);
const _: () = assert!(size_of::<HeaderSlotBytes>() == 124);
const _: () = assert!(GROUP_HEADER_BYTES == 80);

/// A header slot, understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HeaderSlot {
    /// Counts the slots written. Its lowest bit says which of the two blocks it lies in.
    pub(crate) generation: u64,
    /// The newest incarnation begun.
    pub(crate) incarnation: Incarnation,
    /// The first group of that incarnation: no group from here on may be of an earlier one.
    pub(crate) first_group: GroupNo,
    /// No group up to this one can be torn.
    pub(crate) durable_group: GroupNo,
    /// No LSN up to this one may be given out again.
    pub(crate) newest: Lsn,
    /// The oldest group that is needed.
    pub(crate) tail: GroupBoundary,
    /// The store's newest batch when what lies before the tail was let go.
    pub(crate) store_batch: u64,
    /// Where the log lies.
    pub(crate) ring: LogRing,
}

/// The checksum of a structure, over everything but the checksum itself.
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let before = crc32c::crc32c(&bytes[..CHECKSUM.start]);
    crc32c::crc32c_append(before, &bytes[CHECKSUM.end..])
}

/// The checksum that a structure carries.
pub(crate) fn carried_checksum(bytes: &[u8]) -> u32 {
    u32::from_le_bytes(bytes[CHECKSUM].try_into().expect("four bytes"))
}

/// Puts the checksum in its place and returns it.
pub(crate) fn seal(bytes: &mut [u8]) -> u32 {
    let sum = checksum(bytes);
    bytes[CHECKSUM].copy_from_slice(&sum.to_le_bytes());
    sum
}

/// The first bytes of a page as a structure.
pub(crate) fn front<T: FromBytes>(page: &Page) -> T {
    T::read_from_prefix(&page.0).expect("a page is longer than any header").0
}

impl BufferSuperblock {
    /// The superblock of a new buffer.
    pub(crate) fn new(BufferIdentity { store, id }: BufferIdentity) -> BufferSuperblock {
        BufferSuperblock {
            magic: SUPERBLOCK_MAGIC,
            checksum: U32::ZERO,
            version: VERSION.into(),
            id: id.0,
            store: store.0,
            block_bytes: (BLOCK_BYTES as u32).into(),
            medium: MEDIUM_BLOCK.into(),
            reserve: U16::ZERO,
            ring_start: RING_START.0.into(),
        }
    }

    pub(crate) fn identity(&self) -> BufferIdentity {
        BufferIdentity { store: StoreId(self.store), id: BufferId(self.id) }
    }

    pub(crate) fn write_to(&self, page: &mut Page) {
        write_block(self.as_bytes(), page);
    }
}

impl HeaderSlot {
    /// The block that this slot lies in.
    pub(crate) fn block(&self) -> Block {
        Block(1 + self.generation % 2)
    }

    pub(crate) fn write_to(&self, id: StoreId, page: &mut Page) {
        let bytes = HeaderSlotBytes {
            magic: SLOT_MAGIC,
            checksum: U32::ZERO,
            reserve: U32::ZERO,
            store: id.0,
            generation: self.generation.into(),
            incarnation: self.incarnation.0.into(),
            first_group: self.first_group.0.into(),
            durable_group: self.durable_group.0.into(),
            newest: self.newest.0.into(),
            tail_block: self.ring.block(self.tail.position).0.into(),
            tail_number: self.tail.number.0.into(),
            tail_lsn: self.tail.lsn.0.into(),
            tail_incarnation: self.tail.incarnation.0.into(),
            tail_predecessor: self.tail.predecessor.into(),
            store_batch: self.store_batch.into(),
            ring_blocks: self.ring.blocks.into(),
        };
        write_block(bytes.as_bytes(), page);
    }

    /// Reads the slot in block `at`: `None` if it is damaged or of another store.
    pub(crate) fn read_from(page: &Page, at: Block, id: StoreId) -> Option<HeaderSlot> {
        let bytes: HeaderSlotBytes = front(page);
        let slot = HeaderSlot {
            generation: bytes.generation.get(),
            incarnation: Incarnation(bytes.incarnation.get()),
            first_group: GroupNo(bytes.first_group.get()),
            durable_group: GroupNo(bytes.durable_group.get()),
            newest: Lsn(bytes.newest.get()),
            tail: GroupBoundary {
                position: RingPosition(bytes.tail_block.get().checked_sub(RING_START.0)?),
                number: GroupNo(bytes.tail_number.get()),
                lsn: Lsn(bytes.tail_lsn.get()),
                incarnation: Incarnation(bytes.tail_incarnation.get()),
                predecessor: bytes.tail_predecessor.get(),
            },
            store_batch: bytes.store_batch.get(),
            ring: LogRing::with_blocks(bytes.ring_blocks.get()),
        };
        let valid = bytes.magic == SLOT_MAGIC
            && bytes.checksum.get() == checksum(&page.0)
            && bytes.store == id.0
            && slot.block() == at
            && slot.is_valid();
        valid.then_some(slot)
    }
}

impl HeaderSlot {
    /// Whether its numbers can be: a right checksum does not say what made it.
    fn is_valid(&self) -> bool {
        let numbers = [self.generation, self.first_group.0, self.durable_group.0, self.newest.0];
        (RING_BLOCKS_MIN..NUMBER_END).contains(&self.ring.blocks)
            && self.tail.position.0 < self.ring.blocks
            && numbers.iter().all(|&number| number < NUMBER_END)
            && (1..NUMBER_END).contains(&self.tail.number.0)
            && (1..NUMBER_END).contains(&self.tail.lsn.0)
            && self.tail.number <= self.durable_group.next()
    }
}

fn write_block(bytes: &[u8], page: &mut Page) {
    page.0.fill(0);
    page.0[..bytes.len()].copy_from_slice(bytes);
    seal(&mut page.0);
}

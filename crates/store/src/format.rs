//! Parts that all structures on the medium have in common: head, checksum, sizes. `FORMAT.md` describes them.

use device::{BLOCK_BYTES, Block, StoreId};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(crate) use zerocopy::little_endian::{U16, U32, U64};

/// The version of all structures.
pub(crate) const VERSION: u32 = 2;
/// The draft of version 2, which is not released yet. Every change of this format or the buffer's raises it.
/// A store of another draft is refused, except one of [`DRAFT_BEFORE`].
pub(crate) const DRAFT: u32 = 6;
/// The draft in which volume 0 always exists, and is called `main`. The first mount raises it.
pub(crate) const DRAFT_BEFORE: u32 = 5;

/// Pages that a page leaf covers: 20 bytes each leave a third of the node for entries of delta blocks.
pub(crate) const LEAF_PAGES: u64 = 128;
/// Delta blocks in a page leaf: as many as fit with 28 bytes each.
pub(crate) const LEAF_DELTAS: usize = 52;
/// Deltas of a page: with its base, the blocks that a read of it may have to wait for.
pub(crate) const PAGE_DELTAS: usize = 8;
/// Slots that an object leaf covers: as many as fit with four inline extents each.
pub(crate) const LEAF_OBJECTS: u64 = 16;
/// Volumes that a volume leaf covers: as many as fit with a name of 127 bytes each.
pub(crate) const LEAF_VOLUMES: u64 = 16;
/// Children of an inner node: a power of two; they fill half a node.
pub(crate) const INNER_CHILDREN: u64 = 256;
/// Nodes that a page of the node table covers: 16 bytes each after its head.
pub(crate) const TABLE_NODES: u64 = 252;
/// Blocks for which a segment summary names the owners: 40 bytes each after its head.
pub(crate) const SUMMARY_BLOCKS_MAX: u64 = 100;

pub(crate) const SUPERBLOCK: Block = Block(0);
/// The two checkpoint roots.
pub(crate) const ROOTS: [Block; 2] = [Block(1), Block(2)];
/// Where the first segment starts.
pub(crate) const SEGMENTS_AT: u64 = 3;

pub(crate) type MagicBytes = [u8; 8];
pub(crate) const MAGIC_SUPERBLOCK: MagicBytes = *b"weir.sup";
pub(crate) const MAGIC_ROOT: MagicBytes = *b"weir.cpr";
pub(crate) const MAGIC_CHUNK: MagicBytes = *b"weir.log";
pub(crate) const MAGIC_NODE: MagicBytes = *b"weir.nod";
pub(crate) const MAGIC_TABLE: MagicBytes = *b"weir.tab";
pub(crate) const MAGIC_OWNERS: MagicBytes = *b"weir.own";
pub(crate) const MAGIC_DELTAS: MagicBytes = *b"weir.dlt";

/// The first bytes of every structure except data blocks and the tables' stream.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct StructureHead {
    pub(crate) magic: MagicBytes,
    pub(crate) version: U32,
    /// CRC32C of the whole structure, these four bytes taken as zeros.
    pub(crate) crc: U32,
    pub(crate) store: [u8; 16],
}

const _: () = assert!(size_of::<StructureHead>() == 32);

/// Where the checksum lies in every head.
const CRC_AT: std::ops::Range<usize> = 12..16;

impl StructureHead {
    pub(crate) fn new(magic: MagicBytes, store: StoreId) -> StructureHead {
        StructureHead { magic, version: VERSION.into(), crc: 0.into(), store: store.0 }
    }
}

/// The checksum of a structure that begins with a [`StructureHead`].
pub(crate) fn checksum(bytes: &[u8]) -> u32 {
    let before = crc32c::crc32c(&bytes[..CRC_AT.start]);
    let around = crc32c::crc32c_append(before, &[0; 4]);
    crc32c::crc32c_append(around, &bytes[CRC_AT.end..])
}

/// Writes the checksum into the head of a finished structure, and returns it.
pub(crate) fn seal(bytes: &mut [u8]) -> u32 {
    let crc = checksum(bytes);
    bytes[CRC_AT].copy_from_slice(&crc.to_le_bytes());
    crc
}

/// The head of `bytes` if it is a whole structure of this kind, version and store.
pub(crate) fn verify_head(bytes: &[u8], magic: MagicBytes, store: StoreId) -> Option<StructureHead> {
    let (head, _) = StructureHead::read_from_prefix(bytes).ok()?;
    let ours = head.magic == magic && head.store == store.0 && head.version.get() == VERSION;
    (ours && head.crc.get() == checksum(bytes)).then_some(head)
}

/// A place as it is on the medium: a block's number. 0 is no place, as block 0 is the superblock.
pub(crate) fn place_to_bits(place: Block) -> u64 {
    assert!(place.0 < 1 << 48, "a block's number has 48 bits");
    place.0
}

/// The block of a place; `None` if it has more than 48 bits.
pub(crate) fn place_from_bits(bits: u64) -> Option<Block> {
    (bits < 1 << 48).then_some(Block(bits))
}

/// Bytes in the tables' stream: of its head, and of each page of the node table, segment and dying node.
pub(crate) const STREAM_HEAD_BYTES: usize = 64;
pub(crate) const DIRECTORY_BYTES: usize = 16;
pub(crate) const SEGMENT_BYTES: usize = 12;
pub(crate) const DYING_BYTES: usize = 8;

/// The blocks that `bytes` bytes need.
pub(crate) fn blocks_for(bytes: usize) -> usize {
    bytes.div_ceil(BLOCK_BYTES)
}

//! Log entries, and the encoding of chunks. A chunk of the log is a head, its log entries, then the data
//! blocks that they name.

use crate::format::*;
use crate::volume::{VolumeId, VolumeMode};
use device::{
    BLOCK_BYTES, Block, Incarnation, Lsn, ObjectId, Page, PageNo, PageTransfer, StoreId, TransferKind,
};
use smallvec::{SmallVec, smallvec};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A change of the map, as it is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogEntry {
    Write {
        object: ObjectId,
        page: PageNo,
        page_lsn: Lsn,
        place: Block,
        /// The place of the block's copy, if the object is metadata. Block and copy then lie in mirrored
        /// segments, and not in the chunk.
        copy: Option<Block>,
        crc: u32,
    },
    /// A delta block.
    Deltas {
        object: ObjectId,
        /// The leaf's first page.
        first: PageNo,
        /// The leaf's pages for which the block has deltas, one bit each.
        pages: u128,
        /// The highest LSN of the deltas.
        page_lsn: Lsn,
        place: Block,
        crc: u32,
    },
    Punch {
        object: ObjectId,
        pages: Range<PageNo>,
        lsn: Lsn,
    },
    Delete {
        object: ObjectId,
        lsn: Lsn,
    },
    Transfer {
        transfer: PageTransfer,
        lsn: Lsn,
    },
    CreateVolume {
        volume: VolumeId,
        mode: VolumeMode,
        lsn: Lsn,
        /// Time in nanoseconds since 1970.
        created: u64,
        /// The bytes of a block device; 0 for a file system.
        size: u64,
    },
    CloneVolume {
        from: VolumeId,
        to: VolumeId,
        mode: VolumeMode,
        lsn: Lsn,
        /// Time in nanoseconds since 1970.
        created: u64,
    },
    /// A part of a volume's name. The parts are in one batch, in order.
    NameVolume {
        volume: VolumeId,
        part: Vec<u8>,
        /// Whether the name begins here: the volume loses the name that it has.
        begins: bool,
    },
    DeleteVolume {
        volume: VolumeId,
        lsn: Lsn,
    },
}

impl LogEntry {
    /// The entry of a page to be written, without the places of its block and its copy.
    pub(crate) fn write(object: ObjectId, page: PageNo, bytes: &Page, page_lsn: Lsn) -> LogEntry {
        let crc = crc32c::crc32c(&bytes.0);
        LogEntry::Write { object, page, page_lsn, place: Block(0), copy: None, crc }
    }

    /// The highest LSN of the change.
    pub(crate) fn lsn(&self) -> Lsn {
        match self {
            LogEntry::Write { page_lsn, .. } | LogEntry::Deltas { page_lsn, .. } => *page_lsn,
            LogEntry::NameVolume { .. } => Lsn(0),
            LogEntry::Punch { lsn, .. }
            | LogEntry::Delete { lsn, .. }
            | LogEntry::Transfer { lsn, .. }
            | LogEntry::CreateVolume { lsn, .. }
            | LogEntry::CloneVolume { lsn, .. }
            | LogEntry::DeleteVolume { lsn, .. } => *lsn,
        }
    }

    /// Whether a data block in the chunk belongs to the entry.
    pub(crate) fn has_data(&self) -> bool {
        self.own_block().is_some()
    }

    /// The data block in the chunk, and its checksum.
    pub(crate) fn own_block(&self) -> Option<(Block, u32)> {
        match *self {
            LogEntry::Write { object, place, crc, .. } if !object.is_metadata() => Some((place, crc)),
            LogEntry::Deltas { place, crc, .. } => Some((place, crc)),
            _ => None,
        }
    }

    /// Sets the place of the data block in the chunk.
    pub(crate) fn set_own_block(&mut self, at: Block) {
        if let LogEntry::Write { place, .. } | LogEntry::Deltas { place, .. } = self {
            *place = at;
        }
    }

    /// Whether a mirrored block belongs to the entry.
    pub(crate) fn is_mirrored(&self) -> bool {
        matches!(self, LogEntry::Write { object, .. } if object.is_metadata())
    }

    /// The mirrored block of the entry: its place, its copy, its checksum.
    pub(crate) fn mirrored_block(&self) -> Option<MirroredBlock> {
        match *self {
            LogEntry::Write { place: at, copy: Some(copy), crc, .. } => Some(MirroredBlock { at, copy, crc }),
            _ => None,
        }
    }

    /// Whether the entry can only free space.
    pub(crate) fn frees(&self) -> bool {
        matches!(self, LogEntry::Punch { .. } | LogEntry::Delete { .. })
    }

    /// The pages that a clone or a move transfers.
    pub(crate) fn transfer(&self) -> Option<&PageTransfer> {
        match self {
            LogEntry::Transfer { transfer, .. } => Some(transfer),
            _ => None,
        }
    }

    /// The objects whose content the entry changes. The source of a clone only becomes shared.
    pub(crate) fn changed_objects(&self) -> SmallVec<[ObjectId; 2]> {
        match *self {
            LogEntry::Write { object, .. }
            | LogEntry::Deltas { object, .. }
            | LogEntry::Punch { object, .. }
            | LogEntry::Delete { object, .. } => smallvec![object],
            LogEntry::Transfer { transfer: PageTransfer { kind, from, to, .. }, .. } => match kind {
                TransferKind::Clone => smallvec![to],
                TransferKind::Move => smallvec![from, to],
            },
            LogEntry::CreateVolume { .. }
            | LogEntry::CloneVolume { .. }
            | LogEntry::NameVolume { .. }
            | LogEntry::DeleteVolume { .. } => smallvec![],
        }
    }

    /// The volumes whose trees the entry changes.
    pub(crate) fn changed_volumes(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let (one, other) = match self {
            LogEntry::Write { object, .. }
            | LogEntry::Deltas { object, .. }
            | LogEntry::Punch { object, .. }
            | LogEntry::Delete { object, .. } => (object.volume, None),
            LogEntry::Transfer { transfer, .. } => (transfer.from.volume, Some(transfer.to.volume)),
            LogEntry::CloneVolume { to, .. } => (*to, None),
            LogEntry::CreateVolume { volume, .. }
            | LogEntry::NameVolume { volume, .. }
            | LogEntry::DeleteVolume { volume, .. } => (*volume, None),
        };
        std::iter::once(one).chain(other)
    }
}

/// Whether the buffer has, or had, records of the changes in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BatchOrigin {
    /// It has. A buffer that ends before their LSNs is an older copy.
    Logged,
    /// It never had any.
    Bypassed,
}

/// A data block with a copy, in mirrored segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MirroredBlock {
    pub(crate) at: Block,
    pub(crate) copy: Block,
    pub(crate) crc: u32,
}

impl MirroredBlock {
    /// Whether a page has the bytes that were written to both.
    pub(crate) fn is(&self, page: &Page) -> bool {
        crc32c::crc32c(&page.0) == self.crc
    }
}

/// The head of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub(crate) incarnation: Incarnation,
    /// The chunk's number.
    pub(crate) chunk: u64,
    /// The number of its batch.
    pub(crate) batch: u64,
    /// The last batch that was known to be durable when this chunk was written. If that batch is bad, it has
    /// rotted.
    pub(crate) durable_batch: u64,
    /// The checksum of the chunk before.
    pub(crate) chain_crc: u32,
    /// The segment in which the log continues.
    pub(crate) next_segment: u32,
    /// Whether the batch ends here. A batch without an end was never completed.
    pub(crate) is_last: bool,
    pub(crate) origin: BatchOrigin,
    pub(crate) entry_blocks: u64,
    /// Blocks after the log entries: the chunk index and pages.
    pub(crate) data_blocks: u64,
    /// The first of these blocks hold the chunk index.
    pub(crate) index_blocks: u64,
    pub(crate) entries: usize,
}

/// Data blocks of a chunk at most: 4 MiB, beyond which a larger write gains nothing. Together with
/// [`CHUNK_ENTRIES_MAX`] it bounds how far recovery looks for a later chunk.
pub(crate) const CHUNK_DATA_BLOCKS_MAX: usize = 1024;
/// Log entries of a chunk at most.
pub(crate) const CHUNK_ENTRIES_MAX: usize = 2048;
/// Blocks of a chunk at most.
pub(crate) const CHUNK_BLOCKS_MAX: u64 = (entry_blocks(CHUNK_ENTRIES_MAX) + CHUNK_DATA_BLOCKS_MAX) as u64;

const KIND_VECTOR: u16 = 1;
const FLAG_LAST: u16 = 1;
const FLAG_BYPASSED: u16 = 2;

const WRITE: u8 = 1;
const PUNCH: u8 = 2;
const DELETE: u8 = 3;
const CLONE: u8 = 4;
const MOVE: u8 = 5;
const CLONE_VOLUME: u8 = 6;
const DELETE_VOLUME: u8 = 7;
const NAME_VOLUME: u8 = 8;
const DELTAS: u8 = 9;
const CREATE_VOLUME: u8 = 10;

/// Bytes of a volume's name that fit into a log entry.
pub(crate) const NAME_PART_BYTES: usize = 64;

/// In a log entry of a new volume or of a clone: it is read-only.
const READ_ONLY: u32 = 1;

/// In a log entry of a name: the name begins here.
const NAME_BEGINS: u8 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChunkBytes {
    head: StructureHead,
    kind: U16,
    flags: U16,
    entry_blocks: U32,
    data_blocks: U32,
    entries: U32,
    incarnation: U64,
    chunk: U64,
    batch: U64,
    durable: U64,
    chain: U32,
    next: U32,
    index_blocks: U32,
    reserved: U32,
}

#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct LogEntryBytes {
    kind: u8,
    reserved: [u8; 3],
    crc: U32,
    volume: U32,
    generation: U32,
    slot: U64,
    page: U64,
    lsn: U64,
    /// Page after the last; or a place, or a time.
    other: U64,
    volume_to: U32,
    generation_to: U32,
    /// Target's slot; or the place of a copy, bits of a leaf's pages (low half), or a size.
    slot_to: U64,
    /// Target's first page; or bits of a leaf's pages (high half).
    at: U64,
}

const HEAD_BYTES: usize = size_of::<ChunkBytes>();
const ENTRY_BYTES: usize = size_of::<LogEntryBytes>();
const _: () = assert!(HEAD_BYTES == 96 && ENTRY_BYTES == 72);

/// Bytes of a head with `entries` log entries.
pub(crate) const fn head_bytes(entries: usize) -> usize {
    HEAD_BYTES + entries * ENTRY_BYTES
}

/// Blocks of a head with `entries` log entries.
pub(crate) const fn entry_blocks(entries: usize) -> usize {
    head_bytes(entries).div_ceil(BLOCK_BYTES)
}

fn chunk_flags(head: &ChunkHead) -> u16 {
    let bypassed = if head.origin == BatchOrigin::Bypassed { FLAG_BYPASSED } else { 0 };
    bypassed | if head.is_last { FLAG_LAST } else { 0 }
}

/// Encodes the head and the log entries of a chunk. `into` has `head.entry_blocks` zeroed blocks. Returns the
/// checksum.
pub(crate) fn encode_chunk(head: &ChunkHead, entries: &[LogEntry], store: StoreId, into: &mut [Page]) -> u32 {
    assert_eq!(into.len() as u64, head.entry_blocks, "space for the entries and no more");
    let bytes = Page::bytes_mut(into);
    let header = ChunkBytes {
        head: StructureHead::new(MAGIC_CHUNK, store),
        kind: KIND_VECTOR.into(),
        flags: chunk_flags(head).into(),
        entry_blocks: (head.entry_blocks as u32).into(),
        data_blocks: (head.data_blocks as u32).into(),
        entries: (head.entries as u32).into(),
        incarnation: head.incarnation.0.into(),
        chunk: head.chunk.into(),
        batch: head.batch.into(),
        durable: head.durable_batch.into(),
        chain: head.chain_crc.into(),
        next: head.next_segment.into(),
        index_blocks: (head.index_blocks as u32).into(),
        reserved: 0.into(),
    };
    header.write_to_prefix(bytes).expect("smaller than a page");
    for (entry, bytes) in entries.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        encode_entry(entry).write_to(bytes).expect("exactly as long");
    }
    seal(bytes)
}

/// How many blocks of head and log entries a block claims to begin; `None` if it is no chunk of this store at
/// all.
pub(crate) fn claimed_entry_blocks(first: &Page, store: StoreId) -> Option<u64> {
    let (bytes, _) = ChunkBytes::read_from_prefix(&first.0).expect("smaller than a page");
    let ours = bytes.head.magic == MAGIC_CHUNK && bytes.head.store == store.0;
    let blocks = u64::from(bytes.entry_blocks.get());
    (ours && (1..=entry_blocks(CHUNK_ENTRIES_MAX) as u64).contains(&blocks)).then_some(blocks)
}

/// The chunk whose head and log entries are `pages`, and its checksum; `None` if it is torn or damaged.
pub(crate) fn decode_chunk(pages: &[Page], store: StoreId) -> Option<(ChunkHead, Vec<LogEntry>, u32)> {
    let bytes = Page::bytes(pages);
    let sealed = verify_head(bytes, MAGIC_CHUNK, store)?;
    let (header, rest) = ChunkBytes::read_from_prefix(bytes).ok()?;
    let count = header.entries.get() as usize;
    let fits = header.kind.get() == KIND_VECTOR
        && count <= CHUNK_ENTRIES_MAX
        && entry_blocks(count) == pages.len()
        && header.data_blocks.get() as usize <= CHUNK_DATA_BLOCKS_MAX
        && header.index_blocks.get() <= header.data_blocks.get();
    if !fits {
        return None;
    }
    let entries = rest.chunks_exact(ENTRY_BYTES).take(count).map(decode_entry).collect::<Option<Vec<_>>>()?;
    let head = ChunkHead {
        incarnation: Incarnation(header.incarnation.get()),
        chunk: header.chunk.get(),
        batch: header.batch.get(),
        durable_batch: header.durable.get(),
        chain_crc: header.chain.get(),
        next_segment: header.next.get(),
        is_last: header.flags.get() & FLAG_LAST != 0,
        origin: if header.flags.get() & FLAG_BYPASSED != 0 {
            BatchOrigin::Bypassed
        } else {
            BatchOrigin::Logged
        },
        entry_blocks: pages.len() as u64,
        data_blocks: u64::from(header.data_blocks.get()),
        index_blocks: u64::from(header.index_blocks.get()),
        entries: count,
    };
    Some((head, entries, sealed.crc.get()))
}

fn encode_entry(entry: &LogEntry) -> LogEntryBytes {
    let of = |kind, object: ObjectId, lsn: Lsn| LogEntryBytes {
        kind,
        volume: object.volume.0.into(),
        generation: object.generation.into(),
        slot: object.slot.into(),
        lsn: lsn.0.into(),
        ..LogEntryBytes::default()
    };
    match entry {
        LogEntry::Write { object, page, page_lsn, place, copy, crc } => LogEntryBytes {
            page: page.0.into(),
            other: place_to_bits(*place).into(),
            slot_to: copy.map_or(0, place_to_bits).into(),
            crc: (*crc).into(),
            ..of(WRITE, *object, *page_lsn)
        },
        LogEntry::Deltas { object, first, pages, page_lsn, place, crc } => LogEntryBytes {
            page: first.0.into(),
            other: place_to_bits(*place).into(),
            slot_to: (*pages as u64).into(),
            at: ((pages >> 64) as u64).into(),
            crc: (*crc).into(),
            ..of(DELTAS, *object, *page_lsn)
        },
        LogEntry::Punch { object, pages, lsn } => LogEntryBytes {
            page: pages.start.0.into(),
            other: pages.end.0.into(),
            ..of(PUNCH, *object, *lsn)
        },
        LogEntry::Delete { object, lsn } => of(DELETE, *object, *lsn),
        LogEntry::Transfer { transfer: PageTransfer { kind, from, first, end, to, at }, lsn } => {
            let kind = match kind {
                TransferKind::Clone => CLONE,
                TransferKind::Move => MOVE,
            };
            LogEntryBytes {
                page: first.0.into(),
                other: end.0.into(),
                volume_to: to.volume.0.into(),
                generation_to: to.generation.into(),
                slot_to: to.slot.into(),
                at: at.0.into(),
                ..of(kind, *from, *lsn)
            }
        }
        LogEntry::CreateVolume { volume, mode, lsn, created, size } => LogEntryBytes {
            other: (*created).into(),
            generation_to: mode_to_bits(*mode).into(),
            slot_to: (*size).into(),
            ..of(CREATE_VOLUME, volume.object(0, 0), *lsn)
        },
        LogEntry::CloneVolume { from, to, mode, lsn, created } => LogEntryBytes {
            volume_to: to.0.into(),
            other: (*created).into(),
            generation_to: mode_to_bits(*mode).into(),
            ..of(CLONE_VOLUME, from.object(0, 0), *lsn)
        },
        LogEntry::DeleteVolume { volume, lsn } => of(DELETE_VOLUME, volume.object(0, 0), *lsn),
        LogEntry::NameVolume { volume, part, begins } => encode_name(*volume, part, *begins),
    }
}

fn mode_to_bits(mode: VolumeMode) -> u32 {
    if mode == VolumeMode::ReadOnly { READ_ONLY } else { 0 }
}

fn mode_from_bits(bits: u32) -> Option<VolumeMode> {
    match bits {
        0 => Some(VolumeMode::Writable),
        READ_ONLY => Some(VolumeMode::ReadOnly),
        _ => None,
    }
}

fn encode_name(volume: VolumeId, part: &[u8], begins: bool) -> LogEntryBytes {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[0] = NAME_VOLUME;
    bytes[1] = part.len() as u8;
    bytes[2] = if begins { NAME_BEGINS } else { 0 };
    bytes[4..8].copy_from_slice(&volume.0.to_le_bytes());
    bytes[8..8 + part.len()].copy_from_slice(part);
    LogEntryBytes::read_from_bytes(&bytes).expect("exactly as long")
}

fn decode_name(bytes: &[u8]) -> Option<LogEntry> {
    let part = bytes[8..].get(..usize::from(bytes[1]))?.to_vec();
    let volume = VolumeId(u32::from_le_bytes(bytes[4..8].try_into().ok()?));
    Some(LogEntry::NameVolume { volume, part, begins: bytes[2] == NAME_BEGINS })
}

fn decode_entry(bytes: &[u8]) -> Option<LogEntry> {
    if bytes[0] == NAME_VOLUME {
        return decode_name(bytes);
    }
    let bytes = LogEntryBytes::read_from_bytes(bytes).ok()?;
    let volume = VolumeId(bytes.volume.get());
    let object = volume.object(bytes.slot.get(), bytes.generation.get());
    let page = PageNo(bytes.page.get());
    let other = bytes.other.get();
    let lsn = Lsn(bytes.lsn.get());
    let volume_to = VolumeId(bytes.volume_to.get());
    Some(match bytes.kind {
        WRITE => {
            let place = place_from_bits(other)?;
            let crc = bytes.crc.get();
            let copy = Some(place_from_bits(bytes.slot_to.get())?).filter(|&copy| copy != Block(0));
            if copy.is_some() != object.is_metadata() {
                return None;
            }
            LogEntry::Write { object, page, page_lsn: lsn, place, copy, crc }
        }
        DELTAS => {
            let pages = u128::from(bytes.at.get()) << 64 | u128::from(bytes.slot_to.get());
            if object.is_metadata() || pages == 0 || !page.0.is_multiple_of(LEAF_PAGES) {
                return None;
            }
            let place = place_from_bits(other)?;
            let crc = bytes.crc.get();
            LogEntry::Deltas { object, first: page, pages, page_lsn: lsn, place, crc }
        }
        PUNCH => LogEntry::Punch { object, pages: page..PageNo(other), lsn },
        DELETE => LogEntry::Delete { object, lsn },
        CLONE | MOVE => {
            let to = volume_to.object(bytes.slot_to.get(), bytes.generation_to.get());
            let end = PageNo(other);
            let at = PageNo(bytes.at.get());
            let kind = if bytes.kind == CLONE { TransferKind::Clone } else { TransferKind::Move };
            let transfer = PageTransfer { kind, from: object, first: page, end, to, at };
            if !transfer.is_valid() {
                return None;
            }
            LogEntry::Transfer { transfer, lsn }
        }
        CREATE_VOLUME => {
            let mode = mode_from_bits(bytes.generation_to.get())?;
            LogEntry::CreateVolume { volume, mode, lsn, created: other, size: bytes.slot_to.get() }
        }
        CLONE_VOLUME => {
            let mode = mode_from_bits(bytes.generation_to.get())?;
            LogEntry::CloneVolume { from: volume, to: volume_to, mode, lsn, created: other }
        }
        DELETE_VOLUME => LogEntry::DeleteVolume { volume, lsn },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunk_reads_back() {
        let store = StoreId([7; 16]);
        let object = VolumeId::MAIN.object(5, 6);
        let entries = vec![
            LogEntry::Write {
                object,
                page: PageNo(9),
                page_lsn: Lsn(8),
                place: Block(77),
                copy: None,
                crc: 0xfeed,
            },
            LogEntry::Write {
                object: VolumeId(4).object(0, 1),
                page: PageNo(9),
                page_lsn: Lsn(8),
                place: Block(77),
                copy: Some(Block(99)),
                crc: 0xfeed,
            },
            LogEntry::Punch { object, pages: PageNo(1)..PageNo(u64::MAX), lsn: Lsn(11) },
            LogEntry::Delete { object, lsn: Lsn(12) },
            LogEntry::Transfer {
                transfer: PageTransfer::clone_of(object, VolumeId::MAIN.object(1, 2)),
                lsn: Lsn(13),
            },
            LogEntry::Transfer {
                transfer: PageTransfer {
                    kind: TransferKind::Move,
                    from: object,
                    first: PageNo(4),
                    end: PageNo(6),
                    to: object,
                    at: PageNo(6),
                },
                lsn: Lsn(17),
            },
            LogEntry::CloneVolume {
                from: VolumeId(3),
                to: VolumeId(9),
                mode: VolumeMode::ReadOnly,
                lsn: Lsn(14),
                created: 16,
            },
            LogEntry::NameVolume { volume: VolumeId(9), part: vec![b'n'; NAME_PART_BYTES], begins: true },
            LogEntry::NameVolume { volume: VolumeId(9), part: b"a name".to_vec(), begins: false },
            LogEntry::CreateVolume {
                volume: VolumeId(10),
                mode: VolumeMode::Writable,
                lsn: Lsn(18),
                created: 19,
                size: 1 << 40,
            },
            LogEntry::DeleteVolume { volume: VolumeId(9), lsn: Lsn(15) },
        ];
        let head = ChunkHead {
            incarnation: Incarnation(3),
            chunk: 10,
            batch: 4,
            durable_batch: 3,
            chain_crc: 99,
            next_segment: 12,
            is_last: true,
            origin: BatchOrigin::Bypassed,
            entry_blocks: 1,
            data_blocks: 5,
            index_blocks: 4,
            entries: entries.len(),
        };
        let mut pages = device::pages(1);
        let whole = Some((head, entries.clone(), encode_chunk(&head, &entries, store, &mut pages)));
        assert_eq!((claimed_entry_blocks(&pages[0], store), decode_chunk(&pages, store)), (Some(1), whole));
        assert_eq!(decode_chunk(&pages, StoreId([8; 16])), None, "a chunk of another store");
        let more = ChunkHead { data_blocks: 3, ..head };
        encode_chunk(&more, &entries, store, &mut pages);
        assert_eq!(decode_chunk(&pages, store), None, "more copies than blocks");
        pages[0] = Page::ZERO;
        encode_chunk(&head, &entries, store, &mut pages);
        pages[0].0[200] ^= 1;
        assert_eq!(decode_chunk(&pages, store), None, "a damaged chunk");
    }

    #[test]
    fn only_metadata_has_a_copy() {
        let store = StoreId([7; 16]);
        for (slot, copy, sound) in
            [(0, None, false), (0, Some(9), true), (1, Some(9), false), (1, None, true)]
        {
            let object = VolumeId::MAIN.object(slot, 1);
            let copy = copy.map(Block);
            let page = PageNo(1);
            let page_lsn = Lsn(1);
            let place = Block(77);
            let entry = LogEntry::Write { object, page, page_lsn, place, copy, crc: 1 };
            let head = ChunkHead {
                incarnation: Incarnation(3),
                chunk: 10,
                batch: 4,
                durable_batch: 3,
                chain_crc: 99,
                next_segment: 12,
                is_last: true,
                origin: BatchOrigin::Logged,
                entry_blocks: 1,
                data_blocks: 0,
                index_blocks: 0,
                entries: 1,
            };
            let mut pages = device::pages(1);
            encode_chunk(&head, &[entry], store, &mut pages);
            assert_eq!(decode_chunk(&pages, store).is_some(), sound, "slot {slot}, copy {copy:?}");
        }
    }
}

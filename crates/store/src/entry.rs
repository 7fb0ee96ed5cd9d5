//! Log entries: what the log says about the map. A chunk of the log is a header, its log entries, then the data blocks that
//! they name.

use crate::format::*;
use crate::volume::{VolumeId, VolumeMode};
use device::{BLOCK_BYTES, Block, Incarnation, Lsn, ObjectId, Page, PageNo, PageTransfer, StoreId};
use std::ops::Range;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// One change of the map, as the log tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LogEntry {
    Write {
        object: ObjectId,
        page: PageNo,
        page_lsn: Lsn,
        place: Block,
        /// Where the block's copy lies, if the object is metadata: then both lie in a pair of segments, and not in the chunk.
        copy: Option<Block>,
        crc: u32,
    },
    /// A block of deltas of pages in one leaf.
    Deltas {
        object: ObjectId,
        /// The leaf's first page.
        first: PageNo,
        /// The leaf's pages of which it has some, by bits.
        pages: u128,
        /// The highest of those pages' LSNs.
        page_lsn: Lsn,
        place: Block,
        crc: u32,
    },
    Cut {
        object: ObjectId,
        pages: Range<PageNo>,
        lsn: Lsn,
    },
    Delete {
        object: ObjectId,
        lsn: Lsn,
    },
    Clone {
        transfer: PageTransfer,
        lsn: Lsn,
    },
    Move {
        transfer: PageTransfer,
        lsn: Lsn,
    },
    CloneVolume {
        from: VolumeId,
        to: VolumeId,
        mode: VolumeMode,
        lsn: Lsn,
        /// When, in nanoseconds since 1970.
        created: u64,
    },
    /// A part of a volume's name; the parts come in order, behind its clone's log entry.
    NameVolume {
        volume: VolumeId,
        part: Vec<u8>,
    },
    DeleteVolume {
        volume: VolumeId,
        lsn: Lsn,
    },
}

impl LogEntry {
    /// The highest LSN that it tells of.
    pub(crate) fn lsn(&self) -> Lsn {
        match self {
            LogEntry::Write { page_lsn, .. } | LogEntry::Deltas { page_lsn, .. } => *page_lsn,
            LogEntry::NameVolume { .. } => Lsn(0),
            LogEntry::Cut { lsn, .. }
            | LogEntry::Delete { lsn, .. }
            | LogEntry::Clone { lsn, .. }
            | LogEntry::Move { lsn, .. }
            | LogEntry::CloneVolume { lsn, .. }
            | LogEntry::DeleteVolume { lsn, .. } => *lsn,
        }
    }

    /// Whether the chunk has a block that belongs to it.
    pub(crate) fn has_data(&self) -> bool {
        self.own_block().is_some()
    }

    /// The block in the chunk that belongs to it, and its checksum.
    pub(crate) fn own_block(&self) -> Option<(Block, u32)> {
        match *self {
            LogEntry::Write { object, place, crc, .. } if !object.is_metadata() => Some((place, crc)),
            LogEntry::Deltas { place, crc, .. } => Some((place, crc)),
            _ => None,
        }
    }

    /// Its own block lies here.
    pub(crate) fn set_own_block(&mut self, at: Block) {
        if let LogEntry::Write { place, .. } | LogEntry::Deltas { place, .. } = self {
            *place = at;
        }
    }

    /// Whether a block belongs to it that is written twice, in a pair of segments.
    pub(crate) fn is_paired(&self) -> bool {
        matches!(self, LogEntry::Write { object, .. } if object.is_metadata())
    }

    /// Where its block and the copy lie that are in a pair of segments.
    pub(crate) fn paired(&self) -> Option<Paired> {
        match *self {
            LogEntry::Write { place: at, copy: Some(copy), crc, .. } => Some(Paired { at, copy, crc }),
            _ => None,
        }
    }

    /// The volumes that it changes.
    pub(crate) fn changed_volumes(&self) -> impl Iterator<Item = VolumeId> + use<> {
        let (one, other) = match self {
            LogEntry::Write { object, .. }
            | LogEntry::Deltas { object, .. }
            | LogEntry::Cut { object, .. }
            | LogEntry::Delete { object, .. } => (object.volume, None),
            LogEntry::Clone { transfer, .. } | LogEntry::Move { transfer, .. } => {
                (transfer.from.volume, Some(transfer.to.volume))
            }
            LogEntry::CloneVolume { to, .. } => (*to, None),
            LogEntry::NameVolume { volume, .. } | LogEntry::DeleteVolume { volume, .. } => (*volume, None),
        };
        std::iter::once(one).chain(other)
    }
}

/// Whether the buffer has, or had, records of the changes in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It has: a buffer that ends before their LSNs is an older copy.
    Logged,
    /// It has none: they went past it.
    Bypassed,
}

/// A block of data that is there twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Paired {
    pub(crate) at: Block,
    pub(crate) copy: Block,
    pub(crate) crc: u32,
}

impl Paired {
    /// Whether a page is what was written to both.
    pub(crate) fn is(&self, page: &Page) -> bool {
        crc32c::crc32c(&page.0) == self.crc
    }
}

/// A chunk's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkHead {
    pub(crate) incarnation: Incarnation,
    /// The chunk's own number.
    pub(crate) chunk: u64,
    /// The batch of which it is a part.
    pub(crate) batch: u64,
    /// The last batch that was durable when this chunk was written: if that one is bad, it is rot.
    pub(crate) durable: u64,
    /// The checksum of the chunk before it.
    pub(crate) chain: u32,
    /// Where the log goes on after this segment.
    pub(crate) next: u32,
    /// Whether the batch ends here. A batch without an end never happened.
    pub(crate) last: bool,
    pub(crate) origin: Origin,
    pub(crate) entry_blocks: u64,
    /// Blocks behind the log entries: copies and pages.
    pub(crate) data_blocks: u64,
    /// Of these the first are copies of the heads of the stretch before.
    pub(crate) copy_blocks: u64,
    pub(crate) entries: usize,
}

/// Data blocks in a chunk: 4 MiB, past which a larger write gains nothing. With [`ENTRIES_MAX`] it bounds how far
/// recovery looks for a later chunk.
pub(crate) const DATA_MAX: usize = 1024;
/// Log entries in a chunk.
pub(crate) const ENTRIES_MAX: usize = 2048;
/// Blocks in a chunk.
pub(crate) const CHUNK_BLOCKS_MAX: u64 = (entry_blocks(ENTRIES_MAX) + DATA_MAX) as u64;

const KIND_VECTOR: u16 = 1;
const FLAG_LAST: u16 = 1;
const FLAG_BYPASSED: u16 = 2;

const WRITE: u8 = 1;
const CUT: u8 = 2;
const DELETE: u8 = 3;
const CLONE: u8 = 4;
const MOVE: u8 = 5;
const CLONE_VOLUME: u8 = 6;
const DELETE_VOLUME: u8 = 7;
const NAME_VOLUME: u8 = 8;
const DELTAS: u8 = 9;

/// Bytes of a name in a log entry.
pub(crate) const NAME_PART: usize = 64;

/// In a clone's log entry: it may not be changed.
const READ_ONLY: u32 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct ChunkBytes {
    head: Head,
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
    copy_blocks: U32,
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
    /// The page after the last, or a place, or a time.
    other: U64,
    volume_to: U32,
    generation_to: U32,
    /// Or where a block's copy lies, or the first of a leaf's pages by bits.
    slot_to: U64,
    /// Or the others.
    at: U64,
}

const HEAD_BYTES: usize = size_of::<ChunkBytes>();
const ENTRY_BYTES: usize = size_of::<LogEntryBytes>();
const _: () = assert!(HEAD_BYTES == 96 && ENTRY_BYTES == 72);

/// The bytes of a header and `entries` log entries.
pub(crate) const fn head_bytes(entries: usize) -> usize {
    HEAD_BYTES + entries * ENTRY_BYTES
}

/// The blocks that they need.
pub(crate) const fn entry_blocks(entries: usize) -> usize {
    head_bytes(entries).div_ceil(BLOCK_BYTES)
}

fn flags(head: &ChunkHead) -> u16 {
    let bypassed = if head.origin == Origin::Bypassed { FLAG_BYPASSED } else { 0 };
    bypassed | if head.last { FLAG_LAST } else { 0 }
}

/// Fills `into`, as many zeroed blocks as `head.entry_blocks`, with the chunk's header and log entries. Returns its
/// checksum.
pub(crate) fn encode_chunk(head: &ChunkHead, entries: &[LogEntry], store: StoreId, into: &mut [Page]) -> u32 {
    assert_eq!(into.len() as u64, head.entry_blocks, "space for the entries and no more");
    let bytes = Page::bytes_mut(into);
    let header = ChunkBytes {
        head: Head::new(MAGIC_CHUNK, store),
        kind: KIND_VECTOR.into(),
        flags: flags(head).into(),
        entry_blocks: (head.entry_blocks as u32).into(),
        data_blocks: (head.data_blocks as u32).into(),
        entries: (head.entries as u32).into(),
        incarnation: head.incarnation.0.into(),
        chunk: head.chunk.into(),
        batch: head.batch.into(),
        durable: head.durable.into(),
        chain: head.chain.into(),
        next: head.next.into(),
        copy_blocks: (head.copy_blocks as u32).into(),
        reserved: 0.into(),
    };
    header.write_to_prefix(bytes).expect("smaller than a page");
    for (entry, bytes) in entries.iter().zip(bytes[HEAD_BYTES..].chunks_exact_mut(ENTRY_BYTES)) {
        encode(entry).write_to(bytes).expect("exactly as long");
    }
    seal(bytes)
}

/// How many blocks of log entries a block claims to begin; `None` if it is no chunk of this store at all.
pub(crate) fn claimed_entry_blocks(first: &Page, store: StoreId) -> Option<u64> {
    let (bytes, _) = ChunkBytes::read_from_prefix(&first.0).expect("smaller than a page");
    let ours = bytes.head.magic == MAGIC_CHUNK && bytes.head.store == store.0;
    let blocks = u64::from(bytes.entry_blocks.get());
    (ours && (1..=entry_blocks(ENTRIES_MAX) as u64).contains(&blocks)).then_some(blocks)
}

/// The chunk whose header and log entries are `pages`, and its checksum; `None` if it is torn or damaged.
pub(crate) fn decode_chunk(pages: &[Page], store: StoreId) -> Option<(ChunkHead, Vec<LogEntry>, u32)> {
    let bytes = Page::bytes(pages);
    let sealed = sealed(bytes, MAGIC_CHUNK, store)?;
    let (header, rest) = ChunkBytes::read_from_prefix(bytes).ok()?;
    let count = header.entries.get() as usize;
    let fits = header.kind.get() == KIND_VECTOR
        && count <= ENTRIES_MAX
        && entry_blocks(count) == pages.len()
        && header.data_blocks.get() as usize <= DATA_MAX
        && header.copy_blocks.get() <= header.data_blocks.get();
    if !fits {
        return None;
    }
    let entries = rest.chunks_exact(ENTRY_BYTES).take(count).map(decode).collect::<Option<Vec<_>>>()?;
    let head = ChunkHead {
        incarnation: Incarnation(header.incarnation.get()),
        chunk: header.chunk.get(),
        batch: header.batch.get(),
        durable: header.durable.get(),
        chain: header.chain.get(),
        next: header.next.get(),
        last: header.flags.get() & FLAG_LAST != 0,
        origin: if header.flags.get() & FLAG_BYPASSED != 0 { Origin::Bypassed } else { Origin::Logged },
        entry_blocks: pages.len() as u64,
        data_blocks: u64::from(header.data_blocks.get()),
        copy_blocks: u64::from(header.copy_blocks.get()),
        entries: count,
    };
    Some((head, entries, sealed.crc.get()))
}

fn encode(entry: &LogEntry) -> LogEntryBytes {
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
        LogEntry::Cut { object, pages, lsn } => {
            LogEntryBytes { page: pages.start.0.into(), other: pages.end.0.into(), ..of(CUT, *object, *lsn) }
        }
        LogEntry::Delete { object, lsn } => of(DELETE, *object, *lsn),
        LogEntry::Clone { transfer, lsn } => encode_transfer(transfer, of(CLONE, transfer.from, *lsn)),
        LogEntry::Move { transfer, lsn } => encode_transfer(transfer, of(MOVE, transfer.from, *lsn)),
        LogEntry::CloneVolume { from, to, mode, lsn, created } => LogEntryBytes {
            volume_to: to.0.into(),
            other: (*created).into(),
            generation_to: if *mode == VolumeMode::ReadOnly { READ_ONLY } else { 0 }.into(),
            ..of(CLONE_VOLUME, from.object(0, 0), *lsn)
        },
        LogEntry::DeleteVolume { volume, lsn } => of(DELETE_VOLUME, volume.object(0, 0), *lsn),
        LogEntry::NameVolume { volume, part } => encode_name(*volume, part),
    }
}

fn encode_transfer(transfer: &PageTransfer, source: LogEntryBytes) -> LogEntryBytes {
    let PageTransfer { first, end, to, at, .. } = transfer;
    LogEntryBytes {
        page: first.0.into(),
        other: end.0.into(),
        volume_to: to.volume.0.into(),
        generation_to: to.generation.into(),
        slot_to: to.slot.into(),
        at: at.0.into(),
        ..source
    }
}

fn encode_name(volume: VolumeId, part: &[u8]) -> LogEntryBytes {
    let mut bytes = [0; ENTRY_BYTES];
    bytes[0] = NAME_VOLUME;
    bytes[1] = part.len() as u8;
    bytes[4..8].copy_from_slice(&volume.0.to_le_bytes());
    bytes[8..8 + part.len()].copy_from_slice(part);
    LogEntryBytes::read_from_bytes(&bytes).expect("exactly as long")
}

fn decode_name(bytes: &[u8]) -> Option<LogEntry> {
    let part = bytes[8..].get(..usize::from(bytes[1]))?.to_vec();
    let volume = VolumeId(u32::from_le_bytes(bytes[4..8].try_into().ok()?));
    Some(LogEntry::NameVolume { volume, part })
}

fn decode(bytes: &[u8]) -> Option<LogEntry> {
    if bytes[0] == NAME_VOLUME {
        return decode_name(bytes);
    }
    let bytes = LogEntryBytes::read_from_bytes(bytes).ok()?;
    let volume = VolumeId(bytes.volume.get());
    let object = volume.object(bytes.slot.get(), bytes.generation.get());
    let (page, other, lsn) = (PageNo(bytes.page.get()), bytes.other.get(), Lsn(bytes.lsn.get()));
    let volume_to = VolumeId(bytes.volume_to.get());
    Some(match bytes.kind {
        WRITE => {
            let (place, crc) = (place_from_bits(other)?, bytes.crc.get());
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
            let (place, crc) = (place_from_bits(other)?, bytes.crc.get());
            LogEntry::Deltas { object, first: page, pages, page_lsn: lsn, place, crc }
        }
        CUT => LogEntry::Cut { object, pages: page..PageNo(other), lsn },
        DELETE => LogEntry::Delete { object, lsn },
        CLONE | MOVE => {
            let to = volume_to.object(bytes.slot_to.get(), bytes.generation_to.get());
            let (end, at) = (PageNo(other), PageNo(bytes.at.get()));
            let transfer = PageTransfer { from: object, first: page, end, to, at };
            match bytes.kind {
                _ if !transfer.is_valid() => return None,
                CLONE => LogEntry::Clone { transfer, lsn },
                _ => LogEntry::Move { transfer, lsn },
            }
        }
        CLONE_VOLUME => LogEntry::CloneVolume {
            from: volume,
            to: volume_to,
            mode: match bytes.generation_to.get() {
                0 => VolumeMode::Writable,
                READ_ONLY => VolumeMode::ReadOnly,
                _ => return None,
            },
            lsn,
            created: other,
        },
        DELETE_VOLUME => LogEntry::DeleteVolume { volume, lsn },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chunk_reads_back_as_it_was_written() {
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
            LogEntry::Cut { object, pages: PageNo(1)..PageNo(u64::MAX), lsn: Lsn(11) },
            LogEntry::Delete { object, lsn: Lsn(12) },
            LogEntry::Clone {
                transfer: PageTransfer::whole_object(object, VolumeId::MAIN.object(1, 2)),
                lsn: Lsn(13),
            },
            LogEntry::Move {
                transfer: PageTransfer {
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
            LogEntry::NameVolume { volume: VolumeId(9), part: b"a name".to_vec() },
            LogEntry::NameVolume { volume: VolumeId(9), part: vec![b'n'; NAME_PART] },
            LogEntry::DeleteVolume { volume: VolumeId(9), lsn: Lsn(15) },
        ];
        let head = ChunkHead {
            incarnation: Incarnation(3),
            chunk: 10,
            batch: 4,
            durable: 3,
            chain: 99,
            next: 12,
            last: true,
            origin: Origin::Bypassed,
            entry_blocks: 1,
            data_blocks: 5,
            copy_blocks: 4,
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
    fn metadata_without_a_copy_is_refused_and_so_is_other_data_with_one() {
        let store = StoreId([7; 16]);
        for (slot, copy, sound) in
            [(0, None, false), (0, Some(9), true), (1, Some(9), false), (1, None, true)]
        {
            let (object, copy) = (VolumeId::MAIN.object(slot, 1), copy.map(Block));
            let (page, page_lsn, place) = (PageNo(1), Lsn(1), Block(77));
            let entry = LogEntry::Write { object, page, page_lsn, place, copy, crc: 1 };
            let head = ChunkHead {
                incarnation: Incarnation(3),
                chunk: 10,
                batch: 4,
                durable: 3,
                chain: 99,
                next: 12,
                last: true,
                origin: Origin::Logged,
                entry_blocks: 1,
                data_blocks: 0,
                copy_blocks: 0,
                entries: 1,
            };
            let mut pages = device::pages(1);
            encode_chunk(&head, &[entry], store, &mut pages);
            assert_eq!(decode_chunk(&pages, store).is_some(), sound, "slot {slot}, copy {copy:?}");
        }
    }
}

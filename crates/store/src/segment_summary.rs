//! Segment summaries: for which page of which object each block of a segment was written. (*LFS* calls this
//! the segment summary, bcachefs has backpointers.) A segment of log says so in its chunks' entries. A
//! segment that the cleaner fills has summary blocks, each in front of the blocks that it names.
//!
//! Callers' data does not depend on summaries. Summaries serve the cleaner, and the rescue of data after the
//! map, or a part of it, is lost. Damage to a summary costs only its own entries. The map alone says which
//! blocks are live, and which other entries refer to them.
//!
//! A segment is written from its start on, so blocks of an earlier use lie behind all blocks written since.
//! The reader believes the first head in a segment, and further heads only if they are of the same
//! [`SegmentLife`]. So no live block can be taken for something else.

use crate::format::*;
use crate::log_chunk::{LogChunk, parse_chunk};
use crate::log_entry::{LogEntry, claimed_entry_blocks};
use crate::log_reader::{ENTRY_BLOCKS_AHEAD, LogReader};
use crate::superblock::StoreGeometry;
use device::{Block, Device, Incarnation, Lsn, ObjectId, Page, PageNo, StoreId, VolumeId};
use std::collections::BTreeMap;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Heads that a step looks at: the reads of one step of the cleaner, at most.
const HEADS_PER_STEP: usize = 32;
/// Blocks to read ahead where heads lie closer together than this: 256 KiB.
const DENSE_AHEAD: u64 = 64;

/// The page for which a block was written first; for a block of deltas, the first page of its leaf. Other
/// pages may refer to the block by now, and this one no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SummaryEntry {
    pub(crate) object: ObjectId,
    pub(crate) page: PageNo,
    pub(crate) page_lsn: Lsn,
    /// The checksum of the bytes that the entry describes. If the block has another checksum, the entry is
    /// not about it.
    pub(crate) crc: u32,
}

/// A summary block: names the blocks behind it, which the cleaner moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SummaryBlock {
    pub(crate) incarnation: Incarnation,
    /// The number of the segment among those that the cleaner filled in this incarnation.
    pub(crate) number: u64,
    /// The summary's own place.
    pub(crate) place: Block,
    /// One entry for each block behind it, in order, where it is known.
    pub(crate) entries: Vec<Option<SummaryEntry>>,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SummaryBytes {
    head: StructureHead,
    incarnation: U64,
    number: U64,
    place: U64,
    owners: U32,
    reserved: U32,
}

/// Has the layout of the beginning of a write's log entry.
#[derive(Default, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct SummaryEntryBytes {
    kind: u8,
    reserved: [u8; 3],
    crc: U32,
    volume: U32,
    generation: U32,
    slot: U64,
    page: U64,
    page_lsn: U64,
}

const HEAD_BYTES: usize = size_of::<SummaryBytes>();
const OWNER_BYTES: usize = size_of::<SummaryEntryBytes>();
const _: () = assert!(HEAD_BYTES == 64 && OWNER_BYTES == 40);
const _: () = assert!(HEAD_BYTES + SUMMARY_BLOCKS_MAX as usize * OWNER_BYTES <= device::BLOCK_BYTES);

const UNKNOWN: u8 = 0;
const KNOWN: u8 = 1;

impl SummaryBlock {
    pub(crate) fn encode(&self, store: StoreId) -> Box<Page> {
        assert!(self.entries.len() as u64 <= SUMMARY_BLOCKS_MAX, "more owners than a list has space for");
        let header = SummaryBytes {
            head: StructureHead::new(MAGIC_OWNERS, store),
            incarnation: self.incarnation.0.into(),
            number: self.number.into(),
            place: place_to_bits(self.place).into(),
            owners: (self.entries.len() as u32).into(),
            reserved: 0.into(),
        };
        let mut page = Page::zeroed();
        header.write_to_prefix(&mut page.0).expect("smaller than a page");
        for (owner, bytes) in self.entries.iter().zip(page.0[HEAD_BYTES..].chunks_exact_mut(OWNER_BYTES)) {
            let owner = owner.as_ref().map_or_else(SummaryEntryBytes::default, encode);
            owner.write_to(bytes).expect("exactly as long");
        }
        seal(&mut page.0);
        page
    }

    /// The summary that a block is; `None` if it is none, or is damaged.
    pub(crate) fn decode(page: &Page, store: StoreId) -> Option<SummaryBlock> {
        verify_head(&page.0, MAGIC_OWNERS, store)?;
        let (header, rest) = SummaryBytes::read_from_prefix(&page.0).ok()?;
        let count = header.owners.get() as usize;
        if count as u64 > SUMMARY_BLOCKS_MAX {
            return None;
        }
        Some(SummaryBlock {
            incarnation: Incarnation(header.incarnation.get()),
            number: header.number.get(),
            place: place_from_bits(header.place.get())?,
            entries: rest.chunks_exact(OWNER_BYTES).take(count).map(decode).collect::<Option<_>>()?,
        })
    }
}

fn encode(owner: &SummaryEntry) -> SummaryEntryBytes {
    SummaryEntryBytes {
        kind: KNOWN,
        reserved: [0; 3],
        crc: owner.crc.into(),
        volume: owner.object.volume.0.into(),
        generation: owner.object.generation.into(),
        slot: owner.object.slot.into(),
        page: owner.page.0.into(),
        page_lsn: owner.page_lsn.0.into(),
    }
}

/// One entry, if it is known; `None` for bytes that are none.
fn decode(bytes: &[u8]) -> Option<Option<SummaryEntry>> {
    let bytes = SummaryEntryBytes::read_from_bytes(bytes).ok()?;
    match bytes.kind {
        UNKNOWN => Some(None),
        KNOWN => Some(Some(SummaryEntry {
            object: VolumeId(bytes.volume.get()).object(bytes.slot.get(), bytes.generation.get()),
            page: PageNo(bytes.page.get()),
            page_lsn: Lsn(bytes.page_lsn.get()),
            crc: bytes.crc.get(),
        })),
        _ => None,
    }
}

/// Identifies one use of a segment, from when it is taken to when it is freed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SegmentLife {
    /// Chunks of one incarnation, in the order of their numbers.
    Log(Incarnation, u64),
    /// Summary blocks of one incarnation, with the segment's number.
    Moved(Incarnation, u64),
}

impl SegmentLife {
    /// Whether a head that lies behind this one was written after it, rather than in an earlier use of the
    /// segment.
    fn is_followed_by(self, later: SegmentLife) -> bool {
        match (self, later) {
            (SegmentLife::Log(of, chunk), SegmentLife::Log(same, next)) => of == same && chunk < next,
            (one, other) => one == other,
        }
    }
}

/// A block that may be a head cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SummaryUnreadable;

/// A summary block or a chunk's head: names the blocks behind it.
struct SummaryHead {
    life: SegmentLife,
    /// Its blocks, and those that it names.
    blocks: u64,
    entries: Vec<(Block, SummaryEntry)>,
}

impl SummaryHead {
    fn of_list(list: &SummaryBlock) -> SummaryHead {
        let owners = (1..).zip(&list.entries);
        SummaryHead {
            life: SegmentLife::Moved(list.incarnation, list.number),
            blocks: 1 + list.entries.len() as u64,
            entries: owners.filter_map(|(at, owner)| Some((list.place.plus(at), (*owner)?))).collect(),
        }
    }

    fn of_chunk(chunk: &LogChunk) -> SummaryHead {
        let owner = |entry: &LogEntry| match *entry {
            LogEntry::Write { object, page, page_lsn, place, crc, copy: None } => {
                Some((place, SummaryEntry { object, page, page_lsn, crc }))
            }
            LogEntry::Deltas { object, first: page, page_lsn, place, crc, .. } => {
                Some((place, SummaryEntry { object, page, page_lsn, crc }))
            }
            _ => None,
        };
        SummaryHead {
            life: SegmentLife::Log(chunk.head.incarnation, chunk.head.chunk),
            blocks: chunk.blocks(),
            entries: chunk.entries.iter().filter_map(owner).collect(),
        }
    }
}

/// Reads a segment's summary, from the segment's start on. Nothing is written there meanwhile. Reads only the
/// heads, and what lies close to them.
#[derive(Debug)]
pub(crate) struct SummaryScan {
    segment: u32,
    /// Where the next head is looked for.
    offset: u64,
    life: Option<SegmentLife>,
    /// Blocks of the last head and of what it names; 1 where there was none.
    step: u64,
    entries: BTreeMap<Block, SummaryEntry>,
}

impl SummaryScan {
    pub(crate) fn new(segment: u32) -> SummaryScan {
        SummaryScan { segment, offset: 0, life: None, step: 1, entries: BTreeMap::new() }
    }

    pub(crate) fn segment(&self) -> u32 {
        self.segment
    }

    /// Looks at some heads. Returns whether all are known now that can name the block `last` or one before
    /// it. A block that cannot be read may be a head: that is an error, and counts as no head if the caller
    /// goes on.
    pub(crate) fn read_some(
        &mut self,
        device: &dyn Device,
        geometry: StoreGeometry,
        last: Block,
    ) -> Result<bool, SummaryUnreadable> {
        let mut reader = LogReader::new(device, geometry);
        let blocks = last.0 - geometry.segment_start(self.segment).0;
        for _ in 0..HEADS_PER_STEP {
            if self.offset >= blocks {
                return Ok(true);
            }
            let head = self.head(&mut reader, geometry);
            let step = match &head {
                Ok(Some(head)) if self.follows(head) => head.blocks,
                _ => 1,
            };
            (self.offset, self.step) = (self.offset + step, step);
            if let Some(head) = head?.filter(|head| self.follows(head)) {
                self.life = Some(head.life);
                self.entries.extend(head.entries);
            }
        }
        Ok(self.offset >= blocks)
    }

    /// The entry of a block whose bytes have this checksum.
    pub(crate) fn entry(&self, at: Block, crc: u32) -> Option<SummaryEntry> {
        self.entries.get(&at).copied().filter(|owner| owner.crc == crc)
    }

    /// All entries that were found.
    pub(crate) fn entries(&self) -> impl Iterator<Item = &SummaryEntry> {
        self.entries.values()
    }

    /// Blocks of the segment that were looked at.
    pub(crate) fn offset(&self) -> u64 {
        self.offset
    }

    fn follows(&self, head: &SummaryHead) -> bool {
        self.life.is_none_or(|life| life.is_followed_by(head.life))
    }

    /// The head that the next block begins, if it does.
    fn head(
        &self,
        reader: &mut LogReader<'_>,
        geometry: StoreGeometry,
    ) -> Result<Option<SummaryHead>, SummaryUnreadable> {
        let at = geometry.segment_start(self.segment).plus(self.offset);
        let space = geometry.segment_blocks - self.offset;
        let ahead = if self.step < DENSE_AHEAD { DENSE_AHEAD } else { ENTRY_BLOCKS_AHEAD };
        let first = &reader.read_blocks(at, 1, ahead.min(space)).ok_or(SummaryUnreadable)?[0];
        if let Some(list) = SummaryBlock::decode(first, geometry.id) {
            // The bytes of a summary may also be in a user's page: it says where it was written.
            let fits = list.place == at && (list.entries.len() as u64) < space;
            return Ok(fits.then(|| SummaryHead::of_list(&list)));
        }
        let claimed = claimed_entry_blocks(first, geometry.id).filter(|&blocks| blocks <= space);
        let Some(claimed) = claimed else { return Ok(None) };
        let pages =
            reader.read_blocks(at, claimed, ahead.max(claimed).min(space)).ok_or(SummaryUnreadable)?;
        Ok(parse_chunk(geometry, at, pages).as_ref().map(SummaryHead::of_chunk))
    }
}

/// The entries of the blocks of a segment up to `last`, as far as they are known.
pub(crate) fn segment_summary_entries(
    device: &dyn Device,
    geometry: StoreGeometry,
    segment: u32,
    last: Block,
) -> BTreeMap<Block, SummaryEntry> {
    let mut scan = SummaryScan::new(segment);
    while scan.read_some(device, geometry, last) != Ok(true) {}
    scan.entries
}

#[cfg(test)]
mod tests;

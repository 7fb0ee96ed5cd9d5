//! Chunks of the log: how a vector is cut into chunks, and how chunks are read back.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint_root::LogCursor;
use crate::format::blocks_for;
use crate::log_entry::*;
use crate::log_extent::{self, LogExtents};
use crate::superblock::StoreGeometry;
use device::{BLOCK_BYTES, Block, BlockRead, Device, Page};
use std::ops::Range;

/// A chunk to write: its log entries, and the blocks that it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkPlan {
    /// The entries of the vector in the chunk.
    pub entries: Range<usize>,
    /// Blocks of head and log entries.
    pub entry_blocks: u64,
    /// Blocks of the chunk index, if the chunk begins an extent.
    pub index_blocks: u64,
    /// Blocks of pages.
    pub page_blocks: u64,
    /// The chunk begins the next segment, because the open one has no space for a log entry.
    pub starts_segment: bool,
    /// The position after the chunk.
    pub next_position: LogPosition,
}

impl ChunkPlan {
    /// Blocks of the chunk.
    pub(crate) fn blocks(&self) -> u64 {
        self.entry_blocks + self.index_blocks + self.page_blocks
    }
}

/// A position in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LogPosition {
    /// The next block, from the start of the open segment.
    pub offset: u64,
    /// Bytes of the chunk index for the open extent so far.
    pub index_bytes: usize,
}

/// How a vector's log entries are cut into chunks, from a position in the open segment on.
///
/// No chunk lies in two extents. A segment is filled to its last block but one. An extent inside a segment is
/// filled to its last block, by a chunk without log entries where nothing else fits.
pub(crate) fn plan_chunks(entries: &[LogEntry], from: LogPosition, segment_blocks: u64) -> Vec<ChunkPlan> {
    let extents = LogExtents::of(segment_blocks);
    let mut chunks = Vec::new();
    let mut next_entry = 0;
    let LogPosition { mut offset, mut index_bytes } = from;
    while next_entry < entries.len() {
        let mut space = extents.end(offset) - offset;
        let starts_segment = space < min_blocks(&entries[next_entry]) && offset + space == segment_blocks;
        if starts_segment {
            offset = 0;
            space = extents.end(0);
        }
        let mut index_blocks = 0;
        if offset == extents.start(offset) {
            index_blocks = extents.index_blocks(index_bytes);
            index_bytes = 0;
        }
        let filled = fill_chunk(&entries[next_entry..], next_entry, space, index_blocks);
        let mut chunk = ChunkPlan { starts_segment, ..filled };
        assert!(
            !chunk.entries.is_empty() || space == 1 && !starts_segment,
            "an extent has space for an entry and its data"
        );
        index_bytes += log_extent::index_entry_bytes(chunk.entries.len());
        offset += chunk.blocks();
        chunk.next_position = LogPosition { offset, index_bytes };
        next_entry = chunk.entries.end;
        chunks.push(chunk);
    }
    chunks
}

/// The least blocks of a chunk that begins with this log entry.
fn min_blocks(entry: &LogEntry) -> u64 {
    1 + u64::from(entry.has_data())
}

/// A chunk with as many log entries as fit into `space` blocks beside the index.
fn fill_chunk(entries: &[LogEntry], first: usize, space: u64, index_blocks: u64) -> ChunkPlan {
    let mut count = 0;
    let mut pages = 0;
    for entry in entries.iter().take(CHUNK_ENTRIES_MAX) {
        let more = pages + u64::from(entry.has_data());
        let data = index_blocks + more;
        if data > CHUNK_DATA_BLOCKS_MAX as u64 || entry_blocks(count + 1) as u64 + data > space {
            break;
        }
        count += 1;
        pages = more;
    }
    let entry_blocks = entry_blocks(count) as u64;
    ChunkPlan {
        entries: first..first + count,
        entry_blocks,
        index_blocks,
        page_blocks: pages,
        starts_segment: false,
        next_position: LogPosition::default(),
    }
}

/// A chunk found in the log.
#[derive(Debug)]
pub(crate) struct LogChunk {
    pub(crate) head: ChunkHead,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) crc: u32,
    /// Its first block.
    pub(crate) at: Block,
}

impl LogChunk {
    pub(crate) fn blocks(&self) -> u64 {
        self.head.entry_blocks + self.head.data_blocks
    }

    fn data_range(&self) -> Range<u64> {
        self.at.0 + self.head.entry_blocks..self.at.0 + self.blocks()
    }

    /// Where the log continues after this chunk.
    pub(crate) fn cursor_after(&self, geometry: StoreGeometry) -> LogCursor {
        let segment = geometry.segment_of(self.at).expect("found inside a segment");
        LogCursor {
            segment,
            offset: self.at.0 - geometry.segment_start(segment).0 + self.blocks(),
            next_segment: self.head.next_segment,
            chunk: self.head.chunk + 1,
            batch: self.head.batch + u64::from(self.head.is_last),
            chain_crc: self.crc,
        }
    }
}

/// The chunk whose first block is `at` and whose head and log entries are `pages`; `None` if it is torn or
/// damaged. Does not verify data blocks.
pub(crate) fn parse_chunk(geometry: StoreGeometry, at: Block, pages: &[Page]) -> Option<LogChunk> {
    let space = geometry.segment_start(geometry.segment_of(at)?).0 + geometry.segment_blocks - at.0;
    let (head, entries, crc) = decode_chunk(pages, geometry.id)?;
    let chunk = LogChunk { head, entries, crc, at };
    let inside = |entry: &LogEntry| match entry {
        LogEntry::Write { place, copy: Some(copy), .. } => geometry.are_opposite(*place, *copy),
        other => other.own_block().is_none_or(|(place, _)| chunk.data_range().contains(&place.0)),
    };
    let whole = chunk.blocks() <= space && chunk.entries.iter().all(inside);
    whole.then_some(chunk)
}

/// Whether the data blocks of a chunk have the checksums of its log entries. Of a mirrored block one copy is
/// enough. An unreadable block counts as wrong.
pub(crate) fn is_data_intact(device: &dyn Device, chunk: &LogChunk) -> bool {
    is_own_data_intact(device, chunk) && is_mirrored_data_intact(device, chunk)
}

fn is_own_data_intact(device: &dyn Device, chunk: &LogChunk) -> bool {
    if chunk.head.data_blocks == 0 {
        return true;
    }
    let mut pages = device::pages(chunk.head.data_blocks as usize);
    let start = chunk.at.plus(chunk.head.entry_blocks);
    let is_read = read_with_retries(device, start, &mut pages);
    let is_whole = |(place, crc): (Block, u32)| crc32c::crc32c(&pages[(place.0 - start.0) as usize].0) == crc;
    is_read && chunk.entries.iter().filter_map(LogEntry::own_block).all(is_whole)
}

fn is_mirrored_data_intact(device: &dyn Device, chunk: &LogChunk) -> bool {
    if is_planted(StoreBug::MissingPairBelieved) {
        return true;
    }
    let pairs: Vec<MirroredBlock> = chunk.entries.iter().filter_map(LogEntry::mirrored_block).collect();
    let runs: Vec<&[MirroredBlock]> = pairs.chunk_by(|one, next| one.at.0 + 1 == next.at.0).collect();
    let mut reads: Vec<BlockRead> = runs.iter().map(|run| BlockRead::new(run[0].at, run.len())).collect();
    device.read_batch(&mut reads);
    reads.iter().zip(runs).all(|(read, run)| {
        // If a run cannot be read, parts of it may be readable.
        let whole = |one: &MirroredBlock, page: &Page| read.result.is_ok() && one.is(page);
        run.iter()
            .zip(&read.pages)
            .all(|(one, page)| whole(one, page) || read_either_copy(device, one).is_some())
    })
}

/// The copy with the right checksum, if there is one.
pub(crate) fn read_either_copy(device: &dyn Device, one: &MirroredBlock) -> Option<Box<Page>> {
    let mut page = Page::zeroed();
    let places = [one.at, one.copy];
    let mut whole =
        |at: &Block| read_with_retries(device, *at, std::slice::from_mut(&mut *page)) && one.is(&page);
    let is_there = places.iter().any(&mut whole);
    is_there.then_some(page)
}

/// Attempts to read a block of the log before it counts as unreadable: a path that fails over takes one or
/// two.
const READ_ATTEMPTS: usize = 3;

/// Reads blocks of the log. A failed read is repeated, as only several failures show that a block is
/// unreadable.
pub(crate) fn read_with_retries(device: &dyn Device, at: Block, into: &mut [Page]) -> bool {
    (0..READ_ATTEMPTS).any(|_| device.read(at, into).is_ok())
}

/// Splits bytes into zero-padded pages.
pub(crate) fn to_pages(bytes: &[u8]) -> Vec<Page> {
    let mut pages = device::pages(blocks_for(bytes.len()));
    Page::bytes_mut(&mut pages)[..bytes.len()].copy_from_slice(bytes);
    debug_assert!(pages.len() * BLOCK_BYTES >= bytes.len());
    pages
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::VolumeId;
    use device::{Lsn, PageNo};

    fn writes(count: usize) -> Vec<LogEntry> {
        let object = VolumeId::MAIN.object(1, 1);
        let write = |index| LogEntry::Write {
            object,
            page: PageNo(index),
            page_lsn: Lsn(1),
            place: Block(0),
            copy: None,
            crc: 0,
        };
        (0..count as u64).map(write).collect()
    }

    #[test]
    fn a_plan_covers_all_entries_and_no_chunk_lies_in_two_extents() {
        for count in [1, 2, 13, 14, 15, 16, 40, 3000] {
            for (offset, segment) in
                [(0, 16), (13, 16), (15, 16), (16, 16), (100, 5000), (2499, 5000), (250, 256), (255, 256)]
            {
                let entries = writes(count);
                let extents = LogExtents::of(segment);
                let index_bytes = log_extent::index_entry_bytes(offset as usize);
                let mut at = offset;
                let mut next = 0;
                let mut copies = index_bytes;
                for piece in plan_chunks(&entries, LogPosition { offset, index_bytes }, segment) {
                    at = if piece.starts_segment { 0 } else { at };
                    assert_eq!(piece.entries.start, next, "no entry is left out");
                    next = piece.entries.end;
                    let begins = at == extents.start(at);
                    let expected = if begins { extents.index_blocks(copies) } else { 0 };
                    assert_eq!(piece.index_blocks, expected, "an index stands where an extent begins");
                    copies =
                        if begins { 0 } else { copies } + log_extent::index_entry_bytes(piece.entries.len());
                    let filler = piece.entries.is_empty();
                    assert!(!filler || piece.blocks() == 1 && at + 1 == extents.end(at), "{piece:?}");
                    assert!(at + piece.blocks() <= extents.end(at), "a chunk lies in one extent");
                    at += piece.blocks();
                }
                assert_eq!(next, count);
            }
        }
    }
}

//! The log: how a vector becomes chunks, and how chunks are found again.

use crate::bug::{StoreBug, is_planted};
use crate::entry::*;
use crate::format::blocks_for;
use crate::root::Cursor;
use crate::stretch::{self, Stretches};
use crate::superblock::Geometry;
use device::{BLOCK_BYTES, Block, Device, Lsn, ObjectId, Page, PageNo, Read};
use std::ops::Range;

/// A chunk to write: which log entries go into it, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// The vector's entries in it.
    pub entries: Range<usize>,
    /// Blocks of log entries.
    pub entry_blocks: u64,
    /// Blocks of copies of heads, where it begins a stretch.
    pub copy_blocks: u64,
    /// Blocks of pages.
    pub page_blocks: u64,
    /// It starts the next segment, because the open one has no space for a log entry.
    pub moves_on: bool,
    /// Where the next chunk goes.
    pub then: Place,
}

impl Piece {
    /// Blocks that it takes.
    pub fn blocks(&self) -> u64 {
        self.entry_blocks + self.copy_blocks + self.page_blocks
    }
}

/// Where a vector goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The next block in the open segment.
    pub offset: u64,
    /// Bytes that copies of the heads in this stretch take so far.
    pub copy_bytes: usize,
}

/// How the log cuts into chunks a vector of so many writes of a page of data each.
pub fn plan_writes(writes: usize, from: Place, segment_blocks: u64) -> Vec<Piece> {
    // What an entry says does not matter for where it goes.
    let (object, page, page_lsn) = (ObjectId { slot: 1, ..ObjectId::default() }, PageNo(0), Lsn(0));
    let write = LogEntry::Write { object, page, page_lsn, place: Block(0), copy: None, crc: 0 };
    plan(&vec![write; writes], from, segment_blocks)
}

/// How a vector's log entries are cut into chunks, from a place in the open segment on. No chunk lies in two stretches. The rest
/// of a segment is used to the last block but one; that of a stretch to the last, by a chunk without log entries where nothing
/// else fits.
pub(crate) fn plan(entries: &[LogEntry], from: Place, segment_blocks: u64) -> Vec<Piece> {
    let stretches = Stretches::of(segment_blocks);
    let (mut pieces, mut at) = (Vec::new(), 0);
    let Place { mut offset, mut copy_bytes } = from;
    while at < entries.len() {
        let mut space = stretches.end(offset) - offset;
        let moves_on = space < least(&entries[at]) && offset + space == segment_blocks;
        if moves_on {
            (offset, space) = (0, stretches.end(0));
        }
        let begins = offset == stretches.start(offset);
        let copy_blocks = if begins { stretches.copy_blocks(copy_bytes) } else { 0 };
        let mut piece = Piece { moves_on, ..fill(&entries[at..], at, space, copy_blocks) };
        assert!(
            !piece.entries.is_empty() || space == 1 && !moves_on,
            "a stretch has space for an entry and its data"
        );
        copy_bytes = if begins { 0 } else { copy_bytes } + stretch::copy_bytes(piece.entries.len());
        offset += piece.blocks();
        piece.then = Place { offset, copy_bytes };
        at = piece.entries.end;
        pieces.push(piece);
    }
    pieces
}

/// Blocks that a chunk takes at least which begins with this log entry.
fn least(entry: &LogEntry) -> u64 {
    1 + u64::from(entry.has_data())
}

/// As many log entries as fit into `space` blocks and into a chunk, with the copies.
fn fill(entries: &[LogEntry], at: usize, space: u64, copy_blocks: u64) -> Piece {
    let (mut count, mut pages) = (0, 0);
    for entry in entries.iter().take(ENTRIES_MAX) {
        let more = pages + u64::from(entry.has_data());
        let data = copy_blocks + more;
        if data > DATA_MAX as u64 || entry_blocks(count + 1) as u64 + data > space {
            break;
        }
        (count, pages) = (count + 1, more);
    }
    let entry_blocks = entry_blocks(count) as u64;
    let (entries, then) = (at..at + count, Place::default());
    Piece { entries, entry_blocks, copy_blocks, page_blocks: pages, moves_on: false, then }
}

/// A chunk found in the log.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) head: ChunkHead,
    pub(crate) entries: Vec<LogEntry>,
    pub(crate) crc: u32,
    /// Its first block.
    pub(crate) at: Block,
}

impl Chunk {
    pub(crate) fn blocks(&self) -> u64 {
        self.head.entry_blocks + self.head.data_blocks
    }

    fn data(&self) -> Range<u64> {
        self.at.0 + self.head.entry_blocks..self.at.0 + self.blocks()
    }

    /// Where the log goes on after this chunk, which the cursor before it led to.
    pub(crate) fn after(&self, geometry: Geometry) -> Cursor {
        let segment = geometry.segment(self.at).expect("found inside a segment");
        Cursor {
            segment,
            offset: self.at.0 - geometry.start(segment).0 + self.blocks(),
            next: self.head.next,
            chunk: self.head.chunk + 1,
            batch: self.head.batch + u64::from(self.head.last),
            chain: self.crc,
        }
    }
}

/// The chunk whose first block is `at` and whose header and log entries are `pages`; `None` if it is torn or damaged. Data is not
/// looked at.
pub(crate) fn parse(geometry: Geometry, at: Block, pages: &[Page]) -> Option<Chunk> {
    let space = geometry.start(geometry.segment(at)?).0 + geometry.segment_blocks - at.0;
    let (head, entries, crc) = decode_chunk(pages, geometry.id)?;
    let chunk = Chunk { head, entries, crc, at };
    let inside = |entry: &LogEntry| match entry {
        LogEntry::Write { place, copy: Some(copy), .. } => geometry.are_opposite(*place, *copy),
        other => other.own_block().is_none_or(|(place, _)| chunk.data().contains(&place.0)),
    };
    let whole = chunk.blocks() <= space && chunk.entries.iter().all(inside);
    whole.then_some(chunk)
}

/// Whether the blocks that belong to a chunk are what its log entries say, its own and those in pairs of segments, of which either copy
/// will do. What cannot be read is not.
pub(crate) fn data_is_whole(device: &dyn Device, chunk: &Chunk) -> bool {
    own_data_is_whole(device, chunk) && pairs_are_whole(device, chunk)
}

fn own_data_is_whole(device: &dyn Device, chunk: &Chunk) -> bool {
    if chunk.head.data_blocks == 0 {
        return true;
    }
    let mut pages = device::pages(chunk.head.data_blocks as usize);
    let start = chunk.at.plus(chunk.head.entry_blocks);
    let is_read = read_patiently(device, start, &mut pages);
    let is_whole = |(place, crc): (Block, u32)| crc32c::crc32c(&pages[(place.0 - start.0) as usize].0) == crc;
    is_read && chunk.entries.iter().filter_map(LogEntry::own_block).all(is_whole)
}

fn pairs_are_whole(device: &dyn Device, chunk: &Chunk) -> bool {
    if is_planted(StoreBug::MissingPairBelieved) {
        return true;
    }
    let pairs: Vec<Paired> = chunk.entries.iter().filter_map(LogEntry::paired).collect();
    let runs: Vec<&[Paired]> = pairs.chunk_by(|one, next| one.at.0 + 1 == next.at.0).collect();
    let mut reads: Vec<Read> = runs.iter().map(|run| Read::new(run[0].at, run.len())).collect();
    device.read_batch(&mut reads);
    reads.iter().zip(runs).all(|(read, run)| {
        // Where a run cannot be read, some of it may.
        let whole = |one: &Paired, page: &Page| read.result.is_ok() && one.is(page);
        run.iter().zip(&read.pages).all(|(one, page)| whole(one, page) || read_either(device, one).is_some())
    })
}

/// The one of two copies that is what was written.
pub(crate) fn read_either(device: &dyn Device, one: &Paired) -> Option<Box<Page>> {
    let mut page = Page::zeroed();
    let places = [one.at, one.copy];
    let mut whole =
        |at: &Block| read_patiently(device, *at, std::slice::from_mut(&mut *page)) && one.is(&page);
    let is_there = places.iter().any(&mut whole);
    is_there.then_some(page)
}

/// Attempts to read a block of the log before it counts as unreadable: a path that fails over takes one or two.
const READ_ATTEMPTS: usize = 3;

/// Reads blocks of the log that may be unreadable for good, which is found out by trying more than once.
pub(crate) fn read_patiently(device: &dyn Device, at: Block, into: &mut [Page]) -> bool {
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
    fn a_plan_covers_all_entries_and_no_chunk_lies_in_two_stretches() {
        for count in [1, 2, 13, 14, 15, 16, 40, 3000] {
            for (offset, segment) in
                [(0, 16), (13, 16), (15, 16), (16, 16), (100, 5000), (2499, 5000), (250, 256), (255, 256)]
            {
                let (entries, stretches) = (writes(count), Stretches::of(segment));
                let copy_bytes = stretch::copy_bytes(offset as usize);
                let (mut at, mut next, mut copies) = (offset, 0, copy_bytes);
                for piece in plan(&entries, Place { offset, copy_bytes }, segment) {
                    at = if piece.moves_on { 0 } else { at };
                    assert_eq!(piece.entries.start, next, "no entry is left out");
                    next = piece.entries.end;
                    let begins = at == stretches.start(at);
                    let expected = if begins { stretches.copy_blocks(copies) } else { 0 };
                    assert_eq!(piece.copy_blocks, expected, "copies stand where a stretch begins");
                    copies = if begins { 0 } else { copies } + stretch::copy_bytes(piece.entries.len());
                    let filler = piece.entries.is_empty();
                    assert!(!filler || piece.blocks() == 1 && at + 1 == stretches.end(at), "{piece:?}");
                    assert!(at + piece.blocks() <= stretches.end(at), "a chunk lies in one stretch");
                    at += piece.blocks();
                }
                assert_eq!(next, count);
            }
        }
    }
}

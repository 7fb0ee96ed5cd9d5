//! The log: how a vector becomes chunks, and how chunks are found again.

use crate::error::StoreError;
use crate::format::blocks_for;
use crate::note::*;
use crate::root::Cursor;
use crate::superblock::Geometry;
use device::{BLOCK_BYTES, Block, Device, Incarnation, Page};
use std::ops::Range;

/// A chunk to write: which notes go into it, and what it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) notes: Range<usize>,
    pub(crate) note_blocks: u64,
    pub(crate) data_blocks: u64,
    /// It starts the next segment, because the open one has no room for a note.
    pub(crate) moves_on: bool,
}

/// How a vector's notes are cut into chunks, from `offset` in the open segment on. The rest of a segment is used
/// to the last block but one.
pub(crate) fn plan(notes: &[Note], offset: u64, segment_blocks: u64) -> Vec<Piece> {
    let (mut pieces, mut offset, mut at) = (Vec::new(), offset, 0);
    while at < notes.len() {
        let mut piece = fill(&notes[at..], at, segment_blocks - offset);
        if piece.notes.is_empty() {
            piece = Piece { moves_on: true, ..fill(&notes[at..], at, segment_blocks) };
            offset = 0;
        }
        assert!(!piece.notes.is_empty(), "a segment has room for a note and its data");
        offset += piece.note_blocks + piece.data_blocks;
        at = piece.notes.end;
        pieces.push(piece);
    }
    pieces
}

/// As many notes as fit into `room` blocks and into a chunk.
fn fill(notes: &[Note], at: usize, room: u64) -> Piece {
    let (mut count, mut data) = (0, 0);
    for note in notes.iter().take(NOTES_MAX) {
        let more = data + u64::from(matches!(note, Note::Write { .. }));
        if more > DATA_MAX as u64 || note_blocks(count + 1) as u64 + more > room {
            break;
        }
        (count, data) = (count + 1, more);
    }
    let note_blocks = note_blocks(count) as u64;
    Piece { notes: at..at + count, note_blocks, data_blocks: data, moves_on: false }
}

/// A chunk found in the log.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) head: ChunkHead,
    pub(crate) notes: Vec<Note>,
    pub(crate) crc: u32,
    /// Its first block.
    pub(crate) at: Block,
}

impl Chunk {
    pub(crate) fn blocks(&self) -> u64 {
        self.head.note_blocks + self.head.data_blocks
    }

    fn data(&self) -> Range<u64> {
        self.at.0 + self.head.note_blocks..self.at.0 + self.blocks()
    }

    /// Where the log goes on after this chunk, which the cursor before it led to.
    pub(crate) fn after(&self, geometry: &Geometry) -> Cursor {
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

/// Blocks read at once where a chunk may begin: the notes of 256 pages with some to spare, so that one read is enough for
/// what the cache writes.
const NOTE_BLOCKS_AHEAD: u64 = 4;

/// Reads the chunk at `offset` in a segment; `None` if none that is whole lies there. Data is not looked at.
pub(crate) fn chunk_at(
    device: &dyn Device,
    geometry: &Geometry,
    segment: u32,
    offset: u64,
) -> Result<Option<Chunk>, StoreError> {
    if segment >= geometry.segments || offset >= geometry.segment_blocks {
        return Ok(None);
    }
    let (at, room) = (geometry.start(segment).plus(offset), geometry.segment_blocks - offset);
    let mut pages = device::pages(NOTE_BLOCKS_AHEAD.min(room) as usize);
    if device.read(at, &mut pages).is_err() {
        // Perhaps only what was read ahead is unreadable.
        pages.truncate(1);
        device.read(at, &mut pages)?;
    }
    let Some(blocks) = claimed_note_blocks(&pages[0], geometry.id).filter(|&blocks| blocks <= room) else {
        return Ok(None);
    };
    if blocks as usize > pages.len() {
        pages = device::pages(blocks as usize);
        device.read(at, &mut pages)?;
    }
    pages.truncate(blocks as usize);
    let Some((head, notes, crc)) = decode_chunk(&pages, geometry.id) else { return Ok(None) };
    let chunk = Chunk { head, notes, crc, at };
    let inside = |note: &Note| match note {
        Note::Write { place, .. } => chunk.data().contains(&place.0),
        _ => true,
    };
    let whole = chunk.blocks() <= room && chunk.notes.iter().all(inside);
    Ok(whole.then_some(chunk))
}

/// The chunk that the log goes on with, in the open segment or at the start of the next; `None` at its end.
pub(crate) fn next_chunk(
    device: &dyn Device,
    geometry: &Geometry,
    cursor: &Cursor,
    incarnation: Incarnation,
) -> Result<Option<Chunk>, StoreError> {
    for (segment, offset) in [(cursor.segment, cursor.offset), (cursor.next, 0)] {
        let belongs = |chunk: &Chunk| {
            let head = &chunk.head;
            head.incarnation == incarnation
                && (head.chunk, head.batch, head.chain) == (cursor.chunk, cursor.batch, cursor.chain)
        };
        if let Some(chunk) = chunk_at(device, geometry, segment, offset)?.filter(belongs) {
            return Ok(Some(chunk));
        }
    }
    Ok(None)
}

/// Whether a chunk's data blocks are what its notes say.
pub(crate) fn data_is_whole(device: &dyn Device, chunk: &Chunk) -> Result<bool, StoreError> {
    if chunk.head.data_blocks == 0 {
        return Ok(true);
    }
    let mut pages = device::pages(chunk.head.data_blocks as usize);
    let start = chunk.at.plus(chunk.head.note_blocks);
    device.read(start, &mut pages)?;
    Ok(chunk.notes.iter().all(|note| match note {
        Note::Write { place, crc, .. } => crc32c::crc32c(&pages[(place.0 - start.0) as usize].0) == *crc,
        _ => true,
    }))
}

/// Looks for proof that `batch`, of which something is bad at or before `cursor`, was durable once: a later chunk
/// that says so. Looks at most one chunk further on, in the open segment and in the next, and from any later
/// chunk along the log. Returns where the proof lies.
pub(crate) fn proof_of_rot(
    device: &dyn Device,
    geometry: &Geometry,
    cursor: &Cursor,
    batch: u64,
    incarnation: Incarnation,
) -> Result<Option<Block>, StoreError> {
    for (segment, offset) in [(cursor.segment, cursor.offset), (cursor.next, 0)] {
        if segment >= geometry.segments {
            continue;
        }
        let window = geometry.segment_blocks.saturating_sub(offset).min(CHUNK_BLOCKS_MAX + 1);
        for at in candidates(device, geometry, geometry.start(segment).plus(offset), window)? {
            let offset = at.0 - geometry.start(segment).0;
            let Some(chunk) = chunk_at(device, geometry, segment, offset)? else { continue };
            let later = chunk.head.incarnation == incarnation && chunk.head.chunk > cursor.chunk;
            if later && let Some(proof) = follow_for_proof(device, geometry, chunk, batch)? {
                return Ok(Some(proof));
            }
        }
    }
    Ok(None)
}

/// Blocks that look like the beginning of a chunk.
fn candidates(
    device: &dyn Device,
    geometry: &Geometry,
    from: Block,
    count: u64,
) -> Result<Vec<Block>, StoreError> {
    let mut pages = device::pages(count as usize);
    device.read(from, &mut pages)?;
    let looks = |page: &Page| claimed_note_blocks(page, geometry.id).is_some();
    Ok((0..).zip(&pages).filter(|(_, page)| looks(page)).map(|(index, _)| from.plus(index)).collect())
}

fn follow_for_proof(
    device: &dyn Device,
    geometry: &Geometry,
    first: Chunk,
    batch: u64,
) -> Result<Option<Block>, StoreError> {
    let mut chunk = first;
    loop {
        if chunk.head.durable >= batch {
            return Ok(Some(chunk.at));
        }
        let (incarnation, cursor) = (chunk.head.incarnation, chunk.after(geometry));
        match next_chunk(device, geometry, &cursor, incarnation)? {
            Some(next) => chunk = next,
            None => return Ok(None),
        }
    }
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
    use device::{ObjectId, PageNo, Sequence};

    fn writes(count: usize) -> Vec<Note> {
        let object = ObjectId { slot: 1, generation: 1 };
        let write =
            |index| Note::Write { object, page: PageNo(index), home: Sequence(1), place: Block(0), crc: 0 };
        (0..count as u64).map(write).collect()
    }

    #[test]
    fn a_plan_covers_all_notes_and_stays_inside_segments() {
        for count in [1, 2, 13, 14, 15, 16, 40, 3000] {
            for (offset, segment) in [(0, 16), (13, 16), (15, 16), (16, 16), (100, 5000)] {
                let notes = writes(count);
                let (mut at, mut next) = (offset, 0);
                for piece in plan(&notes, offset, segment) {
                    at = if piece.moves_on { 0 } else { at };
                    assert_eq!(piece.notes.start, next, "no note is left out");
                    next = piece.notes.end;
                    at += piece.note_blocks + piece.data_blocks;
                    assert!(at <= segment, "a chunk lies in one segment");
                }
                assert_eq!(next, count);
            }
        }
    }
}

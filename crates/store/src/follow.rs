//! Following the log from a root to its end, with few reads.
//!
//! A block that cannot be read is no chunk: where the log ends, nothing was ever written, and a medium may have bad places
//! there. Was it one that the log has, then something else shows it to be durable: a later chunk; or the buffer, which names the
//! last batch that it relied on or that changed a volume (`buffer/FORMAT.md`), and still has what later ones hold.

use crate::chunk::{Chunk, parse, read_patiently};
use crate::entry::{CHUNK_BLOCKS_MAX, claimed_entry_blocks};
use crate::root::Cursor;
use crate::stretch::{COPIES_AHEAD, Stretches, WINDOW_BLOCKS, copies};
use crate::superblock::Geometry;
use device::{Block, Device, Incarnation, Page};
use std::collections::BTreeMap;

/// Blocks read where perhaps no chunk begins: the log entries of 256 pages with some to spare, so that one read is enough for
/// what the cache writes.
pub(crate) const ENTRY_BLOCKS_AHEAD: u64 = 4;

/// Blocks in which proof is looked for that what seems to be the log's end is not: a chunk, and the beginning of one more.
pub(crate) const PROOF_BLOCKS: u64 = CHUNK_BLOCKS_MAX + 1;

/// Blocks that were read.
#[derive(Default)]
struct Window {
    at: Block,
    pages: Vec<Page>,
}

impl Window {
    fn get(&self, at: Block, count: u64) -> Option<&[Page]> {
        let from = usize::try_from(at.0.checked_sub(self.at.0)?).ok()?;
        self.pages.get(from..from.checked_add(count as usize)?)
    }
}

/// Follows the log, chunk by chunk. Once a chunk of a stretch was found, the beginning of the stretch after it is read, where
/// copies of all heads of this one may lie. Where there are none, as in the last stretch, it is read in windows.
pub(crate) struct LogReader<'a> {
    device: &'a dyn Device,
    geometry: Geometry,
    stretches: Stretches,
    /// What was read last where a chunk was looked for.
    here: Window,
    /// The beginning of the stretch after the one that is followed.
    beyond: Window,
    /// Chunks of the stretch that is followed, by their first blocks.
    copied: BTreeMap<Block, Chunk>,
    /// The first block of that stretch.
    stretch: Option<Block>,
}

impl<'a> LogReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, geometry: Geometry) -> LogReader<'a> {
        let (here, beyond, copied) = (Window::default(), Window::default(), BTreeMap::new());
        let stretches = Stretches::of(geometry.segment_blocks);
        LogReader { device, geometry, stretches, here, beyond, copied, stretch: None }
    }

    /// The chunk that the log goes on with, in the open segment or at the start of the next; `None` at its end.
    pub(crate) fn next(&mut self, cursor: &Cursor, incarnation: Incarnation) -> Option<Chunk> {
        let belongs = |chunk: &Chunk| {
            let head = &chunk.head;
            head.incarnation == incarnation
                && (head.chunk, head.batch, head.chain) == (cursor.chunk, cursor.batch, cursor.chain)
        };
        let start = self.geometry.start(cursor.segment);
        if let Some(chunk) = self.copied.remove(&start.plus(cursor.offset)).filter(belongs) {
            return Some(chunk);
        }
        let follows = self.stretch == Some(start.plus(self.stretches.start(cursor.offset)));
        let ahead = if follows { WINDOW_BLOCKS } else { ENTRY_BLOCKS_AHEAD };
        let mut places = [(cursor.segment, cursor.offset, ahead), (cursor.next, 0, PROOF_BLOCKS)];
        if cursor.next < self.geometry.segments && self.held(self.geometry.start(cursor.next), 1).is_some() {
            // Only one of the two can belong, and this one needs no read.
            places.reverse();
        }
        for (segment, offset, ahead) in places {
            if let Some(chunk) = self.in_place(segment, offset, ahead).filter(belongs) {
                self.look_ahead(&chunk, segment, offset);
                return Some(chunk);
            }
        }
        None
    }

    /// The chunk that begins at `offset` in a segment, if a whole one does. Data is not looked at.
    pub(crate) fn in_place(&mut self, segment: u32, offset: u64, ahead: u64) -> Option<Chunk> {
        if segment >= self.geometry.segments || offset >= self.geometry.segment_blocks {
            return None;
        }
        let geometry = self.geometry;
        let (at, space) = (geometry.start(segment).plus(offset), geometry.segment_blocks - offset);
        let first = self.get(at, 1, ahead.min(space))?;
        let claimed = claimed_entry_blocks(&first[0], geometry.id).filter(|&blocks| blocks <= space)?;
        parse(geometry, at, self.get(at, claimed, ahead.max(claimed).min(space))?)
    }

    /// The blocks of a segment that look like the beginning of a chunk. All of them are read together, if that is possible.
    pub(crate) fn candidates(&mut self, segment: u32, from: u64, count: u64) -> Vec<u64> {
        let geometry = self.geometry;
        let start = geometry.start(segment);
        let looks = |page: &Page| claimed_entry_blocks(page, geometry.id).is_some();
        if let Some(pages) = self.get(start.plus(from), count, count) {
            return (from..).zip(pages).filter(|(_, page)| looks(page)).map(|(offset, _)| offset).collect();
        }
        let mut looks_at =
            |offset: &u64| self.get(start.plus(*offset), 1, 1).is_some_and(|pages| looks(&pages[0]));
        (from..from + count).filter(|offset| looks_at(offset)).collect()
    }

    fn held(&self, at: Block, count: u64) -> Option<&[Page]> {
        self.here.get(at, count).or_else(|| self.beyond.get(at, count))
    }

    /// `count` blocks, read together with those behind them unless they are here; `None` if they cannot be read.
    pub(crate) fn get(&mut self, at: Block, count: u64, ahead: u64) -> Option<&[Page]> {
        if self.held(at, count).is_none() {
            let mut pages = device::pages(ahead as usize);
            if self.device.read(at, &mut pages).is_err() {
                // Perhaps only what was read ahead is unreadable.
                pages.truncate(count as usize);
                if !read_patiently(self.device, at, &mut pages) {
                    return None;
                }
            }
            self.here = Window { at, pages };
        }
        self.held(at, count)
    }

    /// Where a stretch is entered with this chunk, looks for copies of its heads at the beginning of the one after it.
    fn look_ahead(&mut self, chunk: &Chunk, segment: u32, offset: u64) {
        let stretch = self.geometry.start(segment).plus(self.stretches.start(offset));
        if self.stretch == Some(stretch) {
            return;
        }
        self.stretch = Some(stretch);
        self.copied.clear();
        let beyond = std::mem::take(&mut self.beyond);
        if beyond.get(chunk.at, 1).is_some() {
            self.here = beyond;
        }
        let end = self.stretches.end(offset);
        let (next, at) =
            if end < self.geometry.segment_blocks { (segment, end) } else { (chunk.head.next, 0) };
        if next >= self.geometry.segments || !self.stretches.has_copies() {
            return;
        }
        let mut pages = device::pages(COPIES_AHEAD.min(self.geometry.segment_blocks - at) as usize);
        let at = self.geometry.start(next).plus(at);
        // What cannot be read is no copy; recovery reads it in its place.
        if self.device.read(at, &mut pages).is_ok() {
            self.beyond = Window { at, pages };
            self.copied = self.copies_beyond(segment, chunk).unwrap_or_default();
        }
    }

    /// The chunks of `segment` of which copies lie beyond, as far as they are whole.
    fn copies_beyond(&self, segment: u32, chunk: &Chunk) -> Option<BTreeMap<Block, Chunk>> {
        let at = self.beyond.at;
        let blocks = claimed_entry_blocks(&self.beyond.get(at, 1)?[0], self.geometry.id)?;
        let with = parse(self.geometry, at, self.beyond.get(at, blocks)?)?;
        // What lies there may be left from an earlier use of the segment.
        if with.head.incarnation != chunk.head.incarnation || with.head.chunk <= chunk.head.chunk {
            return None;
        }
        let pages = self.beyond.get(at.plus(blocks), with.head.copy_blocks)?;
        let start = self.geometry.start(segment);
        let inside = |(offset, _): &(u64, Vec<Page>)| *offset < self.geometry.segment_blocks;
        let chunks = copies(pages).into_iter().filter(inside);
        let chunks = chunks.filter_map(|(offset, head)| parse(self.geometry, start.plus(offset), &head));
        Some(chunks.map(|chunk| (chunk.at, chunk)).collect())
    }

    /// Looks for proof that `batch`, of which something is bad at or before `cursor`, was durable once: a later chunk
    /// that says so. Looks at most one chunk further on, in the open segment and in the next, and from any later
    /// chunk along the log. Returns where the proof lies.
    pub(crate) fn proof_of_rot(
        &mut self,
        cursor: &Cursor,
        batch: u64,
        incarnation: Incarnation,
    ) -> Option<Block> {
        // The next segment was read last, where the log's next chunk was looked for.
        for (segment, offset) in [(cursor.next, 0), (cursor.segment, cursor.offset)] {
            if segment >= self.geometry.segments {
                continue;
            }
            let window = self.geometry.segment_blocks.saturating_sub(offset).min(PROOF_BLOCKS);
            for offset in self.candidates(segment, offset, window) {
                let Some(chunk) = self.in_place(segment, offset, ENTRY_BLOCKS_AHEAD) else { continue };
                let later = chunk.head.incarnation == incarnation && chunk.head.chunk > cursor.chunk;
                if later && let Some(proof) = self.follow_for_proof(chunk, batch) {
                    return Some(proof);
                }
            }
        }
        None
    }

    fn follow_for_proof(&self, first: Chunk, batch: u64) -> Option<Block> {
        let (mut chunk, mut log) = (first, LogReader::new(self.device, self.geometry));
        loop {
            if chunk.head.durable >= batch {
                return Some(chunk.at);
            }
            let (incarnation, cursor) = (chunk.head.incarnation, chunk.after(self.geometry));
            chunk = log.next(&cursor, incarnation)?;
        }
    }
}

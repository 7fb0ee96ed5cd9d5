//! Follows the log from a root to its end, with few reads.
//!
//! A block that cannot be read counts as no chunk. At the end of the log nothing was ever written, and the
//! medium may have bad blocks there. If the block did belong to the log, something else proves that it was
//! durable: a later chunk; or the buffer, which names the last batch that it relied on or that changed a
//! volume (`buffer/FORMAT.md`), and still has the content of later batches.

use crate::checkpoint_root::LogCursor;
use crate::log_chunk::{LogChunk, parse_chunk, read_with_retries};
use crate::log_entry::{CHUNK_BLOCKS_MAX, claimed_entry_blocks};
use crate::log_extent::{INDEX_READ_BLOCKS, LogExtents, WINDOW_BLOCKS, indexed_heads};
use crate::superblock::StoreGeometry;
use device::{Block, Device, Incarnation, Page};
use std::collections::BTreeMap;

/// Blocks read where there may be no chunk: the log entries of 256 pages with some to spare, so that one read
/// is enough for the batches that the cache writes.
pub(crate) const ENTRY_BLOCKS_AHEAD: u64 = 4;

/// Blocks searched for proof that the end of the log is not where it seems to be: the largest chunk, and the
/// beginning of one more.
pub(crate) const PROOF_BLOCKS: u64 = CHUNK_BLOCKS_MAX + 1;

/// Consecutive blocks that were read.
#[derive(Default)]
struct LogWindow {
    at: Block,
    pages: Vec<Page>,
}

impl LogWindow {
    fn get(&self, at: Block, count: u64) -> Option<&[Page]> {
        let from = usize::try_from(at.0.checked_sub(self.at.0)?).ok()?;
        self.pages.get(from..from.checked_add(count as usize)?)
    }
}

/// Follows the log, chunk by chunk.
///
/// When the reader enters an extent, it reads the beginning of the next one, where the chunk index may have
/// copies of all heads of this extent. An extent without an index, like the last one, is read in windows.
pub(crate) struct LogReader<'a> {
    device: &'a dyn Device,
    geometry: StoreGeometry,
    extents: LogExtents,
    /// The blocks read last in search of a chunk.
    window: LogWindow,
    /// The beginning of the extent after the current one.
    index_window: LogWindow,
    /// Chunks of the current extent that the index has, by their first blocks.
    indexed: BTreeMap<Block, LogChunk>,
    /// The first block of the current extent.
    extent_start: Option<Block>,
}

impl<'a> LogReader<'a> {
    pub(crate) fn new(device: &'a dyn Device, geometry: StoreGeometry) -> LogReader<'a> {
        let window = LogWindow::default();
        let index_window = LogWindow::default();
        let indexed = BTreeMap::new();
        let extents = LogExtents::of(geometry.segment_blocks);
        LogReader { device, geometry, extents, window, index_window, indexed, extent_start: None }
    }

    /// The next chunk of the log, in the open segment or at the start of the next one; `None` at the end of
    /// the log.
    pub(crate) fn next_chunk(&mut self, cursor: &LogCursor, incarnation: Incarnation) -> Option<LogChunk> {
        let belongs = |chunk: &LogChunk| {
            let head = &chunk.head;
            head.incarnation == incarnation
                && (head.chunk, head.batch, head.chain_crc) == (cursor.chunk, cursor.batch, cursor.chain_crc)
        };
        let start = self.geometry.segment_start(cursor.segment);
        if let Some(chunk) = self.indexed.remove(&start.plus(cursor.offset)).filter(belongs) {
            return Some(chunk);
        }
        let is_in_extent = self.extent_start == Some(start.plus(self.extents.start(cursor.offset)));
        let ahead = if is_in_extent { WINDOW_BLOCKS } else { ENTRY_BLOCKS_AHEAD };
        let mut candidates = [(cursor.segment, cursor.offset, ahead), (cursor.next_segment, 0, PROOF_BLOCKS)];
        if cursor.next_segment < self.geometry.segments
            && self.buffered(self.geometry.segment_start(cursor.next_segment), 1).is_some()
        {
            // Only one of the two can be the next chunk, and this one needs no read.
            candidates.reverse();
        }
        for (segment, offset, ahead) in candidates {
            if let Some(chunk) = self.read_chunk(segment, offset, ahead).filter(belongs) {
                self.load_index(&chunk, segment, offset);
                return Some(chunk);
            }
        }
        None
    }

    /// The chunk that begins at `offset` in a segment, if its head and entries are intact. Does not verify
    /// data blocks.
    pub(crate) fn read_chunk(&mut self, segment: u32, offset: u64, ahead: u64) -> Option<LogChunk> {
        if segment >= self.geometry.segments || offset >= self.geometry.segment_blocks {
            return None;
        }
        let geometry = self.geometry;
        let at = geometry.segment_start(segment).plus(offset);
        let space = geometry.segment_blocks - offset;
        let first = self.read_blocks(at, 1, ahead.min(space))?;
        let claimed = claimed_entry_blocks(&first[0], geometry.id).filter(|&blocks| blocks <= space)?;
        parse_chunk(geometry, at, self.read_blocks(at, claimed, ahead.max(claimed).min(space))?)
    }

    /// The offsets in a segment whose blocks look like the beginning of a chunk. Reads all blocks together,
    /// if possible.
    pub(crate) fn chunk_candidates(&mut self, segment: u32, from: u64, count: u64) -> Vec<u64> {
        let geometry = self.geometry;
        let start = geometry.segment_start(segment);
        let is_candidate = |page: &Page| claimed_entry_blocks(page, geometry.id).is_some();
        if let Some(pages) = self.read_blocks(start.plus(from), count, count) {
            return (from..)
                .zip(pages)
                .filter(|(_, page)| is_candidate(page))
                .map(|(offset, _)| offset)
                .collect();
        }
        let mut offsets = Vec::new();
        for offset in from..from + count {
            let pages = self.read_blocks(start.plus(offset), 1, 1);
            if pages.is_some_and(|pages| is_candidate(&pages[0])) {
                offsets.push(offset);
            }
        }
        offsets
    }

    fn buffered(&self, at: Block, count: u64) -> Option<&[Page]> {
        self.window.get(at, count).or_else(|| self.index_window.get(at, count))
    }

    /// `count` blocks. If they are not in memory, reads `ahead` blocks from here on. `None` if they cannot be
    /// read.
    pub(crate) fn read_blocks(&mut self, at: Block, count: u64, ahead: u64) -> Option<&[Page]> {
        if self.buffered(at, count).is_none() {
            let mut pages = device::pages(ahead as usize);
            if self.device.read(at, &mut pages).is_err() {
                // Perhaps only the blocks further on are unreadable.
                pages.truncate(count as usize);
                if !read_with_retries(self.device, at, &mut pages) {
                    return None;
                }
            }
            self.window = LogWindow { at, pages };
        }
        self.buffered(at, count)
    }

    /// If `chunk` is the first one read in its extent, looks for a chunk index at the beginning of the next
    /// extent.
    fn load_index(&mut self, chunk: &LogChunk, segment: u32, offset: u64) {
        let extent_start = self.geometry.segment_start(segment).plus(self.extents.start(offset));
        if self.extent_start == Some(extent_start) {
            return;
        }
        self.extent_start = Some(extent_start);
        self.indexed.clear();
        let index_window = std::mem::take(&mut self.index_window);
        if index_window.get(chunk.at, 1).is_some() {
            self.window = index_window;
        }
        let end = self.extents.end(offset);
        let mut index_segment = segment;
        let mut index_offset = end;
        if end == self.geometry.segment_blocks {
            index_segment = chunk.head.next_segment;
            index_offset = 0;
        }
        if index_segment >= self.geometry.segments || !self.extents.has_index() {
            return;
        }
        let count = INDEX_READ_BLOCKS.min(self.geometry.segment_blocks - index_offset);
        let mut pages = device::pages(count as usize);
        let at = self.geometry.segment_start(index_segment).plus(index_offset);
        // Without the index, recovery reads each chunk in its place.
        if self.device.read(at, &mut pages).is_ok() {
            self.index_window = LogWindow { at, pages };
            self.indexed = self.indexed_chunks(segment, chunk).unwrap_or_default();
        }
    }

    /// The chunks of `segment` that the chunk index in `index_window` has, without damaged ones.
    fn indexed_chunks(&self, segment: u32, chunk: &LogChunk) -> Option<BTreeMap<Block, LogChunk>> {
        let at = self.index_window.at;
        let blocks = claimed_entry_blocks(&self.index_window.get(at, 1)?[0], self.geometry.id)?;
        let carrier = parse_chunk(self.geometry, at, self.index_window.get(at, blocks)?)?;
        // The block may be left from an earlier use of the segment.
        if carrier.head.incarnation != chunk.head.incarnation || carrier.head.chunk <= chunk.head.chunk {
            return None;
        }
        let pages = self.index_window.get(at.plus(blocks), carrier.head.index_blocks)?;
        let start = self.geometry.segment_start(segment);
        let mut chunks = BTreeMap::new();
        for (offset, head) in indexed_heads(pages) {
            if offset >= self.geometry.segment_blocks {
                continue;
            }
            if let Some(chunk) = parse_chunk(self.geometry, start.plus(offset), &head) {
                chunks.insert(chunk.at, chunk);
            }
        }
        Some(chunks)
    }

    /// Looks for proof that `batch`, of which something is bad at or before `cursor`, was durable once: a
    /// later chunk that says so. Looks at most one chunk further on, in the open segment and in the next, and
    /// from any later chunk along the log. Returns the block with the proof.
    pub(crate) fn find_proof_of_rot(
        &mut self,
        cursor: &LogCursor,
        batch: u64,
        incarnation: Incarnation,
    ) -> Option<Block> {
        // The next segment comes first because its blocks were read last, in search of the next chunk.
        for (segment, offset) in [(cursor.next_segment, 0), (cursor.segment, cursor.offset)] {
            if segment >= self.geometry.segments {
                continue;
            }
            let window = self.geometry.segment_blocks.saturating_sub(offset).min(PROOF_BLOCKS);
            for offset in self.chunk_candidates(segment, offset, window) {
                let Some(chunk) = self.read_chunk(segment, offset, ENTRY_BLOCKS_AHEAD) else { continue };
                let later = chunk.head.incarnation == incarnation && chunk.head.chunk > cursor.chunk;
                if later && let Some(proof) = self.follow_for_proof(chunk, batch) {
                    return Some(proof);
                }
            }
        }
        None
    }

    fn follow_for_proof(&self, first: LogChunk, batch: u64) -> Option<Block> {
        let mut chunk = first;
        let mut reader = LogReader::new(self.device, self.geometry);
        loop {
            if chunk.head.durable_batch >= batch {
                return Some(chunk.at);
            }
            let incarnation = chunk.head.incarnation;
            let cursor = chunk.cursor_after(self.geometry);
            chunk = reader.next_chunk(&cursor, incarnation)?;
        }
    }
}

//! The end of the log: where the next batch goes, and what recovery must still make durable.

use crate::checkpoint_root::LogCursor;
use crate::counters::count;
use crate::error::StoreError;
use crate::flusher::FailedFlushes;
use crate::log_chunk::{ChunkPlan, LogPosition, plan_chunks, read_either_copy, read_with_retries};
use crate::log_entry::{BatchOrigin, ChunkHead, LogEntry, MirroredBlock, encode_chunk};
use crate::log_extent::{ChunkIndex, LogExtents};
use crate::log_progress::LogLength;
use crate::medium::StoreMedium;
use crate::segments::SegmentUse;
use crate::shared::StoreShared;
use device::{Block, Page};

/// Blocks read and written together when recovery's last batch is written again: 1 MiB.
const REWRITE_BLOCKS: usize = 256;

/// Chunks up to this size keep their memory for the next one: 8 MiB.
const CHUNK_MEMORY_PAGES_MAX: usize = 2048;

/// The end of the log. Owned by the writer, under its lock. After a crash: from the newest root and the log
/// after it.
pub(crate) struct LogWriter {
    cursor: LogCursor,
    /// The heads of all chunks in the open extent.
    open_index: ChunkIndex,
    /// `cursor` is at the start of segments that the log took anew, and nothing of this incarnation was
    /// written there.
    is_fresh: bool,
    /// Blocks that recovery has read and that may not be durable: first block and count.
    unconfirmed_blocks: Vec<(Block, u64)>,
    /// Mirrored blocks that recovery has read and that may not be durable. Of each, at least one copy is
    /// intact.
    unconfirmed_mirrored: Vec<MirroredBlock>,
    /// Memory for the next chunk. New memory of this size would have to be zeroed each time.
    chunk_memory: Vec<Page>,
}

impl LogWriter {
    pub(crate) fn at(cursor: LogCursor) -> LogWriter {
        LogWriter {
            cursor,
            open_index: ChunkIndex::default(),
            is_fresh: false,
            unconfirmed_blocks: Vec::new(),
            unconfirmed_mirrored: Vec::new(),
            chunk_memory: Vec::new(),
        }
    }

    pub(crate) fn cursor(&self) -> LogCursor {
        self.cursor
    }

    /// Recovery has followed the log to here.
    pub(crate) fn set_end(&mut self, cursor: LogCursor) {
        self.cursor = cursor;
    }

    /// Recovery has read these blocks, and has no proof that they are durable.
    pub(crate) fn set_unconfirmed(&mut self, blocks: Vec<(Block, u64)>, pairs: Vec<MirroredBlock>) {
        self.unconfirmed_blocks = blocks;
        self.unconfirmed_mirrored = pairs;
    }

    /// All blocks that recovery has read are durable.
    pub(crate) fn confirm_durable(&mut self) {
        self.unconfirmed_blocks.clear();
        self.unconfirmed_mirrored.clear();
    }

    /// Whether [`rewrite_unconfirmed`](LogWriter::rewrite_unconfirmed) will write this block. If so, a wrong
    /// checksum is no damage: the block may never have been written.
    pub(crate) fn will_rewrite(&self, at: Block) -> bool {
        self.unconfirmed_mirrored.iter().any(|one| one.at == at || one.copy == at)
    }

    pub(crate) fn has_unconfirmed(&self) -> bool {
        !self.unconfirmed_blocks.is_empty()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    pub(crate) fn set_fresh(&mut self, is_fresh: bool) {
        self.is_fresh = is_fresh;
    }

    /// Continues in `segment`, and then in `next`. Neither has anything of the log.
    pub(crate) fn restart(&mut self, segment: u32, next: u32) {
        self.cursor = LogCursor { segment, offset: 0, next_segment: next, chain_crc: 0, ..self.cursor };
        self.open_index.clear();
        self.is_fresh = true;
    }

    /// Nothing whole was written since the log took its segments: it continues at the same place.
    pub(crate) fn reuse_fresh(&mut self) {
        self.cursor.chain_crc = 0;
        self.is_fresh = true;
    }

    /// How a vector would be cut into chunks from here on.
    pub(crate) fn plan_vector(&self, entries: &[LogEntry], segment_blocks: u64) -> Vec<ChunkPlan> {
        let from = LogPosition { offset: self.cursor.offset, index_bytes: self.open_index.bytes() };
        plan_chunks(entries, from, segment_blocks)
    }

    /// Writes again the blocks that recovery has read and that may not be durable. An earlier failed flush
    /// may have dropped them from a cache that still returns them to readers. Of a mirrored block one copy
    /// may never have been written, so both are. The caller flushes.
    pub(crate) fn rewrite_unconfirmed(&self, medium: &StoreMedium) -> Result<(), StoreError> {
        for &(start, count) in &self.unconfirmed_blocks {
            for first in (0..count).step_by(REWRITE_BLOCKS) {
                let run = (first..count.min(first + REWRITE_BLOCKS as u64)).map(|index| start.plus(index));
                rewrite_run(medium, &run.collect::<Vec<_>>())?;
            }
        }
        for one in &self.unconfirmed_mirrored {
            if let Some(page) = read_either_copy(medium.device(), one) {
                medium.write(one.at, std::slice::from_ref(&page))?;
                medium.write(one.copy, std::slice::from_ref(&page))?;
            }
        }
        Ok(())
    }

    /// Writes a batch and makes it durable, with the mirrored blocks that were written since `since`.
    /// Afterwards the entries have the places of their data. After an error it is unknown which of it is on
    /// the medium.
    pub(crate) fn write_batch(
        &mut self,
        shared: &StoreShared,
        since: FailedFlushes,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
        origin: BatchOrigin,
    ) -> Result<(), StoreError> {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        let chunks = self.plan_vector(entries, segment_blocks);
        let extents = LogExtents::of(segment_blocks);
        let mut written = Ok(());
        let mut length = LogLength::default();
        for (number, chunk) in chunks.iter().enumerate() {
            if chunk.starts_segment {
                self.advance_segment(shared);
            }
            let mut index = ChunkIndex::default();
            if self.cursor.offset == extents.start(self.cursor.offset) {
                index = std::mem::take(&mut self.open_index);
                if index.bytes() > 0 {
                    length.reads += extents.reads(chunk.index_blocks > 0);
                }
            }
            length.blocks += chunk.blocks();
            let is_last = number + 1 == chunks.len();
            let range = chunk.entries.clone();
            written = written.and_then(|()| {
                let head = ChunkHead { is_last, origin, ..self.chunk_head(shared, chunk) };
                self.write_chunk(&shared.medium, head, &index, &data[range.clone()], &mut entries[range])
            });
        }
        let flushed = written.and_then(|()| flush(&shared.medium, since));
        let batch = self.cursor.batch;
        // Even after an error: no later batch gets this number, and no later chunk this place.
        self.cursor.batch += 1;
        self.is_fresh = false;
        {
            let mut map = shared.map_mut();
            map.nodes.segments.set_log_rest(segment_blocks - self.cursor.offset);
            map.charge_log_blocks(length.blocks);
        }
        flushed?;
        shared.progress.set_durable_batch(batch);
        shared.progress.add(length);
        let counting = shared.medium.counting();
        count(&counting.pages_written, data.iter().flatten().count() as u64);
        let deltas = entries.iter().filter(|entry| matches!(entry, LogEntry::Deltas { .. })).count();
        count(&counting.delta_blocks_written, deltas as u64);
        count(&counting.batches, 1);
        Ok(())
    }

    /// Continues in the next segment, and chooses the one after it.
    fn advance_segment(&mut self, shared: &StoreShared) {
        let mut map = shared.map_mut();
        map.nodes.segments.close(self.cursor.segment);
        let next = map.nodes.segments.take(SegmentUse::Log).expect("space was checked");
        self.cursor =
            LogCursor { segment: self.cursor.next_segment, offset: 0, next_segment: next, ..self.cursor };
    }

    fn chunk_head(&self, shared: &StoreShared, chunk: &ChunkPlan) -> ChunkHead {
        ChunkHead {
            incarnation: shared.incarnation(),
            chunk: self.cursor.chunk,
            batch: self.cursor.batch,
            durable_batch: shared.progress.durable_batch(),
            chain_crc: self.cursor.chain_crc,
            next_segment: self.cursor.next_segment,
            is_last: false,
            origin: BatchOrigin::Logged,
            entry_blocks: chunk.entry_blocks,
            data_blocks: chunk.index_blocks + chunk.page_blocks,
            index_blocks: chunk.index_blocks,
            entries: chunk.entries.len(),
        }
    }

    /// Writes one chunk at the cursor, with the chunk index of the last extent if one is planned. Moves the
    /// cursor past the chunk, and adds the chunk's head to the open index.
    fn write_chunk(
        &mut self,
        medium: &StoreMedium,
        head: ChunkHead,
        index: &ChunkIndex,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let geometry = medium.geometry();
        let at = geometry.segment_start(self.cursor.segment).plus(self.cursor.offset);
        let mut pages = std::mem::take(&mut self.chunk_memory);
        pages.resize((head.entry_blocks + head.data_blocks) as usize, Page::ZERO);
        // The other pages are overwritten as a whole.
        pages[..(head.entry_blocks + head.index_blocks) as usize].fill(Page::ZERO);
        let mut next = head.entry_blocks + head.index_blocks;
        if head.index_blocks > 0 {
            index.write_to(&mut pages[head.entry_blocks as usize..next as usize]);
        }
        for (entry, data) in entries.iter_mut().zip(data).filter(|(entry, _)| entry.has_data()) {
            if let Some(bytes) = data {
                entry.set_own_block(at.plus(next));
                pages[next as usize].0.copy_from_slice(&bytes.0);
                next += 1;
            }
        }
        assert_eq!(next as usize, pages.len(), "no page is left as an earlier chunk had it");
        let (head_pages, _) = pages.split_at_mut(head.entry_blocks as usize);
        self.cursor.chain_crc = encode_chunk(&head, entries, geometry.id, head_pages);
        self.open_index.push(self.cursor.offset, head_pages, entries.len());
        self.cursor.chunk += 1;
        self.cursor.offset += pages.len() as u64;
        let written = medium.write(at, &pages);
        if pages.len() <= CHUNK_MEMORY_PAGES_MAX {
            self.chunk_memory = pages;
        }
        written
    }
}

/// Reads consecutive blocks and writes them to the same place. If they cannot be read together, does so one
/// by one.
fn rewrite_run(medium: &StoreMedium, run: &[Block]) -> Result<(), StoreError> {
    let mut pages = device::pages(run.len());
    if medium.device().read(run[0], &mut pages).is_ok() {
        return medium.write(run[0], &pages);
    }
    for &at in run {
        let mut page = device::pages(1);
        // A block that cannot be read is in no cache, so no flush could make it durable. It may be a head of
        // which the index has a copy.
        if read_with_retries(medium.device(), at, &mut page) {
            medium.write(at, &page)?;
        }
    }
    Ok(())
}

#[cfg(not(feature = "planted-bugs"))]
fn flush(medium: &StoreMedium, since: FailedFlushes) -> Result<(), StoreError> {
    medium.flush_since(since)
}

#[cfg(feature = "planted-bugs")]
fn flush(medium: &StoreMedium, since: FailedFlushes) -> Result<(), StoreError> {
    if medium.planted().is_missing_flush() { Ok(()) } else { medium.flush_since(since) }
}

//! The log: where the next batch goes, and how far it is durable.

use crate::checkpoint_root::LogCursor;
use crate::counters::count;
use crate::error::StoreError;
use crate::flushes::FailedFlushes;
use crate::log_chunk::{ChunkPlan, LogPosition, plan_chunks, read_either_copy, read_with_retries};
use crate::log_entry::{BatchOrigin, ChunkHead, LogEntry, MirroredBlock, encode_chunk};
use crate::log_extent::{ChunkIndex, LogExtents};
use crate::medium::StoreMedium;
use crate::progress::LogLength;
use crate::segments::Use;
use crate::shared::Shared;
use device::{Block, Page};

/// Blocks that are read and written together where recovery's last batch is written again: a MiB.
const REWRITE_BLOCKS: usize = 256;

/// The largest chunk whose memory is kept: 8 MiB.
const CHUNK_MEMORY_PAGES_MAX: usize = 2048;

/// The log's end. Owned by the writer, under its lock. After a crash: from the newest root and the log after it.
pub(crate) struct LogWriter {
    cursor: LogCursor,
    /// The heads of all chunks in the open stretch.
    open_index: ChunkIndex,
    /// `cursor` is at the start of segments of its own, with nothing of this incarnation written there yet.
    is_fresh: bool,
    /// Blocks that recovery has read, and that are not known to be durable: first and number.
    unconfirmed_blocks: Vec<(Block, u64)>,
    /// The same, in pairs of segments: one of the two is whole.
    unconfirmed_mirrored: Vec<MirroredBlock>,
    /// Memory for the next chunk: new memory of this size would have to be zeroed each time.
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

    /// Recovery has read these blocks, and nothing shows that they are durable.
    pub(crate) fn set_unconfirmed(&mut self, blocks: Vec<(Block, u64)>, pairs: Vec<MirroredBlock>) {
        (self.unconfirmed_blocks, self.unconfirmed_mirrored) = (blocks, pairs);
    }

    /// Everything that was read is known to be durable.
    pub(crate) fn confirm_durable(&mut self) {
        self.unconfirmed_blocks.clear();
        self.unconfirmed_mirrored.clear();
    }

    /// Whether this block will be [written again](Log::write_readable_again): then it is not damaged if it is not what it should be,
    /// but was perhaps never written.
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

    /// Goes on in `segment`, and then in `next`, which hold nothing of it.
    pub(crate) fn restart(&mut self, segment: u32, next: u32) {
        self.cursor = LogCursor { segment, offset: 0, next_segment: next, chain_crc: 0, ..self.cursor };
        self.open_index.clear();
        self.is_fresh = true;
    }

    /// Nothing whole was written since it started anew: it goes on where it is.
    pub(crate) fn reuse_fresh(&mut self) {
        self.cursor.chain_crc = 0;
        self.is_fresh = true;
    }

    /// How log entries would be cut into chunks from here on.
    pub(crate) fn plan_vector(&self, entries: &[LogEntry], segment_blocks: u64) -> Vec<ChunkPlan> {
        let place = LogPosition { offset: self.cursor.offset, index_bytes: self.open_index.bytes() };
        plan_chunks(entries, place, segment_blocks)
    }

    /// Writes again what recovery has read and what is not known to be durable: a flush that failed before may have dropped it from
    /// a cache that still gives it to readers. Of what is there twice one may never have been written. The caller flushes.
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

    /// Writes a batch and makes it durable, with what was written in pairs of segments since `since`. The places of the writes are known
    /// afterwards. After an error it is not known what of it is on the medium.
    pub(crate) fn write_batch(
        &mut self,
        shared: &Shared,
        since: FailedFlushes,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
        origin: BatchOrigin,
    ) -> Result<(), StoreError> {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        let pieces = self.plan_vector(entries, segment_blocks);
        let extents = LogExtents::of(segment_blocks);
        let (mut written, mut length) = (Ok(()), LogLength::default());
        for (index, piece) in pieces.iter().enumerate() {
            if piece.starts_segment {
                self.advance_segment(shared);
            }
            let mut copies = ChunkIndex::default();
            if self.cursor.offset == extents.start(self.cursor.offset) {
                copies = std::mem::take(&mut self.open_index);
                length.reads += if copies.bytes() > 0 { extents.reads(piece.index_blocks > 0) } else { 0 };
            }
            length.blocks += piece.blocks();
            let last = index + 1 == pieces.len();
            let range = piece.entries.clone();
            written = written.and_then(|()| {
                let head = ChunkHead { is_last: last, origin, ..self.chunk_head(shared, piece) };
                self.write_chunk(&shared.medium, head, &copies, &data[range.clone()], &mut entries[range])
            });
        }
        let flushed = written.and_then(|()| flush(&shared.medium, since));
        let batch = self.cursor.batch;
        // Whatever happened, no later batch has this number and no later chunk lies here.
        self.cursor.batch += 1;
        self.is_fresh = false;
        {
            let mut map = shared.map_mut();
            map.nodes.segments.set_log_rest(segment_blocks - self.cursor.offset);
            map.pay_for(length.blocks);
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

    /// Goes on in the next segment, and chooses the one after it.
    fn advance_segment(&mut self, shared: &Shared) {
        let mut map = shared.map_mut();
        map.nodes.segments.close(self.cursor.segment);
        let next = map.nodes.segments.take(Use::Log).expect("space was checked");
        self.cursor =
            LogCursor { segment: self.cursor.next_segment, offset: 0, next_segment: next, ..self.cursor };
    }

    fn chunk_head(&self, shared: &Shared, piece: &ChunkPlan) -> ChunkHead {
        ChunkHead {
            incarnation: shared.incarnation(),
            chunk: self.cursor.chunk,
            batch: self.cursor.batch,
            durable_batch: shared.progress.durable_batch(),
            chain_crc: self.cursor.chain_crc,
            next_segment: self.cursor.next_segment,
            is_last: false,
            origin: BatchOrigin::Logged,
            entry_blocks: piece.entry_blocks,
            data_blocks: piece.index_blocks + piece.page_blocks,
            index_blocks: piece.index_blocks,
            entries: piece.entries.len(),
        }
    }

    /// Writes one chunk at the cursor, and moves it past the chunk; with `copies` where they are planned. Its own head is added to
    /// the index.
    fn write_chunk(
        &mut self,
        medium: &StoreMedium,
        head: ChunkHead,
        copies: &ChunkIndex,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let geometry = medium.geometry();
        let at = geometry.segment_start(self.cursor.segment).plus(self.cursor.offset);
        let mut pages = std::mem::take(&mut self.chunk_memory);
        pages.resize((head.entry_blocks + head.data_blocks) as usize, Page::ZERO);
        // The others are written over as wholes.
        pages[..(head.entry_blocks + head.index_blocks) as usize].fill(Page::ZERO);
        let mut next = head.entry_blocks + head.index_blocks;
        if head.index_blocks > 0 {
            copies.write_to(&mut pages[head.entry_blocks as usize..next as usize]);
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

/// Reads consecutive blocks and writes them where they are. Where they cannot be read together, each by itself.
fn rewrite_run(medium: &StoreMedium, run: &[Block]) -> Result<(), StoreError> {
    let mut pages = device::pages(run.len());
    if medium.device().read(run[0], &mut pages).is_ok() {
        return medium.write(run[0], &pages);
    }
    for &at in run {
        let mut page = device::pages(1);
        // What cannot be read, as a head of which there is a copy, is in no cache.
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

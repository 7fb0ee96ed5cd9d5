//! The log: where the next batch goes, and how far it is durable.

use crate::chunk::{Piece, Place, plan, read_either, read_patiently};
use crate::counters::count;
use crate::entry::{ChunkHead, LogEntry, Origin, Paired, encode_chunk};
use crate::error::StoreError;
use crate::flusher::FailedFlushes;
use crate::log_progress::LogLength;
use crate::medium::Medium;
use crate::root::Cursor;
use crate::segments::SegmentUse;
use crate::shared::StoreShared;
use crate::stretch::{ChunkIndex, Stretches};
use device::{Block, Page};

/// Blocks that are read and written together where recovery's last batch is written again: a MiB.
const RUN_BLOCKS: usize = 256;

/// The largest chunk whose memory is kept: 8 MiB.
const PAGES_KEPT_MAX: usize = 2048;

/// The log's end. Owned by the writer, under its lock. After a crash: from the newest root and the log after it.
pub(crate) struct Log {
    cursor: Cursor,
    /// The heads of all chunks in the open stretch.
    index: ChunkIndex,
    /// `cursor` is at the start of segments of its own, with nothing of this incarnation written there yet.
    is_fresh: bool,
    /// Blocks that recovery has read, and that are not known to be durable: first and number.
    readable: Vec<(Block, u64)>,
    /// The same, in pairs of segments: one of the two is whole.
    readable_pairs: Vec<Paired>,
    /// Memory for the next chunk: new memory of this size would have to be zeroed each time.
    pages: Vec<Page>,
}

impl Log {
    pub(crate) fn at(cursor: Cursor) -> Log {
        Log {
            cursor,
            index: ChunkIndex::default(),
            is_fresh: false,
            readable: Vec::new(),
            readable_pairs: Vec::new(),
            pages: Vec::new(),
        }
    }

    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Recovery has followed the log to here.
    pub(crate) fn found_end(&mut self, cursor: Cursor) {
        self.cursor = cursor;
    }

    /// Recovery has read these blocks, and nothing shows that they are durable.
    pub(crate) fn found_readable(&mut self, blocks: Vec<(Block, u64)>, pairs: Vec<Paired>) {
        (self.readable, self.readable_pairs) = (blocks, pairs);
    }

    /// Everything that was read is known to be durable.
    pub(crate) fn is_durable(&mut self) {
        self.readable.clear();
        self.readable_pairs.clear();
    }

    /// Whether this block will be [written again](Log::write_readable_again): then it is not damaged if it is not what it should be,
    /// but was perhaps never written.
    pub(crate) fn will_write_again(&self, at: Block) -> bool {
        self.readable_pairs.iter().any(|one| one.at == at || one.copy == at)
    }

    pub(crate) fn has_readable(&self) -> bool {
        !self.readable.is_empty()
    }

    pub(crate) fn is_fresh(&self) -> bool {
        self.is_fresh
    }

    pub(crate) fn set_fresh(&mut self, is_fresh: bool) {
        self.is_fresh = is_fresh;
    }

    /// Goes on in `segment`, and then in `next`, which hold nothing of it.
    pub(crate) fn restart(&mut self, segment: u32, next: u32) {
        self.cursor = Cursor { segment, offset: 0, next, chain: 0, ..self.cursor };
        self.index.clear();
        self.is_fresh = true;
    }

    /// Nothing whole was written since it started anew: it goes on where it is.
    pub(crate) fn keep_fresh(&mut self) {
        self.cursor.chain = 0;
        self.is_fresh = true;
    }

    /// How log entries would be cut into chunks from here on.
    pub(crate) fn plan(&self, entries: &[LogEntry], segment_blocks: u64) -> Vec<Piece> {
        let place = Place { offset: self.cursor.offset, copy_bytes: self.index.bytes() };
        plan(entries, place, segment_blocks)
    }

    /// Writes again what recovery has read and what is not known to be durable: a flush that failed before may have dropped it from
    /// a cache that still gives it to readers. Of what is there twice one may never have been written. The caller flushes.
    pub(crate) fn write_readable_again(&self, medium: &Medium) -> Result<(), StoreError> {
        for &(start, count) in &self.readable {
            for first in (0..count).step_by(RUN_BLOCKS) {
                let run = (first..count.min(first + RUN_BLOCKS as u64)).map(|index| start.plus(index));
                write_again(medium, &run.collect::<Vec<_>>())?;
            }
        }
        for one in &self.readable_pairs {
            if let Some(page) = read_either(medium.device(), one) {
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
        shared: &StoreShared,
        since: FailedFlushes,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
        origin: Origin,
    ) -> Result<(), StoreError> {
        let segment_blocks = shared.medium.geometry().segment_blocks;
        let pieces = self.plan(entries, segment_blocks);
        let stretches = Stretches::of(segment_blocks);
        let (mut written, mut length) = (Ok(()), LogLength::default());
        for (index, piece) in pieces.iter().enumerate() {
            if piece.moves_on {
                self.move_on(shared);
            }
            let mut copies = ChunkIndex::default();
            if self.cursor.offset == stretches.start(self.cursor.offset) {
                copies = std::mem::take(&mut self.index);
                length.reads += if copies.bytes() > 0 { stretches.reads(piece.copy_blocks > 0) } else { 0 };
            }
            length.blocks += piece.blocks();
            let last = index + 1 == pieces.len();
            let range = piece.entries.clone();
            written = written.and_then(|()| {
                let head = ChunkHead { last, origin, ..self.head(shared, piece) };
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

    /// Goes on in the next segment, and chooses the one after it.
    fn move_on(&mut self, shared: &StoreShared) {
        let mut map = shared.map_mut();
        map.nodes.segments.close(self.cursor.segment);
        let next = map.nodes.segments.take(SegmentUse::Log).expect("space was checked");
        self.cursor = Cursor { segment: self.cursor.next, offset: 0, next, ..self.cursor };
    }

    fn head(&self, shared: &StoreShared, piece: &Piece) -> ChunkHead {
        ChunkHead {
            incarnation: shared.incarnation(),
            chunk: self.cursor.chunk,
            batch: self.cursor.batch,
            durable: shared.progress.durable_batch(),
            chain: self.cursor.chain,
            next: self.cursor.next,
            last: false,
            origin: Origin::Logged,
            entry_blocks: piece.entry_blocks,
            data_blocks: piece.copy_blocks + piece.page_blocks,
            copy_blocks: piece.copy_blocks,
            entries: piece.entries.len(),
        }
    }

    /// Writes one chunk at the cursor, and moves it past the chunk; with `copies` where they are planned. Its own head is added to
    /// the index.
    fn write_chunk(
        &mut self,
        medium: &Medium,
        head: ChunkHead,
        copies: &ChunkIndex,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let geometry = medium.geometry();
        let at = geometry.start(self.cursor.segment).plus(self.cursor.offset);
        let mut pages = std::mem::take(&mut self.pages);
        pages.resize((head.entry_blocks + head.data_blocks) as usize, Page::ZERO);
        // The others are written over as wholes.
        pages[..(head.entry_blocks + head.copy_blocks) as usize].fill(Page::ZERO);
        let mut next = head.entry_blocks + head.copy_blocks;
        if head.copy_blocks > 0 {
            copies.write(&mut pages[head.entry_blocks as usize..next as usize]);
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
        self.cursor.chain = encode_chunk(&head, entries, geometry.id, head_pages);
        self.index.push(self.cursor.offset, head_pages, entries.len());
        self.cursor.chunk += 1;
        self.cursor.offset += pages.len() as u64;
        let written = medium.write(at, &pages);
        if pages.len() <= PAGES_KEPT_MAX {
            self.pages = pages;
        }
        written
    }
}

/// Reads consecutive blocks and writes them where they are. Where they cannot be read together, each by itself.
fn write_again(medium: &Medium, run: &[Block]) -> Result<(), StoreError> {
    let mut pages = device::pages(run.len());
    if medium.device().read(run[0], &mut pages).is_ok() {
        return medium.write(run[0], &pages);
    }
    for &at in run {
        let mut page = device::pages(1);
        // What cannot be read, as a head of which there is a copy, is in no cache.
        if read_patiently(medium.device(), at, &mut page) {
            medium.write(at, &page)?;
        }
    }
    Ok(())
}

#[cfg(not(feature = "planted-bugs"))]
fn flush(medium: &Medium, since: FailedFlushes) -> Result<(), StoreError> {
    medium.flush_since(since)
}

#[cfg(feature = "planted-bugs")]
fn flush(medium: &Medium, since: FailedFlushes) -> Result<(), StoreError> {
    if medium.planted().is_missing_flush() { Ok(()) } else { medium.flush_since(since) }
}

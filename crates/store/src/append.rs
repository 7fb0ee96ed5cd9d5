//! Applying vectors: into the log, durable, then into the map.

use crate::change::Change;
use crate::counters::count;
use crate::entry::{ChunkHead, LogEntry, encode_chunk};
use crate::error::StoreError;
use crate::flushes::FailedFlushes;
use crate::log::{Piece, plan};
use crate::map::Missing;
use crate::policy::Class;
use crate::root::Cursor;
use crate::segments::Use;
use crate::store::{Health, Store, Writer};
use crate::stretch::{ChunkIndex, Stretches};
use crate::volume::{VolumeId, VolumeMode};
use device::{Lsn, Page};
use std::sync::atomic::Ordering;

impl Store {
    /// Applies all of `vector` or nothing; durable on return. Readers see it afterwards.
    ///
    /// After an error nothing of it is visible, and it is not known to be durable: a crash later may leave all of
    /// it or nothing. The next call first writes both roots anew, so that the log goes on elsewhere.
    ///
    /// # Errors
    /// [`StoreError::Full`] before anything is written, where a checkpoint did not help; the device's;
    /// [`StoreError::Corrupt`] if a map node that it must change is damaged; [`StoreError::NotBegun`].
    pub fn apply(&self, vector: &[Change]) -> Result<(), StoreError> {
        self.apply_to(VolumeId::MAIN, vector)
    }

    /// As [`apply`](Store::apply), to any volume.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::ReadOnlyVolume`], or those of `apply`.
    pub fn apply_to(&self, volume: VolumeId, vector: &[Change]) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        self.make_ready(&mut writer)?;
        match self.map().volumes.get(&volume).map(|volume| volume.mode) {
            Some(VolumeMode::Writable) => {}
            Some(VolumeMode::ReadOnly) => return Err(StoreError::ReadOnlyVolume { volume }),
            None => return Err(StoreError::NoSuchVolume { volume }),
        }
        let frees = vector.iter().all(Change::frees);
        let class = if frees { Class::Frees } else { Class::Writer };
        let entries: Vec<LogEntry> = vector.iter().map(Change::log_entry).collect();
        let data: Vec<Option<&Page>> = vector.iter().map(Change::data).collect();
        self.append(&mut writer, volume, entries, &data, class)
    }

    /// Starts the log anew after an error, and refuses where changes may not be made.
    pub(crate) fn make_ready(&self, writer: &mut Writer) -> Result<(), StoreError> {
        match writer.health {
            Health::Good => Ok(()),
            Health::Unsure => self.restart_log(writer),
            Health::NotBegun => Err(StoreError::NotBegun),
            Health::Stopped => Err(self.stopped()),
        }
    }

    /// Log entries that have no data.
    pub(crate) fn append_entries(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        entries: Vec<LogEntry>,
        class: Class,
    ) -> Result<(), StoreError> {
        let data = vec![None; entries.len()];
        self.append(writer, volume, entries, &data, class)
    }

    /// Writes log entries with their data to the log, flushes, and changes the map.
    fn append(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        mut entries: Vec<LogEntry>,
        data: &[Option<&Page>],
        class: Class,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.holding_nodes(|| {
            self.load_for(&entries.iter().map(|entry| (volume, entry)).collect::<Vec<_>>())?;
            self.make_space(writer, volume, &entries, class)?;
            self.write_batch(writer, volume, data, &mut entries)?;
            self.change_map(writer, volume, &entries)
        })
    }

    /// Does something during which no node leaves memory: what was loaded for a change must be there for it.
    pub(crate) fn holding_nodes<T>(&self, work: impl FnOnce() -> T) -> T {
        self.map_mut().held += 1;
        let done = work();
        let mut map = self.map_mut();
        map.held -= 1;
        if map.held == 0 {
            map.evict();
        }
        done
    }

    /// Reads the nodes that log entries will change, so that no read can fail once the log has them.
    pub(crate) fn load_for(&self, entries: &[(VolumeId, &LogEntry)]) -> Result<(), StoreError> {
        self.resolve(|map| {
            let missing = entries.iter().filter_map(|&(volume, entry)| map.prepare(volume, entry).err());
            let missing: Vec<_> = missing.flat_map(|Missing(ids)| ids).collect();
            if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
        })
    }

    /// Checks that the log has space for these log entries above the reserve of others, also where they need no segment: what
    /// they change must be written by a checkpoint. Two checkpoints may make some.
    fn make_space(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        entries: &[LogEntry],
        class: Class,
    ) -> Result<(), StoreError> {
        for attempt in 0..3 {
            let pieces = plan(entries, writer.place(), self.geometry.segment_blocks);
            let segments = pieces.iter().filter(|piece| piece.moves_on).count() as u64;
            let class = if segments == 0 && class == Class::Writer { Class::OpenSegment } else { class };
            let map = self.map();
            let dirtied = map.nodes_for(volume, entries);
            let needed = segments + map.floor_after(class, dirtied);
            if map.segments.free_count() >= needed {
                return Ok(());
            }
            drop(map);
            // A writer with a reservation finds space. One without, as the first vector of a mount, does not wait for the background.
            let more = attempt < 2 && !self.is_known_full_below() && self.allocate_up_to(needed)? > 0;
            if attempt < 2 && !more {
                self.checkpoint_once(writer)?;
            }
        }
        Err(StoreError::Full)
    }

    /// Writes the batch and makes it durable. The places of the writes are known afterwards.
    fn write_batch(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let pieces = plan(entries, writer.place(), self.geometry.segment_blocks);
        let stretches = Stretches::of(self.geometry.segment_blocks);
        let mut cursor = writer.log;
        let (since, mut written, mut blocks, mut reads) = (self.failed_flushes(), Ok(()), 0, 0);
        for (index, piece) in pieces.iter().enumerate() {
            if piece.moves_on {
                cursor = self.move_on(&cursor);
            }
            let mut copies = ChunkIndex::default();
            if cursor.offset == stretches.start(cursor.offset) {
                copies = std::mem::take(&mut writer.chunk_index);
                reads += if copies.bytes() > 0 { stretches.reads(piece.copy_blocks > 0) } else { 0 };
            }
            blocks += piece.blocks();
            let last = index + 1 == pieces.len();
            let range = piece.entries.clone();
            written = written.and_then(|()| {
                let head = ChunkHead { volume, ..self.head(&cursor, piece, last) };
                let chunk_index = &mut writer.chunk_index;
                self.write_chunk(
                    &mut cursor,
                    head,
                    &copies,
                    chunk_index,
                    &data[range.clone()],
                    &mut entries[range],
                )
            });
        }
        let flushed = written.and_then(|()| self.flush_batch(since));
        // Whatever happened, no later batch has this number and no later chunk lies here.
        writer.log = cursor;
        writer.log.batch += 1;
        writer.log_is_fresh = false;
        let mut map = self.map_mut();
        map.segments.log_rest = self.geometry.segment_blocks - cursor.offset;
        map.pay_for(blocks);
        drop(map);
        if let Err(error) = flushed {
            writer.health = Health::Unsure;
            return Err(error);
        }
        self.durable_batch.store(cursor.batch, Ordering::Release);
        self.log_blocks.fetch_add(blocks, Ordering::Relaxed);
        self.log_reads.fetch_add(reads, Ordering::Relaxed);
        let pages: u64 = pieces.iter().map(|piece| piece.page_blocks).sum();
        count(&self.counting.pages_written, pages);
        count(&self.counting.batches, 1);
        Ok(())
    }

    /// Goes on in the next segment, and chooses the one after it.
    fn move_on(&self, cursor: &Cursor) -> Cursor {
        let mut map = self.map_mut();
        map.segments.close(cursor.segment);
        let next = map.segments.take(Use::Log).expect("space was checked");
        Cursor { segment: cursor.next, offset: 0, next, ..*cursor }
    }

    fn head(&self, cursor: &Cursor, piece: &Piece, last: bool) -> ChunkHead {
        ChunkHead {
            incarnation: self.incarnation(),
            volume: VolumeId::MAIN,
            chunk: cursor.chunk,
            batch: cursor.batch,
            durable: self.durable_batch(),
            chain: cursor.chain,
            next: cursor.next,
            last,
            entry_blocks: piece.entry_blocks,
            data_blocks: piece.copy_blocks + piece.page_blocks,
            copy_blocks: piece.copy_blocks,
            entries: piece.entries.len(),
        }
    }

    /// Writes one chunk at the cursor, and moves it past the chunk; with `copies` where they are planned. Its own head is
    /// added to `heads`.
    fn write_chunk(
        &self,
        cursor: &mut Cursor,
        head: ChunkHead,
        copies: &ChunkIndex,
        chunk_index: &mut ChunkIndex,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let at = self.geometry.start(cursor.segment).plus(cursor.offset);
        let mut pages = device::pages((head.entry_blocks + head.data_blocks) as usize);
        let mut next = head.entry_blocks + head.copy_blocks;
        if head.copy_blocks > 0 {
            copies.write(&mut pages[head.entry_blocks as usize..next as usize]);
        }
        for (entry, data) in entries.iter_mut().zip(data) {
            if let (LogEntry::Write { place, .. }, Some(bytes)) = (entry, data) {
                *place = at.plus(next);
                pages[next as usize].0.copy_from_slice(&bytes.0);
                next += 1;
            }
        }
        let (noted, _) = pages.split_at_mut(head.entry_blocks as usize);
        cursor.chain = encode_chunk(&head, entries, self.geometry.id, noted);
        chunk_index.push(cursor.offset, noted, entries.len());
        cursor.chunk += 1;
        cursor.offset += pages.len() as u64;
        self.write(at, &pages)
    }

    #[cfg(not(feature = "planted-bugs"))]
    fn flush_batch(&self, since: FailedFlushes) -> Result<(), StoreError> {
        self.flush_since(since)
    }

    #[cfg(feature = "planted-bugs")]
    fn flush_batch(&self, since: FailedFlushes) -> Result<(), StoreError> {
        if self.planted.missing_flush.load(Ordering::Relaxed) { Ok(()) } else { self.flush_since(since) }
    }

    /// Changes the map as durable log entries say. All of it under one hold of the lock, except where a log entry makes a
    /// later one need a node that was not needed before, as a clone may.
    pub(crate) fn change_map(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        entries: &[LogEntry],
    ) -> Result<(), StoreError> {
        let mut map = self.map_mut();
        for entry in entries {
            while let Err(Missing(ids)) = map.prepare(volume, entry) {
                drop(map);
                if let Some((_, error)) = self.load(ids).pop_first() {
                    writer.health = Health::Stopped;
                    return Err(error);
                }
                map = self.map_mut();
            }
            map.change(volume, entry);
            map.newest = map.newest.max(newest(entry));
        }
        Ok(())
    }
}

fn newest(entry: &LogEntry) -> Lsn {
    match entry {
        LogEntry::Write { page_lsn, .. } => *page_lsn,
        LogEntry::NameVolume { .. } => Lsn(0),
        LogEntry::Cut { lsn, .. }
        | LogEntry::Delete { lsn, .. }
        | LogEntry::Clone { lsn, .. }
        | LogEntry::CloneVolume { lsn, .. }
        | LogEntry::DeleteVolume { lsn } => *lsn,
    }
}

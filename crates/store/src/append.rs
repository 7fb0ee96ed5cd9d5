//! Applying vectors: into the log, durable, then into the map.

use crate::change::Change;
use crate::counters::count;
use crate::error::StoreError;
use crate::flushes::FailedFlushes;
use crate::log::{Piece, plan};
use crate::map::Missing;
use crate::note::{ChunkHead, Note, encode_chunk};
use crate::policy::Class;
use crate::root::Cursor;
use crate::segments::Use;
use crate::store::{Health, Store, Writer};
use crate::stretch::{Heads, Stretches};
use crate::volume::{VolumeId, VolumeMode};
use device::{Page, Sequence};
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
        let notes: Vec<Note> = vector.iter().map(Change::note).collect();
        let data: Vec<Option<&Page>> = vector.iter().map(Change::data).collect();
        self.append(&mut writer, volume, notes, &data, class)
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

    /// Notes that have no data.
    pub(crate) fn append_notes(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        notes: Vec<Note>,
        class: Class,
    ) -> Result<(), StoreError> {
        let data = vec![None; notes.len()];
        self.append(writer, volume, notes, &data, class)
    }

    /// Writes notes with their data to the log, flushes, and changes the map.
    fn append(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        mut notes: Vec<Note>,
        data: &[Option<&Page>],
        class: Class,
    ) -> Result<(), StoreError> {
        if notes.is_empty() {
            return Ok(());
        }
        self.holding_nodes(|| {
            self.load_for(&notes.iter().map(|note| (volume, note)).collect::<Vec<_>>())?;
            self.make_room(writer, volume, &notes, class)?;
            self.write_batch(writer, volume, data, &mut notes)?;
            self.change_map(writer, volume, &notes)
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

    /// Reads the nodes that notes will change, so that no read can fail once the log has them.
    pub(crate) fn load_for(&self, notes: &[(VolumeId, &Note)]) -> Result<(), StoreError> {
        self.resolve(|map| {
            let missing = notes.iter().filter_map(|&(volume, note)| map.prepare(volume, note).err());
            let missing: Vec<_> = missing.flat_map(|Missing(ids)| ids).collect();
            if missing.is_empty() { Ok(()) } else { Err(Missing(missing)) }
        })
    }

    /// Checks that the log has room for these notes above the reserve of others, also where they need no segment: what
    /// they change must be written by a checkpoint. Two checkpoints may make some.
    fn make_room(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        notes: &[Note],
        class: Class,
    ) -> Result<(), StoreError> {
        for attempt in 0..3 {
            let pieces = plan(notes, writer.place(), self.geometry.segment_blocks);
            let segments = pieces.iter().filter(|piece| piece.moves_on).count() as u64;
            let class = if segments == 0 && class == Class::Writer { Class::OpenSegment } else { class };
            let map = self.map();
            let dirtied = map.nodes_for(volume, notes);
            let needed = segments + map.floor_after(class, dirtied);
            if map.segments.free_count() >= needed {
                return Ok(());
            }
            drop(map);
            // Whoever was promised room finds it. Who was not, as the first vector of a mount, does not wait for the background.
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
        notes: &mut [Note],
    ) -> Result<(), StoreError> {
        let pieces = plan(notes, writer.place(), self.geometry.segment_blocks);
        let stretches = Stretches::of(self.geometry.segment_blocks);
        let mut cursor = writer.log;
        let (since, mut written, mut blocks, mut reads) = (self.failed_flushes(), Ok(()), 0, 0);
        for (index, piece) in pieces.iter().enumerate() {
            if piece.moves_on {
                cursor = self.move_on(&cursor);
            }
            let mut copies = Heads::default();
            if cursor.offset == stretches.start(cursor.offset) {
                copies = std::mem::take(&mut writer.heads);
                reads += if copies.bytes() > 0 { stretches.reads(piece.copy_blocks > 0) } else { 0 };
            }
            blocks += piece.blocks();
            let last = index + 1 == pieces.len();
            let range = piece.notes.clone();
            written = written.and_then(|()| {
                let head = ChunkHead { volume, ..self.head(&cursor, piece, last) };
                let heads = &mut writer.heads;
                self.write_chunk(&mut cursor, head, &copies, heads, &data[range.clone()], &mut notes[range])
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
        let next = map.segments.take(Use::Log).expect("room was checked");
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
            note_blocks: piece.note_blocks,
            data_blocks: piece.copy_blocks + piece.page_blocks,
            copy_blocks: piece.copy_blocks,
            notes: piece.notes.len(),
        }
    }

    /// Writes one chunk at the cursor, and moves it past the chunk; with `copies` where they are planned. Its own head is
    /// added to `heads`.
    fn write_chunk(
        &self,
        cursor: &mut Cursor,
        head: ChunkHead,
        copies: &Heads,
        heads: &mut Heads,
        data: &[Option<&Page>],
        notes: &mut [Note],
    ) -> Result<(), StoreError> {
        let at = self.geometry.start(cursor.segment).plus(cursor.offset);
        let mut pages = device::pages((head.note_blocks + head.data_blocks) as usize);
        let mut next = head.note_blocks + head.copy_blocks;
        if head.copy_blocks > 0 {
            copies.write(&mut pages[head.note_blocks as usize..next as usize]);
        }
        for (note, data) in notes.iter_mut().zip(data) {
            if let (Note::Write { place, .. }, Some(bytes)) = (note, data) {
                *place = at.plus(next);
                pages[next as usize].0.copy_from_slice(&bytes.0);
                next += 1;
            }
        }
        let (noted, _) = pages.split_at_mut(head.note_blocks as usize);
        cursor.chain = encode_chunk(&head, notes, self.geometry.id, noted);
        heads.push(cursor.offset, noted, notes.len());
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

    /// Changes the map as durable notes say. All of it under one hold of the lock, except where a note makes a
    /// later one need a node that was not needed before, as a clone may.
    pub(crate) fn change_map(
        &self,
        writer: &mut Writer,
        volume: VolumeId,
        notes: &[Note],
    ) -> Result<(), StoreError> {
        let mut map = self.map_mut();
        for note in notes {
            while let Err(Missing(ids)) = map.prepare(volume, note) {
                drop(map);
                if let Some((_, error)) = self.load(ids).pop_first() {
                    writer.health = Health::Stopped;
                    return Err(error);
                }
                map = self.map_mut();
            }
            map.change(volume, note);
            map.newest = map.newest.max(newest(note));
        }
        Ok(())
    }
}

fn newest(note: &Note) -> Sequence {
    match note {
        Note::Write { home, .. } => *home,
        Note::NameVolume { .. } => Sequence(0),
        Note::Cut { sequence, .. }
        | Note::Delete { sequence, .. }
        | Note::Clone { sequence, .. }
        | Note::CloneVolume { sequence, .. }
        | Note::DeleteVolume { sequence } => *sequence,
    }
}

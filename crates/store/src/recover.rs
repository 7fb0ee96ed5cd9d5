//! Opening a store: the newest root, then the whole batches of the log after it. Writes nothing.

use crate::bug::{PlantedBug, is_planted};
use crate::error::StoreError;
use crate::follow::LogReader;
use crate::format::ROOTS;
use crate::in_progress::Pending;
use crate::log::{Chunk, data_is_whole};
use crate::root::{Cursor, Root};
use crate::store::{Store, Writer};
use crate::superblock::Geometry;
use crate::tables::read_map;
use device::{Device, Incarnation, Page, StoreId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Log entries that are applied together: twice what 256 MiB of pages have, in 10 MB of memory. The nodes that they
/// change are read together, and stay in memory until the next checkpoint anyway.
const ENTRIES_AT_ONCE: usize = 131_072;

impl Store {
    /// Opens and recovers the store on `device`. Writes nothing: what is damaged stays as it was.
    ///
    /// Everything that was acknowledged is there. The last batch of the log, if it is torn, never happened; a
    /// batch that a later one knows to have been durable is not torn but rotten, and refused.
    ///
    /// # Errors
    /// One variant for each reason not to open, see [`StoreError`]; the device's.
    pub fn open(device: Arc<dyn Device>) -> Result<Store, StoreError> {
        Store::identify(device)?.open()
    }

    /// Reads the superblock of the store on `device`, with one read; the rest is for [`Identified::open`]. Writes nothing.
    ///
    /// # Errors
    /// Those for a device that holds no store, or one that is damaged, newer or cut off; the device's.
    pub fn identify(device: Arc<dyn Device>) -> Result<Identified, StoreError> {
        let (geometry, first_blocks) = Geometry::read(&*device)?;
        Ok(Identified { device, geometry, first_blocks })
    }
}

/// A store of which no more is known than its superblock says.
pub struct Identified {
    device: Arc<dyn Device>,
    geometry: Geometry,
    first_blocks: Vec<Page>,
}

impl Identified {
    /// Which store it is.
    pub fn id(&self) -> StoreId {
        self.geometry.id
    }

    /// [`Store::open`]s it.
    ///
    /// # Errors
    /// Those of `Store::open`.
    pub fn open(self) -> Result<Store, StoreError> {
        let Identified { device, geometry, first_blocks } = self;
        let mut first_error = None;
        let roots = roots(&first_blocks, &geometry);
        let newest = roots.first().map_or(0, |(_, root)| root.generation);
        for (slot, root) in roots {
            match read_map(&*device, &geometry, &root) {
                Ok(map) => {
                    let store = Store::assemble(device, geometry, map, &root, slot);
                    store.supersede(newest, &root);
                    store.replay(root.log)?;
                    return Ok(store);
                }
                // The other root names a map of its own, and the same log reaches further from it.
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| StoreError::Damaged {
            device: device.name().to_owned(),
            place: ROOTS[0],
            what: "each of the two checkpoint roots".to_owned(),
        }))
    }
}

impl Store {
    /// Where `root` is not the newest, what the newest names could not be read. It may be readable another time, and
    /// meanwhile some of it is free by the older root and used again. So before anything is written, a copy of the older one
    /// takes the newest root's place; and no generation has two roots.
    fn supersede(&self, newest: u64, root: &Root) {
        if root.generation < newest {
            let mut writer = self.lock_writer();
            writer.generation = newest;
            writer.pending = Some(Pending::copy(root, self.geometry.id));
        }
    }

    /// Applies the whole batches after `start`.
    fn replay(&self, start: Cursor) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        let incarnation = self.incarnation();
        let mut cursor = start;
        // The last batch that is whole by its log entries, and the chunks of the one after it.
        let (mut held, mut begun): (Vec<Chunk>, Vec<Chunk>) = (Vec::new(), Vec::new());
        // Those that surely happened: applied many at a time, so that their nodes are read together.
        let (mut sure, mut entries): (Vec<Chunk>, usize) = (Vec::new(), 0);
        let mut log = LogReader::new(&*self.device, &self.geometry);
        while let Some(chunk) = log.next(&cursor, incarnation) {
            cursor = chunk.after(&self.geometry);
            if held.last().is_some_and(|last| chunk.head.durable >= last.head.batch) {
                entries += held.iter().map(|chunk| chunk.entries.len()).sum::<usize>();
                sure.append(&mut held);
            }
            if entries >= ENTRIES_AT_ONCE {
                self.replay_chunks(&mut writer, &std::mem::take(&mut sure))?;
                entries = 0;
            }
            let last = chunk.head.last;
            begun.push(chunk);
            if last {
                held = std::mem::take(&mut begun);
            }
        }
        let unfinished = begun.first().map_or(cursor.batch, |chunk| chunk.head.batch);
        let proof = log.proof_of_rot(&cursor, unfinished, incarnation);
        if let Some(proof) = proof.filter(|_| !is_planted(PlantedBug::RotTakenForTorn)) {
            let place = self.geometry.start(cursor.segment).plus(cursor.offset);
            let what = format!("the log's chunk {}, which block {proof} knows to be durable,", cursor.chunk);
            return Err(StoreError::Damaged { device: self.device.name().to_owned(), place, what });
        }
        match self.find_out(&mut log, &held, &cursor, incarnation) {
            LastBatch::Torn => {}
            LastBatch::Durable => sure.append(&mut held),
            LastBatch::Readable => {
                writer.readable = held.iter().map(|chunk| (chunk.at, chunk.blocks())).collect();
                sure.append(&mut held);
            }
        }
        self.replay_chunks(&mut writer, &sure)?;
        // The next incarnation's log starts elsewhere; numbers only grow.
        writer.log = Cursor { chunk: cursor.chunk + 1, batch: cursor.batch + 1, ..cursor };
        if start.offset == 0 && cursor == start {
            self.keep_fresh_log(&mut writer);
        }
        Ok(())
    }

    /// What can be known of the last batch that is whole by its log entries.
    fn find_out(
        &self,
        log: &mut LogReader<'_>,
        held: &[Chunk],
        cursor: &Cursor,
        incarnation: Incarnation,
    ) -> LastBatch {
        let Some(last) = held.last() else { return LastBatch::Torn };
        if held.iter().all(|chunk| data_is_whole(&*self.device, chunk)) {
            return LastBatch::Readable;
        }
        match log.proof_of_rot(cursor, last.head.batch, incarnation) {
            Some(_) if !is_planted(PlantedBug::RotTakenForTorn) => LastBatch::Durable,
            _ => LastBatch::Torn,
        }
    }

    /// The log started anew, and nothing whole was written to it since: what is torn there has this incarnation's number,
    /// so the next one's log may start in the same segments. Otherwise each recovery that is cut off would take two.
    fn keep_fresh_log(&self, writer: &mut Writer) {
        let mut map = self.map_mut();
        [writer.log.segment, writer.log.next]
            .into_iter()
            .for_each(|segment| map.segments.found_in_log(segment));
        map.segments.log_rest = self.geometry.segment_blocks;
        writer.log.chain = 0;
        writer.log_is_fresh = true;
    }

    fn replay_chunks(&self, writer: &mut Writer, chunks: &[Chunk]) -> Result<(), StoreError> {
        self.holding_nodes(|| {
            let entries =
                chunks.iter().flat_map(|chunk| chunk.entries.iter().map(|entry| (chunk.head.volume, entry)));
            self.load_for(&entries.collect::<Vec<_>>())?;
            chunks.iter().try_for_each(|chunk| self.replay_chunk(writer, chunk))
        })
    }

    fn replay_chunk(&self, writer: &mut Writer, chunk: &Chunk) -> Result<(), StoreError> {
        {
            let mut map = self.map_mut();
            let segment = self.geometry.segment(chunk.at).expect("found inside a segment");
            map.segments.found_in_log(segment);
            if chunk.head.next < self.geometry.segments {
                map.segments.found_in_log(chunk.head.next);
            }
        }
        self.log_blocks.fetch_add(chunk.blocks(), Ordering::Relaxed);
        self.change_map(writer, chunk.head.volume, &chunk.entries)?;
        self.durable_batch.store(chunk.head.batch, Ordering::Release);
        Ok(())
    }
}

/// The last batch of the log that is whole by its log entries.
enum LastBatch {
    /// Some of its data was not written: it never happened.
    Torn,
    /// It is read as it was written. It may have been acknowledged; or its flush failed, or never came, and power takes it yet.
    Readable,
    /// A later chunk knows it to be durable: what is not whole of its data is rot.
    Durable,
}

/// The valid roots with their slots, the newest first.
fn roots(first_blocks: &[Page], geometry: &Geometry) -> Vec<(usize, Root)> {
    let mut found = Vec::new();
    for (slot, at) in ROOTS.into_iter().enumerate() {
        let page = &first_blocks[at.0 as usize];
        let sane = |root: &Root| root.log.segment < geometry.segments && root.log.next < geometry.segments;
        found.extend(Root::decode(page, geometry.id).filter(sane).map(|root| (slot, root)));
    }
    found.sort_by_key(|(_, root)| std::cmp::Reverse(root.generation));
    found
}

//! Opening a store: the newest root, then the whole batches of the log after it. Writes nothing.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint::StoreCheckpointer;
use crate::chunk::{Chunk, data_is_whole};
use crate::entry::{LogEntry, Paired};
use crate::error::StoreError;
use crate::follow::LogReader;
use crate::format::ROOTS;
use crate::log::Log;
use crate::log_progress::LogLength;
use crate::map::Map;
use crate::medium::Medium;
use crate::mirror_repair::MetadataRepairs;
use crate::root::{Cursor, Root};
use crate::settings::StoreSettings;
use crate::shared::StoreShared;
use crate::store::Store;
use crate::superblock::Geometry;
use crate::tables::{read_map, read_settings};
use crate::writer::StoreWriter;
use device::{Block, Device, Incarnation, Page, StoreId};
use std::sync::Arc;

/// Log entries that are applied together: twice what 256 MiB of pages have, in 10 MB of memory. The nodes that they
/// change are read together, and stay in memory until the next checkpoint anyway.
const ENTRIES_AT_ONCE: usize = 131_072;

/// A store of which no more is known than its superblock says.
pub struct Identified {
    device: Arc<dyn Device>,
    geometry: Geometry,
    first_blocks: Vec<Page>,
}

/// What recovery has found.
pub(crate) struct Recovered {
    pub(crate) shared: StoreShared,
    pub(crate) writer: StoreWriter,
}

impl Identified {
    pub(crate) fn new(device: Arc<dyn Device>, geometry: Geometry, first_blocks: Vec<Page>) -> Identified {
        Identified { device, geometry, first_blocks }
    }

    /// Which store it is.
    pub fn id(&self) -> StoreId {
        self.geometry.id
    }

    /// The settings in it, and what is wrong with them, in words. Reads the newest checkpoint's tables and nothing else.
    ///
    /// # Errors
    /// Those of `Store::open` where no root's tables can be read; the device's.
    pub fn settings(&self) -> Result<(StoreSettings, Vec<String>), StoreError> {
        let mut first_error = None;
        for (_, root) in roots(&self.first_blocks, self.geometry) {
            match read_settings(&*self.device, self.geometry, &root) {
                Ok(settings) => return Ok(settings),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| no_root(&*self.device)))
    }

    /// [`Store::open`]s it.
    ///
    /// # Errors
    /// Those of `Store::open`.
    pub fn open(self) -> Result<Store, StoreError> {
        self.recover().map(Store::new)
    }

    pub(crate) fn recover(self) -> Result<Recovered, StoreError> {
        let Identified { device, geometry, first_blocks } = self;
        let mut first_error = None;
        let roots = roots(&first_blocks, geometry);
        // A root that is none may be one another time, and newer than the other.
        let newest = match &roots[..] {
            [(_, only)] => only.generation + 1,
            all => all.first().map_or(0, |(_, root)| root.generation),
        };
        for (slot, root) in roots {
            let opened = read_map(&*device, geometry, &root).and_then(|(map, damaged)| {
                Recovery::begin(
                    Medium::new(device.clone(), geometry),
                    map,
                    &root,
                    MetadataRepairs::new(damaged),
                )
            });
            match opened {
                Ok(recovery) => {
                    let mut checkpointer = StoreCheckpointer::after(&root, slot);
                    checkpointer.supersede_newest_root(newest, &root, geometry.id);
                    let log = recovery.replay(root.log)?;
                    recovery.shared.map_mut().nodes.let_go();
                    return Ok(Recovered {
                        shared: recovery.shared,
                        writer: StoreWriter::new(log, checkpointer),
                    });
                }
                // The other root names a map of its own, and the same log reaches further from it.
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| no_root(&*device)))
    }
}

fn no_root(device: &dyn Device) -> StoreError {
    let what = "each of the two checkpoint roots".to_owned();
    StoreError::Damaged { device: device.name().to_owned(), place: ROOTS[0], what }
}

/// A store in memory, as a root has it and then as the log after it goes on.
struct Recovery {
    shared: StoreShared,
}

impl Recovery {
    /// With all volumes, but nothing of what is in them.
    fn begin(
        medium: Medium,
        map: Map,
        root: &Root,
        repairs: MetadataRepairs,
    ) -> Result<Recovery, StoreError> {
        let shared = StoreShared::new(medium, map, root.incarnation, root.log.batch - 1, repairs);
        // Until the log is replayed: it may change any volume.
        shared.map_mut().nodes.hold();
        let stored = shared.resolve(|map| map.volumes.stored(&map.nodes))?;
        let volumes = stored.ok_or_else(|| StoreError::Damaged {
            device: shared.medium.name(),
            place: root.tables.extents.first().map_or(Block(0), |extent| extent.at),
            what: "the tree of volumes".to_owned(),
        })?;
        shared.map_mut().volumes.found(volumes);
        Ok(Recovery { shared })
    }

    /// Applies the whole batches after `start`.
    fn replay(&self, start: Cursor) -> Result<Log, StoreError> {
        let mut end = Log::at(start);
        let incarnation = self.shared.incarnation();
        let mut cursor = start;
        // The last batch that is whole by its log entries, and the chunks of the one after it.
        let (mut held, mut begun): (Vec<Chunk>, Vec<Chunk>) = (Vec::new(), Vec::new());
        // Those that surely happened: applied many at a time, so that their nodes are read together.
        let (mut sure, mut entries): (Vec<Chunk>, usize) = (Vec::new(), 0);
        let mut log = LogReader::new(self.shared.medium.device(), self.shared.medium.geometry());
        while let Some(chunk) = log.next(&cursor, incarnation) {
            cursor = chunk.after(self.shared.medium.geometry());
            if held.last().is_some_and(|last| chunk.head.durable >= last.head.batch) {
                entries += held.iter().map(|chunk| chunk.entries.len()).sum::<usize>();
                sure.append(&mut held);
            }
            if entries >= ENTRIES_AT_ONCE {
                self.replay_chunks(&std::mem::take(&mut sure))?;
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
        if let Some(proof) = proof.filter(|_| !is_planted(StoreBug::RotTakenForTorn)) {
            let place = self.shared.medium.geometry().start(cursor.segment).plus(cursor.offset);
            let what = format!("the log's chunk {}, which block {proof} knows to be durable,", cursor.chunk);
            return Err(StoreError::Damaged { device: self.shared.medium.name(), place, what });
        }
        match self.find_out(&mut log, &held, &cursor, incarnation) {
            LastBatch::Torn => {}
            LastBatch::Durable => sure.append(&mut held),
            LastBatch::Readable => {
                let pairs = held.iter().flat_map(|chunk| chunk.entries.iter().filter_map(LogEntry::paired));
                let blocks = held.iter().map(|chunk| (chunk.at, chunk.blocks()));
                end.found_readable(blocks.collect(), pairs.collect());
                sure.append(&mut held);
            }
        }
        self.replay_chunks(&sure)?;
        // The next incarnation's log starts elsewhere; numbers only grow.
        end.found_end(Cursor { chunk: cursor.chunk + 1, batch: cursor.batch + 1, ..cursor });
        if start.offset == 0 && cursor == start {
            self.keep_fresh_log(&mut end);
        }
        Ok(end)
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
        if held.iter().all(|chunk| data_is_whole(self.shared.medium.device(), chunk)) {
            return LastBatch::Readable;
        }
        match log.proof_of_rot(cursor, last.head.batch, incarnation) {
            Some(_) if !is_planted(StoreBug::RotTakenForTorn) => LastBatch::Durable,
            _ => LastBatch::Torn,
        }
    }

    /// The log started anew, and nothing whole was written to it since: what is torn there has this incarnation's number,
    /// so the next one's log may start in the same segments. Otherwise each recovery that is cut off would take two.
    fn keep_fresh_log(&self, log: &mut Log) {
        let mut map = self.shared.map_mut();
        for segment in [log.cursor().segment, log.cursor().next] {
            map.nodes.segments.recover_log_segment(segment);
        }
        map.nodes.segments.set_log_rest(self.shared.medium.geometry().segment_blocks);
        log.keep_fresh();
    }

    fn replay_chunks(&self, chunks: &[Chunk]) -> Result<(), StoreError> {
        self.shared.holding_nodes(|| {
            // The leaves that a cut looks into are gone after it: it reads its own.
            let is_cut = |entry: &&LogEntry| matches!(entry, LogEntry::Cut { .. });
            let entries = chunks.iter().flat_map(|chunk| &chunk.entries).filter(|entry| !is_cut(entry));
            // Those that cannot be read are met again below.
            let _ = self.shared.load_nodes_for(&entries.collect::<Vec<_>>());
            chunks.iter().try_for_each(|chunk| self.replay_chunk(chunk))
        })
    }

    fn replay_chunk(&self, chunk: &Chunk) -> Result<(), StoreError> {
        {
            let mut map = self.shared.map_mut();
            let segment = self.shared.medium.geometry().segment(chunk.at).expect("found inside a segment");
            map.nodes.segments.recover_log_segment(segment);
            if chunk.head.next < self.shared.medium.geometry().segments {
                map.nodes.segments.recover_log_segment(chunk.head.next);
            }
        }
        self.find_pairs(chunk)?;
        self.shared.progress.add(LogLength { blocks: chunk.blocks(), reads: 0 });
        self.shared.apply_readable(&chunk.entries);
        self.shared.map_mut().saw(&chunk.entries, chunk.head.origin);
        self.shared.progress.set_durable_batch(chunk.head.batch);
        Ok(())
    }

    /// The segments in which the chunk's pages of metadata lie are pairs.
    fn find_pairs(&self, chunk: &Chunk) -> Result<(), StoreError> {
        let mut map = self.shared.map_mut();
        for Paired { at, copy, .. } in chunk.entries.iter().filter_map(LogEntry::paired) {
            let segment = |at| self.shared.medium.geometry().segment(at).expect("believed when it was read");
            if !map.nodes.segments.recover_mirrored_pair(segment(at), segment(copy)) {
                let (device, place) = (self.shared.medium.name(), chunk.at);
                let what =
                    format!("the log's chunk {}, by which {at} and {copy} lie in a pair,", chunk.head.chunk);
                return Err(StoreError::Damaged { device, place, what });
            }
        }
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
fn roots(first_blocks: &[Page], geometry: Geometry) -> Vec<(usize, Root)> {
    let mut found = Vec::new();
    for (slot, at) in ROOTS.into_iter().enumerate() {
        let page = &first_blocks[at.0 as usize];
        let sane = |root: &Root| {
            let inside = root.log.segment < geometry.segments && root.log.next < geometry.segments;
            // It may have grown since.
            inside && root.total_blocks <= geometry.total_blocks
        };
        found.extend(Root::decode(page, geometry.id).filter(sane).map(|root| (slot, root)));
    }
    found.sort_by_key(|(_, root)| std::cmp::Reverse(root.generation));
    found
}

#[cfg(test)]
mod tests;

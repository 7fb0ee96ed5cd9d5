//! Recovery: opens a store from its newest root and the log after it. Writes nothing, so a crash during
//! recovery changes nothing.
//!
//! 1. Read the superblock and the two roots. A root is valid if its checksum, its store and its sizes are
//!    right.
//! 2. Read the tables of the newest valid root: segments, node table, dying list, settings. If they cannot be
//!    read, take the other root: the log from there leads over the same batches. This comes first because the
//!    node table says where all other nodes are.
//! 3. Read the tree of volumes. In a store of the draft before, add volume 0 to it. This comes before the log
//!    because any log entry may change any volume; with all volumes in memory, entries about volumes need no
//!    further node.
//! 4. Follow the log from the root's cursor, and collect chunks to batches. A batch is *sure* once a later
//!    chunk says that it was durable. Sure batches are applied in log order, many at a time, so that their
//!    nodes are read together. The last complete batch waits for step 6.
//! 5. At the end of the log, search the blocks behind it for proof of rot: a chunk that says that the missing
//!    batch was durable. If there is one, refuse the store. This comes before the last batch is judged, as
//!    the end may not be the end.
//! 6. Judge the last complete batch, for which no chunk vouches. If all of its data is intact, apply it; its
//!    blocks may not be durable yet, so the next mount writes them again. If data is wrong, but a chunk
//!    further on says that the batch was durable, apply it; reading the data is an error. Otherwise the batch
//!    was never completed, and is dropped with all that follows.
//! 7. Apply the remaining batches. For each chunk, first mark its segments as log and the segments of its
//!    mirrored blocks as mirrored, as applying the entries counts live blocks in them.
//! 8. Leave the log at its end. The next incarnation starts a new log in other segments, with higher chunk
//!    and batch numbers, so that no torn chunk can belong to it.
//!
//! A log entry that needs an unreadable node is skipped (step 4 or 7). The changed pages cannot be read while
//! the node is unreadable, and no root is written meanwhile.

use crate::bug::{StoreBug, is_planted};
use crate::checkpoint::StoreCheckpointer;
use crate::checkpoint_root::{CheckpointRoot, LogCursor};
use crate::checkpoint_tables::{read_map, read_settings};
use crate::error::StoreError;
use crate::format::ROOTS;
use crate::log_chunk::{LogChunk, is_data_intact};
use crate::log_entry::{LogEntry, MirroredBlock};
use crate::log_progress::LogLength;
use crate::log_reader::LogReader;
use crate::log_writer::LogWriter;
use crate::map::PageMap;
use crate::medium::StoreMedium;
use crate::mirror_repair::MetadataRepairs;
use crate::settings::StoreSettings;
use crate::shared::StoreShared;
use crate::store::Store;
use crate::superblock::StoreGeometry;
use crate::writer::StoreWriter;
use device::{Block, Device, Incarnation, Page, StoreId};
use std::sync::Arc;

/// Log entries applied together: those of 512 MiB of pages, in 10 MB of memory. The nodes that they change
/// are read together, and stay in memory until the next checkpoint in any case.
const ENTRIES_TOGETHER_MAX: usize = 131_072;

/// A store of which only the superblock and the roots were read.
pub struct IdentifiedStore {
    device: Arc<dyn Device>,
    geometry: StoreGeometry,
    first_blocks: Vec<Page>,
}

/// The result of recovery.
pub(crate) struct RecoveredStore {
    pub(crate) shared: StoreShared,
    pub(crate) writer: StoreWriter,
}

impl IdentifiedStore {
    pub(crate) fn new(
        device: Arc<dyn Device>,
        geometry: StoreGeometry,
        first_blocks: Vec<Page>,
    ) -> IdentifiedStore {
        IdentifiedStore { device, geometry, first_blocks }
    }

    /// The identity of the store.
    pub fn id(&self) -> StoreId {
        self.geometry.id
    }

    /// The settings in the store, and what is wrong with them, in words. Reads the newest checkpoint's tables
    /// and nothing else.
    pub fn settings(&self) -> Result<(StoreSettings, Vec<String>), StoreError> {
        let mut first_error = None;
        for (_, root) in valid_roots(&self.first_blocks, self.geometry) {
            match read_settings(&*self.device, self.geometry, &root) {
                Ok(settings) => return Ok(settings),
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| no_valid_root(&*self.device)))
    }

    /// [`Store::needs_buffer`], without opening the store. True if its roots cannot be read.
    pub fn needs_buffer(&self) -> bool {
        let roots = valid_roots(&self.first_blocks, self.geometry);
        let newest = roots.first().map(|(_, root)| root.incarnation);
        let complete_at = self.settings().ok().and_then(|(settings, _)| settings.complete_at);
        complete_at.is_none() || complete_at != newest
    }

    /// [`Store::open`]s it.
    ///
    /// # Errors
    /// Those of `Store::open`.
    pub fn open(self) -> Result<Store, StoreError> {
        self.recover().map(Store::new)
    }

    pub(crate) fn recover(self) -> Result<RecoveredStore, StoreError> {
        let IdentifiedStore { device, geometry, first_blocks } = self;
        let mut first_error = None;
        let roots = valid_roots(&first_blocks, geometry);
        // An unreadable root may be readable next time, and newer than this one.
        let newest = match &roots[..] {
            [(_, only)] => only.generation + 1,
            all => all.first().map_or(0, |(_, root)| root.generation),
        };
        for (slot, root) in roots {
            let opened = read_map(&*device, geometry, &root).and_then(|(map, damaged)| {
                StoreRecovery::load_volumes(
                    StoreMedium::new(device.clone(), geometry),
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
                    recovery.shared.map_mut().nodes.unpin_nodes();
                    return Ok(RecoveredStore {
                        shared: recovery.shared,
                        writer: StoreWriter::new(log, checkpointer),
                    });
                }
                // The other root has a map of its own, and the same log leads further from it.
                Err(error) => drop(first_error.get_or_insert(error)),
            }
        }
        Err(first_error.unwrap_or_else(|| no_valid_root(&*device)))
    }
}

fn no_valid_root(device: &dyn Device) -> StoreError {
    let what = "each of the two checkpoint roots".to_owned();
    StoreError::Damaged { device: device.name().to_owned(), place: ROOTS[0], what }
}

/// A store in memory: as a root has it, then with the log after it.
struct StoreRecovery {
    shared: StoreShared,
}

impl StoreRecovery {
    /// Steps 2 and 3: a store with all volumes, but no other nodes.
    fn load_volumes(
        medium: StoreMedium,
        map: PageMap,
        root: &CheckpointRoot,
        repairs: MetadataRepairs,
    ) -> Result<StoreRecovery, StoreError> {
        let shared = StoreShared::new(medium, map, root.incarnation, root.log.batch - 1, repairs);
        // Held until the log is replayed, as it may change any volume.
        shared.map_mut().nodes.pin_nodes();
        let stored = shared.resolve(|map| map.volumes.read_tree(&map.nodes))?;
        let volumes = stored.ok_or_else(|| StoreError::Damaged {
            device: shared.medium.name(),
            place: root.tables.extents.first().map_or(Block(0), |extent| extent.at),
            what: "the tree of volumes".to_owned(),
        })?;
        {
            let mut map = shared.map_mut();
            map.volumes.set_volumes(volumes);
            if shared.medium.geometry().has_implied_main() {
                let PageMap { volumes, nodes, .. } = &mut *map;
                volumes.add_implied_main(nodes);
            }
        }
        Ok(StoreRecovery { shared })
    }

    /// Steps 4 to 8: applies the complete batches after `start`.
    fn replay(&self, start: LogCursor) -> Result<LogWriter, StoreError> {
        let incarnation = self.shared.incarnation();
        let geometry = self.shared.medium.geometry();
        let mut reader = LogReader::new(self.shared.medium.device(), geometry);
        let mut cursor = start;
        // Step 4. The chunks of the last complete batch, and of the batch after it.
        let mut last_batch: Vec<LogChunk> = Vec::new();
        let mut open_batch: Vec<LogChunk> = Vec::new();
        // Chunks of sure batches that are not applied yet, and how many entries they have.
        let mut sure: Vec<LogChunk> = Vec::new();
        let mut sure_entries = 0;
        while let Some(chunk) = reader.next_chunk(&cursor, incarnation) {
            cursor = chunk.cursor_after(geometry);
            if last_batch.last().is_some_and(|last| chunk.head.durable_batch >= last.head.batch) {
                sure_entries += last_batch.iter().map(|chunk| chunk.entries.len()).sum::<usize>();
                sure.append(&mut last_batch);
            }
            if sure_entries >= ENTRIES_TOGETHER_MAX {
                self.replay_chunks(&std::mem::take(&mut sure))?;
                sure_entries = 0;
            }
            let ends_batch = chunk.head.is_last;
            open_batch.push(chunk);
            if ends_batch {
                last_batch = std::mem::take(&mut open_batch);
            }
        }
        // Step 5.
        let missing_batch = open_batch.first().map_or(cursor.batch, |chunk| chunk.head.batch);
        let proof = reader.find_proof_of_rot(&cursor, missing_batch, incarnation);
        if let Some(proof) = proof.filter(|_| !is_planted(StoreBug::RotTakenForTorn)) {
            let place = geometry.segment_start(cursor.segment).plus(cursor.offset);
            let what = format!("the log's chunk {}, which block {proof} knows to be durable,", cursor.chunk);
            return Err(StoreError::Damaged { device: self.shared.medium.name(), place, what });
        }
        // Step 6.
        let mut log = LogWriter::at(start);
        match self.judge_last_batch(&mut reader, &last_batch, &cursor, incarnation) {
            LastBatch::Torn => {}
            LastBatch::Durable => sure.append(&mut last_batch),
            LastBatch::Unconfirmed => {
                let entries = last_batch.iter().flat_map(|chunk| &chunk.entries);
                let mirrored = entries.filter_map(LogEntry::mirrored_block);
                let blocks = last_batch.iter().map(|chunk| (chunk.at, chunk.blocks()));
                log.set_unconfirmed(blocks.collect(), mirrored.collect());
                sure.append(&mut last_batch);
            }
        }
        // Step 7.
        self.replay_chunks(&sure)?;
        // Step 8. The next incarnation's log starts elsewhere; numbers only increase.
        log.set_end(LogCursor { chunk: cursor.chunk + 1, batch: cursor.batch + 1, ..cursor });
        if start.offset == 0 && cursor == start {
            self.reuse_fresh_log(&mut log);
        }
        Ok(log)
    }

    /// Step 6: judges the last complete batch.
    fn judge_last_batch(
        &self,
        reader: &mut LogReader<'_>,
        last_batch: &[LogChunk],
        cursor: &LogCursor,
        incarnation: Incarnation,
    ) -> LastBatch {
        let Some(last) = last_batch.last() else { return LastBatch::Torn };
        if last_batch.iter().all(|chunk| is_data_intact(self.shared.medium.device(), chunk)) {
            return LastBatch::Unconfirmed;
        }
        match reader.find_proof_of_rot(cursor, last.head.batch, incarnation) {
            Some(_) if !is_planted(StoreBug::RotTakenForTorn) => LastBatch::Durable,
            _ => LastBatch::Torn,
        }
    }

    /// The log was started anew, and nothing whole was written since. A torn chunk there has this
    /// incarnation's number, so the next incarnation's log may start in the same segments. Otherwise each
    /// recovery that is cut off would use up two segments.
    fn reuse_fresh_log(&self, log: &mut LogWriter) {
        let mut map = self.shared.map_mut();
        for segment in [log.cursor().segment, log.cursor().next_segment] {
            map.nodes.segments.recover_log_segment(segment);
        }
        map.nodes.segments.set_log_rest(self.shared.medium.geometry().segment_blocks);
        log.reuse_fresh();
    }

    fn replay_chunks(&self, chunks: &[LogChunk]) -> Result<(), StoreError> {
        self.shared.holding_nodes(|| {
            // A punch may remove the leaves that it looks into, so it reads its own.
            let is_punch = |entry: &&LogEntry| matches!(entry, LogEntry::Punch { .. });
            let entries = chunks.iter().flat_map(|chunk| &chunk.entries).filter(|entry| !is_punch(entry));
            // An unreadable node is found again when its entry is applied.
            let _ = self.shared.load_nodes_for(&entries.collect::<Vec<_>>());
            chunks.iter().try_for_each(|chunk| self.replay_chunk(chunk))
        })
    }

    fn replay_chunk(&self, chunk: &LogChunk) -> Result<(), StoreError> {
        {
            let mut map = self.shared.map_mut();
            let geometry = self.shared.medium.geometry();
            let segment = geometry.segment_of(chunk.at).expect("found inside a segment");
            map.nodes.segments.recover_log_segment(segment);
            if chunk.head.next_segment < geometry.segments {
                map.nodes.segments.recover_log_segment(chunk.head.next_segment);
            }
        }
        self.mark_mirrored_segments(chunk)?;
        self.shared.progress.add(LogLength { blocks: chunk.blocks(), reads: 0 });
        self.shared.apply_readable(&chunk.entries);
        self.shared.map_mut().note_batch(&chunk.entries, chunk.head.origin);
        self.shared.progress.set_durable_batch(chunk.head.batch);
        Ok(())
    }

    /// Marks the segments of the chunk's mirrored blocks as mirrored.
    fn mark_mirrored_segments(&self, chunk: &LogChunk) -> Result<(), StoreError> {
        let mut map = self.shared.map_mut();
        for MirroredBlock { at, copy, .. } in chunk.entries.iter().filter_map(LogEntry::mirrored_block) {
            let segment =
                |at| self.shared.medium.geometry().segment_of(at).expect("believed when it was read");
            if !map.nodes.segments.recover_mirrored_pair(segment(at), segment(copy)) {
                let device = self.shared.medium.name();
                let place = chunk.at;
                let what =
                    format!("the log's chunk {}, by which {at} and {copy} lie in a pair,", chunk.head.chunk);
                return Err(StoreError::Damaged { device, place, what });
            }
        }
        Ok(())
    }
}

/// The state of the last complete batch of the log.
enum LastBatch {
    /// Some of its data was not written: the batch was never completed.
    Torn,
    /// Its data is intact. The batch may have been acknowledged. Or its flush failed or never came, and a
    /// power failure may still take it.
    Unconfirmed,
    /// A later chunk says that the batch was durable. Wrong data in it has rotted.
    Durable,
}

/// The valid roots with their slots, the newest first.
fn valid_roots(first_blocks: &[Page], geometry: StoreGeometry) -> Vec<(usize, CheckpointRoot)> {
    let mut found = Vec::new();
    for (slot, at) in ROOTS.into_iter().enumerate() {
        let page = &first_blocks[at.0 as usize];
        let sane = |root: &CheckpointRoot| {
            let inside = root.log.segment < geometry.segments && root.log.next_segment < geometry.segments;
            // The store may have grown since this root.
            inside && root.total_blocks <= geometry.total_blocks
        };
        found.extend(CheckpointRoot::decode(page, geometry.id).filter(sane).map(|root| (slot, root)));
    }
    found.sort_by_key(|(_, root)| std::cmp::Reverse(root.generation));
    found
}

#[cfg(test)]
mod tests;

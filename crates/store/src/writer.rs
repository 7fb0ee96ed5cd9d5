//! The one writer: appends to the log, and makes checkpoints.
//!
//! Its health says whether changes may be made:
//!
//! ```text
//!  recovery               begin_after              append, change_settings or
//!     │                  both roots name            begin_after fails: unknown
//!     ▼                  a fresh log                what the medium has
//!  NotBegun ────────────────────────▶ Good ─────────────────────────▶ Unsure
//!     │                                │ ◀────────────────────────────── │
//!     │                                │   restart_log: both roots name  │
//!     │                                │   a fresh log                   │
//!     └──────────────▶ Stopped ◀───────┴─────────────────────────────────┘
//! ```
//!
//! | from | to | made by | when |
//! | --- | --- | --- | --- |
//! | NotBegun | Good | `begin_after` | a new incarnation is durable: both roots name it and a log that starts anew |
//! | Good | Unsure | `append` | writing or flushing a batch failed: the medium has it, a part of it, or nothing |
//! | Good | Unsure | `change_settings` | a root with new settings could not be written, so the medium may have it or not |
//! | Good | Unsure | `begin_after` | a further incarnation failed: the medium may have either |
//! | Unsure | Good | `restart_log`, from `make_ready` before the next change | both roots name a log that starts anew elsewhere |
//! | any | Stopped | `rewrite_last_batch`, from `begin_after` | writing the last batch again failed: that may lose what the map was made of |
//! | any | Stopped | `apply_to_map` | a durable batch needs a node that cannot be read, so the map is not that of the log |
//!
//! NotBegun and Stopped serve reads only. Only opening the store again ends Stopped. Where `restart_log`
//! fails, the writer stays Unsure and tries again at the next change. A checkpoint that fails leaves the
//! writer Good: the newer root still stands.

use crate::change::StoreChange;
use crate::checkpoint::{CheckpointOccasion, StoreCheckpointer};
use crate::checkpoint_root::TablesStream;
use crate::delta_merge::{DamagedPagePolicy, DeltaMergeScheduler};
use crate::error::StoreError;
use crate::host_space::{allocate_at_start, allocate_up_to, full_error};
use crate::log_entry::{BatchOrigin, LogEntry};
use crate::log_writer::LogWriter;
use crate::mirrored::{OpenMirroredPair, write_mirrored};
use crate::policy::{METADATA_COPIES, SpaceClass};
use crate::segments::SegmentUse;
use crate::settings::StoreSettings;
use crate::shared::StoreShared;
use crate::superblock;
use crate::sync::{Mutex, MutexGuard};
use crate::volume::VolumeMode;
use device::{Block, Incarnation, ObjectId, Page};

/// Whether changes may be made: see the diagram above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriterHealth {
    /// No incarnation has begun: reads only.
    NotBegun,
    Good,
    /// A write or flush failed, and the medium may have any part of it. Before anything else is acknowledged,
    /// both roots must name a log that starts anew elsewhere.
    Unsure,
    /// The map in memory is not that of the log.
    Stopped,
}

/// The state that only the writer uses. Owned by the store, under a lock that is held during I/O: one apply,
/// checkpoint or repointing at a time.
pub(crate) struct StoreWriter {
    health: WriterHealth,
    log: LogWriter,
    /// Where pages of metadata go.
    mirrored: OpenMirroredPair,
    checkpointer: StoreCheckpointer,
    merge_scheduler: DeltaMergeScheduler,
}

/// The writer behind its lock, which is taken before that of the map.
pub(crate) struct WriterLock(Mutex<StoreWriter>);

impl WriterLock {
    pub(crate) fn new(writer: StoreWriter) -> WriterLock {
        WriterLock(Mutex::new(writer))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, StoreWriter> {
        self.0.lock().expect("no panic while writing")
    }

    /// Whether no thread has it.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_idle(&self) -> bool {
        self.0.try_lock().is_ok()
    }
}

impl StoreWriter {
    /// Begins without an incarnation.
    pub(crate) fn new(log: LogWriter, checkpointer: StoreCheckpointer) -> StoreWriter {
        let pair = OpenMirroredPair::default();
        let merge_scheduler = DeltaMergeScheduler::default();
        StoreWriter { health: WriterHealth::NotBegun, log, mirrored: pair, checkpointer, merge_scheduler }
    }

    pub(crate) fn log(&self) -> &LogWriter {
        &self.log
    }

    /// The leaves whose deltas are due to be merged.
    pub(crate) fn merge_scheduler(&mut self) -> &mut DeltaMergeScheduler {
        &mut self.merge_scheduler
    }

    /// The blocks of the newest tables' stream.
    pub(crate) fn table_blocks(&self) -> impl Iterator<Item = Block> + '_ {
        self.checkpointer.table_blocks()
    }

    /// The newest tables' stream.
    pub(crate) fn tables(&self) -> &TablesStream {
        self.checkpointer.tables()
    }

    /// Makes `incarnation` durable: see [`Store::begin_after`](crate::Store::begin_after).
    pub(crate) fn begin_after(
        &mut self,
        shared: &StoreShared,
        incarnation: Incarnation,
        known_durable: u64,
    ) -> Result<(), StoreError> {
        let found = shared.incarnation();
        if incarnation <= found {
            return Err(StoreError::OldIncarnation { asked: incarnation, found });
        }
        if self.health == WriterHealth::Stopped {
            return Err(stopped(shared));
        }
        if let Some(error) =
            shared.map().skipped_entry_error().filter(|_| !shared.medium.device().forgets_writes())
        {
            return Err(error);
        }
        if known_durable >= shared.progress.durable_batch() {
            self.log.confirm_durable();
        }
        shared.set_incarnation(incarnation);
        let begun = allocate_at_start(shared, &mut self.log).and_then(|()| self.rewrite_last_batch(shared));
        let begun = begun.and_then(|()| self.restart_log(shared)).and_then(|()| raise_draft(shared));
        if let Err(error) = begun {
            shared.set_incarnation(found);
            // Reads go on. Nothing may be applied, as the medium may have either incarnation.
            if self.health == WriterHealth::Good {
                self.health = WriterHealth::Unsure;
            }
            return Err(error);
        }
        shared.begin_repairs();
        Ok(())
    }

    /// Makes the last batch durable that recovery has read, unless it is known to be. Does not rewrite the
    /// root, of which there may be no other: a drive may leave a block unreadable if a power loss interrupts
    /// its write.
    fn rewrite_last_batch(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        if !self.log.has_unconfirmed() {
            return Ok(());
        }
        // After an error this stays: the failed write may destroy what the map was made of.
        let health = std::mem::replace(&mut self.health, WriterHealth::Stopped);
        let since = shared.medium.failed_flushes();
        self.log.rewrite_unconfirmed(&shared.medium)?;
        shared.medium.flush_since(since)?;
        self.log.confirm_durable();
        self.health = health;
        Ok(())
    }

    /// Starts the log anew after an error, and refuses where changes may not be made.
    pub(crate) fn make_ready(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        match self.health {
            WriterHealth::Good => Ok(()),
            WriterHealth::Unsure => self.restart_log(shared),
            WriterHealth::NotBegun => Err(StoreError::NotBegun),
            WriterHealth::Stopped => Err(stopped(shared)),
        }
    }

    /// See [`StoreData::apply`](crate::StoreData::apply).
    pub(crate) fn apply(
        &mut self,
        shared: &StoreShared,
        vector: &[StoreChange],
        origin: BatchOrigin,
    ) -> Result<(), StoreError> {
        self.make_ready(shared)?;
        let entries: Vec<LogEntry> = vector.iter().map(StoreChange::log_entry).collect();
        ensure_writable(shared, &entries)?;
        if entries.iter().any(|entry| entry.transfer().is_some()) {
            let deltas = entries.iter().any(|entry| matches!(entry, LogEntry::Deltas { .. }));
            assert!(!deltas, "deltas come in a vector without clones and moves");
            self.merge_for_transfers(shared, &entries, DamagedPagePolicy::Skip)?;
        }
        let frees = entries.iter().all(LogEntry::frees);
        let class = if frees { SpaceClass::Frees } else { SpaceClass::Writer };
        let data: Vec<Option<&Page>> = vector.iter().map(StoreChange::data).collect();
        self.append(shared, entries, &data, class, origin)?;
        for change in vector {
            if let StoreChange::Deltas { object, block, .. } = change {
                self.merge_scheduler.delta_stored(*object, block);
            }
        }
        Ok(())
    }

    /// Changes the map as if recovery had found these entries at the end of the log. The checkpoint with which an incarnation
    /// begins makes that durable.
    pub(crate) fn extend_recovered(
        &mut self,
        shared: &StoreShared,
        entries: &[LogEntry],
    ) -> Result<(), StoreError> {
        assert_eq!(self.health, WriterHealth::NotBegun, "the log of a store that has begun has every change");
        shared.holding_nodes(|| {
            shared.load_for_vector(entries)?;
            self.apply_to_map(shared, entries)?;
            shared.map_mut().note_batch(entries, BatchOrigin::Logged);
            Ok(())
        })
    }

    /// Appends log entries without data.
    pub(crate) fn append_entries(
        &mut self,
        shared: &StoreShared,
        entries: Vec<LogEntry>,
        class: SpaceClass,
    ) -> Result<(), StoreError> {
        let data = vec![None; entries.len()];
        self.append(shared, entries, &data, class, BatchOrigin::Logged)
    }

    /// Writes log entries with their data to the log, flushes, and changes the map.
    pub(crate) fn append(
        &mut self,
        shared: &StoreShared,
        mut entries: Vec<LogEntry>,
        data: &[Option<&Page>],
        class: SpaceClass,
        origin: BatchOrigin,
    ) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        shared.holding_nodes(|| {
            shared.load_for_vector(&entries)?;
            if let Some((object, page)) = shared.map().find_full_leaf(&entries) {
                return Err(StoreError::DeltasFull { object, page });
            }
            self.ensure_space(shared, &entries, class)?;
            // One flush for both.
            let since = shared.medium.failed_flushes();
            self.write_mirrored_pages(shared, data, &mut entries)
                .and_then(|()| self.log.write_batch(shared, since, data, &mut entries, origin))
                .inspect_err(|_| self.health = WriterHealth::Unsure)?;
            self.apply_to_map(shared, &entries)?;
            shared.map_mut().note_batch(&entries, origin);
            Ok(())
        })
    }

    /// Writes the pages of metadata of a vector to both segments of the open pair, and sets their places in
    /// the log entries.
    fn write_mirrored_pages(
        &mut self,
        shared: &StoreShared,
        data: &[Option<&Page>],
        entries: &mut [LogEntry],
    ) -> Result<(), StoreError> {
        let paired: Vec<_> = entries.iter_mut().zip(data).filter(|(entry, _)| entry.is_mirrored()).collect();
        if paired.is_empty() {
            return Ok(());
        }
        let places: Vec<(Block, Option<Block>)> = {
            let mut map = shared.map_mut();
            let (places, filled) = self.mirrored.allocate_blocks(paired.len(), &mut map.nodes.segments, 0);
            assert_eq!(places.len(), paired.len(), "space was checked");
            // As with the log's segments: no other thread takes them before the batch is applied, as the
            // writer's lock is held.
            filled.into_iter().for_each(|pair| map.nodes.segments.close(pair));
            places.iter().for_each(|&at| map.nodes.segments.note_new_data(at));
            map.charge_log_blocks(METADATA_COPIES * places.len() as u64);
            places.into_iter().map(|at| (at, map.nodes.segments.mirror_of(at))).collect()
        };
        let mut blocks = Vec::new();
        for ((entry, data), (at, copied)) in paired.into_iter().zip(places) {
            if let (LogEntry::Write { place, copy, .. }, Some(bytes)) = (entry, data) {
                (*place, *copy) = (at, copied);
                blocks.push((at, Box::new(Page::clone(bytes))));
            }
        }
        write_mirrored(shared, &blocks)
    }

    /// Changes the map as durable log entries say.
    pub(crate) fn apply_to_map(
        &mut self,
        shared: &StoreShared,
        entries: &[LogEntry],
    ) -> Result<(), StoreError> {
        shared.apply(entries).inspect_err(|_| self.health = WriterHealth::Stopped)
    }

    /// Ensures that the log has space for these log entries above the reserve of others, and that their pages
    /// of metadata have. Checks that also where they need no new segment, as a checkpoint must write the
    /// nodes that they change. Makes checkpoints where that may free some.
    fn ensure_space(
        &mut self,
        shared: &StoreShared,
        entries: &[LogEntry],
        class: SpaceClass,
    ) -> Result<(), StoreError> {
        let (dirtied, has_many_dirty) = {
            let map = shared.map();
            let dirtied = map.nodes_dirtied_by(entries);
            (dirtied, !map.may_dirty(dirtied))
        };
        if has_many_dirty {
            self.checkpoint_once(shared)?;
        }
        let paired = entries.iter().filter(|entry| entry.is_mirrored()).count() as u64;
        let pairs = self.mirrored.segments_for(paired, shared.medium.geometry().segment_blocks);
        for attempt in 0..3 {
            let pieces = self.log.plan_vector(entries, shared.medium.geometry().segment_blocks);
            let segments = pieces.iter().filter(|piece| piece.starts_segment).count() as u64 + pairs;
            let class =
                if segments == 0 && class == SpaceClass::Writer { SpaceClass::OpenSegment } else { class };
            let map = shared.map();
            // Deleting a volume changes existing nodes only.
            let new = if class == SpaceClass::DeletesVolume { 0 } else { dirtied };
            let needed = segments + map.floor_with(class, dirtied, new);
            if map.nodes.segments.free_count() >= needed {
                return Ok(());
            }
            drop(map);
            // A writer with a reservation finds space. One without, as the first vector of a mount, does not
            // wait for the background work to allocate it.
            let more =
                attempt < 2 && !shared.medium.is_host_fs_known_full() && allocate_up_to(shared, needed)? > 0;
            if attempt < 2 && !more {
                self.checkpoint_once(shared)?;
            }
        }
        Err(StoreError::Full)
    }

    /// See [`Store::grow`](crate::Store::grow).
    pub(crate) fn grow(&mut self, shared: &StoreShared, blocks: Option<u64>) -> Result<u64, StoreError> {
        self.make_ready(shared)?;
        // A failed flush, here or in another thread, fails all writes before it.
        let since = shared.medium.failed_flushes();
        let flush = || shared.medium.flush_since(since);
        let grown = superblock::grow(shared.medium.device(), shared.medium.geometry(), blocks, flush)?;
        {
            let mut map = shared.map_mut();
            shared.medium.set_geometry(grown);
            map.nodes.segments.grow(grown);
        }
        self.checkpoint_twice(shared)?;
        Ok(grown.total_blocks)
    }

    /// Makes a checkpoint. After an error the log starts anew instead, which makes two.
    pub(crate) fn checkpoint(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        match self.health {
            WriterHealth::Good => self.checkpoint_once(shared),
            _ => self.make_ready(shared),
        }
    }

    /// Makes two checkpoints with nothing between them.
    pub(crate) fn checkpoint_twice(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        match self.health {
            WriterHealth::Good => {
                self.checkpoint_once(shared)?;
                self.checkpoint_once(shared)
            }
            _ => self.make_ready(shared),
        }
    }

    /// Replaces the settings, durably: see [`Store::change_settings`](crate::Store::change_settings).
    pub(crate) fn change_settings(
        &mut self,
        shared: &StoreShared,
        settings: StoreSettings,
    ) -> Result<(), StoreError> {
        self.make_ready(shared)?;
        // From here on a pending root has the new settings.
        self.checkpointer.write_pending_root(shared)?;
        let before = std::mem::replace(&mut shared.map_mut().settings, settings);
        if let Err(error) = self.checkpoint_once(shared) {
            match self.checkpointer.write_pending_root(shared) {
                Ok(true) => {}
                outcome => {
                    shared.map_mut().settings = before;
                    if outcome.is_err() {
                        self.health = WriterHealth::Unsure;
                    }
                    return Err(error);
                }
            }
        }
        if self.checkpoint_once(shared).is_err() {
            self.health = WriterHealth::Unsure;
        }
        Ok(())
    }

    fn checkpoint_once(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        let occasion = if self.health == WriterHealth::Good {
            CheckpointOccasion::Running
        } else {
            CheckpointOccasion::Restart
        };
        self.checkpointer.checkpoint(shared, self.log.cursor(), occasion)
    }

    /// Starts the log anew in a segment that holds nothing of it, and writes both roots: whichever root
    /// recovery finds, it never leads to the old log.
    fn restart_log(&mut self, shared: &StoreShared) -> Result<(), StoreError> {
        if !self.log.is_fresh() {
            let mut map = shared.map_mut();
            if map.nodes.segments.free_count() < 2 {
                return Err(full_error(shared, &map));
            }
            let mut take = || map.nodes.segments.take(SegmentUse::Log).expect("counted just now");
            let segment = take();
            let next = take();
            let old = map
                .nodes
                .segments
                .iter()
                .filter(|(_, segment)| segment.usage == SegmentUse::Log && segment.open);
            let old: Vec<u32> =
                old.map(|(number, _)| number).filter(|&n| n != segment && n != next).collect();
            old.into_iter().for_each(|number| map.nodes.segments.close(number));
            map.nodes.segments.set_log_rest(shared.medium.geometry().segment_blocks);
            self.log.restart(segment, next);
        }
        self.checkpoint_once(shared)?;
        self.checkpoint_once(shared)?;
        self.health = WriterHealth::Good;
        Ok(())
    }
}

/// Raises the draft of a store of the draft before. Both roots have its volume 0 by now, and no log entry of
/// the new draft is written yet.
fn raise_draft(shared: &StoreShared) -> Result<(), StoreError> {
    if !shared.medium.geometry().has_implied_main() {
        return Ok(());
    }
    // As for a growing store.
    let since = shared.medium.failed_flushes();
    let flush = || shared.medium.flush_since(since);
    let raised = superblock::raise_draft(shared.medium.device(), shared.medium.geometry(), flush)?;
    shared.medium.set_geometry(raised);
    Ok(())
}

/// Refuses changes of volumes that are read-only, or do not exist.
fn ensure_writable(shared: &StoreShared, entries: &[LogEntry]) -> Result<(), StoreError> {
    let map = shared.map();
    let mut last = None;
    for ObjectId { volume, .. } in entries.iter().flat_map(LogEntry::changed_objects) {
        if last.replace(volume) == Some(volume) {
            continue;
        }
        match map.volumes.get(volume).map(|volume| volume.mode) {
            Some(VolumeMode::Writable) => {}
            Some(VolumeMode::ReadOnly) => return Err(StoreError::ReadOnlyVolume { volume }),
            None => return Err(StoreError::NoSuchVolume { volume }),
        }
    }
    Ok(())
}

fn stopped(shared: &StoreShared) -> StoreError {
    StoreError::Stopped { device: shared.medium.name() }
}

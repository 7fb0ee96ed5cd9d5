//! The life of a store, from its format to its growth, and four handles for all else: [`StoreData`],
//! [`StoreVolumes`], [`StoreSpaceAccount`] and [`StoreMaintenance`]. The types below do the work.
//!
//! | state | owner | changed under | after a crash |
//! | --- | --- | --- | --- |
//! | map: nodes, node table, live counts, volumes | `map::PageMap` in `StoreShared` | the writer's lock, then the map's write lock | from the newest root and the log entries after it |
//! | reservations | `space::Reservations` in the map | the map's write lock | gone; the caller reserves anew |
//! | pins | `segments::SegmentTable` in the map | the map's read lock | gone, as the readers are |
//! | the log's end | `log_writer::LogWriter` in `StoreWriter` | the writer's lock | from the newest root and the log |
//! | the open pair for pages of metadata | `mirrored::OpenMirroredPair` in `StoreWriter` | the writer's lock | gone: the pair is closed, with the blocks that log entries name |
//! | roots, generations | `checkpoint::StoreCheckpointer` in `StoreWriter` | the writer's lock | from the newest root |
//! | a round of cleaning | `cleaner::SegmentCleaner` in `MaintenanceState` | the cleaner's lock, taken before the writer's | gone |
//! | a round of merging deltas in quiet times | `delta_merge::IdleMergeRound` in `MaintenanceState` | its own, taken after the writer's | gone: it begins anew |
//! | notes of maintenance | `maintenance::MaintenanceState` in `Store` | its own, for moments, with no other lock taken meanwhile | gone: what is due is tried anew |
//! | a scrub | `scrub::StoreScrub` in `MaintenanceState` | the scrubber's lock, taken before the writer's | gone |
//!
//! The writer's lock is held during I/O: one apply, checkpoint or repointing at a time. The map's lock is
//! never held during I/O, so readers wait for no write and no flush.

use crate::checkpoint_root::{CheckpointRoot, LogCursor, NewestLsns, StreamExtent, TablesStream};
use crate::checkpoint_tables::encode_tables;
use crate::counters::StoreCounters;
use crate::data::StoreData;
use crate::error::StoreError;
use crate::format::{ROOTS, SEGMENTS_AT, SUPERBLOCK};
use crate::maintenance::{MaintenanceState, StoreMaintenance};
use crate::map::{MapNodes, MapVolumes, NodeTable, PageMap};
use crate::recover::{IdentifiedStore, RecoveredStore};
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::settings::StoreSettings;
use crate::shared::StoreShared;
use crate::space_account::StoreSpaceAccount;
use crate::superblock::{self, StoreGeometry, StoreLayout, SuperblockRepair};
use crate::tables_stream;
use crate::volumes::StoreVolumes;
use crate::writer::WriterLock;
use device::{Device, Incarnation, StoreId};
use std::sync::Arc;

/// The log-structured store.
pub struct Store {
    pub(crate) shared: StoreShared,
    pub(crate) writer: WriterLock,
    pub(crate) maintenance: MaintenanceState,
}

impl Store {
    /// Opens what recovery has found.
    pub(crate) fn new(recovered: RecoveredStore) -> Store {
        let RecoveredStore { shared, writer } = recovered;
        Store { shared, writer: WriterLock::new(writer), maintenance: MaintenanceState::default() }
    }

    /// Changes and reads pages.
    pub fn data(&self) -> StoreData<'_> {
        StoreData::new(&self.shared, &self.writer, &self.maintenance)
    }

    /// Lists, creates, clones, renames and deletes volumes.
    pub fn volumes(&self) -> StoreVolumes<'_> {
        StoreVolumes::new(&self.shared, &self.writer)
    }

    /// Measures and reserves space.
    pub fn space(&self) -> StoreSpaceAccount<'_> {
        StoreSpaceAccount::new(&self.shared)
    }

    /// Keeps recovery short and space free; checks and repairs.
    pub fn maintenance(&self) -> StoreMaintenance<'_> {
        StoreMaintenance::new(&self.shared, &self.writer, &self.maintenance)
    }

    /// Lays out a store without volumes on `device` and makes it durable. Overwrites what was there, its
    /// superblock last: a crash before the end leaves what `open` refuses, or an empty store.
    ///
    /// # Errors
    /// [`StoreError::BadSizes`] with the least size, before anything is written; the device's.
    pub fn format(device: &dyn Device, layout: &StoreLayout) -> Result<(), StoreError> {
        let geometry = StoreGeometry::plan(device, layout)?;
        let mut segments =
            SegmentTable::new(geometry, vec![SegmentEntry::default(); geometry.segments as usize]);
        let mut take = || segments.take(SegmentUse::Log).expect("a new store has free segments");
        let segment = take();
        let next = take();
        let nodes = segments.take_mirrored_pair(SegmentUse::Nodes).expect("a new store has free segments");
        let nodes_of = MapNodes::new(NodeTable::new(), segments);
        let mut map = PageMap::new(nodes_of, MapVolumes::default(), NewestLsns::default());
        let at = geometry.segment_start(nodes);
        let copy = map.nodes.segments.mirror_of(at).expect("taken as a pair");
        let needed = map.stream_blocks(0);
        if needed > geometry.segment_blocks {
            let segments = geometry.segments;
            let has = geometry.segment_blocks;
            let why = format!(
                "a table of {segments} segments takes {needed} blocks, a segment has {has}: make them larger"
            );
            return Err(StoreError::BadSizes { device: device.name().to_owned(), why });
        }
        // With an older store's roots, its superblock could be taken for damaged, and be restored.
        device.write(SUPERBLOCK, &device::pages(SEGMENTS_AT as usize))?;
        for start in [geometry.segment_start(segment), geometry.segment_start(next), at, copy] {
            device.allocate(start, geometry.segment_blocks)?;
        }
        device.flush()?;
        let (bytes, blocks) = encode_tables(&mut map, |_| at);
        let (pages, crc) = tables_stream::encode_stream(&bytes);
        device.write(at, &pages)?;
        device.write(copy, &pages)?;
        device.flush()?;
        let extents = vec![StreamExtent { at, copy, count: blocks }];
        let tables = TablesStream { bytes: bytes.len() as u64, crc, extents };
        let log = LogCursor { segment, offset: 0, next_segment: next, chunk: 1, batch: 1, chain_crc: 0 };
        let root = |generation| {
            let incarnation = Incarnation(0);
            let newest = NewestLsns::default();
            let total_blocks = geometry.total_blocks;
            let tables = tables.clone();
            CheckpointRoot { total_blocks, generation, incarnation, newest, log, tables }.encode(geometry.id)
        };
        device.write(ROOTS[0], &[*root(1)])?;
        device.write(ROOTS[1], &[*root(2)])?;
        device.write(geometry.copy_at(), &[*geometry.encode()])?;
        device.flush()?;
        device.write(SUPERBLOCK, &[*geometry.encode()])?;
        device.flush()?;
        Ok(())
    }

    /// Opens and recovers the store on `device`. Writes nothing: damage stays as it was.
    ///
    /// Everything that was acknowledged is there. The last batch of the log, if it is torn, never happened. A
    /// batch that a later one knows to have been durable is not torn but damaged, and refused.
    ///
    /// Where both copies of a node are damaged, reading what is below it is an error. If the log has changes
    /// of that, no incarnation can [begin](Store::begin_after), except on a device that [forgets what is
    /// written](Device::forgets_writes).
    ///
    /// # Errors
    /// One variant for each reason not to open, see [`StoreError`]; the device's.
    pub fn open(device: Arc<dyn Device>) -> Result<Store, StoreError> {
        Store::identify(device)?.open()
    }

    /// Reads the superblock of the store on `device`, with one read; [`IdentifiedStore::open`] does the rest.
    /// Writes nothing.
    ///
    /// # Errors
    /// Those for a device that holds no store, or a store that is damaged, newer or cut off; the device's.
    pub fn identify(device: Arc<dyn Device>) -> Result<IdentifiedStore, StoreError> {
        let (geometry, first_blocks) = StoreGeometry::read(&*device)?;
        Ok(IdentifiedStore::new(device, geometry, first_blocks))
    }

    /// Repairs the superblocks of the store on `device`, which must not be open. A damaged first one is
    /// restored from its copy in the store's last block, where the roots agree on store and size; a damaged
    /// copy from the first one.
    ///
    /// # Errors
    /// [`StoreError::NoGoodCopy`]; those of [`identify`](Store::identify) for another reason than a damaged
    /// superblock. Nothing was written then. The device's.
    pub fn repair_superblocks(device: &dyn Device) -> Result<SuperblockRepair, StoreError> {
        superblock::repair(device)
    }

    /// Grows the store on `device`, which must not be open, durably. It becomes as large as fits into
    /// `blocks` blocks, to which a file is made longer, or into the whole device. Data stay where they are.
    /// Returns the new size in blocks. After a crash the store has either size.
    ///
    /// # Errors
    /// [`StoreError::CannotGrow`] where that is smaller, or takes more segments of its size than a store may
    /// have, or the block device is smaller; those of [`identify`](Store::identify); the device's.
    pub fn grow_unopened(device: &dyn Device, blocks: Option<u64>) -> Result<u64, StoreError> {
        let (geometry, first_blocks) = StoreGeometry::read(device)?;
        if geometry.is_contradicted_by_roots(&first_blocks) {
            let why = ": its checkpoint roots are of a larger store, or of another".to_owned();
            return Err(StoreError::SuperblockDamaged { device: device.name().to_owned(), why });
        }
        Ok(superblock::grow(device, geometry, blocks, || Ok(device.flush()?))?.total_blocks)
    }

    /// The store's size in blocks.
    pub fn total_blocks(&self) -> u64 {
        self.shared.medium.geometry().total_blocks
    }

    /// As [`grow_unopened`](Store::grow_unopened), for this store, in use. Changes of the store wait
    /// meanwhile, for as long as two checkpoints take.
    ///
    /// # Errors
    /// Those of [`grow_unopened`](Store::grow_unopened); [`StoreError::NotBegun`]; those of
    /// [`checkpoint`](StoreMaintenance::checkpoint), after which the store has grown.
    pub fn grow(&self, blocks: Option<u64>) -> Result<u64, StoreError> {
        let grown = self.writer.lock().grow(&self.shared, blocks);
        // A sparse file may have had no segments left to ask for. Also after an error the store may have
        // grown.
        self.maintenance.may_allocate_again();
        grown
    }

    /// The store's identity.
    pub fn id(&self) -> StoreId {
        self.shared.medium.geometry().id
    }

    /// The settings kept in the store for whoever mounts it.
    pub fn settings(&self) -> StoreSettings {
        self.shared.map().settings.clone()
    }

    /// Replaces the settings of a store that has not begun. They are durable with the next checkpoint, which
    /// [`begin_after`](Store::begin_after) makes.
    pub fn set_settings(&self, settings: StoreSettings) {
        let _writer = self.writer.lock();
        self.shared.map_mut().settings = settings;
    }

    /// Whether the buffer may have changes that the store lacks. False only before the store begins, if
    /// [`note_complete`](Store::note_complete) was the last thing that happened to it.
    pub fn needs_buffer(&self) -> bool {
        let incarnation = self.incarnation();
        self.settings().complete_at.is_none_or(|complete_at| complete_at != incarnation)
    }

    /// Notes, durably on return, that the store has every change: until it begins again, a lost buffer loses nothing. Must be the
    /// last change: nothing may be logged in the buffer afterwards.
    ///
    /// # Errors
    /// As [`change_settings`](Store::change_settings).
    pub fn note_complete(&self) -> Result<(), StoreError> {
        let mut settings = self.settings();
        settings.complete_at = Some(self.incarnation());
        self.change_settings(settings)
    }

    /// Replaces the settings of a store in use; durably on return.
    ///
    /// Recovery uses the newer of the two roots, so the change is made as soon as one root has it:
    ///
    /// 1. After an error before that root is written, the settings are the old ones, in memory and in both
    ///    roots.
    /// 2. After an error while that root is written, the medium may have it or not. The root is written again
    ///    at once; if that works, the change is made. If it fails, too, the old settings count in memory, and
    ///    nothing else is changed in the store until both roots have them: each call tries that first. Until
    ///    then, and in this case only, a crash may bring back settings that were refused.
    /// 3. Recovery falls back to the older root where the newer one is damaged. The older root gets the new
    ///    settings next. Where that fails, the change is made all the same, and nothing else is changed until
    ///    that root has them.
    ///
    /// # Errors
    /// As [`checkpoint`](StoreMaintenance::checkpoint): then the change was refused.
    pub fn change_settings(&self, settings: StoreSettings) -> Result<(), StoreError> {
        self.writer.lock().change_settings(&self.shared, settings)
    }

    /// Blocks of a segment.
    pub fn segment_blocks(&self) -> u64 {
        self.shared.medium.geometry().segment_blocks
    }

    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        self.shared.incarnation()
    }

    /// As [`begin_after`](Store::begin_after), where it is unknown what was durable.
    ///
    /// # Errors
    /// Those of `begin_after`.
    pub fn begin(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.begin_after(incarnation, 0)
    }

    /// Makes `incarnation` durable, which must be higher than the one found. Nothing may be applied before.
    /// `known_durable` is a batch that the buffer knows to have been durable.
    ///
    /// If recovery has read a later batch, that is written again first: a flush that failed before the start
    /// may have dropped it from a cache that still serves it to readers. Then both roots are written anew,
    /// and the log starts in a segment of its own: what an earlier incarnation left half-written is never
    /// read again. After a crash meanwhile, the store opens with the old incarnation or the new one. A store of
    /// the draft before gets the new one last.
    ///
    /// # Errors
    /// [`StoreError::OldIncarnation`]; [`StoreError::ChangeBelowDamage`], with nothing written, unless the
    /// device forgets writes anyway; the device's. After the device's it may be tried again, unless the batch
    /// that recovery read could not be written again, which leaves the store [`StoreError::Stopped`].
    pub fn begin_after(&self, incarnation: Incarnation, known_durable: u64) -> Result<(), StoreError> {
        self.writer.lock().begin_after(&self.shared, incarnation, known_durable)
    }

    /// The counters since the store was opened.
    pub fn counters(&self) -> StoreCounters {
        self.shared.medium.counting().now()
    }

    /// Sets how many map nodes of 4 KiB to keep in memory. More are kept while changes wait for a checkpoint.
    /// The default is 16,384; less than 64 counts as 64, so that a look-up can keep its own nodes.
    pub fn set_cached_nodes_max(&self, nodes: usize) {
        self.shared.map_mut().nodes.set_clean_max(nodes);
    }
}

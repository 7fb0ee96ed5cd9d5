//! The public interface of the store, and its promises. The types below do the work.
//!
//! | state | owner | changed under | after a crash |
//! | --- | --- | --- | --- |
//! | map: nodes, node table, live counts, volumes | `map::PageMap` in `StoreShared` | the writer's lock, then the map's write lock | from the newest root and the log entries after it |
//! | reservations | `space::Reservations` in the map | the map's write lock | gone; the caller reserves anew |
//! | pins | `segments::SegmentTable` in the map | the map's read lock | gone, as the readers are |
//! | the log's end | `log_writer::LogWriter` in `StoreWriter` | the writer's lock | from the newest root and the log |
//! | the open pair for pages of metadata | `mirrored::OpenMirroredPair` in `StoreWriter` | the writer's lock | gone: the pair is closed, with the blocks that log entries name |
//! | roots, generations | `checkpoint::StoreCheckpointer` in `StoreWriter` | the writer's lock | from the newest root |
//! | a round of cleaning | `cleaner::SegmentCleaner` | the cleaner's lock, taken before the writer's | gone |
//! | a round of merging deltas in quiet times | `delta_merge::IdleMergeRound` in `Store` | its own, taken after the writer's | gone: it begins anew |
//! | pauses of maintenance | `maintenance::MaintenanceState` in `Store` | its own, for moments, with no other lock taken meanwhile | gone: what is due is tried anew |
//! | a scrub | `scrub::StoreScrub` | the scrubber's lock, taken before the writer's | gone |
//!
//! The writer's lock is held during I/O: one apply, checkpoint or repointing at a time. The map's lock is
//! never held during I/O, so readers wait for no write and no flush.

use crate::change::StoreChange;
use crate::check::{self, RepairedCounts, StoreFinding};
use crate::checkpoint_root::{CheckpointRoot, LogCursor, NewestLsns, StreamExtent, TablesStream};
use crate::checkpoint_tables::encode_tables;
use crate::cleaner::{CleaningOutcome, SegmentCleaner};
use crate::counters::StoreCounters;
use crate::delta_block::DeltaBlock;
use crate::delta_merge::{DamagedPagePolicy, IdleMergeRound};
use crate::error::StoreError;
use crate::format::{ROOTS, SEGMENTS_AT, SUPERBLOCK};
use crate::host_space;
use crate::log_entry::{BatchOrigin, LogEntry};
use crate::maintenance::MaintenanceState;
use crate::map::{MapNodes, MapVolumes, NodeTable, PageMap, ScanPurpose};
use crate::recover::{IdentifiedStore, RecoveredStore};
use crate::scrub::{ScrubProgress, StoreScrub};
use crate::segments::{SegmentEntry, SegmentTable, SegmentUse};
use crate::settings::StoreSettings;
use crate::shared::{PageRead, PageResult, StoreShared};
use crate::space::{APPLY_TOGETHER_MAX, ReservationEstimate, StoreSpace};
use crate::superblock::{self, StoreGeometry, StoreLayout, SuperblockRepair};
use crate::sync::{Mutex, MutexGuard};
use crate::tables_stream;
use crate::volume::{ListedPages, NewVolume, VolumeId, VolumeInfo, VolumeMode};
use crate::volume_changes;
use crate::volume_usage::{self, StoreUsage};
use crate::writer::WriterLock;
use device::{Device, Incarnation, Lsn, ObjectId, PageNo, PageTransfer, StoreId};
use std::ops::Range;
use std::sync::Arc;

/// The log-structured store.
pub struct Store {
    pub(crate) shared: StoreShared,
    pub(crate) writer: WriterLock,
    /// Taken before the writer's lock, where both are taken.
    pub(crate) cleaner: Mutex<SegmentCleaner>,
    scrub: Mutex<Option<StoreScrub>>,
    /// Taken after the writer's lock.
    idle_merge: Mutex<IdleMergeRound>,
    pub(crate) maintenance: MaintenanceState,
}

/// Life: formatting, opening, beginning.
impl Store {
    /// Opens what recovery has found.
    pub(crate) fn new(recovered: RecoveredStore) -> Store {
        let RecoveredStore { shared, writer } = recovered;
        Store {
            shared,
            writer: WriterLock::new(writer),
            cleaner: Mutex::default(),
            scrub: Mutex::default(),
            idle_merge: Mutex::default(),
            maintenance: MaintenanceState::default(),
        }
    }

    pub(crate) fn lock_cleaner(&self) -> MutexGuard<'_, SegmentCleaner> {
        self.cleaner.lock().expect("no panic while cleaning")
    }

    /// Lays out an empty store on `device` and makes it durable. Overwrites what was there, its superblock
    /// last: a crash before the end leaves what `open` refuses, or an empty store.
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
        let mut map = PageMap::new(nodes_of, MapVolumes::main_only(), NewestLsns::default());
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
    /// [`checkpoint`](Store::checkpoint), after which the store has grown.
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
    /// As [`checkpoint`](Store::checkpoint): then the change was refused.
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

    /// The highest LSN that the store has seen.
    pub fn newest_lsn(&self) -> Lsn {
        self.shared.map().newest().any
    }

    /// The highest LSN that the store has seen of a change that is, or was, in the buffer, or of a
    /// [fence](Store::fence). A buffer that ends before it is an older copy.
    pub fn newest_logged_lsn(&self) -> Lsn {
        self.shared.map().newest().logged
    }

    /// The number of the last batch of the log that was found, or made durable since. Numbers only grow in
    /// the life of a store.
    pub fn durable_batch(&self) -> u64 {
        self.shared.progress.durable_batch()
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
    /// read again. After a crash meanwhile, the store opens with the old incarnation or the new one.
    ///
    /// # Errors
    /// [`StoreError::OldIncarnation`]; [`StoreError::ChangeBelowDamage`], with nothing written, unless the
    /// device forgets writes anyway; the device's. After the device's it may be tried again, unless the batch
    /// that recovery read could not be written again, which leaves the store [`StoreError::Stopped`].
    pub fn begin_after(&self, incarnation: Incarnation, known_durable: u64) -> Result<(), StoreError> {
        self.writer.lock().begin_after(&self.shared, incarnation, known_durable)
    }

    /// How many of a vector's first changes may be [applied](Store::apply) together, so that not too many
    /// nodes of the map are dirty at once. More may be refused as [`StoreError::Full`] though space is
    /// reserved for all of them. At least one.
    pub fn changes_that_fit(&self, vector: &[StoreChange]) -> usize {
        let entries: Vec<LogEntry> =
            vector.iter().take(APPLY_TOGETHER_MAX).map(StoreChange::log_entry).collect();
        self.shared.map().changes_that_fit(&entries)
    }

    /// Whether half as many nodes of the map are dirty as may be before changes wait for a checkpoint.
    pub fn has_many_dirty_nodes(&self) -> bool {
        self.shared.map().has_many_dirty()
    }

    /// Blocks written to the log since the last checkpoint: recovery would read them.
    pub fn blocks_since_checkpoint(&self) -> u64 {
        self.shared.progress.length().blocks
    }

    /// Most reads of the device by which recovery would follow the log up to its open extent. For that
    /// extent, the log's end and the proof that it is the end, it makes ten more at most; and those of pages
    /// of metadata in the last batch.
    pub fn reads_since_checkpoint(&self) -> u64 {
        self.shared.progress.length().reads
    }

    /// How full the store is.
    pub fn space(&self) -> StoreSpace {
        self.shared.space()
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

/// Changes.
impl Store {
    /// Applies all of `vector` or nothing; durable on return. Readers see it afterwards.
    ///
    /// After an error nothing of it is visible, but it may become durable: a crash later may leave all of it
    /// or nothing. The next call first writes both roots anew, so that the log goes on elsewhere.
    ///
    /// # Errors
    /// [`StoreError::Full`] before anything is written, where a checkpoint did not help; the device's;
    /// [`StoreError::Corrupt`] if a map node that it must change is damaged; [`StoreError::NotBegun`].
    pub fn apply(&self, vector: &[StoreChange]) -> Result<(), StoreError> {
        self.apply_as(vector, BatchOrigin::Logged)
    }

    /// As [`apply`](Store::apply), for changes that the buffer has not logged. Their LSNs do not count as
    /// [logged](Store::newest_logged_lsn), so a buffer that ends before them is not taken for an older copy.
    ///
    /// # Errors
    /// As [`apply`](Store::apply).
    pub fn apply_bypassed(&self, vector: &[StoreChange]) -> Result<(), StoreError> {
        self.apply_as(vector, BatchOrigin::Bypassed)
    }

    fn apply_as(&self, vector: &[StoreChange], origin: BatchOrigin) -> Result<(), StoreError> {
        self.writer.lock().apply(&self.shared, vector, origin)?;
        self.maintenance.note_applied(vector.iter().filter_map(StoreChange::data).count() as u64);
        Ok(())
    }

    /// Whether a leaf of the map has space for these blocks of deltas, which are all of one leaf.
    ///
    /// A page has at most eight deltas, a leaf at most 52 blocks of them, or eight where space is short. An
    /// object with so few pages that it needs no leaf has none. If there is no space, the pages must be
    /// [merged](Store::merge_deltas) or written whole. May read map nodes.
    ///
    /// # Errors
    /// Where a node cannot be read.
    pub fn takes_deltas(&self, object: ObjectId, blocks: &[DeltaBlock]) -> Result<bool, StoreError> {
        let Some(first) = blocks.first().map(DeltaBlock::first) else { return Ok(true) };
        let pages = blocks.iter().fold(0, |pages, block| pages | block.page_bits());
        self.shared.resolve(|map| map.takes_deltas(object, first, blocks.len(), pages))
    }

    /// Merges deltas and their base pages into whole pages, in every leaf in which one of `pages` lies. Where
    /// they are many, it writes all pages of the leaf. It skips pages that are damaged and pages that may be
    /// shared. Readers see the same bytes. Returns how many pages were written. Needs no reservation.
    ///
    /// # Errors
    /// [`StoreError::Full`]; the error of a page that cannot be read; the device's, with the effect of an
    /// error of [`apply`](Store::apply).
    pub fn merge_deltas(&self, pages: &[(ObjectId, PageNo)]) -> Result<u64, StoreError> {
        self.writer.lock().merge_leaves(&self.shared, pages)
    }

    /// Merges the deltas of some leaves, if enough deltas were stored since the last call. Whoever stores
    /// deltas calls this, too, so that leaves are merged in long runs before each is full by itself. Returns
    /// how many whole pages were written.
    ///
    /// # Errors
    /// Those of [`merge_deltas`](Store::merge_deltas). Leaves that could not be merged stay as they are until
    /// they are full, or until quiet times.
    pub fn merge_due_deltas(&self) -> Result<u64, StoreError> {
        self.writer.lock().merge_due_deltas(&self.shared)
    }

    /// Merges deltas at the ends of the ranges that a clone or move takes, in leaves that it takes only
    /// partly. [`apply`](Store::apply) does that itself: this is for callers that must know of errors before.
    /// Where a page is damaged, `apply` treats it as lost.
    ///
    /// # Errors
    /// Those of [`merge_deltas`](Store::merge_deltas), and a damaged page.
    pub fn merge_deltas_for_transfer(&self, transfer: &PageTransfer) -> Result<(), StoreError> {
        let change = StoreChange::Clone { transfer: *transfer, lsn: Lsn(0) };
        let mut writer = self.writer.lock();
        writer.make_ready(&self.shared)?;
        writer.merge_for_transfers(&self.shared, &[change], DamagedPagePolicy::Fail)
    }

    /// Whether [`idle_merge_step`](Store::idle_merge_step) is worth its reads and writes while nobody waits
    /// for space: enough was stored as deltas since the store was opened or the last round began, and free
    /// space is not short. Waits for no device.
    pub fn idle_merge_is_due(&self) -> bool {
        let Ok(folding) = self.idle_merge.try_lock() else { return false };
        folding.is_worth_it(&self.shared) && !self.shared.map().is_short_of_space()
    }

    /// A bounded step of merging all deltas, from where the last call stopped. `false` at the end, or if no
    /// delta was stored since the last complete round began.
    ///
    /// # Errors
    /// [`StoreError::Full`], after which the next call tries the same leaf again; a node that cannot be read,
    /// which ends the round; as [`apply`](Store::apply), where the device fails a write. A leaf whose pages
    /// cannot be read stays as it is.
    pub fn idle_merge_step(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        self.idle_merge.lock().expect("no panic while merging deltas").step(&self.shared, &mut writer)
    }

    /// Makes the map durable so that recovery starts here. Frees segments that no root needs any more: those
    /// in which nothing was live at the checkpoint before this one either.
    ///
    /// # Errors
    /// The device's: the store goes on as before, and the next checkpoint does it all again.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.writer.lock().checkpoint(&self.shared)
    }

    /// Makes two [checkpoints](Store::checkpoint) with nothing between them, which frees everything that died
    /// before. The second writes little, as no other thread can make the nodes dirty again that the first has
    /// written.
    ///
    /// # Errors
    /// As [`checkpoint`](Store::checkpoint).
    pub fn checkpoint_twice(&self) -> Result<(), StoreError> {
        self.writer.lock().checkpoint_twice(&self.shared)
    }

    /// Counts every change up to `lsn` as seen, durably on return, without applying anything. A buffer that
    /// does not have them is behind this store from then on.
    ///
    /// # Errors
    /// As [`checkpoint_twice`](Store::checkpoint_twice): both roots say so.
    pub fn fence(&self, lsn: Lsn) -> Result<(), StoreError> {
        self.shared.map_mut().fence(lsn);
        self.checkpoint_twice()
    }
}

/// Reads.
impl Store {
    /// Reads many pages with many reads in flight; each gets its own result. Never returns other bytes than
    /// were written: the result is [`StoreError::Corrupt`] then, with object, page and place.
    ///
    /// Waits only for its own reads, never for a write, a flush or a checkpoint.
    pub fn read(&self, wants: &mut [PageRead]) {
        self.shared.read(wants);
    }

    /// Reads many pages in the order in which they lie on the device, with few reads, and passes each to
    /// `take` with its index. As [`read`](Store::read), for callers that read much and keep the bytes
    /// elsewhere.
    pub fn read_in_device_order(
        &self,
        pages: &[(ObjectId, PageNo)],
        take: &mut dyn FnMut(usize, PageResult<'_>),
    ) {
        self.shared.read_in_device_order(pages, take);
    }

    /// The page LSN of a page; `None` for a hole. May read map nodes.
    pub fn page_lsn(&self, object: ObjectId, page: PageNo) -> Result<Option<Lsn>, StoreError> {
        self.shared.page_lsn(object, page)
    }

    /// Whether one of a clone's or a move's objects has had this transfer or a later one: then everything
    /// before it is stored, too. May read map nodes.
    ///
    /// # Errors
    /// Where one of those cannot be read, and the other object does not say that it has.
    pub fn has_applied_transfer(&self, transfer: &PageTransfer, lsn: Lsn) -> Result<bool, StoreError> {
        let target = self.shared.resolve(|map| map.has_applied_transfer(transfer.to, lsn));
        match target {
            Ok(true) => target,
            _ => Ok(self.shared.resolve(|map| map.has_applied_transfer(transfer.from, lsn))? || target?),
        }
    }

    /// Whether an object has had a clone or a move later than `lsn`: then it has had every punch before that.
    /// May read map nodes.
    ///
    /// # Errors
    /// Where one of those cannot be read.
    pub fn has_applied_later_transfer(&self, object: ObjectId, lsn: Lsn) -> Result<bool, StoreError> {
        self.shared.resolve(|map| map.has_applied_transfer(object, lsn.plus(1)))
    }

    /// The page LSN of each of many pages, with many reads of map nodes in flight.
    pub fn page_lsns(&self, pages: &[(ObjectId, PageNo)]) -> Vec<Result<Option<Lsn>, StoreError>> {
        self.shared.page_lsns(pages)
    }

    /// Lists the pages that the store holds of `object` within `range`, from at most `leaves_max` leaves of
    /// its map (128 pages each). Holes cost nothing, however large they are. May read map nodes.
    ///
    /// # Errors
    /// A map node that cannot be read, or is damaged.
    pub fn list(
        &self,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<ListedPages, StoreError> {
        self.shared.list(object, range, leaves_max)
    }
}

/// Space.
impl Store {
    /// Reserves space for writing back `pages` more pages, map nodes included. `known` estimates what all
    /// reserved pages are, these included. Reserved space can be written, though it may have to be cleaned
    /// first. Does no I/O.
    ///
    /// # Errors
    /// [`StoreError::Full`] where more would be live than the store can hold beside what checkpoints,
    /// cleaning and deletions need.
    pub fn reserve(&self, pages: u64, known: ReservationEstimate) -> Result<(), StoreError> {
        self.shared.map_mut().reserve(pages, known)
    }

    /// As [`reserve`](Store::reserve), for pages of names and attributes, which may take a
    /// 64th of the store, 8 MiB at most, that data may not.
    pub fn reserve_for_names(&self, pages: u64, known: ReservationEstimate) -> Result<(), StoreError> {
        self.shared.map_mut().reserve_for_names(pages, known)
    }

    /// Updates the estimate of what the reserved pages are. After each release the estimate is lower until
    /// this is called.
    pub fn set_reservation_estimate(&self, known: ReservationEstimate) {
        self.shared.map_mut().set_reservation_estimate(known);
    }

    /// Counts `pages` pages as reserved, even if there is no space for them: they were acknowledged already,
    /// or go with a change that frees space, and will be written back. Other callers can reserve nothing
    /// until there is space for these.
    pub fn reserve_unchecked(&self, pages: u64) {
        self.shared.map_mut().reserve_unchecked(pages);
    }

    /// Blocks that can still be reserved.
    pub fn reservable_blocks(&self) -> u64 {
        self.shared.map().reservable()
    }

    /// Releases the reservations of `pages` pages, used or not.
    pub fn release(&self, pages: u64) {
        self.shared.map_mut().release(pages);
    }

    /// Whether a round of cleaning may let more be reserved or written: free segments are short, or live
    /// counts may be too high.
    pub fn cleaning_may_help(&self) -> bool {
        let map = self.shared.map();
        map.is_short_of_space() || map.nodes.segments.counts_may_be_high()
    }

    /// Lets cleaning try segments again that it could not empty, as blocks that could not be read may be
    /// readable by now. Otherwise it leaves such a segment alone until more of it is dead, or the store is
    /// opened again.
    pub fn retry_stuck_segments(&self) {
        self.shared.map_mut().nodes.segments.retry_stuck();
    }

    /// Whether free space is low, so that checkpoints and [`clean`](Store::clean_round) should find some.
    pub fn is_short_of_space(&self) -> bool {
        self.shared.map().is_short_of_space()
    }

    /// Whether space should be allocated in the host file system: free segments are running low, or it was
    /// full and may not be any more.
    pub fn allocation_is_due(&self) -> bool {
        host_space::allocation_is_due(&self.shared)
    }

    /// Allocates as much space in the host file system as will be needed soon. `false` if that is full.
    ///
    /// # Errors
    /// The device's, except for a full host file system.
    pub fn allocate_ahead(&self) -> Result<bool, StoreError> {
        host_space::allocate_ahead(&self.shared)
    }

    /// Allocates more than [`allocate_ahead`](Store::allocate_ahead) does, because a caller needs it now.
    /// `false` if there is no more than before.
    ///
    /// # Errors
    /// Those of [`allocate_ahead`](Store::allocate_ahead).
    pub fn allocate_more(&self) -> Result<bool, StoreError> {
        host_space::allocate_more(&self.shared)
    }

    /// Whether the host file system had no space for a segment when last asked.
    pub fn is_host_fs_known_full(&self) -> bool {
        self.shared.medium.is_host_fs_known_full()
    }

    /// Whether allocating more may help: there are unbacked segments, and the host file system was not full
    /// the last time.
    pub fn may_allocate(&self) -> bool {
        host_space::may_allocate(&self.shared)
    }

    /// Bytes left in the host file system, if it has no space for a segment that the store could use.
    pub fn host_fs_free_bytes_if_full(&self) -> Option<u64> {
        host_space::host_fs_free_bytes_if_full(&self.shared)
    }
}

/// Volumes.
impl Store {
    /// Makes `to` a clone of `from`, in one durable log entry, whatever `from` holds. `lsn` is the clone's
    /// place in the one order.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::VolumeExists`], [`StoreError::TooManyVolumes`], or those
    /// of [`apply`](Store::apply).
    pub fn clone_volume(
        &self,
        from: VolumeId,
        to: VolumeId,
        mode: VolumeMode,
        lsn: Lsn,
    ) -> Result<(), StoreError> {
        volume_changes::clone_volume(&self.shared, &mut self.writer.lock(), from, to, mode, lsn)
    }

    /// Makes a new named volume a clone of `from`, in one durable batch, whatever `from` holds. Returns its
    /// number. `lsn` is the clone's place in the one order.
    ///
    /// # Errors
    /// Those of [`check_clone`](Store::check_clone) and [`apply`](Store::apply).
    pub fn clone_named(&self, from: VolumeId, new: &NewVolume<'_>, lsn: Lsn) -> Result<VolumeId, StoreError> {
        volume_changes::clone_named(&self.shared, &mut self.writer.lock(), from, new, lsn)
    }

    /// Checks that a clone of `from` may have this name, before costly work begins.
    ///
    /// # Errors
    /// [`StoreError::BadName`], [`StoreError::NameTaken`], [`StoreError::NoSuchVolume`],
    /// [`StoreError::TooManyVolumes`].
    pub fn check_clone(&self, from: VolumeId, name: &str) -> Result<(), StoreError> {
        volume_changes::check_clone(&self.shared, from, name)
    }

    /// Deletes a volume. [`free_deleted_step`](Store::free_deleted_step) frees its space.
    ///
    /// # Errors
    /// [`StoreError::NoSuchVolume`], [`StoreError::MainVolume`], or those of [`apply`](Store::apply).
    pub fn delete_volume(&self, volume: VolumeId, lsn: Lsn) -> Result<(), StoreError> {
        volume_changes::delete_volume(&self.shared, &mut self.writer.lock(), volume, lsn)
    }

    /// The numbers and modes of all volumes.
    pub fn volumes(&self) -> Vec<(VolumeId, VolumeMode)> {
        self.shared.map().volumes.iter().map(|(id, volume)| (id, volume.mode)).collect()
    }

    /// All volumes, ordered by number.
    pub fn describe_volumes(&self) -> Vec<VolumeInfo> {
        self.shared.map().volumes.describe_all()
    }

    /// The volume of this name. A volume without a name is called `#` and its number.
    pub fn volume_named(&self, name: &str) -> Option<VolumeInfo> {
        self.shared.map().volumes.find_by_name(name)
    }

    /// Frees some of what deleted volumes and files held: at most 256 nodes. Returns whether there was
    /// anything to free. The blocks are free after two checkpoints.
    ///
    /// # Errors
    /// The device's, or [`StoreError::Corrupt`]: a node that cannot be read stays on the list, with what is
    /// below.
    pub fn free_deleted_step(&self) -> Result<bool, StoreError> {
        volume_changes::free_deleted_step(&self.shared, &self.writer)
    }

    /// Whether deleted volumes and files still hold something that
    /// [`free_deleted_step`](Store::free_deleted_step) would free.
    pub fn is_freeing(&self) -> bool {
        self.shared.map().volumes.dying().len() > 0
    }

    /// Counts the blocks that each volume has alone and shares. Reads every node of the map, and keeps about
    /// 50 bytes for each meanwhile. Changes of the store wait until it is done; reads do not.
    ///
    /// # Errors
    /// A node that cannot be read, or is damaged.
    pub fn usage(&self) -> Result<StoreUsage, StoreError> {
        let _writer = self.writer.lock();
        volume_usage::usage(&self.shared)
    }
}

/// Cleaning.
impl Store {
    /// Cleans until a round has ended, and makes checkpoints where the round needs them. Each step takes its
    /// locks anew, so others may use the store meanwhile.
    ///
    /// Returns whether segments died, or held less than was counted. Dead ones are free after two
    /// checkpoints.
    ///
    /// # Errors
    /// Those of [`clean_step`](Store::clean_step), and of [`checkpoint`](Store::checkpoint).
    pub fn clean_round(&self) -> Result<bool, StoreError> {
        // Pages moved when two checkpoints were last asked for.
        let mut asked = None;
        loop {
            match self.clean_step()? {
                CleaningOutcome::Idle => return Ok(false),
                CleaningOutcome::Working => {}
                CleaningOutcome::RoundEnded(segments) => return Ok(segments > 0),
                CleaningOutcome::NeedsCheckpoint => {
                    if asked.replace(self.counters().pages_cleaned) == Some(self.counters().pages_cleaned) {
                        self.give_up_round();
                        return Ok(false);
                    }
                    self.checkpoint_twice()?;
                }
            }
        }
    }

    /// One bounded step of cleaning: it visits 64 nodes of the map, or moves an eighth of a segment, at most
    /// a MiB. Other threads wait at most for the repointing of what one step moved. No lock that readers or
    /// writers need is held during I/O.
    ///
    /// # Errors
    /// [`StoreError::NotBegun`], [`StoreError::Stopped`], or the device's: the step may be tried again. A
    /// block that cannot be read is no error here: it stays where it is, and its segment with it.
    pub fn clean_step(&self) -> Result<CleaningOutcome, StoreError> {
        self.lock_cleaner().step(&self.shared, &self.writer)
    }

    /// As [`clean_step`](Store::clean_step), if a step is still due when this thread gets the lock: of
    /// several threads that owe a step, only one makes it.
    ///
    /// # Errors
    /// Those of [`clean_step`](Store::clean_step).
    pub fn clean_step_if_due(&self) -> Result<Option<CleaningOutcome>, StoreError> {
        let mut cleaner = self.lock_cleaner();
        if self.cleaning_is_due() { cleaner.step(&self.shared, &self.writer).map(Some) } else { Ok(None) }
    }

    /// Whether a step of cleaning is due: free space is low and a round may find some, or the round under way
    /// is behind. Write-back makes such steps first, and other threads may.
    pub fn cleaning_is_due(&self) -> bool {
        self.shared.map().cleaning_is_due()
    }

    /// Pages that may be written back before the next look at [`cleaning_is_due`](Store::cleaning_is_due). So
    /// a thread that waits for these pages never waits for a whole segment to be cleaned.
    pub fn pages_between_cleaning_checks(&self) -> u64 {
        self.shared.map().pages_between_cleaning_checks()
    }

    /// Ends a round that needs more space than two checkpoints have freed. Its victims are left alone until
    /// more of them has died.
    pub fn give_up_round(&self) {
        self.lock_cleaner().give_up_round(&self.shared);
    }
}

/// Checking.
impl Store {
    /// Walks the whole map, reads every block that the map refers to, and calls `report` for each finding.
    /// Findings are damaged nodes and pages, misplaced blocks, blocks used twice, wrong reference counts,
    /// unreferenced nodes and wrong live counts. Changes wait meanwhile.
    pub fn check(&self, report: &mut dyn FnMut(StoreFinding)) {
        check::check(&self.shared, &self.writer.lock(), report);
    }

    /// Corrects all counts: references, unreferenced nodes, live blocks. Writes them with two checkpoints, so
    /// that both roots have them. Reports first what `check` would find. Returns what it corrected. Lost
    /// bytes stay errors.
    ///
    /// # Errors
    /// [`StoreError::NotBegun`]; [`StoreError::CannotCount`] where a node cannot be read, as what is below it
    /// cannot be counted: no count is changed then; the device's.
    pub fn repair(&self, report: &mut dyn FnMut(StoreFinding)) -> Result<RepairedCounts, StoreError> {
        // A round of cleaning would go on with the old counts.
        let mut cleaner = self.lock_cleaner();
        cleaner.give_up_round(&self.shared);
        check::repair(&self.shared, &mut self.writer.lock(), report)
    }

    /// One bounded step of a scrub: it visits at most four nodes and reads what they refer to. The first step
    /// reads what lies at fixed places. Damaged data is reported by the last step, which looks up the pages.
    pub fn scrub_step(&self, report: &mut dyn FnMut(StoreFinding)) -> ScrubProgress {
        let mut scrub = self.scrub.lock().expect("no panic while scrubbing");
        StoreScrub::step(&mut scrub, &self.shared, &self.writer, report)
    }

    /// Ends a scrub: the next step begins a new one.
    pub fn end_scrub(&self) {
        *self.scrub.lock().expect("no panic while scrubbing") = None;
        self.shared.map_mut().nodes.end_scan(ScanPurpose::StoreScrub);
    }
}

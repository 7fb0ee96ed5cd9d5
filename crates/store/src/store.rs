//! The store: its state, and its operations that are not reads.
//!
//! | state | owner | changed under | after a crash |
//! | --- | --- | --- | --- |
//! | map, node table, live counts | `Store::map` | the writer's lock, then the map's write lock | from the newest root and the log entries after it |
//! | log position, generations | `Store::writer` | the writer's lock | from the newest root and the log |
//! | pins | `segments::Segment` | the map's read lock | gone, as the readers are |
//! | reservations | `Store::map` | the map's write lock | gone; the caller reserves anew |
//!
//! The writer's lock is held during I/O: one apply, checkpoint or cleaning at a time. The map's is never held
//! during I/O, so readers wait for no other thread's writes or flushes.

use crate::clean::Cleaner;
use crate::counters::{Counters, Counting, count};
use crate::error::StoreError;
use crate::flushes::{FailedFlushes, Flushes};
use crate::format::{EPOCH_ROOT, ROOTS, SUPERBLOCK};
use crate::in_progress::Pending;
use crate::log::{Place, read_patiently};
use crate::map::{Map, Missing, NodeTable, Tree};
use crate::root::{Cursor, Extent, Root, no_epoch};
use crate::scrub::Scrub;
use crate::segments::{SegmentEntry, Segments, Use};
use crate::space::Space;
use crate::stretch::ChunkIndex;
use crate::superblock::{Geometry, Layout};
use crate::sync::{
    AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use crate::volume;
use device::{Block, Device, DeviceError, Incarnation, Lsn, Operation, Page, StoreId};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// The error number of a failed read or write, on every Linux.
const EIO: i32 = 5;

/// A start's loads of map nodes: the entries of its log and the metadata need a dozen each. Those after them may be anything's.
const FIRST_LOADS: u32 = 64;

/// The log-structured store.
pub struct Store {
    pub(crate) device: Arc<dyn Device>,
    pub(crate) geometry: Geometry,
    pub(crate) map: RwLock<Map>,
    pub(crate) writer: Mutex<Writer>,
    /// Taken before the writer's lock, where both are.
    pub(crate) cleaner: Mutex<Cleaner>,
    pub(crate) scrub: Mutex<Option<Scrub>>,
    pub(crate) counting: Counting,
    pub(crate) flushes: Flushes,
    pub(crate) incarnation: AtomicU64,
    /// The last batch that is known to be durable.
    pub(crate) durable_batch: AtomicU64,
    /// Blocks of log that recovery would read now.
    pub(crate) log_blocks: AtomicU64,
    /// Reads that recovery would make now to follow it, but for the open stretch.
    pub(crate) log_reads: AtomicU64,
    /// Loads of nodes that still count as a start's.
    pub(crate) first_loads: AtomicU32,
    /// The file system below had no space when it was last asked.
    pub(crate) is_full_below: AtomicBool,
    #[cfg(feature = "planted-bugs")]
    pub(crate) planted: crate::plant::Planted,
}

/// Whether changes may be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Health {
    /// No incarnation has begun: reads only.
    NotBegun,
    Good,
    /// A write or flush failed, and it is not known what of it is on the medium. Before anything else is
    /// acknowledged, both roots must name a log that starts anew elsewhere.
    Unsure,
    /// The map in memory is not that of the log.
    Stopped,
}

/// What only the one writer knows.
pub(crate) struct Writer {
    pub(crate) health: Health,
    /// The newest attempt to write a root.
    pub(crate) generation: u64,
    /// Which of the two roots was last made durable.
    pub(crate) root_slot: usize,
    pub(crate) log: Cursor,
    /// The heads of all chunks in the log's open stretch.
    pub(crate) chunk_index: ChunkIndex,
    /// `log` is at the start of segments of its own, with nothing of this incarnation written there yet.
    pub(crate) log_is_fresh: bool,
    /// The open segment for nodes, and the next block in it.
    pub(crate) nodes_at: Option<(u32, u64)>,
    /// The newest tables' stream, whose blocks count as live.
    pub(crate) tables: Vec<Extent>,
    /// A root that may be on the medium or not.
    pub(crate) pending: Option<Pending>,
    /// Blocks of the log that recovery has read, and that are not known to be durable: first and number.
    pub(crate) readable: Vec<(Block, u64)>,
}

impl Writer {
    /// Where the next vector goes.
    pub(crate) fn place(&self) -> Place {
        Place { offset: self.log.offset, copy_bytes: self.chunk_index.bytes() }
    }
}

impl Store {
    /// Lays out an empty store on `device` and makes it durable. Overwrites what was there, at the latest moment
    /// the superblock: a crash before the end leaves what `open` refuses or an empty store.
    ///
    /// # Errors
    /// [`StoreError::BadSizes`] with the least size, before anything is written; or the device's.
    pub fn format(device: &dyn Device, layout: &Layout) -> Result<(), StoreError> {
        let geometry = Geometry::plan(device, layout)?;
        let mut segments = Segments::new(geometry, vec![SegmentEntry::default(); geometry.segments as usize]);
        let mut take = |usage| segments.take(usage).expect("a new store has free segments");
        let (segment, next, nodes) = (take(Use::Log), take(Use::Log), take(Use::Nodes));
        let mut map = Map::new(NodeTable::new(), volume::main_only(Tree::default()), segments);
        let at = geometry.start(nodes);
        let needed = map.stream_blocks(0);
        if needed > geometry.segment_blocks {
            let (segments, has) = (geometry.segments, geometry.segment_blocks);
            let why = format!(
                "a table of {segments} segments takes {needed} blocks, a segment has {has}: make them larger"
            );
            return Err(StoreError::BadSizes { device: device.name().to_owned(), why });
        }
        device.write(SUPERBLOCK, &device::pages(1))?;
        for segment in [segment, next, nodes] {
            device.allocate(geometry.start(segment), geometry.segment_blocks)?;
        }
        device.flush()?;
        let (bytes, blocks) = map.encode_tables(|_| at);
        device.write(at, &crate::log::to_pages(&bytes))?;
        device.flush()?;
        let tables = crate::root::Stream {
            bytes: bytes.len() as u64,
            crc: crc32c::crc32c(&bytes),
            extents: vec![Extent { at, count: blocks }],
        };
        let log = Cursor { segment, offset: 0, next, chunk: 1, batch: 1, chain: 0 };
        let root = |generation| {
            let (incarnation, newest) = (Incarnation(0), Lsn(0));
            Root { generation, incarnation, newest, log, tables: tables.clone() }.encode(geometry.id)
        };
        device.write(ROOTS[0], &[*root(1)])?;
        device.write(ROOTS[1], &[*root(2)])?;
        device.write(EPOCH_ROOT, &[*no_epoch(geometry.id)])?;
        device.flush()?;
        device.write(SUPERBLOCK, &[*geometry.encode()])?;
        device.flush()?;
        Ok(())
    }

    /// A store in memory, from what a root says.
    pub(crate) fn assemble(
        device: Arc<dyn Device>,
        geometry: Geometry,
        map: Map,
        root: &Root,
        slot: usize,
    ) -> Store {
        Store {
            device,
            geometry,
            incarnation: AtomicU64::new(root.incarnation.0),
            durable_batch: AtomicU64::new(root.log.batch - 1),
            log_blocks: AtomicU64::new(0),
            log_reads: AtomicU64::new(0),
            first_loads: AtomicU32::new(FIRST_LOADS),
            is_full_below: AtomicBool::new(false),
            counting: Counting::default(),
            cleaner: Mutex::default(),
            scrub: Mutex::default(),
            flushes: Flushes::default(),
            map: RwLock::new(map),
            writer: Mutex::new(Writer {
                health: Health::NotBegun,
                generation: root.generation,
                root_slot: slot,
                log: root.log,
                chunk_index: ChunkIndex::default(),
                log_is_fresh: false,
                nodes_at: None,
                tables: root.tables.extents.clone(),
                pending: None,
                readable: Vec::new(),
            }),
            #[cfg(feature = "planted-bugs")]
            planted: crate::plant::Planted::default(),
        }
    }

    /// Which store this is.
    pub fn id(&self) -> StoreId {
        self.geometry.id
    }

    /// Blocks of a segment.
    pub fn segment_blocks(&self) -> u64 {
        self.geometry.segment_blocks
    }

    /// The incarnation found at opening, or the one begun since.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation.load(Ordering::Acquire))
    }

    /// The highest LSN that the store has seen.
    pub fn newest_lsn(&self) -> Lsn {
        self.map().newest
    }

    /// The number of the last batch of the log that was found, or made durable since. Numbers only grow in the life of a store.
    pub fn durable_batch(&self) -> u64 {
        self.durable_batch.load(Ordering::Acquire)
    }

    /// As [`begin_after`](Store::begin_after), where it is not known what was durable.
    ///
    /// # Errors
    /// Those of `begin_after`.
    pub fn begin(&self, incarnation: Incarnation) -> Result<(), StoreError> {
        self.begin_after(incarnation, 0)
    }

    /// Makes `incarnation`, which must be higher than the one found, durable. Before it, nothing may be applied.
    /// `known_durable` is a batch of which the buffer knows that it was durable.
    ///
    /// If recovery has read a later one, it is written again first: a flush that failed before may have
    /// dropped it from a cache that still gives it to readers. Then both roots are written anew, and the log starts in a segment
    /// of its own: what an earlier incarnation left half-written is never read again. After a crash in it, the store opens as
    /// before or with the new one.
    ///
    /// # Errors
    /// [`StoreError::OldIncarnation`], or the device's: then it may be tried again, unless what recovery read could not be written
    /// again, which leaves the store [`StoreError::Stopped`].
    pub fn begin_after(&self, incarnation: Incarnation, known_durable: u64) -> Result<(), StoreError> {
        let mut writer = self.lock_writer();
        let found = self.incarnation();
        if incarnation <= found {
            return Err(StoreError::OldIncarnation { asked: incarnation, found });
        }
        if writer.health == Health::Stopped {
            return Err(self.stopped());
        }
        if known_durable >= self.durable_batch() {
            writer.readable.clear();
        }
        self.incarnation.store(incarnation.0, Ordering::Release);
        let begun = self.take_stock(&mut writer).and_then(|()| self.write_again(&mut writer));
        if let Err(error) = begun.and_then(|()| self.restart_log(&mut writer)) {
            self.incarnation.store(found.0, Ordering::Release);
            // Reads go on; nothing may be applied, as it is not known which incarnation the medium has.
            if writer.health == Health::Good {
                writer.health = Health::Unsure;
            }
            return Err(error);
        }
        Ok(())
    }

    /// Makes the last batch durable that recovery has read, where that is not known. Not the root, of which there may be no
    /// other: a drive may leave a block unreadable whose write the power's loss cut off.
    fn write_again(&self, writer: &mut Writer) -> Result<(), StoreError> {
        if writer.readable.is_empty() {
            return Ok(());
        }
        // For good after an error: what fails may take with it what the map was made of.
        let health = std::mem::replace(&mut writer.health, Health::Stopped);
        let since = self.failed_flushes();
        for at in writer.readable.iter().flat_map(|&(at, count)| (0..count).map(move |index| at.plus(index)))
        {
            let mut page = device::pages(1);
            // What cannot be read, as a head of which there is a copy, is no cache's.
            if read_patiently(&*self.device, at, &mut page) {
                self.write(at, &page)?;
            }
        }
        self.flush_since(since)?;
        writer.readable.clear();
        writer.health = health;
        Ok(())
    }

    /// Blocks written to the log since the last checkpoint: what recovery would have to read.
    pub fn blocks_since_checkpoint(&self) -> u64 {
        self.log_blocks.load(Ordering::Relaxed)
    }

    /// Reads of the device that a recovery makes to follow the log up to its open stretch, at most. For that one, the log's
    /// end and what shows that it is the end, it makes ten more at most.
    pub fn reads_since_checkpoint(&self) -> u64 {
        self.log_reads.load(Ordering::Relaxed)
    }

    /// How full it is.
    pub fn space(&self) -> Space {
        let spare = self.device.spare_blocks();
        self.map().space(spare)
    }

    /// What it has done since it was opened.
    pub fn counters(&self) -> Counters {
        self.counting.now()
    }

    /// Sets how many map nodes of 4 KiB to keep in memory; more while changes wait for a checkpoint.
    /// The default is 16,384; less than 64 counts as 64, so that a look-up can keep its own.
    pub fn keep_nodes(&self, nodes: usize) {
        self.map_mut().nodes_max = nodes.max(64);
    }

    pub(crate) fn map(&self) -> RwLockReadGuard<'_, Map> {
        self.map.read().expect("no panic while holding the map")
    }

    pub(crate) fn map_mut(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().expect("no panic while holding the map")
    }

    pub(crate) fn lock_writer(&self) -> MutexGuard<'_, Writer> {
        self.writer.lock().expect("no panic while writing")
    }

    pub(crate) fn lock_cleaner(&self) -> MutexGuard<'_, Cleaner> {
        self.cleaner.lock().expect("no panic while cleaning")
    }

    pub(crate) fn stopped(&self) -> StoreError {
        StoreError::Stopped { device: self.device.name().to_owned() }
    }

    /// Taken before anything is written for which [`flush_since`](Store::flush_since) is to answer.
    pub(crate) fn failed_flushes(&self) -> FailedFlushes {
        self.flushes.failed()
    }

    /// Makes everything durable that was written since `failed` was taken.
    pub(crate) fn flush_since(&self, failed: FailedFlushes) -> Result<(), StoreError> {
        count(&self.counting.flushes, 1);
        match self.flushes.since(failed, || self.device.flush()) {
            Some(flushed) => Ok(flushed?),
            None => {
                let reason =
                    "another flush failed meanwhile, and may have taken these writes with it".to_owned();
                let (device, operation) = (self.device.name().to_owned(), Operation::Flush);
                Err(DeviceError { device, operation, at: Block(0), count: 0, errno: EIO, reason }.into())
            }
        }
    }

    /// Writes, and counts it.
    pub(crate) fn write(&self, at: Block, pages: &[Page]) -> Result<(), StoreError> {
        count(&self.counting.blocks_written, pages.len() as u64);
        Ok(self.device.write(at, pages)?)
    }

    /// Writes single blocks, consecutive ones together.
    pub(crate) fn write_blocks(&self, blocks: Vec<(Block, Box<Page>)>) -> Result<(), StoreError> {
        for run in blocks.chunk_by(|(at, _), (next, _)| at.0 + 1 == next.0) {
            let pages: Vec<Page> = run.iter().map(|(_, page)| (**page).clone()).collect();
            self.write(run[0].0, &pages)?;
        }
        Ok(())
    }

    /// Asks the map, and reads nodes until it knows.
    pub(crate) fn resolve<T>(&self, ask: impl Fn(&Map) -> Result<T, Missing>) -> Result<T, StoreError> {
        loop {
            let answer = ask(&self.map());
            match answer {
                Ok(answer) => return Ok(answer),
                Err(Missing(ids)) => {
                    if let Some((_, error)) = self.load(ids).pop_first() {
                        return Err(error);
                    }
                }
            }
        }
    }
}

//! Puts the crates together: disks, store, buffer, cache.

use crate::error::StackError;
use crate::find_buffer;
use crate::media::{self, StoreMedia};
use block::{BlockVolume, BlockVolumeError, block_volume_size};
use cache::{Cache, CacheSettings, RecoveredBuffer};
use device::{BLOCK_BYTES, BufferId, Clock, Device, OverlayDevice};
use fs::Fs;
use host::{CountingDevice, DiskAccess, IoCounters, ReadBusyTime, SystemClock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use store::{Store, StoreError, VolumeId, VolumeInfo, VolumeRestoration};

/// An open store and its cache, without threads.
pub struct StorageStack {
    /// Where it is.
    pub media: StoreMedia,
    /// The store.
    pub store: Arc<Store>,
    /// The cache above it.
    pub cache: Cache,
    /// Whether anything is ever written.
    pub access: DiskAccess,
    /// How long opening took.
    pub start: StartTimes,
    /// Counts of reads and writes.
    pub disks: DiskAccounts,
    /// Whether the store had every change when it was opened, and so nothing was to be written back.
    pub was_complete: bool,
    /// The size of the buffer's medium when it was opened.
    buffer_bytes: u64,
    /// Whether a volume is, or was, open.
    was_volume_opened: AtomicBool,
}

/// The I/O counters of both media.
pub struct DiskAccounts {
    /// The store's.
    pub store: Arc<IoCounters>,
    /// The buffer's.
    pub buffer: Arc<IoCounters>,
}

/// How long the parts of a start took.
#[derive(Debug, Clone, Copy, Default)]
pub struct StartTimes {
    /// Reading the store's newest checkpoint and the log after it.
    pub store: Duration,
    /// Reading the buffer and replaying its log.
    pub buffer: Duration,
    /// Making a new incarnation durable on both media.
    pub beginning: Duration,
    /// The time during which at least one of the media was being read, until both were.
    pub media: Duration,
    /// Blocks read from both media in that time.
    pub media_blocks: u64,
}

/// Which buffer a store is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpectedBuffer<'a> {
    /// The buffer that the store was used with last, if the store knows; else an error.
    LastUsed,
    /// Another buffer, which the store names from now on.
    New,
    /// Another buffer, after the last one was lost. The store names it, and the volumes are restored, all at once or not at all.
    NewAfterLoss {
        /// The new buffer.
        buffer: BufferId,
        /// What becomes of the volumes.
        volumes: &'a [VolumeRestoration],
    },
    /// Another buffer, which the store names only after [`StorageStack::name_buffer`].
    NewUnnamed,
}

impl StorageStack {
    /// Opens the store on `media`, and recovers. With `DiskAccess::Write` this writes to the media.
    ///
    /// # Errors
    /// The media cannot be read, are in use, or do not belong together. With `DiskAccess::Write`, also if they
    /// cannot be written.
    pub fn open(
        media: StoreMedia,
        settings: CacheSettings,
        access: DiskAccess,
        which: ExpectedBuffer<'_>,
    ) -> Result<StorageStack, StackError> {
        let store = open_disk(&media.store, access)?;
        StorageStack::open_with_store(media, store, settings, access, which)
    }

    /// As [`open`](StorageStack::open), with the medium of the store, which the caller has opened and so locked. It is used as
    /// `access` says.
    ///
    /// # Errors
    /// Those of `open`.
    pub fn open_with_store(
        media: StoreMedia,
        store: Arc<dyn Device>,
        settings: CacheSettings,
        access: DiskAccess,
        which: ExpectedBuffer<'_>,
    ) -> Result<StorageStack, StackError> {
        let buffer_path = media.buffer.clone();
        let buffer = open_disk(&media.buffer, access);
        let opened =
            buffer.and_then(|buffer| StorageStack::open_on(media, (store, buffer), settings, access, which));
        opened.map_err(|error| {
            if error.is_not_writable(&buffer_path) {
                StackError::BufferNotWritable { path: buffer_path, why: error.to_string() }
            } else {
                error
            }
        })
    }

    /// Opens `store`, the medium of the store, for writing, but never writes to its buffer. As in
    /// [`open_with_store`](StorageStack::open_with_store), the caller has locked the medium.
    pub fn open_beside_buffer(
        media: StoreMedia,
        store: Arc<dyn Device>,
        settings: CacheSettings,
    ) -> Result<StorageStack, StackError> {
        let buffer = media::open_medium(&media.buffer, DiskAccess::Read)?;
        let disks = (store, Arc::new(OverlayDevice::new(buffer)) as Arc<dyn Device>);
        StorageStack::open_on(media, disks, settings, DiskAccess::Write, ExpectedBuffer::LastUsed)
    }

    fn open_on(
        media: StoreMedia,
        (store, buffer): (Arc<dyn Device>, Arc<dyn Device>),
        settings: CacheSettings,
        access: DiskAccess,
        which: ExpectedBuffer<'_>,
    ) -> Result<StorageStack, StackError> {
        let busy = Arc::new(ReadBusyTime::default());
        let (store_disk, of_store) = CountingDevice::wrap(store, &busy);
        let (buffer, of_buffer) = CountingDevice::wrap(buffer, &busy);
        let disks = DiskAccounts { store: of_store, buffer: of_buffer };
        let clock = Arc::new(SystemClock::new());
        let cache_failed = |source| StackError::Cache { path: media.name.clone(), source };
        let store_failed = |source| StackError::Store { path: media.name.clone(), source };
        let mut start = StartTimes::default();
        let (store, opening) = timed(|| Store::identify(store_disk).and_then(|store| store.open()));
        let store = Arc::new(store.map_err(store_failed)?);
        start.store = opening;
        let buffer_bytes = buffer.blocks() * BLOCK_BYTES as u64;
        let (recovered, replaying) = timed(|| RecoveredBuffer::read(buffer, store.id(), &*clock));
        let recovered = recovered.map_err(cache_failed)?;
        start.buffer = replaying;
        if let ExpectedBuffer::NewAfterLoss { buffer, volumes } = which {
            // The lost one may have come back at this moment.
            if recovered.buffer_id() != buffer {
                return Err(StackError::OtherBuffer { path: media.buffer });
            }
            let newest = recovered.newest_lsn();
            store.volumes().restore_before_begin(volumes, newest).map_err(store_failed)?;
        }
        let was_complete = !store.needs_buffer();
        if which != ExpectedBuffer::NewUnnamed {
            record_settings(&media, &store, (recovered.buffer_id(), buffer_bytes), which)?;
        }
        start.media = busy.total();
        start.media_blocks = disks.store.reads.snapshot().blocks + disks.buffer.reads.snapshot().blocks;
        let (cache, beginning) = timed(|| Cache::begin(store.clone(), recovered, clock, settings));
        start.beginning = beginning;
        let cache = cache.map_err(cache_failed)?;
        Ok(StorageStack {
            media,
            store,
            cache,
            access,
            start,
            disks,
            was_complete,
            buffer_bytes,
            was_volume_opened: AtomicBool::new(false),
        })
    }

    /// Has the store name the buffer with which it was opened, durably. From then on it refuses every other buffer.
    pub fn name_buffer(&self) -> Result<(), StackError> {
        let buffer = self.cache.buffer();
        let known = (buffer.buffer_id(), self.buffer_bytes);
        record_settings(&self.media, &self.store, known, ExpectedBuffer::New)?;
        self.store.data().fence(buffer.newest_lsn()).map_err(self.store_failed())
    }

    /// Opens the file system in `volume`, and reads its metadata. The first call that opens a volume then truncates files in
    /// all other volumes whose last bytes a crash took.
    pub fn open_fs(&self, volume: &VolumeInfo) -> Result<Fs, StackError> {
        let is_first = !self.was_volume_opened.swap(true, Ordering::AcqRel);
        if !is_first && self.cache.lost_tails().iter().any(|(object, _)| object.volume == volume.id) {
            let path = self.media.name.clone();
            return Err(StackError::LostEnds { path, volume: volume.name.clone() });
        }
        let clock = Arc::new(SystemClock::new());
        let opened = Fs::open(Arc::new(self.cache.clone()), volume.id, clock);
        let fs = opened.map_err(|source| {
            let (path, volume_name) = (self.media.name.clone(), volume.name.clone());
            match block_volume_size(&self.cache, volume.id) {
                Ok(Some(_)) => StackError::NotFileSystem { path, volume: volume_name },
                _ => StackError::Volume { path, volume: volume_name, source: Box::new(source) },
            }
        })?;
        if is_first {
            self.truncate_lost_ends();
        }
        Ok(fs)
    }

    /// Opens a block volume. The first call that opens a volume then truncates files in all other volumes whose last bytes a
    /// crash took.
    pub fn open_block_volume(&self, volume: &VolumeInfo) -> Result<BlockVolume, StackError> {
        let failed = |source| StackError::BlockVolume {
            path: self.media.name.clone(),
            volume: volume.name.clone(),
            source: Box::new(source),
        };
        // The error of a volume with a mounted file system must not be that it is in use.
        if block_volume_size(&self.cache, volume.id).map_err(failed)?.is_none() {
            return Err(failed(BlockVolumeError::NotBlockVolume));
        }
        let opened = BlockVolume::open(&self.cache, volume.id).map_err(failed)?;
        if !self.was_volume_opened.swap(true, Ordering::AcqRel) {
            self.truncate_lost_ends();
        }
        Ok(opened)
    }

    /// Truncates files whose last bytes a crash took, in all volumes that are not open. Warns of volumes in which
    /// that fails, and returns them.
    pub fn truncate_lost_ends(&self) -> Vec<VolumeId> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let not_truncated = Fs::truncate_lost(&Arc::new(self.cache.clone()), &clock);
        let volumes = self.store.volumes().describe();
        for (id, why) in &not_truncated {
            let name = volumes.iter().find(|volume| volume.id == *id).map_or("", |volume| &volume.name);
            tracing::warn!(
                "{}: volume {name} cannot be mounted before it is repaired: a crash lost the ends of some of its files, and weir \
                 cannot truncate these files ({why}); other volumes work, and `weir volume delete` removes this volume",
                self.media.name.display()
            );
        }
        not_truncated.into_iter().map(|(id, _)| id).collect()
    }

    fn store_failed(&self) -> impl FnOnce(StoreError) -> StackError + use<> {
        let path = self.media.name.clone();
        |source| StackError::Store { path, source }
    }
}

/// The volume `name` of the store at `path`.
///
/// # Errors
/// [`StackError::NoSuchVolume`], which lists the volumes.
pub fn volume_named(store: &Store, path: &Path, name: &str) -> Result<VolumeInfo, StackError> {
    store.volumes().named(name).ok_or_else(|| {
        let names = store.volumes().describe().into_iter().map(|volume| volume.name);
        StackError::NoSuchVolume { path: path.into(), name: name.into(), there_are: names.collect() }
    })
}

/// Records in the store what the next mount has to know. Durable with the next checkpoint, which
/// `Cache::begin` or `StoreData::fence` makes.
fn record_settings(
    media: &StoreMedia,
    store: &Store,
    (buffer, bytes): (BufferId, u64),
    which: ExpectedBuffer<'_>,
) -> Result<(), StackError> {
    let mut kept = store.settings();
    if which == ExpectedBuffer::LastUsed && kept.buffer.is_some_and(|last| last != buffer) {
        return Err(StackError::OtherBuffer { path: media.buffer.clone() });
    }
    kept.buffer = Some(buffer);
    kept.buffer_bytes = Some(bytes);
    kept.buffer_path = Some(find_buffer::place_of(&media.buffer, &media.store));
    kept.commit_interval_ms = media.settings.commit_interval_ms.or(kept.commit_interval_ms);
    kept.data = media.settings.data.or(kept.data);
    store.set_settings(kept);
    Ok(())
}

/// The result of `work`, and how long it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let value = work();
    (value, begun.elapsed())
}

/// Opens a medium. With `DiskAccess::Read`, writes to it stay in memory.
fn open_disk(path: &Path, access: DiskAccess) -> Result<Arc<dyn Device>, StackError> {
    let disk = media::open_medium(path, access)?;
    Ok(match access {
        DiskAccess::Write => Arc::new(disk),
        DiskAccess::Read => Arc::new(OverlayDevice::new(disk)),
    })
}

//! Puts the crates together: disks, store, cache, and the threads that do background work.

use crate::epoch_keeper;
use crate::error::WeirError;
use crate::find_buffer;
use crate::media::{self, StoreMedia};
use crate::volume;
use buffer::{Buffer, BufferError};
use cache::{BackgroundTask, Cache, CacheSettings, RecoveredBuffer, StepProgress};
use device::{BufferId, Clock, Device, Lsn, ObjectId, OverlayDevice, PageNo};
use fs::Fs;
use host::{CountingDevice, DiskAccess, IoCounters, ReadBusyTime, SystemClock};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Store, VolumeId, VolumeInfo};

/// Threads that fetch pages. A step keeps many reads in flight, so a few threads keep any device busy while
/// one of them waits for its slowest read.
const FETCHERS: usize = 4;

/// The longest time that a worker sleeps without being woken. The ages of changes are checked this often.
const WORKER_WAIT_MAX: Duration = Duration::from_millis(500);

/// An open store and its cache, without threads.
pub(crate) struct StorageStack {
    pub(crate) media: StoreMedia,
    pub(crate) store: Arc<Store>,
    pub(crate) cache: Cache,
    pub(crate) access: DiskAccess,
    pub(crate) start: StartTimes,
    pub(crate) disks: DiskAccounts,
    /// Whether the file system of a volume is, or was, open.
    is_fs_open: AtomicBool,
}

/// The I/O counters of both media.
pub(crate) struct DiskAccounts {
    pub(crate) store: Arc<IoCounters>,
    pub(crate) buffer: Arc<IoCounters>,
}

/// How long the parts of a start took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartTimes {
    /// Reading the store's newest checkpoint and the log after it.
    pub(crate) store: Duration,
    /// Reading the buffer and replaying its log.
    pub(crate) buffer: Duration,
    /// Making a new incarnation durable on both media.
    pub(crate) beginning: Duration,
    /// The time during which at least one of the media was being read, until both were.
    pub(crate) media: Duration,
    /// Blocks read from both media in that time.
    pub(crate) media_blocks: u64,
}

impl StorageStack {
    /// Opens the store on `media`. With `DiskAccess::Write` this writes to the media, with `DiskAccess::Read`
    /// nothing ever does.
    pub(crate) fn open(
        media: StoreMedia,
        settings: CacheSettings,
        access: DiskAccess,
    ) -> Result<StorageStack, WeirError> {
        let OpenedCache { store, cache, start, disks } =
            open_cache(&media, settings, access, ExpectedBuffer::LastUsed)?;
        let is_fs_open = AtomicBool::new(false);
        Ok(StorageStack { media, store, cache, access, start, disks, is_fs_open })
    }

    /// Opens the file system in `volume`, and reads its metadata. The first call then truncates files in all other
    /// volumes whose last bytes a crash took.
    pub(crate) fn open_fs(&self, volume: &VolumeInfo) -> Result<Fs, WeirError> {
        let is_first = !self.is_fs_open.swap(true, Ordering::AcqRel);
        if !is_first && self.cache.lost_tails().iter().any(|(object, _)| object.volume == volume.id) {
            let path = self.media.name.clone();
            return Err(WeirError::LostEnds { path, volume: volume.name.clone() });
        }
        let fs = self.open_fs_in(volume)?;
        if is_first {
            truncate_lost_ends(&self.media, &self.store, &Arc::new(self.cache.clone()));
        }
        Ok(fs)
    }

    fn open_fs_in(&self, volume: &VolumeInfo) -> Result<Fs, WeirError> {
        let opened = Fs::open(Arc::new(self.cache.clone()), volume.id, Arc::new(SystemClock::new()));
        opened.map_err(|source| WeirError::Volume {
            path: self.media.name.clone(),
            volume: volume.name.clone(),
            source: Box::new(source),
        })
    }
}

/// Makes the volume `main` on media that were just formatted.
pub(crate) fn create_main(media: &StoreMedia) -> Result<(), WeirError> {
    let OpenedCache { cache, .. } =
        open_cache(media, CacheSettings::default(), DiskAccess::Write, ExpectedBuffer::New)?;
    volume::create_volume(&cache, &media.name, volume::DEFAULT)?;
    cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })
}

/// Opens a store that is not mounted, to change its volumes. What the buffer has stays there for the next
/// mount.
pub(crate) fn open_to_change_volumes(media: &StoreMedia) -> Result<Cache, WeirError> {
    let opened = open_cache(media, CacheSettings::default(), DiskAccess::Write, ExpectedBuffer::LastUsed)?;
    Ok(opened.cache)
}

/// The state after the content of a buffer was written back.
#[derive(Debug)]
pub(crate) struct WrittenBack {
    /// The LSN of the buffer's newest record.
    pub(crate) newest: Lsn,
    /// Pages that a crash took from files in volumes that are damaged. The next buffer has to keep the list.
    pub(crate) lost: Vec<(ObjectId, PageNo)>,
}

/// Writes back all changes in the buffer of `media`, without changing the buffer.
///
/// So a device that can be read but no longer written, as at the end of its life, loses nothing. After a
/// crash the buffer has the same content, and may be written back again.
pub(crate) fn write_back(media: &StoreMedia) -> Result<WrittenBack, WeirError> {
    // The store must not get changes that the buffer does not have after a crash. If the buffer cannot be
    // made durable, there is nothing better to do than to continue. If the power then fails, the store is
    // ahead of the buffer, and the next start says so.
    let _ = make_durable(&media.buffer);
    let buffer = media::open(&media.buffer, DiskAccess::Read)?;
    let OpenedCache { store, cache, .. } = open_on(
        media,
        open_disk(&media.store, DiskAccess::Write)?,
        Arc::new(OverlayDevice::new(buffer)),
        CacheSettings { buffer_is_given_up: true, ..CacheSettings::default() },
        ExpectedBuffer::LastUsed,
    )?;
    let cache = Arc::new(cache);
    let not_truncated: Vec<VolumeId> = truncate_lost_ends(media, &store, &cache);
    cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })?;
    let lost = cache.lost_tails().into_iter().filter(|(object, _)| not_truncated.contains(&object.volume));
    Ok(WrittenBack { newest: cache.status().applied, lost: lost.collect() })
}

/// Truncates files whose last bytes a crash took, in all volumes that are not open. Warns of volumes in which
/// that fails, and returns them.
fn truncate_lost_ends(media: &StoreMedia, store: &Store, cache: &Arc<Cache>) -> Vec<VolumeId> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let not_truncated = Fs::truncate_lost(cache, &clock);
    let volumes = store.volumes().describe();
    for (id, why) in &not_truncated {
        let name = volumes.iter().find(|volume| volume.id == *id).map_or("", |volume| &volume.name);
        tracing::warn!(
            "{}: volume {name} cannot be mounted before it is repaired: a crash lost the ends of some of its files, and weir \
             cannot truncate these files ({why}); other volumes work, and `weir volume delete` removes this volume",
            media.name.display()
        );
    }
    not_truncated.into_iter().map(|(id, _)| id).collect()
}

/// Makes everything durable that can be read from the buffer at `path`.
fn make_durable(path: &Path) -> Result<(), WeirError> {
    let failed = |source: BufferError| WeirError::Cache { path: path.into(), source: source.into() };
    let disk: Arc<dyn Device> = Arc::new(media::open(path, DiskAccess::Write)?);
    let store = Buffer::identify(&*disk).map_err(failed)?.store;
    let buffer = Buffer::open(disk, store, &mut |_| ()).map_err(failed)?;
    buffer.make_durable().map_err(failed)
}

/// Opens the store with the new buffer of `media`, which is empty. From then on the store refuses every other
/// buffer.
///
/// `old` is the state after the old buffer was written back; `None` if that buffer could not be read.
/// Writable copies of the newest epochs are then made, and returned.
pub(crate) fn begin_with_new_buffer(
    media: &StoreMedia,
    old: Option<&WrittenBack>,
) -> Result<Vec<VolumeInfo>, WeirError> {
    let failed = |source| WeirError::Store { path: media.name.clone(), source };
    let OpenedCache { store, cache, .. } =
        open_cache(media, CacheSettings::default(), DiskAccess::Write, ExpectedBuffer::NewUnrecorded)?;
    let newest = cache.buffer().newest_lsn();
    let restored = match old {
        None => epoch_keeper::restore(&store, newest).map_err(failed)?,
        Some(old) => {
            let taken = cache.take_over_lost_tails(&old.lost);
            taken.map_err(|source| WeirError::Cache { path: media.buffer.clone(), source })?;
            Vec::new()
        }
    };
    // The store names the new buffer last. So a mount with that buffer after a crash also finds what was
    // stored above.
    record_settings(media, &store, cache.buffer().buffer_id(), ExpectedBuffer::New)?;
    store.data().fence(newest).map_err(failed)?;
    Ok(restored)
}

/// An open store and the cache above it.
struct OpenedCache {
    store: Arc<Store>,
    cache: Cache,
    start: StartTimes,
    disks: DiskAccounts,
}

/// Which buffer a store is opened with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedBuffer {
    /// The buffer that the store was used with last, if the store knows; else an error.
    LastUsed,
    /// Another buffer, which the store names from now on.
    New,
    /// Another buffer, which the caller lets the store name later.
    NewUnrecorded,
}

/// Opens both media, and recovers.
fn open_cache(
    media: &StoreMedia,
    settings: CacheSettings,
    access: DiskAccess,
    which: ExpectedBuffer,
) -> Result<OpenedCache, WeirError> {
    let store = open_disk(&media.store, access)?;
    let buffer = open_disk(&media.buffer, access);
    let opened = buffer.and_then(|buffer| open_on(media, store, buffer, settings, which));
    opened.map_err(|error| {
        if error.is_not_writable(&media.buffer) {
            WeirError::BufferNotWritable { path: media.buffer.clone(), why: error.to_string() }
        } else {
            error
        }
    })
}

/// Opens a store and the cache above it on open devices.
fn open_on(
    media: &StoreMedia,
    store: Arc<dyn Device>,
    buffer: Arc<dyn Device>,
    settings: CacheSettings,
    which: ExpectedBuffer,
) -> Result<OpenedCache, WeirError> {
    let busy = Arc::new(ReadBusyTime::default());
    let (store_disk, of_store) = CountingDevice::wrap(store, &busy);
    let (buffer, of_buffer) = CountingDevice::wrap(buffer, &busy);
    let disks = DiskAccounts { store: of_store, buffer: of_buffer };
    let clock = Arc::new(SystemClock::new());
    let cache_failed = |source| WeirError::Cache { path: media.name.clone(), source };
    let store_failed = |source| WeirError::Store { path: media.name.clone(), source };
    let mut start = StartTimes::default();
    let (store, opening) = timed(|| Store::identify(store_disk).and_then(|store| store.open()));
    let store = Arc::new(store.map_err(store_failed)?);
    start.store = opening;
    let (recovered, replaying) = timed(|| RecoveredBuffer::read(buffer, store.id(), &*clock));
    let recovered = recovered.map_err(cache_failed)?;
    start.buffer = replaying;
    if which != ExpectedBuffer::NewUnrecorded {
        record_settings(media, &store, recovered.buffer_id(), which)?;
    }
    start.media = busy.total();
    start.media_blocks = disks.store.reads.snapshot().blocks + disks.buffer.reads.snapshot().blocks;
    let (cache, beginning) = timed(|| Cache::begin(store.clone(), recovered, clock, settings));
    start.beginning = beginning;
    Ok(OpenedCache { store, cache: cache.map_err(cache_failed)?, start, disks })
}

/// Records in the store what the next mount has to know. Durable with the next checkpoint, which
/// `Cache::begin` or `StoreData::fence` makes.
fn record_settings(
    media: &StoreMedia,
    store: &Store,
    buffer: BufferId,
    which: ExpectedBuffer,
) -> Result<(), WeirError> {
    let mut kept = store.settings();
    if which == ExpectedBuffer::LastUsed && kept.buffer.is_some_and(|last| last != buffer) {
        return Err(WeirError::OtherBuffer { path: media.buffer.clone() });
    }
    kept.buffer = Some(buffer);
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
fn open_disk(path: &Path, access: DiskAccess) -> Result<Arc<dyn Device>, WeirError> {
    let disk = media::open(path, access)?;
    Ok(match access {
        DiskAccess::Write => Arc::new(disk),
        DiskAccess::Read => Arc::new(OverlayDevice::new(disk)),
    })
}

/// The threads that do background work until they are stopped.
pub(crate) struct WorkerThreads {
    stopper: WorkerStopper,
    threads: Vec<JoinHandle<()>>,
}

/// Ends the background work of a mount.
#[derive(Clone)]
pub(crate) struct WorkerStopper {
    cache: Cache,
    stopping: Arc<AtomicBool>,
    access: DiskAccess,
}

impl WorkerStopper {
    /// Refuses new operations and writes everything back, in the caller's thread. After an error, changes
    /// that could not be written back are durable in the buffer. A read-only mount writes nothing back.
    pub(crate) fn stop_and_drain(&self) -> Result<(), cache::CacheError> {
        self.stop();
        match self.access {
            DiskAccess::Write => self.cache.drain(),
            DiskAccess::Read => Ok(()),
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.cache.stop();
    }
}

impl WorkerThreads {
    /// Starts the threads. A read-only mount gets only the fetchers and the thread that answers syncs.
    pub(crate) fn start(cache: &Cache, access: DiskAccess) -> Result<WorkerThreads, WeirError> {
        let stopper =
            WorkerStopper { cache: cache.clone(), stopping: Arc::new(AtomicBool::new(false)), access };
        let mut workers = WorkerThreads { stopper, threads: Vec::new() };
        for (task, name, count) in [
            (BackgroundTask::Commit, "commit", 1),
            (BackgroundTask::Fetch, "fetch", FETCHERS),
            (BackgroundTask::WriteBack, "write-back", 1),
            (BackgroundTask::Checkpoint, "checkpoint", 1),
        ] {
            let changes_store = matches!(task, BackgroundTask::WriteBack | BackgroundTask::Checkpoint);
            if changes_store && access == DiskAccess::Read {
                continue;
            }
            for _ in 0..count {
                workers.spawn(task, name)?;
            }
        }
        Ok(workers)
    }

    /// A handle that ends the threads, for the thread that handles signals.
    pub(crate) fn stopper(&self) -> WorkerStopper {
        self.stopper.clone()
    }

    fn spawn(&mut self, task: BackgroundTask, name: &str) -> Result<(), WeirError> {
        let cache = self.stopper.cache.clone();
        let stopping = self.stopper.stopping.clone();
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || work(&cache, task, &stopping));
        self.threads.push(thread.map_err(|source| WeirError::Spawn { source })?);
        Ok(())
    }

    /// Refuses new operations, ends the threads, and writes everything back in the caller's thread.
    pub(crate) fn stop_and_drain(self) -> Result<(), cache::CacheError> {
        self.stopper.stop();
        for thread in self.threads {
            thread.join().expect("a worker that panics ends the process");
        }
        self.stopper.stop_and_drain()
    }
}

fn work(cache: &Cache, task: BackgroundTask, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if cache.step(task) == StepProgress::Idle {
            cache.wait(task, WORKER_WAIT_MAX);
        }
    }
}

//! The way down, assembled: disks, store, cache, file system, and the workers that keep them going.

use crate::epoch_keeper;
use crate::error::WeirError;
use crate::find_buffer;
use crate::media::{self, StoreMedia};
use crate::read_ahead::ReadAheadDevice;
use crate::tell;
use crate::volume;
use buffer::{Buffer, BufferError};
use cache::{BackgroundTask, Cache, CacheSettings, RecoveredBuffer, StepProgress};
use device::{BufferId, Clock, Device, Lsn, ObjectId, OverlayDevice, PageNo};
use fs::{CallerCredentials, Fs, PreloadedArena};
use host::{CountingDevice, DiskAccess, IoCounters, ReadBusyTime, ReadCounts, SystemClock, random_bytes};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{IdentifiedStore, Store, VolumeId, VolumeInfo};

/// Threads that fetch pages: a step keeps many reads in flight, so a few keep any device busy while one of them
/// waits for its slowest read.
const FETCHERS: usize = 4;

/// How long a worker sleeps at most when nobody wakes it: ages are looked at this often.
const WORKER_WAIT_MAX: Duration = Duration::from_millis(500);

/// An open store with everything above it, and no threads yet.
pub(crate) struct StorageStack {
    pub(crate) media: StoreMedia,
    pub(crate) store: Arc<Store>,
    pub(crate) cache: Cache,
    pub(crate) fs: Arc<Fs>,
    /// What is mounted of it.
    pub(crate) volume: VolumeInfo,
    pub(crate) access: DiskAccess,
    pub(crate) start: StartTimes,
    pub(crate) disks: DiskAccounts,
}

/// What is known of both media.
pub(crate) struct DiskAccounts {
    pub(crate) store: Arc<IoCounters>,
    pub(crate) buffer: Arc<IoCounters>,
}

/// What opening took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StartTimes {
    /// Reading the store's newest checkpoint and the log after it.
    pub(crate) store: Duration,
    /// After that, reading the metadata of all files as the store has it.
    pub(crate) preload: Duration,
    /// Reading the buffer, while both are done.
    pub(crate) buffer: Duration,
    /// Then: making a new incarnation durable on both media.
    pub(crate) beginning: Duration,
    /// Bringing the metadata up to date.
    pub(crate) metadata: Duration,
    /// For how long one of the media was being read, or both, until both had been.
    pub(crate) media: Duration,
    /// What was read from them, in blocks.
    pub(crate) media_blocks: u64,
    /// What was read from the store, until all was ready.
    pub(crate) reads: ReadCounts,
}

impl StorageStack {
    /// Opens the volume `name` of the store on `media`. With `DiskAccess::Write` the media are written to from here on; with
    /// `DiskAccess::Read` never.
    pub(crate) fn open(
        media: StoreMedia,
        settings: CacheSettings,
        access: DiskAccess,
        name: &str,
    ) -> Result<StorageStack, WeirError> {
        let OpenedCache { store, cache, metadata, mut start, disks } =
            open_cache(&media, settings, access, Some(name), ExpectedBuffer::LastUsed)?;
        let volume = volume::volume_named(&store, &media.name, name)?;
        let begun = Instant::now();
        let fs =
            Fs::open_preloaded(metadata, Arc::new(cache.clone()), volume.id, Arc::new(SystemClock::new()))
                .map_err(|source| WeirError::Volume {
                    path: media.name.clone(),
                    volume: volume.name.clone(),
                    source: Box::new(source),
                })?;
        truncate_lost_ends(&media, &store, &Arc::new(cache.clone()));
        (start.metadata, start.reads) = (begun.elapsed(), disks.store.reads.snapshot());
        Ok(StorageStack { media, store, cache, fs: Arc::new(fs), volume, access, start, disks })
    }

    /// Makes an empty file system, owned by `owner`, on media that were just formatted, and writes it back.
    pub(crate) fn create(media: &StoreMedia, owner: CallerCredentials) -> Result<(), WeirError> {
        let OpenedCache { cache, .. } =
            open_cache(media, CacheSettings::default(), DiskAccess::Write, None, ExpectedBuffer::New)?;
        Fs::create(&Arc::new(cache.clone()), VolumeId::MAIN, &SystemClock::new(), owner, random_bytes())
            .map_err(|source| WeirError::Fs { path: media.name.clone(), source })?;
        cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })
    }
}

/// What is left of a buffer whose content was written back.
#[derive(Debug)]
pub(crate) struct WrittenBack {
    /// Where its records end.
    pub(crate) newest: Lsn,
    /// What a crash took of files in volumes that are damaged: the next buffer has to keep it.
    pub(crate) lost: Vec<(ObjectId, PageNo)>,
}

/// Writes back everything that the buffer of `media` holds, which stays as it is: a device that cannot be written any more, as at
/// the end of its life, loses nothing. After a crash it holds what it did, and may be written back again.
pub(crate) fn write_back(media: &StoreMedia) -> Result<WrittenBack, WeirError> {
    // What is written back must not be newer than what the buffer has after a crash. Where this fails there is nothing better to do
    // than to go on: should the power fail meanwhile, the store is ahead of the buffer, and the next start says so.
    let _ = make_durable(&media.buffer);
    let buffer = media::open(&media.buffer, DiskAccess::Read)?;
    let OpenedCache { store, cache, .. } = open_on(
        media,
        open_disk(&media.store, DiskAccess::Write)?,
        Arc::new(OverlayDevice::new(buffer)),
        CacheSettings { buffer_is_given_up: true, ..CacheSettings::default() },
        None,
        ExpectedBuffer::LastUsed,
    )?;
    let cache = Arc::new(cache);
    let not_truncated: Vec<VolumeId> = truncate_lost_ends(media, &store, &cache);
    cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })?;
    let lost = cache.lost_tails().into_iter().filter(|(object, _)| not_truncated.contains(&object.volume));
    Ok(WrittenBack { newest: cache.status().applied, lost: lost.collect() })
}

/// Lets files end where their bytes do after a crash, in all volumes that are not open. Warns of those that keep files from that, and
/// returns them.
fn truncate_lost_ends(media: &StoreMedia, store: &Store, cache: &Arc<Cache>) -> Vec<VolumeId> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let not_truncated = Fs::truncate_lost(cache, &clock);
    let volumes = store.describe_volumes();
    for (id, why) in &not_truncated {
        let name = volumes.iter().find(|volume| volume.id == *id).map_or("", |volume| &volume.name);
        let deletion =
            if *id == VolumeId::MAIN { "" } else { ", and `weir volume delete` removes this volume" };
        tell(&format!(
            "warning: {}: volume {name} cannot be mounted before it is repaired: a crash lost the ends of some of its files, and weir \
             cannot truncate these files ({why}); other volumes work{deletion}",
            media.name.display()
        ));
    }
    not_truncated.into_iter().map(|(id, _)| id).collect()
}

/// Makes durable what the buffer at `path` gives to readers.
fn make_durable(path: &Path) -> Result<(), WeirError> {
    let failed = |source: BufferError| WeirError::Cache { path: path.into(), source: source.into() };
    let disk: Arc<dyn Device> = Arc::new(media::open(path, DiskAccess::Write)?);
    let store = Buffer::identify(&*disk).map_err(failed)?.store;
    let buffer = Buffer::open(disk, store, &mut |_| ()).map_err(failed)?;
    buffer.make_durable().map_err(failed)
}

/// Begins with the new buffer of `media`, which is empty. The store refuses every other one from then on. `old` is what the old one
/// left. Where that could not be read, writable copies of the newest epochs are made, which are returned.
pub(crate) fn begin_with_new_buffer(
    media: &StoreMedia,
    old: Option<&WrittenBack>,
) -> Result<Vec<VolumeInfo>, WeirError> {
    let failed = |source| WeirError::Store { path: media.name.clone(), source };
    let OpenedCache { store, cache, .. } =
        open_cache(media, CacheSettings::default(), DiskAccess::Write, None, ExpectedBuffer::NewUnrecorded)?;
    let newest = cache.buffer().newest_lsn();
    let restored = match old {
        None => epoch_keeper::restore(&store, newest).map_err(failed)?,
        Some(old) => {
            let taken = cache.take_over_lost_tails(&old.lost);
            taken.map_err(|source| WeirError::Cache { path: media.buffer.clone(), source })?;
            Vec::new()
        }
    };
    // Only now does the store name the new buffer: who can mount it after a crash finds what was put there, too.
    record_settings(media, &store, cache.buffer().buffer_id(), ExpectedBuffer::New)?;
    store.fence(newest).map_err(failed)?;
    Ok(restored)
}

/// A store and the cache above it.
struct OpenedCache {
    store: Arc<Store>,
    cache: Cache,
    /// Of the volume that is to be mounted, as far as it could be read beside the buffer.
    metadata: Option<PreloadedArena>,
    start: StartTimes,
    disks: DiskAccounts,
}

/// Which buffer it must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExpectedBuffer {
    /// The one that the store was used with last, if it knows.
    LastUsed,
    /// One that it is to be used with from now on.
    New,
    /// The same, but the caller lets the store know.
    NewUnrecorded,
}

/// Opens both media. The volume called `to_mount` is to be mounted afterwards.
fn open_cache(
    media: &StoreMedia,
    settings: CacheSettings,
    access: DiskAccess,
    to_mount: Option<&str>,
    which: ExpectedBuffer,
) -> Result<OpenedCache, WeirError> {
    let store = open_disk(&media.store, access)?;
    let buffer = open_disk(&media.buffer, access);
    let opened = buffer.and_then(|buffer| open_on(media, store, buffer, settings, to_mount, which));
    opened.map_err(|error| match error.is_not_writable(&media.buffer) {
        true => WeirError::BufferNotWritable { path: media.buffer.clone(), why: error.to_string() },
        false => error,
    })
}

/// A store and what is above it on devices that are open. What they hold is read at the same time: the store's by a thread of its
/// own, the buffer's by this one.
fn open_on(
    media: &StoreMedia,
    store: Arc<dyn Device>,
    buffer: Arc<dyn Device>,
    settings: CacheSettings,
    to_mount: Option<&str>,
    which: ExpectedBuffer,
) -> Result<OpenedCache, WeirError> {
    let busy = Arc::new(ReadBusyTime::default());
    let (store_disk, of_store) = CountingDevice::wrap(store, &busy);
    let (buffer, of_buffer) = CountingDevice::wrap(buffer, &busy);
    let disks = DiskAccounts { store: of_store, buffer: of_buffer };
    let reader = ReadAheadDevice::of(buffer.clone());
    let clock = Arc::new(SystemClock::new());
    let cache_failed = |source| WeirError::Cache { path: media.name.clone(), source };
    let store = Store::identify(store_disk)
        .map_err(|source| WeirError::Store { path: media.name.clone(), source })?;
    let id = store.id();
    let (from_store, (recovered, replaying)) = run_in_parallel(
        || read_store(media, store, to_mount),
        || {
            let recovered =
                timed(|| RecoveredBuffer::read_through(&reader, buffer, id, &*clock).map_err(cache_failed));
            reader.stop();
            recovered
        },
    )?;
    let StoreContents { store, metadata, mut start } = from_store?;
    let recovered = recovered?;
    if which != ExpectedBuffer::NewUnrecorded {
        record_settings(media, &store, recovered.buffer_id(), which)?;
    }
    let blocks = |disk: &IoCounters| disk.reads.snapshot().blocks;
    (start.media, start.media_blocks) = (busy.total(), blocks(&disks.store) + blocks(&disks.buffer));
    let (cache, beginning) =
        timed(|| Cache::begin(store.clone(), recovered, clock, settings).map_err(cache_failed));
    (start.buffer, start.beginning) = (replaying, beginning);
    Ok(OpenedCache { store, cache: cache?, metadata, start, disks })
}

/// Lets the store keep what is to be known at the next mount: durable with its next checkpoint, as when the cache begins.
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

/// What the store alone gives.
struct StoreContents {
    store: Arc<Store>,
    metadata: Option<PreloadedArena>,
    start: StartTimes,
}

/// Opens the store, and reads the metadata of the volume that is to be mounted. Where these cannot be read it is of no account:
/// whoever mounts reads them again, and is told why not.
fn read_store(
    media: &StoreMedia,
    store: IdentifiedStore,
    to_mount: Option<&str>,
) -> Result<StoreContents, WeirError> {
    let (store, opening) = timed(|| store.open());
    let store = Arc::new(store.map_err(|source| WeirError::Store { path: media.name.clone(), source })?);
    let volume = to_mount.and_then(|name| volume::volume_named(&store, &media.name, name).ok());
    let (metadata, reading) =
        timed(|| volume.and_then(|volume| PreloadedArena::read(&store, volume.id).ok()));
    let start = StartTimes { store: opening, preload: reading, ..StartTimes::default() };
    Ok(StoreContents { store, metadata, start })
}

/// Does two things, the first of them in a thread of its own.
fn run_in_parallel<A: Send, B>(
    first: impl FnOnce() -> A + Send,
    second: impl FnOnce() -> B,
) -> Result<(A, B), WeirError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("open".into());
        let thread = thread.spawn_scoped(scope, first).map_err(|source| WeirError::Spawn { source })?;
        let second = second();
        let first = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok((first, second))
    })
}

/// What `work` gives, and how long it took.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let begun = Instant::now();
    let value = work();
    (value, begun.elapsed())
}

/// A medium; to look only, what is written to it stays in memory.
fn open_disk(path: &Path, access: DiskAccess) -> Result<Arc<dyn Device>, WeirError> {
    let disk = media::open(path, access)?;
    Ok(match access {
        DiskAccess::Write => Arc::new(disk),
        DiskAccess::Read => Arc::new(OverlayDevice::new(disk)),
    })
}

/// The threads that do background work, until they are stopped.
pub(crate) struct WorkerThreads {
    stopper: WorkerStopper,
    threads: Vec<JoinHandle<()>>,
}

/// What ends the background work of a mount.
#[derive(Clone)]
pub(crate) struct WorkerStopper {
    cache: Cache,
    stopping: Arc<AtomicBool>,
    access: DiskAccess,
}

impl WorkerStopper {
    /// Refuses new operations and writes everything back, in the caller's thread. On an error, what could not be written back is
    /// durable in the buffer. Of a mount that only looks nothing is written back.
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
    /// Starts them: on a mount that only looks, those that only read, and the one that answers syncs.
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
            for _ in 0..if changes_store && access == DiskAccess::Read { 0 } else { count } {
                workers.spawn(task, name)?;
            }
        }
        Ok(workers)
    }

    /// What ends them, for whoever may have to.
    pub(crate) fn stopper(&self) -> WorkerStopper {
        self.stopper.clone()
    }

    fn spawn(&mut self, task: BackgroundTask, name: &str) -> Result<(), WeirError> {
        let (cache, stopping) = (self.stopper.cache.clone(), self.stopper.stopping.clone());
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

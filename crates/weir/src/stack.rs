//! The way down, assembled: disks, store, cache, file system, and the workers that keep them going.

use crate::ahead::Ahead;
use crate::counted::{Counted, Reads, ReadsNow};
use crate::error::WeirError;
use crate::media::{self, Media};
use crate::overlay::{self, Overlay};
use crate::volume;
use cache::{Cache, Progress, Settings, Task};
use device::{Device, Sequence};
use fs::{Caller, Fs};
use host::{Access, SystemClock, random_bytes};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use store::{Store, VolumeId, VolumeInfo};

/// Threads that fetch pages: a step keeps many reads in flight, so a few keep any device busy while one of them
/// waits for its slowest read.
const FETCHERS: usize = 4;

/// How long a worker sleeps at most when nobody wakes it: ages are looked at this often.
const NAP: Duration = Duration::from_millis(500);

/// An open store with everything above it, and no threads yet.
pub(crate) struct Stack {
    pub(crate) media: Media,
    pub(crate) store: Arc<Store>,
    pub(crate) cache: Cache,
    pub(crate) fs: Arc<Fs>,
    /// What is mounted of it.
    pub(crate) volume: VolumeInfo,
    pub(crate) access: Access,
    pub(crate) start: Start,
}

/// What opening took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Start {
    /// Reading the store's newest checkpoint and the log after it.
    pub(crate) store: Duration,
    /// Reading the buffer, and beginning a new incarnation on both media; for another volume than the buffer's, taking
    /// everything home, too.
    pub(crate) buffer: Duration,
    /// Reading the metadata of all files.
    pub(crate) metadata: Duration,
    /// What was read from the store.
    pub(crate) reads: ReadsNow,
    /// What was read from the buffer, by a thread that reads ahead while what it has read is applied.
    pub(crate) buffer_reads: ReadsNow,
}

impl Stack {
    /// Opens the volume `name` of the store on `media`. With `Access::Write` the media are written to from here on; with
    /// `Access::Read` never.
    pub(crate) fn open(
        media: Media,
        settings: Settings,
        access: Access,
        name: &str,
    ) -> Result<Stack, WeirError> {
        let (opened, volume) = open_volume(&media, settings, access, name)?;
        let Opened { store, cache, mut start, reads } = opened;
        let begun = Instant::now();
        let fs = Fs::open(Arc::new(cache.clone()), Arc::new(SystemClock::new()))
            .map_err(|source| WeirError::Fs { path: media.name.clone(), source })?;
        (start.metadata, start.reads) = (begun.elapsed(), reads.now());
        Ok(Stack { media, store, cache, fs: Arc::new(fs), volume, access, start })
    }

    /// Makes an empty file system, owned by `owner`, on media that were just formatted, and takes it home.
    pub(crate) fn create(media: &Media, owner: Caller) -> Result<(), WeirError> {
        let Opened { cache, .. } = open_cache(media, Settings::default(), Access::Write)?;
        Fs::create(&Arc::new(cache.clone()), &SystemClock::new(), owner, random_bytes())
            .map_err(|source| WeirError::Fs { path: media.name.clone(), source })?;
        cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })
    }
}

/// The buffer holds records of one volume, the one that was mounted last: to mount another, these go home first, and
/// then the buffer is the other's. To look only, that volume's records are of no interest: all that the other one has is
/// in the store.
fn open_volume(
    media: &Media,
    settings: Settings,
    access: Access,
    name: &str,
) -> Result<(Opened, VolumeInfo), WeirError> {
    let mut opened = open_cache(media, settings.clone(), access)?;
    let volume = volume::named(&opened.store, &media.name, name)?;
    if opened.cache.volume() == volume.id {
        return Ok((opened, volume));
    }
    let begun = Instant::now();
    let failed = |source| WeirError::Cache { path: media.name.clone(), source };
    if access == Access::Read {
        let store = opened.store.clone();
        let buffer = overlay::blank_buffer(&store, volume.id).map_err(|error| failed(error.into()))?;
        opened.cache = Cache::open(store, buffer, Arc::new(SystemClock::new()), settings).map_err(failed)?;
    } else {
        opened.cache.hand_over(volume.id).map_err(failed)?;
        // The media are locked while they are open.
        drop(opened);
        opened = open_cache(media, settings, access)?;
    }
    opened.start.buffer = opened.start.buffer.max(begun.elapsed());
    Ok((opened, volume))
}

/// What went home from a buffer, and where its records end.
pub(crate) struct Home {
    pub(crate) volume: VolumeId,
    pub(crate) newest: Sequence,
}

/// Takes home everything that the buffer of `media` holds, and only reads the buffer: a device that cannot be written any
/// more, as at the end of its life, loses nothing. After a crash it holds what it did, and may be taken home again.
pub(crate) fn take_home(media: &Media) -> Result<Home, WeirError> {
    let buffer = media::open(&media.buffer, Access::Read)?;
    // What goes home must not be newer than what the buffer has after a crash. Where this fails, too, there is nothing better
    // to do than to go on: should the power fail meanwhile, the store is ahead of the buffer, and the next start says so.
    let _ = buffer.flush();
    let Opened { cache, .. } = open_on(
        media,
        open_disk(&media.store, Access::Write)?,
        Arc::new(Overlay::new(buffer)),
        Settings::default(),
    )?;
    cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })?;
    Ok(Home { volume: cache.volume(), newest: cache.status().applied })
}

/// Begins with the new buffer of `media`, which is empty. The store refuses every other one from then on.
pub(crate) fn begin_anew(media: &Media) -> Result<(), WeirError> {
    let Opened { store, cache, .. } = open_cache(media, Settings::default(), Access::Write)?;
    store
        .leave_behind(cache.buffer().newest_sequence())
        .map_err(|source| WeirError::Store { path: media.name.clone(), source })
}

/// A store and the cache above it.
struct Opened {
    store: Arc<Store>,
    cache: Cache,
    start: Start,
    reads: Arc<Reads>,
}

fn open_cache(media: &Media, settings: Settings, access: Access) -> Result<Opened, WeirError> {
    let store = open_disk(&media.store, access)?;
    let opened = open_disk(&media.buffer, access).and_then(|buffer| open_on(media, store, buffer, settings));
    opened.map_err(|error| match error.is_not_writable(&media.buffer) {
        true => WeirError::BufferNotWritable { path: media.buffer.clone(), why: error.to_string() },
        false => error,
    })
}

/// A store and what is above it on devices that are open.
fn open_on(
    media: &Media,
    store: Arc<dyn Device>,
    buffer: Arc<dyn Device>,
    settings: Settings,
) -> Result<Opened, WeirError> {
    let (store_disk, reads) = Counted::over(store);
    let (buffer, buffer_reads) = Counted::over(buffer);
    let buffer_disk = Arc::new(Ahead::of(buffer));
    let begun = Instant::now();
    let store =
        Store::open(store_disk).map_err(|source| WeirError::Store { path: media.name.clone(), source })?;
    let store = Arc::new(store);
    let mut start = Start { store: begun.elapsed(), ..Start::default() };
    let clock = Arc::new(SystemClock::new());
    let begun = Instant::now();
    let cache = Cache::open(store.clone(), buffer_disk, clock, settings)
        .map_err(|source| WeirError::Cache { path: media.name.clone(), source })?;
    (start.buffer, start.buffer_reads) = (begun.elapsed(), buffer_reads.now());
    Ok(Opened { store, cache, start, reads })
}

/// A medium; to look only, what is written to it stays in memory.
fn open_disk(path: &Path, access: Access) -> Result<Arc<dyn Device>, WeirError> {
    let disk = media::open(path, access)?;
    Ok(match access {
        Access::Write => Arc::new(disk),
        Access::Read => Arc::new(Overlay::new(disk)),
    })
}

/// The threads that do background work, until they are stopped.
pub(crate) struct Workers {
    stopper: Stopper,
    threads: Vec<JoinHandle<()>>,
}

/// What ends the background work of a mount.
#[derive(Clone)]
pub(crate) struct Stopper {
    cache: Cache,
    stopping: Arc<AtomicBool>,
    access: Access,
}

impl Stopper {
    /// Refuses new operations and takes everything home, in the caller's thread. On an error, what could not go home is
    /// durable in the buffer. Of a mount that only looks nothing goes home.
    pub(crate) fn stop_and_drain(&self) -> Result<(), cache::CacheError> {
        self.stop();
        match self.access {
            Access::Write => self.cache.drain(),
            Access::Read => Ok(()),
        }
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.cache.stop();
    }
}

impl Workers {
    /// Starts them: on a mount that only looks, those that only read, and the one that answers syncs.
    pub(crate) fn start(cache: &Cache, access: Access) -> Result<Workers, WeirError> {
        let stopper = Stopper { cache: cache.clone(), stopping: Arc::new(AtomicBool::new(false)), access };
        let mut workers = Workers { stopper, threads: Vec::new() };
        for (task, name, count) in [
            (Task::Commit, "commit", 1),
            (Task::Fetch, "fetch", FETCHERS),
            (Task::WriteBack, "write-back", 1),
            (Task::Checkpoint, "checkpoint", 1),
        ] {
            let changes_store = matches!(task, Task::WriteBack | Task::Checkpoint);
            for _ in 0..if changes_store && access == Access::Read { 0 } else { count } {
                workers.spawn(task, name)?;
            }
        }
        Ok(workers)
    }

    /// What ends them, for whoever may have to.
    pub(crate) fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    fn spawn(&mut self, task: Task, name: &str) -> Result<(), WeirError> {
        let (cache, stopping) = (self.stopper.cache.clone(), self.stopper.stopping.clone());
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || work(&cache, task, &stopping));
        self.threads.push(thread.map_err(|source| WeirError::Spawn { source })?);
        Ok(())
    }

    /// Refuses new operations, ends the threads, and takes everything home in the caller's thread.
    pub(crate) fn stop_and_drain(self) -> Result<(), cache::CacheError> {
        self.stopper.stop();
        for thread in self.threads {
            thread.join().expect("a worker that panics ends the process");
        }
        self.stopper.stop_and_drain()
    }
}

fn work(cache: &Cache, task: Task, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if cache.step(task) == Progress::Idle {
            cache.wait(task, NAP);
        }
    }
}

//! The way down, assembled: disks, store, cache, file system, and the workers that keep them going.

use crate::error::WeirError;
use crate::media::{Media, host_error};
use cache::{Cache, Progress, Settings, Task};
use fs::{Caller, Fs};
use host::{Access, Disk, SystemClock, random_bytes};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use store::Store;

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
}

impl Stack {
    /// Opens the store on `media`. From here on the media are written to.
    pub(crate) fn open(media: Media, settings: Settings) -> Result<Stack, WeirError> {
        let (store, cache) = open_cache(&media, settings)?;
        let clock = Arc::new(SystemClock::new());
        let fs = Fs::open(Arc::new(cache.clone()), clock)
            .map_err(|source| WeirError::Fs { path: media.name.clone(), source })?;
        Ok(Stack { media, store, cache, fs: Arc::new(fs) })
    }

    /// Makes an empty file system, owned by `owner`, on media that were just formatted, and takes it home.
    pub(crate) fn create(media: &Media, owner: Caller) -> Result<(), WeirError> {
        let (_, cache) = open_cache(media, Settings::default())?;
        Fs::create(&Arc::new(cache.clone()), &SystemClock::new(), owner, random_bytes())
            .map_err(|source| WeirError::Fs { path: media.name.clone(), source })?;
        cache.drain().map_err(|source| WeirError::Cache { path: media.name.clone(), source })
    }
}

fn open_cache(media: &Media, settings: Settings) -> Result<(Arc<Store>, Cache), WeirError> {
    let disk = |path| Disk::open(path, Access::Write).map_err(|error| host_error(path, error));
    let (store_disk, buffer_disk) = (disk(&media.store)?, disk(&media.buffer)?);
    let store = Store::open(Arc::new(store_disk))
        .map_err(|source| WeirError::Store { path: media.name.clone(), source })?;
    let store = Arc::new(store);
    let clock = Arc::new(SystemClock::new());
    let cache = Cache::open(store.clone(), Arc::new(buffer_disk), clock, settings)
        .map_err(|source| WeirError::Cache { path: media.name.clone(), source })?;
    Ok((store, cache))
}

/// The threads that do background work, until they are stopped.
pub(crate) struct Workers {
    cache: Cache,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Workers {
    /// Starts them.
    pub(crate) fn start(cache: &Cache) -> Result<Workers, WeirError> {
        let mut workers =
            Workers { cache: cache.clone(), stopping: Arc::new(AtomicBool::new(false)), threads: Vec::new() };
        for (task, name, count) in [
            (Task::Commit, "commit", 1),
            (Task::Fetch, "fetch", FETCHERS),
            (Task::WriteBack, "write-back", 1),
            (Task::Checkpoint, "checkpoint", 1),
        ] {
            for _ in 0..count {
                workers.spawn(task, name)?;
            }
        }
        Ok(workers)
    }

    fn spawn(&mut self, task: Task, name: &str) -> Result<(), WeirError> {
        let (cache, stopping) = (self.cache.clone(), self.stopping.clone());
        let thread =
            std::thread::Builder::new().name(name.into()).spawn(move || work(&cache, task, &stopping));
        self.threads.push(thread.map_err(|source| WeirError::Spawn { source })?);
        Ok(())
    }

    /// Refuses new operations, ends the threads, and takes everything home in the caller's thread. On an error,
    /// what could not go home is durable in the buffer.
    pub(crate) fn stop_and_drain(self) -> Result<(), cache::CacheError> {
        self.stopping.store(true, Ordering::Release);
        self.cache.stop();
        for thread in self.threads {
            thread.join().expect("a worker that panics ends the process");
        }
        self.cache.drain()
    }
}

fn work(cache: &Cache, task: Task, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if cache.step(task) == Progress::Idle {
            cache.wait(task, NAP);
        }
    }
}

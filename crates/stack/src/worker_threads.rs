//! The threads that do a store's background work.

use cache::{BackgroundTask, Cache, CacheError, StepProgress};
use host::DiskAccess;
use nix::sys::signal::SigSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that fetch pages. A step keeps many reads in flight, so a few threads keep any device busy while
/// one of them waits for its slowest read.
const FETCHERS: usize = 4;

/// The longest time that a worker sleeps without being woken. The ages of changes are checked this often.
const WORKER_WAIT_MAX: Duration = Duration::from_millis(500);

/// The threads that do background work until they are stopped. Signals never interrupt them: a process's handlers
/// run in its own threads.
pub struct WorkerThreads {
    stopper: WorkerStopper,
    threads: Vec<JoinHandle<()>>,
}

/// Ends the background work of a store.
#[derive(Clone)]
pub struct WorkerStopper {
    cache: Cache,
    stopping: Arc<AtomicBool>,
    access: DiskAccess,
}

impl WorkerStopper {
    /// Refuses new operations and writes everything back, in the caller's thread. After an error, changes
    /// that could not be written back are durable in the buffer. With `DiskAccess::Read` nothing is written.
    pub fn stop_and_drain(&self) -> Result<(), CacheError> {
        self.stop();
        if self.access == DiskAccess::Write {
            self.cache.drain()?;
            // If that fails, nothing is lost but the note.
            let _ = self.cache.note_complete();
        }
        Ok(())
    }

    fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.cache.stop();
    }
}

impl WorkerThreads {
    /// Starts the threads. With `DiskAccess::Read` these are only the fetchers and the thread that answers syncs.
    ///
    /// # Errors
    /// The kernel starts no more threads. Threads that were started have ended then.
    pub fn start(cache: &Cache, access: DiskAccess) -> io::Result<WorkerThreads> {
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
                if let Err(error) = workers.spawn(task, name) {
                    workers.end();
                    return Err(error);
                }
            }
        }
        Ok(workers)
    }

    /// A handle that ends the threads, for the thread that handles signals.
    pub fn stopper(&self) -> WorkerStopper {
        self.stopper.clone()
    }

    fn spawn(&mut self, task: BackgroundTask, name: &str) -> io::Result<()> {
        let cache = self.stopper.cache.clone();
        let stopping = self.stopper.stopping.clone();
        let work = move || {
            let blocked = SigSet::all().thread_block();
            debug_assert!(blocked.is_ok(), "a full set of signals is valid");
            let _process = PanicEndsProcess;
            work(&cache, task, &stopping);
        };
        self.threads.push(std::thread::Builder::new().name(name.into()).spawn(work)?);
        Ok(())
    }

    /// Refuses new operations, ends the threads, and writes everything back in the caller's thread.
    pub fn stop_and_drain(mut self) -> Result<(), CacheError> {
        self.end();
        self.stopper.stop_and_drain()
    }

    /// Refuses new operations and ends the threads. Synced changes that were not written back are in the buffer.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stopper.stop();
        for thread in self.threads.drain(..) {
            thread.join().expect("a worker that panics ends the process");
        }
        // Reads and syncs that no worker has answered.
        let cache = &self.stopper.cache;
        for task in [BackgroundTask::Commit, BackgroundTask::Fetch] {
            while cache.step(task) == StepProgress::Worked {}
        }
    }
}

/// Ends the process if the thread that has it panics. Operations would wait for the thread for ever.
struct PanicEndsProcess;

impl Drop for PanicEndsProcess {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}

fn work(cache: &Cache, task: BackgroundTask, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if cache.step(task) == StepProgress::Idle {
            cache.wait(task, WORKER_WAIT_MAX);
        }
    }
}

//! weir in this process, from the file system down and without the kernel, to measure its own operations.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use cache::{BackgroundTask, Cache, CacheError, CacheSettings, StepProgress};
use device::{Device, VolumeId};
use fs::{CallerCredentials, FileKind, Fs, FsCompletion, FsError, Ino};
use host::{CountingDevice, DiskAccess, HostDisk, IoCounters, ReadBusyTime, SystemClock};
use store::Store;

use super::cleanup;
use super::error::BenchError;
use super::program::run;
use super::slow_device::work_directory;
use super::system::weir_on;
use super::workload::PAGE_BYTES;

const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// The background threads of a mount.
const WORKERS: [BackgroundTask; 7] = [
    BackgroundTask::Commit,
    BackgroundTask::Fetch,
    BackgroundTask::Fetch,
    BackgroundTask::Fetch,
    BackgroundTask::Fetch,
    BackgroundTask::WriteBack,
    BackgroundTask::Checkpoint,
];

/// Longest sleep of a background thread that is not woken.
const NAP: Duration = Duration::from_millis(500);

/// An open store with everything above it but the kernel, and running background threads.
pub(super) struct InProcessStack {
    pub(super) store: Arc<Store>,
    pub(super) cache: Cache,
    pub(super) fs: Arc<Fs>,
    /// I/O counters of the store's medium and of the buffer's.
    pub(super) disks: [Arc<IoCounters>; 2],
    stopping: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl InProcessStack {
    /// Opens the store in `directory`, which `weir format` made.
    pub(super) fn open(directory: &Path, settings: CacheSettings) -> Result<InProcessStack, BenchError> {
        let (store_disk, of_store) = open_disk(&directory.join("store"))?;
        let (buffer_disk, of_buffer) = open_disk(&directory.join("buffer"))?;
        let store = Arc::new(Store::open(store_disk).map_err(BenchError::opening(directory))?);
        let clock = Arc::new(SystemClock::new());
        let cache = Cache::open(store.clone(), buffer_disk, clock.clone(), settings)
            .map_err(BenchError::opening(directory))?;
        let fs = Arc::new(
            Fs::open(Arc::new(cache.clone()), VolumeId::MAIN, clock)
                .map_err(|source| BenchError::Fs { source })?,
        );
        let stopping = Arc::new(AtomicBool::new(false));
        let worker = |task| {
            let (cache, stopping) = (cache.clone(), stopping.clone());
            std::thread::spawn(move || work(&cache, task, &stopping))
        };
        let workers = WORKERS.into_iter().map(worker).collect();
        Ok(InProcessStack { store, cache, fs, disks: [of_store, of_buffer], stopping, workers })
    }

    /// Refuses new operations, ends the background work, and writes everything back.
    pub(super) fn close(self) -> Result<(), CacheError> {
        self.stop().drain()
    }

    /// Refuses new operations, and ends the background work. Without more, the media are as after a crash.
    pub(super) fn stop(self) -> Cache {
        self.stopping.store(true, Ordering::Release);
        self.cache.stop();
        for worker in self.workers {
            worker.join().expect("a worker does not panic");
        }
        self.cache
    }
}

fn work(cache: &Cache, task: BackgroundTask, stopping: &AtomicBool) {
    while !stopping.load(Ordering::Acquire) {
        if cache.step(task) == StepProgress::Idle {
            cache.wait(task, NAP);
        }
    }
}

fn open_disk(path: &Path) -> Result<(Arc<dyn Device>, Arc<IoCounters>), BenchError> {
    let disk = HostDisk::open(path, DiskAccess::Write).map_err(BenchError::opening(path))?;
    Ok(CountingDevice::wrap(Arc::new(disk), &Arc::new(ReadBusyTime::default())))
}

/// Opens the store in `directory`, lets `work` use it, and closes it.
pub(super) fn with_stack<T>(
    directory: &Path,
    settings: CacheSettings,
    work: impl FnOnce(&InProcessStack) -> Result<T, FsError>,
) -> Result<T, BenchError> {
    let stack = InProcessStack::open(directory, settings)?;
    let done = work(&stack);
    let closed = stack.close().map_err(FsError::Cache);
    done.and_then(|done| closed.map(|()| done)).map_err(|source| BenchError::Fs { source })
}

/// Lets `work` use a new file system.
pub(super) fn with_fs<T>(
    settings: CacheSettings,
    work: impl FnOnce(&Arc<Fs>) -> Result<T, FsError>,
) -> Result<T, BenchError> {
    cleanup::install()?;
    let (root, _files) = work_directory(None)?;
    let store = root.join("store");
    run(weir_on(&store, "format")
        .arg(&store)
        .args([format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")]))?;
    with_stack(&store, settings, |stack| work(&stack.fs))
}

/// Writes like the front end: without waiting if possible.
pub(super) fn write(fs: &Arc<Fs>, file: Ino, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
    fs.try_write(file, offset, bytes)
        .unwrap_or_else(|| wait(|done| fs.write(file, offset, bytes.to_vec(), done)))
}

/// Makes a file of `pages` pages without holes.
pub(super) fn lay_out(fs: &Arc<Fs>, name: &str, pages: u64) -> Result<Ino, FsError> {
    let caller = CallerCredentials { uid: 0, gid: 0, umask: 0 };
    let made = wait(|done| fs.make(caller, Ino::ROOT, name.as_bytes(), FileKind::File, 0o600, done))?;
    let page = vec![1; PAGE_BYTES as usize];
    (0..pages).try_for_each(|number| write(fs, made.ino, number * PAGE_BYTES, &page))?;
    Ok(made.ino)
}

/// Waits for an operation that ends in a completion, and returns its result.
pub(super) fn wait<T: Send + 'static>(operation: impl FnOnce(FsCompletion<T>)) -> Result<T, FsError> {
    let (sender, receiver) = sync_channel(1);
    operation(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    receiver.recv().expect("every operation completes")
}

//! weir in this process, from the file system down and without the kernel, to measure its own operations.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use cache::{CacheError, CacheSettings};
use fs::{CallerCredentials, FileKind, Fs, FsCompletion, FsError, Ino};
use host::DiskAccess;
use stack::{ExpectedBuffer, StorageStack, StoreMedia, WorkerThreads, volume_named};
use store::MAIN_VOLUME_NAME;

use super::cleanup;
use super::error::BenchError;
use super::program::run;
use super::slow_device::work_directory;
use super::system::weir_on;
use super::workload::PAGE_BYTES;

const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// An open store with everything above it but the kernel, and running background threads.
pub(super) struct InProcessStack {
    pub(super) layers: StorageStack,
    pub(super) fs: Arc<Fs>,
    workers: WorkerThreads,
}

impl InProcessStack {
    /// Opens the store in `directory`, which `weir format` made.
    pub(super) fn open(directory: &Path, settings: CacheSettings) -> Result<InProcessStack, BenchError> {
        let failed = |source| BenchError::Stack { source };
        let media = StoreMedia::find(directory, None).map_err(failed)?;
        let stack = StorageStack::open(media, settings, DiskAccess::Write, ExpectedBuffer::LastUsed)
            .map_err(failed)?;
        let volume = volume_named(&stack.store, directory, MAIN_VOLUME_NAME).map_err(failed)?;
        let fs = Arc::new(stack.open_fs(&volume).map_err(failed)?);
        let workers = WorkerThreads::start(&stack.cache, DiskAccess::Write)
            .map_err(|source| BenchError::io("cannot start a thread", directory, source))?;
        Ok(InProcessStack { layers: stack, fs, workers })
    }

    /// Refuses new operations, ends the background work, and writes everything back.
    pub(super) fn close(self) -> Result<(), CacheError> {
        self.workers.stop_and_drain()
    }

    /// Refuses new operations, and ends the background work. The media are then as after a crash.
    pub(super) fn stop(self) {
        self.workers.stop();
    }
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

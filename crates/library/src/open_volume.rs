//! What all handles of an open store share.

use crate::permissions::Caller;
use fs::{CallerCredentials, Fs, FsCompletion, FsError};
use rustix::io::Errno;
use stack::{StorageStack, WorkerThreads};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// An open store, and the file system of one of its volumes.
pub(crate) struct OpenVolume {
    pub(crate) fs: Fs,
    pub(crate) caller: Caller,
    /// Permission bits that new files do not get.
    pub(crate) umask: AtomicU16,
    pub(crate) stack: StorageStack,
    /// Held over the look-up of a file's end and the write there, and while a file's size changes otherwise.
    appending: Mutex<()>,
    /// `None` once the store is closed.
    workers: Mutex<Option<WorkerThreads>>,
}

impl OpenVolume {
    pub(crate) fn new(stack: StorageStack, fs: Fs, workers: WorkerThreads, umask: u16) -> OpenVolume {
        OpenVolume {
            fs,
            caller: Caller::of_process(),
            umask: AtomicU16::new(umask),
            stack,
            appending: Mutex::default(),
            workers: Mutex::new(Some(workers)),
        }
    }

    /// The owner and the mask of a new file.
    pub(crate) fn credentials(&self) -> CallerCredentials {
        let Caller { uid, gid, .. } = self.caller;
        CallerCredentials { uid, gid, umask: self.umask.load(Ordering::Relaxed) }
    }

    /// Waits for the turn to change a file's size. No other thread does before the guard is dropped.
    pub(crate) fn take_append_turn(&self) -> MutexGuard<'_, ()> {
        self.appending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses new operations, ends the background work and writes everything back. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<(), Errno> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(workers) = workers else { return Ok(()) };
        workers.stop_and_drain().map_err(|error| FsError::from(error).errno())
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        // What could not be written back is in the buffer, if it was synced.
        let _ = self.close();
    }
}

/// Waits for an operation that ends in a completion, and returns its result.
pub(crate) fn wait<T: Send + 'static>(operation: impl FnOnce(FsCompletion<T>)) -> Result<T, Errno> {
    let (sender, receiver) = sync_channel(1);
    operation(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    // The sender is dropped without a result only when the store is closed.
    receiver.recv().map_or(Err(Errno::IO), |result| result.map_err(|error| error.errno()))
}

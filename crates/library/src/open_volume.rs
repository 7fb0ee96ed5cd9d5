//! The state that all handles of an open store share.

use crate::permissions::Caller;
use crate::waiting::{lock_waiting, waiting};
use fs::{CallerCredentials, Fs, FsCompletion, FsError, Ino};
use rustix::io::Errno;
use stack::{StorageStack, WorkerThreads};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::mpsc::{TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most synced files that stay held.
const SYNCED_MAX: usize = 64;

/// An open store, and the file system of one of its volumes.
pub(crate) struct OpenVolume {
    pub(crate) fs: Fs,
    pub(crate) caller: Caller,
    /// Permission bits that new files do not get.
    pub(crate) umask: AtomicU16,
    pub(crate) stack: StorageStack,
    /// Nothing can change: the store was opened so, or the volume is a snapshot.
    pub(crate) is_read_only: bool,
    /// Held over the look-up of a file's end and the write there, and while a file's size changes otherwise.
    appending: Mutex<()>,
    /// The files that were synced last, the newest at the end. They stay held when they are closed: the removal of a
    /// file that was synced while it was held is durable at once, and databases remove their journals closed.
    synced: Mutex<VecDeque<Ino>>,
    /// `None` once the store is closed.
    workers: Mutex<Option<WorkerThreads>>,
}

impl OpenVolume {
    pub(crate) fn new(
        stack: StorageStack,
        fs: Fs,
        workers: WorkerThreads,
        umask: u16,
        is_read_only: bool,
    ) -> OpenVolume {
        OpenVolume {
            is_read_only,
            fs,
            caller: Caller::of_process(),
            umask: AtomicU16::new(umask),
            stack,
            appending: Mutex::default(),
            synced: Mutex::default(),
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
        lock_waiting(&self.appending)
    }

    /// Notes that a file was synced.
    pub(crate) fn note_sync(&self, ino: Ino) {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if synced.contains(&ino) || self.fs.hold(ino).is_err() {
            return;
        }
        synced.push_back(ino);
        if synced.len() > SYNCED_MAX
            && let Some(oldest) = synced.pop_front()
        {
            drop(synced);
            self.fs.unhold(oldest, 1);
        }
    }

    /// Whether a file was synced lately.
    pub(crate) fn is_among_synced(&self, ino: Ino) -> bool {
        self.synced.lock().unwrap_or_else(PoisonError::into_inner).contains(&ino)
    }

    /// Releases a file that has lost a name, so that its space can be freed.
    pub(crate) fn note_removal(&self, ino: Ino) {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = synced.iter().position(|&held| held == ino) {
            synced.remove(at);
            drop(synced);
            self.fs.unhold(ino, 1);
        }
    }

    /// Refuses new operations, ends the background work and writes everything back. Later calls do nothing.
    pub(crate) fn close(&self) -> Result<(), Errno> {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(workers) = workers else { return Ok(()) };
        waiting(|| workers.stop_and_drain()).map_err(|error| FsError::from(error).errno())
    }
}

/// A file or directory that lives, and keeps its number, while this exists.
pub(crate) struct HeldFile {
    volume: Arc<OpenVolume>,
    ino: Ino,
}

impl HeldFile {
    pub(crate) fn new(volume: Arc<OpenVolume>, ino: Ino) -> Result<HeldFile, Errno> {
        volume.fs.hold(ino).map_err(|error| error.errno())?;
        Ok(HeldFile { volume, ino })
    }

    pub(crate) fn ino(&self) -> Ino {
        self.ino
    }
}

impl Drop for HeldFile {
    fn drop(&mut self) {
        self.volume.fs.unhold(self.ino, 1);
    }
}

impl Drop for OpenVolume {
    fn drop(&mut self) {
        // Synced changes that could not be written back are in the buffer.
        let _ = self.close();
    }
}

/// Waits for an operation that ends in a completion, and returns its result. Most operations are complete at once.
pub(crate) fn wait<T: Send + 'static>(operation: impl FnOnce(FsCompletion<T>)) -> Result<T, Errno> {
    let (sender, receiver) = sync_channel(1);
    operation(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    let result = match receiver.try_recv() {
        Ok(result) => result,
        Err(TryRecvError::Empty) => waiting(move || receiver.recv()).map_err(|_| CLOSED)?,
        Err(TryRecvError::Disconnected) => return Err(CLOSED),
    };
    result.map_err(|error| error.errno())
}

/// The error of an operation that gets no result. That happens only when the store is closed.
const CLOSED: Errno = Errno::IO;

/// As [`wait`], for an operation that reads or writes the media in the caller's thread.
pub(crate) fn wait_for_media<T: Send + 'static>(
    operation: impl FnOnce(FsCompletion<T>) + Send,
) -> Result<T, Errno> {
    waiting(|| wait(operation))
}

//! Opening and closing a store in the caller's process.

use crate::directory::Directory;
use crate::open_volume::{OpenVolume, wait_for_media};
use crate::waiting::waiting;
use cache::CacheSettings;
use device::Clock;
use fs::FsError;
use host::{DiskAccess, SystemClock};
use rustix::io::Errno;
use stack::{ExpectedBuffer, StackError, StorageStack, StoreMedia, WorkerThreads, volume_named};
use std::io;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{MAIN_VOLUME_NAME, NewVolume, VolumeId, VolumeMode};

/// How a store is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeirOptions {
    /// The volume.
    pub volume: String,
    /// Where the buffer is; `None`: where it was last, or beside the store.
    pub buffer: Option<PathBuf>,
    /// Whether nothing is ever written to the media. Changes are then refused with EROFS.
    pub read_only: bool,
    /// Memory for pages and deltas, in bytes: at least 16 MiB.
    pub memory_bytes: u64,
    /// Whether a buffer is accepted that loses synced data when the power fails.
    pub volatile_buffer: bool,
    /// Permission bits that new files do not get.
    pub umask: u16,
}

impl Default for WeirOptions {
    /// The volume `main`, for writing, with 128 MiB of memory and the umask 022.
    fn default() -> WeirOptions {
        WeirOptions {
            volume: MAIN_VOLUME_NAME.into(),
            buffer: None,
            read_only: false,
            memory_bytes: 128 << 20,
            volatile_buffer: false,
            umask: 0o022,
        }
    }
}

/// A store that is open in this process, and one of its volumes, whose root [`Directory`] it is.
///
/// Dropping it closes the store, unless files or directories of it are still open: then the last of these does.
pub struct Weir {
    volume: Arc<OpenVolume>,
    id: VolumeId,
    root: Directory,
}

impl Weir {
    /// Opens the store that was formatted at `path`, and recovers. Starts threads, which take no signals.
    ///
    /// # Errors
    /// There is no store, another process has it open, its buffer is missing or not durable, or a medium fails. The
    /// error says what to do next.
    pub fn open(path: &Path, options: &WeirOptions) -> Result<Weir, StackError> {
        waiting(|| Weir::recover(path, options))
    }

    fn recover(path: &Path, options: &WeirOptions) -> Result<Weir, StackError> {
        if options.memory_bytes < CacheSettings::MEMORY_BYTES_MIN {
            return Err(StackError::MemoryTooSmall { bytes: options.memory_bytes });
        }
        let media = StoreMedia::find(path, options.buffer.as_deref())?;
        let access = if options.read_only { DiskAccess::Read } else { DiskAccess::Write };
        if access == DiskAccess::Write && !options.volatile_buffer {
            media.ensure_durable()?;
        }
        let mut settings = CacheSettings::with_memory(options.memory_bytes);
        // The caller waits in any case. Handing over to another thread and back takes tens of microseconds.
        settings.commit_inline_below = Duration::from_millis(5);
        if let Some(ms) = media.settings.commit_interval_ms {
            settings.commit_interval = Duration::from_millis(ms);
        }
        let name = media.name.clone();
        let stack = StorageStack::open(media, settings, access, ExpectedBuffer::LastUsed)?;
        let volume = volume_named(&stack.store, &name, &options.volume)?;
        let fs = stack.open_fs(&volume)?;
        if options.read_only {
            // They would stay in memory.
            stack.cache.refuse_changes();
        }
        let workers =
            WorkerThreads::start(&stack.cache, access).map_err(StackError::io("starting a thread", name))?;
        let is_read_only = options.read_only || volume.mode == VolumeMode::ReadOnly;
        let opened = Arc::new(OpenVolume::new(stack, fs, workers, options.umask, is_read_only));
        let root = Directory::root(opened.clone()).expect("every volume has a root");
        Ok(Weir { volume: opened, id: volume.id, root })
    }

    /// Makes everything durable that was changed before the call. A [sync](crate::WeirFile::sync_data) of one file may
    /// cost less.
    pub fn commit(&self) -> io::Result<()> {
        Ok(wait_for_media(|done| self.volume.fs.sync(done))?)
    }

    /// Makes a read-only volume of the present state, durably on return. Other threads go on.
    ///
    /// # Errors
    /// EEXIST if there is a volume of that name, EINVAL for a name that no volume can have, ENOSPC, EIO, EROFS.
    pub fn snapshot(&self, name: &str) -> io::Result<()> {
        let created = SystemClock::new().wall_nanos().try_into().unwrap_or(0);
        if self.volume.stack.access == DiskAccess::Read {
            return Err(Errno::ROFS.into());
        }
        let volumes = self.volume.stack.store.volumes();
        if volumes.named(name).is_some() {
            return Err(Errno::EXIST.into());
        }
        let snapshot = NewVolume { name, mode: VolumeMode::ReadOnly, created };
        match waiting(|| self.volume.stack.cache.clone_volume(self.id, &snapshot)) {
            Ok(_) => Ok(()),
            Err(error) if error.is_full() => Err(Errno::NOSPC.into()),
            Err(cache::CacheError::Store(store::StoreError::BadName { .. })) => Err(Errno::INVAL.into()),
            Err(error) => Err(FsError::from(error).errno().into()),
        }
    }

    /// Sets the permission bits that new files do not get, and returns the old ones.
    pub fn set_umask(&self, umask: u16) -> u16 {
        self.volume.umask.swap(umask & 0o777, Ordering::Relaxed)
    }

    /// The files or devices of the store and its buffer, without symbolic links.
    pub fn media(&self) -> [&Path; 2] {
        let media = &self.volume.stack.media;
        [&media.store, &media.buffer]
    }

    /// The root directory.
    pub fn root(&self) -> &Directory {
        &self.root
    }

    /// Writes everything back and closes the store. Files that are still open can be read from now on, but changes fail with EIO;
    /// other processes can open the store once they are dropped.
    ///
    /// # Errors
    /// EIO if not everything could be written back. Synced changes are in the buffer then, and the next start goes on
    /// with them.
    pub fn close(self) -> io::Result<()> {
        self.close_shared()
    }

    /// [Closes](Weir::close) a store that has several owners.
    pub fn close_shared(&self) -> io::Result<()> {
        Ok(self.volume.close()?)
    }
}

impl Deref for Weir {
    type Target = Directory;

    fn deref(&self) -> &Directory {
        &self.root
    }
}

impl std::fmt::Debug for Weir {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Weir").field("store", &self.volume.stack.media.name).finish_non_exhaustive()
    }
}

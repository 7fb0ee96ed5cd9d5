//! A mounted volume: what its clients can ask for, except its [status](crate::status_report).

use crate::store_daemon::{RequestRefusal, StoreDaemon};
use crate::write_policy::PolicyChoice;
use client::DeviceNumber;
use fs::{Fs, Ino};
use fuse::{PageInvalidator, RequestLatencies};
use host::{ReadCounts, shell_quoted};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{DataMode, VolumeInfo};

/// A mounted volume, as its control socket sees it.
pub(crate) struct MountedVolume {
    pub(crate) daemon: Arc<StoreDaemon>,
    pub(crate) dir: PathBuf,
    pub(crate) device: DeviceNumber,
    pub(crate) volume: VolumeInfo,
    pub(crate) latencies: Arc<RequestLatencies>,
    pub(crate) since: Instant,
    /// How long reading the metadata took.
    pub(crate) metadata_time: Duration,
    /// Reads of the store until the mount was ready.
    pub(crate) reads_at_start: ReadCounts,
    /// Whether files can be marked for atomic writes.
    pub(crate) has_atomic_writes: bool,
    /// `None` once the volume is not mounted any more.
    fs: Mutex<Option<Fs>>,
    page_invalidator: PageInvalidator,
    /// `None` until everything is stored, or could not be written back. Set once.
    end: Mutex<Option<MountEnd>>,
    end_set: Condvar,
}

/// How a mount ended.
#[derive(Debug, Clone)]
pub(crate) struct MountEnd {
    /// Why not everything was written back, or made durable if other volumes are still mounted.
    pub(crate) written_back: Result<(), String>,
    /// Whether the process ends with the mount, because no other volume is mounted.
    pub(crate) ends_process: bool,
}

impl MountedVolume {
    pub(crate) fn new(
        daemon: Arc<StoreDaemon>,
        (dir, device): (PathBuf, DeviceNumber),
        (volume, fs): (VolumeInfo, Fs),
        (latencies, page_invalidator): (Arc<RequestLatencies>, PageInvalidator),
        (metadata_time, reads_at_start): (Duration, ReadCounts),
        has_atomic_writes: bool,
    ) -> MountedVolume {
        MountedVolume {
            daemon,
            dir,
            device,
            volume,
            latencies,
            since: Instant::now(),
            metadata_time,
            reads_at_start,
            has_atomic_writes,
            fs: Mutex::new(Some(fs)),
            page_invalidator,
            end: Mutex::new(None),
            end_set: Condvar::new(),
        }
    }

    /// The file system; `None` once the volume is not mounted any more.
    pub(crate) fn fs(&self) -> Option<Fs> {
        lock(&self.fs).clone()
    }

    /// Makes the kernel forget the pages of a range, and the attributes of the file, and waits for that.
    pub(crate) fn forget_in_kernel(&self, ino: Ino, range: Range<u64>) {
        let (tell, told) = channel();
        self.page_invalidator.invalidate(ino, range, move || {
            let _ = tell.send(());
        });
        // Fails if the threads are gone, and the mount with them.
        let _ = told.recv();
    }

    /// Gives up the file system, after the mount is gone.
    pub(crate) fn drop_fs(&self) {
        if let Some(fs) = lock(&self.fs).take() {
            fs.free_forgotten();
        }
    }

    /// The user who owns the root directory, and so decides about the files in the mount.
    pub(crate) fn owner_of_files(&self) -> Option<u32> {
        self.fs()?.attributes(Ino::ROOT).ok().map(|root| root.uid)
    }

    /// Notes how the mount ended, and wakes the clients that wait for it.
    pub(crate) fn set_end(&self, end: MountEnd) {
        *lock(&self.end) = Some(end);
        self.end_set.notify_all();
    }

    pub(crate) fn has_ended(&self) -> bool {
        lock(&self.end).is_some()
    }

    /// Waits for [`set_end`](MountedVolume::set_end).
    pub(crate) fn wait_for_end(&self) -> MountEnd {
        let end = self.end_set.wait_while(lock(&self.end), |end| end.is_none());
        end.unwrap_or_else(PoisonError::into_inner).clone().expect("waited for it")
    }

    /// Changes the data mode of the store, its policy, or both. Returns whether this mount lacks the file that the policy
    /// names.
    pub(crate) fn tune(
        &self,
        data: Option<DataMode>,
        choice: Option<PolicyChoice>,
    ) -> Result<bool, RequestRefusal> {
        let policy = choice.as_ref().map(|choice| choice.policy.to_string()).unwrap_or_default();
        let is_missing = policy.strip_prefix("file=").is_some_and(|path| self.inode_at(path).is_err());
        self.daemon.tune(data, choice)?;
        Ok(is_missing)
    }

    /// The file or directory at a path from the mount's root. Links are not followed.
    pub(crate) fn inode_at(&self, path: &str) -> Result<Ino, RequestRefusal> {
        let Some(fs) = self.fs() else {
            return Err(RequestRefusal::new(&format!("{}: not mounted any more", self.dir.display()), None));
        };
        path.split('/').filter(|name| !name.is_empty()).try_fold(Ino::ROOT, |directory, name| {
            let found = fs.lookup(directory, name.as_bytes());
            found.map(|found| found.ino).map_err(|error| {
                let (dir, at) = (&self.dir, self.dir.join(path));
                let help = format!("`weir why {}` shows the waits of all files", shell_quoted(dir));
                RequestRefusal::new(&format!("{}: {error}", at.display()), Some(help.into()))
            })
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

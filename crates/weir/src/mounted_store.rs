//! A mounted store: what its clients can ask for, except its [status](crate::status_report).

use crate::epoch_keeper::{self, EpochKeeper};
use crate::error::WeirError;
use crate::log_files;
use crate::pm_qos::PmQos;
use crate::storage_stack::StorageStack;
use crate::volume;
use crate::write_policy::{PolicyChoice, WritePolicy};
use cache::Cache;
use device::{BLOCK_BYTES, Clock};
use fs::Ino;
use fuse::RequestLatencies;
use host::{DiskAccess, SystemClock, shell_quoted};
use request::RequestClass;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use store::{DataMode, NewVolume, VolumeMode};

/// Where a scrub continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ScrubFrom {
    Start,
    LastPosition,
}

/// Why the daemon refuses a request, and what the user can do next.
pub(crate) struct RequestRefusal {
    pub(crate) why: String,
    pub(crate) help: Option<String>,
}

impl RequestRefusal {
    pub(crate) fn new(why: &dyn Display, help: Option<Cow<'static, str>>) -> RequestRefusal {
        RequestRefusal { why: why.to_string(), help: help.map(Cow::into_owned) }
    }
}

/// Blocks that one request scrubs: 4 MiB, so that the client can limit the rate.
const SCRUB_BLOCKS: u64 = 1024;

/// The part of the daemon that answers the kernel.
pub(crate) struct FrontEnd {
    pub(crate) latencies: Arc<RequestLatencies>,
    pub(crate) pm_qos: Arc<PmQos>,
    pub(crate) threads: u8,
}

/// A mounted store, as its control socket sees it.
pub(crate) struct MountedStore {
    pub(crate) dir: PathBuf,
    pub(crate) stack: StorageStack,
    pub(crate) policy: WritePolicy,
    pub(crate) front: FrontEnd,
    pub(crate) epochs: Arc<EpochKeeper>,
    pub(crate) since: Instant,
    /// The file for messages of a daemon in the background.
    pub(crate) log: OnceLock<PathBuf>,
    /// `None` until everything is stored, or could not be written back. Set once, by the main thread.
    drained: Mutex<Option<Result<(), String>>>,
    drained_set: Condvar,
}

impl MountedStore {
    pub(crate) fn new(
        dir: PathBuf,
        stack: StorageStack,
        policy: WritePolicy,
        front: FrontEnd,
        epochs: Arc<EpochKeeper>,
    ) -> MountedStore {
        MountedStore {
            dir,
            stack,
            policy,
            front,
            epochs,
            since: Instant::now(),
            log: OnceLock::new(),
            drained: Mutex::new(None),
            drained_set: Condvar::new(),
        }
    }

    /// Notes the file to which messages go from now on.
    pub(crate) fn set_log(&self, log: PathBuf) {
        let _ = self.log.set(log);
    }

    /// Removes the file for messages if it is empty. To be called at the end.
    pub(crate) fn remove_empty_log(&self) {
        if let Some(log) = self.log.get() {
            log_files::remove_if_empty(log);
        }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// The cache, for threads that watch it.
    pub(crate) fn cache(&self) -> Cache {
        Cache::clone(&self.stack.cache)
    }

    /// The user who owns the root directory, and so decides about the files in the mount.
    pub(crate) fn owner_of_files(&self) -> Option<u32> {
        self.stack.fs.attributes(Ino::ROOT).ok().map(|root| root.uid)
    }

    /// Makes everything written so far durable, and waits for it.
    pub(crate) fn sync(&self) -> Result<(), RequestRefusal> {
        let (done, result) = std::sync::mpsc::channel();
        self.stack.fs.sync(Box::new(move |synced| {
            // The receiver is gone if the daemon is ending.
            let _ = done.send(synced.map_err(|error| RequestRefusal::new(&error, error.help())));
        }));
        result.recv().unwrap_or_else(|_| Err(RequestRefusal::new(&"the daemon is ending", None)))
    }

    /// Notes whether everything was written back, and wakes the clients that wait for it.
    pub(crate) fn set_drained(&self, result: Result<(), String>) {
        *self.drained.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
        self.drained_set.notify_all();
    }

    /// Waits for [`set_drained`](MountedStore::set_drained).
    pub(crate) fn wait_drained(&self) -> Result<(), String> {
        let drained = self.drained.lock().unwrap_or_else(PoisonError::into_inner);
        let drained = self.drained_set.wait_while(drained, |drained| drained.is_none());
        drained.unwrap_or_else(PoisonError::into_inner).clone().expect("waited for it")
    }

    /// Scrubs [`SCRUB_BLOCKS`] blocks, and returns the progress and the findings.
    pub(crate) fn scrub(&self, from: ScrubFrom) -> Value {
        let store = &self.stack.store;
        if from == ScrubFrom::Start {
            store.maintenance().end_scrub();
        }
        let mut findings = Vec::new();
        let mut report = |finding: store::StoreFinding| findings.push(finding.to_string());
        let first = store.maintenance().scrub_step(&mut report);
        let mut so_far = first;
        while !so_far.done && so_far.blocks < first.blocks + SCRUB_BLOCKS {
            so_far = store.maintenance().scrub_step(&mut report);
        }
        json!({
            "blocks": so_far.blocks,
            "of_blocks": so_far.blocks_expected,
            "damaged": so_far.damaged,
            "healed": so_far.repaired + so_far.rewritten_from_memory,
            "done": so_far.done,
            "findings": findings,
        })
    }

    /// The volumes of the store.
    pub(crate) fn volumes(&self) -> Value {
        let volumes = self.stack.store.volumes().describe();
        json!({ "volumes": volume::volumes_to_json(&volumes, Some(self.stack.volume.id)) })
    }

    /// Clones the mounted volume. Returns the name of its source and the milliseconds that it took.
    pub(crate) fn clone_volume(&self, name: &str, read_only: bool) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        epoch_keeper::ensure_not_reserved(name).map_err(|error| RequestRefusal::new(&error, error.help()))?;
        let mode = if read_only { VolumeMode::ReadOnly } else { VolumeMode::Writable };
        let begun = Instant::now();
        let created = u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0);
        let cloned = self.stack.cache.clone_volume(self.stack.volume.id, &NewVolume { name, mode, created });
        cloned.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "from": self.stack.volume.name, "ms": millis(begun.elapsed()) }))
    }

    /// Enlarges the store to `bytes`, or to the size of its device, and returns the new size.
    pub(crate) fn grow(&self, bytes: Option<u64>) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let grown = self.stack.cache.grow_store(bytes.map(|bytes| bytes / BLOCK_BYTES as u64));
        let blocks = grown.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "store_bytes": blocks * BLOCK_BYTES as u64 }))
    }

    /// Enlarges the buffer to `bytes`, or to the size of its device, and returns the new size.
    pub(crate) fn grow_buffer(&self, bytes: Option<u64>) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let grown = self.stack.cache.grow_buffer(bytes.map(|bytes| bytes / BLOCK_BYTES as u64));
        let blocks = grown.map_err(|error| RequestRefusal::new(&error, error.help()))?;
        Ok(json!({ "buffer_bytes": blocks * BLOCK_BYTES as u64 }))
    }

    /// Changes the data mode of this mount and of later ones, the policy of this mount, or both. Returns whether the file
    /// that the policy names is missing.
    ///
    /// When this returns, everything written before is durable, unless whole pages bypass the buffer by the policy alone. A
    /// crash leaves what the mode promises. After an error nothing has changed, in this mount and in later ones.
    pub(crate) fn tune(
        &self,
        data: Option<DataMode>,
        choice: Option<PolicyChoice>,
    ) -> Result<bool, RequestRefusal> {
        let policy = choice.as_ref().map(|choice| choice.policy.to_string()).unwrap_or_default();
        let is_missing = policy.strip_prefix("file=").is_some_and(|path| self.inode_at(path).is_err());
        if data.is_some() {
            self.refuse_read_only()?;
        }
        self.policy.change(data, choice, || {
            self.sync()?;
            if data.is_none() {
                return Ok(());
            }
            let store = &self.stack.store;
            let mut settings = store.settings();
            settings.data = data;
            store.change_settings(settings).map_err(|error| RequestRefusal::new(&error, error.help()))
        })?;
        Ok(is_missing)
    }

    /// Assigns a class to a running process or thread, or withdraws it. Returns whether classes count under the policy
    /// in force.
    pub(crate) fn set_class(&self, id: u32, class: Option<RequestClass>) -> Result<bool, RequestRefusal> {
        self.policy.assigned_classes().assign(id, class).map_err(|source| {
            let error = WeirError::Task { pid: id, source };
            RequestRefusal::new(&error, error.help())
        })?;
        Ok(self.policy.in_force().follows_classes())
    }

    /// Makes a volume with an empty file system, which belongs to the daemon's user.
    pub(crate) fn create_volume(&self, name: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        refused_by(volume::create_volume(&self.stack.cache, &self.stack.media.name, name))
    }

    /// Renames a volume that is not mounted.
    pub(crate) fn rename_volume(&self, old: &str, new: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        self.refuse_mounted(old)?;
        refused_by(volume::rename_volume(&self.stack.cache, &self.stack.media.name, old, new))
    }

    /// Deletes a volume that is not mounted.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        self.refuse_mounted(name)?;
        refused_by(volume::delete_volume(&self.stack.cache, &self.stack.media.name, name))
    }

    fn refuse_mounted(&self, name: &str) -> Result<(), RequestRefusal> {
        if name != self.stack.volume.name {
            return Ok(());
        }
        let why = format!("volume {name} is mounted on {}", self.dir.display());
        let help = format!("unmount it first: `weir unmount {}`", shell_quoted(&self.dir));
        Err(RequestRefusal::new(&why, Some(help.into())))
    }

    fn refuse_read_only(&self) -> Result<(), RequestRefusal> {
        if self.stack.access == DiskAccess::Write {
            return Ok(());
        }
        let help = "mount a writable volume of the store first";
        Err(RequestRefusal::new(&"the mount is read-only", Some(help.into())))
    }
}

fn refused_by(outcome: Result<(), WeirError>) -> Result<(), RequestRefusal> {
    outcome.map_err(|error| RequestRefusal::new(&error, error.help()))
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

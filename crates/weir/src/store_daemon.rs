//! The daemon of a store: the open store, its mounts and its exports. One process has one.

use crate::assigned_classes::AssignedClasses;
use crate::cli::CloneWish;
use crate::cli::WakeUpArg;
use crate::control_server::{ControlServer, ControlSubject};
use crate::epoch_keeper::EpochKeeper;
use crate::error::WeirError;
use crate::exported_volume::ExportedVolume;
use crate::log_files;
use crate::mount_point::{MountPoint, device_of};
use crate::mounted_volume::{MountEnd, MountedVolume};
use crate::pm_qos::PmQos;
use crate::volume::{self, VolumePlaces};
use crate::write_policy::{PolicyChoice, WritePolicy};
use cache::Cache;
use client::ControlAddress;
use device::BLOCK_BYTES;
use fs::{ATOMIC_WRITES_MARK, ATOMIC_WRITES_OFF, Fs, FsError, Ino, SetXattrMode};
use fuse::{FuseServer, FuseSession, KernelCachePolicy, MountOptions, RequestCounter, RequestLatencies};
use host::{DiskAccess, WEIR_FS_TYPE, shell_quoted};
use nbd::Listener;
use request::RequestClass;
use serde_json::{Value, json};
use stack::StorageStack;
use std::borrow::Cow;
use std::fmt::Display;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use store::{DataMode, VolumeId, VolumeInfo, VolumeMode};
use weir_status::ExportReport;

/// Blocks that one request scrubs: 4 MiB, so that the client can limit the rate.
const SCRUB_BLOCKS: u64 = 1024;

/// The time between two looks whether the operations of an unmounted volume have ended.
const CLOSE_STEP: Duration = Duration::from_millis(2);

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

impl From<WeirError> for RequestRefusal {
    fn from(error: WeirError) -> RequestRefusal {
        RequestRefusal::new(&error, error.help())
    }
}

/// How the daemon takes the kernel's requests: the same for all mounts.
pub(crate) struct FrontEnd {
    pub(crate) pm_qos: Arc<PmQos>,
    /// Counts the requests of all mounts.
    pub(crate) traffic: Arc<RequestCounter>,
    /// Threads of each mount.
    pub(crate) threads: u8,
    pub(crate) wake_up: WakeUpArg,
    pub(crate) kernel_cache: KernelCachePolicy,
}

/// A mount that is to be made.
pub(crate) struct NewMount {
    pub(crate) point: MountPoint,
    /// The name of the volume.
    pub(crate) volume: String,
    pub(crate) allow_other: bool,
    /// Whether the user asks for it, whatever the volume's mode.
    pub(crate) read_only: bool,
    /// Whether files of the volume can be marked for atomic writes, from now on.
    pub(crate) atomic_writes: bool,
}

/// The daemon of a store.
pub(crate) struct StoreDaemon {
    pub(crate) stack: StorageStack,
    pub(crate) policy: WritePolicy,
    pub(crate) epochs: Arc<EpochKeeper>,
    pub(crate) front: FrontEnd,
    /// The file for messages of a daemon in the background.
    pub(crate) log: OnceLock<PathBuf>,
    /// Held while a mount is made, and while a volume is renamed, rolled back or deleted. Locked before `mounts`.
    mounting: Mutex<()>,
    /// Held for moments.
    mounts: Mutex<MountList>,
    mounts_changed: Condvar,
    /// The control socket of the process, from the first export on.
    control: Mutex<Option<ControlServer>>,
    /// The number of the newest scrub. Held while that reads [`SCRUB_BLOCKS`].
    newest_scrub: Mutex<u64>,
}

/// The mounts and the exports of a daemon. It ends when none is left.
#[derive(Default)]
struct MountList {
    serving: Vec<Arc<MountedVolume>>,
    /// Volumes that are exported, also while their exports end.
    exports: Vec<ExportedVolume>,
    /// Commands `weir export` that were not told yet how their exports ended.
    untold: usize,
    /// Mounts that are gone, and whose operations and clients end while others serve.
    closing: Vec<Arc<MountedVolume>>,
    /// Whether a mount is being made.
    is_mounting: bool,
    /// Whether no further mount is to be made.
    is_leaving: bool,
    /// Neither a mount nor an export is left, and none will be made.
    is_ending: bool,
    /// The mount with which the daemon ends.
    last: Option<EndedMount>,
}

impl MountList {
    /// Notes that the kernel has removed a mount. Keeps it if the daemon ends with it; otherwise returns it, and it
    /// is closing.
    fn end(&mut self, ended: EndedMount) -> Option<EndedMount> {
        self.remove(&ended.mounted);
        if self.serves_nothing() && !self.is_mounting {
            self.is_ending = true;
            self.last = Some(ended);
            return None;
        }
        self.closing.push(ended.mounted.clone());
        Some(ended)
    }

    fn serves_nothing(&self) -> bool {
        self.serving.is_empty() && self.exports.is_empty()
    }

    fn remove(&mut self, mounted: &Arc<MountedVolume>) {
        for list in [&mut self.serving, &mut self.closing] {
            list.retain(|other| !Arc::ptr_eq(other, mounted));
        }
    }
}

/// A mount that the kernel has removed.
pub(crate) struct EndedMount {
    pub(crate) mounted: Arc<MountedVolume>,
    pub(crate) control: ControlServer,
    /// The error of the front end, if it ended with one.
    pub(crate) outcome: io::Result<()>,
}

impl StoreDaemon {
    pub(crate) fn new(
        stack: StorageStack,
        policy: WritePolicy,
        epochs: Arc<EpochKeeper>,
        front: FrontEnd,
    ) -> StoreDaemon {
        StoreDaemon {
            stack,
            policy,
            epochs,
            front,
            log: OnceLock::new(),
            mounting: Mutex::default(),
            mounts: Mutex::default(),
            mounts_changed: Condvar::new(),
            control: Mutex::default(),
            newest_scrub: Mutex::default(),
        }
    }

    /// The cache, for threads that watch it.
    pub(crate) fn cache(&self) -> Cache {
        Cache::clone(&self.stack.cache)
    }

    /// The volumes that are mounted, in the order of their mounts.
    pub(crate) fn mounts(&self) -> Vec<Arc<MountedVolume>> {
        self.mount_list().serving.clone()
    }

    /// The exports, for `weir status`.
    pub(crate) fn exports_report(&self) -> Vec<ExportReport> {
        let report =
            |one: &ExportedVolume| ExportReport { volume: one.volume.name.clone(), at: one.at.clone() };
        self.mount_list().exports.iter().map(report).collect()
    }

    /// Makes no further mounts. Returns those that are to end.
    pub(crate) fn leave(&self) -> Vec<Arc<MountedVolume>> {
        let mut mounts = self.mount_list();
        mounts.is_leaving = true;
        mounts.serving.clone()
    }

    /// Mounts a volume, and serves it in a thread of its own. Returns `None` if the daemon is ending.
    pub(crate) fn mount(
        self: &Arc<StoreDaemon>,
        new: &NewMount,
    ) -> Result<Option<Arc<MountedVolume>>, WeirError> {
        let _turn = self.take_turn();
        // Before the mount, which would hang without it.
        let (to_serve, made) = std::sync::mpsc::channel();
        let daemon = self.clone();
        let serve = move || {
            if let Ok((mounted, session, control)) = made.recv() {
                daemon.serve(mounted, session, control);
            }
        };
        let thread = std::thread::Builder::new().name("mount".into()).spawn(serve);
        thread.map_err(|source| WeirError::Spawn { source })?;
        {
            let mut mounts = self.mount_list();
            if mounts.is_ending || mounts.is_leaving {
                return Ok(None);
            }
            mounts.is_mounting = true;
        }
        let made = self.make_mount(new);
        let is_leaving = self.change_mounts(|mounts| {
            mounts.is_mounting = false;
            if let Ok((mounted, ..)) = &made {
                let list = if mounts.is_leaving { &mut mounts.closing } else { &mut mounts.serving };
                list.push(mounted.clone());
            }
            // All others may have ended meanwhile.
            mounts.is_ending |= mounts.serves_nothing();
            mounts.is_leaving
        });
        let (mounted, session, control) = made?;
        if is_leaving {
            // Unmounts it.
            drop(session);
            self.end_mount(&mounted, control);
            return Ok(None);
        }
        let _ = to_serve.send((mounted.clone(), session, control));
        Ok(Some(mounted))
    }

    fn make_mount(
        self: &Arc<StoreDaemon>,
        new: &NewMount,
    ) -> Result<(Arc<MountedVolume>, FuseSession, ControlServer), WeirError> {
        let media = &self.stack.media;
        let dir = &new.point.dir;
        new.point.ensure_not_over(media)?;
        let volume = stack::volume_named(&self.stack.store, &media.name, &new.volume)?;
        self.ensure_unused(&volume)?;
        if self.mounts().iter().any(|mounted| mounted.dir == *dir) {
            return Err(WeirError::MountPointBusy { dir: dir.clone(), fs_type: WEIR_FS_TYPE.into() });
        }
        if volume.mode == VolumeMode::Writable && new.read_only != (self.stack.access == DiskAccess::Read) {
            let path = media.name.clone();
            return Err(WeirError::OtherAccess { path, volume: volume.name, read_only: new.read_only });
        }
        self.epochs.note_mount(&volume);
        let made = self.mount_volume(new, &volume);
        if made.is_err() {
            self.policy.remove_mount(volume.id);
            self.wait_until_unused(&volume);
            self.epochs.note_unmount(volume.id);
        }
        made
    }

    fn mount_volume(
        self: &Arc<StoreDaemon>,
        new: &NewMount,
        volume: &VolumeInfo,
    ) -> Result<(Arc<MountedVolume>, FuseSession, ControlServer), WeirError> {
        let dir = &new.point.dir;
        let begun = Instant::now();
        let fs = self.stack.open_fs(volume)?;
        let metadata_time = begun.elapsed();
        if new.atomic_writes {
            allow_atomic_writes(&fs).map_err(|source| WeirError::Fs { path: dir.clone(), source })?;
        }
        let latencies = Arc::new(RequestLatencies::default());
        let server = FuseServer::new(
            &fs,
            latencies.clone(),
            self.front.traffic.clone(),
            self.policy.add_mount(volume.id, fs.clone(), dir.clone()),
            self.front.kernel_cache,
        );
        let options = MountOptions {
            source: self.stack.media.name.display().to_string(),
            allow_other: new.allow_other,
            read_only: volume.mode == VolumeMode::ReadOnly || self.stack.access == DiskAccess::Read,
            threads: usize::from(self.front.threads),
        };
        let page_invalidator = server.page_invalidator();
        let has_atomic_writes = server.has_atomic_writes();
        new.point.clear()?;
        let session = fuse::mount(server, dir, &options)
            .map_err(|source| WeirError::MountFailed { dir: dir.clone(), source })?;
        let device = device_of(dir)?;
        let reads = self.stack.disks.store.reads.snapshot();
        let mounted = MountedVolume::new(
            self.clone(),
            (dir.clone(), device),
            (volume.clone(), fs),
            (latencies, page_invalidator),
            (metadata_time, reads),
            has_atomic_writes,
        );
        let mounted = Arc::new(mounted);
        let subject = ControlSubject::Mount(mounted.clone());
        let control = ControlServer::start(subject, ControlAddress::Mount(device))?;
        Ok((mounted, session, control))
    }

    fn ensure_unused(&self, volume: &VolumeInfo) -> Result<(), WeirError> {
        let mounts = self.mount_list();
        if let Some(exported) = mounts.exports.iter().find(|exported| exported.volume.id == volume.id) {
            return Err(WeirError::VolumeExported { volume: volume.name.clone(), at: exported.at.clone() });
        }
        let closing = mounts.closing.iter().filter(|mounted| !mounted.has_ended());
        let mut all = mounts.serving.iter().chain(closing);
        match all.find(|mounted| mounted.volume.id == volume.id) {
            Some(mounted) => {
                Err(WeirError::VolumeMounted { volume: volume.name.clone(), dir: mounted.dir.clone() })
            }
            None => Ok(()),
        }
    }

    /// Serves a mount until the kernel has removed it. The daemon ends with the last mount; any other is
    /// closed, which is a sync.
    fn serve(&self, mounted: Arc<MountedVolume>, session: FuseSession, control: ControlServer) {
        let outcome = session.run();
        control.stop_accepting();
        let ended = EndedMount { mounted, control, outcome };
        let Some(EndedMount { mounted, control, outcome }) = self.change_mounts(|mounts| mounts.end(ended))
        else {
            return;
        };
        if let Err(error) = outcome {
            tracing::error!("{}: {error}", mounted.dir.display());
        }
        self.end_mount(&mounted, control);
    }

    /// Ends a mount that is closing, and then the connections of its clients. The daemon does not end before that.
    fn end_mount(&self, mounted: &Arc<MountedVolume>, control: ControlServer) {
        let written_back = self.close(mounted).map_err(|refusal| refusal.why);
        mounted.set_end(MountEnd { written_back, ends_process: false });
        control.close();
        self.change_mounts(|mounts| mounts.remove(mounted));
    }

    /// Ends what a mount began, and makes all of its changes durable. Afterwards the volume may be mounted again.
    fn close(&self, mounted: &MountedVolume) -> Result<(), RequestRefusal> {
        self.policy.remove_mount(mounted.volume.id);
        mounted.drop_fs();
        self.wait_until_unused(&mounted.volume);
        self.epochs.note_unmount(mounted.volume.id);
        self.sync()
    }

    /// Waits until no operation of an earlier mount is left: some may wait for space. Before that, the volume cannot
    /// be opened again.
    fn wait_until_unused(&self, volume: &VolumeInfo) {
        while self.stack.cache.is_volume_in_use(volume.id) {
            std::thread::sleep(CLOSE_STEP);
        }
    }

    /// Listens for clients that find the daemon through the lock of the store, because there may be no mount.
    pub(crate) fn listen_for_exports(self: &Arc<StoreDaemon>) -> Result<(), WeirError> {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if control.is_none() {
            let address = ControlAddress::Process(std::process::id());
            *control = Some(ControlServer::start(ControlSubject::Daemon(self.clone()), address)?);
        }
        Ok(())
    }

    /// Ends the control socket of the process, once its clients have their replies.
    pub(crate) fn close_control(&self) {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(control) = control {
            control.close();
        }
    }

    /// Serves a block volume to the clients of `listener`, until [`end_export`](StoreDaemon::end_export). `at` is the place
    /// where clients connect, for messages.
    pub(crate) fn export(
        &self,
        name: &str,
        listener: Listener,
        (at, requester): (String, Option<UnixStream>),
    ) -> Result<VolumeId, WeirError> {
        let _turn = self.take_turn();
        let volume = stack::volume_named(&self.stack.store, &self.stack.media.name, name)?;
        self.ensure_unused(&volume)?;
        let disk = self.stack.open_block_volume(&volume)?;
        let id = volume.id;
        self.epochs.note_mount(&volume);
        let is_read_only = self.stack.access == DiskAccess::Read;
        let export = match ExportedVolume::start(
            volume,
            (disk, is_read_only),
            self.front.traffic.clone(),
            listener,
            (at, requester),
        ) {
            Ok(export) => export,
            Err(source) => {
                self.epochs.note_unmount(id);
                return Err(WeirError::Spawn { source });
            }
        };
        let refused = self.change_mounts(|mounts| {
            if mounts.is_ending || mounts.is_leaving {
                return Some(export);
            }
            mounts.untold += usize::from(export.has_requester());
            mounts.exports.push(export);
            None
        });
        let Some(mut export) = refused else { return Ok(id) };
        if let Some(server) = export.take_server() {
            server.stop();
        }
        self.epochs.note_unmount(id);
        Err(WeirError::DaemonEnding { path: self.stack.media.name.clone() })
    }

    /// Ends an export: its clients are disconnected, and all that they wrote becomes durable. If another thread ends it, waits
    /// for that. The daemon ends with the last export, if it has no mount.
    pub(crate) fn end_export(&self, volume: VolumeId) -> Result<(), RequestRefusal> {
        let server = {
            let mut mounts = self.mount_list();
            let exported = mounts.exports.iter_mut().find(|one| one.volume.id == volume);
            exported.and_then(|exported| {
                exported.wake_requester();
                exported.take_server()
            })
        };
        let Some(server) = server else {
            let is_ending = |mounts: &mut MountList| mounts.exports.iter().any(|one| one.volume.id == volume);
            drop(self.mounts_changed.wait_while(self.mount_list(), is_ending));
            return self.sync();
        };
        server.stop();
        // The last completions may still hold the volume.
        while self.stack.cache.is_volume_in_use(volume) {
            std::thread::sleep(CLOSE_STEP);
        }
        self.epochs.note_unmount(volume);
        let synced = self.sync();
        self.change_mounts(|mounts| {
            mounts.exports.retain(|one| one.volume.id != volume);
            mounts.is_ending |= mounts.serves_nothing() && !mounts.is_mounting;
        });
        synced
    }

    /// Notes that a `weir export` was told how its export ended, or has gone. The daemon does not end before.
    pub(crate) fn note_told(&self) {
        self.change_mounts(|mounts| mounts.untold -= 1);
    }

    /// The volumes that are exported.
    pub(crate) fn exports(&self) -> Vec<VolumeId> {
        self.mount_list().exports.iter().map(|one| one.volume.id).collect()
    }

    /// Waits until neither a mount nor an export is left. Returns the mount with which the daemon ends. It is `None` if an
    /// export was the last, or if the last mount ended while another was being made, which then failed.
    pub(crate) fn wait_for_end(&self) -> Option<EndedMount> {
        let is_served =
            |mounts: &mut MountList| !mounts.is_ending || !mounts.closing.is_empty() || mounts.untold > 0;
        let mounts = self.mounts_changed.wait_while(self.mount_list(), is_served);
        mounts.unwrap_or_else(PoisonError::into_inner).last.take()
    }

    fn change_mounts<R>(&self, change: impl FnOnce(&mut MountList) -> R) -> R {
        let result = change(&mut self.mount_list());
        self.mounts_changed.notify_all();
        result
    }

    /// Waits for mounts and changes of volumes to end. A mount's volume keeps its name until the mount is made.
    fn take_turn(&self) -> MutexGuard<'_, ()> {
        self.mounting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn mount_list(&self) -> MutexGuard<'_, MountList> {
        self.mounts.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Makes everything written so far durable, and waits for it.
    pub(crate) fn sync(&self) -> Result<(), RequestRefusal> {
        let (done, result) = std::sync::mpsc::channel();
        self.stack.cache.sync(Box::new(move |synced| {
            // The receiver is gone if the daemon is ending.
            let _ = done.send(synced.map_err(|error| RequestRefusal::new(&error, error.help())));
        }));
        result.recv().unwrap_or_else(|_| Err(RequestRefusal::new(&"the daemon is ending", None)))
    }

    /// Begins a scrub, and returns what [`go_on_scrubbing`](Self::go_on_scrubbing) does. An older scrub can go on no more.
    pub(crate) fn begin_scrub(&self) -> Value {
        let mut newest = self.newest_scrub();
        *newest += 1;
        self.stack.store.maintenance().end_scrub();
        self.scrub_some_blocks(*newest)
    }

    /// Goes on with the scrub of this number: scrubs [`SCRUB_BLOCKS`] blocks, and returns the progress and the findings. Refuses if another
    /// scrub has begun: neither of them would have read everything.
    pub(crate) fn go_on_scrubbing(&self, number: Option<u64>) -> Result<Value, RequestRefusal> {
        let newest = self.newest_scrub();
        if number != Some(*newest) {
            let help = "the other one reads the whole store, and shows what it finds: wait for it, or run this one again after it";
            return Err(RequestRefusal::new(&"another scrub of this store has begun", Some(help.into())));
        }
        Ok(self.scrub_some_blocks(*newest))
    }

    fn newest_scrub(&self) -> MutexGuard<'_, u64> {
        self.newest_scrub.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn scrub_some_blocks(&self, number: u64) -> Value {
        let store = &self.stack.store;
        let mut findings = Vec::new();
        let mut report = |finding: store::StoreFinding| findings.push(finding.to_string());
        let first = store.maintenance().scrub_step(&mut report);
        let mut so_far = first;
        while !so_far.done && so_far.blocks < first.blocks + SCRUB_BLOCKS {
            so_far = store.maintenance().scrub_step(&mut report);
        }
        json!({
            "scrub": number,
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
        let places_of = |volume: &VolumeInfo| {
            let mounts = self.mount_list();
            let mounted = mounts.serving.iter().find(|mounted| mounted.volume.id == volume.id);
            let exported = mounts.exports.iter().find(|exported| exported.volume.id == volume.id);
            VolumePlaces {
                mounted_on: mounted.map(|mounted| mounted.dir.clone()),
                exported_at: exported.map(|exported| exported.at.clone()),
            }
        };
        json!({ "volumes": volume::volumes_to_json(&self.stack.store.volumes().describe(), places_of) })
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

    /// Changes the data mode of the store, now and for later mounts, the policy of the store, or both.
    ///
    /// When this returns, everything written before is durable, unless whole pages bypass the buffer by the policy alone. A
    /// crash leaves what the mode promises. After an error nothing has changed, now and for later mounts.
    pub(crate) fn tune(
        &self,
        data: Option<DataMode>,
        choice: Option<PolicyChoice>,
    ) -> Result<(), RequestRefusal> {
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
        })
    }

    /// Assigns a class to a running process or thread, or withdraws it. Returns whether classes count under the policy
    /// in force.
    pub(crate) fn set_class(&self, id: u32, class: Option<RequestClass>) -> Result<bool, RequestRefusal> {
        let classes: &AssignedClasses = self.policy.assigned_classes();
        classes.assign(id, class).map_err(|source| WeirError::Task { pid: id, source })?;
        Ok(self.policy.in_force().follows_classes())
    }

    /// Makes a volume with an empty file system, which belongs to the daemon's user; or, with a size in bytes, a block
    /// volume.
    pub(crate) fn create_volume(&self, name: &str, size: Option<u64>) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        Ok(volume::create_volume(&self.stack.cache, &self.stack.media.name, name, size)?)
    }

    /// Changes the size of a block volume that is not exported.
    pub(crate) fn resize_volume(
        &self,
        name: &str,
        size: u64,
        accepts_loss: bool,
    ) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let _turn = self.take_turn();
        self.refuse_served(name)?;
        Ok(volume::resize_volume(&self.stack.cache, &self.stack.media.name, name, size, accepts_loss)?)
    }

    /// Clones volumes; `default` is the volume to clone where none is named.
    pub(crate) fn clone_volumes(
        &self,
        clones: &[CloneWish],
        default: &str,
        mode: VolumeMode,
    ) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        Ok(volume::clone_volumes(&self.stack.cache, &self.stack.media.name, (clones, default), mode)?)
    }

    /// Renames a volume that is not mounted.
    pub(crate) fn rename_volume(&self, old: &str, new: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        let _turn = self.take_turn();
        self.refuse_served(old)?;
        Ok(volume::rename_volume(&self.stack.cache, &self.stack.media.name, old, new)?)
    }

    /// Gives a volume that is not mounted the content of its snapshot.
    pub(crate) fn roll_back_volume(&self, name: &str, snapshot: &str) -> Result<Value, RequestRefusal> {
        self.refuse_read_only()?;
        let _turn = self.take_turn();
        self.refuse_served(name)?;
        Ok(volume::roll_back_volume(&self.stack.cache, &self.stack.media.name, name, snapshot)?)
    }

    /// Deletes a volume that is not mounted.
    pub(crate) fn delete_volume(&self, name: &str) -> Result<(), RequestRefusal> {
        self.refuse_read_only()?;
        let _turn = self.take_turn();
        self.refuse_served(name)?;
        Ok(volume::delete_volume(&self.stack.cache, &self.stack.media.name, name)?)
    }

    fn refuse_served(&self, name: &str) -> Result<(), RequestRefusal> {
        let mounts = self.mount_list();
        if let Some(mounted) = mounts.serving.iter().find(|mounted| mounted.volume.name == name) {
            let why = format!("volume {name} is mounted on {}", mounted.dir.display());
            let help = format!("unmount it first: `weir unmount {}`", shell_quoted(&mounted.dir));
            return Err(RequestRefusal::new(&why, Some(help.into())));
        }
        match mounts.exports.iter().find(|exported| exported.volume.name == name) {
            Some(exported) => {
                let why = format!("volume {name} is exported at {}", exported.at);
                Err(RequestRefusal::new(&why, Some("end its `weir export` first".into())))
            }
            None => Ok(()),
        }
    }

    pub(crate) fn refuse_read_only(&self) -> Result<(), RequestRefusal> {
        if self.stack.access == DiskAccess::Write {
            return Ok(());
        }
        let help = "unmount the store, and mount it without `--read-only`";
        Err(RequestRefusal::new(&"the store is mounted read-only", Some(help.into())))
    }
}

/// Marks the root of a volume, so that files of the volume can be marked for atomic writes. A mark that the root has stays.
fn allow_atomic_writes(fs: &Fs) -> Result<(), FsError> {
    let (tell, told) = channel();
    let done = Box::new(move |marked| {
        let _ = tell.send(marked);
    });
    fs.set_xattr(Ino::ROOT, ATOMIC_WRITES_MARK, ATOMIC_WRITES_OFF, SetXattrMode::Create, done);
    match told.recv().expect("the file system answers") {
        Ok(()) | Err(FsError::Exists) => Ok(()),
        Err(error) => Err(error),
    }
}

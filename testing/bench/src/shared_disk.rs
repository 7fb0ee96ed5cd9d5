//! Disks that weir and ext4 share, and the turns of these file systems.
//!
//! Each turn begins once everything is stored and freed. Code that has a file open is not interrupted,
//! because the cleanup could not unmount then.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use rustix::fs::{Advice, fadvise, syncfs};
use serde::Serialize;

use super::cleanup::{self, CleanupGuard};
use super::counters::mount;
use super::device_model::DeviceKind;
use super::device_speed::{DeviceSpeed, measure_speed};
use super::disk_counters::DiskCounters;
use super::error::BenchError;
use super::front_end::ProcessUsage;
use super::nonblocking_writes::file_system_of;
use super::program::run;
use super::slow_device::{DeviceSpec, SlowDevice, remove_on_drop};
use super::system::{ComparedSystem, MountedSystem, SystemKind, weir, weir_status};
use super::workload::{PAGE_BYTES, lay_out};

/// Size of the file or device on which a disk's speed is measured.
const MEASURED_BYTES: u64 = 64 << 20;
/// Limit for write-back and freeing. Freeing a file's blocks takes seconds, a few minutes on a loaded
/// machine.
const SETTLE: Duration = Duration::from_secs(300);
/// Least size of a store. Stores are three times as large as their files.
const STORE_BYTES_MIN: u64 = 384 << 20;

/// The disk that both file systems share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum SharedDisk {
    This,
    Limited,
    Cloud,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
pub(super) enum DiskSelection {
    /// This machine's disk, with the temporary directory: store, ext4 and buffer
    This,
    /// A modelled disk of 300 MiB/s: store, ext4 and buffer
    Limited,
    /// A modelled cloud volume: store and ext4; the buffer is on this machine's disk
    Cloud,
    /// All three, one after the other
    All,
}

impl DiskSelection {
    pub(super) fn list(self) -> &'static [SharedDisk] {
        match self {
            DiskSelection::This => &[SharedDisk::This],
            DiskSelection::Limited => &[SharedDisk::Limited],
            DiskSelection::Cloud => &[SharedDisk::Cloud],
            DiskSelection::All => &[SharedDisk::This, SharedDisk::Limited, SharedDisk::Cloud],
        }
    }
}

impl SharedDisk {
    fn model(self) -> Option<DeviceKind> {
        match self {
            SharedDisk::This => None,
            SharedDisk::Limited => Some(DeviceKind::Limited),
            SharedDisk::Cloud => Some(DeviceKind::Cloud),
        }
    }

    pub(super) fn name(self) -> String {
        self.model().map_or("this".to_owned(), DeviceKind::name)
    }

    /// Describes the disk, and where the buffer lies if not there.
    pub(super) fn text(self) -> String {
        let model = self.model().map_or("this machine's own", DeviceKind::text);
        match self {
            SharedDisk::Cloud => format!("{model}; the buffer on this machine's own"),
            SharedDisk::This | SharedDisk::Limited => model.to_owned(),
        }
    }
}

/// The file systems that are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSystem {
    Ext4,
    WeirOrdered,
    WeirJournal,
}

impl FileSystem {
    pub(super) const ALL: [FileSystem; 3] =
        [FileSystem::Ext4, FileSystem::WeirOrdered, FileSystem::WeirJournal];

    pub(super) fn name(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "ext4",
            FileSystem::WeirOrdered => "weir --data ordered",
            FileSystem::WeirJournal => "weir --data journal",
        }
    }

    /// The option of `weir mount`; `None` for ext4.
    fn option(self) -> Option<&'static str> {
        match self {
            FileSystem::Ext4 => None,
            FileSystem::WeirOrdered => Some("--data=ordered"),
            FileSystem::WeirJournal => Some("--data=journal"),
        }
    }
}

/// A disk with ext4 or the machine's own file system, for the peer's files and weir's store.
///
/// Fields are dropped, and so taken down, from the top.
pub(super) struct SharedPlace {
    pub(super) disk: SharedDisk,
    /// Type and source of the file system.
    pub(super) file_system: String,
    pub(super) measured: DeviceSpeed,
    peer: PathBuf,
    store: PathBuf,
    /// The buffer's directory if it is not beside the store.
    buffer: Option<PathBuf>,
    mount_point: PathBuf,
    _mounted: Option<MountedSystem>,
    _system: Option<ComparedSystem>,
    _files: CleanupGuard,
}

impl SharedPlace {
    /// Sets up a disk for five times `file_bytes`, with its files below `root`, which must not exist.
    pub(super) fn up(
        disk: SharedDisk,
        file_bytes: u64,
        each_figure: Duration,
        root: &Path,
    ) -> Result<SharedPlace, BenchError> {
        let files = remove_on_drop(root);
        let mount_point = root.join("mount");
        make(&mount_point)?;
        let (measured, system) = match disk.model() {
            None => (measure_file(&root.join("measured"), each_figure)?, None),
            Some(device) => {
                let design = DeviceSpec { device, bytes: MEASURED_BYTES, processors: None };
                let measured = {
                    let alone = SlowDevice::up(&design, &root.join("measured"))?;
                    cleanup::uninterrupted(|| measure_speed(alone.path(), MEASURED_BYTES, each_figure))?
                };
                let design = DeviceSpec { bytes: 5 * file_bytes + (1 << 30), ..design };
                (measured, Some(ComparedSystem::set_up("ext4", SystemKind::Ext4, &design, root, 0)?))
            }
        };
        let mounted = system.as_ref().map(ComparedSystem::mount).transpose()?;
        let on_disk = mounted.as_ref().and_then(|mounted| mounted.file.parent()).unwrap_or(root);
        let (peer, store) = (on_disk.join("peer"), on_disk.join("store"));
        let buffer = (disk == SharedDisk::Cloud).then(|| root.join("buffer"));
        make(&peer)?;
        Ok(SharedPlace {
            disk,
            file_system: file_system_of(&peer),
            measured,
            peer,
            store,
            buffer,
            mount_point,
            _mounted: mounted,
            _system: system,
            _files: files,
        })
    }

    /// Begins a file system's turn, once all data is stored and its files have left the kernel's cache.
    pub(super) fn turn(&self, weir: &WeirStore, system: FileSystem) -> Result<SystemTurn, BenchError> {
        self.settle()?;
        let Some(option) = system.option() else {
            return Ok(SystemTurn { directory: self.peer.clone(), weir: None });
        };
        let mounted = mount(&weir.store, &self.mount_point, &[option.to_owned()])?;
        settle(&self.mount_point)?;
        Ok(SystemTurn { directory: self.mount_point.clone(), weir: Some(mounted) })
    }

    /// Bytes written to the disk so far, by any process; `None` if the file system is not on one disk.
    pub(super) fn written_bytes(&self) -> Option<u64> {
        Some(DiskCounters::below(&self.peer)?.written_bytes)
    }

    /// Syncs the file system below weir and the peer, and drops the peer's files from the kernel's cache.
    pub(super) fn settle(&self) -> Result<(), BenchError> {
        let files = cleanup::uninterrupted(|| -> io::Result<()> {
            syncfs(File::open(&self.peer)?)?;
            fs::read_dir(&self.peer)?
                .try_for_each(|entry| Ok(fadvise(File::open(entry?.path())?, 0, None, Advice::DontNeed)?))
        });
        files.map_err(|error| BenchError::io("cannot sync", &self.peer, error))
    }
}

fn make(directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(|error| BenchError::io("cannot create", directory, error))
}

/// Measures the disk that holds `path`.
fn measure_file(path: &Path, each: Duration) -> Result<DeviceSpeed, BenchError> {
    lay_out(path, MEASURED_BYTES / PAGE_BYTES)?;
    let measured = measure_speed(path, MEASURED_BYTES, each)?;
    fs::remove_file(path).map_err(|error| BenchError::io("cannot remove", path, error))?;
    Ok(measured)
}

/// Waits until weir has no dirty data and nothing to free.
fn settle(mount_point: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    loop {
        let status = cleanup::uninterrupted(|| weir_status(mount_point))?;
        if status.dirty.bytes == 0 && !status.space.freeing {
            return Ok(());
        }
        if start.elapsed() > SETTLE {
            let says = format!("{} B are dirty", status.dirty.bytes);
            return Err(BenchError::Late { what: "the end of write-back".to_owned(), says });
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// weir's store, mounted during its turns. Dropping removes it.
pub(super) struct WeirStore {
    store: PathBuf,
    _files: Vec<CleanupGuard>,
}

impl WeirStore {
    /// Formats a store for files of `file_bytes` in all.
    pub(super) fn format(
        place: &SharedPlace,
        file_bytes: u64,
        buffer_bytes: u64,
    ) -> Result<WeirStore, BenchError> {
        let mut format = weir("format");
        format.arg(&place.store).arg(format!("--buffer-size={buffer_bytes}"));
        format.arg(format!("--size={}", STORE_BYTES_MIN.max(3 * file_bytes)));
        let mut files = vec![remove_on_drop(&place.store)];
        if let Some(directory) = &place.buffer {
            files.push(remove_on_drop(directory));
            make(directory)?;
            format.arg("--buffer").arg(directory.join("buffer"));
        }
        cleanup::uninterrupted(|| run(&mut format))?;
        Ok(WeirStore { store: place.store.clone(), _files: files })
    }
}

/// The turn of a file system. Dropping it unmounts weir, which stores all data.
pub(super) struct SystemTurn {
    /// Directory of the files.
    pub(super) directory: PathBuf,
    weir: Option<CleanupGuard>,
}

impl SystemTurn {
    pub(super) fn remove_files(&self) -> Result<(), BenchError> {
        let files = cleanup::uninterrupted(|| {
            fs::read_dir(&self.directory)?.try_for_each(|entry| fs::remove_file(entry?.path()))
        });
        files.map_err(|error| BenchError::io("cannot remove the files in", &self.directory, error))
    }

    /// CPU time and writes of weir's daemon so far; `None` for ext4.
    pub(super) fn spent(&self) -> Result<Option<DaemonUsage>, BenchError> {
        if self.weir.is_none() {
            return Ok(None);
        }
        let status = cleanup::uninterrupted(|| weir_status(&self.directory))?;
        Ok(Some(DaemonUsage {
            processor: ProcessUsage::by(status.pid)?.cpu,
            store_bytes: status.counters.store.blocks_written * PAGE_BYTES + status.dirty.bytes,
        }))
    }
}

/// CPU time and writes of a daemon, since its start or between two moments.
#[derive(Debug, Clone, Copy)]
pub(super) struct DaemonUsage {
    pub(super) processor: Duration,
    /// Bytes written to the store, and dirty bytes that are still to be written.
    pub(super) store_bytes: u64,
}

impl DaemonUsage {
    pub(super) fn since(self, before: DaemonUsage) -> DaemonUsage {
        DaemonUsage {
            processor: self.processor.saturating_sub(before.processor),
            store_bytes: self.store_bytes.saturating_sub(before.store_bytes),
        }
    }
}

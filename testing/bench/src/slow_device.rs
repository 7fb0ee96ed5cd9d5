//! Modelled slow block devices for any file system: a loop device over the file of a
//! [`super::modelled_device`].
//!
//! The kernel may merge requests and read ahead above them, as above any disk. The parts themselves cost
//! time, so reports show a model together with its measured speed ([`super::device_speed`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::cleanup::CleanupGuard;
use super::cpu_affinity::ProcessorSplit;
use super::device_model::DeviceKind;
use super::error::BenchError;
use super::modelled_device::FILE;
use super::program::{command, line, run};
use super::system::own;

/// Limit for the start of a server. A start takes well under a second; a loaded machine gets a minute.
const UP_SECONDS_MAX: u64 = 60;
/// Most attempts to remove a directory in which clients still make files.
const REMOVALS_MAX: u32 = 100;

/// The devices on which weir and ext4 are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum ComparedDevice {
    /// A disk.
    Hdd,
    /// A cloud volume.
    Cloud,
    /// A solid-state disk.
    Ssd,
}

impl ComparedDevice {
    pub(super) const ALL: [ComparedDevice; 3] =
        [ComparedDevice::Hdd, ComparedDevice::Cloud, ComparedDevice::Ssd];

    /// The name on the command line and in results.
    pub(super) fn name(self) -> String {
        self.device().name()
    }

    /// The model of the device.
    pub(super) fn device(self) -> DeviceKind {
        match self {
            ComparedDevice::Hdd => DeviceKind::Hdd,
            ComparedDevice::Cloud => DeviceKind::Cloud,
            ComparedDevice::Ssd => DeviceKind::Ssd,
        }
    }
}

/// A loop device, detached on drop.
pub(super) struct LoopDevice {
    path: PathBuf,
    _detach: CleanupGuard,
}

impl LoopDevice {
    /// Attaches `file` to a free loop device.
    pub(super) fn attach(file: &Path, direct: DirectIo) -> Result<LoopDevice, BenchError> {
        let found: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let attached = Arc::clone(&found);
        let detach = CleanupGuard::new(move || {
            if let Some(path) = attached.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = run(command("losetup", ["-d"]).arg(path));
            }
        });
        let mut losetup = command("losetup", ["--show", "-f"]);
        if direct == DirectIo::Yes {
            losetup.arg("--direct-io=on");
        }
        let path = PathBuf::from(run(losetup.arg(file))?);
        *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        Ok(LoopDevice { path, _detach: detach })
    }

    /// The block device's path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// Whether a loop device bypasses the page cache of the file below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DirectIo {
    Yes,
    No,
}

/// One modelled device. Fields are dropped, and so taken down, from the top.
pub(super) struct SlowDevice {
    block: LoopDevice,
    _unmount: CleanupGuard,
    _server: ServerProcess,
    _files: CleanupGuard,
}

/// The model, size and processors of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct DeviceSpec {
    pub(super) device: DeviceKind,
    pub(super) bytes: u64,
    /// Processors of its programs; `None`: the kernel's choice.
    pub(super) processors: Option<ProcessorSplit>,
}

impl SlowDevice {
    /// Sets up a device with its files in `directory`, which must not exist.
    pub(super) fn up(design: &DeviceSpec, directory: &Path) -> Result<SlowDevice, BenchError> {
        match design.processors {
            Some(processors) => processors.start_device(|| SlowDevice::start(design, directory))?,
            None => SlowDevice::start(design, directory),
        }
    }

    fn start(design: &DeviceSpec, directory: &Path) -> Result<SlowDevice, BenchError> {
        let files = remove_on_drop(directory);
        let served = directory.join("device");
        fs::create_dir_all(&served).map_err(|error| BenchError::io("cannot create", &served, error))?;
        let unmount = unmount_on_drop(&served);
        let mut device = own("modelled-device");
        device
            .arg(&served)
            .args(["--device", &design.device.name()])
            .arg(format!("--bytes={}", design.bytes));
        let server = ServerProcess::start(&mut device, directory.join("device.log"))?;
        server.wait_for(&served.join(FILE))?;
        let block = LoopDevice::attach(&served.join(FILE), DirectIo::Yes)?;
        Ok(SlowDevice { block, _unmount: unmount, _server: server, _files: files })
    }

    /// The block device's path.
    pub(super) fn path(&self) -> &Path {
        self.block.path()
    }
}

/// A new directory for the files of this run, below `parent` or the temporary directory, and its removal.
pub(super) fn work_directory(parent: Option<&Path>) -> Result<(PathBuf, CleanupGuard), BenchError> {
    let parent = parent.map_or_else(std::env::temp_dir, Path::to_path_buf);
    let directory = parent.join(format!("weir-bench-{}", std::process::id()));
    let removal = remove_on_drop(&directory);
    fs::create_dir(&directory).map_err(|error| BenchError::io("cannot create", &directory, error))?;
    Ok((directory, removal))
}

/// Removes `directory` and everything in it.
pub(super) fn remove_on_drop(directory: &Path) -> CleanupGuard {
    let directory = directory.to_path_buf();
    CleanupGuard::new(move || {
        // Clients that are being stopped may still make files until their directory is removed.
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    })
}

/// Unmounts `directory` when dropped, if something is mounted there: in order if possible, otherwise lazily.
pub(super) fn unmount_on_drop(directory: &Path) -> CleanupGuard {
    let directory = directory.to_path_buf();
    CleanupGuard::new(move || {
        if run(command("umount", [""; 0]).arg(&directory)).is_err() {
            let _ = run(command("umount", ["-l"]).arg(&directory));
        }
    })
}

/// A program that runs until this is dropped.
pub(super) struct ServerProcess {
    /// `None` before the start and after the end.
    child: Arc<Mutex<Option<Child>>>,
    log: PathBuf,
    _end: CleanupGuard,
}

impl ServerProcess {
    pub(super) fn start(program: &mut Command, log: PathBuf) -> Result<ServerProcess, BenchError> {
        let says = File::create(&log).map_err(|error| BenchError::io("cannot create", &log, error))?;
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = Arc::clone(&child);
        let end = CleanupGuard::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        // Its own process group: Ctrl-C must not take the device from under a file system that is still
        // mounted.
        let spawned = program
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(says)
            .spawn()
            .map_err(|error| BenchError::Command { command: line(program), says: error.to_string() })?;
        *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        Ok(ServerProcess { child, log, _end: end })
    }

    /// Waits until the server has made `path`.
    pub(super) fn wait_for(&self, path: &Path) -> Result<(), BenchError> {
        let start = Instant::now();
        while !path.exists() {
            if self.has_ended() || start.elapsed() > Duration::from_secs(UP_SECONDS_MAX) {
                let says = fs::read_to_string(&self.log).unwrap_or_default().trim().to_owned();
                return Err(BenchError::Late { what: path.display().to_string(), says });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn has_ended(&self) -> bool {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        child.as_mut().is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }
}

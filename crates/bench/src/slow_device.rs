//! Modelled slow block devices that any file system, the kernel's too, can sit on:
//! `nbdkit` (file plugin, delay filter) → `nbdfuse` → a loop device.
//!
//! The models delay each request and know no seeks, so the order of requests does not matter; a flush costs nothing
//! extra. The kernel may merge requests and read ahead above them, as above any disk. Because of what the parts cost,
//! a model is stated together with what it measured ([`super::measure`]).

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::Serialize;

use super::error::BenchError;
use super::placement::Processors;
use super::program::{command, line, run};
use super::undo::Undo;

/// Bringing up two small programs takes well under a second; a loaded machine gets a minute.
const UP_SECONDS_MAX: u64 = 60;
/// How often the removal of a directory is tried in which somebody is making files.
const REMOVALS_MAX: u32 = 100;

/// What kind of device is modelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(super) enum Model {
    /// A disk: 8 ms for each request, one at a time.
    Hdd,
    /// A cloud volume: 1 ms for each request, many at a time.
    Cloud,
    /// A solid-state disk: no delay, bound by the processor.
    Ssd,
}

impl Model {
    pub(super) const ALL: [Model; 3] = [Model::Hdd, Model::Cloud, Model::Ssd];

    /// The name on the command line and in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Model::Hdd => "hdd",
            Model::Cloud => "cloud",
            Model::Ssd => "ssd",
        }
    }

    fn filters(self) -> &'static [&'static str] {
        match self {
            Model::Hdd => &["--filter=noparallel", "--filter=delay"],
            Model::Cloud => &["--filter=delay"],
            Model::Ssd => &[],
        }
    }

    fn parameters(self) -> &'static [&'static str] {
        match self {
            Model::Hdd => &["rdelay=8ms", "wdelay=8ms", "serialize=all-requests"],
            Model::Cloud => &["rdelay=1ms", "wdelay=1ms"],
            Model::Ssd => &[],
        }
    }
}

/// A loop device, detached on drop.
pub(super) struct LoopDevice {
    path: PathBuf,
    _detach: Undo,
}

impl LoopDevice {
    /// Attaches `file` to a free loop device.
    pub(super) fn attach(file: &Path, direct: Direct) -> Result<LoopDevice, BenchError> {
        let found: Arc<Mutex<Option<PathBuf>>> = Arc::default();
        let attached = Arc::clone(&found);
        let detach = Undo::new(move || {
            if let Some(path) = attached.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = run(command("losetup", ["-d"]).arg(path));
            }
        });
        let mut losetup = command("losetup", ["--show", "-f"]);
        if direct == Direct::Yes {
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

/// Whether a loop device passes by the page cache of the file below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Direct {
    Yes,
    No,
}

/// One modelled device. Fields are dropped, and so taken down, from the top.
pub(super) struct SlowDevice {
    block: LoopDevice,
    _unmount: Undo,
    _fuse: Server,
    _kit: Server,
    _files: Undo,
}

/// What to model, and where.
#[derive(Debug, Clone, Copy)]
pub(super) struct Design {
    pub(super) model: Model,
    pub(super) bytes: u64,
    /// Where its programs run; `None`: wherever the kernel puts them.
    pub(super) processors: Option<Processors>,
}

impl SlowDevice {
    /// Sets up a device with its files in `directory`, which must not exist.
    pub(super) fn up(design: &Design, directory: &Path) -> Result<SlowDevice, BenchError> {
        match design.processors {
            Some(processors) => processors.start_device(|| SlowDevice::start(design, directory))?,
            None => SlowDevice::start(design, directory),
        }
    }

    fn start(design: &Design, directory: &Path) -> Result<SlowDevice, BenchError> {
        let model = design.model;
        let files = remove_on_drop(directory);
        let export = directory.join("export");
        fs::create_dir_all(&export).map_err(|error| BenchError::io("cannot create", &export, error))?;
        let disk = directory.join("disk");
        File::create(&disk)
            .and_then(|file| file.set_len(design.bytes))
            .map_err(|error| BenchError::io("cannot create", &disk, error))?;
        let socket = directory.join("socket");

        // Written once it listens; the socket is there a moment earlier, when nobody can connect yet.
        let listens = directory.join("nbdkit.pid");
        let mut kit = command("nbdkit", ["--foreground", "--exit-with-parent", "--threads=32", "-U"]);
        kit.arg(&socket).arg("--pidfile").arg(&listens);
        kit.args(model.filters()).arg("file").arg(&disk).args(model.parameters());
        let kit = Server::start(&mut kit, directory.join("nbdkit.log"))?;
        kit.wait_for(&listens)?;

        let unmount = unmount_on_drop(&export);
        let mut fuse = command("nbdfuse", ["-C", "16", "-o", "allow_other"]);
        fuse.arg(&export).arg("--unix").arg(&socket);
        let fuse = Server::start(&mut fuse, directory.join("nbdfuse.log"))?;
        let exported = export.join("nbd");
        fuse.wait_for(&exported)?;
        let block = LoopDevice::attach(&exported, Direct::Yes)?;
        Ok(SlowDevice { block, _unmount: unmount, _fuse: fuse, _kit: kit, _files: files })
    }

    /// The block device's path.
    pub(super) fn path(&self) -> &Path {
        self.block.path()
    }
}

/// Removes `directory` and everything in it.
pub(super) fn remove_on_drop(directory: &Path) -> Undo {
    let directory = directory.to_path_buf();
    Undo::new(move || {
        // Clients that are being stopped may still make files meanwhile, until their directory is gone.
        for _ in 0..REMOVALS_MAX {
            match fs::remove_dir_all(&directory) {
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                _ => return,
            }
        }
    })
}

/// Unmounts `directory` if something is mounted there: in order if possible, else at once.
pub(super) fn unmount_on_drop(directory: &Path) -> Undo {
    let directory = directory.to_path_buf();
    Undo::new(move || {
        if run(command("umount", [""; 0]).arg(&directory)).is_err() {
            let _ = run(command("umount", ["-l"]).arg(&directory));
        }
    })
}

/// A program that runs until it is dropped.
pub(super) struct Server {
    /// Empty before it starts and after it was ended.
    child: Arc<Mutex<Option<Child>>>,
    log: PathBuf,
    _end: Undo,
}

impl Server {
    pub(super) fn start(program: &mut Command, log: PathBuf) -> Result<Server, BenchError> {
        let says = File::create(&log).map_err(|error| BenchError::io("cannot create", &log, error))?;
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = Arc::clone(&child);
        let end = Undo::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = child.kill();
                let _ = child.wait();
            }
        });
        // Its own process group: Ctrl-C must not take the device from under a file system that is still mounted.
        let spawned = program
            .process_group(0)
            .stdout(Stdio::null())
            .stderr(says)
            .spawn()
            .map_err(|error| BenchError::Command { command: line(program), says: error.to_string() })?;
        *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        Ok(Server { child, log, _end: end })
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

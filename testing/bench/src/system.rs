//! The compared file systems, each on its own modelled device.
//!
//! A system is mounted only while it is measured. A new mount starts with empty caches, and background work
//! of one system does not slow another.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clap::ValueEnum;
use procfs::process::Process;
use weir_status::StatusReport;

use super::cleanup::{self, CleanupGuard};
use super::error::BenchError;
use super::program::{command, run};
use super::slow_device::{DeviceSpec, DirectIo, LoopDevice, SlowDevice, unmount_on_drop};
use super::workload::lay_out;

/// How weir treats a write to an un-cached page: the values of `weir mount --fetch`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum FetchChoice {
    Blocking,
    Lazy,
    Background,
    Adaptive,
}

impl FetchChoice {
    /// The name on the command lines of this program and weir, and in results.
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every mode can be typed").get_name().to_owned()
    }
}

/// A file system on the modelled device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SystemKind {
    /// ext4 as mke2fs makes it.
    Ext4,
    /// ext4 with `data=journal` and an external journal of `journal_bytes`: a loop device over a file in
    /// `journal_in`, which is also the place of weir's buffer.
    Ext4DataJournal { journal_in: PathBuf, journal_bytes: u64 },
    /// weir, with a buffer of `buffer_bytes`: a file in `buffer_in`.
    Weir {
        fetch: FetchChoice,
        buffer_in: PathBuf,
        buffer_bytes: u64,
        memory_bytes: Option<u64>,
        /// Options of `weir mount`.
        options: Vec<String>,
    },
}

/// A system with a file laid out on it, not mounted. Fields are dropped, and so taken down, from the top.
pub(super) struct ComparedSystem {
    kind: SystemKind,
    mount_point: PathBuf,
    beside: PathBuf,
    journal: Option<LoopDevice>,
    device: SlowDevice,
    _beside: CleanupGuard,
}

/// A mounted system; dropping it unmounts.
pub(super) struct MountedSystem {
    /// The file that was laid out.
    pub(super) file: PathBuf,
    _unmount: CleanupGuard,
}

impl ComparedSystem {
    /// Sets up a device and a file system on it, with a file of `pages` pages.
    ///
    /// `name` is a file name that no other system has. All files are below `directory`.
    pub(super) fn set_up(
        name: &str,
        kind: SystemKind,
        device: &DeviceSpec,
        directory: &Path,
        pages: u64,
    ) -> Result<ComparedSystem, BenchError> {
        let device = SlowDevice::up(device, &directory.join(name))?;
        let mount_point = directory.join(format!("{name}.mount"));
        fs::create_dir_all(&mount_point)
            .map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
        // weir's buffer or ext4's journal, on another device.
        let beside = match &kind {
            SystemKind::Ext4 => PathBuf::new(),
            SystemKind::Ext4DataJournal { journal_in, .. } => journal_in.join(format!("{name}.journal")),
            SystemKind::Weir { buffer_in, .. } => buffer_in.join(format!("{name}.buffer")),
        };
        let removed = remove_file_on_drop(&beside);
        let journal = match &kind {
            SystemKind::Ext4DataJournal { journal_bytes, .. } => {
                Some(journal_device(&beside, *journal_bytes)?)
            }
            _ => None,
        };
        let system = ComparedSystem { kind, mount_point, beside, journal, device, _beside: removed };
        system.format()?;
        let mounted = system.mount()?;
        lay_out(&mounted.file, pages)?;
        drop(mounted);
        Ok(system)
    }

    fn format(&self) -> Result<(), BenchError> {
        let mut format = match (&self.kind, &self.journal) {
            (SystemKind::Weir { buffer_bytes, .. }, _) => {
                let mut format = weir_on(&self.beside, "format");
                format.arg(self.device.path()).arg("--buffer").arg(&self.beside);
                format.args(["--buffer-size", &buffer_bytes.to_string()]);
                format
            }
            (_, journal) => {
                // Lazy initialisation would continue in the background of the measurement.
                let mut format = command("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096"]);
                format.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
                if let Some(journal) = journal {
                    format.arg("-J").arg(format!("device={}", journal.path().display()));
                }
                format.arg(self.device.path());
                format
            }
        };
        cleanup::uninterrupted(|| run(&mut format)).map(drop)
    }

    /// The block device of the file system. weir's buffer and an external journal are elsewhere.
    pub(super) fn device(&self) -> &Path {
        self.device.path()
    }

    /// Changes the mount options of later mounts. The file system stays the same.
    pub(super) fn remount_as(&mut self, kind: SystemKind) {
        self.kind = kind;
    }

    /// Mounts the system, with none of the file cached.
    pub(super) fn mount(&self) -> Result<MountedSystem, BenchError> {
        let (unmount, mut mount) = match &self.kind {
            SystemKind::Weir { fetch, memory_bytes, options, .. } => {
                let mut mount = weir_on(&self.beside, "mount");
                mount.arg(self.device.path()).arg(&self.mount_point).arg("--buffer").arg(&self.beside);
                mount.args(["--fetch", &fetch.name()]);
                if let Some(bytes) = memory_bytes {
                    mount.args(["--memory", &bytes.to_string()]);
                }
                mount.args(options);
                (weir_unmount_on_drop(&self.mount_point), mount)
            }
            kind => {
                let options = if *kind == SystemKind::Ext4 { "noatime" } else { "noatime,data=journal" };
                let mut mount = command("mount", ["-t", "ext4", "-o", options]);
                mount.arg(self.device.path()).arg(&self.mount_point);
                (unmount_on_drop(&self.mount_point), mount)
            }
        };
        cleanup::uninterrupted(|| run(&mut mount))?;
        Ok(MountedSystem { file: self.mount_point.join("file"), _unmount: unmount })
    }
}

/// The `weir` that is measured.
static WEIR: OnceLock<PathBuf> = OnceLock::new();

/// Sets the `weir` to measure: `asked`, or `$WEIR`, or the one beside this program, which was built with it.
pub(super) fn find_weir(asked: Option<PathBuf>) -> Result<(), BenchError> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("weir"));
    let path = match asked.or_else(|| std::env::var_os("WEIR").map(PathBuf::from)) {
        Some(path) => path,
        None => beside().map_err(|error| BenchError::io("cannot find", "/proc/self/exe", error))?,
    };
    // Absolute and without symbolic links, so that it works from every directory.
    let path = fs::canonicalize(&path).map_err(|_| BenchError::NoWeir { path })?;
    WEIR.get_or_init(|| path);
    Ok(())
}

/// A command `weir VERB`.
pub(super) fn weir(verb: &str) -> Command {
    command(WEIR.get().map_or(Path::new("weir"), PathBuf::as_path), [verb])
}

/// A command `weir VERB` for `format` and `mount`, with a buffer at or below `buffer`, possibly in memory.
pub(super) fn weir_on(buffer: &Path, verb: &str) -> Command {
    let mut weir = weir(verb);
    // Only in memory, because an earlier weir that is compared does not know the option.
    weir.args(host::probe_durability(buffer).map(|_| "--volatile-buffer"));
    weir
}

/// `weir status --json` of the weir mounted on `mount_point`.
pub(super) fn weir_status(mount_point: &Path) -> Result<StatusReport, BenchError> {
    let text = run(weir("status").arg("--json").arg(mount_point))?;
    serde_json::from_str(&text)
        .map_err(|source| BenchError::WeirStatus { directory: mount_point.into(), source })
}

/// This program with a verb, for work in a process of its own.
pub(super) fn own(verb: &str) -> Command {
    // The link in /proc works even if a newer build has replaced the file.
    command("/proc/self/exe", [verb])
}

/// Unmounts weir in order when dropped. If that fails, forces the unmount.
pub(super) fn weir_unmount_on_drop(mount_point: &Path) -> CleanupGuard {
    let last_resort = unmount_on_drop(mount_point);
    let mount_point = mount_point.to_path_buf();
    CleanupGuard::new(move || {
        let _ = run(weir("unmount").arg(mount_point));
        drop(last_resort);
    })
}

fn remove_file_on_drop(file: &Path) -> CleanupGuard {
    let file = file.to_path_buf();
    CleanupGuard::new(move || {
        let _ = fs::remove_file(file);
    })
}

fn journal_device(file: &Path, bytes: u64) -> Result<LoopDevice, BenchError> {
    fs::File::create(file)
        .and_then(|created| created.set_len(bytes))
        .map_err(|error| BenchError::io("cannot create", file, error))?;
    let journal = LoopDevice::attach(file, DirectIo::No)?;
    run(command("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", "4096"]).arg(journal.path()))?;
    Ok(journal)
}

/// Resident memory of a process, in bytes.
pub(super) fn resident_bytes(pid: u32) -> Option<u64> {
    let status = Process::new(i32::try_from(pid).ok()?).and_then(|process| process.status());
    Some(status.ok()?.vmrss? * 1024)
}

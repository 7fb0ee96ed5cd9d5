//! The file systems that are compared, each on a modelled device of its own.
//!
//! A system is mounted only while it is measured, so that mounting again drops its caches and nothing that it does in
//! the background is on another's bill.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clap::ValueEnum;

use super::error::BenchError;
use super::program::{command, run};
use super::slow_device::{Design, Direct, LoopDevice, SlowDevice, unmount_on_drop};
use super::undo::{self, Undo};
use super::workload::lay_out;

/// How weir treats a write to a page that it does not hold: what `weir mount --fetch` knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Fetch {
    Blocking,
    Lazy,
    Background,
    Adaptive,
}

impl Fetch {
    /// The name on the command line, weir's too, and in results.
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("every mode can be typed").get_name().to_owned()
    }
}

/// What sits on the modelled device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// ext4 as mke2fs makes it.
    Ext4,
    /// ext4 with `data=journal`, its journal of `journal_bytes` on a device of its own: a loop over a file in
    /// `journal_in`, the same place where weir's buffer lies.
    Ext4DataJournal { journal_in: PathBuf, journal_bytes: u64 },
    /// weir, its buffer of `buffer_bytes` a file in `buffer_in`.
    Weir {
        fetch: Fetch,
        buffer_in: PathBuf,
        buffer_bytes: u64,
        memory_bytes: Option<u64>,
        /// Of `weir mount`.
        options: Vec<String>,
    },
}

/// A system with a file laid out on it, not mounted. Fields are taken down from the top.
pub(super) struct System {
    kind: Kind,
    mount_point: PathBuf,
    beside: PathBuf,
    journal: Option<LoopDevice>,
    device: SlowDevice,
    _beside: Undo,
}

/// A mounted system; dropping it unmounts.
pub(super) struct Mounted {
    /// The file that was laid out.
    pub(super) file: PathBuf,
    _unmount: Undo,
}

impl System {
    /// Sets up a device and a file system on it, with a file of `pages` pages.
    /// `name` is a file name, other than those of other systems; everything lies below `directory`.
    pub(super) fn set_up(
        name: &str,
        kind: Kind,
        device: &Design,
        directory: &Path,
        pages: u64,
    ) -> Result<System, BenchError> {
        let device = SlowDevice::up(device, &directory.join(name))?;
        let mount_point = directory.join(format!("{name}.mount"));
        fs::create_dir_all(&mount_point)
            .map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
        // A buffer or a journal, on another device.
        let beside = match &kind {
            Kind::Ext4 => PathBuf::new(),
            Kind::Ext4DataJournal { journal_in, .. } => journal_in.join(format!("{name}.journal")),
            Kind::Weir { buffer_in, .. } => buffer_in.join(format!("{name}.buffer")),
        };
        let removed = remove_file_on_drop(&beside);
        let journal = match &kind {
            Kind::Ext4DataJournal { journal_bytes, .. } => Some(journal_device(&beside, *journal_bytes)?),
            _ => None,
        };
        let system = System { kind, mount_point, beside, journal, device, _beside: removed };
        system.format()?;
        let mounted = system.mount()?;
        lay_out(&mounted.file, pages)?;
        drop(mounted);
        Ok(system)
    }

    fn format(&self) -> Result<(), BenchError> {
        let mut format = match (&self.kind, &self.journal) {
            (Kind::Weir { buffer_bytes, .. }, _) => {
                let mut format = weir_on(&self.beside, "format");
                format.arg(self.device.path()).arg("--buffer").arg(&self.beside);
                format.args(["--buffer-size", &buffer_bytes.to_string()]);
                format
            }
            (_, journal) => {
                // Lazy initialisation would go on in the background of the measurement.
                let mut format = command("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096"]);
                format.args(["-E", "lazy_itable_init=0,lazy_journal_init=0"]);
                if let Some(journal) = journal {
                    format.arg("-J").arg(format!("device={}", journal.path().display()));
                }
                format.arg(self.device.path());
                format
            }
        };
        undo::uninterrupted(|| run(&mut format)).map(drop)
    }

    /// The block device that the file system is on; weir's buffer and an external journal are not.
    pub(super) fn device(&self) -> &Path {
        self.device.path()
    }

    /// Mounts it otherwise from now on: it stays what it is.
    pub(super) fn remount_as(&mut self, kind: Kind) {
        self.kind = kind;
    }

    /// Mounts, with nothing of the file cached.
    pub(super) fn mount(&self) -> Result<Mounted, BenchError> {
        let (unmount, mut mount) = match &self.kind {
            Kind::Weir { fetch, memory_bytes, options, .. } => {
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
                let options = if *kind == Kind::Ext4 { "noatime" } else { "noatime,data=journal" };
                let mut mount = command("mount", ["-t", "ext4", "-o", options]);
                mount.arg(self.device.path()).arg(&self.mount_point);
                (unmount_on_drop(&self.mount_point), mount)
            }
        };
        undo::uninterrupted(|| run(&mut mount))?;
        Ok(Mounted { file: self.mount_point.join("file"), _unmount: unmount })
    }
}

/// The program that is measured.
static WEIR: OnceLock<PathBuf> = OnceLock::new();

/// Settles which `weir` is measured: that one, or `$WEIR`, or else the one beside this program, which was built with it.
pub(super) fn find_weir(asked: Option<PathBuf>) -> Result<(), BenchError> {
    let beside = || std::env::current_exe().map(|own| own.with_file_name("weir"));
    let path = match asked.or_else(|| std::env::var_os("WEIR").map(PathBuf::from)) {
        Some(path) => path,
        None => beside().map_err(|error| BenchError::io("cannot find", "/proc/self/exe", error))?,
    };
    // Without symbolic links, and for every directory in which somebody starts it.
    let path = fs::canonicalize(&path).map_err(|_| BenchError::NoWeir { path })?;
    WEIR.get_or_init(|| path);
    Ok(())
}

/// `weir` with a verb.
pub(super) fn weir(verb: &str) -> Command {
    command(WEIR.get().map_or(Path::new("weir"), PathBuf::as_path), [verb])
}

/// The same for `format` and `mount`, with the buffer at `buffer` or below, which may be in memory.
pub(super) fn weir_on(buffer: &Path, verb: &str) -> Command {
    let mut weir = weir(verb);
    // Only there: an earlier weir, beside which this one is measured, does not know the option.
    weir.args(host::probe_durability(buffer).map(|_| "--volatile-buffer"));
    weir
}

/// This program with a verb, for what needs a process of its own.
pub(super) fn own(verb: &str) -> Command {
    // The link in /proc works even when the file was replaced by a newer build meanwhile.
    command("/proc/self/exe", [verb])
}

/// Unmounts weir in order; if that fails, takes the mount away under it.
pub(super) fn weir_unmount_on_drop(mount_point: &Path) -> Undo {
    let last_resort = unmount_on_drop(mount_point);
    let mount_point = mount_point.to_path_buf();
    Undo::new(move || {
        let _ = run(weir("unmount").arg(mount_point));
        drop(last_resort);
    })
}

fn remove_file_on_drop(file: &Path) -> Undo {
    let file = file.to_path_buf();
    Undo::new(move || {
        let _ = fs::remove_file(file);
    })
}

fn journal_device(file: &Path, bytes: u64) -> Result<LoopDevice, BenchError> {
    fs::File::create(file)
        .and_then(|created| created.set_len(bytes))
        .map_err(|error| BenchError::io("cannot create", file, error))?;
    let journal = LoopDevice::attach(file, Direct::No)?;
    run(command("mke2fs", ["-q", "-F", "-O", "journal_dev", "-b", "4096"]).arg(journal.path()))?;
    Ok(journal)
}

/// Memory of a process that lies in memory.
pub(super) fn resident_bytes(pid: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

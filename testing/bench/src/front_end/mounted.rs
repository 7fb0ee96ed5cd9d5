//! Mounts of peer and weir, and resource usage of their processes.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use host::MountTable;
use procfs::process::Process;

use super::super::cleanup::{self, CleanupGuard};
use super::super::error::BenchError;
use super::super::program::run;
use super::super::slow_device::unmount_on_drop;
use super::super::system::{own, weir_on, weir_status, weir_unmount_on_drop};

/// How long a mount may take to appear.
const UP: Duration = Duration::from_secs(10);

/// Large enough for all turns: pages are overwritten, and log records are released as their pages are stored.
const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// Prefix of the names of front-end threads: weir's `fuse-0`, the peer's `fuser-0`.
pub(super) const FRONT_END_THREADS: &str = "fuse";

/// Whether the kernel may cache names, attributes and listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KernelCacheMode {
    Full,
    None,
}

impl KernelCacheMode {
    pub(super) fn name(self) -> &'static str {
        match self {
            KernelCacheMode::Full => "full",
            KernelCacheMode::None => "none",
        }
    }

    /// How long the kernel may use a cached answer: the same as with weir.
    pub(super) fn ttl(self) -> Duration {
        match self {
            KernelCacheMode::Full => fuse::KernelCachePolicy::Full.ttl(),
            KernelCacheMode::None => fuse::KernelCachePolicy::None.ttl(),
        }
    }
}

/// A mounted file system and its server process. Dropping it unmounts.
pub(super) struct FrontEndMount {
    directory: PathBuf,
    process: u32,
    _down: Vec<CleanupGuard>,
}

impl FrontEndMount {
    /// Mounts the peer.
    pub(super) fn peer(
        directory: &Path,
        threads: u8,
        cache: KernelCacheMode,
    ) -> Result<FrontEndMount, BenchError> {
        make(directory)?;
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = child.clone();
        // The mount is taken down first. Then the process ends by itself.
        let ended = CleanupGuard::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = child.wait();
            }
        });
        let unmounted = unmount_on_drop(directory);
        let mut peer = own("front-end-peer");
        peer.arg(directory);
        peer.args([format!("--threads={threads}"), format!("--kernel-cache={}", cache.name())]);
        let process = cleanup::uninterrupted(|| {
            let spawned = peer.stdout(Stdio::null()).spawn();
            let spawned =
                spawned.map_err(|error| BenchError::io("cannot start a peer on", directory, error))?;
            let process = spawned.id();
            *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
            wait_for_mount(directory).map(|()| process)
        })?;
        Ok(FrontEndMount { directory: directory.into(), process, _down: vec![unmounted, ended] })
    }

    /// Mounts weir, with the store in `media` and `threads` threads, or weir's default.
    pub(super) fn weir(
        media: &Path,
        directory: &Path,
        threads: Option<u8>,
        cache: KernelCacheMode,
    ) -> Result<FrontEndMount, BenchError> {
        make(directory)?;
        let unmounted = weir_unmount_on_drop(directory);
        let mut mount = weir_on(media, "mount");
        mount.arg(format!("--kernel-cache={}", cache.name()));
        mount.args(threads.map(|threads| format!("--threads={threads}")));
        cleanup::uninterrupted(|| run(mount.arg(media).arg(directory)))?;
        let process = weir_status(directory)?.pid;
        Ok(FrontEndMount { directory: directory.into(), process, _down: vec![unmounted] })
    }

    /// Number of threads in weir's front end.
    pub(super) fn threads(&self) -> Result<u8, BenchError> {
        Ok(weir_status(&self.directory)?.settings.threads)
    }

    /// Number of requests that weir has answered and that a program waited for. Requests that no program
    /// waits for, such as FORGET, are of no kind that has a latency.
    pub(super) fn requests(&self) -> Result<u64, BenchError> {
        Ok(weir_status(&self.directory)?.latency.values().map(|kind| kind.count).sum())
    }

    /// The server process.
    pub(super) fn process(&self) -> u32 {
        self.process
    }
}

/// Formats a store for weir in `media`.
pub(super) fn format(media: &Path) -> Result<(), BenchError> {
    let sizes = [format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")];
    run(weir_on(media, "format").args(sizes).arg(media)).map(drop)
}

fn make(directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(|error| BenchError::io("cannot create", directory, error))
}

fn wait_for_mount(directory: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    let is_mounted = || MountTable::read().is_ok_and(|mounts| mounts.mounted_at(directory).is_some());
    while !is_mounted() {
        if start.elapsed() > UP {
            let says = "no mount appeared".to_owned();
            return Err(BenchError::Late { what: directory.display().to_string(), says });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// CPU time and sleeps of a process since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ProcessUsage {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// Voluntary sleeps of threads that are not the front end's. Each sleep needs another thread to wake the
    /// sleeper.
    pub(super) sleeps_behind_the_front_end: u64,
}

impl ProcessUsage {
    /// Reads the usage of `process`. Threads that have ended are not counted, but neither peer nor weir ends
    /// any.
    pub(crate) fn by(process: u32) -> Result<ProcessUsage, BenchError> {
        let failed =
            |error| BenchError::io("cannot look at", format!("/proc/{process}"), io::Error::other(error));
        let mut used = ProcessUsage::default();
        let tasks = Process::new(process as i32).and_then(|process| process.tasks()).map_err(failed)?;
        // A thread that ends meanwhile is passed over.
        for task in tasks.flatten() {
            let (Ok(times), Ok(status)) = (task.schedstat(), task.status()) else { continue };
            used.cpu += Duration::from_nanos(times.sum_exec_runtime);
            if !status.name.starts_with(FRONT_END_THREADS) {
                used.sleeps_behind_the_front_end += status.voluntary_ctxt_switches.unwrap_or(0);
            }
        }
        Ok(used)
    }

    pub(super) fn since(&self, before: &ProcessUsage) -> ProcessUsage {
        ProcessUsage {
            cpu: self.cpu.saturating_sub(before.cpu),
            sleeps_behind_the_front_end: self
                .sleeps_behind_the_front_end
                .saturating_sub(before.sleeps_behind_the_front_end),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_works_uses_cpu() {
        // A child process, because threads of this process end meanwhile and their usage would vanish.
        let mut working =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let by = || ProcessUsage::by(working.id()).expect("a process that runs");
        let (before, start) = (by(), Instant::now());
        while by().since(&before).cpu < Duration::from_millis(5) && start.elapsed() < UP {
            std::thread::sleep(Duration::from_millis(5));
        }
        let used = by().since(&before);
        working.kill().and_then(|()| working.wait()).expect("it is ours");
        assert!(used.cpu >= Duration::from_millis(5), "{used:?}");
    }
}

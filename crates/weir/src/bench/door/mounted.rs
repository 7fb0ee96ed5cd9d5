//! The two mounts, and what their processes used of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::super::error::BenchError;
use super::super::program::run;
use super::super::slow_device::unmount_on_drop;
use super::super::system::{weir, weir_unmount_on_drop};
use super::super::undo::Undo;
use crate::cli::KernelCache;

/// How long a mount may take to appear.
const UP: Duration = Duration::from_secs(10);

/// Room for every slice of writes: pages are overwritten, records are released as their pages go home.
const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// Names under which a process's threads take the kernel's requests.
pub(super) const DOOR_THREADS: &str = "fuser-";

/// A mounted file system and the process that serves it. Dropping it takes it down.
pub(super) struct Mount {
    directory: PathBuf,
    process: u32,
    _down: Vec<Undo>,
}

impl Mount {
    /// The trivial file system.
    pub(super) fn peer(directory: &Path, threads: u8, cache: KernelCache) -> Result<Mount, BenchError> {
        make(directory)?;
        let child: Arc<Mutex<Option<Child>>> = Arc::default();
        let started = child.clone();
        // Taken down in this order: the mount, then the process, which has ended by itself.
        let ended = Undo::new(move || {
            if let Some(mut child) = started.lock().unwrap_or_else(PoisonError::into_inner).take() {
                let _ = child.wait();
            }
        });
        let unmounted = unmount_on_drop(directory);
        let mut peer = weir("bench");
        peer.arg("door-peer").arg(directory);
        peer.args([format!("--threads={threads}"), format!("--kernel-cache={}", cache.name())]);
        let spawned = peer.stdout(Stdio::null()).spawn();
        let spawned = spawned.map_err(|error| BenchError::io("cannot start a peer on", directory, error))?;
        let process = spawned.id();
        *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
        wait_for_mount(directory)?;
        Ok(Mount { directory: directory.into(), process, _down: vec![unmounted, ended] })
    }

    /// weir, with a fresh store in `media`.
    pub(super) fn weir(
        media: &Path,
        directory: &Path,
        threads: u8,
        cache: KernelCache,
    ) -> Result<Mount, BenchError> {
        make(directory)?;
        run(weir("format")
            .args([format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")])
            .arg(media))?;
        let unmounted = weir_unmount_on_drop(directory);
        run(weir("mount")
            .args([format!("--threads={threads}"), format!("--kernel-cache={}", cache.name())])
            .arg(media)
            .arg(directory))?;
        let status = run(weir("status").arg(directory).arg("--json"))?;
        let status: Value = serde_json::from_str(&status).unwrap_or_default();
        let process = status["pid"].as_u64().and_then(|process| u32::try_from(process).ok());
        let process = process
            .ok_or_else(|| BenchError::Status { directory: directory.into(), pointer: "/pid".to_owned() })?;
        Ok(Mount { directory: directory.into(), process, _down: vec![unmounted] })
    }

    /// Where it is mounted.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The process that serves it.
    pub(super) fn process(&self) -> u32 {
        self.process
    }
}

fn make(directory: &Path) -> Result<(), BenchError> {
    fs::create_dir_all(directory).map_err(|error| BenchError::io("cannot create", directory, error))
}

fn wait_for_mount(directory: &Path) -> Result<(), BenchError> {
    let start = Instant::now();
    let is_mounted = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        mounts.lines().any(|line| line.split(' ').nth(1) == directory.to_str())
    };
    while !is_mounted() {
        if start.elapsed() > UP {
            let says = "no mount appeared".to_owned();
            return Err(BenchError::Late { what: directory.display().to_string(), says });
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// What a process used since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Used {
    /// CPU time of all its threads.
    pub(super) cpu: Duration,
    /// How often its threads went to sleep, those at the door left out: each needed somebody to wake it.
    pub(super) sleeps_behind_the_door: u64,
}

impl Used {
    /// What `process` used so far. Threads that have ended are not counted: neither process ends any.
    pub(super) fn by(process: u32) -> Result<Used, BenchError> {
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        let failed = |error| BenchError::io("cannot look at", &tasks, error);
        let mut used = Used { cpu: Duration::ZERO, sleeps_behind_the_door: 0 };
        for task in fs::read_dir(&tasks).map_err(failed)? {
            let task = task.map_err(failed)?.path();
            let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
            used.cpu += Duration::from_nanos(nanos_on_cpu(&read("schedstat")));
            if !read("comm").starts_with(DOOR_THREADS) {
                used.sleeps_behind_the_door += sleeps(&read("status"));
            }
        }
        Ok(used)
    }

    pub(super) fn since(&self, before: &Used) -> Used {
        Used {
            cpu: self.cpu.saturating_sub(before.cpu),
            sleeps_behind_the_door: self.sleeps_behind_the_door.saturating_sub(before.sleeps_behind_the_door),
        }
    }
}

/// The first number of `/proc/PID/task/TID/schedstat`.
fn nanos_on_cpu(schedstat: &str) -> u64 {
    schedstat.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// The voluntary context switches in `/proc/PID/task/TID/status`.
fn sleeps(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_used_is_read_from_what_the_kernel_writes() {
        assert_eq!(nanos_on_cpu("15856080 1234 77\n"), 15_856_080);
        let status = "Name:\tcommit\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(sleeps(status), 150);
    }

    #[test]
    fn a_process_that_works_uses_cpu() {
        let before = Used::by(std::process::id()).expect("our own process");
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(50) {
            std::hint::spin_loop();
        }
        let used = Used::by(std::process::id()).expect("our own process").since(&before);
        assert!(used.cpu > Duration::from_millis(5), "{used:?}");
    }
}

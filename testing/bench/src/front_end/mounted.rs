//! The mounts of peer and weir, and what their processes used of the machine.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde_json::Value;

use super::super::error::BenchError;
use super::super::program::run;
use super::super::slow_device::unmount_on_drop;
use super::super::system::{own, weir, weir_on, weir_unmount_on_drop};
use super::super::undo::{self, Undo};

/// How long a mount may take to appear.
const UP: Duration = Duration::from_secs(10);

/// Enough for every slice of writes: pages are overwritten, records are released as their pages are stored.
const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;

/// How the names of threads begin that take the kernel's requests: weir's `fuse-0`, the peer's `fuser-0`.
pub(super) const FRONT_END_THREADS: &str = "fuse";

/// What the kernel may remember of names, attributes and listings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum KernelCache {
    Full,
    None,
}

impl KernelCache {
    pub(super) fn name(self) -> &'static str {
        match self {
            KernelCache::Full => "full",
            KernelCache::None => "none",
        }
    }

    /// How long the kernel may believe what it was told, as weir says it.
    pub(super) fn ttl(self) -> Duration {
        match self {
            KernelCache::Full => fuse::KernelCachePolicy::Full.ttl(),
            KernelCache::None => fuse::KernelCachePolicy::None.ttl(),
        }
    }
}

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
        let mut peer = own("front-end-peer");
        peer.arg(directory);
        peer.args([format!("--threads={threads}"), format!("--kernel-cache={}", cache.name())]);
        let process = undo::uninterrupted(|| {
            let spawned = peer.stdout(Stdio::null()).spawn();
            let spawned =
                spawned.map_err(|error| BenchError::io("cannot start a peer on", directory, error))?;
            let process = spawned.id();
            *child.lock().unwrap_or_else(PoisonError::into_inner) = Some(spawned);
            wait_for_mount(directory).map(|()| process)
        })?;
        Ok(Mount { directory: directory.into(), process, _down: vec![unmounted, ended] })
    }

    /// weir, with the store in `media`; with as many threads as it has by default, or so many.
    pub(super) fn weir(
        media: &Path,
        directory: &Path,
        threads: Option<u8>,
        cache: KernelCache,
    ) -> Result<Mount, BenchError> {
        make(directory)?;
        let unmounted = weir_unmount_on_drop(directory);
        let mut mount = weir_on(media, "mount");
        mount.arg(format!("--kernel-cache={}", cache.name()));
        mount.args(threads.map(|threads| format!("--threads={threads}")));
        undo::uninterrupted(|| run(mount.arg(media).arg(directory)))?;
        let process = number(directory, &status(directory)?, "/pid")?;
        let process = u32::try_from(process).map_err(|_| unclear(directory, "/pid"))?;
        Ok(Mount { directory: directory.into(), process, _down: vec![unmounted] })
    }

    /// How many threads take requests in weir's front end.
    pub(super) fn threads(&self) -> Result<u8, BenchError> {
        let pointer = "/settings/threads";
        let threads = number(&self.directory, &status(&self.directory)?, pointer)?;
        u8::try_from(threads).map_err(|_| unclear(&self.directory, pointer))
    }

    /// How many requests weir has answered that a program waited for.
    pub(super) fn requests(&self) -> Result<u64, BenchError> {
        let status = status(&self.directory)?;
        requests_in(&status).ok_or_else(|| unclear(&self.directory, "/latency/*/count"))
    }

    /// The process that serves it.
    pub(super) fn process(&self) -> u32 {
        self.process
    }
}

/// Makes a store for weir in `media`.
pub(super) fn format(media: &Path) -> Result<(), BenchError> {
    let sizes = [format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")];
    run(weir_on(media, "format").args(sizes).arg(media)).map(drop)
}

fn status(directory: &Path) -> Result<Value, BenchError> {
    let status = run(weir("status").arg(directory).arg("--json"))?;
    Ok(serde_json::from_str(&status).unwrap_or_default())
}

fn number(directory: &Path, status: &Value, pointer: &str) -> Result<u64, BenchError> {
    status.pointer(pointer).and_then(Value::as_u64).ok_or_else(|| unclear(directory, pointer))
}

fn unclear(directory: &Path, pointer: &str) -> BenchError {
    BenchError::Status { directory: directory.into(), pointer: pointer.to_owned() }
}

/// The sum over all classes of requests. What nobody waits for, as the kernel's forgetting, has no class.
fn requests_in(status: &Value) -> Option<u64> {
    status["latency"].as_object()?.values().map(|class| class["count"].as_u64()).sum()
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
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Used {
    /// CPU time of all its threads.
    pub(crate) cpu: Duration,
    /// How often its threads went to sleep, those of the front end left out: each needed somebody to wake it.
    pub(super) sleeps_behind_the_front_end: u64,
}

impl Used {
    /// What `process` used so far. Threads that have ended are not counted: neither process ends any.
    pub(crate) fn by(process: u32) -> Result<Used, BenchError> {
        let tasks = PathBuf::from(format!("/proc/{process}/task"));
        let failed = |error| BenchError::io("cannot look at", &tasks, error);
        let mut used = Used { cpu: Duration::ZERO, sleeps_behind_the_front_end: 0 };
        for task in fs::read_dir(&tasks).map_err(failed)? {
            let task = task.map_err(failed)?.path();
            let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
            used.cpu += Duration::from_nanos(nanos_on_cpu(&read("schedstat")));
            if !read("comm").starts_with(FRONT_END_THREADS) {
                used.sleeps_behind_the_front_end += sleeps(&read("status"));
            }
        }
        Ok(used)
    }

    pub(super) fn since(&self, before: &Used) -> Used {
        Used {
            cpu: self.cpu.saturating_sub(before.cpu),
            sleeps_behind_the_front_end: self
                .sleeps_behind_the_front_end
                .saturating_sub(before.sleeps_behind_the_front_end),
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
    fn requests_of_all_classes_are_counted() {
        let status = serde_json::json!({ "latency": { "write": { "count": 5 }, "other": { "count": 2 } } });
        assert_eq!(requests_in(&status), Some(7));
        assert_eq!(requests_in(&serde_json::json!({})), None);
    }

    #[test]
    fn a_process_that_works_uses_cpu() {
        // One of its own: of this one threads end meanwhile, and what they used is counted no more.
        let mut working =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let by = || Used::by(working.id()).expect("a process that runs");
        let (before, start) = (by(), Instant::now());
        while by().since(&before).cpu < Duration::from_millis(5) && start.elapsed() < UP {
            std::thread::sleep(Duration::from_millis(5));
        }
        let used = by().since(&before);
        working.kill().and_then(|()| working.wait()).expect("it is ours");
        assert!(used.cpu >= Duration::from_millis(5), "{used:?}");
    }
}

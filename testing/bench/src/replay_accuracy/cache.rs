//! A small page cache, by a memory cgroup of version 1 or 2.
//!
//! The memory that a program itself needs is not cache, and a replay needs another amount than the program.
//! So the limit follows the group's memory without the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::cleanup::CleanupGuard;
use super::super::error::BenchError;
use super::super::program::command;

/// Allowance for the program's own memory until the first measurement.
const OWN_BYTES_FIRST: u64 = 64 << 20;

/// The files of one cgroup version.
struct CgroupVersion {
    root: &'static str,
    /// Exists if this version has the memory controller.
    sign: &'static str,
    limit: &'static str,
    usage: &'static str,
    /// Fields of `memory.stat`: the page cache, and below, its shared memory, which counts as the program's
    /// own.
    cache: &'static str,
    shared: &'static str,
}

const VERSIONS: [CgroupVersion; 2] = [
    CgroupVersion {
        root: "/sys/fs/cgroup/memory",
        sign: "memory.limit_in_bytes",
        limit: "memory.limit_in_bytes",
        usage: "memory.usage_in_bytes",
        cache: "cache ",
        shared: "shmem ",
    },
    CgroupVersion {
        root: "/sys/fs/cgroup",
        sign: "cgroup.controllers",
        limit: "memory.max",
        usage: "memory.current",
        cache: "file ",
        shared: "shmem ",
    },
];

/// A group of processes with a limit on its page cache.
pub(super) struct CacheLimit {
    version: &'static CgroupVersion,
    group: PathBuf,
    cache_bytes: u64,
    _removed: CleanupGuard,
}

impl CacheLimit {
    pub(super) fn new(cache_bytes: u64) -> Result<CacheLimit, BenchError> {
        let version = VERSIONS.iter().find(|version| Path::new(version.root).join(version.sign).exists());
        let version = version.ok_or_else(|| {
            let source = std::io::Error::from(std::io::ErrorKind::Unsupported);
            BenchError::io("no memory controller below", VERSIONS[1].root, source)
        })?;
        let group = Path::new(version.root).join(format!("weir-bench-{}", std::process::id()));
        let removed = group.clone();
        let removed = CleanupGuard::new(move || {
            let _ = fs::remove_dir(removed);
        });
        fs::create_dir(&group).map_err(|error| BenchError::io("cannot create", &group, error))?;
        let limit = CacheLimit { version, group, cache_bytes, _removed: removed };
        limit.set(OWN_BYTES_FIRST)?;
        Ok(limit)
    }

    /// Changes a command to start its program in this group.
    pub(super) fn within(&self, program: &Command) -> Command {
        let mut within = command("sh", ["-c", "echo $$ >\"$0\"; exec \"$@\""]);
        // In the shell, `/proc/self/exe` would be the shell, so our executable needs its name by process
        // number.
        let ours = format!("/proc/{}/exe", std::process::id());
        let name = program.get_program();
        let name = if name == "/proc/self/exe" { ours.as_ref() } else { name };
        within.arg(self.group.join("cgroup.procs")).arg(name).args(program.get_args());
        within
    }

    fn set(&self, own: u64) -> Result<(), BenchError> {
        let path = self.group.join(self.version.limit);
        fs::write(&path, (own + self.cache_bytes).to_string())
            .map_err(|error| BenchError::io("cannot set", &path, error))
    }

    /// Adapts the limit to the memory in use besides the cache.
    pub(super) fn follow(&self) {
        if let Some(own) = self.own() {
            // The kernel refuses a limit that it cannot reach at once. The next call comes soon.
            let _ = self.set(own);
        }
    }

    fn own(&self) -> Option<u64> {
        let usage: u64 = fs::read_to_string(self.group.join(self.version.usage)).ok()?.trim().parse().ok()?;
        let text = fs::read_to_string(self.group.join("memory.stat")).ok()?;
        let figure = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.parse::<u64>().ok());
        let cache = figure(self.version.cache)?.saturating_sub(figure(self.version.shared)?);
        Some(usage.saturating_sub(cache))
    }
}

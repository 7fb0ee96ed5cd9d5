//! A place for programs and replays: a modelled device with ext4, mounted anew before each run, and a cache
//! limit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::cleanup::CleanupGuard;
use super::super::cpu_affinity::ProcessorSplit;
use super::super::error::BenchError;
use super::super::program::{command, line, run};
use super::super::slow_device::{DeviceSpec, SlowDevice, unmount_on_drop};
use super::cache::CacheLimit;
use super::plan::StorageConfig;

/// Interval at which the cache limit follows a program's own memory.
const FOLLOW: Duration = Duration::from_millis(10);

/// A configuration that is set up. Fields are dropped, and so taken down, from the top.
pub(super) struct ReplayPlace {
    /// Mount point during runs.
    pub(super) mount_point: PathBuf,
    limit: Option<CacheLimit>,
    device: SlowDevice,
}

impl ReplayPlace {
    /// Sets up a device of `bytes` with an empty file system, below `directory`.
    pub(super) fn up(
        configuration: &StorageConfig,
        bytes: u64,
        directory: &Path,
        processors: Option<ProcessorSplit>,
    ) -> Result<ReplayPlace, BenchError> {
        let device =
            SlowDevice::up(&DeviceSpec { device: configuration.device, bytes, processors }, directory)?;
        let mount_point = directory.join("mnt");
        fs::create_dir_all(&mount_point)
            .map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
        if let Some(slice_ms) = configuration.slice_ms {
            slice(device.path(), slice_ms)?;
        }
        let limit = configuration.cache_bytes.map(CacheLimit::new).transpose()?;
        let mut format = command("mke2fs", ["-q", "-F", "-t", "ext4", "-b", "4096"]);
        format.args(["-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0"]);
        run(format.arg(device.path()))?;
        Ok(ReplayPlace { mount_point, limit, device })
    }

    /// Mounts the device, with none of its data in the page cache.
    pub(super) fn mount(&self) -> Result<CleanupGuard, BenchError> {
        let unmount = unmount_on_drop(&self.mount_point);
        let mut mount = command("mount", ["-t", "ext4", "-o", "noatime"]);
        run(mount.arg(self.device.path()).arg(&self.mount_point))?;
        Ok(unmount)
    }

    /// Runs a program under the cache limit. Returns its output and duration.
    pub(super) fn run(&self, program: &mut Command) -> Result<(Vec<u8>, Duration), BenchError> {
        let text = line(program);
        let failed = |says: String| BenchError::Command { command: text.clone(), says };
        let mut limited;
        let program = match &self.limit {
            Some(limit) => {
                limited = limit.within(program);
                &mut limited
            }
            None => program,
        };
        let over = AtomicBool::new(false);
        let (output, took) = std::thread::scope(|scope| {
            if let Some(limit) = &self.limit {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        limit.follow();
                        std::thread::sleep(FOLLOW);
                    }
                });
            }
            let began = Instant::now();
            let spawned = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            let output = spawned.and_then(Child::wait_with_output);
            let took = began.elapsed();
            over.store(true, Ordering::Relaxed);
            (output, took)
        });
        let output = output.map_err(|error| failed(error.to_string()))?;
        if !output.status.success() {
            let says = String::from_utf8_lossy(&output.stderr);
            return Err(failed(format!("{}: {}", output.status, says.trim())));
        }
        Ok((output.stdout, took))
    }
}

/// Makes BFQ serve threads in slices of `slice_ms`, as if the device had a head to move.
fn slice(block: &Path, slice_ms: u32) -> Result<(), BenchError> {
    let name = block.file_name().unwrap_or_default();
    let queue = Path::new("/sys/block").join(name).join("queue");
    let slice = slice_ms.to_string();
    // Low latency would give some threads longer slices than others. Without strict guarantees BFQ (Linux
    // 6.18) switches threads here after each request, however long the slices.
    let settings = [
        ("rotational", "1"),
        ("scheduler", "bfq"),
        ("iosched/low_latency", "0"),
        ("iosched/strict_guarantees", "1"),
        ("iosched/timeout_sync", slice.as_str()),
    ];
    for (file, value) in settings {
        let path = queue.join(file);
        fs::write(&path, value).map_err(|error| BenchError::io("cannot set", &path, error))?;
    }
    Ok(())
}

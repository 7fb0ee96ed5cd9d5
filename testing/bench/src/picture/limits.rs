//! The limit of dirty data on ext4's device, and how much of it is used.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::super::cleanup::CleanupGuard;
use super::super::error::BenchError;
use super::super::program::{command, run};
use super::super::slow_device::unmount_on_drop;

/// A block device of which only `bytes` may be dirty in the kernel's cache. Dropping this lifts the limit.
pub(super) struct DirtyLimit {
    /// The kernel's counts of the device.
    counts: PathBuf,
    _unmount: CleanupGuard,
    _lift: CleanupGuard,
}

impl DirtyLimit {
    /// Limits the dirty data of `device`. `directory` is new, for the file system with the kernel's counts.
    ///
    /// The limit of this machine stays as it is: it would concern all programs, and may be many gigabytes.
    pub(super) fn set(device: &Path, bytes: u64, directory: &Path) -> Result<DirtyLimit, BenchError> {
        let name = device.file_name().unwrap_or_default();
        let settings = Path::new("/sys/block").join(name).join("bdi");
        let mut before = Vec::new();
        for setting in ["strict_limit", "max_ratio_fine"] {
            let path = settings.join(setting);
            let value =
                fs::read_to_string(&path).map_err(|error| BenchError::io("cannot read", &path, error))?;
            before.push((path, value));
        }
        let lift = CleanupGuard::new(move || {
            for (path, value) in before {
                let _ = fs::write(path, value);
            }
        });
        for (setting, value) in [("max_bytes", bytes), ("strict_limit", 1)] {
            let path = settings.join(setting);
            fs::write(&path, value.to_string())
                .map_err(|error| BenchError::io("cannot set", &path, error))?;
        }
        let unmount = unmount_on_drop(directory);
        fs::create_dir(directory).map_err(|error| BenchError::io("cannot create", directory, error))?;
        run(command("mount", ["-t", "debugfs", "none"]).arg(directory))?;
        let number = settings.with_file_name("dev");
        let number =
            fs::read_to_string(&number).map_err(|error| BenchError::io("cannot read", &number, error))?;
        let counts = directory.join("bdi").join(number.trim()).join("stats");
        Ok(DirtyLimit { counts, _unmount: unmount, _lift: lift })
    }

    /// Whether so much is dirty that the kernel holds writers back.
    pub(super) fn is_reached(&self) -> Result<bool, BenchError> {
        let text = fs::read_to_string(&self.counts)
            .map_err(|error| BenchError::io("cannot read", &self.counts, error))?;
        Ok(holds_writers_back(&text))
    }
}

/// Whether a device's counts are above half way between the limits at which write-back begins and at which writers
/// stop. There the kernel begins to slow writers down (`balance_dirty_pages`).
fn holds_writers_back(counts: &str) -> bool {
    let parse = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let number: f64 = value.split_whitespace().next()?.parse().ok()?;
        Some((name.to_owned(), number))
    };
    let counts: HashMap<String, f64> = counts.lines().filter_map(parse).collect();
    let count = |name: &str| counts.get(name).copied().unwrap_or(f64::NAN);
    let free_share = (1.0 + count("BackgroundThresh") / count("DirtyThresh")) / 2.0;
    count("BdiReclaimable") + count("BdiWriteback") > count("BdiDirtyThresh") * free_share
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_are_held_back_half_way_between_the_two_limits() {
        let counts = |dirty: u32| {
            format!(
                "BdiWriteback:               50 kB\nBdiReclaimable:  {dirty} kB\nBdiDirtyThresh: 1000 kB\n\
                 DirtyThresh: 8000 kB\nBackgroundThresh: 4000 kB\nstate: 1\n"
            )
        };
        assert!(!holds_writers_back(&counts(650)));
        assert!(holds_writers_back(&counts(750)));
        assert!(!holds_writers_back(""));
    }
}

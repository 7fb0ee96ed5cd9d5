//! The policies that are compared, and the mounts with each.

use std::path::{Path, PathBuf};

use super::super::cleanup::{self, CleanupGuard};
use super::super::device_model::DeviceKind;
use super::super::error::BenchError;
use super::super::program::run;
use super::super::slow_device::DeviceSpec;
use super::super::system::{ComparedSystem, FetchChoice, MountedSystem, SystemKind, weir, weir_status};

/// A mount without a policy.
const NO_POLICY: &str = "none";
/// All policies that are compared if the user names none.
pub(super) const POLICIES: &str = "none,all,sync,critical,critical+process,critical+process+io";
/// weir's memory.
const MEMORY_BYTES: u64 = 1 << 30;

/// Whether this `weir` knows a policy.
pub(super) fn is_known(policy: &str) -> bool {
    // The help is printed only after the options before it were understood.
    policy == NO_POLICY || run(weir("mount").args(["--policy", policy, "--help"])).is_ok()
}

/// A store that is mounted with one policy after the other.
pub(super) struct PolicyStore {
    system: ComparedSystem,
    directory: PathBuf,
    rules: PathBuf,
    buffer_bytes: u64,
    _rules: CleanupGuard,
}

impl PolicyStore {
    /// Formats a store on a modelled device, with a file of `pages` pages. The buffer is a file in `directory`.
    /// The `critical` policies follow `rules`.
    pub(super) fn set_up(
        device: (DeviceKind, u64),
        buffer_bytes: u64,
        pages: u64,
        rules: &str,
        directory: &Path,
    ) -> Result<PolicyStore, BenchError> {
        let (device, bytes) = device;
        let design = DeviceSpec { device, bytes, processors: None };
        let rules_file = directory.join("rules");
        let removed = {
            let file = rules_file.clone();
            CleanupGuard::new(move || drop(std::fs::remove_file(file)))
        };
        std::fs::write(&rules_file, rules)
            .map_err(|error| BenchError::io("cannot write", &rules_file, error))?;
        let kind = system_kind(directory, buffer_bytes, Vec::new());
        let system = ComparedSystem::set_up("weir", kind, &design, directory, pages)?;
        let directory = directory.to_path_buf();
        Ok(PolicyStore { system, directory, rules: rules_file, buffer_bytes, _rules: removed })
    }

    /// Mounts the store for a turn.
    pub(super) fn mount(&mut self, policy: &str) -> Result<MountedSystem, BenchError> {
        // A clone of the volume in the middle of a turn would be another load.
        let mut options = vec!["--epoch-every=0".to_owned(), "--allow-other".to_owned()];
        if policy != NO_POLICY {
            options.push(format!("--policy={policy}"));
        }
        if policy.starts_with("critical") {
            options.push(format!("--rules={}", self.rules.display()));
        }
        self.system.remount_as(system_kind(&self.directory, self.buffer_bytes, options));
        self.system.mount()
    }
}

fn system_kind(directory: &Path, buffer_bytes: u64, options: Vec<String>) -> SystemKind {
    SystemKind::Weir {
        fetch: FetchChoice::Lazy,
        buffer_in: directory.to_path_buf(),
        buffer_bytes,
        memory_bytes: Some(MEMORY_BYTES),
        options,
    }
}

/// MiB that were written to the buffer since the mount.
pub(super) fn buffer_mib(mount_point: &Path) -> Result<f64, BenchError> {
    let status = cleanup::uninterrupted(|| weir_status(mount_point))?;
    Ok(status.counters.buffer_bytes_written as f64 / f64::from(1 << 20))
}

//! The policies that are compared, and the mounts with each.

use std::path::{Path, PathBuf};

use super::super::cleanup;
use super::super::device_model::DeviceKind;
use super::super::error::BenchError;
use super::super::program::run;
use super::super::slow_device::DeviceSpec;
use super::super::system::{ComparedSystem, FetchChoice, MountedSystem, SystemKind, weir, weir_status};

/// A mount without a policy.
pub(super) const NO_POLICY: &str = "none";
/// All policies that are compared if the user names none.
pub(super) const POLICIES: &str = "none,all,sync,critical,critical+process,critical+process+io";

/// Whether this `weir` knows a policy.
pub(super) fn is_known(policy: &str) -> bool {
    // The help is printed only after the options before it were understood.
    policy == NO_POLICY || run(weir("mount").args(["--policy", policy, "--help"])).is_ok()
}

/// A store, its mounts and its device.
pub(super) struct StoreDesign {
    pub(super) device: DeviceKind,
    pub(super) device_bytes: u64,
    pub(super) buffer_bytes: u64,
    /// weir's memory.
    pub(super) memory_bytes: u64,
    /// Size of the file that is laid out, in pages.
    pub(super) file_pages: u64,
    /// The rules of the `critical` policies.
    pub(super) rules: &'static str,
}

impl StoreDesign {
    fn system(&self, directory: &Path, options: Vec<String>) -> SystemKind {
        SystemKind::Weir {
            fetch: FetchChoice::Lazy,
            buffer_in: directory.to_path_buf(),
            buffer_bytes: self.buffer_bytes,
            memory_bytes: Some(self.memory_bytes),
            options,
        }
    }
}

/// A store that is mounted with one policy after the other.
pub(super) struct PolicyStore {
    design: StoreDesign,
    system: ComparedSystem,
    directory: PathBuf,
    rules: PathBuf,
}

impl PolicyStore {
    /// Formats a store, and lays out a file in it. The buffer and the file with the rules are in `directory`.
    pub(super) fn set_up(design: StoreDesign, directory: &Path) -> Result<PolicyStore, BenchError> {
        let rules = directory.join("rules");
        std::fs::write(&rules, design.rules)
            .map_err(|error| BenchError::io("cannot write", &rules, error))?;
        let device = DeviceSpec { device: design.device, bytes: design.device_bytes, processors: None };
        let kind = design.system(directory, Vec::new());
        let system = ComparedSystem::set_up("weir", kind, &device, directory, design.file_pages)?;
        Ok(PolicyStore { design, system, directory: directory.to_path_buf(), rules })
    }

    /// Mounts the store for a turn.
    pub(super) fn mount(&mut self, policy: &str) -> Result<MountedSystem, BenchError> {
        // A copy of the volume in the middle of a turn would be another load.
        let mut options = vec!["--epoch-every=0".to_owned(), "--allow-other".to_owned()];
        if policy != NO_POLICY {
            options.push(format!("--policy={policy}"));
        }
        if policy.starts_with("critical") {
            options.push(format!("--rules={}", self.rules.display()));
        }
        self.system.remount_as(self.design.system(&self.directory, options));
        self.system.mount()
    }
}

/// MiB that were written to the buffer since the mount.
pub(super) fn buffer_mib(mount_point: &Path) -> Result<f64, BenchError> {
    let status = cleanup::uninterrupted(|| weir_status(mount_point))?;
    Ok(status.counters.buffer_bytes_written as f64 / f64::from(1 << 20))
}

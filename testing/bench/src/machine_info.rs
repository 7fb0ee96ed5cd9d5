//! The machine that measures.

use std::fmt;

use procfs::{Current, LoadAverage};
use serde::{Deserialize, Serialize};

/// The machine, and the version of weir.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct MachineInfo {
    pub(super) version: String,
    pub(super) kernel: String,
    pub(super) processors: usize,
    /// Load average of one minute, before the measurement.
    pub(super) load_average: f64,
}

impl MachineInfo {
    pub(super) fn now() -> MachineInfo {
        MachineInfo {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            load_average: load_average(),
        }
    }
}

impl fmt::Display for MachineInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir {} · Linux {} · {} processors", self.version, self.kernel, self.processors)
    }
}

/// Load average of one minute; 0 if the kernel does not report it.
pub(super) fn load_average() -> f64 {
    // The kernel reports hundredths.
    LoadAverage::current().map_or(0.0, |load| (f64::from(load.one) * 100.0).round() / 100.0)
}

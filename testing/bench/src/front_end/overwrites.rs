//! Overwrites of un-cached pages, as in `weir-bench nonblocking-writes`, but without pinned threads.

use std::path::Path;

use super::super::error::BenchError;
use super::super::nonblocking_writes::{BesideExt4, beside_ext4};
use super::super::run_args::RunSize;
use super::super::slow_device::ComparedDevice;
use super::super::workload::SyncMode;
use super::targets::{SpeedTarget, TargetBound};

/// Measures below `root`. Returns the targets, and a line about each device.
pub(super) fn measure(
    root: &Path,
    size: RunSize,
    rounds: u16,
) -> Result<(Vec<SpeedTarget>, Vec<String>), BenchError> {
    let mut found = beside_ext4(&root.join("overwrites"), size, rounds.into())?;
    let mut notes: Vec<String> = found.iter().map(note).collect();
    notes.dedup();
    found.sort_by_key(|one| one.sync == SyncMode::EachWrite);
    Ok((found.iter().map(target).collect(), notes))
}

fn note(found: &BesideExt4) -> String {
    format!("{} model: {}", found.model.name(), found.measured)
}

fn target(found: &BesideExt4) -> SpeedTarget {
    let least = match (found.sync, found.model) {
        (SyncMode::Never, ComparedDevice::Ssd) => 9.0,
        (SyncMode::Never, ComparedDevice::Cloud) => 40.0,
        (SyncMode::Never, ComparedDevice::Hdd) => 270.0,
        (SyncMode::EachWrite, ComparedDevice::Ssd) => 12.0,
        (SyncMode::EachWrite, ComparedDevice::Cloud) => 60.0,
        (SyncMode::EachWrite, ComparedDevice::Hdd) => 400.0,
    };
    let what = match found.sync {
        SyncMode::Never => "un-cached 512 B overwrite",
        SyncMode::EachWrite => "the same with fdatasync, buffer on tmpfs",
    };
    let row = format!("{what}, {} model, over ext4", found.model.name());
    SpeedTarget::ratio(row, "/s", &found.weir, &found.ext4, TargetBound::AtLeast(least))
}

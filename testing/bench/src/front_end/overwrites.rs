//! Overwrites of un-cached pages, as `weir-bench nonblocking-writes` has them, with everything wherever the kernel puts it.

use std::path::Path;

use super::super::error::BenchError;
use super::super::nonblocking_writes::{BesideExt4, Size, beside_ext4};
use super::super::slow_device::Model;
use super::super::workload::Sync;
use super::report::{Bound, Target};

/// Measures, below `root`; returns targets, and a line about each device.
pub(super) fn measure(
    root: &Path,
    size: Size,
    rounds: u16,
) -> Result<(Vec<Target>, Vec<String>), BenchError> {
    let mut found = beside_ext4(&root.join("overwrites"), size, rounds.into())?;
    let mut notes: Vec<String> = found.iter().map(note).collect();
    notes.dedup();
    found.sort_by_key(|one| one.sync == Sync::EachWrite);
    Ok((found.iter().map(target).collect(), notes))
}

fn note(found: &BesideExt4) -> String {
    format!(
        "{} model: {:.0} reads/s of 4 KiB one at a time, {:.0} at depth 32",
        found.model.name(),
        found.measured.reads_per_s_depth_1,
        found.measured.reads_per_s_depth_32
    )
}

fn target(found: &BesideExt4) -> Target {
    let least = match (found.sync, found.model) {
        (Sync::Never, Model::Ssd) => 9.0,
        (Sync::Never, Model::Cloud) => 40.0,
        (Sync::Never, Model::Hdd) => 270.0,
        (Sync::EachWrite, Model::Ssd) => 12.0,
        (Sync::EachWrite, Model::Cloud) => 60.0,
        (Sync::EachWrite, Model::Hdd) => 400.0,
    };
    let what = match found.sync {
        Sync::Never => "un-cached 512 B overwrite",
        Sync::EachWrite => "the same with fdatasync, buffer on tmpfs",
    };
    let row = format!("{what}, {} model, over ext4", found.model.name());
    Target::ratio(row, "/s", &found.weir, &found.ext4, Bound::AtLeast(least))
}

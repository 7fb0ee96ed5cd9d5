//! `weir-bench streams`: large writes on weir in both journal modes and on ext4, alone and beside a synced
//! writer.
//!
//! All file systems share a disk: weir's store is a file beside ext4's files. One store serves both modes. It
//! is unmounted after each turn, so that all data of a turn is stored before the next begins.
//!
//! | file | contents |
//! | --- | --- |
//! | `load` | the streams |
//! | `mixed` | a synced writer alone, and beside a stream |
//! | `report` | figures and their tables |

mod load;
mod mixed;
mod report;

use std::path::Path;
use std::time::Duration;

use clap::Args;

use super::cleanup;
use super::error::BenchError;
use super::machine_info::load_average;
use super::program::check_machine;
use super::report::BenchReport;
use super::run_args::RunSize;
use super::shared_disk::{DiskSelection, FileSystem, SharedDisk, SharedPlace, WeirStore};
use super::slow_device::work_directory;
use load::StreamLoad;
use mixed::MixedLoad;
use report::{MixedRounds, StreamFigures, add_mixed, add_streams};

/// Options of `weir-bench streams`.
#[derive(Debug, Args)]
pub(super) struct StreamsArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    size: RunSize,
    /// Disk that all file systems share
    #[arg(long, value_enum, default_value_t = DiskSelection::This)]
    disk: DiskSelection,
    /// Rounds of each load [default: 3, or 1 with `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Size of the file, in MiB; a modelled disk needs up to five times as much memory [default: 4096, 2048
    /// on modelled disks, or 64 with `small`]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    file: Option<u64>,
    /// Measure only the synced writer beside a stream
    #[arg(long)]
    mixed: bool,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Sizes, times and rounds that `--size` selects.
#[derive(Debug, Clone, Copy)]
struct StreamScale {
    file_bytes: u64,
    rounds: u32,
    /// Most time of loads that would take too long for the whole file.
    limit: Duration,
    /// Time of the synced writer, alone and then beside a stream.
    mixed: Duration,
    /// Time for each figure of the disk alone.
    disk_figure: Duration,
    buffer_bytes: u64,
}

impl StreamScale {
    fn new(args: &StreamsArgs, disk: SharedDisk) -> StreamScale {
        let file_bytes = |mib: u64| args.file.unwrap_or(mib) << 20;
        match args.size {
            RunSize::Small => StreamScale {
                file_bytes: file_bytes(64),
                rounds: args.rounds.unwrap_or(1),
                limit: Duration::from_millis(500),
                mixed: Duration::from_secs(1),
                disk_figure: Duration::from_millis(100),
                buffer_bytes: 64 << 20,
            },
            RunSize::Real => StreamScale {
                file_bytes: file_bytes(if disk == SharedDisk::This { 4096 } else { 2048 }),
                rounds: args.rounds.unwrap_or(3),
                limit: Duration::from_secs(10),
                mixed: Duration::from_secs(20),
                disk_figure: Duration::from_secs(1),
                // Default of `weir format`.
                buffer_bytes: 256 << 20,
            },
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &StreamsArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let (root, _files) = work_directory(None)?;
    let mut report = BenchReport::new("streams");
    for &disk in args.disk.list() {
        report.part("disks", on_disk(args, disk, &root)?);
    }
    report.print(args.json);
    Ok(())
}

fn on_disk(args: &StreamsArgs, disk: SharedDisk, root: &Path) -> Result<BenchReport, BenchError> {
    let scale = StreamScale::new(args, disk);
    let load_average = load_average();
    let place = SharedPlace::up(disk, scale.file_bytes, scale.disk_figure, &root.join(disk.name()))?;
    let (file_system, measured) = (&place.file_system, place.measured);
    let mut report = BenchReport::default();
    report.line(format!("\n{}: {}, {file_system}; measured: {measured}", disk.name(), disk.text()));
    report.line(format!("load average before {load_average:.2}, rounds: {}", scale.rounds));
    report.fact("disk", disk);
    report.fact("model", disk.text());
    report.fact("file_system", file_system);
    report.fact("measured", measured);
    report.fact("load_average", load_average);
    report.fact("rounds", scale.rounds);
    report.fact("file_mib", scale.file_bytes >> 20);
    if !args.mixed {
        add_streams(&mut report, scale.file_bytes >> 20, &streams(&place, &scale)?);
    }
    add_mixed(&mut report, &mixed(&place, &scale)?);
    Ok(report)
}

/// The file systems in the order of a round: each begins one of three rounds.
fn order(round: u32) -> [FileSystem; 3] {
    let mut order = FileSystem::ALL;
    order.rotate_left(round as usize % FileSystem::ALL.len());
    order
}

/// Measures every load on every file system, round by round.
fn streams(place: &SharedPlace, scale: &StreamScale) -> Result<Vec<StreamFigures>, BenchError> {
    let weir = WeirStore::format(place, scale.file_bytes, scale.buffer_bytes)?;
    let mut rows: Vec<StreamFigures> = StreamLoad::ALL
        .iter()
        .flat_map(|&load| FileSystem::ALL.map(|system| StreamFigures::new(load, system)))
        .collect();
    for round in 0..scale.rounds {
        for load in StreamLoad::ALL {
            for system in order(round) {
                eprintln!("{}: round {}, {}: {}", place.disk.name(), round + 1, load.name(), system.name());
                if load == StreamLoad::New {
                    place.turn(&weir, system)?.remove_files()?;
                }
                let turn = place.turn(&weir, system)?;
                let before = turn.spent()?;
                let done = load.run(&turn.directory.join("file"), scale, u64::from(round) + 1)?;
                let spent = turn.spent()?.zip(before).map(|(after, before)| after.since(before));
                let row = rows.iter_mut().find(|row| row.is_of(load, system));
                row.expect("a row for each load and system").add(done, spent);
            }
        }
    }
    place.turn(&weir, FileSystem::Ext4)?.remove_files()?;
    Ok(rows)
}

/// Measures the synced writer on every file system, round by round.
fn mixed(place: &SharedPlace, scale: &StreamScale) -> Result<[MixedRounds; 3], BenchError> {
    let mixed = MixedLoad::of(scale);
    let weir = WeirStore::format(place, mixed.file_bytes(), mixed::BUFFER_BYTES)?;
    // Either journal mode can lay out the files.
    for system in [FileSystem::Ext4, FileSystem::WeirJournal] {
        mixed.lay_out(&place.turn(&weir, system)?.directory)?;
    }
    let mut rows = FileSystem::ALL.map(|system| MixedRounds { system: system.name(), rounds: Vec::new() });
    for round in 0..scale.rounds {
        for system in order(round) {
            eprintln!("{}: round {}, beside a stream: {}", place.disk.name(), round + 1, system.name());
            let turn = place.turn(&weir, system)?;
            let found = mixed.run(&turn.directory, u64::from(round) + 1)?;
            let row = rows.iter_mut().find(|row| row.system == system.name());
            row.expect("a row for each system").rounds.push(found);
        }
    }
    place.turn(&weir, FileSystem::Ext4)?.remove_files()?;
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_system_begins_once_in_three_rounds() {
        let first = [0, 1, 2].map(|round| order(round)[0]);
        assert_eq!(first, FileSystem::ALL);
        assert_eq!(order(3), order(0));
    }
}

//! `weir-bench sync-matrix`: random writes with a share of fdatasync, on weir and on ext4 in turns.
//!
//! Both file systems are on one disk. Device bytes are the kernel's count for that disk, weir's buffer
//! included.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use device::SeededRng;
use serde_json::json;

use super::cleanup;
use super::error::BenchError;
use super::program::check_machine;
use super::result_matrix::{
    self, CellFigures, CellKey, MatrixArgs, PaperComparison, PaperFigure, ResultCell, ResultMatrix,
    geometric_mean,
};
use super::run_args::RunSize;
use super::shared_disk::{DiskSelection, FileSystem, SharedDisk, SharedPlace, WeirStore};
use super::slow_device::work_directory;
use super::workload::{PAGE_BYTES, WorkDone, lay_out};

const NAME: &str = "sync-matrix";
const RATE: &str = "writes/s";
/// Bytes written to the disk for each byte that the load writes.
const DEVICE: &str = "device bytes/byte";
/// The part that weir's store wrote, and dirty data that it still has to write.
const STORE: &str = "store bytes/byte";
const WEIR: &str = "weir";
const EXT4: &str = "ext4";
/// Shares of writes with fdatasync, in percent.
const SHARES: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// Sizes of writes, in bytes.
const SIZES: [u64; 4] = [100, 1 << 10, 4 << 10, 16 << 10];
/// Default of `weir format`.
const BUFFER_BYTES: u64 = 256 << 20;

/// Options of `weir-bench sync-matrix`.
#[derive(Debug, Args)]
pub(super) struct SyncMatrixArgs {
    /// Disk that both file systems share; on this machine's own disk, writes of other programs are counted,
    /// too
    #[arg(long, value_enum, default_value_t = DiskSelection::Limited)]
    disk: DiskSelection,
    /// Shares of writes with fdatasync, in percent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = SHARES, value_parser = clap::value_parser!(u64).range(0..=100))]
    shares: Vec<u64>,
    /// Sizes of writes, in bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES, value_parser = clap::value_parser!(u64).range(8..=1 << 20))]
    io: Vec<u64>,
    /// Size of the file, in MiB [default: 1024, or 16 with `small`]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    file: Option<u64>,
    /// Milliseconds that a file system writes in each round [default: 10000, or 200 with `small`]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    limit_ms: Option<u64>,
    #[command(flatten)]
    matrix: MatrixArgs,
}

/// Sizes, times and rounds that `--size` selects.
#[derive(Debug, Clone, Copy)]
struct SyncScale {
    file_bytes: u64,
    limit_ms: u64,
    rounds: u32,
}

impl SyncScale {
    fn new(args: &SyncMatrixArgs) -> SyncScale {
        let (file_mib, limit_ms, rounds) = match args.matrix.size {
            RunSize::Small => (16, 200, 1),
            RunSize::Real => (1024, 10_000, 3),
        };
        SyncScale {
            file_bytes: args.file.unwrap_or(file_mib) << 20,
            limit_ms: args.limit_ms.unwrap_or(limit_ms),
            rounds: args.matrix.rounds.unwrap_or(rounds),
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &SyncMatrixArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let scale = SyncScale::new(args);
    let (root, _files) = work_directory(None)?;
    let mut matrix = ResultMatrix::open(args.matrix.into.as_deref())?;
    for &disk in args.disk.list() {
        for &io_bytes in &args.io {
            for &share in &args.shares {
                let parameters = json!({
                    "disk": disk, "io_bytes": io_bytes, "share_percent": share, "file_bytes": scale.file_bytes,
                    "limit_ms": scale.limit_ms, "rounds": scale.rounds,
                });
                let chart = format!("writes of {io_bytes} B, disk {}", disk.name());
                let key =
                    CellKey { benchmark: NAME.into(), chart, label: format!("{share} % synced"), parameters };
                let writes = SyncedWrites { io_bytes, share, scale };
                matrix.measure(key, |figures| take_turns(disk, writes, &root, figures))?;
            }
        }
    }
    result_matrix::print(&args.matrix, matrix.chosen(), &comparisons(matrix.chosen()));
    Ok(())
}

/// Measures both file systems, round by round, each on its own file that is laid out first.
fn take_turns(
    disk: SharedDisk,
    writes: SyncedWrites,
    root: &Path,
    figures: &mut CellFigures,
) -> Result<(), BenchError> {
    let scale = writes.scale;
    let place = SharedPlace::up(disk, scale.file_bytes, Duration::from_millis(10), &root.join(disk.name()))?;
    let weir = WeirStore::format(&place, scale.file_bytes, BUFFER_BYTES)?;
    let mut systems = [(EXT4, FileSystem::Ext4), (WEIR, FileSystem::WeirJournal)];
    for (_, system) in systems {
        let turn = place.turn(&weir, system)?;
        cleanup::uninterrupted(|| lay_out(&turn.directory.join("file"), scale.file_bytes / PAGE_BYTES))?;
    }
    for round in 0..scale.rounds {
        for (name, system) in systems {
            let turn = place.turn(&weir, system)?;
            let (spent, written) = (turn.spent()?, place.written_bytes());
            let done =
                cleanup::uninterrupted(|| writes.run(&turn.directory.join("file"), u64::from(round) + 1))?;
            let store = turn.spent()?.zip(spent).map(|(after, before)| after.since(before).store_bytes);
            // The unmount and the sync store the data that is still in memory, so that its writes are
            // counted.
            drop(turn);
            place.settle()?;
            let device = place.written_bytes().zip(written).map(|(after, before)| after - before);
            let each = |bytes: u64| bytes as f64 / (done.writes * writes.io_bytes).max(1) as f64;
            figures.add(RATE, name, done.rate());
            if let Some(device) = device {
                figures.add(DEVICE, name, each(device));
            }
            if let Some(store) = store {
                figures.add(STORE, name, each(store));
            }
        }
        systems.reverse();
    }
    Ok(())
}

/// The load of a cell.
#[derive(Debug, Clone, Copy)]
struct SyncedWrites {
    io_bytes: u64,
    share: u64,
    scale: SyncScale,
}

impl SyncedWrites {
    /// Writes at random offsets, with an fsync at the end. No two writes have equal data.
    fn run(&self, path: &Path, seed: u64) -> Result<WorkDone, BenchError> {
        let run = || -> std::io::Result<WorkDone> {
            let file = OpenOptions::new().write(true).open(path)?;
            let mut random = SeededRng::new(seed);
            let mut bytes = vec![0xa5; self.io_bytes as usize];
            let limit = Duration::from_millis(self.scale.limit_ms);
            let (start, mut writes) = (Instant::now(), 0);
            while start.elapsed() < limit && !cleanup::is_stopping() {
                bytes[..8].copy_from_slice(&(seed << 48 | writes).to_le_bytes());
                let offset = random.below(self.scale.file_bytes / self.io_bytes) * self.io_bytes;
                file.write_all_at(&bytes, offset)?;
                if self.syncs(writes) {
                    file.sync_data()?;
                }
                writes += 1;
            }
            file.sync_all()?;
            Ok(WorkDone { writes, elapsed: start.elapsed() })
        };
        run().map_err(|error| BenchError::io("cannot write", path, error))
    }

    /// Whether this write is synced. The share is spread evenly.
    fn syncs(&self, write: u64) -> bool {
        (write + 1) * self.share / 100 > write * self.share / 100
    }
}

/// Ratios of weir to ext4 by share, over all sizes.
fn comparisons(cells: &[ResultCell]) -> Vec<PaperComparison> {
    // The paper used IOzone with sizes of 1 to 8 KB, and sequential writes, too.
    let published = PaperFigure {
        value: 1.226,
        source: "Eliminating Periodic Flush Overhead, section 4.3 and figure 13, IOzone, over ext4 with pdflush",
    };
    let mut shares: Vec<u64> =
        cells.iter().filter_map(|cell| cell.key.parameters["share_percent"].as_u64()).collect();
    shares.sort_unstable();
    shares.dedup();
    let mut found = Vec::new();
    for share in shares {
        let of_share = cells.iter().filter(|cell| cell.key.parameters["share_percent"] == json!(share));
        for unit in [RATE, DEVICE] {
            let ratios = of_share.clone().filter_map(|cell| cell.ratio(unit, WEIR, EXT4));
            if let Some(here) = geometric_mean(ratios) {
                let what = format!("{share} % synced: {unit}, weir over ext4, geometric mean of all sizes");
                let published = (share == 0 && unit == RATE).then_some(published);
                found.push(PaperComparison { what, here, unit: "×", published });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_synced_writes_is_what_was_asked_for() {
        let scale = SyncScale { file_bytes: 0, limit_ms: 0, rounds: 0 };
        for share in SHARES {
            let writes = SyncedWrites { io_bytes: 8, share, scale };
            assert_eq!((0..1000).filter(|&write| writes.syncs(write)).count() as u64, share * 10);
        }
    }

    #[test]
    fn writes_stay_within_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 2).expect("layout");
        let scale = SyncScale { file_bytes: 2 * PAGE_BYTES, limit_ms: 20, rounds: 1 };
        let done = SyncedWrites { io_bytes: 100, share: 20, scale }.run(&path, 1).expect("writes");
        assert!(done.writes > 0);
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), 2 * PAGE_BYTES);
    }
}

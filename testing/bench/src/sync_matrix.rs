//! `weir-bench sync-matrix`: writes at random of which a share is followed by fdatasync, on weir and on ext4, which take turns on one
//! disk. What either writes to the disk, weir's buffer included, is what the kernel counts.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use device::SeededRng;
use serde_json::json;

use super::cells::{self, Cell, Cells, Comparison, Figures, Key, Output, Published, geometric_mean};
use super::error::BenchError;
use super::nonblocking_writes::Size;
use super::program::check_machine;
use super::shared_disk::{Disk, Disks, FileSystem, Place, Weir};
use super::slow_device::remove_on_drop;
use super::undo;
use super::workload::{Done, PAGE_BYTES, lay_out};

const NAME: &str = "sync-matrix";
const RATE: &str = "writes/s";
/// To the disk, for each byte of the load's.
const DEVICE: &str = "device bytes/byte";
/// Of that, what weir's store wrote or has to write.
const STORE: &str = "store bytes/byte";
const WEIR: &str = "weir";
const EXT4: &str = "ext4";
/// Per cent of the writes that are followed by fdatasync.
const SHARES: [u64; 6] = [0, 20, 40, 60, 80, 100];
/// Bytes of a write.
const SIZES: [u64; 4] = [100, 1 << 10, 4 << 10, 16 << 10];
/// What `weir format` makes.
const BUFFER_BYTES: u64 = 256 << 20;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct SyncMatrixArgs {
    /// `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// Where both file systems lie; what others write to this machine's own disk meanwhile is counted, too
    #[arg(long, value_enum, default_value_t = Disks::Limited)]
    disk: Disks,
    /// How many of the writes are followed by fdatasync, in per cent
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', default_values_t = SHARES, value_parser = clap::value_parser!(u64).range(0..=100))]
    shares: Vec<u64>,
    /// Bytes of a write
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES, value_parser = clap::value_parser!(u64).range(8..=1 << 20))]
    io: Vec<u64>,
    /// The file, in MiB [default: 1024, or 16 where `small`]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(16..=1 << 20))]
    file: Option<u64>,
    /// How long a file system writes in each round, in milliseconds [default: 10000, or 200 where `small`]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    limit_ms: Option<u64>,
    /// Rounds of each cell [default: 3, or 1 where `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    #[command(flatten)]
    output: Output,
}

/// The numbers behind `--size`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    file_bytes: u64,
    limit_ms: u64,
    rounds: u32,
}

impl Scale {
    fn new(args: &SyncMatrixArgs) -> Scale {
        let (file_mib, limit_ms, rounds) = match args.size {
            Size::Small => (16, 200, 1),
            Size::Real => (1024, 10_000, 3),
        };
        Scale {
            file_bytes: args.file.unwrap_or(file_mib) << 20,
            limit_ms: args.limit_ms.unwrap_or(limit_ms),
            rounds: args.rounds.unwrap_or(rounds),
        }
    }
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &SyncMatrixArgs) -> Result<(), BenchError> {
    check_machine()?;
    undo::install()?;
    let scale = Scale::new(args);
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    std::fs::create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let mut cells = Cells::open(args.output.into.as_deref())?;
    for &disk in args.disk.list() {
        for &io_bytes in &args.io {
            for &share in &args.shares {
                let parameters = json!({
                    "disk": disk, "io_bytes": io_bytes, "share_percent": share, "file_bytes": scale.file_bytes,
                    "limit_ms": scale.limit_ms, "rounds": scale.rounds,
                });
                let chart = format!("writes of {io_bytes} B, disk {}", disk.name());
                let key =
                    Key { benchmark: NAME.into(), chart, label: format!("{share} % synced"), parameters };
                let writes = Writes { io_bytes, share, scale };
                cells.measure(key, |figures| take_turns(disk, writes, &root, figures))?;
            }
        }
    }
    cells::print(&args.output, cells.chosen(), &comparisons(cells.chosen()));
    Ok(())
}

/// Both file systems, round by round, each with a file of its own that is made before.
fn take_turns(disk: Disk, writes: Writes, root: &Path, figures: &mut Figures) -> Result<(), BenchError> {
    let scale = writes.scale;
    let place = Place::up(disk, scale.file_bytes, Duration::from_millis(10), &root.join(disk.name()))?;
    let weir = Weir::format(&place, scale.file_bytes, BUFFER_BYTES)?;
    let mut systems = [(EXT4, FileSystem::Ext4), (WEIR, FileSystem::WeirStrict)];
    for (_, system) in systems {
        let turn = place.turn(&weir, system)?;
        undo::uninterrupted(|| lay_out(&turn.directory.join("file"), scale.file_bytes / PAGE_BYTES))?;
    }
    for round in 0..scale.rounds {
        for (name, system) in systems {
            let turn = place.turn(&weir, system)?;
            let (spent, written) = (turn.spent()?, place.written());
            let done =
                undo::uninterrupted(|| writes.run(&turn.directory.join("file"), u64::from(round) + 1))?;
            let store = turn.spent()?.zip(spent).map(|(after, before)| after.since(before).store_bytes);
            // What is still in memory belongs to the bill.
            drop(turn);
            place.settle()?;
            let device = place.written().zip(written).map(|(after, before)| after.since(before).bytes);
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
struct Writes {
    io_bytes: u64,
    share: u64,
    scale: Scale,
}

impl Writes {
    /// At random, up to an fsync at the end. No two are equal.
    fn run(&self, path: &Path, seed: u64) -> Result<Done, BenchError> {
        let run = || -> std::io::Result<Done> {
            let file = OpenOptions::new().write(true).open(path)?;
            let mut random = SeededRng::new(seed);
            let mut bytes = vec![0xa5; self.io_bytes as usize];
            let limit = Duration::from_millis(self.scale.limit_ms);
            let (start, mut writes) = (Instant::now(), 0);
            while start.elapsed() < limit && !undo::is_stopping() {
                bytes[..8].copy_from_slice(&(seed << 48 | writes).to_le_bytes());
                let offset = random.below(self.scale.file_bytes / self.io_bytes) * self.io_bytes;
                file.write_all_at(&bytes, offset)?;
                if self.syncs(writes) {
                    file.sync_data()?;
                }
                writes += 1;
            }
            file.sync_all()?;
            Ok(Done { writes, elapsed: start.elapsed() })
        };
        run().map_err(|error| BenchError::io("cannot write", path, error))
    }

    /// Whether this write is one of the share, which is spread evenly.
    fn syncs(&self, write: u64) -> bool {
        (write + 1) * self.share / 100 > write * self.share / 100
    }
}

/// Weir over ext4 by share, over all sizes.
fn comparisons(cells: &[Cell]) -> Vec<Comparison> {
    // Another program, and sizes of 1 to 8 KB: sequential writes, too.
    let published = Published {
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
                found.push(Comparison { what, here, unit: "×", published });
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
        let scale = Scale { file_bytes: 0, limit_ms: 0, rounds: 0 };
        for share in SHARES {
            let writes = Writes { io_bytes: 8, share, scale };
            assert_eq!((0..1000).filter(|&write| writes.syncs(write)).count() as u64, share * 10);
        }
    }

    #[test]
    fn writes_stay_within_the_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 2).expect("layout");
        let scale = Scale { file_bytes: 2 * PAGE_BYTES, limit_ms: 20, rounds: 1 };
        let done = Writes { io_bytes: 100, share: 20, scale }.run(&path, 1).expect("writes");
        assert!(done.writes > 0);
        assert_eq!(std::fs::metadata(&path).expect("a file").len(), 2 * PAGE_BYTES);
    }
}

//! `weir-bench periodic-flushing`: cost of early write-back.
//!
//! Four servers run on weir with its default settings, on weir that writes back data 5 or 30 seconds old, and
//! on ext4. Each system is alone on a modelled device. weir's buffer is elsewhere.
//!
//! | file | contents |
//! | --- | --- |
//! | `load` | the servers |
//! | `files` | the servers' files |

mod files;
mod load;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::cleanup;
use super::disk_counters::DiskCounters;
use super::error::BenchError;
use super::program::check_machine;
use super::result_matrix::{
    self, CellFigures, CellKey, MatrixArgs, PaperComparison, PaperFigure, ResultCell, ResultMatrix,
};
use super::run_args::RunSize;
use super::slow_device::{ComparedDevice, DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, SystemKind};
use load::{LOG_BYTES_MAX, ServerKind, ServerLoad};

const NAME: &str = "periodic-flushing";
const RATE: &str = "operations/s";
/// Counted until the unmount has ended.
const BYTES: &str = "store bytes/operation";
const REQUESTS: &str = "store writes/1000 operations";
/// The part until the last operation.
const BYTES_BEFORE: &str = "store bytes/operation before the unmount";
const WEIR: &str = "weir";
const EXT4: &str = "ext4";
const EVERY_5: &str = "weir --dirty-age=5";
const EVERY_30: &str = "weir --dirty-age=30";
const SYSTEMS: [&str; 4] = [WEIR, EVERY_5, EVERY_30, EXT4];
/// Default of `weir format`.
const BUFFER_BYTES: u64 = 256 << 20;

/// Options of `weir-bench periodic-flushing`.
#[derive(Debug, Args)]
pub(super) struct PeriodicFlushingArgs {
    /// The servers
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = ServerKind::value_variants().to_vec())]
    only: Vec<ServerKind>,
    /// The modelled devices, which need as much memory as the data on them
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ComparedDevice::Cloud])]
    model: Vec<ComparedDevice>,
    /// Numbers of threads that work at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8], value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: Vec<u32>,
    /// Number of files, in percent of filebench's profiles [default: 100, or 2 with `small`]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    files: Option<u64>,
    /// Seconds of each turn [default: 90, or 1 with `small`]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Pace all systems to N operations per second, so that their writes can be compared [default: as fast as
    /// each can]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    matrix: MatrixArgs,
}

/// Sizes, times and rounds that `--size` selects.
#[derive(Debug, Clone, Copy)]
struct FlushingScale {
    files_percent: u64,
    seconds: u64,
    rounds: u32,
    rate: Option<u32>,
}

impl FlushingScale {
    fn new(args: &PeriodicFlushingArgs) -> FlushingScale {
        let (files, seconds, rounds) = match args.matrix.size {
            RunSize::Small => (2, 1, 1),
            RunSize::Real => (100, 90, 3),
        };
        FlushingScale {
            files_percent: args.files.unwrap_or(files),
            seconds: args.seconds.unwrap_or(seconds),
            rounds: args.matrix.rounds.unwrap_or(rounds),
            rate: args.rate,
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &PeriodicFlushingArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let scale = FlushingScale::new(args);
    let (root, _files) = work_directory(None)?;
    let mut matrix = ResultMatrix::open(args.matrix.into.as_deref())?;
    for &model in &args.model {
        for &server in &args.only {
            for &threads in &args.threads {
                let parameters = json!({
                    "model": model, "server": server.name(), "threads": threads, "systems": SYSTEMS,
                    "files_percent": scale.files_percent, "seconds": scale.seconds, "rounds": scale.rounds,
                    "rate": scale.rate,
                });
                let paced =
                    scale.rate.map_or(String::new(), |rate| format!(", paced to {rate} operations/s"));
                let chart = format!("{}, {}{paced}", server.name(), model.name());
                let key = CellKey {
                    benchmark: NAME.into(),
                    chart,
                    label: format!("{threads} threads"),
                    parameters,
                };
                let turns = ServerCell { server, model, threads, scale, root: &root };
                matrix.measure(key, |figures| turns.take(figures))?;
            }
        }
    }
    result_matrix::print(&args.matrix, matrix.chosen(), &comparisons(matrix.chosen()));
    Ok(())
}

/// A cell: one server on one device model.
struct ServerCell<'a> {
    server: ServerKind,
    model: ComparedDevice,
    threads: u32,
    scale: FlushingScale,
    root: &'a Path,
}

impl ServerCell<'_> {
    /// Measures all systems in turns, in another order each round.
    fn take(&self, figures: &mut CellFigures) -> Result<(), BenchError> {
        let mut systems = SYSTEMS;
        for round in 0..self.scale.rounds {
            for system in systems {
                eprintln!("round {} of {}: {system}", round + 1, self.scale.rounds);
                self.turn(system, round.into(), figures)?;
            }
            systems.rotate_left(1);
        }
        Ok(())
    }

    /// Measures one system. Each turn has a new file system, so that a turn does not pay for an earlier one's
    /// cleaning.
    fn turn(&self, name: &str, seed: u64, figures: &mut CellFigures) -> Result<(), BenchError> {
        let bytes = (1 << 30) + 3 * (LOG_BYTES_MAX + self.server.bytes(self.scale.files_percent));
        let design = DeviceSpec { device: self.model.device(), bytes, processors: None };
        let system = ComparedSystem::set_up("system", self.kind(name), &design, self.root, 0)?;
        let written = || {
            let device = system.device();
            let failed =
                || BenchError::io("cannot find the counts of", device, std::io::ErrorKind::NotFound.into());
            DiskCounters::of(device).ok_or_else(failed)
        };
        let load = |mount: &Path| ServerLoad::new(self.server, mount, self.scale.files_percent, seed);

        let mounted = system.mount()?;
        let directory = mounted.file.with_file_name("server");
        let load = load(&directory);
        cleanup::uninterrupted(|| {
            std::fs::create_dir_all(&directory)
                .map_err(|error| BenchError::io("cannot create", &directory, error))?;
            load.make()
        })?;
        drop(mounted);

        let mounted = system.mount()?;
        let before = written()?;
        let limit = Duration::from_secs(self.scale.seconds);
        let done = cleanup::uninterrupted(|| load.run(self.threads, limit, self.scale.rate))?;
        let at_the_end = written()?.since(before);
        drop(mounted);
        let in_all = written()?.since(before);

        let each = |count: u64| count as f64 / done.writes.max(1) as f64;
        figures.add(RATE, name, done.rate());
        figures.add(BYTES, name, each(in_all.written_bytes));
        figures.add(REQUESTS, name, 1000.0 * each(in_all.write_requests));
        figures.add(BYTES_BEFORE, name, each(at_the_end.written_bytes));
        Ok(())
    }

    fn kind(&self, name: &str) -> SystemKind {
        if name == EXT4 {
            return SystemKind::Ext4;
        }
        SystemKind::Weir {
            fetch: FetchChoice::Adaptive,
            buffer_in: self.root.to_path_buf(),
            buffer_bytes: BUFFER_BYTES,
            memory_bytes: None,
            options: name.split(' ').skip(1).map(str::to_owned).collect(),
        }
    }
}

/// Figures of Lee et al., "Eliminating Periodic Flush Overhead of File I/O with Non-Volatile Buffer Cache":
/// section 1 and figure 12.
mod published {
    use super::PaperFigure;

    const SOURCE: &str = "Eliminating Periodic Flush Overhead, section 1, over pdflush, traces";
    const THROUGHPUT: &str =
        "Eliminating Periodic Flush Overhead, section 4.3 and figure 12, over ext4 with pdflush";

    /// Fewer writes: mean and maximum, in percent.
    pub(super) const FEWER: [PaperFigure; 2] =
        [PaperFigure { value: 44.3, source: SOURCE }, PaperFigure { value: 73.0, source: SOURCE }];
    /// More throughput: mean, and the maximum, which is varmail's.
    pub(super) const FASTER: [PaperFigure; 2] =
        [PaperFigure { value: 24.6, source: THROUGHPUT }, PaperFigure { value: 43.3, source: THROUGHPUT }];
}

/// Compares weir with its default settings to each other system.
///
/// Paced cells show how many fewer writes weir makes. The other cells show how many more operations.
fn comparisons(cells: &[ResultCell]) -> Vec<PaperComparison> {
    let (paced, free): (Vec<&ResultCell>, Vec<&ResultCell>) =
        cells.iter().partition(|cell| cell.key.parameters["rate"].is_number());
    let mut found = Vec::new();
    for base in [EVERY_5, EVERY_30, EXT4] {
        for (unit, what) in [(BYTES, "bytes written to the store"), (REQUESTS, "writes to the store")] {
            let of = |cell: &ResultCell| Some(100.0 * (1.0 - cell.ratio(unit, WEIR, base)?));
            let is_published = base != EXT4 && unit == BYTES;
            let [mean, most] = if is_published { published::FEWER.map(Some) } else { [None, None] };
            found.extend(by_cell(&paced, &format!("fewer {what} than {base}"), of, mean, most));
        }
        let of = |cell: &ResultCell| Some(100.0 * (cell.ratio(RATE, WEIR, base)? - 1.0));
        let [mean, most] = if base == EXT4 { published::FASTER.map(Some) } else { [None, None] };
        found.extend(by_cell(&free, &format!("more operations/s than {base}"), of, mean, most));
    }
    found
}

/// A figure in percent for each cell, the mean and the largest.
fn by_cell(
    cells: &[&ResultCell],
    what: &str,
    of: impl Fn(&ResultCell) -> Option<f64>,
    mean_published: Option<PaperFigure>,
    most_published: Option<PaperFigure>,
) -> Vec<PaperComparison> {
    let comparison = |of: &str, here, published| PaperComparison {
        what: format!("{of}: {what}"),
        here,
        unit: " %",
        published,
    };
    let one = |cell: &&ResultCell| {
        Some(comparison(&format!("{}, {}", cell.key.chart, cell.key.label), of(cell)?, None))
    };
    let mut found: Vec<PaperComparison> = cells.iter().filter_map(one).collect();
    if !found.is_empty() {
        let mean = found.iter().map(|one| one.here).sum::<f64>() / found.len() as f64;
        let most = found.iter().map(|one| one.here).fold(f64::MIN, f64::max);
        found.push(comparison("mean", mean, mean_published));
        found.push(comparison("the most", most, most_published));
    }
    found
}

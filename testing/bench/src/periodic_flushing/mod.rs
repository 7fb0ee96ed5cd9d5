//! `weir-bench periodic-flushing`: what it costs to write changes back soon. Four servers work on weir as it is, on weir that writes
//! back what is 5 or 30 seconds old, and on ext4, each on a modelled device that has nothing else on it: weir's buffer is elsewhere.
//!
//! | file | what it is |
//! | --- | --- |
//! | `load` | the servers |
//! | `files` | the files that they work on |

mod files;
mod load;

use std::path::Path;
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::cells::{self, Cell, Cells, Comparison, Figures, Key, Output, Published};
use super::disk_time::Written;
use super::error::BenchError;
use super::nonblocking_writes::Size;
use super::program::check_machine;
use super::slow_device::{Design, Model, remove_on_drop};
use super::system::{Fetch, Kind, System};
use super::undo;
use load::{LOG_BYTES_MAX, Load, Server};

const NAME: &str = "periodic-flushing";
const RATE: &str = "operations/s";
/// Until the file system is unmounted.
const BYTES: &str = "store bytes/operation";
const REQUESTS: &str = "store writes/1000 operations";
/// Of that, until the last operation.
const BYTES_BEFORE: &str = "store bytes/operation before the unmount";
const WEIR: &str = "weir";
const EXT4: &str = "ext4";
const EVERY_5: &str = "weir --dirty-age=5";
const EVERY_30: &str = "weir --dirty-age=30";
const SYSTEMS: [&str; 4] = [WEIR, EVERY_5, EVERY_30, EXT4];
/// What `weir format` makes.
const BUFFER_BYTES: u64 = 256 << 20;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct PeriodicFlushingArgs {
    /// `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// The servers
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Server::value_variants().to_vec())]
    only: Vec<Server>,
    /// The modelled devices; their content is in memory
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Cloud])]
    model: Vec<Model>,
    /// How many threads work at once
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [8], value_parser = clap::value_parser!(u32).range(1..=1000))]
    threads: Vec<u32>,
    /// How many files there are, in per cent of what filebench's profiles have [default: 100, or 2 where `small`]
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=1000))]
    files: Option<u64>,
    /// How long each turn takes [default: 90, or 1 where `small`]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
    /// Rounds of each cell [default: 3, or 1 where `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Pace all systems to so many operations a second, so that what they write can be compared; else each is as fast as it can be
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rate: Option<u32>,
    #[command(flatten)]
    output: Output,
}

/// The numbers behind `--size`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    files_percent: u64,
    seconds: u64,
    rounds: u32,
    rate: Option<u32>,
}

impl Scale {
    fn new(args: &PeriodicFlushingArgs) -> Scale {
        let (files, seconds, rounds) = match args.size {
            Size::Small => (2, 1, 1),
            Size::Real => (100, 90, 3),
        };
        Scale {
            files_percent: args.files.unwrap_or(files),
            seconds: args.seconds.unwrap_or(seconds),
            rounds: args.rounds.unwrap_or(rounds),
            rate: args.rate,
        }
    }
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &PeriodicFlushingArgs) -> Result<(), BenchError> {
    check_machine()?;
    undo::install()?;
    let scale = Scale::new(args);
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    std::fs::create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let mut cells = Cells::open(args.output.into.as_deref())?;
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
                let key =
                    Key { benchmark: NAME.into(), chart, label: format!("{threads} threads"), parameters };
                let turns = Turns { server, model, threads, scale, root: &root };
                cells.measure(key, |figures| turns.take(figures))?;
            }
        }
    }
    cells::print(&args.output, cells.chosen(), &comparisons(cells.chosen()));
    Ok(())
}

/// A cell.
struct Turns<'a> {
    server: Server,
    model: Model,
    threads: u32,
    scale: Scale,
    root: &'a Path,
}

impl Turns<'_> {
    /// The systems take turns, in another order each round.
    fn take(&self, figures: &mut Figures) -> Result<(), BenchError> {
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

    /// With a new file system each time: what one turn left to free or to clean is on nobody else's bill.
    fn turn(&self, name: &str, seed: u64, figures: &mut Figures) -> Result<(), BenchError> {
        let bytes = (1 << 30) + 3 * (LOG_BYTES_MAX + self.server.bytes(self.scale.files_percent));
        let design = Design { device: self.model.device(), bytes, processors: None };
        let system = System::set_up("system", self.kind(name), &design, self.root, 0)?;
        let written = || {
            let device = system.device();
            let failed =
                || BenchError::io("cannot find the counts of", device, std::io::ErrorKind::NotFound.into());
            Written::to(device).ok_or_else(failed)
        };
        let load = |mount: &Path| Load::new(self.server, mount, self.scale.files_percent, seed);

        let mounted = system.mount()?;
        let directory = mounted.file.with_file_name("server");
        let load = load(&directory);
        undo::uninterrupted(|| {
            std::fs::create_dir_all(&directory)
                .map_err(|error| BenchError::io("cannot create", &directory, error))?;
            load.make()
        })?;
        drop(mounted);

        let mounted = system.mount()?;
        let before = written()?;
        let limit = Duration::from_secs(self.scale.seconds);
        let done = undo::uninterrupted(|| load.run(self.threads, limit, self.scale.rate))?;
        let at_the_end = written()?.since(before);
        drop(mounted);
        let in_all = written()?.since(before);

        let each = |count: u64| count as f64 / done.writes.max(1) as f64;
        figures.add(RATE, name, done.rate());
        figures.add(BYTES, name, each(in_all.bytes));
        figures.add(REQUESTS, name, 1000.0 * each(in_all.requests));
        figures.add(BYTES_BEFORE, name, each(at_the_end.bytes));
        Ok(())
    }

    fn kind(&self, name: &str) -> Kind {
        if name == EXT4 {
            return Kind::Ext4;
        }
        Kind::Weir {
            fetch: Fetch::Adaptive,
            buffer_in: self.root.to_path_buf(),
            buffer_bytes: BUFFER_BYTES,
            memory_bytes: None,
            options: name.split(' ').skip(1).map(str::to_owned).collect(),
        }
    }
}

/// Lee et al., "Eliminating Periodic Flush Overhead of File I/O with Non-Volatile Buffer Cache": section 1 and figure 12.
mod published {
    use super::Published;

    const SOURCE: &str = "Eliminating Periodic Flush Overhead, section 1, over pdflush, traces";
    const THROUGHPUT: &str =
        "Eliminating Periodic Flush Overhead, section 4.3 and figure 12, over ext4 with pdflush";

    /// The mean, and the most, in per cent.
    pub(super) const FEWER: [Published; 2] =
        [Published { value: 44.3, source: SOURCE }, Published { value: 73.0, source: SOURCE }];
    /// The most is that of varmail.
    pub(super) const FASTER: [Published; 2] =
        [Published { value: 24.6, source: THROUGHPUT }, Published { value: 43.3, source: THROUGHPUT }];
}

/// What weir as it is does beside each of the others: where all are paced, how many fewer writes it has, else how many more operations.
fn comparisons(cells: &[Cell]) -> Vec<Comparison> {
    let (paced, free): (Vec<&Cell>, Vec<&Cell>) =
        cells.iter().partition(|cell| cell.key.parameters["rate"].is_number());
    let mut found = Vec::new();
    for base in [EVERY_5, EVERY_30, EXT4] {
        for (unit, what) in [(BYTES, "bytes written to the store"), (REQUESTS, "writes to the store")] {
            let of = |cell: &Cell| Some(100.0 * (1.0 - cell.ratio(unit, WEIR, base)?));
            let is_published = base != EXT4 && unit == BYTES;
            let [mean, most] = if is_published { published::FEWER.map(Some) } else { [None, None] };
            found.extend(by_cell(&paced, &format!("fewer {what} than {base}"), of, mean, most));
        }
        let of = |cell: &Cell| Some(100.0 * (cell.ratio(RATE, WEIR, base)? - 1.0));
        let [mean, most] = if base == EXT4 { published::FASTER.map(Some) } else { [None, None] };
        found.extend(by_cell(&free, &format!("more operations/s than {base}"), of, mean, most));
    }
    found
}

/// A figure in per cent of each cell, their mean, and the largest.
fn by_cell(
    cells: &[&Cell],
    what: &str,
    of: impl Fn(&Cell) -> Option<f64>,
    mean_published: Option<Published>,
    most_published: Option<Published>,
) -> Vec<Comparison> {
    let comparison =
        |of: &str, here, published| Comparison { what: format!("{of}: {what}"), here, unit: " %", published };
    let one =
        |cell: &&Cell| Some(comparison(&format!("{}, {}", cell.key.chart, cell.key.label), of(cell)?, None));
    let mut found: Vec<Comparison> = cells.iter().filter_map(one).collect();
    if !found.is_empty() {
        let mean = found.iter().map(|one| one.here).sum::<f64>() / found.len() as f64;
        let most = found.iter().map(|one| one.here).fold(f64::MIN, f64::max);
        found.push(comparison("mean", mean, mean_published));
        found.push(comparison("the most", most, most_published));
    }
    found
}

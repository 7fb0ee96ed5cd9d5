//! `weir-bench personalities`: five simple programs, as of filebench, that read and write a file of which nothing is in memory, on
//! weir in each of its fetch modes, side by side on the same modelled devices.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use device::SeededRng;
use serde_json::json;

use super::cells::{self, Cell, Cells, Comparison, Figures, Key, Output, Published, geometric_mean};
use super::error::BenchError;
use super::nonblocking_writes::Size;
use super::placement::{Placement, Processors};
use super::program::check_machine;
use super::quantile::quantile;
use super::slow_device::{Design, Model, remove_on_drop};
use super::system::{Fetch, Kind, System};
use super::undo;
use super::workload::{Done, PAGE_BYTES, shuffled};

const NAME: &str = "personalities";
const UNIT: &str = "operations/s";
/// Bytes of an operation.
const SIZES: [u64; 4] = [64, 256, 1024, 4096];
/// weir's own, that a file system of this size can do without.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct PersonalitiesArgs {
    /// `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// The modelled devices
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Model::Hdd, Model::Ssd])]
    model: Vec<Model>,
    /// The fetch modes that take turns
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Fetch::value_variants().to_vec())]
    modes: Vec<Fetch>,
    /// The personalities
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Personality::value_variants().to_vec())]
    only: Vec<Personality>,
    /// Bytes of an operation: powers of two up to 4096
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES, value_parser = io_bytes)]
    io: Vec<u64>,
    /// The file, in MiB [default: 256, or 8 where `small`]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    file: Option<u64>,
    /// Rounds of each cell [default: 3, or 1 where `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Rounds of cells of whole pages, in which no mode has an advantage [default: 20, or 2 where `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,
    /// How long each mode works in a round, at most, in milliseconds [default: 5000, or 200 where `small`]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    limit_ms: Option<u64>,
    /// Whether the modelled devices have processors of their own; the rest of the machine shares the first one
    #[arg(long, value_enum, default_value_t = Placement::Apart)]
    placement: Placement,
    #[command(flatten)]
    output: Output,
}

fn io_bytes(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = bytes.is_power_of_two() && bytes <= PAGE_BYTES;
    if fits { Ok(bytes) } else { Err(format!("write a power of two up to {PAGE_BYTES}")) }
}

/// What a program does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Personality {
    SequentialWrite,
    RandomWrite,
    /// One thread reads and one writes.
    RandomReadwrite,
    RandomRead,
    SequentialRead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Sequential,
    /// One operation in each page.
    Random,
}

impl Personality {
    fn name(self) -> String {
        self.to_possible_value().expect("every personality can be typed").get_name().to_owned()
    }

    /// A thread for each.
    fn threads(self) -> &'static [(Access, Order)] {
        match self {
            Personality::SequentialWrite => &[(Access::Write, Order::Sequential)],
            Personality::RandomWrite => &[(Access::Write, Order::Random)],
            Personality::RandomReadwrite => &[(Access::Read, Order::Random), (Access::Write, Order::Random)],
            Personality::RandomRead => &[(Access::Read, Order::Random)],
            Personality::SequentialRead => &[(Access::Read, Order::Sequential)],
        }
    }

    fn writes(self) -> bool {
        self.threads().iter().any(|&(access, _)| access == Access::Write)
    }
}

/// The numbers behind `--size`.
#[derive(Debug, Clone, Copy)]
struct Scale {
    file_bytes: u64,
    rounds: u32,
    pairs: u32,
    limit: Duration,
}

impl Scale {
    fn new(args: &PersonalitiesArgs) -> Scale {
        let (file_mib, rounds, pairs, limit_ms) = match args.size {
            Size::Small => (8, 1, 2, 200),
            Size::Real => (256, 3, 20, 5000),
        };
        Scale {
            file_bytes: args.file.unwrap_or(file_mib) << 20,
            rounds: args.rounds.unwrap_or(rounds),
            pairs: args.pairs.unwrap_or(pairs),
            limit: Duration::from_millis(args.limit_ms.unwrap_or(limit_ms)),
        }
    }

    fn rounds(&self, io_bytes: u64) -> u32 {
        if io_bytes == PAGE_BYTES { self.pairs } else { self.rounds }
    }

    /// The part of the file that Campello et al. had memory for: 4 GB for one of 5 GB.
    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES_MIN.max(self.file_bytes / 5 * 4)
    }

    /// A device that has room for the file a few times.
    fn device_bytes(&self) -> u64 {
        (256 << 20) + 4 * self.file_bytes
    }
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &PersonalitiesArgs) -> Result<(), BenchError> {
    check_machine()?;
    undo::install()?;
    let scale = Scale::new(args);
    let mut cells = Cells::open(args.output.into.as_deref())?;
    let processors = Processors::claim(args.placement)?;
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    std::fs::create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    for &model in &args.model {
        let design = Design { device: model.device(), bytes: scale.device_bytes(), processors };
        for &personality in &args.only {
            for &io_bytes in &args.io {
                let parameters = json!({
                    "model": model, "personality": personality.name(), "io_bytes": io_bytes,
                    "modes": args.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
                    "file_bytes": scale.file_bytes, "memory_bytes": scale.memory_bytes(),
                    "rounds": scale.rounds(io_bytes), "limit_ms": scale.limit.as_millis() as u64,
                    "placement": args.placement,
                });
                let chart = format!("{}, {}", model.name(), personality.name());
                let key = Key { benchmark: NAME.into(), chart, label: format!("{io_bytes} B"), parameters };
                let turns =
                    Turns { personality, io_bytes, modes: &args.modes, scale, design: &design, root: &root };
                cells.measure(key, |figures| turns.take(figures))?;
            }
        }
    }
    cells::print(&args.output, cells.chosen(), &comparisons(cells.chosen()));
    Ok(())
}

/// A cell.
struct Turns<'a> {
    personality: Personality,
    io_bytes: u64,
    modes: &'a [Fetch],
    scale: Scale,
    design: &'a Design,
    root: &'a Path,
}

impl Turns<'_> {
    /// Each mode has a new file on a device of its own; the modes take turns, in another order each round.
    fn take(&self, figures: &mut Figures) -> Result<(), BenchError> {
        let pages = self.scale.file_bytes / PAGE_BYTES;
        let set_up = |&fetch: &Fetch| {
            let kind = Kind::Weir {
                fetch,
                buffer_in: self.root.to_path_buf(),
                buffer_bytes: 256 << 20,
                memory_bytes: Some(self.scale.memory_bytes()),
                options: Vec::new(),
            };
            Ok((fetch.name(), System::set_up(&fetch.name(), kind, self.design, self.root, pages)?))
        };
        let mut systems: Vec<(String, System)> =
            self.modes.iter().map(set_up).collect::<Result<_, BenchError>>()?;
        for round in 0..self.scale.rounds(self.io_bytes) {
            for (name, system) in &systems {
                let mounted = system.mount()?;
                let load = Load { path: &mounted.file, pages, io_bytes: self.io_bytes, seed: round.into() };
                let done = undo::uninterrupted(|| load.run(self.personality, self.scale.limit))?;
                figures.add(UNIT, name, done.rate());
            }
            systems.rotate_left(1);
        }
        Ok(())
    }
}

/// A personality at work.
#[derive(Debug, Clone, Copy)]
struct Load<'a> {
    path: &'a Path,
    pages: u64,
    io_bytes: u64,
    seed: u64,
}

impl Load<'_> {
    /// Until the time is up, or a thread has nothing left to do.
    fn run(&self, personality: Personality, limit: Duration) -> Result<Done, BenchError> {
        let is_over = AtomicBool::new(false);
        let began = Instant::now();
        let goes_on = || !is_over.load(Ordering::Relaxed) && began.elapsed() < limit && !undo::is_stopping();
        let thread = |index: usize, (access, order)| {
            let done = self.work(access, order, self.seed << 8 | index as u64, goes_on);
            is_over.store(true, Ordering::Relaxed);
            done.map_err(|error| BenchError::io("cannot read or write", self.path, error))
        };
        let counts: Vec<u64> = std::thread::scope(|scope| {
            let threads: Vec<_> = personality.threads().iter().copied().enumerate().collect();
            let threads: Vec<_> =
                threads.into_iter().map(|(index, does)| scope.spawn(move || thread(index, does))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().expect("a thread does not panic"))
                .collect::<Result<_, _>>()
        })?;
        Ok(Done { writes: counts.iter().sum(), elapsed: began.elapsed() })
    }

    /// How many operations it made.
    fn work(
        &self,
        access: Access,
        order: Order,
        seed: u64,
        goes_on: impl Fn() -> bool,
    ) -> std::io::Result<u64> {
        // A writer that has no need to read gives no reason to fetch.
        let file: File =
            OpenOptions::new().read(access == Access::Read).write(access == Access::Write).open(self.path)?;
        let mut bytes = vec![0x5a; self.io_bytes as usize];
        let mut done = 0;
        for offset in self.offsets(order, seed).take_while(|_| goes_on()) {
            match access {
                Access::Read => file.read_exact_at(&mut bytes, offset)?,
                Access::Write => file.write_all_at(&bytes, offset)?,
            }
            done += 1;
        }
        Ok(done)
    }

    fn offsets(&self, order: Order, seed: u64) -> Box<dyn Iterator<Item = u64>> {
        let (pages, io_bytes) = (self.pages, self.io_bytes);
        match order {
            Order::Sequential => Box::new((0..pages * PAGE_BYTES / io_bytes).map(move |at| at * io_bytes)),
            Order::Random => {
                let mut random = SeededRng::new(seed);
                let order = shuffled(pages, &mut random).into_iter();
                Box::new(
                    order.map(move |page| page * PAGE_BYTES + random.below(PAGE_BYTES / io_bytes) * io_bytes),
                )
            }
        }
    }
}

/// Campello et al., "Non-blocking Writes to Files", FAST 2015, section 1: the personalities that write, over blocking writes.
fn published(model: Model) -> [Option<Published>; 2] {
    let source = "Non-blocking Writes to Files, section 1 and figure 10, of all its modes";
    let [mean, most] = match model {
        Model::Hdd => [7.0, 45.4],
        Model::Ssd => [2.1, 4.2],
        Model::Cloud => return [None, None],
    };
    [mean, most].map(|value| Some(Published { value, source }))
}

/// Each mode over blocking: the personalities that write, for each model, and whole pages, pair by pair.
fn comparisons(cells: &[Cell]) -> Vec<Comparison> {
    let blocking = Fetch::Blocking.name();
    let others = Fetch::value_variants().iter().map(|mode| mode.name()).filter(|mode| *mode != blocking);
    let mut found = Vec::new();
    for mode in others {
        for &model in Model::value_variants() {
            let of_model = cells.iter().filter(|cell| cell.key.parameters["model"] == json!(model));
            let writing: Vec<&Cell> = of_model.clone().filter(|cell| is_write(cell)).collect();
            let ratios = writing.iter().filter_map(|cell| cell.ratio(UNIT, &mode, &blocking));
            let most = ratios.clone().fold(0.0, f64::max);
            let name = model.name();
            let [mean_published, most_published] = published(model);
            let mut add = |what: &str, here, published| {
                let what = format!("{name}, {mode} over blocking: {what}");
                found.push(Comparison { what, here, unit: "×", published });
            };
            if let Some(mean) = geometric_mean(ratios) {
                add("geometric mean of the personalities that write", mean, mean_published);
                add("the best of them", most, most_published);
            }
            for cell in of_model.filter(|cell| cell.key.parameters["io_bytes"] == json!(PAGE_BYTES)) {
                let pairs = pairs(cell, &mode, &blocking);
                if !pairs.is_empty() {
                    let personality = cell.key.parameters["personality"].as_str().unwrap_or_default();
                    let [low, middle, high] = [0.25, 0.5, 0.75].map(|share| quantile(&pairs, share));
                    let what = format!(
                        "{personality} of whole pages, median of {} pairs (quartiles {low:.3} and {high:.3})",
                        pairs.len()
                    );
                    add(&what, middle, None);
                }
            }
        }
    }
    found
}

fn is_write(cell: &Cell) -> bool {
    let name = cell.key.parameters["personality"].as_str().unwrap_or_default();
    Personality::from_str(name, true).is_ok_and(Personality::writes)
}

/// Round by round.
fn pairs(cell: &Cell, mode: &str, base: &str) -> Vec<f64> {
    let [mode, base] = [mode, base].map(|system| cell.rounds(UNIT, system));
    mode.iter().zip(base).map(|(mode, base)| mode / base).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workload::lay_out;
    use super::*;

    #[test]
    fn random_offsets_hit_each_page_once_and_sequential_ones_every_byte() {
        let load = Load { path: Path::new(""), pages: 10, io_bytes: 256, seed: 1 };
        let mut pages: Vec<u64> = load.offsets(Order::Random, 3).map(|offset| offset / PAGE_BYTES).collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..10).collect::<Vec<_>>());
        let offsets: Vec<u64> = load.offsets(Order::Sequential, 3).collect();
        assert_eq!(offsets, (0..160).map(|at| at * 256).collect::<Vec<_>>());
    }

    #[test]
    fn every_personality_ends_when_the_file_does() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 4).expect("layout");
        let load = Load { path: &path, pages: 4, io_bytes: 1024, seed: 1 };
        for &personality in Personality::value_variants() {
            let done = load.run(personality, Duration::from_secs(60)).expect("operations");
            assert!((4..=16).contains(&done.writes), "{personality:?}: {done:?}");
        }
    }

    #[test]
    fn the_mean_and_the_best_are_beside_the_papers_figures_and_pairs_have_a_median() {
        let cell = |io_bytes: u64, lazy: f64| {
            let parameters = json!({ "model": "ssd", "personality": "random-write", "io_bytes": io_bytes });
            let key = Key { benchmark: NAME.into(), chart: "c".into(), label: "l".into(), parameters };
            let line = json!({
                "benchmark": key.benchmark, "chart": key.chart, "label": key.label, "parameters": key.parameters,
                "machine": { "version": "0", "kernel": "6", "processors": 2, "load_average": 0.0 },
                "figures": [
                    { "unit": UNIT, "system": "blocking", "rounds": [1.0] },
                    { "unit": UNIT, "system": "lazy", "rounds": [lazy] },
                ],
            });
            serde_json::from_value::<Cell>(line).expect("a cell")
        };
        let found = comparisons(&[cell(64, 8.0), cell(4096, 2.0)]);
        let here: Vec<f64> = found.iter().map(|one| one.here).collect();
        assert_eq!(here.len(), 3, "{found:?}");
        assert!((here[0] - 4.0).abs() < 1e-9 && here[1..] == [8.0, 2.0], "{found:?}");
        assert_eq!(found[0].published.map(|published| published.value), Some(2.1));
    }
}

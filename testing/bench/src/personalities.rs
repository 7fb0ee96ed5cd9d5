//! `weir-bench personalities`: five simple programs on weir in each of its fetch modes.
//!
//! The programs are filebench's. They read and write a file that is not in memory. The modes take turns, each
//! on its own modelled device.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use device::SeededRng;
use serde_json::json;

use super::cleanup;
use super::cpu_affinity::{CpuAffinity, ProcessorSplit};
use super::error::BenchError;
use super::program::check_machine;
use super::quantile::quantile;
use super::result_matrix::{
    self, CellFigures, CellKey, MatrixArgs, PaperComparison, PaperFigure, ResultCell, ResultMatrix,
    geometric_mean,
};
use super::run_args::RunSize;
use super::slow_device::{ComparedDevice, DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, SystemKind};
use super::workload::{PAGE_BYTES, WorkDone, shuffled};

const NAME: &str = "personalities";
const UNIT: &str = "operations/s";
/// Sizes of operations, in bytes.
const SIZES: [u64; 4] = [64, 256, 1024, 4096];
/// Least memory of weir, enough for a file system of this size.
const MEMORY_BYTES_MIN: u64 = 32 << 20;

/// Options of `weir-bench personalities`.
#[derive(Debug, Args)]
pub(super) struct PersonalitiesArgs {
    /// The modelled devices
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [ComparedDevice::Hdd, ComparedDevice::Ssd])]
    model: Vec<ComparedDevice>,
    /// The fetch modes to compare
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = FetchChoice::value_variants().to_vec())]
    modes: Vec<FetchChoice>,
    /// The programs to run
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = FilebenchPersonality::value_variants().to_vec())]
    only: Vec<FilebenchPersonality>,
    /// Sizes of operations, in bytes: powers of two up to 4096
    #[arg(long, value_name = "BYTES", value_delimiter = ',', default_values_t = SIZES, value_parser = io_bytes)]
    io: Vec<u64>,
    /// Size of the file, in MiB [default: 256, or 8 with `small`]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    file: Option<u64>,
    /// Rounds of cells of whole pages, in which no mode has an advantage [default: 20, or 2 with `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: Option<u32>,
    /// Most milliseconds of a mode in a round [default: 5000, or 200 with `small`]
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(10..=3_600_000))]
    limit_ms: Option<u64>,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`)
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    #[command(flatten)]
    matrix: MatrixArgs,
}

fn io_bytes(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = bytes.is_power_of_two() && bytes <= PAGE_BYTES;
    if fits { Ok(bytes) } else { Err(format!("write a power of two up to {PAGE_BYTES}")) }
}

/// A program of filebench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum FilebenchPersonality {
    SequentialWrite,
    RandomWrite,
    /// One thread reads and one writes.
    RandomReadwrite,
    RandomRead,
    SequentialRead,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessKind {
    Read,
    Write,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AccessOrder {
    Sequential,
    /// One operation in each page, in random order.
    Random,
}

impl FilebenchPersonality {
    fn name(self) -> String {
        self.to_possible_value().expect("every personality can be typed").get_name().to_owned()
    }

    /// The accesses of the program, with a thread for each.
    fn threads(self) -> &'static [(AccessKind, AccessOrder)] {
        match self {
            FilebenchPersonality::SequentialWrite => &[(AccessKind::Write, AccessOrder::Sequential)],
            FilebenchPersonality::RandomWrite => &[(AccessKind::Write, AccessOrder::Random)],
            FilebenchPersonality::RandomReadwrite => {
                &[(AccessKind::Read, AccessOrder::Random), (AccessKind::Write, AccessOrder::Random)]
            }
            FilebenchPersonality::RandomRead => &[(AccessKind::Read, AccessOrder::Random)],
            FilebenchPersonality::SequentialRead => &[(AccessKind::Read, AccessOrder::Sequential)],
        }
    }

    fn writes(self) -> bool {
        self.threads().iter().any(|&(access, _)| access == AccessKind::Write)
    }
}

/// Sizes, times and rounds that `--size` selects.
#[derive(Debug, Clone, Copy)]
struct PersonalityScale {
    file_bytes: u64,
    rounds: u32,
    pairs: u32,
    limit: Duration,
}

impl PersonalityScale {
    fn new(args: &PersonalitiesArgs) -> PersonalityScale {
        let (file_mib, rounds, pairs, limit_ms) = match args.matrix.size {
            RunSize::Small => (8, 1, 2, 200),
            RunSize::Real => (256, 3, 20, 5000),
        };
        PersonalityScale {
            file_bytes: args.file.unwrap_or(file_mib) << 20,
            rounds: args.matrix.rounds.unwrap_or(rounds),
            pairs: args.pairs.unwrap_or(pairs),
            limit: Duration::from_millis(args.limit_ms.unwrap_or(limit_ms)),
        }
    }

    fn rounds(&self, io_bytes: u64) -> u32 {
        if io_bytes == PAGE_BYTES { self.pairs } else { self.rounds }
    }

    /// weir's memory: four fifths of the file, as Campello et al. had 4 GB for 5 GB.
    fn memory_bytes(&self) -> u64 {
        MEMORY_BYTES_MIN.max(self.file_bytes / 5 * 4)
    }

    /// Size of a device, with space for the file a few times.
    fn device_bytes(&self) -> u64 {
        (256 << 20) + 4 * self.file_bytes
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &PersonalitiesArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let scale = PersonalityScale::new(args);
    let mut matrix = ResultMatrix::open(args.matrix.into.as_deref())?;
    let processors = ProcessorSplit::claim(args.cpu_affinity)?;
    let (root, _files) = work_directory(None)?;
    for &model in &args.model {
        let design = DeviceSpec { device: model.device(), bytes: scale.device_bytes(), processors };
        for &personality in &args.only {
            for &io_bytes in &args.io {
                let parameters = json!({
                    "model": model, "personality": personality.name(), "io_bytes": io_bytes,
                    "modes": args.modes.iter().map(|mode| mode.name()).collect::<Vec<_>>(),
                    "file_bytes": scale.file_bytes, "memory_bytes": scale.memory_bytes(),
                    "rounds": scale.rounds(io_bytes), "limit_ms": scale.limit.as_millis() as u64,
                    "cpu_affinity": args.cpu_affinity,
                });
                let chart = format!("{}, {}", model.name(), personality.name());
                let key =
                    CellKey { benchmark: NAME.into(), chart, label: format!("{io_bytes} B"), parameters };
                let turns = PersonalityCell {
                    personality,
                    io_bytes,
                    modes: &args.modes,
                    scale,
                    design: &design,
                    root: &root,
                };
                matrix.measure(key, |figures| turns.take(figures))?;
            }
        }
    }
    result_matrix::print(&args.matrix, matrix.chosen(), &comparisons(matrix.chosen()));
    Ok(())
}

/// A cell: one program with one size of operations.
struct PersonalityCell<'a> {
    personality: FilebenchPersonality,
    io_bytes: u64,
    modes: &'a [FetchChoice],
    scale: PersonalityScale,
    design: &'a DeviceSpec,
    root: &'a Path,
}

impl PersonalityCell<'_> {
    /// Measures all modes in turns, in another order each round. Each mode has a new file on its own device.
    fn take(&self, figures: &mut CellFigures) -> Result<(), BenchError> {
        let pages = self.scale.file_bytes / PAGE_BYTES;
        let set_up = |&fetch: &FetchChoice| {
            let kind = SystemKind::Weir {
                fetch,
                buffer_in: self.root.to_path_buf(),
                buffer_bytes: 256 << 20,
                memory_bytes: Some(self.scale.memory_bytes()),
                options: Vec::new(),
            };
            Ok((fetch.name(), ComparedSystem::set_up(&fetch.name(), kind, self.design, self.root, pages)?))
        };
        let mut systems: Vec<(String, ComparedSystem)> =
            self.modes.iter().map(set_up).collect::<Result<_, BenchError>>()?;
        for round in 0..self.scale.rounds(self.io_bytes) {
            for (name, system) in &systems {
                let mounted = system.mount()?;
                let load = PersonalityRun {
                    path: &mounted.file,
                    pages,
                    io_bytes: self.io_bytes,
                    seed: round.into(),
                };
                let done = cleanup::uninterrupted(|| load.run(self.personality, self.scale.limit))?;
                figures.add(UNIT, name, done.rate());
            }
            systems.rotate_left(1);
        }
        Ok(())
    }
}

/// A run of a program on a file.
#[derive(Debug, Clone, Copy)]
struct PersonalityRun<'a> {
    path: &'a Path,
    pages: u64,
    io_bytes: u64,
    seed: u64,
}

impl PersonalityRun<'_> {
    /// Runs the program until the time is over or a thread is done.
    fn run(&self, personality: FilebenchPersonality, limit: Duration) -> Result<WorkDone, BenchError> {
        let is_over = AtomicBool::new(false);
        let began = Instant::now();
        let goes_on =
            || !is_over.load(Ordering::Relaxed) && began.elapsed() < limit && !cleanup::is_stopping();
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
        Ok(WorkDone { writes: counts.iter().sum(), elapsed: began.elapsed() })
    }

    /// Runs one thread and returns its number of operations.
    fn work(
        &self,
        access: AccessKind,
        order: AccessOrder,
        seed: u64,
        goes_on: impl Fn() -> bool,
    ) -> std::io::Result<u64> {
        // Write-only, so that weir has no reason to fetch pages.
        let file: File = OpenOptions::new()
            .read(access == AccessKind::Read)
            .write(access == AccessKind::Write)
            .open(self.path)?;
        let mut bytes = vec![0x5a; self.io_bytes as usize];
        let mut done = 0;
        for offset in self.offsets(order, seed).take_while(|_| goes_on()) {
            match access {
                AccessKind::Read => file.read_exact_at(&mut bytes, offset)?,
                AccessKind::Write => file.write_all_at(&bytes, offset)?,
            }
            done += 1;
        }
        Ok(done)
    }

    fn offsets(&self, order: AccessOrder, seed: u64) -> Box<dyn Iterator<Item = u64>> {
        let (pages, io_bytes) = (self.pages, self.io_bytes);
        match order {
            AccessOrder::Sequential => {
                Box::new((0..pages * PAGE_BYTES / io_bytes).map(move |at| at * io_bytes))
            }
            AccessOrder::Random => {
                let mut random = SeededRng::new(seed);
                let order = shuffled(pages, &mut random).into_iter();
                Box::new(
                    order.map(move |page| page * PAGE_BYTES + random.below(PAGE_BYTES / io_bytes) * io_bytes),
                )
            }
        }
    }
}

/// Figures of Campello et al., "Non-blocking Writes to Files", FAST 2015, section 1: the programs that write,
/// over blocking writes.
fn published(model: ComparedDevice) -> [Option<PaperFigure>; 2] {
    let source = "Non-blocking Writes to Files, section 1 and figure 10, of all its modes";
    let [mean, most] = match model {
        ComparedDevice::Hdd => [7.0, 45.4],
        ComparedDevice::Ssd => [2.1, 4.2],
        ComparedDevice::Cloud => return [None, None],
    };
    [mean, most].map(|value| Some(PaperFigure { value, source }))
}

/// Ratios of each mode to blocking: the programs that write, for each model, and whole pages, pair by pair.
fn comparisons(cells: &[ResultCell]) -> Vec<PaperComparison> {
    let blocking = FetchChoice::Blocking.name();
    let others =
        FetchChoice::value_variants().iter().map(|mode| mode.name()).filter(|mode| *mode != blocking);
    let mut found = Vec::new();
    for mode in others {
        for &model in ComparedDevice::value_variants() {
            let of_model = cells.iter().filter(|cell| cell.key.parameters["model"] == json!(model));
            let writing: Vec<&ResultCell> = of_model.clone().filter(|cell| is_write(cell)).collect();
            let ratios = writing.iter().filter_map(|cell| cell.ratio(UNIT, &mode, &blocking));
            let most = ratios.clone().fold(0.0, f64::max);
            let name = model.name();
            let [mean_published, most_published] = published(model);
            let mut add = |what: &str, here, published| {
                let what = format!("{name}, {mode} over blocking: {what}");
                found.push(PaperComparison { what, here, unit: "×", published });
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

fn is_write(cell: &ResultCell) -> bool {
    let name = cell.key.parameters["personality"].as_str().unwrap_or_default();
    FilebenchPersonality::from_str(name, true).is_ok_and(FilebenchPersonality::writes)
}

/// Ratios of two modes, round by round.
fn pairs(cell: &ResultCell, mode: &str, base: &str) -> Vec<f64> {
    let [mode, base] = [mode, base].map(|system| cell.rounds(UNIT, system));
    mode.iter().zip(base).map(|(mode, base)| mode / base).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workload::lay_out;
    use super::*;

    #[test]
    fn random_offsets_hit_each_page_once_and_sequential_ones_every_byte() {
        let load = PersonalityRun { path: Path::new(""), pages: 10, io_bytes: 256, seed: 1 };
        let mut pages: Vec<u64> =
            load.offsets(AccessOrder::Random, 3).map(|offset| offset / PAGE_BYTES).collect();
        pages.sort_unstable();
        assert_eq!(pages, (0..10).collect::<Vec<_>>());
        let offsets: Vec<u64> = load.offsets(AccessOrder::Sequential, 3).collect();
        assert_eq!(offsets, (0..160).map(|at| at * 256).collect::<Vec<_>>());
    }

    #[test]
    fn every_personality_ends_when_the_file_does() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("file");
        lay_out(&path, 4).expect("layout");
        let load = PersonalityRun { path: &path, pages: 4, io_bytes: 1024, seed: 1 };
        for &personality in FilebenchPersonality::value_variants() {
            let done = load.run(personality, Duration::from_secs(60)).expect("operations");
            assert!((4..=16).contains(&done.writes), "{personality:?}: {done:?}");
        }
    }

    #[test]
    fn the_mean_and_the_best_are_beside_the_papers_figures_and_pairs_have_a_median() {
        let cell = |io_bytes: u64, lazy: f64| {
            let parameters = json!({ "model": "ssd", "personality": "random-write", "io_bytes": io_bytes });
            let key = CellKey { benchmark: NAME.into(), chart: "c".into(), label: "l".into(), parameters };
            let line = json!({
                "benchmark": key.benchmark, "chart": key.chart, "label": key.label, "parameters": key.parameters,
                "machine": { "version": "0", "kernel": "6", "processors": 2, "load_average": 0.0 },
                "figures": [
                    { "unit": UNIT, "system": "blocking", "rounds": [1.0] },
                    { "unit": UNIT, "system": "lazy", "rounds": [lazy] },
                ],
            });
            serde_json::from_value::<ResultCell>(line).expect("a cell")
        };
        let found = comparisons(&[cell(64, 8.0), cell(4096, 2.0)]);
        let here: Vec<f64> = found.iter().map(|one| one.here).collect();
        assert_eq!(here.len(), 3, "{found:?}");
        assert!((here[0] - 4.0).abs() < 1e-9 && here[1..] == [8.0, 2.0], "{found:?}");
        assert_eq!(found[0].published.map(|published| published.value), Some(2.1));
    }
}

//! `weir-bench delta-reads`: cold reads of a file with deltas beside a file without.
//!
//! Both files are in one store and are read in turns. The same is measured again after delta merge.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;

use super::cleanup;
use super::error::BenchError;
use super::program::check_machine;
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportTable};
use super::run_args::{RunArgs, RunSize};
use super::slow_device::{ComparedDevice, DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, SystemKind, weir_status};
use super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out, shuffled};
use device::SeededRng;

/// Size of the write to each page with a delta.
const WRITE_BYTES: u64 = 512;
/// Memory for all deltas, so that they are stored together.
const MANY_BYTES: u64 = 128 << 20;
/// Writes data back after a second, so that delta merge begins in the quiet time after that.
const SOON: &str = "--dirty-age=1";
/// Length of a turn of random reads.
const TURN: Duration = Duration::from_secs(2);
/// Delta merge begins after five quiet seconds. It is done if no page was merged for this time.
const MERGED_AFTER: Duration = Duration::from_secs(12);
/// Limit for delta merge, which takes a second for a small file and minutes for a large one on a disk.
const MERGE_MAX: Duration = Duration::from_secs(1200);

/// Options of `weir-bench delta-reads`.
#[derive(Debug, Args)]
pub(super) struct DeltaReadsArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Size of each of the two files, in MiB [default: 512, or 16 with `small`]
    #[arg(long, value_name = "MIB")]
    file: Option<u64>,
    /// Share of pages with deltas, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=100))]
    percent: u64,
    /// Rounds [default: 5, or 1 with `small`]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
}

/// One of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileChoice {
    Whole,
    Deltas,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &DeltaReadsArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let (file, rounds) = match args.run.size {
        RunSize::Small => (args.file.unwrap_or(16), args.rounds.unwrap_or(1)),
        RunSize::Real => (args.file.unwrap_or(512), args.rounds.unwrap_or(5)),
    };
    let (root, _files) = work_directory(None)?;
    let mut report = BenchReport::new("delta-reads");
    report.line(format!("Cold reads of a file of {file} MiB; {} % of the pages have deltas", args.percent));
    let mut table = ReportTable::default();
    for &model in args.run.model.list() {
        on_model(model, &root, (file << 20) / PAGE_BYTES, args.percent, rounds.max(1), &mut table)?;
    }
    report.table("rows", &table);
    report.print(args.run.json);
    Ok(())
}

/// Measures both ways of reading, before and after delta merge, and adds a row for each.
fn on_model(
    model: ComparedDevice,
    root: &Path,
    pages: u64,
    percent: u64,
    rounds: u64,
    table: &mut ReportTable,
) -> Result<(), BenchError> {
    let bytes = (6 * pages * PAGE_BYTES).max(512 << 20);
    let design = DeviceSpec { device: model.device(), bytes, processors: None };
    let kind = |option: String| SystemKind::Weir {
        fetch: FetchChoice::Lazy,
        buffer_in: root.to_path_buf(),
        buffer_bytes: 512 << 20,
        memory_bytes: Some(4 * MANY_BYTES),
        options: vec![option],
    };
    eprintln!("{}: laying out", model.name());
    let mut system =
        ComparedSystem::set_up("weir", kind(format!("--deltas={MANY_BYTES}")), &design, root, pages)?;
    {
        let mounted = system.mount()?;
        lay_out(&other(&mounted.file), pages)?;
    }
    // A new mount, because the laid-out pages are still whole in memory and would be stored whole.
    overwrite(&other(&system.mount()?.file), pages, pages * percent / 100)?;
    measure(model, &system, pages, rounds, ["random", "sequential"], table)?;
    eprintln!("{}: merging deltas", model.name());
    system.remount_as(kind(SOON.to_owned()));
    {
        let mounted = system.mount()?;
        overwrite(&other(&mounted.file), pages, pages * percent / 100)?;
        wait_until_merged(&mounted.file)?;
    }
    measure(model, &system, pages, rounds, ["random, merged", "sequential, merged"], table)
}

fn other(file: &Path) -> std::path::PathBuf {
    file.with_file_name("other")
}

/// Overwrites a part of `count` pages, always the same ones.
fn overwrite(path: &Path, pages: u64, count: u64) -> Result<(), BenchError> {
    let mut load = PageOverwriter::open(path, pages, WRITE_BYTES, 1)?;
    load.run(count, Duration::MAX, SyncMode::Never).map(drop)
}

fn wait_until_merged(file: &Path) -> Result<(), BenchError> {
    let mount = file.parent().unwrap_or(file);
    let merged = || Ok::<u64, BenchError>(weir_status(mount)?.counters.store.pages_folded);
    let (began, mut seen, mut since) = (Instant::now(), merged()?, Instant::now());
    while since.elapsed() < MERGED_AFTER && began.elapsed() < MERGE_MAX {
        std::thread::sleep(Duration::from_millis(500));
        let now = merged()?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    match seen {
        0 => Err(BenchError::Late { what: "delta merge".to_owned(), says: "no page was merged".to_owned() }),
        _ => Ok(()),
    }
}

fn measure(
    model: ComparedDevice,
    system: &ComparedSystem,
    pages: u64,
    rounds: u64,
    names: [&str; 2],
    table: &mut ReportTable,
) -> Result<(), BenchError> {
    let (mut random, mut sequential) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("{}: {}, round {round}", model.name(), names[0]);
        let turns = |read: &dyn Fn(&Path) -> Result<f64, BenchError>| {
            let (mounted, mut rates) = (system.mount()?, [0.0; 2]);
            // The files take turns to be first.
            let order = [FileChoice::Whole, FileChoice::Deltas];
            for which in (0..2).map(|turn| order[((turn + round) % 2) as usize]) {
                let file = &mounted.file;
                match which {
                    FileChoice::Whole => rates[0] = read(file)?,
                    FileChoice::Deltas => rates[1] = read(&other(file))?,
                }
            }
            Ok::<[f64; 2], BenchError>(rates)
        };
        random.push(turns(&|path| read_at_random(path, pages, round))?);
        sequential.push(turns(&|path| read_all(path, pages))?);
    }
    for (what, rates) in names.into_iter().zip([random, sequential]) {
        let without: Vec<f64> = rates.iter().map(|[without, _]| *without).collect();
        let ratios: Vec<f64> = rates.iter().map(|[without, with]| with / without).collect();
        let ratio = RoundSpread::of(&ratios);
        table.row([
            ("model", "device", model.name().into()),
            ("what", "reads", what.into()),
            ("without", "MiB/s without deltas", median(&without).into()),
            ("ratio", "with, of that: median (quartiles)", ratio.into()),
        ]);
    }
    Ok(())
}

/// Reads random pages, each once before any is read twice. Returns MiB/s.
fn read_at_random(path: &Path, pages: u64, seed: u64) -> Result<f64, BenchError> {
    let mut order = shuffled(pages, &mut SeededRng::new(seed)).into_iter().cycle();
    let mut page = vec![0; PAGE_BYTES as usize];
    let (began, mut done) = (Instant::now(), 0);
    let mut read = || -> std::io::Result<()> {
        let file = File::open(path)?;
        while began.elapsed() < TURN {
            file.read_exact_at(&mut page, order.next().unwrap_or(0) * PAGE_BYTES)?;
            done += 1;
        }
        Ok(())
    };
    read().map_err(|error| BenchError::io("cannot read", path, error))?;
    Ok((done * PAGE_BYTES) as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20))
}

/// Reads a MiB at a time to the end. Returns MiB/s.
fn read_all(path: &Path, pages: u64) -> Result<f64, BenchError> {
    let mut bytes = vec![0; 1 << 20];
    let began = Instant::now();
    let mut read = || -> std::io::Result<()> {
        let (file, mut at) = (File::open(path)?, 0);
        while at < pages * PAGE_BYTES {
            at += file.read_at(&mut bytes, at)?.max(1) as u64;
        }
        Ok(())
    };
    read().map_err(|error| BenchError::io("cannot read", path, error))?;
    Ok((pages * PAGE_BYTES) as f64 / began.elapsed().as_secs_f64() / f64::from(1 << 20))
}

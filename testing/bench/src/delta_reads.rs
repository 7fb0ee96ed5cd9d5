//! `weir-bench delta-reads`: cold reads of a file of which some pages are stored as deltas over their bases, beside one that was stored
//! whole in the same store, in turns; and again after they were folded.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::error::BenchError;
use super::nonblocking_writes::{Models, Size};
use super::program::check_machine;
use super::quantile::quantile;
use super::slow_device::{Design, Model, remove_on_drop};
use super::steady_writes::store_counter;
use super::system::{Fetch, Kind, System};
use super::undo;
use super::workload::{Overwriter, PAGE_BYTES, Sync, lay_out, shuffled};
use device::SeededRng;

/// Of each page that has a delta.
const WRITE_BYTES: u64 = 512;
/// Deltas in memory that are enough for all, so that they are stored together.
const MANY_BYTES: u64 = 128 << 20;
/// Everything is stored a second after it is written, and folded in the quiet time after that.
const SOON: &str = "--dirty-age=1";
/// Random reads of one file before it is the other's turn.
const TURN: Duration = Duration::from_secs(2);
/// Folding begins after five quiet seconds; a round of it takes no longer than this between two pages.
const FOLDED_AFTER: Duration = Duration::from_secs(12);
/// Folding of a small file takes a second; of a large one on a disk some minutes.
const FOLDING_MAX: Duration = Duration::from_secs(1200);

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct DeltaReadsArgs {
    /// `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// The modelled device: hdd, cloud, ssd or all.
    #[arg(long, value_enum, default_value_t = Models::All)]
    model: Models,
    /// Each of the two files, in MiB [default: 512, or 16 where `small`]
    #[arg(long, value_name = "MIB")]
    file: Option<u64>,
    /// Pages that have deltas, in per cent
    #[arg(long, value_name = "PERCENT", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=100))]
    percent: u64,
    /// How often each is measured [default: 5, or 1 where `small`]
    #[arg(long, value_name = "N")]
    rounds: Option<u64>,
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
}

/// One way of reading, on one device.
#[derive(Debug, Serialize)]
struct Row {
    model: String,
    what: &'static str,
    /// MiB/s of the file without deltas, the median.
    without: f64,
    /// Of the other beside it, in turns: the lower quartile, the median and the upper one.
    ratio: [f64; 3],
}

/// Which of the two files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Which {
    Whole,
    Deltas,
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &DeltaReadsArgs) -> Result<(), BenchError> {
    check_machine()?;
    undo::install()?;
    let (file, rounds) = match args.size {
        Size::Small => (args.file.unwrap_or(16), args.rounds.unwrap_or(1)),
        Size::Real => (args.file.unwrap_or(512), args.rounds.unwrap_or(5)),
    };
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    std::fs::create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let mut rows = Vec::new();
    for &model in args.model.list() {
        rows.extend(of_model(model, &root, (file << 20) / PAGE_BYTES, args.percent, rounds.max(1))?);
    }
    if args.json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("names and finite numbers"));
        return Ok(());
    }
    println!("Cold reads of a file of {file} MiB of which {} % of the pages have deltas\n", args.percent);
    println!("| device | reads | MiB/s without deltas | with, of that: median (quartiles) |");
    println!("| --- | --- | --- | --- |");
    for Row { model, what, without, ratio: [low, median, high] } in &rows {
        println!("| {model} | {what} | {without:.1} | {median:.2} ({low:.2} to {high:.2}) |");
    }
    Ok(())
}

fn of_model(
    model: Model,
    root: &Path,
    pages: u64,
    percent: u64,
    rounds: u64,
) -> Result<Vec<Row>, BenchError> {
    let bytes = (6 * pages * PAGE_BYTES).max(512 << 20);
    let design = Design { device: model.device(), bytes, processors: None };
    let kind = |option: String| Kind::Weir {
        fetch: Fetch::Lazy,
        buffer_in: root.to_path_buf(),
        buffer_bytes: 512 << 20,
        memory_bytes: Some(4 * MANY_BYTES),
        options: vec![option],
    };
    eprintln!("{}: laying out", model.name());
    let mut system = System::set_up("weir", kind(format!("--deltas={MANY_BYTES}")), &design, root, pages)?;
    {
        let mounted = system.mount()?;
        lay_out(&other(&mounted.file), pages)?;
    }
    // Mounted anew: what was laid out is whole in memory, and so would its pages be stored.
    overwrite(&other(&system.mount()?.file), pages, pages * percent / 100)?;
    let mut rows = measure(model, &system, pages, rounds, ["random", "sequential"])?;
    eprintln!("{}: folding", model.name());
    system.remount_as(kind(SOON.to_owned()));
    {
        let mounted = system.mount()?;
        overwrite(&other(&mounted.file), pages, pages * percent / 100)?;
        wait_until_folded(&mounted.file)?;
    }
    rows.extend(measure(model, &system, pages, rounds, ["random, folded", "sequential, folded"])?);
    Ok(rows)
}

fn other(file: &Path) -> std::path::PathBuf {
    file.with_file_name("other")
}

/// Overwrites a part of so many pages, always the same ones.
fn overwrite(path: &Path, pages: u64, count: u64) -> Result<(), BenchError> {
    let mut load = Overwriter::open(path, pages, WRITE_BYTES, 1)?;
    load.run(count, Duration::MAX, Sync::Never).map(drop)
}

fn wait_until_folded(file: &Path) -> Result<(), BenchError> {
    let mount = file.parent().unwrap_or(file);
    let folded = || Ok::<u64, BenchError>(store_counter(mount, "pages_folded")?.unwrap_or(0));
    let (began, mut seen, mut since) = (Instant::now(), folded()?, Instant::now());
    while since.elapsed() < FOLDED_AFTER && began.elapsed() < FOLDING_MAX {
        std::thread::sleep(Duration::from_millis(500));
        let now = folded()?;
        if now != seen {
            (seen, since) = (now, Instant::now());
        }
    }
    match seen {
        0 => Err(BenchError::Late { what: "folding".to_owned(), says: "no page was folded".to_owned() }),
        _ => Ok(()),
    }
}

fn measure(
    model: Model,
    system: &System,
    pages: u64,
    rounds: u64,
    names: [&'static str; 2],
) -> Result<Vec<Row>, BenchError> {
    let (mut random, mut sequential) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        eprintln!("{}: {}, round {round}", model.name(), names[0]);
        let turns = |read: &dyn Fn(&Path) -> Result<f64, BenchError>| {
            let (mounted, mut rates) = (system.mount()?, [0.0; 2]);
            // Who is first changes.
            let order = [Which::Whole, Which::Deltas];
            for which in (0..2).map(|turn| order[((turn + round) % 2) as usize]) {
                let file = &mounted.file;
                match which {
                    Which::Whole => rates[0] = read(file)?,
                    Which::Deltas => rates[1] = read(&other(file))?,
                }
            }
            Ok::<[f64; 2], BenchError>(rates)
        };
        random.push(turns(&|path| read_at_random(path, pages, round))?);
        sequential.push(turns(&|path| read_all(path, pages))?);
    }
    let row = |what, rates: &[[f64; 2]]| {
        let without: Vec<f64> = rates.iter().map(|[without, _]| *without).collect();
        let ratios: Vec<f64> = rates.iter().map(|[without, with]| with / without).collect();
        let ratio = [0.25, 0.5, 0.75].map(|share| quantile(&ratios, share));
        Row { model: model.name(), what, without: quantile(&without, 0.5), ratio }
    };
    Ok(vec![row(names[0], &random), row(names[1], &sequential)])
}

/// Pages at random, each once while there are some. MiB/s.
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

/// A MiB at a time, to the end. MiB/s.
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

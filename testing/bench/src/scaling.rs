//! `weir-bench scaling`: what operations cost from the file system down, without the kernel, by one thread and by several on
//! files of their own. What does not scale here is what the locks of file system and cache make them wait for.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cache::CacheSettings;
use clap::Args;
use device::SeededRng;
use fs::{Fs, FsError, Ino};
use serde::Serialize;

use super::error::BenchError;
use super::in_process::{lay_out, wait, with_fs, write};
use super::quantile::median;
use super::workload::PAGE_BYTES;

/// A thread's file: larger than any processor's second cache.
const FILE_PAGES: u64 = 2048;
/// Between two looks at the clock.
const BATCH: u64 = 64;

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct ScalingArgs {
    /// How many threads at once, beside one
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    threads: u8,
    /// How often one thread and several take their turns
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Milliseconds of one turn
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Write(usize),
    Read(usize),
    Attributes,
}

const OPERATIONS: [(&str, Operation); 4] = [
    ("write 512 B", Operation::Write(512)),
    ("write 4 KiB", Operation::Write(4096)),
    ("read 4 KiB", Operation::Read(4096)),
    ("attributes", Operation::Attributes),
];

/// Operations per second, all threads together; medians over the rounds.
#[derive(Debug, Serialize)]
struct Row {
    operation: &'static str,
    one_thread: f64,
    several_threads: f64,
    /// The median, over the rounds, of how many times as much the several did.
    scaling: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    version: &'static str,
    threads: u8,
    rounds: u16,
    rows: Vec<Row>,
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &ScalingArgs) -> Result<(), BenchError> {
    let rows = with_fs(CacheSettings::default(), |fs| measure(args, fs))?;
    let report = Report {
        benchmark: "scaling",
        version: env!("CARGO_PKG_VERSION"),
        threads: args.threads,
        rounds: args.rounds,
        rows,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("names and numbers"));
    } else {
        print(&report);
    }
    Ok(())
}

fn measure(args: &ScalingArgs, fs: &Arc<Fs>) -> Result<Vec<Row>, FsError> {
    let files = (0..args.threads)
        .map(|number| lay_out(fs, &format!("file-{number}"), FILE_PAGES))
        .collect::<Result<Vec<_>, _>>()?;
    OPERATIONS.iter().map(|&(name, operation)| row(args, fs, &files, name, operation)).collect()
}

fn row(
    args: &ScalingArgs,
    fs: &Arc<Fs>,
    files: &[Ino],
    name: &'static str,
    operation: Operation,
) -> Result<Row, FsError> {
    let slice = Duration::from_millis(args.slice);
    let rounds = (0..args.rounds)
        .map(|_| Ok((turn(fs, &files[..1], operation, slice)?, turn(fs, files, operation, slice)?)))
        .collect::<Result<Vec<(f64, f64)>, FsError>>()?;
    Ok(Row {
        operation: name,
        one_thread: median(&rounds.iter().map(|round| round.0).collect::<Vec<_>>()),
        several_threads: median(&rounds.iter().map(|round| round.1).collect::<Vec<_>>()),
        scaling: median(&rounds.iter().map(|round| round.1 / round.0).collect::<Vec<_>>()),
    })
}

/// Operations per second of one thread for each of `files`, all at once.
fn turn(fs: &Arc<Fs>, files: &[Ino], operation: Operation, slice: Duration) -> Result<f64, FsError> {
    let barrier = Barrier::new(files.len());
    let work = |file: Ino| {
        let mut random = SeededRng::new(file.0);
        let bytes = vec![0x5a; PAGE_BYTES as usize];
        barrier.wait();
        let (start, mut count) = (Instant::now(), 0);
        while start.elapsed() < slice {
            (0..BATCH).try_for_each(|_| operate(fs, file, operation, &bytes, &mut random))?;
            count += BATCH;
        }
        Ok(count as f64 / start.elapsed().as_secs_f64())
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = files.iter().map(|&file| scope.spawn(move || work(file))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).sum()
    })
}

fn operate(
    fs: &Arc<Fs>,
    file: Ino,
    operation: Operation,
    bytes: &[u8],
    random: &mut SeededRng,
) -> Result<(), FsError> {
    let offset = random.below(FILE_PAGES) * PAGE_BYTES;
    match operation {
        Operation::Write(len) => write(fs, file, offset, &bytes[..len]),
        Operation::Read(len) => wait(|done| fs.read(file, offset, len, done)).map(drop),
        Operation::Attributes => fs.attributes(file).map(drop),
    }
}

fn print(report: &Report) {
    println!("weir {} · 1 thread and {} · {} rounds", report.version, report.threads, report.rounds);
    println!(
        "{:<14} {:>14} {:>14} {:>9}",
        "operation",
        "1 thread /s",
        format!("{} threads /s", report.threads),
        "scaling"
    );
    for row in &report.rows {
        println!(
            "{:<14} {:>14.0} {:>14.0} {:>8.2}×",
            row.operation, row.one_thread, row.several_threads, row.scaling
        );
    }
}

//! `weir bench scaling`: what operations cost from the file system down, without the kernel, by one thread and by several on
//! files of their own. What does not scale here is what the locks of file system and cache make them wait for.

use std::fs::create_dir_all;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cache::Settings;
use clap::Args;
use device::Random;
use fs::{Caller, Done, Fs, FsError, Ino, Kind};
use host::Access;
use serde::Serialize;

use super::error::BenchError;
use super::program::run;
use super::slow_device::remove_on_drop;
use super::system::weir;
use super::undo;
use super::workload::PAGE_BYTES;
use crate::media::Media;
use crate::stack::{Stack, Workers};

/// A thread's file: larger than any processor's second cache.
const FILE_PAGES: u64 = 2048;
const STORE_BYTES: u64 = 4 << 30;
const BUFFER_BYTES: u64 = 512 << 20;
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
    undo::install()?;
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let store = root.join("store");
    run(weir("format")
        .arg(&store)
        .args([format!("--size={STORE_BYTES}"), format!("--buffer-size={BUFFER_BYTES}")]))?;
    let rows = measure(args, &store)?;
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

fn measure(args: &ScalingArgs, store: &Path) -> Result<Vec<Row>, BenchError> {
    let closed = |error| BenchError::Weir(Box::new(error));
    let media = Media::find(store, None).map_err(closed)?;
    let stack =
        Stack::open(media, Settings::default(), Access::Write, crate::volume::DEFAULT).map_err(closed)?;
    let workers = Workers::start(&stack.cache, Access::Write).map_err(closed)?;
    let files = (0..args.threads).map(|number| lay_out(&stack.fs, number)).collect::<Result<Vec<_>, _>>();
    let measured = files.and_then(|files| {
        OPERATIONS.iter().map(|&(name, operation)| row(args, &stack.fs, &files, name, operation)).collect()
    });
    let drained = workers.stop_and_drain();
    let failed = |source| BenchError::Fs { source };
    let rows = measured.map_err(failed)?;
    drained.map_err(|source| failed(FsError::Cache(source)))?;
    Ok(rows)
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
        one_thread: median(rounds.iter().map(|round| round.0)),
        several_threads: median(rounds.iter().map(|round| round.1)),
        scaling: median(rounds.iter().map(|round| round.1 / round.0)),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Operations per second of one thread for each of `files`, all at once.
fn turn(fs: &Arc<Fs>, files: &[Ino], operation: Operation, slice: Duration) -> Result<f64, FsError> {
    let barrier = Barrier::new(files.len());
    let work = |file: Ino| {
        let mut random = Random::new(file.0);
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
    random: &mut Random,
) -> Result<(), FsError> {
    let offset = random.below(FILE_PAGES) * PAGE_BYTES;
    match operation {
        Operation::Write(len) => write(fs, file, offset, &bytes[..len]),
        Operation::Read(len) => wait(|done| fs.read(file, offset, len, done)).map(drop),
        Operation::Attributes => fs.attributes(file).map(drop),
    }
}

/// As the door does it.
pub(super) fn write(fs: &Arc<Fs>, file: Ino, offset: u64, bytes: &[u8]) -> Result<(), FsError> {
    fs.write_at_once(file, offset, bytes)
        .unwrap_or_else(|| wait(|done| fs.write(file, offset, bytes.to_vec(), done)))
}

/// A new file with all its pages.
fn lay_out(fs: &Arc<Fs>, number: u8) -> Result<Ino, FsError> {
    let (caller, name) = (Caller { uid: 0, gid: 0, umask: 0 }, format!("file-{number}"));
    let made = wait(|done| fs.make(caller, Ino::ROOT, name.as_bytes(), Kind::File, 0o600, done))?;
    let page = vec![1; PAGE_BYTES as usize];
    (0..FILE_PAGES).try_for_each(|number| write(fs, made.ino, number * PAGE_BYTES, &page))?;
    Ok(made.ino)
}

/// What an operation that ends in a completion gave.
pub(super) fn wait<T: Send + 'static>(operation: impl FnOnce(Done<T>)) -> Result<T, FsError> {
    let (sender, receiver) = sync_channel(1);
    operation(Box::new(move |result| {
        let _ = sender.send(result);
    }));
    receiver.recv().expect("every operation completes")
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

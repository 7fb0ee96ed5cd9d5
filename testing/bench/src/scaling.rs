//! `weir-bench scaling`: rate of operations from the file system down, by one thread and by several.
//!
//! The kernel takes no part, and each thread has its own file. Any loss of scaling is time that threads wait
//! for the locks of file system and cache.

use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use cache::CacheSettings;
use clap::Args;
use device::SeededRng;
use fs::{Fs, FsError, Ino};

use super::error::BenchError;
use super::in_process::{lay_out, wait, with_fs, write};
use super::quantile::median;
use super::report::{BenchReport, ReportCell, ReportTable};
use super::workload::PAGE_BYTES;

/// Size of a thread's file, larger than any processor's L2 cache.
const FILE_PAGES: u64 = 2048;
/// Operations between two checks of the clock.
const BATCH: u64 = 64;

/// Options of `weir-bench scaling`.
#[derive(Debug, Args)]
pub(super) struct ScalingArgs {
    /// Number of threads that are compared with one
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(2..=64))]
    threads: u8,
    /// Rounds, with a turn of one thread and one of several
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
enum ScalingOperation {
    Write(usize),
    Read(usize),
    Attributes,
}

const OPERATIONS: [(&str, ScalingOperation); 4] = [
    ("write 512 B", ScalingOperation::Write(512)),
    ("write 4 KiB", ScalingOperation::Write(4096)),
    ("read 4 KiB", ScalingOperation::Read(4096)),
    ("attributes", ScalingOperation::Attributes),
];

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &ScalingArgs) -> Result<(), BenchError> {
    let mut report = BenchReport::new("scaling");
    report.fact("threads", args.threads);
    report.fact("rounds", args.rounds);
    report.line(format!("operations/s, medians of {} rounds", args.rounds));
    let table = with_fs(CacheSettings::default(), |fs| measure(args, fs))?;
    report.table("rows", &table);
    report.print(args.json);
    Ok(())
}

/// Measures each operation by one thread, and by several together.
fn measure(args: &ScalingArgs, fs: &Arc<Fs>) -> Result<ReportTable, FsError> {
    let files = (0..args.threads)
        .map(|number| lay_out(fs, &format!("file-{number}"), FILE_PAGES))
        .collect::<Result<Vec<_>, _>>()?;
    let several = format!("{} threads", args.threads);
    let mut table = ReportTable::default();
    let slice = Duration::from_millis(args.slice);
    for (name, operation) in OPERATIONS {
        let (mut one, mut all) = (Vec::new(), Vec::new());
        for _ in 0..args.rounds {
            one.push(turn(fs, &files[..1], operation, slice)?);
            all.push(turn(fs, &files, operation, slice)?);
        }
        let scaling: Vec<f64> = one.iter().zip(&all).map(|(one, all)| all / one).collect();
        let scaling = ReportCell::from(median(&scaling)).unit("×");
        table.row([
            ("operation", "operation", name.into()),
            ("one_thread", "1 thread", median(&one).into()),
            ("several_threads", &several, median(&all).into()),
            ("scaling", "scaling", scaling),
        ]);
    }
    Ok(table)
}

/// Measures the operations per second of one thread for each of `files`, all at once.
fn turn(fs: &Arc<Fs>, files: &[Ino], operation: ScalingOperation, slice: Duration) -> Result<f64, FsError> {
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
    operation: ScalingOperation,
    bytes: &[u8],
    random: &mut SeededRng,
) -> Result<(), FsError> {
    let offset = random.below(FILE_PAGES) * PAGE_BYTES;
    match operation {
        ScalingOperation::Write(len) => write(fs, file, offset, &bytes[..len]),
        ScalingOperation::Read(len) => wait(|done| fs.read(file, offset, len, done)).map(drop),
        ScalingOperation::Attributes => fs.attributes(file).map(drop),
    }
}

//! `weir-bench interference`: latency of small writes while another client makes large operations.
//!
//! The writes wait for the locks of file system and cache, and for a processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cache::CacheSettings;
use clap::Args;
use device::SeededRng;
use fs::{Fs, FsError, Ino, SetAttributes};

use super::error::BenchError;
use super::in_process::{lay_out, wait, with_fs, write};
use super::quantile::quantile;
use super::report::{BenchReport, ReportTable};
use super::workload::PAGE_BYTES;

const FILE_PAGES: u64 = 2048;
const LARGE_BYTES: usize = 1 << 20;

/// The load of the other client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NeighbourLoad {
    Nothing,
    Reads,
    Writes,
    Cuts,
}

const NEIGHBOUR_LOADS: [(&str, NeighbourLoad); 4] = [
    ("nothing", NeighbourLoad::Nothing),
    ("reads of 1 MiB", NeighbourLoad::Reads),
    ("writes of 1 MiB", NeighbourLoad::Writes),
    ("cuts off a file", NeighbourLoad::Cuts),
];

/// Options of `weir-bench interference`.
#[derive(Debug, Args)]
pub(super) struct InterferenceArgs {
    /// Size of the truncated file, in MiB, all in memory
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
    file: u64,
    /// Number of truncations; reads and writes are made 64 times as often
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &InterferenceArgs) -> Result<(), BenchError> {
    let mut report = BenchReport::new("interference");
    report.fact("file_mib", args.file);
    report.fact("rounds", args.rounds);
    report.line(format!(
        "writes of 512 B beside another client, which cuts off {} MiB in memory · {} rounds",
        args.file, args.rounds
    ));
    let settings = CacheSettings { memory_bytes_max: (args.file + 512) << 20, ..CacheSettings::default() };
    let table = with_fs(settings, |fs| measure(args, fs))?;
    report.table("rows", &table);
    report.print(args.json);
    Ok(())
}

/// Measures the small writes beside each load of the other client.
fn measure(args: &InterferenceArgs, fs: &Arc<Fs>) -> Result<ReportTable, FsError> {
    let (small, large) = (lay_out(fs, "small", FILE_PAGES)?, lay_out(fs, "large", FILE_PAGES)?);
    let mut table = ReportTable::default();
    for (name, load) in NEIGHBOUR_LOADS {
        let (measuring, over) = (AtomicBool::new(false), AtomicBool::new(false));
        let (seen, theirs) = std::thread::scope(|scope| {
            let writer = scope.spawn(|| write_small(fs, small, &measuring, &over));
            let theirs = run_neighbour(args, fs, large, load, &measuring);
            over.store(true, Ordering::Release);
            Ok::<_, FsError>((writer.join().expect("a client does not panic")?, theirs?))
        })?;
        let [middle, p999, slowest] = [0.5, 0.999, 1.0].map(|share| seen.quantile(share).into());
        let count = seen.0.len() as u64;
        table.row([
            ("others", "the other client", name.into()),
            ("writes", "writes", count.into()),
            ("median", "median us", middle),
            ("p999", "99.9 % us", p999),
            ("slowest", "slowest us", slowest),
            ("theirs", "its own median us", theirs.quantile(0.5).into()),
        ]);
    }
    Ok(table)
}

/// Latencies in microseconds.
#[derive(Default)]
struct WriteTimes(Vec<f64>);

impl WriteTimes {
    fn note_since(&mut self, begun: Instant) {
        self.0.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }

    fn quantile(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}

/// Writes 512 B at a time until `over`. Notes the latency of writes that were in flight while `measuring` was
/// set.
fn write_small(
    fs: &Arc<Fs>,
    file: Ino,
    measuring: &AtomicBool,
    over: &AtomicBool,
) -> Result<WriteTimes, FsError> {
    let (mut random, mut seen) = (SeededRng::new(1), WriteTimes::default());
    while !over.load(Ordering::Acquire) {
        let (begun, counted) = (Instant::now(), measuring.load(Ordering::Acquire));
        write(fs, file, random.below(FILE_PAGES) * PAGE_BYTES, &[7; 512])?;
        if counted || measuring.load(Ordering::Acquire) {
            seen.note_since(begun);
        }
    }
    Ok(seen)
}

/// Runs the other client's load and times each operation.
fn run_neighbour(
    args: &InterferenceArgs,
    fs: &Arc<Fs>,
    file: Ino,
    company: NeighbourLoad,
    measuring: &AtomicBool,
) -> Result<WriteTimes, FsError> {
    let (mut took, bytes) = (WriteTimes::default(), vec![3; LARGE_BYTES]);
    let pieces = FILE_PAGES * PAGE_BYTES / LARGE_BYTES as u64;
    let count = u64::from(args.rounds) * if company == NeighbourLoad::Cuts { 1 } else { 64 };
    for number in 0..count {
        let offset = number % pieces * LARGE_BYTES as u64;
        if company == NeighbourLoad::Cuts {
            fill(fs, file, args.file << 20)?;
        }
        measuring.store(true, Ordering::Release);
        let begun = Instant::now();
        match company {
            NeighbourLoad::Nothing => std::thread::sleep(std::time::Duration::from_millis(1)),
            NeighbourLoad::Reads => drop(wait(|done| fs.read(file, offset, LARGE_BYTES, done))?),
            NeighbourLoad::Writes => write(fs, file, offset, &bytes)?,
            NeighbourLoad::Cuts => set_size(fs, file, 0)?,
        }
        took.note_since(begun);
        measuring.store(false, Ordering::Release);
    }
    Ok(took)
}

/// Makes a file of holes whose pages are in memory.
fn fill(fs: &Arc<Fs>, file: Ino, bytes: u64) -> Result<(), FsError> {
    set_size(fs, file, bytes)?;
    (0..bytes)
        .step_by(LARGE_BYTES)
        .try_for_each(|offset| wait(|done| fs.read(file, offset, LARGE_BYTES, done)).map(drop))
}

fn set_size(fs: &Arc<Fs>, file: Ino, size: u64) -> Result<(), FsError> {
    let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
    wait(|done| fs.set_attributes(file, set, done)).map(drop)
}

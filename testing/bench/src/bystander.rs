//! `weir-bench bystander`: how long small writes wait while another client does something large. What they wait for are the
//! locks of file system and cache, and a processor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use cache::CacheSettings;
use clap::Args;
use device::SeededRng;
use fs::{Fs, FsError, Ino, SetAttributes};
use serde::Serialize;

use super::error::BenchError;
use super::in_process::{lay_out, wait, with_fs, write};
use super::quantile::quantile;
use super::workload::PAGE_BYTES;

const FILE_PAGES: u64 = 2048;
const LARGE_BYTES: usize = 1 << 20;

/// What the others do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Company {
    Nothing,
    Reads,
    Writes,
    Cuts,
}

const COMPANY: [(&str, Company); 4] = [
    ("nothing", Company::Nothing),
    ("reads of 1 MiB", Company::Reads),
    ("writes of 1 MiB", Company::Writes),
    ("cuts off a file", Company::Cuts),
];

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct BystanderArgs {
    /// MiB in memory of the file that is cut off
    #[arg(long, value_name = "MIB", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=4096))]
    file: u64,
    /// How often each of the others' operations is done: as many cuts, 64 times as many reads and writes
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// How long writes of 512 B took while the others were at work, in microseconds.
#[derive(Debug, Serialize)]
struct Row {
    others: &'static str,
    writes: usize,
    median: f64,
    p999: f64,
    slowest: f64,
    /// The others' median.
    theirs: f64,
}

#[derive(Debug, Serialize)]
struct Report {
    benchmark: &'static str,
    version: &'static str,
    file_mib: u64,
    rounds: u16,
    rows: Vec<Row>,
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &BystanderArgs) -> Result<(), BenchError> {
    let settings = CacheSettings { memory_bytes_max: (args.file + 512) << 20, ..CacheSettings::default() };
    let rows = with_fs(settings, |fs| {
        let files = [lay_out(fs, "small", FILE_PAGES)?, lay_out(fs, "large", FILE_PAGES)?];
        COMPANY.iter().map(|&(name, company)| row(args, fs, files, name, company)).collect()
    })?;
    let version = env!("CARGO_PKG_VERSION");
    let report = Report { benchmark: "bystander", version, file_mib: args.file, rounds: args.rounds, rows };
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report).expect("names and numbers")),
        false => print(&report),
    }
    Ok(())
}

fn row(
    args: &BystanderArgs,
    fs: &Arc<Fs>,
    [small, large]: [Ino; 2],
    name: &'static str,
    company: Company,
) -> Result<Row, FsError> {
    let (measuring, over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let bystander = scope.spawn(|| stand_by(fs, small, &measuring, &over));
        let theirs = keep_company(args, fs, large, company, &measuring);
        over.store(true, Ordering::Release);
        let seen = bystander.join().expect("a client does not panic")?;
        let theirs = theirs?;
        Ok(Row {
            others: name,
            writes: seen.0.len(),
            median: seen.quantile(0.5),
            p999: seen.quantile(0.999),
            slowest: seen.quantile(1.0),
            theirs: theirs.quantile(0.5),
        })
    })
}

/// How long each took, in microseconds.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn note_since(&mut self, begun: Instant) {
        self.0.push(begun.elapsed().as_nanos() as f64 / 1000.0);
    }

    fn quantile(&self, share: f64) -> f64 {
        quantile(&self.0, share)
    }
}

/// Writes 512 B at a time, and notes how long each takes that was under way while somebody measured.
fn stand_by(fs: &Arc<Fs>, file: Ino, measuring: &AtomicBool, over: &AtomicBool) -> Result<Times, FsError> {
    let (mut random, mut seen) = (SeededRng::new(1), Times::default());
    while !over.load(Ordering::Acquire) {
        let (begun, counted) = (Instant::now(), measuring.load(Ordering::Acquire));
        write(fs, file, random.below(FILE_PAGES) * PAGE_BYTES, &[7; 512])?;
        if counted || measuring.load(Ordering::Acquire) {
            seen.note_since(begun);
        }
    }
    Ok(seen)
}

/// The others' work, and how long each piece of it takes.
fn keep_company(
    args: &BystanderArgs,
    fs: &Arc<Fs>,
    file: Ino,
    company: Company,
    measuring: &AtomicBool,
) -> Result<Times, FsError> {
    let (mut took, bytes) = (Times::default(), vec![3; LARGE_BYTES]);
    let pieces = FILE_PAGES * PAGE_BYTES / LARGE_BYTES as u64;
    let count = u64::from(args.rounds) * if company == Company::Cuts { 1 } else { 64 };
    for number in 0..count {
        let offset = number % pieces * LARGE_BYTES as u64;
        if company == Company::Cuts {
            fill(fs, file, args.file << 20)?;
        }
        measuring.store(true, Ordering::Release);
        let begun = Instant::now();
        match company {
            Company::Nothing => std::thread::sleep(std::time::Duration::from_millis(1)),
            Company::Reads => drop(wait(|done| fs.read(file, offset, LARGE_BYTES, done))?),
            Company::Writes => write(fs, file, offset, &bytes)?,
            Company::Cuts => set_size(fs, file, 0)?,
        }
        took.note_since(begun);
        measuring.store(false, Ordering::Release);
    }
    Ok(took)
}

/// Makes a file of holes that are pages in memory.
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

fn print(report: &Report) {
    println!(
        "weir {} · writes of 512 B beside another client, which cuts off {} MiB in memory · {} rounds",
        report.version, report.file_mib, report.rounds
    );
    println!(
        "{:<16} {:>9} {:>11} {:>11} {:>11} {:>13}",
        "others do", "writes", "median us", "99.9% us", "slowest us", "theirs, us"
    );
    for row in &report.rows {
        println!(
            "{:<16} {:>9} {:>11.1} {:>11.1} {:>11.1} {:>13.1}",
            row.others, row.writes, row.median, row.p999, row.slowest, row.theirs
        );
    }
}

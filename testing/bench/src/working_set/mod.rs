//! `weir-bench working-set`: how much a program's own code slows down by the file operations between its turns.
//!
//! A walk runs as many bytes of its own code as it touches of its own data. Between two walks is an operation of the
//! library, the same system call on tmpfs, or nothing. Only the walks are timed: what they lose to an operation is the
//! lines that it took from the processor's caches.

mod walked_code;

use std::hint::black_box;
use std::io;
use std::time::{Duration, Instant};

use clap::Args;

use super::dense::{DenseBed, DenseOperation};
use super::error::BenchError;
use super::quantile::{RoundSpread, median};
use super::report::{BenchReport, ReportCell, ReportTable};
use walked_code::{BLOCK_BYTES, BLOCKS};

/// Rows of `weir-bench dense` that are put between walks.
const OPERATIONS: [&str; 5] =
    ["fstat", "stat of a path of four names", "read 512 B", "overwrite 512 B", "create, close and unlink"];
/// Sizes in KiB.
const SIZES: [usize; 9] = [4, 8, 16, 32, 64, 128, 256, 512, 1024];
/// The size, in KiB, at which the loss is largest where the first-level caches have 32 KiB.
const PEAK_KIB: usize = 32;
/// Share of the loss by tmpfs that weir may cause at [`PEAK_KIB`]; 1 at other sizes.
const PEAK_SHARE: f64 = 0.5;
/// Bytes of a cache line.
const LINE_BYTES: usize = 64;
/// Far from a neighbour, so that no prefetcher guesses the next line; odd, so that each line is touched.
const LINE_STEP: usize = 37;

/// Options of `weir-bench working-set`.
#[derive(Debug, Args)]
pub(super) struct WorkingSetArgs {
    /// Rounds, with a turn of nothing, of weir and of tmpfs
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Walks of one turn
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    walks: u32,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &WorkingSetArgs) -> Result<(), BenchError> {
    let bed = DenseBed::set_up()?;
    let mut report = BenchReport::new("working-set");
    report.fact("rounds", args.rounds);
    report.fact("walks", args.walks);
    report.line(format!(
        "nanoseconds of a walk over as much code as data, and how many times as long it takes after an operation; medians \
         of {} rounds of {} walks",
        args.rounds, args.walks
    ));
    let table =
        measure(args, &bed).map_err(|error| BenchError::io("cannot measure in", bed.root(), error))?;
    report.table("rows", &table);
    report.line(format!(
        "target: after weir a walk loses at most as much time as after tmpfs, and at {PEAK_KIB} KiB at most half as much"
    ));
    report.print(args.json);
    bed.close()
}

fn measure(args: &WorkingSetArgs, bed: &DenseBed) -> io::Result<ReportTable> {
    let mut table = ReportTable::default();
    let clock_ns = clock_ns(args.walks);
    let rows = bed.rows()?;
    for mut row in rows.into_iter().filter(|row| OPERATIONS.contains(&row.name)) {
        for kib in SIZES {
            eprintln!("working-set: {}, {kib} KiB", row.name);
            let mut memory = WalkedMemory::new(kib);
            let (mut alone, mut weir, mut tmpfs) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..args.rounds {
                alone.push(turn(&mut memory, &mut |_| Ok(()), args.walks)? - clock_ns);
                weir.push(turn(&mut memory, &mut row.weir, args.walks)? - clock_ns);
                tmpfs.push(turn(&mut memory, &mut row.tmpfs, args.walks)? - clock_ns);
            }
            let slow_down = |after: &[f64]| {
                let ratios: Vec<f64> = after.iter().zip(&alone).map(|(after, alone)| after / alone).collect();
                RoundSpread::of(&ratios)
            };
            let (by_weir, by_tmpfs) = (slow_down(&weir), slow_down(&tmpfs));
            let allowed = if kib == PEAK_KIB { PEAK_SHARE } else { 1.0 };
            let met = by_weir.median - 1.0 <= allowed * (by_tmpfs.median - 1.0);
            table.row([
                ("operation", "operation", row.name.into()),
                ("kib", "KiB", (kib as u64).into()),
                ("alone_ns", "alone ns", median(&alone).into()),
                ("weir", "after weir (quartiles)", ReportCell::from(by_weir)),
                ("tmpfs", "after tmpfs (quartiles)", ReportCell::from(by_tmpfs)),
                ("met", "verdict", ReportCell::verdict(met)),
            ]);
        }
    }
    Ok(table)
}

/// Nanoseconds of a walk; `between` runs before each, untimed.
fn turn(memory: &mut WalkedMemory, between: &mut DenseOperation<'_>, walks: u32) -> io::Result<f64> {
    let mut walked = Duration::ZERO;
    for number in 0..u64::from(walks) {
        between(number)?;
        let begun = Instant::now();
        memory.walk();
        walked += begun.elapsed();
    }
    Ok(walked.as_nanos() as f64 / f64::from(walks))
}

/// Nanoseconds that two looks at the clock take, which are in each walk's time.
fn clock_ns(walks: u32) -> f64 {
    let mut looked = Duration::ZERO;
    for _ in 0..walks {
        let begun = Instant::now();
        looked += begun.elapsed();
    }
    looked.as_nanos() as f64 / f64::from(walks)
}

/// Data and code of one size.
struct WalkedMemory {
    /// One word of each line is touched.
    lines: Vec<[u64; LINE_BYTES / 8]>,
    blocks: usize,
    value: u64,
}

impl WalkedMemory {
    fn new(kib: usize) -> WalkedMemory {
        let lines = kib * 1024 / LINE_BYTES;
        WalkedMemory { lines: vec![[1; LINE_BYTES / 8]; lines], blocks: kib * 1024 / BLOCK_BYTES, value: 1 }
    }

    /// Runs each block of code, and touches as many lines of data after each.
    fn walk(&mut self) {
        let count = self.lines.len();
        let mut at = 0;
        for number in 0..self.blocks {
            self.value = BLOCKS[number / BLOCKS[0].len()][number % BLOCKS[0].len()](self.value);
            for _ in 0..BLOCK_BYTES / LINE_BYTES {
                at = (at + LINE_STEP) % count;
                self.lines[at][0] ^= self.value;
            }
        }
        black_box(&self.lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_touches_every_line() {
        let mut memory = WalkedMemory::new(8);
        memory.walk();
        assert_eq!(memory.lines.len(), 128);
        assert!(memory.lines.iter().all(|line| line[0] != 1));
    }
}

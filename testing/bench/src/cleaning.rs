//! `weir-bench cleaning`: cost of cleaning when a nearly full store is overwritten, in one process, without
//! the kernel.
//!
//! The report compares the store's writes with those of a log that is cleaned oldest first. The report also
//! has the latency of the slowest write.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cache::{CacheCounters as Cached, CacheSettings};
use clap::{Args, ValueEnum};
use device::{BLOCK_BYTES, SeededRng};
use fs::{CallerCredentials, FileKind, FsError, Ino};
use host::{DeviceCall, IoCounters};
use serde::Serialize;
use store::{Store, StoreCounters};

use super::cleanup;
use super::error::BenchError;
use super::in_process::{InProcessStack, wait, with_stack, write};
use super::program::run;
use super::quantile::quantile;
use super::report::{BenchReport, ReportCell, ReportTable};
use super::slow_device::work_directory;
use super::system::weir_on;

const PAGE_BYTES: u64 = BLOCK_BYTES as u64;
const BUFFER_BYTES: u64 = 64 << 20;
/// Blocks that the store reserves for a dirty page of which it knows nothing.
const BLOCKS_RESERVED_PER_PAGE: u64 = 14;
/// How long a write is retried while the store is full.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of `weir-bench cleaning`.
#[derive(Debug, Args)]
pub(super) struct CleaningArgs {
    /// Directory for the store and the buffer [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    on: Option<PathBuf>,
    /// Size of the store, in MiB
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u64).range(64..=1_048_576))]
    size: u64,
    /// Fill level of the store before the overwrites, in percent of its size
    #[arg(long, value_delimiter = ',', default_values_t = [60, 80, 90], value_parser = clap::value_parser!(u64).range(1..=100))]
    full: Vec<u64>,
    /// Choice of pages: `uniform` takes all equally often, `skewed` makes nine of ten writes to a tenth of
    /// the pages
    #[arg(long, value_delimiter = ',', value_enum, default_values_t = [OverwritePattern::Uniform, OverwritePattern::Skewed])]
    load: Vec<OverwritePattern>,
    /// Amount of overwrites, in sizes of the store
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=1000))]
    times: u64,
    /// Size of the store's segments, in KiB [default: a 256th of the store]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1024..=131_072))]
    segment: Option<u64>,
    /// Limit of dirty pages, in MiB: each reserves six blocks until it is stored
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    dirty: u64,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Which pages are overwritten.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OverwritePattern {
    Uniform,
    /// Nine of ten writes go to a tenth of the pages.
    Skewed,
}

impl OverwritePattern {
    fn page(self, random: &mut SeededRng, pages: u64) -> u64 {
        match self {
            OverwritePattern::Skewed if !random.once_in(10) => random.below(pages / 10 + 1),
            _ => random.below(pages),
        }
    }
}

/// One load on one store.
#[derive(Debug)]
struct CleaningFigures {
    /// The level reached: below the asked one if the store keeps more space back than the rest.
    full_percent: f64,
    /// Size of one segment.
    segment_bytes: u64,
    writes: u64,
    seconds: f64,
    /// Pages written back: fewer than `writes`, because a page may be written to again before its write-back.
    pages_stored: u64,
    /// Blocks that the store wrote for each page of write-back: the page itself, and pages that the cleaner
    /// moved.
    data_per_page: f64,
    /// Also log entries, nodes, tables and roots.
    blocks_per_page: f64,
    /// `data_per_page` for uniform overwrites if segments were cleaned oldest first, by a formula.
    oldest_first: f64,
    waits: WriteWaits,
    /// The most segments that the cleaner moved before one write was admitted. Includes the writes that
    /// filled the store.
    moved_until_let_in: f64,
}

/// Activity of store and cleaner while one write was unanswered. The write need not have waited for any of
/// it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct CleaningWait {
    /// Until the write was answered. In `slowest`, until its thread ran again.
    ms: f64,
    /// Data that the cleaner moved, in segments.
    segments_moved: f64,
    /// Pages written to the store, and below, checkpoints made.
    pages_stored: u64,
    checkpoints: u64,
    /// The longest call to either disk that ended.
    disk_ms: f64,
}

impl CleaningWait {
    /// From `before` until now.
    fn until_now(stack: &WatchedStore, before: &StoreCounters, asked: Instant) -> CleaningWait {
        let now = stack.store.counters();
        let moved = now.pages_cleaned - before.pages_cleaned;
        let calls = stack.disks.iter().flat_map(|disk| DeviceCall::ALL.map(|call| disk.max_latency.of(call)));
        CleaningWait {
            ms: asked.elapsed().as_secs_f64() * 1000.0,
            segments_moved: moved as f64 / stack.store.segment_blocks() as f64,
            pages_stored: now.pages_written - before.pages_written,
            checkpoints: now.checkpoints - before.checkpoints,
            disk_ms: calls.max().unwrap_or_default().as_secs_f64() * 1000.0,
        }
    }
}

impl fmt::Display for CleaningWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CleaningWait { ms, segments_moved, pages_stored, checkpoints, disk_ms } = self;
        write!(
            f,
            "{ms:.1} ms, in which {segments_moved:.2} segments were moved, {pages_stored} pages were stored, there were \
             {checkpoints} checkpoints, and the longest call to a disk took {disk_ms:.1} ms"
        )
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CleaningArgs) -> Result<(), BenchError> {
    cleanup::install()?;
    let mut table = ReportTable::default();
    let mut report = BenchReport::new("cleaning");
    report.fact("store_bytes", args.size << 20);
    report.fact("times", args.times);
    report.line(format!(
        "a store of {} MiB, overwritten {} times its size by one thread in pages of 4 KiB; blocks written for each page that was \
         written back",
        args.size, args.times
    ));
    let mut waits = Vec::new();
    for &percent in &args.full {
        for &load in &args.load {
            let (root, _files) = work_directory(args.on.as_deref())?;
            let name = format!("{load:?}").to_lowercase();
            eprintln!("{name} overwrites, {percent} % full");
            let found = measure(args, &root.join("store"), load, percent)?;
            let micros = |share| quantile(&found.waits.micros, share).into();
            let WriteWaits { slowest, most_moved, refused, .. } = &found.waits;
            waits.push(format!("{name} {percent} %: the slowest write took {slowest}"));
            waits.push(format!("{name} {percent} %: the one while which most was moved took {most_moved}"));
            table.row([
                ("load", "load", name.into()),
                ("asked_percent", "asked", ReportCell::from(percent).unit(" %")),
                ("full_percent", "full", ReportCell::from(found.full_percent).unit(" %")),
                ("segment_bytes", "", found.segment_bytes.into()),
                ("writes", "", found.writes.into()),
                ("seconds", "", found.seconds.into()),
                ("pages_stored", "", found.pages_stored.into()),
                ("", "writes/s", (found.writes as f64 / found.seconds).into()),
                ("written.data", "data", found.data_per_page.into()),
                ("oldest_first", "(oldest first)", found.oldest_first.into()),
                ("written.all", "all", found.blocks_per_page.into()),
                ("micros.median", "median us", micros(0.5)),
                ("micros.p99", "99 % us", micros(0.99)),
                ("micros.p9999", "99.99 % us", micros(0.9999)),
                ("", "slowest ms", slowest.ms.into()),
                ("moved_until_let_in", "let in", found.moved_until_let_in.into()),
                ("", "answered", most_moved.segments_moved.into()),
                ("refused", "refused", (*refused).into()),
                ("slowest", "", ReportCell::json(slowest)),
                ("most_moved", "", ReportCell::json(most_moved)),
            ]);
        }
    }
    report.table("rows", &table);
    report.line(
        "full: the store keeps the rest for checkpoints, cleaning and deletions, for what dirty pages reserve, and for a round of \
         cleaning",
    );
    report.line(
        "(oldest first): the same data of uniform overwrites in a log that is cleaned oldest first, by a formula",
    );
    report.line(
        "let in, answered: the most segments that the cleaner moved until one write was let in, and until one was answered, whether \
         or not its writer had a processor meanwhile",
    );
    waits.iter().for_each(|line| report.line(line));
    report.print(args.json);
    Ok(())
}

fn measure(
    args: &CleaningArgs,
    store: &Path,
    load: OverwritePattern,
    percent: u64,
) -> Result<CleaningFigures, BenchError> {
    let (size, buffer) = (format!("--size={}MiB", args.size), format!("--buffer-size={BUFFER_BYTES}"));
    let segment = args.segment.map(|kib| format!("--segment-size={kib}KiB"));
    run(weir_on(store, "format").arg(store).args([size, buffer]).args(segment))?;
    let settings = CacheSettings { dirty_bytes_max: args.dirty << 20, ..CacheSettings::default() };
    with_stack(store, settings, |stack| overwrite(args, stack, load, percent))
}

/// Fills the store, then overwrites it.
fn overwrite(
    args: &CleaningArgs,
    stack: &InProcessStack,
    load: OverwritePattern,
    percent: u64,
) -> Result<CleaningFigures, FsError> {
    let total = stack.layers.store.space().now().total;
    let (file, pages) = fill(stack, total * percent / 100)?;
    wait(|done| stack.fs.sync(done))?;
    let (before, stored) = (stack.layers.store.counters(), stack.layers.cache.status().counters.pages_stored);
    let (writes, begun) = (args.times * total, Instant::now());
    let waits = write_all(stack, file, writes, load, pages)?;
    let seconds = begun.elapsed().as_secs_f64();
    let Cached { pages_stored, cleaned_while_parked: cleaned, .. } = stack.layers.cache.status().counters;
    let pages_stored = (pages_stored - stored).max(1);
    let after = stack.layers.store.counters();
    let of = |count: fn(&StoreCounters) -> u64| (count(&after) - count(&before)) as f64 / pages_stored as f64;
    Ok(CleaningFigures {
        full_percent: pages as f64 / total as f64 * 100.0,
        segment_bytes: stack.layers.store.segment_blocks() * PAGE_BYTES,
        writes,
        seconds,
        pages_stored,
        data_per_page: 1.0 + of(|now| now.pages_cleaned),
        blocks_per_page: of(|now| now.blocks_written),
        oldest_first: oldest_first(live_share(stack, &before, &after, pages)),
        waits,
        moved_until_let_in: cleaned as f64 / stack.layers.store.segment_blocks() as f64,
    })
}

/// Latencies of all writes, and details of two.
#[derive(Debug, Default)]
struct WriteWaits {
    micros: Vec<f64>,
    slowest: CleaningWait,
    /// The write until whose answer the cleaner moved most. Includes moves while the writer's thread had no
    /// processor.
    most_moved: CleaningWait,
    /// Writes refused because the store was full. Each was retried.
    refused: u64,
}

/// Counters that are read when a write is answered.
#[derive(Clone)]
struct WatchedStore {
    store: Arc<Store>,
    disks: [Arc<IoCounters>; 2],
}

fn write_all(
    stack: &InProcessStack,
    file: Ino,
    writes: u64,
    load: OverwritePattern,
    pages: u64,
) -> Result<WriteWaits, FsError> {
    let (mut random, page) = (SeededRng::new(7), vec![0x5a; PAGE_BYTES as usize]);
    let mut waits = WriteWaits::default();
    let disks = &stack.layers.disks;
    let disks = [disks.store.clone(), disks.buffer.clone()];
    let watched = WatchedStore { store: stack.layers.store.clone(), disks };
    for _ in 0..writes {
        let number = load.page(&mut random, pages);
        watched.disks.iter().for_each(|disk| disk.max_latency.reset());
        let (before, asked) = (watched.store.counters(), Instant::now());
        let waited = loop {
            match write_and_look(stack, &watched, (before, asked), (file, number), &page) {
                Err(FsError::NoSpace) if asked.elapsed() < PATIENCE => waits.refused += 1,
                result => break result?,
            }
            sleep(Duration::from_millis(1));
        };
        let took = asked.elapsed();
        waits.micros.push(took.as_nanos() as f64 / 1000.0);
        let ms = took.as_secs_f64() * 1000.0;
        if ms > waits.slowest.ms {
            let wait = waited.unwrap_or_else(|| CleaningWait::until_now(&watched, &before, asked));
            waits.slowest = CleaningWait { ms, ..wait };
        }
        if let Some(wait) = waited.filter(|wait| wait.segments_moved > waits.most_moved.segments_moved) {
            waits.most_moved = wait;
        }
    }
    Ok(waits)
}

/// Writes a page. If the write had to wait, returns the activity until the answer.
///
/// The answer may come long before this thread runs again.
fn write_and_look(
    stack: &InProcessStack,
    watched: &WatchedStore,
    (before, asked): (StoreCounters, Instant),
    (file, number): (Ino, u64),
    page: &[u8],
) -> Result<Option<CleaningWait>, FsError> {
    let offset = number * PAGE_BYTES;
    if let Some(written) = stack.fs.try_write(file, offset, page) {
        return written.map(|()| None);
    }
    let watched = watched.clone();
    wait(|done| {
        let look = move |written: Result<(), FsError>| {
            done(written.map(|()| Some(CleaningWait::until_now(&watched, &before, asked))));
        };
        stack.fs.write(file, offset, page.to_vec(), Box::new(look));
    })
}

/// Makes a file of `pages` pages, or fewer, to leave space for dirty pages and a round of cleaning.
fn fill(stack: &InProcessStack, pages: u64) -> Result<(Ino, u64), FsError> {
    let (store, caller) = (&stack.layers.store, CallerCredentials { uid: 0, gid: 0, umask: 0 });
    let file = wait(|done| stack.fs.make(caller, Ino::ROOT, b"file", FileKind::File, 0o600, done))?.ino;
    let segments = store.space().now().total / store.segment_blocks();
    let dirty = stack.layers.cache.settings().dirty_bytes_max / PAGE_BYTES;
    // A round of cleaning, and the writes until its segments are free.
    let round = (segments / 64).clamp(4, 256) + 4;
    let kept = BLOCKS_RESERVED_PER_PAGE * dirty + round * store.segment_blocks();
    let page = vec![1; PAGE_BYTES as usize];
    for number in 0..pages {
        if store.space().now().available() < kept {
            return Ok((file, number));
        }
        match write(&stack.fs, file, number * PAGE_BYTES, &page) {
            Ok(()) => {}
            Err(FsError::NoSpace) => return Ok((file, number)),
            Err(error) => return Err(error),
        }
    }
    Ok((file, pages))
}

/// Share of the blocks for data that hold live pages.
///
/// Log entries and segment summaries take some of these blocks, and the store keeps some segments free.
fn live_share(stack: &InProcessStack, before: &StoreCounters, after: &StoreCounters, pages: u64) -> f64 {
    /// Each node is stored twice.
    const COPIES: u64 = 2;
    let space = stack.layers.store.space().now();
    // Until compaction, up to half as many nodes are dead as are live.
    let blocks_for_data = space.total - space.free - space.nodes * 3 / 2;
    let count = |counter: fn(&StoreCounters) -> u64| counter(after) - counter(before);
    let data = count(|now| now.pages_written + now.pages_cleaned);
    let written = count(|now| now.blocks_written - COPIES * now.nodes_written);
    pages as f64 / blocks_for_data as f64 * written as f64 / data.max(1) as f64
}

/// Blocks of data that a log writes for each page of uniform overwrites, if cleaned oldest first.
///
/// A segment is cleaned when all other segments have been written. By then a page is still live with the
/// probability u = exp(-(1 - u) / `live_share`), so cleaning moves the share u of all writes.
fn oldest_first(live_share: f64) -> f64 {
    let mut still_live = 0.0_f64;
    for _ in 0..1000 {
        still_live = (-(1.0 - still_live) / live_share).exp();
    }
    1.0 / (1.0 - still_live)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_first_moves_nothing_if_little_is_live_and_more_the_fuller_it_is() {
        assert!((oldest_first(0.05) - 1.0).abs() < 1e-6);
        // u = 0.5 solves the equation for 0.5 / ln 2.
        assert!((oldest_first(0.5 / f64::ln(2.0)) - 2.0).abs() < 1e-6);
        assert!(oldest_first(0.9) > 4.0);
    }
}

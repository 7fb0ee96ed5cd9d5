//! `weir-bench counters`: store I/O caused by partial writes to un-cached pages, and by syncs.
//!
//! The benchmark reads the counters of `weir status` and measures no times.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use weir_status::CountersReport;

use super::cleanup::{self, CleanupGuard};
use super::error::BenchError;
use super::program::run;
use super::report::BenchReport;
use super::slow_device::work_directory;
use super::system::{weir_on, weir_status, weir_unmount_on_drop};
use super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out, sync};

/// A limit that no run reaches.
const FOR_EVER: Duration = Duration::from_secs(24 * 3600);
/// The number of last writes that are synced one by one.
const SYNCED_WRITES: u64 = 100;

/// Options of `weir-bench counters`.
#[derive(Debug, Args)]
pub(super) struct CountersArgs {
    /// Number of partial writes
    #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(1..))]
    writes: u64,
    /// Number of pages, all un-cached at first; each is written once before any is written twice
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pages: u64,
    /// Bytes of each write
    #[arg(long, default_value_t = 64, value_parser = part_of_a_page)]
    bytes: u64,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
    /// Seed of the random order
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CountersArgs) -> Result<(), BenchError> {
    cleanup::install()?;
    count(args)?.print(args.json);
    Ok(())
}

fn count(args: &CountersArgs) -> Result<BenchReport, BenchError> {
    let (root, _files) = work_directory(None)?;
    let (store, mount_point) = (root.join("store"), root.join("mount"));
    fs::create_dir(&mount_point).map_err(|error| BenchError::io("cannot create", &mount_point, error))?;

    // A record has its bytes, a header and the file system's notes: half a KiB is ample. With this buffer,
    // and fewer dirty pages than half the limit, no write-back is needed while we count.
    let buffer_bytes = (args.writes * (args.bytes + 512) * 2).next_multiple_of(1 << 20).max(64 << 20);
    let file_bytes = args.pages * PAGE_BYTES;
    let memory_bytes = (file_bytes * 4).max(256 << 20);
    // The file is sparse. Until its write is acknowledged, each page reserves several blocks for the map.
    let store_bytes = file_bytes * 16 + (256 << 20);
    run(weir_on(&store, "format")
        .arg(&store)
        .args([format!("--size={store_bytes}"), format!("--buffer-size={buffer_bytes}")]))?;
    let settings =
        vec!["--fetch=lazy".to_owned(), format!("--memory={memory_bytes}"), "--dirty-age=86400".to_owned()];

    let file = mount_point.join("file");
    let mounted = mount(&store, &mount_point, &settings)?;
    lay_out(&file, args.pages)?;
    drop(mounted);

    let mounted = mount(&store, &mount_point, &settings)?;
    let before = weir_status(&mount_point)?.counters;
    write_all(&file, args)?;
    let after = weir_status(&mount_point)?.counters;
    drop(mounted);
    // Mounting reads the file system's metadata, so count from here on.
    let mut report = BenchReport::new("counters");
    let settings = format!("{}, buffer {} MiB", settings.join(" "), buffer_bytes >> 20);
    report.line(&settings);
    report.line(format!("{} writes of {} B to {} un-cached pages", args.writes, args.bytes, args.pages));
    report.fact("settings", settings);
    report.fact("writes", args.writes);
    report.fact("bytes", args.bytes);
    report.fact("pages", args.pages);
    let since = |of: fn(&CountersReport) -> u64| (of(&after) - of(&before)).into();
    let absent = since(|now| now.writes_to_absent_pages);
    let for_writes = since(|now| now.store_reads.for_writes);
    let for_write_back = since(|now| now.store_reads.for_write_back);
    let for_reads = since(|now| now.store_reads.for_reads);
    let for_syncs = since(|now| now.store_io_for_syncs);
    report.figures([
        ("syncs", "syncs", since(|now| now.syncs)),
        ("writes_to_absent_pages", "writes to pages that were not in memory", absent),
        ("fetched_for_writes", "store reads that writers waited for", for_writes),
        ("fetched_for_write_back", "store reads to write pages back", for_write_back),
        ("fetched_for_reads", "store reads for readers", for_reads),
        ("fetched_ahead", "store reads ahead of readers", since(|now| now.store_reads.ahead)),
        ("store_io_for_syncs", "store reads, writes and flushes for syncs", for_syncs),
    ]);
    Ok(report)
}

fn part_of_a_page(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = bytes.is_power_of_two() && bytes < PAGE_BYTES;
    if fits { Ok(bytes) } else { Err(format!("write a power of two below {PAGE_BYTES}")) }
}

/// Makes `args.writes` writes, with an fsync after each pass over the pages and after each of the last few
/// writes.
fn write_all(file: &Path, args: &CountersArgs) -> Result<(), BenchError> {
    let synced = SYNCED_WRITES.min(args.writes);
    let mut left = args.writes - synced;
    let mut seed = args.seed;
    while left > 0 {
        let done =
            PageOverwriter::open(file, args.pages, args.bytes, seed)?.run(left, FOR_EVER, SyncMode::Never)?;
        sync(file)?;
        left -= done.writes;
        seed += 1;
    }
    PageOverwriter::open(file, args.pages, args.bytes, seed)?
        .run(synced, FOR_EVER, SyncMode::EachWrite)
        .map(drop)
}

/// Mounts weir; dropping the result unmounts it.
pub(super) fn mount(
    store: &Path,
    mount_point: &Path,
    settings: &[String],
) -> Result<CleanupGuard, BenchError> {
    let mounted = weir_unmount_on_drop(mount_point);
    cleanup::uninterrupted(|| run(weir_on(store, "mount").arg(store).arg(mount_point).args(settings)))?;
    Ok(mounted)
}

//! `weir-bench start`: duration of a mount after kill -9, by parts, with many files and a buffer full of
//! small records.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use weir_status::{StartReport, StatusReport};

use device::{Block, BlockRead, Device};
use host::{DiskAccess, HostDisk};

use super::cleanup::{self, CleanupGuard};
use super::disk_counters::DiskCounters;
use super::error::BenchError;
use super::program::run;
use super::report::{BenchReport, ReportCell, ReportTable};
use super::slow_device::work_directory;
use super::system::{resident_bytes, weir, weir_on, weir_status, weir_unmount_on_drop};
use super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out};

/// Files in each directory.
const FILES_PER_DIRECTORY: u64 = 1000;
/// Writes between two checks of the buffer.
const WRITES_AT_ONCE: u64 = 10_000;
/// A buffer counts as full after this many checks in a row without growth.
const LOOKS_IN_VAIN: u32 = 8;
/// Size of each write.
const RECORD_BYTES: u64 = 512;

/// Reads in flight in the control measurement, and below, blocks of each.
const READS_AT_ONCE: u64 = 4;
const READ_BLOCKS: u64 = 256;

/// Options of `weir-bench start`.
#[derive(Debug, Args)]
pub(super) struct StartArgs {
    /// Directory for the store and the buffer [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    on: Option<PathBuf>,
    /// Number of empty files
    #[arg(long, default_value_t = 1_000_000)]
    files: u64,
    /// Size of the buffer, in MiB; it is filled to half, where write-back keeps pace with the writes
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(8..=65_536))]
    buffer: u64,
    /// Pages of the file that records of 512 B are written to, at random
    #[arg(long, default_value_t = 500_000, value_parser = clap::value_parser!(u64).range(1000..=10_000_000))]
    pages: u64,
    /// Number of kills and starts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: u32,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Figures of one start.
#[derive(Debug, Serialize)]
struct StartRun {
    /// Bytes of the buffer in use at the kill.
    buffer_used_bytes: u64,
    /// Dirty pages at the kill: the least number of records of small writes in the buffer.
    pages_not_stored: u64,
    /// Duration of `weir mount`.
    ready_ms: f64,
    /// Parts of the start, as the daemon reports them.
    parts: StartReport,
    /// The kernel's counters of the disk with both media; `None` if they are not on one disk.
    disk: Option<DiskCounters>,
    /// Resident memory of the daemon once it was ready.
    memory_bytes: u64,
    control: StartControl,
}

/// Control measurements: this machine's times for the least work of any start.
#[derive(Debug, Serialize)]
struct StartControl {
    /// Time to read as many bytes of the buffer as were in use, without processing them.
    read_ms: f64,
    /// The kernel's counters during that read.
    disk: Option<DiskCounters>,
    /// Time to touch, for the first time, as much memory as the daemon had.
    touch_ms: f64,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &StartArgs) -> Result<(), BenchError> {
    cleanup::install()?;
    let (root, _files) = work_directory(args.on.as_deref())?;
    let bench = StartBench { store: root.join("store"), mount_point: root.join("mount") };
    fs::create_dir(&bench.mount_point)
        .map_err(|error| BenchError::io("cannot create", &bench.mount_point, error))?;
    bench.prepare(args)?;
    let mut report = BenchReport::new("start");
    report.line(format!(
        "{} files, a buffer of {} MiB, records of {RECORD_BYTES} B over {} pages",
        args.files, args.buffer, args.pages
    ));
    report.fact("files", args.files);
    report.fact("pages", args.pages);
    report.fact("buffer_bytes", args.buffer << 20);
    let mut runs = Vec::new();
    for number in 0..args.runs {
        let run = bench.start(args, u64::from(number))?;
        let used = run.buffer_used_bytes >> 20;
        report.line(format!(
            "\nkilled with {used} MiB in the buffer, {} pages not stored",
            run.pages_not_stored
        ));
        report.line(run.table());
        runs.push(run);
    }
    report.fact("runs", runs);
    report.print(args.json);
    Ok(())
}

struct StartBench {
    store: PathBuf,
    mount_point: PathBuf,
}

impl StartBench {
    /// Makes the store with its files, all stored.
    fn prepare(&self, args: &StartArgs) -> Result<(), BenchError> {
        let store_bytes =
            (args.pages * PAGE_BYTES * 16 + args.files * 2048 + (1 << 30)).next_multiple_of(1 << 20);
        run(weir_on(&self.store, "format")
            .arg(&self.store)
            .args([format!("--size={store_bytes}"), format!("--buffer-size={}MiB", args.buffer)]))?;
        let mounted = self.mount()?;
        eprintln!("making {} files", args.files);
        for directory in 0..args.files.div_ceil(FILES_PER_DIRECTORY) {
            let path = self.mount_point.join(format!("directory{directory}"));
            fs::create_dir(&path).map_err(|error| BenchError::io("cannot create", &path, error))?;
            let left = args.files - directory * FILES_PER_DIRECTORY;
            for file in 0..left.min(FILES_PER_DIRECTORY) {
                let path = path.join(format!("a-file-{file}"));
                File::create(&path).map_err(|error| BenchError::io("cannot create", &path, error))?;
            }
        }
        lay_out(&self.file(), args.pages)?;
        drop(mounted);
        Ok(())
    }

    fn file(&self) -> PathBuf {
        self.mount_point.join("file")
    }

    /// Mounts weir so that only a full buffer causes write-back.
    fn mount(&self) -> Result<CleanupGuard, BenchError> {
        let mounted = weir_unmount_on_drop(&self.mount_point);
        let settings = ["--memory=4GiB", "--dirty-age=86400"];
        run(weir_on(&self.store, "mount").arg(&self.store).arg(&self.mount_point).args(settings))?;
        Ok(mounted)
    }

    fn start(&self, args: &StartArgs, seed: u64) -> Result<StartRun, BenchError> {
        let mounted = self.mount()?;
        let status = self.fill(args, seed)?;
        let pid = Pid::from_raw(status.pid as i32).expect("a daemon has a number");
        kill_process(pid, Signal::KILL)
            .map_err(|errno| BenchError::io("cannot kill the daemon of", &self.mount_point, errno.into()))?;
        // Removes the dead mount.
        drop(mounted);
        let before = DiskCounters::below(&self.store);
        let begun = Instant::now();
        let mounted = self.mount()?;
        let ready_ms = millis(begun);
        let disk = self.disk_since(before);
        let now = weir_status(&self.mount_point)?;
        let memory_bytes = resident_bytes(now.pid).unwrap_or(0);
        drop(mounted);
        let buffer_used_bytes = status.buffer_log.bytes - status.buffer_log.free_bytes;
        let before = DiskCounters::below(&self.store);
        let read_ms = self.read_buffer(buffer_used_bytes)?;
        let control = StartControl { read_ms, disk: self.disk_since(before), touch_ms: touch(memory_bytes) };
        Ok(StartRun {
            buffer_used_bytes,
            pages_not_stored: status.dirty.pages,
            ready_ms,
            parts: now.start,
            disk,
            memory_bytes,
            control,
        })
    }

    fn disk_since(&self, before: Option<DiskCounters>) -> Option<DiskCounters> {
        Some(DiskCounters::below(&self.store)?.since(before?))
    }

    /// Reads `bytes` of the buffer as fast as its device allows.
    fn read_buffer(&self, bytes: u64) -> Result<f64, BenchError> {
        let path = self.store.join("buffer");
        let disk = HostDisk::open(&path, DiskAccess::Read).map_err(BenchError::opening(&path))?;
        let mut reads: Vec<BlockRead> =
            (0..READS_AT_ONCE).map(|_| BlockRead::new(Block(0), READ_BLOCKS as usize)).collect();
        let begun = Instant::now();
        let blocks = (bytes / PAGE_BYTES).min(disk.blocks());
        for at in (0..blocks).step_by((READS_AT_ONCE * READ_BLOCKS) as usize) {
            for (read, number) in reads.iter_mut().zip(0..) {
                read.at = Block((at + number * READ_BLOCKS).min(disk.blocks() - READ_BLOCKS));
            }
            disk.read_batch(&mut reads);
            reads.iter().try_for_each(|read| read.result.clone()).map_err(|error| {
                BenchError::io("cannot read", &path, std::io::Error::from_raw_os_error(error.errno))
            })?;
        }
        Ok(millis(begun))
    }

    /// Writes until the buffer is full, or write-back keeps pace. Returns weir's status then.
    fn fill(&self, args: &StartArgs, seed: u64) -> Result<StatusReport, BenchError> {
        let mut rounds = (seed << 32)..;
        let mut open = || {
            let seed = rounds.next().unwrap_or(seed);
            PageOverwriter::open(&self.file(), args.pages, RECORD_BYTES, seed)
        };
        let mut writer = open()?;
        let (mut least, mut in_vain) = (u64::MAX, 0);
        loop {
            let done = writer.run(WRITES_AT_ONCE, Duration::from_secs(3600), SyncMode::Never)?;
            if done.writes == 0 {
                // Each page was written once. Begin again.
                writer = open()?;
                continue;
            }
            run(weir("sync").arg(&self.mount_point))?;
            let now = weir_status(&self.mount_point)?;
            let free = now.buffer_log.free_bytes;
            // Space is freed when the log passes the end of the ring, so a single check proves nothing.
            in_vain = if free < least { 0 } else { in_vain + 1 };
            least = least.min(free);
            if free < now.buffer_log.bytes / 16 || in_vain == LOOKS_IN_VAIN {
                return Ok(now);
            }
        }
    }
}

impl StartRun {
    /// The figures beside their targets.
    fn table(&self) -> ReportTable {
        let StartRun { parts, control, .. } = self;
        let mib = |bytes: u64| bytes as f64 / 1048576.0;
        let megabytes = |bytes: u64| ReportCell::from(mib(bytes)).unit(" MiB");
        let millis = |ms: f64| ReportCell::from(ms).unit(" ms");
        let rate = |bytes: u64, ms: f64| ReportCell::from(mib(bytes) / ms * 1000.0).unit(" MiB/s");
        let mut table = ReportTable::default();
        let mut line = |figure: &str, value, target: &str| {
            table.row([("", "figure", figure.into()), ("", "value", value), ("", "target", target.into())]);
        };
        line("ready, from the command to its return", millis(self.ready_ms), "1000 ms");
        line("of it: the buffer's log", millis(parts.buffer_ms), "");
        line("of it: the store's tables and log", millis(parts.store_ms), "");
        line("of it: one of the media was being read", millis(parts.media_read_ms), "");
        line("of it: new roots", millis(parts.begin_ms), "");
        line("of it: the metadata of all files", millis(parts.metadata_ms), "");
        line("transactions replayed", parts.transactions.into(), "");
        line("reads of the store", parts.store_reads.into(), "60");
        line("times that the store was waited for", parts.store_waits.into(), "");
        line("bytes read from the store", megabytes(parts.store_bytes), "");
        let read = rate(parts.media_read_bytes, parts.media_read_ms);
        line("both media, read", read, "954 MiB/s (1 GB/s), or the control");
        let used = self.buffer_used_bytes;
        line("control: as much as was in the buffer, only read", rate(used, control.read_ms), "");
        if let (Some(disk), Some(control)) = (self.disk, control.disk) {
            let disk_rate = |disk: DiskCounters| rate(disk.read_bytes, disk.busy_ms as f64);
            line("the disk, by the kernel's account: busy", millis(disk.busy_ms as f64), "");
            line("the disk, by the kernel's account: read", disk_rate(disk), "");
            line("control: the same while only reading", disk_rate(control), "");
        }
        line("the buffer, read and applied", rate(used, parts.buffer_ms), "");
        line("memory when ready", megabytes(self.memory_bytes), "");
        line("control: touching as much memory", millis(control.touch_ms), "");
        table
    }
}

/// Milliseconds since then.
fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

/// Milliseconds in which one thread writes a byte to each page of `bytes` new memory.
fn touch(bytes: u64) -> f64 {
    let begun = Instant::now();
    let mut memory = vec![0_u8; bytes as usize];
    memory.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| *byte = 1);
    std::hint::black_box(&memory);
    millis(begun)
}

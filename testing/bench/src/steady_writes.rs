//! `weir-bench steady-writes`: small random overwrites for so long that write-back sets the pace, beside
//! ext4.
//!
//! Both file systems are on the same modelled device. Once a second the clean pages of their files leave the
//! kernel's cache, as if memory were short.

use std::fmt;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use rustix::fs::{Advice, fadvise};
use serde::Serialize;
use weir_status::StoreCountersReport;

use super::cleanup;
use super::error::BenchError;
use super::program::check_machine;
use super::quantile::{median, quantile};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::run_args::{RunArgs, RunSize};
use super::slow_device::{DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, MountedSystem, SystemKind, resident_bytes, weir_status};
use super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out};

const WRITE_BYTES: u64 = 512;

/// Options of `weir-bench steady-writes`.
#[derive(Debug, Args)]
pub(super) struct SteadyWritesArgs {
    #[command(flatten)]
    run: RunArgs,
    /// Size of the file, in MiB [default: 1024, or 16 with `small`]
    #[arg(long, value_name = "MIB")]
    file: Option<u64>,
    /// Size of the device, in MiB [default: three times the file]
    #[arg(long, value_name = "MIB")]
    device: Option<u64>,
    /// Fill the device with another file up to this share, in percent
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u64).range(1..=95))]
    full: Option<u64>,
    /// weir's memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128)]
    memory: u64,
    /// Share of this memory for deltas, in MiB [default: weir's own]
    #[arg(long, value_name = "MIB")]
    deltas: Option<u64>,
    /// Write to every page N times before weir is measured; ext4 is steady as soon as writers wait for it
    #[arg(long, value_name = "N", default_value_t = 0)]
    passes: u64,
    /// Read weir's memory and dirty data each second, and print the maxima.
    #[arg(long)]
    watch: bool,
    /// Measure weir only.
    #[arg(long)]
    alone: bool,
    /// Seconds that each system writes [default: 60, or 1 with `small`]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

/// Figures of one system on one device model.
#[derive(Debug)]
struct SteadyFigures {
    /// One value for each second.
    writes_per_s: Vec<f64>,
    /// Latencies in the second half, in milliseconds.
    took_ms: Vec<f64>,
    /// One sample a second with `--watch`.
    held: Vec<MemoryHeld>,
    /// Per write: bytes that the store wrote to its device, and below, pages that it read for write-back.
    store_bytes_written: Option<f64>,
    store_pages_read: Option<f64>,
}

/// Memory and dirty data of weir in one second.
#[derive(Debug, Clone, Copy, Default, Serialize)]
struct MemoryHeld {
    /// Seconds since the file was laid out.
    second: u64,
    dirty_mib: f64,
    deltas_mib: f64,
    dirty_age_s: f64,
    buffer_used_mib: f64,
    resident_mib: f64,
    /// The slowest write of that second.
    slowest_ms: f64,
}

impl MemoryHeld {
    fn most(all: &[MemoryHeld]) -> MemoryHeld {
        let most = |of: fn(&MemoryHeld) -> f64| all.iter().map(of).fold(0.0, f64::max);
        MemoryHeld {
            second: all.len() as u64,
            dirty_mib: most(|held| held.dirty_mib),
            deltas_mib: most(|held| held.deltas_mib),
            dirty_age_s: most(|held| held.dirty_age_s),
            buffer_used_mib: most(|held| held.buffer_used_mib),
            resident_mib: most(|held| held.resident_mib),
            slowest_ms: most(|held| held.slowest_ms),
        }
    }
}

impl fmt::Display for MemoryHeld {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryHeld { second, dirty_mib, deltas_mib, dirty_age_s, .. } = self;
        let MemoryHeld { buffer_used_mib, resident_mib, slowest_ms, .. } = self;
        write!(
            f,
            "at most, in {second} s: dirty {dirty_mib:.0} MiB, of that deltas {deltas_mib:.0} MiB, {dirty_age_s:.0} s old; \
             buffer {buffer_used_mib:.0} MiB; resident {resident_mib:.0} MiB; slowest write {slowest_ms:.0} ms"
        )
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &SteadyWritesArgs) -> Result<(), BenchError> {
    check_machine()?;
    cleanup::install()?;
    let (file, seconds) = match args.run.size {
        RunSize::Small => (args.file.unwrap_or(16), args.seconds.unwrap_or(1)),
        RunSize::Real => (args.file.unwrap_or(1024), args.seconds.unwrap_or(60)),
    };
    let (pages, seconds) = ((file << 20) / PAGE_BYTES, seconds.max(1));
    let (root, _files) = work_directory(None)?;
    let mut report = BenchReport::new("steady-writes");
    report.line(format!(
        "{WRITE_BYTES} B overwrites of a file of {file} MiB at random, {seconds} s, the second half of it"
    ));
    let mut table = ReportTable::default();
    let mut maxima = Vec::new();
    for &model in args.run.model.list() {
        let mut ext4 = f64::NAN;
        let bytes = args.device.map_or(3 * (file << 20).max(128 << 20), |device| device << 20);
        let design = DeviceSpec { device: model.device(), bytes, processors: None };
        let weir = SystemKind::Weir {
            fetch: FetchChoice::Lazy,
            buffer_in: root.clone(),
            buffer_bytes: 512 << 20,
            memory_bytes: Some(args.memory << 20),
            options: args.deltas.map(|deltas| format!("--deltas={}", deltas << 20)).into_iter().collect(),
        };
        for (name, kind) in [("ext4", SystemKind::Ext4), ("weir", weir)].into_iter().skip(args.alone.into()) {
            eprintln!("{}: {name}", model.name());
            let system = ComparedSystem::set_up(name, kind, &design, &root, pages)?;
            let mounted = system.mount()?;
            let beside = args.full.map_or(0, |full| (bytes / 100 * full).saturating_sub(file << 20));
            if beside > 0 {
                lay_out(&mounted.file.with_file_name("beside"), beside / PAGE_BYTES)?;
            }
            let passes = if name == "weir" { args.passes } else { 0 };
            let found = measure(name, &mounted, pages, (passes, seconds, args.watch))?;
            let steady = median(&found.writes_per_s[found.writes_per_s.len() / 2..]);
            if name == "ext4" {
                ext4 = steady;
            }
            table.row([
                ("model", "device", model.name().into()),
                ("system", "system", name.into()),
                ("writes_per_s", "", ReportCell::json(&found.writes_per_s)),
                ("steady_per_s", "writes/s", steady.into()),
                ("", "over ext4", (steady / ext4).into()),
                ("p999_ms", "99.9 % ms", quantile(&found.took_ms, 0.999).into()),
                ("slowest_ms", "slowest ms", quantile(&found.took_ms, 1.0).into()),
                ("store_bytes_written", "B written", found.store_bytes_written.into()),
                ("store_pages_read", "pages read", found.store_pages_read.into()),
                ("held", "", ReportCell::json(&found.held)),
            ]);
            if !found.held.is_empty() {
                maxima.push(format!("{}: {}", model.name(), MemoryHeld::most(&found.held)));
            }
        }
    }
    report.table("rows", &table);
    maxima.iter().for_each(|line| report.line(line));
    report.print(args.run.json);
    Ok(())
}

/// Writes to every page `passes` times, then for `seconds` seconds.
fn measure(
    system: &str,
    mounted: &MountedSystem,
    pages: u64,
    (passes, seconds, watch): (u64, u64, bool),
) -> Result<SteadyFigures, BenchError> {
    let path = &mounted.file;
    let cached =
        OpenOptions::new().read(true).open(path).map_err(|e| BenchError::io("cannot open", path, e))?;
    let mount = path.parent().unwrap_or(path);
    let counted = || -> Result<_, BenchError> {
        Ok(if system == "weir" { Some(weir_status(mount)?.counters.store) } else { None })
    };
    let (mut seed, mut took, mut rates, mut held) = (1, Vec::new(), Vec::new(), Vec::new());
    let mut load = PageOverwriter::open(path, pages, WRITE_BYTES, seed)?;
    let (mut before, mut writes) = (None, 0);
    let mut second = 0;
    while second < seconds {
        // The passes are not counted.
        let is_before = seed <= passes;
        if !is_before && second == seconds / 2 {
            (before, writes) = (counted()?, 0);
            took.clear();
        }
        let begun = Instant::now();
        let (mut done, mut slowest) = (0, Duration::ZERO);
        while begun.elapsed() < Duration::from_secs(1) {
            let one = load.run(1, Duration::from_secs(1), SyncMode::Never)?;
            if one.writes == 0 {
                seed += 1;
                load = PageOverwriter::open(path, pages, WRITE_BYTES, seed)?;
            }
            slowest = slowest.max(one.elapsed);
            took.push(one.elapsed.as_secs_f64() * 1e3);
            done += one.writes;
        }
        if watch && system == "weir" {
            let mut now = MemoryHeld { second: held.len() as u64, ..self::held(mount)? };
            now.slowest_ms = slowest.as_secs_f64() * 1e3;
            held.push(now);
        }
        if !is_before {
            second += 1;
            writes += done;
            rates.push(done as f64 / begun.elapsed().as_secs_f64());
        }
        fadvise(&cached, 0, None, Advice::DontNeed)
            .map_err(|error| BenchError::io("cannot advise", path, error.into()))?;
    }
    let after = counted()?;
    let each = |of: fn(&StoreCountersReport) -> u64| {
        Some((of(after.as_ref()?) - of(before.as_ref()?)) as f64 / writes.max(1) as f64)
    };
    Ok(SteadyFigures {
        writes_per_s: rates,
        took_ms: took,
        held,
        store_bytes_written: each(|counted| counted.blocks_written * PAGE_BYTES),
        store_pages_read: each(|counted| counted.page_reads),
    })
}

/// Reads weir's memory and dirty data.
fn held(mount: &Path) -> Result<MemoryHeld, BenchError> {
    let status = weir_status(mount)?;
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Ok(MemoryHeld {
        second: 0,
        dirty_mib: mib(status.dirty.bytes),
        deltas_mib: mib(status.dirty.delta_bytes),
        dirty_age_s: status.dirty.age_ms as f64 / 1e3,
        buffer_used_mib: mib(status.buffer_log.bytes - status.buffer_log.free_bytes),
        resident_mib: resident_bytes(status.pid).map_or(f64::NAN, mib),
        slowest_ms: 0.0,
    })
}

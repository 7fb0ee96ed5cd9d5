//! `weir-bench overview`: a database and small overwrites on weir and on ext4, as bars, in a minute.
//!
//! Each system has its own modelled device. For readers who see weir for the first time; `nonblocking-writes`
//! has the figures with their spread.

use std::fmt;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::{Duration, Instant};

use clap::Args;
use serde::Serialize;

use super::cleanup;
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::device_speed::{DeviceSpeed, measure_speed};
use super::error::BenchError;
use super::program::{check_machine, check_programs, command, run};
use super::report::BenchReport;
use super::slow_device::{ComparedDevice, DeviceSpec, SlowDevice, work_directory};
use super::system::{ComparedSystem, FetchChoice, SystemKind};
use super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, WorkDone};

/// Size of each overwrite.
const WRITE_BYTES: u64 = 512;
const BUFFER_BYTES: u64 = 256 << 20;
const DEVICE_BYTES_MIN: u64 = 1 << 30;
/// Time for each figure of the device alone.
const DEVICE_FIGURE: Duration = Duration::from_millis(500);
/// Length of the longest bar; with names and numbers a line has less than 80 columns.
const BAR_COLUMNS: f64 = 48.0;

/// Options of `weir-bench overview`.
#[derive(Debug, Args)]
pub(super) struct OverviewArgs {
    /// The modelled device
    #[arg(long, value_enum, default_value_t = ComparedDevice::Cloud)]
    model: ComparedDevice,
    /// Rows that SQLite inserts, each in its own transaction
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rows: u64,
    /// Most pages to overwrite, each once; none is in memory at first
    #[arg(long, default_value_t = 40_000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pages: u64,
    /// Most seconds of overwrites for each of four bars
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`)
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// One load on both systems.
#[derive(Debug, Serialize)]
struct SystemPair {
    load: &'static str,
    unit: &'static str,
    ext4: f64,
    weir: f64,
}

impl fmt::Display for SystemPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SystemPair { load, unit, ext4, weir } = self;
        let longest = ext4.max(*weir);
        writeln!(f, "\n{load}: {unit}")?;
        writeln!(f, "  ext4 {ext4:>8.0}  {}", bar(*ext4, longest))?;
        write!(f, "  weir {weir:>8.0}  {}  {:.1} x", bar(*weir, longest), weir / ext4)
    }
}

/// A bar with a length in proportion to `rate`, at least one mark.
fn bar(rate: f64, longest: f64) -> String {
    "#".repeat((rate / longest * BAR_COLUMNS).round().max(1.0) as usize)
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &OverviewArgs) -> Result<(), BenchError> {
    check_machine()?;
    check_programs(&["sqlite3"])?;
    cleanup::install()?;
    let mut report = BenchReport::new("overview");
    let processors = ProcessorSplit::claim(args.cpu_affinity)?;
    let (measured, loads) = measure_all(args, processors)?;
    report.line(format!("one run on the {} model; measured: {measured}", args.model.name()));
    report.line(cpu_affinity::text(processors));
    report.line("bars are linear, to the longest of each load");
    report.fact("cpu_affinity", cpu_affinity::text(processors));
    report.fact("model", args.model);
    report.fact("measured", measured);
    loads.iter().for_each(|pair| report.line(pair));
    report.fact("loads", loads);
    report.print(args.json);
    Ok(())
}

fn measure_all(
    args: &OverviewArgs,
    processors: Option<ProcessorSplit>,
) -> Result<(DeviceSpeed, Vec<SystemPair>), BenchError> {
    let (root, _files) = work_directory(None)?;
    // A dirty page reserves several blocks until it is stored.
    let bytes = DEVICE_BYTES_MIN.max(args.pages * PAGE_BYTES * 8);
    let design = DeviceSpec { device: args.model.device(), bytes, processors };
    let measured = {
        let device = SlowDevice::up(&design, &root.join("measured"))?;
        measure_speed(device.path(), bytes, DEVICE_FIGURE)?
    };
    let statements = root.join("statements");
    write_statements(&statements, args.rows)
        .map_err(|error| BenchError::io("cannot write", &statements, error))?;
    let weir = SystemKind::Weir {
        fetch: FetchChoice::Lazy,
        buffer_in: root.clone(),
        buffer_bytes: BUFFER_BYTES,
        memory_bytes: None,
        options: Vec::new(),
    };
    let mut rates = Vec::new();
    for (name, kind) in [("ext4", SystemKind::Ext4), ("weir", weir)] {
        eprintln!("{name} on the {} model: setting up, then three loads", args.model.name());
        let system = ComparedSystem::set_up(name, kind, &design, &root, args.pages)?;
        rates.push([
            insert(&system, &statements, args.rows)?,
            overwrite(&system, args, SyncMode::Never)?,
            overwrite(&system, args, SyncMode::EachWrite)?,
        ]);
    }
    let loads = [
        ("SQLite, WAL, synchronous=FULL, one transaction per row", "rows/s"),
        ("overwrites of 512 B in pages that are not in memory", "writes/s"),
        ("the same, each followed by fdatasync", "writes/s"),
    ];
    let pair =
        |(index, (load, unit))| SystemPair { load, unit, ext4: rates[0][index], weir: rates[1][index] };
    Ok((measured, loads.into_iter().enumerate().map(pair).collect()))
}

/// Writes the SQL statements. The last one prints the number of rows.
fn write_statements(path: &Path, rows: u64) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    writeln!(file, "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;")?;
    writeln!(file, "CREATE TABLE rows (n INTEGER PRIMARY KEY, body TEXT);")?;
    for row in 1..=rows {
        writeln!(file, "INSERT INTO rows VALUES ({row}, printf('%0200d', {row}));")?;
    }
    writeln!(file, "SELECT count(*) FROM rows;")?;
    file.flush()
}

/// Measures inserts in rows per second, from SQLite's start to its end.
fn insert(system: &ComparedSystem, statements: &Path, rows: u64) -> Result<f64, BenchError> {
    let mounted = system.mount()?;
    let file = File::open(statements).map_err(|error| BenchError::io("cannot open", statements, error))?;
    let mut sqlite = command("sqlite3", ["-batch", "-bail", "-init", "/dev/null"]);
    sqlite.arg(mounted.file.with_file_name("rows.db")).stdin(file);
    let start = Instant::now();
    let says = run(&mut sqlite)?;
    let elapsed = start.elapsed();
    if says.lines().last() != Some(&rows.to_string()) {
        return Err(BenchError::Command {
            command: "sqlite3".into(),
            says: format!("not {rows} rows: {says}"),
        });
    }
    Ok(WorkDone { writes: rows, elapsed }.rate())
}

/// Measures overwrites in writes per second. The new mount starts with empty caches.
fn overwrite(system: &ComparedSystem, args: &OverviewArgs, sync: SyncMode) -> Result<f64, BenchError> {
    let mounted = system.mount()?;
    let mut load = PageOverwriter::open(&mounted.file, args.pages, WRITE_BYTES, 1)?;
    Ok(load.run(args.pages, Duration::from_secs(args.seconds), sync)?.rate())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_are_as_long_as_their_rates_and_never_empty() {
        assert_eq!(bar(10.0, 10.0).len(), 48);
        assert_eq!(bar(2.5, 10.0).len(), 12);
        assert_eq!(bar(0.001, 10.0), "#");
    }

    #[test]
    fn a_pair_fits_eighty_columns() {
        let pair = SystemPair { load: "a load", unit: "rows/s", ext4: 300.0, weir: 120_000.0 }.to_string();
        let last = pair.lines().last().expect("a line");
        assert!(last.starts_with("  weir   120000  ####") && last.ends_with("  400.0 x"), "{pair}");
        assert!(pair.lines().all(|line| line.len() < 80), "{pair}");
    }
}

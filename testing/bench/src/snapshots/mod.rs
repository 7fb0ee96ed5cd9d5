//! `weir-bench snapshots`: the cost of snapshots while they are made, for later writes, and in thousands.

mod dirty;
mod epochs;
mod later_writes;
mod many;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};

use super::cleanup::{self, CleanupGuard};
use super::counters::mount;
use super::error::BenchError;
use super::program::{check_machine, run};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::slow_device::work_directory;
use super::system::{weir, weir_on};

/// Options of `weir-bench snapshots`.
#[derive(Debug, Args)]
pub(super) struct SnapshotsArgs {
    /// Measure only these parts: `dirty`, a snapshot of much dirty data beside a writer; `later`, random writes
    /// after a snapshot; `epochs`, synced writes while epochs are taken; `many`, thousands of snapshots, which needs root
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = SnapshotsPart::value_variants().to_vec())]
    parts: Vec<SnapshotsPart>,
    /// Directory for the stores and the buffers [default: the temporary directory]
    #[arg(long, value_name = "DIR")]
    on: Option<PathBuf>,
    /// `dirty`: data that is dirty when the snapshot begins, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024, value_parser = clap::value_parser!(u64).range(1..=16_384))]
    dirty: u64,
    /// `dirty`: seconds that the writer is measured without a snapshot; `epochs`: seconds of each turn
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// `epochs`: seconds between two epochs; 0 takes none. The others are compared with the first
    #[arg(long, value_name = "SECONDS", value_delimiter = ',', default_values_t = [0, 1, 10, 60])]
    every: Vec<u64>,
    /// `epochs`: how often each interval has its turn
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=100))]
    rounds: u64,
    /// `later` and `epochs`: size of the file, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    file: u64,
    /// `later`: bytes of each write
    #[arg(long, value_delimiter = ',', default_values_t = [4096, 512], value_parser = write_size)]
    io: Vec<u64>,
    /// `later`: how often each page is written to in a phase
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=100))]
    passes: u64,
    /// `later` and `epochs`: weir's memory, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 128, value_parser = clap::value_parser!(u64).range(16..=65_536))]
    memory: u64,
    /// `many`: number of snapshots
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1_000..=30_000))]
    count: u64,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum SnapshotsPart {
    Dirty,
    Later,
    Epochs,
    Many,
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &SnapshotsArgs) -> Result<(), BenchError> {
    if args.parts.contains(&SnapshotsPart::Many) {
        check_machine()?;
    }
    cleanup::install()?;
    let (root, _files) = work_directory(args.on.as_deref())?;
    let mut report = BenchReport::new("snapshots");
    for part in &args.parts {
        match part {
            SnapshotsPart::Dirty => dirty::measure(args, &root, &mut report)?,
            SnapshotsPart::Later => later_writes::measure(args, &root, &mut report)?,
            SnapshotsPart::Epochs => epochs::measure(args, &root, &mut report)?,
            SnapshotsPart::Many => many::measure(args, &root, &mut report)?,
        }
    }
    report.print(args.json);
    Ok(())
}

/// A store in a directory, and the directory that it is mounted on.
struct SnapshotStore {
    store: PathBuf,
    mount_point: PathBuf,
}

impl SnapshotStore {
    fn format(
        root: &Path,
        name: &str,
        store_bytes: u64,
        buffer_bytes: u64,
    ) -> Result<SnapshotStore, BenchError> {
        let (store, mount_point) = (root.join(name), root.join(format!("{name}.mount")));
        std::fs::create_dir(&mount_point)
            .map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
        run(weir_on(&store, "format")
            .arg(&store)
            .args([format!("--size={store_bytes}"), format!("--buffer-size={buffer_bytes}")]))?;
        Ok(SnapshotStore { store, mount_point })
    }

    /// Mounts the store. Only what is measured makes snapshots and causes write-back.
    fn mount(&self, memory_bytes: u64) -> Result<CleanupGuard, BenchError> {
        let memory = format!("--memory={memory_bytes}");
        let settings =
            [memory, "--epoch-every=0".into(), "--dirty-age=86400".into(), "--data=journal".into()];
        mount(&self.store, &self.mount_point, &settings)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.mount_point.join(name)
    }

    /// Makes a snapshot of the mounted volume. Returns the milliseconds that the command took.
    fn snapshot(&self, name: &str) -> Result<f64, BenchError> {
        let begun = Instant::now();
        run(weir("volume").arg("snapshot").arg(&self.mount_point).arg(name))?;
        Ok(millis(begun))
    }
}

/// A table of figures beside their targets.
#[derive(Default)]
struct TargetTable(ReportTable);

impl TargetTable {
    fn row(&mut self, figure: &str, value: impl Into<ReportCell>, target: &str) {
        self.0.row([
            ("figure", "figure", figure.into()),
            ("value", "value", value.into()),
            ("target", "target", target.into()),
        ]);
    }
}

/// Milliseconds since then.
fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1000.0
}

fn milliseconds(value: f64) -> ReportCell {
    ReportCell::from(value).unit(" ms")
}

fn write_size(text: &str) -> Result<u64, String> {
    let bytes: u64 = text.parse().map_err(|_| "write a whole number".to_owned())?;
    let fits = bytes.is_power_of_two() && bytes <= super::workload::PAGE_BYTES;
    if fits { Ok(bytes) } else { Err("write a power of two up to 4096".to_owned()) }
}

//! The report, as tables and as JSON.

use std::fmt::Write as _;

use procfs::Current;
use serde::Serialize;

use super::super::device_speed::DeviceSpeed;
use super::super::quantile::{median, quantile};
use super::super::report::LoadRun;
use super::super::shared_disk::{DaemonUsage, FileSystem, SharedDisk};
use super::super::workload::WorkDone;
use super::load::StreamLoad;
use super::mixed::{BUFFER_BYTES, MixedFigures, RECORD_BYTES};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;

#[derive(Debug, Serialize)]
pub(super) struct StreamReport {
    benchmark: &'static str,
    version: &'static str,
    kernel: String,
    processors: usize,
    pub(super) disks: Vec<DiskReport>,
}

impl StreamReport {
    pub(super) fn begin() -> StreamReport {
        StreamReport {
            benchmark: "streams",
            version: env!("CARGO_PKG_VERSION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            disks: Vec::new(),
        }
    }
}

/// Load average of the last minute.
pub(super) fn load_average() -> Option<f32> {
    Some(procfs::LoadAverage::current().ok()?.one)
}

#[derive(Debug, Serialize)]
pub(super) struct DiskReport {
    pub(super) disk: SharedDisk,
    pub(super) model: String,
    pub(super) file_system: String,
    pub(super) measured: DeviceSpeed,
    /// Load average before the benchmark.
    pub(super) load_average: Option<f32>,
    pub(super) rounds: u32,
    pub(super) file_mib: u64,
    pub(super) rows: Vec<StreamRow>,
    pub(super) mixed: Vec<MixedRow>,
}

/// Figures of a load on a file system.
#[derive(Debug, Serialize)]
pub(super) struct StreamRow {
    load: &'static str,
    system: &'static str,
    write_bytes: u64,
    runs: Vec<LoadRun>,
    mib_per_s: Vec<f64>,
    /// CPU time of weir's daemon until the end of the load.
    processor_s_per_gib: Vec<f64>,
    /// Writes to the store. Dirty data at the end of the load counts as written.
    store_bytes_per_byte: Vec<f64>,
}

impl StreamRow {
    pub(super) fn new(load: StreamLoad, system: FileSystem) -> StreamRow {
        StreamRow {
            load: load.name(),
            system: system.name(),
            write_bytes: load.write_bytes(),
            runs: Vec::new(),
            mib_per_s: Vec::new(),
            processor_s_per_gib: Vec::new(),
            store_bytes_per_byte: Vec::new(),
        }
    }

    pub(super) fn is_of(&self, load: StreamLoad, system: FileSystem) -> bool {
        (self.load, self.system) == (load.name(), system.name())
    }

    /// Adds a run, and the CPU time and writes of weir's daemon.
    pub(super) fn add(&mut self, done: WorkDone, spent: Option<DaemonUsage>) {
        let bytes = (done.writes * self.write_bytes).max(1) as f64;
        self.runs.push(done.into());
        self.mib_per_s.push(done.rate() * self.write_bytes as f64 / MIB);
        if let Some(spent) = spent {
            self.processor_s_per_gib.push(spent.processor.as_secs_f64() / (bytes / GIB));
            self.store_bytes_per_byte.push(spent.store_bytes as f64 / bytes);
        }
    }
}

/// Figures of the synced writer on a file system.
#[derive(Debug, Serialize)]
pub(super) struct MixedRow {
    system: &'static str,
    rounds: Vec<MixedFigures>,
}

impl MixedRow {
    pub(super) fn new(system: FileSystem) -> MixedRow {
        MixedRow { system: system.name(), rounds: Vec::new() }
    }

    pub(super) fn is_of(&self, system: FileSystem) -> bool {
        self.system == system.name()
    }

    pub(super) fn add(&mut self, found: MixedFigures) {
        self.rounds.push(found);
    }

    fn median(&self, of: fn(&MixedFigures) -> f64) -> f64 {
        median(&self.rounds.iter().map(of).collect::<Vec<_>>())
    }
}

/// Formats the report as Markdown.
pub(super) fn text(report: &StreamReport) -> String {
    let mut out =
        format!("weir {}, Linux {}, {} processors\n", report.version, report.kernel, report.processors);
    for disk in &report.disks {
        let load = disk.load_average.map_or("unknown".to_owned(), |load| format!("{load:.2}"));
        let _ = writeln!(
            out,
            "\n{}: {}, {}; measured: {}. Load average before {load}, rounds: {}.",
            disk.disk.name(),
            disk.model,
            disk.file_system,
            disk.measured,
            disk.rounds
        );
        write_rows(&mut out, disk);
        write_mixed(&mut out, disk);
    }
    out
}

fn write_rows(out: &mut String, disk: &DiskReport) {
    if disk.rows.is_empty() {
        return;
    }
    let _ = writeln!(out, "\nA file of {} MiB, with an fsync at the end.\n", disk.file_mib);
    out.push_str("| load | system | median MiB/s | spread | over ext4 | daemon s/GiB | store B/B |\n");
    out.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    for row in &disk.rows {
        let base =
            disk.rows.iter().find(|base| base.load == row.load && base.system == FileSystem::Ext4.name());
        let rate = median(&row.mib_per_s);
        let some = |values: &[f64]| match values {
            [] => String::new(),
            values => format!("{:.2}", median(values)),
        };
        let _ = writeln!(
            out,
            "| {} | {} | {rate:.0} | {:.0}–{:.0} | {:.2} | {} | {} |",
            row.load,
            row.system,
            quantile(&row.mib_per_s, 0.0),
            quantile(&row.mib_per_s, 1.0),
            rate / base.map_or(f64::NAN, |base| median(&base.mib_per_s)),
            some(&row.processor_s_per_gib),
            some(&row.store_bytes_per_byte),
        );
    }
}

fn write_mixed(out: &mut String, disk: &DiskReport) {
    let _ = writeln!(
        out,
        "\nWrites of {RECORD_BYTES} B with fdatasync at random, alone and beside a stream of 1 MiB writes, synced pass by pass; a buffer of {} MiB; medians.\n",
        BUFFER_BYTES >> 20
    );
    out.push_str("| system | alone/s | beside/s | ratio | alone p99 ms | beside p99 ms | stream MiB/s |\n");
    out.push_str("| --- | --- | --- | --- | --- | --- | --- |\n");
    for row in &disk.mixed {
        let _ = writeln!(
            out,
            "| {} | {:.0} | {:.0} | {:.2} | {:.1} | {:.1} | {:.0} |",
            row.system,
            row.median(|found| found.alone_per_s),
            row.median(|found| found.beside_per_s),
            row.median(|found| found.beside_per_s / found.alone_per_s),
            row.median(|found| found.alone_p99_ms),
            row.median(|found| found.beside_p99_ms),
            row.median(|found| found.stream_mib_per_s),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn row(system: FileSystem, seconds: &[u64], spent: Option<DaemonUsage>) -> StreamRow {
        let mut row = StreamRow::new(StreamLoad::Overwrite, system);
        for &seconds in seconds {
            row.add(WorkDone { writes: 2048, elapsed: Duration::from_secs(seconds) }, spent);
        }
        row
    }

    #[test]
    fn a_table_has_rates_in_mib_their_spread_and_what_each_byte_took() {
        let spent = DaemonUsage { processor: Duration::from_secs(1), store_bytes: 3 << 30 };
        let found = |alone_per_s| MixedFigures {
            alone_per_s,
            beside_per_s: 50.0,
            alone_p99_ms: 1.0,
            beside_p99_ms: 2.0,
            stream_mib_per_s: 300.0,
        };
        let mut mixed = MixedRow::new(FileSystem::Ext4);
        [100.0, 200.0, 500.0].into_iter().for_each(|alone| mixed.add(found(alone)));
        let disk = DiskReport {
            disk: SharedDisk::This,
            model: SharedDisk::This.text(),
            file_system: "ext4 /dev/vda".to_owned(),
            measured: DeviceSpeed {
                reads_per_s_depth_1: 1.0,
                reads_per_s_depth_32: 2.0,
                sequential_mib_per_s: 3.0,
            },
            load_average: Some(0.5),
            rounds: 3,
            file_mib: 2048,
            rows: vec![
                row(FileSystem::Ext4, &[4, 8, 16], None),
                row(FileSystem::WeirOrdered, &[4, 4, 2], Some(spent)),
            ],
            mixed: vec![mixed],
        };
        let text = text(&StreamReport { disks: vec![disk], ..StreamReport::begin() });
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        has("| overwrite, 1 MiB in order | ext4 | 256 | 128–512 | 1.00 |  |  |");
        has("| overwrite, 1 MiB in order | weir --data ordered | 512 | 512–1024 | 2.00 | 0.50 | 1.50 |");
        has("| ext4 | 200 | 50 | 0.25 | 1.0 | 2.0 | 300 |");
    }
}

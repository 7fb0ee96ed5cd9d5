//! The report of a run, as text and as JSON. Every figure comes with its device, its runs and their spread.

use std::fmt::Write as _;

use serde::Serialize;

use super::device_speed::DeviceSpeed;
use super::output::ReportTable;
use super::quantile::median;
use super::slow_device::ComparedDevice;
use super::workload::WorkDone;

/// One run of one load.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct LoadRun {
    pub(super) writes: u64,
    pub(super) seconds: f64,
    pub(super) writes_per_s: f64,
}

impl From<WorkDone> for LoadRun {
    fn from(done: WorkDone) -> LoadRun {
        LoadRun { writes: done.writes, seconds: done.elapsed.as_secs_f64(), writes_per_s: done.rate() }
    }
}

/// All runs of one load on one system.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OverwriteRow {
    pub(super) load: &'static str,
    pub(super) system: &'static str,
    pub(super) write_bytes: u64,
    pub(super) runs: Vec<LoadRun>,
    /// Median of the runs' rates.
    pub(super) median_writes_per_s: f64,
    /// (fastest − slowest) / median.
    pub(super) spread: f64,
}

impl OverwriteRow {
    pub(super) fn new(
        load: &'static str,
        system: &'static str,
        write_bytes: u64,
        runs: Vec<LoadRun>,
    ) -> OverwriteRow {
        let rates: Vec<f64> = runs.iter().map(|run| run.writes_per_s).collect();
        let median_writes_per_s = median(&rates);
        let (low, high) =
            rates.iter().fold((f64::MAX, 0.0_f64), |(low, high), &rate| (low.min(rate), high.max(rate)));
        OverwriteRow {
            load,
            system,
            write_bytes,
            runs,
            median_writes_per_s,
            spread: (high - low) / median_writes_per_s,
        }
    }
}

/// The ratio of two rows, and its target.
#[derive(Debug, Clone, Serialize)]
pub(super) struct TargetRatio {
    pub(super) what: &'static str,
    pub(super) ratio: f64,
    pub(super) target: f64,
    pub(super) met: bool,
}

impl TargetRatio {
    pub(super) fn new(what: &'static str, ratio: f64, target: f64) -> TargetRatio {
        TargetRatio { what, ratio, target, met: ratio >= target }
    }
}

/// The part of the report about one device model.
#[derive(Debug, Clone, Serialize)]
pub(super) struct DeviceReport {
    pub(super) model: ComparedDevice,
    pub(super) measured: DeviceSpeed,
    pub(super) rows: Vec<OverwriteRow>,
    pub(super) ratios: Vec<TargetRatio>,
}

/// The result of `weir-bench nonblocking-writes`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct OverwriteReport {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    pub(super) kernel: String,
    pub(super) processors: usize,
    pub(super) cpu_affinity: &'static str,
    pub(super) disk: String,
    pub(super) pages: u64,
    pub(super) seconds_max: f64,
    pub(super) models: Vec<DeviceReport>,
}

/// Whether the report is a table by size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BySize {
    Yes,
    No,
}

/// Formats the report as text: a line for each load and system, or with `by_size` a table.
pub(super) fn text(report: &OverwriteReport, by_size: BySize) -> String {
    let mut out = format!(
        "weir {} · Linux {} · {} processors · temporary files on {}\n{}\n\
         first {} overwrites of un-cached pages, each page once, random order, one thread, at most {} s per run\n",
        report.version,
        report.kernel,
        report.processors,
        report.disk,
        report.cpu_affinity,
        report.pages,
        report.seconds_max
    );
    for model in &report.models {
        write_device(&mut out, model);
        match by_size {
            BySize::No => write_rows(&mut out, model, report.seconds_max),
            BySize::Yes => write_table(&mut out, model),
        }
        write_ratios(&mut out, model);
    }
    out
}

fn write_device(out: &mut String, model: &DeviceReport) {
    let _ = writeln!(out, "\n{} model: {}", model.model.name(), model.measured);
}

fn write_rows(out: &mut String, model: &DeviceReport, seconds_max: f64) {
    let columns = ["load", "system", "bytes", "writes/s", "runs", "spread", "writes", ""];
    let mut table = ReportTable::new(2, &columns);
    for row in &model.rows {
        let writes = row.runs.iter().map(|run| run.writes).max().unwrap_or(0);
        let stopped = row.runs.iter().any(|run| run.seconds >= seconds_max);
        table.row([
            row.load.to_owned(),
            row.system.to_owned(),
            row.write_bytes.to_string(),
            format!("{:.0}", row.median_writes_per_s),
            row.runs.len().to_string(),
            format!("{:.0} %", row.spread * 100.0),
            writes.to_string(),
            if stopped { "time was up" } else { "" }.to_owned(),
        ]);
    }
    let _ = write!(out, "{table}");
}

fn write_ratios(out: &mut String, model: &DeviceReport) {
    for ratio in &model.ratios {
        let verdict = if ratio.met { "met" } else { "MISSED" };
        let _ = writeln!(out, "  {}: {:.2}× (target {}×: {verdict})", ratio.what, ratio.ratio, ratio.target);
    }
}

/// A table of writes per second by size (rows) and system (columns).
fn write_table(out: &mut String, model: &DeviceReport) {
    let mut columns: Vec<(&str, &str)> = Vec::new();
    let mut sizes: Vec<u64> = Vec::new();
    for row in &model.rows {
        if !columns.contains(&(row.load, row.system)) {
            columns.push((row.load, row.system));
        }
        if !sizes.contains(&row.write_bytes) {
            sizes.push(row.write_bytes);
        }
    }
    let _ = writeln!(out, "writes/s by bytes per write");
    for (index, (load, system)) in columns.iter().enumerate() {
        let _ = writeln!(out, "  [{}] {load}: {system}", index + 1);
    }
    let heads: String = (1..=columns.len()).map(|index| format!("{:>11}", format!("[{index}]"))).collect();
    let _ = writeln!(out, "{:>6}{heads}", "bytes");
    for size in sizes {
        let cells: String = columns.iter().map(|column| cell(model, *column, size)).collect();
        let _ = writeln!(out, "{size:>6}{cells}");
    }
}

fn cell(model: &DeviceReport, (load, system): (&str, &str), size: u64) -> String {
    let found = model.rows.iter().find(|row| (row.load, row.system, row.write_bytes) == (load, system, size));
    found.map_or_else(|| format!("{:>11}", "-"), |row| format!("{:>11.0}", row.median_writes_per_s))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(writes_per_s: f64) -> LoadRun {
        LoadRun { writes: 10, seconds: 1.0, writes_per_s }
    }

    #[test]
    fn a_row_states_median_and_spread() {
        let row = OverwriteRow::new("overwrite", "ext4", 512, vec![run(90.0), run(100.0), run(120.0)]);
        assert_eq!(row.median_writes_per_s, 100.0);
        assert!((row.spread - 0.3).abs() < 1e-9);
    }

    #[test]
    fn a_ratio_at_its_target_is_met_and_below_is_missed() {
        assert!(TargetRatio::new("lazy to ext4", 200.0, 200.0).met);
        assert!(!TargetRatio::new("lazy to ext4", 199.9, 200.0).met);
    }

    #[test]
    fn the_table_has_a_line_for_each_size_and_a_dash_for_what_was_not_run() {
        let measured =
            DeviceSpeed { reads_per_s_depth_1: 1.0, reads_per_s_depth_32: 1.0, sequential_mib_per_s: 1.0 };
        let rows = vec![
            OverwriteRow::new("overwrite", "ext4", 64, vec![run(1.0)]),
            OverwriteRow::new("overwrite", "weir lazy", 512, vec![run(2.0)]),
        ];
        let model = DeviceReport { model: ComparedDevice::Ssd, measured, rows, ratios: Vec::new() };
        let mut table = String::new();
        write_table(&mut table, &model);
        assert!(table.lines().any(|line| line.split_whitespace().eq(["64", "1", "-"])), "{table}");
        assert!(table.lines().any(|line| line.split_whitespace().eq(["512", "-", "2"])), "{table}");
    }
}

//! The rows of `weir-bench nonblocking-writes` and their ratios, as tables.

use super::device_speed::DeviceSpeed;
use super::quantile::{median, spread};
use super::report::{BenchReport, ReportCell, ReportTable};
use super::slow_device::ComparedDevice;
use super::workload::WorkDone;

/// All runs of one load on one system.
#[derive(Debug)]
pub(super) struct OverwriteRow {
    pub(super) load: &'static str,
    pub(super) system: &'static str,
    pub(super) write_bytes: u64,
    pub(super) runs: Vec<WorkDone>,
}

impl OverwriteRow {
    /// Writes per second, run by run.
    pub(super) fn rates(&self) -> Vec<f64> {
        self.runs.iter().map(|run| run.rate()).collect()
    }
}

/// The ratio of two rows, and the least that it should be.
#[derive(Debug)]
pub(super) struct TargetRatio {
    pub(super) what: &'static str,
    pub(super) ratio: f64,
    pub(super) target: f64,
}

/// All overwrites on one device model.
#[derive(Debug)]
pub(super) struct DeviceOverwrites {
    pub(super) model: ComparedDevice,
    pub(super) measured: DeviceSpeed,
    pub(super) rows: Vec<OverwriteRow>,
    pub(super) ratios: Vec<TargetRatio>,
}

/// Whether the text is a table by size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BySize {
    Yes,
    No,
}

impl DeviceOverwrites {
    pub(super) fn report(&self, by_size: BySize) -> BenchReport {
        let mut report = BenchReport::default();
        report.line(format!("\n{} model: {}", self.model.name(), self.measured));
        report.fact("model", self.model);
        report.fact("measured", self.measured);
        let rows = self.rows();
        report.fact("rows", &rows.rows);
        report.line(if by_size == BySize::Yes { self.by_size() } else { rows });
        let mut ratios = ReportTable::default();
        for TargetRatio { what, ratio, target } in &self.ratios {
            let times = |value: f64| ReportCell::from(value).unit("×");
            ratios.row([
                ("what", "ratio", (*what).into()),
                ("ratio", "is", times(*ratio)),
                ("target", "target", times(*target)),
                ("met", "verdict", ReportCell::verdict(ratio >= target)),
            ]);
        }
        report.table("ratios", &ratios);
        report
    }

    fn rows(&self) -> ReportTable {
        let mut table = ReportTable::default();
        for row in &self.rows {
            let rates = row.rates();
            table.row([
                ("load", "load", row.load.into()),
                ("system", "system", row.system.into()),
                ("write_bytes", "bytes", row.write_bytes.into()),
                ("median_writes_per_s", "writes/s", median(&rates).into()),
                ("spread", "spread", ReportCell::percent(spread(&rates))),
                ("", "writes", row.runs.iter().map(|run| run.writes).max().into()),
                ("runs", "runs", ReportCell::json(&row.runs).shown_as(row.runs.len().to_string())),
            ]);
        }
        table
    }

    /// Writes per second, with a column for each size.
    fn by_size(&self) -> ReportTable {
        let (mut names, mut sizes) = (Vec::new(), Vec::new());
        for row in &self.rows {
            if !names.contains(&(row.load, row.system)) {
                names.push((row.load, row.system));
            }
            if !sizes.contains(&row.write_bytes) {
                sizes.push(row.write_bytes);
            }
        }
        let heads: Vec<String> = sizes.iter().map(|size| format!("{size} B")).collect();
        let mut table = ReportTable::default();
        for (load, system) in names {
            let rate = |(size, head)| {
                let is_it =
                    |row: &&OverwriteRow| (row.load, row.system, row.write_bytes) == (load, system, size);
                let rate = self.rows.iter().find(is_it).map(|row| median(&row.rates()));
                ("", head, rate.into())
            };
            let cells = [("", "load", load.into()), ("", "system", system.into())];
            let sizes = sizes.iter().copied().zip(heads.iter().map(String::as_str));
            table.row(cells.into_iter().chain(sizes.map(rate)));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn report(rows: Vec<OverwriteRow>, ratio: f64, by_size: BySize) -> String {
        let measured =
            DeviceSpeed { reads_per_s_depth_1: 1.0, reads_per_s_depth_32: 1.0, sequential_mib_per_s: 1.0 };
        let ratios = vec![TargetRatio { what: "lazy to ext4", ratio, target: 200.0 }];
        let model = ComparedDevice::Ssd;
        DeviceOverwrites { model, measured, rows, ratios }.report(by_size).text().replace(' ', "")
    }

    fn row(system: &'static str, write_bytes: u64, writes: &[u64]) -> OverwriteRow {
        let runs =
            writes.iter().map(|&writes| WorkDone { writes, elapsed: Duration::from_secs(1) }).collect();
        OverwriteRow { load: "overwrite", system, write_bytes, runs }
    }

    #[test]
    fn a_row_states_median_and_spread() {
        let text = report(vec![row("ext4", 512, &[90, 100, 120])], 1.0, BySize::No);
        assert!(text.contains("|overwrite|ext4|512|100|30.0%|120|3|"), "{text}");
    }

    #[test]
    fn a_ratio_at_its_target_is_met_and_below_is_missed() {
        assert!(report(Vec::new(), 200.0, BySize::No).contains("|lazytoext4|200×|200×|met|"));
        assert!(report(Vec::new(), 199.9, BySize::No).contains("|MISSED|"));
    }

    #[test]
    fn the_table_by_size_has_a_dash_for_what_was_not_run() {
        let text = report(vec![row("ext4", 64, &[1]), row("weir", 512, &[2])], 1.0, BySize::Yes);
        assert!(text.contains("|overwrite|ext4|1.00|-|\n|overwrite|weir|-|2.00|"), "{text}");
    }
}

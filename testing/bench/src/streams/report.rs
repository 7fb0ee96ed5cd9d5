//! The figures of each load and each file system, round by round.

use serde::Serialize;

use super::super::quantile::{median, quantile};
use super::super::report::{BenchReport, ReportCell, ReportTable, number};
use super::super::shared_disk::{DaemonUsage, FileSystem};
use super::super::workload::WorkDone;
use super::load::StreamLoad;
use super::mixed::{BUFFER_BYTES, MixedFigures, RECORD_BYTES};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;

/// Figures of a load on a file system.
#[derive(Debug)]
pub(super) struct StreamFigures {
    load: StreamLoad,
    system: FileSystem,
    runs: Vec<WorkDone>,
    mib_per_s: Vec<f64>,
    /// CPU time of weir's daemon until the end of the load.
    processor_s_per_gib: Vec<f64>,
    /// Writes to the store. Dirty data at the end of the load counts as written.
    store_bytes_per_byte: Vec<f64>,
}

impl StreamFigures {
    pub(super) fn new(load: StreamLoad, system: FileSystem) -> StreamFigures {
        StreamFigures {
            load,
            system,
            runs: Vec::new(),
            mib_per_s: Vec::new(),
            processor_s_per_gib: Vec::new(),
            store_bytes_per_byte: Vec::new(),
        }
    }

    pub(super) fn is_of(&self, load: StreamLoad, system: FileSystem) -> bool {
        (self.load, self.system) == (load, system)
    }

    /// Adds a run, and the CPU time and writes of weir's daemon.
    pub(super) fn add(&mut self, done: WorkDone, spent: Option<DaemonUsage>) {
        let write_bytes = self.load.write_bytes();
        let bytes = (done.writes * write_bytes).max(1) as f64;
        self.runs.push(done);
        self.mib_per_s.push(done.rate() * write_bytes as f64 / MIB);
        if let Some(spent) = spent {
            self.processor_s_per_gib.push(spent.processor.as_secs_f64() / (bytes / GIB));
            self.store_bytes_per_byte.push(spent.store_bytes as f64 / bytes);
        }
    }
}

/// Figures of the synced writer on a file system.
#[derive(Debug, Serialize)]
pub(super) struct MixedRounds {
    pub(super) system: &'static str,
    pub(super) rounds: Vec<MixedFigures>,
}

/// Adds the streams to the report of a disk.
pub(super) fn add_streams(report: &mut BenchReport, file_mib: u64, all: &[StreamFigures]) {
    report.line(format!("A file of {file_mib} MiB, with an fsync at the end; medians."));
    let mut table = ReportTable::default();
    for of in all {
        let is_base = |base: &&StreamFigures| base.is_of(of.load, FileSystem::Ext4);
        let base = all.iter().find(is_base).map_or(f64::NAN, |base| median(&base.mib_per_s));
        let range = [0.0, 1.0].map(|share| number(quantile(&of.mib_per_s, share))).join("–");
        table.row([
            ("load", "load", of.load.name().into()),
            ("system", "system", of.system.name().into()),
            ("write_bytes", "", of.load.write_bytes().into()),
            ("runs", "", ReportCell::json(&of.runs)),
            ("mib_per_s", "MiB/s", ReportCell::rounds(&of.mib_per_s)),
            ("", "slowest–fastest", ReportCell::json(()).shown_as(range)),
            ("", "over ext4", (median(&of.mib_per_s) / base).into()),
            ("processor_s_per_gib", "daemon s/GiB", ReportCell::rounds(&of.processor_s_per_gib)),
            ("store_bytes_per_byte", "store B/B", ReportCell::rounds(&of.store_bytes_per_byte)),
        ]);
    }
    report.table("rows", &table);
}

/// Adds the synced writer to the report of a disk.
pub(super) fn add_mixed(report: &mut BenchReport, all: &[MixedRounds]) {
    report.line(format!(
        "Writes of {RECORD_BYTES} B with fdatasync at random, alone and beside a stream of 1 MiB writes, synced pass by pass; a \
         buffer of {} MiB; medians.",
        BUFFER_BYTES >> 20
    ));
    let mut table = ReportTable::default();
    for MixedRounds { system, rounds } in all {
        let figure = |of: fn(&MixedFigures) -> f64| median(&rounds.iter().map(of).collect::<Vec<_>>()).into();
        table.row([
            ("system", "system", (*system).into()),
            ("", "alone/s", figure(|found| found.alone_per_s)),
            ("", "beside/s", figure(|found| found.beside_per_s)),
            ("", "ratio", figure(|found| found.beside_per_s / found.alone_per_s)),
            ("", "alone p99 ms", figure(|found| found.alone_p99_ms)),
            ("", "beside p99 ms", figure(|found| found.beside_p99_ms)),
            ("", "stream MiB/s", figure(|found| found.stream_mib_per_s)),
            ("rounds", "", ReportCell::json(rounds)),
        ]);
    }
    report.table("mixed", &table);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn figures(system: FileSystem, seconds: &[u64], spent: Option<DaemonUsage>) -> StreamFigures {
        let mut figures = StreamFigures::new(StreamLoad::Overwrite, system);
        for &seconds in seconds {
            figures.add(WorkDone { writes: 2048, elapsed: Duration::from_secs(seconds) }, spent);
        }
        figures
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
        let mut report = BenchReport::default();
        let streams = [
            figures(FileSystem::Ext4, &[4, 8, 16], None),
            figures(FileSystem::WeirOrdered, &[4, 4, 2], Some(spent)),
        ];
        add_streams(&mut report, 2048, &streams);
        let rounds = [100.0, 200.0, 500.0].map(found).into();
        add_mixed(&mut report, &[MixedRounds { system: "ext4", rounds }]);
        let has = |cells: &[&str]| {
            let is_it = |line: &str| {
                line.split('|').map(str::trim).filter(|cell| !cell.is_empty()).eq(cells.iter().copied())
            };
            assert!(report.text().lines().any(is_it), "{cells:?}\n{}", report.text());
        };
        has(&["overwrite, 1 MiB in order", "ext4", "256", "128–512", "1.00", "-", "-"]);
        has(&[
            "overwrite, 1 MiB in order",
            "weir --data ordered",
            "512",
            "512–1024",
            "2.00",
            "0.500",
            "1.50",
        ]);
        has(&["ext4", "200", "50.0", "0.250", "1.00", "2.00", "300"]);
    }
}

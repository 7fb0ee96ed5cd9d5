//! What a run found, for people and for scripts.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::report::median;
use super::load::{Done, Operation};
use super::mounted::Used;

/// How many times the peer's time an operation may take.
const TARGET: f64 = 1.3;

/// One turn on one system.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Cell {
    /// Mean time of an operation as its client saw it, in microseconds.
    micros: f64,
    /// CPU time of the system's process for one operation, in microseconds.
    cpu_micros: f64,
    /// How often a thread that is not at the door went to sleep, per operation.
    sleeps: f64,
}

impl Cell {
    pub(super) fn new(done: Done, clients: u8, used: Used) -> Cell {
        let count = done.operations.max(1) as f64;
        Cell {
            micros: done.elapsed.as_secs_f64() * 1e6 * f64::from(clients) / count,
            cpu_micros: used.cpu.as_secs_f64() * 1e6 / count,
            sleeps: used.sleeps_behind_the_door as f64 / count,
        }
    }
}

/// One operation by so many clients at once, in every round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) operation: Operation,
    pub(super) clients: u8,
    peer: Vec<Cell>,
    weir: Vec<Cell>,
}

/// What a row comes to.
#[derive(Debug, Clone, Copy, Serialize)]
struct Summary {
    peer_micros: f64,
    weir_micros: f64,
    /// The middle of the rounds' ratios: what disturbs the machine for longer than a turn hits both.
    ratio: f64,
    /// (largest − smallest of the rounds' ratios) / ratio.
    spread: f64,
    target: f64,
    met: bool,
    peer_cpu_micros: f64,
    weir_cpu_micros: f64,
    weir_sleeps: f64,
}

impl Row {
    pub(super) fn new(operation: Operation, clients: u8) -> Row {
        Row { operation, clients, peer: Vec::new(), weir: Vec::new() }
    }

    pub(super) fn add(&mut self, peer: Cell, weir: Cell) {
        self.peer.push(peer);
        self.weir.push(weir);
    }

    fn summary(&self) -> Summary {
        let middle = |cells: &[Cell], of: fn(&Cell) -> f64| median(&cells.iter().map(of).collect::<Vec<_>>());
        let ratios: Vec<f64> =
            self.peer.iter().zip(&self.weir).map(|(peer, weir)| weir.micros / peer.micros).collect();
        let ratio = median(&ratios);
        let low = ratios.iter().copied().fold(f64::MAX, f64::min);
        let high = ratios.iter().copied().fold(0.0, f64::max);
        Summary {
            peer_micros: middle(&self.peer, |cell| cell.micros),
            weir_micros: middle(&self.weir, |cell| cell.micros),
            ratio,
            spread: (high - low) / ratio,
            target: TARGET,
            met: ratio <= TARGET,
            peer_cpu_micros: middle(&self.peer, |cell| cell.cpu_micros),
            weir_cpu_micros: middle(&self.weir, |cell| cell.cpu_micros),
            weir_sleeps: middle(&self.weir, |cell| cell.sleeps),
        }
    }
}

/// The result of `weir bench door`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    benchmark: &'static str,
    version: &'static str,
    kernel: String,
    processors: usize,
    threads: u8,
    rounds: u16,
    slice_ms: u64,
    rows: Vec<Reported>,
}

#[derive(Debug, Serialize)]
struct Reported {
    #[serde(flatten)]
    summary: Summary,
    #[serde(flatten)]
    row: Row,
}

impl Report {
    pub(super) fn new(threads: u8, rounds: u16, slice_ms: u64, rows: Vec<Row>) -> Report {
        Report {
            benchmark: "door",
            version: env!("CARGO_PKG_VERSION"),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            threads,
            rounds,
            slice_ms,
            rows: rows.into_iter().map(|row| Reported { summary: row.summary(), row }).collect(),
        }
    }
}

/// The report as text for people.
pub(super) fn text(report: &Report) -> String {
    let mut out = format!(
        "weir {} · Linux {} · {} processors · {} door thread(s) · {} rounds of {} ms\n\
         microseconds per operation as its client sees it, and of the process's CPU; medians\n\n\
         {:<24}{:>7}{:>9}{:>9}{:>8}{:>9}{:>12}{:>11}{:>13}\n",
        report.version,
        report.kernel,
        report.processors,
        report.threads,
        report.rounds,
        report.slice_ms,
        "operation",
        "clients",
        "peer",
        "weir",
        "ratio",
        "spread",
        "peer's CPU",
        "weir's CPU",
        "weir's sleeps"
    );
    for Reported { summary, row } in &report.rows {
        let _ = writeln!(
            out,
            "{:<24}{:>7}{:>9.2}{:>9.2}{:>8.2}{:>8.0}%{:>12.2}{:>11.2}{:>13.3}  {}",
            row.operation.name(),
            row.clients,
            summary.peer_micros,
            summary.weir_micros,
            summary.ratio,
            summary.spread * 100.0,
            summary.peer_cpu_micros,
            summary.weir_cpu_micros,
            summary.weir_sleeps,
            if summary.met { "met" } else { "MISSED" }
        );
    }
    let missed = report.rows.iter().filter(|row| !row.summary.met).count();
    let _ = writeln!(
        out,
        "\n{} of {} at most {TARGET} times the peer",
        report.rows.len() - missed,
        report.rows.len()
    );
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn cell(micros: u64, clients: u8) -> Cell {
        let done = Done { operations: 1000, elapsed: Duration::from_micros(micros * 1000) };
        let cpu = Duration::from_micros(500);
        Cell::new(done, clients, Used { cpu, sleeps_behind_the_door: 10 })
    }

    #[test]
    fn a_client_waits_as_long_as_all_of_them_work() {
        let two = cell(4, 2);
        assert!((two.micros - 8.0).abs() < 1e-9, "{two:?}");
        assert!((two.cpu_micros - 0.5).abs() < 1e-9 && (two.sleeps - 0.01).abs() < 1e-9, "{two:?}");
    }

    #[test]
    fn a_row_compares_turns_of_the_same_round() {
        let mut row = Row::new(Operation::Fstat, 1);
        // The machine was twice as slow in the last rounds, for both.
        for (peer, weir) in [(10, 12), (10, 12), (20, 24), (20, 26), (20, 20)] {
            row.add(cell(peer, 1), cell(weir, 1));
        }
        let summary = row.summary();
        assert!((summary.ratio - 1.2).abs() < 1e-9 && summary.met, "{summary:?}");
        assert!((summary.spread - 0.25).abs() < 1e-9, "{summary:?}");
    }

    #[test]
    fn a_row_above_the_target_is_missed_and_counted() {
        let mut row = Row::new(Operation::Lookup, 2);
        row.add(cell(10, 2), cell(14, 2));
        let text = text(&Report::new(1, 1, 10, vec![row]));
        assert!(text.contains("MISSED") && text.contains("0 of 1 at most 1.3"), "{text}");
    }
}

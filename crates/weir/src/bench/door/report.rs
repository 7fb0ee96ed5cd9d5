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

/// The value below which `quarters` of four parts of the values lie. 0 for none.
fn quartile(values: &[f64], quarters: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = sorted.len() * quarters / 4;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// What a row comes to. Times are first quartiles over the turns: a machine that is shared only ever makes a turn
/// slower, by factors, so the faster turns are those that say what an operation costs.
#[derive(Debug, Clone, Copy, Serialize)]
struct Summary {
    peer_micros: f64,
    weir_micros: f64,
    /// Between the quartiles above.
    ratio: f64,
    /// The middle of the rounds' ratios, for comparison: on a quiet machine it is the same.
    median_ratio: f64,
    /// (third quartile − first quartile) / median of weir's times: how quiet the machine was.
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
        let all = |cells: &[Cell], of: fn(&Cell) -> f64| cells.iter().map(of).collect::<Vec<f64>>();
        let low = |cells: &[Cell], of: fn(&Cell) -> f64| quartile(&all(cells, of), 1);
        let (peer, weir) = (all(&self.peer, |cell| cell.micros), all(&self.weir, |cell| cell.micros));
        let ratios: Vec<f64> = peer.iter().zip(&weir).map(|(peer, weir)| weir / peer).collect();
        let ratio = quartile(&weir, 1) / quartile(&peer, 1);
        let sleeps = all(&self.weir, |cell| cell.sleeps);
        Summary {
            peer_micros: quartile(&peer, 1),
            weir_micros: quartile(&weir, 1),
            ratio,
            median_ratio: median(&ratios),
            spread: (quartile(&weir, 3) - quartile(&weir, 1)) / median(&weir),
            target: TARGET,
            met: ratio <= TARGET,
            peer_cpu_micros: low(&self.peer, |cell| cell.cpu_micros),
            weir_cpu_micros: low(&self.weir, |cell| cell.cpu_micros),
            weir_sleeps: sleeps.iter().sum::<f64>() / sleeps.len().max(1) as f64,
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
         microseconds per operation as its client sees it, and of the process's CPU; first quartiles over the rounds\n\n\
         {:<24}{:>7}{:>9}{:>9}{:>8}{:>8}{:>9}{:>12}{:>12}{:>15}\n",
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
        "median",
        "spread",
        "peer's CPU",
        "weir's CPU",
        "weir's sleeps"
    );
    for Reported { summary, row } in &report.rows {
        let _ = writeln!(
            out,
            "{:<24}{:>7}{:>9.2}{:>9.2}{:>8.2}{:>8.2}{:>8.0}%{:>12.2}{:>12.2}{:>15.3}  {}",
            row.operation.name(),
            row.clients,
            summary.peer_micros,
            summary.weir_micros,
            summary.ratio,
            summary.median_ratio,
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
    fn a_row_compares_what_operations_cost_when_the_machine_is_quiet() {
        let mut row = Row::new(Operation::Fstat, 1);
        // The machine was slow in most rounds, mostly for weir.
        for (peer, weir) in [(10, 12), (10, 12), (10, 12), (10, 30), (20, 26), (20, 40), (10, 15), (10, 80)] {
            row.add(cell(peer, 1), cell(weir, 1));
        }
        let summary = row.summary();
        assert!((summary.ratio - 1.2).abs() < 1e-9 && summary.met, "{summary:?}");
        assert!((summary.median_ratio - 1.4).abs() < 1e-9, "{summary:?}");
    }

    #[test]
    fn a_row_above_the_target_is_missed_and_counted() {
        let mut row = Row::new(Operation::Lookup, 2);
        row.add(cell(10, 2), cell(14, 2));
        let text = text(&Report::new(1, 1, 10, vec![row]));
        assert!(text.contains("MISSED") && text.contains("0 of 1 at most 1.3"), "{text}");
    }
}

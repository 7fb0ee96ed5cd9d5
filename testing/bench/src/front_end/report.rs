//! The report of a run, as text and as JSON.

use std::fmt::Write as _;

use serde::Serialize;

use super::super::quantile::{median, quantile};
use super::machine::ForeignLoad;
use super::operations::{OperationRow, OperationSummary};

/// Median and quartiles of the rounds. All are 0 if there were no rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct RoundSpread {
    pub(super) median: f64,
    pub(super) first_quartile: f64,
    pub(super) third_quartile: f64,
}

impl RoundSpread {
    pub(super) fn of(values: &[f64]) -> RoundSpread {
        let (first_quartile, third_quartile) = (quantile(values, 0.25), quantile(values, 0.75));
        RoundSpread { median: median(values), first_quartile, third_quartile }
    }
}

/// The bound that a figure must meet.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum TargetBound {
    AtMost(f64),
    AtLeast(f64),
}

impl TargetBound {
    fn holds(self, figure: f64) -> bool {
        match self {
            TargetBound::AtMost(most) => figure <= most,
            TargetBound::AtLeast(least) => figure >= least,
        }
    }

    fn text(self) -> String {
        match self {
            TargetBound::AtMost(most) => format!("<= {most}"),
            TargetBound::AtLeast(least) => format!(">= {least}"),
        }
    }
}

/// A figure with a target: one of weir's own, or its ratio to another system's, round by round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SpeedTarget {
    row: String,
    /// Unit of weir's and the other system's figures.
    unit: &'static str,
    /// weir's figures, round by round.
    weir: Vec<f64>,
    other: Option<Vec<f64>>,
    /// The figure that is compared with the target.
    figure: RoundSpread,
    target: TargetBound,
    met: bool,
}

impl SpeedTarget {
    /// A target for weir's own figure.
    pub(super) fn own(
        row: impl Into<String>,
        unit: &'static str,
        weir: &[f64],
        target: TargetBound,
    ) -> SpeedTarget {
        SpeedTarget::new(row.into(), unit, weir, None, weir, target)
    }

    /// A target for the ratio of weir's figure to another system's.
    pub(super) fn ratio(
        row: impl Into<String>,
        unit: &'static str,
        weir: &[f64],
        other: &[f64],
        target: TargetBound,
    ) -> SpeedTarget {
        let ratios: Vec<f64> = weir.iter().zip(other).map(|(weir, other)| weir / other).collect();
        SpeedTarget::new(row.into(), unit, weir, Some(other), &ratios, target)
    }

    fn new(
        row: String,
        unit: &'static str,
        weir: &[f64],
        other: Option<&[f64]>,
        figures: &[f64],
        target: TargetBound,
    ) -> SpeedTarget {
        let figure = RoundSpread::of(figures);
        // A target without a measurement is missed, and so is a ratio to zero.
        let met = !figures.is_empty() && figure.median.is_finite() && target.holds(figure.median);
        SpeedTarget { row, unit, weir: weir.to_vec(), other: other.map(<[f64]>::to_vec), figure, target, met }
    }
}

/// The result of `weir-bench front-end`.
#[derive(Debug, Serialize)]
pub(super) struct FrontEndReport {
    pub(super) benchmark: &'static str,
    pub(super) version: &'static str,
    pub(super) kernel: String,
    pub(super) processors: usize,
    /// Type and source of the file system that holds all files.
    pub(super) disk: String,
    /// Number of busy threads that ran beside the measurement.
    pub(super) busy_threads: usize,
    pub(super) others: ForeignLoad,
    pub(super) seconds: u64,
    pub(super) operations: Vec<ReportedOperation>,
    pub(super) targets: Vec<SpeedTarget>,
    /// Conditions that a reader must know, such as measurements left out.
    pub(super) notes: Vec<String>,
}

/// A row of operations with its summary.
#[derive(Debug, Serialize)]
pub(super) struct ReportedOperation {
    #[serde(flatten)]
    row: OperationRow,
    summary: OperationSummary,
}

impl From<OperationRow> for ReportedOperation {
    fn from(row: OperationRow) -> ReportedOperation {
        ReportedOperation { summary: row.summary(), row }
    }
}

/// From this share of foreign load on, the machine counts as busy.
const IDLE_MAX: f64 = 0.1;

/// Formats the report as text.
pub(super) fn text(report: &FrontEndReport) -> String {
    let others = report.others;
    let idle = if others.used + others.host < IDLE_MAX { "idle" } else { "BUSY" };
    let mut out = format!(
        "weir {} · Linux {} · {} processors · files on {} · {} s\n\
         the machine was {idle}: others used {:.0} % of its processors, its host {:.0} %; {}\n",
        report.version,
        report.kernel,
        report.processors,
        report.disk,
        report.seconds,
        others.used * 100.0,
        others.host * 100.0,
        match report.busy_threads {
            0 => "no load beside what is measured".to_owned(),
            threads => format!("beside {threads} busy threads of normal priority"),
        }
    );
    for note in &report.notes {
        let _ = writeln!(out, "{note}");
    }
    write_operations(&mut out, &report.operations, report.disk.split(' ').next().unwrap_or_default());
    write_targets(&mut out, &report.targets);
    out
}

fn write_operations(out: &mut String, rows: &[ReportedOperation], disk: &str) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(
        out,
        "\nmicroseconds of the middle operation (p50), operations/s of all clients, microseconds of the process's CPU; medians\n\
         {:<24}{:>7}{:>9}{:>9}{:>9}{:>8}{:>14}{:>10}{:>10}{:>10}{:>10}{:>10}{:>12}\n",
        "operation",
        "clients",
        "peer us",
        "weir us",
        format!("{disk} us"),
        "ratio",
        "quartiles",
        "peer /s",
        "weir /s",
        format!("{disk} /s"),
        "peer CPU",
        "weir CPU",
        "weir sleeps"
    );
    for ReportedOperation { row, summary: of } in rows {
        let disk = |value: Option<f64>| value.map_or("-".to_owned(), figure);
        let _ = writeln!(
            out,
            "{:<24}{:>7}{:>9}{:>9}{:>9}{:>8}{:>14}{:>10.0}{:>10.0}{:>10}{:>10}{:>10}{:>12.3}",
            row.operation.name(),
            row.clients,
            figure(of.peer_micros.median),
            figure(of.weir_micros.median),
            disk(of.disk_micros.map(|micros| micros.median)),
            figure(of.ratio.median),
            quartiles(of.ratio),
            of.peer_per_s.median,
            of.weir_per_s.median,
            disk(of.disk_per_s.map(|rate| rate.median)),
            figure(of.peer_cpu_micros),
            figure(of.weir_cpu_micros),
            of.weir_sleeps
        );
    }
}

fn write_targets(out: &mut String, targets: &[SpeedTarget]) {
    let _ = writeln!(
        out,
        "\n{:<62}{:>11}{:>11}  {:<9}{:>10}{:>16}{:>10}",
        "target", "weir", "other", "", "figure", "quartiles", "target"
    );
    for target in targets {
        let _ = writeln!(
            out,
            "{:<62}{:>11}{:>11}  {:<9}{:>10}{:>16}{:>10}  {}",
            target.row,
            figure(median(&target.weir)),
            target.other.as_ref().map_or(String::new(), |other| figure(median(other))),
            target.unit,
            figure(target.figure.median) + if target.other.is_some() { "×" } else { "" },
            quartiles(target.figure),
            target.target.text(),
            if target.met { "met" } else { "MISSED" }
        );
    }
    let met = targets.iter().filter(|target| target.met).count();
    let _ = writeln!(out, "\n{met} of {} met", targets.len());
}

fn quartiles(of: RoundSpread) -> String {
    format!("{}..{}", figure(of.first_quartile), figure(of.third_quartile))
}

/// Formats a number with three digits or more.
fn figure(value: f64) -> String {
    match value {
        below if below < 9.995 => format!("{below:.2}"),
        below if below < 99.95 => format!("{below:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quartiles_hold_the_middle_half() {
        let of = RoundSpread::of(&[8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]);
        assert_eq!(of, RoundSpread { median: 4.5, first_quartile: 2.75, third_quartile: 6.25 });
        let one = RoundSpread::of(&[3.0]);
        assert_eq!(one, RoundSpread { median: 3.0, first_quartile: 3.0, third_quartile: 3.0 });
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        // The machine became slower by ten times in the middle of the run.
        let target = SpeedTarget::ratio(
            "write",
            "us",
            &[12.0, 120.0, 130.0],
            &[10.0, 100.0, 100.0],
            TargetBound::AtMost(1.2),
        );
        assert!((target.figure.median - 1.2).abs() < 1e-9 && target.met, "{target:?}");
        assert_eq!(target.other, Some(vec![10.0, 100.0, 100.0]));
    }

    #[test]
    fn what_is_at_its_target_is_met_and_beyond_or_not_measured_is_missed() {
        let own = |values: &[f64], bound| SpeedTarget::own("row", "us", values, bound).met;
        assert!(own(&[20.0], TargetBound::AtMost(20.0)) && !own(&[20.1], TargetBound::AtMost(20.0)));
        assert!(own(&[9.0], TargetBound::AtLeast(9.0)) && !own(&[8.9], TargetBound::AtLeast(9.0)));
        assert!(!own(&[], TargetBound::AtMost(20.0)), "nothing was measured");
        let over_nothing = SpeedTarget::ratio("row", "/s", &[1.0], &[0.0], TargetBound::AtLeast(1.0));
        assert!(!over_nothing.met, "{over_nothing:?}");
    }

    #[test]
    fn a_report_tells_what_was_missed_and_whether_the_machine_was_idle() {
        let targets = vec![
            SpeedTarget::own("one", "us", &[1.0], TargetBound::AtMost(2.0)),
            SpeedTarget::own("two", "us", &[3.0], TargetBound::AtMost(2.0)),
        ];
        let others = ForeignLoad { used: 0.01, host: 0.0 };
        let mut report = FrontEndReport {
            benchmark: "front-end",
            version: "0",
            kernel: String::new(),
            processors: 2,
            disk: "ext4 /dev/sda".to_owned(),
            busy_threads: 2,
            others,
            seconds: 1,
            operations: Vec::new(),
            targets,
            notes: vec!["sqlite: not measured".to_owned()],
        };
        let said = text(&report);
        for part in ["1 of 2 met", "MISSED", "was idle: others used 1 %", "2 busy threads", "not measured"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        report.others.host = 0.3;
        assert!(text(&report).contains("was BUSY"), "{}", text(&report));
    }
}

//! Figures of weir that must meet a bound.

use serde::Serialize;

use super::super::quantile::RoundSpread;
use super::super::report::{BenchReport, ReportCell, ReportTable};

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
#[derive(Debug, Clone)]
pub(super) struct SpeedTarget {
    row: String,
    /// Unit of weir's and the other system's figures.
    unit: &'static str,
    /// weir's figures, round by round.
    pub(super) weir: Vec<f64>,
    pub(super) other: Option<Vec<f64>>,
    /// The figure that is compared with the target.
    figure: RoundSpread,
    target: TargetBound,
    pub(super) met: bool,
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

/// Adds a table of the targets, and how many are met.
pub(super) fn add_targets(report: &mut BenchReport, targets: &[SpeedTarget]) {
    let mut table = ReportTable::default();
    for of in targets {
        let figure = ReportCell::from(of.figure).unit(if of.other.is_some() { " ×" } else { "" });
        table.row([
            ("row", "target", of.row.as_str().into()),
            ("weir", "weir", ReportCell::rounds(&of.weir)),
            ("other", "other", of.other.as_deref().map(ReportCell::rounds).into()),
            ("unit", "unit", of.unit.into()),
            ("figure", "figure (quartiles)", figure),
            ("target", "bound", ReportCell::json(of.target).shown_as(of.target.text())),
            ("met", "verdict", ReportCell::verdict(of.met)),
        ]);
    }
    let met = targets.iter().filter(|target| target.met).count();
    report.table("targets", &table);
    report.line(format!("{met} of {} met", targets.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_table_names_each_target_with_its_verdict() {
        let targets = [
            SpeedTarget::own("one", "us", &[1.0], TargetBound::AtMost(2.0)),
            SpeedTarget::ratio("two", "us", &[3.0], &[1.0], TargetBound::AtMost(2.0)),
        ];
        let mut report = BenchReport::default();
        add_targets(&mut report, &targets);
        let text = report.text().replace(' ', "");
        for part in [
            "|one|1.00|-|us|1.00(1.00–1.00)|<=2|met|",
            "|two|3.00|1.00|us|3.00(3.00–3.00)×|<=2|MISSED|",
            "1of2met",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}

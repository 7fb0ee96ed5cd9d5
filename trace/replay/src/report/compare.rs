//! Compares reports side by side, and marks differences that exceed the noise.

use super::{ReplayReport, RunSummary};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Student's t: 95 % of means lie within this many standard errors. By degrees of freedom, from 1.
const T95: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
/// Student's t for more degrees of freedom; a little too wide.
const T95_MORE: f64 = 2.228;

/// A mean and the interval in which it lies with 95 % confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct ConfidenceInterval {
    /// The mean, in nanoseconds.
    pub mean: f64,
    /// Half the interval's width; `None` for a single run.
    pub half: Option<f64>,
}

impl ConfidenceInterval {
    /// The interval of these figures.
    pub fn of(figures: &[f64]) -> ConfidenceInterval {
        let count = figures.len().max(1) as f64;
        let mean = figures.iter().sum::<f64>() / count;
        let half = (figures.len() > 1).then(|| {
            let variance = figures.iter().map(|figure| (figure - mean).powi(2)).sum::<f64>() / (count - 1.0);
            T95.get(figures.len() - 2).unwrap_or(&T95_MORE) * (variance / count).sqrt()
        });
        ConfidenceInterval { mean, half }
    }

    /// Whether the two intervals do not touch. `None` without repeated runs.
    fn differs(self, other: ConfidenceInterval) -> Option<bool> {
        Some((self.mean - other.mean).abs() > self.half? + other.half?)
    }
}

/// One figure, from all reports.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name of the figure.
    pub what: String,
    /// The value in each report.
    pub values: Vec<ConfidenceInterval>,
    /// Whether each value differs from the first report's by more than the noise; `None` without repeated
    /// runs.
    pub differs: Vec<Option<bool>>,
}

/// Reports side by side.
#[derive(Debug, Clone, Serialize)]
pub struct ReportComparison {
    /// The reports' names.
    pub names: Vec<String>,
    /// The elapsed time, then the mean of each call, in nanoseconds.
    pub rows: Vec<Row>,
}

impl ReportComparison {
    /// Compares reports with the first of them.
    pub fn new(reports: &[(String, ReplayReport)]) -> ReportComparison {
        let row = |what: &str, figure: &dyn Fn(&RunSummary) -> Option<u64>| {
            let of = |report: &ReplayReport| {
                let figures: Vec<_> = report.runs.iter().filter_map(figure).map(|ns| ns as f64).collect();
                ConfidenceInterval::of(&figures)
            };
            let values: Vec<_> = reports.iter().map(|(_, report)| of(report)).collect();
            let differs = values.iter().map(|value| values[0].differs(*value)).collect();
            Row { what: what.into(), values, differs }
        };
        let mut rows = vec![row("elapsed", &|run| Some(run.elapsed_ns))];
        let calls: BTreeSet<_> = reports
            .iter()
            .flat_map(|(_, report)| report.runs.iter().flat_map(|run| run.calls.keys()))
            .collect();
        rows.extend(calls.into_iter().map(|call| row(call, &|run| run.calls.get(call).copied())));
        ReportComparison { names: reports.iter().map(|(name, _)| name.clone()).collect(), rows }
    }
}

impl RunSummary {
    pub(super) fn of(report: &ReplayReport) -> RunSummary {
        let mean = |latency: &super::CallLatency| latency.total_ns / latency.count.max(1);
        let calls: BTreeMap<_, _> =
            report.calls.iter().map(|(call, latency)| (call.clone(), mean(latency))).collect();
        RunSummary { elapsed_ns: report.elapsed_ns, calls }
    }
}

impl fmt::Display for ReportComparison {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, name) in self.names.iter().enumerate() {
            writeln!(out, "[{number}] {name}")?;
        }
        writeln!(out, "microseconds, mean and 95 % interval; * differs from [0] by more than the noise")?;
        for row in &self.rows {
            write!(out, "{:<18}", row.what)?;
            for (value, differs) in row.values.iter().zip(&row.differs) {
                let mark = if *differs == Some(true) { "*" } else { " " };
                let half = value.half.map_or("(one run)".into(), |half| format!("+-{:.1}", half / 1e3));
                write!(out, " {:>14.1} {half:<12}{mark}", value.mean / 1e3)?;
            }
            writeln!(out)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_that_of_students_distribution() {
        let interval = ConfidenceInterval::of(&[9.0, 10.0, 11.0]);
        // The standard deviation (1) over the root of three, times 4.303.
        assert!((interval.half.expect("three runs") - 2.484).abs() < 0.001);
        assert_eq!(ConfidenceInterval::of(&[5.0]), ConfidenceInterval { mean: 5.0, half: None });
    }

    #[test]
    fn only_what_exceeds_the_noise_differs() {
        let steady = ConfidenceInterval::of(&[100.0, 101.0, 99.0]);
        let noisy = ConfidenceInterval::of(&[80.0, 130.0, 120.0]);
        let slower = ConfidenceInterval::of(&[200.0, 201.0, 199.0]);
        assert_eq!(steady.differs(noisy), Some(false));
        assert_eq!(steady.differs(slower), Some(true));
        assert_eq!(steady.differs(ConfidenceInterval::of(&[500.0])), None);
    }
}

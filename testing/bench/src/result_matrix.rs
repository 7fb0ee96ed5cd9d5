//! Results of experiments with many cells.
//!
//! Several systems take turns to measure a cell. With `--into`, each cell is kept as a line of JSON in a
//! file, so that it is measured once.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::BenchError;
use super::json_lines::JsonLines;
use super::machine_info::{MachineInfo, load_average};
use super::quantile::{median, spread};
use super::report::{BenchReport, ReportTable, number};
use super::run_args::RunSize;

/// Options of experiments with many cells.
#[derive(Debug, Args)]
pub(super) struct MatrixArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    pub(super) size: RunSize,
    /// Rounds of each cell [default: 3, or 1 with `small`]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(super) rounds: Option<u32>,
    /// Append each cell to FILE once it is measured; do not measure cells that FILE has with the same
    /// parameters
    #[arg(long, value_name = "FILE")]
    pub(super) into: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Identity of a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct CellKey {
    /// The experiment's name on the command line.
    pub(super) benchmark: String,
    /// Cells of one chart differ in one thing only, named by `label`.
    pub(super) chart: String,
    pub(super) label: String,
    /// All other parameters that the figures depend on.
    pub(super) parameters: Value,
}

/// Figures of one system, round by round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SystemFigure {
    pub(super) unit: String,
    pub(super) system: String,
    pub(super) rounds: Vec<f64>,
}

impl SystemFigure {
    pub(super) fn median(&self) -> f64 {
        median(&self.rounds)
    }
}

/// The figures of a cell while its rounds are measured, in the order of their first values.
#[derive(Debug, Default)]
pub(super) struct CellFigures(Vec<SystemFigure>);

impl CellFigures {
    pub(super) fn add(&mut self, unit: &str, system: &str, value: f64) {
        match self.0.iter_mut().find(|figure| figure.unit == unit && figure.system == system) {
            Some(figure) => figure.rounds.push(value),
            None => self.0.push(SystemFigure {
                unit: unit.to_owned(),
                system: system.to_owned(),
                rounds: vec![value],
            }),
        }
    }
}

/// One measured cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct ResultCell {
    #[serde(flatten)]
    pub(super) key: CellKey,
    pub(super) machine: MachineInfo,
    pub(super) figures: Vec<SystemFigure>,
}

impl ResultCell {
    /// Figures of a system, round by round; empty if it was not measured.
    pub(super) fn rounds(&self, unit: &str, system: &str) -> &[f64] {
        let found = self.figures.iter().find(|figure| figure.unit == unit && figure.system == system);
        found.map_or(&[], |figure| &figure.rounds)
    }

    /// The median of `system` over that of `base`, if both were measured.
    pub(super) fn ratio(&self, unit: &str, system: &str, base: &str) -> Option<f64> {
        let [system, base] = [system, base].map(|system| median(self.rounds(unit, system)));
        (system > 0.0 && base > 0.0).then(|| system / base)
    }
}

/// The cells of one run of an experiment.
pub(super) struct ResultMatrix {
    file: Option<JsonLines<ResultCell>>,
    chosen: Vec<ResultCell>,
    machine: MachineInfo,
}

impl ResultMatrix {
    /// Opens the results. Call this before an experiment gives up processors, since their number is recorded.
    pub(super) fn open(into: Option<&Path>) -> Result<ResultMatrix, BenchError> {
        let file = into.map(JsonLines::open).transpose()?;
        Ok(ResultMatrix { file, chosen: Vec::new(), machine: MachineInfo::now() })
    }

    /// Measures a cell, unless the file has it.
    pub(super) fn measure(
        &mut self,
        key: CellKey,
        how: impl FnOnce(&mut CellFigures) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut known = self.file.iter().flat_map(JsonLines::all);
        if let Some(cell) = known.find(|cell| cell.key == key) {
            self.chosen.push(cell.clone());
            return Ok(());
        }
        eprintln!("{}: {}, {}", key.benchmark, key.chart, key.label);
        let machine = MachineInfo { load_average: load_average(), ..self.machine.clone() };
        let mut figures = CellFigures::default();
        how(&mut figures)?;
        let cell = ResultCell { key, machine, figures: figures.0 };
        if let Some(file) = &mut self.file {
            file.add(cell.clone())?;
        }
        self.chosen.push(cell);
        Ok(())
    }

    /// The cells of this run, measured now or before.
    pub(super) fn chosen(&self) -> &[ResultCell] {
        &self.chosen
    }
}

/// A figure computed from several cells, beside a paper's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PaperComparison {
    pub(super) what: String,
    pub(super) here: f64,
    pub(super) unit: &'static str,
    pub(super) published: Option<PaperFigure>,
}

/// A published figure, from other hardware and software.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct PaperFigure {
    pub(super) value: f64,
    pub(super) source: &'static str,
}

/// The geometric mean; `None` if there are no values.
pub(super) fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Figures of one chart in one unit.
pub(super) struct MatrixChart<'a> {
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    /// Labels, each with the figures of all systems.
    pub(super) groups: Vec<(&'a str, Vec<&'a SystemFigure>)>,
}

/// Groups cells by chart and unit, in the order in which they come.
pub(super) fn charts(cells: &[ResultCell]) -> Vec<MatrixChart<'_>> {
    let mut charts: Vec<MatrixChart<'_>> = Vec::new();
    for cell in cells {
        for figure in &cell.figures {
            let (title, label) = (cell.key.chart.as_str(), cell.key.label.as_str());
            let found = charts.iter().position(|chart| chart.title == title && chart.unit == figure.unit);
            let index = found.unwrap_or_else(|| {
                charts.push(MatrixChart { title, unit: &figure.unit, groups: Vec::new() });
                charts.len() - 1
            });
            let groups = &mut charts[index].groups;
            match groups.iter_mut().find(|group| group.0 == label) {
                Some(group) => group.1.push(figure),
                None => groups.push((label, vec![figure])),
            }
        }
    }
    charts
}

/// Prints cells and comparisons, for people or as JSON.
pub(super) fn print(args: &MatrixArgs, cells: &[ResultCell], comparisons: &[PaperComparison]) {
    let mut report = BenchReport::default();
    if let Some(cell) = cells.first() {
        report.line(&cell.machine);
    }
    for chart in charts(cells) {
        report.line(format!("\n{}: {}, medians (spread, rounds)", chart.title, chart.unit));
        let mut systems: Vec<&str> = Vec::new();
        for figure in chart.groups.iter().flat_map(|(_, figures)| figures) {
            if !systems.contains(&figure.system.as_str()) {
                systems.push(&figure.system);
            }
        }
        let mut table = ReportTable::default();
        for (label, figures) in &chart.groups {
            let of_systems = systems.iter().map(|&system| {
                let text = figures.iter().find(|figure| figure.system == system).map(|figure| {
                    let (median, spread) = (number(figure.median()), 100.0 * spread(&figure.rounds));
                    format!("{median} ({spread:.0} %, {})", figure.rounds.len())
                });
                ("", system, text.into())
            });
            table.row([("", "cell", (*label).into())].into_iter().chain(of_systems));
        }
        report.line(table);
    }
    report.line("");
    for PaperComparison { what, here, unit, published } in comparisons {
        let paper = published.map_or(String::new(), |PaperFigure { value, source }| {
            format!(" (paper: {}{unit}, {source})", number(value))
        });
        report.line(format!("{what}: {}{unit}{paper}", number(*here)));
    }
    report.fact("cells", cells);
    report.fact("comparisons", comparisons);
    report.print(args.json);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(label: &str) -> CellKey {
        let parameters = serde_json::json!({ "seconds": 1 });
        CellKey { benchmark: "some".into(), chart: "a chart".into(), label: label.into(), parameters }
    }

    #[test]
    fn a_cell_is_measured_once_and_again_only_with_other_parameters() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cells");
        let one = |value: f64| {
            move |figures: &mut CellFigures| {
                figures.add("writes/s", "weir", value);
                Ok(())
            }
        };
        for value in [1.0, 2.0] {
            let mut cells = ResultMatrix::open(Some(&path)).expect("a file");
            cells.measure(key("64 B"), one(value)).expect("a cell");
            assert_eq!(cells.chosen()[0].rounds("writes/s", "weir"), [1.0]);
        }
        let mut cells = ResultMatrix::open(Some(&path)).expect("a file");
        let other = CellKey { parameters: serde_json::json!({ "seconds": 2 }), ..key("64 B") };
        cells.measure(other, one(3.0)).expect("a cell");
        assert_eq!(cells.chosen()[0].rounds("writes/s", "weir"), [3.0]);
    }

    #[test]
    fn figures_of_one_system_and_unit_are_rounds() {
        let mut figures = CellFigures::default();
        for value in [90.0, 120.0, 100.0] {
            figures.add("writes/s", "weir", value);
        }
        assert_eq!(figures.0.len(), 1);
        assert_eq!(figures.0[0].median(), 100.0);
    }

    #[test]
    fn the_geometric_mean_of_two_and_eight_is_four() {
        assert!((geometric_mean([2.0, 8.0]).expect("two") - 4.0).abs() < 1e-9);
        assert_eq!(geometric_mean([]), None);
    }

    #[test]
    fn charts_hold_the_cells_of_one_unit_by_label() {
        let cell = |label: &str| {
            let mut figures = CellFigures::default();
            figures.add("writes/s", "ext4", 1.0);
            figures.add("writes/s", "weir", 2.0);
            figures.add("bytes", "weir", 3.0);
            ResultCell { key: key(label), machine: MachineInfo::now(), figures: figures.0 }
        };
        let cells = [cell("64 B"), cell("4 KiB")];
        let charts = charts(&cells);
        assert_eq!(charts.iter().map(|chart| chart.unit).collect::<Vec<_>>(), ["writes/s", "bytes"]);
        let sizes: Vec<_> = charts[0].groups.iter().map(|(label, figures)| (*label, figures.len())).collect();
        assert_eq!(sizes, [("64 B", 2), ("4 KiB", 2)]);
    }
}

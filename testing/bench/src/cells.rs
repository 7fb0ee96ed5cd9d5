//! What experiments of many cells share: a cell is measured by several systems in turns and, with `--into`, kept as a line of
//! JSON in a file, so that it is measured once.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::BenchError;
use super::json_lines::JsonLines;
use super::quantile::median;

/// Where results go.
#[derive(Debug, Args)]
pub(super) struct Output {
    /// Append each cell to FILE as soon as it is measured, and measure only those that FILE has not, with the same parameters
    #[arg(long, value_name = "FILE")]
    pub(super) into: Option<PathBuf>,
    /// Write the result as JSON
    #[arg(long)]
    pub(super) json: bool,
}

/// Which cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Key {
    /// The experiment's name on the command line.
    pub(super) benchmark: String,
    /// Cells of one chart differ in one thing only, which `label` says.
    pub(super) chart: String,
    pub(super) label: String,
    /// Whatever else the figures depend on.
    pub(super) parameters: Value,
}

/// What one system did, round by round.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Figure {
    pub(super) unit: String,
    pub(super) system: String,
    pub(super) rounds: Vec<f64>,
}

impl Figure {
    pub(super) fn median(&self) -> f64 {
        median(&self.rounds)
    }

    /// (largest − smallest) / median, as a share.
    pub(super) fn spread(&self) -> f64 {
        let (low, high) =
            self.rounds.iter().fold((f64::MAX, 0.0_f64), |(low, high), &one| (low.min(one), high.max(one)));
        (high - low).max(0.0) / self.median().max(f64::MIN_POSITIVE)
    }
}

/// The figures of a cell while its rounds are measured, in the order in which they come first.
#[derive(Debug, Default)]
pub(super) struct Figures(Vec<Figure>);

impl Figures {
    pub(super) fn add(&mut self, unit: &str, system: &str, value: f64) {
        match self.0.iter_mut().find(|figure| figure.unit == unit && figure.system == system) {
            Some(figure) => figure.rounds.push(value),
            None => {
                self.0.push(Figure { unit: unit.to_owned(), system: system.to_owned(), rounds: vec![value] })
            }
        }
    }
}

/// Where a cell was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Machine {
    pub(super) version: String,
    pub(super) kernel: String,
    pub(super) processors: usize,
    /// Of one minute, before the cell.
    pub(super) load_average: f64,
}

impl Machine {
    fn now(processors: usize) -> Machine {
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            processors,
            load_average: load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0),
        }
    }
}

/// One cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Cell {
    #[serde(flatten)]
    pub(super) key: Key,
    pub(super) machine: Machine,
    pub(super) figures: Vec<Figure>,
}

impl Cell {
    /// What a system did, round by round; empty if it was not measured.
    pub(super) fn rounds(&self, unit: &str, system: &str) -> &[f64] {
        let found = self.figures.iter().find(|figure| figure.unit == unit && figure.system == system);
        found.map_or(&[], |figure| &figure.rounds)
    }

    /// The middle of `system` over that of `base`, if both were measured.
    pub(super) fn ratio(&self, unit: &str, system: &str, base: &str) -> Option<f64> {
        let [system, base] = [system, base].map(|system| median(self.rounds(unit, system)));
        (system > 0.0 && base > 0.0).then(|| system / base)
    }
}

/// The cells of one run of an experiment.
pub(super) struct Cells {
    file: Option<JsonLines<Cell>>,
    chosen: Vec<Cell>,
    processors: usize,
}

impl Cells {
    /// To be called before an experiment gives up processors.
    pub(super) fn open(into: Option<&Path>) -> Result<Cells, BenchError> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Cells { file: into.map(JsonLines::open).transpose()?, chosen: Vec::new(), processors })
    }

    /// Measures a cell, unless the file has it.
    pub(super) fn measure(
        &mut self,
        key: Key,
        how: impl FnOnce(&mut Figures) -> Result<(), BenchError>,
    ) -> Result<(), BenchError> {
        let mut known = self.file.iter().flat_map(JsonLines::all);
        if let Some(cell) = known.find(|cell| cell.key == key) {
            self.chosen.push(cell.clone());
            return Ok(());
        }
        eprintln!("{}: {}, {}", key.benchmark, key.chart, key.label);
        let machine = Machine::now(self.processors);
        let mut figures = Figures::default();
        how(&mut figures)?;
        let cell = Cell { key, machine, figures: figures.0 };
        if let Some(file) = &mut self.file {
            file.add(cell.clone())?;
        }
        self.chosen.push(cell);
        Ok(())
    }

    /// Those of this run, measured now or before.
    pub(super) fn chosen(&self) -> &[Cell] {
        &self.chosen
    }
}

/// A figure made of several cells, beside a paper's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Comparison {
    pub(super) what: String,
    pub(super) here: f64,
    pub(super) unit: &'static str,
    pub(super) published: Option<Published>,
}

/// A figure that a paper has, on other hardware and with other software.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Published {
    pub(super) value: f64,
    pub(super) source: &'static str,
}

/// The geometric mean; `None` of nothing.
pub(super) fn geometric_mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let logs: Vec<f64> = values.into_iter().map(f64::ln).collect();
    (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
}

/// Cells of one chart that have one unit.
pub(super) struct Chart<'a> {
    pub(super) title: &'a str,
    pub(super) unit: &'a str,
    /// A label, and what each system did there.
    pub(super) groups: Vec<(&'a str, Vec<&'a Figure>)>,
}

/// Cells by chart and unit, in the order in which they come.
pub(super) fn charts<'a>(cells: &[&'a Cell]) -> Vec<Chart<'a>> {
    let mut charts: Vec<Chart<'a>> = Vec::new();
    for cell in cells {
        for figure in &cell.figures {
            let (title, label) = (cell.key.chart.as_str(), cell.key.label.as_str());
            let found = charts.iter().position(|chart| chart.title == title && chart.unit == figure.unit);
            let index = found.unwrap_or_else(|| {
                charts.push(Chart { title, unit: &figure.unit, groups: Vec::new() });
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
pub(super) fn print(output: &Output, cells: &[Cell], comparisons: &[Comparison]) {
    if output.json {
        let all = serde_json::json!({ "cells": cells, "comparisons": comparisons });
        println!("{all:#}");
    } else {
        print!("{}", text(&cells.iter().collect::<Vec<_>>(), comparisons));
    }
}

fn text(cells: &[&Cell], comparisons: &[Comparison]) -> String {
    let mut out = String::new();
    if let Some(cell) = cells.first() {
        let Machine { version, kernel, processors, .. } = &cell.machine;
        let _ = writeln!(out, "weir {version} · Linux {kernel} · {processors} processors");
    }
    for chart in charts(cells) {
        let _ = writeln!(out, "\n{}: {}, medians (spread, rounds)", chart.title, chart.unit);
        for (label, figures) in &chart.groups {
            let _ = write!(out, "{label:>12}");
            for figure in figures {
                let (median, spread) = (number(figure.median()), 100.0 * figure.spread());
                let _ = write!(out, "  {}: {median} ({spread:.0} %, {})", figure.system, figure.rounds.len());
            }
            out.push('\n');
        }
    }
    if !comparisons.is_empty() {
        out.push('\n');
    }
    for Comparison { what, here, unit, published } in comparisons {
        let paper = published.map_or(String::new(), |Published { value, source }| {
            format!(" (paper: {}{unit}, {source})", number(value))
        });
        let _ = writeln!(out, "{what}: {}{unit}{paper}", number(*here));
    }
    out
}

/// With three digits or more.
pub(super) fn number(value: f64) -> String {
    match value.abs() {
        tiny if tiny < 0.995 => format!("{value:.3}"),
        small if small < 10.0 => format!("{value:.2}"),
        medium if medium < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(label: &str) -> Key {
        let parameters = serde_json::json!({ "seconds": 1 });
        Key { benchmark: "some".into(), chart: "a chart".into(), label: label.into(), parameters }
    }

    #[test]
    fn a_cell_is_measured_once_and_again_only_with_other_parameters() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cells");
        let one = |value: f64| {
            move |figures: &mut Figures| {
                figures.add("writes/s", "weir", value);
                Ok(())
            }
        };
        for value in [1.0, 2.0] {
            let mut cells = Cells::open(Some(&path)).expect("a file");
            cells.measure(key("64 B"), one(value)).expect("a cell");
            assert_eq!(cells.chosen()[0].rounds("writes/s", "weir"), [1.0]);
        }
        let mut cells = Cells::open(Some(&path)).expect("a file");
        let other = Key { parameters: serde_json::json!({ "seconds": 2 }), ..key("64 B") };
        cells.measure(other, one(3.0)).expect("a cell");
        assert_eq!(cells.chosen()[0].rounds("writes/s", "weir"), [3.0]);
    }

    #[test]
    fn figures_of_one_system_and_unit_are_rounds() {
        let mut figures = Figures::default();
        for value in [90.0, 120.0, 100.0] {
            figures.add("writes/s", "weir", value);
        }
        assert_eq!(figures.0.len(), 1);
        assert_eq!(figures.0[0].median(), 100.0);
        assert!((figures.0[0].spread() - 0.3).abs() < 1e-9);
    }

    #[test]
    fn the_geometric_mean_of_two_and_eight_is_four() {
        assert!((geometric_mean([2.0, 8.0]).expect("two") - 4.0).abs() < 1e-9);
        assert_eq!(geometric_mean([]), None);
    }

    #[test]
    fn charts_hold_the_cells_of_one_unit_by_label() {
        let cell = |label: &str| {
            let mut figures = Figures::default();
            figures.add("writes/s", "ext4", 1.0);
            figures.add("writes/s", "weir", 2.0);
            figures.add("bytes", "weir", 3.0);
            Cell { key: key(label), machine: Machine::now(2), figures: figures.0 }
        };
        let cells = [cell("64 B"), cell("4 KiB")];
        let charts = charts(&cells.iter().collect::<Vec<_>>());
        assert_eq!(charts.iter().map(|chart| chart.unit).collect::<Vec<_>>(), ["writes/s", "bytes"]);
        let sizes: Vec<_> = charts[0].groups.iter().map(|(label, figures)| (*label, figures.len())).collect();
        assert_eq!(sizes, [("64 B", 2), ("4 KiB", 2)]);
    }
}

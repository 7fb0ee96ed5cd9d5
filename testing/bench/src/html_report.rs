//! `weir-bench report`: what files of cells hold, as one page of HTML that needs nothing else: bars in SVG, beside papers' figures.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::Args;

use super::cells::{Cell, Chart, Comparison, charts, number};
use super::error::BenchError;
use super::{json_lines, periodic_flushing, personalities, sync_matrix};

/// What to draw.
#[derive(Debug, Args)]
pub(super) struct ReportArgs {
    /// What `--into` wrote; of cells that differ in nothing but parameters the last one counts
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The page
    #[arg(long, value_name = "PATH")]
    out: PathBuf,
}

/// Reads the files and writes the page.
pub(super) fn run_report(args: &ReportArgs) -> Result<(), BenchError> {
    let mut cells: Vec<Cell> = Vec::new();
    for file in &args.files {
        for cell in json_lines::read::<Cell>(file)? {
            let place =
                |cell: &Cell| (cell.key.benchmark.clone(), cell.key.chart.clone(), cell.key.label.clone());
            match cells.iter_mut().find(|known| place(known) == place(&cell)) {
                Some(known) => *known = cell,
                None => cells.push(cell),
            }
        }
    }
    std::fs::write(&args.out, page(&cells)).map_err(|error| BenchError::io("cannot write", &args.out, error))
}

const HEAD: &str = "<!DOCTYPE html>
<html lang=\"en\">
<meta charset=\"utf-8\">
<meta name=\"viewport\" content=\"width=device-width\">
<title>weir-bench</title>
<style>
body { font: 14px/1.4 sans-serif; max-width: 1400px; margin: 1em auto; padding: 0 1em; color: #222; background: #fff }
figure { margin: 0 0 1em }
figcaption { font-weight: bold }
.charts { display: flex; flex-wrap: wrap; gap: 1em 2em }
svg { font: 12px sans-serif; max-width: 100% }
</style>
<h1>weir-bench</h1>
<p>A bar ends at the median of the rounds; the thin line reaches from the lowest to the highest. Papers measured other hardware and
other software.</p>
";

/// Everything, benchmark by benchmark.
fn page(cells: &[Cell]) -> String {
    let mut out = HEAD.to_owned();
    let mut benchmarks: Vec<&str> = Vec::new();
    for cell in cells {
        if !benchmarks.contains(&cell.key.benchmark.as_str()) {
            benchmarks.push(&cell.key.benchmark);
        }
    }
    for benchmark in benchmarks {
        let of: Vec<Cell> = cells.iter().filter(|cell| cell.key.benchmark == benchmark).cloned().collect();
        let _ = writeln!(out, "<h2>{}</h2>\n<p>{}</p>", escaped(benchmark), escaped(&machines(&of)));
        let comparisons = match benchmark {
            personalities::NAME => personalities::comparisons(&of),
            periodic_flushing::NAME => periodic_flushing::comparisons(&of),
            sync_matrix::NAME => sync_matrix::comparisons(&of),
            _ => Vec::new(),
        };
        out.push_str("<h3>In short</h3>\n");
        comparisons.iter().for_each(|one| compare(&mut out, one));
        out.push_str("<h3>Cell by cell</h3>\n<div class=\"charts\">\n");
        for chart in charts(&of.iter().collect::<Vec<_>>()) {
            let caption = format!("{}: {}", chart.title, chart.unit);
            let drawn = bars(&measured(&chart), 440.0);
            let _ = writeln!(out, "<figure><figcaption>{}</figcaption>{drawn}</figure>", escaped(&caption));
        }
        out.push_str("</div>\n");
    }
    out
}

/// Each version, kernel and number of processors once, and between which loads.
fn machines(cells: &[Cell]) -> String {
    let mut names: Vec<String> = Vec::new();
    for Cell { machine, .. } in cells {
        let name = format!(
            "weir {} · Linux {} · {} processors",
            machine.version, machine.kernel, machine.processors
        );
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let loads = cells.iter().map(|cell| cell.machine.load_average);
    let (low, high) = (loads.clone().fold(f64::MAX, f64::min), loads.fold(0.0, f64::max));
    format!("{} · load average before each cell {low:.1} to {high:.1}", names.join("; "))
}

/// A line of a chart.
#[derive(Debug, Clone, PartialEq)]
enum Line {
    Heading(String),
    Bar {
        name: String,
        colour: &'static str,
        value: f64,
        /// The lowest and the highest round.
        range: (f64, f64),
        says: String,
    },
}

const COLOURS: [&str; 5] = ["#7a8b99", "#0b6e99", "#2a9d62", "#d08c1d", "#9c4fa0"];
const PAPER: &str = "#c8b88a";

fn measured(chart: &Chart<'_>) -> Vec<Line> {
    let mut systems: Vec<&str> = Vec::new();
    let mut lines = Vec::new();
    for (label, figures) in &chart.groups {
        lines.push(Line::Heading((*label).to_owned()));
        for figure in figures {
            let found = systems.iter().position(|system| *system == figure.system);
            let index = found.unwrap_or_else(|| {
                systems.push(&figure.system);
                systems.len() - 1
            });
            let each = figure.rounds.iter();
            lines.push(Line::Bar {
                name: figure.system.clone(),
                colour: COLOURS[index % COLOURS.len()],
                value: figure.median(),
                range: each.fold((f64::MAX, f64::MIN), |(low, high), &one| (low.min(one), high.max(one))),
                says: format!("{} ({})", number(figure.median()), rounds(figure.rounds.len())),
            });
        }
    }
    lines
}

/// A line, and bars where a paper has a figure.
fn compare(out: &mut String, Comparison { what, here, unit, published }: &Comparison) {
    let here_text = format!("{}{unit}", number(*here));
    let Some(paper) = published else {
        let _ = writeln!(out, "<p>{}: {}</p>", escaped(what), escaped(&here_text));
        return;
    };
    let bar = |name: &str, colour, value: f64, says| Line::Bar {
        name: name.to_owned(),
        colour,
        value,
        range: (value, value),
        says,
    };
    let paper_text = format!("{}{unit}: {}", number(paper.value), paper.source);
    let lines = [bar("weir", COLOURS[1], *here, here_text), bar("paper", PAPER, paper.value, paper_text)];
    let _ = writeln!(out, "<p>{}<br>{}</p>", escaped(what), bars(&lines, 440.0));
}

const LINE_HEIGHT: f64 = 17.0;
const NAME_WIDTH: f64 = 130.0;
/// Of what stands at the end of a bar; it may reach farther.
const SAYS_WIDTH: f64 = 110.0;

/// Bars from left to right, all of one scale that starts at 0; what is below 0 has no bar.
fn bars(lines: &[Line], width: f64) -> String {
    let highest = |line: &Line| match line {
        Line::Heading(_) => 0.0,
        Line::Bar { value, range, .. } => value.max(range.1),
    };
    let highest = lines.iter().map(highest).fold(f64::MIN_POSITIVE, f64::max);
    let length = |value: f64| (value / highest).clamp(0.0, 1.0) * (width - NAME_WIDTH - SAYS_WIDTH);
    let height = LINE_HEIGHT * lines.len() as f64 + 4.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" style=\"overflow: visible\">\n"
    );
    for (index, line) in lines.iter().enumerate() {
        let top = LINE_HEIGHT * index as f64;
        let base = top + 13.0;
        match line {
            Line::Heading(text) => {
                let _ = writeln!(out, "<text x=\"0\" y=\"{base}\" fill=\"#555\">{}</text>", escaped(text));
            }
            Line::Bar { name, colour, value, range, says } => {
                let (bar, low, high) = (length(*value), length(range.0), length(range.1));
                let (y, middle, end) = (top + 3.0, top + 9.0, NAME_WIDTH + bar.max(high) + 4.0);
                let _ = writeln!(
                    out,
                    "<text x=\"{:.1}\" y=\"{base}\" text-anchor=\"end\">{}</text>\
                     <rect x=\"{NAME_WIDTH}\" y=\"{y}\" width=\"{bar:.1}\" height=\"12\" fill=\"{colour}\"/>\
                     <path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#222\"/>\
                     <text x=\"{end:.1}\" y=\"{base}\">{}</text>",
                    NAME_WIDTH - 6.0,
                    escaped(name),
                    NAME_WIDTH + low,
                    NAME_WIDTH + high,
                    escaped(says)
                );
            }
        }
    }
    out + "</svg>"
}

fn rounds(count: usize) -> String {
    format!("{count} round{}", if count == 1 { "" } else { "s" })
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(value: f64) -> Line {
        Line::Bar { name: "weir".into(), colour: PAPER, value, range: (value, value), says: "a < b".into() }
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_text_is_escaped() {
        let drawn = bars(&[Line::Heading("64 B".into()), bar(10.0), bar(5.0), bar(-3.0)], 440.0);
        for width in ["200.0", "100.0", "0.0"] {
            assert!(drawn.contains(&format!("width=\"{width}\" height=\"12\"")), "{drawn}");
        }
        assert!(drawn.contains("a &lt; b") && !drawn.contains("a < b"), "{drawn}");
    }
}

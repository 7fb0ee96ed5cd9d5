//! The picture as SVG: a lane for each system, with one time axis and one logarithmic axis of latencies.
//!
//! The file has its own colours for light and dark pages (`prefers-color-scheme`). No crate that draws charts writes such a
//! style, and what is drawn here is bands, lines and texts.

use std::fmt::Write as _;

use super::client::WriteSample;
use super::system_run::RunEvent;
use super::windows::{LatencyPercentiles, windows};

/// Length of each window, in seconds.
const WINDOW_SECONDS: f64 = 0.2;
const WIDTH: f64 = 960.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 14.0;
const LANE_HEIGHT: f64 = 190.0;
/// Space above a lane for its name and the texts of its events.
const LANE_HEAD: f64 = 74.0;
const TITLE_HEIGHT: f64 = 56.0;
const LINE_HEIGHT: f64 = 15.0;
/// Width of a character of the events' texts, at most.
const CHARACTER_WIDTH: f64 = 6.2;
const EVENT_ROWS: usize = 3;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1f2328}\
.back{fill:#fff}.title{font-size:16px;font-weight:600}.name{font-size:15px;font-weight:600}\
.small{font-size:11px;fill:#59636e}.grid{stroke:#d1d9e0;stroke-width:1;fill:none}\
.event{stroke:#59636e;stroke-width:1;stroke-dasharray:3 2}\
.s0{color:#0969da}.s1{color:#bc4c00}\
.p99{fill:currentColor;fill-opacity:.38}.max{fill:currentColor;fill-opacity:.16}\
.p50{stroke:currentColor;stroke-width:1.6;fill:none}\
@media(prefers-color-scheme:dark){text{fill:#f0f6fc}.back{fill:#0d1117}.small{fill:#9198a1}\
.grid{stroke:#3d444d}.event{stroke:#9198a1}.s0{color:#58a6ff}.s1{color:#f0883e}}";

/// All that the picture shows.
pub(super) struct LatencyPicture<'a> {
    pub(super) title: String,
    /// Lines of text below the lanes.
    pub(super) conditions: Vec<String>,
    /// Length of the time axis.
    pub(super) seconds: f64,
    pub(super) lanes: Vec<LatencyLane<'a>>,
}

/// The writes and events of one system.
pub(super) struct LatencyLane<'a> {
    pub(super) name: &'a str,
    /// Each kind of write with its name.
    pub(super) series: [(&'a str, &'a [WriteSample]); 2],
    pub(super) events: &'a [RunEvent],
}

/// Whole powers of ten of a second between which all latencies lie.
#[derive(Debug, Clone, Copy, PartialEq)]
struct LatencyAxis {
    least: i32,
    most: i32,
}

impl LatencyAxis {
    fn of(values: impl Iterator<Item = f64> + Clone) -> LatencyAxis {
        let least = values.clone().fold(f64::INFINITY, f64::min).log10().floor();
        let most = values.fold(0.0, f64::max).log10().ceil();
        if !least.is_finite() || !most.is_finite() {
            return LatencyAxis { least: -6, most: 0 };
        }
        LatencyAxis { least: least as i32, most: most.max(least + 1.0) as i32 }
    }

    /// The distance from the top of a lane.
    fn y(self, seconds: f64) -> f64 {
        let from_top = f64::from(self.most) - seconds.log10();
        LANE_HEIGHT * from_top / f64::from(self.most - self.least)
    }

    /// The text of a power of ten.
    fn label(power: i32) -> String {
        let (unit, below) = match power {
            0.. => ("s", 0),
            -3..=-1 => ("ms", -3),
            _ => ("µs", -6),
        };
        format!("{} {unit}", 10_f64.powi(power - below))
    }
}

impl LatencyPicture<'_> {
    /// The picture as a file.
    pub(super) fn to_svg(&self) -> String {
        let shown = |(_, samples): &(&str, &[WriteSample])| windows(samples, WINDOW_SECONDS, self.seconds);
        let lanes: Vec<Vec<Vec<Option<LatencyPercentiles>>>> =
            self.lanes.iter().map(|lane| lane.series.iter().map(shown).collect()).collect();
        let all = lanes.iter().flatten().flatten().flatten();
        let axis = LatencyAxis::of(all.flat_map(|found| [found.p50, found.longest]));
        let height = TITLE_HEIGHT
            + (LANE_HEAD + LANE_HEIGHT) * lanes.len() as f64
            + 34.0
            + LINE_HEIGHT * self.conditions.len() as f64;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
             <title>{}</title>\n<desc>{}</desc>\n<style>{STYLE}</style>\n\
             <rect class=\"back\" width=\"{WIDTH}\" height=\"{height}\"/>\n",
            escaped(&self.title),
            escaped(&self.conditions.join(" "))
        );
        text(&mut svg, LEFT, 26.0, "title", &self.title);
        if let Some(lane) = self.lanes.first() {
            legend(&mut svg, lane);
        }
        let mut top = TITLE_HEIGHT + LANE_HEAD;
        for (lane, series) in self.lanes.iter().zip(&lanes) {
            self.draw_lane(&mut svg, lane, series, axis, top);
            top += LANE_HEIGHT + LANE_HEAD;
        }
        let mut line = top - LANE_HEAD + 18.0;
        for second in (0..=self.seconds as u32).step_by(5) {
            centred(&mut svg, self.x(second.into()), line, &format!("{second} s"));
        }
        for condition in &self.conditions {
            line += LINE_HEIGHT;
            text(&mut svg, LEFT, line, "small", condition);
        }
        svg + "</svg>\n"
    }

    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.seconds).min(1.0)
    }

    fn draw_lane(
        &self,
        svg: &mut String,
        lane: &LatencyLane<'_>,
        series: &[Vec<Option<LatencyPercentiles>>],
        axis: LatencyAxis,
        top: f64,
    ) {
        text(svg, 8.0, top - LANE_HEAD + 30.0, "name", lane.name);
        for power in axis.least..=axis.most {
            let y = top + axis.y(10_f64.powi(power));
            line(svg, "grid", LEFT, y, WIDTH - RIGHT, y);
            let _ = writeln!(
                svg,
                "<text class=\"small\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                LEFT - 6.0,
                y + 4.0,
                LatencyAxis::label(power)
            );
        }
        // The first kind is drawn last, over the others.
        for (number, windows) in series.iter().enumerate().rev() {
            let _ = writeln!(svg, "<g class=\"s{number}\">");
            self.draw_band(svg, "max", windows, |found| (found.p99, found.longest), axis, top);
            self.draw_band(svg, "p99", windows, |found| (found.p50, found.p99), axis, top);
            self.draw_median(svg, windows, axis, top);
            svg.push_str("</g>\n");
        }
        self.draw_events(svg, lane.events, top);
    }

    /// A box for each window, from the first to the second value, in one path.
    fn draw_band(
        &self,
        svg: &mut String,
        class: &str,
        windows: &[Option<LatencyPercentiles>],
        values: fn(&LatencyPercentiles) -> (f64, f64),
        axis: LatencyAxis,
        top: f64,
    ) {
        let _ = write!(svg, "<path class=\"{class}\" d=\"");
        for (number, found) in windows.iter().enumerate() {
            if let Some((low, high)) = found.as_ref().map(values) {
                let [from, to] = [number, number + 1].map(|window| self.x(window as f64 * WINDOW_SECONDS));
                let [low, high] = [low, high].map(|value| top + axis.y(value));
                let _ = write!(svg, "M{from:.1} {low:.1}H{to:.1}V{high:.1}H{from:.1}z");
            }
        }
        svg.push_str("\"/>\n");
    }

    /// A line through the medians.
    fn draw_median(
        &self,
        svg: &mut String,
        windows: &[Option<LatencyPercentiles>],
        axis: LatencyAxis,
        top: f64,
    ) {
        svg.push_str("<path class=\"p50\" d=\"");
        let mut is_first = true;
        for (number, found) in windows.iter().enumerate() {
            let Some(found) = found else {
                is_first = true;
                continue;
            };
            let command = if is_first { 'M' } else { 'L' };
            let x = self.x((number as f64 + 0.5) * WINDOW_SECONDS);
            let _ = write!(svg, "{command}{x:.1} {:.1}", top + axis.y(found.p50));
            is_first = false;
        }
        svg.push_str("\"/>\n");
    }

    /// A line for each event, with its text above the lane in the first row that has space.
    fn draw_events(&self, svg: &mut String, events: &[RunEvent], top: f64) {
        let mut free_from = [0.0; EVENT_ROWS];
        for event in events {
            let x = self.x(event.at);
            let width = event.label.chars().count() as f64 * CHARACTER_WIDTH + 8.0;
            let ends_left = x + width > WIDTH;
            let left = if ends_left { x - width } else { x };
            let row = free_from.iter().position(|&free| free <= left).unwrap_or(EVENT_ROWS - 1);
            free_from[row] = left + width;
            let y = top - 8.0 - (EVENT_ROWS - 1 - row) as f64 * LINE_HEIGHT;
            line(svg, "event", x, y + 3.0 - LINE_HEIGHT, x, top + LANE_HEIGHT);
            text(svg, if ends_left { left } else { x + 4.0 }, y, "small", &event.label);
        }
    }
}

/// The names of the two kinds of writes and of their bands, below the title.
fn legend(svg: &mut String, lane: &LatencyLane<'_>) {
    for (number, (name, _)) in lane.series.iter().enumerate() {
        let x = LEFT + 140.0 * number as f64;
        let _ = writeln!(
            svg,
            "<g class=\"s{number}\"><rect class=\"max\" x=\"{x}\" y=\"38\" width=\"22\" height=\"6\"/>\
             <rect class=\"p99\" x=\"{x}\" y=\"44\" width=\"22\" height=\"8\"/>\
             <path class=\"p50\" d=\"M{x} 52h22\"/></g>"
        );
        text(svg, x + 28.0, 50.0, "", name);
    }
    let bands = format!(
        "line: p50; bands: to p99, and to the longest; of the writes due in each {:.0} ms, from when they were due",
        WINDOW_SECONDS * 1e3
    );
    text(svg, LEFT + 280.0, 50.0, "small", &bands);
}

fn line(svg: &mut String, class: &str, x: f64, y: f64, to_x: f64, to_y: f64) {
    let _ = writeln!(svg, "<path class=\"{class}\" d=\"M{x:.1} {y:.1}L{to_x:.1} {to_y:.1}\"/>");
}

fn text(svg: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", escaped(text));
}

fn centred(svg: &mut String, x: f64, y: f64, text: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"small\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
        escaped(text)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_has_the_powers_of_ten_around_all_latencies() {
        let axis = LatencyAxis::of([0.000_02, 0.3].into_iter());
        assert_eq!(axis, LatencyAxis { least: -5, most: 0 });
        assert_eq!(axis.y(1.0), 0.0);
        assert!((axis.y(0.1) - LANE_HEIGHT / 5.0).abs() < 1e-9);
        assert_eq!(LatencyAxis::of([].into_iter()), LatencyAxis { least: -6, most: 0 });
        let labels = [-6, -5, -3, -1, 0, 1].map(LatencyAxis::label);
        assert_eq!(labels, ["1 µs", "10 µs", "1 ms", "100 ms", "1 s", "10 s"]);
    }

    #[test]
    fn a_slower_window_is_drawn_higher_and_texts_are_escaped() {
        let samples: Vec<WriteSample> = (0..100)
            .map(|number| WriteSample {
                due: f64::from(number) * 0.01,
                took: if number < 40 { 0.001 } else { 0.1 },
            })
            .collect();
        let events = [RunEvent { at: 0.4, label: "slow <from here>".to_owned() }];
        let lanes = ["one", "two"].map(|name| LatencyLane {
            name,
            series: [("a", &samples), ("b", &[])],
            events: &events,
        });
        let picture = LatencyPicture {
            title: "a & b".to_owned(),
            conditions: vec!["made up".to_owned()],
            seconds: 1.0,
            lanes: lanes.into(),
        };
        let svg = picture.to_svg();
        assert!(svg.contains("a &amp; b") && svg.contains("slow &lt;from here&gt;"), "{svg}");
        assert!(svg.contains(">one</text>") && svg.contains(">two</text>"), "{svg}");
        // Two windows of 1 ms are at the bottom of the axis, from 1 to 100 ms, and three of 100 ms at its top.
        let top = TITLE_HEIGHT + LANE_HEAD;
        let lane = svg.split(">one</text>").nth(1).expect("the first lane");
        let median = lane.split("<path class=\"p50\" d=\"M").nth(1).expect("its medians");
        let heights: Vec<&str> = median.split('"').next().expect("a path").split(' ').skip(1).collect();
        let heights: Vec<&str> =
            heights.iter().map(|part| part.split('L').next().expect("a height")).collect();
        let [bottom, top] = [top + LANE_HEIGHT, top].map(|height| format!("{height:.1}"));
        assert_eq!(heights, [&bottom, &bottom, &top, &top, &top]);
    }
}

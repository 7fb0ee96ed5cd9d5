//! A window of the graph as one SVG: threads as lanes, actions as boxes on time, edges with their rules.

use crate::action::{Action, Fate, Moment};
use crate::benchmark::Benchmark;
use crate::error::TraceError;
use crate::op::Outcome;
use crate::order::Wait;
use std::fmt::Write;

/// Actions in one picture: more cannot be told apart.
const ACTIONS_MAX: u32 = 2000;
/// Of the picture, without the names of the threads.
const WIDTH: f64 = 1800.0;
/// Room for the names of the threads.
const LEFT: f64 = 90.0;
/// Room for what the picture shows.
const TOP: f64 = 40.0;
const LANE: f64 = 46.0;
const BOX: f64 = 24.0;
/// The narrowest box that can be seen.
const NARROWEST: f64 = 2.0;
/// Of each letter, about.
const LETTER: f64 = 6.2;
/// Letters of a file's name that are shown.
const NAME_MAX: usize = 80;
/// Time in which no call is under way is cut to this part of the time in which one is.
const GAP: u64 = 25;

/// Where moments lie, from left to right. Long gaps are cut.
struct Scale {
    /// Where each piece begins, in the trace and in the picture's own time.
    pieces: Vec<(u64, u64)>,
    all: u64,
}

impl Scale {
    fn new<'a>(actions: impl Iterator<Item = &'a Action>) -> Scale {
        let mut busy: Vec<(u64, u64)> = actions.map(|action| (action.start, action.end)).collect();
        busy.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::new();
        for (start, end) in busy {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        let sum: u64 = merged.iter().map(|(start, end)| end - start).sum();
        let longest = (sum / GAP).max(1);
        let (mut pieces, mut at, mut before) = (Vec::new(), 0, None);
        for (start, end) in merged {
            at += before.map_or(0, |before| longest.min(start - before));
            pieces.push((start, at));
            at += end - start;
            before = Some(end);
        }
        Scale { pieces, all: at.max(1) }
    }

    fn x(&self, moment: u64) -> f64 {
        let piece = self.pieces.partition_point(|(start, _)| *start <= moment).saturating_sub(1);
        let (start, at) = self.pieces[piece];
        // A moment in a gap lies at its end: nothing is drawn there.
        let next = self.pieces.get(piece + 1).map_or(self.all, |(_, at)| *at);
        let at = at.saturating_add(moment.saturating_sub(start)).min(next);
        LEFT + at as f64 / self.all as f64 * WIDTH
    }
}

/// Draws the actions from `from` to `to`, both included, and what they wait for in an order.
pub fn picture(benchmark: &Benchmark, order: &str, from: u32, to: u32) -> Result<String, TraceError> {
    let count = benchmark.actions.len();
    if let Some(action) = [from, to].into_iter().find(|id| *id as usize >= count) {
        return Err(TraceError::NoAction { action, count });
    }
    if from > to || to - from >= ACTIONS_MAX {
        return Err(TraceError::Window { from, to, most: ACTIONS_MAX });
    }
    let order = benchmark.order(order)?;
    let window = &benchmark.actions[from as usize..=to as usize];
    let mut threads: Vec<u32> = window.iter().map(|action| action.thread).collect();
    threads.sort_unstable();
    threads.dedup();
    let picture = Picture { benchmark, from, scale: Scale::new(window.iter()), threads };
    let mut svg = picture.head(&order.name, to);
    for (id, action) in (from..).zip(window) {
        picture.draw_action(&mut svg, id, action);
    }
    let mut outside = 0;
    for to in from..=to {
        for wait in order.of(to) {
            match wait.on < from {
                true => outside += 1,
                false => picture.draw_edge(&mut svg, to, wait),
            }
        }
    }
    let y = picture.height() - 8.0;
    put(
        &mut svg,
        format_args!(
            "<text x=\"{LEFT}\" y=\"{y}\" class=\"note\">{outside} edges come from before</text>\n</svg>"
        ),
    );
    Ok(svg)
}

struct Picture<'a> {
    benchmark: &'a Benchmark,
    from: u32,
    scale: Scale,
    threads: Vec<u32>,
}

impl Picture<'_> {
    fn height(&self) -> f64 {
        TOP + LANE * self.threads.len() as f64 + 26.0
    }

    /// The top of a thread's boxes.
    fn y(&self, thread: u32) -> f64 {
        let lane = self.threads.binary_search(&thread).unwrap_or_else(|lane| lane);
        TOP + LANE * lane as f64 + (LANE - BOX) / 2.0
    }

    fn head(&self, order: &str, to: u32) -> String {
        let (width, height) = (LEFT + WIDTH + 20.0, self.height());
        let mut svg = String::new();
        put(
            &mut svg,
            format_args!(
                "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
                 viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"11\">"
            ),
        );
        put(&mut svg, format_args!("{STYLE}"));
        let (trace, from) = (text(&self.benchmark.about.trace), self.from);
        let first = &self.benchmark.actions[from as usize];
        put(
            &mut svg,
            format_args!(
                "<text x=\"{LEFT}\" y=\"20\" class=\"head\">{trace}: actions {from} to {to}, order {}, from {:.6} s; \
                 time without a call is cut</text>",
                text(order),
                first.start as f64 / 1e9
            ),
        );
        for thread in &self.threads {
            let y = self.y(*thread) + BOX / 2.0;
            let right = LEFT + WIDTH;
            put(
                &mut svg,
                format_args!("<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y}\" y2=\"{y}\" class=\"lane\"/>"),
            );
            put(&mut svg, format_args!("<text x=\"6\" y=\"{}\">thread {thread}</text>", y + 4.0));
        }
        svg
    }

    fn left_and_width(&self, action: &Action) -> (f64, f64) {
        let left = self.scale.x(action.start);
        (left, (self.scale.x(action.end) - left).max(NARROWEST))
    }

    fn draw_action(&self, svg: &mut String, id: u32, action: &Action) {
        let ((x, width), y) = (self.left_and_width(action), self.y(action.thread));
        let name = self.benchmark.names.show(action.name);
        let class = match (action.fate, action.recorded) {
            (Fate::Executed, Outcome::Error(_)) => "error",
            (Fate::Executed, _) => "done",
            _ => "rest",
        };
        let mut paths = Vec::new();
        crate::benchmark::names_of(action, |name| paths.push(self.benchmark.names.show(name)));
        let paths: String = paths.join(" ").chars().take(NAME_MAX).collect();
        let took = (action.end - action.start) as f64 / 1e3;
        put(
            svg,
            format_args!(
                "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{BOX}\" class=\"{class}\"><title>action {id}, \
                 line {}: {} {} = {}, {took:.1} us; {}</title></rect>",
                action.line,
                text(&name),
                text(&paths),
                outcome(action.recorded),
                action.fate.text()
            ),
        );
        let label = format!("{id} {name}");
        if width > LETTER * label.len() as f64 {
            put(svg, format_args!("<text x=\"{:.1}\" y=\"{}\">{}</text>", x + 3.0, y + 16.0, text(&label)));
        }
    }

    fn draw_edge(&self, svg: &mut String, to: u32, wait: &Wait) {
        let (on, waiting) = (&self.benchmark.actions[wait.on as usize], &self.benchmark.actions[to as usize]);
        let (left, width) = self.left_and_width(on);
        let x1 = if wait.moment == Moment::Start { left } else { left + width };
        let (x2, _) = self.left_and_width(waiting);
        let down = self.y(on.thread) < self.y(waiting.thread);
        let (from, into) = if down { (BOX, 0.0) } else { (0.0, BOX) };
        let (y1, y2) = (self.y(on.thread) + from, self.y(waiting.thread) + into);
        let rule = format!("{:?}", wait.rule);
        put(
            svg,
            format_args!(
                "<path d=\"M{x1:.1} {y1} L{x2:.1} {y2}\" class=\"edge\"><title>{rule}: action {to} waits for {} to {}</title></path>",
                wait.on,
                if wait.moment == Moment::Start { "begin" } else { "end" }
            ),
        );
        let (x, y) = ((x1 + x2) / 2.0 + 2.0, (y1 + y2) / 2.0);
        put(svg, format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"rule\">{rule}</text>"));
    }
}

const STYLE: &str = "<style>.done{fill:#9ecae1;stroke:#3182bd}.error{fill:#fcbba1;stroke:#cb181d}\
    .rest{fill:#e0e0e0;stroke:#888}.lane{stroke:#ddd}.edge{stroke:#e6550d;fill:none;marker-end:url(#tip)}\
    .rule{fill:#a63603;font-size:9px}.head{font-size:13px}.note{fill:#666}</style>\
    <defs><marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"6\" markerHeight=\"6\" orient=\"auto\">\
    <path d=\"M0 0 L6 3 L0 6 z\" fill=\"#e6550d\"/></marker></defs>";

fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("memory does not fail");
}

fn outcome(outcome: Outcome) -> String {
    match outcome {
        Outcome::Value(value) => value.to_string(),
        Outcome::Error(error) => crate::decode::errno_name(error),
        Outcome::Unknown => "unknown".into(),
    }
}

/// Text that XML takes, whatever a file's name is.
fn text(plain: &str) -> String {
    let mut safe = String::with_capacity(plain.len());
    for letter in plain.chars() {
        match letter {
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '&' => safe.push_str("&amp;"),
            '"' => safe.push_str("&quot;"),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => safe.push('?'),
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::benchmark::{CompileSettings, compile};
    use crate::parse::Strace;

    fn benchmark() -> Benchmark {
        let text = "1 100000001.0 openat(AT_FDCWD</>, \"/a<\\1&\\\"b\", O_RDWR|O_CREAT, 0644) = 3 <0.1>\n\
            1 100000002.0 clone(child_stack=0x7f, flags=CLONE_VM|CLONE_FS|CLONE_FILES|CLONE_THREAD) = 2 <0.1>\n\
            1 100000003.0 pwrite64(3, \"\"..., 10, 0) = 10 <0.5>\n\
            2 100009004.0 access(\"/none\", F_OK) = -1 ENOENT (No such file or directory) <0.5>\n\
            2 100009005.0 pread64(3, \"\"..., 10, 0) = 10 <0.5>\n";
        compile(&mut Strace::new(text.as_bytes()), "graph".as_ref(), &CompileSettings::default())
            .expect("it compiles")
    }

    #[test]
    fn a_picture_has_a_lane_for_each_thread_a_box_for_each_action_and_each_edge_with_its_rule() {
        let svg = picture(&benchmark(), "weir", 0, 4).expect("the window is there");
        let count = |what: &str| svg.matches(what).count();
        assert_eq!((count("class=\"lane\""), count("<rect"), count("class=\"edge\"")), (2, 5, 2));
        assert!(svg.contains(">Bytes</text>") && svg.contains(">Clone</text>"), "{svg}");
        assert!(svg.contains("/a&lt;?&amp;&quot;b") && svg.contains("= ENOENT"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        // Two hours of nothing do not press everything else to the side: a write of half a second has room for its name.
        assert!(svg.contains(">2 pwrite64</text>"), "{svg}");
    }

    #[test]
    fn what_a_window_leaves_out_is_counted_and_what_is_no_window_is_refused() {
        let benchmark = benchmark();
        let svg = picture(&benchmark, "weir", 3, 4).expect("the window is there");
        assert!(svg.contains("2 edges come from before"), "{svg}");
        let refused = |from, to| picture(&benchmark, "weir", from, to).expect_err("it is none").to_string();
        assert!(refused(2, 9).contains("action 9: there are 5"), "{}", refused(2, 9));
        assert!(refused(3, 2).contains("actions 3 to 2"), "{}", refused(3, 2));
        assert!(picture(&benchmark, "temporal", 0, 1).is_err());
        let many = crate::generated::GeneratedTrace { calls: 3000, threads: 3, files: 3, seed: 1 };
        let mut source = Strace::new(std::io::BufReader::new(many.text()));
        let many = compile(&mut source, "many".as_ref(), &CompileSettings::default()).expect("it compiles");
        assert!(picture(&many, "root", 0, 1999).is_ok());
        let refused = picture(&many, "root", 0, 2000).expect_err("too many").to_string();
        assert!(refused.contains("at most 2000"), "{refused}");
    }
}

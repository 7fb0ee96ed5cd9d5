//! A window of the graph as one SVG: threads as lanes, actions as boxes on time, edges with their rules.

use super::show;
use crate::action::{Action, Fate, Moment, Rule};
use crate::benchmark::Benchmark;
use crate::error::TraceError;
use crate::op::Outcome;
use crate::order::Wait;
use std::fmt::Write;

/// Actions in one picture: more cannot be told apart.
const ACTIONS_MAX: u32 = 2000;
/// Space for the names of the threads.
const LEFT: f64 = 90.0;
/// Space for what the picture shows.
const TOP: f64 = 40.0;
/// Space for times, rules and what is left out.
const BOTTOM: f64 = 66.0;
const LANE: f64 = 84.0;
const BOX: f64 = 60.0;
/// The narrowest box that can be seen.
const NARROWEST: f64 = 2.0;
/// The narrowest box that has space for a name from bottom to top.
const UPRIGHT: f64 = 11.0;
/// Of each letter, about.
const LETTER: f64 = 6.8;
/// The same, of small ones.
const SMALL_LETTER: f64 = 5.4;
/// Letters of a file's name that are shown.
const NAME_MAX: usize = 80;
/// Between two times that are shown.
const TIMES_APART: f64 = 110.0;

/// A stretch of time in which nothing begins or ends has at least this space, if a call is under way, and if none is.
const STRETCH: (f64, f64) = (12.0, 3.0);
/// Ten times the time takes so much more of it.
const TENFOLD: f64 = 6.0;
/// The widest picture that common renderers take.
const WIDTH_MAX: f64 = 30_000.0;

/// Where moments lie, from left to right. Calls take from a microsecond to seconds: each stretch between two moments has space by
/// the logarithm of its time.
struct Scale {
    /// Each moment at which a call begins or ends, and where it lies.
    moments: Vec<(u64, f64)>,
    width: f64,
}

impl Scale {
    fn new(window: &[Action]) -> Scale {
        let mut changes: Vec<(u64, i32)> =
            window.iter().flat_map(|action| [(action.start, 1), (action.end, -1)]).collect();
        changes.sort_unstable();
        let (mut moments, mut at, mut under_way): (Vec<(u64, f64)>, f64, i32) = (Vec::new(), 0.0, 0);
        for (moment, change) in changes {
            match moments.last() {
                Some((before, _)) if *before == moment => {}
                Some((before, _)) => {
                    let least = if under_way > 0 { STRETCH.0 } else { STRETCH.1 };
                    at += least + TENFOLD * ((moment - before) as f64 / 1e3).max(1.0).log10();
                    moments.push((moment, at));
                }
                None => moments.push((moment, at)),
            }
            under_way += change;
        }
        let shrink = (WIDTH_MAX / at.max(1.0)).min(1.0);
        moments.iter_mut().for_each(|(_, x)| *x = LEFT + *x * shrink);
        Scale { moments, width: at * shrink }
    }

    fn first(&self) -> u64 {
        self.moments.first().map_or(0, |(moment, _)| *moment)
    }

    fn x(&self, moment: u64) -> f64 {
        let place = self.moments.partition_point(|(known, _)| *known < moment);
        self.moments.get(place).map_or(LEFT + self.width, |(_, x)| *x)
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
    let waits = || (from..=to).flat_map(|to| order.of(to).iter().map(move |wait| (to, wait)));
    let mut rules: Vec<Rule> =
        waits().filter(|(_, wait)| wait.on >= from).map(|(_, wait)| wait.rule).collect();
    rules.sort_unstable();
    rules.dedup();
    let picture = Picture { benchmark, from, scale: Scale::new(window), threads, rules };
    let mut svg = picture.head(&order.name, to);
    picture.draw_times(&mut svg);
    for (id, action) in (from..).zip(window) {
        picture.draw_action(&mut svg, id, action);
    }
    waits().filter(|(_, wait)| wait.on >= from).for_each(|(to, wait)| picture.draw_edge(&mut svg, to, wait));
    picture.draw_rules(&mut svg, waits().filter(|(_, wait)| wait.on < from).count());
    put(&mut svg, format_args!("</svg>"));
    Ok(svg)
}

struct Picture<'a> {
    benchmark: &'a Benchmark,
    from: u32,
    scale: Scale,
    threads: Vec<u32>,
    /// Of the edges that are drawn.
    rules: Vec<Rule>,
}

impl Picture<'_> {
    fn height(&self) -> f64 {
        TOP + LANE * self.threads.len() as f64 + BOTTOM
    }

    /// The top of a thread's boxes.
    fn y(&self, thread: u32) -> f64 {
        let lane = self.threads.binary_search(&thread).unwrap_or_else(|lane| lane);
        TOP + LANE * lane as f64 + (LANE - BOX) / 2.0
    }

    fn head(&self, order: &str, to: u32) -> String {
        // At least as wide as the text on top.
        let (width, height) = ((LEFT + self.scale.width + 20.0).max(900.0).ceil(), self.height());
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
        put(
            &mut svg,
            format_args!(
                "<text x=\"{LEFT}\" y=\"20\" class=\"head\">{trace}: actions {from} to {to}, order {}, from {:.6} s; \
                 space by the logarithm of time</text>",
                text(order),
                self.scale.first() as f64 / 1e9
            ),
        );
        for thread in &self.threads {
            let y = self.y(*thread) + BOX / 2.0;
            let right = LEFT + self.scale.width;
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
                show(action.recorded),
                action.fate.text()
            ),
        );
        let label = format!("{id} {name}");
        if width > LETTER * label.len() as f64 {
            let (x, y) = (x + 3.0, y + BOX / 2.0 + 4.0);
            put(svg, format_args!("<text x=\"{x:.1}\" y=\"{y}\">{}</text>", text(&label)));
        } else if width >= UPRIGHT {
            let (x, y) = (x + width / 2.0 + 3.0, y + BOX - 3.0);
            let space = (BOX / SMALL_LETTER) as usize;
            let name: String = name.chars().take(space).collect();
            put(
                svg,
                format_args!(
                    "<text transform=\"translate({x:.1} {y}) rotate(-90)\" class=\"small\">{}</text>",
                    text(&name)
                ),
            );
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
        let colour = self.colour(wait.rule);
        put(
            svg,
            format_args!(
                "<path d=\"M{x1:.1} {y1} L{x2:.1} {y2}\" class=\"edge\" stroke=\"{colour}\"><title>{:?}: action {to} waits for {} to {}</title></path>\n\
                 <circle cx=\"{x2:.1}\" cy=\"{y2}\" r=\"3\" fill=\"{colour}\"/>",
                wait.rule,
                wait.on,
                if wait.moment == Moment::Start { "begin" } else { "end" }
            ),
        );
    }

    fn colour(&self, rule: Rule) -> &'static str {
        let number = self.rules.iter().position(|other| *other == rule).unwrap_or(0);
        COLOURS[number % COLOURS.len()]
    }

    /// Times since the first call, below the lanes.
    fn draw_times(&self, svg: &mut String) {
        let y = self.height() - BOTTOM + 12.0;
        let first = self.scale.first();
        let mut free = LEFT;
        for (moment, x) in &self.scale.moments {
            if *x >= free {
                let time = duration(moment - first);
                let top = TOP;
                put(
                    svg,
                    format_args!(
                        "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top}\" y2=\"{y}\" class=\"lane\"/>"
                    ),
                );
                put(svg, format_args!("<text x=\"{x:.1}\" y=\"{}\" class=\"note\">+{time}</text>", y + 10.0));
                free = x + TIMES_APART;
            }
        }
    }

    /// What colours mean, and how many edges the picture lacks.
    fn draw_rules(&self, svg: &mut String, outside: usize) {
        let y = self.height() - 12.0;
        let mut x = LEFT;
        for rule in &self.rules {
            let (name, colour) = (format!("{rule:?}"), self.colour(*rule));
            let after = x + 18.0;
            put(
                svg,
                format_args!(
                    "<line x1=\"{x}\" x2=\"{after}\" y1=\"{0}\" y2=\"{0}\" class=\"edge\" stroke=\"{colour}\"/>",
                    y - 4.0
                ),
            );
            put(svg, format_args!("<text x=\"{}\" y=\"{y}\">{name}</text>", after + 4.0));
            x = after + 4.0 + LETTER * name.len() as f64 + 24.0;
        }
        put(
            svg,
            format_args!("<text x=\"{x}\" y=\"{y}\" class=\"note\">{outside} edges come from before</text>"),
        );
    }
}

/// Of edges, by rule. They can be told apart on white, also by those who see red and green alike.
const COLOURS: [&str; 8] =
    ["#d55e00", "#0072b2", "#009e73", "#cc79a7", "#000000", "#e69f00", "#56b4e9", "#7f3c8d"];

const STYLE: &str = "<style>.done{fill:#d6e6f4;stroke:#3182bd}.error{fill:#fcd9cc;stroke:#cb181d}\
    .rest{fill:#eeeeee;stroke:#999999}.lane{stroke:#dddddd}.edge{fill:none;stroke-width:1.5}\
    .small{font-size:9px}.head{font-size:13px}.note{fill:#666666}</style>\
    <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>";

fn put(svg: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(svg, "{line}").expect("memory does not fail");
}

fn duration(nanos: u64) -> String {
    match nanos {
        0..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.3} ms", nanos as f64 / 1e6),
        _ => format!("{:.3} s", nanos as f64 / 1e9),
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
        assert_eq!((count(">thread "), count("</title></rect>"), count("</title></path>")), (2, 5, 2));
        assert!(svg.contains(">Bytes</text>") && svg.contains(">Clone</text>"), "{svg}");
        assert!(svg.contains("/a&lt;?&amp;&quot;b") && svg.contains("= ENOENT"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
        // Two hours of nothing do not press everything else to the side: a write of half a second has space for its name.
        assert!(svg.contains(">pwrite64</text>"), "{svg}");
        assert!(svg.contains(">+0.0 us</text>") && svg.contains(">+1.100 s</text>"), "{svg}");
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
        let refused = picture(&many, "root", 0, 2000).expect_err("too many");
        assert!(refused.help().is_some_and(|help| help.contains("at most 2000")), "{refused}");
    }
}

//! Draws `weir top`: from the watched mounts to the cells of a terminal. Small terminals get the most important parts.

use super::model::{HistoryPoint, RecentRequests, SampledWaits, WatchedMount, WatchedMounts};
use super::view::{KEYS, TopView};
use crate::byte_size::ByteSize;
use crate::escape_control_chars;
use crate::mount_row::{self, COLUMNS, HEADS, MountRow, byte_rate, percent, rounded_time};
use crate::status_print::buffer_bytes;
use crate::waits_print;
use ratatui::Frame;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style, Stylize};
use ratatui::text::Line;
use ratatui::widgets::{
    Block, Borders, Cell, Clear, LineGauge, Paragraph, Row, Sparkline, Table, TableState,
};
use std::time::Duration;
use weir_status::{EpochReport, StatusReport, WaitReport};

/// The columns of the table in the order of their importance: a narrow terminal has only the first of them. The volume is in the title
/// of the details, too, and comes after all of the directory.
const BY_IMPORTANCE: [usize; COLUMNS - 1] = [0, 1, 3, 7, 5, 4, 2, 6, 8];
const VOLUME: usize = 9;

/// The columns of a terminal that a directory gets before other columns get any.
const DIR_WIDTH_MIN: usize = 10;

/// The widths that columns have at least, so that they do not move when a figure gets longer.
const WIDTHS_MIN: [usize; COLUMNS] = [6, 0, 6, 11, 11, 9, 6, 7, 9, 0];

/// The columns of a terminal between two columns of the table.
const SPACING: usize = 2;

/// The width of the words before the facts.
const LABEL_WIDTH: usize = 8;

/// The lines of a curve: its head, and some of bars.
const CURVE_LINES_MIN: u16 = 3;
const CURVE_LINES_MAX: u16 = 8;

/// The lines that latencies and waits get before curves get any.
const REQUEST_LINES_MIN: u16 = 7;

/// The columns of the table of latencies.
const LATENCY_COLUMNS: [(&str, u16); 6] =
    [("LATENCY", 8), ("PER S", 7), ("P50", 8), ("P99", 8), ("MAX", 8), ("LONGEST", 8)];

/// The columns of a terminal that the table of latencies takes.
const LATENCIES_WIDTH: u16 = 53;

/// Draws everything.
pub(crate) fn draw(frame: &mut Frame<'_>, mounts: &WatchedMounts, view: &TopView) {
    let rows = mounts.rows();
    let table_lines = 1 + (rows.len() as u16).clamp(1, (frame.area().height / 4).max(2));
    let [head, table, details] =
        Layout::vertical([Constraint::Length(1), Constraint::Length(table_lines), Constraint::Min(0)])
            .areas(frame.area());
    draw_head(frame, head, mounts, view);
    if rows.is_empty() {
        frame.render_widget(Paragraph::new("nothing is mounted"), table);
    } else {
        draw_table(frame, table, &rows, view.chosen_number(mounts));
    }
    let chosen = view.chosen_dir(mounts).and_then(|dir| mounts.mount(dir));
    if let (Some(mount), Some(row)) = (chosen, rows.get(view.chosen_number(mounts))) {
        draw_details(frame, details, (mounts, mount, row));
    }
    if view.is_helping {
        draw_help(frame);
    }
}

fn draw_head(frame: &mut Frame<'_>, area: Rect, mounts: &WatchedMounts, view: &TopView) {
    let state = if view.is_paused { "PAUSED  ".bold() } else { "".into() };
    let recent = mounts.recent_time().as_secs();
    let every = format!("each {} s, figures of the last {recent} s", mounts.interval().as_secs());
    frame.render_widget(Line::from(vec!["weir top  ".bold(), state, every.into()]), area);
    let keys = "? help  q quit";
    if usize::from(area.width) > 16 + keys.len() {
        let width = keys.len() as u16 + 1;
        let right = Rect { x: area.right() - width, width, ..area };
        frame.render_widget(Clear, right);
        frame.render_widget(Line::from(keys).alignment(Alignment::Right), right);
    }
}

fn health_style(health: &str) -> Style {
    match health {
        "ok" => Style::new().fg(Color::Green),
        "volatile" => Style::new().fg(Color::Yellow),
        "gone" | "-" => Style::new().add_modifier(Modifier::DIM),
        _ => Style::new().fg(Color::Red).add_modifier(Modifier::BOLD),
    }
}

fn draw_table(frame: &mut Frame<'_>, area: Rect, rows: &[MountRow], chosen: usize) {
    let mut cells: Vec<[String; COLUMNS]> = vec![HEADS.map(str::to_owned)];
    cells.extend(rows.iter().map(MountRow::cells));
    let widths = mount_row::widths(&cells);
    let widths = std::array::from_fn(|column| widths[column].max(WIDTHS_MIN[column]));
    let columns = columns_that_fit(widths, area.width.into());
    let line = |cells: &[String; COLUMNS]| {
        Row::new(columns.iter().map(|&(column, width)| {
            let text = match column {
                1 => waits_print::cut_start(&cells[column], width),
                _ => cells[column].clone(),
            };
            let alignment = if mount_row::is_of_words(column) { Alignment::Left } else { Alignment::Right };
            let style = if column == 0 { health_style(&text) } else { Style::new() };
            Cell::from(Line::from(text).alignment(alignment)).style(style)
        }))
    };
    let head = line(&cells[0]).style(Style::new().add_modifier(Modifier::BOLD));
    let widths = columns.iter().map(|&(_, width)| Constraint::Length(width as u16));
    let table = Table::new(cells[1..].iter().map(line), widths)
        .header(head)
        .column_spacing(SPACING as u16)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(chosen));
}

/// The columns that have space in `width`, in the order of the table, each with its width.
fn columns_that_fit(widths: [usize; COLUMNS], width: usize) -> Vec<(usize, usize)> {
    let mut shown: Vec<(usize, usize)> = Vec::new();
    let mut left = width + SPACING;
    for column in BY_IMPORTANCE {
        let wanted = match column {
            1 => widths[1].min(DIR_WIDTH_MIN),
            _ => widths[column],
        };
        let Some(rest) = left.checked_sub(wanted + SPACING) else { break };
        left = rest;
        shown.push((column, wanted));
    }
    if let Some((_, dir_width)) = shown.iter_mut().find(|(column, _)| *column == 1) {
        let more = left.min(widths[1] - *dir_width);
        *dir_width += more;
        left -= more;
    }
    if shown.len() == BY_IMPORTANCE.len() && left >= widths[VOLUME] + SPACING {
        shown.push((VOLUME, widths[VOLUME]));
    }
    shown.sort_unstable();
    shown
}

type ShownMount<'a> = (&'a WatchedMounts, &'a WatchedMount, &'a MountRow);

fn draw_details(frame: &mut Frame<'_>, area: Rect, (mounts, mount, row): ShownMount<'_>) {
    let title = escape_control_chars(&format!(" {}: {} ", row.dir, row.volume));
    let block = Block::new().borders(Borders::TOP).title(title);
    let inner = block.inner(area);
    frame.render_widget(block, area);
    // An answer that is old is not shown as if it were true now.
    let Some(report) = mount.report().filter(|_| row.figures.is_some()) else {
        frame.render_widget(Paragraph::new(no_answer(&row.health)), inner);
        return;
    };
    let facts = facts(mount, report);
    let gauge_lines = 2;
    let fact_lines = gauge_lines + facts.len() as u16;
    let spare = inner.height.saturating_sub(fact_lines + REQUEST_LINES_MIN);
    let curve_rows = (spare / CURVE_LINES_MIN).min(CURVES.len() as u16);
    let curve_lines = (spare / curve_rows.max(1)).min(CURVE_LINES_MAX);
    let [curves, gauges, fact_area, rest] = Layout::vertical([
        Constraint::Length(curve_rows * curve_lines),
        Constraint::Length(gauge_lines),
        Constraint::Length(facts.len() as u16),
        Constraint::Min(0),
    ])
    .areas(inner);
    draw_curves(frame, (curves, curve_rows), mounts, mount);
    draw_gauges(frame, gauges, report, row);
    frame.render_widget(Paragraph::new(facts), fact_area);
    draw_requests(frame, rest, mount);
}

/// Why there is nothing to show of a mount.
fn no_answer(health: &str) -> &'static str {
    match health {
        "dead" => "The daemon has ended: its log says why. Unmount the directory, and mount the store again.",
        "gone" => "This is not mounted any more.",
        "silent" => "The daemon does not answer, or is stopped.",
        "-" => "The daemon was asked, and has not answered yet.",
        _ => "The daemon is of another version: `weir status` of that version shows more.",
    }
}

/// A curve of the history: its name, its value, and how values are shown.
type Curve = (&'static str, fn(&HistoryPoint) -> f64, fn(f64) -> String);

const CURVES: [[Curve; 2]; 2] = [
    [("written", |point| point.written, byte_rate), ("requests", |point| point.requests, count_rate)],
    [("read", |point| point.read, byte_rate), ("syncs", |point| point.syncs, count_rate)],
];

fn count_rate(per_second: f64) -> String {
    format!("{per_second:.0}/s")
}

fn draw_curves(
    frame: &mut Frame<'_>,
    (area, rows): (Rect, u16),
    mounts: &WatchedMounts,
    mount: &WatchedMount,
) {
    let lines = Layout::vertical(vec![Constraint::Fill(1); rows.into()]).split(area);
    for (line, curves) in lines.iter().zip(CURVES) {
        let places = Layout::horizontal([Constraint::Fill(1); 2]).spacing(2).split(*line);
        for (place, (name, value, shown)) in places.iter().zip(curves) {
            let series = mounts.series(mount, place.width.into(), value);
            let last = series.last().copied().flatten().map_or("-".into(), |value| shown(value as f64));
            let peak = series.iter().flatten().max().map_or("-".into(), |&value| shown(value as f64));
            let shown_time = mounts.interval() * place.width.into();
            let head = format!("{name} {last}, at most {peak} in {}", rounded_time(shown_time));
            let curve = Sparkline::default()
                .block(Block::new().title(head))
                .data(series)
                .absent_value_symbol("·")
                .style(Style::new().fg(Color::Cyan));
            frame.render_widget(curve, *place);
        }
    }
}

fn part(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { (of as f64 / all as f64).clamp(0.0, 1.0) }
}

fn draw_gauges(frame: &mut Frame<'_>, area: Rect, report: &StatusReport, row: &MountRow) {
    let figures = row.figures.as_ref();
    let log = &report.buffer_log;
    let used = log.bytes.saturating_sub(log.free_bytes);
    let full_in = match figures.and_then(|figures| figures.buffer_full_in) {
        Some(time) => format!("full in {}", rounded_time(time)),
        None => "not filling".into(),
    };
    let oldest = match figures.and_then(|figures| figures.dirty_age) {
        Some(age) => format!(", the oldest {} old", rounded_time(age)),
        None => String::new(),
    };
    let dirty_max = report.settings.dirty_bytes_max;
    let dirty = report.dirty.bytes;
    let gauges = [
        ("buffer", used, log.bytes, format!("{} of {}, {full_in}", ByteSize(used), ByteSize(log.bytes))),
        ("dirty", dirty, dirty_max, format!("{} of {}{oldest}", ByteSize(dirty), ByteSize(dirty_max))),
    ];
    let width = gauges.iter().map(|(_, _, _, text)| text.chars().count()).max().unwrap_or(0);
    let lines = Layout::vertical([Constraint::Length(1); 2]).split(area);
    for (line, (label, value, most, text)) in lines.iter().zip(gauges) {
        let part = part(value, most);
        let gauge = LineGauge::default()
            .ratio(part)
            .label(format!("{label:LABEL_WIDTH$}{:>4.0}%, {text:width$}", part * 100.0))
            .filled_symbol("█")
            .unfilled_symbol("░")
            .filled_style(Style::new().fg(Color::Cyan))
            .unfilled_style(Style::new().add_modifier(Modifier::DIM));
        frame.render_widget(gauge, *line);
    }
}

/// The facts about a mount, one a line. Problems come first.
fn facts(mount: &WatchedMount, report: &StatusReport) -> Vec<Line<'static>> {
    let problems = [
        ("AT RISK", &report.not_rescued),
        ("FAILED", &report.failed),
        ("STALLED", &report.stalled),
        ("VOLATILE", &report.volatile),
    ];
    let problems = problems.into_iter().filter_map(|(label, why)| Some((label, why.as_ref()?)));
    let mut lines: Vec<Line<'static>> =
        problems.map(|(label, why)| fact(label, &format!(" {why}")).red()).collect();
    if report.stuck.count > 0 {
        lines.push(fact("STUCK", &format!("{} changes cannot be written back", report.stuck.count)).red());
    }
    let logged = match mount.logged_per_second().as_ref().and_then(buffer_bytes) {
        Some((all, parts)) => format!("{}: {parts}", byte_rate(all as f64)),
        None => "nothing in the last seconds".into(),
    };
    lines.push(fact("logged", &logged));
    let hits = mount
        .read_hits()
        .map_or("no reads".into(), |part| format!("{} of reads without waiting", percent(part)));
    let waiting = &report.in_flight;
    let waiting = format!(
        "{hits}; waiting now: {} reads, {} syncs, {} writers",
        waiting.reads, waiting.syncs, waiting.admissions
    );
    lines.push(fact("hits", &waiting));
    let cleaning = match &report.space.cleaning {
        Some(round) => format!("debt {}, left {}", ByteSize(round.debt_bytes), ByteSize(round.left_bytes)),
        None => "none under way".into(),
    };
    let free =
        format!("{} of {}", ByteSize(report.space.available_bytes), ByteSize(report.space.usable_bytes));
    lines.push(fact("space", &format!("{free} free; cleaning: {cleaning}")));
    lines.push(fact("epoch", &epoch_text(&report.epoch)));
    lines
}

fn fact(label: &str, text: &str) -> Line<'static> {
    Line::from(format!("{label:LABEL_WIDTH$}{}", escape_control_chars(text)))
}

/// The newest epoch, and the time that a lost buffer would cost.
fn epoch_text(epoch: &EpochReport) -> String {
    let time = |ms: u64| rounded_time(Duration::from_millis(ms));
    let newest = match (&epoch.last, epoch.age_ms) {
        (Some(last), Some(age)) => format!("{last}, {} old", time(age)),
        (Some(last), None) => last.clone(),
        (None, _) if epoch.given_up > 0 => "none: deleted, because the store was full".into(),
        (None, _) => "none".into(),
    };
    let behind = epoch.behind_ms.map(|ms| format!("; a lost buffer would cost the last {}", time(ms)));
    let problem = epoch.problem.as_ref().map(|why| format!("; {why}"));
    [newest, behind.unwrap_or_default(), problem.unwrap_or_default()].concat()
}

/// Draws latencies and waits: beside each other in a wide terminal, else one below the other.
fn draw_requests(frame: &mut Frame<'_>, area: Rect, mount: &WatchedMount) {
    let requests = mount.recent_requests();
    let lines = requests.len() as u16 + 1;
    let [latencies, waits] = if area.width >= 2 * LATENCIES_WIDTH {
        Layout::horizontal([Constraint::Length(LATENCIES_WIDTH), Constraint::Fill(1)]).spacing(2).areas(area)
    } else {
        let latency_lines = lines.min((area.height / 2).max(area.height.saturating_sub(4)));
        Layout::vertical([Constraint::Length(latency_lines), Constraint::Fill(1)]).areas(area)
    };
    draw_latencies(frame, latencies, &requests);
    frame.render_widget(Paragraph::new(wait_lines(mount.waits(), waits.height.into())), waits);
}

fn draw_latencies(frame: &mut Frame<'_>, area: Rect, requests: &[RecentRequests]) {
    let cells = |texts: [String; 6]| {
        Row::new(texts.into_iter().enumerate().map(|(column, text)| {
            let alignment = if column == 0 { Alignment::Left } else { Alignment::Right };
            Cell::from(Line::from(text).alignment(alignment))
        }))
    };
    let rows = requests.iter().map(|of_kind| {
        let RecentRequests { kind, per_second, p50_us, p99_us, max_us, max_since_mount_us } = of_kind;
        let latency = |micros: Option<f64>| micros.map_or("-".into(), latency_text);
        cells([
            kind.clone(),
            format!("{per_second:.0}"),
            latency(*p50_us),
            latency(*p99_us),
            latency(*max_us),
            latency(Some(*max_since_mount_us)),
        ])
    });
    let head = cells(LATENCY_COLUMNS.map(|(head, _)| head.to_owned()))
        .style(Style::new().add_modifier(Modifier::BOLD));
    let widths = LATENCY_COLUMNS.map(|(_, width)| Constraint::Length(width));
    frame.render_widget(Table::new(rows, widths).header(head), area);
}

fn latency_text(micros: f64) -> String {
    match micros {
        1e6.. => format!("{:.2} s", micros / 1e6),
        1e3.. => format!("{:.1} ms", micros / 1e3),
        _ => format!("{micros:.0} µs"),
    }
}

/// The waits in at most `lines_max` lines: first the requests that wait now, then the waits that have ended, the newest first.
fn wait_lines(waits: Option<&SampledWaits>, lines_max: usize) -> Vec<Line<'static>> {
    let Some(SampledWaits { report, at_unix_ms }) = waits else {
        return vec!["WAITS".bold().into(), "not asked for yet".into()];
    };
    let ago = |wait: &WaitReport| {
        let ended_ms = wait.began_unix_ms + wait.waited_ms as u64;
        format!("{} ago", rounded_time(Duration::from_millis(at_unix_ms.saturating_sub(ended_ms))))
    };
    let line = |when: &str, wait: &WaitReport| {
        Line::from(escape_control_chars(&format!("{when:>9}  {}", waits_print::short_line(wait))))
    };
    let mut lines: Vec<Line<'static>> = vec!["WAITS of a millisecond and more".bold().into()];
    lines.extend(report.waiting.iter().map(|wait| line("now", wait).red()));
    lines.extend(report.ended.iter().map(|wait| line(&ago(wait), wait)));
    if lines.len() == 1 {
        lines.push("none since the mount".into());
    }
    lines.truncate(lines_max);
    lines
}

fn draw_help(frame: &mut Frame<'_>) {
    let keys = KEYS.map(|(keys, effect)| format!("{keys:16}{effect}"));
    let words = ["", "READ HITS  reads that did not wait for the store, since the daemon began"];
    let more = [
        "MAX        of the last seconds; LONGEST since the mount",
        "FULL IN    when the buffer is full if it goes on filling as now",
        "debt       cleaning that is owed for data written: it slows writes down",
        "`weir status --help` explains the health, `weir why --help` the waits.",
    ];
    let lines: Vec<Line<'_>> =
        keys.iter().map(String::as_str).chain(words).chain(more).map(Line::from).collect();
    let width = lines.iter().map(Line::width).max().unwrap_or(0) as u16 + 2;
    let area = frame.area().centered(Constraint::Length(width), Constraint::Length(lines.len() as u16 + 2));
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(" help ")), area);
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{report, sample};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use ratatui::crossterm::event::KeyCode;
    use std::collections::BTreeMap;
    use std::path::PathBuf;
    use weir_status::{CleaningReport, WaitsReport};

    /// Two mounts after so many rounds, of which the second is dead.
    fn mounts(rounds: u64) -> WatchedMounts {
        let mut mounts = WatchedMounts::new(Duration::from_secs(1));
        let dirs = ["/mnt/db", "/mnt/old"];
        let mounted: BTreeMap<PathBuf, PathBuf> =
            dirs.iter().map(|dir| (dir.into(), "/store".into())).collect();
        for round in 1..=rounds {
            mounts.begin_round(round, mounted.clone());
            let mut sample_of_live = sample(round, dirs[0], Some(busy_report(round)));
            sample_of_live.waits = Some(waits());
            mounts.add(sample_of_live);
            mounts.add(sample(round, dirs[1], None));
        }
        mounts
    }

    fn busy_report(round: u64) -> StatusReport {
        let mut report = report(round);
        report.dirty.bytes = 3 << 20;
        report.dirty.age_ms = 4_200;
        report.settings.dirty_bytes_max = 64 << 20;
        report.space.cleaning = Some(CleaningReport { left_bytes: 5 << 20, debt_bytes: 1 << 20 });
        report.epoch.last = Some("epoch-7".into());
        report.epoch.age_ms = Some(90_000);
        report.epoch.behind_ms = Some(30_000);
        report
    }

    fn waits() -> SampledWaits {
        let wait = |began_unix_ms, request: &str, cause: &str| WaitReport {
            began_unix_ms,
            waited_ms: 31.25,
            task: Some(4711),
            title: Some("postgres".into()),
            request: request.into(),
            waits_for: cause.into(),
            ..WaitReport::default()
        };
        let report = WaitsReport {
            waiting: vec![wait(99_969, "read", "stored-page")],
            ended: vec![wait(80_000, "fsync", "commit")],
            ..WaitsReport::default()
        };
        SampledWaits { report, at_unix_ms: 100_000 }
    }

    fn view_after(keys: &str, mounts: &WatchedMounts) -> TopView {
        let mut view = TopView::default();
        for key in keys.chars() {
            view.press(KeyCode::Char(key).into(), mounts);
        }
        view
    }

    /// The screen as text, a line each.
    fn screen(width: u16, height: u16, mounts: &WatchedMounts, view: &TopView) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("memory");
        terminal.draw(|frame| draw(frame, mounts, view)).expect("memory");
        let buffer = terminal.backend().buffer();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned();
        (0..height).map(line).collect::<Vec<_>>().join("\n")
    }

    #[track_caller]
    fn assert_shows(screen: &str, texts: &[&str]) {
        for text in texts {
            assert!(screen.contains(text), "no {text:?} in\n{screen}");
        }
    }

    #[test]
    fn a_mount_is_shown_with_all_that_is_known_of_it() {
        let screen = screen(132, 40, &mounts(20), &TopView::default());
        assert_shows(
            &screen,
            &[
                "HEALTH  MOUNT     READ HITS      WRITTEN",
                "ok      /mnt/db           -     1000 B/s",
                "dead    /mnt/old          -            -",
                " /mnt/db: main of /store ",
                "written 1000 B/s, at most 1000 B/s in 65 s",
                "requests 2/s",
                "buffer     2%, 20 KiB of 1 MiB, full in 17 min",
                "dirty      5%, 3 MiB of 64 MiB, the oldest 4.2 s old",
                "logged  4 KiB/s: 100% metadata",
                "cleaning: debt 1 MiB, left 5 MiB",
                "epoch   epoch-7, 90 s old; a lost buffer would cost the last 30 s",
                "write          2    10 µs    18 µs    18 µs    18 µs",
                "now   31.2 ms  read for a page from the store: 4711 postgres",
                "20 s ago   31.2 ms  fsync for a commit of the buffer: 4711 postgres",
            ],
        );
        assert!(screen.contains('█'), "the curves have bars:\n{screen}");
    }

    #[test]
    fn a_dead_mount_is_explained() {
        let mounts = mounts(3);
        let screen = screen(80, 24, &mounts, &view_after("j", &mounts));
        assert_shows(&screen, &["/mnt/old: main of /store", "The daemon has ended"]);
        assert!(!screen.contains("logged"), "{screen}");
    }

    #[test]
    fn no_size_of_a_terminal_is_too_small() {
        for mounts in [mounts(0), mounts(3)] {
            for view in [TopView::default(), view_after("?p", &mounts)] {
                for width in 1..130 {
                    for height in [1, 2, 3, 5, 8, 10, 13, 17, 24, 40] {
                        screen(width, height, &mounts, &view);
                    }
                }
            }
        }
    }

    #[test]
    fn a_small_terminal_has_the_health_the_mount_and_the_buffer() {
        let screen = screen(40, 10, &mounts(20), &TopView::default());
        assert_shows(
            &screen,
            &["ok      /mnt/db", "1000 B/s", "dead    /mnt/old", "buffer     2%", "dirty      5%"],
        );
    }

    #[test]
    fn without_mounts_the_screen_says_so() {
        let empty = WatchedMounts::new(Duration::from_secs(1));
        assert_shows(&screen(60, 10, &empty, &TopView::default()), &["nothing is mounted"]);
    }

    #[test]
    fn help_and_pause_are_shown() {
        let mounts = mounts(3);
        assert_shows(
            &screen(80, 24, &mounts, &view_after("?p", &mounts)),
            &["PAUSED", " help ", "choose a mount"],
        );
    }

    #[test]
    fn narrow_tables_lose_the_least_important_columns() {
        let widths = [6, 30, 9, 10, 10, 8, 6, 7, 10, 20];
        let columns = |width| columns_that_fit(widths, width).iter().map(|of| of.0).collect::<Vec<_>>();
        assert!(columns(5).is_empty());
        assert_eq!(columns(40), [0, 1, 3, 7]);
        assert_eq!(columns(200), (0..COLUMNS).collect::<Vec<_>>());
        let without_volume = columns_that_fit(widths, 125);
        assert_eq!(without_volume.len(), COLUMNS - 1);
        assert_eq!(without_volume[1], (1, 30), "the directory comes before the volume");
        assert_eq!(columns_that_fit(widths, 25), [(0, 6), (1, 17)], "the directory gets what is left");
    }
}

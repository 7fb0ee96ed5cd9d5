//! The figures of a mount that an administrator watches: a line of `weir status` without a directory, and a row of `weir top`.
//!
//! A rate needs two reports. The time between them is by the daemon's clock, so a slow reply does not falsify the rate.

use crate::byte_size::ByteSize;
use crate::escape_control_chars;
use std::time::Duration;
use weir_status::StatusReport;

/// The heads of the columns.
pub(crate) const HEADS: [&str; COLUMNS] =
    ["HEALTH", "MOUNT", "READ HITS", "WRITTEN", "READ", "DIRTY", "OLDEST", "FULL IN", "SPACE FREE", "VOLUME"];

/// The number of columns.
pub(crate) const COLUMNS: usize = 10;

/// The columns with words, which begin at their left ends. The others are numbers.
const WORD_COLUMNS: [usize; 3] = [0, 1, COLUMNS - 1];

/// A mount in one line.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MountRow {
    /// The health in one word.
    pub(crate) health: String,
    /// The directory on which it is mounted.
    pub(crate) dir: String,
    /// `None` if the daemon did not answer, or is of another version.
    pub(crate) figures: Option<MountFigures>,
    /// The volume and its store.
    pub(crate) volume: String,
}

/// The figures of a mount. `None` stands for a figure that has no meaning at present.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct MountFigures {
    /// The part of reads that did not wait for a page, since the daemon began, in all mounts of the store.
    pub(crate) read_hits: Option<f64>,
    /// Bytes in a second that programs write.
    pub(crate) written_rate: Option<f64>,
    /// Bytes in a second that programs read, without those that the kernel has in memory.
    pub(crate) read_rate: Option<f64>,
    pub(crate) dirty_bytes: u64,
    /// The age of the oldest dirty data.
    pub(crate) dirty_age: Option<Duration>,
    /// When the buffer is full if it goes on filling as fast as now.
    pub(crate) buffer_full_in: Option<Duration>,
    /// Space that the store has left.
    pub(crate) available_bytes: u64,
}

impl MountFigures {
    /// The figures of a report. Rates are since the report before.
    pub(crate) fn of(report: &StatusReport, before: Option<&StatusReport>) -> MountFigures {
        let bytes = |report: &StatusReport, kind: &str| report.latency.get(kind)?.bytes;
        let rate = |kind| {
            let before = before?;
            per_second(before, report, |report| bytes(report, kind))
        };
        let dirty = &report.dirty;
        let has_dirty = dirty.bytes > 0 || dirty.age_ms > 0;
        MountFigures {
            read_hits: read_hits(report, None),
            written_rate: rate("write"),
            read_rate: rate("read"),
            dirty_bytes: dirty.bytes,
            dirty_age: has_dirty.then(|| Duration::from_millis(dirty.age_ms)),
            buffer_full_in: before.and_then(|before| buffer_full_in(before, report)),
            available_bytes: report.space.available_bytes,
        }
    }
}

/// The part of the reads that did not wait for a page: of those since the report before, or since the daemon began. `None` without
/// reads.
pub(crate) fn read_hits(report: &StatusReport, before: Option<&StatusReport>) -> Option<f64> {
    let at_once = |report: &StatusReport| report.counters.reads_at_once;
    let waited = |report: &StatusReport| report.counters.reads_parked;
    let since = |count: fn(&StatusReport) -> u64| match before {
        Some(before) => count(report).saturating_sub(count(before)),
        None => count(report),
    };
    let hits = since(at_once);
    let reads = hits + since(waited);
    (reads > 0).then(|| hits as f64 / reads as f64)
}

/// Seconds between two reports of one mount by one daemon. `None` if the mount or the daemon began between them.
pub(crate) fn seconds_between(before: &StatusReport, report: &StatusReport) -> Option<f64> {
    let is_one_mount = before.pid == report.pid && before.incarnation == report.incarnation;
    let ms = report.uptime_ms.checked_sub(before.uptime_ms).filter(|&ms| ms > 0 && is_one_mount)?;
    Some(ms as f64 / 1e3)
}

/// How much a count has grown in a second.
pub(crate) fn per_second(
    before: &StatusReport,
    report: &StatusReport,
    count: impl Fn(&StatusReport) -> Option<u64>,
) -> Option<f64> {
    let seconds = seconds_between(before, report)?;
    let grown = count(report)?.saturating_sub(count(before)?);
    Some(grown as f64 / seconds)
}

/// When the buffer is full if its free space goes on shrinking as between these reports. `None` if it does not shrink.
pub(crate) fn buffer_full_in(before: &StatusReport, report: &StatusReport) -> Option<Duration> {
    let seconds = seconds_between(before, report)?;
    let free = report.buffer_log.free_bytes;
    let filled = before.buffer_log.free_bytes.checked_sub(free).filter(|&bytes| bytes > 0)?;
    let until_full = free as f64 / (filled as f64 / seconds);
    Duration::try_from_secs_f64(until_full).ok()
}

impl MountRow {
    /// The texts of the columns.
    pub(crate) fn cells(&self) -> [String; COLUMNS] {
        let figure = |text: &dyn Fn(&MountFigures) -> Option<String>| {
            self.figures.as_ref().and_then(text).unwrap_or_else(|| "-".into())
        };
        [
            escape_control_chars(&self.health),
            escape_control_chars(&self.dir),
            figure(&|figures| figures.read_hits.map(percent)),
            figure(&|figures| figures.written_rate.map(byte_rate)),
            figure(&|figures| figures.read_rate.map(byte_rate)),
            figure(&|figures| Some(ByteSize(figures.dirty_bytes).to_string())),
            figure(&|figures| figures.dirty_age.map(rounded_time)),
            figure(&|figures| figures.buffer_full_in.map(rounded_time)),
            figure(&|figures| Some(ByteSize(figures.available_bytes).to_string())),
            escape_control_chars(&self.volume),
        ]
    }
}

/// Whether the texts of a column begin at its left end.
pub(crate) fn is_of_words(column: usize) -> bool {
    WORD_COLUMNS.contains(&column)
}

/// The width of each column of a table.
pub(crate) fn widths(rows: &[[String; COLUMNS]]) -> [usize; COLUMNS] {
    std::array::from_fn(|column| rows.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0))
}

/// The rows as lines of text with aligned columns.
pub(crate) fn aligned(rows: &[[String; COLUMNS]]) -> Vec<String> {
    let widths = widths(rows);
    let line = |cells: &[String; COLUMNS]| {
        let padded = cells.iter().enumerate().map(|(column, text)| {
            let width = widths[column];
            if is_of_words(column) { format!("{text:width$}") } else { format!("{text:>width$}") }
        });
        padded.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// A part as percents, rounded down: 100% means all.
pub(crate) fn percent(part: f64) -> String {
    let tenths = (part * 1000.0).floor() / 10.0;
    if tenths >= 100.0 { "100%".into() } else { format!("{tenths:.1}%") }
}

/// Bytes in a second.
pub(crate) fn byte_rate(bytes_per_second: f64) -> String {
    format!("{}/s", ByteSize(bytes_per_second.round() as u64))
}

/// A time in its largest unit.
pub(crate) fn rounded_time(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match time.as_secs() {
        0..10 => format!("{seconds:.1} s"),
        10..120 => format!("{seconds:.0} s"),
        120..7_200 => format!("{:.0} min", seconds / 60.0),
        7_200..172_800 => format!("{:.0} h", seconds / 3_600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_status::LatencyReport;

    /// A report after `uptime_ms`, with bytes that programs read and wrote, and free space in the buffer.
    fn report(uptime_ms: u64, read: u64, written: u64, buffer_free: u64) -> StatusReport {
        let mut report = StatusReport { pid: 7, incarnation: 3, uptime_ms, ..StatusReport::default() };
        for (kind, bytes) in [("read", read), ("write", written)] {
            let latency = LatencyReport { bytes: Some(bytes), ..LatencyReport::default() };
            report.latency.insert(kind.into(), latency);
        }
        report.buffer_log.free_bytes = buffer_free;
        report
    }

    #[test]
    fn rates_are_by_the_clock_of_the_daemon() {
        let before = report(1_000, 0, 500, 3_000);
        let after = report(1_200, 100, 1_500, 2_000);
        let figures = MountFigures::of(&after, Some(&before));
        assert_eq!(figures.read_rate, Some(500.0));
        assert_eq!(figures.written_rate, Some(5_000.0));
        assert_eq!(figures.buffer_full_in, Some(Duration::from_millis(400)));
    }

    #[test]
    fn there_is_no_rate_over_the_start_of_a_daemon_or_a_mount() {
        let after = report(1_200, 100, 1_500, 2_000);
        for before in [
            report(1_200, 100, 1_500, 3_000),
            report(9_000, 100, 1_500, 3_000),
            StatusReport { pid: 8, ..report(1_000, 0, 0, 3_000) },
            StatusReport { incarnation: 2, ..report(1_000, 0, 0, 3_000) },
        ] {
            let figures = MountFigures::of(&after, Some(&before));
            assert_eq!((figures.written_rate, figures.buffer_full_in), (None, None), "{before:?}");
        }
        assert_eq!(MountFigures::of(&after, None).written_rate, None);
    }

    #[test]
    fn a_buffer_that_does_not_fill_is_never_full() {
        let before = report(1_000, 0, 0, 2_000);
        for free in [2_000, 2_500] {
            assert_eq!(MountFigures::of(&report(2_000, 0, 0, free), Some(&before)).buffer_full_in, None);
        }
        let full = MountFigures::of(&report(2_000, 0, 0, 0), Some(&before));
        assert_eq!(full.buffer_full_in, Some(Duration::ZERO));
    }

    #[test]
    fn reads_that_waited_are_no_hits() {
        let mut now = report(2_000, 0, 0, 0);
        assert_eq!(read_hits(&now, None), None);
        now.counters.reads_at_once = 9;
        now.counters.reads_parked = 1;
        assert_eq!(read_hits(&now, None), Some(0.9));
        let mut before = report(1_000, 0, 0, 0);
        before.counters.reads_at_once = 9;
        assert_eq!(read_hits(&now, Some(&before)), Some(0.0));
    }

    #[test]
    fn figures_without_meaning_are_dashes() {
        let row = MountRow {
            health: "ok".into(),
            dir: "/mnt/a\nb".into(),
            figures: Some(MountFigures::of(&report(1_000, 0, 0, 0), None)),
            volume: "main of /db".into(),
        };
        let cells = row.cells();
        assert_eq!(cells, ["ok", "/mnt/a\\nb", "-", "-", "-", "0 B", "-", "-", "0 B", "main of /db"]);
        let dead = MountRow { health: "dead".into(), figures: None, ..row };
        assert_eq!(dead.cells()[2..9], ["-"; 7]);
    }

    #[test]
    fn numbers_are_at_the_right_ends_of_their_columns() {
        let row = |dir: &str, dirty_bytes| MountRow {
            health: "ok".into(),
            dir: dir.into(),
            figures: Some(MountFigures { dirty_bytes, ..MountFigures::of(&report(1_000, 0, 0, 0), None) }),
            volume: "main of /db".into(),
        };
        let lines =
            aligned(&[HEADS.map(str::to_owned), row("/mnt/db", 5).cells(), row("/m", 1 << 20).cells()]);
        let expected = [
            "HEALTH  MOUNT    READ HITS  WRITTEN  READ  DIRTY  OLDEST  FULL IN  SPACE FREE  VOLUME",
            "ok      /mnt/db          -        -     -    5 B       -        -         0 B  main of /db",
            "ok      /m               -        -     -  1 MiB       -        -         0 B  main of /db",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn all_but_one_read_are_not_all() {
        assert_eq!(percent(1.0), "100%");
        assert_eq!(percent(0.99999), "99.9%");
        assert_eq!(percent(0.0), "0.0%");
    }

    #[test]
    fn times_are_shown_in_one_unit() {
        let shown = [
            (0, "0.0 s"),
            (9_900, "9.9 s"),
            (59_900, "60 s"),
            (150_000, "2 min"),
            (7_200_000, "2 h"),
            (864_000_000, "10 days"),
        ];
        for (ms, text) in shown {
            assert_eq!(rounded_time(Duration::from_millis(ms)), text);
        }
    }
}

//! The mounts that `weir top` watches: samples become figures and histories. Nothing here does I/O.

use crate::mount_row::{self, MountFigures, MountRow};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_status::{BufferBytesReport, LatencyReport, StatusReport, WaitsReport};

/// The time over which figures are measured. Figures of one second jump, and figures of a minute come late.
const RECENT: Duration = Duration::from_secs(5);

/// The time over which it is measured how fast the buffer fills. Write-back frees some of it every few seconds.
const FILLING: Duration = Duration::from_secs(30);

/// How many rounds a history has: the columns of a wide terminal.
const HISTORY_ROUNDS: u64 = 512;

/// For how many rounds a mount that is gone is shown. Mounts that live briefly would otherwise fill the table.
const GONE_ROUNDS: u64 = 60;

/// How long the answer of a daemon may take before the daemon counts as silent.
const ANSWER_WAIT: Duration = Duration::from_secs(3);

/// The health of a mount that does not exist any more.
const GONE: &str = "gone";

/// The health of a mount whose daemon has not answered for a while.
const SILENT: &str = "silent";

/// The kinds of requests that are shown first.
const FIRST_KINDS: [&str; 3] = ["read", "write", "fsync"];

/// The answer about a mount in one round.
#[derive(Debug, Clone)]
pub(crate) struct MountSample {
    /// The number of the round in which the daemon was asked.
    pub(crate) round: u64,
    pub(crate) dir: PathBuf,
    /// The mount in one line, without rates.
    pub(crate) row: MountRow,
    /// The daemon's report; `None` if there is none.
    pub(crate) report: Option<StatusReport>,
    /// The waits, if they were asked for.
    pub(crate) waits: Option<SampledWaits>,
}

/// The waits of a mount at some time.
#[derive(Debug, Clone)]
pub(crate) struct SampledWaits {
    pub(crate) report: WaitsReport,
    /// The time of the report, in milliseconds since 1970.
    pub(crate) at_unix_ms: u64,
}

/// Rates between two answers of a daemon.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct HistoryPoint {
    round: u64,
    /// Bytes in a second that programs wrote.
    pub(crate) written: f64,
    /// Bytes in a second that programs read.
    pub(crate) read: f64,
    /// Requests in a second, of all kinds.
    pub(crate) requests: f64,
    /// Syncs in a second.
    pub(crate) syncs: f64,
}

impl HistoryPoint {
    /// `None` if the daemon or the mount began between the reports.
    fn between(round: u64, before: &StatusReport, report: &StatusReport) -> Option<HistoryPoint> {
        let kind = |kind: &'static str| move |report: &StatusReport| report.latency.get(kind).cloned();
        let bytes =
            |name| mount_row::per_second(before, report, |report| kind(name)(report)?.bytes).unwrap_or(0.0);
        let requests = |report: &StatusReport| Some(report.latency.values().map(|of| of.count).sum());
        Some(HistoryPoint {
            round,
            written: bytes("write"),
            read: bytes("read"),
            requests: mount_row::per_second(before, report, requests)?,
            syncs: mount_row::per_second(before, report, |report| Some(kind("fsync")(report)?.count))
                .unwrap_or(0.0),
        })
    }
}

/// The requests of one kind in the last seconds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct RecentRequests {
    pub(crate) kind: String,
    pub(crate) per_second: f64,
    /// The latency in microseconds that half of these requests did not exceed; `None` without requests.
    pub(crate) p50_us: Option<f64>,
    /// The latency that 99 in 100 of these requests did not exceed.
    pub(crate) p99_us: Option<f64>,
    /// The longest latency of these requests in microseconds, up to a fifth too high.
    pub(crate) max_us: Option<f64>,
    /// The longest latency since the mount.
    pub(crate) max_since_mount_us: f64,
}

/// A mount that is watched.
#[derive(Debug, Clone)]
pub(crate) struct WatchedMount {
    row: MountRow,
    /// The last round in which the mount was in the mount table.
    mounted_in_round: u64,
    /// The last round with an answer; before the first one, the round in which the mount was found.
    answered_in_round: u64,
    /// The reports since the beginning of [`FILLING`], the oldest first, each with its round. All are of one daemon.
    reports: VecDeque<(u64, StatusReport)>,
    /// The rounds in [`RECENT`].
    recent_rounds: u64,
    history: VecDeque<HistoryPoint>,
    waits: Option<SampledWaits>,
}

impl WatchedMount {
    fn found(round: u64, row: MountRow, recent_rounds: u64) -> WatchedMount {
        WatchedMount {
            row,
            mounted_in_round: round,
            answered_in_round: round,
            reports: VecDeque::new(),
            recent_rounds,
            history: VecDeque::new(),
            waits: None,
        }
    }

    fn add(&mut self, sample: MountSample, filling_rounds: u64) {
        // An earlier mount on the same directory may answer late.
        if sample.round < self.answered_in_round {
            return;
        }
        self.row = sample.row;
        self.answered_in_round = sample.round;
        if sample.waits.is_some() {
            self.waits = sample.waits;
        }
        let Some(report) = sample.report else {
            self.reports.clear();
            return;
        };
        if let Some((_, before)) = self.reports.back() {
            match HistoryPoint::between(sample.round, before, &report) {
                Some(point) => self.history.push_back(point),
                None => self.reports.clear(),
            }
        }
        self.reports.push_back((sample.round, report));
        while self.reports.len() > 2 && self.reports[1].0 + filling_rounds <= sample.round {
            self.reports.pop_front();
        }
        while self.history.front().is_some_and(|point| point.round + HISTORY_ROUNDS <= sample.round) {
            self.history.pop_front();
        }
        self.row.figures = self.figures();
    }

    fn figures(&self) -> Option<MountFigures> {
        let report = self.report()?;
        let (_, oldest) = self.reports.front()?;
        let buffer_full_in = mount_row::buffer_full_in(oldest, report);
        Some(MountFigures { buffer_full_in, ..MountFigures::of(report, self.report_before()) })
    }

    /// The newest report, if the daemon gave one when it was last asked.
    pub(crate) fn report(&self) -> Option<&StatusReport> {
        self.reports.back().map(|(_, report)| report)
    }

    /// The report of [`RECENT`] ago, or the oldest of those since.
    fn report_before(&self) -> Option<&StatusReport> {
        let (newest, _) = self.reports.back()?;
        let earlier = || self.reports.iter().rev().skip(1);
        let is_before = |(round, _): &&(u64, StatusReport)| round + self.recent_rounds <= *newest;
        let (_, report) = earlier().find(is_before).or_else(|| earlier().last())?;
        Some(report)
    }

    /// The waits, as they were last asked for.
    pub(crate) fn waits(&self) -> Option<&SampledWaits> {
        self.waits.as_ref()
    }

    /// The part of reads in the last seconds that did not wait for a page.
    pub(crate) fn read_hits(&self) -> Option<f64> {
        mount_row::read_hits(self.report()?, Some(self.report_before()?))
    }

    /// Bytes in a second that the buffer's log got in the last seconds, by cause.
    pub(crate) fn logged_per_second(&self) -> Option<BufferBytesReport> {
        let (before, report) = (self.report_before()?, self.report()?);
        let rate = |bytes: fn(&BufferBytesReport) -> u64| {
            let bytes = |report: &StatusReport| Some(bytes(&report.counters.buffer_bytes_by_cause));
            mount_row::per_second(before, report, bytes).map(|rate| rate.round() as u64)
        };
        Some(BufferBytesReport {
            synced_pages: rate(|bytes| bytes.synced_pages)?,
            lent_pages: rate(|bytes| bytes.lent_pages)?,
            whole_pages: rate(|bytes| bytes.whole_pages)?,
            parts_of_pages: rate(|bytes| bytes.parts_of_pages)?,
            metadata: rate(|bytes| bytes.metadata)?,
            relogged: rate(|bytes| bytes.relogged)?,
        })
    }

    /// The requests of each kind of which there were any since the mount.
    pub(crate) fn recent_requests(&self) -> Vec<RecentRequests> {
        let Some(report) = self.report() else { return Vec::new() };
        let before = self.report_before();
        let known = report.latency.iter().filter(|(_, latency)| latency.count > 0);
        let mut all: Vec<RecentRequests> = known
            .map(|(kind, latency)| {
                let before = before.and_then(|before| Some((before, before.latency.get(kind)?)));
                recent_requests_of(kind, (report, latency), before)
            })
            .collect();
        let place = |kind: &str| FIRST_KINDS.iter().position(|first| *first == kind);
        // Stable: the others stay in their order.
        all.sort_by_key(|requests| place(&requests.kind).unwrap_or(FIRST_KINDS.len()));
        all
    }
}

fn recent_requests_of(
    kind: &str,
    (report, latency): (&StatusReport, &LatencyReport),
    before: Option<(&StatusReport, &LatencyReport)>,
) -> RecentRequests {
    let mut buckets = Vec::new();
    let mut per_second = 0.0;
    if let Some((report_before, latency_before)) = before
        && let Some(seconds) = mount_row::seconds_between(report_before, report)
    {
        buckets = buckets_since(&latency_before.buckets_us, &latency.buckets_us);
        per_second = buckets.iter().map(|(_, count)| count).sum::<u64>() as f64 / seconds;
    }
    // The longest request is known exactly, and the end of its bucket is later.
    let at_most = |part| quantile(&buckets, part).map(|end| end.min(latency.max_us));
    RecentRequests {
        kind: kind.to_owned(),
        per_second,
        p50_us: at_most(0.5),
        p99_us: at_most(0.99),
        max_us: at_most(1.0),
        max_since_mount_us: latency.max_us,
    }
}

/// The requests in each bucket that were not there before. Buckets have the same ends at any time.
fn buckets_since(before: &[(f64, u64)], now: &[(f64, u64)]) -> Vec<(f64, u64)> {
    let count_before = |end: f64| before.iter().find(|bucket| bucket.0 == end).map_or(0, |bucket| bucket.1);
    let new = now.iter().map(|&(end, count)| (end, count.saturating_sub(count_before(end))));
    new.filter(|&(_, count)| count > 0).collect()
}

/// The end of the bucket with the last request of the fastest `part`; `None` without requests.
fn quantile(buckets: &[(f64, u64)], part: f64) -> Option<f64> {
    let all: u64 = buckets.iter().map(|(_, count)| count).sum();
    let wanted = (all as f64 * part).ceil() as u64;
    let mut seen = 0;
    let holds_it = |&&(_, count): &&(f64, u64)| {
        seen += count;
        seen >= wanted
    };
    buckets.iter().find(holds_it).map(|&(end, _)| end)
}

/// All mounts that are watched, by their directories.
#[derive(Debug, Clone)]
pub(crate) struct WatchedMounts {
    interval: Duration,
    /// The number of the last round.
    round: u64,
    mounts: BTreeMap<PathBuf, WatchedMount>,
}

impl WatchedMounts {
    /// None yet. A round begins each `interval`.
    pub(crate) fn new(interval: Duration) -> WatchedMounts {
        WatchedMounts { interval, round: 0, mounts: BTreeMap::new() }
    }

    /// The time between two rounds.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// The time over which figures are measured: some whole rounds.
    pub(crate) fn recent_time(&self) -> Duration {
        self.interval * self.rounds_of(RECENT) as u32
    }

    /// Notes which mounts exist when a round begins, each with its store.
    pub(crate) fn begin_round(&mut self, round: u64, mounted: BTreeMap<PathBuf, PathBuf>) {
        self.round = round;
        let recent_rounds = self.rounds_of(RECENT);
        for (dir, store) in mounted {
            let row = || MountRow {
                health: "-".into(),
                dir: dir.display().to_string(),
                figures: None,
                volume: format!("of {}", store.display()),
            };
            let found = self
                .mounts
                .entry(dir.clone())
                .or_insert_with(|| WatchedMount::found(round, row(), recent_rounds));
            found.mounted_in_round = round;
        }
        self.mounts.retain(|_, mount| mount.mounted_in_round + GONE_ROUNDS > round);
    }

    /// Adds an answer. An answer about a mount that is forgotten is late, and is ignored.
    pub(crate) fn add(&mut self, sample: MountSample) {
        let filling_rounds = self.rounds_of(FILLING);
        if let Some(mount) = self.mounts.get_mut(&sample.dir) {
            mount.add(sample, filling_rounds);
        }
    }

    /// The directories.
    pub(crate) fn dirs(&self) -> impl Iterator<Item = &Path> {
        self.mounts.keys().map(PathBuf::as_path)
    }

    /// The mount on a directory.
    pub(crate) fn mount(&self, dir: &Path) -> Option<&WatchedMount> {
        self.mounts.get(dir)
    }

    /// The mounts in one line each. A mount without an answer has no figures: the old ones are not true any more.
    pub(crate) fn rows(&self) -> Vec<MountRow> {
        self.mounts.values().map(|mount| self.row_of(mount)).collect()
    }

    fn row_of(&self, mount: &WatchedMount) -> MountRow {
        let health = if mount.mounted_in_round < self.round {
            GONE
        } else if mount.answered_in_round + self.rounds_of(ANSWER_WAIT) < self.round {
            SILENT
        } else {
            return mount.row.clone();
        };
        MountRow { health: health.into(), figures: None, ..mount.row.clone() }
    }

    /// One value of the history of a mount for each of the last `rounds` rounds, the newest last. `None` where the daemon did not
    /// answer.
    pub(crate) fn series(
        &self,
        mount: &WatchedMount,
        rounds: usize,
        value: fn(&HistoryPoint) -> f64,
    ) -> Vec<Option<u64>> {
        // The answers of the present round may be on their way.
        let newest = mount.history.back().map_or(0, |point| point.round).max(self.round.saturating_sub(1));
        let mut values = vec![None; rounds];
        for point in &mount.history {
            let back = newest.saturating_sub(point.round) as usize;
            if back < rounds {
                values[rounds - 1 - back] = Some(value(point).round() as u64);
            }
        }
        values
    }

    /// The rounds that begin in a time, at least one.
    fn rounds_of(&self, time: Duration) -> u64 {
        (time.as_secs_f64() / self.interval.as_secs_f64()).ceil().max(1.0) as u64
    }
}

/// The newest mount on each directory: a later one hides those before.
pub(crate) fn newest_of_each_dir<M>(mounts: Vec<M>, dir: impl Fn(&M) -> PathBuf) -> Vec<M> {
    let mut seen = BTreeSet::new();
    let mut newest: Vec<M> = mounts.into_iter().rev().filter(|mount| seen.insert(dir(mount))).collect();
    newest.reverse();
    newest
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const DIR: &str = "/mnt/db";

    /// The rounds' mounts: one.
    fn mounted() -> BTreeMap<PathBuf, PathBuf> {
        BTreeMap::from([(DIR.into(), "/store".into())])
    }

    /// A report after so many seconds, during which a program wrote 1000 bytes in a second with two requests.
    pub(crate) fn report(seconds: u64) -> StatusReport {
        let mut report = StatusReport {
            pid: 7,
            uptime_ms: seconds * 1000,
            volume: "main".into(),
            ..StatusReport::default()
        };
        let writes = LatencyReport {
            count: seconds * 2,
            bytes: Some(seconds * 1000),
            max_us: 18.0,
            buckets_us: vec![(10.0, seconds), (20.0, seconds)],
            ..LatencyReport::default()
        };
        report.latency.insert("write".into(), writes);
        report.latency.insert("fsync".into(), LatencyReport { count: 0, ..LatencyReport::default() });
        report.buffer_log.bytes = 1 << 20;
        report.buffer_log.free_bytes = (1 << 20) - seconds * 1024;
        report.counters.buffer_bytes_by_cause.metadata = seconds * 4096;
        report
    }

    pub(crate) fn sample(round: u64, dir: &str, report: Option<StatusReport>) -> MountSample {
        let health = if report.is_some() { "ok" } else { "dead" };
        let row = MountRow {
            health: health.into(),
            dir: dir.into(),
            figures: report.as_ref().map(|report| MountFigures::of(report, None)),
            volume: "main of /store".into(),
        };
        MountSample { round, dir: dir.into(), row, report, waits: None }
    }

    /// The mount after so many rounds of a second, with an answer in each.
    fn watched(rounds: u64) -> WatchedMounts {
        let mut watched = WatchedMounts::new(SECOND);
        for round in 1..=rounds {
            watched.begin_round(round, mounted());
            watched.add(sample(round, DIR, Some(report(round))));
        }
        watched
    }

    fn only(watched: &WatchedMounts) -> &WatchedMount {
        watched.mount(Path::new(DIR)).expect("it is watched")
    }

    #[test]
    fn figures_are_those_of_the_last_seconds() {
        assert_eq!(watched(1).rows()[0].figures.as_ref().and_then(|figures| figures.written_rate), None);
        let watched = watched(100);
        let figures = watched.rows()[0].figures.clone().expect("an answer");
        assert_eq!(figures.written_rate, Some(1000.0));
        assert_eq!(figures.buffer_full_in, Some(Duration::from_secs(924)));
        let mount = only(&watched);
        assert_eq!(mount.report_before().map(|report| report.uptime_ms), Some(95_000));
        assert_eq!(mount.logged_per_second().expect("two reports").metadata, 4096);
        let recent = RecentRequests {
            kind: "write".into(),
            per_second: 2.0,
            p50_us: Some(10.0),
            p99_us: Some(18.0),
            max_us: Some(18.0),
            max_since_mount_us: 18.0,
        };
        assert_eq!(mount.recent_requests(), [recent], "there was no sync");
    }

    #[test]
    fn a_buffer_that_is_freed_now_and_then_fills_as_fast_as_in_half_a_minute() {
        let mut watched = WatchedMounts::new(SECOND);
        for round in 1..=40 {
            watched.begin_round(round, mounted());
            let mut report = report(round);
            // Nine steps of 40 KiB are freed each ten seconds. Beside that the buffer fills by 1 KiB in a second.
            report.buffer_log.free_bytes -= 4096 * (round % 10) * 10;
            watched.add(sample(round, DIR, Some(report)));
        }
        let full_in = watched.rows()[0].figures.as_ref().and_then(|figures| figures.buffer_full_in);
        assert_eq!(full_in, Some(Duration::from_secs(984)));
    }

    #[test]
    fn latencies_of_earlier_requests_do_not_count() {
        let since = buckets_since(&[(10.0, 5), (500.0, 1)], &[(10.0, 8), (40.0, 1), (500.0, 1)]);
        assert_eq!(since, [(10.0, 3), (40.0, 1)]);
        assert_eq!(
            [0.5, 0.75, 0.99].map(|part| quantile(&since, part)),
            [Some(10.0), Some(10.0), Some(40.0)]
        );
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn figures_of_slow_rounds_are_those_of_a_round() {
        let recent_seconds =
            |interval| WatchedMounts::new(Duration::from_secs(interval)).recent_time().as_secs();
        assert_eq!([1, 3, 60].map(recent_seconds), [5, 6, 60]);
    }

    #[test]
    fn a_series_has_a_gap_where_the_daemon_was_silent() {
        let mut watched = watched(3);
        (4..=6).for_each(|round| watched.begin_round(round, mounted()));
        watched.add(sample(6, DIR, Some(report(6))));
        let series = watched.series(only(&watched), 6, |point| point.written);
        assert_eq!(series, [None, Some(1000), Some(1000), None, None, Some(1000)]);
        assert_eq!(watched.series(only(&watched), 1, |point| point.requests), [Some(2)]);
        // The answer of the next round is on its way.
        watched.begin_round(7, mounted());
        assert_eq!(watched.series(only(&watched), 1, |point| point.requests), [Some(2)]);
    }

    #[test]
    fn a_dead_mount_has_no_figures_and_lives_again() {
        let mut watched = watched(3);
        watched.add(sample(4, DIR, None));
        let row = &watched.rows()[0];
        assert_eq!((row.health.as_str(), &row.figures), ("dead", &None));
        assert!(only(&watched).report().is_none() && only(&watched).recent_requests().is_empty());
        // Another daemon counts from the beginning.
        watched.add(sample(5, DIR, Some(StatusReport { pid: 8, ..report(1) })));
        watched.add(sample(6, DIR, Some(StatusReport { pid: 8, ..report(2) })));
        assert_eq!(watched.rows()[0].figures.as_ref().and_then(|figures| figures.written_rate), Some(1000.0));
    }

    #[test]
    fn a_daemon_that_began_anew_between_two_answers_has_no_rate() {
        let mut watched = watched(9);
        watched.add(sample(10, DIR, Some(StatusReport { pid: 8, ..report(20) })));
        assert_eq!(watched.rows()[0].figures.as_ref().map(|figures| figures.written_rate), Some(None));
    }

    #[test]
    fn a_mount_that_is_gone_stays_for_a_while() {
        let mut watched = watched(3);
        watched.begin_round(4, BTreeMap::new());
        assert_eq!(watched.rows()[0].health, GONE);
        watched.begin_round(2 + GONE_ROUNDS, BTreeMap::new());
        assert_eq!(watched.rows()[0].health, GONE);
        watched.begin_round(3 + GONE_ROUNDS, BTreeMap::new());
        assert!(watched.rows().is_empty());
        watched.add(sample(3, DIR, Some(report(3))));
        assert!(watched.rows().is_empty(), "a late answer");
    }

    #[test]
    fn an_answer_that_a_later_one_has_overtaken_is_ignored() {
        let mut watched = watched(9);
        watched.add(sample(8, DIR, None));
        assert_eq!(watched.rows()[0].health, "ok");
    }

    #[test]
    fn a_daemon_without_an_answer_is_silent() {
        let mut watched = watched(3);
        for (round, health) in [(4, "ok"), (6, "ok"), (7, SILENT)] {
            watched.begin_round(round, mounted());
            assert_eq!(watched.rows()[0].health, health, "round {round}");
        }
    }

    #[test]
    fn the_last_mount_on_a_directory_hides_the_others() {
        let mounts = vec![("/a", 1), ("/b", 2), ("/a", 3)];
        assert_eq!(newest_of_each_dir(mounts, |mount| mount.0.into()), [("/b", 2), ("/a", 3)]);
    }
}

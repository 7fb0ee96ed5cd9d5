//! The report of a replay: times, waits, and every result that differs from the trace, by cause.

mod compare;
mod differences;
mod explain;
mod latency;
mod text;
mod time_line;

pub(crate) use compare::ConfidenceInterval;
pub use compare::ReportComparison;
pub(crate) use differences::{Difference, DifferenceCause, DifferenceGroup};
pub use differences::{same, show};
pub use explain::{Explanation, explain};
pub(crate) use latency::CallLatency;
pub use time_line::write_time_line;

use crate::init::BuiltTree;
use crate::replay::ReplayRun;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trace_file::{CompiledTrace, Fate, Op, Rule};

/// Maximum number of differences that are listed one by one; all are counted.
const LISTED_MAX: usize = 1000;
/// Number of the longest waits that are listed.
const WAITS_MAX: usize = 20;

/// A report, as `--json` prints it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ReplayReport {
    /// The order that was enforced.
    pub order: String,
    /// The state of the page cache at the start.
    pub cache: String,
    /// How far a stopped replay has come. Absent if the replay was not stopped.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incomplete: Option<IncompleteReplay>,
    /// Duration of the replay, in nanoseconds.
    pub elapsed_ns: u64,
    /// Duration of the traced program, in nanoseconds, with the tracer's work; up to the last replayed action if the replay was
    /// stopped.
    pub recorded_ns: u64,
    /// Problems with the trace: kind, count, first line.
    #[serde(default)]
    pub problems: Vec<(String, u64, u64)>,
    /// Actions by fate.
    pub actions: BTreeMap<String, u64>,
    /// Mean number of calls under way in the replay (time of executed calls over elapsed time), and in the
    /// trace.
    pub concurrency: (f64, f64),
    /// Latencies of executed calls, by call.
    pub calls: BTreeMap<String, CallLatency>,
    /// Latency of fsync and its family.
    pub syncs: CallLatency,
    /// The use of each thread's time.
    pub threads: Vec<ThreadTime>,
    /// Nanoseconds that threads waited, by rule.
    pub waited_ns: BTreeMap<Rule, u64>,
    /// The longest waits.
    pub longest_waits: Vec<LongWait>,
    /// Lateness of actions, at natural speed.
    pub lag: CallLatency,
    /// Number of differing results, by cause.
    pub causes: BTreeMap<DifferenceCause, u64>,
    /// All differences, grouped by those that look the same.
    pub groups: Vec<DifferenceGroup>,
    /// The first differences, one by one.
    pub differences: Vec<Difference>,
    /// The initial tree.
    pub built: BuiltTree,
    /// All runs, if the replay was repeated. The rest of the report is about the median run.
    pub runs: Vec<RunSummary>,
}

/// How far a stopped replay has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteReplay {
    /// Actions that were replayed.
    pub replayed: u64,
    /// Actions of the trace.
    pub actions: u64,
}

/// The use of a thread's time.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ThreadTime {
    /// Actions, of any fate.
    pub actions: u64,
    /// Nanoseconds in calls, by call.
    pub calls_ns: BTreeMap<String, u64>,
    /// Nanoseconds that the thread waited, by rule.
    pub waited_ns: BTreeMap<Rule, u64>,
}

/// One wait.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LongWait {
    /// The action that waited.
    pub action: u32,
    /// The action that it waited for last.
    pub on: u32,
    /// The rule that asked for the wait.
    pub rule: Option<Rule>,
    /// Nanoseconds.
    pub waited_ns: u64,
    /// Paths that the other action names.
    pub paths: Vec<String>,
}

/// The summary of one run, if there are several.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunSummary {
    /// Nanoseconds.
    pub elapsed_ns: u64,
    /// Mean nanoseconds of each call.
    pub calls: BTreeMap<String, u64>,
}

impl ReplayReport {
    /// Compares a run with its trace. `single` is a run with one thread on the same target: the order does
    /// not cause differences that occur there, too.
    pub fn new(
        compiled: &CompiledTrace,
        order: &str,
        run: &ReplayRun,
        single: Option<&ReplayRun>,
    ) -> ReplayReport {
        let all = differences::find(compiled, run, single);
        let mut causes = BTreeMap::new();
        for difference in &all {
            *causes.entry(difference.cause).or_default() += 1;
        }
        let mut waited_ns = BTreeMap::new();
        for (rule, nanos) in run.waited.iter().flatten() {
            *waited_ns.entry(*rule).or_default() += nanos;
        }
        let reached = || compiled.actions.iter().zip(&run.samples).filter(|(_, sample)| sample.is_reached());
        let executed = || reached().filter(|(action, _)| action.fate == Fate::Executed);
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        let recorded_ns = reached().map(|(action, _)| action.end).max().unwrap_or(0);
        let busy = executed().map(|(_, sample)| sample.took).sum();
        let recorded_busy = executed().map(|(action, _)| action.end - action.start).sum();
        let syncs = executed().filter(|(action, _)| matches!(action.op, Op::Sync { .. } | Op::SyncAll));
        let fates = compiled.fates().into_iter();
        let mut report = ReplayReport {
            order: order.into(),
            cache: run.cache.clone(),
            incomplete: (!run.is_complete()).then(|| IncompleteReplay {
                replayed: run.reached() as u64,
                actions: run.samples.len() as u64,
            }),
            elapsed_ns: run.elapsed,
            recorded_ns,
            problems: compiled.about.problems.clone(),
            actions: fates.map(|(fate, count)| (fate.text().to_owned(), count)).collect(),
            concurrency: (share(busy, run.elapsed), share(recorded_busy, recorded_ns)),
            calls: by_call(compiled, run),
            syncs: CallLatency::of(syncs.map(|(_, sample)| sample.took).collect()),
            threads: by_thread(compiled, run),
            waited_ns,
            longest_waits: longest_waits(compiled, order, run),
            lag: CallLatency::of(
                run.samples.iter().map(|sample| sample.late).filter(|late| *late > 0).collect(),
            ),
            causes,
            groups: differences::group(&all),
            differences: all.into_iter().take(LISTED_MAX).collect(),
            built: run.built.clone(),
            runs: Vec::new(),
        };
        report.runs = vec![RunSummary::of(&report)];
        report
    }

    /// Number of results that differ because of the order.
    pub fn order_differences(&self) -> u64 {
        self.causes.get(&DifferenceCause::Order).copied().unwrap_or(0)
    }
}

fn by_call(compiled: &CompiledTrace, run: &ReplayRun) -> BTreeMap<String, CallLatency> {
    let mut times: BTreeMap<_, Vec<u64>> = BTreeMap::new();
    for (action, sample) in compiled.actions.iter().zip(&run.samples) {
        if action.fate == Fate::Executed && sample.is_reached() {
            times.entry(action.name).or_default().push(sample.took);
        }
    }
    times.into_iter().map(|(name, times)| (compiled.names.show(name), CallLatency::of(times))).collect()
}

/// The times of each traced thread. A run with a single thread has all waits in the first thread's place.
fn by_thread(compiled: &CompiledTrace, run: &ReplayRun) -> Vec<ThreadTime> {
    let mut threads = vec![ThreadTime::default(); compiled.about.threads as usize];
    let mut calls: BTreeMap<_, u64> = BTreeMap::new();
    for (action, sample) in compiled.actions.iter().zip(&run.samples) {
        threads[action.thread as usize].actions += 1;
        if action.fate == Fate::Executed {
            *calls.entry((action.thread, action.name)).or_default() += sample.took;
        }
    }
    for ((thread, name), nanos) in calls {
        threads[thread as usize].calls_ns.insert(compiled.names.show(name), nanos);
    }
    for (thread, waited) in threads.iter_mut().zip(&run.waited) {
        thread.waited_ns = waited.clone();
    }
    threads
}

fn longest_waits(compiled: &CompiledTrace, order: &str, run: &ReplayRun) -> Vec<LongWait> {
    let mut waits: Vec<_> = (0u32..).zip(&run.samples).filter(|(_, sample)| sample.on.is_some()).collect();
    waits.sort_by_key(|(_, sample)| std::cmp::Reverse(sample.waited));
    let rule = |action: u32, on: u32| {
        let order = compiled.order(order).ok()?;
        order.of(action).iter().find(|wait| wait.on == on).map(|wait| wait.rule)
    };
    let wait = |(action, sample): (u32, &crate::replay::ActionSample)| {
        let on = sample.on?;
        let mut paths = Vec::new();
        let named = |name| paths.push(compiled.names.show(name));
        trace_file::names_of(&compiled.actions[on as usize], named);
        paths.retain(|path| !path.is_empty());
        Some(LongWait { action, on, rule: rule(action, on), waited_ns: sample.waited, paths })
    };
    waits.into_iter().take(WAITS_MAX).filter_map(wait).collect()
}

//! What a replay was like: times, waiting, and every result that differs from the trace, by cause.

mod differences;
mod explain;
mod text;

pub use differences::{Cause, Difference};
pub use explain::{Explanation, explain};

use crate::action::Fate;
use crate::benchmark::Benchmark;
use crate::replay::Run;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Differences that are listed one by one; all are counted.
const LISTED_MAX: usize = 1000;

/// A report, as `--json` prints it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The order that was enforced.
    pub order: String,
    /// Nanoseconds that the replay took.
    pub elapsed_ns: u64,
    /// Nanoseconds that the traced program took, tracer and all.
    pub recorded_ns: u64,
    /// Actions by fate.
    pub actions: BTreeMap<String, u64>,
    /// Calls under way on average: executed calls' time over elapsed time, and the same in the trace.
    pub concurrency: (f64, f64),
    /// By call: how many were executed, and nanoseconds in all.
    pub calls: BTreeMap<String, (u64, u64)>,
    /// Nanoseconds that threads waited, by rule.
    pub waited_ns: BTreeMap<String, u64>,
    /// Nanoseconds by which an action began too late, at natural speed: the largest.
    pub lag_max_ns: u64,
    /// How many results differ, by cause.
    pub causes: BTreeMap<Cause, u64>,
    /// The first of them.
    pub differences: Vec<Difference>,
    /// Files in the initial tree, and the bytes in them.
    pub built: (u64, u64),
}

impl Report {
    /// Compares a run with its trace. `single` is a run of one thread on the same target: what differs there too is not due
    /// to the order.
    pub fn new(benchmark: &Benchmark, order: &str, run: &Run, single: Option<&Run>) -> Report {
        let all = differences::find(benchmark, run, single);
        let mut causes = BTreeMap::new();
        for difference in &all {
            *causes.entry(difference.cause).or_default() += 1;
        }
        let mut calls: BTreeMap<String, (u64, u64)> = BTreeMap::new();
        let (mut busy, mut recorded_busy, mut recorded) = (0, 0, 0);
        for (action, sample) in benchmark.actions.iter().zip(&run.samples) {
            recorded = recorded.max(action.end);
            if action.fate == Fate::Executed {
                let entry = calls.entry(benchmark.names.show(action.name)).or_default();
                *entry = (entry.0 + 1, entry.1 + sample.took);
                busy += sample.took;
                recorded_busy += action.end - action.start;
            }
        }
        let share = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        Report {
            order: order.into(),
            elapsed_ns: run.elapsed,
            recorded_ns: recorded,
            actions: benchmark
                .fates()
                .into_iter()
                .map(|(fate, count)| (fate.text().to_owned(), count))
                .collect(),
            concurrency: (share(busy, run.elapsed), share(recorded_busy, recorded)),
            calls,
            waited_ns: run.waited.iter().map(|(rule, nanos)| (format!("{rule:?}"), *nanos)).collect(),
            lag_max_ns: run.lag_max,
            causes,
            differences: all.into_iter().take(LISTED_MAX).collect(),
            built: run.built,
        }
    }

    /// How many results differ because of the order.
    pub fn order_differences(&self) -> u64 {
        self.causes.get(&Cause::Order).copied().unwrap_or(0)
    }
}

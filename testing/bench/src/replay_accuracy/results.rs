//! Results of finished runs: one line of JSON for each, so that a campaign can continue.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::error::BenchError;
use super::super::json_lines::JsonLines;
use super::plan::RunKey;

/// The result of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct RunOutcome {
    #[serde(flatten)]
    pub(super) key: RunKey,
    pub(super) elapsed_ns: u64,
    /// Figures of a replay; `None` for the program itself.
    pub(super) replayed: Option<ReplayFigures>,
}

/// Figures from a replay's report besides its time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct ReplayFigures {
    /// Mean number of calls in flight.
    pub(super) concurrency: f64,
    /// Mean number of calls in flight in the trace.
    pub(super) recorded_concurrency: f64,
    /// Lateness of actions: the total, and below, the 99th percentile.
    pub(super) late_ns: u64,
    pub(super) late_p99_ns: u64,
    /// Results that differ from the trace.
    pub(super) differences: u64,
}

/// The results in a directory.
pub(super) struct RunResults(JsonLines<RunOutcome>);

impl RunResults {
    /// Reads the results of earlier calls.
    pub(super) fn open(directory: &Path) -> Result<RunResults, BenchError> {
        JsonLines::open(&directory.join("runs.jsonl")).map(RunResults)
    }

    pub(super) fn outcomes(&self) -> &[RunOutcome] {
        self.0.all()
    }

    pub(super) fn has(&self, key: &RunKey) -> bool {
        self.outcomes().iter().any(|outcome| outcome.key == *key)
    }

    pub(super) fn add(&mut self, outcome: RunOutcome) -> Result<(), BenchError> {
        self.0.add(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{CampaignSize, experiments, runs};
    use super::*;

    #[test]
    fn what_was_measured_is_there_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let experiment = &experiments(CampaignSize::Small)[0];
        let keys = runs(experiment, &experiment.configurations[0], 1, 1);
        let replayed = ReplayFigures {
            concurrency: 0.5,
            recorded_concurrency: 0.75,
            late_ns: 3,
            late_p99_ns: 2,
            differences: 1,
        };
        let mut results = RunResults::open(directory.path()).expect("a new file");
        for (key, replayed) in keys.iter().zip([None, Some(replayed)]) {
            results.add(RunOutcome { key: key.clone(), elapsed_ns: 7, replayed }).expect("written");
        }
        let again = RunResults::open(directory.path()).expect("the same file");
        assert_eq!(again.outcomes().len(), 2);
        assert!(again.has(&keys[0]) && again.has(&keys[1]) && !again.has(&keys[2]));
        assert_eq!(again.outcomes()[1].replayed, Some(replayed));
    }
}

//! What was measured so far: one line of JSON for each run, so that a campaign goes on where it stopped.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::error::BenchError;
use super::super::json_lines::JsonLines;
use super::plan::Key;

/// One run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Outcome {
    #[serde(flatten)]
    pub(super) key: Key,
    pub(super) elapsed_ns: u64,
    /// Of a replay.
    pub(super) replayed: Option<Replayed>,
}

/// What a replay's report says besides.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Replayed {
    /// Calls under way on average.
    pub(super) concurrency: f64,
    /// The same in the trace.
    pub(super) recorded_concurrency: f64,
    /// By how much actions began too late, all together, and 99 of 100 at most.
    pub(super) late_ns: u64,
    pub(super) late_p99_ns: u64,
    /// Results that differ from the trace.
    pub(super) differences: u64,
}

/// A directory that remembers.
pub(super) struct Results(JsonLines<Outcome>);

impl Results {
    /// Reads what is there.
    pub(super) fn open(directory: &Path) -> Result<Results, BenchError> {
        JsonLines::open(&directory.join("runs.jsonl")).map(Results)
    }

    pub(super) fn outcomes(&self) -> &[Outcome] {
        self.0.all()
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.outcomes().iter().any(|outcome| outcome.key == *key)
    }

    pub(super) fn add(&mut self, outcome: Outcome) -> Result<(), BenchError> {
        self.0.add(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Size, experiments, runs};
    use super::*;

    #[test]
    fn what_was_measured_is_there_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let experiment = &experiments(Size::Small)[0];
        let keys = runs(experiment, &experiment.configurations[0], 1, 1);
        let replayed = Replayed {
            concurrency: 0.5,
            recorded_concurrency: 0.75,
            late_ns: 3,
            late_p99_ns: 2,
            differences: 1,
        };
        let mut results = Results::open(directory.path()).expect("a new file");
        for (key, replayed) in keys.iter().zip([None, Some(replayed)]) {
            results.add(Outcome { key: key.clone(), elapsed_ns: 7, replayed }).expect("written");
        }
        let again = Results::open(directory.path()).expect("the same file");
        assert_eq!(again.outcomes().len(), 2);
        assert!(again.has(&keys[0]) && again.has(&keys[1]) && !again.has(&keys[2]));
        assert_eq!(again.outcomes()[1].replayed, Some(replayed));
    }
}

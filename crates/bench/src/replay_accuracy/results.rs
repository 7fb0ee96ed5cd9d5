//! What was measured so far: one line of JSON for each run, so that a campaign goes on where it stopped.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::error::BenchError;
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
pub(super) struct Results {
    path: PathBuf,
    file: File,
    pub(super) outcomes: Vec<Outcome>,
}

impl Results {
    /// Reads what is there. A last line that was cut off is measured again.
    pub(super) fn open(directory: &Path) -> Result<Results, BenchError> {
        let path = directory.join("runs.jsonl");
        let failed = |what| move |error| BenchError::io(what, directory.join("runs.jsonl"), error);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(failed("cannot read")(error)),
        };
        let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
        let read = |line| serde_json::from_str(line).map_err(std::io::Error::from);
        let outcomes =
            whole.lines().map(read).collect::<Result<_, _>>().map_err(failed("cannot understand"))?;
        let file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed("cannot open"))?;
        file.set_len(whole.len() as u64).map_err(failed("cannot cut"))?;
        Ok(Results { path, file, outcomes })
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.outcomes.iter().any(|outcome| outcome.key == *key)
    }

    pub(super) fn add(&mut self, outcome: Outcome) -> Result<(), BenchError> {
        let line = format!("{}\n", serde_json::json!(outcome));
        self.file
            .write_all(line.as_bytes())
            .map_err(|error| BenchError::io("cannot write", &self.path, error))?;
        self.outcomes.push(outcome);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Size, experiments, runs};
    use super::*;

    #[test]
    fn what_was_measured_is_there_again_and_a_torn_line_is_not() {
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
        results.file.write_all(b"{\"experiment\":\"rea").expect("written");
        let mut again = Results::open(directory.path()).expect("the same file");
        assert_eq!(again.outcomes.len(), 2);
        assert!(again.has(&keys[0]) && again.has(&keys[1]) && !again.has(&keys[2]));
        assert_eq!(again.outcomes[1].replayed, Some(replayed));
        again.add(Outcome { key: keys[2].clone(), elapsed_ns: 8, replayed: None }).expect("written");
        assert_eq!(Results::open(directory.path()).expect("the same file").outcomes.len(), 3);
    }
}

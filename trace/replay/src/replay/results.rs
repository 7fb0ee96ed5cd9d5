//! What came of a replay, and how the process that replays hands it on.

use crate::init::Built;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trace_file::{Outcome, Rule, TraceError};

/// What came of a replay.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    /// Nanoseconds from the first action to the last.
    pub elapsed: u64,
    /// One for each action.
    pub samples: Vec<Sample>,
    /// Nanoseconds that each thread waited, by rule.
    pub waited: Vec<BTreeMap<Rule, u64>>,
    /// The initial tree.
    pub built: Built,
    /// What was done to the cache before the first action.
    pub cache: String,
}

/// What came of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// Nanoseconds since the replay began: when it began, after all waiting.
    pub start: u64,
    /// Nanoseconds that it waited for others.
    pub waited: u64,
    /// The action that it waited for last.
    pub on: Option<u32>,
    /// Nanoseconds by which it began later than the program's pause asked for.
    pub late: u64,
    /// Nanoseconds that it took.
    pub took: u64,
    /// What it returned; the recorded result, for what is not executed.
    pub outcome: Outcome,
}

/// What the process that replays hands to the one that asked for it.
pub type Results = Result<Run, Failure>;

/// Why there is no run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The exit code that says it.
    pub code: u8,
    /// The same for people.
    pub message: String,
    /// The next step.
    pub help: Option<String>,
}

/// For the process that asked for the run.
pub fn results_to_bytes(results: &Results) -> Vec<u8> {
    postcard::to_stdvec(results).expect("numbers and text can be written")
}

/// The same, read back.
pub fn results_from_bytes(bytes: &[u8]) -> Result<Results, TraceError> {
    let wrong = |error: postcard::Error| TraceError::Results { why: error.to_string() };
    postcard::from_bytes(bytes).map_err(wrong)
}

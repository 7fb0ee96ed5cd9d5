//! The results of a replay, and their transfer from the process that replays.

use crate::init::BuiltTree;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use trace_file::{Outcome, Rule, TraceError};

/// The results of a replay.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct ReplayRun {
    /// Nanoseconds from the first action to the last.
    pub elapsed: u64,
    /// The sample of each action.
    pub samples: Vec<ActionSample>,
    /// Nanoseconds that each thread waited, by rule.
    pub waited: Vec<BTreeMap<Rule, u64>>,
    /// The initial tree.
    pub built: BuiltTree,
    /// The treatment of the page cache before the first action.
    pub cache: String,
}

impl ReplayRun {
    /// The results of a replay of `count` actions that was stopped before the first.
    pub fn unreached(count: usize) -> ReplayRun {
        ReplayRun { samples: vec![ActionSample::UNREACHED; count], ..ReplayRun::default() }
    }

    /// The number of actions that the replay has reached: all of them, unless it was stopped.
    pub fn reached(&self) -> usize {
        self.samples.iter().filter(|sample| sample.is_reached()).count()
    }

    /// Whether the replay was not stopped.
    pub fn is_complete(&self) -> bool {
        self.reached() == self.samples.len()
    }
}

/// The results of one action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ActionSample {
    /// Time at which the action began, after all waiting, in nanoseconds since the replay began.
    pub start: u64,
    /// Nanoseconds that the action waited for other actions.
    pub waited: u64,
    /// The action that this one waited for last.
    pub on: Option<u32>,
    /// Nanoseconds by which the action began later than the program's pause required.
    pub late: u64,
    /// Duration in nanoseconds.
    pub took: u64,
    /// The result. An action that is not executed has the recorded result.
    pub outcome: Outcome,
}

impl ActionSample {
    /// The sample of an action that a stopped replay did not reach.
    pub(crate) const UNREACHED: ActionSample =
        ActionSample { start: u64::MAX, waited: 0, on: None, late: 0, took: 0, outcome: Outcome::Unknown };

    /// Whether the replay has reached the action.
    pub fn is_reached(&self) -> bool {
        self.start != u64::MAX
    }
}

/// The message from the process that replays to the process that asked for the replay.
pub type ReplayResults = Result<ReplayRun, ReplayFailure>;

/// The reason why a replay has no results.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplayFailure {
    /// The exit code for this failure.
    pub code: u8,
    /// The message for the user.
    pub message: String,
    /// The next step.
    pub help: Option<String>,
}

/// Encodes the results for the process that asked for the replay.
pub fn results_to_bytes(results: &ReplayResults) -> Vec<u8> {
    postcard::to_stdvec(results).expect("numbers and text can be written")
}

/// Decodes the results.
pub fn results_from_bytes(bytes: &[u8]) -> Result<ReplayResults, TraceError> {
    let wrong = |error: postcard::Error| TraceError::Results { why: error.to_string() };
    postcard::from_bytes(bytes).map_err(wrong)
}

//! Runs a benchmark: a thread per traced thread, which waits only where the order says so.

mod aio;
mod attributes;
mod cache;
mod calls;
mod confine;
mod debt;
mod engine;
mod kernel;
mod plan;
mod progress;
mod site;
mod syncs;

pub use cache::{Cache, CacheControl};
pub use confine::{Confined, confine};
pub use plan::{Baseline, Settings, Speed};
pub use site::{Site, Stay};
pub use syncs::{Syncs, WriteOut};

use crate::action::Rule;
use crate::benchmark::Benchmark;
use crate::error::TraceError;
use crate::init::Built;
use crate::op::{Op, Outcome};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What executes actions: the kernel, or nothing, to measure the engine itself.
pub trait Target: Sync {
    /// Executes one operation and says what came of it.
    fn execute(&self, op: &Op<u32>, buffer: &mut Buffer) -> Outcome;
}

/// Answers every operation with success at once.
#[derive(Debug)]
pub struct Null;

impl Target for Null {
    fn execute(&self, _: &Op<u32>, _: &mut Buffer) -> Outcome {
        Outcome::Value(0)
    }
}

/// A thread's memory for reads and writes, aligned for direct I/O.
#[derive(Debug, Default)]
pub struct Buffer {
    bytes: Vec<u8>,
}

/// O_DIRECT asks for the alignment of a page at most.
const ALIGN: usize = 4096;
/// A larger read or write is made in one call of this size: hostile sizes must not take all memory.
const BUFFER_BYTES_MAX: u64 = 64 << 20;

impl Buffer {
    /// At least `bytes` of memory, up to the limit.
    pub fn take(&mut self, bytes: u64) -> &mut [u8] {
        let bytes = bytes.min(BUFFER_BYTES_MAX) as usize;
        if self.bytes.len() < bytes + ALIGN {
            self.bytes.resize(bytes + ALIGN, 0xa5);
        }
        let skip = self.bytes.as_ptr().align_offset(ALIGN).min(ALIGN);
        &mut self.bytes[skip..skip + bytes]
    }
}

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

/// Replays `benchmark` in the root directory of this process, which must be confined and hold the initial tree.
pub fn replay(benchmark: &Benchmark, settings: &Settings, syncs: Syncs) -> Result<Run, TraceError> {
    confine::raise_descriptor_limit();
    let plan = plan::Plan::new(benchmark, settings)?;
    let kernel = kernel::Kernel::new(benchmark, syncs)?;
    engine::run(benchmark, &plan, &kernel)
}

/// Replays onto nothing: what is measured is the engine.
pub fn replay_onto_nothing(benchmark: &Benchmark, settings: &Settings) -> Result<Run, TraceError> {
    engine::run(benchmark, &plan::Plan::new(benchmark, settings)?, &Null)
}

#[cfg(test)]
mod tests;

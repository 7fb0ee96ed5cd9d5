//! Runs a benchmark: a thread per traced thread, which waits only where the order says so.

mod aio;
mod attributes;
mod cache;
mod calls;
mod debt;
mod engine;
mod kernel;
mod plan;
mod progress;
mod results;
mod syncs;
mod target;

pub use cache::{Cache, CacheControl};
pub use plan::{Baseline, Settings, Speed};
pub use results::{Failure, Results, Run, Sample, results_from_bytes, results_to_bytes};
pub use syncs::{Syncs, WriteOut};

use crate::confine::raise_descriptor_limit;
use target::Null;
use trace_file::{Benchmark, TraceError};

/// Replays `benchmark` in the root directory of this process, which must be confined and hold the initial tree.
pub fn replay(benchmark: &Benchmark, settings: &Settings, syncs: Syncs) -> Result<Run, TraceError> {
    raise_descriptor_limit();
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

//! Runs a compiled trace with a thread for each traced thread. Threads wait only where the order says so.

mod aio;
mod attributes;
mod cache;
mod calls;
mod engine;
mod kernel;
mod pause_compensation;
mod plan;
mod progress;
mod results;
mod syncs;
mod target;

pub use cache::{CacheControl, StartCache};
pub use plan::{OrderChoice, ReplaySettings, ReplaySpeed};
pub use results::{
    ActionSample, ReplayFailure, ReplayResults, ReplayRun, results_from_bytes, results_to_bytes,
};
pub use syncs::{FsyncMeaning, WriteOut};

use crate::confine::raise_descriptor_limit;
use target::NullTarget;
use trace_file::{CompiledTrace, TraceError};

/// Replays `compiled` in the root directory of this process. The process must be confined, and the directory
/// must hold the initial tree.
pub fn replay(
    compiled: &CompiledTrace,
    settings: &ReplaySettings,
    syncs: FsyncMeaning,
) -> Result<ReplayRun, TraceError> {
    raise_descriptor_limit();
    let plan = plan::ReplayPlan::new(compiled, settings)?;
    let kernel = kernel::ReplayKernel::new(compiled, syncs)?;
    engine::run(compiled, &plan, &kernel)
}

/// Replays without system calls, to measure the engine itself.
pub fn replay_onto_nothing(
    compiled: &CompiledTrace,
    settings: &ReplaySettings,
) -> Result<ReplayRun, TraceError> {
    engine::run(compiled, &plan::ReplayPlan::new(compiled, settings)?, &NullTarget)
}

#[cfg(test)]
mod tests;

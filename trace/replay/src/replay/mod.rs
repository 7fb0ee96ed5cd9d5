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
use std::ops::ControlFlow;
use target::NullTarget;
use trace_file::{CompiledTrace, TraceError};

/// Replays `compiled` in the root directory of this process. The process must be confined, and the directory
/// must hold the initial tree.
///
/// `show` is called from time to time with the number of actions that are done. If it answers with a break, the replay ends once
/// the calls under way have returned, and the other actions have [no sample](ActionSample::is_reached).
pub fn replay(
    compiled: &CompiledTrace,
    settings: &ReplaySettings,
    syncs: FsyncMeaning,
    show: &dyn Fn(u64) -> ControlFlow<()>,
) -> Result<ReplayRun, TraceError> {
    raise_descriptor_limit();
    let plan = plan::ReplayPlan::new(compiled, settings)?;
    let kernel = kernel::ReplayKernel::new(compiled, syncs)?;
    engine::run(compiled, &plan, &kernel, show)
}

/// Replays without system calls, to measure the engine itself.
pub fn replay_onto_nothing(
    compiled: &CompiledTrace,
    settings: &ReplaySettings,
) -> Result<ReplayRun, TraceError> {
    let plan = plan::ReplayPlan::new(compiled, settings)?;
    engine::run(compiled, &plan, &NullTarget, &|_| ControlFlow::Continue(()))
}

#[cfg(test)]
mod tests;

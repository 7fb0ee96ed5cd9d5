//! Background work by kind, the results of its steps, and completions.

use crate::error::CacheError;

/// A completion. Called once, possibly on the caller's own thread before the call returns, and never while
/// the state is locked. It may be called in the middle of write-back, and no other thread writes anything
/// back until it returns. So it must not call [`Cache::step`](crate::Cache::step),
/// [`Cache::drain`](crate::Cache::drain) or [`Cache::clone_volume`](crate::Cache::clone_volume), nor wait for
/// a thread that does.
pub type CacheCompletion<T, E = CacheError> = Box<dyn FnOnce(Result<T, E>) + Send>;

/// Completions that were collected under the lock, to be called without it.
#[derive(Default)]
pub(crate) struct DeferredCompletions(Vec<Box<dyn FnOnce() + Send>>);

impl DeferredCompletions {
    pub(crate) fn push(&mut self, call: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(call));
    }

    /// Calls them. The caller does not hold the state's lock. It may hold the write-back lock, or that of
    /// making space, if no other thread is to write more back before the waiters are told.
    pub(crate) fn deliver(self) {
        self.0.into_iter().for_each(|call| call());
    }
}

/// Background work. Several threads at once may step `Fetch`; one thread each the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BackgroundTask {
    /// Makes appended changes durable and completes syncs.
    Commit,
    /// Reads pages for readers that wait or will come to them, and frees the memory of punched pages.
    Fetch,
    /// Writes pages, punches and range operations back.
    WriteBack,
    /// Keeps recovery short, and frees space in the store.
    Checkpoint,
}

impl BackgroundTask {
    /// Every kind.
    pub const ALL: [BackgroundTask; 4] = [
        BackgroundTask::Commit,
        BackgroundTask::Fetch,
        BackgroundTask::WriteBack,
        BackgroundTask::Checkpoint,
    ];
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepProgress {
    /// It did something: call again.
    Worked,
    /// There is nothing to do now.
    Idle,
}

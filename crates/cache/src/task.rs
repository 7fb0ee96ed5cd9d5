//! Background work by kind, what its steps say, and how callers are told.

use crate::error::CacheError;

/// A completion. Called once, maybe on the caller's own thread before the call returns, and never while the state is locked.
/// Its caller may be in the middle of writing pages back, and no other thread writes any until it returns: it must not call
/// [`Cache::step`](crate::Cache::step), [`Cache::drain`](crate::Cache::drain) or
/// [`Cache::clone_volume`](crate::Cache::clone_volume), nor wait for a thread that does.
pub type Completion<T, E = CacheError> = Box<dyn FnOnce(Result<T, E>) + Send>;

/// Completions gathered under the lock, to be called without it.
#[derive(Default)]
pub(crate) struct Completions(Vec<Box<dyn FnOnce() + Send>>);

impl Completions {
    pub(crate) fn push(&mut self, call: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(call));
    }

    /// Calls them. The caller does not hold the state; it may hold its turn of write-back or making space, where no other thread is to
    /// write more back before they are told.
    pub(crate) fn deliver(self) {
        self.0.into_iter().for_each(|call| call());
    }
}

/// Background work. `Fetch` may be stepped by several threads at once, the others by one each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    /// Makes what was appended durable and completes syncs.
    Commit,
    /// Reads pages that a reader waits for or will come to, and gives back the memory of those that were cut.
    Fetch,
    /// Writes pages back, and with them cuts and deletions.
    WriteBack,
    /// Keeps recovery short, and frees space.
    Checkpoint,
}

impl Task {
    /// Every kind.
    pub const ALL: [Task; 4] = [Task::Commit, Task::Fetch, Task::WriteBack, Task::Checkpoint];
}

/// What a step did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Something: call again.
    Worked,
    /// Nothing to do now.
    Idle,
}

//! Making things durable: syncs, commits, and which callers are told.

use crate::cache::{Completion, Core, Progress, Task};
use crate::error::CacheError;
use crate::state::State;
use crate::sync::{AtomicU64, Ordering};
use device::Lsn;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::Store;

/// A group's worth: past it, waiting longer shares no more flushes worth having.
const COMMIT_BYTES: u64 = 1 << 20;

/// Who waits for durability.
#[derive(Default)]
pub(crate) struct Syncs {
    waiting: VecDeque<(Lsn, Completion<()>)>,
    /// When the oldest change that is not durable was made.
    pub(crate) uncommitted_since: Option<Duration>,
    /// Something needs a commit soon: a write-back, or released space.
    pub(crate) commit_wanted: bool,
    /// A commit is under way.
    committing: u32,
}

impl Syncs {
    /// Parks `then` until `target` is durable. True if no other thread waits or commits.
    pub(crate) fn park(&mut self, target: Lsn, then: Completion<()>) -> bool {
        let alone = self.committing == 0 && self.waiting.is_empty();
        self.waiting.push_back((target, then));
        alone
    }

    /// How many wait.
    pub(crate) fn parked(&self) -> u64 {
        self.waiting.len() as u64
    }
}

/// How long a commit takes on this buffer, as a running mean, in nanoseconds. Starts as "for ever", so that the
/// first one is made by the committer.
pub(crate) struct CommitTime(AtomicU64);

impl CommitTime {
    pub(crate) fn new() -> CommitTime {
        CommitTime(AtomicU64::new(u64::MAX))
    }

    fn saw(&self, took: Duration) {
        let took = took.as_nanos() as u64;
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == u64::MAX { took } else { mean - mean / 8 + took / 8 };
        self.0.store(next, Ordering::Relaxed);
    }

    fn is_below(&self, limit: Duration) -> bool {
        self.0.load(Ordering::Relaxed) < limit.as_nanos() as u64
    }
}

thread_local! {
    /// This thread is doing what a sync waits for.
    static SYNCING: Cell<bool> = const { Cell::new(false) };
}

/// Marks a thread as working for a sync, as long as it lives.
struct ForSync;

impl ForSync {
    fn begin() -> ForSync {
        SYNCING.set(true);
        ForSync
    }
}

impl Drop for ForSync {
    fn drop(&mut self) {
        SYNCING.set(false);
    }
}

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

impl Core {
    pub(crate) fn sync(self: &Arc<Core>, then: Completion<()>) {
        let mut state = self.state();
        state.counters.syncs += 1;
        if let Some(error) = state.failed.clone() {
            drop(state);
            return then(Err(error.into()));
        }
        let target = self.buffer.appended();
        if self.buffer.durable() >= target {
            drop(state);
            return then(Ok(()));
        }
        let alone = state.syncs.park(target, then);
        let quick = alone && self.commit_time.is_below(self.settings.commit_inline_below);
        // Once it stops, the committer may have ended.
        if quick || state.stopping {
            drop(state);
            // Handing over to the committer and back takes longer than this buffer takes to commit.
            let _ = self.commit_now();
        } else {
            drop(state);
            self.wake(Task::Commit);
        }
    }

    /// Makes everything appended so far durable, in this thread, and tells the callers that waited for it.
    pub(crate) fn commit_now(self: &Arc<Core>) -> Result<Lsn, CacheError> {
        let mut state = self.state();
        state.syncs.committing += 1;
        state.syncs.commit_wanted = false;
        drop(state);
        let (before, was_durable) = (self.clock.monotonic(), self.buffer.durable());
        let for_sync = ForSync::begin();
        let outcome = self.buffer.commit();
        if outcome.as_ref().is_ok_and(|&durable| durable > was_durable) {
            // Only those count that had something to do: the others would make any device look fast.
            self.commit_time.saw(self.clock.monotonic().saturating_sub(before));
        }

        let mut completions = Completions::default();
        let mut state = self.state();
        drop(for_sync);
        state.syncs.committing -= 1;
        let result = match outcome {
            Ok(durable) => {
                self.settle_syncs(&mut state, durable, before, &mut completions);
                self.admit_waiting(&mut state, &mut completions);
                Ok(durable)
            }
            Err(why) => {
                self.fail(&mut state, &why);
                for (_, then) in std::mem::take(&mut state.syncs.waiting) {
                    let error = why.clone().into();
                    completions.push(move || then(Err(error)));
                }
                let error = why.clone().into();
                self.refuse_all(&mut state, &CacheError::ReadOnly { why }, &mut completions);
                Err(error)
            }
        };
        drop(state);
        if result.is_err() {
            // Everything that is in memory alone is to be rescued.
            self.wake(Task::WriteBack);
        }
        completions.deliver();
        result
    }

    /// The store, for device I/O: every call is counted against the sync that has to wait for it, if there is one.
    pub(crate) fn store_io(&self) -> &Store {
        if SYNCING.get() {
            self.store_io_for_syncs.fetch_add(1, Ordering::Relaxed);
        }
        &self.store
    }

    /// Tells the callers that waited for what a commit that began at `begun` made durable.
    fn settle_syncs(&self, state: &mut State, durable: Lsn, begun: Duration, completions: &mut Completions) {
        while state.syncs.waiting.front().is_some_and(|&(target, _)| target <= durable) {
            let Some((_, then)) = state.syncs.waiting.pop_front() else { return };
            completions.push(move || then(Ok(())));
        }
        let clean = self.buffer.appended() <= durable;
        state.syncs.uncommitted_since = if clean { None } else { Some(begun) };
    }

    /// How long the oldest change that was not synced may still wait; `None` without one.
    pub(crate) fn commit_due_in(&self, state: &State) -> Option<Duration> {
        let since = state.syncs.uncommitted_since.filter(|_| state.failed.is_none());
        let due = since? + self.settings.commit_interval;
        Some(due.saturating_sub(self.clock.monotonic()))
    }

    /// True if a commit is worth making now.
    pub(crate) fn commit_due(&self, state: &State) -> bool {
        let old = |since: Duration| self.clock.monotonic() >= since + self.settings.commit_interval;
        let is_old = || state.failed.is_none() && state.syncs.uncommitted_since.is_some_and(old);
        self.commit_pressed(state) || is_old()
    }

    /// The same, but for age, which the committer looks at by itself.
    pub(crate) fn commit_pressed(&self, state: &State) -> bool {
        let wanted = !state.syncs.waiting.is_empty() || state.syncs.commit_wanted;
        state.failed.is_none() && (wanted || self.buffer.open_bytes() >= COMMIT_BYTES)
    }

    pub(crate) fn commit_step(self: &Arc<Core>) -> Progress {
        let mut state = self.state();
        if self.commit_due(&state) {
            drop(state);
            let _ = self.commit_now();
            return Progress::Worked;
        }
        let mut completions = Completions::default();
        self.admit_waiting(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        Progress::Idle
    }
}

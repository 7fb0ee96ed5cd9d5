//! Durability: syncs, commits, and completing the syncs for which a commit was enough.

use crate::admission::AdmissionControl;
use crate::append_cause::AppendCause;
use crate::bypass;
use crate::error::CacheError;
use crate::log::CacheLog;
use crate::page_table::{PageKey, PageTable};
use crate::planted_bug::{CacheBug, is_planted};
use crate::request_wait::{RequestWait, TaskLoan, WaitCause};
use crate::state::{CacheShared, CacheState, SyncingThread};
use crate::sync::{AtomicU64, Ordering};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions, StepProgress};
use buffer::{BufferError, GROUP_BYTES};
use device::{BLOCK_BYTES, Lsn, ObjectId};
use request::{LendingLevel, Origin, RequestClass};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Bypassed pages that one commit logs at most: 4 MiB, milliseconds under the lock. The next commit follows
/// at once with the rest.
const LATE_LOG_PAGES_MAX: usize = 1024;

/// Pages that are logged for a lent sync under one hold of the lock: about a millisecond.
const LENT_PAGES_MAX: usize = 256;

/// The changes that a sync covers.
#[derive(Debug, Clone, Copy)]
pub enum SyncScope {
    /// All but pages that [bypassed](crate::ObjectChange::FileWrite) the buffer.
    Logged,
    /// All but pages of other objects that bypassed the buffer.
    Object(ObjectId),
    /// Everything.
    All,
}

/// How long a commit takes on this buffer: a running mean, in nanoseconds. Begins with the maximum, so that
/// the committer makes the first commit.
struct CommitTime(AtomicU64);

impl CommitTime {
    fn new() -> CommitTime {
        CommitTime(AtomicU64::new(u64::MAX))
    }

    fn record(&self, took: Duration) {
        let took = took.as_nanos() as u64;
        let mean = self.0.load(Ordering::Relaxed);
        let next = if mean == u64::MAX { took } else { mean - mean / 8 + took / 8 };
        self.0.store(next, Ordering::Relaxed);
    }

    fn is_below(&self, limit: Duration) -> bool {
        self.0.load(Ordering::Relaxed) < limit.as_nanos() as u64
    }
}

/// Makes changes durable.
pub(crate) struct Committer {
    shared: Arc<CacheShared>,
    admission: AdmissionControl,
    commit_time: CommitTime,
}

impl Committer {
    pub(crate) fn new(shared: Arc<CacheShared>, admission: AdmissionControl) -> Committer {
        Committer { shared, admission, commit_time: CommitTime::new() }
    }

    /// Completes `then` when what `scope` covers is durable.
    pub(crate) fn sync(&self, origin: Origin, scope: SyncScope, then: CacheCompletion<()>) {
        let now = self.shared.now();
        let mut state = self.shared.state();
        state.counters.syncs += 1;
        let CacheState { pages, log, .. } = &mut *state;
        if log.failed().is_none() {
            match self.log_for_sync(origin, scope, pages, log, now) {
                Ok(awaited) if awaited.is_empty() => {}
                Ok(awaited) => {
                    let wait = RequestWait::new(origin, WaitCause::WriteBack, now);
                    log.syncs.park_for_store(wait, awaited, then);
                    drop(state);
                    return self.shared.wake(BackgroundTask::WriteBack);
                }
                Err(why) => log.fail(&why),
            }
        }
        if let Some(error) = log.failed().cloned() {
            drop(state);
            return then(Err(error.into()));
        }
        let target = log.syncs.target(self.shared.buffer().appended_lsn());
        if target.is_durable(self.shared.buffer()) {
            drop(state);
            return then(Ok(()));
        }
        let alone = log.syncs.park(RequestWait::new(origin, WaitCause::Commit, now), target, then);
        let quick = alone && self.commit_time.is_below(self.shared.settings().commit_inline_below);
        // A cache that stops may have no committer any more.
        let commits_here = quick || log.is_stopping();
        drop(state);
        if commits_here {
            // Handing over to the committer and back takes longer than a commit to this buffer.
            let _ = self.commit_now();
        } else {
            self.shared.wake(BackgroundTask::Commit);
        }
    }

    /// Logs bypassed pages for a sync. If they are many, returns those for which the sync must wait for the
    /// store instead.
    fn log_for_sync(
        &self,
        origin: Origin,
        scope: SyncScope,
        pages: &mut PageTable,
        log: &mut CacheLog,
        now: Duration,
    ) -> Result<BTreeMap<PageKey, Lsn>, BufferError> {
        let range = match scope {
            _ if is_planted(CacheBug::SyncWithoutBytes) => return Ok(BTreeMap::new()),
            _ if origin.class == RequestClass::Background && is_planted(CacheBug::BackgroundSyncTold) => {
                return Ok(BTreeMap::new());
            }
            SyncScope::Logged => None,
            SyncScope::Object(object) => Some(bypass::of_object(object)),
            SyncScope::All => Some(bypass::ALL),
        };
        let keys = range.into_iter().flat_map(|range| pages.unlogged_in(range));
        let unlogged: BTreeMap<PageKey, Lsn> =
            keys.filter_map(|key| Some((key, pages.get(&key)?.newest()?))).collect();
        if unlogged.is_empty() {
            if origin.class == RequestClass::Critical {
                log.syncs.note_log_only_sync(now);
            }
            return Ok(unlogged);
        }
        let bytes = (unlogged.len() * BLOCK_BYTES) as u64;
        // A cache that stops may have no thread any more that stores them.
        if bytes > self.shared.sync_log_bytes_max(origin.class) && !log.is_stopping() {
            return Ok(unlogged);
        }
        log.log_bypassed(pages, origin, unlogged.into_keys(), AppendCause::Sync)?;
        Ok(BTreeMap::new())
    }

    /// Lends the priority of critical tasks to what of a background task waits now. Returns whether something
    /// does. The paper keeps a graph of who waits for whom (section 3.3); here whoever still waits after a
    /// moment lends again, so nothing is given back, and there are no cycles.
    pub(crate) fn lend(&self, loan: TaskLoan, level: LendingLevel) -> bool {
        if level == LendingLevel::None {
            return false;
        }
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        let mut was_waiting = state.space.admission.lend(loan);
        if was_waiting {
            self.admission.admit_waiting(state.for_admission(), &mut completions);
        }
        let has_reads = state.reads.lend(loan);
        drop(state);
        completions.deliver();
        if has_reads {
            self.shared.wake(BackgroundTask::Fetch);
        }
        if level == LendingLevel::AdmissionAndSync {
            while self.log_for_lent_sync(loan) {
                was_waiting = true;
            }
        }
        if was_waiting {
            // For space that was released, but not yet durably; and for the pages that were logged.
            self.shared.wake(BackgroundTask::Commit);
        }
        was_waiting || has_reads
    }

    /// Logs some of the pages for which syncs of a task wait. `false` if there are none.
    fn log_for_lent_sync(&self, loan: TaskLoan) -> bool {
        let mut state = self.shared.state();
        let CacheState { pages, log, .. } = &mut *state;
        let wanted = log.syncs.lend(loan, LENT_PAGES_MAX);
        if wanted.is_empty() || log.failed().is_some() {
            return false;
        }
        if is_planted(CacheBug::LentPagesNotLogged) {
            log.syncs.forget_wanted(loan.to);
            log.complete_store_waits(pages, &[]);
        } else {
            log.log_late(pages, wanted, AppendCause::LentSync);
        }
        true
    }

    /// At the end of a mount: logs bypassed pages that could not be stored, and makes everything that is
    /// logged durable.
    pub(crate) fn make_all_durable(&self) -> Result<(), CacheError> {
        let mut state = self.shared.state();
        let CacheState { pages, log, .. } = &mut *state;
        if !is_planted(CacheBug::EndWithoutCommit) {
            log.log_all_late(pages);
        }
        drop(state);
        self.commit_now().map(drop)
    }

    /// Logs bypassed pages that the store lacks after a commit interval; some of them, if they are many.
    fn log_overdue(&self, pages: &mut PageTable, log: &mut CacheLog) {
        if is_planted(CacheBug::OverdueNotLogged) {
            return;
        }
        if let Some(until) = self.shared.now().checked_sub(self.shared.bypassed_interval()) {
            let overdue = pages.bypassed().written_until(until, LATE_LOG_PAGES_MAX);
            log.log_late(pages, overdue, AppendCause::WholePage);
        }
    }

    /// Makes everything that was appended durable, in this thread, with overdue bypassed pages, and completes
    /// the syncs that waited.
    pub(crate) fn commit_now(&self) -> Result<Lsn, CacheError> {
        let mut state = self.shared.state();
        let CacheState { pages, log, .. } = &mut *state;
        self.log_overdue(pages, log);
        pages.note_commit_begun();
        log.syncs.begin_commit();
        log.syncs.cancel_commit_request();
        drop(state);
        let before = self.shared.now();
        let was_durable = self.shared.buffer().durable_lsn();
        let for_sync = SyncingThread::begin();
        let outcome = self.shared.buffer().commit();
        let after = self.shared.now();
        if outcome.as_ref().is_ok_and(|&durable| durable > was_durable) {
            // Commits without work do not count: they would make any device look fast.
            self.commit_time.record(after.saturating_sub(before));
        }

        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        drop(for_sync);
        state.log.syncs.end_commit();
        let result = match outcome {
            Ok(durable) => {
                let CacheState { log, waits, .. } = &mut *state;
                log.syncs.complete(self.shared.buffer(), (before, after), waits, &mut completions);
                self.admission.admit_waiting(state.for_admission(), &mut completions);
                Ok(durable)
            }
            Err(why) => {
                state.log.fail(&why);
                state.log.syncs.fail_all(&why, &mut completions);
                let error = CacheError::ReadOnly { why: why.clone() };
                state.space.admission.refuse_all(&error, &mut completions);
                Err(CacheError::from(why))
            }
        };
        drop(state);
        if result.is_err() {
            // Changes that are in memory alone must be rescued.
            self.shared.wake(BackgroundTask::WriteBack);
        }
        completions.deliver();
        result
    }

    /// Makes the buffer larger. A concurrent sync waits for the committer, not for the buffer's device in its
    /// own thread.
    pub(crate) fn grow_buffer(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        self.shared.state().log.syncs.begin_commit();
        let grown = self.shared.buffer().grow(blocks);
        self.shared.state().log.syncs.end_commit();
        Ok(grown?)
    }

    /// How long the oldest change that is not durable, or bypassed page, may still wait. `None` if there is
    /// none.
    pub(crate) fn due_in(&self, pages: &PageTable, log: &CacheLog) -> Option<Duration> {
        if log.failed().is_some() {
            return None;
        }
        let bypassed = pages.bypassed();
        let unlogged = bypassed.oldest().filter(|_| !is_planted(CacheBug::OverdueNotLogged));
        let unlogged = [unlogged, bypassed.resolved_since()].into_iter().flatten().min();
        let unlogged = unlogged.map(|since| since + self.shared.bypassed_interval());
        let logged =
            log.syncs.uncommitted_since().map(|since| since + self.shared.settings().commit_interval);
        let due = [logged, unlogged].into_iter().flatten().min()?;
        Some(due.saturating_sub(self.shared.now()))
    }

    /// Whether a commit is worth making now.
    pub(crate) fn is_due(&self, pages: &PageTable, log: &CacheLog) -> bool {
        self.is_requested(log) || self.due_in(pages, log) == Some(Duration::ZERO)
    }

    /// Whether a commit was asked for. Age is not included: the committer watches it by itself.
    pub(crate) fn is_requested(&self, log: &CacheLog) -> bool {
        if log.failed().is_some() {
            // All waiting syncs get the error, also those that no commit failed for.
            return log.syncs.waiting_count() > 0;
        }
        log.syncs.is_commit_wanted() || self.shared.buffer().open_bytes() >= GROUP_BYTES
    }

    pub(crate) fn step(&self) -> StepProgress {
        let mut state = self.shared.state();
        if self.is_due(&state.pages, &state.log) {
            drop(state);
            let _ = self.commit_now();
            return StepProgress::Worked;
        }
        let mut completions = DeferredCompletions::default();
        self.admission.admit_waiting(state.for_admission(), &mut completions);
        drop(state);
        completions.deliver();
        StepProgress::Idle
    }
}

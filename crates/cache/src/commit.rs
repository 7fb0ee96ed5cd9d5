//! Durability: syncs, commits, and completing the syncs for which a commit was enough.

use crate::admission::AdmissionControl;
use crate::bypass;
use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable};
use crate::planted_bug::{CacheBug, is_planted};
use crate::state::{CacheShared, CacheState, SyncingThread};
use crate::sync::{AtomicU64, Ordering};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions, StepProgress};
use buffer::{Buffer, BufferError, GROUP_BYTES, GroupNo};
use device::{BLOCK_BYTES, Lsn, ObjectId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// The longest gap between two syncs of a client that syncs in a loop.
const SYNC_LOOP_GAP_MAX: Duration = Duration::from_millis(5);

/// Bypassed pages that one commit logs at most: 4 MiB, milliseconds under the lock. The next commit follows
/// at once with the rest.
const LATE_LOG_PAGES_MAX: usize = 1024;

/// Syncs that wait.
#[derive(Default)]
pub(crate) struct SyncQueue {
    waiting: VecDeque<(SyncTarget, CacheCompletion<()>)>,
    /// Syncs that wait for the store to have bypassed pages, each at least as of the given change.
    waiting_for_store: Vec<(BTreeMap<PageKey, Lsn>, CacheCompletion<()>)>,
    /// The newest group with a bypassed page that was logged late.
    last_relogged_group: GroupNo,
    /// The store's newest batch with bypassed pages. Syncs rely on it where the log only names the pages.
    bypassed_store_batch: u64,
    /// When the last sync was asked for that needs nothing but the log.
    last_log_only_sync: Option<Duration>,
    /// When the oldest change was made that is not durable.
    uncommitted_since: Option<Duration>,
    /// Write-back, or released space, needs a commit soon.
    commit_wanted: bool,
    /// Number of commits in progress.
    committing: u32,
}

/// Changes and pages that must be durable for a sync.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncTarget {
    newest: Lsn,
    /// Late-logged pages have no LSN of their own: their group must be durable.
    group: GroupNo,
    /// The buffer must name this batch of the store. Otherwise recovery would not miss it.
    store_batch: u64,
    /// The sync has waited for the store before.
    waited_for_store: bool,
}

impl SyncTarget {
    fn is_durable(&self, buffer: &Buffer) -> bool {
        buffer.durable_lsn() >= self.newest
            && (self.group == GroupNo(0) || buffer.durable_group() >= self.group)
            && (self.store_batch == 0 || buffer.durable_store_batch() >= self.store_batch)
    }
}

impl SyncQueue {
    /// Notes that `group` has bypassed pages that were logged late.
    pub(crate) fn note_late_logged(&mut self, group: GroupNo) {
        self.last_relogged_group = group;
    }

    /// Whether a commit has nothing to make durable: no change, no late-logged page, no batch of the store to
    /// name.
    fn is_committed(&self, buffer: &Buffer) -> bool {
        self.target(buffer.appended_lsn()).is_durable(buffer)
    }

    /// Notes that the store has bypassed pages, in this batch. Until the buffer names the batch, nothing
    /// would tell if the store lost it.
    pub(crate) fn note_bypassed_stored(&mut self, store_batch: u64) {
        self.bypassed_store_batch = store_batch;
    }

    /// The target of a sync of everything up to a change, and of what was logged late or stored by now.
    pub(crate) fn target(&self, newest: Lsn) -> SyncTarget {
        let store_batch = self.bypassed_store_batch;
        SyncTarget { newest, group: self.last_relogged_group, store_batch, waited_for_store: false }
    }

    /// Keeps `then` until `target` is durable. Returns true if no other thread waits or commits.
    pub(crate) fn park(&mut self, target: SyncTarget, then: CacheCompletion<()>) -> bool {
        let alone = self.committing == 0 && self.waiting.is_empty();
        self.waiting.push_back((target, then));
        alone
    }

    /// Number of waiting syncs.
    pub(crate) fn waiting_count(&self) -> u64 {
        (self.waiting.len() + self.waiting_for_store.len()) as u64
    }

    /// Whether a sync waits for the store.
    pub(crate) fn any_waiting_for_store(&self) -> bool {
        !self.waiting_for_store.is_empty()
    }

    /// Whether clients sync that need nothing but the log.
    pub(crate) fn any_log_only(&self, now: Duration) -> bool {
        let needs_nothing_else = |(target, _): &(SyncTarget, _)| !target.waited_for_store;
        self.waiting.iter().any(needs_nothing_else)
            || self.last_log_only_sync.is_some_and(|last| now < last + SYNC_LOOP_GAP_MAX)
    }

    /// Asks for a commit soon, for write-back or released space.
    pub(crate) fn ask_for_commit(&mut self) {
        self.commit_wanted = true;
    }

    /// Notes an append. `now` is called only if everything before it is durable.
    pub(crate) fn note_append(&mut self, now: impl FnOnce() -> Duration) {
        self.uncommitted_since.get_or_insert_with(now);
    }
}

/// The changes that a sync covers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SyncScope {
    /// Everything that is logged.
    Logged,
    /// Everything that is logged, and the bypassed pages of one object.
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
    pub(crate) fn sync(&self, scope: SyncScope, then: CacheCompletion<()>) {
        let mut state = self.shared.state();
        state.counters.syncs += 1;
        if state.failed().is_none() {
            match self.log_for_sync(&mut state, scope) {
                Ok(pages) if pages.is_empty() => {}
                Ok(pages) => {
                    state.syncs.waiting_for_store.push((pages, then));
                    drop(state);
                    return self.shared.wake(BackgroundTask::WriteBack);
                }
                Err(why) => state.fail(&why),
            }
        }
        if let Some(error) = state.failed().cloned() {
            drop(state);
            return then(Err(error.into()));
        }
        let target = state.syncs.target(self.shared.buffer().appended_lsn());
        if target.is_durable(self.shared.buffer()) {
            drop(state);
            return then(Ok(()));
        }
        let alone = state.syncs.park(target, then);
        let quick = alone && self.commit_time.is_below(self.shared.settings().commit_inline_below);
        // A cache that stops may have no committer any more.
        if quick || state.is_stopping() {
            drop(state);
            // Handing over to the committer and back takes longer than a commit to this buffer.
            let _ = self.commit_now();
        } else {
            drop(state);
            self.shared.wake(BackgroundTask::Commit);
        }
    }

    /// Logs bypassed pages for a sync. If they are many, returns those for which the sync must wait for the
    /// store instead.
    fn log_for_sync(
        &self,
        state: &mut CacheState,
        scope: SyncScope,
    ) -> Result<BTreeMap<PageKey, Lsn>, BufferError> {
        let range = match scope {
            _ if is_planted(CacheBug::SyncWithoutBytes) => return Ok(BTreeMap::new()),
            SyncScope::Logged => None,
            SyncScope::Object(object) => Some(bypass::of_object(object)),
            SyncScope::All => Some(bypass::ALL),
        };
        let pages = range.into_iter().flat_map(|range| state.pages.unlogged_in(range));
        let pages: BTreeMap<PageKey, Lsn> =
            pages.filter_map(|key| Some((key, state.pages.get(&key)?.newest()?))).collect();
        if pages.is_empty() {
            state.syncs.last_log_only_sync = Some(self.shared.now());
            return Ok(pages);
        }
        let bytes = (pages.len() * BLOCK_BYTES) as u64;
        // A cache that stops may have no thread any more that stores them.
        if bytes > self.shared.settings().sync_log_bytes_max && !state.is_stopping() {
            return Ok(pages);
        }
        let logged = bypass::log(self.shared.buffer(), &mut state.pages, pages.into_keys())?;
        state.note_late_logged(logged);
        Ok(BTreeMap::new())
    }

    /// Updates syncs that wait for the store: pages were stored as of these changes, logged, or removed.
    /// Syncs that wait for no more pages need a commit.
    pub(crate) fn complete_store_waits(&self, state: &mut CacheState, stored: &[(PageKey, Lsn)]) {
        let CacheState { syncs, pages, .. } = state;
        let target =
            SyncTarget { waited_for_store: true, ..syncs.target(self.shared.buffer().appended_lsn()) };
        for (wanted, _) in &mut syncs.waiting_for_store {
            for (key, lsn) in stored {
                if wanted.get(key).is_some_and(|wanted| wanted <= lsn) {
                    wanted.remove(key);
                }
            }
            wanted.retain(|key, _| pages.is_unlogged(key));
        }
        let done = syncs.waiting_for_store.extract_if(.., |(wanted, _)| wanted.is_empty());
        let done: Vec<_> = done.map(|(_, then)| (target, then)).collect();
        syncs.commit_wanted |= !done.is_empty();
        syncs.waiting.extend(done);
    }

    /// Logs what syncs wait for: the mount ends, and no thread may be left that stores it.
    pub(crate) fn log_awaited_pages(&self, state: &mut CacheState) {
        if state.syncs.any_waiting_for_store() {
            self.log_late(state, |pages| pages.unlogged_in(bypass::ALL).collect());
        }
    }

    /// At the end of a mount: logs bypassed pages that could not be stored, and makes everything that is
    /// logged durable.
    pub(crate) fn make_all_durable(&self) -> Result<(), CacheError> {
        let mut state = self.shared.state();
        if !is_planted(CacheBug::EndWithoutCommit) {
            self.log_late(&mut state, |pages| pages.unlogged_in(bypass::ALL).collect());
        }
        drop(state);
        self.commit_now().map(drop)
    }

    /// Logs bypassed pages that the store lacks after a commit interval; some of them, if they are many.
    fn log_overdue(&self, state: &mut CacheState) {
        if is_planted(CacheBug::OverdueNotLogged) {
            return;
        }
        let Some(until) = self.shared.now().checked_sub(self.shared.bypassed_interval()) else {
            return;
        };
        self.log_late(state, |pages| pages.bypassed().written_until(until, LATE_LOG_PAGES_MAX));
    }

    /// Logs bypassed pages, for which the buffer keeps space. Then updates syncs that wait for the store to
    /// have them.
    fn log_late(&self, state: &mut CacheState, chosen: impl FnOnce(&PageTable) -> Vec<PageKey>) {
        if state.failed().is_some() {
            return;
        }
        let pages = chosen(&state.pages);
        match bypass::log(self.shared.buffer(), &mut state.pages, pages) {
            Ok(logged) => state.note_late_logged(logged),
            Err(why) => state.fail(&why),
        }
        if state.syncs.any_waiting_for_store() {
            self.complete_store_waits(state, &[]);
        }
    }

    /// Makes everything that was appended durable, in this thread, with overdue bypassed pages, and completes
    /// the syncs that waited.
    pub(crate) fn commit_now(&self) -> Result<Lsn, CacheError> {
        let mut state = self.shared.state();
        self.log_overdue(&mut state);
        state.pages.note_commit_begun();
        state.syncs.committing += 1;
        state.syncs.commit_wanted = false;
        drop(state);
        let before = self.shared.now();
        let was_durable = self.shared.buffer().durable_lsn();
        let for_sync = SyncingThread::begin();
        let outcome = self.shared.buffer().commit();
        if outcome.as_ref().is_ok_and(|&durable| durable > was_durable) {
            // Commits without work do not count: they would make any device look fast.
            self.commit_time.record(self.shared.now().saturating_sub(before));
        }

        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        drop(for_sync);
        state.syncs.committing -= 1;
        let result = match outcome {
            Ok(durable) => {
                self.complete_syncs(&mut state, before, &mut completions);
                self.admission.admit_waiting(&mut state, &mut completions);
                Ok(durable)
            }
            Err(why) => {
                state.fail(&why);
                let for_store = std::mem::take(&mut state.syncs.waiting_for_store).into_iter();
                let waiting = std::mem::take(&mut state.syncs.waiting).into_iter();
                for then in waiting.map(|(_, then)| then).chain(for_store.map(|(_, then)| then)) {
                    let error = why.clone().into();
                    completions.push(move || then(Err(error)));
                }
                let error = why.clone().into();
                self.admission.refuse_all(&mut state, &CacheError::ReadOnly { why }, &mut completions);
                Err(error)
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
        self.shared.state().syncs.committing += 1;
        let grown = self.shared.buffer().grow(blocks);
        self.shared.state().syncs.committing -= 1;
        Ok(grown?)
    }

    /// Completes syncs after a commit that began at `begun`.
    fn complete_syncs(&self, state: &mut CacheState, begun: Duration, completions: &mut DeferredCompletions) {
        let buffer = self.shared.buffer();
        while state.syncs.waiting.front().is_some_and(|(target, _)| target.is_durable(buffer)) {
            let Some((_, then)) = state.syncs.waiting.pop_front() else { return };
            completions.push(move || then(Ok(())));
        }
        let clean = state.syncs.is_committed(buffer);
        state.syncs.uncommitted_since = if clean { None } else { Some(begun) };
    }

    /// How long the oldest change that is not durable, or bypassed page, may still wait. `None` if there is
    /// none.
    pub(crate) fn due_in(&self, state: &CacheState) -> Option<Duration> {
        if state.failed().is_some() {
            return None;
        }
        let bypassed = state.pages.bypassed();
        let unlogged = bypassed.oldest().filter(|_| !is_planted(CacheBug::OverdueNotLogged));
        let unlogged = [unlogged, bypassed.resolved_since()].into_iter().flatten().min();
        let unlogged = unlogged.map(|since| since + self.shared.bypassed_interval());
        let logged =
            state.syncs.uncommitted_since.map(|since| since + self.shared.settings().commit_interval);
        let due = [logged, unlogged].into_iter().flatten().min()?;
        Some(due.saturating_sub(self.shared.now()))
    }

    /// Whether a commit is worth making now.
    pub(crate) fn is_due(&self, state: &CacheState) -> bool {
        self.is_requested(state) || self.due_in(state) == Some(Duration::ZERO)
    }

    /// Whether a commit was asked for. Age is not included: the committer watches it by itself.
    pub(crate) fn is_requested(&self, state: &CacheState) -> bool {
        if state.failed().is_some() {
            // All waiting syncs get the error, also those that no commit failed for.
            return state.syncs.waiting_count() > 0;
        }
        let wanted = !state.syncs.waiting.is_empty() || state.syncs.commit_wanted;
        wanted || self.shared.buffer().open_bytes() >= GROUP_BYTES
    }

    pub(crate) fn step(&self) -> StepProgress {
        let mut state = self.shared.state();
        if self.is_due(&state) {
            drop(state);
            let _ = self.commit_now();
            return StepProgress::Worked;
        }
        let mut completions = DeferredCompletions::default();
        self.admission.admit_waiting(&mut state, &mut completions);
        drop(state);
        completions.deliver();
        StepProgress::Idle
    }

    /// Releases the groups of the buffer that nothing needs any more.
    pub(crate) fn release_groups(&self, state: &mut CacheState) {
        let buffer = self.shared.buffer();
        let needed = state.pages.oldest_group().unwrap_or(buffer.unreleased_groups().end);
        buffer.release(needed, self.shared.store().data().durable_batch());
        // Released space is usable after the next commit only. A writer may be waiting for it.
        if state.admission.is_waiting() || self.shared.buffer_is_half_full() {
            state.syncs.ask_for_commit();
        }
    }
}

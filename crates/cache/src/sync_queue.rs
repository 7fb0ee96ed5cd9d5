//! Syncs that wait, and what makes them durable.

use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable};
use crate::request_wait::{RequestWait, TaskLoan, WaitCause, WaitLog};
use crate::task::{CacheCompletion, DeferredCompletions};
use buffer::{Buffer, BufferError, GroupNo};
use device::Lsn;
use request::RequestClass;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// The longest gap between two syncs of a client that syncs in a loop.
const SYNC_LOOP_GAP_MAX: Duration = Duration::from_millis(5);

/// Syncs that wait. A part of [`CacheLog`](crate::log::CacheLog), under the cache's lock. Begins empty after
/// a crash.
#[derive(Default)]
pub(crate) struct SyncQueue {
    waiting: VecDeque<WaitingSync>,
    waiting_for_store: Vec<StoreWait>,
    /// The newest group with a bypassed page that was logged late.
    last_relogged_group: GroupNo,
    /// The store's newest batch with bypassed pages. Syncs rely on it where the log only names the pages.
    bypassed_store_batch: u64,
    /// When the last critical sync was asked for that needs nothing but the log.
    last_log_only_sync: Option<Duration>,
    /// When the oldest change was made that is not durable.
    uncommitted_since: Option<Duration>,
    /// Write-back, or released space, needs a commit soon.
    commit_wanted: bool,
    /// Number of commits in progress.
    committing: u32,
}

/// A sync that waits for a commit.
struct WaitingSync {
    /// Its cause is still write-back if the sync has waited for the store before.
    wait: RequestWait,
    target: SyncTarget,
    then: CacheCompletion<()>,
}

/// A sync that waits for the store to have bypassed pages.
struct StoreWait {
    wait: RequestWait,
    /// The pages, each at least as of the given change.
    wanted: BTreeMap<PageKey, Lsn>,
    then: CacheCompletion<()>,
}

/// Changes and pages that must be durable for a sync.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SyncTarget {
    newest: Lsn,
    /// Late-logged pages have no LSN of their own: their group must be durable.
    group: GroupNo,
    /// The buffer must name this batch of the store. Otherwise recovery would not miss it.
    store_batch: u64,
}

impl SyncTarget {
    pub(crate) fn is_durable(&self, buffer: &Buffer) -> bool {
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

    /// Notes that the store has bypassed pages, in this batch. Until the buffer names the batch, nothing
    /// would tell if the store lost it.
    pub(crate) fn note_bypassed_stored(&mut self, store_batch: u64) {
        self.bypassed_store_batch = store_batch;
    }

    /// Notes an append. `now` is called only if everything before it is durable.
    pub(crate) fn note_append(&mut self, now: impl FnOnce() -> Duration) {
        self.uncommitted_since.get_or_insert_with(now);
    }

    /// Notes a critical sync that needs nothing but the log.
    pub(crate) fn note_log_only_sync(&mut self, now: Duration) {
        self.last_log_only_sync = Some(now);
    }

    /// The target of a sync of everything up to a change, and of what was logged late or stored by now.
    pub(crate) fn target(&self, newest: Lsn) -> SyncTarget {
        SyncTarget { newest, group: self.last_relogged_group, store_batch: self.bypassed_store_batch }
    }

    /// Keeps `then` until `target` is durable. Returns true if no other thread waits or commits.
    pub(crate) fn park(&mut self, wait: RequestWait, target: SyncTarget, then: CacheCompletion<()>) -> bool {
        let alone = self.committing == 0 && self.waiting.is_empty();
        self.waiting.push_back(WaitingSync { wait, target, then });
        alone
    }

    /// Keeps `then` until the store has the wanted pages, each at least as of the given change.
    pub(crate) fn park_for_store(
        &mut self,
        wait: RequestWait,
        wanted: BTreeMap<PageKey, Lsn>,
        then: CacheCompletion<()>,
    ) {
        self.waiting_for_store.push(StoreWait { wait, wanted, then });
    }

    /// Makes the syncs of a task that wait for the store critical. Returns some of the pages that they wait
    /// for, at most `most`.
    pub(crate) fn lend(&mut self, loan: TaskLoan, most: usize) -> Vec<PageKey> {
        let mut wanted = Vec::new();
        for sync in &mut self.waiting_for_store {
            if sync.wait.lend(loan) {
                wanted.extend(sync.wanted.keys().take(most - wanted.len()));
            }
        }
        wanted
    }

    /// For a planted bug: the syncs of a task wait for no page any more.
    pub(crate) fn forget_wanted(&mut self, task: u32) {
        let of_task = self.waiting_for_store.iter_mut().filter(|sync| sync.wait.origin.task == task);
        of_task.for_each(|sync| sync.wanted.clear());
    }

    /// The waits of the waiting syncs.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &RequestWait> {
        let for_store = self.waiting_for_store.iter().map(|sync| &sync.wait);
        self.waiting.iter().map(|sync| &sync.wait).chain(for_store)
    }

    /// Number of waiting syncs.
    pub(crate) fn waiting_count(&self) -> u64 {
        (self.waiting.len() + self.waiting_for_store.len()) as u64
    }

    /// Whether a sync waits for the store.
    pub(crate) fn any_waiting_for_store(&self) -> bool {
        !self.waiting_for_store.is_empty()
    }

    /// Whether critical syncs are made that need nothing but the log.
    pub(crate) fn any_critical_log_only(&self, now: Duration) -> bool {
        let needs_nothing_else = |sync: &WaitingSync| {
            sync.wait.cause == WaitCause::Commit && sync.wait.class() == RequestClass::Critical
        };
        self.waiting.iter().any(needs_nothing_else)
            || self.last_log_only_sync.is_some_and(|last| now < last + SYNC_LOOP_GAP_MAX)
    }

    /// Asks for a commit soon, for write-back or released space.
    pub(crate) fn ask_for_commit(&mut self) {
        self.commit_wanted = true;
    }

    /// Whether a sync needs a commit, or one was [asked for](SyncQueue::ask_for_commit).
    pub(crate) fn is_commit_wanted(&self) -> bool {
        self.commit_wanted || !self.waiting.is_empty()
    }

    /// When the oldest change was made that is not durable.
    pub(crate) fn uncommitted_since(&self) -> Option<Duration> {
        self.uncommitted_since
    }

    /// Updates syncs that wait for the store: pages were stored as of these changes, logged, or removed.
    /// Syncs that wait for no more pages need a commit of everything up to `newest`.
    pub(crate) fn complete_store_waits(&mut self, newest: Lsn, pages: &PageTable, stored: &[(PageKey, Lsn)]) {
        for StoreWait { wanted, .. } in &mut self.waiting_for_store {
            for (key, lsn) in stored {
                if wanted.get(key).is_some_and(|wanted| wanted <= lsn) {
                    wanted.remove(key);
                }
            }
            wanted.retain(|key, _| pages.is_unlogged(key));
        }
        let target = self.target(newest);
        for StoreWait { wait, then, .. } in
            self.waiting_for_store.extract_if(.., |sync| sync.wanted.is_empty())
        {
            self.waiting.push_back(WaitingSync { wait, target, then });
            self.commit_wanted = true;
        }
    }

    /// Until [`end_commit`](SyncQueue::end_commit), a sync does not commit in its own thread.
    pub(crate) fn begin_commit(&mut self) {
        self.committing += 1;
    }

    pub(crate) fn end_commit(&mut self) {
        self.committing -= 1;
    }

    /// What asked for a commit gets the one that begins now.
    pub(crate) fn cancel_commit_request(&mut self) {
        self.commit_wanted = false;
    }

    /// Completes the syncs that a commit made durable, which took from `begun` to `ended`.
    pub(crate) fn complete(
        &mut self,
        buffer: &Buffer,
        (begun, ended): (Duration, Duration),
        waits: &mut WaitLog,
        completions: &mut DeferredCompletions,
    ) {
        while let Some(sync) = self.waiting.pop_front_if(|sync| sync.target.is_durable(buffer)) {
            waits.note_end(&sync.wait, ended);
            completions.push(move || (sync.then)(Ok(())));
        }
        // Every change is durable, and so are late-logged pages, and the name of the store's batch.
        let is_committed = self.target(buffer.appended_lsn()).is_durable(buffer);
        self.uncommitted_since = (!is_committed).then_some(begun);
    }

    /// Fails all syncs: the buffer failed.
    pub(crate) fn fail_all(&mut self, why: &BufferError, completions: &mut DeferredCompletions) {
        let for_store = self.waiting_for_store.drain(..).map(|wait| wait.then);
        for then in self.waiting.drain(..).map(|sync| sync.then).chain(for_store) {
            let error = CacheError::from(why.clone());
            completions.push(move || then(Err(error)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::Origin;

    /// Whether a sync that waits for a commit counts as one that needs nothing but the log.
    fn is_log_only(class: RequestClass, cause: WaitCause, lent_for: Option<u32>) -> bool {
        let origin = Origin { class, ..Origin::UNMATCHED };
        let wait = RequestWait { lent_for, ..RequestWait::new(origin, cause, Duration::ZERO) };
        let mut syncs = SyncQueue::default();
        let target = syncs.target(Lsn(1));
        syncs.park(wait, target, Box::new(|_| {}));
        syncs.any_critical_log_only(Duration::from_secs(7))
    }

    #[test]
    fn only_critical_syncs_that_never_waited_for_the_store_are_log_only() {
        use RequestClass::{Background, Critical};
        assert!(is_log_only(Critical, WaitCause::Commit, None));
        assert!(is_log_only(Background, WaitCause::Commit, Some(9)), "it is lent to");
        assert!(!is_log_only(Background, WaitCause::Commit, None));
        assert!(!is_log_only(Critical, WaitCause::WriteBack, None), "the store had to come first");
    }

    #[test]
    fn a_client_that_syncs_in_a_loop_counts_between_its_syncs() {
        let mut syncs = SyncQueue::default();
        let last = Duration::from_secs(7);
        assert!(!syncs.any_critical_log_only(last));
        syncs.note_log_only_sync(last);
        assert!(syncs.any_critical_log_only(last + SYNC_LOOP_GAP_MAX - Duration::from_nanos(1)));
        assert!(!syncs.any_critical_log_only(last + SYNC_LOOP_GAP_MAX));
    }
}

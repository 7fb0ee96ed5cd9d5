//! What all parts of the cache share: the media below, the clock, the settings, and the state under the one lock. It knows no
//! operation.

use crate::admission::AdmissionQueue;
use crate::bypass::Logged;
use crate::bypass_age::BypassedAge;
use crate::commit::Syncs;
use crate::error::CacheError;
use crate::pages::Pages;
use crate::reads::Reads;
use crate::retry::RetryList;
use crate::seek::Seeks;
use crate::settings::Settings;
use crate::status::Counters;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering};
use crate::task::Task;
use buffer::{Buffer, BufferError};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;
use store::{ReservationEstimate, Store};

/// Shared by all clones of a `Cache`, its reservations and its steps.
pub(crate) struct Shared {
    store: Arc<Store>,
    buffer: Buffer,
    clock: Arc<dyn device::Clock>,
    settings: Settings,
    /// See [`Settings::bypass_after`], with which it begins.
    bypass_after: AtomicU64,
    store_io_for_syncs: AtomicU64,
    state: Mutex<State>,
    work: [Condvar; Task::ALL.len()],
}

/// Everything under the lock. Each part is changed by its own methods alone. After a crash: rebuilt from the buffer's records.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) pages: Pages,
    pub(crate) reads: Reads,
    pub(crate) seeks: Seeks,
    pub(crate) syncs: Syncs,
    pub(crate) admission: AdmissionQueue,
    pub(crate) retries: RetryList,
    pub(crate) counters: Counters,
    /// Set once, when the buffer has failed.
    failed: Option<BufferError>,
    stopping: bool,
}

impl State {
    /// What the store may know of the pages for which it counts space: those that are dirty, and those of operations that have entered.
    pub(crate) fn known_to_store(&self) -> ReservationEstimate {
        self.pages.known_to_store() + self.admission.known_to_store()
    }

    /// Pages that bypassed the buffer were logged after all.
    pub(crate) fn logged_late(&mut self, logged: Logged) {
        logged.group.into_iter().for_each(|group| self.syncs.logged_again(group));
        self.counters.pages_logged_late += logged.pages;
    }

    /// After a start: pages that so many transactions in the buffer made.
    pub(crate) fn recovered(pages: Pages, replayed: u64) -> State {
        let counters = Counters { replayed, ..Counters::default() };
        State { pages, counters, ..State::default() }
    }

    /// How the buffer failed, if it did: nothing can change any more.
    pub(crate) fn failed(&self) -> Option<&BufferError> {
        self.failed.as_ref()
    }

    /// Remembers that the buffer failed.
    pub(crate) fn fail(&mut self, why: &BufferError) {
        self.failed.get_or_insert_with(|| why.clone());
    }

    /// The mount ends, and its threads with it.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping
    }

    pub(crate) fn stop(&mut self) {
        self.stopping = true;
    }

    /// Drops clean pages while memory is over its limit: a bounded piece of that work.
    pub(crate) fn evict(&mut self, settings: &Settings) {
        self.counters.evicted += self.pages.evict(settings.memory_bytes_max);
    }
}

thread_local! {
    /// This thread is doing what a sync waits for.
    static SYNCING: Cell<bool> = const { Cell::new(false) };
}

/// Marks a thread as working for a sync, as long as it lives.
pub(crate) struct ForSync(());

impl ForSync {
    pub(crate) fn begin() -> ForSync {
        SYNCING.set(true);
        ForSync(())
    }
}

impl Drop for ForSync {
    fn drop(&mut self) {
        SYNCING.set(false);
    }
}

impl Shared {
    pub(crate) fn new(
        store: Arc<Store>,
        buffer: Buffer,
        clock: Arc<dyn device::Clock>,
        settings: Settings,
        state: State,
    ) -> Shared {
        Shared {
            store,
            buffer,
            clock,
            bypass_after: AtomicU64::new(settings.bypass_after),
            settings,
            store_io_for_syncs: AtomicU64::new(0),
            state: Mutex::new(state),
            work: Default::default(),
        }
    }

    /// The lock. Never held over device I/O or a completion.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while holding the cache's state")
    }

    /// Tells workers of a kind to look for work.
    pub(crate) fn wake(&self, task: Task) {
        self.work[task as usize].notify_one();
    }

    /// Tells all of them.
    pub(crate) fn wake_all(&self) {
        self.work.iter().for_each(Condvar::notify_all);
    }

    /// Waits until workers of this kind are told, at most `timeout`.
    pub(crate) fn wait(&self, task: Task, state: MutexGuard<'_, State>, timeout: Duration) {
        drop(self.work[task as usize].wait_timeout(state, timeout));
    }

    /// The store, for what is no device I/O.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The store, for device I/O: every call is counted against the sync that has to wait for it, if there is one.
    pub(crate) fn store_io(&self) -> &Store {
        if SYNCING.get() {
            self.store_io_for_syncs.fetch_add(1, Ordering::Relaxed);
        }
        &self.store
    }

    /// How many such calls a sync had to wait for.
    pub(crate) fn store_io_for_syncs(&self) -> u64 {
        self.store_io_for_syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn buffer_is_half_full(&self) -> bool {
        self.buffer.free_bytes() < self.buffer.capacity_bytes() / 2
    }

    pub(crate) fn clock(&self) -> &dyn device::Clock {
        &*self.clock
    }

    /// The time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// How old the oldest bypassed page is.
    pub(crate) fn bypassed_age(&self, pages: &Pages) -> BypassedAge {
        match pages.bypassed().oldest() {
            None => BypassedAge::Young,
            Some(oldest) => BypassedAge::of(self.now().saturating_sub(oldest), self.bypassed_interval()),
        }
    }

    /// How long until the oldest bypassed page is due to be written back.
    pub(crate) fn bypassed_due_in(&self, pages: &Pages) -> Option<Duration> {
        let due = pages.bypassed().oldest()? + self.bypassed_interval() / 2;
        Some(due.saturating_sub(self.now()))
    }

    /// How old a bypassed page may be that neither the store nor the buffer has: a commit interval, or a second where that is longer, since
    /// syncs and streams may wait for it.
    pub(crate) fn bypassed_interval(&self) -> Duration {
        self.settings.commit_interval.min(Duration::from_secs(1))
    }

    pub(crate) fn settings(&self) -> &Settings {
        &self.settings
    }

    pub(crate) fn bypass_after(&self) -> &AtomicU64 {
        &self.bypass_after
    }

    /// Refuses what would write something back after the buffer failed: a volume that a rescue has begun would not have it, and what
    /// is left in memory would no longer be all of one moment. The caller has the turn to write back.
    pub(crate) fn ensure_works(&self) -> Result<(), CacheError> {
        self.state().failed().cloned().map_or(Ok(()), |why| Err(CacheError::ReadOnly { why }))
    }
}

//! The state that all parts of the cache share: the media, the clock, the settings, and the state under the
//! one lock. No operation is implemented here.

use crate::admission::AdmissionView;
use crate::bypassed_pages::BypassedAge;
use crate::error::CacheError;
use crate::locks::{CacheLock, OrderedGuard, OrderedMutex};
use crate::log::CacheLog;
use crate::page_table::PageTable;
use crate::read::seek::SeekQueue;
use crate::read::waiting::WaitingReads;
use crate::request_wait::WaitLog;
use crate::settings::CacheSettings;
use crate::space::{CacheSpace, ReservedSpace};
use crate::status::CacheCounters;
use crate::stream_detector::StreamDetector;
use crate::sync::{AtomicU64, Condvar, Ordering};
use crate::task::BackgroundTask;
use buffer::Buffer;
use request::RequestClass;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use store::{Store, VolumeId};

/// Shared by all clones of a `Cache`, its reservations and its steps.
pub(crate) struct CacheShared {
    store: Arc<Store>,
    buffer: Arc<Buffer>,
    clock: Arc<dyn device::Clock>,
    settings: CacheSettings,
    /// See [`CacheSettings::bypass_after`], the initial value.
    bypass_after: AtomicU64,
    /// See [`CacheSettings::sync_log_bytes_max`], the initial value.
    sync_log_bytes_max: AtomicU64,
    /// See [`CacheSettings::follows_classes`], the initial value. 0 or 1.
    follows_classes: AtomicU64,
    store_io_for_syncs: AtomicU64,
    state: OrderedMutex<CacheState>,
    work: [Condvar; BackgroundTask::ALL.len()],
}

/// Everything under the lock, by owner. Each part is changed by its own methods alone. After a crash, `pages`
/// is rebuilt from the buffer's records; the rest begins empty.
pub(crate) struct CacheState {
    pub(crate) pages: PageTable,
    pub(crate) log: CacheLog,
    pub(crate) space: CacheSpace,
    pub(crate) reads: WaitingReads,
    pub(crate) seeks: SeekQueue,
    pub(crate) streams: StreamDetector,
    pub(crate) waits: WaitLog,
    pub(crate) counters: CacheCounters,
    /// Volumes that are known to be writable.
    pub(crate) writable: BTreeSet<VolumeId>,
    /// Whether all changes are refused.
    pub(crate) refuses_changes: bool,
}

impl CacheState {
    /// The state after a start, with pages from `replayed` transactions in the buffer.
    pub(crate) fn new(store: Arc<Store>, buffer: Arc<Buffer>, pages: PageTable, replayed: u64) -> CacheState {
        CacheState {
            pages,
            log: CacheLog::new(buffer),
            space: CacheSpace::new(store),
            reads: WaitingReads::default(),
            seeks: SeekQueue::default(),
            streams: StreamDetector::default(),
            waits: WaitLog::default(),
            counters: CacheCounters { replayed, ..CacheCounters::default() },
            writable: BTreeSet::new(),
            refuses_changes: false,
        }
    }

    pub(crate) fn for_admission(&mut self) -> AdmissionView<'_> {
        AdmissionView { space: &mut self.space, waits: &mut self.waits, pages: &self.pages, log: &self.log }
    }

    /// Releases what an operation did not use of its space. Returns whether others wait for space, which this
    /// may be: the committer must be woken to admit them.
    pub(crate) fn release_unused(&mut self, space: &mut ReservedSpace) -> bool {
        self.space.release_unused(space, self.log.is_stopping());
        let is_awaited = self.space.admission.any_waiting();
        if is_awaited {
            self.log.syncs.ask_for_commit();
        }
        is_awaited
    }

    /// Releases the groups of the buffer that no page needs any more.
    pub(crate) fn release_groups(&mut self) {
        self.log.release_groups(&self.pages, &self.space);
    }

    /// Drops clean pages while memory is over its limit: a bounded piece of work.
    pub(crate) fn evict(&mut self, settings: &CacheSettings) {
        self.counters.evicted += self.pages.evict(settings.memory_bytes_max);
    }
}

thread_local! {
    /// This thread works for a sync that waits.
    static SYNCING: Cell<bool> = const { Cell::new(false) };
}

/// Marks the thread as working for a sync, as long as this value lives.
pub(crate) struct SyncingThread(());

impl SyncingThread {
    pub(crate) fn begin() -> SyncingThread {
        SYNCING.set(true);
        SyncingThread(())
    }
}

impl Drop for SyncingThread {
    fn drop(&mut self) {
        SYNCING.set(false);
    }
}

impl CacheShared {
    pub(crate) fn new(
        store: Arc<Store>,
        buffer: Arc<Buffer>,
        clock: Arc<dyn device::Clock>,
        settings: CacheSettings,
        state: CacheState,
    ) -> CacheShared {
        CacheShared {
            store,
            buffer,
            clock,
            bypass_after: AtomicU64::new(settings.bypass_after),
            sync_log_bytes_max: AtomicU64::new(settings.sync_log_bytes_max),
            follows_classes: AtomicU64::new(settings.follows_classes.into()),
            settings,
            store_io_for_syncs: AtomicU64::new(0),
            state: OrderedMutex::new(CacheLock::State, state),
            work: Default::default(),
        }
    }

    /// Takes the lock. Never held over device I/O or a completion.
    pub(crate) fn state(&self) -> OrderedGuard<'_, CacheState> {
        self.state.lock()
    }

    /// Wakes a worker of this kind.
    pub(crate) fn wake(&self, task: BackgroundTask) {
        self.work[task as usize].notify_one();
    }

    /// Wakes all workers.
    pub(crate) fn wake_all(&self) {
        self.work.iter().for_each(Condvar::notify_all);
    }

    /// Waits until a worker of this kind is woken, at most `timeout`.
    pub(crate) fn wait(&self, task: BackgroundTask, state: OrderedGuard<'_, CacheState>, timeout: Duration) {
        drop(self.work[task as usize].wait_timeout(state.for_wait(), timeout));
    }

    /// The store, for calls without device I/O.
    pub(crate) fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The store, for device I/O. If a sync waits for this thread, the call is counted.
    pub(crate) fn store_io(&self) -> &Store {
        if SYNCING.get() {
            self.store_io_for_syncs.fetch_add(1, Ordering::Relaxed);
        }
        &self.store
    }

    /// Number of such calls for which a sync had to wait.
    pub(crate) fn store_io_for_syncs(&self) -> u64 {
        self.store_io_for_syncs.load(Ordering::Relaxed)
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.buffer
    }

    pub(crate) fn clock(&self) -> &dyn device::Clock {
        &*self.clock
    }

    /// The time.
    pub(crate) fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// How old the oldest bypassed page is.
    pub(crate) fn bypassed_age(&self, pages: &PageTable) -> BypassedAge {
        match pages.bypassed().oldest() {
            None => BypassedAge::Young,
            Some(oldest) => BypassedAge::of(self.now().saturating_sub(oldest), self.bypassed_interval()),
        }
    }

    /// How long until the oldest bypassed page is due to be written back.
    pub(crate) fn bypassed_due_in(&self, pages: &PageTable) -> Option<Duration> {
        let due = pages.bypassed().oldest()? + self.bypassed_interval() / 2;
        Some(due.saturating_sub(self.now()))
    }

    /// How long a bypassed page may be in memory alone: a commit interval, but at most a second, since syncs
    /// and streams may wait for it.
    pub(crate) fn bypassed_interval(&self) -> Duration {
        self.settings.commit_interval.min(Duration::from_secs(1))
    }

    pub(crate) fn settings(&self) -> &CacheSettings {
        &self.settings
    }

    /// See [`CacheSettings::bypass_after`].
    pub(crate) fn bypass_after(&self) -> u64 {
        self.bypass_after.load(Ordering::Relaxed)
    }

    pub(crate) fn set_bypass_after(&self, bytes: u64) {
        self.bypass_after.store(bytes, Ordering::Relaxed);
    }

    /// See [`CacheSettings::sync_log_bytes_max`]. A background sync has nothing logged: it
    /// waits for the store.
    pub(crate) fn sync_log_bytes_max(&self, class: RequestClass) -> u64 {
        match class {
            RequestClass::Critical => self.sync_log_bytes_max.load(Ordering::Relaxed),
            RequestClass::Background => 0,
        }
    }

    /// See [`CacheSettings::follows_classes`].
    pub(crate) fn follows_classes(&self) -> bool {
        self.follows_classes.load(Ordering::Relaxed) != 0
    }

    pub(crate) fn set_follows_classes(&self, follows: bool) {
        self.follows_classes.store(follows.into(), Ordering::Relaxed);
    }

    pub(crate) fn set_sync_log_bytes_max(&self, bytes: u64) {
        self.sync_log_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Refuses write-back after the buffer failed. A volume that a rescue has begun would lack what is
    /// written back now, and memory would no longer be a point in time. The caller holds the write-back lock.
    pub(crate) fn ensure_works(&self) -> Result<(), CacheError> {
        self.state().log.ensure_works()
    }
}

//! Writes dirty pages, punches and range operations to the store: which, when and in what order. Then the
//! buffer frees their groups.
//!
//! A range operation is a clone or a move of pages (`range_ops.rs`). An item is stuck if its last attempt
//! failed (`retry.rs`). A *batch* is some dirty pages and every punch that can be tried. All steps of a batch
//! are made by the thread that holds the write-back lock:
//!
//! ```text
//!  dirty    the table has changes that the store lacks
//!    │ freeze, under the state's lock: keeps the bytes as they are, notes the changes as being written
//!  frozen   writers may go on: their changes make the page dirty again
//!    │ commit_up_to: the committer makes the batch's newest change durable in the buffer (invariant 3)
//!  logged
//!    │ store_frozen: a StorePlan, then one vector of the store
//!    ├─ failed or refused ─► end_write_back: dirty again; the RetryList says when to retry
//!  stored
//!    │ end_write_back, under the state's lock: clean, unless written again
//!    │ forget_stored: the buffer releases groups that nothing needs
//!  clean
//! ```
//!
//! A partly written page is stored as a delta if it can be: then nothing is read for it (`store_plan.rs`).
//!
//! Range operations go before any page, each after its dependencies and before all that it blocks
//! (`range_ops.rs`).

use crate::admission::AdmissionControl;
use crate::bypass;
use crate::commit::Committer;
use crate::delta::PageDelta;
use crate::dirty_scan::{DirtyScan, LOOKS_MAX};
use crate::error::CacheError;
use crate::locks::{CacheLock, OrderedGuard, OrderedMutex};
use crate::log::CacheLog;
use crate::page::{CachedPage, PageBody};
use crate::page_table::{PageKey, PageTable, PendingPunch};
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{PendingRangeOp, RangeOp};
use crate::recover::clean_stored_pages;
use crate::relog::{self, Relogger};
use crate::retry::{RETRY_AFTER, WriteBackItem};
use crate::space::CacheSpace;
use crate::state::{CacheShared, CacheState};
use crate::store_plan::{PageToStore, StorePlan};
use crate::task::{BackgroundTask, DeferredCompletions, StepProgress};
use buffer::GroupNo;
use device::{Lsn, ObjectId, Page, PageNo, SharedPage};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;
use store::{PageRead, Store, StoreChange, StoreError, StoredPage};

/// Pages of the object, from a chosen delta on, among which further dirty deltas are looked for.
const DELTA_LOOKS: usize = 1024;
/// The number of a step's chosen pages for which that is done.
const DELTA_RUNS: usize = 4;
/// Pages of a step: a MiB, so that a step is short on any device and many pages share its log entries.
pub(crate) const STEP_PAGES: usize = 256;
/// Bypassed pages of a step: more than [`STEP_PAGES`], as most are consecutive, and each step ends with a
/// flush for which writers may wait.
const BYPASS_STEP_PAGES: usize = 1024;
/// A page takes along its dirty neighbours at most this many pages away: half a MiB in all, read and written
/// at the speed of a long transfer.
const NEIGHBOUR_PAGES: u64 = 64;
/// Attempts to store a recovered range operation before the mount goes on without.
const ATTEMPTS_AT_START: usize = 3;
/// Leaves of the store's map (128 pages each) that a punch changes at once: a MiB to read, a millisecond
/// under the store's lock.
const PUNCH_LEAVES: usize = 256;
/// While clients sync logged changes in a loop, they get seven eighths of the time of devices and processors:
/// after a step that stored bypassed pages, no more of them are stored for this many times its duration.
const SYNC_SHARE: u32 = 7;
const SYNC_SHARE_MAX: Duration = Duration::from_millis(200);
/// Removed files and punched ranges are stored after this time: then `df` shows their space.
const PUNCH_AGE_MAX: Duration = Duration::from_secs(1);
/// The pause when everything that is dirty was tried a moment ago and failed.
const STUCK_RECHECK: Duration = Duration::from_millis(100);

/// Writes pages back.
pub(crate) struct WriteBack {
    shared: Arc<CacheShared>,
    admission: AdmissionControl,
    committer: Arc<Committer>,
    relogger: Relogger,
    /// Held for a whole write-back, over device I/O. Taken before the state's lock, never while holding that.
    cursor: OrderedMutex<WriteBackCursor>,
}

/// The position of write-back between steps. The write-back lock protects it.
#[derive(Default)]
pub(crate) struct WriteBackCursor {
    /// Steps for reason `Due` do nothing before this time.
    not_before: Duration,
    /// When the retry list was last pruned.
    retries_pruned: Duration,
    /// How far steps for reason `Due` have looked through the dirty pages.
    due_scan: DirtyScan,
    /// The last bypassed page of this round so far.
    last_bypassed: Option<PageKey>,
    /// The newest group when the round of bypassed pages began. Pages written since belong to the next round.
    bypass_round_end: GroupNo,
    /// The last batch had bypassed pages: other pages that are due go next.
    last_batch_bypassed: bool,
    /// Until then bypassed pages wait, as long as clients sync logged changes.
    bypass_not_before: Duration,
}

/// Why pages are written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteBackReason {
    /// Limits or ages ask for it.
    Due,
    /// An operation waits for space: everything is written back.
    Space,
    /// A caller wants everything written back: the mount ends, a volume is cloned, the buffer grows.
    All,
}

/// Pages chosen to be written back.
struct WriteBackBatch {
    pages: Vec<PageKey>,
    /// The search reached the newest dirty page.
    reached_newest: bool,
}

/// Pages and punches as they were when they were frozen.
#[derive(Default)]
pub(crate) struct FrozenBatch {
    pub(crate) pages: Vec<FrozenPage>,
    pub(crate) punches: Vec<(ObjectId, PendingPunch)>,
}

impl FrozenBatch {
    fn len(&self) -> usize {
        self.punches.len() + self.pages.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sorts pages by key, so that neighbours are written together, and punches by LSN.
    pub(crate) fn sort(&mut self) {
        self.pages.sort_by_key(|page| page.key);
        self.punches.sort_by_key(|(_, punch)| punch.lsn);
    }

    /// The item at `index`: punches first, then pages.
    fn item(&self, index: usize) -> WriteBackItem {
        match self.punches.get(index) {
            Some((object, punch)) => WriteBackItem::Punch(*object, punch.lsn),
            None => WriteBackItem::Page(self.pages[index - self.punches.len()].key),
        }
    }
}

pub(crate) struct FrozenPage {
    key: PageKey,
    content: PageContent,
    newest: Lsn,
    reserved: bool,
    /// The newest punch that covers the page and is not stored: an older version in the store reads as zeros.
    punch: Option<Lsn>,
}

impl FrozenPage {
    /// Freezes a page. `None` if it is clean or being written back.
    pub(crate) fn begin(pages: &mut PageTable, key: PageKey) -> Option<FrozenPage> {
        pages.get(&key)?;
        let punch = pages.newest_punch_of(key);
        pages.change(key, |entry| {
            let content = PageContent::of(entry);
            let dirt = entry.begin_write_back()?;
            Some(FrozenPage { key, content, newest: dirt.newest, reserved: dirt.reserved, punch })
        })
    }
}

/// For planted bugs only.
impl FrozenPage {
    /// Whether the page was written since it was frozen.
    pub(crate) fn is_newer(&self, pages: &PageTable) -> bool {
        pages.get(&self.key).is_some_and(CachedPage::is_dirty)
    }

    /// Replaces the frozen content by the current one.
    pub(crate) fn freeze_again(&mut self, pages: &PageTable) {
        if let Some(entry) = pages.get(&self.key) {
            self.content = PageContent::of(entry);
        }
    }
}

/// The store's answers for a [`FrozenBatch`], by index of its [items](FrozenBatch::item).
#[derive(Default)]
struct StoreOutcome {
    /// Changes that the store refused.
    refused: BTreeMap<usize, StoreError>,
    /// All bytes of pages that were partial in memory: the missing bytes are zeros, or were read.
    whole: BTreeMap<usize, SharedPage>,
    pages_read: u64,
}

impl WriteBack {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        admission: AdmissionControl,
        committer: Arc<Committer>,
    ) -> WriteBack {
        let relogger = Relogger::new(shared.clone(), committer.clone());
        let cursor = OrderedMutex::new(CacheLock::WriteBack, WriteBackCursor::default());
        WriteBack { shared, admission, committer, relogger, cursor }
    }

    /// Takes the write-back lock: while it is held, no other thread writes anything back.
    pub(crate) fn lock(&self) -> OrderedGuard<'_, WriteBackCursor> {
        self.cursor.lock()
    }

    /// Whether the write-back lock is free.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_idle(&self) -> bool {
        self.cursor.is_free()
    }

    /// One bounded step, if limits or ages ask for it. `Err` if what it tried stays dirty: a device failed,
    /// or the store is full.
    pub(crate) fn step(&self) -> Result<StepProgress, CacheError> {
        let mut cursor = self.lock();
        let mut scan = cursor.due_scan;
        let outcome = self.write_back(&mut cursor, WriteBackReason::Due, &mut scan);
        cursor.due_scan = scan;
        outcome
    }

    /// One bounded step of writing everything back. Skips items that failed since `scan` began, so repeated
    /// steps end.
    pub(crate) fn drain_step(
        &self,
        reason: WriteBackReason,
        scan: &mut DirtyScan,
    ) -> Result<StepProgress, CacheError> {
        let mut cursor = self.lock();
        self.write_back(&mut cursor, reason, scan)
    }

    fn write_back(
        &self,
        cursor: &mut WriteBackCursor,
        reason: WriteBackReason,
        scan: &mut DirtyScan,
    ) -> Result<StepProgress, CacheError> {
        self.shared.ensure_works()?;
        let now = self.shared.now();
        if reason == WriteBackReason::Due && now < cursor.not_before {
            return Ok(StepProgress::Idle);
        }
        self.prune_retries(cursor, now);
        if clean_stored_pages(&self.shared) {
            return Ok(StepProgress::Worked);
        }
        if let Some(progress) = self.store_next_range_op(cursor, scan, now)? {
            return Ok(progress);
        }
        let idle = if reason == WriteBackReason::Due && self.relogger.step(now)? {
            StepProgress::Worked
        } else {
            StepProgress::Idle
        };
        let mut batch = None;
        if cursor.last_batch_bypassed || reason != WriteBackReason::Due || self.critical_needs_log_space() {
            let found = self.choose_pages(reason, scan, now);
            // A batch without pages (they are stuck, or only punches are due) does not go before bypassed
            // pages.
            batch = found.filter(|found| reason != WriteBackReason::Due || !found.pages.is_empty());
        }
        cursor.last_batch_bypassed = false;
        if batch.is_none() && reason == WriteBackReason::Due {
            batch = self.choose_bypassed_pages(cursor, scan, now);
            cursor.last_batch_bypassed = batch.is_some();
            batch = batch.or_else(|| self.choose_pages(reason, scan, now));
        }
        let Some(WriteBackBatch { pages, reached_newest }) = batch else { return Ok(idle) };
        let frozen = self.freeze(&pages, scan, now);
        let is_over = scan.is_finished(reached_newest, !frozen.is_empty());
        if frozen.is_empty() {
            // If nothing is stuck, the next step looks further along the queue of dirty pages.
            if is_over && pages.is_empty() && self.shared.state().space.retries.first_error().is_some() {
                cursor.not_before = now + STUCK_RECHECK;
            }
            return Ok(if is_over { idle } else { StepProgress::Worked });
        }
        let tried = frozen.len();
        let stuck =
            self.write_frozen(frozen).inspect_err(|error| self.note_failure(cursor, scan, error, now))?;
        let mut state = self.shared.state();
        if cursor.last_batch_bypassed {
            let ended = self.shared.now();
            cursor.bypass_not_before = ended + (SYNC_SHARE * (ended - now)).min(SYNC_SHARE_MAX);
        }
        if stuck.len() == tried
            && let Some((_, error)) = stuck.first()
        {
            state.space.retries.note_failure(error.clone().into(), now);
        }
        let lacks_space = stuck.iter().any(|(_, error)| error.is_full());
        stuck.into_iter().for_each(|(item, error)| state.space.retries.back_off(item, error, now));
        if lacks_space && state.space.admission.ask_for_space() {
            self.shared.wake(BackgroundTask::Checkpoint);
        }
        drop(state);
        if reason != WriteBackReason::All {
            // The reads and writes that meet an error here report it.
            let _ = self.shared.store_io().data().merge_due_deltas();
        }
        Ok(StepProgress::Worked)
    }

    /// Whether a critical operation waits for space that logged pages take.
    fn critical_needs_log_space(&self) -> bool {
        let state = self.shared.state();
        self.shared.follows_classes()
            && state.space.admission.is_critical_waiting()
            && self.admission.bypassed_pages_can_wait(&state)
    }

    /// Nothing could be written back: pauses.
    fn note_failure(
        &self,
        cursor: &mut WriteBackCursor,
        scan: &mut DirtyScan,
        error: &CacheError,
        now: Duration,
    ) {
        cursor.not_before = now + RETRY_AFTER;
        scan.restart();
        let mut state = self.shared.state();
        state.space.retries.note_failure(error.clone(), now);
        // Cleaning follows what is written back. While nothing is, space must be asked for.
        if state.space.ask_for_needed_space() {
            self.shared.wake(BackgroundTask::Checkpoint);
        }
        // Readers that wait for a range operation get an error after a while.
        if !state.pages.range_ops().is_empty() {
            self.shared.wake(BackgroundTask::Fetch);
        }
    }

    /// Stores the recovered range operations before any client reads their targets: a mount that is only read
    /// would not write them back later. Those that fail stay pending.
    pub(crate) fn store_recovered_range_ops(&self) {
        let mut cursor = self.lock();
        let now = self.shared.now();
        // An error that occurs only once is not to reach the readers of the targets.
        for _ in 0..ATTEMPTS_AT_START {
            let mut scan = DirtyScan::once(self.shared.state().space.retries.failures());
            while let Ok(Some(_)) = self.store_next_range_op(&mut cursor, &mut scan, now) {}
            if self.shared.state().pages.range_ops().is_empty() {
                break;
            }
        }
        cursor.not_before = Duration::ZERO;
        self.forget_stored_punches();
    }

    /// Logs reverted pages again. A crash took their bypassed bytes, so each is again what older records make
    /// of it. The new records tell the next recovery that these bytes are newer than the bypass; nothing else
    /// would.
    pub(crate) fn log_reverted(&self, pages: &[PageKey]) -> Result<(), CacheError> {
        let state = self.shared.state();
        pages.iter().try_for_each(|key| relog::append_page(&state.log, &state.pages, *key))
    }

    /// Drops relogged punches that the store has. The log may have lost a range operation that is stored, and
    /// still have an older punch, which was relogged. What the store has is newer than that punch.
    fn forget_stored_punches(&self) {
        let punches: Vec<_> =
            self.shared.state().pages.punches().filter(|(_, punch)| punch.is_relogged).collect();
        for (object, punch) in punches {
            if matches!(self.shared.store_io().data().has_applied_later_transfer(object, punch.lsn), Ok(true))
            {
                self.shared.state().pages.forget_punch(object, punch.lsn);
            }
        }
    }

    /// One step towards storing the oldest range operation that can be tried. `None` if there is none.
    fn store_next_range_op(
        &self,
        cursor: &mut WriteBackCursor,
        scan: &mut DirtyScan,
        now: Duration,
    ) -> Result<Option<StepProgress>, CacheError> {
        let op = {
            let state = self.shared.state();
            let free =
                |one: &&PendingRangeOp| !scan.skips(&state.space.retries, WriteBackItem::of(&one.op), now);
            state.pages.range_ops().unblocked().find(free).map(|one| one.op)
        };
        let Some(op) = op else { return Ok(None) };
        let stuck = match self.range_op_step(&op) {
            // Other items may find space, or be readable.
            Err(CacheError::Store(error)) if error.is_full() || error.is_read_failure() => Some(error),
            outcome => outcome.inspect_err(|error| self.note_failure(cursor, scan, error, now))?,
        };
        if let Some(error) = stuck {
            let mut state = self.shared.state();
            state.space.retries.note_failure(error.clone().into(), now);
            state.space.retries.back_off(WriteBackItem::of(&op), error, now);
            if state.space.ask_for_needed_space() {
                self.shared.wake(BackgroundTask::Checkpoint);
            }
            // Reads that wait for it get the error.
            state.seeks.unblock();
            drop(state);
            self.shared.wake(BackgroundTask::Fetch);
        }
        Ok(Some(StepProgress::Worked))
    }

    /// There is more space: retries at once if nothing could be written back for lack of it.
    pub(crate) fn retry_for_space(&self) {
        if self.shared.state().space.retries.needs_space() {
            self.lock().not_before = Duration::ZERO;
            self.shared.wake(BackgroundTask::WriteBack);
        }
    }

    /// One bounded step of storing a range operation that waits for no other: its dependencies, then itself.
    /// Returns why it cannot be stored, if so.
    fn range_op_step(&self, op: &RangeOp) -> Result<Option<StoreError>, CacheError> {
        if let Some(error) = self.forget_stored_range_ops(op) {
            return Ok(Some(error));
        }
        if self.shared.state().pages.range_ops().get(op.lsn).is_none() {
            return Ok(None);
        }
        let mut punches = self.shared.state().pages.punches_before(op);
        if !punches.is_empty() {
            punches.sort_by_key(|(_, punch)| punch.lsn);
            let refused = self.write_frozen(FrozenBatch { pages: Vec::new(), punches })?;
            return Ok(refused.into_iter().next().map(|(_, error)| error));
        }
        let dependencies: Vec<DirtyPage> = {
            let state = self.shared.state();
            let pending = state.pages.range_ops().get(op.lsn).into_iter();
            pending
                .flat_map(PendingRangeOp::dependencies)
                .take(STEP_PAGES)
                .filter_map(DirtyPage::of)
                .collect()
        };
        self.commit_up_to(op.lsn)?;
        if dependencies.is_empty() {
            // A page at the edge of the range that cannot be read delays only this operation. If the page
            // stays damaged, it is lost in the target.
            if let Err(error) = self.shared.store_io().data().merge_deltas_for_transfer(&op.transfer)
                && !(error.is_damage() && self.has_failed_for_long(op))
            {
                return Ok(Some(error));
            }
            let refused = self.apply_all(&[op.change()])?;
            if refused.is_empty() {
                self.shared.state().counters.transfers_stored += 1;
                self.finish_range_op(op);
            }
            Ok(refused.into_values().next())
        } else {
            self.store_dependencies(op, &dependencies)
        }
    }

    fn has_failed_for_long(&self, op: &RangeOp) -> bool {
        let since = self.shared.state().space.retries.failing_since(WriteBackItem::of(op));
        since.is_some_and(|since| self.shared.now() >= since + self.shared.settings().store_patience)
    }

    /// Asks the store which recovered range operations it has, and drops them, before any other is stored.
    /// They are stored in the order of their LSNs. If the store has one, it has all earlier ones that share
    /// an object's slot with it; if both objects of an operation are gone, nothing else tells. Returns the
    /// error if the store cannot tell for `op`.
    fn forget_stored_range_ops(&self, op: &RangeOp) -> Option<StoreError> {
        let recovered: Vec<RangeOp> = {
            let state = self.shared.state();
            let recovered = state.pages.range_ops().iter().filter(|one| one.recovered);
            recovered.map(|one| one.op).collect()
        };
        let (mut had, mut unknown): (Vec<RangeOp>, Vec<(RangeOp, StoreError)>) = (Vec::new(), Vec::new());
        for one in recovered.into_iter().rev() {
            if had.iter().any(|later| later.shares_slot(&one)) {
                had.push(one);
                continue;
            }
            let stored = self.shared.store_io().data().has_applied_transfer(&one.transfer, one.lsn);
            if stored == Ok(true) && !is_planted(CacheBug::TransferRepeated) {
                had.push(one);
                continue;
            }
            let later = || unknown.iter().find(|(later, _)| later.shares_slot(&one));
            match stored.err().or_else(|| later().map(|(_, error)| error.clone())) {
                Some(error) => unknown.push((one, error)),
                None => self.shared.state().pages.mark_range_op_new(one.lsn),
            }
        }
        had.iter().rev().for_each(|one| self.finish_range_op(one));
        unknown.into_iter().find(|(one, _)| one == op).map(|(_, error)| error)
    }

    /// Makes every change up to `newest` durable in the buffer.
    fn commit_up_to(&self, newest: Lsn) -> Result<(), CacheError> {
        let is_durable =
            self.shared.buffer().durable_lsn() >= newest || is_planted(CacheBug::StoredBeforeDurable);
        if is_durable { Ok(()) } else { self.committer.commit_now().map(drop) }
    }

    /// Stores dependencies of a range operation. Returns why one cannot be stored, if so.
    fn store_dependencies(
        &self,
        op: &RangeOp,
        dependencies: &[DirtyPage],
    ) -> Result<Option<StoreError>, CacheError> {
        let source = op.transfer.from;
        let pages = dependencies.iter().map(|one| {
            let key = PageKey { object: source, page: one.page };
            PageToStore { key, content: &one.content, newest: one.newest, punch: None }
        });
        let mut plan = StorePlan::of(self.shared.store_io(), pages);
        let pages_read = plan.pages_read;
        if let Some((index, error)) = plan.refused.pop_first() {
            let page = dependencies[index].page;
            // If the page's leaf can be read, the page itself is damaged, and stays so.
            let is_known = || self.shared.store_io().data().page_lsn(source, page).is_ok();
            if !error.is_damage() || !self.has_failed_for_long(op) || !is_known() {
                return Ok(Some(error));
            }
            let mut state = self.shared.state();
            let was_reserved = state.pages.drop_stored_dependency(op.lsn, page);
            state.space.release(u64::from(was_reserved));
            return Ok(None);
        }
        let of_vector = self.apply_all(&plan.vector)?;
        let refused = plan.refused_by_page(of_vector);
        let mut state = self.shared.state();
        let stored = dependencies.iter().enumerate().filter(|(index, _)| !refused.contains_key(index));
        let spare = stored.filter(|(_, one)| state.pages.drop_stored_dependency(op.lsn, one.page)).count();
        state.space.release(spare as u64);
        state.counters.fetched_for_write_back += pages_read;
        state.counters.pages_stored += (dependencies.len() - refused.len()) as u64;
        Ok(refused.into_values().next())
    }

    /// Drops a range operation that the store has, and unblocks what waited for it.
    fn finish_range_op(&self, op: &RangeOp) {
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        // After a start: the store has the earlier punches, too. Applied again, they would remove what the
        // operation brought.
        for (object, punch) in state.pages.punches_before(op) {
            state.pages.forget_punch(object, punch.lsn);
        }
        let reserved = state.pages.drop_range_op(op.lsn);
        state.space.release(reserved);
        state.space.note_stored([WriteBackItem::of(op)]);
        state.reads.unblock();
        state.seeks.unblock();
        state.release_groups();
        self.admission.admit_waiting(state.for_admission(), &mut completions);
        drop(state);
        completions.deliver();
        self.shared.wake(BackgroundTask::Fetch);
        self.shared.wake(BackgroundTask::Commit);
    }

    /// Stores all range operations that are wanted, with those that come before them.
    pub(crate) fn store_range_ops(&self, is_wanted: &dyn Fn(&RangeOp) -> bool) -> Result<(), CacheError> {
        if !self.shared.state().pages.range_ops().iter().any(|one| is_wanted(&one.op)) {
            return Ok(());
        }
        let _turn = self.lock();
        self.store_range_ops_locked(is_wanted)
    }

    /// [`store_range_ops`](WriteBack::store_range_ops) for a caller that holds the write-back lock.
    pub(crate) fn store_range_ops_locked(
        &self,
        is_wanted: &dyn Fn(&RangeOp) -> bool,
    ) -> Result<(), CacheError> {
        loop {
            self.shared.ensure_works()?;
            let first = {
                let state = self.shared.state();
                let transfers = state.pages.range_ops();
                let last = transfers.iter().filter(|one| is_wanted(&one.op)).map(|one| one.op.lsn).last();
                let Some(last) = last else { return Ok(()) };
                transfers.unblocked().map(|one| one.op).find(|op| op.lsn <= last)
            };
            let op = first.expect("the oldest of all waits for no other");
            if let Some(error) = self.range_op_step(&op)? {
                return Err(error.into());
            }
        }
    }

    /// Whether a range operation can be stored now. Reads and other changes may wait for it.
    pub(crate) fn range_ops_are_due(&self, state: &CacheState) -> bool {
        let now = self.shared.now();
        let free = |one: &PendingRangeOp| !state.space.retries.is_backed_off(WriteBackItem::of(&one.op), now);
        state.log.failed().is_none() && state.pages.range_ops().unblocked().any(free)
    }

    /// Drops retry entries of items that are gone, now and then.
    fn prune_retries(&self, cursor: &mut WriteBackCursor, now: Duration) {
        if now < cursor.retries_pruned + RETRY_AFTER {
            return;
        }
        cursor.retries_pruned = now;
        let mut state = self.shared.state();
        let CacheState { space, pages, .. } = &mut *state;
        space.retries.retain(|item| item.is_pending(pages));
    }

    /// Whether limits or ages ask for write-back.
    pub(crate) fn is_due(&self, state: &CacheState) -> bool {
        self.admission.bypassed_pages_need_write_back(state)
            || self.logged_pages_are_due(state)
            || self.punches_are_due(state)
    }

    fn logged_pages_are_due(&self, state: &CacheState) -> bool {
        let age = |since| self.shared.now() >= since + self.shared.settings().dirty_age_max;
        let is_old = || state.log.failed().is_none() && state.pages.oldest_since().is_some_and(age);
        self.admission.logged_pages_need_write_back(state) || is_old()
    }

    /// Whether a punch that can be tried is so old that a user misses its space in `df`.
    fn punches_are_due(&self, state: &CacheState) -> bool {
        if state.log.failed().is_some() || state.pages.punches_pending() == 0 {
            return false;
        }
        let now = self.shared.now();
        state.pages.punches().any(|(object, punch)| {
            let is_held = || state.pages.range_ops().blocks_change(object, punch.lsn);
            let is_stuck = || state.space.retries.is_backed_off(WriteBackItem::Punch(object, punch.lsn), now);
            now >= punch.since + PUNCH_AGE_MAX && !is_stuck() && !is_held()
        })
    }

    /// Chooses pages to write back. `None` if there is no reason to. If only memory is short, the least
    /// recently written come first; otherwise those that need the buffer's oldest groups.
    /// Each takes its dirty neighbours along: on a disk a run of pages costs as much as one.
    fn choose_pages(
        &self,
        reason: WriteBackReason,
        scan: &mut DirtyScan,
        now: Duration,
    ) -> Option<WriteBackBatch> {
        let mut state = self.shared.state();
        if !state.pages.is_dirty() {
            return None;
        }
        if reason == WriteBackReason::Due && !self.logged_pages_are_due(&state) {
            // Punches go with any batch, or alone.
            let alone = WriteBackBatch { pages: Vec::new(), reached_newest: true };
            return self.punches_are_due(&state).then_some(alone);
        }
        let crowded = self.shared.settings().is_near_limit(state.pages.memory());
        let limit = self.step_pages(reason);
        scan.restart_periodically(now, state.space.retries.stuck_count());
        let filter = *scan;
        let free = |state: &CacheState, key: &PageKey| {
            let held = state.pages.is_blocked(key);
            !held && !filter.skips(&state.space.retries, WriteBackItem::Page(*key), now)
        };
        let mut pages = BTreeSet::new();
        // False once the batch is full.
        let mut take = |near: &mut dyn Iterator<Item = PageKey>, state: &CacheState| {
            let is_new = |key: &PageKey| free(state, key) && !pages.contains(key);
            let new: Vec<PageKey> = near.filter(is_new).take(limit - pages.len()).collect();
            pages.extend(new);
            pages.len() < limit
        };
        let distance = NEIGHBOUR_PAGES.min(limit as u64 / 2);
        let mut reached_newest = true;
        if crowded && !state.log.is_half_full() && reason == WriteBackReason::Due {
            let mut looks = state.pages.queued().min(LOOKS_MAX);
            let mut runs = DELTA_RUNS;
            while let Some(key) = state.pages.least_recently_written(&mut looks) {
                if !free(&state, &key) {
                    continue;
                }
                if !take(&mut state.pages.dirty_around(key, distance), &state) {
                    break;
                }
                // Deltas of many leaves, so that deltas that are merged together later lie together.
                if runs > 0 && !take(&mut state.pages.deltas_after(key, DELTA_LOOKS), &state) {
                    break;
                }
                runs = runs.saturating_sub(1);
            }
        } else {
            reached_newest = scan.visit(&state.pages, |key| {
                !free(&state, &key) || take(&mut state.pages.dirty_around(key, distance), &state)
            });
        }
        Some(WriteBackBatch { pages: pages.into_iter().collect(), reached_newest })
    }

    /// Chooses bypassed pages, if they are to be stored now. Pages that cannot be stored are soon logged by
    /// the committer, and then written back like any other.
    fn choose_bypassed_pages(
        &self,
        cursor: &mut WriteBackCursor,
        scan: &DirtyScan,
        now: Duration,
    ) -> Option<WriteBackBatch> {
        let mut state = self.shared.state();
        let CacheState { pages: table, log, .. } = &mut *state;
        if log.syncs.any_waiting_for_store() {
            // Some syncs may wait only for pages that were logged or punched meanwhile.
            log.complete_store_waits(table, &[]);
            self.shared.wake(BackgroundTask::Commit);
        }
        let is_left_to_syncs = now < cursor.bypass_not_before
            && state.log.syncs.any_critical_log_only(now)
            && self.admission.bypassed_pages_can_wait(&state);
        if is_left_to_syncs || !self.admission.bypassed_pages_need_write_back(&state) {
            return None;
        }
        let limit =
            self.shared.store().maintenance().pages_between_cleaning_checks().min(BYPASS_STEP_PAGES as u64)
                as usize;
        // In rounds, so that a file that is overwritten again and again, or grows and grows, delays no other.
        let last = cursor.last_bypassed.map_or(Bound::Unbounded, Bound::Excluded);
        let group = |key: &PageKey| state.pages.get(key).and_then(CachedPage::oldest_group);
        let is_of_round = |key: &PageKey| group(key).is_some_and(|group| group <= cursor.bypass_round_end);
        let behind = state.pages.unlogged_in((last, Bound::Unbounded)).filter(is_of_round);
        let mut pages: BTreeSet<PageKey> = behind.take(limit).collect();
        cursor.last_bypassed = pages.last().copied();
        if pages.len() < limit {
            cursor.bypass_round_end = self.shared.buffer().unreleased_groups().end;
            for key in state.pages.unlogged_in(bypass::ALL) {
                if pages.len() == limit {
                    break;
                }
                if pages.insert(key) {
                    cursor.last_bypassed = Some(key);
                }
            }
        }
        let is_stuck = |key: &PageKey| {
            state.pages.is_blocked(key) || scan.skips(&state.space.retries, WriteBackItem::Page(*key), now)
        };
        pages.retain(|key| !is_stuck(key));
        let pages: Vec<PageKey> = pages.into_iter().collect();
        if pages.is_empty() { None } else { Some(WriteBackBatch { pages, reached_newest: false }) }
    }

    /// The most pages of a step. If a writer may wait for it, no more than may be written before the next
    /// look whether cleaning is due.
    fn step_pages(&self, reason: WriteBackReason) -> usize {
        match reason {
            WriteBackReason::Due | WriteBackReason::Space => {
                self.shared.store().maintenance().pages_between_cleaning_checks().min(STEP_PAGES as u64)
                    as usize
            }
            WriteBackReason::All => STEP_PAGES,
        }
    }

    /// Freezes the chosen pages and all pending punches, except what is blocked or has just failed.
    fn freeze(&self, batch: &[PageKey], scan: &DirtyScan, now: Duration) -> FrozenBatch {
        let mut state = self.shared.state();
        let pages = batch.iter().filter_map(|&key| {
            let held = state.pages.is_blocked(&key);
            if held { None } else { FrozenPage::begin(&mut state.pages, key) }
        });
        let pages = pages.collect();
        let free = |&(object, punch): &(ObjectId, PendingPunch)| {
            let held = state.pages.range_ops().blocks_change(object, punch.lsn);
            !held && !scan.skips(&state.space.retries, WriteBackItem::Punch(object, punch.lsn), now)
        };
        let mut frozen = FrozenBatch { pages, punches: state.pages.punches().filter(free).collect() };
        frozen.sort();
        frozen
    }

    /// Makes a frozen batch durable in the buffer, then in the store; drops what is not needed any more, and
    /// admits operations that waited for it. Returns the items that the store refused.
    pub(crate) fn write_frozen(
        &self,
        frozen: FrozenBatch,
    ) -> Result<Vec<(WriteBackItem, StoreError)>, CacheError> {
        let pages = frozen.pages.iter().map(|page| page.newest);
        let newest = pages.chain(frozen.punches.iter().map(|(_, punch)| punch.lsn)).max().unwrap_or_default();
        let outcome = self.commit_up_to(newest).and_then(|()| Ok(self.store_frozen(&frozen)?));

        let mut state = self.shared.state();
        let CacheState { pages, log, space, counters, .. } = &mut *state;
        self.end_write_back(&frozen, outcome.as_ref().ok(), pages, log, space);
        let refused = match outcome {
            Ok(stored) => {
                counters.fetched_for_write_back += stored.pages_read;
                stored.refused
            }
            Err(error) => {
                counters.write_back_errors += 1;
                return Err(error);
            }
        };
        // Stored items need the buffer no more.
        let is_stored = |index: &usize| !refused.contains_key(index);
        let punches = frozen.punches.iter().enumerate().filter(|(index, _)| is_stored(index));
        let punches =
            punches.map(|(_, (object, punch))| pages.forget_punch(*object, punch.lsn)).count() as u64;
        counters.punches_stored += punches;
        counters.pages_stored += (frozen.len() - refused.len()) as u64 - punches;
        space.note_stored((0..frozen.len()).filter(is_stored).map(|index| frozen.item(index)));
        log.release_groups(pages, space);
        state.evict(self.shared.settings());
        // Admits under the same hold of the lock. Another thread that admitted them might lose its processor
        // before it told them; meanwhile this one would make more space, and have more cleaned, for nothing.
        let mut completions = DeferredCompletions::default();
        self.admission.admit_waiting(state.for_admission(), &mut completions);
        drop(state);
        completions.deliver();
        self.shared.wake(BackgroundTask::Commit);
        self.shared.wake(BackgroundTask::Checkpoint);
        Ok(refused.into_iter().map(|(index, error)| (frozen.item(index), error)).collect())
    }

    /// Makes frozen pages dirty again: they will not be written back.
    pub(crate) fn abandon(&self, frozen: &FrozenBatch) {
        let CacheState { pages, log, space, .. } = &mut *self.shared.state();
        self.end_write_back(frozen, None, pages, log, space);
    }

    /// Ends the write-back of frozen pages: stored pages become clean, the others dirty again.
    fn end_write_back(
        &self,
        frozen: &FrozenBatch,
        stored: Option<&StoreOutcome>,
        pages: &mut PageTable,
        log: &mut CacheLog,
        space: &CacheSpace,
    ) {
        let mut spare = 0;
        let mut done = Vec::new();
        if stored.is_some() && frozen.pages.iter().any(|page| pages.is_unlogged(&page.key)) {
            log.note_bypassed_stored(self.shared.store().data().durable_batch());
        }
        for (index, page) in (frozen.punches.len()..).zip(&frozen.pages) {
            let is_stored = stored.is_some_and(|stored| !stored.refused.contains_key(&index));
            let whole = stored.and_then(|stored| stored.whole.get(&index));
            let ended = pages.change_page_in_write_back(page.key, page.newest, |entry| {
                if is_stored {
                    entry.end_write_back();
                    if let Some(whole) = whole.filter(|_| entry.fetch().is_none()) {
                        entry.become_whole(Box::new(Page::clone(whole)));
                    }
                    0
                } else {
                    entry.abandon_write_back()
                }
            });
            if is_stored {
                done.push((page.key, page.newest));
            }
            // If the page was punched while it was written, its reservation has no other owner.
            spare += u64::from(page.reserved && (ended.is_none() || is_stored));
            let Some(more) = ended else { continue };
            spare += more;
            if is_planted(CacheBug::NewerBytesLostAtMerge) {
                let dirt = pages.change(page.key, CachedPage::take_dirty_state);
                spare += u64::from(dirt.is_some_and(|dirt| dirt.reserved));
            }
        }
        space.release(spare);
        log.complete_store_waits(pages, &done);
    }

    /// Applies a batch as one vector. If that does not fit, the punches go first: they free space, and the
    /// store has a reserve for them. Applying them again with the next vector does no harm. Returns the
    /// changes that the store refused, by index.
    fn store_frozen(&self, frozen: &FrozenBatch) -> Result<StoreOutcome, StoreError> {
        let punches: Vec<StoreChange> =
            frozen.punches.iter().map(|&(object, punch)| punch_change(object, punch)).collect();
        let pages = frozen.pages.iter().map(|page| {
            let FrozenPage { key, ref content, newest, punch, .. } = *page;
            PageToStore { key, content, newest, punch }
        });
        let mut plan = StorePlan::of(self.shared.store_io(), pages);
        // Punches first, in the order of their LSNs. A page that was punched after it was frozen has a page
        // LSN below the punch's. The punch, which is written back later, removes it again.
        let vector: Vec<StoreChange> = punches.into_iter().chain(std::mem::take(&mut plan.vector)).collect();
        let mut applied = AppliedChanges::default();
        let at = frozen.punches.len();
        let mut outcome = self.apply_rest(&vector, &mut applied);
        if outcome.as_ref().is_err_and(StoreError::is_full) && applied.count < at && at < vector.len() {
            outcome = self.apply_rest(&vector[..at], &mut applied);
            outcome = outcome.and_then(|()| self.apply_rest(&vector, &mut applied));
        }
        match outcome {
            // The changes that were applied are stored.
            Err(error) if error.is_full() && applied.count > 0 => applied.refuse_rest(&vector, &error),
            outcome => outcome?,
        }
        let mut refused = applied.refused;
        let mut stored = StoreOutcome { pages_read: plan.pages_read, ..StoreOutcome::default() };
        let of_pages = refused.split_off(&at).into_iter().map(|(index, error)| (index - at, error)).collect();
        stored.whole =
            std::mem::take(&mut plan.whole).into_iter().map(|(page, bytes)| (at + page, bytes)).collect();
        stored.refused =
            plan.refused_by_page(of_pages).into_iter().map(|(page, error)| (at + page, error)).collect();
        stored.refused.append(&mut refused);
        Ok(stored)
    }

    /// Applies a vector. Returns the changes that the store refused, by index.
    fn apply_all(&self, vector: &[StoreChange]) -> Result<BTreeMap<usize, StoreError>, StoreError> {
        let mut applied = AppliedChanges::default();
        self.apply_rest(vector, &mut applied)?;
        Ok(applied.refused)
    }

    fn apply_rest(&self, vector: &[StoreChange], applied: &mut AppliedChanges) -> Result<(), StoreError> {
        let store = self.shared.store_io();
        let apply = |part: &[StoreChange]| {
            if self.shared.settings().buffer_is_given_up {
                store.data().apply_bypassed(part)
            } else {
                store.data().apply(part)
            }
        };
        applied.apply_rest(store, &apply, vector)
    }

    /// Admits operations if there is space by now. If nothing is written back, they get the error after a
    /// while.
    pub(crate) fn wake_waiters(&self, progress: StepProgress) {
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        let now = self.shared.now();
        let patience = self.shared.settings().store_patience;
        let worked = progress == StepProgress::Worked;
        let is_waiting = state.space.admission.any_waiting();
        // Copies that are stuck hold others up for a while only.
        let may_go_on = worked || state.space.admission.is_copy_waiting();
        if is_waiting && (may_go_on || state.space.retries.no_space_error(now, patience).is_some()) {
            self.admission.admit_waiting(state.for_admission(), &mut completions);
        }
        drop(state);
        completions.deliver();
    }
}

/// How far a vector has been applied. Its changes need not be applied together.
#[derive(Default)]
pub(crate) struct AppliedChanges {
    /// Changes that were applied or refused.
    count: usize,
    /// Changes that the store refused, by index in the vector.
    pub(crate) refused: BTreeMap<usize, StoreError>,
}

impl AppliedChanges {
    /// Applies the rest, each time as much as the store takes at once. After an error the next call continues
    /// there. It applies no delta again, which would take one more block.
    pub(crate) fn apply_rest(
        &mut self,
        store: &Store,
        apply: &dyn Fn(&[StoreChange]) -> Result<(), StoreError>,
        vector: &[StoreChange],
    ) -> Result<(), StoreError> {
        while self.count < vector.len() {
            let rest = &vector[self.count..];
            let part = &rest[..store.data().changes_that_fit(rest)];
            let long = part.iter().position(|change| !matches!(split_punch(store, change), Ok(None)));
            match long {
                Some(0) => self.apply_in_pieces(store, apply, &rest[0])?,
                before => self.apply_halves(apply, &part[..before.unwrap_or(part.len())])?,
            }
        }
        Ok(())
    }

    /// Applies the next change, a long punch, in pieces. A crash between two pieces loses nothing: the buffer
    /// has the punch until all of it is stored.
    fn apply_in_pieces(
        &mut self,
        store: &Store,
        apply: &dyn Fn(&[StoreChange]) -> Result<(), StoreError>,
        punch: &StoreChange,
    ) -> Result<(), StoreError> {
        let mut left = punch.clone();
        let outcome = loop {
            match split_punch(store, &left) {
                Ok(Some((piece, rest))) => match apply(&[piece]) {
                    Ok(()) => left = rest,
                    outcome => break outcome,
                },
                Ok(None) => break apply(&[left]),
                Err(error) => break Err(error),
            }
        };
        match outcome {
            Err(error @ StoreError::Corrupt { .. }) => drop(self.refused.insert(self.count, error)),
            outcome => outcome?,
        }
        self.count += 1;
        Ok(())
    }

    /// Applies the next part. A damaged node of the store's map fails every change of a call that needs it.
    /// So the part is halved until the change that needs the node is alone.
    fn apply_halves(
        &mut self,
        apply: &dyn Fn(&[StoreChange]) -> Result<(), StoreError>,
        part: &[StoreChange],
    ) -> Result<(), StoreError> {
        match apply(part) {
            Err(StoreError::Corrupt { .. }) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                self.apply_halves(apply, first)?;
                return self.apply_halves(apply, second);
            }
            Err(error @ StoreError::Corrupt { .. }) => drop(self.refused.insert(self.count, error)),
            outcome => outcome?,
        }
        self.count += part.len();
        Ok(())
    }

    /// Refuses the rest.
    fn refuse_rest(&mut self, vector: &[StoreChange], error: &StoreError) {
        self.refused.extend((self.count..vector.len()).map(|index| (index, error.clone())));
        self.count = vector.len();
    }
}

/// Splits a punch that spans more leaves of the store's map than may change at once: its first piece, and the
/// rest.
fn split_punch(
    store: &Store,
    change: &StoreChange,
) -> Result<Option<(StoreChange, StoreChange)>, StoreError> {
    let &StoreChange::Punch { object, ref pages, lsn } = change else { return Ok(None) };
    let until = store.data().list(object, pages.clone(), PUNCH_LEAVES)?.until;
    let punch = |pages| StoreChange::Punch { object, pages, lsn };
    Ok((until < pages.end).then(|| (punch(pages.start..until), punch(until..pages.end))))
}

/// A copy of a page with changes that the store lacks.
pub(crate) struct DirtyPage {
    pub(crate) page: PageNo,
    content: PageContent,
    newest: Lsn,
}

/// A dirty page's bytes in memory.
pub(crate) enum PageContent {
    Whole(SharedPage),
    Patch(PageDelta),
}

impl PageContent {
    pub(crate) fn of(entry: &CachedPage) -> PageContent {
        match entry.body() {
            PageBody::Whole(page) => PageContent::Whole(page.clone()),
            PageBody::Patch(delta) => PageContent::Patch(delta.clone()),
        }
    }
}

impl DirtyPage {
    pub(crate) fn of((page, entry): (PageNo, &CachedPage)) -> Option<DirtyPage> {
        let newest = entry.dirty_state().or(entry.writing())?.newest;
        Some(DirtyPage { page, content: PageContent::of(entry), newest })
    }
}

/// For a rescue: all bytes of pages of an object, and their page LSNs. Deltas are merged with what the store
/// has.
pub(crate) fn merge_with_store<'a>(
    store: &Store,
    object: ObjectId,
    pages: &'a [DirtyPage],
) -> impl Iterator<Item = (PageNo, Result<(SharedPage, Lsn), StoreError>)> + use<'a> {
    let patches = pages.iter().filter(|one| matches!(one.content, PageContent::Patch(_)));
    let mut wants: Vec<PageRead> = patches.map(|one| PageRead::new(object, one.page)).collect();
    store.data().read(&mut wants);
    let mut bases = wants.into_iter().map(|want| want.result);
    pages.iter().map(move |one| {
        let bytes = match &one.content {
            PageContent::Whole(page) => Ok(page.clone()),
            PageContent::Patch(delta) => bases.next().expect("one for each patch").map(|base| {
                let mut bytes = match base {
                    StoredPage::Hole => Page::zeroed(),
                    StoredPage::Page { bytes, .. } => bytes,
                };
                delta.apply(&mut bytes);
                Arc::from(bytes)
            }),
        };
        (one.page, bytes.map(|bytes| (bytes, one.newest)))
    })
}

/// The store's change for a punch.
pub(crate) fn punch_change(object: ObjectId, punch: PendingPunch) -> StoreChange {
    if punch.whole_object {
        StoreChange::Delete { object, lsn: punch.lsn }
    } else {
        StoreChange::Punch { object, pages: punch.from..punch.to, lsn: punch.lsn }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{BLOCK_BYTES, Device, Incarnation, StoreId};
    use sim_disk::{PowerSupply, SimDisk};
    use std::cell::{Cell, RefCell};
    use store::{NewVolume, StoreLayout, VolumeId};

    #[test]
    fn what_was_applied_before_a_part_found_no_space_is_not_applied_again() {
        let disk: Arc<dyn Device> = SimDisk::new("store", 4096, &PowerSupply::new(), 1);
        Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) })
            .expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        store
            .volumes()
            .create(&NewVolume { name: "main", ..NewVolume::default() }, &[], Lsn(0))
            .expect("space");
        // Each page in a leaf of its own.
        let write = |number: u64| StoreChange::Write {
            object: VolumeId::MAIN.object(5, 1),
            page: PageNo(number * 1000),
            bytes: Arc::new(Box::new(Page([1; BLOCK_BYTES]))),
            page_lsn: Lsn(number + 1),
        };
        let vector: Vec<StoreChange> = (0..100).map(write).collect();
        let has_space = Cell::new(2);
        let asked = RefCell::new(Vec::new());
        let apply = |part: &[StoreChange]| {
            if has_space.get() == 0 {
                return Err(StoreError::Full);
            }
            has_space.set(has_space.get() - 1);
            asked.borrow_mut().extend(part.iter().map(|change| match change {
                StoreChange::Write { page_lsn, .. } => page_lsn.0,
                _ => unreachable!("all are writes"),
            }));
            Ok(())
        };
        let mut applied = AppliedChanges::default();
        assert_eq!(applied.apply_rest(&store, &apply, &vector), Err(StoreError::Full));
        assert!((2..100).contains(&applied.count), "{} at once", applied.count);
        has_space.set(1000);
        applied.apply_rest(&store, &apply, &vector).expect("there is space");
        assert_eq!(applied.count, 100);
        assert_eq!(asked.into_inner(), (1..=100).collect::<Vec<u64>>());
    }

    #[test]
    fn a_long_cut_is_applied_in_pieces_and_goes_on_where_one_found_no_space() {
        let disk: Arc<dyn Device> = SimDisk::new("store", 1 << 16, &PowerSupply::new(), 1);
        Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) })
            .expect("large enough");
        let store = Store::open(disk).expect("a new store");
        store.begin(Incarnation(1)).expect("the first");
        store
            .volumes()
            .create(&NewVolume { name: "main", ..NewVolume::default() }, &[], Lsn(0))
            .expect("space");
        let long = VolumeId::MAIN.object(5, 1);
        let short = VolumeId::MAIN.object(6, 1);
        let write = |object, number: u64, page_lsn| StoreChange::Write {
            object,
            page: PageNo(number),
            bytes: Arc::new(Box::new(Page([1; BLOCK_BYTES]))),
            page_lsn: Lsn(page_lsn),
        };
        // A page in each of 600 leaves. One of them is newer than the punch.
        let mut all: Vec<StoreChange> = (0..600).map(|leaf| write(long, leaf * 128, 10)).collect();
        all[300] = write(long, 300 * 128, 20);
        all.push(write(short, 3, 10));
        all.chunks(20).for_each(|some| {
            store.data().apply(some).expect("space");
            store.maintenance().checkpoint().expect("space");
        });
        let punch = |object| StoreChange::Punch { object, pages: PageNo(1)..PageNo(u64::MAX), lsn: Lsn(15) };
        let vector = [punch(short), punch(long), punch(short)];
        let has_space = Cell::new(2);
        let asked = RefCell::new(Vec::new());
        let apply = |part: &[StoreChange]| {
            if has_space.get() == 0 {
                return Err(StoreError::Full);
            }
            has_space.set(has_space.get() - 1);
            asked.borrow_mut().push(part.to_vec());
            store.data().apply(part)
        };
        let mut applied = AppliedChanges::default();
        assert_eq!(applied.apply_rest(&store, &apply, &vector), Err(StoreError::Full));
        assert_eq!(applied.count, 1);
        has_space.set(1000);
        applied.apply_rest(&store, &apply, &vector).expect("there is space");
        assert_eq!((applied.count, applied.refused.len()), (3, 0));
        let leaves = asked.into_inner().into_iter().map(|part| match &part[..] {
            [StoreChange::Punch { pages, .. }] => (pages.start.0.div_ceil(128), pages.end.0.div_ceil(128)),
            other => panic!("{other:?}"),
        });
        let whole = (1, u64::MAX.div_ceil(128));
        // Two of them look into the leaf of page 0.
        let pieces = [whole, (1, 256), (1, 511), (511, whole.1), whole];
        assert_eq!(leaves.collect::<Vec<_>>(), pieces);
        let left = store.data().list(long, PageNo(0)..PageNo(u64::MAX), 1000).expect("a sound disk");
        assert_eq!(left.pages, [(PageNo(0), Lsn(10)), (PageNo(300 * 128), Lsn(20))]);
    }
}

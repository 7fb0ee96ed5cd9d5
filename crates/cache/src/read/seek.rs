//! Seeks of data and holes: which pages were written and which never, from the store's map, the dirty pages
//! in memory, and punches that are not stored.
//!
//! A page is data if it has a change that is not stored, or if the store holds it and no newer punch removes
//! it. Memory is looked at first and the store after it: a page that is written back meanwhile is seen in one
//! of the two.

use crate::error::CacheError;
use crate::page_table::{PageTable, PendingPunch};
use crate::range_ops::PendingRangeOp;
use crate::space::CacheSpace;
use crate::state::CacheShared;
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions};
use device::{Lsn, ObjectId, PageNo};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::ListedPages;

/// Leaves of the store's map that one step looks at: 32 MiB of existing pages, and at most 64 reads of the
/// device.
const STEP_LEAVES: usize = 64;

/// Pages in memory that one step looks at under the lock.
const STEP_PAGES: usize = 8192;

/// The kind of page to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// A page that was written.
    Data,
    /// A page that was never written, or was punched.
    Hole,
}

/// How much work a count may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountEffort {
    /// Any amount. Like a seek, it waits for range operations of the object to be stored.
    Whole,
    /// One step: 64 leaves of the store's map, or 8192 pages in memory. If more is needed, or a range
    /// operation blocks the object, the count ends with `None`.
    OneStep,
}

/// Seeks that wait for a worker. Each continues where its last step ended.
#[derive(Default)]
pub(crate) struct SeekQueue {
    queue: VecDeque<PendingSeek>,
    /// Seeks in objects with range operations that are not stored: until they are, it is not known what the
    /// store will have.
    blocked: VecDeque<PendingSeek>,
    /// A worker does a seek. The others go on fetching, however much there is to look at.
    busy: bool,
}

struct PendingSeek {
    object: ObjectId,
    /// Pages that were not looked at yet.
    left: Range<PageNo>,
    query: SeekQuery,
}

enum SeekQuery {
    First(SeekTarget, CacheCompletion<Option<PageNo>>),
    /// The number of data pages so far.
    Count(u64, CountEffort, CacheCompletion<Option<u64>>),
}

impl PendingSeek {
    fn is_one_step(&self) -> bool {
        matches!(self.query, SeekQuery::Count(_, CountEffort::OneStep, _))
    }

    /// Ends a count that is not worth more work.
    fn give_up(self) {
        match self.query {
            SeekQuery::First(_, then) => then(Ok(None)),
            SeekQuery::Count(_, _, then) => then(Ok(None)),
        }
    }

    /// Answers. A seek that found nothing has looked at all pages.
    fn answer(self, found: Result<Option<PageNo>, CacheError>) {
        match self.query {
            SeekQuery::First(_, then) => then(found),
            SeekQuery::Count(pages, _, then) => then(found.map(|_| Some(pages))),
        }
    }
}

impl SeekQueue {
    pub(crate) fn has_work(&self) -> bool {
        !self.busy && !self.queue.is_empty()
    }

    /// A range operation is stored, gone or stuck: the seeks that it blocked are queued again.
    pub(crate) fn unblock(&mut self) {
        self.queue.append(&mut self.blocked);
    }

    /// Fails every waiting seek: the cache stops.
    pub(crate) fn refuse_all(&mut self, completions: &mut DeferredCompletions) {
        for seek in self.queue.drain(..).chain(self.blocked.drain(..)) {
            completions.push(move || seek.answer(Err(CacheError::Stopping)));
        }
    }
}

/// Dirty pages and punches of a range in memory, at one point in time.
struct MemoryView {
    dirty: BTreeSet<PageNo>,
    punches: Vec<PendingPunch>,
    /// The first page that was not looked at.
    until: PageNo,
}

impl MemoryView {
    fn of(pages: &PageTable, object: ObjectId, range: Range<PageNo>) -> MemoryView {
        let mut memory = MemoryView {
            dirty: BTreeSet::new(),
            punches: pages.punches_of(object).to_vec(),
            until: range.end,
        };
        for (looked, (key, entry)) in pages.range(object, range).enumerate() {
            if looked == STEP_PAGES {
                memory.until = key.page;
                break;
            }
            if entry.oldest_group().is_some() {
                memory.dirty.insert(key.page);
            }
        }
        memory
    }

    /// Whether a page that the store holds with this page LSN is a hole.
    fn is_punched(&self, page: PageNo, page_lsn: Lsn) -> bool {
        self.punches.iter().any(|punch| punch.from <= page && page < punch.to && page_lsn < punch.lsn)
    }

    /// The data pages below the position up to which memory and the store were looked at, and that position.
    fn data(mut self, listed: ListedPages) -> (BTreeSet<PageNo>, PageNo) {
        let until = self.until.min(listed.until);
        let page_lsns = listed.pages.into_iter().filter(|&(page, page_lsn)| !self.is_punched(page, page_lsn));
        let page_lsn: Vec<PageNo> = page_lsns.map(|(page, _)| page).collect();
        self.dirty.extend(page_lsn);
        self.dirty.split_off(&until);
        (self.dirty, until)
    }
}

/// Why the range operations of an object cannot be stored, if so and if a reader may be told.
fn why_blocked(
    pages: &PageTable,
    space: &CacheSpace,
    object: ObjectId,
    patience: Duration,
    given_up: Option<CacheError>,
) -> Option<CacheError> {
    let transfers = pages.range_ops();
    let why = |one: &PendingRangeOp| space.retries.range_op_error(transfers, one.op.lsn, patience);
    let found = transfers.touching(object).find_map(why).or(given_up);
    found.filter(|error| space.admission.may_tell(error))
}

/// The first page of `looked` that is wanted, where `data` are its data pages.
fn first_match(data: &BTreeSet<PageNo>, looked: Range<PageNo>, wanted: SeekTarget) -> Option<PageNo> {
    match wanted {
        SeekTarget::Data => data.first().copied(),
        SeekTarget::Hole => {
            let mut numbers = looked.start.0..looked.end.0;
            // Looks at as many pages as are data, and one more.
            numbers.find(|&number| !data.contains(&PageNo(number))).map(PageNo)
        }
    }
}

/// Answers seeks, a bounded piece at a time.
pub(crate) struct SeekWorker {
    shared: Arc<CacheShared>,
}

impl SeekWorker {
    pub(crate) fn new(shared: Arc<CacheShared>) -> SeekWorker {
        SeekWorker { shared }
    }

    /// Always answered by a worker, never in the caller's own call: a caller that seeks again in its
    /// completion does not pile up calls.
    pub(crate) fn seek(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        wanted: SeekTarget,
        then: CacheCompletion<Option<PageNo>>,
    ) {
        self.queue(PendingSeek { object, left: pages, query: SeekQuery::First(wanted, then) });
    }

    /// Counts data pages. Answered like a seek.
    pub(crate) fn count(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        effort: CountEffort,
        then: CacheCompletion<Option<u64>>,
    ) {
        self.queue(PendingSeek { object, left: pages, query: SeekQuery::Count(0, effort, then) });
    }

    fn queue(&self, seek: PendingSeek) {
        let mut state = self.shared.state();
        if state.log.is_stopping() {
            drop(state);
            return seek.answer(Err(CacheError::Stopping));
        }
        state.seeks.queue.push_back(seek);
        drop(state);
        self.shared.wake(BackgroundTask::Fetch);
    }

    /// One bounded piece of the oldest seek. `false` if there is none for this worker.
    pub(crate) fn step(&self) -> bool {
        let mut state = self.shared.state();
        if !state.seeks.has_work() {
            return false;
        }
        let Some(mut seek) = state.seeks.queue.pop_front() else { return false };
        if state.pages.range_ops().any_touching(seek.object) {
            if seek.is_one_step() {
                drop(state);
                seek.give_up();
                return true;
            }
            let patience = self.shared.settings().store_patience;
            let given_up = state.space.retries.stall_error(self.shared.now(), patience).cloned();
            let failed = state.log.ensure_works().err();
            let blocked = || why_blocked(&state.pages, &state.space, seek.object, patience, given_up);
            match failed.or_else(blocked) {
                Some(why) => {
                    drop(state);
                    seek.answer(Err(why));
                }
                None => state.seeks.blocked.push_back(seek),
            }
            return true;
        }
        state.seeks.busy = true;
        let memory = MemoryView::of(&state.pages, seek.object, seek.left.clone());
        drop(state);
        let found = self.look(&mut seek, memory);
        let mut state = self.shared.state();
        state.seeks.busy = false;
        let goes_on = matches!(found, Ok(None)) && !seek.left.is_empty();
        let gives_up = goes_on && seek.is_one_step();
        let found = if goes_on && state.log.is_stopping() { Err(CacheError::Stopping) } else { found };
        let answered = if goes_on && !gives_up && found.is_ok() {
            state.seeks.queue.push_back(seek);
            None
        } else {
            Some(seek)
        };
        let more = state.seeks.has_work();
        drop(state);
        if more {
            self.shared.wake(BackgroundTask::Fetch);
        }
        match answered {
            Some(seek) if gives_up && found.is_ok() => seek.give_up(),
            Some(seek) => seek.answer(found),
            None => {}
        }
        true
    }

    /// Looks at the pages of one step, and takes them off what is left.
    fn look(&self, seek: &mut PendingSeek, memory: MemoryView) -> Result<Option<PageNo>, CacheError> {
        let listed = self.shared.store_io().data().list(seek.object, seek.left.clone(), STEP_LEAVES)?;
        let (data, until) = memory.data(listed);
        let looked = seek.left.start..until;
        seek.left.start = until;
        match &mut seek.query {
            SeekQuery::First(wanted, _) => Ok(first_match(&data, looked, *wanted)),
            SeekQuery::Count(pages, ..) => {
                *pages += data.len() as u64;
                Ok(None)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_ops::RangeOp;
    use crate::retry::WriteBackItem;
    use buffer::{GroupNo, LogRecord};
    use device::{Device, PageTransfer, StoreId, VolumeId};
    use sim_disk::{PowerSupply, SimDisk};
    use store::{Store, StoreError, StoreLayout};

    #[test]
    fn seek_is_not_told_of_a_full_store_while_space_is_being_made() {
        let disk: Arc<dyn Device> = SimDisk::new("store", 4096, &PowerSupply::new(), 1);
        Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) })
            .expect("large enough");
        let store = Store::open(disk).expect("a new store");
        let target = VolumeId::MAIN.object(6, 1);
        let transfer = PageTransfer::clone_of(VolumeId::MAIN.object(5, 1), target);
        let op = RangeOp::of(&LogRecord::Transfer(transfer), Lsn(1)).expect("a clone");
        let patience = Duration::from_secs(30);
        let mut pages = PageTable::default();
        let mut space = CacheSpace::new(Arc::new(store));
        pages.begin_range_op(PendingRangeOp::new(op, GroupNo(1), Duration::ZERO, false));
        space.retries.back_off(WriteBackItem::of(&op), StoreError::Full, Duration::ZERO);
        space.retries.back_off(WriteBackItem::of(&op), StoreError::Full, patience);
        let told = |space: &CacheSpace| why_blocked(&pages, space, target, patience, None);
        assert!(told(&space).is_some_and(|error| error.is_full()), "nothing is done about it");
        space.admission.ask_for_space();
        assert!(told(&space).is_none(), "space is being made");
        space.admission.note_attempt_ended(true);
        assert!(told(&space).is_some_and(|error| error.is_full()), "the attempt was in vain");
    }
}

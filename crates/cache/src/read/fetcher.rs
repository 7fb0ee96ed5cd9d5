//! Serves reads, and fetches what is not in memory.

use crate::error::CacheError;
use crate::page::PageBody;
use crate::page_table::{PageKey, PageTable, pages_of};
use crate::read::read_ahead::ReadSpan;
use crate::read::seek::SeekWorker;
use crate::read::waiting::{PageFetch, ReadPurpose};
use crate::record_applier::LazyNow;
use crate::request_wait::{RequestWait, WaitCause};
use crate::state::{CacheShared, CacheState};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions, StepProgress};
use device::{ObjectId, SharedPage};
use request::Origin;
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use store::PageRead;

/// The share of memory that pages read ahead may take: one part in this many.
const READ_AHEAD_SHARE: u64 = 8;

/// Punched pages whose memory one step frees: some tens of microseconds under the lock.
const DISCARDED_PAGES_FREED: usize = 512;

/// Bytes that a read copies while it has the lock: some microseconds. A longer read copies them without it.
const COPIED_UNDER_LOCK_MAX: usize = 64 << 10;

/// Serves reads, and fetches the pages for which they wait.
pub(crate) struct Fetcher {
    shared: Arc<CacheShared>,
    seeker: SeekWorker,
}

impl Fetcher {
    pub(crate) fn new(shared: Arc<CacheShared>) -> Fetcher {
        Fetcher { seeker: SeekWorker::new(shared.clone()), shared }
    }

    pub(crate) fn seeker(&self) -> &SeekWorker {
        &self.seeker
    }

    /// Whether there is work for a step.
    pub(crate) fn has_work(state: &CacheState) -> bool {
        state.reads.has_work() || state.seeks.has_work() || state.pages.has_discarded()
    }

    pub(crate) fn read(
        &self,
        origin: Origin,
        object: ObjectId,
        offset: u64,
        len: usize,
        end: u64,
        then: CacheCompletion<Vec<u8>>,
    ) -> bool {
        let mut state = self.shared.state();
        let held = pieces_in_memory(&mut state.pages, object, offset, len);
        state.counters.reads_at_once += u64::from(held.is_some());
        let passage = ReadSpan { object, range: offset..offset + len as u64, end };
        let more = !state.log.is_stopping()
            && state.reads.note_read(&passage, held.is_some(), self.read_ahead_bytes_max());
        drop(state);
        let is_held = held.is_some();
        match held {
            Some(pieces) => {
                if more {
                    self.shared.wake(BackgroundTask::Fetch);
                }
                then(Ok(join_pieces(pieces, len)));
            }
            None => {
                let purpose = ReadPurpose::Reader(vec![0; len], then);
                self.read_or_wait((object, offset, len), purpose, origin);
            }
        }
        is_held
    }

    /// Copies the bytes from `offset` on, if all are in memory. `false` if not: `into` then has some of them, or none.
    pub(crate) fn try_read(&self, object: ObjectId, offset: u64, into: &mut [u8], end: u64) -> bool {
        if into.len() > COPIED_UNDER_LOCK_MAX {
            return false;
        }
        let mut state = self.shared.state();
        for (page, start, range) in pages_of(offset, into.len()) {
            let key = PageKey { object, page };
            let Some(entry) = state.pages.read(&key, start..start + range.len()) else { return false };
            entry.read(start, &mut into[range]);
        }
        state.counters.reads_at_once += 1;
        let passage = ReadSpan { object, range: offset..offset + into.len() as u64, end };
        let more =
            !state.log.is_stopping() && state.reads.note_read(&passage, true, self.read_ahead_bytes_max());
        drop(state);
        if more {
            self.shared.wake(BackgroundTask::Fetch);
        }
        true
    }

    pub(crate) fn fetch_ahead(&self, objects: &[(ObjectId, u64)]) {
        let mut state = self.shared.state();
        if state.log.is_stopping() {
            return;
        }
        let bytes_max = self.read_ahead_bytes_max();
        objects.iter().for_each(|&(object, bytes)| state.reads.fetch_ahead(object, bytes, bytes_max));
        drop(state);
        self.shared.wake(BackgroundTask::Fetch);
    }

    /// How far streams may be ahead; queued objects may be as much again.
    fn read_ahead_bytes_max(&self) -> u64 {
        self.shared.settings().memory_bytes_max / READ_AHEAD_SHARE
    }

    pub(crate) fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: CacheCompletion<()>) {
        self.read_or_wait((object, offset, len), ReadPurpose::Writer(then), Origin::UNMATCHED);
    }

    fn read_or_wait(&self, range: (ObjectId, u64, usize), purpose: ReadPurpose, origin: Origin) {
        let mut completions = DeferredCompletions::default();
        let wait = RequestWait::new(origin, WaitCause::StoredPage, self.shared.now());
        let mut state = self.shared.state();
        let CacheState { pages, reads, counters, .. } = &mut *state;
        let is_waiting = reads.read_or_wait(range, purpose, wait, pages, counters, &mut completions);
        let is_stopping = state.log.is_stopping();
        drop(state);
        completions.deliver();
        if is_waiting && is_stopping {
            // A cache that stops may have no fetcher any more.
            while self.step() == StepProgress::Worked {}
        } else if is_waiting {
            self.shared.wake(BackgroundTask::Fetch);
        }
    }

    pub(crate) fn step(&self) -> StepProgress {
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        let failed = state.log.failed().cloned();
        let patience = self.shared.settings().store_patience;
        let given_up = state.space.retries.stall_error(self.shared.now(), patience).cloned();
        let given_up = given_up.filter(|error| state.space.admission.may_tell(error));
        if failed.is_some() || given_up.is_some() {
            state.seeks.unblock();
        }
        let now = LazyNow::new(self.shared.clock());
        let CacheState { pages, reads, space, waits, .. } = &mut *state;
        let mut retried = reads.retry_ready(pages, waits, &now, &mut completions);
        let fetches = reads.begin_fetches(pages);
        reads.fail_blocked(pages, |pages, key| match &failed {
            // Range operations will never be stored.
            Some(why) => Some(CacheError::ReadOnly { why: why.clone() }),
            None => {
                let hiding = pages.range_ops().read_blocked_by(key.object, key.page);
                let stuck =
                    hiding.and_then(|lsn| space.retries.range_op_error(pages.range_ops(), lsn, patience));
                stuck.filter(|error| space.admission.may_tell(error)).or(given_up.clone())
            }
        });
        retried |= reads.retry_ready(pages, waits, &now, &mut completions);
        // No reader waits for memory to be freed.
        let most = if fetches.is_empty() { DISCARDED_PAGES_FREED } else { 0 };
        let cleared = pages.take_discarded(most);
        let more = reads.has_work();
        drop(state);
        let any_cleared = !cleared.is_empty();
        drop(cleared);
        if more {
            self.shared.wake(BackgroundTask::Fetch);
        }
        completions.deliver();
        if fetches.is_empty() {
            return if self.seeker.step() || retried || any_cleared || more {
                StepProgress::Worked
            } else {
                StepProgress::Idle
            };
        }
        self.fetch(fetches);
        // Seeks go on however much there is to fetch.
        self.seeker.step();
        StepProgress::Worked
    }

    /// Reads pages from the store, and answers the reads that waited for them.
    fn fetch(&self, fetches: Vec<PageFetch>) {
        let mut wants: Vec<PageRead> = fetches.iter().map(PageFetch::want).collect();
        self.shared.store_io().data().read(&mut wants);
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        let now = LazyNow::new(self.shared.clock());
        let CacheState { pages, reads, counters, waits, .. } = &mut *state;
        reads.complete(pages, counters, fetches, wants);
        reads.retry_ready(pages, waits, &now, &mut completions);
        state.evict(self.shared.settings());
        drop(state);
        completions.deliver();
    }
}

/// Bytes of one page, as they were under the lock.
enum ReadPiece {
    /// A shared page: its bytes are copied without the lock.
    Shared(SharedPage, Range<usize>),
    /// Bytes of a partial page.
    Own(Vec<u8>),
}

/// All pieces of a range if they are in memory: the read need not wait.
fn pieces_in_memory(
    pages: &mut PageTable,
    object: ObjectId,
    offset: u64,
    len: usize,
) -> Option<SmallVec<[ReadPiece; 1]>> {
    let mut pieces = SmallVec::new();
    for (page, start, range) in pages_of(offset, len) {
        let range = start..start + range.len();
        let entry = pages.read(&PageKey { object, page }, range.clone())?;
        pieces.push(match entry.body() {
            PageBody::Whole(page) => ReadPiece::Shared(page.clone(), range),
            PageBody::Patch(_) => {
                let mut own = vec![0; range.len()];
                entry.read(range.start, &mut own);
                ReadPiece::Own(own)
            }
        });
    }
    Some(pieces)
}

fn join_pieces(pieces: SmallVec<[ReadPiece; 1]>, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for piece in pieces {
        match piece {
            ReadPiece::Shared(page, range) => bytes.extend_from_slice(&page.0[range]),
            ReadPiece::Own(own) => bytes.extend_from_slice(&own),
        }
    }
    bytes
}

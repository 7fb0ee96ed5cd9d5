//! Reading, and fetching what is not in memory.

use crate::ahead::Passage;
use crate::error::CacheError;
use crate::page::Body;
use crate::pages::{Key, Pages, pages_of};
use crate::reads::{Asker, Fetch};
use crate::seek::Seeker;
use crate::shared::{Shared, State};
use crate::task::{Completion, Completions, Progress, Task};
use device::{ObjectId, SharedPage};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use store::PageRead;

/// Of the memory, how much of it may be what streams will read: one part in so many.
const AHEAD_SHARE: u64 = 8;

/// Pages that were cut whose memory one step gives back: some tens of microseconds under the lock.
const CLEAR_PAGES: usize = 512;

/// Serves reads, and brings what they wait for.
pub(crate) struct Fetcher {
    shared: Arc<Shared>,
    seeker: Seeker,
}

impl Fetcher {
    pub(crate) fn new(shared: Arc<Shared>) -> Fetcher {
        Fetcher { seeker: Seeker::new(shared.clone()), shared }
    }

    pub(crate) fn seeker(&self) -> &Seeker {
        &self.seeker
    }

    /// True if there is work for a step.
    pub(crate) fn has_work(state: &State) -> bool {
        state.reads.has_work() || state.seeks.has_work() || state.pages.has_discarded()
    }

    pub(crate) fn read(
        &self,
        object: ObjectId,
        offset: u64,
        len: usize,
        end: u64,
        then: Completion<Vec<u8>>,
    ) -> bool {
        let mut state = self.shared.state();
        let held = held(&mut state.pages, object, offset, len);
        state.counters.reads_at_once += u64::from(held.is_some());
        let passage = Passage { object, range: offset..offset + len as u64, end };
        let more =
            !state.is_stopping() && state.reads.passed(&passage, held.is_some(), self.ahead_bytes_max());
        drop(state);
        let is_held = held.is_some();
        match held {
            Some(pieces) => {
                if more {
                    self.shared.wake(Task::Fetch);
                }
                then(Ok(joined(pieces, len)));
            }
            None => self.ask(object, offset, len, Asker::Reader(vec![0; len], then)),
        }
        is_held
    }

    pub(crate) fn fetch_ahead(&self, objects: &[(ObjectId, u64)]) {
        let mut state = self.shared.state();
        if state.is_stopping() {
            return;
        }
        let bytes_max = self.ahead_bytes_max();
        objects.iter().for_each(|&(object, bytes)| state.reads.fetch_ahead(object, bytes, bytes_max));
        drop(state);
        self.shared.wake(Task::Fetch);
    }

    /// How much streams may be ahead, and as much again whole objects that are queued.
    fn ahead_bytes_max(&self) -> u64 {
        self.shared.settings().memory_bytes_max / AHEAD_SHARE
    }

    pub(crate) fn prepare_write(&self, object: ObjectId, offset: u64, len: usize, then: Completion<()>) {
        self.ask(object, offset, len, Asker::Writer(then));
    }

    fn ask(&self, object: ObjectId, offset: u64, len: usize, asker: Asker) {
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        let State { pages, reads, counters, .. } = &mut *state;
        let is_parked = reads.ask((object, offset, len), asker, pages, counters, &mut completions);
        drop(state);
        completions.deliver();
        if is_parked {
            self.shared.wake(Task::Fetch);
        }
    }

    pub(crate) fn step(&self) -> Progress {
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        let failed = state.failed().cloned();
        let patience = self.shared.settings().store_patience;
        // While space is being made nobody is told that there is none.
        let makes_space = state.admission.wants_space();
        let counts = |error: &CacheError| !(makes_space && error.is_full());
        let given_up = state.retries.given_up(self.shared.now(), patience).cloned().filter(counts);
        if failed.is_some() || given_up.is_some() {
            state.seeks.look_behind();
        }
        let State { pages, reads, retries, .. } = &mut *state;
        let mut retried = reads.retry_ready(pages, &mut completions);
        let fetches = reads.begin_fetches(pages);
        reads.fail_hidden(pages, |pages, key| match &failed {
            // Nothing that is not stored will be.
            Some(why) => Some(CacheError::ReadOnly { why: why.clone() }),
            None => {
                let hiding = pages.transfers().hiding(key.object, key.page);
                let stuck = hiding.and_then(|lsn| retries.why_stuck(pages.transfers(), lsn, patience));
                stuck.filter(counts).or(given_up.clone())
            }
        });
        retried |= reads.retry_ready(pages, &mut completions);
        // No reader waits for memory that is given back.
        let most = if fetches.is_empty() { CLEAR_PAGES } else { 0 };
        let cleared = pages.clear_discarded(most);
        let more = reads.has_work();
        drop(state);
        let any_cleared = !cleared.is_empty();
        drop(cleared);
        if more {
            self.shared.wake(Task::Fetch);
        }
        completions.deliver();
        if fetches.is_empty() {
            return if self.seeker.step() || retried || any_cleared || more {
                Progress::Worked
            } else {
                Progress::Idle
            };
        }
        self.fetch(fetches);
        // However much there is to fetch, seeks go on.
        self.seeker.step();
        Progress::Worked
    }

    /// Reads pages from the store, and answers the reads that waited for them.
    fn fetch(&self, fetches: Vec<Fetch>) {
        let mut wants: Vec<PageRead> = fetches.iter().map(Fetch::want).collect();
        self.shared.store_io().read(&mut wants);
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        let State { pages, reads, counters, .. } = &mut *state;
        reads.complete(pages, counters, fetches, wants);
        reads.retry_ready(pages, &mut completions);
        state.evict(self.shared.settings());
        drop(state);
        completions.deliver();
    }
}

/// Bytes of one page, as they were under the lock.
enum Piece {
    /// Shared, so that they are copied without the lock.
    Shared(SharedPage, Range<usize>),
    /// Of a page of which not all is in memory.
    Own(Vec<u8>),
}

/// All pieces of a range if they are in memory, for a read that needs to wait for nothing.
fn held(pages: &mut Pages, object: ObjectId, offset: u64, len: usize) -> Option<SmallVec<[Piece; 1]>> {
    let mut pieces = SmallVec::new();
    for (page, start, range) in pages_of(offset, len) {
        let range = start..start + range.len();
        let entry = pages.read(&Key { object, page }, range.clone())?;
        pieces.push(match entry.body() {
            Body::Whole(page) => Piece::Shared(page.clone(), range),
            Body::Patch(_) => {
                let mut own = vec![0; range.len()];
                entry.read(range.start, &mut own);
                Piece::Own(own)
            }
        });
    }
    Some(pieces)
}

fn joined(pieces: SmallVec<[Piece; 1]>, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    for piece in pieces {
        match piece {
            Piece::Shared(page, range) => bytes.extend_from_slice(&page.0[range]),
            Piece::Own(own) => bytes.extend_from_slice(&own),
        }
    }
    bytes
}

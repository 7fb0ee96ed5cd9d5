//! Seeking data and holes: what is written and what never was, over the store's map, what is dirty in memory, and cuts
//! that have not been written back.
//!
//! A page is data if a change of it is being written back, or if the store holds it and no newer cut takes it away. So
//! memory is looked at first, and the store after it: a page that is written back meanwhile is seen in one of the two.

use crate::error::CacheError;
use crate::pages::{Pages, PendingCut};
use crate::shared::{Shared, State};
use crate::task::{Completion, Completions, Task};
use crate::transfers::Pending;
use device::{Lsn, ObjectId, PageNo};
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::ListedPages;

/// Leaves of the store's map that one step looks at: 32 MiB of pages that exist, and at most 64 reads of the device.
const STEP_LEAVES: usize = 64;

/// Pages in memory that one step looks at, under the lock.
const STEP_PAGES: usize = 8192;

/// What to look for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// A page that was written.
    Data,
    /// A page that was never written, or cut.
    Hole,
}

/// How long a count may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountEffort {
    /// As long as it takes. Where a clone or a move that is not stored yet hides what there is, it waits, as a seek does.
    Whole,
    /// One step: 64 leaves of the store's map, or 8192 pages in memory. What is not counted by then, or hidden, ends with `None`.
    OneStep,
}

/// Seeks that wait for a worker; each goes on where its last step ended.
#[derive(Default)]
pub(crate) struct Seeks {
    queue: VecDeque<Seek>,
    /// Those of objects with clones or moves that are not stored: until they are, nobody knows what the store has.
    hidden: VecDeque<Seek>,
    /// A worker is at one. The others go on fetching, however much there is to look at.
    busy: bool,
}

struct Seek {
    object: ObjectId,
    /// What is still to be looked at.
    left: Range<PageNo>,
    what: What,
}

enum What {
    First(Wanted, Completion<Option<PageNo>>),
    /// All data, and how much of it was found so far.
    Count(u64, CountEffort, Completion<Option<u64>>),
}

impl Seek {
    fn is_one_step(&self) -> bool {
        matches!(self.what, What::Count(_, CountEffort::OneStep, _))
    }

    /// A count that is not worth more.
    fn give_up(self) {
        match self.what {
            What::First(_, then) => then(Ok(None)),
            What::Count(_, _, then) => then(Ok(None)),
        }
    }

    /// Of a seek that found nothing all was looked at.
    fn answer(self, found: Result<Option<PageNo>, CacheError>) {
        match self.what {
            What::First(_, then) => then(found),
            What::Count(pages, _, then) => then(found.map(|_| Some(pages))),
        }
    }
}

impl Seeks {
    pub(crate) fn has_work(&self) -> bool {
        !self.busy && !self.queue.is_empty()
    }

    /// A clone or a move is stored, or is none any more, or cannot be.
    pub(crate) fn look_behind(&mut self) {
        self.queue.append(&mut self.hidden);
    }

    /// Fails every seek that waits: it will not be answered any more.
    pub(crate) fn refuse_all(&mut self, completions: &mut Completions) {
        for seek in self.queue.drain(..).chain(self.hidden.drain(..)) {
            completions.push(move || seek.answer(Err(CacheError::Stopping)));
        }
    }
}

/// What memory says of some pages, at one moment.
struct Memory {
    dirty: BTreeSet<PageNo>,
    cuts: Vec<PendingCut>,
    /// The first page that was not looked at.
    until: PageNo,
}

impl Memory {
    fn of(pages: &Pages, object: ObjectId, range: Range<PageNo>) -> Memory {
        let mut memory =
            Memory { dirty: BTreeSet::new(), cuts: pages.cuts_of(object).to_vec(), until: range.end };
        for (looked, (key, entry)) in pages.range(object, range).enumerate() {
            if looked == STEP_PAGES {
                memory.until = key.page;
                break;
            }
            if entry.group().is_some() {
                memory.dirty.insert(key.page);
            }
        }
        memory
    }

    /// Whether a page that the store holds with this page LSN is a hole by now.
    fn is_cut(&self, page: PageNo, page_lsn: Lsn) -> bool {
        self.cuts.iter().any(|cut| cut.from <= page && page < cut.to && page_lsn < cut.lsn)
    }

    /// The pages with data below the place where both memory and the store were looked at, and that place.
    fn data(mut self, listed: ListedPages) -> (BTreeSet<PageNo>, PageNo) {
        let until = self.until.min(listed.until);
        let page_lsns = listed.pages.into_iter().filter(|&(page, page_lsn)| !self.is_cut(page, page_lsn));
        let page_lsn: Vec<PageNo> = page_lsns.map(|(page, _)| page).collect();
        self.dirty.extend(page_lsn);
        self.dirty.split_off(&until);
        (self.dirty, until)
    }
}

/// Why the store cannot get the clones and moves of an object, if that is so.
fn why_hidden(
    state: &State,
    object: ObjectId,
    patience: Duration,
    given_up: Option<CacheError>,
) -> Option<CacheError> {
    if let Some(why) = state.failed() {
        return Some(CacheError::ReadOnly { why: why.clone() });
    }
    let about = state.pages.transfers().about(object);
    let why = |one: &Pending| state.retries.why_stuck(state.pages.transfers(), one.what.lsn, patience);
    about.filter_map(why).next().or(given_up)
}

/// The first page of `looked` that is what is wanted, where `data` are its pages with data.
fn first(data: &BTreeSet<PageNo>, looked: Range<PageNo>, wanted: Wanted) -> Option<PageNo> {
    match wanted {
        Wanted::Data => data.first().copied(),
        Wanted::Hole => {
            let mut numbers = looked.start.0..looked.end.0;
            // As many as there is data, and one more.
            numbers.find(|&number| !data.contains(&PageNo(number))).map(PageNo)
        }
    }
}

/// Answers seeks, a bounded piece at a time.
pub(crate) struct Seeker {
    shared: Arc<Shared>,
}

impl Seeker {
    pub(crate) fn new(shared: Arc<Shared>) -> Seeker {
        Seeker { shared }
    }

    /// Always answered by a worker, never in the caller's own call: a caller that asks again from its completion does not
    /// pile up calls.
    pub(crate) fn seek(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        wanted: Wanted,
        then: Completion<Option<PageNo>>,
    ) {
        self.queue(Seek { object, left: pages, what: What::First(wanted, then) });
    }

    /// How many pages are data. Answered like a seek.
    pub(crate) fn count(
        &self,
        object: ObjectId,
        pages: Range<PageNo>,
        effort: CountEffort,
        then: Completion<Option<u64>>,
    ) {
        self.queue(Seek { object, left: pages, what: What::Count(0, effort, then) });
    }

    fn queue(&self, seek: Seek) {
        let mut state = self.shared.state();
        if state.is_stopping() {
            drop(state);
            return seek.answer(Err(CacheError::Stopping));
        }
        state.seeks.queue.push_back(seek);
        drop(state);
        self.shared.wake(Task::Fetch);
    }

    /// One bounded piece of the oldest seek; `false` if there is none for this worker.
    pub(crate) fn step(&self) -> bool {
        let mut state = self.shared.state();
        if !state.seeks.has_work() {
            return false;
        }
        let Some(mut seek) = state.seeks.queue.pop_front() else { return false };
        if state.pages.transfers().are_about(seek.object) {
            if seek.is_one_step() {
                drop(state);
                seek.give_up();
                return true;
            }
            let patience = self.shared.settings().store_patience;
            let given_up = state.retries.given_up(self.shared.now(), patience).cloned();
            match why_hidden(&state, seek.object, patience, given_up) {
                Some(why) => {
                    drop(state);
                    seek.answer(Err(why));
                }
                None => state.seeks.hidden.push_back(seek),
            }
            return true;
        }
        state.seeks.busy = true;
        let memory = Memory::of(&state.pages, seek.object, seek.left.clone());
        drop(state);
        let found = self.look(&mut seek, memory);
        let mut state = self.shared.state();
        state.seeks.busy = false;
        let goes_on = matches!(found, Ok(None)) && !seek.left.is_empty();
        let gives_up = goes_on && seek.is_one_step();
        let found = if goes_on && state.is_stopping() { Err(CacheError::Stopping) } else { found };
        let answered = if goes_on && !gives_up && found.is_ok() {
            state.seeks.queue.push_back(seek);
            None
        } else {
            Some(seek)
        };
        let more = state.seeks.has_work();
        drop(state);
        if more {
            self.shared.wake(Task::Fetch);
        }
        match answered {
            Some(seek) if gives_up && found.is_ok() => seek.give_up(),
            Some(seek) => seek.answer(found),
            None => {}
        }
        true
    }

    /// Looks at what one step may look at, and takes it off what is left.
    fn look(&self, seek: &mut Seek, memory: Memory) -> Result<Option<PageNo>, CacheError> {
        let listed = self.shared.store_io().list(seek.object, seek.left.clone(), STEP_LEAVES)?;
        let (data, until) = memory.data(listed);
        let looked = seek.left.start..until;
        seek.left.start = until;
        match &mut seek.what {
            What::First(wanted, _) => Ok(first(&data, looked, *wanted)),
            What::Count(pages, ..) => {
                *pages += data.len() as u64;
                Ok(None)
            }
        }
    }
}

//! Reading, and fetching what is not in memory. A read that misses parks; it holds up no other.

use crate::ahead::{Ahead, Passage};
use crate::cache::{Completion, Core, Progress, Task};
use crate::commit::Completions;
use crate::error::CacheError;
use crate::page::{Body, FetchNo};
use crate::plant::{PlantedBug, is_planted};
use crate::state::{Key, State, pages_of};
use device::{BLOCK_BYTES, Lsn, ObjectId, Page, PageNo, SharedPage};
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use store::{Found, StoreError, Want};

/// Pages of one fetch step: enough to keep any device's queue full.
const FETCH_PAGES: usize = 64;

/// Pages of streams that one step looks at, under the lock, where they are in memory.
const AHEAD_LOOKS: usize = 512;

/// Of the memory, how much of it may be what streams will read: one part in so many.
const AHEAD_SHARE: u64 = 8;

/// Pages that were cut whose memory one step gives back: some tens of microseconds under the lock.
const CLEAR_PAGES: usize = 512;

/// Reads that wait, and pages that wait to be fetched.
#[derive(Default)]
pub(crate) struct Reads {
    parked: BTreeMap<u64, Parked>,
    next: u64,
    /// Wanted and not yet asked for, in the order of the store's addresses, roughly.
    queue: BTreeMap<Key, Cause>,
    /// What streams will read. It comes after what a reader waits for.
    pub(crate) ahead: Ahead,
    /// Parked reads that may be able to go on.
    pub(crate) ready: BTreeSet<u64>,
    /// Pages of which a fetch is under way.
    in_flight: u64,
}

struct Parked {
    object: ObjectId,
    /// What it still lacks: (page, position in the page, range of the answer).
    lacks: Vec<(PageNo, usize, Range<usize>)>,
    asker: Asker,
    error: Option<StoreError>,
}

enum Asker {
    /// The answer so far. It is filled page by page, as pages arrive, so that a read needs no more memory than one
    /// page at a time.
    Reader(Vec<u8>, Completion<Vec<u8>>),
    Writer(Completion<()>),
}

/// Why a page is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    Read,
    Write,
    WriteBack,
    /// It will be read. An error is told to no reader: a read that waits for it fetches it again.
    Ahead,
}

/// One page on its way from the store.
pub(crate) struct Fetch {
    pub(crate) key: Key,
    number: FetchNo,
    cause: Cause,
    /// The newest cut that covered the page when the fetch began.
    cut: Option<Lsn>,
}

impl Reads {
    pub(crate) fn parked(&self) -> u64 {
        self.parked.len() as u64
    }

    pub(crate) fn fetching(&self) -> u64 {
        self.queue.len() as u64 + self.in_flight
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty() || !self.ready.is_empty() || !self.ahead.is_idle()
    }
}

impl Core {
    pub(crate) fn read(
        self: &Arc<Core>,
        object: ObjectId,
        offset: u64,
        len: usize,
        end: u64,
        then: Completion<Vec<u8>>,
    ) -> bool {
        let mut state = self.state();
        let held = held(&mut state, object, offset, len);
        let passage = Passage { object, range: offset..offset + len as u64, end };
        let more = self.look_ahead(&mut state, &passage, held.is_some());
        drop(state);
        let is_held = held.is_some();
        match held {
            Some(pieces) => {
                if more {
                    self.wake(Task::Fetch);
                }
                then(Ok(joined(pieces, len)));
            }
            None => self.ask(object, offset, len, Asker::Reader(vec![0; len], then)),
        }
        is_held
    }

    pub(crate) fn fetch_ahead(self: &Arc<Core>, objects: &[(ObjectId, u64)]) {
        let mut state = self.state();
        if state.stopping {
            return;
        }
        let bytes_max = self.ahead_bytes_max();
        objects.iter().for_each(|&(object, bytes)| state.reads.ahead.whole(object, bytes, bytes_max));
        drop(state);
        self.wake(Task::Fetch);
    }

    /// How much streams may be ahead, and as much again whole objects that are queued.
    fn ahead_bytes_max(&self) -> u64 {
        self.settings.memory_bytes_max / AHEAD_SHARE
    }

    /// Lets a stream that this read goes on with fetch what comes next; `true` if there is work for a fetcher.
    fn look_ahead(&self, state: &mut State, read: &Passage, is_held: bool) -> bool {
        if state.stopping {
            return false;
        }
        let bytes_max = self.ahead_bytes_max();
        match is_held {
            true => drop(state.reads.ahead.hit(read, bytes_max)),
            false => state.reads.ahead.miss(read, bytes_max),
        }
        !state.reads.ahead.is_idle()
    }

    pub(crate) fn prepare_write(
        self: &Arc<Core>,
        object: ObjectId,
        offset: u64,
        len: usize,
        then: Completion<()>,
    ) {
        self.ask(object, offset, len, Asker::Writer(then));
    }

    fn ask(self: &Arc<Core>, object: ObjectId, offset: u64, len: usize, asker: Asker) {
        let mut read = Parked { object, lacks: pages_of(offset, len).collect(), asker, error: None };
        let mut completions = Completions::default();
        let mut state = self.state();
        collect(&mut state, &mut read);
        if read.lacks.is_empty() {
            state.counters.reads_at_once += 1;
            finish(read, &mut completions);
            drop(state);
            return completions.deliver();
        }
        state.counters.reads_parked += 1;
        let id = state.reads.next;
        state.reads.next += 1;
        park(&mut state, id, read);
        drop(state);
        self.wake(Task::Fetch);
    }

    pub(crate) fn fetch_step(self: &Arc<Core>) -> Progress {
        let mut completions = Completions::default();
        let mut state = self.state();
        let retried = retry_ready(&mut state, &mut completions);
        let fetches = begin_fetches(&mut state);
        // No reader waits for memory that is given back.
        let most = if fetches.is_empty() { CLEAR_PAGES } else { 0 };
        let cleared = state.clear_discarded(most);
        let more = state.reads.has_work();
        drop(state);
        let any_cleared = !cleared.is_empty();
        drop(cleared);
        if more {
            self.wake(Task::Fetch);
        }
        completions.deliver();
        if fetches.is_empty() {
            return if self.seek_step() || retried || any_cleared || more {
                Progress::Worked
            } else {
                Progress::Idle
            };
        }
        let wants = self.fetch(&fetches);

        let mut completions = Completions::default();
        let mut state = self.state();
        complete(&mut state, fetches, wants);
        retry_ready(&mut state, &mut completions);
        state.evict(&self.settings);
        drop(state);
        completions.deliver();
        // However much there is to fetch, seeks go on.
        self.seek_step();
        Progress::Worked
    }

    /// Asks the store for the pages of `fetches`.
    pub(crate) fn fetch(&self, fetches: &[Fetch]) -> Vec<Want> {
        let want =
            |fetch: &Fetch| Want { object: fetch.key.object, page: fetch.key.page, found: Ok(Found::Hole) };
        let mut wants: Vec<Want> = fetches.iter().map(want).collect();
        self.store_io().read_from(self.volume, &mut wants);
        wants
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
fn held(state: &mut State, object: ObjectId, offset: u64, len: usize) -> Option<SmallVec<[Piece; 1]>> {
    let mut pieces = SmallVec::new();
    for (page, start, range) in pages_of(offset, len) {
        let range = start..start + range.len();
        let entry = state.table.get_mut(&Key { object, page }).filter(|entry| entry.covers(range.clone()))?;
        entry.used = true;
        pieces.push(match &entry.body {
            Body::Whole(page) => Piece::Shared(page.clone(), range),
            Body::Patch(_) => {
                let mut own = vec![0; range.len()];
                entry.read(range.start, &mut own);
                Piece::Own(own)
            }
        });
    }
    state.counters.reads_at_once += 1;
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

/// Takes what is in memory.
fn collect(state: &mut State, read: &mut Parked) {
    let Parked { object, lacks, asker, .. } = read;
    lacks.retain(|(page, start, range)| {
        let entry = state.table.get_mut(&Key { object: *object, page: *page });
        match asker {
            Asker::Reader(bytes, _) => {
                let Some(entry) = entry.filter(|entry| entry.covers(*start..*start + range.len())) else {
                    return true;
                };
                entry.used = true;
                entry.read(*start, &mut bytes[range.clone()]);
                false
            }
            // A page that is overwritten in full is not waited for.
            Asker::Writer(_) => {
                range.len() < BLOCK_BYTES && entry.is_none_or(|entry| matches!(entry.body, Body::Patch(_)))
            }
        }
    });
}

/// Answers a read that lacks nothing.
fn finish(read: Parked, completions: &mut Completions) {
    match read.asker {
        Asker::Writer(then) => completions.push(move || then(Ok(()))),
        Asker::Reader(bytes, then) => completions.push(move || then(Ok(bytes))),
    }
}

fn park(state: &mut State, id: u64, read: Parked) {
    let cause = match read.asker {
        Asker::Reader(..) => Cause::Read,
        Asker::Writer(_) => Cause::Write,
    };
    for &(page, ..) in &read.lacks {
        let key = Key { object: read.object, page };
        let number = state.next_fetch();
        let asked = state.change(key, |entry| {
            if !entry.waiters.contains(&id) {
                entry.waiters.push(id);
            }
            let fresh = entry.fetch.is_none();
            entry.fetch.get_or_insert(number);
            fresh
        });
        if asked {
            state.reads.queue.insert(key, cause);
        }
    }
    state.reads.parked.insert(id, read);
}

/// Looks again at every read that something happened for; true if there was one.
pub(crate) fn retry_ready(state: &mut State, completions: &mut Completions) -> bool {
    let mut any = false;
    while let Some(id) = state.reads.ready.pop_first() {
        let Some(mut read) = state.reads.parked.remove(&id) else { continue };
        any = true;
        if let Some(error) = read.error.take() {
            let error = CacheError::from(error);
            match read.asker {
                Asker::Reader(_, then) => completions.push(move || then(Err(error))),
                Asker::Writer(then) => completions.push(move || then(Err(error))),
            }
            continue;
        }
        collect(state, &mut read);
        match read.lacks.is_empty() {
            true => finish(read, completions),
            false => park(state, id, read),
        }
    }
    any
}

/// Takes pages off the queue, to be fetched.
fn begin_fetches(state: &mut State) -> Vec<Fetch> {
    let mut fetches = Vec::new();
    while fetches.len() < FETCH_PAGES {
        let Some((key, cause)) = state.reads.queue.pop_first() else { break };
        // Overwritten in full, cut or deleted meanwhile: it is not needed any more.
        let Some(number) = state.table.get(&key).and_then(|entry| entry.fetch) else { continue };
        fetches.push(Fetch { key, number, cause, cut: state.cut_of(key) });
    }
    if fetches.is_empty() {
        begin_fetches_ahead(state, &mut fetches);
    }
    state.reads.in_flight += fetches.len() as u64;
    fetches
}

/// Takes off pages that streams will read and that are neither in memory nor on their way.
fn begin_fetches_ahead(state: &mut State, fetches: &mut Vec<Fetch>) {
    for _ in 0..AHEAD_LOOKS {
        if fetches.len() == FETCH_PAGES {
            break;
        }
        let Some(key) = state.reads.ahead.pop() else { break };
        let there = state.table.get(&key);
        if there.is_some_and(|entry| entry.fetch.is_some() || entry.covers(0..BLOCK_BYTES)) {
            continue;
        }
        let number = state.next_fetch();
        state.change(key, |entry| entry.fetch = Some(number));
        fetches.push(Fetch { key, number, cause: Cause::Ahead, cut: state.cut_of(key) });
    }
}

/// Makes a fetch for a page that a write-back needs whole; `None` if one is under way.
pub(crate) fn begin_fetch_for_write_back(state: &mut State, key: Key) -> Option<Fetch> {
    let number = state.next_fetch();
    let cut = state.cut_of(key);
    let entry = state.table.get_mut(&key)?;
    if entry.fetch.is_some() {
        return None;
    }
    entry.fetch = Some(number);
    state.reads.in_flight += 1;
    Some(Fetch { key, number, cause: Cause::WriteBack, cut })
}

/// Puts what the store answered into the table. Returns the pages that could not be read.
pub(crate) fn complete(state: &mut State, fetches: Vec<Fetch>, wants: Vec<Want>) -> Vec<(Key, StoreError)> {
    let mut failed = Vec::new();
    for (fetch, want) in fetches.into_iter().zip(wants) {
        state.reads.in_flight -= 1;
        let key = fetch.key;
        if state.table.get(&key).is_none_or(|entry| entry.fetch != Some(fetch.number)) {
            continue;
        }
        match want.found {
            Ok(found) => {
                let base = base(state, &fetch, found);
                let waiters = state.change(key, |entry| {
                    entry.become_whole(base);
                    std::mem::take(&mut entry.waiters)
                });
                state.reads.ready.extend(waiters);
            }
            Err(error) => {
                state.counters.fetch_errors += 1;
                fail(state, key, Some(&error).filter(|_| fetch.cause != Cause::Ahead));
                failed.push((key, error));
            }
        }
    }
    failed
}

/// The bytes that a page has without its delta.
fn base(state: &mut State, fetch: &Fetch, found: Found) -> Box<Page> {
    let known = fetch.cut.filter(|_| !is_planted(PlantedBug::CutForgotten));
    let cut = known.max(state.cut_of(fetch.key));
    match found {
        Found::Hole => {
            state.counters.holes += 1;
            Page::zeroed()
        }
        Found::Page { bytes, page_lsn } => {
            match fetch.cause {
                Cause::Read => state.counters.fetched_for_reads += 1,
                Cause::Write => state.counters.fetched_for_writes += 1,
                Cause::WriteBack => state.counters.fetched_for_write_back += 1,
                Cause::Ahead => state.counters.fetched_ahead += 1,
            }
            // The store has not heard of the cut yet.
            if cut.is_some_and(|cut| page_lsn < cut) { Page::zeroed() } else { bytes }
        }
    }
}

/// Tells the readers of a page that it cannot be read. What was written to it stays. Without an error they look again: a page that
/// was fetched ahead may have failed with a neighbour that was not asked for, since a device reads many as one.
fn fail(state: &mut State, key: Key, error: Option<&StoreError>) {
    let (waiters, empty) = state.change(key, |entry| {
        entry.fetch = None;
        (std::mem::take(&mut entry.waiters), entry.dirt.is_none() && entry.writing.is_none())
    });
    for id in waiters {
        if let Some(read) = state.reads.parked.get_mut(&id) {
            read.error = read.error.take().or(error.cloned());
            state.reads.ready.insert(id);
        }
    }
    if empty {
        state.remove(key);
    }
}

//! Reads that wait for pages, and the fetches that bring the pages. A read that misses waits here, and blocks
//! no other. Nothing here does I/O: the fetcher takes fetches, and hands in the results.

use crate::error::CacheError;
use crate::page::{Entry, FetchNo};
use crate::page_table::{Key, Pages, pages_of};
use crate::planted_bug::{PlantedBug, is_planted};
use crate::read::prefetch::Background;
use crate::read::read_ahead::{Ahead, Passage};
use crate::settings::FetchMode;
use crate::status::Counters;
use crate::task::{Completion, Completions};
use device::{BLOCK_BYTES, Lsn, ObjectId, Page, PageNo};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use store::{Found, Want};

/// Pages of one fetch step: enough to keep any device's queue full.
const FETCH_PAGES: usize = 64;

/// Pages of streams that one step looks at under the lock, if they are in memory.
const AHEAD_LOOKS: usize = 512;

/// Waiting reads, and pages that wait to be fetched.
#[derive(Default)]
pub(crate) struct Reads {
    parked: BTreeMap<u64, Parked>,
    next: u64,
    /// Pages that reads wait for, not fetched yet, roughly in the order of the store's addresses.
    queue: BTreeMap<Key, Cause>,
    /// Pages that reads wait for, and that range operations block: until these are stored, it is not known
    /// what the store will have of the pages.
    hidden: BTreeMap<Key, Cause>,
    /// Pages that streams will read. They come after pages for which a reader waits.
    ahead: Ahead,
    /// Partial pages that may be read. They come last.
    background: Background,
    /// Waiting reads to be retried.
    ready: BTreeSet<u64>,
    /// Number of pages that are being fetched.
    in_flight: u64,
}

struct Parked {
    object: ObjectId,
    /// What it lacks: (page, position in the page, range of the answer).
    lacks: Vec<(PageNo, usize, Range<usize>)>,
    asker: Asker,
    error: Option<CacheError>,
}

pub(crate) enum Asker {
    /// The answer so far. It is filled as pages arrive, so that a read needs no more memory than one page at
    /// a time.
    Reader(Vec<u8>, Completion<Vec<u8>>),
    Writer(Completion<()>),
}

/// Why a page is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Read,
    Write,
    /// It will be read. No reader gets an error: a read that waits for the page fetches it again.
    Ahead,
    /// A write left it partial. Errors as for `Ahead`.
    Background,
}

/// A page that is being fetched from the store.
pub(crate) struct Fetch {
    key: Key,
    number: FetchNo,
    cause: Cause,
    /// The newest punch that covered the page when the fetch began.
    cut: Option<Lsn>,
}

impl Fetch {
    /// Whether a read or write waits that gets an error.
    fn is_awaited(&self) -> bool {
        matches!(self.cause, Cause::Read | Cause::Write)
    }

    /// The request to the store.
    pub(crate) fn want(&self) -> Want {
        Want { object: self.key.object, page: self.key.page, found: Ok(Found::Hole) }
    }
}

impl Reads {
    pub(crate) fn parked(&self) -> u64 {
        self.parked.len() as u64
    }

    pub(crate) fn fetching(&self) -> u64 {
        self.queue.len() as u64 + self.hidden.len() as u64 + self.in_flight
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
            || !self.ready.is_empty()
            || !self.ahead.is_idle()
            || !self.background.is_idle()
    }

    /// Something happened to pages for which these reads wait: they must be retried.
    pub(crate) fn look_again(&mut self, reads: Vec<u64>) {
        self.ready.extend(reads);
    }

    /// A range operation is stored, or gone: the pages that it blocked are queued again.
    pub(crate) fn look_behind(&mut self) {
        self.queue.append(&mut self.hidden);
    }

    /// Fails the reads of blocked pages for which `why` has a reason.
    pub(crate) fn fail_hidden(
        &mut self,
        pages: &mut Pages,
        why: impl Fn(&Pages, &Key) -> Option<CacheError>,
    ) {
        let failed: Vec<(Key, CacheError)> =
            self.hidden.keys().filter_map(|key| Some((*key, why(pages, key)?))).collect();
        for (key, error) in failed {
            self.hidden.remove(&key);
            self.fail(pages, key, Some(&error));
        }
    }

    /// Notes a read for read-ahead. Returns whether a fetcher has work. All streams together are at most
    /// `bytes_max` ahead.
    pub(crate) fn passed(&mut self, read: &Passage, was_held: bool, bytes_max: u64) -> bool {
        if was_held {
            self.ahead.hit(read, bytes_max);
        } else {
            self.ahead.miss(read, bytes_max);
        }
        !self.ahead.is_idle()
    }

    /// Queues an object of `bytes` bytes, unless the queued objects would exceed `bytes_max`.
    pub(crate) fn fetch_ahead(&mut self, object: ObjectId, bytes: u64, bytes_max: u64) {
        self.ahead.whole(object, bytes, bytes_max);
    }

    /// Whether pages are to be prefetched.
    pub(crate) fn has_background(&self) -> bool {
        !self.background.is_idle()
    }

    /// Notes that a write left a page partial that was not in memory.
    pub(crate) fn left_partial(&mut self, mode: FetchMode, key: Key) {
        self.background.left_partial(mode, key);
    }

    /// Notes that pages became holes: they are not worth reading ahead.
    pub(crate) fn cut(&mut self, object: ObjectId, pages: Range<PageNo>) {
        self.ahead.cut(object, pages);
    }

    /// Ends read-ahead and prefetch.
    pub(crate) fn stop(&mut self) {
        self.ahead.stop();
        self.background.stop();
    }

    /// Answers a read if its bytes are in memory; otherwise it waits. Returns whether a fetcher has work.
    pub(crate) fn ask(
        &mut self,
        (object, offset, len): (ObjectId, u64, usize),
        asker: Asker,
        pages: &mut Pages,
        counters: &mut Counters,
        completions: &mut Completions,
    ) -> bool {
        let mut read = Parked { object, lacks: pages_of(offset, len).collect(), asker, error: None };
        collect(pages, &mut read);
        if read.lacks.is_empty() {
            counters.reads_at_once += 1;
            finish(read, completions);
            return false;
        }
        counters.reads_parked += 1;
        let id = self.next;
        self.next += 1;
        self.park(pages, id, read);
        true
    }

    fn park(&mut self, pages: &mut Pages, id: u64, read: Parked) {
        let cause = match read.asker {
            Asker::Reader(..) => Cause::Read,
            Asker::Writer(_) => Cause::Write,
        };
        for &(page, ..) in &read.lacks {
            let key = Key { object: read.object, page };
            let number = pages.next_fetch();
            let asked = pages.change(key, |entry| {
                entry.add_waiter(id);
                entry.begin_fetch(number)
            });
            if asked {
                self.queue.insert(key, cause);
            }
            if asked && cause == Cause::Read && pages.get(&key).is_some_and(Entry::is_dirty) {
                self.background.reader_waits(key.object);
            }
        }
        self.parked.insert(id, read);
    }

    /// Retries every read whose pages changed. Returns whether there was one.
    pub(crate) fn retry_ready(&mut self, pages: &mut Pages, completions: &mut Completions) -> bool {
        let mut any = false;
        while let Some(id) = self.ready.pop_first() {
            let Some(mut read) = self.parked.remove(&id) else { continue };
            any = true;
            if let Some(error) = read.error.take() {
                match read.asker {
                    Asker::Reader(_, then) => completions.push(move || then(Err(error))),
                    Asker::Writer(then) => completions.push(move || then(Err(error))),
                }
                continue;
            }
            collect(pages, &mut read);
            if read.lacks.is_empty() { finish(read, completions) } else { self.park(pages, id, read) }
        }
        any
    }

    /// Takes pages off the queues, to be fetched.
    pub(crate) fn begin_fetches(&mut self, pages: &mut Pages) -> Vec<Fetch> {
        let mut fetches = Vec::new();
        while fetches.len() < FETCH_PAGES {
            let Some((key, cause)) = self.queue.pop_first() else { break };
            // Overwritten in full, punched or deleted meanwhile: not needed any more.
            let Some(number) = pages.get(&key).and_then(Entry::fetch) else { continue };
            if pages.transfers().hiding(key.object, key.page).is_some() {
                self.hidden.insert(key, cause);
                continue;
            }
            fetches.push(Fetch { key, number, cause, cut: pages.cut_of(key) });
        }
        if fetches.is_empty() {
            self.begin_fetches_ahead(pages, &mut fetches);
        }
        if fetches.is_empty() {
            self.begin_fetches_in_background(pages, &mut fetches);
        }
        self.in_flight += fetches.len() as u64;
        fetches
    }

    /// Takes pages that streams will read, if they are neither in memory nor being fetched.
    fn begin_fetches_ahead(&mut self, pages: &mut Pages, fetches: &mut Vec<Fetch>) {
        for _ in 0..AHEAD_LOOKS {
            if fetches.len() == FETCH_PAGES {
                break;
            }
            let Some(key) = self.ahead.pop() else { break };
            let there = pages.get(&key);
            if there.is_some_and(|entry| entry.fetch().is_some() || entry.covers(0..BLOCK_BYTES))
                || pages.transfers().hiding(key.object, key.page).is_some()
            {
                continue;
            }
            let number = pages.next_fetch();
            pages.change(key, |entry| entry.begin_fetch(number));
            fetches.push(Fetch { key, number, cause: Cause::Ahead, cut: pages.cut_of(key) });
        }
    }

    /// Takes pages that are still partial and not being fetched.
    fn begin_fetches_in_background(&mut self, pages: &mut Pages, fetches: &mut Vec<Fetch>) {
        while fetches.len() < FETCH_PAGES {
            let Some(key) = self.background.pop() else { break };
            let is_wanted = |entry: &Entry| entry.fetch().is_none() && !entry.covers(0..BLOCK_BYTES);
            if !pages.get(&key).is_some_and(is_wanted)
                || pages.transfers().hiding(key.object, key.page).is_some()
            {
                continue;
            }
            let number = pages.next_fetch();
            pages.change(key, |entry| entry.begin_fetch(number));
            fetches.push(Fetch { key, number, cause: Cause::Background, cut: pages.cut_of(key) });
        }
    }

    /// Puts the store's answers into the table.
    pub(crate) fn complete(
        &mut self,
        pages: &mut Pages,
        counters: &mut Counters,
        fetches: Vec<Fetch>,
        wants: Vec<Want>,
    ) {
        for (fetch, want) in fetches.into_iter().zip(wants) {
            self.in_flight -= 1;
            let key = fetch.key;
            if pages.get(&key).is_none_or(|entry| entry.fetch() != Some(fetch.number)) {
                continue;
            }
            match want.found {
                Ok(found) => {
                    let base = base(pages, counters, &fetch, found);
                    let waiters = pages.change(key, |entry| {
                        entry.become_whole(base);
                        entry.take_waiters()
                    });
                    self.ready.extend(waiters);
                }
                Err(error) => {
                    counters.fetch_errors += 1;
                    let told = CacheError::from(error);
                    self.fail(pages, key, Some(&told).filter(|_| fetch.is_awaited()));
                }
            }
        }
    }

    /// Fails the reads that wait for a page. What was written to the page stays. Without an error the reads
    /// are retried: a page that was read ahead may have failed with a neighbour that no read asked for, since
    /// a device reads many as one.
    fn fail(&mut self, pages: &mut Pages, key: Key, error: Option<&CacheError>) {
        let (waiters, empty) = pages.change(key, |entry| {
            entry.end_fetch();
            (entry.take_waiters(), entry.group().is_none())
        });
        for id in waiters {
            if let Some(read) = self.parked.get_mut(&id) {
                read.error = read.error.take().or(error.cloned());
                self.ready.insert(id);
            }
        }
        if empty {
            pages.remove(key);
        }
    }
}

/// Copies what is in memory to a read.
fn collect(pages: &mut Pages, read: &mut Parked) {
    let Parked { object, lacks, asker, .. } = read;
    lacks.retain(|(page, start, range)| {
        let key = Key { object: *object, page: *page };
        match asker {
            Asker::Reader(bytes, _) => {
                let Some(entry) = pages.read(&key, *start..*start + range.len()) else { return true };
                entry.read(*start, &mut bytes[range.clone()]);
                false
            }
            // A page that is overwritten in full is not waited for.
            Asker::Writer(_) => {
                range.len() < BLOCK_BYTES && pages.get(&key).is_none_or(|entry| !entry.is_whole())
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

/// The bytes of a page without its delta.
fn base(pages: &Pages, counters: &mut Counters, fetch: &Fetch, found: Found) -> Box<Page> {
    let known = fetch.cut.filter(|_| !is_planted(PlantedBug::CutForgotten));
    let cut = known.max(pages.cut_of(fetch.key));
    match found {
        Found::Hole => {
            counters.holes += 1;
            Page::zeroed()
        }
        Found::Page { bytes, page_lsn } => {
            match fetch.cause {
                Cause::Read => counters.fetched_for_reads += 1,
                Cause::Write => counters.fetched_for_writes += 1,
                Cause::Ahead => counters.fetched_ahead += 1,
                Cause::Background => counters.fetched_in_background += 1,
            }
            // The store has not heard of the punch yet.
            if cut.is_some_and(|cut| page_lsn < cut) { Page::zeroed() } else { bytes }
        }
    }
}

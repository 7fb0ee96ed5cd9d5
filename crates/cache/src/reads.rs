//! Reads that wait for pages, and the fetches that bring them. A read that misses parks; it holds up no other. Nothing here does I/O:
//! what is to be read is handed out, and what was read is handed in.

use crate::ahead::{Ahead, Passage};
use crate::background::Background;
use crate::error::CacheError;
use crate::page::{Entry, FetchNo};
use crate::pages::{Key, Pages, pages_of};
use crate::plant::{PlantedBug, is_planted};
use crate::settings::FetchMode;
use crate::status::Counters;
use crate::task::{Completion, Completions};
use device::{BLOCK_BYTES, Lsn, ObjectId, Page, PageNo};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use store::{PageRead, StoredPage};

/// Pages of one fetch step: enough to keep any device's queue full.
const FETCH_PAGES: usize = 64;

/// Pages of streams that one step looks at, under the lock, where they are in memory.
const AHEAD_LOOKS: usize = 512;

/// Reads that wait, and pages that wait to be fetched.
#[derive(Default)]
pub(crate) struct Reads {
    parked: BTreeMap<u64, Parked>,
    next: u64,
    /// Wanted and not yet asked for, in the order of the store's addresses, roughly.
    queue: BTreeMap<Key, Cause>,
    /// Wanted, and hidden by clones or moves: until these are stored nobody knows what the store has of them.
    hidden: BTreeMap<Key, Cause>,
    /// What streams will read. It comes after what a reader waits for.
    ahead: Ahead,
    /// What may be read of what was written to. It comes after that.
    background: Background,
    /// Parked reads that may be able to go on.
    ready: BTreeSet<u64>,
    /// Pages of which a fetch is under way.
    in_flight: u64,
}

struct Parked {
    object: ObjectId,
    /// What it still lacks: (page, position in the page, range of the answer).
    lacks: Vec<(PageNo, usize, Range<usize>)>,
    asker: Asker,
    error: Option<CacheError>,
}

pub(crate) enum Asker {
    /// The answer so far. It is filled page by page, as pages arrive, so that a read needs no more memory than one
    /// page at a time.
    Reader(Vec<u8>, Completion<Vec<u8>>),
    Writer(Completion<()>),
}

/// Why a page is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Cause {
    Read,
    Write,
    /// It will be read. An error is told to no reader: a read that waits for it fetches it again.
    Ahead,
    /// It was written to in part. As above.
    Background,
}

/// One page on its way from the store.
pub(crate) struct Fetch {
    key: Key,
    number: FetchNo,
    cause: Cause,
    /// The newest cut that covered the page when the fetch began.
    cut: Option<Lsn>,
}

impl Fetch {
    /// Whether somebody waits who is told of an error.
    fn is_awaited(&self) -> bool {
        matches!(self.cause, Cause::Read | Cause::Write)
    }

    /// What the store is asked for.
    pub(crate) fn want(&self) -> PageRead {
        PageRead { object: self.key.object, page: self.key.page, result: Ok(StoredPage::Hole) }
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

    /// Something happened to pages that these reads wait for: they must look again.
    pub(crate) fn look_again(&mut self, reads: Vec<u64>) {
        self.ready.extend(reads);
    }

    /// A clone or a move is stored, or is none any more.
    pub(crate) fn look_behind(&mut self) {
        self.queue.append(&mut self.hidden);
    }

    /// Tells the readers of pages that are hidden for good, as far as `why` has a reason.
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

    /// Notes a read for the sake of what comes behind it; true if there is work for a fetcher. Streams together are at most
    /// `bytes_max` ahead.
    pub(crate) fn passed(&mut self, read: &Passage, was_held: bool, bytes_max: u64) -> bool {
        match was_held {
            true => drop(self.ahead.hit(read, bytes_max)),
            false => self.ahead.miss(read, bytes_max),
        }
        !self.ahead.is_idle()
    }

    /// Will fetch an object of so many bytes, unless as much as may be ahead is queued already.
    pub(crate) fn fetch_ahead(&mut self, object: ObjectId, bytes: u64, bytes_max: u64) {
        self.ahead.whole(object, bytes, bytes_max);
    }

    /// Whether some is to be fetched for that.
    pub(crate) fn has_background(&self) -> bool {
        !self.background.is_idle()
    }

    /// A write has left a page partial that was not in memory.
    pub(crate) fn left_partial(&mut self, mode: FetchMode, key: Key) {
        self.background.left_partial(mode, key);
    }

    /// Pages became holes: they are not worth fetching ahead.
    pub(crate) fn cut(&mut self, object: ObjectId, pages: Range<PageNo>) {
        self.ahead.cut(object, pages);
    }

    /// Fetches nothing ahead any more.
    pub(crate) fn stop(&mut self) {
        self.ahead.stop();
        self.background.stop();
    }

    /// Answers a read of bytes that are in memory, or parks it until they are; true if there is work for a fetcher.
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

    /// Looks again at every read that something happened for; true if there was one.
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
            match read.lacks.is_empty() {
                true => finish(read, completions),
                false => self.park(pages, id, read),
            }
        }
        any
    }

    /// Takes pages off the queue, to be fetched.
    pub(crate) fn begin_fetches(&mut self, pages: &mut Pages) -> Vec<Fetch> {
        let mut fetches = Vec::new();
        while fetches.len() < FETCH_PAGES {
            let Some((key, cause)) = self.queue.pop_first() else { break };
            // Overwritten in full, cut or deleted meanwhile: it is not needed any more.
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

    /// Takes off pages that streams will read and that are neither in memory nor on their way.
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

    /// Takes off pages that are still partial and not on their way.
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

    /// Puts what the store answered into the table.
    pub(crate) fn complete(
        &mut self,
        pages: &mut Pages,
        counters: &mut Counters,
        fetches: Vec<Fetch>,
        wants: Vec<PageRead>,
    ) {
        for (fetch, want) in fetches.into_iter().zip(wants) {
            self.in_flight -= 1;
            let key = fetch.key;
            if pages.get(&key).is_none_or(|entry| entry.fetch() != Some(fetch.number)) {
                continue;
            }
            match want.result {
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

    /// Tells the readers of a page that it cannot be read. What was written to it stays. Without an error they look again: a page that
    /// was fetched ahead may have failed with a neighbour that was not asked for, since a device reads many as one.
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

/// Takes what is in memory.
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

/// The bytes that a page has without its delta.
fn base(pages: &Pages, counters: &mut Counters, fetch: &Fetch, found: StoredPage) -> Box<Page> {
    let known = fetch.cut.filter(|_| !is_planted(PlantedBug::CutForgotten));
    let cut = known.max(pages.cut_of(fetch.key));
    match found {
        StoredPage::Hole => {
            counters.holes += 1;
            Page::zeroed()
        }
        StoredPage::Page { bytes, page_lsn } => {
            match fetch.cause {
                Cause::Read => counters.fetched_for_reads += 1,
                Cause::Write => counters.fetched_for_writes += 1,
                Cause::Ahead => counters.fetched_ahead += 1,
                Cause::Background => counters.fetched_in_background += 1,
            }
            // The store has not heard of the cut yet.
            if cut.is_some_and(|cut| page_lsn < cut) { Page::zeroed() } else { bytes }
        }
    }
}

//! Reads that wait for pages, and the fetches that bring the pages. A read that misses waits here, and blocks
//! no other. Nothing here does I/O: the fetcher takes fetches, and hands in the results.

use crate::error::CacheError;
use crate::page::{CachedPage, FetchNumber};
use crate::page_table::{PageKey, PageTable, pages_of};
use crate::planted_bug::{CacheBug, is_planted};
use crate::read::prefetch::PrefetchQueue;
use crate::read::read_ahead::{ReadAhead, ReadSpan};
use crate::record_applier::LazyNow;
use crate::request_wait::{RequestWait, TaskLoan, WaitLog};
use crate::settings::FetchMode;
use crate::status::CacheCounters;
use crate::task::{CacheCompletion, DeferredCompletions};
use device::{BLOCK_BYTES, Lsn, ObjectId, Page, PageNo};
use request::RequestClass;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use store::{PageRead, StoredPage};

/// Pages of one fetch step: enough to keep any device's queue full.
const FETCH_PAGES: usize = 64;

/// Pages of one fetch step for background reads while a critical one waits for the device: a disk is soon free
/// for the next.
const BACKGROUND_FETCH_PAGES: usize = 8;

/// Fetch steps for critical reads after which one for background reads follows: they must come to an end, for
/// the kernel locks their pages.
const CRITICAL_FETCHES_IN_A_ROW: u32 = 8;

/// Pages of streams that one step looks at under the lock, if they are in memory.
const READ_AHEAD_LOOKS: usize = 512;

/// Waiting reads, and pages that wait to be fetched.
#[derive(Default)]
pub(crate) struct WaitingReads {
    waiting: BTreeMap<u64, WaitingRead>,
    next: u64,
    /// Pages that critical reads wait for, not fetched yet, roughly in the order of the store's addresses.
    queue: BTreeMap<PageKey, FetchCause>,
    /// Those that only background reads wait for. They come after the others.
    background: BTreeMap<PageKey, FetchCause>,
    /// Pages that reads wait for, and that range operations block: until these are stored, it is not known
    /// what the store will have of the pages.
    blocked: BTreeMap<PageKey, (FetchCause, RequestClass)>,
    /// Pages that streams will read. They come after pages for which a reader waits.
    read_ahead: ReadAhead,
    /// Partial pages that may be read. They come last.
    prefetch: PrefetchQueue,
    /// Waiting reads to be retried.
    ready: BTreeSet<u64>,
    /// Number of pages that are being fetched.
    in_flight: u64,
    /// The number of these for which a critical read waits.
    critical_in_flight: u64,
    /// Fetch steps for critical reads since one for background reads, while some wait.
    critical_in_a_row: u32,
}

struct WaitingRead {
    object: ObjectId,
    /// What it lacks: (page, position in the page, range of the answer).
    missing: Vec<(PageNo, usize, Range<usize>)>,
    purpose: ReadPurpose,
    wait: RequestWait,
    error: Option<CacheError>,
}

pub(crate) enum ReadPurpose {
    /// The answer so far. It is filled as pages arrive, so that a read needs no more memory than one page at
    /// a time.
    Reader(Vec<u8>, CacheCompletion<Vec<u8>>),
    Writer(CacheCompletion<()>),
}

/// Why a page is fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FetchCause {
    Read,
    Write,
    /// It will be read. No reader gets an error: a read that waits for the page fetches it again.
    Ahead,
    /// A write left it partial. Errors as for `Ahead`.
    Background,
}

/// A page that is being fetched from the store.
pub(crate) struct PageFetch {
    key: PageKey,
    number: FetchNumber,
    cause: FetchCause,
    class: RequestClass,
    /// The newest punch that covered the page when the fetch began.
    punch: Option<Lsn>,
}

impl PageFetch {
    /// Whether a read or write waits that gets an error.
    fn is_awaited(&self) -> bool {
        matches!(self.cause, FetchCause::Read | FetchCause::Write)
    }

    /// The request to the store.
    pub(crate) fn want(&self) -> PageRead {
        PageRead { object: self.key.object, page: self.key.page, result: Ok(StoredPage::Hole) }
    }
}

impl WaitingReads {
    pub(crate) fn waiting_count(&self) -> u64 {
        self.waiting.len() as u64
    }

    pub(crate) fn fetching_count(&self) -> u64 {
        (self.queue.len() + self.background.len() + self.blocked.len()) as u64 + self.in_flight
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.is_empty()
            || !self.background.is_empty()
            || !self.ready.is_empty()
            || !self.read_ahead.is_idle()
            || !self.prefetch.is_idle()
    }

    /// Something happened to pages for which these reads wait: they must be retried.
    pub(crate) fn retry(&mut self, reads: Vec<u64>) {
        self.ready.extend(reads);
    }

    /// A range operation is stored, or gone: the pages that it blocked are queued again.
    pub(crate) fn unblock(&mut self) {
        for (key, (cause, class)) in std::mem::take(&mut self.blocked) {
            self.queue_of(class).insert(key, cause);
        }
    }

    /// Fails the reads of blocked pages for which `why` has a reason.
    pub(crate) fn fail_blocked(
        &mut self,
        pages: &mut PageTable,
        why: impl Fn(&PageTable, &PageKey) -> Option<CacheError>,
    ) {
        let failed: Vec<(PageKey, CacheError)> =
            self.blocked.keys().filter_map(|key| Some((*key, why(pages, key)?))).collect();
        for (key, error) in failed {
            self.blocked.remove(&key);
            self.fail(pages, key, Some(&error));
        }
    }

    /// Notes a read for read-ahead. Returns whether a fetcher has work. All streams together are at most
    /// `bytes_max` ahead.
    pub(crate) fn note_read(&mut self, read: &ReadSpan, was_held: bool, bytes_max: u64) -> bool {
        if was_held {
            self.read_ahead.hit(read, bytes_max);
        } else {
            self.read_ahead.miss(read, bytes_max);
        }
        !self.read_ahead.is_idle()
    }

    /// Queues an object of `bytes` bytes, unless the queued objects would exceed `bytes_max`.
    pub(crate) fn fetch_ahead(&mut self, object: ObjectId, bytes: u64, bytes_max: u64) {
        self.read_ahead.queue_object(object, bytes, bytes_max);
    }

    /// Whether pages are to be prefetched.
    pub(crate) fn has_prefetches(&self) -> bool {
        !self.prefetch.is_idle()
    }

    /// Notes that a write left a page partial that was not in memory.
    pub(crate) fn left_partial(&mut self, mode: FetchMode, key: PageKey) {
        self.prefetch.left_partial(mode, key);
    }

    /// Notes that pages became holes: they are not worth reading ahead.
    pub(crate) fn note_punch(&mut self, object: ObjectId, pages: Range<PageNo>) {
        self.read_ahead.note_punch(object, pages);
    }

    /// Ends read-ahead and prefetch.
    pub(crate) fn stop(&mut self) {
        self.read_ahead.stop();
        self.prefetch.stop();
    }

    /// Answers a read if its bytes are in memory; otherwise it waits. Returns whether a fetcher has work.
    pub(crate) fn read_or_wait(
        &mut self,
        (object, offset, len): (ObjectId, u64, usize),
        purpose: ReadPurpose,
        wait: RequestWait,
        pages: &mut PageTable,
        counters: &mut CacheCounters,
        completions: &mut DeferredCompletions,
    ) -> bool {
        let missing = pages_of(offset, len).collect();
        let mut read = WaitingRead { object, missing, purpose, wait, error: None };
        collect_bytes(pages, &mut read);
        if read.missing.is_empty() {
            counters.reads_at_once += 1;
            complete_read(read, completions);
            return false;
        }
        counters.reads_parked += 1;
        let id = self.next;
        self.next += 1;
        self.park(pages, id, read);
        true
    }

    fn park(&mut self, pages: &mut PageTable, id: u64, read: WaitingRead) {
        let cause = match read.purpose {
            ReadPurpose::Reader(..) => FetchCause::Read,
            ReadPurpose::Writer(_) => FetchCause::Write,
        };
        for &(page, ..) in &read.missing {
            let key = PageKey { object: read.object, page };
            let number = pages.next_fetch();
            let asked = pages.change(key, |entry| {
                entry.add_waiter(id);
                entry.begin_fetch(number)
            });
            if asked {
                self.queue_of(read.wait.class()).insert(key, cause);
            } else if read.wait.class() == RequestClass::Critical {
                self.make_page_critical(key);
            }
            if asked && cause == FetchCause::Read && pages.get(&key).is_some_and(CachedPage::is_dirty) {
                self.prefetch.add_credit(key.object);
            }
        }
        self.waiting.insert(id, read);
    }

    /// Makes the waiting reads of a task critical. Returns whether some are not being fetched yet.
    pub(crate) fn lend(&mut self, loan: TaskLoan) -> bool {
        let before = self.queue.len();
        let mut wanted = Vec::new();
        for read in self.waiting.values_mut() {
            if read.wait.lend(loan) {
                wanted.extend(read.missing.iter().map(|&(page, ..)| PageKey { object: read.object, page }));
            }
        }
        wanted.into_iter().for_each(|key| self.make_page_critical(key));
        self.queue.len() > before
    }

    /// A critical read waits for a page that others asked for.
    fn make_page_critical(&mut self, key: PageKey) {
        if let Some(cause) = self.background.remove(&key) {
            self.queue.insert(key, cause);
        }
        if let Some((_, class)) = self.blocked.get_mut(&key) {
            *class = RequestClass::Critical;
        }
    }

    fn queue_of(&mut self, class: RequestClass) -> &mut BTreeMap<PageKey, FetchCause> {
        match class {
            RequestClass::Critical => &mut self.queue,
            RequestClass::Background => &mut self.background,
        }
    }

    /// The waits of the waiting reads.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &RequestWait> {
        self.waiting.values().map(|read| &read.wait)
    }

    /// Retries every read whose pages changed. Returns whether there was one.
    pub(crate) fn retry_ready(
        &mut self,
        pages: &mut PageTable,
        waits: &mut WaitLog,
        now: &LazyNow<'_>,
        completions: &mut DeferredCompletions,
    ) -> bool {
        let mut any = false;
        while let Some(id) = self.ready.pop_first() {
            let Some(mut read) = self.waiting.remove(&id) else { continue };
            any = true;
            if let Some(error) = read.error.take() {
                waits.note_end(&read.wait, now.get());
                match read.purpose {
                    ReadPurpose::Reader(_, then) => completions.push(move || then(Err(error))),
                    ReadPurpose::Writer(then) => completions.push(move || then(Err(error))),
                }
                continue;
            }
            collect_bytes(pages, &mut read);
            if read.missing.is_empty() {
                waits.note_end(&read.wait, now.get());
                complete_read(read, completions)
            } else {
                self.park(pages, id, read)
            }
        }
        any
    }

    /// Takes pages off the queues, to be fetched.
    pub(crate) fn begin_fetches(&mut self, pages: &mut PageTable) -> Vec<PageFetch> {
        let mut fetches = Vec::new();
        let is_background_s_turn = self.critical_in_a_row >= CRITICAL_FETCHES_IN_A_ROW;
        if !is_background_s_turn {
            self.begin_awaited_fetches(RequestClass::Critical, FETCH_PAGES, pages, &mut fetches);
            self.critical_in_flight += fetches.len() as u64;
        }
        if !fetches.is_empty() && !self.background.is_empty() {
            self.critical_in_a_row += 1;
        }
        if fetches.is_empty() {
            self.critical_in_a_row = 0;
            let is_critical_waiting = self.critical_in_flight > 0 || !self.queue.is_empty();
            let most = if is_critical_waiting { BACKGROUND_FETCH_PAGES } else { FETCH_PAGES };
            self.begin_awaited_fetches(RequestClass::Background, most, pages, &mut fetches);
        }
        if fetches.is_empty() {
            self.begin_awaited_fetches(RequestClass::Critical, FETCH_PAGES, pages, &mut fetches);
            self.critical_in_flight += fetches.len() as u64;
        }
        if fetches.is_empty() {
            self.begin_fetches_ahead(pages, &mut fetches);
        }
        if fetches.is_empty() {
            self.begin_prefetches(pages, &mut fetches);
        }
        self.in_flight += fetches.len() as u64;
        fetches
    }

    /// Takes pages off a queue of pages that reads wait for.
    fn begin_awaited_fetches(
        &mut self,
        class: RequestClass,
        most: usize,
        pages: &mut PageTable,
        fetches: &mut Vec<PageFetch>,
    ) {
        while fetches.len() < most {
            let Some((key, cause)) = self.queue_of(class).pop_first() else { break };
            // Overwritten in full, punched or deleted meanwhile: not needed any more.
            let Some(number) = pages.get(&key).and_then(CachedPage::fetch) else { continue };
            if pages.range_ops().read_blocked_by(key.object, key.page).is_some() {
                self.blocked.insert(key, (cause, class));
                continue;
            }
            fetches.push(PageFetch { key, number, cause, class, punch: pages.newest_punch_of(key) });
        }
    }

    /// Takes pages that streams will read, if they are neither in memory nor being fetched.
    fn begin_fetches_ahead(&mut self, pages: &mut PageTable, fetches: &mut Vec<PageFetch>) {
        for _ in 0..READ_AHEAD_LOOKS {
            if fetches.len() == FETCH_PAGES {
                break;
            }
            let Some(key) = self.read_ahead.pop() else { break };
            let there = pages.get(&key);
            if there.is_some_and(|entry| entry.fetch().is_some() || entry.covers(0..BLOCK_BYTES))
                || pages.range_ops().read_blocked_by(key.object, key.page).is_some()
            {
                continue;
            }
            let number = pages.next_fetch();
            pages.change(key, |entry| entry.begin_fetch(number));
            fetches.push(PageFetch {
                key,
                number,
                cause: FetchCause::Ahead,
                class: RequestClass::Background,
                punch: pages.newest_punch_of(key),
            });
        }
    }

    /// Takes pages that are still partial and not being fetched.
    fn begin_prefetches(&mut self, pages: &mut PageTable, fetches: &mut Vec<PageFetch>) {
        while fetches.len() < FETCH_PAGES {
            let Some(key) = self.prefetch.pop() else { break };
            let is_wanted = |entry: &CachedPage| entry.fetch().is_none() && !entry.covers(0..BLOCK_BYTES);
            if !pages.get(&key).is_some_and(is_wanted)
                || pages.range_ops().read_blocked_by(key.object, key.page).is_some()
            {
                continue;
            }
            let number = pages.next_fetch();
            pages.change(key, |entry| entry.begin_fetch(number));
            fetches.push(PageFetch {
                key,
                number,
                cause: FetchCause::Background,
                class: RequestClass::Background,
                punch: pages.newest_punch_of(key),
            });
        }
    }

    /// Puts the store's answers into the table.
    pub(crate) fn complete(
        &mut self,
        pages: &mut PageTable,
        counters: &mut CacheCounters,
        fetches: Vec<PageFetch>,
        wants: Vec<PageRead>,
    ) {
        for (fetch, want) in fetches.into_iter().zip(wants) {
            self.in_flight -= 1;
            self.critical_in_flight -= u64::from(fetch.class == RequestClass::Critical);
            let key = fetch.key;
            if pages.get(&key).is_none_or(|entry| entry.fetch() != Some(fetch.number)) {
                continue;
            }
            match want.result {
                Ok(found) => {
                    let base = base_page(pages, counters, &fetch, found);
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
    fn fail(&mut self, pages: &mut PageTable, key: PageKey, error: Option<&CacheError>) {
        let (waiters, empty) = pages.change(key, |entry| {
            entry.end_fetch();
            (entry.take_waiters(), entry.oldest_group().is_none())
        });
        for id in waiters {
            if let Some(read) = self.waiting.get_mut(&id) {
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
fn collect_bytes(pages: &mut PageTable, read: &mut WaitingRead) {
    let WaitingRead { object, missing, purpose, .. } = read;
    missing.retain(|(page, start, range)| {
        let key = PageKey { object: *object, page: *page };
        match purpose {
            ReadPurpose::Reader(bytes, _) => {
                let Some(entry) = pages.read(&key, *start..*start + range.len()) else { return true };
                entry.read(*start, &mut bytes[range.clone()]);
                false
            }
            // A page that is overwritten in full is not waited for.
            ReadPurpose::Writer(_) => {
                range.len() < BLOCK_BYTES && pages.get(&key).is_none_or(|entry| !entry.is_whole())
            }
        }
    });
}

/// Answers a read that lacks nothing.
fn complete_read(read: WaitingRead, completions: &mut DeferredCompletions) {
    match read.purpose {
        ReadPurpose::Writer(then) => completions.push(move || then(Ok(()))),
        ReadPurpose::Reader(bytes, then) => completions.push(move || then(Ok(bytes))),
    }
}

/// The bytes of a page without its delta.
fn base_page(
    pages: &PageTable,
    counters: &mut CacheCounters,
    fetch: &PageFetch,
    found: StoredPage,
) -> Box<Page> {
    let known = fetch.punch.filter(|_| !is_planted(CacheBug::CutForgotten));
    let punch = known.max(pages.newest_punch_of(fetch.key));
    match found {
        StoredPage::Hole => {
            counters.holes += 1;
            Page::zeroed()
        }
        StoredPage::Page { bytes, page_lsn } => {
            match fetch.cause {
                FetchCause::Read => counters.fetched_for_reads += 1,
                FetchCause::Write => counters.fetched_for_writes += 1,
                FetchCause::Ahead => counters.fetched_ahead += 1,
                FetchCause::Background => counters.fetched_in_background += 1,
            }
            // The store has not heard of the punch yet.
            if punch.is_some_and(|punch| page_lsn < punch) { Page::zeroed() } else { bytes }
        }
    }
}

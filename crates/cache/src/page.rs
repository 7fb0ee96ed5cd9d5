//! One page in memory, and its life.
//!
//! A page is *dirty* if it has changes that the store lacks. It is *whole* if all its bytes are in memory,
//! else *partial*: then memory has a delta, only the bytes that were written. Its *base* is what the store
//! has of it.
//!
//! | state        | `body`                     | `dirty` | `writing` | `fetch` |
//! | ------------ | -------------------------- | ------- | --------- | ------- |
//! | absent       | no entry                   |         |           |         |
//! | partial      | `Patch`                    | yes     | no        | no      |
//! | fetching     | `Patch`, empty if unwritten| maybe   | maybe     | yes     |
//! | clean        | `Whole`                    | no      | no        | no      |
//! | dirty        | `Whole`                    | yes     | no        | no      |
//! | writing back | either                     | maybe   | yes       | maybe   |
//!
//! ```text
//!          write of a part           write of the rest, or fetched              fetched
//!  absent ─────────────────► partial ─────────────────────────────► dirty   clean ◄──── fetching ◄── absent
//!                               │                                   │   ▲     │  ▲
//!                               └──────────► writing back ◄─────────┘   └─────┘  │
//!                                                 │                      write   │
//!                                                 ├─ stored: clean if whole, else removed
//!                                                 └─ failed: partial or dirty again
//! ```
//!
//! | transition | made by | method |
//! | --- | --- | --- |
//! | to partial or dirty | a client's write, or recovery | [`write`](PageEntry::write), [`mark_dirty`](PageEntry::mark_dirty) |
//! | to fetching | a read that waits, read-ahead, prefetch | [`begin_fetch`](PageEntry::begin_fetch) |
//! | fetched | a fetch worker; a write of the whole page ends the fetch | [`become_whole`](PageEntry::become_whole) |
//! | to writing back, and from there | the thread with the write-back lock | [`begin_write_back`](PageEntry::begin_write_back), [`end_write_back`](PageEntry::end_write_back), [`abandon_write_back`](PageEntry::abandon_write_back) |
//! | to absent | eviction, of clean pages; a punch, of all | `PageTable::evict`, [`discard`](PageEntry::discard) |
//!
//! A delta stays in memory while it is written back, with what is written meanwhile; and afterwards if a read
//! waits for the page.

use crate::delta::Delta;
use crate::planted_bug::{PlantedBug, is_planted};
use buffer::GroupNo;
use device::{BLOCK_BYTES, Lsn, Page, SharedPage};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Memory that a page takes beside its bytes: half of it the entry, half its places in the table and in two
/// indexes.
pub(crate) const ENTRY_BYTES: usize = 256;

/// Number of a fetch. A fetch delivers nothing if the entry no longer has its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchNo(pub(crate) u64);

/// A page in memory. Owned by `PageTable`, changed under the state's lock only. After a crash: the changes
/// that were durable in the buffer are rebuilt from there.
#[derive(Debug)]
pub(crate) struct Entry {
    body: Body,
    /// Changes that no write-back has taken.
    dirt: Option<Dirt>,
    /// Boxed: few pages are being written, fetched or waited for at a time.
    on_its_way: Option<Box<OnItsWay>>,
    /// The page's newest change when it was put into the queue of dirty pages. 0: it is not in the queue.
    queued: Lsn,
    /// Used since the eviction queue came by.
    used: bool,
}

const _: () = assert!(size_of::<Entry>() <= 128);

/// Write-back, fetch and waiters of a page.
#[derive(Debug, Default)]
struct OnItsWay {
    /// Changes that a write-back is writing.
    writing: Option<Dirt>,
    /// The fetch that is queued or in progress.
    fetch: Option<FetchNo>,
    /// Reads that wait for this page.
    waiters: Vec<u64>,
}

impl OnItsWay {
    fn is_nothing(&self) -> bool {
        self.writing.is_none() && self.fetch.is_none() && self.waiters.is_empty()
    }
}

#[derive(Debug)]
pub(crate) enum Body {
    /// Only the bytes that were written: the base is not in memory.
    Patch(Delta),
    /// All bytes. Shared with a write-back while it runs.
    Whole(SharedPage),
}

/// Changes that the store lacks.
#[derive(Debug, Clone)]
pub(crate) struct Dirt {
    /// The newest change.
    pub(crate) newest: Lsn,
    /// The oldest commit group that has one of the changes.
    pub(crate) group: GroupNo,
    /// The group of the newest change: how lately the page was written.
    pub(crate) latest: GroupNo,
    /// Which bytes changed. Only kept for a whole page: a delta has its own ranges.
    pub(crate) ranges: Ranges,
    /// When the first change was made, in nanoseconds of the clock.
    since: u64,
    /// The store counts space for the page. Ends early if a rescue has saved the page.
    pub(crate) reserved: bool,
    /// Recovered from the buffer, and the store was not asked yet whether it has all of the changes.
    pub(crate) recovered: bool,
    /// The page bypassed the buffer last: the buffer lacks its bytes, and what the buffer has of the page is
    /// older.
    unlogged: bool,
}

impl Dirt {
    /// The first change of a page, for which the store counts space.
    pub(crate) fn first(newest: Lsn, group: GroupNo, since: Duration, recovered: bool) -> Dirt {
        let since = since.as_nanos() as u64;
        Dirt {
            newest,
            group,
            latest: group,
            ranges: Default::default(),
            since,
            reserved: true,
            recovered,
            unlogged: false,
        }
    }

    /// When the first change was made.
    pub(crate) fn since(&self) -> Duration {
        Duration::from_nanos(self.since)
    }
}

/// Which positions of a page in memory are newer than the store: a delta whose bytes are in the page itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Ranges {
    #[default]
    None,
    One((u16, u16)),
    /// Sorted, with gaps between them. Boxed: few pages have that many.
    Several(Box<Several>),
}

type Several = SmallVec<[(u16, u16); 4]>;

impl Ranges {
    /// The positions that a delta changes.
    pub(crate) fn of(delta: &Delta) -> Ranges {
        let mut ranges = Ranges::default();
        delta.pieces().for_each(|piece| ranges.insert(piece.range()));
        ranges
    }

    /// Adds `range`, merged with the ranges that it touches.
    pub(crate) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let mut start = range.start as u16;
        let mut end = range.end as u16;
        let all = self.as_slice();
        let first = all.partition_point(|&(_, old_end)| old_end < start);
        let after = all.partition_point(|&(old_start, _)| old_start <= end);
        if after == first + 1 && all[first].0 <= start && end <= all[first].1 {
            // Written again, the most frequent case.
            return;
        }
        if first < after {
            start = start.min(all[first].0);
            end = end.max(all[after - 1].1);
        }
        if after - first == all.len() {
            *self = Ranges::One((start, end));
            return;
        }
        if let Ranges::Several(all) = self {
            all.drain(first..after);
            all.insert(first, (start, end));
            return;
        }
        let mut all = Several::from(all);
        all.drain(first..after);
        all.insert(first, (start, end));
        *self = Ranges::Several(Box::new(all));
    }

    fn as_slice(&self) -> &[(u16, u16)] {
        match self {
            Ranges::None => &[],
            Ranges::One(one) => std::slice::from_ref(one),
            Ranges::Several(all) => all,
        }
    }

    /// Adds all of `other`.
    pub(crate) fn merge(&mut self, other: &Ranges) {
        other.iter().for_each(|range| self.insert(range));
    }

    /// The ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.as_slice().iter().map(|&(start, end)| usize::from(start)..usize::from(end))
    }
}

/// What a page had that becomes a hole.
pub(crate) struct Discarded {
    /// A reservation in the store to be released. A write-back in progress keeps its own until it ends.
    pub(crate) was_reserved: bool,
    /// Reads that waited for the page.
    pub(crate) waiters: Vec<u64>,
}

impl Entry {
    pub(crate) fn new(body: Body) -> Entry {
        Entry { body, dirt: None, on_its_way: None, queued: Lsn(0), used: true }
    }

    /// An entry without bytes that counts as queued since `change`.
    pub(crate) fn queued_since(change: Lsn) -> Entry {
        Entry { queued: change, ..Entry::new(Body::Patch(Delta::default())) }
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    /// All bytes are in memory.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.body, Body::Whole(_))
    }

    /// The delta of a page whose base is not in memory.
    pub(crate) fn patch(&self) -> Option<&Delta> {
        match &self.body {
            Body::Patch(delta) => Some(delta),
            Body::Whole(_) => None,
        }
    }

    /// Changes that no write-back has taken.
    pub(crate) fn dirt(&self) -> Option<&Dirt> {
        self.dirt.as_ref()
    }

    /// Takes these changes: they are stored, or do not count any more.
    pub(crate) fn take_dirt(&mut self) -> Option<Dirt> {
        self.dirt.take()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirt.is_some()
    }

    pub(crate) fn is_whole_and_dirty(&self) -> bool {
        self.is_whole() && self.is_dirty()
    }

    /// Changes that a write-back is writing.
    pub(crate) fn writing(&self) -> Option<&Dirt> {
        self.on_its_way.as_ref()?.writing.as_ref()
    }

    /// The newest change that is not stored.
    pub(crate) fn newest(&self) -> Option<Lsn> {
        self.dirt().or(self.writing()).map(|dirt| dirt.newest)
    }

    /// Whether the buffer lacks bytes of changes that are not stored.
    pub(crate) fn is_unlogged(&self) -> bool {
        [self.dirt(), self.writing()].into_iter().flatten().any(|dirt| dirt.unlogged)
    }

    /// Notes that the page's current bytes bypassed the buffer.
    pub(crate) fn was_bypassed(&mut self) {
        self.dirt.iter_mut().for_each(|dirt| dirt.unlogged = true);
    }

    /// Notes that the buffer has the page's current bytes.
    pub(crate) fn was_logged(&mut self) {
        self.dirt.iter_mut().for_each(|dirt| dirt.unlogged = false);
        let writing = self.on_its_way.iter_mut().flat_map(|one| &mut one.writing);
        writing.for_each(|dirt| dirt.unlogged = false);
    }

    /// Changes the write-back, the fetch or the waiters.
    fn change_on_its_way<T>(&mut self, with: impl FnOnce(&mut OnItsWay) -> T) -> T {
        let result = with(self.on_its_way.get_or_insert_default());
        if self.on_its_way.as_ref().is_some_and(|one| one.is_nothing()) {
            self.on_its_way = None;
        }
        result
    }

    fn take_writing(&mut self) -> Option<Dirt> {
        self.on_its_way.as_ref()?;
        self.change_on_its_way(|one| one.writing.take())
    }

    /// When the oldest change that is not stored was made, approximately.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.writing().or(self.dirt()).map(Dirt::since)
    }

    /// Number of the store's reservations: for changes being written, and for later ones.
    pub(crate) fn reservations(&self) -> u32 {
        [self.dirt(), self.writing()].into_iter().flatten().filter(|dirt| dirt.reserved).count() as u32
    }

    /// Ends the reservation. Returns whether there was one.
    pub(crate) fn take_reservation(&mut self) -> bool {
        self.dirt.as_mut().is_some_and(|dirt| std::mem::take(&mut dirt.reserved))
    }

    /// Notes that all changes that no write-back has taken are in a newer group, too.
    pub(crate) fn was_relogged(&mut self, group: GroupNo) {
        if let Some(dirt) = &mut self.dirt {
            dirt.group = dirt.group.max(group);
        }
    }

    pub(crate) fn fetch(&self) -> Option<FetchNo> {
        self.on_its_way.as_ref()?.fetch
    }

    /// Begins a fetch. `false` if one is queued or in progress already.
    pub(crate) fn begin_fetch(&mut self, number: FetchNo) -> bool {
        let is_first = self.fetch().is_none();
        self.change_on_its_way(|one| one.fetch.get_or_insert(number).0);
        is_first
    }

    /// Ends the fetch: it failed, or what it brings is not needed any more.
    pub(crate) fn end_fetch(&mut self) {
        if self.on_its_way.is_some() {
            self.change_on_its_way(|one| one.fetch = None);
        }
    }

    /// Lets a read wait for the page.
    pub(crate) fn add_waiter(&mut self, read: u64) {
        self.change_on_its_way(|one| {
            if !one.waiters.contains(&read) {
                one.waiters.push(read);
            }
        });
    }

    /// Takes the reads that wait for the page. They must be retried.
    pub(crate) fn take_waiters(&mut self) -> Vec<u64> {
        match self.on_its_way {
            None => Vec::new(),
            Some(_) => self.change_on_its_way(|one| std::mem::take(&mut one.waiters)),
        }
    }

    fn has_waiters(&self) -> bool {
        self.on_its_way.as_ref().is_some_and(|one| !one.waiters.is_empty())
    }

    pub(crate) fn mark_used(&mut self) {
        self.used = true;
    }

    /// Whether it was used since the last call.
    pub(crate) fn take_used(&mut self) -> bool {
        std::mem::take(&mut self.used)
    }

    /// Whether it is in the queue of dirty pages.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued != Lsn(0)
    }

    /// Notes that it is queued since its newest change, if it is dirty. Returns that change.
    pub(crate) fn queue(&mut self) -> Option<Lsn> {
        let newest = self.dirt.as_ref().map(|dirt| dirt.newest);
        self.queued = newest.unwrap_or_default();
        newest
    }

    pub(crate) fn was_written_since_queued(&self) -> bool {
        Some(self.queued) != self.dirt.as_ref().map(|dirt| dirt.newest)
    }

    /// Drops all changes: the page becomes a hole.
    pub(crate) fn discard(&mut self) -> Discarded {
        self.take_writing();
        let was_reserved = self.dirt.take().is_some_and(|dirt| dirt.reserved);
        Discarded { was_reserved, waiters: self.take_waiters() }
    }

    /// Bytes of memory, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        ENTRY_BYTES
            + match &self.body {
                Body::Patch(delta) => delta.memory_bytes(),
                Body::Whole(_) => BLOCK_BYTES,
            }
    }

    /// Whether it is more than a copy of the store's bytes: changed, being written back, or waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.dirt.is_some() || self.writing().is_some() || self.has_waiters()
    }

    /// The oldest group that the page needs.
    pub(crate) fn group(&self) -> Option<GroupNo> {
        self.writing().into_iter().chain(&self.dirt).map(|dirt| dirt.group).min()
    }

    /// Writes bytes in memory.
    pub(crate) fn write(&mut self, start: usize, bytes: &[u8]) {
        if bytes.len() == BLOCK_BYTES {
            return self.replace(bytes);
        }
        match &mut self.body {
            Body::Whole(page) => Arc::make_mut(page).0[start..start + bytes.len()].copy_from_slice(bytes),
            Body::Patch(delta) => delta.write(start, bytes),
        }
        self.complete();
    }

    /// Writes all bytes: its delta, and a fetch, do not matter any more.
    fn replace(&mut self, bytes: &[u8]) {
        let own = match &mut self.body {
            Body::Whole(page) => Arc::get_mut(page),
            Body::Patch(_) => None,
        };
        match own {
            Some(page) => page.0.copy_from_slice(bytes),
            None => {
                let mut page = Page::zeroed();
                page.0.copy_from_slice(bytes);
                self.body = Body::Whole(Arc::new(page));
            }
        }
        self.end_fetch();
    }

    /// Writes zeros in memory.
    pub(crate) fn zero(&mut self, start: usize, len: usize) {
        match &mut self.body {
            Body::Whole(page) => Arc::make_mut(page).0[start..start + len].fill(0),
            Body::Patch(delta) => delta.zero(start, len),
        }
        self.complete();
    }

    /// A delta that covers the page becomes a whole page: it needs no fetch.
    fn complete(&mut self) {
        let Body::Patch(delta) = &self.body else { return };
        if delta.covers(0..BLOCK_BYTES) {
            self.become_whole(Page::zeroed());
        }
    }

    /// Merges the delta, if there is one, into the page's base.
    pub(crate) fn become_whole(&mut self, mut base: Box<Page>) {
        let Body::Patch(delta) = &self.body else { return };
        delta.apply(&mut base);
        if let Some(dirt) = &mut self.dirt {
            dirt.ranges = Ranges::of(delta);
        }
        self.body = Body::Whole(Arc::new(base));
        self.end_fetch();
    }

    /// Notes that `newest`, in group `newest_group`, changed `range`. `first` makes the dirty state of a
    /// clean page.
    pub(crate) fn note(
        &mut self,
        range: Range<usize>,
        newest: Lsn,
        latest: GroupNo,
        first: impl FnOnce() -> Dirt,
    ) {
        let whole = matches!(self.body, Body::Whole(_));
        let dirt = self.dirt.get_or_insert_with(first);
        dirt.newest = newest;
        dirt.latest = latest;
        if whole {
            dirt.ranges.insert(range);
        }
    }

    /// Whether a read of `range` needs nothing from the store.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        match &self.body {
            Body::Whole(_) => true,
            Body::Patch(delta) => delta.covers(range),
        }
    }

    /// Copies bytes from `start` on, which [`covers`](PageEntry::covers) found in memory.
    pub(crate) fn read(&self, start: usize, into: &mut [u8]) {
        match &self.body {
            Body::Whole(page) => into.copy_from_slice(&page.0[start..start + into.len()]),
            Body::Patch(delta) => delta.read(start, into),
        }
    }

    /// Takes the changes for a write-back; later ones start anew. `None` if the page is clean or being
    /// written back.
    pub(crate) fn begin_writing(&mut self) -> Option<&Dirt> {
        if self.writing().is_some() {
            return None;
        }
        let mut dirt = self.dirt.take()?;
        if let Body::Patch(delta) = &self.body {
            // If the page is fetched meanwhile, and the write-back fails, only this tells which bytes
            // changed.
            dirt.ranges = Ranges::of(delta);
        }
        self.change_on_its_way(|one| one.writing = Some(dirt));
        self.writing()
    }

    /// Whether memory has only a part of what the store has, and nothing else.
    pub(crate) fn is_needless(&self) -> bool {
        !self.is_whole() && !self.is_busy() && self.fetch().is_none()
    }

    /// After a write-back that succeeded.
    pub(crate) fn end_writing(&mut self) {
        self.take_writing();
    }

    /// After a write-back that failed: its changes are dirty again. Returns how many of the store's
    /// reservations are to be released, since the page needs only one.
    pub(crate) fn abandon_writing(&mut self) -> u64 {
        let Some(old) = self.take_writing() else { return 0 };
        let Some(dirt) = &mut self.dirt else {
            self.dirt = Some(old);
            return 0;
        };
        let spare = old.reserved && dirt.reserved;
        dirt.reserved |= old.reserved;
        if !is_planted(PlantedBug::OldGroupForgotten) {
            dirt.group = old.group.min(dirt.group);
        }
        dirt.unlogged |= old.unlogged;
        dirt.since = old.since.min(dirt.since);
        dirt.ranges.merge(&old.ranges);
        u64::from(spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_written_again_while_its_write_back_failed_needs_the_groups_of_both() {
        let mut entry = Entry::new(Body::Whole(Arc::new(Page::zeroed())));
        let write = |entry: &mut Entry, group: u64, range: Range<usize>| {
            let newest = Lsn(10 * group);
            let group = GroupNo(group);
            entry.note(range, newest, group, || {
                Dirt::first(newest, group, Duration::from_secs(group.0), false)
            });
        };
        write(&mut entry, 3, 0..4096);
        entry.begin_writing().expect("it is dirty");
        write(&mut entry, 7, 100..200);
        assert_eq!(entry.group(), Some(GroupNo(3)), "while it is on its way");
        assert_eq!(entry.abandon_writing(), 1, "of two reservations one is spare");
        let dirt = entry.dirt.as_ref().expect("it is dirty");
        assert_eq!((dirt.group, dirt.newest, dirt.latest), (GroupNo(3), Lsn(70), GroupNo(7)));
        assert_eq!(dirt.since(), Duration::from_secs(3));
        let mut ranges = dirt.ranges.iter();
        assert_eq!((ranges.next(), ranges.next()), (Some(0..4096), None));
    }
}

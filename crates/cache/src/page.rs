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
//! absent ──── write of a part ────► partial ──── write of the rest, or fetched ────► dirty
//! absent ──── fetch ────► fetching ──── fetched ────► clean ──── write ────► dirty
//! partial, dirty ──── write-back begins ────► writing back
//!                                                ├── stored, whole ────► clean
//!                                                ├── stored, partial ────► absent
//!                                                └── failed, or written meanwhile ────► partial, dirty
//! clean ──── evicted ────► absent
//! any ──── punched, deleted, or the target of a range operation ────► absent
//! ```
//!
//! | transition | made by | method of [`CachedPage`] |
//! | --- | --- | --- |
//! | write | a client; recovery | `write` or `zero`, then `mark_dirty` |
//! | fetch | a read that waits, read-ahead, prefetch | `begin_fetch` |
//! | fetched | a fetch worker. A write of the whole page ends the fetch | `become_whole`; `end_fetch` |
//! | write-back begins | the thread with the write-back lock | `begin_write_back` |
//! | stored | the same thread | `end_write_back` |
//! | failed | the same thread | `abandon_write_back` |
//! | evicted | any thread that adds to memory | `PageTable::evict` |
//! | punched | a client; recovery | `discard` |
//!
//! A delta stays in memory while it is written back, with what is written meanwhile; and afterwards if a read
//! waits for the page.

use crate::delta::PageDelta;
use crate::planted_bug::{CacheBug, is_planted};
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
pub(crate) struct FetchNumber(pub(crate) u64);

/// A page in memory. Owned by `PageTable`, changed under the state's lock only. After a crash: the changes
/// that were durable in the buffer are rebuilt from there.
#[derive(Debug)]
pub(crate) struct CachedPage {
    body: PageBody,
    /// Changes that no write-back has taken.
    dirty: Option<DirtyState>,
    /// Boxed: few pages are being written, fetched or waited for at a time.
    in_flight: Option<Box<InFlightWork>>,
    /// The page's newest change when it was put into the queue of dirty pages. 0: it is not in the queue.
    queued: Lsn,
    /// Used since the eviction queue came by.
    used: bool,
}

const _: () = assert!(size_of::<CachedPage>() <= 128);

/// Write-back, fetch and waiters of a page.
#[derive(Debug, Default)]
struct InFlightWork {
    /// Changes that a write-back is writing.
    writing: Option<DirtyState>,
    /// The fetch that is queued or in progress.
    fetch: Option<FetchNumber>,
    /// Reads that wait for this page.
    waiters: Vec<u64>,
}

impl InFlightWork {
    fn is_empty(&self) -> bool {
        self.writing.is_none() && self.fetch.is_none() && self.waiters.is_empty()
    }
}

#[derive(Debug)]
pub(crate) enum PageBody {
    /// Only the bytes that were written: the base is not in memory.
    Patch(PageDelta),
    /// All bytes. Shared with a write-back while it runs.
    Whole(SharedPage),
}

/// Changes that the store lacks.
#[derive(Debug, Clone)]
pub(crate) struct DirtyState {
    /// The newest change.
    pub(crate) newest: Lsn,
    /// The oldest commit group that has one of the changes.
    pub(crate) oldest_group: GroupNo,
    /// The group of the newest change: how lately the page was written.
    pub(crate) newest_group: GroupNo,
    /// Which bytes changed. Only kept for a whole page: a delta has its own ranges.
    pub(crate) ranges: DirtyRanges,
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

impl DirtyState {
    /// The first change of a page, for which the store counts space.
    pub(crate) fn new(newest: Lsn, group: GroupNo, since: Duration, recovered: bool) -> DirtyState {
        let since = since.as_nanos() as u64;
        DirtyState {
            newest,
            oldest_group: group,
            newest_group: group,
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
pub(crate) enum DirtyRanges {
    #[default]
    None,
    One((u16, u16)),
    /// Sorted, with gaps between them. Boxed: few pages have that many.
    Several(Box<RangeList>),
}

type RangeList = SmallVec<[(u16, u16); 4]>;

impl DirtyRanges {
    /// The positions that a delta changes.
    pub(crate) fn of_delta(delta: &PageDelta) -> DirtyRanges {
        let mut ranges = DirtyRanges::default();
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
            *self = DirtyRanges::One((start, end));
            return;
        }
        if let DirtyRanges::Several(all) = self {
            all.drain(first..after);
            all.insert(first, (start, end));
            return;
        }
        let mut all = RangeList::from(all);
        all.drain(first..after);
        all.insert(first, (start, end));
        *self = DirtyRanges::Several(Box::new(all));
    }

    fn as_slice(&self) -> &[(u16, u16)] {
        match self {
            DirtyRanges::None => &[],
            DirtyRanges::One(one) => std::slice::from_ref(one),
            DirtyRanges::Several(all) => all,
        }
    }

    /// Adds all of `other`.
    pub(crate) fn merge(&mut self, other: &DirtyRanges) {
        other.iter().for_each(|range| self.insert(range));
    }

    /// The ranges, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        self.as_slice().iter().map(|&(start, end)| usize::from(start)..usize::from(end))
    }
}

/// The reservation and the waiters of a page that becomes a hole.
pub(crate) struct DiscardedPage {
    /// A reservation in the store to be released. A write-back in progress keeps its own until it ends.
    pub(crate) was_reserved: bool,
    /// Reads that waited for the page.
    pub(crate) waiters: Vec<u64>,
}

impl CachedPage {
    pub(crate) fn new(body: PageBody) -> CachedPage {
        CachedPage { body, dirty: None, in_flight: None, queued: Lsn(0), used: true }
    }

    pub(crate) fn body(&self) -> &PageBody {
        &self.body
    }

    /// All bytes are in memory.
    pub(crate) fn is_whole(&self) -> bool {
        matches!(self.body, PageBody::Whole(_))
    }

    /// The delta of a page whose base is not in memory.
    pub(crate) fn patch(&self) -> Option<&PageDelta> {
        match &self.body {
            PageBody::Patch(delta) => Some(delta),
            PageBody::Whole(_) => None,
        }
    }

    /// Changes that no write-back has taken.
    pub(crate) fn dirty_state(&self) -> Option<&DirtyState> {
        self.dirty.as_ref()
    }

    /// Takes these changes: they are stored, or do not count any more.
    pub(crate) fn take_dirty_state(&mut self) -> Option<DirtyState> {
        self.dirty.take()
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty.is_some()
    }

    /// Whether all its bytes are changes that no write-back has taken.
    pub(crate) fn is_dirty_as_a_whole(&self) -> bool {
        self.dirty.as_ref().is_some_and(|dirty| dirty.ranges.iter().eq(std::iter::once(0..BLOCK_BYTES)))
    }

    /// The bytes, if the log has all of them, whatever the store has.
    pub(crate) fn logged_bytes(&self) -> Option<&Page> {
        let is_logged = !self.is_unlogged() || is_planted(CacheBug::DifferenceOverUnlogged);
        match &self.body {
            PageBody::Whole(page) if is_logged && self.is_dirty_as_a_whole() => Some(page),
            _ => None,
        }
    }

    pub(crate) fn is_whole_and_dirty(&self) -> bool {
        self.is_whole() && self.is_dirty()
    }

    /// Changes that a write-back is writing.
    pub(crate) fn writing(&self) -> Option<&DirtyState> {
        self.in_flight.as_ref()?.writing.as_ref()
    }

    /// The newest change that is not stored.
    pub(crate) fn newest(&self) -> Option<Lsn> {
        self.dirty_state().or(self.writing()).map(|dirty| dirty.newest)
    }

    /// The newest change that no write-back has taken, and the newest that one is writing.
    pub(crate) fn unstored(&self) -> [Option<Lsn>; 2] {
        [self.dirty_state(), self.writing()].map(|dirty| dirty.map(|dirty| dirty.newest))
    }

    /// Whether the buffer lacks bytes of changes that are not stored.
    pub(crate) fn is_unlogged(&self) -> bool {
        [self.dirty_state(), self.writing()].into_iter().flatten().any(|dirty| dirty.unlogged)
    }

    /// Notes that the page's current bytes bypassed the buffer.
    pub(crate) fn mark_bypassed(&mut self) {
        self.dirty.iter_mut().for_each(|dirty| dirty.unlogged = true);
    }

    /// Notes that the buffer has the page's current bytes.
    pub(crate) fn mark_logged(&mut self) {
        self.dirty.iter_mut().for_each(|dirty| dirty.unlogged = false);
        let writing = self.in_flight.iter_mut().flat_map(|one| &mut one.writing);
        writing.for_each(|dirty| dirty.unlogged = false);
    }

    /// Changes the write-back, the fetch or the waiters.
    fn change_in_flight<T>(&mut self, with: impl FnOnce(&mut InFlightWork) -> T) -> T {
        let result = with(self.in_flight.get_or_insert_default());
        if self.in_flight.as_ref().is_some_and(|one| one.is_empty()) {
            self.in_flight = None;
        }
        result
    }

    fn take_writing(&mut self) -> Option<DirtyState> {
        self.in_flight.as_ref()?;
        self.change_in_flight(|one| one.writing.take())
    }

    /// When the oldest change that is not stored was made, approximately.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.writing().or(self.dirty_state()).map(DirtyState::since)
    }

    /// Number of the store's reservations: for changes being written, and for later ones.
    pub(crate) fn reservations(&self) -> u32 {
        [self.dirty_state(), self.writing()].into_iter().flatten().filter(|dirty| dirty.reserved).count()
            as u32
    }

    /// Ends the reservation. Returns whether there was one.
    pub(crate) fn take_reservation(&mut self) -> bool {
        self.dirty.as_mut().is_some_and(|dirty| std::mem::take(&mut dirty.reserved))
    }

    /// Notes that all changes that no write-back has taken are in a newer group, too.
    pub(crate) fn mark_relogged(&mut self, group: GroupNo) {
        if let Some(dirty) = &mut self.dirty {
            dirty.oldest_group = dirty.oldest_group.max(group);
        }
    }

    pub(crate) fn fetch(&self) -> Option<FetchNumber> {
        self.in_flight.as_ref()?.fetch
    }

    /// Begins a fetch. `false` if one is queued or in progress already.
    pub(crate) fn begin_fetch(&mut self, number: FetchNumber) -> bool {
        let is_first = self.fetch().is_none();
        self.change_in_flight(|one| one.fetch.get_or_insert(number).0);
        is_first
    }

    /// Ends the fetch: it failed, or what it brings is not needed any more.
    pub(crate) fn end_fetch(&mut self) {
        if self.in_flight.is_some() {
            self.change_in_flight(|one| one.fetch = None);
        }
    }

    /// Lets a read wait for the page.
    pub(crate) fn add_waiter(&mut self, read: u64) {
        self.change_in_flight(|one| {
            if !one.waiters.contains(&read) {
                one.waiters.push(read);
            }
        });
    }

    /// Takes the reads that wait for the page. They must be retried.
    pub(crate) fn take_waiters(&mut self) -> Vec<u64> {
        match self.in_flight {
            None => Vec::new(),
            Some(_) => self.change_in_flight(|one| std::mem::take(&mut one.waiters)),
        }
    }

    fn has_waiters(&self) -> bool {
        self.in_flight.as_ref().is_some_and(|one| !one.waiters.is_empty())
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
        let newest = self.dirty.as_ref().map(|dirty| dirty.newest);
        self.queued = newest.unwrap_or_default();
        newest
    }

    pub(crate) fn was_written_since_queued(&self) -> bool {
        Some(self.queued) != self.dirty.as_ref().map(|dirty| dirty.newest)
    }

    /// Drops all changes: the page becomes a hole.
    pub(crate) fn discard(&mut self) -> DiscardedPage {
        self.take_writing();
        let was_reserved = self.dirty.take().is_some_and(|dirty| dirty.reserved);
        DiscardedPage { was_reserved, waiters: self.take_waiters() }
    }

    /// Bytes of memory, approximately.
    pub(crate) fn memory_bytes(&self) -> usize {
        ENTRY_BYTES
            + match &self.body {
                PageBody::Patch(delta) => delta.memory_bytes(),
                PageBody::Whole(_) => BLOCK_BYTES,
            }
    }

    /// Whether it is more than a copy of the store's bytes: changed, being written back, or waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.dirty.is_some() || self.writing().is_some() || self.has_waiters()
    }

    /// The oldest group that the page needs.
    pub(crate) fn oldest_group(&self) -> Option<GroupNo> {
        self.writing().into_iter().chain(&self.dirty).map(|dirty| dirty.oldest_group).min()
    }

    /// Writes bytes in memory.
    pub(crate) fn write(&mut self, start: usize, bytes: &[u8]) {
        if bytes.len() == BLOCK_BYTES {
            return self.replace(bytes);
        }
        match &mut self.body {
            PageBody::Whole(page) => Arc::make_mut(page).0[start..start + bytes.len()].copy_from_slice(bytes),
            PageBody::Patch(delta) => delta.write(start, bytes),
        }
        self.complete_patch();
    }

    /// Writes all bytes: its delta, and a fetch, do not matter any more.
    fn replace(&mut self, bytes: &[u8]) {
        let own = match &mut self.body {
            PageBody::Whole(page) => Arc::get_mut(page),
            PageBody::Patch(_) => None,
        };
        match own {
            Some(page) => page.0.copy_from_slice(bytes),
            None => {
                let mut page = Page::zeroed();
                page.0.copy_from_slice(bytes);
                self.body = PageBody::Whole(Arc::new(page));
            }
        }
        self.end_fetch();
    }

    /// Writes zeros in memory.
    pub(crate) fn zero(&mut self, start: usize, len: usize) {
        match &mut self.body {
            PageBody::Whole(page) => Arc::make_mut(page).0[start..start + len].fill(0),
            PageBody::Patch(delta) => delta.zero(start, len),
        }
        self.complete_patch();
    }

    /// A delta that covers the page becomes a whole page: it needs no fetch.
    fn complete_patch(&mut self) {
        let PageBody::Patch(delta) = &self.body else { return };
        if delta.covers(0..BLOCK_BYTES) {
            self.become_whole(Page::zeroed());
        }
    }

    /// Merges the delta, if there is one, into the page's base.
    pub(crate) fn become_whole(&mut self, mut base: Box<Page>) {
        let PageBody::Patch(delta) = &self.body else { return };
        delta.apply(&mut base);
        if let Some(dirty) = &mut self.dirty {
            dirty.ranges = DirtyRanges::of_delta(delta);
        }
        self.body = PageBody::Whole(Arc::new(base));
        self.end_fetch();
    }

    /// Notes that `newest`, in group `newest_group`, changed `range`. `first` makes the dirty state of a
    /// clean page.
    pub(crate) fn mark_dirty(
        &mut self,
        range: Range<usize>,
        newest: Lsn,
        latest: GroupNo,
        first: impl FnOnce() -> DirtyState,
    ) {
        let whole = matches!(self.body, PageBody::Whole(_));
        let dirty = self.dirty.get_or_insert_with(first);
        dirty.newest = newest;
        dirty.newest_group = latest;
        if whole {
            dirty.ranges.insert(range);
        }
    }

    /// Writes `bytes`, which the log has as change `newest` in this group. The page is whole and dirty.
    pub(crate) fn overwrite(&mut self, start: usize, bytes: &[u8], newest: Lsn, group: GroupNo) {
        self.write(start, bytes);
        if let Some(dirty) = &mut self.dirty {
            dirty.newest = newest;
            dirty.newest_group = group;
            dirty.ranges.insert(start..start + bytes.len());
        }
        self.mark_used();
    }

    /// Whether a read of `range` needs nothing from the store.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        match &self.body {
            PageBody::Whole(_) => true,
            PageBody::Patch(delta) => delta.covers(range),
        }
    }

    /// Copies bytes from `start` on, which [`covers`](CachedPage::covers) found in memory.
    pub(crate) fn read(&self, start: usize, into: &mut [u8]) {
        match &self.body {
            PageBody::Whole(page) => into.copy_from_slice(&page.0[start..start + into.len()]),
            PageBody::Patch(delta) => delta.read(start, into),
        }
    }

    /// Takes the changes for a write-back; later ones start anew. `None` if the page is clean or being
    /// written back.
    pub(crate) fn begin_write_back(&mut self) -> Option<&DirtyState> {
        if self.writing().is_some() {
            return None;
        }
        let mut dirty = self.dirty.take()?;
        if let PageBody::Patch(delta) = &self.body {
            // If the page is fetched meanwhile, and the write-back fails, only this tells which bytes
            // changed.
            dirty.ranges = DirtyRanges::of_delta(delta);
        }
        self.change_in_flight(|one| one.writing = Some(dirty));
        self.writing()
    }

    /// Whether it has only a part of the store's bytes, and neither a fetch nor a waiter.
    pub(crate) fn is_redundant(&self) -> bool {
        !self.is_whole() && !self.is_busy() && self.fetch().is_none()
    }

    /// After a write-back that succeeded.
    pub(crate) fn end_write_back(&mut self) {
        self.take_writing();
    }

    /// After a write-back that failed: its changes are dirty again. Returns how many of the store's
    /// reservations are to be released, since the page needs only one.
    pub(crate) fn abandon_write_back(&mut self) -> u64 {
        let Some(old) = self.take_writing() else { return 0 };
        let Some(dirty) = &mut self.dirty else {
            self.dirty = Some(old);
            return 0;
        };
        let spare = old.reserved && dirty.reserved;
        dirty.reserved |= old.reserved;
        if !is_planted(CacheBug::OldGroupForgotten) {
            dirty.oldest_group = old.oldest_group.min(dirty.oldest_group);
        }
        dirty.unlogged |= old.unlogged;
        dirty.since = old.since.min(dirty.since);
        dirty.ranges.merge(&old.ranges);
        u64::from(spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_was_written_again_while_its_write_back_failed_needs_the_groups_of_both() {
        let mut entry = CachedPage::new(PageBody::Whole(Arc::new(Page::zeroed())));
        let write = |entry: &mut CachedPage, group: u64, range: Range<usize>| {
            let newest = Lsn(10 * group);
            let group = GroupNo(group);
            entry.mark_dirty(range, newest, group, || {
                DirtyState::new(newest, group, Duration::from_secs(group.0), false)
            });
        };
        write(&mut entry, 3, 0..4096);
        entry.begin_write_back().expect("it is dirty");
        write(&mut entry, 7, 100..200);
        assert_eq!(entry.oldest_group(), Some(GroupNo(3)), "while it is on its way");
        assert_eq!(entry.abandon_write_back(), 1, "of two reservations one is spare");
        let dirty = entry.dirty.as_ref().expect("it is dirty");
        assert_eq!((dirty.oldest_group, dirty.newest, dirty.newest_group), (GroupNo(3), Lsn(70), GroupNo(7)));
        assert_eq!(dirty.since(), Duration::from_secs(3));
        let mut ranges = dirty.ranges.iter();
        assert_eq!((ranges.next(), ranges.next()), (Some(0..4096), None));
    }
}

//! One page's life. The states of the design, and how they are held here:
//!
//! | state        | `body`                     | `dirt` | `writing` | `fetch`  |
//! | ------------ | -------------------------- | ------ | --------- | -------- |
//! | absent       | no entry                   |        |           |          |
//! | partial      | `Patch`                    | yes    | no        | no       |
//! | fetching     | `Patch`, empty if unwritten| maybe  | maybe     | yes      |
//! | clean        | `Whole`                    | no     | no        | no       |
//! | dirty        | `Whole`                    | yes    | no        | no       |
//! | writing back | either                     | maybe  | yes       | maybe    |
//!
//! A patch that is being written back, or was and is waited for, stays in memory with what is written to it meanwhile.

use crate::delta::Delta;
use crate::planted_bug::{PlantedBug, is_planted};
use buffer::GroupNo;
use device::{BLOCK_BYTES, Lsn, Page, SharedPage};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Memory that a page takes beside its bytes: half of it the entry, half its places in the table and in two indexes.
pub(crate) const ENTRY_BYTES: usize = 256;

/// One fetch, by number: a fetch whose number is no longer in the entry delivers nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FetchNo(pub(crate) u64);

/// A page in memory. Owned by `Pages`, changed under the state's lock only. After a crash: what of `dirt` and
/// `writing` was durable in the buffer is rebuilt from there.
#[derive(Debug)]
pub(crate) struct Entry {
    body: Body,
    /// Changes that no write-back has taken yet.
    dirt: Option<Dirt>,
    /// What is under way with it. Boxed: few pages are on their way at a time.
    on_its_way: Option<Box<OnItsWay>>,
    /// Stands in the queue of dirty pages since this was its newest change; 0: it does not.
    queued: Lsn,
    /// Used since the last sweep.
    used: bool,
}

const _: () = assert!(size_of::<Entry>() <= 128);

/// What is under way with a page.
#[derive(Debug, Default)]
struct OnItsWay {
    /// Changes that a write-back is writing.
    writing: Option<Dirt>,
    /// The fetch that is under way or queued.
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
    /// Only what was written: the base is not in memory.
    Patch(Delta),
    /// All bytes. Shared with a write-back while it runs.
    Whole(SharedPage),
}

/// Changes that are newer than the store.
#[derive(Debug, Clone)]
pub(crate) struct Dirt {
    /// The LSN of the newest one.
    pub(crate) newest: Lsn,
    /// The oldest commit group that holds one of them.
    pub(crate) group: GroupNo,
    /// The group that holds the newest one: how lately the page was written.
    pub(crate) latest: GroupNo,
    /// Which bytes; only kept for a whole page, a patch knows its own.
    pub(crate) ranges: Ranges,
    /// When the first one was made, in nanoseconds of the clock.
    since: u64,
    /// Whether the store counts space for the page: until what cannot be written back has been rescued.
    pub(crate) reserved: bool,
    /// Found in the buffer, and the store was not asked yet whether all of it is stored.
    pub(crate) recovered: bool,
    /// All bytes bypassed the buffer last, and the buffer does not have them: what it has of the page is older.
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

    /// When the first one was made.
    pub(crate) fn since(&self) -> Duration {
        Duration::from_nanos(self.since)
    }
}

/// Which positions of a page in memory are newer than the store: a delta whose bytes lie in the page itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum Ranges {
    /// None.
    #[default]
    None,
    /// One.
    One((u16, u16)),
    /// Several, sorted, apart from each other. Boxed: few pages have that many.
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

    /// Adds `range`, merging with what it touches.
    pub(crate) fn insert(&mut self, range: Range<usize>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start as u16, range.end as u16);
        let all = self.as_slice();
        let first = all.partition_point(|&(_, old_end)| old_end < start);
        let after = all.partition_point(|&(old_start, _)| old_start <= end);
        if after == first + 1 && all[first].0 <= start && end <= all[first].1 {
            // Written again, as most are that are written often.
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

/// What was taken of a page that becomes a hole.
pub(crate) struct Discarded {
    /// The store counts space for it that nobody needs any more. What a write-back under way has is its own until it ends.
    pub(crate) was_reserved: bool,
    /// Reads that waited for it.
    pub(crate) waiters: Vec<u64>,
}

impl Entry {
    pub(crate) fn new(body: Body) -> Entry {
        Entry { body, dirt: None, on_its_way: None, queued: Lsn(0), used: true }
    }

    /// One without any bytes yet that counts as queued since a change.
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

    /// What was written to it, where its base is not in memory.
    pub(crate) fn patch(&self) -> Option<&Delta> {
        match &self.body {
            Body::Patch(delta) => Some(delta),
            Body::Whole(_) => None,
        }
    }

    /// Changes that no write-back has taken yet.
    pub(crate) fn dirt(&self) -> Option<&Dirt> {
        self.dirt.as_ref()
    }

    /// The same; they are stored, or count no more.
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

    /// Whether the buffer lacks the bytes of changes that are not stored.
    pub(crate) fn is_unlogged(&self) -> bool {
        [self.dirt(), self.writing()].into_iter().flatten().any(|dirt| dirt.unlogged)
    }

    /// All bytes that it has now bypassed the buffer.
    pub(crate) fn was_bypassed(&mut self) {
        self.dirt.iter_mut().for_each(|dirt| dirt.unlogged = true);
    }

    /// The buffer has all bytes that it has now.
    pub(crate) fn was_logged(&mut self) {
        self.dirt.iter_mut().for_each(|dirt| dirt.unlogged = false);
        let writing = self.on_its_way.iter_mut().flat_map(|one| &mut one.writing);
        writing.for_each(|dirt| dirt.unlogged = false);
    }

    /// Changes what is under way with it.
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

    /// When the oldest change that is not stored was made, about.
    pub(crate) fn since(&self) -> Option<Duration> {
        self.writing().or(self.dirt()).map(Dirt::since)
    }

    /// How often the store counts space for it: for changes that a write-back is writing, and for later ones.
    pub(crate) fn reservations(&self) -> u32 {
        [self.dirt(), self.writing()].into_iter().flatten().filter(|dirt| dirt.reserved).count() as u32
    }

    /// Nothing is reserved for it any more; whether it was.
    pub(crate) fn take_reservation(&mut self) -> bool {
        self.dirt.as_mut().is_some_and(|dirt| std::mem::take(&mut dirt.reserved))
    }

    /// All its changes that no write-back has taken are in a newer group, too.
    pub(crate) fn was_relogged(&mut self, group: GroupNo) {
        if let Some(dirt) = &mut self.dirt {
            dirt.group = dirt.group.max(group);
        }
    }

    pub(crate) fn fetch(&self) -> Option<FetchNo> {
        self.on_its_way.as_ref()?.fetch
    }

    /// A fetch is queued or under way; false if one was already.
    pub(crate) fn begin_fetch(&mut self, number: FetchNo) -> bool {
        let is_first = self.fetch().is_none();
        self.change_on_its_way(|one| one.fetch.get_or_insert(number).0);
        is_first
    }

    /// The fetch brought nothing, or what it brings does not matter any more.
    pub(crate) fn end_fetch(&mut self) {
        if self.on_its_way.is_some() {
            self.change_on_its_way(|one| one.fetch = None);
        }
    }

    /// A read waits for it.
    pub(crate) fn add_waiter(&mut self, read: u64) {
        self.change_on_its_way(|one| {
            if !one.waiters.contains(&read) {
                one.waiters.push(read);
            }
        });
    }

    /// The reads that wait for it; they must look again.
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

    /// Whether it was used since this was last asked.
    pub(crate) fn take_used(&mut self) -> bool {
        std::mem::take(&mut self.used)
    }

    /// Whether it stands in the queue of dirty pages.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued != Lsn(0)
    }

    /// It stands in the queue from now on, if it is dirty: since its newest change.
    pub(crate) fn queue(&mut self) -> Option<Lsn> {
        let newest = self.dirt.as_ref().map(|dirt| dirt.newest);
        self.queued = newest.unwrap_or_default();
        newest
    }

    pub(crate) fn was_written_since_queued(&self) -> bool {
        Some(self.queued) != self.dirt.as_ref().map(|dirt| dirt.newest)
    }

    /// It becomes a hole: nothing of it counts any more.
    pub(crate) fn discard(&mut self) -> Discarded {
        self.take_writing();
        let was_reserved = self.dirt.take().is_some_and(|dirt| dirt.reserved);
        Discarded { was_reserved, waiters: self.take_waiters() }
    }

    /// Bytes of memory, about.
    pub(crate) fn memory_bytes(&self) -> usize {
        ENTRY_BYTES
            + match &self.body {
                Body::Patch(delta) => delta.memory_bytes(),
                Body::Whole(_) => BLOCK_BYTES,
            }
    }

    /// True if it is more than the store's bytes: changed, being written back, or waited for.
    pub(crate) fn is_busy(&self) -> bool {
        self.dirt.is_some() || self.writing().is_some() || self.has_waiters()
    }

    /// The oldest group that this page still needs.
    pub(crate) fn group(&self) -> Option<GroupNo> {
        self.writing().into_iter().chain(&self.dirt).map(|dirt| dirt.group).min()
    }

    /// Changes bytes in memory.
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

    /// Changes all bytes: whatever was known of the page, or is being fetched, no longer matters.
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

    /// Changes bytes to zeros in memory.
    pub(crate) fn zero(&mut self, start: usize, len: usize) {
        match &mut self.body {
            Body::Whole(page) => Arc::make_mut(page).0[start..start + len].fill(0),
            Body::Patch(delta) => delta.zero(start, len),
        }
        self.complete();
    }

    /// A patch that covers its page is a page: it will never be fetched.
    fn complete(&mut self) {
        let Body::Patch(delta) = &self.body else { return };
        if delta.covers(0..BLOCK_BYTES) {
            self.become_whole(Page::zeroed());
        }
    }

    /// Lays the delta, if there is one, over the page's base.
    pub(crate) fn become_whole(&mut self, mut base: Box<Page>) {
        let Body::Patch(delta) = &self.body else { return };
        delta.apply(&mut base);
        if let Some(dirt) = &mut self.dirt {
            dirt.ranges = Ranges::of(delta);
        }
        self.body = Body::Whole(Arc::new(base));
        self.end_fetch();
    }

    /// Notes that `range` changed with `newest`, as part of group `latest`; `first` makes the dirt of a clean page.
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

    /// True if a read of `range` needs nothing from the store.
    pub(crate) fn covers(&self, range: Range<usize>) -> bool {
        match &self.body {
            Body::Whole(_) => true,
            Body::Patch(delta) => delta.covers(range),
        }
    }

    /// Copies the bytes from `start` on, which are covered.
    pub(crate) fn read(&self, start: usize, into: &mut [u8]) {
        match &self.body {
            Body::Whole(page) => into.copy_from_slice(&page.0[start..start + into.len()]),
            Body::Patch(delta) => delta.read(start, into),
        }
    }

    /// Takes the changes for a write-back; later ones start anew. `None` if it is not dirty, or is being written back.
    pub(crate) fn begin_writing(&mut self) -> Option<&Dirt> {
        if self.writing().is_some() {
            return None;
        }
        let mut dirt = self.dirt.take()?;
        if let Body::Patch(delta) = &self.body {
            // Should the page be fetched meanwhile, and the write-back fail, nothing else would tell.
            dirt.ranges = Ranges::of(delta);
        }
        self.change_on_its_way(|one| one.writing = Some(dirt));
        self.writing()
    }

    /// Nobody needs it: it has no more than the store has, and not all of that.
    pub(crate) fn is_needless(&self) -> bool {
        !self.is_whole() && !self.is_busy() && self.fetch().is_none()
    }

    /// After a write-back that succeeded.
    pub(crate) fn end_writing(&mut self) {
        self.take_writing();
    }

    /// After a write-back that failed: its changes are dirt again. Returns how many of the store's reservations are one
    /// too many: the page needs only one.
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
            let (newest, group) = (Lsn(10 * group), GroupNo(group));
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

//! Which bypassed pages the buffer lacks, and for how long.
//!
//! One rule bounds how many of them a crash takes: *a bypassed page that the store lacks after a commit
//! interval is logged by the next commit.* A store that is slow, busy with clones, stands still or fails
//! prolongs nothing. Only a buffer that is slow, or fails, does, by the time that it takes to write the
//! pages. So that few pages are written twice, write-back begins at [half](BypassedAge::Due) of the interval,
//! when no more pages may bypass; from [three quarters](BypassedAge::Urgent) on it leaves no more time to
//! syncs.

use crate::page_table::PageKey;
use device::{ObjectId, PageNo};
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;

/// Consecutive writes of one file within this time count as one write: a stream is a few of them a second.
const ONE_WRITE: Duration = Duration::from_millis(20);

/// Pages that a record in the log names, where neither the log nor the store has the bytes. A part of
/// `PageTable`, under the cache's lock. After a crash: empty; recovery asks the store which of the named
/// pages it has.
#[derive(Default)]
pub(crate) struct BypassedPages {
    keys: BTreeSet<PageKey>,
    /// The writes of these pages, the oldest first. At least one page of the first write is among `keys`.
    writes: VecDeque<BypassedWrite>,
    /// The time of the oldest write that was resolved since the last commit began: the last of its pages was
    /// overwritten, punched, logged or stored. A commit must follow as soon as if it had not been resolved:
    /// the commit makes the record durable that did it, or that names the store's batch with the pages.
    resolved_since: Option<Duration>,
}

#[derive(Debug)]
struct BypassedWrite {
    at: Duration,
    object: ObjectId,
    pages: Range<PageNo>,
}

/// How old the oldest bypassed page is, in commit intervals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BypassedAge {
    /// Less than half of one, or there is no page.
    Young,
    /// At least half: it is written back, and until then no more pages bypass.
    Due,
    /// At least three quarters: it is written back although clients sync.
    Urgent,
    /// All of one: the next commit logs it.
    Overdue,
}

impl BypassedAge {
    /// Compares an age with the interval.
    pub(crate) fn of(age: Duration, interval: Duration) -> BypassedAge {
        if age >= interval {
            BypassedAge::Overdue
        } else if age >= interval * 3 / 4 {
            BypassedAge::Urgent
        } else if age >= interval / 2 {
            BypassedAge::Due
        } else {
            BypassedAge::Young
        }
    }
}

impl BypassedWrite {
    fn keys(&self) -> (Bound<PageKey>, Bound<PageKey>) {
        let key = |page| PageKey { object: self.object, page };
        (Bound::Included(key(self.pages.start)), Bound::Excluded(key(self.pages.end)))
    }

    fn has(&self, key: &PageKey) -> bool {
        self.object == key.object && self.pages.contains(&key.page)
    }

    /// Includes a write that follows this one. Returns whether it does.
    fn is_extended_by(&mut self, at: Duration, object: ObjectId, pages: &Range<PageNo>) -> bool {
        let follows = self.object == object && self.pages.end == pages.start && at < self.at + ONE_WRITE;
        if follows {
            self.pages.end = pages.end;
        }
        follows
    }
}

impl BypassedPages {
    /// Number of pages.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn contains(&self, key: &PageKey) -> bool {
        self.keys.contains(key)
    }

    /// Pages in a range of keys, in order.
    pub(crate) fn range(&self, keys: impl RangeBounds<PageKey>) -> impl Iterator<Item = PageKey> + '_ {
        self.keys.range(keys).copied()
    }

    /// Adds a page. Its write is [noted](Self::note_write) afterwards.
    pub(crate) fn insert(&mut self, key: PageKey) {
        self.keys.insert(key);
    }

    /// Notes that one write has just bypassed these pages.
    pub(crate) fn note_write(&mut self, at: Duration, object: ObjectId, pages: Range<PageNo>) {
        if !self.writes.back_mut().is_some_and(|last| last.is_extended_by(at, object, &pages)) {
            self.writes.push_back(BypassedWrite { at, object, pages });
        }
    }

    /// Removes a page that the buffer or the store has, or that is gone.
    pub(crate) fn remove(&mut self, key: &PageKey) {
        self.keys.remove(key);
        if self.writes.front().is_some_and(|first| first.has(key)) {
            self.drop_resolved_writes();
        }
    }

    fn drop_resolved_writes(&mut self) {
        while let Some(first) = self.writes.front()
            && self.keys.range(first.keys()).next().is_none()
        {
            self.resolved_since.get_or_insert(first.at);
            self.writes.pop_front();
        }
    }

    /// See the field.
    pub(crate) fn resolved_since(&self) -> Option<Duration> {
        self.resolved_since
    }

    /// Notes that a commit begins.
    pub(crate) fn note_commit_begun(&mut self) {
        self.resolved_since = None;
    }

    /// When the oldest page was written, or earlier.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.writes.front().map(|first| first.at)
    }

    /// At most `limit` pages that were written at `until` or earlier, the oldest first. A page that was
    /// stored and then written again counts as old as its first write, as long as other pages of that write
    /// are here.
    pub(crate) fn written_until(&self, until: Duration, limit: usize) -> Vec<PageKey> {
        let old = self.writes.iter().take_while(|write| write.at <= until);
        old.flat_map(|write| self.keys.range(write.keys())).copied().take(limit).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::VolumeId;

    const SECOND: Duration = Duration::from_secs(1);
    const FILE: ObjectId = VolumeId::MAIN.object(5, 1);

    fn key(page: u64) -> PageKey {
        PageKey { object: FILE, page: PageNo(page) }
    }

    fn write(bypassed: &mut BypassedPages, at: Duration, pages: Range<u64>) {
        pages.clone().for_each(|page| bypassed.insert(key(page)));
        bypassed.note_write(at, FILE, PageNo(pages.start)..PageNo(pages.end));
    }

    #[test]
    fn the_oldest_is_that_of_the_pages_that_are_left() {
        let mut bypassed = BypassedPages::default();
        assert_eq!(bypassed.oldest(), None);
        write(&mut bypassed, SECOND, 0..2);
        write(&mut bypassed, 2 * SECOND, 7..8);
        assert_eq!(bypassed.oldest(), Some(SECOND));
        assert_eq!(bypassed.written_until(SECOND, 9), [key(0), key(1)]);
        assert_eq!(bypassed.written_until(2 * SECOND, 2), [key(0), key(1)]);
        bypassed.remove(&key(0));
        assert_eq!(bypassed.oldest(), Some(SECOND));
        bypassed.remove(&key(1));
        assert_eq!(bypassed.oldest(), Some(2 * SECOND));
        bypassed.remove(&key(7));
        assert_eq!((bypassed.oldest(), bypassed.len()), (None, 0));
        assert_eq!(bypassed.resolved_since(), Some(SECOND));
        bypassed.note_commit_begun();
        assert_eq!(bypassed.resolved_since(), None);
    }

    #[test]
    fn a_page_is_due_urgent_and_overdue_at_parts_of_the_interval() {
        let ages = [1, 2, 3, 4].map(|quarters| BypassedAge::of(quarters * SECOND, 4 * SECOND));
        let expected = [BypassedAge::Young, BypassedAge::Due, BypassedAge::Urgent, BypassedAge::Overdue];
        assert_eq!(ages, expected);
    }

    #[test]
    fn a_later_write_that_is_stored_first_is_forgotten_when_its_turn_comes() {
        let mut bypassed = BypassedPages::default();
        write(&mut bypassed, SECOND, 0..1);
        write(&mut bypassed, 2 * SECOND, 5..6);
        write(&mut bypassed, 3 * SECOND, 9..10);
        bypassed.remove(&key(5));
        assert_eq!(bypassed.oldest(), Some(SECOND));
        bypassed.remove(&key(0));
        assert_eq!(bypassed.oldest(), Some(3 * SECOND));
    }

    #[test]
    fn a_stream_is_few_writes() {
        let mut bypassed = BypassedPages::default();
        for number in 0..1000 {
            write(&mut bypassed, Duration::from_millis(number), number..number + 1);
        }
        assert_eq!(bypassed.writes.len(), 50);
    }
}

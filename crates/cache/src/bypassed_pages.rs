//! Which bypassed pages the buffer lacks, and for how long.
//!
//! One rule bounds what a crash takes of them: *a bypassed page that the store does not have after a commit interval is logged by the
//! next commit.* A store that is slow, busy with clones, stands still or fails prolongs nothing. Only the buffer does: one that fails, or
//! is slow, by the time that it takes to write them. So that
//! few pages are written twice, write-back begins at a [half](BypassedAge::Due) of the interval, from when on no more pages may bypass,
//! and leaves no more time to syncs at [three quarters](BypassedAge::Urgent).

use crate::page_table::Key;
use device::{ObjectId, PageNo};
use std::collections::{BTreeSet, VecDeque};
use std::ops::{Bound, Range, RangeBounds};
use std::time::Duration;

/// Writes of one file that follow each other within this are one write here: a stream is a few of them a second.
const ONE_WRITE: Duration = Duration::from_millis(20);

/// Pages that a record in the log names and of which neither the log nor the store has the bytes. A part of `Pages`, under the
/// cache's lock. After a crash: empty; recovery asks the store which of the named pages it has.
#[derive(Default)]
pub(crate) struct BypassedPages {
    keys: BTreeSet<Key>,
    /// The writes that they came by, oldest first. Of the first one at least one page is among `keys`.
    writes: VecDeque<BypassedWrite>,
    /// When the oldest write was made that has been settled since the last commit began. A commit must follow as soon as if it had not: it
    /// makes the record durable that overwrote or cut the last of its pages, or that has its bytes, or that names the batch of the
    /// store that has them.
    settled_since: Option<Duration>,
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
    /// Less than half of one, or there is none.
    Young,
    /// At least half: it is written back, and no more pages bypass before that.
    Due,
    /// At least three quarters: it is written back though clients sync meanwhile.
    Urgent,
    /// All of one: the next commit logs it.
    Overdue,
}

impl BypassedAge {
    /// That of a page which is so old, where it may be as old as `interval`.
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
    fn keys(&self) -> (Bound<Key>, Bound<Key>) {
        let key = |page| Key { object: self.object, page };
        (Bound::Included(key(self.pages.start)), Bound::Excluded(key(self.pages.end)))
    }

    fn has(&self, key: &Key) -> bool {
        self.object == key.object && self.pages.contains(&key.page)
    }

    /// Takes in a write that follows this one, if it does.
    fn is_extended_by(&mut self, at: Duration, object: ObjectId, pages: &Range<PageNo>) -> bool {
        let follows = self.object == object && self.pages.end == pages.start && at < self.at + ONE_WRITE;
        if follows {
            self.pages.end = pages.end;
        }
        follows
    }
}

impl BypassedPages {
    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn contains(&self, key: &Key) -> bool {
        self.keys.contains(key)
    }

    /// Those in a range, in the order of their keys.
    pub(crate) fn range(&self, keys: impl RangeBounds<Key>) -> impl Iterator<Item = Key> + '_ {
        self.keys.range(keys).copied()
    }

    /// A page that was bypassed. Its write is [noted](Self::note_write) afterwards.
    pub(crate) fn insert(&mut self, key: Key) {
        self.keys.insert(key);
    }

    /// Pages that were just bypassed, in one write.
    pub(crate) fn note_write(&mut self, at: Duration, object: ObjectId, pages: Range<PageNo>) {
        if !self.writes.back_mut().is_some_and(|last| last.is_extended_by(at, object, &pages)) {
            self.writes.push_back(BypassedWrite { at, object, pages });
        }
    }

    /// The buffer or the store has a page now, or it is gone.
    pub(crate) fn remove(&mut self, key: &Key) {
        self.keys.remove(key);
        if self.writes.front().is_some_and(|first| first.has(key)) {
            self.drop_settled_writes();
        }
    }

    fn drop_settled_writes(&mut self) {
        while let Some(first) = self.writes.front()
            && self.keys.range(first.keys()).next().is_none()
        {
            self.settled_since.get_or_insert(first.at);
            self.writes.pop_front();
        }
    }

    /// See the field.
    pub(crate) fn settled_since(&self) -> Option<Duration> {
        self.settled_since
    }

    /// A commit begins.
    pub(crate) fn settled_are_committed(&mut self) {
        self.settled_since = None;
    }

    /// When the oldest one was written, or earlier.
    pub(crate) fn oldest(&self) -> Option<Duration> {
        self.writes.front().map(|first| first.at)
    }

    /// At most `limit` of those that were written at `until` or earlier, oldest first. A page that was stored and then written again
    /// counts as old as the first write, as long as others of that write are here.
    pub(crate) fn written_until(&self, until: Duration, limit: usize) -> Vec<Key> {
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

    fn key(page: u64) -> Key {
        Key { object: FILE, page: PageNo(page) }
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
        assert_eq!(bypassed.settled_since(), Some(SECOND));
        bypassed.settled_are_committed();
        assert_eq!(bypassed.settled_since(), None);
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

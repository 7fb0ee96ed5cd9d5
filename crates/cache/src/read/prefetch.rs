//! Prefetch: fetches pages that a write left partial, so that later reads find them whole. No read waits for
//! them.
//!
//! Neither the write nor write-back needs such a fetch (*Non-blocking Writes to Files*, section 4, differs
//! here): it is worth its read only if a program reads where it has written. So with [`FetchMode::Adaptive`]
//! an object must earn prefetches: each read that had to wait for the rest of a partial page is a sign that
//! the next ones may, too.

use crate::page_table::PageKey;
use crate::settings::FetchMode;
use device::ObjectId;
use std::collections::VecDeque;

/// Pages that may be queued. Further ones are left to their readers.
const QUEUED_MAX: usize = 1024;
/// Objects that are remembered.
const OBJECTS_MAX: usize = 32;
/// Prefetches that one waiting read earns. If all such reads would have waited, one in nine does.
const CREDIT_PER_READ: u32 = 8;
/// Prefetches that an object can have earned: soon used up when it is not read any more.
const CREDIT_MAX: u32 = 64;

/// Under the cache's lock. After a crash: empty.
#[derive(Default)]
pub(crate) struct PrefetchQueue {
    queue: VecDeque<PageKey>,
    /// Objects whose readers waited, with the prefetches that they have earned. The object that earned some
    /// last is the last.
    credits: Vec<(ObjectId, u32)>,
}

impl PrefetchQueue {
    /// Notes that a write left a page partial that was not in memory.
    pub(crate) fn left_partial(&mut self, mode: FetchMode, key: PageKey) {
        let is_wanted = match mode {
            FetchMode::Blocking | FetchMode::Lazy => false,
            FetchMode::Background => true,
            FetchMode::Adaptive => self.spend_credit(key.object),
        };
        // Metadata is in memory above the cache.
        if is_wanted && !key.object.is_metadata() && self.queue.len() < QUEUED_MAX {
            self.queue.push_back(key);
        }
    }

    /// Notes that a read waits for the rest of a partial page.
    pub(crate) fn add_credit(&mut self, object: ObjectId) {
        let known = self.credits.iter().position(|(known, _)| *known == object);
        let earned = known.map_or(0, |at| self.credits.remove(at).1);
        if self.credits.len() == OBJECTS_MAX {
            self.credits.remove(0);
        }
        self.credits.push((object, (earned + CREDIT_PER_READ).min(CREDIT_MAX)));
    }

    fn spend_credit(&mut self, object: ObjectId) -> bool {
        let Some(at) = self.credits.iter().position(|(known, _)| *known == object) else { return false };
        self.credits[at].1 -= 1;
        if self.credits[at].1 == 0 {
            self.credits.remove(at);
        }
        true
    }

    /// The next page to fetch, if it is still in memory and partial.
    pub(crate) fn pop(&mut self) -> Option<PageKey> {
        self.queue.pop_front()
    }

    pub(crate) fn stop(&mut self) {
        self.queue.clear();
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{PageNo, VolumeId};

    fn key(slot: u64, page: u64) -> PageKey {
        PageKey { object: VolumeId::MAIN.object(slot, 1), page: PageNo(page) }
    }

    #[test]
    fn each_read_that_waited_earns_its_object_some_fetches_and_no_other_object() {
        let mut background = PrefetchQueue::default();
        background.left_partial(FetchMode::Adaptive, key(5, 0));
        assert!(background.is_idle(), "nobody reads");
        background.add_credit(key(5, 0).object);
        for page in 0..100 {
            background.left_partial(FetchMode::Adaptive, key(6, page));
            background.left_partial(FetchMode::Adaptive, key(5, page));
        }
        let fetched: Vec<PageKey> = std::iter::from_fn(|| background.pop()).collect();
        assert_eq!(fetched, (0..u64::from(CREDIT_PER_READ)).map(|page| key(5, page)).collect::<Vec<_>>());
        (0..100).for_each(|_| background.add_credit(key(5, 0).object));
        (0..1000).for_each(|page| background.left_partial(FetchMode::Adaptive, key(5, page)));
        assert_eq!(std::iter::from_fn(|| background.pop()).count(), CREDIT_MAX as usize);
    }

    #[test]
    fn in_the_background_every_page_of_a_file_is_fetched_up_to_a_limit_and_otherwise_none() {
        let mut background = PrefetchQueue::default();
        for (mode, fetched) in
            [(FetchMode::Lazy, 0), (FetchMode::Blocking, 0), (FetchMode::Background, QUEUED_MAX)]
        {
            (0..2000).for_each(|page| background.left_partial(mode, key(5, page)));
            (0..2000).for_each(|page| background.left_partial(mode, key(ObjectId::METADATA_SLOT, page)));
            assert_eq!(std::iter::from_fn(|| background.pop()).count(), fetched, "{mode:?}");
        }
    }
}

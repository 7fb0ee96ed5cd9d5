//! Scans the dirty pages for some that may be written back, the oldest first, a bounded piece under each hold
//! of the lock.
//!
//! If many are stuck, as below a damaged node of the store's map, they are the oldest. So a scan continues
//! behind the pages that it has seen, where newly dirty pages are found at once. It restarts now and then,
//! the more seldom the more pages are stuck.

use crate::page_table::{PageKey, PageTable};
use crate::retry::{FailureCount, RETRY_AFTER, RetryList, WriteBackItem};
use buffer::GroupNo;
use device::{PageNo, VolumeId};
use std::time::Duration;

/// Pages visited under one hold of the lock: some milliseconds.
pub(crate) const LOOKS_MAX: usize = 4096;

/// For each of this many stuck pages, a restart waits for one more [`RETRY_AFTER`]: it takes about a
/// hundredth of a processor's time.
const STUCK_PER_WAIT: u32 = 40_000;

/// A key before all others.
const FIRST: PageKey = PageKey { object: VolumeId::MAIN.object(0, 0), page: PageNo(0) };

/// The position of a scan. Owned by its caller; gone after a crash.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct DirtyScan {
    /// Everything is tried once: items that failed after these failures have been tried, however long that
    /// took. `None`: the scan has no end, and items are tried again when their pauses are over.
    once_since: Option<FailureCount>,
    /// Where to continue. `None`: at the oldest page.
    next: Option<(GroupNo, PageKey)>,
    /// Something was found since the last restart.
    found: bool,
    /// When to restart.
    restart_at: Duration,
}

impl DirtyScan {
    /// A scan that tries everything once, from now on.
    pub(crate) fn once(failures: FailureCount) -> DirtyScan {
        DirtyScan { once_since: Some(failures), ..DirtyScan::default() }
    }

    /// Whether an item is not to be tried now: it failed lately, or has been tried.
    pub(crate) fn skips(&self, retries: &RetryList, victim: WriteBackItem, now: Duration) -> bool {
        match self.once_since {
            Some(since) => retries.has_failed_since(victim, since),
            None => retries.is_backed_off(victim, now),
        }
    }

    /// Continues with the oldest page.
    pub(crate) fn restart(&mut self) {
        self.next = None;
        self.found = false;
    }

    /// Restarts if it is time to, with `stuck` stuck pages.
    pub(crate) fn restart_periodically(&mut self, now: Duration, stuck: usize) {
        if self.once_since.is_none() && now >= self.restart_at {
            self.restart();
            let stuck = u32::try_from(stuck).unwrap_or(u32::MAX);
            self.restart_at = now + RETRY_AFTER * (1 + stuck / STUCK_PER_WAIT);
        }
    }

    /// Passes dirty pages to `take`, from where the last visit ended, until `take` returns false or enough
    /// were visited. Returns whether the newest page was reached.
    pub(crate) fn visit(&mut self, pages: &PageTable, mut take: impl FnMut(PageKey) -> bool) -> bool {
        let mut newest = None;
        for (looks, (group, key)) in pages.by_group_from(self.next.unwrap_or((GroupNo(0), FIRST))).enumerate()
        {
            if looks == LOOKS_MAX || !take(key) {
                self.next = Some((group, key));
                return false;
            }
            newest = Some((group, FIRST));
        }
        // More pages may join the newest group.
        self.next = newest.or(self.next);
        true
    }

    /// Whether nothing more will be found, after a visit that reached the newest page or not, and found
    /// something or not. A scan that tries everything once is only finished after a whole pass that found
    /// nothing.
    pub(crate) fn is_finished(&mut self, reached_newest: bool, found: bool) -> bool {
        self.found |= found;
        if !reached_newest || self.once_since.is_none() {
            return reached_newest;
        }
        let is_over = !self.found;
        self.restart();
        is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::DirtyState;
    use device::Lsn;
    use store::StoreError;

    fn key(page: u64) -> PageKey {
        PageKey { object: VolumeId::MAIN.object(1, 1), page: PageNo(page) }
    }

    /// Dirty pages, each in a group of its own.
    fn dirty(numbers: std::ops::Range<u64>, pages: &mut PageTable) {
        for page in numbers {
            let newest = Lsn(page + 1);
            let group = GroupNo(page + 1);
            pages.change(key(page), |entry| {
                entry.write(0, b"weir");
                entry.mark_dirty(0..4, newest, group, || {
                    DirtyState::new(newest, group, Duration::ZERO, false)
                });
            });
        }
    }

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn what_is_stuck_is_looked_at_now_and_then_and_what_is_new_at_once() {
        let mut pages = PageTable::default();
        let mut retries = RetryList::default();
        let mut scan = DirtyScan::default();
        let mut looks = 0u64;
        dirty(0..100_000, &mut pages);
        // So often that each pauses for longer than this test takes.
        for page in (0..100_000).flat_map(|page| [page; 8]) {
            retries.back_off(WriteBackItem::Page(key(page)), StoreError::NotBegun, Duration::from_secs(3600));
        }
        let mut look = |pages: &PageTable, now: Duration| {
            let mut found = Vec::new();
            scan.restart_periodically(now, retries.stuck_count());
            let filter = scan;
            let reached = scan.visit(pages, |key| {
                looks += 1;
                let alone = filter.skips(&retries, WriteBackItem::Page(key), now);
                found.extend((!alone).then_some(key));
                found.is_empty()
            });
            (scan.is_finished(reached, !found.is_empty()), found)
        };
        let mut now = Duration::from_secs(3600);
        let mut seconds = 0;
        while seconds < 30 {
            while !look(&pages, now).0 {}
            now += 100 * MILLISECOND;
            seconds = now.as_secs() - 3600;
        }
        while !look(&pages, now).0 {}
        dirty(100_000..100_001, &mut pages);
        assert_eq!(look(&pages, now).1, [key(100_000)], "it does not wait for those that are stuck");
        assert!(looks < 12 * 100_000, "{looks} looks in 30 s at 100,000 pages that are stuck");
    }

    #[test]
    fn all_have_their_turn_once_however_long_each_takes() {
        let mut pages = PageTable::default();
        let mut retries = RetryList::default();
        let mut now = Duration::ZERO;
        dirty(0..3 * LOOKS_MAX as u64, &mut pages);
        retries.back_off(WriteBackItem::Page(key(5)), StoreError::Full, now);
        let mut scan = DirtyScan::once(retries.failures());
        let mut tried = Vec::new();
        loop {
            let mut found = Vec::new();
            let filter = scan;
            let reached = scan.visit(&pages, |key| {
                if !filter.skips(&retries, WriteBackItem::Page(key), now) {
                    found.push(key);
                }
                found.len() < 256
            });
            if scan.is_finished(reached, !found.is_empty()) {
                break;
            }
            // Far longer than any pause.
            now += Duration::from_secs(3600);
            found.iter().for_each(|&key| retries.back_off(WriteBackItem::Page(key), StoreError::Full, now));
            tried.extend(found);
        }
        assert_eq!(tried, (0..3 * LOOKS_MAX as u64).map(key).collect::<Vec<_>>());
    }
}

//! Items that could not be written back: when each is tried again, and when writers get an error instead of
//! waiting.

use crate::error::CacheError;
use crate::page_table::{PageKey, PageTable};
use crate::range_ops::{PendingRangeOps, RangeOp};
use crate::status::StuckItem;
use device::{Lsn, ObjectId};
use std::collections::BTreeMap;
use std::time::Duration;
use store::StoreError;

/// The pause after the first failure of an item. It doubles with each further failure, unless the item only
/// needs space.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A damaged item stays damaged, but a bad cable is replaced in a minute.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// Items that a status shows: a screenful.
const SHOWN: usize = 8;

/// Something to be written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WriteBackItem {
    Page(PageKey),
    Punch(ObjectId, Lsn),
    /// A clone or a move, by its target.
    RangeOp(ObjectId, Lsn),
}

impl WriteBackItem {
    /// Whether it is still to be written back.
    pub(crate) fn is_pending(&self, pages: &PageTable) -> bool {
        match *self {
            WriteBackItem::Page(key) => pages.get(&key).is_some_and(|entry| entry.oldest_group().is_some()),
            WriteBackItem::Punch(object, lsn) => pages.is_punch_pending(object, lsn),
            WriteBackItem::RangeOp(_, lsn) => pages.range_ops().get(lsn).is_some(),
        }
    }

    /// The item of a range operation.
    pub(crate) fn of(op: &RangeOp) -> WriteBackItem {
        WriteBackItem::RangeOp(op.transfer.to, op.lsn)
    }
}

/// Failed items. Under the cache's lock. After a crash: empty; the items fail again.
#[derive(Default)]
pub(crate) struct RetryList {
    backed_off: BTreeMap<WriteBackItem, ItemBackOff>,
    failures: FailureCount,
    stall: Option<WriteBackStall>,
    /// Since when an operation needs space that only write-back makes, during this stall.
    space_needed_since: Option<Duration>,
}

/// The number of failures so far. A pass over everything notes it at its beginning: an item that failed since
/// then has been tried, however long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct FailureCount(u64);

struct ItemBackOff {
    /// The first of these failures, of one kind: for lack of space, by damage, or other.
    since: Duration,
    /// The last failure.
    last: Duration,
    until: Duration,
    wait: Duration,
    /// The number of this failure among all.
    failure: FailureCount,
    error: StoreError,
}

/// Attempts to write anything back that all failed.
struct WriteBackStall {
    since: Duration,
    /// When the last attempt was made.
    last: Duration,
    attempts: u64,
    error: CacheError,
}

impl WriteBackStall {
    /// Space may have come since the last attempt, which was before `due`. The next attempt, which is soon,
    /// will tell.
    fn may_have_space(&self, due: Duration) -> bool {
        self.error.is_full() && self.last < due
    }
}

impl RetryList {
    /// Notes a failure of `item`, which is then left alone for a while.
    pub(crate) fn back_off(&mut self, item: WriteBackItem, error: StoreError, now: Duration) {
        let before = self.backed_off.get(&item);
        let wait = match before {
            Some(before) if !error.is_full() => (before.wait * 2).min(RETRY_AFTER_MAX),
            _ => RETRY_AFTER,
        };
        let is_alike = |before: &&ItemBackOff| {
            (before.error.is_full(), before.error.is_damage()) == (error.is_full(), error.is_damage())
        };
        let since = before.filter(is_alike).map_or(now, |before| before.since);
        self.failures.0 += 1;
        let failure = self.failures;
        self.backed_off
            .insert(item, ItemBackOff { since, last: now, until: now + wait, wait, failure, error });
    }

    /// The number of failures so far.
    pub(crate) fn failures(&self) -> FailureCount {
        self.failures
    }

    /// Whether `item` failed after the first `failures`.
    pub(crate) fn has_failed_since(&self, item: WriteBackItem, failures: FailureCount) -> bool {
        self.backed_off.get(&item).is_some_and(|one| one.failure > failures)
    }

    /// Number of items that failed when they were last tried.
    pub(crate) fn stuck_count(&self) -> usize {
        self.backed_off.len()
    }

    /// Whether `item` failed and is to be left alone now.
    pub(crate) fn is_backed_off(&self, item: WriteBackItem, now: Duration) -> bool {
        self.backed_off.get(&item).is_some_and(|one| now < one.until)
    }

    /// Whether `item` failed when it was last tried.
    pub(crate) fn is_stuck(&self, item: WriteBackItem) -> bool {
        self.backed_off.contains_key(&item)
    }

    /// Since when all attempts failed for the same kind of reason, if the last one failed.
    pub(crate) fn failing_since(&self, item: WriteBackItem) -> Option<Duration> {
        self.backed_off.get(&item).map(|one| one.since)
    }

    /// Why a range operation cannot be stored: it, or one for which it waits, failed when it was last tried.
    /// Lack of space is no reason before `patience`.
    pub(crate) fn range_op_error(
        &self,
        transfers: &PendingRangeOps,
        lsn: Lsn,
        patience: Duration,
    ) -> Option<CacheError> {
        let failed = |lsn| {
            let one = self.backed_off.get(&WriteBackItem::of(&transfers.get(lsn)?.op))?;
            (!one.error.is_full() || one.last >= one.since + patience).then_some(&one.error)
        };
        let stuck = transfers.stuck_dependency(lsn, |lsn| failed(lsn).is_some())?;
        failed(stuck).cloned().map(CacheError::from)
    }

    /// Why nothing is written back, if that has been so for `patience`.
    pub(crate) fn stall_error(&self, now: Duration, patience: Duration) -> Option<&CacheError> {
        let stall = self.stall.as_ref()?;
        let due = stall.since + patience;
        (now >= due && !stall.may_have_space(due)).then_some(&stall.error)
    }

    /// The error of an item that needs nothing but space, if there is one.
    pub(crate) fn space_error(&self, pages: &PageTable) -> Option<&StoreError> {
        let full = self.backed_off.iter().find(|(item, one)| one.error.is_full() && item.is_pending(pages));
        full.map(|(_, one)| &one.error)
    }

    /// Lets items that found no space be tried again now.
    pub(crate) fn may_have_space(&mut self, now: Duration) {
        self.backed_off.values_mut().filter(|one| one.error.is_full()).for_each(|one| one.until = now);
    }

    /// Space is being made: restarts the patience of operations that wait for space.
    pub(crate) fn restart_space_patience(&mut self, now: Duration) {
        let Some(stall) = self.stall.as_mut().filter(|stall| stall.error.is_full()) else { return };
        stall.since = now;
        self.space_needed_since = self.space_needed_since.map(|_| now);
        self.backed_off.values_mut().filter(|one| one.error.is_full()).for_each(|one| one.since = now);
    }

    /// Drops an item that was written back.
    pub(crate) fn forget(&mut self, item: WriteBackItem) {
        self.backed_off.remove(&item);
    }

    /// Keeps only the items that still exist.
    pub(crate) fn retain(&mut self, mut is_there: impl FnMut(&WriteBackItem) -> bool) {
        self.backed_off.retain(|item, _| is_there(item));
    }

    /// Notes that something was written back.
    pub(crate) fn note_success(&mut self) {
        self.stall = None;
        self.space_needed_since = None;
    }

    /// Notes an attempt that wrote nothing back.
    pub(crate) fn note_failure(&mut self, error: CacheError, now: Duration) {
        let before = self.stall.take();
        let (since, attempts) = before.map_or((now, 0), |stall| (stall.since, stall.attempts));
        self.stall = Some(WriteBackStall { since, last: now, attempts: attempts + 1, error });
    }

    /// Whether nothing is written back because the store, or what holds it, is full.
    pub(crate) fn needs_space(&self) -> bool {
        self.stall.as_ref().is_some_and(|stall| stall.error.is_full())
    }

    /// An operation needs space, and there is none. Returns the error for it, or `None` while it may wait: an
    /// item that has been stuck for hours does not say what others will find.
    pub(crate) fn no_space_error(&mut self, now: Duration, patience: Duration) -> Option<&CacheError> {
        let stall = self.stall.as_ref()?;
        let due = *self.space_needed_since.get_or_insert(now) + patience;
        (now >= due && !stall.may_have_space(due)).then_some(&stall.error)
    }

    /// Notes that an operation needed space and found some.
    pub(crate) fn note_space_found(&mut self) {
        self.space_needed_since = None;
    }

    /// The error of the first stuck item.
    pub(crate) fn first_error(&self) -> Option<&StoreError> {
        self.backed_off.values().next().map(|one| &one.error)
    }

    /// Number of stuck items, and some of them. An item that only needs space is stuck once it has failed twice
    /// while no space was made.
    pub(crate) fn report_stuck(&self) -> (u64, Vec<StuckItem>) {
        let is_stuck = |one: &ItemBackOff| !one.error.is_full() || one.last >= one.since + RETRY_AFTER;
        let stuck = self.backed_off.iter().filter(|(_, one)| is_stuck(one));
        let shown = stuck.clone().take(SHOWN).map(|(item, one)| {
            let (object, page) = match *item {
                WriteBackItem::Page(key) => (key.object, Some(key.page)),
                WriteBackItem::Punch(object, _) | WriteBackItem::RangeOp(object, _) => (object, None),
            };
            StuckItem { object, page, why: one.error.to_string() }
        });
        (stuck.count() as u64, shown.collect())
    }

    /// Why nothing is written back, in words.
    pub(crate) fn describe_stall(&self, now: Duration) -> Option<String> {
        let WriteBackStall { since, attempts, error, .. } = self.stall.as_ref()?;
        let seconds = now.saturating_sub(*since).as_secs();
        Some(format!("nothing has been written back for {seconds} s, in {attempts} attempts: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range_ops::PendingRangeOp;
    use buffer::GroupNo;
    use device::{PageNo, PageTransfer, VolumeId};

    const SECOND: Duration = Duration::from_secs(1);

    fn item() -> WriteBackItem {
        WriteBackItem::Page(PageKey { object: VolumeId::MAIN.object(1, 1), page: PageNo(3) })
    }

    #[test]
    fn what_fails_again_is_left_alone_for_twice_as_long_but_at_most_a_minute() {
        let mut retries = RetryList::default();
        let mut now = Duration::ZERO;
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            retries.back_off(item(), StoreError::NotBegun, now);
            assert!(retries.is_backed_off(item(), now + SECOND * wait - Duration::from_nanos(1)));
            now += SECOND * wait;
            assert!(!retries.is_backed_off(item(), now), "after {wait} s");
        }
        assert!(retries.is_stuck(item()));
        retries.retain(|_| false);
        assert!(!retries.is_stuck(item()));
    }

    #[test]
    fn what_needs_only_space_is_stuck_once_it_failed_twice_while_none_was_made() {
        let mut retries = RetryList::default();
        retries.note_failure(StoreError::Full.into(), Duration::ZERO);
        for second in 0..5 {
            retries.back_off(item(), StoreError::Full, SECOND * second);
            assert_eq!(retries.report_stuck().0, 0, "after {second} s");
            retries.restart_space_patience(SECOND * second + SECOND / 2);
        }
        retries.back_off(item(), StoreError::Full, SECOND * 5);
        assert_eq!(retries.report_stuck().0, 0);
        retries.back_off(item(), StoreError::Full, SECOND * 6);
        let (count, shown) = retries.report_stuck();
        assert_eq!((count, shown.len()), (1, 1));
        retries.back_off(item(), StoreError::NotBegun, SECOND * 7);
        assert_eq!(retries.report_stuck().0, 1, "time does not help");
    }

    #[test]
    fn who_waits_for_a_clone_is_told_that_there_is_no_space_only_by_an_attempt_after_the_patience() {
        let mut retries = RetryList::default();
        let patience = 30 * SECOND;
        retries.note_failure(StoreError::Full.into(), 10 * SECOND);
        assert!(retries.stall_error(90 * SECOND, patience).is_none(), "there may be space by now");
        retries.note_failure(StoreError::Full.into(), 90 * SECOND);
        assert!(retries.stall_error(90 * SECOND, patience).is_some());
    }

    #[test]
    fn a_clone_that_needs_space_is_tried_each_second_and_who_waits_for_it_is_told_after_the_patience() {
        let object = VolumeId::MAIN.object(1, 1);
        let patience = 30 * SECOND;
        let transfer = PageTransfer::clone_of(object, VolumeId::MAIN.object(2, 1));
        let op = RangeOp { transfer, lsn: Lsn(7) };
        let mut transfers = PendingRangeOps::default();
        let mut retries = RetryList::default();
        transfers.insert(PendingRangeOp::new(op, GroupNo(1), Duration::ZERO, false));
        for second in 0..30 {
            let now = SECOND * second;
            assert!(!retries.is_backed_off(WriteBackItem::of(&op), now));
            retries.back_off(WriteBackItem::of(&op), StoreError::Full, now);
            assert!(retries.range_op_error(&transfers, Lsn(7), patience).is_none(), "after {second} s");
        }
        retries.back_off(WriteBackItem::of(&op), StoreError::Full, patience);
        assert!(retries.range_op_error(&transfers, Lsn(7), patience).is_some());
        retries.forget(WriteBackItem::of(&op));
        retries.back_off(WriteBackItem::of(&op), StoreError::NotBegun, patience);
        assert!(retries.range_op_error(&transfers, Lsn(7), patience).is_some(), "all else is told at once");
    }

    #[test]
    fn writers_are_told_after_the_time_that_they_may_wait_and_not_before() {
        let mut retries = RetryList::default();
        let patience = 30 * SECOND;
        assert!(retries.no_space_error(Duration::ZERO, patience).is_none());
        assert!(retries.no_space_error(100 * SECOND, patience).is_none(), "nothing has failed");
        // An item that failed long before an operation needed space.
        retries.note_failure(StoreError::Full.into(), 100 * SECOND);
        retries.note_failure(StoreError::Full.into(), 160 * SECOND);
        assert!(retries.no_space_error(200 * SECOND, patience).is_none());
        assert!(retries.no_space_error(229 * SECOND, patience).is_none());
        assert!(retries.no_space_error(230 * SECOND, patience).is_none(), "there may be space by now");
        retries.note_failure(StoreError::Full.into(), 230 * SECOND);
        assert!(retries.no_space_error(230 * SECOND, patience).is_some());
        retries.note_space_found();
        assert!(retries.no_space_error(231 * SECOND, patience).is_none());
        retries.note_success();
        assert!(retries.no_space_error(300 * SECOND, patience).is_none());
    }
}

//! What cannot be written back: what is left alone for a while, and when writers are told instead of kept waiting.

use crate::error::CacheError;
use crate::pages::{Key, Pages};
use crate::status::Stuck;
use crate::transfers::{Ordered, Transfers};
use device::{Lsn, ObjectId};
use std::collections::BTreeMap;
use std::time::Duration;
use store::StoreError;

/// How long what could not be written back is left alone the first time; twice as long each further time, unless space is all that it
/// needs.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(1);
/// What is damaged stays so, but a bad cable is replaced in a minute.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(60);
/// How many a status names: a screenful.
const SHOWN: usize = 8;

/// One thing being written back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Victim {
    Page(Key),
    Cut(ObjectId, Lsn),
    /// A clone or a move, by its target.
    Transfer(ObjectId, Lsn),
}

impl Victim {
    /// Whether it is still to be written back.
    pub(crate) fn is_there(&self, pages: &Pages) -> bool {
        match *self {
            Victim::Page(key) => pages.get(&key).is_some_and(|entry| entry.group().is_some()),
            Victim::Cut(object, lsn) => pages.is_pending(object, lsn),
            Victim::Transfer(_, lsn) => pages.transfers().get(lsn).is_some(),
        }
    }

    /// A clone or a move.
    pub(crate) fn of(what: &Ordered) -> Victim {
        Victim::Transfer(what.transfer.to, what.lsn)
    }
}

/// Under the cache's lock. After a crash: found out again.
#[derive(Default)]
pub(crate) struct RetryList {
    backed_off: BTreeMap<Victim, BackOff>,
    failures: Failures,
    stall: Option<Stall>,
    /// Since when an operation needs space that only comes when something is written back, during this stall.
    needed: Option<Duration>,
}

/// How many times something could not be written back so far. A round over everything notes it when it begins: what failed since then
/// has had its turn, however long that took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Failures(u64);

struct BackOff {
    /// The first of these failures: for lack of space, of damage, or all others.
    since: Duration,
    /// The last one.
    last: Duration,
    until: Duration,
    wait: Duration,
    /// Which of all failures this was.
    failure: Failures,
    error: StoreError,
}

/// Attempts to write something back that all failed.
struct Stall {
    since: Duration,
    /// When the last one was made.
    last: Duration,
    attempts: u64,
    error: CacheError,
}

impl Stall {
    /// Space may have come since the last attempt, which was before `due`: the next one, which is soon, will tell.
    fn may_have_space(&self, due: Duration) -> bool {
        self.error.is_full() && self.last < due
    }
}

impl RetryList {
    /// Leaves `victim` alone for a while.
    pub(crate) fn back_off(&mut self, victim: Victim, error: StoreError, now: Duration) {
        let before = self.backed_off.get(&victim);
        let wait = match before {
            Some(before) if !error.is_full() => (before.wait * 2).min(RETRY_AFTER_MAX),
            _ => RETRY_AFTER,
        };
        let is_alike = |before: &&BackOff| {
            (before.error.is_full(), before.error.is_damage()) == (error.is_full(), error.is_damage())
        };
        let since = before.filter(is_alike).map_or(now, |before| before.since);
        self.failures.0 += 1;
        let failure = self.failures;
        self.backed_off.insert(victim, BackOff { since, last: now, until: now + wait, wait, failure, error });
    }

    /// How many failures there were so far.
    pub(crate) fn failures(&self) -> Failures {
        self.failures
    }

    /// Whether `victim` failed after so many failures.
    pub(crate) fn has_failed_since(&self, victim: Victim, failures: Failures) -> bool {
        self.backed_off.get(&victim).is_some_and(|one| one.failure > failures)
    }

    /// How many could not be written back when they were last tried.
    pub(crate) fn count(&self) -> usize {
        self.backed_off.len()
    }

    /// Whether `victim` failed lately.
    pub(crate) fn is_backed_off(&self, victim: Victim, now: Duration) -> bool {
        self.backed_off.get(&victim).is_some_and(|one| now < one.until)
    }

    /// Whether `victim` failed the last time that it was tried.
    pub(crate) fn is_stuck(&self, victim: Victim) -> bool {
        self.backed_off.contains_key(&victim)
    }

    /// Since when all attempts to write it back failed for such a reason as the last one, if that did.
    pub(crate) fn failing_since(&self, victim: Victim) -> Option<Duration> {
        self.backed_off.get(&victim).map(|one| one.since)
    }

    /// Why a clone or a move cannot be stored, as it or one that it waits for failed the last time; if that is so. That there is no space
    /// is waited for.
    pub(crate) fn why_stuck(
        &self,
        transfers: &Transfers,
        lsn: Lsn,
        patience: Duration,
    ) -> Option<CacheError> {
        let failed = |lsn| {
            let one = self.backed_off.get(&Victim::of(&transfers.get(lsn)?.what))?;
            (!one.error.is_full() || one.last >= one.since + patience).then_some(&one.error)
        };
        let stuck = transfers.stuck_before(lsn, |lsn| failed(lsn).is_some())?;
        failed(stuck).cloned().map(CacheError::from)
    }

    /// Why nothing is written back, if that is so for longer than somebody waits.
    pub(crate) fn given_up(&self, now: Duration, patience: Duration) -> Option<&CacheError> {
        let stall = self.stall.as_ref()?;
        let due = stall.since + patience;
        (now >= due && !stall.may_have_space(due)).then_some(&stall.error)
    }

    /// Why something is stuck that needs nothing but space, if there is such a thing.
    pub(crate) fn lacks_space(&self, pages: &Pages) -> Option<&StoreError> {
        let full = self.backed_off.iter().find(|(victim, one)| one.error.is_full() && victim.is_there(pages));
        full.map(|(_, one)| &one.error)
    }

    /// What found no space may find some now.
    pub(crate) fn may_have_space(&mut self, now: Duration) {
        self.backed_off.values_mut().filter(|one| one.error.is_full()).for_each(|one| one.until = now);
    }

    /// Space is being made: who waits for some goes on waiting, as if nothing had failed for lack of it before.
    pub(crate) fn space_is_made(&mut self, now: Duration) {
        let Some(stall) = self.stall.as_mut().filter(|stall| stall.error.is_full()) else { return };
        stall.since = now;
        self.needed = self.needed.map(|_| now);
        self.backed_off.values_mut().filter(|one| one.error.is_full()).for_each(|one| one.since = now);
    }

    /// Forgets one that was written back.
    pub(crate) fn stored(&mut self, victim: Victim) {
        self.backed_off.remove(&victim);
    }

    /// Forgets those that are no more.
    pub(crate) fn keep(&mut self, mut is_there: impl FnMut(&Victim) -> bool) {
        self.backed_off.retain(|victim, _| is_there(victim));
    }

    /// Something was written back.
    pub(crate) fn worked(&mut self) {
        self.stall = None;
        self.needed = None;
    }

    /// An attempt wrote nothing back.
    pub(crate) fn failed(&mut self, error: CacheError, now: Duration) {
        let before = self.stall.take();
        let (since, attempts) = before.map_or((now, 0), |stall| (stall.since, stall.attempts));
        self.stall = Some(Stall { since, last: now, attempts: attempts + 1, error });
    }

    /// Nothing is written back because the store, or what holds it, has no space for it.
    pub(crate) fn needs_space(&self) -> bool {
        self.stall.as_ref().is_some_and(|stall| stall.error.is_full())
    }

    /// An operation needs space, and there is none. What to tell it; `None` as long as it may wait for it: a page that is
    /// stuck for hours says nothing of what others will find when they are written back.
    pub(crate) fn no_space(&mut self, now: Duration, patience: Duration) -> Option<&CacheError> {
        let stall = self.stall.as_ref()?;
        let due = *self.needed.get_or_insert(now) + patience;
        (now >= due && !stall.may_have_space(due)).then_some(&stall.error)
    }

    /// An operation needed space, and there was some.
    pub(crate) fn has_space(&mut self) {
        self.needed = None;
    }

    /// The first thing that is stuck, and why.
    pub(crate) fn first(&self) -> Option<&StoreError> {
        self.backed_off.values().next().map(|one| &one.error)
    }

    /// How many are stuck, and some of them.
    pub(crate) fn stuck(&self) -> (u64, Vec<Stuck>) {
        let shown = self.backed_off.iter().take(SHOWN).map(|(victim, one)| {
            let (object, page) = match *victim {
                Victim::Page(key) => (key.object, Some(key.page)),
                Victim::Cut(object, _) | Victim::Transfer(object, _) => (object, None),
            };
            Stuck { object, page, why: one.error.to_string() }
        });
        (self.backed_off.len() as u64, shown.collect())
    }

    /// Why nothing is written back, in words.
    pub(crate) fn stalled(&self, now: Duration) -> Option<String> {
        let Stall { since, attempts, error, .. } = self.stall.as_ref()?;
        let seconds = now.saturating_sub(*since).as_secs();
        Some(format!("nothing has been written back for {seconds} s, in {attempts} attempts: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transfers::{Kind, Pending};
    use buffer::GroupNo;
    use device::{PageNo, PageTransfer, VolumeId};

    const SECOND: Duration = Duration::from_secs(1);

    fn victim() -> Victim {
        Victim::Page(Key { object: VolumeId::MAIN.object(1, 1), page: PageNo(3) })
    }

    #[test]
    fn what_fails_again_is_left_alone_for_twice_as_long_but_at_most_a_minute() {
        let (mut retries, mut now) = (RetryList::default(), Duration::ZERO);
        for wait in [1, 2, 4, 8, 16, 32, 60, 60] {
            retries.back_off(victim(), StoreError::NotBegun, now);
            assert!(retries.is_backed_off(victim(), now + SECOND * wait - Duration::from_nanos(1)));
            now += SECOND * wait;
            assert!(!retries.is_backed_off(victim(), now), "after {wait} s");
        }
        assert!(retries.is_stuck(victim()));
        retries.keep(|_| false);
        assert!(!retries.is_stuck(victim()));
    }

    #[test]
    fn who_waits_for_a_clone_is_told_that_there_is_no_space_only_by_an_attempt_after_the_patience() {
        let (mut retries, patience) = (RetryList::default(), 30 * SECOND);
        retries.failed(StoreError::Full.into(), 10 * SECOND);
        assert!(retries.given_up(90 * SECOND, patience).is_none(), "there may be space by now");
        retries.failed(StoreError::Full.into(), 90 * SECOND);
        assert!(retries.given_up(90 * SECOND, patience).is_some());
    }

    #[test]
    fn a_clone_that_needs_space_is_tried_each_second_and_who_waits_for_it_is_told_after_the_patience() {
        let (object, patience) = (VolumeId::MAIN.object(1, 1), 30 * SECOND);
        let transfer = PageTransfer::whole_object(object, VolumeId::MAIN.object(2, 1));
        let what = Ordered { kind: Kind::Clone, transfer, lsn: Lsn(7) };
        let (mut transfers, mut retries) = (Transfers::default(), RetryList::default());
        transfers.insert(Pending::new(what, GroupNo(1), Duration::ZERO, false));
        for second in 0..30 {
            let now = SECOND * second;
            assert!(!retries.is_backed_off(Victim::of(&what), now));
            retries.back_off(Victim::of(&what), StoreError::Full, now);
            assert!(retries.why_stuck(&transfers, Lsn(7), patience).is_none(), "after {second} s");
        }
        retries.back_off(Victim::of(&what), StoreError::Full, patience);
        assert!(retries.why_stuck(&transfers, Lsn(7), patience).is_some());
        retries.stored(Victim::of(&what));
        retries.back_off(Victim::of(&what), StoreError::NotBegun, patience);
        assert!(retries.why_stuck(&transfers, Lsn(7), patience).is_some(), "all else is told at once");
    }

    #[test]
    fn writers_are_told_after_the_time_that_they_may_wait_and_not_before() {
        let mut retries = RetryList::default();
        let patience = 30 * SECOND;
        assert!(retries.no_space(Duration::ZERO, patience).is_none());
        assert!(retries.no_space(100 * SECOND, patience).is_none(), "nothing has failed");
        // A page that could not be written back long before anybody needed space.
        retries.failed(StoreError::Full.into(), 100 * SECOND);
        retries.failed(StoreError::Full.into(), 160 * SECOND);
        assert!(retries.no_space(200 * SECOND, patience).is_none());
        assert!(retries.no_space(229 * SECOND, patience).is_none());
        assert!(retries.no_space(230 * SECOND, patience).is_none(), "there may be space by now");
        retries.failed(StoreError::Full.into(), 230 * SECOND);
        assert!(retries.no_space(230 * SECOND, patience).is_some());
        retries.has_space();
        assert!(retries.no_space(231 * SECOND, patience).is_none());
        retries.worked();
        assert!(retries.no_space(300 * SECOND, patience).is_none());
    }
}

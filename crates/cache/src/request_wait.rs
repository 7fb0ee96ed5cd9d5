//! Waits of requests: who waits, for what, since when, and for whom priority was lent meanwhile.
//!
//! Each request that waits has a [`RequestWait`] in its queue. When the wait ends, the [`WaitLog`] counts and keeps it
//! if it was long. Both are parts of the state under the cache's one lock, and begin empty after a crash.

use request::{Origin, RequestClass};
use std::collections::VecDeque;
use std::time::Duration;

/// The last waits that a [`WaitLog`] keeps, besides the longest for each cause.
const WAITS_KEPT: usize = 256;

/// A shorter wait is neither counted nor kept.
const LONG_WAIT: Duration = Duration::from_millis(1);

/// The reason why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCause {
    /// Space in the buffer, which write-back makes.
    BufferSpace,
    /// Memory for dirty pages, which write-back makes.
    DirtyMemory,
    /// Earlier clones and moves of pages, which write-back stores.
    EarlierCopies,
    /// Space in the store, which cleaning makes.
    StoreSpace,
    /// Other requests that came before it and wait for space.
    EarlierRequest,
    /// A page from the store.
    StoredPage,
    /// A commit of the buffer.
    Commit,
    /// The store, which gets bypassed pages: those of the file that it syncs, or older ones before its own.
    WriteBack,
}

impl WaitCause {
    /// Whether write-back, cleaning or a commit makes the space for which an operation waits. Otherwise it waits for
    /// the store to have bypassed pages, or earlier copies.
    pub(crate) fn is_for_space(self) -> bool {
        !matches!(self, WaitCause::WriteBack | WaitCause::EarlierCopies)
    }
}

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestWait {
    /// The request. Its class is the one that the rules gave.
    pub origin: Origin,
    /// The reason for the wait.
    pub cause: WaitCause,
    /// When the wait began, on the cache's clock.
    pub since: Duration,
    /// The critical task that waited in the kernel for this request, if priority was lent for that.
    pub lent_for: Option<u32>,
}

/// A wait that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedWait {
    /// The wait.
    pub wait: RequestWait,
    /// How long it took.
    pub took: Duration,
}

/// The long waits for one cause that have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CauseWaits {
    /// How many there were.
    pub count: u64,
    /// How long they took together.
    pub total: Duration,
    /// The first of the longest, which has the cause.
    pub longest: EndedWait,
}

/// The waits of a cache, for a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestWaits {
    /// The time on the cache's clock.
    pub now: Duration,
    /// Requests that wait, in no order.
    pub waiting: Vec<RequestWait>,
    /// The last long waits that have ended, in the order of their ends.
    pub ended: Vec<EndedWait>,
    /// All long waits that have ended since the cache was opened: an entry for each cause, in no order.
    pub by_cause: Vec<CauseWaits>,
}

/// Priority that is lent to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLoan {
    /// The background task that others wait for.
    pub to: u32,
    /// A critical task that waits for it; 0 if none is known.
    pub lent_for: u32,
}

impl RequestWait {
    pub(crate) fn new(origin: Origin, cause: WaitCause, since: Duration) -> RequestWait {
        RequestWait { origin, cause, since, lent_for: None }
    }

    /// The class by which the request is treated now.
    pub(crate) fn class(&self) -> RequestClass {
        if self.lent_for.is_some() { RequestClass::Critical } else { self.origin.class }
    }

    /// Lends priority if the request is of the loan's task. Returns whether it is.
    pub(crate) fn lend(&mut self, loan: TaskLoan) -> bool {
        let is_of_task = self.origin.task == loan.to;
        if is_of_task {
            self.lent_for.get_or_insert(loan.lent_for);
        }
        is_of_task
    }
}

impl CauseWaits {
    fn add(&mut self, ended: EndedWait) {
        self.count += 1;
        self.total += ended.took;
        if ended.took > self.longest.took {
            self.longest = ended;
        }
    }
}

/// The last long waits, and what is known of all.
pub(crate) struct WaitLog {
    ended: VecDeque<EndedWait>,
    /// In the order in which the causes first occurred.
    by_cause: Vec<CauseWaits>,
}

impl Default for WaitLog {
    fn default() -> WaitLog {
        WaitLog { ended: VecDeque::with_capacity(WAITS_KEPT), by_cause: Vec::new() }
    }
}

impl WaitLog {
    /// Notes that a wait ended at `now`.
    #[inline]
    pub(crate) fn note_end(&mut self, wait: &RequestWait, now: Duration) {
        let took = now.saturating_sub(wait.since);
        if took >= LONG_WAIT {
            self.keep(EndedWait { wait: *wait, took });
        }
    }

    #[cold]
    fn keep(&mut self, ended: EndedWait) {
        match self.by_cause.iter_mut().find(|waits| waits.longest.wait.cause == ended.wait.cause) {
            Some(waits) => waits.add(ended),
            None => self.by_cause.push(CauseWaits { count: 1, total: ended.took, longest: ended }),
        }
        if self.ended.len() == WAITS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// The kept waits, in the order of their ends.
    pub(crate) fn ended(&self) -> Vec<EndedWait> {
        self.ended.iter().copied().collect()
    }

    /// All long waits, by cause.
    pub(crate) fn by_cause(&self) -> Vec<CauseWaits> {
        self.by_cause.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(task: u32) -> RequestWait {
        RequestWait::new(Origin { task, ..Origin::UNMATCHED }, WaitCause::Commit, Duration::from_secs(7))
    }

    #[test]
    fn the_last_long_waits_are_kept() {
        let mut waits = WaitLog::default();
        for task in 0..1000 {
            let took = Duration::from_micros(if task % 2 == 0 { 999 } else { 1000 });
            waits.note_end(&wait(task), Duration::from_secs(7) + took);
        }
        let kept: Vec<u32> = waits.ended().iter().map(|ended| ended.wait.origin.task).collect();
        let last: Vec<u32> = (0..1000).filter(|task| task % 2 == 1).skip(500 - WAITS_KEPT).collect();
        assert_eq!(kept, last);
        assert!(waits.ended().iter().all(|ended| ended.took == LONG_WAIT));
        assert_eq!(waits.ended.capacity(), WAITS_KEPT);
    }

    #[test]
    fn the_longest_wait_for_a_cause_outlasts_the_last_ones() {
        let mut waits = WaitLog::default();
        let mut end = |task, cause, millis| {
            let wait = RequestWait { cause, ..wait(task) };
            waits.note_end(&wait, wait.since + Duration::from_millis(millis));
        };
        end(1, WaitCause::Commit, 2);
        end(2, WaitCause::Commit, 900);
        end(3, WaitCause::Commit, 900);
        end(4, WaitCause::StoredPage, 30);
        (0..WAITS_KEPT).for_each(|_| end(5, WaitCause::Commit, 1));
        let found = waits.by_cause().into_iter().map(|waits| {
            let CauseWaits { count, total, longest } = waits;
            (longest.wait.cause, longest.wait.origin.task, longest.took.as_millis(), count, total.as_millis())
        });
        let commits = (WaitCause::Commit, 2, 900, 259, 2058);
        assert_eq!(found.collect::<Vec<_>>(), [commits, (WaitCause::StoredPage, 4, 30, 1, 30)]);
        assert!(waits.ended().iter().all(|ended| ended.wait.origin.task == 5));
    }

    #[test]
    fn a_wait_that_ends_before_it_begins_is_short() {
        let mut waits = WaitLog::default();
        waits.note_end(&wait(1), Duration::ZERO);
        assert_eq!((waits.ended(), waits.by_cause()), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_first_loan_is_told_and_only_to_its_task() {
        let mut background = wait(7);
        background.origin.class = RequestClass::Background;
        assert!(!background.lend(TaskLoan { to: 8, lent_for: 1 }));
        assert_eq!(background.class(), RequestClass::Background);
        assert!(background.lend(TaskLoan { to: 7, lent_for: 1 }));
        assert!(background.lend(TaskLoan { to: 7, lent_for: 2 }));
        assert_eq!(background.class(), RequestClass::Critical);
        assert_eq!((background.lent_for, background.origin.class), (Some(1), RequestClass::Background));
    }
}

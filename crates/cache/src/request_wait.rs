//! Waits of requests: who waits, for what, since when, and for whom priority was lent meanwhile.
//!
//! Each request that waits has a [`RequestWait`] in its queue. When the wait ends, the [`WaitLog`] keeps it if it was
//! long. Both are parts of the state under the cache's one lock, and begin empty after a crash.

use request::{Origin, RequestClass};
use std::collections::VecDeque;
use std::time::Duration;

/// The waits that a [`WaitLog`] keeps.
const WAITS_KEPT: usize = 256;

/// A shorter wait is not kept.
const LONG_WAIT: Duration = Duration::from_millis(1);

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitCause {
    /// Space in the buffer, which write-back makes.
    BufferSpace,
    /// Memory for dirty pages, which write-back makes.
    DirtyMemory,
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
    /// the store to have bypassed pages.
    pub(crate) fn is_for_space(self) -> bool {
        self != WaitCause::WriteBack
    }
}

/// A request that waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestWait {
    /// The request. Its class is the one that the rules gave.
    pub origin: Origin,
    /// What it waits for.
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

/// The waits of a cache, for a report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestWaits {
    /// The time on the cache's clock.
    pub now: Duration,
    /// Requests that wait, in no order.
    pub waiting: Vec<RequestWait>,
    /// The last long waits that have ended, in the order of their ends.
    pub ended: Vec<EndedWait>,
}

/// Priority that is lent to a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskLoan {
    /// The background task that others wait for.
    pub to: u32,
    /// One of the critical tasks that wait for it; 0 if they are unknown.
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

/// The last long waits.
pub(crate) struct WaitLog {
    ended: VecDeque<EndedWait>,
}

impl Default for WaitLog {
    fn default() -> WaitLog {
        WaitLog { ended: VecDeque::with_capacity(WAITS_KEPT) }
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
        if self.ended.len() == WAITS_KEPT {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// The kept waits, in the order of their ends.
    pub(crate) fn ended(&self) -> Vec<EndedWait> {
        self.ended.iter().copied().collect()
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
    fn a_wait_that_ends_before_it_begins_is_short() {
        let mut waits = WaitLog::default();
        waits.note_end(&wait(1), Duration::ZERO);
        assert_eq!(waits.ended(), []);
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

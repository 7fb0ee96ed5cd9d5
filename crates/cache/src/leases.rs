//! Leases: background tasks that count as critical for a moment, because a critical task waits for them.
//!
//! The paper keeps a graph of who waits for whom (*Request-Oriented Durable Write Caching*, section 3.3). Here
//! whoever waits still after a lease has it lent again, so nothing is given back, and there are no cycles.

use request::{LendingLevel, Origin, RequestClass};
use std::time::Duration;

/// How long a lease lasts.
const LEASE: Duration = Duration::from_millis(10);

/// Leases at once. More tasks hardly ever stand in the way of others.
const LEASES_MAX: usize = 64;

/// The tasks that have leases. Under the cache's lock. Gone after a crash.
#[derive(Default)]
pub(crate) struct Leases {
    held: Vec<Lease>,
}

struct Lease {
    task: u32,
    level: LendingLevel,
    until: Duration,
}

impl Leases {
    /// Lends to `task` from now on. At the limit, nothing is lent.
    pub(crate) fn lend(&mut self, task: u32, level: LendingLevel, now: Duration) {
        self.held.retain(|lease| lease.task != task && lease.until > now);
        if self.held.len() < LEASES_MAX {
            self.held.push(Lease { task, level, until: now + LEASE });
        }
    }

    /// The origin of an operation that asks for space, critical if its task has a lease.
    pub(crate) fn for_admission(&self, origin: Origin, now: impl FnOnce() -> Duration) -> Origin {
        self.with_lease(origin, LendingLevel::Admission, now)
    }

    /// The origin of a sync, critical if its task has a lease for syncs.
    pub(crate) fn for_sync(&self, origin: Origin, now: impl FnOnce() -> Duration) -> Origin {
        self.with_lease(origin, LendingLevel::AdmissionAndSync, now)
    }

    fn with_lease(&self, origin: Origin, level: LendingLevel, now: impl FnOnce() -> Duration) -> Origin {
        if self.held.is_empty() || origin.class == RequestClass::Critical {
            return origin;
        }
        let now = now();
        let is_lent = |lease: &Lease| lease.task == origin.task && lease.level >= level && now < lease.until;
        let class =
            if self.held.iter().any(is_lent) { RequestClass::Critical } else { RequestClass::Background };
        Origin { class, ..origin }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_end_and_differ_in_what_they_are_for() {
        let ms = Duration::from_millis;
        let of = |task| Origin { task, class: RequestClass::Background, ..Origin::UNMATCHED };
        let mut leases = Leases::default();
        leases.lend(7, LendingLevel::Admission, ms(100));
        leases.lend(8, LendingLevel::AdmissionAndSync, ms(105));
        let admission = |task, now| leases.for_admission(of(task), || now).class == RequestClass::Critical;
        let sync = |task, now| leases.for_sync(of(task), || now).class == RequestClass::Critical;
        assert_eq!([7, 8, 9].map(|task| admission(task, ms(109))), [true, true, false]);
        assert_eq!([7, 8, 9].map(|task| sync(task, ms(109))), [false, true, false]);
        assert_eq!([7, 8].map(|task| admission(task, ms(110))), [false, true]);
    }

    #[test]
    fn more_tasks_than_the_limit_get_nothing_until_others_end() {
        let mut leases = Leases::default();
        let tasks = 1..=LEASES_MAX as u32 + 1;
        tasks.for_each(|task| leases.lend(task, LendingLevel::Admission, Duration::ZERO));
        assert_eq!(leases.held.len(), LEASES_MAX);
        leases.lend(1000, LendingLevel::Admission, LEASE);
        assert_eq!(leases.held.len(), 1);
    }
}

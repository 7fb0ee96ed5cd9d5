//! A virtual clock.

use device::Clock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Virtual time: starts at 2026-01-01 and stands still until [`advance`](SimClock::advance).
#[derive(Debug, Default)]
pub struct SimClock(AtomicU64);

/// 2026-01-01 00:00 UTC.
const START_NANOS: i64 = 1_767_225_600_000_000_000;

impl SimClock {
    /// A clock at its start.
    pub fn new() -> SimClock {
        SimClock::default()
    }

    /// Lets time pass.
    pub fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }
}

impl Clock for SimClock {
    fn monotonic(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    fn wall_nanos(&self) -> i64 {
        START_NANOS + self.0.load(Ordering::Relaxed) as i64
    }
}

//! The longest calls to a medium: whether it is the disk that a slow program waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a medium is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceCall {
    /// One or many at once, until all are done; with what the caller does meanwhile, if that takes longer.
    Read,
    /// One write.
    Write,
    /// A flush.
    Flush,
    /// A trim.
    Trim,
}

impl DeviceCall {
    /// All of them.
    pub const ALL: [DeviceCall; 4] =
        [DeviceCall::Read, DeviceCall::Write, DeviceCall::Flush, DeviceCall::Trim];

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            DeviceCall::Read => "read",
            DeviceCall::Write => "write",
            DeviceCall::Flush => "flush",
            DeviceCall::Trim => "trim",
        }
    }
}

/// The longest call of each kind that ended, failed ones included. Any thread may note one.
#[derive(Debug, Default)]
pub struct MaxLatency {
    nanos: [AtomicU64; DeviceCall::ALL.len()],
}

impl MaxLatency {
    /// Does `work`, which is such a call, and notes how long it took.
    pub fn time<T>(&self, call: DeviceCall, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = work();
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos[call as usize].fetch_max(nanos, Ordering::Relaxed);
        value
    }

    /// The longest call of that kind.
    pub fn of(&self, call: DeviceCall) -> Duration {
        Duration::from_nanos(self.nanos[call as usize].load(Ordering::Relaxed))
    }

    /// Forgets all that ended so far.
    pub fn reset(&self) {
        self.nanos.iter().for_each(|nanos| nanos.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_each_kind_is_kept_until_it_begins_again() {
        let slowest = MaxLatency::default();
        for millis in [1, 20, 5] {
            slowest.time(DeviceCall::Flush, || std::thread::sleep(Duration::from_millis(millis)));
        }
        assert!(slowest.of(DeviceCall::Flush) >= Duration::from_millis(20));
        assert_eq!(slowest.of(DeviceCall::Write), Duration::ZERO);
        slowest.reset();
        assert_eq!(slowest.of(DeviceCall::Flush), Duration::ZERO);
    }
}

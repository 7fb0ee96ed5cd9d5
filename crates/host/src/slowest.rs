//! The longest calls to a medium: whether it is the disk that a slow program waits for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a medium is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Call {
    /// One or many at once, until all are done; with what the caller does meanwhile, if that takes longer.
    Read,
    /// One write.
    Write,
    /// A flush.
    Flush,
    /// A trim.
    Trim,
}

impl Call {
    /// All of them.
    pub const ALL: [Call; 4] = [Call::Read, Call::Write, Call::Flush, Call::Trim];

    /// For reports.
    pub fn name(self) -> &'static str {
        match self {
            Call::Read => "read",
            Call::Write => "write",
            Call::Flush => "flush",
            Call::Trim => "trim",
        }
    }
}

/// The longest call of each kind that ended, failed ones included. Any thread may note one.
#[derive(Debug, Default)]
pub struct Slowest {
    nanos: [AtomicU64; Call::ALL.len()],
}

impl Slowest {
    /// Does `work`, which is such a call, and notes how long it took.
    pub fn time<T>(&self, call: Call, work: impl FnOnce() -> T) -> T {
        let begun = Instant::now();
        let value = work();
        let nanos = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.nanos[call as usize].fetch_max(nanos, Ordering::Relaxed);
        value
    }

    /// The longest call of that kind.
    pub fn of(&self, call: Call) -> Duration {
        Duration::from_nanos(self.nanos[call as usize].load(Ordering::Relaxed))
    }

    /// Forgets all that ended so far.
    pub fn restart(&self) {
        self.nanos.iter().for_each(|nanos| nanos.store(0, Ordering::Relaxed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_of_each_kind_is_kept_until_it_begins_again() {
        let slowest = Slowest::default();
        for millis in [1, 20, 5] {
            slowest.time(Call::Flush, || std::thread::sleep(Duration::from_millis(millis)));
        }
        assert!(slowest.of(Call::Flush) >= Duration::from_millis(20));
        assert_eq!(slowest.of(Call::Write), Duration::ZERO);
        slowest.restart();
        assert_eq!(slowest.of(Call::Flush), Duration::ZERO);
    }
}

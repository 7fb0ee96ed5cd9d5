//! The progress of each thread, and waits for it. One counter for each thread is enough, because its actions
//! run in order.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Checks of the counter before a thread sleeps. They are few: with more threads than processors, the other
/// thread needs this processor.
const SPINS: u32 = 100;
/// How often a sleeper checks whether the replay was given up.
const LOOK_UP: Duration = Duration::from_millis(200);
/// Marks that no thread sleeps.
const NOTHING: u64 = u64::MAX;

/// A thread's progress: twice the number of actions begun, minus one while the last is not done. The
/// alignment keeps two threads from writing to the same pair of cache lines.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Progress {
    at: AtomicU64,
    /// The lowest value that a sleeper waits for. Lower progress wakes no thread.
    wanted: AtomicU64,
    sleepers: Mutex<FutexSleepers>,
    moved: Condvar,
}

/// The values that sleepers wait for. They are few, so this is a list.
#[derive(Debug, Default)]
struct FutexSleepers(Vec<u64>);

/// The counter's value once the action at `place` has begun.
pub(super) fn begun(place: u32) -> u64 {
    2 * u64::from(place) + 1
}

/// The counter's value once the action at `place` is done.
pub(super) fn done(place: u32) -> u64 {
    2 * u64::from(place) + 2
}

impl Default for Progress {
    fn default() -> Progress {
        Progress {
            at: AtomicU64::new(0),
            wanted: AtomicU64::new(NOTHING),
            sleepers: Mutex::default(),
            moved: Condvar::new(),
        }
    }
}

impl Progress {
    pub(super) fn get(&self) -> u64 {
        self.at.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, to: u64) {
        // Both this store and the sleeper's announcement are sequentially consistent, so one of the two
        // threads sees the other.
        self.at.store(to, Ordering::SeqCst);
        if to >= self.wanted.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    #[cold]
    fn wake(&self) {
        drop(self.sleepers.lock().unwrap_or_else(PoisonError::into_inner));
        self.moved.notify_all();
    }

    /// Waits until the counter is at least `to`; `false` if the replay was given up.
    pub(super) fn wait(&self, to: u64, given_up: &AtomicBool) -> bool {
        for _ in 0..SPINS {
            if self.get() >= to {
                return true;
            }
            std::hint::spin_loop();
        }
        self.sleep(to, given_up, None)
    }

    /// Waits until the counter is at least `to`, but no longer than `most`. Returns `false` after the
    /// timeout.
    pub(super) fn wait_at_most(&self, to: u64, given_up: &AtomicBool, most: Duration) -> bool {
        self.sleep(to, given_up, Some(Instant::now() + most))
    }

    #[cold]
    fn sleep(&self, to: u64, given_up: &AtomicBool, until: Option<Instant>) -> bool {
        let mut sleepers = self.sleepers.lock().unwrap_or_else(PoisonError::into_inner);
        sleepers.0.push(to);
        self.wanted.store(sleepers.least(), Ordering::SeqCst);
        while self.at.load(Ordering::SeqCst) < to && !given_up.load(Ordering::Relaxed) {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                break;
            }
            let most = left.unwrap_or(LOOK_UP).min(LOOK_UP);
            sleepers = self.moved.wait_timeout(sleepers, most).unwrap_or_else(PoisonError::into_inner).0;
        }
        sleepers.leave(to);
        self.wanted.store(sleepers.least(), Ordering::SeqCst);
        self.get() >= to
    }
}

impl FutexSleepers {
    fn least(&self) -> u64 {
        self.0.iter().copied().min().unwrap_or(NOTHING)
    }

    fn leave(&mut self, to: u64) {
        if let Some(at) = self.0.iter().position(|wanted| *wanted == to) {
            self.0.swap_remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_sleeper_is_woken_by_what_it_waits_for_and_sees_what_came_before() {
        let (progress, given_up) = (Progress::default(), AtomicBool::new(false));
        let written: Vec<AtomicU32> = (0..2000).map(|_| AtomicU32::new(0)).collect();
        std::thread::scope(|scope| {
            for first in 0..3usize {
                let (progress, given_up, written) = (&progress, &given_up, &written);
                scope.spawn(move || {
                    for place in (first..2000).step_by(3 + first) {
                        assert!(progress.wait(done(place as u32), given_up));
                        assert_eq!(written[place].load(Ordering::Relaxed), 1);
                    }
                });
            }
            for (place, cell) in written.iter().enumerate() {
                progress.set(begun(place as u32));
                cell.store(1, Ordering::Relaxed);
                progress.set(done(place as u32));
            }
        });
        assert_eq!(progress.wanted.load(Ordering::Relaxed), NOTHING);
    }

    #[test]
    fn who_waits_for_a_limited_time_is_woken_before_and_leaves_nothing_behind() {
        let (progress, given_up) = (Progress::default(), AtomicBool::new(false));
        assert!(!progress.wait_at_most(begun(1), &given_up, Duration::from_millis(1)));
        assert_eq!(progress.wanted.load(Ordering::Relaxed), NOTHING);
        std::thread::scope(|scope| {
            // The timeout is an hour, so only a wake can end the wait.
            let waiting = || progress.wait_at_most(begun(1), &given_up, Duration::from_secs(3600));
            let waiting = scope.spawn(waiting);
            while progress.wanted.load(Ordering::SeqCst) == NOTHING {
                std::thread::yield_now();
            }
            progress.set(begun(1));
            assert!(waiting.join().expect("it does not panic"));
        });
    }

    #[test]
    fn a_replay_that_is_given_up_ends_its_waits() {
        let (progress, given_up) = (Progress::default(), AtomicBool::new(true));
        assert!(!progress.wait(1, &given_up));
    }
}

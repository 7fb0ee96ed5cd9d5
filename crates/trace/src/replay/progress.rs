//! How far each thread has come, and the waiting for it. One counter per thread is enough: its actions run in order.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Looks at the counter before a thread goes to sleep: most waits are shorter than a sleep.
const SPINS: u32 = 200;
/// A sleeper looks up this often, in case the replay was given up.
const LOOK_UP: Duration = Duration::from_millis(200);

/// A thread's progress: twice the number of actions begun, minus one while the last is not done.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Progress {
    at: AtomicU64,
    sleepers: AtomicU32,
    lock: Mutex<()>,
    moved: Condvar,
}

/// The counter's value once the action at `place` has begun.
pub(super) fn begun(place: u32) -> u64 {
    2 * u64::from(place) + 1
}

/// The counter's value once the action at `place` is done.
pub(super) fn done(place: u32) -> u64 {
    2 * u64::from(place) + 2
}

impl Progress {
    pub(super) fn get(&self) -> u64 {
        self.at.load(Ordering::Acquire)
    }

    pub(super) fn set(&self, to: u64) {
        // Sequentially consistent, as is the sleeper's announcement: one of the two sees the other.
        self.at.store(to, Ordering::SeqCst);
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
            self.moved.notify_all();
        }
    }

    /// Waits until the counter is at least `to`; `false` if the replay was given up.
    pub(super) fn wait(&self, to: u64, given_up: &AtomicBool) -> bool {
        for _ in 0..SPINS {
            if self.get() >= to {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        while self.at.load(Ordering::SeqCst) < to && !given_up.load(Ordering::Relaxed) {
            guard = self.moved.wait_timeout(guard, LOOK_UP).unwrap_or_else(PoisonError::into_inner).0;
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        self.get() >= to
    }
}

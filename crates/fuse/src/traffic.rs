//! Requests as they arrive, for whoever does something while they flow.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Counts the requests that the front end took. Nothing of it waits, but for those who wait for a request.
#[derive(Debug, Default)]
pub struct Traffic {
    arrived: AtomicU64,
    /// Whether somebody waits, or is about to.
    is_awaited: AtomicBool,
    /// Held by whoever looks whether to wait, so that nobody is woken in between.
    waiting: Mutex<()>,
    came: Condvar,
}

impl Traffic {
    /// Requests since the mount, those under way among them.
    pub fn arrived(&self) -> u64 {
        self.arrived.load(Ordering::SeqCst)
    }

    /// Waits until more than `seen` have arrived.
    pub fn wait_beyond(&self, seen: u64) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.is_awaited.store(true, Ordering::SeqCst);
            if self.arrived() > seen {
                self.is_awaited.store(false, Ordering::SeqCst);
                return;
            }
            waiting = self.came.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// One more has arrived.
    pub fn note(&self) {
        self.arrived.fetch_add(1, Ordering::SeqCst);
        if self.is_awaited.load(Ordering::SeqCst) && self.is_awaited.swap(false, Ordering::SeqCst) {
            drop(self.waiting.lock());
            self.came.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn whoever_waits_hears_of_the_first_request_and_of_none_before() {
        let traffic = Arc::new(Traffic::default());
        traffic.note();
        traffic.wait_beyond(0);
        let (waiter, seen) = (traffic.clone(), traffic.arrived());
        let thread = std::thread::spawn(move || {
            waiter.wait_beyond(seen);
            waiter.arrived()
        });
        while !traffic.is_awaited.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
        assert!(!thread.is_finished());
        traffic.note();
        assert_eq!(thread.join().expect("it does not panic"), 2);
        assert!(!traffic.is_awaited.load(Ordering::SeqCst), "requests after it wake nobody");
    }
}

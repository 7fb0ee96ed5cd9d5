//! Notices a run that stands still, as when a request waits for a lock that background work holds during a
//! device call.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval of looks. Even on slow machines a healthy run makes thousands of turns in it.
const LOOKS_EVERY: Duration = Duration::from_secs(30);

/// Looks at the run from its own thread. Has no effect on the run.
pub(crate) struct StuckRunWatchdog {
    shared: Arc<WatchdogState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WatchdogState {
    turns: AtomicU64,
    done: AtomicBool,
}

impl StuckRunWatchdog {
    /// Starts the watchdog. If the run makes no turn between two looks, the watchdog prints `repeat` and ends
    /// the process.
    pub(crate) fn new(repeat: String) -> StuckRunWatchdog {
        let shared = Arc::new(WatchdogState::default());
        let watched = shared.clone();
        let thread = std::thread::spawn(move || watched.look(&repeat));
        StuckRunWatchdog { shared, thread: Some(thread) }
    }

    /// Counts a turn.
    pub(crate) fn turn(&self) {
        self.shared.turns.fetch_add(1, Ordering::Relaxed);
    }
}

impl WatchdogState {
    fn look(&self, repeat: &str) {
        let mut before = u64::MAX;
        let mut looked = Instant::now();
        while !self.done.load(Ordering::Acquire) {
            std::thread::park_timeout(LOOKS_EVERY);
            // A thread may wake without a reason.
            if looked.elapsed() < LOOKS_EVERY {
                continue;
            }
            looked = Instant::now();
            let turns = self.turns.load(Ordering::Relaxed);
            if turns == before {
                println!("FAILED: the run stands still in turn {turns}: a lock is held over a device call?");
                println!("repeat with: {repeat}");
                std::process::exit(1);
            }
            before = turns;
        }
    }
}

impl Drop for StuckRunWatchdog {
    fn drop(&mut self) {
        self.shared.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

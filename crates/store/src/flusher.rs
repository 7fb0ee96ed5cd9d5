//! Flushes of one device by several threads.
//!
//! A device that fails a flush may drop everything that it accepted and that was not durable, whichever
//! thread wrote it. It tells only one caller: Linux reports a write error to each descriptor once. So a
//! flush, and counting it if it failed, are one step of one thread at a time. If they were two, another
//! thread's flush between them would succeed, find no failure counted, and acknowledge what the first flush
//! lost.

use crate::bug::{StoreBug, is_planted};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// Flushes a device, for all threads. Lost in a crash, with everything whose flush it would have judged.
#[derive(Debug, Default)]
pub(crate) struct DeviceFlusher {
    /// Held during a flush, until it is counted if it failed.
    turn: Mutex<()>,
    failed: AtomicU64,
}

/// The number of flushes that had failed at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedFlushes(u64);

impl DeviceFlusher {
    /// Take this before the first write that is to become durable. Waits for no flush.
    pub(crate) fn failed_flushes(&self) -> FailedFlushes {
        FailedFlushes(self.failed.load(Ordering::Acquire))
    }

    /// Flushes, with `flush`, what was written since `before` was taken. `None` if another flush has failed
    /// since then, before this one: then these writes may never become durable.
    pub(crate) fn flush_since<E>(
        &self,
        before: FailedFlushes,
        flush: impl FnOnce() -> Result<(), E>,
    ) -> Option<Result<(), E>> {
        let _turn = self.turn.lock().expect("no panic in a flush");
        if self.failed_flushes() != before && !is_planted(StoreBug::OthersFlushesIgnored) {
            return None;
        }
        let flushed = flush();
        if flushed.is_err() {
            self.failed.fetch_add(1, Ordering::AcqRel);
        }
        Some(flushed)
    }

    /// Whether no flush is under way.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_idle(&self) -> bool {
        self.turn.try_lock().is_ok()
    }
}

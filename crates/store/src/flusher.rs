//! Flushes of one device by several threads.
//!
//! A device that fails a flush may drop everything that was accepted and not durable, whichever thread wrote it, and tells one caller
//! only: Linux reports an error of writing to each descriptor once. So a flush and the count of those that failed are
//! one step, one thread at a time. Were they two, a second flush between them would succeed, find nothing counted, and
//! acknowledge what the first one lost.

use crate::bug::{StoreBug, is_planted};
use crate::sync::{AtomicU64, Mutex, Ordering};

/// The one place where a device is flushed. Lost in a crash, with everything whose flush it would have judged.
#[derive(Debug, Default)]
pub(crate) struct DeviceFlusher {
    /// Held during a flush, and until it is counted if it failed.
    turn: Mutex<()>,
    failed: AtomicU64,
}

/// How many flushes had failed at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FailedFlushes(u64);

impl DeviceFlusher {
    /// To be taken before the first write that is to become durable. Waits for no flush.
    pub(crate) fn failed_flushes(&self) -> FailedFlushes {
        FailedFlushes(self.failed.load(Ordering::Acquire))
    }

    /// Flushes, by `flush`, what was written since `before` was taken. `None` if some flush has failed since, before this one:
    /// then it is not known whether these writes can still become durable.
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

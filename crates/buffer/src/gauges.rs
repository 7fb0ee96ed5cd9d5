//! What may be asked at any time without waiting for an appender.

use crate::state::State;
use crate::sync::{AtomicU64, Ordering};
use device::Lsn;

/// Copies of figures of the state, written under its lock at the end of each change. A reader that appends under a lock
/// of its own sees what its own last append left, or something better that a commit made of it since.
pub(crate) struct Gauges {
    newest: AtomicU64,
    durable: AtomicU64,
    free_blocks: AtomicU64,
    open_bytes: AtomicU64,
}

impl Gauges {
    pub(crate) fn of(state: &State) -> Gauges {
        let zero = || AtomicU64::new(0);
        let gauges = Gauges { newest: zero(), durable: zero(), free_blocks: zero(), open_bytes: zero() };
        gauges.show(state);
        gauges
    }

    /// Copies the figures; the caller holds the state's lock.
    pub(crate) fn show(&self, state: &State) {
        // What is durable is read before what is appended (see `durable`), so it is written after it.
        self.newest.store(state.newest.0, Ordering::Release);
        self.durable.store(state.durable.0, Ordering::Release);
        self.free_blocks.store(state.free_blocks(), Ordering::Release);
        self.open_bytes.store(state.open_bytes(), Ordering::Release);
    }

    /// Never ahead of a `newest` that is read after it.
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.durable.load(Ordering::Acquire))
    }

    pub(crate) fn newest(&self) -> Lsn {
        Lsn(self.newest.load(Ordering::Acquire))
    }

    pub(crate) fn free_blocks(&self) -> u64 {
        self.free_blocks.load(Ordering::Acquire)
    }

    pub(crate) fn open_bytes(&self) -> u64 {
        self.open_bytes.load(Ordering::Acquire)
    }
}

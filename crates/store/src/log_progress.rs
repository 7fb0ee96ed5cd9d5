//! How far the log is, for threads that hold no lock.

use crate::sync::{AtomicU64, Ordering};

/// How far the log is, for threads that hold no lock.
pub(crate) struct LogProgress {
    durable_batch: AtomicU64,
    /// Blocks of the log that recovery would read now.
    blocks: AtomicU64,
    /// Reads by which recovery would follow the log now, without those for the open extent.
    reads: AtomicU64,
}

/// Blocks and reads of the log since a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct LogLength {
    pub(crate) blocks: u64,
    pub(crate) reads: u64,
}

impl LogProgress {
    pub(crate) fn new(durable_batch: u64) -> LogProgress {
        let (blocks, reads) = (AtomicU64::new(0), AtomicU64::new(0));
        LogProgress { durable_batch: AtomicU64::new(durable_batch), blocks, reads }
    }

    /// The last batch that is known to be durable.
    pub(crate) fn durable_batch(&self) -> u64 {
        self.durable_batch.load(Ordering::Acquire)
    }

    pub(crate) fn set_durable_batch(&self, batch: u64) {
        self.durable_batch.store(batch, Ordering::Release);
    }

    pub(crate) fn length(&self) -> LogLength {
        LogLength { blocks: self.blocks.load(Ordering::Relaxed), reads: self.reads.load(Ordering::Relaxed) }
    }

    pub(crate) fn add(&self, more: LogLength) {
        self.blocks.fetch_add(more.blocks, Ordering::Relaxed);
        self.reads.fetch_add(more.reads, Ordering::Relaxed);
    }

    /// Subtracts the part of the log before a checkpoint that has become durable: recovery begins after it.
    pub(crate) fn subtract(&self, less: LogLength) {
        self.blocks.fetch_sub(less.blocks, Ordering::Relaxed);
        self.reads.fetch_sub(less.reads, Ordering::Relaxed);
    }
}

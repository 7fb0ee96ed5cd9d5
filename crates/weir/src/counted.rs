//! A device that counts what is read through it: what a start cost.

use device::{Block, Device, DeviceError, Page, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What was read.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    waits: AtomicU64,
    reads: AtomicU64,
    blocks: AtomicU64,
    nanos: AtomicU64,
}

/// The same at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadsNow {
    /// Times that somebody waited for the device: a batch of reads at once is one.
    pub(crate) waits: u64,
    /// Reads of consecutive blocks.
    pub(crate) reads: u64,
    /// Blocks.
    pub(crate) blocks: u64,
    /// How long these waits were together.
    pub(crate) waited: Duration,
}

impl Reads {
    fn add(&self, reads: u64, blocks: u64, begun: Instant) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.reads.fetch_add(reads, Ordering::Relaxed);
        self.blocks.fetch_add(blocks, Ordering::Relaxed);
        self.nanos.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> ReadsNow {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadsNow {
            waits: of(&self.waits),
            reads: of(&self.reads),
            blocks: of(&self.blocks),
            waited: Duration::from_nanos(of(&self.nanos)),
        }
    }
}

/// A device, and the count.
pub(crate) struct Counted {
    below: Arc<dyn Device>,
    reads: Arc<Reads>,
}

impl Counted {
    pub(crate) fn over(below: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Reads>) {
        let reads = Arc::new(Reads::default());
        (Arc::new(Counted { below, reads: reads.clone() }), reads)
    }
}

impl Device for Counted {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let begun = Instant::now();
        let read = self.below.read(at, into);
        self.reads.add(1, into.len() as u64, begun);
        read
    }

    fn read_batch(&self, reads: &mut [Read]) {
        let begun = Instant::now();
        self.below.read_batch(reads);
        if !reads.is_empty() {
            let blocks = reads.iter().map(|read| read.pages.len() as u64).sum();
            self.reads.add(reads.len() as u64, blocks, begun);
        }
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.below.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.below.trim(at, count)
    }
}

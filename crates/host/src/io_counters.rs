//! A device that counts what is read through it, which is what a start cost, and knows how long its slowest calls took.

use crate::max_latency::{DeviceCall, MaxLatency};
use device::{Block, BlockRead, Device, DeviceError, Page};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was read.
#[derive(Debug, Default)]
pub struct ReadCounters {
    waits: AtomicU64,
    reads: AtomicU64,
    blocks: AtomicU64,
}

/// The same at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadCounts {
    /// Times that somebody waited for the device: a batch of reads at once is one.
    pub waits: u64,
    /// Reads of consecutive blocks.
    pub reads: u64,
    /// Blocks.
    pub blocks: u64,
}

impl ReadCounters {
    /// What was read until now.
    pub fn snapshot(&self) -> ReadCounts {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadCounts { waits: of(&self.waits), reads: of(&self.reads), blocks: of(&self.blocks) }
    }
}

/// For how long at least one of some devices was being read.
#[derive(Debug, Default)]
pub struct ReadBusyTime(Mutex<ActiveReaders>);

#[derive(Debug, Default)]
struct ActiveReaders {
    active: u32,
    /// When the first of them came.
    since: Option<Instant>,
    total: Duration,
}

impl ReadBusyTime {
    fn readers(&self) -> MutexGuard<'_, ActiveReaders> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut readers = self.readers();
        readers.active += 1;
        readers.since.get_or_insert_with(Instant::now);
    }

    fn end(&self) {
        let mut readers = self.readers();
        readers.active -= 1;
        if readers.active == 0 {
            let since = readers.since.take();
            readers.total += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    /// Until the last time that nobody read.
    pub fn total(&self) -> Duration {
        self.readers().total
    }
}

/// What is known of a device.
#[derive(Debug, Default)]
pub struct IoCounters {
    /// What was read.
    pub reads: ReadCounters,
    /// The longest calls.
    pub max_latency: MaxLatency,
}

/// A device, and what is known of it.
pub struct CountingDevice {
    below: Arc<dyn Device>,
    counters: Arc<IoCounters>,
    busy: Arc<ReadBusyTime>,
}

impl CountingDevice {
    /// Keeps account of `below`, and in `busy` of when it is read.
    pub fn wrap(below: Arc<dyn Device>, busy: &Arc<ReadBusyTime>) -> (Arc<dyn Device>, Arc<IoCounters>) {
        let account = Arc::new(IoCounters::default());
        (Arc::new(CountingDevice { below, counters: account.clone(), busy: busy.clone() }), account)
    }

    /// Counts what `read` reads.
    fn count<T>(&self, reads: u64, blocks: u64, read: impl FnOnce() -> T) -> T {
        self.busy.begin();
        let value = self.counters.max_latency.time(DeviceCall::Read, read);
        self.busy.end();
        let counts = &self.counters.reads;
        counts.waits.fetch_add(1, Ordering::Relaxed);
        counts.reads.fetch_add(reads, Ordering::Relaxed);
        counts.blocks.fetch_add(blocks, Ordering::Relaxed);
        value
    }
}

fn blocks_of(reads: &[BlockRead]) -> u64 {
    reads.iter().map(|read| read.pages.len() as u64).sum()
}

impl Device for CountingDevice {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn grow(&self, blocks: u64) -> Result<(), DeviceError> {
        self.below.grow(blocks)
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.count(1, into.len() as u64, || self.below.read(at, into))
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        if !reads.is_empty() {
            self.count(reads.len() as u64, blocks_of(reads), || self.below.read_batch(reads));
        }
    }

    fn read_batch_while(&self, reads: &mut [BlockRead], meanwhile: &mut dyn FnMut()) {
        if reads.is_empty() {
            return meanwhile();
        }
        let blocks = blocks_of(reads);
        self.count(reads.len() as u64, blocks, || self.below.read_batch_while(reads, meanwhile));
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.counters.max_latency.time(DeviceCall::Write, || self.below.write(at, from))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.counters.max_latency.time(DeviceCall::Flush, || self.below.flush())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.counters.max_latency.time(DeviceCall::Trim, || self.below.trim(at, count))
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.below.allocate(at, count)
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        self.below.allocated()
    }

    fn forgets_writes(&self) -> bool {
        self.below.forgets_writes()
    }

    fn spare_blocks(&self) -> Option<u64> {
        self.below.spare_blocks()
    }
}

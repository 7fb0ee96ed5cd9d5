//! A device that counts what is read through it, which is what a start cost, and knows how long its slowest calls took.

use crate::slowest::{Call, Slowest};
use device::{Block, Device, DeviceError, Page, Read};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What was read.
#[derive(Debug, Default)]
pub struct Reads {
    waits: AtomicU64,
    reads: AtomicU64,
    blocks: AtomicU64,
}

/// The same at one moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReadsNow {
    /// Times that somebody waited for the device: a batch of reads at once is one.
    pub waits: u64,
    /// Reads of consecutive blocks.
    pub reads: u64,
    /// Blocks.
    pub blocks: u64,
}

impl Reads {
    /// What was read until now.
    pub fn now(&self) -> ReadsNow {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        ReadsNow { waits: of(&self.waits), reads: of(&self.reads), blocks: of(&self.blocks) }
    }
}

/// For how long at least one of some devices was being read.
#[derive(Debug, Default)]
pub struct Busy(Mutex<Readers>);

#[derive(Debug, Default)]
struct Readers {
    now: u32,
    /// When the first of them came.
    since: Option<Instant>,
    before: Duration,
}

impl Busy {
    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin(&self) {
        let mut readers = self.readers();
        readers.now += 1;
        readers.since.get_or_insert_with(Instant::now);
    }

    fn end(&self) {
        let mut readers = self.readers();
        readers.now -= 1;
        if readers.now == 0 {
            let since = readers.since.take();
            readers.before += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    /// Until the last time that nobody read.
    pub fn time(&self) -> Duration {
        self.readers().before
    }
}

/// What is known of a device.
#[derive(Debug, Default)]
pub struct Account {
    /// What was read.
    pub reads: Reads,
    /// The longest calls.
    pub slowest: Slowest,
}

/// A device, and what is known of it.
pub struct Counted {
    below: Arc<dyn Device>,
    account: Arc<Account>,
    busy: Arc<Busy>,
}

impl Counted {
    /// Keeps account of `below`, and in `busy` of when it is read.
    pub fn over(below: Arc<dyn Device>, busy: &Arc<Busy>) -> (Arc<dyn Device>, Arc<Account>) {
        let account = Arc::new(Account::default());
        (Arc::new(Counted { below, account: account.clone(), busy: busy.clone() }), account)
    }

    /// Counts what `read` reads.
    fn count<T>(&self, reads: u64, blocks: u64, read: impl FnOnce() -> T) -> T {
        self.busy.begin();
        let value = self.account.slowest.time(Call::Read, read);
        self.busy.end();
        let counts = &self.account.reads;
        counts.waits.fetch_add(1, Ordering::Relaxed);
        counts.reads.fetch_add(reads, Ordering::Relaxed);
        counts.blocks.fetch_add(blocks, Ordering::Relaxed);
        value
    }
}

fn blocks_of(reads: &[Read]) -> u64 {
    reads.iter().map(|read| read.pages.len() as u64).sum()
}

impl Device for Counted {
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

    fn read_batch(&self, reads: &mut [Read]) {
        if !reads.is_empty() {
            self.count(reads.len() as u64, blocks_of(reads), || self.below.read_batch(reads));
        }
    }

    fn read_batch_while(&self, reads: &mut [Read], meanwhile: &mut dyn FnMut()) {
        if reads.is_empty() {
            return meanwhile();
        }
        let blocks = blocks_of(reads);
        self.count(reads.len() as u64, blocks, || self.below.read_batch_while(reads, meanwhile));
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.account.slowest.time(Call::Write, || self.below.write(at, from))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.account.slowest.time(Call::Flush, || self.below.flush())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.account.slowest.time(Call::Trim, || self.below.trim(at, count))
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

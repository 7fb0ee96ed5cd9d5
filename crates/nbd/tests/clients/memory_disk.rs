//! A disk in memory that holds completions back until the test wants them.

use nbd::{Disk, DiskCompletion, DiskError, Durability, Extent, ExtentKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// The unit of holes in bytes: a page of zeros is a hole.
pub(crate) const PAGE: usize = 4096;

/// A change, or a flush, that a client asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoggedChange {
    Write(Durability),
    Zero(Durability),
    Flush,
}

#[derive(Default)]
pub(crate) struct MemoryDisk {
    bytes: Mutex<Vec<u8>>,
    size: u64,
    pub(crate) is_read_only: bool,
    pub(crate) log: Mutex<Vec<LoggedChange>>,
    /// Every operation fails with this error.
    pub(crate) error: Mutex<Option<DiskError>>,
    /// Whether completions wait for `complete_held`.
    pub(crate) holds_completions: AtomicBool,
    held: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
    held_one: Condvar,
    pub(crate) started: AtomicUsize,
    pub(crate) completed: Arc<AtomicUsize>,
}

impl MemoryDisk {
    pub(crate) fn new(size: usize) -> MemoryDisk {
        MemoryDisk { bytes: Mutex::new(vec![0; size]), size: size as u64, ..MemoryDisk::default() }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.bytes.lock().expect("a lock").clone()
    }

    /// Waits until `count` completions are held.
    pub(crate) fn wait_for_held(&self, count: usize) {
        let held = self.held.lock().expect("a lock");
        let too_few = |held: &mut Vec<_>| held.len() < count;
        let (held, wait) =
            self.held_one.wait_timeout_while(held, Duration::from_secs(20), too_few).expect("a lock");
        assert!(!wait.timed_out(), "{} of {count} requests arrived", held.len());
    }

    /// Runs the held completions in an order that depends on `seed`. Later completions are not held.
    pub(crate) fn complete_held(&self, mut seed: u64) {
        self.holds_completions.store(false, Ordering::SeqCst);
        let mut held = std::mem::take(&mut *self.held.lock().expect("a lock"));
        while !held.is_empty() {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let complete = held.swap_remove((seed >> 33) as usize % held.len());
            complete();
        }
    }

    fn finish<T: Send + 'static>(&self, outcome: T, done: DiskCompletion<T>) {
        self.started.fetch_add(1, Ordering::SeqCst);
        let outcome = self.error.lock().expect("a lock").map_or(Ok(outcome), Err);
        let completed = self.completed.clone();
        let complete = move || {
            done(outcome);
            completed.fetch_add(1, Ordering::SeqCst);
        };
        if self.holds_completions.load(Ordering::SeqCst) {
            self.held.lock().expect("a lock").push(Box::new(complete));
            self.held_one.notify_all();
        } else {
            complete();
        }
    }

    /// The bytes of a range that must be inside the disk and not empty.
    fn with_range<T>(&self, offset: u64, len: u64, access: impl FnOnce(&mut [u8]) -> T) -> T {
        assert!(len > 0, "the server passed on an empty range");
        let range = offset as usize..(offset + len) as usize;
        access(&mut self.bytes.lock().expect("a lock")[range])
    }
}

impl Disk for MemoryDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn read(&self, offset: u64, len: usize, done: DiskCompletion<Vec<u8>>) {
        let bytes = self.with_range(offset, len as u64, |range| range.to_vec());
        self.finish(bytes, done);
    }

    fn write(&self, offset: u64, bytes: Vec<u8>, durability: Durability, done: DiskCompletion<()>) {
        self.log.lock().expect("a lock").push(LoggedChange::Write(durability));
        self.with_range(offset, bytes.len() as u64, |range| range.copy_from_slice(&bytes));
        self.finish((), done);
    }

    fn zero(&self, offset: u64, len: u64, durability: Durability, done: DiskCompletion<()>) {
        self.log.lock().expect("a lock").push(LoggedChange::Zero(durability));
        self.with_range(offset, len, |range| range.fill(0));
        self.finish((), done);
    }

    fn flush(&self, done: DiskCompletion<()>) {
        self.log.lock().expect("a lock").push(LoggedChange::Flush);
        self.finish((), done);
    }

    fn extents(&self, offset: u64, len: u64, max: usize, done: DiskCompletion<Vec<Extent>>) {
        let kind_of = |page: &[u8]| {
            if page.iter().all(|byte| *byte == 0) { ExtentKind::Hole } else { ExtentKind::Data }
        };
        let bytes = self.bytes();
        let mut extents: Vec<Extent> = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let page = at / PAGE as u64 * PAGE as u64;
            let end = (page + PAGE as u64).min(self.size);
            let kind = kind_of(&bytes[page as usize..end as usize]);
            match extents.last_mut() {
                Some(last) if last.kind == kind => last.len += end - at,
                _ => extents.push(Extent { len: end - at, kind }),
            }
            at = end;
        }
        extents.truncate(max);
        self.finish(extents, done);
    }
}

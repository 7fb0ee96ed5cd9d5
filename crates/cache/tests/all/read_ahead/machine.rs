//! A cache over sound media, with reads that tell which pages were fetched for them.

use crate::common::apply_at_once;
use crate::common::{Disks, Slot};
use cache::{BackgroundTask, Cache, CacheError, CacheSettings, ObjectChange, StepProgress};
use device::{BLOCK_BYTES, Block, BlockRead, Device, DeviceError, ObjectId, Page, VolumeId};
use sim_disk::{SimClock, SimDisk};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;

pub(super) const PAGE: u64 = BLOCK_BYTES as u64;
/// The size of the kernel's read-ahead.
pub(super) const READ_PAGES: u64 = 32;
pub(super) const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
pub(super) const OTHER: ObjectId = VolumeId::MAIN.object(6, 1);
/// Pages of each file.
pub(super) const PAGES: u64 = 1024;

/// Called while the device reads.
pub(super) type Meddling = Box<dyn FnMut() + Send>;

/// A store's disk that calls a meddler during its reads.
pub(super) struct Meddled {
    disk: Arc<SimDisk>,
    meddling: Arc<Mutex<Option<Meddling>>>,
}

impl Meddled {
    fn meddle(&self) {
        let meddling = self.meddling.lock().expect("one thread").take();
        if let Some(mut meddling) = meddling {
            meddling();
            self.meddling.lock().expect("one thread").get_or_insert(meddling);
        }
    }
}

impl Device for Meddled {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.disk.read(at, into)
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        self.disk.read_batch(reads);
        self.meddle();
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.disk.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

/// A cache with nothing in memory, over two files.
pub(super) struct Machine {
    pub disks: Disks,
    pub cache: Cache,
    pub meddling: Arc<Mutex<Option<Meddling>>>,
}

/// The byte that fills a page of a file. Neighbours differ.
pub(super) fn byte(object: ObjectId, page: u64) -> u8 {
    (object.slot + page % 250) as u8
}

impl Machine {
    pub(super) fn new(memory_bytes_max: u64) -> Machine {
        let disks = Disks::new(1, 16384, 1024, 32);
        let clock = Arc::new(SimClock::new());
        let cache = disks.open(clock.clone(), CacheSettings::default()).expect("sound media");
        for (object, page) in [FILE, OTHER].into_iter().flat_map(|of| (0..PAGES).map(move |page| (of, page)))
        {
            write(&cache, object, page, byte(object, page));
            if page % 256 == 255 {
                cache.drain().expect("sound media");
            }
        }
        drop(cache);
        let dirty_bytes_max = memory_bytes_max / 2;
        let settings = CacheSettings {
            memory_bytes_max,
            dirty_bytes_max,
            commit_inline_below: Duration::ZERO,
            ..CacheSettings::default()
        };
        let meddling = Arc::new(Mutex::new(None));
        let disk = Arc::new(Meddled { disk: disks.store.clone(), meddling: meddling.clone() });
        let store = Arc::new(Store::open(disk).expect("a sound store"));
        let cache = Cache::open(store, disks.buffer.clone(), clock, settings).expect("sound media");
        Machine { disks, cache, meddling }
    }

    pub(super) fn step(&self) {
        self.cache.step(BackgroundTask::Fetch);
    }

    /// A meddler may write pages back, so work that does must not call it.
    pub(super) fn undisturbed<T>(&self, work: impl FnOnce() -> T) -> T {
        let meddling = self.meddling.lock().expect("one thread").take();
        let done = work();
        *self.meddling.lock().expect("one thread") = meddling;
        done
    }

    /// Does all fetches.
    pub(super) fn fetch_all(&self) {
        while self.cache.step(BackgroundTask::Fetch) == StepProgress::Worked {}
    }

    /// Where the store has pages with the bytes of this page, of either file.
    pub(super) fn places(&self, object: ObjectId, page: u64) -> impl Iterator<Item = Block> {
        let store = &self.disks.store;
        store.written_blocks().into_iter().filter(move |&at| {
            let mut found = device::pages(1);
            store.read(at, &mut found).expect("power");
            found[0].0 == [byte(object, page); BLOCK_BYTES]
        })
    }

    pub(super) fn fetched(&self) -> (u64, u64) {
        let counters = self.cache.status().counters;
        (counters.fetched_for_reads, counters.fetched_ahead)
    }
}

pub(super) fn change(cache: &Cache, change: ObjectChange<'_>) {
    apply_at_once(cache, &[change]).expect("space").expect("sound media");
}

pub(super) fn write(cache: &Cache, object: ObjectId, page: u64, byte: u8) {
    change(cache, ObjectChange::Write { object, offset: page * PAGE, bytes: &[byte; BLOCK_BYTES] });
}

/// Reads pages of a file that has `PAGES` pages.
pub(super) fn ask(cache: &Cache, object: ObjectId, page: u64, pages: u64) -> Slot<Vec<u8>> {
    let slot = Slot::new();
    cache.read(object, page * PAGE, (pages * PAGE) as usize, PAGES * PAGE, slot.then());
    slot
}

/// Steps until there is an answer. Returns it, with the number of steps.
pub(super) fn answer(cache: &Cache, slot: &Slot<Vec<u8>>) -> (Result<Vec<u8>, CacheError>, u64) {
    for steps in 0.. {
        if let Some(answer) = slot.take() {
            return (answer, steps);
        }
        assert_eq!(cache.step(BackgroundTask::Fetch), StepProgress::Worked, "nobody answers");
    }
    unreachable!("it ends by an answer or a panic")
}

pub(super) fn read(cache: &Cache, object: ObjectId, page: u64, pages: u64) -> Vec<u8> {
    answer(cache, &ask(cache, object, page, pages)).0.expect("sound media")
}

/// The content of pages that were not written since.
pub(super) fn original(object: ObjectId, page: u64, pages: u64) -> Vec<u8> {
    (page..page + pages).flat_map(|page| [byte(object, page); BLOCK_BYTES]).collect()
}

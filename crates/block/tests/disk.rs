//! A block volume on simulated disks: what it reads is what a model of it has.

use block::{
    BlockCompletion, BlockExtentKind, BlockVolume, BlockVolumeError, block_volume_size, new_block_volume,
    resize,
};
use cache::{BackgroundTask, Cache, CacheSettings, RecoveredBuffer};
use device::{SeededRng, StoreId, VolumeId};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;
use store::{NewVolume, Store, StoreLayout, VolumeMode};

const SIZE: u64 = 8 << 20;
const ID: StoreId = StoreId([7; 16]);
const TASKS: [BackgroundTask; 4] =
    [BackgroundTask::Commit, BackgroundTask::Fetch, BackgroundTask::WriteBack, BackgroundTask::Checkpoint];

/// A store with a block volume of [`SIZE`] bytes, and threads that do the background work. Time passes as they work.
struct Bench {
    store: Arc<SimDisk>,
    buffer: Arc<SimDisk>,
    clock: Arc<SimClock>,
    cache: Cache,
    volume: VolumeId,
    is_ending: Arc<AtomicBool>,
    workers: Vec<JoinHandle<()>>,
}

impl Bench {
    fn new() -> Bench {
        let power = PowerSupply::new();
        let store = SimDisk::new("store", 16_384, &power, 1);
        let buffer = SimDisk::new("buffer", 2048, &power, 1);
        Store::format(&*store, &StoreLayout { id: ID, segment_blocks: Some(64) }).expect("a format");
        buffer::Buffer::format(&*buffer, ID).expect("a format");
        let clock = Arc::new(SimClock::new());
        let cache = open(&store, &buffer, &clock);
        let new = NewVolume { name: "disk", ..NewVolume::default() };
        let pages = new_block_volume(SIZE).expect("a good size");
        let volume = cache.create_volume(&new, &pages).expect("space");
        Bench::on((store, buffer, clock), cache, volume)
    }

    fn on(
        (store, buffer, clock): (Arc<SimDisk>, Arc<SimDisk>, Arc<SimClock>),
        cache: Cache,
        volume: VolumeId,
    ) -> Bench {
        let is_ending = Arc::new(AtomicBool::new(false));
        let work = |task| {
            let (cache, clock, is_ending) = (cache.clone(), clock.clone(), is_ending.clone());
            std::thread::spawn(move || {
                while !is_ending.load(Ordering::Acquire) {
                    cache.step(task);
                    clock.advance(Duration::from_millis(1));
                    cache.wait(task, Duration::from_millis(1));
                }
            })
        };
        let workers = TASKS.map(work).into();
        Bench { store, buffer, clock, cache, volume, is_ending, workers }
    }

    fn open(&self) -> BlockVolume {
        BlockVolume::open(&self.cache, self.volume).expect("a block volume")
    }

    /// Ends without writing anything back, and opens the media again, as after a crash of the process.
    fn reopen(mut self) -> Bench {
        self.end();
        let (store, buffer, clock) = (self.store.clone(), self.buffer.clone(), self.clock.clone());
        let cache = open(&store, &buffer, &clock);
        Bench::on((store, buffer, clock), cache, self.volume)
    }

    fn end(&mut self) {
        self.is_ending.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.join().expect("no panic");
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        self.end();
    }
}

fn open(store: &Arc<SimDisk>, buffer: &Arc<SimDisk>, clock: &Arc<SimClock>) -> Cache {
    let store = Arc::new(Store::open(store.clone()).expect("a store"));
    let recovered = RecoveredBuffer::read(buffer.clone(), ID, &**clock).expect("a buffer");
    Cache::begin(store, recovered, clock.clone(), CacheSettings::default()).expect("a cache")
}

/// Calls an operation, and waits for its outcome.
fn wait<T: Send + 'static>(operation: impl FnOnce(BlockCompletion<T>)) -> Result<T, BlockVolumeError> {
    let (tell, told) = channel();
    operation(Box::new(move |outcome| tell.send(outcome).expect("the test waits")));
    told.recv_timeout(Duration::from_secs(60)).expect("an outcome")
}

fn read(disk: &BlockVolume, offset: u64, len: usize) -> Vec<u8> {
    wait(|done| disk.read(offset, len, done)).expect("a read")
}

fn write(disk: &BlockVolume, offset: u64, bytes: &[u8]) {
    wait(|done| disk.write(offset, bytes.to_vec(), done)).expect("a write");
}

#[test]
fn reads_what_was_written_also_after_a_restart() {
    let mut random = SeededRng::new(46);
    let mut bench = Bench::new();
    let mut model = vec![0; SIZE as usize];
    for life in 0..4 {
        let disk = bench.open();
        for step in 0..400 {
            let longest = [600, 9000, 3 << 20][random.index(3)];
            let offset = random.below(SIZE);
            let len = (1 + random.below(longest)).min(SIZE - offset);
            let range = offset as usize..(offset + len) as usize;
            match random.below(4) {
                0 => {
                    let found = read(&disk, offset, len as usize);
                    assert!(found == model[range], "life {life}, step {step}: {offset} {len}");
                }
                1 => {
                    wait(|done| disk.zero(offset, len, done)).expect("a change");
                    model[range].fill(0);
                }
                _ => {
                    let byte = random.below(255) as u8 + 1;
                    model[range.clone()].fill(byte);
                    write(&disk, offset, &model[range]);
                }
            }
        }
        wait(|done| disk.sync(done)).expect("a sync");
        drop(disk);
        bench = bench.reopen();
        let disk = bench.open();
        assert!(read(&disk, 0, SIZE as usize) == model, "life {life}: other bytes");
        bench.cache.drain().expect("the media work");
        assert!(read(&disk, 0, SIZE as usize) == model, "life {life}: other bytes once all is stored");
    }
}

#[test]
fn a_write_within_a_page_that_is_not_in_memory_reads_nothing() {
    let bench = Bench::new();
    let disk = bench.open();
    write(&disk, 0, &vec![7; 1 << 20]);
    bench.cache.drain().expect("the media work");
    drop(disk);
    let bench = bench.reopen();
    let disk = bench.open();
    let before = bench.cache.status().counters;
    for page in 0..256 {
        write(&disk, page * 4096 + 512, &[8; 512]);
    }
    let after = bench.cache.status().counters;
    assert_eq!(after.fetched_for_writes, before.fetched_for_writes);
    assert_eq!(after.fetched_for_reads, before.fetched_for_reads);
    assert_eq!(after.writes_to_absent_pages - before.writes_to_absent_pages, 256);
    assert_eq!(read(&disk, 4096 + 511, 514), [[7].as_slice(), &[8; 512], &[7]].concat());
}

#[test]
fn extents_are_those_of_what_was_written() {
    let bench = Bench::new();
    let disk = bench.open();
    let extents = |offset, len, count| {
        let found = wait(|done| disk.extents(offset, len, count, done)).expect("extents");
        found.into_iter().map(|one| (one.len, one.kind)).collect::<Vec<_>>()
    };
    let (data, hole) = (BlockExtentKind::Data, BlockExtentKind::Hole);
    assert_eq!(extents(0, SIZE, 9), [(SIZE, hole)]);
    write(&disk, 8192, &[1; 4096]);
    write(&disk, 20_480, &[1; 1]);
    assert_eq!(
        extents(0, SIZE, 9),
        [(8192, hole), (4096, data), (8192, hole), (4096, data), (SIZE - 24_576, hole)]
    );
    assert_eq!(extents(8200, 100, 9), [(100, data)], "within a page");
    assert_eq!(extents(100, SIZE - 100, 2), [(8092, hole), (4096, data)]);
    wait(|done| disk.zero(8192, 4096, done)).expect("a change");
    assert_eq!(extents(0, 20_480, 9), [(20_480, hole)]);
    assert_eq!(extents(5, 0, 9), []);
}

#[test]
fn extents_begin_where_a_page_is_discarded_meanwhile() {
    let mut bench = Bench::new();
    let disk = bench.open();
    write(&disk, 0, &[1; 8192]);
    // From now on the test does the background work.
    bench.end();
    let (tell, told) = channel();
    disk.extents(100, SIZE - 100, 9, Box::new(move |found| tell.send(found).expect("the test waits")));
    bench.cache.step(BackgroundTask::Fetch);
    assert!(told.try_recv().is_err(), "only the first page is known to be data");
    disk.zero(0, 8192, Box::new(|zeroed| zeroed.expect("a change")));
    let found = loop {
        match told.try_recv() {
            Ok(found) => break found.expect("extents"),
            Err(_) => TASKS.into_iter().for_each(|task| _ = bench.cache.step(task)),
        }
    };
    assert_eq!(found.iter().map(|extent| extent.len).sum::<u64>(), SIZE - 100);
    assert_eq!((found[0].len, found[0].kind), (4096 - 100, BlockExtentKind::Data), "as it was found first");
}

#[test]
fn ranges_past_the_end_change_nothing() {
    let bench = Bench::new();
    let disk = bench.open();
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX, u64::MAX), (0, SIZE + 1)] {
        let is_past_end = |outcome| matches!(outcome, Err(BlockVolumeError::PastEnd));
        let bytes = vec![1; len.min(SIZE + 1) as usize];
        assert!(is_past_end(wait(|done| disk.write(offset, bytes, done))), "{offset} {len}");
        assert!(is_past_end(wait(|done| disk.zero(offset, len, done))), "{offset} {len}");
        assert!(is_past_end(wait(|done| disk.read(offset, len as usize, done)).map(drop)), "{offset} {len}");
        assert!(is_past_end(wait(|done| disk.extents(offset, len, 1, done)).map(drop)), "{offset} {len}");
    }
    assert_eq!(read(&disk, SIZE, 0), []);
    assert!(read(&disk, 0, SIZE as usize).iter().all(|&byte| byte == 0));
}

#[test]
fn a_size_is_durable_and_what_it_cuts_off_is_gone() {
    let bench = Bench::new();
    let disk = bench.open();
    write(&disk, SIZE - 4096, &[9; 4096]);
    write(&disk, 512, &[9; 1024]);
    assert!(resize(&bench.cache, bench.volume, 1024).is_err(), "the volume is in use");
    drop(disk);
    assert!(matches!(resize(&bench.cache, bench.volume, 1000), Err(BlockVolumeError::BadSize)));
    resize(&bench.cache, bench.volume, 1024).expect("space");
    let bench = bench.reopen();
    assert_eq!(block_volume_size(&bench.cache, bench.volume).expect("a header"), Some(1024));
    resize(&bench.cache, bench.volume, 2 * SIZE).expect("space");
    let bench = bench.reopen();
    let disk = bench.open();
    assert_eq!(disk.size(), 2 * SIZE);
    assert_eq!(read(&disk, 512, 1024), [[9; 512], [0; 512]].concat());
    assert!(read(&disk, 4096, 2 * SIZE as usize - 4096).iter().all(|&byte| byte == 0));
}

#[test]
fn snapshots_keep_bytes_and_size_and_take_no_changes() {
    let bench = Bench::new();
    let disk = bench.open();
    write(&disk, 0, b"before");
    let new = NewVolume { name: "snapshot", mode: VolumeMode::ReadOnly, created: 0 };
    let snapshot = bench.cache.clone_volume(bench.volume, &new).expect("space");
    write(&disk, 0, b"behind");
    let snapshot = BlockVolume::open(&bench.cache, snapshot).expect("a block volume");
    assert_eq!((snapshot.size(), snapshot.mode()), (SIZE, VolumeMode::ReadOnly));
    assert_eq!(read(&snapshot, 0, 6), b"before");
    assert_eq!(read(&disk, 0, 6), b"behind");
    let refused = wait(|done| snapshot.write(0, b"x".to_vec(), done)).expect_err("read-only");
    assert_eq!(refused.errno().raw_os_error(), 30);
    assert!(wait(|done| snapshot.zero(0, 1, done)).is_err());
}

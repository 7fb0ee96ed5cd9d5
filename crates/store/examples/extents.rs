//! What opening a store costs that holds one file of 10^7 extents (every second page of 80 GB), on a device that costs
//! nothing: after a checkpoint, and with as long a log of scattered writes after it as there may ever be.
//!
//! `cargo run --release -p weir-store --example extents [EXTENTS]`

use device::{
    Block, BlockRead, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, StoreId, VolumeId,
};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Instant;
use store::{NewVolume, Store, StoreChange, StoreLayout};

/// Pages of one vector, as the cache writes them.
const VECTOR_PAGES: u64 = 256;

/// Blocks of log after which the cache makes a checkpoint.
const CHECKPOINT_BLOCKS: u64 = 65_536;

/// The content of every data page. The device need not keep such pages.
const FILLER: Page = Page([0x5a; device::BLOCK_BYTES]);

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

/// Blocks in memory, but for those that are filler.
struct Memory {
    blocks: u64,
    held: RwLock<HashMap<u64, Box<Page>>>,
    reads: AtomicU64,
    waits: AtomicU64,
    blocks_read: AtomicU64,
}

impl Memory {
    fn reset(&self) {
        [&self.reads, &self.waits, &self.blocks_read]
            .iter()
            .for_each(|count| count.store(0, Ordering::Relaxed));
    }

    fn get(&self, at: Block, into: &mut [Page]) {
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.blocks_read.fetch_add(into.len() as u64, Ordering::Relaxed);
        let held = self.held.read().expect("one thread");
        for (page, number) in into.iter_mut().zip(at.0..) {
            page.0.copy_from_slice(&held.get(&number).map_or(&FILLER, |page| &**page).0);
        }
    }
}

impl Device for Memory {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.get(at, into);
        Ok(())
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        self.waits.fetch_add(u64::from(!reads.is_empty()), Ordering::Relaxed);
        reads.iter_mut().for_each(|read| self.get(read.at, &mut read.pages));
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let mut held = self.held.write().expect("one thread");
        for (page, number) in from.iter().zip(at.0..) {
            if *page == FILLER {
                drop(held.remove(&number))
            } else {
                drop(held.insert(number, Box::new(page.clone())))
            }
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        let mut held = self.held.write().expect("one thread");
        (at.0..at.0 + count).for_each(|number| drop(held.remove(&number)));
        Ok(())
    }
}

fn write(store: &Store, pages: impl Iterator<Item = u64>, page_lsn: u64) {
    let bytes = Arc::new(Box::new(FILLER));
    let change = |page| StoreChange::Write {
        object: FILE,
        page: PageNo(page),
        bytes: bytes.clone(),
        page_lsn: Lsn(page_lsn),
    };
    let mut vector: Vec<StoreChange> = pages.map(change).collect();
    store.space().reserve(vector.len() as u64, store::ReservationEstimate::default()).expect("space");
    store.data().apply(&vector).expect("space");
    store.space().release(vector.len() as u64);
    vector.clear();
}

fn open(memory: &Arc<Memory>, what: &str) -> Store {
    memory.reset();
    let begun = Instant::now();
    let store = Store::open(memory.clone()).expect("a good store");
    let took = begun.elapsed().as_secs_f64() * 1000.0;
    let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let mib = count(&memory.blocks_read) as f64 / 256.0;
    let (reads, waits) = (count(&memory.reads), count(&memory.waits));
    println!(
        "{what}: open after {took:.0} ms; {reads} reads of {mib:.1} MiB in all, waited for {waits} times"
    );
    store
}

fn main() {
    let extents = std::env::args().nth(1).map_or(10_000_000, |text| text.parse().expect("a number"));
    let memory = Arc::new(Memory {
        blocks: extents * 2 + (1 << 20),
        held: RwLock::default(),
        reads: AtomicU64::new(0),
        waits: AtomicU64::new(0),
        blocks_read: AtomicU64::new(0),
    });
    Store::format(&*memory, &StoreLayout { id: StoreId([7; 16]), segment_blocks: None })
        .expect("a large device");
    let store = Store::open(memory.clone()).expect("a new store");
    store.begin(Incarnation(1)).expect("a new store");
    let main = NewVolume { name: "main", ..NewVolume::default() };
    store.volumes().create(&main, &[], Lsn(0)).expect("a new store");
    for (first, page_lsn) in (0..extents).step_by(VECTOR_PAGES as usize).zip(1..) {
        write(&store, (first..extents.min(first + VECTOR_PAGES)).map(|extent| 2 * extent), page_lsn);
        if store.maintenance().blocks_since_checkpoint() >= CHECKPOINT_BLOCKS {
            store.maintenance().checkpoint().expect("space");
        }
    }
    store.maintenance().checkpoint().expect("space");
    drop(store);
    let store = open(&memory, &format!("{extents} extents, after a checkpoint"));
    store.begin(Incarnation(2)).expect("a good store");
    let mut random = device::SeededRng::new(1);
    let mut page_lsn = extents;
    while store.maintenance().blocks_since_checkpoint() + VECTOR_PAGES + 4 < CHECKPOINT_BLOCKS {
        let mut pages: Vec<u64> = (0..VECTOR_PAGES).map(|_| 2 * random.below(extents)).collect();
        pages.sort_unstable();
        pages.dedup();
        page_lsn += 1;
        write(&store, pages.into_iter(), page_lsn);
    }
    let log = store.maintenance().blocks_since_checkpoint() / 256;
    drop(store);
    open(&memory, &format!("with {log} MiB of scattered writes after it"));
}

//! Reads of a start: a stated number of reads for the log, however many chunks it has.

use crate::common::*;
use device::{
    Block, Device, DeviceError, DeviceOperation, Incarnation, Lsn, ObjectId, Page, PageNo, SeededRng,
    VolumeId,
};
use sim_disk::{DiskHooks, HookedDisk, PowerSupply, SimDisk};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use store::{Store, StoreChange, VolumeMode};

/// Blocks of a log extent: 8 MiB. Without an index, as much is read at once.
const BLOCKS: u64 = 2048;
const SEGMENTS: u64 = 64;
const FILE: ObjectId = VolumeId::MAIN.object(3, 1);

/// Reads of a start beside those in `reads_since_checkpoint`: superblock and roots, tables, the open extent,
/// the log's end and the proof of it, and the map nodes that the log changes, some for each level.
const OTHERS: u64 = 12;

/// A disk that counts reads, and returns wrong bytes for some.
#[derive(Default)]
struct Counted {
    reads: AtomicU64,
    trims: AtomicU64,
    spoiled: Mutex<Option<Spoil>>,
    /// Reads of several blocks fail.
    refuses_runs: AtomicBool,
    /// The blocks written so far.
    written: Mutex<BTreeMap<Block, Page>>,
}

#[derive(Clone, Copy, Debug)]
enum Spoil {
    /// The second copy in each index: the first chunk was read in its place.
    Copies,
    /// The heads of all chunks but the first of each segment, and those of one segment.
    ChunkIndex { but: u64 },
}

fn counted_disk(disk: &Arc<SimDisk>) -> Arc<HookedDisk<Counted>> {
    HookedDisk::new(disk, Counted::default())
}

fn opened(counted: &Arc<HookedDisk<Counted>>) -> Store {
    counted.reads.store(0, Ordering::Relaxed);
    let identified = Store::identify(counted.clone()).expect("a good store");
    assert_eq!(counted.reads(), 1, "to know which store it is");
    let id = identified.id();
    let store = identified.open().expect("a good store");
    assert_eq!(id, store.id());
    store
}

impl Counted {
    fn spoil(&self, what: Spoil) {
        *self.spoiled.lock().expect("one thread") = Some(what);
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}

impl DiskHooks for Counted {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        if into.len() > 1 && self.refuses_runs.load(Ordering::Relaxed) {
            let (device, operation, count) =
                (disk.name().to_owned(), DeviceOperation::Read, into.len() as u64);
            return Err(DeviceError { device, operation, at, count, errno: 5, reason: "a bad block".into() });
        }
        disk.read(at, into)?;
        let Some(spoil) = *self.spoiled.lock().expect("one thread") else { return Ok(()) };
        for (page, number) in into.iter_mut().zip(at.0..).filter(|&(_, number)| number >= 3) {
            let is_head = page.0.starts_with(b"weir.log");
            let spoils = match spoil {
                // Its length is kept.
                Spoil::Copies => page.0[8..].starts_with(b"weir.log"),
                Spoil::ChunkIndex { but } => {
                    let segment = (number - 3) / BLOCKS;
                    let block = (number - 3) % BLOCKS;
                    is_head && block > 0 && segment != but
                }
            };
            page.0[300] ^= u8::from(spoils);
        }
        Ok(())
    }

    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let blocks = from.iter().zip(0..).map(|(page, index)| (at.plus(index), page.clone()));
        self.written.lock().expect("one thread").extend(blocks);
        disk.write(at, from)
    }

    fn trim(&self, disk: &SimDisk, at: Block, count: u64) -> Result<(), DeviceError> {
        self.trims.fetch_add(1, Ordering::Relaxed);
        disk.trim(at, count)
    }
}

fn fresh_large(seed: u64) -> (Arc<PowerSupply>, Arc<SimDisk>, Store) {
    fresh_of(BLOCKS as u32, SEGMENTS, seed)
}

/// Writes vectors of `sizes` pages in turn until the log has `blocks` blocks. Returns the stamp of each page.
fn write(store: &Store, sizes: &[u64], blocks: u64) -> Vec<u64> {
    let mut stamps = vec![0; 2000];
    let mut random = SeededRng::new(5);
    let mut page_lsn = 0;
    let mut sizes = sizes.iter().cycle();
    while store.maintenance().blocks_since_checkpoint() < blocks {
        page_lsn += 1;
        let first = random.below(1000);
        let pages = first..first + sizes.next().expect("a cycle");
        let change = |number: u64| StoreChange::Write {
            object: FILE,
            page: PageNo(number),
            bytes: page(page_lsn << 16 | number),
            page_lsn: Lsn(page_lsn),
        };
        store.data().apply(&pages.clone().map(change).collect::<Vec<_>>()).expect("space");
        pages.for_each(|number| stamps[number as usize] = page_lsn << 16 | number);
    }
    stamps
}

fn assert_holds(store: &Store, stamps: &[u64], when: &str) {
    assert_reads(store, stamps, when);
    assert_eq!(findings(store), [], "{when}");
}

fn assert_reads(store: &Store, stamps: &[u64], when: &str) {
    let wants = (0..stamps.len() as u64).map(|number| store::PageRead::new(FILE, PageNo(number)));
    let mut wants: Vec<store::PageRead> = wants.collect();
    store.data().read(&mut wants);
    for (want, &expected) in wants.iter().zip(stamps) {
        let found = match want.result.as_ref().unwrap_or_else(|error| panic!("{when}: {error}")) {
            store::StoredPage::Hole => 0,
            store::StoredPage::Page { bytes, .. } => stamp(bytes),
        };
        assert_eq!(found, expected, "{when}: page {:?}", want.page);
    }
}

#[test]
fn a_start_reads_each_log_extent_with_one_read() {
    for sizes in [&[1][..], &[3, 1, 9], &[200], &[700], &[600, 1, 1, 40]] {
        let (_power, disk, store) = fresh_large(1);
        let when = format!("vectors of {sizes:?} pages");
        let stamps = write(&store, sizes, 8 * BLOCKS);
        let stated = store.maintenance().reads_since_checkpoint();
        assert!((7..=9).contains(&stated), "{when}: {stated} reads are stated for 8 extents");
        drop(store);
        let counted = counted_disk(&disk);
        let store = opened(&counted);
        let reads = counted.reads();
        assert!(reads <= stated + OTHERS, "{when}: {reads} reads, {stated} are stated");
        assert_holds(&store, &stamps, &when);
        store.begin(Incarnation(9)).expect("a good disk");
        assert_eq!(store.maintenance().reads_since_checkpoint(), 0, "{when}: the log starts anew");
        assert_holds(&store, &stamps, &when);
    }
}

#[test]
fn a_start_within_an_extent_needs_no_more_reads() {
    let (_power, disk, store) = fresh_large(2);
    write(&store, &[5], 3 * BLOCKS + 100);
    store.maintenance().checkpoint().expect("space");
    let stamps = write(&store, &[7], 4 * BLOCKS);
    let stated = store.maintenance().reads_since_checkpoint();
    assert!((3..=5).contains(&stated), "{stated}");
    drop(store);
    let counted = counted_disk(&disk);
    let store = opened(&counted);
    assert!(counted.reads() <= stated + OTHERS, "{} reads, {stated} are stated", counted.reads());
    // Pages written before the checkpoint have other stamps.
    for (number, &expected) in stamps.iter().enumerate().filter(|&(_, &stamp)| stamp != 0) {
        let mut want = [store::PageRead::new(FILE, PageNo(number as u64))];
        store.data().read(&mut want);
        let found = want[0].result.as_ref().expect("a good disk");
        assert!(matches!(found, store::StoredPage::Page { bytes, .. } if stamp(bytes) == expected));
    }
}

#[test]
fn copies_that_are_damaged_cost_reads_and_nothing_else() {
    let (_power, disk, store) = fresh_large(3);
    let stamps = write(&store, &[2], 4 * BLOCKS);
    drop(store);
    let counted = counted_disk(&disk);
    let few = {
        assert_holds(&opened(&counted), &stamps, "with copies");
        opened(&counted);
        counted.reads()
    };
    counted.spoil(Spoil::Copies);
    let store = opened(&counted);
    let more = counted.reads();
    assert!(more > few, "{few} reads with copies, {more} without one of each");
    assert!(more <= few + 2 * 4, "{few} reads with copies, {more} without one of each");
    assert_holds(&store, &stamps, "without copies");
}

#[test]
fn heads_that_are_damaged_are_taken_from_their_copies() {
    let (_power, disk, store) = fresh_large(4);
    // The chunks are large, so that no copy begins a block, where it would look like a head.
    let stamps = write(&store, &[41], 4 * BLOCKS);
    drop(store);
    let number = |at: &Block| {
        let mut pages = device::pages(1);
        disk.read(*at, &mut pages).expect("a good disk");
        let number = pages[0].0[56..64].try_into().expect("8 bytes");
        pages[0].0.starts_with(b"weir.log").then_some(u64::from_le_bytes(number))
    };
    let last = disk.written_blocks().into_iter().max_by_key(|at| number(at)).expect("a log");
    let open = (last.0 - 3) / BLOCKS;
    let counted = counted_disk(&disk);
    counted.spoil(Spoil::ChunkIndex { but: open });
    let store = opened(&counted);
    assert_reads(&store, &stamps, "from copies");
    // Owners are looked up in the chunk heads, not in the index.
    let findings = findings(&store);
    assert!(findings.len() > 500, "{} findings", findings.len());
    for finding in findings {
        let of_data = finding.place.is_some_and(|at| (at.0 - 3) / BLOCKS != open);
        assert!(of_data && finding.what.contains("does not say whose it is"), "{finding}");
    }
}

/// A batch that may not be durable is read as a whole, with one read for each MiB; block by block if these
/// fail.
#[test]
fn the_last_batch_is_written_again_whole_a_mebibyte_at_a_time() {
    for refuses_runs in [false, true] {
        let (_power, disk, store) = fresh_large(5);
        let stamps = write(&store, &[600], 600);
        drop(store);
        let counted = counted_disk(&disk);
        let store = opened(&counted);
        let opened = counted.reads();
        counted.refuses_runs.store(refuses_runs, Ordering::Relaxed);
        store.begin(Incarnation(9)).expect("a good disk");
        counted.refuses_runs.store(false, Ordering::Relaxed);
        let reads = counted.reads() - opened;
        assert!(refuses_runs || (1..10).contains(&reads), "{reads} reads for 600 pages");
        let written = counted.written.lock().expect("one thread");
        let again: BTreeSet<&[u8]> = written.values().map(|page| &page.0[..]).collect();
        let is_lost = |stamp: &&u64| **stamp != 0 && !again.contains(&page(**stamp).0[..]);
        let lost = stamps.iter().filter(is_lost).count();
        assert_eq!(lost, 0, "of 600 pages, where runs are refused: {refuses_runs}");
        let heads = written.values().filter(|page| page.0.starts_with(b"weir.log")).count();
        assert!(heads > 0, "nor heads");
        drop(written);
        assert_holds(&store, &stamps, "written again");
    }
}

/// The cycles in `reserve.rs` test starts that need the trims.
#[test]
fn a_start_leaves_trims_that_it_does_not_need_to_the_next_checkpoint() {
    let (_power, disk, store) = fresh_large(6);
    write(&store, &[200], 8 * BLOCKS);
    drop(store);
    let counted = counted_disk(&disk);
    let store = opened(&counted);
    let trims = || counted.trims.load(Ordering::Relaxed);
    store.begin(Incarnation(9)).expect("a good disk");
    assert_eq!(trims(), 0, "most segments are free");
    let free = store.space().now().free;
    store.maintenance().checkpoint().expect("space");
    assert!(trims() >= 6, "{} trims", trims());
    assert!(store.space().now().free > free + (trims() - 1) * BLOCKS, "what was trimmed is free");
}

#[test]
fn a_start_reads_ten_thousand_volumes_at_once_and_nothing_of_what_is_in_them() {
    let cost = |clones: u32| {
        let (_power, disk, store) = fresh_of(1024, 64, 1);
        let write = |number| {
            let (page, bytes) = (PageNo(number), page(number + 1));
            StoreChange::Write { object: FILE, page, bytes, page_lsn: Lsn(number + 1) }
        };
        store.data().apply(&(0..1000).map(write).collect::<Vec<_>>()).expect("space");
        for number in 1..=clones {
            let lsn = Lsn(2000 + u64::from(number));
            clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, lsn).expect("space");
        }
        store.maintenance().checkpoint().expect("a checkpoint");
        store.maintenance().checkpoint().expect("a checkpoint");
        drop(store);
        let counted = counted_disk(&disk);
        let store = opened(&counted);
        assert_eq!(store.volumes().all().len() as u32, clones + 1);
        (counted.reads(), store.counters().node_reads)
    };
    let alone = cost(0);
    let many = cost(10_000);
    println!("alone {alone:?}, with 10,000 {many:?} reads and nodes");
    // 626 leaves, 3 nodes above them and the root.
    assert_eq!((alone.1, many.1), (1, 630));
    assert!(many.0 <= alone.0 + 6, "{} reads instead of {}", many.0, alone.0);
}

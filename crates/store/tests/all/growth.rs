//! Stores that are made larger, in use and not.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Lsn, ObjectId, Page, PageNo, VolumeId};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{CleaningOutcome, ReservationEstimate, Store, StoreChange, StoreError, SuperblockRepair};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);

/// Blocks of a device for a store of so many segments.
fn blocks_for(segments: u64) -> u64 {
    4 + segments * u64::from(SEGMENT)
}

fn write(number: u64, page_lsn: u64) -> StoreChange {
    StoreChange::Write { object: FILE, page: PageNo(number), bytes: page(page_lsn), page_lsn: Lsn(page_lsn) }
}

/// Writes pages from `from` on until no more can be reserved.
fn fill(store: &Store, from: u64) -> u64 {
    let known = |pages: u64| ReservationEstimate {
        data_pages: pages,
        pages_in_same_leaf: pages - pages.div_ceil(128),
    };
    let mut next = from;
    while store.space().reserve(8, known(8)).is_ok() {
        let some: Vec<StoreChange> = (next..next + 8).map(|number| write(number, number + 1)).collect();
        apply_reserved(store, &some).expect("a sound disk");
        store.space().release(8);
        next += 8;
    }
    next
}

fn assert_written(store: &Store, pages: u64, when: &str) {
    for number in 0..pages {
        assert_eq!(
            store.data().page_lsn(FILE, PageNo(number)),
            Ok(Some(Lsn(number + 1))),
            "{when}: page {number}"
        );
    }
    assert_eq!(findings(store), [], "{when}");
}

fn superblock_of(disk: &SimDisk, at: u64) -> Page {
    let mut block = device::pages(1);
    disk.read(Block(at), &mut block).expect("no faults");
    block.remove(0)
}

#[test]
fn a_full_store_that_grows_in_use_takes_more_and_is_that_large_from_then_on() {
    let (_power, disk, store) = fresh(64, 1);
    let full = fill(&store, 0);
    assert_eq!(store.space().reserve(8, ReservationEstimate::default()), Err(StoreError::Full));
    assert_eq!(store.grow(Some(blocks_for(200))), Ok(blocks_for(200)));
    assert_eq!(store.total_blocks(), blocks_for(200));
    let more = fill(&store, full);
    assert!(more > full + 100 * u64::from(SEGMENT), "{full} pages, then {more}");
    assert_written(&store, more, "in use");
    drop(store);
    let store = mount(&disk).expect("it opens");
    assert_eq!(store.total_blocks(), blocks_for(200));
    assert_written(&store, more, "opened again");
    drop(store);
    assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::Neither));
}

#[test]
fn a_store_that_is_not_open_takes_a_device_that_has_become_larger() {
    let (_power, disk, store) = fresh(64, 1);
    let full = fill(&store, 0);
    drop(store);
    for asked in [None, Some(blocks_for(64)), Some(blocks_for(65) - 1)] {
        assert_eq!(Store::grow_unopened(&*disk, asked), Ok(blocks_for(64)), "as large as before");
    }
    let cannot = |blocks: u64| match Store::grow_unopened(&*disk, Some(blocks)) {
        Err(StoreError::CannotGrow { why, help, .. }) => (why, help),
        other => panic!("{blocks} blocks: {other:?}"),
    };
    assert!(cannot(blocks_for(63)).0.contains(&(blocks_for(64) * BLOCK_BYTES as u64).to_string()));
    // Its table must fit into a segment.
    let (_, help) = cannot(blocks_for(1 << 20));
    assert_eq!(disk.blocks(), blocks_for(64), "nothing was done");
    let most: u64 = help.split(['`', ' ']).find_map(|word| word.parse().ok()).expect("it says how large");
    let most = most / BLOCK_BYTES as u64;
    cannot(most + u64::from(SEGMENT));
    let fork = disk.fork(&PowerSupply::new(), 1);
    assert_eq!(Store::grow_unopened(&*fork, Some(most)), Ok(most), "what it says will do");
    assert_eq!(mount(&fork).expect("it opens").total_blocks(), most);
    disk.grow(blocks_for(150) + 5).expect("power");
    assert_eq!(Store::grow_unopened(&*disk, None), Ok(blocks_for(150)));
    let store = mount(&disk).expect("it opens");
    let more = fill(&store, full);
    assert!(more > full + 60 * u64::from(SEGMENT), "{full} pages, then {more}");
    assert_written(&store, more, "grown");
}

#[test]
fn a_crash_at_any_moment_of_growing_leaves_the_store_whole_and_as_large_as_before_or_after() {
    let (_power, disk, store) = fresh(64, 1);
    let full = fill(&store, 0);
    // The checkpoints free segments, so that the old place of the superblock's copy at the store's old end is
    // surely written to.
    store.maintenance().checkpoint_twice().expect("a sound disk");
    drop(store);
    let (mut as_before, mut as_after) = (0, 0);
    for (cut, seed) in (0..40).flat_map(|cut| (0..6).map(move |seed| (cut, seed))) {
        let when = format!("seed {seed}, cut after {cut}");
        let power = PowerSupply::new();
        let disk = disk.fork(&power, seed);
        let store = mount(&disk).expect("it opens");
        power.cut_after(cut);
        let grown = store.grow(Some(blocks_for(128)));
        drop(store);
        power.cut();
        disk.crash();
        power.restore();

        let store = mount(&disk).unwrap_or_else(|error| panic!("{when}: {error}"));
        let blocks = store.total_blocks();
        if blocks == blocks_for(128) {
            as_after += 1
        } else {
            assert_eq!((blocks, grown.is_err()), (blocks_for(64), true), "{when}");
            as_before += 1;
            store.grow(Some(blocks_for(128))).unwrap_or_else(|error| panic!("{when}: {error}"));
        }
        assert_written(&store, full, &when);
        let more = fill(&store, full);
        assert!(more > full + 40 * u64::from(SEGMENT), "{when}: {full} pages, then {more}");
        drop(store);
        assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::Neither), "{when}");
        let store = open(&disk).unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_written(&store, more, &when);
    }
    assert!(as_before > 5 && as_after > 5, "{as_before} as before, {as_after} larger");
}

#[test]
fn a_superblock_that_is_damaged_after_growing_is_restored_from_the_new_copy() {
    let (power, disk, store) = fresh(64, 1);
    let full = fill(&store, 0);
    store.grow(Some(blocks_for(100))).expect("a sound disk");
    let more = fill(&store, full);
    drop(store);
    let last = blocks_for(100) - 1;
    assert!(superblock_of(&disk, last) == superblock_of(&disk, 0));
    disk.rot(Block(0), 77);
    assert!(matches!(open(&disk).err(), Some(StoreError::SuperblockDamaged { .. })));
    assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::First(Block(last))));
    assert_written(&mount(&disk).expect("it opens"), more, "restored");
    drop(power);
}

#[test]
fn a_superblock_that_is_damaged_before_the_first_root_after_growing_is_restored_as_it_was() {
    let (_power, disk, store) = fresh(64, 1);
    let full = fill(&store, 0);
    drop(store);
    assert_eq!(Store::grow_unopened(&*disk, Some(blocks_for(100))), Ok(blocks_for(100)));
    disk.rot(Block(0), 77);
    assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::First(Block(blocks_for(64) - 1))));
    let store = mount(&disk).expect("it opens");
    assert_eq!(store.total_blocks(), blocks_for(64));
    assert_written(&store, full, "restored");
}

#[test]
fn a_round_of_cleaning_goes_on_when_the_store_grows() {
    let (_power, disk, store) = fresh(100, 1);
    let full = fill(&store, 0);
    for number in (0..full).step_by(3) {
        let cut =
            StoreChange::Punch { object: FILE, pages: PageNo(number)..PageNo(number + 1), lsn: Lsn(1 << 40) };
        store.data().apply(&[cut]).expect("cutting takes no space");
    }
    store.maintenance().checkpoint_twice().expect("a sound disk");
    for _ in 0..5 {
        assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    }
    store.grow(Some(blocks_for(250))).expect("a sound disk");
    // These writes lie behind the old end.
    let more = full + 1000;
    (full..more).for_each(|number| store.data().apply(&[write(number, number + 1)]).expect("space"));
    while store.maintenance().clean_round().expect("a sound disk") {
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    assert!(store.counters().segments_cleaned > 5, "{:?}", store.counters());
    assert_eq!(findings(&store), []);
    drop(store);
    let store = mount(&disk).expect("it opens");
    let is_there = |number: &u64| store.data().page_lsn(FILE, PageNo(*number)) == Ok(Some(Lsn(number + 1)));
    assert_eq!((0..more).filter(is_there).count() as u64, more - full.div_ceil(3));
}

#[test]
fn a_sparse_store_that_grows_asks_the_file_system_below_for_space_as_it_needs_it() {
    let disk: Arc<SimDisk> = disk(blocks_for(64), &PowerSupply::new(), 1);
    disk.set_space(u64::MAX);
    let store = format(&disk);
    let (before, taken) = (store.space().now(), disk.space_taken());
    store.grow(Some(blocks_for(1000))).expect("a sound disk");
    assert!(disk.space_taken() < taken + 200, "{taken} blocks, then {}", disk.space_taken());
    assert_eq!(store.space().now().total, before.total + (1000 - 64) * u64::from(SEGMENT));
    for from in (0..8000).step_by(8) {
        tend(&store);
        let some: Vec<StoreChange> = (from..from + 8).map(|number| write(number, number + 1)).collect();
        store.data().apply(&some).expect("space was asked for ahead");
    }
    assert_written(&store, 8000, "grown");
}

#[test]
fn a_scrub_after_growing_failed_with_its_last_flush_finds_nothing_wrong() {
    for seed in 0..20 {
        let (_power, disk, store) = fresh(100, seed);
        (0..100).for_each(|number| store.data().apply(&[write(number, number + 1)]).expect("space"));
        store.maintenance().checkpoint_twice().expect("ok");
        // The copy, a flush, the superblock; the last flush fails.
        disk.set_faults(sim_disk::DiskFaults { once_after: Some(3), ..Default::default() });
        let grown = store.grow(Some(4 + 200 * 16));
        assert!(grown.is_err());
        disk.set_faults(sim_disk::DiskFaults::default());
        let mut found = Vec::new();
        while !store.maintenance().scrub_step(&mut |finding| found.push(finding)).done {}
        assert_eq!(found, [], "seed {seed}: {grown:?}");
    }
}

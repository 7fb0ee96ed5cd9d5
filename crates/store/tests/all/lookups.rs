//! Cleaning without a walk of the map: the references to a block are looked up at the pages that its segment
//! names.

use crate::common::*;
use device::{Lsn, ObjectId, PageNo, PageTransfer};
use sim_disk::SimDisk;
use std::sync::Arc;
use store::{CleaningOutcome, Store, StoreChange, VolumeId, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const ARENA: ObjectId = VolumeId::MAIN.object(0, 1);
const PAGES: u64 = 8000;

fn write(store: &Store, object: ObjectId, numbers: impl Iterator<Item = u64>, page_lsn: u64) {
    let numbers: Vec<u64> = numbers.collect();
    for some in numbers.chunks(8) {
        let change = |&number: &u64| {
            let page_lsn = page_lsn + number;
            StoreChange::Write {
                object,
                page: PageNo(number),
                bytes: page(page_lsn),
                page_lsn: Lsn(page_lsn),
            }
        };
        store.data().apply(&some.iter().map(change).collect::<Vec<_>>()).expect("space");
    }
}

/// A store with a file of which every fourth page was overwritten, one after the other.
fn quarter_dead() -> (Arc<SimDisk>, Store) {
    let (_power, disk, store) = fresh(1500, 1);
    write(&store, FILE, 0..PAGES, 1);
    write(&store, FILE, (0..PAGES).step_by(4), 20_000);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    (disk, store)
}

/// Cleans for one round. Returns the number of emptied segments, the number of nodes visited and read, and
/// whether the round walked the map.
fn round(store: &Store) -> (u64, u64, bool) {
    let before = store.counters();
    loop {
        match store.maintenance().clean_step().expect("a sound disk") {
            CleaningOutcome::Working => {}
            CleaningOutcome::RoundEnded(segments) => {
                let now = store.counters();
                let nodes = now.nodes_visited + now.node_reads - before.nodes_visited - before.node_reads;
                return (segments, nodes, now.walks > before.walks);
            }
            CleaningOutcome::Idle => return (0, 0, false),
        }
    }
}

#[test]
fn a_round_reads_the_leaves_of_its_victims_only_where_no_block_is_shared() {
    let (disk, store) = quarter_dead();
    drop(store);
    let store = mount(&disk).expect("it opens");
    store.set_cached_nodes_max(64);
    let leaves = PAGES / 128;
    for number in 0..5 {
        let (emptied, nodes, walked) = round(&store);
        assert!(emptied > 10 && !walked, "round {number}: {emptied} emptied, walked: {walked}");
        // Each victim has pages of two leaves. Some inner nodes lie above them.
        assert!(nodes < leaves, "round {number}: {nodes} nodes for {emptied} segments, {leaves} leaves");
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    assert_eq!(findings(&store), []);
    for number in 0..PAGES {
        let page_lsn = if number % 4 == 0 { 20_000 + number } else { number + 1 };
        assert_eq!(store.data().page_lsn(FILE, PageNo(number)), Ok(Some(Lsn(page_lsn))));
    }
}

#[test]
fn pages_of_metadata_are_looked_up_in_the_volumes_arenas() {
    let (_power, _disk, store) = fresh(1500, 1);
    write(&store, FILE, 0..PAGES, 1);
    write(&store, ARENA, 0..600, 1);
    write(&store, ARENA, (0..600).step_by(3), 20_000);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let (mut emptied, mut walks) = (0, 0);
    while let (segments @ 1.., _, walked) = round(&store) {
        emptied += segments;
        walks += u64::from(walked);
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    assert!(emptied > 20 && walks == 0, "{emptied} segments, {walks} walks");
    assert_eq!(findings(&store), []);
    for number in 0..600 {
        let page_lsn = if number % 3 == 0 { 20_000 + number } else { number + 1 };
        assert_eq!(store.data().page_lsn(ARENA, PageNo(number)), Ok(Some(Lsn(page_lsn))));
    }
}

#[test]
fn what_a_clone_shares_takes_a_walk_and_what_was_written_since_does_not() {
    let (_disk, store) = quarter_dead();
    clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, Lsn(60_000)).expect("space");
    // These writes copy all leaves.
    write(&store, FILE, (1..PAGES).step_by(50), 70_000);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let mut walked = false;
    for _ in 0..3 {
        walked |= round(&store).2;
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    assert!(walked, "others hold the blocks");
    assert_eq!(findings(&store), []);
    while store.maintenance().clean_round().expect("a sound disk") {
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    let other = VolumeId::MAIN.object(9, 1);
    write(&store, other, 0..PAGES / 2, 100_000);
    write(&store, other, (0..PAGES / 2).step_by(4), 120_000);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let (emptied, _, walked) = round(&store);
    assert!(emptied > 5 && !walked, "{emptied} segments, walked: {walked}");
    assert_eq!(findings(&store), []);
}

#[test]
fn a_block_that_is_shared_while_its_segment_is_cleaned_stays_until_a_walk_has_found_its_other_holder() {
    let copy = VolumeId::MAIN.object(11, 1);
    for steps in 1..40 {
        let (_disk, store) = quarter_dead();
        for _ in 0..steps {
            assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
        }
        // The distances differ, so that pages are shared one by one.
        let transfer = PageTransfer::clone_range(FILE, PageNo(0)..PageNo(PAGES), copy, PageNo(1));
        store.data().apply(&[StoreChange::Transfer { transfer, lsn: Lsn(90_000) }]).expect("space");
        for _ in 0..3 {
            round(&store);
            store.maintenance().checkpoint_twice().expect("a sound disk");
        }
        assert_eq!(findings(&store), [], "after {steps} steps");
        for number in (0..PAGES).step_by(61) {
            let page_lsn = Ok(Some(Lsn(if number % 4 == 0 { 20_000 + number } else { number + 1 })));
            assert_eq!(store.data().page_lsn(FILE, PageNo(number)), page_lsn);
            assert_eq!(store.data().page_lsn(copy, PageNo(number + 1)), page_lsn);
            let mut wants = [store::PageRead::new(copy, PageNo(number + 1))];
            store.data().read(&mut wants);
            assert!(
                matches!(wants[0].result, Ok(store::StoredPage::Page { .. })),
                "page {number}: {:?}",
                wants[0]
            );
        }
    }
}

/// Cleans until no segment is worth it.
fn clean_all(store: &Store) {
    loop {
        match store.maintenance().clean_step().expect("a sound disk") {
            CleaningOutcome::Working => {}
            CleaningOutcome::Idle => break,
            CleaningOutcome::RoundEnded(_) => store.maintenance().checkpoint_twice().expect("a sound disk"),
        }
    }
    store.maintenance().checkpoint_twice().expect("a sound disk");
}

/// A store in which half of the counted blocks lost their last reference with a deleted clone. Only a walk
/// can find that.
fn with_counts_too_high() -> (Arc<SimDisk>, Store) {
    let (_power, disk, store) = fresh_of(128, 300, 1);
    write(&store, FILE, 0..PAGES, 1);
    clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, Lsn(20_000)).expect("space");
    write(&store, FILE, 0..PAGES, 30_000);
    store.maintenance().checkpoint().expect("a sound disk");
    store.volumes().delete(VolumeId(1), Lsn(50_000)).expect("space");
    while store.maintenance().free_deleted_step().expect("a sound disk") {}
    store.maintenance().checkpoint_twice().expect("a sound disk");
    (disk, store)
}

fn assert_found_out(store: &Store) {
    // Another file to clean, without shared blocks.
    let other = VolumeId::MAIN.object(8, 1);
    write(store, other, 0..6000, 60_000);
    write(store, other, (0..6000).step_by(2), 70_000);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    clean_all(store);
    let live = store.space().now().live;
    assert!(live < 16_000, "14,000 pages and their nodes are live, it thinks {live}: {:?}", store.counters());
    assert_eq!(findings(store), []);
}

#[test]
fn counts_that_are_too_high_are_found_out_after_a_remount() {
    let (disk, store) = with_counts_too_high();
    drop(store);
    assert_found_out(&mount(&disk).expect("it opens"));
}

#[test]
fn counts_that_are_too_high_are_found_out_after_half_a_walk_and_a_remount() {
    let (disk, store) = with_counts_too_high();
    for _ in 0..2 {
        assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    }
    store.maintenance().checkpoint().expect("a sound disk");
    let fork = disk.fork(&sim_disk::PowerSupply::new(), 1);
    assert_found_out(&mount(&fork).expect("it opens"));
}

#[test]
fn a_step_that_looks_up_metadata_reads_no_more_than_a_step_of_a_walk() {
    let (_power, _disk, store) = fresh(2500, 1);
    for leaf in 0..1500 {
        write(&store, ARENA, leaf * 128..leaf * 128 + 1, 1);
        if leaf % 20 == 0 {
            store.maintenance().checkpoint().expect("a sound disk");
        }
    }
    (0..10).for_each(|leaf| write(&store, ARENA, leaf * 128..leaf * 128 + 1, 1_000_000));
    store.set_cached_nodes_max(64);
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let mut most = 0;
    for _ in 0..400 {
        let before = store.counters().node_reads;
        let cleaning = store.maintenance().clean_step().expect("a sound disk");
        most = most.max(store.counters().node_reads - before);
        if cleaning != CleaningOutcome::Working {
            store.maintenance().checkpoint_twice().expect("a sound disk");
        }
    }
    assert!((64..=140).contains(&most), "{most} nodes read in one step");
    assert!(store.counters().segments_cleaned > 0);
}

#[test]
fn a_head_that_cannot_be_read_for_a_moment_keeps_its_owners() {
    for steps in 1..12 {
        let (_power, disk, store) = fresh_of(128, 200, 1);
        let at_once = |numbers: std::ops::Range<u64>, page_lsn: u64| {
            let numbers: Vec<u64> = numbers.collect();
            for some in numbers.chunks(500) {
                let change = |&number: &u64| {
                    let page_lsn = page_lsn + number;
                    StoreChange::Write {
                        object: FILE,
                        page: PageNo(number),
                        bytes: page(page_lsn),
                        page_lsn: Lsn(page_lsn),
                    }
                };
                store.data().apply(&some.iter().map(change).collect::<Vec<_>>()).expect("space");
            }
        };
        at_once(0..9000, 1);
        // One segment or two are worth it.
        at_once(140..200, 20_000);
        store.maintenance().checkpoint_twice().expect("a sound disk");
        (4..200 * 128 + 4).for_each(|at| disk.damage(device::Block(at), sim_disk::BlockDamage::Unreadable));
        for _ in 0..steps {
            let _ = store.maintenance().clean_step();
        }
        disk.heal();
        while store.maintenance().clean_step().expect("a sound disk") == CleaningOutcome::Working {}
        store.maintenance().checkpoint_twice().expect("a sound disk");
        assert_eq!(findings(&store), [], "after {steps} steps");
    }
}

//! Deletions of large objects: quick, and freed a step at a time.

use crate::common::*;
use device::{Lsn, ObjectId, PageNo, VolumeId};
use store::{Store, StoreChange};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const LEAF: u64 = 128;
/// Leaves of the map, with one page each.
const LEAVES: u64 = 3000;

fn fill(store: &Store) {
    let write = |leaf| StoreChange::Write {
        object: FILE,
        page: PageNo(leaf * LEAF),
        bytes: page(leaf + 1),
        page_lsn: Lsn(leaf + 1),
    };
    let all: Vec<StoreChange> = (0..LEAVES).map(write).collect();
    for some in all.chunks(20) {
        store.data().apply(some).expect("space");
        store.maintenance().checkpoint().expect("a checkpoint");
    }
}

fn freed(store: &Store) -> u64 {
    store.counters().nodes_freed
}

#[test]
fn a_deletion_reads_no_leaf_and_what_it_held_is_freed_in_steps_that_a_crash_does_not_undo() {
    let (power, disk, store) = fresh(2500, 1);
    store.set_cached_nodes_max(64);
    fill(&store);
    let (live, read) = (store.space().now().live, store.counters().node_reads);
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }]).expect("space");
    assert!(store.counters().node_reads - read < 8, "{} nodes were read", store.counters().node_reads - read);
    assert_eq!(store.data().page_lsn(FILE, PageNo(LEAF)), Ok(None));
    assert!(store.maintenance().is_freeing());
    for _ in 0..8 {
        store.maintenance().free_deleted_step().expect("freeing");
    }
    assert!((500..=8 * 256).contains(&freed(&store)), "{} nodes in eight steps", freed(&store));
    store.maintenance().checkpoint().expect("a checkpoint");
    store.maintenance().free_deleted_step().expect("freeing");
    drop(store);
    power.cut();
    disk.crash();
    power.restore();

    let store = mount(&disk).expect("it opens");
    store.set_cached_nodes_max(64);
    assert_eq!(findings(&store), []);
    assert_eq!(store.data().page_lsn(FILE, PageNo(LEAF)), Ok(None));
    while store.maintenance().free_deleted_step().expect("freeing") {}
    assert!((LEAVES / 4..LEAVES).contains(&freed(&store)), "{} nodes are left", freed(&store));
    assert_eq!(findings(&store), []);
    assert!(store.space().now().live < live - LEAVES, "{:?}", store.space().now());
}

#[test]
fn a_deletion_is_applied_once_more_by_a_recovery_and_frees_nothing_twice() {
    let (power, disk, store) = fresh(2500, 1);
    fill(&store);
    let copy = VolumeId(1);
    clone_volume(&store, VolumeId::MAIN, store::VolumeMode::Writable, Lsn(1 << 20)).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 30) }]).expect("space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    drop(store);
    power.cut();
    disk.crash();
    power.restore();

    let store = mount(&disk).expect("it opens");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 30) }]).expect("space");
    assert_eq!(findings(&store), []);
    assert_eq!(store.data().page_lsn(FILE.in_volume(copy), PageNo(LEAF)), Ok(Some(Lsn(2))));
    store
        .data()
        .apply(&[StoreChange::Delete { object: FILE.in_volume(copy), lsn: Lsn(1 << 31) }])
        .expect("space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    assert_eq!(findings(&store), []);
    let space = store.space().now();
    assert!(space.live < 2 * LEAVES, "the last holder of {LEAVES} leaves is gone: {space:?}");
}

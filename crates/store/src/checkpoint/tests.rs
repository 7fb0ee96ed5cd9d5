//! Which segments of nodes a checkpoint empties.

use super::*;
use crate::change::StoreChange;
use crate::store::Store;
use crate::superblock::StoreLayout;
use crate::volume::tests::make_main;
use device::{Incarnation, Lsn, ObjectId, PageNo, SeededRng, StoreId, VolumeId};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);
const SEGMENT_BLOCKS: u32 = 16;
/// Pages whose entries lie in one leaf.
const LEAF_PAGES: u64 = 128;

fn fresh(segments: u64) -> Store {
    on_disk(segments).1
}

fn on_disk(segments: u64) -> (Arc<SimDisk>, Store) {
    let disk = SimDisk::new("disk", 4 + segments * u64::from(SEGMENT_BLOCKS), &PowerSupply::new(), 1);
    let layout = StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(SEGMENT_BLOCKS) };
    Store::format(&*disk, &layout).expect("large enough");
    let store = Store::open(disk.clone()).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    (disk, store)
}

fn write(store: &Store, numbers: impl IntoIterator<Item = u64>) {
    let bytes = Arc::new(Page::zeroed());
    for number in numbers {
        let (page, bytes, page_lsn) =
            (PageNo(number), bytes.clone(), Lsn(store.shared.map().newest().any.0 + 1));
        store.data().apply(&[StoreChange::Write { object: FILE, page, bytes, page_lsn }]).expect("space");
    }
}

/// A page of each of `leaves` leaves, written; then some of them again, with checkpoints between.
fn scattered(store: &Store, leaves: u64, checkpoints: usize) {
    let mut random = SeededRng::new(1);
    write(store, (0..leaves).map(|leaf| leaf * LEAF_PAGES));
    for _ in 0..checkpoints {
        store.maintenance().checkpoint().expect("space");
        write(store, (0..leaves / 5).map(|_| random.below(leaves) * LEAF_PAGES).collect::<Vec<u64>>());
    }
}

/// The live blocks of each closed segment of nodes.
fn live(store: &Store) -> Vec<(u32, u64)> {
    let map = store.shared.map();
    let closed =
        map.nodes.segments.iter().filter(|(_, segment)| segment.usage == SegmentUse::Nodes && !segment.open);
    closed.map(|(number, segment)| (number, u64::from(segment.live))).collect()
}

#[test]
fn what_stays_in_a_segment_of_nodes_is_what_lives_there_after_the_next_checkpoint() {
    let store = fresh(2000);
    scattered(&store, 300, 6);
    let writer = store.writer.lock();
    let map = store.shared.map();
    assert!(!map.is_short_of_space() && !map.node_use().is_sparse(false, 0), "nothing is compacted");
    let staying = blocks_staying(&map.nodes, writer.table_blocks());
    drop((map, writer));
    assert!(staying.iter().any(|&(_, blocks)| blocks > 0), "{staying:?}");
    let before = live(&store);
    assert!(before.len() > 10 && before != staying, "some is dirty");
    store.maintenance().checkpoint().expect("space");
    let after = live(&store);
    for (number, blocks) in staying {
        let lives = after.iter().find(|(other, _)| *other == number).map_or(0, |&(_, live)| live);
        assert_eq!(lives, blocks, "segment {number}");
    }
}

/// Fills a store until space is short.
fn fill(store: &Store) {
    let mut number = 1;
    while !store.maintenance().is_short_of_space() {
        write(store, [number]);
        number += 1 + u64::from(number % LEAF_PAGES == LEAF_PAGES - 1);
    }
}

/// A store that is short of space, and has few nodes in each of many segments.
fn sparse_and_short() -> (Arc<SimDisk>, Store) {
    let (disk, store) = on_disk(600);
    scattered(&store, 300, 12);
    fill(&store);
    store.maintenance().checkpoint().expect("space");
    (disk, store)
}

/// Closed segments of nodes of which a quarter lives at most.
fn nearly_empty(store: &Store) -> usize {
    let few = |(_, live): &(u32, u64)| (1..=u64::from(SEGMENT_BLOCKS) / 4).contains(live);
    live(store).iter().filter(|one| few(one)).count()
}

#[test]
fn where_space_is_short_a_checkpoint_empties_as_many_segments_of_nodes_as_two_full_ones_hold() {
    let (disk, store) = sparse_and_short();
    fill(&store);
    let before = nearly_empty(&store);
    drop(store);
    let store = Store::open(disk).expect("a sound disk");
    store.begin(Incarnation(2)).expect("the second");
    let started = nearly_empty(&store);
    // It makes two checkpoints.
    assert!(started + 4 >= before, "a start empties two at a time: {before} segments, then {started}");
    fill(&store);
    let started = nearly_empty(&store);
    store.maintenance().checkpoint().expect("space");
    let after = nearly_empty(&store);
    // A quarter is four blocks; two full ones may have twelve each.
    assert!(started >= after + 6, "{started} segments, then {after}");
}

#[test]
fn a_segment_of_nodes_one_of_which_cannot_be_read_is_left_alone_and_others_are_compacted() {
    let (disk, store) = sparse_and_short();
    // Of the last files' leaves, which nothing below changes, one that lies in one of the emptiest segments.
    let few: Vec<u32> = live(&store)
        .into_iter()
        .filter(|&(_, live)| (1..=4).contains(&live))
        .map(|(number, _)| number)
        .collect();
    let segment =
        |place| store.shared.medium.geometry().segment_of(place).filter(|number| few.contains(number));
    let places: Vec<Block> = store.shared.map().nodes.table.iter().map(|(_, entry)| entry.place).collect();
    let place = places.into_iter().rfind(|&place| segment(place).is_some()).expect("a leaf");
    let number = segment(place).expect("just found");
    let copy = store.shared.map().nodes.segments.mirror_of(place).expect("nodes lie in pairs");
    drop(store);
    [place, copy].into_iter().for_each(|at| disk.rot(at, 77));
    let store = Store::open(disk).expect("no start needs this leaf");
    store.begin(Incarnation(2)).expect("the second");
    let staying = |store: &Store| {
        let writer = store.writer.lock();
        let map = store.shared.map();
        let staying = blocks_staying(&map.nodes, writer.table_blocks());
        staying.into_iter().map(|(number, _)| number).collect::<Vec<u32>>()
    };
    for _ in 0..4 {
        fill(&store);
        store.maintenance().checkpoint().expect("space");
    }
    assert_eq!(
        store.shared.map().nodes.segments.get(number).live,
        1,
        "the others that lived there are elsewhere"
    );
    assert!(!staying(&store).contains(&number), "it is not tried again");
    assert_eq!(nearly_empty(&store), 1, "no other is left");
}

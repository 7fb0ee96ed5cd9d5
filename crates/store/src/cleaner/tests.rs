//! Tests of the cleaner's parts in states that the public interface hardly reaches.

use super::*;
use crate::change::StoreChange;
use crate::map::{NodeBody, PageMapEntry};
use crate::store::Store;
use crate::superblock::StoreLayout;
use crate::volume::tests::make_main;
use crate::volume::{NewVolume, VolumeMode};
use device::{Incarnation, Lsn, ObjectId, PageNo, StoreId, VolumeId};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

/// A store of which every other page of a file is dead.
pub(crate) fn half_dead() -> Store {
    let disk = SimDisk::new("disk", 4 + 200 * 16, &PowerSupply::new(), 1);
    Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(16) })
        .expect("large enough");
    let store = Store::open(disk).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    (0..300).for_each(|number| write(&store, FILE, number, number + 1));
    (0..300).step_by(2).for_each(|number| write(&store, FILE, number, number + 1000));
    store
}

fn write(store: &Store, object: ObjectId, number: u64, page_lsn: u64) {
    let bytes = Arc::new(device::Page::zeroed());
    let write = StoreChange::Write { object, page: PageNo(number), bytes, page_lsn: Lsn(page_lsn) };
    store.data().apply(&[write]).expect("space");
}

/// The half-dead store, with a round that has walked the map and not moved anything.
pub(crate) fn walked() -> Store {
    walk(half_dead())
}

fn walk(store: Store) -> Store {
    while store
        .maintenance
        .lock_cleaner()
        .round
        .as_ref()
        .is_none_or(|round| !matches!(round.stage, RoundStage::Counted))
    {
        assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    }
    store
}

#[test]
fn the_last_victims_are_let_go_while_there_are_more_holders_than_may_be() {
    let store = walked();
    let mut cleaner = store.maintenance.lock_cleaner();
    let round = cleaner.round.as_mut().expect("a round");
    let victims = round.victims.clone();
    assert!(victims.len() > 3, "{victims:?}");
    let mut bound = |holders: usize| {
        store.shared.map_mut().nodes.scan_mut(ScanPurpose::Clean).as_mut().expect("a walk").holder_count =
            holders;
        round.bound_holder_memory(&store.shared);
        round.victims.clone()
    };
    assert_eq!(bound(1_048_576), victims);
    assert_eq!(bound(1_048_577), victims[..victims.len() - 1]);
    assert_eq!(bound(usize::MAX), victims[..1], "one stays, however many hold its blocks");
}

/// Takes all free segments that the cleaner may take.
fn take_spare_segments(store: &Store) {
    let mut map = store.shared.map_mut();
    while map.nodes.segments.free_count() > map.floor(SpaceClass::Cleaner) {
        map.nodes.segments.take(SegmentUse::Log).expect("it is free");
    }
}

#[test]
fn a_step_without_space_makes_checkpoints_and_moves() {
    let store = half_dead();
    let object = VolumeId::MAIN.object(2, 1);
    (0..100).for_each(|number| write(&store, object, number, 2000));
    let store = walk(store);
    // These segments are free after two checkpoints.
    store.data().apply(&[StoreChange::Delete { object, lsn: Lsn(3000) }]).expect("space");
    take_spare_segments(&store);
    let before = store.counters().checkpoints;
    while store.counters().pages_cleaned == 0 {
        assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    }
    assert_eq!(store.counters().checkpoints - before, 2);
}

#[test]
fn a_round_for_which_checkpoints_free_nothing_is_given_up() {
    let store = half_dead();
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let store = walk(store);
    take_spare_segments(&store);
    let mut steps = std::iter::repeat_with(|| store.maintenance().clean_step());
    let outcome = steps.find(|step| *step != Ok(CleaningOutcome::Working));
    assert_eq!(outcome, Some(Ok(CleaningOutcome::RoundEnded(0))));
    assert_eq!(store.counters().pages_cleaned, 0);
}

fn give_up_round(store: &Store) {
    store.maintenance.lock_cleaner().give_up_round(&store.shared);
}

#[test]
fn given_up_victims_are_left_alone_until_more_has_died() {
    let store = half_dead();
    let mut given_up = 0;
    while store.maintenance().clean_step() == Ok(CleaningOutcome::Working) {
        given_up += 1;
        assert!(given_up < 100, "it begins the same round again");
        give_up_round(&store);
    }
    assert!(given_up > 2, "four segments each time, {given_up} times");
    assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Idle));
    assert_eq!(store.counters().pages_cleaned, 0);
    (1..300).step_by(4).for_each(|number| write(&store, FILE, number, number + 2000));
    assert_eq!(store.maintenance().clean_round(), Ok(true));
    assert!(store.counters().pages_cleaned > 0, "of these more has died");
    let mut findings = Vec::new();
    store.maintenance().check(&mut |finding| findings.push(finding));
    assert_eq!(findings, []);
}

/// Half of the counted blocks lose their last reference with a deleted clone. Only a walk can find that.
#[test]
fn counts_that_are_too_high_are_found_out_after_a_walk_that_was_given_up() {
    let store = half_dead();
    let new = NewVolume { name: "copy", mode: VolumeMode::ReadOnly, created: 0 };
    let copy = store.volumes().clone_named(VolumeId::MAIN, &new, Lsn(2000)).expect("space");
    (0..300).for_each(|number| write(&store, FILE, number, number + 3000));
    store.maintenance().checkpoint().expect("a sound disk");
    store.volumes().delete(copy, Lsn(4000)).expect("space");
    while store.maintenance().free_deleted_step().expect("a sound disk") {}
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let live = || store.space().now().live;
    let counted = live();
    for _ in 0..2 {
        assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Working));
    }
    give_up_round(&store);
    assert_eq!(live(), counted);
    while store.maintenance().clean_round().expect("a sound disk") {
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    assert!(live() + 250 < counted, "{} of {counted} blocks are live", live());
}

/// Marks all entries of the victims' blocks as shared, and cleans with them; whether those that moved are so
/// still.
fn shared_after_moving(lost: Option<NodeId>) -> Vec<bool> {
    let store = walked();
    {
        let mut map = store.shared.map_mut();
        let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_mut().expect("a walk");
        scan.lost.extend(lost);
        let holders: Vec<BlockHolder> = scan.holders.values().flatten().copied().collect();
        for holder in holders {
            let NodeBody::Pages(leaf) = &mut map.nodes.node_mut(holder.node).body else {
                panic!("a large file")
            };
            leaf.share(usize::from(holder.index));
        }
    }
    let before: BTreeSet<Block> = entries(&store).map(|entry| entry.place).collect();
    while store.maintenance().clean_step() == Ok(CleaningOutcome::Working) {}
    entries(&store).filter(|entry| !before.contains(&entry.place)).map(|entry| entry.shared).collect()
}

fn entries(store: &Store) -> impl Iterator<Item = PageMapEntry> {
    let map = store.shared.map();
    let leaves =
        map.nodes.table.iter().filter_map(|(id, _)| map.nodes.peek(id)).filter_map(|body| match body {
            NodeBody::Pages(leaf) => Some(leaf.pages().iter().copied().filter(|entry| !entry.is_hole())),
            _ => None,
        });
    leaves.flatten().collect::<Vec<_>>().into_iter()
}

#[test]
fn a_shared_block_with_one_holder_is_moved_unless_an_unreadable_node_may_hold_it() {
    let sole = shared_after_moving(None);
    assert!(!sole.is_empty() && sole.iter().all(|shared| !shared), "{sole:?}");
    // Its old place would stay in use, so the copy would take space and give none.
    assert_eq!(shared_after_moving(Some(NodeId(9999))), []);
}

#[test]
fn a_victim_is_not_settled_while_somebody_may_hold_a_block_of_it() {
    let store = walked();
    let mut cleaner = store.maintenance.lock_cleaner();
    let round = cleaner.round.as_mut().expect("a round");
    let victim = round.victims[0];
    let live = |store: &Store| store.shared.map().nodes.segments.get(victim).live;
    let before = live(&store);
    assert!(before > 0);
    round.finish_victim(victim, &store.shared);
    assert_eq!((round.victims[0], live(&store)), (victim, before), "its blocks are held");
    let node = {
        let mut map = store.shared.map_mut();
        let scan = map.nodes.scan_mut(ScanPurpose::Clean).as_mut().expect("a walk");
        let held: Vec<Block> =
            scan.holders.range(store.shared.medium.geometry().blocks_of(victim)).map(|(&at, _)| at).collect();
        held.into_iter().for_each(|at| scan.drop_block(at));
        let node = map.volumes.roots().next().expect("a tree");
        map.nodes.revisit(node);
        node
    };
    round.finish_victim(victim, &store.shared);
    assert_eq!((round.victims[0], live(&store)), (victim, before), "a node is to be visited again");
    assert_eq!(store.shared.visit_nodes(ScanPurpose::Clean, 9), [node]);
    round.finish_victim(victim, &store.shared);
    assert_ne!(round.victims[0], victim);
}

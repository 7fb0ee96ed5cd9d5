//! The reports and counters of the cleaner.

use crate::common::*;
use device::{Device, Incarnation, Lsn, ObjectId, PageNo, PageTransfer, StoreId};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::sync::Arc;
use store::{
    CleaningOutcome, MaintenanceProgress, SpacePressure, Store, StoreChange, StoreLayout, VolumeId,
    VolumeMode,
};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);

fn write(store: &Store, numbers: impl Iterator<Item = u64>, page_lsn: u64) {
    for number in numbers {
        let (at, page_lsn) = (PageNo(number), Lsn(page_lsn + number));
        store
            .data()
            .apply(&[StoreChange::Write { object: FILE, page: at, bytes: page(page_lsn.0), page_lsn }])
            .expect("space");
    }
}

/// Cleans for a round, and returns the reported number of emptied segments.
fn emptied(store: &Store) -> u64 {
    loop {
        match store.maintenance().clean_step().expect("cleaning") {
            CleaningOutcome::Working => {}
            CleaningOutcome::RoundEnded(segments) => return segments,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn where_nothing_can_be_cleaned_it_says_so() {
    let (_power, _disk, store) = fresh(64, 1);
    assert_eq!(store.maintenance().clean_step(), Ok(CleaningOutcome::Idle));
    assert_eq!(store.maintenance().clean_round(), Ok(false));
    assert!(!store.maintenance().cleaning_is_owed());
}

#[test]
fn cleaning_is_called_for_where_space_is_short_and_some_of_it_may_be_dead() {
    let (_power, _disk, store) = fresh(128, 1);
    write(&store, 0..100, 1);
    write(&store, (0..100).step_by(2), 1000);
    assert!(
        !store.maintenance().is_short_of_space() && !store.maintenance().cleaning_is_owed(),
        "there is enough"
    );
    let mut number = 1000;
    while !store.maintenance().is_short_of_space() {
        write(&store, number..number + 1, 1);
        number += 1;
    }
    assert!(store.maintenance().cleaning_is_owed());
}

#[test]
fn what_is_owed_is_paid_once_however_many_pay() {
    let (_power, _disk, store) = fresh(400, 1);
    write(&store, 0..1000, 1);
    write(&store, (0..1000).step_by(2), 2000);
    let clock = SimClock::new();
    let debt = || store.maintenance().cleaning_work().map(|work| work.debt);
    let pay = || store.maintenance().step(&clock, SpacePressure::WriteBack).expect("a sound disk");
    assert_eq!(pay(), MaintenanceProgress::Idle, "nothing is short");
    assert_eq!(store.maintenance().pages_between_cleaning_checks(), u64::MAX, "and nothing is to be paid");
    assert_eq!(debt(), None);
    let mut number = 2000;
    while store.maintenance().pages_between_cleaning_checks() == u64::MAX
        || !store.maintenance().cleaning_is_owed()
    {
        write(&store, number..number + 1, 1);
        number += 1;
        // Chooses victims, and with them the price.
        if store.maintenance().pages_between_cleaning_checks() == u64::MAX
            && store.maintenance().cleaning_is_owed()
        {
            assert_ne!(pay(), MaintenanceProgress::Idle);
        }
    }
    assert!(debt().is_some_and(|blocks| blocks > 0), "{:?}", debt());
    let barrier = std::sync::Barrier::new(4);
    let pay_all = || {
        barrier.wait();
        while pay() != MaintenanceProgress::Idle {}
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(pay_all))));
    assert!(!store.maintenance().cleaning_is_owed());
    assert_eq!(debt(), Some(0));
    let moved = store.counters().pages_cleaned;
    (0..10).for_each(|_| assert_eq!(pay(), MaintenanceProgress::Idle));
    assert_eq!(store.counters().pages_cleaned, moved);
    // More work is left.
    assert!(store.maintenance().clean_round().is_ok() && store.counters().pages_cleaned > moved);
}

#[test]
fn what_a_round_has_emptied_is_not_cleaned_for_again_while_checkpoints_give_it_back() {
    let (_power, _disk, store) = fresh(400, 1);
    write(&store, 0..1000, 1);
    write(&store, (0..1000).step_by(2), 2000);
    // The checkpoint gives places to the nodes that the round changes.
    store.maintenance().checkpoint().expect("a checkpoint");
    let mut number = 2000;
    while !store.maintenance().cleaning_is_owed() {
        write(&store, number..number + 1, 1);
        number += 1;
    }
    let free = store.space().now().free;
    assert!(emptied(&store) > 2);
    assert!(store.space().now().free < free, "its copies took some, and nothing is free yet");
    // A writer would otherwise begin the next round, and hurry although these segments are nearly free.
    assert!(!store.maintenance().cleaning_is_owed());
    (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
    assert!(!store.maintenance().cleaning_is_owed() && store.space().now().free > free);
}

#[test]
fn what_can_be_reserved_does_not_go_with_the_copies_of_a_round() {
    let (_power, _disk, store) = fresh(400, 1);
    write(&store, 0..1000, 1);
    write(&store, (0..1000).step_by(2), 2000);
    let taken = |store: &Store| store.counters().pages_cleaned.div_ceil(u64::from(SEGMENT));
    let before = store.space().now().reservable;
    let mut least = before;
    while !matches!(store.maintenance().clean_step().expect("sound media"), CleaningOutcome::RoundEnded(_)) {
        least = least.min(store.space().now().reservable);
    }
    assert!(taken(&store) >= 2, "{} segments for copies", taken(&store));
    assert!(least + u64::from(SEGMENT) >= before, "{least} of {before}");
    (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
    assert!(store.space().now().reservable >= before, "{} of {before}", store.space().now().reservable);
}

#[test]
fn a_round_is_told_with_the_segments_that_died_in_it() {
    let (_power, _disk, store) = fresh(200, 1);
    write(&store, 0..300, 1);
    write(&store, (0..300).step_by(2), 1000);
    let before = store.counters();
    let emptied = emptied(&store);
    let after = store.counters();
    assert!(emptied > 0);
    assert_eq!(after.segments_cleaned - before.segments_cleaned, emptied);
    assert_eq!(after.walks - before.walks, 1);
    let moved = after.pages_cleaned - before.pages_cleaned;
    assert_eq!(after.entries_repointed - before.entries_repointed, moved, "each has one entry");
    // Half of each victim is live, with its block of log entries for each block of data.
    assert!(moved > 0 && moved <= emptied * 8, "{moved} blocks of {emptied} segments");
    assert_eq!(findings(&store), []);
}

#[test]
fn a_walk_tells_how_many_segments_hold_less_than_was_thought() {
    let (_power, _disk, store) = fresh(400, 1);
    write(&store, 0..1000, 1);
    clone_volume(&store, VolumeId::MAIN, VolumeMode::ReadOnly, Lsn(2000)).expect("space");
    while store.maintenance().clean_round() == Ok(true) {
        (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
    }
    // The copy's blocks are shared, so only a walk of the whole map shows whether they are dead.
    write(&store, 0..1, 3000);
    let walks = store.counters().walks;
    assert_eq!(store.maintenance().clean_round(), Ok(false), "the copy needs it");
    assert_eq!(store.counters().walks, walks + 1);
    write(&store, 0..1000, 4000);
    store.volumes().delete(VolumeId(1), Lsn(6000)).expect("it is there");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    let free = store.space().now().free;
    let told = emptied(&store);
    assert!(told > 60, "{told} segments of which the copy held most");
    (0..2).for_each(|_| store.maintenance().checkpoint().expect("a checkpoint"));
    assert!(store.space().now().free > free + 900, "{} blocks of {free}", store.space().now().free);
    assert_eq!(findings(&store), []);
}

/// A store whose segments have 512 blocks.
fn large_segments() -> Store {
    let disk: Arc<SimDisk> = disk(4 + 64 * 512, &PowerSupply::new(), 1);
    let layout = StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(512) };
    Store::format(&*disk, &layout).expect("large enough");
    let store = Store::open(disk as Arc<dyn Device>).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    store
}

/// For each step that moves anything, the number of moved blocks and of repointed entries.
fn steps(store: &Store) -> Vec<(u64, u64)> {
    let mut steps = Vec::new();
    let mut before = store.counters();
    loop {
        let step = store.maintenance().clean_step().expect("cleaning");
        let after = store.counters();
        let blocks = after.pages_cleaned - before.pages_cleaned;
        steps.extend((blocks > 0).then_some((blocks, after.entries_repointed - before.entries_repointed)));
        match step {
            CleaningOutcome::Working => {}
            CleaningOutcome::Idle | CleaningOutcome::RoundEnded(_) => return steps,
        }
        before = store.counters();
    }
}

#[test]
fn a_step_moves_no_more_than_an_eighth_of_a_segment() {
    let store = large_segments();
    let vector: Vec<StoreChange> = (0..400)
        .map(|number| StoreChange::Write {
            object: FILE,
            page: PageNo(number),
            bytes: page(number),
            page_lsn: Lsn(number + 1),
        })
        .collect();
    store.data().apply(&vector).expect("space");
    let cut = StoreChange::Punch { object: FILE, pages: PageNo(0)..PageNo(100), lsn: Lsn(1000) };
    store.data().apply(&[cut]).expect("space");
    // The segment is closed once the log is in the next one.
    write(&store, 1000..1200, 1000);
    let steps = steps(&store);
    assert!(steps.len() > 1 && steps[0] == (64, 64), "{steps:?}");
    assert!(steps.iter().all(|&(blocks, entries)| blocks <= 64 && entries == blocks), "{steps:?}");
    assert_eq!(findings(&store), []);
}

/// The steps that move eight blocks with `holders` references each, while the rest of their segment is dead.
fn steps_for(holders: u64) -> Vec<(u64, u64)> {
    let store = large_segments();
    let file = |slot| VolumeId::MAIN.object(slot, 1);
    let write_at = |number| StoreChange::Write {
        object: FILE,
        page: PageNo(number),
        bytes: page(number),
        page_lsn: Lsn(1),
    };
    store.data().apply(&(0..8).map(write_at).collect::<Vec<_>>()).expect("space");
    for slot in 100..100 + holders - 1 {
        let (to, lsn) = (file(slot), Lsn(slot));
        store
            .data()
            .apply(&[StoreChange::Transfer { transfer: PageTransfer::clone_of(FILE, to), lsn }])
            .expect("space");
    }
    for number in 1000..1600 {
        let (object, bytes) = (file(8), page(number));
        let (at, page_lsn) = (PageNo(number % 4), Lsn(number + 10_000));
        store.data().apply(&[StoreChange::Write { object, page: at, bytes, page_lsn }]).expect("space");
    }
    let steps = steps(&store);
    assert_eq!(findings(&store), []);
    for slot in [FILE.slot, 100, 100 + holders - 2] {
        assert_eq!(store.data().page_lsn(file(slot), PageNo(7)), Ok(Some(Lsn(1))));
    }
    steps
}

#[test]
fn a_step_repoints_no_more_than_1024_entries_but_for_one_block_that_has_more() {
    assert_eq!(steps_for(256)[..2], [(4, 1024), (4, 1024)]);
    assert_eq!(steps_for(1100)[..8], [(1, 1100); 8]);
}

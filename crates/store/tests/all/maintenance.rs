//! The store looks after itself: its owner only calls, and says who waits.

use crate::common::*;
use device::{Clock, Lsn, ObjectId, PageNo, VolumeId};
use sim_disk::{PowerSupply, SimClock};
use std::time::Duration;
use store::{MaintenanceProgress, ReservationEstimate, SpacePressure, SpaceSearch, Store, StoreChange};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const WORKED: MaintenanceProgress = MaintenanceProgress::Worked { may_have_space: false };

fn write(store: &Store, pages: std::ops::Range<u64>) {
    let change = |number| StoreChange::Write {
        object: FILE,
        page: PageNo(number),
        bytes: page(number + 1),
        page_lsn: Lsn(number + 1),
    };
    let all: Vec<StoreChange> = pages.map(change).collect();
    all.chunks(20).for_each(|some| store.data().apply(some).expect("space"));
}

/// Lets the store work until it has nothing to do for ten seconds.
fn rest(store: &Store, clock: &SimClock) {
    let mut idle_since = clock.monotonic();
    while clock.monotonic() < idle_since + Duration::from_secs(10) {
        let progress = store.maintenance().step(clock, SpacePressure::None).expect("a sound disk");
        clock.advance(Duration::from_millis(10));
        if progress != MaintenanceProgress::Idle {
            idle_since = clock.monotonic();
        }
    }
}

#[test]
fn a_deletion_becomes_free_segments_and_then_all_is_still() {
    let (power, _disk, store) = fresh(2500, 1);
    let clock = SimClock::new();
    write(&store, 0..1000);
    rest(&store, &clock);
    let full = store.space().now();
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }]).expect("space");
    rest(&store, &clock);
    assert!(!store.maintenance().is_freeing());
    assert!(store.space().now().free >= full.free + 900, "{:?} after {full:?}", store.space().now());
    assert!(!store.maintenance().is_due(clock.monotonic()));
    let seen = power.operations_seen();
    rest(&store, &clock);
    assert_eq!(power.operations_seen(), seen, "the device was written to");
    assert_eq!(findings(&store), []);
}

#[test]
fn a_long_log_asks_for_a_checkpoint_but_does_not_hold_up_write_back() {
    let (_power, _disk, store) = fresh(2500, 1);
    let clock = SimClock::new();
    rest(&store, &clock);
    store.maintenance().set_checkpoint_blocks(50);
    write(&store, 0..40);
    assert!(!store.maintenance().is_due(clock.monotonic()));
    write(&store, 40..60);
    assert!(store.maintenance().is_due(clock.monotonic()));
    let before = store.counters().checkpoints;
    let progress = store.maintenance().step(&clock, SpacePressure::WriteBack);
    assert_eq!(progress, Ok(MaintenanceProgress::Idle));
    assert_eq!(store.maintenance().step(&clock, SpacePressure::None), Ok(WORKED));
    assert_eq!(store.counters().checkpoints, before + 1);
    assert!(!store.maintenance().is_due(clock.monotonic()));
}

#[test]
fn a_search_for_space_has_its_caller_write_back_and_then_ends() {
    let (_power, _disk, store) = fresh(2500, 1);
    let clock = SimClock::new();
    write(&store, 0..1000);
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }]).expect("space");
    let mut search = SpaceSearch::default();
    let mut step = || {
        let progress =
            store.maintenance().step(&clock, SpacePressure::Waiting(&mut search)).expect("a sound disk");
        if progress == MaintenanceProgress::NeedsWriteBack {
            assert!(!store.maintenance().is_freeing(), "freeing comes first");
            search.note_written_back();
        }
        progress
    };
    let mut steps: Vec<MaintenanceProgress> = Vec::new();
    while steps.last() != Some(&MaintenanceProgress::SearchEnded) {
        steps.push(step());
        assert!(steps.len() < 1000, "it does not end");
    }
    let asked = steps.iter().filter(|&&one| one == MaintenanceProgress::NeedsWriteBack).count();
    assert_eq!(asked, 1);
    assert_eq!(steps[0], MaintenanceProgress::Worked { may_have_space: true });
    assert_eq!(step(), MaintenanceProgress::SearchEnded);
    assert!(store.space().now().live < 200, "{:?}", store.space().now());
}

#[test]
fn space_is_gained_in_the_callers_thread_where_there_is_some() {
    let (_power, _disk, store) = fresh(2500, 1);
    let clock = SimClock::new();
    write(&store, 0..1000);
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }]).expect("space");
    assert_eq!(store.maintenance().gain_space(&clock), Ok(true));
    let mut rounds = 1;
    while store.maintenance().gain_space(&clock) == Ok(true) {
        rounds += 1;
        assert!(rounds < 100, "it finds space that there is not");
    }
    assert!(!store.maintenance().is_freeing());
    assert_eq!(findings(&store), []);
}

/// Searches for space until that ends, without letting time pass.
fn search(store: &Store, clock: &SimClock) {
    let mut search = SpaceSearch::default();
    loop {
        match store.maintenance().step(clock, SpacePressure::Waiting(&mut search)).expect("a sound disk") {
            MaintenanceProgress::SearchEnded => return,
            MaintenanceProgress::NeedsWriteBack => search.note_written_back(),
            _ => {}
        }
    }
}

/// Reserves pages, one after the other, until the store has no more.
fn reserve_all(store: &Store) -> u64 {
    let reserve = |_: &u64| store.space().reserve(1, ReservationEstimate::default()).is_ok();
    (0..).take_while(reserve).count() as u64
}

#[test]
fn a_search_does_not_end_while_the_host_file_system_has_space() {
    let power = PowerSupply::new();
    let disk = disk(4 + 400 * u64::from(SEGMENT), &power, 1);
    disk.set_space(1 << 20);
    let store = format(&disk);
    let clock = SimClock::new();
    // All segments are allocated, and a search finds no more of them.
    while store.maintenance().allocate_more().expect("a sound disk") {}
    search(&store, &clock);
    write(&store, 0..2000);
    // At once many segments are dead, and trimmed.
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }]).expect("a reserve");
    while store.maintenance().free_deleted_step().expect("a sound disk") {}
    store.maintenance().checkpoint_twice().expect("a sound disk");
    assert!(store.space().now().unbacked > 0);
    while reserve_all(&store) > 0 {
        search(&store, &clock);
    }
    let space = store.space().now();
    assert!(space.unbacked == 0 && space.reserved > 2000, "{space:?}");
}

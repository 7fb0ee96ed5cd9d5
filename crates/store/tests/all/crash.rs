//! Power fails at every write, trim and flush of a run, and again during recovery.

use crate::common::*;
use device::{Incarnation, SeededRng};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::sync::Arc;
use store::{Store, StoreError};

/// The model of everything acknowledged when the power failed, and the vector under way.
struct Left {
    acknowledged: Model,
    maybe: Model,
}

/// Works until the power fails or the steps are done.
fn work(store: &Store, model: Model, work: &mut Work, steps: u64) -> Left {
    let mut left = Left { acknowledged: model.clone(), maybe: model };
    for _ in 0..steps {
        let failed: Result<(), StoreError> = match work.random.below(10) {
            0 => store.maintenance().checkpoint(),
            1 => store.maintenance().clean_round().map(drop),
            2 | 3 => store.maintenance().clean_step().map(drop),
            _ => {
                let done = work.vector_for(&left.acknowledged, store).and_then(|vector| {
                    left.maybe.apply(&vector);
                    store.data().apply(&vector)
                });
                if done.is_ok() {
                    left.acknowledged = left.maybe.clone();
                }
                done
            }
        };
        if failed.is_err() {
            break;
        }
        left.maybe = left.acknowledged.clone();
    }
    left
}

/// Opens after a crash. Returns which of the two models the store matches.
fn recovered(disk: &Arc<SimDisk>, left: &Left, when: &str) -> (Store, Model) {
    let store = open(disk).unwrap_or_else(|error| panic!("{when}: {error}"));
    let found = match left.acknowledged.difference(&store) {
        None => left.acknowledged.clone(),
        Some(difference) => match left.maybe.difference(&store) {
            None => left.maybe.clone(),
            Some(other) => panic!("{when}: neither {difference} nor {other}"),
        },
    };
    assert_eq!(findings(&store), [], "{when}");
    (store, found)
}

fn power_back(power: &PowerSupply, disk: &SimDisk) {
    power.cut();
    disk.crash();
    power.restore();
}

/// One life: work, crash at `cut`, recover with crashes in it, work, crash, recover.
fn live(seed: u64, cut: u64, segments: u64) -> bool {
    let (power, disk, store) = fresh(segments, seed ^ cut << 20);
    live_on(Work::new(seed), seed, cut, (&power, &disk, store), 60)
}

fn live_on(
    mut life: Work,
    seed: u64,
    cut: u64,
    (power, disk, store): (&PowerSupply, &Arc<SimDisk>, Store),
    steps: u64,
) -> bool {
    let when = format!("seed {seed} cut after {cut}");
    power.cut_after(cut);
    let mut left = work(&store, Model::default(), &mut life, steps);
    let cut_short = power.is_lost();
    drop(store);
    power_back(power, disk);
    let mut random = SeededRng::new(seed ^ cut);
    for _ in 0..random.below(3) {
        let (store, found) = recovered(disk, &left, &when);
        left = Left { acknowledged: found.clone(), maybe: found };
        power.cut_after(random.below(8));
        let begun = store.begin(Incarnation(store.incarnation().0 + 1));
        assert!(begun.is_err() == power.is_lost(), "{when}: {begun:?}");
        power_back(power, disk);
    }
    let (store, found) = recovered(disk, &left, &when);
    store.begin(Incarnation(store.incarnation().0 + 1)).expect("power is on");
    power.cut_after(random.below(60));
    let left = work(&store, found, &mut life, 30);
    drop(store);
    power_back(power, disk);
    drop(recovered(disk, &left, &when));
    cut_short
}

#[test]
fn a_crash_at_any_write_or_flush_loses_nothing_acknowledged_and_tears_nothing() {
    for seed in 0..2 {
        let mut cut = 0;
        while live(seed, cut, 200) {
            cut += 1;
        }
        assert!(cut > 50, "the run was cut at {cut} places only");
    }
}

#[test]
fn crashes_on_a_small_device_where_segments_are_reused() {
    for seed in 100..220 {
        live(seed, SeededRng::new(seed).below(300), 90);
    }
}

#[test]
fn crashes_in_a_store_whose_segments_are_so_large_that_heads_are_copied() {
    for seed in 300..360 {
        let cut = SeededRng::new(seed).below(1200);
        let (power, disk, store) = fresh_of(256, 90, seed);
        live_on(Work::new(seed), seed, cut, (&power, &disk, store), 400);
    }
}

#[test]
fn crashes_on_a_small_device_where_pairs_of_pages_of_metadata_are_reused() {
    let mut repaired = 0;
    for seed in 400..520 {
        let (power, disk, store) = fresh(90, seed);
        live_on(Work::of_metadata(seed), seed, SeededRng::new(seed).below(600), (&power, &disk, store), 120);
        // If a crash left one of two copies, the start has written both.
        let store = mount(&disk).expect("it opens");
        while !store.maintenance().scrub_step(&mut |finding| panic!("seed {seed}: {finding}")).done {}
        repaired += store.counters().metadata_repaired;
    }
    assert_eq!(repaired, 0, "a crash damages nothing");
}

#[test]
fn a_start_that_once_could_not_read_the_newest_checkpoint_loses_nothing_wherever_it_is_cut_off() {
    for seed in 0..60 {
        let (power, disk, store) = fresh(80, seed);
        let left = work(&store, Model::default(), &mut Work::new(seed), 80);
        drop(store);
        power_back(&power, &disk);
        for cut in 0..12 {
            let power = PowerSupply::new();
            let fork = disk.fork(&power, seed);
            // The superblock and the roots are one read. The next read is of the newest root's tables.
            fork.set_faults(DiskFaults { once_after: Some(1), ..DiskFaults::default() });
            let store = open(&fork).expect("the other root's checkpoint");
            fork.set_faults(DiskFaults::default());
            power.cut_after(cut);
            let begun = store.begin(Incarnation(store.incarnation().0 + 1));
            let _ = begun.and_then(|()| store.maintenance().checkpoint());
            drop(store);
            power_back(&power, &fork);
            let when = format!("seed {seed}, cut after {cut}");
            drop(recovered(&fork, &left, &when));
            mount(&fork).unwrap_or_else(|error| panic!("{when}: {error}"));
            drop(recovered(&fork, &left, &when));
        }
    }
}

#[test]
fn a_start_that_once_could_not_read_one_of_the_roots_loses_nothing_wherever_it_is_cut_off() {
    for seed in 0..60 {
        let (power, disk, store) = fresh(80, seed);
        let left = work(&store, Model::default(), &mut Work::new(seed), 80);
        drop(store);
        power_back(&power, &disk);
        for (root, cut) in [1, 2].into_iter().flat_map(|root| (0..12).map(move |cut| (root, cut))) {
            let power = PowerSupply::new();
            let fork = disk.fork(&power, seed);
            fork.damage(device::Block(root), sim_disk::BlockDamage::Unreadable);
            let store = open(&fork).expect("the other root");
            fork.heal();
            power.cut_after(cut);
            let begun = store.begin(Incarnation(store.incarnation().0 + 1));
            let _ = begun.and_then(|()| store.maintenance().checkpoint());
            drop(store);
            power_back(&power, &fork);
            let when = format!("seed {seed}, root {root}, cut after {cut}");
            drop(recovered(&fork, &left, &when));
            mount(&fork).unwrap_or_else(|error| panic!("{when}: {error}"));
            drop(recovered(&fork, &left, &when));
        }
    }
}

//! Each planted bug is noticed by the tests' own means, and nothing is without one.
#![cfg(feature = "planted-bugs")]
mod common;

use common::*;
use store::PlantedBug;

/// Works with crashes until the store differs from the model; how many vectors that took.
fn noticed(bug: Option<PlantedBug>) -> Option<u64> {
    let mut vectors = 0;
    for seed in 0..40 {
        let (power, disk, mut store) = fresh(90, seed);
        let (mut model, mut work) = (Model::default(), Work::new(seed));
        for _ in 0..60 {
            if let Some(bug) = bug {
                store.plant(bug);
            }
            let vector = work.vector(&model);
            model.apply(&vector);
            vectors += 1;
            if store.apply(&vector).is_err() || model.difference(&store).is_some() {
                return Some(vectors);
            }
            match work.random.below(12) {
                0 => {
                    drop(store);
                    power.cut();
                    disk.crash();
                    power.restore();
                    match mount(&disk) {
                        Ok(again) if model.difference(&again).is_none() => store = again,
                        _ => return Some(vectors),
                    }
                }
                1 if store.checkpoint().is_err() => return Some(vectors),
                2 if store.clean().is_err() => return Some(vectors),
                _ => {}
            }
            if store.is_short_of_space() {
                let _ = store.clean();
                let _ = store.checkpoint();
            }
        }
    }
    None
}

#[test]
fn without_a_bug_nothing_is_noticed() {
    assert_eq!(noticed(None), None);
}

#[test]
fn a_cut_that_ignores_homes_is_noticed() {
    assert!(noticed(Some(PlantedBug::CutIgnoresHome)).is_some());
}

#[test]
fn a_segment_reused_before_it_may_be_is_noticed() {
    assert!(noticed(Some(PlantedBug::ReusedBeforePins)).is_some());
}

#[test]
fn a_missing_flush_is_noticed() {
    assert!(noticed(Some(PlantedBug::MissingFlush)).is_some());
}

//! The tests find each planted bug, and find nothing without one.

use crate::common::*;
use device::{Incarnation, SeededRng};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{Store, StoreBug};

/// A life of one store, with crashes.
struct Life {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    store: Store,
    model: Model,
    work: Work,
    dice: SeededRng,
    bug: Option<StoreBug>,
}

impl Life {
    fn new(seed: u64, bug: Option<StoreBug>) -> Life {
        let (power, disk, store) = fresh(120, seed);
        let life = Life {
            power,
            disk,
            store,
            model: Model::default(),
            work: Work::new(seed),
            dice: SeededRng::new(seed),
            bug,
        };
        life.plant();
        life
    }

    fn plant(&self) {
        self.bug.into_iter().for_each(|bug| self.store.plant(bug));
    }

    /// Does one step. Returns the problem after it, if there is one.
    fn step(&mut self) -> Option<String> {
        let failed = |error: store::StoreError| Some(error.to_string());
        let vector = match self.work.vector_for(&self.model, &self.store) {
            Ok(vector) => vector,
            Err(error) => return failed(error),
        };
        match apply_with_cleaning(&self.store, &vector) {
            Ok(()) => self.model.apply(&vector),
            // The vector was refused as a whole: so small a store may not have space for it.
            Err(error) if error.is_full() => {}
            Err(error) => return failed(error),
        }
        let worked = match self.dice.below(12) {
            0 => return self.crash(),
            1 | 2 => self.store.maintenance().checkpoint(),
            3 => self.store.maintenance().clean_round().map(drop),
            4..8 => self.store.maintenance().clean_step().map(drop),
            _ => Ok(()),
        };
        if let Err(error) = worked {
            return failed(error);
        }
        if self.store.maintenance().is_short_of_space() {
            let _ = self.store.maintenance().clean_round();
            let _ = self.store.maintenance().checkpoint();
        }
        self.model.difference(&self.store)
    }

    fn crash(&mut self) -> Option<String> {
        self.power.cut();
        self.disk.crash();
        self.power.restore();
        let device = self.disk.clone() as Arc<dyn device::Device>;
        let opened = match self.bug {
            Some(bug) => Store::open_with_bug(device, bug),
            None => Store::open(device),
        };
        let begun =
            opened.and_then(|store| store.begin(Incarnation(store.incarnation().0 + 1)).map(|()| store));
        match begun {
            Ok(store) => self.store = store,
            Err(error) => return Some(error.to_string()),
        }
        let wrong = self.model.difference(&self.store);
        let wrong = wrong.or_else(|| findings(&self.store).first().map(|finding| finding.to_string()));
        self.plant();
        wrong
    }
}

/// Lives until a problem appears. Returns the number of steps, and the problem.
fn noticed(bug: Option<StoreBug>) -> Option<(u64, String)> {
    let mut steps = 0;
    for seed in 0..20 {
        let mut life = Life::new(seed, bug);
        for _ in 0..150 {
            steps += 1;
            if let Some(wrong) = life.step() {
                return Some((steps, wrong));
            }
        }
    }
    None
}

/// Asserts that `bug` is found within so many steps.
#[track_caller]
fn assert_noticed(bug: StoreBug, within: u64) {
    let Some((steps, wrong)) = noticed(Some(bug)) else { panic!("{bug:?} goes unnoticed") };
    println!("{bug:?}: after {steps} steps: {wrong}");
    assert!(steps <= within, "{bug:?} is noticed after {steps} steps only");
}

#[test]
fn without_a_bug_nothing_is_noticed() {
    assert_eq!(noticed(None), None);
}

#[test]
fn a_cut_that_ignores_page_lsns_is_noticed() {
    assert_noticed(StoreBug::CutIgnoresPageLsn, 3000);
}

#[test]
fn a_segment_reused_before_it_may_be_is_noticed() {
    assert_noticed(StoreBug::ReusedBeforePins, 3000);
}

#[test]
fn a_missing_flush_is_noticed() {
    assert_noticed(StoreBug::MissingFlush, 3000);
}

#[test]
fn repointing_before_the_copy_is_durable_is_noticed() {
    assert_noticed(StoreBug::RepointBeforeCopy, 3000);
}

#[test]
fn trimming_after_reuse_is_noticed() {
    assert_noticed(StoreBug::TrimAfterReuse, 3000);
}

#[test]
fn a_log_entry_replayed_past_the_root_that_has_it_is_noticed() {
    assert_noticed(StoreBug::EntriesBeforeRoot, 3000);
}

#[test]
fn a_cleaner_that_writes_no_lists_of_owners_is_noticed() {
    assert_noticed(StoreBug::OwnerListForgotten, 3000);
    store::plant(None);
}

#[test]
fn what_is_wrong_with_deltas_is_noticed() {
    for bug in [
        StoreBug::DeltasInWrongOrder,
        StoreBug::DeltaBlockFreedEarly,
        StoreBug::BaseFreedEarly,
        StoreBug::FoldWithoutDeltas,
    ] {
        assert_noticed(bug, 3000);
        store::plant(None);
    }
}

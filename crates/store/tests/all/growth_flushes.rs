//! A flush fails while the store grows and is cleaned at the same time. No thread may count the dropped
//! writes as durable, whichever thread gets the error.

use crate::common::phases::{Phase, Phases, failing_flush};
use crate::common::*;
use device::{Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, VolumeId};
use sim_disk::{DiskHooks, HookedDisk, PowerSupply, SimDisk};
use std::sync::Arc;
use store::{Store, StoreChange, StoreError};

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

/// Whose flush fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Grows,
    Cleaners,
}

/// A disk that one thread grows and another cleans.
struct Two {
    phases: Phases,
    fails: Fails,
}

fn is_cleaner() -> bool {
    std::thread::current().name() == Some("cleaner")
}

impl DiskHooks for Two {
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let written = disk.write(at, from);
        if self.fails == Fails::Cleaners && at == Block(0) && self.phases.step(Phase::Asked, Phase::Written) {
            self.phases.wait_for(Phase::Failed);
        }
        written
    }
    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if is_cleaner() && self.phases.step(Phase::Armed, Phase::Asked) {
            match self.fails {
                Fails::Grows => self.phases.wait_for(Phase::Failed),
                Fails::Cleaners => {
                    self.phases.wait_for(Phase::Written);
                    let failed = failing_flush(disk);
                    self.phases.step(Phase::Written, Phase::Failed);
                    return failed;
                }
            }
            return disk.flush();
        }
        if self.fails == Fails::Grows && !is_cleaner() && self.phases.are(Phase::Asked) {
            let failed = failing_flush(disk);
            self.phases.step(Phase::Asked, Phase::Failed);
            return failed;
        }
        disk.flush()
    }
}

/// The state after the run.
struct Ran {
    power: Arc<PowerSupply>,
    two: Arc<HookedDisk<Two>>,
    grown: Result<u64, StoreError>,
    found: Vec<store::StoreFinding>,
}

fn run(fails: Fails, seed: u64) -> Ran {
    let (power, disk, store) = fresh(100, seed);
    drop(store);
    let two = HookedDisk::new(&disk, Two { phases: Phases::quiet(), fails });
    let store = Arc::new(Store::open(two.clone() as Arc<dyn Device>).expect("a sound store"));
    store.begin(Incarnation(store.incarnation().0 + 1)).expect("the disk works");
    for number in (0..200).chain((0..200).step_by(2)) {
        store
            .data()
            .apply(&[StoreChange::Write {
                object: FILE,
                page: PageNo(number),
                bytes: page(number + 1),
                page_lsn: Lsn(number + 1),
            }])
            .expect("space");
    }
    store.maintenance().checkpoint_twice().expect("the disk works");
    assert!(two.phases.step(Phase::Quiet, Phase::Armed));
    let cleaning = store.clone();
    let cleaner = std::thread::Builder::new().name("cleaner".into());
    let cleaner = cleaner
        .spawn(move || (0..30).for_each(|_| drop(cleaning.maintenance().clean_step())))
        .expect("a thread");
    two.phases.wait_for(Phase::Asked);
    let grown = store.grow(Some(4 + 200 * u64::from(SEGMENT)));
    cleaner.join().expect("no panic");
    store.maintenance().checkpoint_twice().expect("the disk works");
    let found = findings(&store);
    Ran { power, two, grown, found }
}

#[test]
fn a_flush_that_fails_while_the_store_grows_fails_what_the_cleaner_wrote_before_it() {
    for seed in 0..5 {
        let Ran { grown, found, .. } = run(Fails::Grows, seed);
        assert_eq!(found, [], "seed {seed}: {grown:?}");
    }
}

#[test]
fn a_flush_of_the_cleaner_that_fails_while_the_store_grows_fails_the_new_superblock() {
    for seed in 0..8 {
        let Ran { power, two, grown, .. } = run(Fails::Cleaners, seed);
        power.cut();
        two.disk.crash();
        power.restore();
        let opened = Store::open(two.clone() as Arc<dyn Device>).map(drop);
        let mended = opened.is_err().then(|| Store::repair_superblocks(&*two.disk));
        assert_eq!(opened, Ok(()), "seed {seed}: {grown:?}, mending: {mended:?}");
    }
}

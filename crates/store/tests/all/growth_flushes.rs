//! A flush that fails while the store grows and is cleaned at once: whoever hears of it, what it dropped counts as durable to nobody.

use crate::common::*;
use device::{Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, VolumeId};
use sim::{Faults, Hooked, Hooks, Power, SimDisk};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;
use store::{Change, Store, StoreError};

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Quiet,
    Armed,
    Asked,
    Written,
    Failed,
}

/// Whose flush fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fails {
    Grows,
    Cleaners,
}

struct Two {
    phase: Mutex<Phase>,
    changed: Condvar,
    fails: Fails,
}

const PATIENCE: Duration = Duration::from_millis(500);

impl Two {
    fn step(&self, from: Phase, to: Phase) -> bool {
        let mut phase = self.phase.lock().expect("no panic with it");
        let is_it = *phase == from;
        if is_it {
            *phase = to;
            self.changed.notify_all();
        }
        is_it
    }
    fn await_phase(&self, wanted: Phase) {
        let phase = self.phase.lock().expect("no panic with it");
        drop(self.changed.wait_timeout_while(phase, PATIENCE, |phase| *phase < wanted));
    }
    fn fail(disk: &SimDisk) -> Result<(), DeviceError> {
        disk.set_faults(Faults { flush_one_in: 1, ..Faults::default() });
        let failed = disk.flush();
        disk.set_faults(Faults::default());
        failed
    }
}

fn is_cleaner() -> bool {
    std::thread::current().name() == Some("cleaner")
}

impl Hooks for Two {
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let written = disk.write(at, from);
        if self.fails == Fails::Cleaners && at == Block(0) && self.step(Phase::Asked, Phase::Written) {
            self.await_phase(Phase::Failed);
        }
        written
    }
    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if is_cleaner() && self.step(Phase::Armed, Phase::Asked) {
            match self.fails {
                Fails::Grows => self.await_phase(Phase::Failed),
                Fails::Cleaners => {
                    self.await_phase(Phase::Written);
                    let failed = Two::fail(disk);
                    self.step(Phase::Written, Phase::Failed);
                    return failed;
                }
            }
            return disk.flush();
        }
        if self.fails == Fails::Grows
            && !is_cleaner()
            && *self.phase.lock().expect("no panic with it") == Phase::Asked
        {
            let failed = Two::fail(disk);
            self.step(Phase::Asked, Phase::Failed);
            return failed;
        }
        disk.flush()
    }
}

/// What came of it.
struct Ran {
    power: Arc<Power>,
    two: Arc<Hooked<Two>>,
    grown: Result<u64, StoreError>,
    found: Vec<store::Finding>,
}

fn run(fails: Fails, seed: u64) -> Ran {
    let (power, disk, store) = fresh(100, seed);
    drop(store);
    let two = Hooked::new(&disk, Two { phase: Mutex::new(Phase::Quiet), changed: Condvar::new(), fails });
    let store = Arc::new(Store::open(two.clone() as Arc<dyn Device>).expect("a sound store"));
    store.begin(Incarnation(store.incarnation().0 + 1)).expect("the disk works");
    for number in (0..200).chain((0..200).step_by(2)) {
        store
            .apply(&[Change::Write {
                object: FILE,
                page: PageNo(number),
                bytes: page(number + 1),
                page_lsn: Lsn(number + 1),
            }])
            .expect("space");
    }
    store.checkpoint_twice().expect("the disk works");
    assert!(two.step(Phase::Quiet, Phase::Armed));
    let cleaning = store.clone();
    let cleaner = std::thread::Builder::new().name("cleaner".into());
    let cleaner = cleaner.spawn(move || (0..30).for_each(|_| drop(cleaning.clean_step()))).expect("a thread");
    two.await_phase(Phase::Asked);
    let grown = store.grow(Some(4 + 200 * u64::from(SEGMENT)));
    cleaner.join().expect("no panic");
    store.checkpoint_twice().expect("the disk works");
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
        let mended = opened.is_err().then(|| Store::mend_superblocks(&*two.disk));
        assert_eq!(opened, Ok(()), "seed {seed}: {grown:?}, mending: {mended:?}");
    }
}

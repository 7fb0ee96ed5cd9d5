//! Vectors and checkpoints between the cleaner's device calls: whatever they change, moved blocks arrive.

use crate::common::*;
use device::{Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, SeededRng, VolumeId};
use sim_disk::{DiskHooks, HookedDisk, SimDisk};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use store::{Store, StoreChange, StoreError};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const PAGES: u64 = 150;

/// A disk that runs other work at each of its calls, while it is asked to.
struct Between {
    polite: AtomicBool,
    others: OnceLock<Weak<Others>>,
}

impl Between {
    fn after_you(&self) {
        if self.polite.swap(false, Ordering::Relaxed) {
            self.others.get().and_then(Weak::upgrade).expect("they outlive the store").go();
            self.polite.store(true, Ordering::Relaxed);
        }
    }
}

impl DiskHooks for Between {
    /// Other work runs before and after the write, and so before the flush that follows. During the flush it
    /// would wait.
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.after_you();
        disk.write(at, from)?;
        self.after_you();
        Ok(())
    }
}

/// The other work, and the pages that it must leave.
struct Others {
    store: Store,
    state: Mutex<(SeededRng, u64, BTreeMap<u64, u64>)>,
}

impl Others {
    fn write(&self) {
        let mut state = self.state.lock().expect("no panic while writing");
        let (random, page_lsn, pages) = &mut *state;
        let from = random.below(PAGES);
        let count = 1 + random.below(12);
        let numbers = (from..from + count).map(|number| number % PAGES);
        let mut after = pages.clone();
        let write = |number| {
            *page_lsn += 1;
            after.insert(number, *page_lsn);
            StoreChange::Write {
                object: FILE,
                page: PageNo(number),
                bytes: page(*page_lsn),
                page_lsn: Lsn(*page_lsn),
            }
        };
        let vector: Vec<StoreChange> = numbers.map(write).collect();
        match self.store.data().apply(&vector) {
            Ok(()) => *pages = after,
            Err(StoreError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn go(&self) {
        self.write();
        let checkpoints = self.state.lock().expect("no panic while writing").0.below(4);
        (0..checkpoints).for_each(|_| self.store.maintenance().checkpoint().expect("a checkpoint"));
    }
}

#[test]
fn a_block_on_its_way_arrives_though_its_segment_is_empty_while_others_checkpoint() {
    let mut moved = 0;
    for seed in 0..20 {
        let (_power, disk, store) = fresh(80, seed);
        drop(store);
        let polite = AtomicBool::new(false);
        let between = HookedDisk::new(&disk, Between { polite, others: OnceLock::new() });
        let store = Store::open(between.clone() as Arc<dyn Device>).expect("a sound store");
        store.begin(Incarnation(7)).expect("a higher one");
        let others =
            Arc::new(Others { store, state: Mutex::new((SeededRng::new(seed), 0, BTreeMap::new())) });
        between.others.set(Arc::downgrade(&others)).expect("the first");
        for _ in 0..400 {
            others.write();
            between.polite.store(true, Ordering::Relaxed);
            others.store.maintenance().clean_step().expect("cleaning");
            between.polite.store(false, Ordering::Relaxed);
            assert_eq!(findings(&others.store), [], "seed {seed}");
        }
        let counters = others.store.counters();
        moved += counters.pages_cleaned;
        let pages = &others.state.lock().expect("no panic").2;
        for (&number, &stamp) in pages {
            let page_lsn = others.store.data().page_lsn(FILE, PageNo(number)).expect("readable");
            assert_eq!(page_lsn, Some(Lsn(stamp)), "seed {seed} page {number}");
        }
    }
    assert!(moved > 2000, "only {moved} blocks were moved");
}

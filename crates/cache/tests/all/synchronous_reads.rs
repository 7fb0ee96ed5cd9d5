//! Reading many ranges at once.

use crate::common::meddled::{Meddled, Meddler};
use crate::common::{Machine, OBJECT_BYTES, OBJECTS, Run, plain};
use cache::{BackgroundTask, CacheSettings, StepProgress};
use device::{BLOCK_BYTES, VolumeId};
use std::sync::{Arc, Mutex};

#[test]
fn ranges_read_at_once_are_as_last_written() {
    for seed in 0..6 {
        let machine = Machine::new(seed);
        let mut run = Run::new(seed);
        let mut cache = machine.open().expect("sound media");
        for number in 0..400 {
            assert!(run.apply(&machine, &cache), "no faults");
            if number % 50 == 49 {
                // After a restart everything newer comes from the buffer.
                assert!(run.sync(&machine, &cache), "no faults");
                drop(cache);
                cache = machine.open().expect("sound media");
            }
            for slot in 0..OBJECTS {
                let object = VolumeId::MAIN.object(slot, run.generations.get(&slot).copied().unwrap_or(0));
                let at = run.random.below(OBJECT_BYTES as u64 - 2) as usize;
                let len = (1 + run.random.below(9000) as usize).min(OBJECT_BYTES - 1 - at);
                let content = run.history.now().bytes(object);
                let wanted = &content[at..at + len];
                let ranges = [(at as u64 + 1, len), (at as u64, len)];
                let found = cache.read_all_now(object, &ranges).expect("a store that works");
                assert!(found == [&content[at + 1..=at + len], wanted], "{object} at {at}+{len}");
            }
        }
    }
}

/// While the store is read, another thread stores the page that is wanted, and drops it from memory.
#[test]
fn a_page_that_is_stored_meanwhile_is_as_last_written() {
    const PAGES: u64 = 32;
    for call in 0..4 {
        let machine = plain::Machine::new(1);
        let object = VolumeId::MAIN.object(3, 0);
        let cache = machine.open();
        (0..PAGES).for_each(|page| machine.write(&cache, object, page, &[1; BLOCK_BYTES]).expect("space"));
        machine.fill(&cache, VolumeId::MAIN.object(4, 0)).expect("space");
        cache.drain().expect("sound media");
        // Nothing of the object is in the log any more, so nothing will be in memory.
        drop(cache);
        let meddler: Arc<Mutex<Option<Meddler>>> = Arc::default();
        let store = Meddled { disk: machine.store.clone(), meddler: meddler.clone() };
        let cache = Arc::new(machine.open_on(Arc::new(store), machine.buffer.clone()).expect("sound media"));
        // So many deltas are stored in a block of their own, and leave memory.
        (0..PAGES).for_each(|page| machine.write(&cache, object, page, &[2; 8]).expect("space"));
        machine.clock.advance(CacheSettings::default().dirty_age_max * 2);
        let (other, mut calls_left) = (Arc::downgrade(&cache), call);
        *meddler.lock().unwrap() = Some(Box::new(move || {
            let Some(cache) = other.upgrade().filter(|_| calls_left == 0) else { return calls_left -= 1 };
            calls_left = u32::MAX;
            while cache.status().dirty_pages > 0 {
                assert!(BackgroundTask::ALL.iter().any(|&task| cache.step(task) == StepProgress::Worked));
            }
        }));
        let found = cache.read_now(object, 0, 16).expect("sound media");
        assert_eq!(found, [[2; 8], [1; 8]].concat(), "stored at call {call} of the device");
    }
}

//! Random transactions on a simulated machine that loses power: afterwards the cache has a prefix of them,
//! with at least what was synced.

use crate::common::apply_at_once;
use crate::common::{Machine, Run, Slot};
use cache::{BackgroundTask, Cache, ObjectChange, SpaceReservation, StepProgress, TransactionCost};
use device::{BLOCK_BYTES, SeededRng, VolumeId};
use std::time::Duration;

fn run(seed: u64, crashes: u64) {
    let machine = Machine::new(seed);
    let mut run = Run::new(seed);
    for _ in 0..crashes {
        let cache = loop {
            match machine.open() {
                Ok(cache) => break cache,
                Err(error) if machine.power.is_lost() => {
                    let _ = error;
                    machine.crash();
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        };
        run.adopt(&cache);
        machine.power.cut_after(run.random.below(150));
        loop {
            let went = match run.random.below(10) {
                0 => run.sync(&machine, &cache),
                1 | 2 => run.read(&machine, &cache),
                3..6 => {
                    cache.step(BackgroundTask::ALL[run.random.below(4) as usize]);
                    machine.clock.advance(Duration::from_millis(run.random.below(400)));
                    true
                }
                _ => run.apply(&machine, &cache),
            };
            if !went || machine.power.is_lost() {
                assert!(
                    machine.power.is_lost(),
                    "seed {seed}: an operation failed with power on: {:?}",
                    cache.status()
                );
                break;
            }
        }
        drop(cache);
        machine.crash();
        // Half of the recoveries are interrupted, too.
        machine.power.cut_after(if run.random.once_in(2) { run.random.below(8) } else { u64::MAX });
    }
}

#[test]
fn after_a_crash_at_any_moment_some_prefix_is_there_and_all_that_was_synced() {
    (0..12).for_each(|seed| run(seed, 25));
}

#[test]
fn what_was_drained_is_in_the_store_alone() {
    let machine = Machine::new(1);
    let cache = machine.open().expect("an empty store");
    let mut run = Run::new(3);
    (0..100).for_each(|_| assert!(run.apply(&machine, &cache)));
    cache.drain().expect("devices that work");
    assert_eq!(cache.status().dirty_pages, 0);
    drop(cache);
    let cache = machine.open().expect("a drained store");
    assert_eq!(cache.status().counters.replayed, 0, "a drained buffer still held records");
    run.all_synced();
    run.adopt(&cache);
}

#[test]
fn a_buffer_full_of_what_is_stored_already_is_free_after_a_restart() {
    let machine = Machine::new(3);
    let object = VolumeId::MAIN.object(1, 1);
    let cache = machine.open().expect("an empty store");
    let write = |cache: &Cache, page: u64, count: usize| {
        let bytes = vec![7; count * BLOCK_BYTES];
        let changes = [ObjectChange::Write { object, offset: page * BLOCK_BYTES as u64, bytes: &bytes }];
        let slot: Slot<SpaceReservation> = Slot::new();
        cache.admit(TransactionCost::of(&changes), slot.then());
        let reservation =
            slot.take().unwrap_or_else(|| slot.wait(&machine, cache, &mut SeededRng::new(page)));
        let mut reservation = reservation.expect("space, sooner or later");
        cache.apply(&mut reservation, &changes).expect("power");
    };
    // Until the buffer is so full that a writer would have to wait.
    let has_space = |cache: &Cache| cache.status().buffer_free_bytes > cache.status().buffer_bytes / 6;
    let pages = (0..).take_while(|_| has_space(&cache)).map(|page| write(&cache, page, 1)).count() as u64;
    let slot = Slot::new();
    cache.sync(slot.then());
    cache.step(BackgroundTask::Commit);
    slot.take().expect("a commit").expect("power");
    // Stored, but killed before any commit could say so.
    while cache.status().counters.pages_stored < pages {
        cache.step(BackgroundTask::WriteBack);
        machine.clock.advance(Duration::from_secs(400));
    }
    drop(cache);
    let cache = machine.open().expect("a sound store");
    // The store is asked what is stored once the mount is ready.
    while cache.step(BackgroundTask::WriteBack) == StepProgress::Worked {}
    let status = cache.status();
    assert_eq!((status.dirty_pages, status.counters.pages_stored), (0, 0), "it was written back twice");
    (0..50).for_each(|index| write(&cache, 20 * index, 20));
}

#[test]
fn a_read_larger_than_memory_ends() {
    let machine = Machine::new(0);
    let cache = machine.open().expect("an empty store");
    let object = VolumeId::MAIN.object(1, 1);
    let len = 4 * machine.dirty_pages_max as usize * BLOCK_BYTES;
    let slot = Slot::new();
    cache.read(object, 0, len, len as u64, slot.then());
    assert_eq!(slot.wait(&machine, &cache, &mut SeededRng::new(1)).expect("power"), vec![0; len]);
}

#[test]
fn a_start_tells_how_many_transactions_it_found_and_their_pages_keep_their_space() {
    let machine = Machine::new(1);
    let object = VolumeId::MAIN.object(1, 1);
    let cache = machine.open().expect("an empty store");
    for page in 0..30 {
        let bytes = [page as u8 + 1; 100];
        let changes = [ObjectChange::Write { object, offset: page * BLOCK_BYTES as u64 + 50, bytes: &bytes }];
        apply_at_once(&cache, &changes).expect("space").expect("power");
    }
    let slot = Slot::new();
    cache.sync(slot.then());
    cache.step(BackgroundTask::Commit);
    slot.take().expect("a commit").expect("power");
    let reserved = cache.store_without_spare().space().now().reserved;
    assert!(reserved > 0);
    drop(cache);
    machine.crash();
    let cache = machine.open().expect("a sound store");
    let status = cache.status();
    assert_eq!((status.counters.replayed, status.dirty_pages), (30, 30));
    assert_eq!(cache.store().space().now().reserved, reserved);
    let found = cache.read_now(object, 7 * BLOCK_BYTES as u64, 200).expect("in memory");
    assert_eq!(found, [vec![0; 50], vec![8; 100], vec![0; 50]].concat());
    cache.drain().expect("devices that work");
    assert_eq!((cache.status().dirty_pages, cache.store().space().now().reserved), (0, 0));
}

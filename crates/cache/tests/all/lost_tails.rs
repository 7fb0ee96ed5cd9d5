//! Lost tails: a crash took the end of a stream, and the file cannot be ended before it, since its volume is
//! damaged.

use crate::common::plain::Machine;
use cache::{BackgroundTask, Cache, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, PageNo, VolumeId};
use store::{NewVolume, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(1 << 40, 1);
const PAGE: u64 = BLOCK_BYTES as u64;
const LOST: (ObjectId, PageNo) = (FILE, PageNo(2));

/// `object` grew by pages 2 to 4 of a stream. The store got none of them.
fn stream_and_crash(machine: &Machine, cache: Cache, object: ObjectId) -> Cache {
    machine.write(&cache, object, 0, &[1; 2 * BLOCK_BYTES]).expect("space");
    let bytes = [2; 3 * BLOCK_BYTES];
    let grow = ObjectChange::FileWrite { object, offset: 2 * PAGE, bytes: &bytes, size: 2 * PAGE };
    machine.apply(&cache, &[grow]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    crash(machine, cache)
}

fn crash(machine: &Machine, cache: Cache) -> Cache {
    drop(cache);
    machine.crash();
    machine.open()
}

fn lost(seed: u64) -> (Machine, Cache) {
    let machine = Machine::new(seed);
    let cache = machine.open();
    let cache = stream_and_crash(&machine, cache, FILE);
    assert_eq!(cache.lost_tails(), [LOST]);
    (machine, cache)
}

fn end(machine: &Machine, cache: &Cache) {
    let end = ObjectChange::Zero { object: FILE, offset: 2 * PAGE, len: u64::MAX - 2 * PAGE };
    machine.apply(cache, &[end]).expect("space");
}

#[test]
fn stays_known_while_the_log_goes_around_many_times() {
    let (machine, cache) = lost(1);
    machine.fill(&cache, OTHER).expect("it does not concern them");
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), [LOST]);
    machine.fill(&cache, OTHER).expect("it does not concern them");
    assert_eq!(crash(&machine, cache).lost_tails(), [LOST]);
}

#[test]
fn stays_settled_by_an_end_that_comes_after_many_rounds() {
    let (machine, cache) = lost(2);
    machine.fill(&cache, OTHER).expect("it does not concern them");
    end(&machine, &cache);
    // Until that is durable, the loss may be relogged.
    (0..40).for_each(|page| machine.write(&cache, OTHER, 8 * page, &[3; 8 * BLOCK_BYTES]).expect("space"));
    BackgroundTask::ALL.iter().for_each(|&task| _ = cache.step(task));
    machine.sync(&cache).expect("a buffer that works");
    cache.forget_lost_tail(FILE);
    machine.write(&cache, FILE, 20, &[4; BLOCK_BYTES]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), []);
    assert_eq!(cache.read_now(FILE, 20 * PAGE, 9).expect("sound media"), [4; 9]);
    machine.fill(&cache, OTHER).expect("the log is released");
}

#[test]
fn goes_with_its_volume() {
    let machine = Machine::new(3);
    let cache = machine.open();
    let new = NewVolume { name: "work", mode: VolumeMode::Writable, created: 0 };
    let work = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    let cache = stream_and_crash(&machine, cache, work.object(5, 1));
    assert_eq!(cache.lost_tails(), [(work.object(5, 1), PageNo(2))]);
    let held = cache.buffer().unreleased_groups().start;
    cache.delete_volume(work).expect("nobody uses it");
    assert_eq!(cache.lost_tails(), []);
    machine.sync(&cache).expect("a buffer that works");
    assert!(cache.buffer().unreleased_groups().start > held, "the log keeps nothing for it");
    assert_eq!(crash(&machine, cache).lost_tails(), []);
}

#[test]
fn is_taken_over_by_a_buffer_in_the_place_of_its_own() {
    let (machine, cache) = lost(4);
    machine.write(&cache, FILE, 0, &[5; 2 * BLOCK_BYTES]).expect("space");
    cache.drain().expect("sound media");
    let taken = cache.lost_tails();
    cache.forget_lost_tail(FILE);
    assert_eq!(cache.lost_tails(), []);
    cache.take_over_lost_tails(&taken).expect("a buffer that works");
    assert_eq!(cache.lost_tails(), [LOST]);
    assert_eq!(crash(&machine, cache).lost_tails(), [LOST]);
}

#[test]
fn does_not_keep_the_buffer_from_growing() {
    let (machine, cache) = lost(5);
    assert_eq!(cache.grow_buffer(Some(2048)).expect("devices that work"), 2048);
    assert_eq!(cache.lost_tails(), [LOST]);
    machine.fill(&cache, OTHER).expect("it does not concern them");
    assert_eq!(cache.buffer().capacity_bytes() / PAGE / 1024, 1, "all of it is used");
    assert_eq!(crash(&machine, cache).lost_tails(), [LOST]);
}

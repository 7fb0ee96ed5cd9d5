//! Cuts: what they take out of memory is gone for readers at once, and its memory comes back a piece at a time.

use crate::common::{Disks, Slot};
use cache::{BackgroundTask, Cache, CacheSettings, ObjectChange, StepProgress, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use sim_disk::SimClock;
use std::sync::Arc;

const PAGE: u64 = BLOCK_BYTES as u64;
const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(6, 1);

/// What a page takes in memory, beside its bytes.
const ENTRY: u64 = 256;

fn cache(memory_bytes_max: u64) -> Cache {
    let disks = Disks::new(1, 4096, 512, 32);
    let settings = CacheSettings { memory_bytes_max, ..CacheSettings::default() };
    disks.open(Arc::new(SimClock::new()), settings).expect("sound media")
}

fn apply(cache: &Cache, change: ObjectChange<'_>) {
    let changes = [change];
    let slot = Slot::new();
    cache.admit(TransactionCost::of(&changes), slot.then());
    let mut reservation = slot.take().expect("at once").expect("space");
    cache.apply(&mut reservation, &changes).expect("space");
}

/// Reads a page, doing nothing else than reading.
#[track_caller]
fn read(cache: &Cache, object: ObjectId, page: u64) -> u8 {
    let slot = Slot::new();
    cache.read(object, page * PAGE, BLOCK_BYTES, (page + 1) * PAGE, slot.then());
    loop {
        if let Some(bytes) = slot.take() {
            let bytes = bytes.expect("a page");
            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "a torn page");
            return bytes[0];
        }
        assert_eq!(cache.step(BackgroundTask::Fetch), StepProgress::Worked, "nobody answers");
    }
}

/// Makes the first `pages` pages of a file clean pages in memory: holes.
fn fill(cache: &Cache, object: ObjectId, pages: u64) {
    let before = cache.status().pages;
    let slot = Slot::new();
    cache.read(object, 0, (pages * PAGE) as usize, pages * PAGE, slot.then());
    while cache.step(BackgroundTask::Fetch) == StepProgress::Worked {}
    slot.take().expect("all that was asked for").expect("holes");
    assert_eq!(cache.status().pages, before + pages);
}

/// Gives back what was cut; returns in how many steps.
fn clear(cache: &Cache) -> u64 {
    let mut steps = 0;
    while cache.step(BackgroundTask::Fetch) == StepProgress::Worked {
        steps += 1;
    }
    steps
}

fn write(cache: &Cache, object: ObjectId, page: u64, byte: u8) {
    apply(cache, ObjectChange::Write { object, offset: page * PAGE, bytes: &[byte; BLOCK_BYTES] });
}

#[test]
fn pages_that_were_cut_are_gone_at_once_and_give_back_their_memory_in_pieces() {
    let cache = cache(1 << 30);
    fill(&cache, FILE, 3000);
    write(&cache, FILE, 17, 1);
    write(&cache, FILE, 2999, 2);
    let full = cache.status().memory_bytes;
    apply(&cache, ObjectChange::Zero { object: FILE, offset: 0, len: 1 << 40 });
    let status = cache.status();
    assert_eq!((status.pages, status.memory_bytes, status.dirty_bytes), (0, full, 0));
    // What is written and read now has nothing to do with them.
    write(&cache, FILE, 17, 3);
    assert_eq!([17, 18, 2999].map(|page| read(&cache, FILE, page)), [3, 0, 0]);
    assert!(clear(&cache) >= 4, "not more than some hundreds at a time");
    assert_eq!([17, 18, 2999].map(|page| read(&cache, FILE, page)), [3, 0, 0]);
    let status = cache.status();
    assert_eq!((status.pages, status.memory_bytes), (3, 3 * (PAGE + ENTRY)));
}

#[test]
fn a_hole_takes_out_its_own_pages_and_no_others() {
    let cache = cache(1 << 30);
    fill(&cache, FILE, 100);
    fill(&cache, OTHER, 100);
    (0..100).step_by(10).for_each(|page| write(&cache, FILE, page, 1));
    apply(&cache, ObjectChange::Zero { object: FILE, offset: 20 * PAGE, len: 41 * PAGE });
    clear(&cache);
    let status = cache.status();
    assert_eq!((status.pages, status.memory_bytes), (159, 159 * (PAGE + ENTRY)));
    let marks: Vec<u8> = (0..100).step_by(10).map(|page| read(&cache, FILE, page)).collect();
    assert_eq!(marks, [1, 1, 0, 0, 0, 0, 0, 1, 1, 1]);
    apply(&cache, ObjectChange::Delete { object: FILE });
    clear(&cache);
    assert_eq!(cache.status().pages, 100);
}

#[test]
fn memory_of_what_was_cut_is_used_before_any_other_page_goes() {
    let limit = 1000 * (PAGE + ENTRY);
    let cache = cache(limit);
    fill(&cache, OTHER, 300);
    fill(&cache, FILE, 700);
    apply(&cache, ObjectChange::Delete { object: FILE });
    // Nobody but the writers does anything.
    (300..400).for_each(|page| write(&cache, OTHER, page, 1));
    let status = cache.status();
    assert!(status.memory_bytes <= limit, "{status:?}");
    assert_eq!((status.pages, status.counters.evicted), (400, 0));
}

#[test]
fn a_part_of_a_page_of_which_the_store_has_nothing_is_written_back_without_a_read() {
    let cache = cache(1 << 30);
    apply(&cache, ObjectChange::Write { object: FILE, offset: 3 * PAGE + 7, bytes: &[5; 100] });
    cache.drain().expect("devices that work");
    let counters = cache.status().counters;
    assert_eq!((counters.pages_stored, counters.fetched_for_write_back), (1, 0));
    let page = cache.read_now(FILE, 3 * PAGE, BLOCK_BYTES).expect("devices that work");
    assert_eq!(page, [vec![0; 7], vec![5; 100], vec![0; BLOCK_BYTES - 107]].concat());
}

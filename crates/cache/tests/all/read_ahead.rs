//! Reading ahead: who reads in order finds pages in memory, who does not causes no fetch of others, nobody waits for what is
//! fetched ahead of somebody else, and whatever happens to such pages meanwhile, they are right.

mod machine;
mod prefetch;

use crate::common::Slot;
use cache::{BackgroundTask, Cache, CacheError, ObjectChange, StepProgress};
use device::{BLOCK_BYTES, SeededRng};
use machine::*;
use sim_disk::BlockDamage;
use std::sync::{Arc, Mutex};

#[test]
fn who_reads_in_order_finds_all_but_the_beginning_in_memory_and_each_page_is_fetched_once() {
    let machine = Machine::new(512 << 20);
    for page in (0..PAGES).step_by(READ_PAGES as usize) {
        let found = read(&machine.cache, FILE, page, READ_PAGES);
        assert!(found == original(FILE, page, READ_PAGES), "from page {page} on");
        machine.fetch_all();
    }
    assert_eq!(machine.fetched(), (2 * READ_PAGES, PAGES - 2 * READ_PAGES));
    let counters = machine.cache.status().counters;
    assert_eq!((counters.reads_parked, counters.holes), (2, 0));
}

#[test]
fn what_is_in_memory_already_is_not_fetched_ahead() {
    let machine = Machine::new(512 << 20);
    read(&machine.cache, FILE, 100, 90);
    write(&machine.cache, FILE, 300, 7);
    for page in (0..PAGES).step_by(READ_PAGES as usize) {
        read(&machine.cache, FILE, page, READ_PAGES);
        machine.fetch_all();
    }
    assert_eq!(machine.cache.store().counters().page_reads, PAGES - 1);
}

#[test]
fn who_reads_faster_than_pages_come_has_no_page_fetched_twice() {
    let machine = Machine::new(512 << 20);
    let asked: Vec<_> = (0..PAGES / READ_PAGES)
        .map(|number| {
            // Now and then somebody fetches.
            if number % 5 == 4 {
                (0..4).for_each(|_| machine.step());
            }
            ask(&machine.cache, FILE, number * READ_PAGES, READ_PAGES)
        })
        .collect();
    machine.fetch_all();
    for (number, slot) in asked.iter().enumerate() {
        let found = slot.take().expect("an answer").expect("sound media");
        assert!(found == original(FILE, number as u64 * READ_PAGES, READ_PAGES), "read {number}");
    }
    let (for_reads, ahead) = machine.fetched();
    assert!(for_reads + ahead == PAGES && ahead > READ_PAGES, "{for_reads} and {ahead}");
    assert_eq!(machine.cache.store().counters().page_reads, PAGES);
}

#[test]
fn who_reads_at_random_backwards_or_with_gaps_causes_no_other_page_to_be_fetched() {
    let machine = Machine::new(512 << 20);
    let mut random = SeededRng::new(4);
    let mut pages: Vec<u64> = (0..PAGES / 2).map(|page| 2 * page).collect();
    (1..pages.len()).for_each(|at| pages.swap(at, random.below(at as u64 + 1) as usize));
    for &page in &pages {
        assert!(read(&machine.cache, FILE, page, 1) == original(FILE, page, 1));
        machine.fetch_all();
    }
    assert_eq!(machine.fetched(), (PAGES / 2, 0));
    for page in (0..PAGES / 4).rev().map(|pair| 2 * pair) {
        read(&machine.cache, OTHER, page, 2);
        machine.fetch_all();
    }
    for page in (PAGES / 2..PAGES).step_by(3) {
        read(&machine.cache, OTHER, page, 1);
        machine.fetch_all();
    }
    assert_eq!(machine.fetched(), (PAGES / 2 + PAGES / 2 + (PAGES / 2).div_ceil(3), 0));
}

#[test]
fn nobody_waits_for_more_than_a_step_of_what_is_fetched_ahead() {
    let machine = Machine::new(512 << 20);
    let cache = &machine.cache;
    for number in 0..4 {
        read(cache, FILE, number * READ_PAGES, READ_PAGES);
    }
    // The stream is so far by then.
    let fetched = machine.fetched().0 + machine.fetched().1;
    let until = 224;
    assert!(fetched <= until - 64, "{fetched} pages are there");
    // A page of another file, and one that is ahead itself.
    let (found, steps) = answer(cache, &ask(cache, OTHER, 700, 1));
    assert!(found.expect("sound media") == original(OTHER, 700, 1));
    assert_eq!(steps, 1);
    let last = until - 1;
    let (found, steps) = answer(cache, &ask(cache, FILE, last, 1));
    assert!(found.expect("sound media") == original(FILE, last, 1));
    assert_eq!(steps, 1);
    machine.fetch_all();
    assert_eq!(machine.fetched().0 + machine.fetched().1, cache.status().pages, "each once");
}

#[test]
fn no_more_than_an_eighth_of_the_memory_is_fetched_ahead_and_memory_keeps_its_bound() {
    let memory = 2 << 20;
    let machine = Machine::new(memory);
    for page in (0..PAGES).step_by(16) {
        for object in [FILE, OTHER] {
            let (_, before) = machine.fetched();
            assert!(read(&machine.cache, object, page, 16) == original(object, page, 16));
            machine.fetch_all();
            let ahead = machine.fetched().1 - before;
            assert!(ahead <= memory / 8 / PAGE, "{ahead} pages at once");
            let status = machine.cache.status();
            assert!(status.memory_bytes <= memory, "{status:?}");
        }
    }
    assert!(machine.fetched().1 > PAGES, "{:?}", machine.fetched());
}

#[test]
fn where_memory_is_small_and_full_of_changes_no_page_is_gone_before_its_reader_comes() {
    let memory = 1 << 20;
    let machine = Machine::new(memory);
    let cache = &machine.cache;
    (0..100).for_each(|page| write(cache, OTHER, page, 7));
    assert!(cache.status().dirty_bytes > memory / 5 * 2);
    for page in (0..PAGES).step_by(16) {
        assert!(read(cache, FILE, page, 16) == original(FILE, page, 16));
        machine.fetch_all();
    }
    assert_eq!(machine.fetched(), (32, PAGES - 32));
    assert!(cache.status().counters.evicted > PAGES / 2);
}

#[test]
fn behind_a_reader_who_was_faster_nothing_is_fetched() {
    let machine = Machine::new(1 << 20);
    let cache = &machine.cache;
    for number in 0..PAGES / 16 {
        // Others keep the only fetcher from what is ahead.
        let asked = ask(cache, FILE, 16 * number, 16);
        let others = [0, 3, 6, 9].map(|page| ask(cache, OTHER, (24 * number + page) % PAGES, 2));
        assert!(answer(cache, &asked).0.expect("sound media") == original(FILE, 16 * number, 16));
        others.iter().for_each(|other| drop(answer(cache, other).0.expect("sound media")));
    }
    machine.fetch_all();
    assert_eq!(machine.fetched().1, 0, "all that was ahead was read, and is gone from memory");
}

#[test]
fn nothing_behind_the_end_is_fetched_and_holes_before_it_are_zeros() {
    let machine = Machine::new(512 << 20);
    let cache = &machine.cache;
    change(cache, ObjectChange::Zero { object: FILE, offset: 40 * PAGE, len: 10 * PAGE });
    cache.drain().expect("sound media");
    let before = cache.status().pages;
    for page in [0, 8, 16, 24, 32] {
        let slot = Slot::new();
        // The object has more pages; the file that it is ends after 50 and a half.
        cache.read(FILE, page * PAGE, 8 * BLOCK_BYTES, 50 * PAGE + 1, slot.then());
        answer(cache, &slot).0.expect("sound media");
        machine.fetch_all();
    }
    assert_eq!(cache.status().pages - before, 51);
    let found = read(cache, FILE, 40, 11);
    assert!(found[..10 * BLOCK_BYTES].iter().all(|&byte| byte == 0));
    assert!(found[10 * BLOCK_BYTES..] == original(FILE, 50, 1));
}

#[test]
fn a_damaged_page_ahead_fails_no_read_but_its_own() {
    let machine = Machine::new(512 << 20);
    let cache = &machine.cache;
    machine.places(FILE, 100).for_each(|at| machine.disks.store.rot(at, 5));
    for page in (0..96).step_by(8) {
        assert!(read(cache, FILE, page, 8) == original(FILE, page, 8), "before it");
        machine.fetch_all();
    }
    let status = cache.status();
    assert!(status.counters.fetch_errors > 0, "nobody came to it: {status:?}");
    assert_eq!((status.stuck_count, status.stalled, status.parked_reads), (0, None, 0));
    let own = answer(cache, &ask(cache, FILE, 96, 8)).0;
    assert!(matches!(own, Err(CacheError::Store(store::StoreError::Corrupt { .. }))), "{own:?}");
    assert!(read(cache, FILE, 101, 8) == original(FILE, 101, 8), "behind it");
    // Whoever writes all of it heals it.
    write(cache, FILE, 100, 7);
    assert!(read(cache, FILE, 100, 1) == [7; BLOCK_BYTES]);
}

#[test]
fn objects_that_will_be_read_are_fetched_as_far_as_there_is_memory_to_spare() {
    let machine = Machine::new(64 * PAGE * 8);
    machine.cache.fetch_ahead(&[(FILE, 3 * PAGE + 1), (OTHER, 61 * PAGE), (OTHER, 2 * PAGE)]);
    machine.fetch_all();
    let (for_reads, ahead) = machine.fetched();
    assert_eq!((for_reads, ahead), (0, 4 + 2), "what would be more than an eighth of the memory is left out");
    machine.undisturbed(|| {
        assert!(read(&machine.cache, FILE, 0, 4) == original(FILE, 0, 4));
        assert!(read(&machine.cache, OTHER, 0, 2) == original(OTHER, 0, 2));
    });
    assert_eq!(machine.fetched(), (0, 6));
}

#[test]
fn an_unreadable_page_ahead_fails_no_read_of_pages_that_were_on_their_way_with_it() {
    let machine = Machine::new(512 << 20);
    let cache = machine.cache.clone();
    machine.places(FILE, 100).for_each(|at| machine.disks.store.damage(at, BlockDamage::Unreadable));
    for number in 0..2 {
        read(&cache, FILE, number * READ_PAGES, READ_PAGES);
    }
    let asking = cache.clone();
    let asked = Slot::new();
    let mut then = Some(asked.then());
    let come: Meddling = Box::new(move || {
        // The device is asked again then, for each page by itself.
        if let Some(then) = then.take() {
            asking.read(FILE, 99 * PAGE, BLOCK_BYTES, PAGES * PAGE, then);
        }
    });
    *machine.meddling.lock().expect("one thread") = Some(come);
    machine.step();
    *machine.meddling.lock().expect("one thread") = None;
    assert!(answer(&cache, &asked).0.expect("it is readable") == original(FILE, 99, 1));
    assert_eq!(cache.status().counters.fetched_for_reads, 2 * READ_PAGES, "it came with the others");
    let own = answer(&cache, &ask(&cache, FILE, 100, 1)).0;
    assert!(matches!(own, Err(CacheError::Store(store::StoreError::Device(_)))), "{own:?}");
}

#[test]
fn a_cache_that_is_stopped_fetches_nothing_ahead_any_more() {
    let fetched = [false, true].map(|stops| {
        let machine = Machine::new(512 << 20);
        for number in 0..4 {
            read(&machine.cache, FILE, number * READ_PAGES, READ_PAGES);
        }
        let (_, before) = machine.fetched();
        if stops {
            machine.cache.stop();
        }
        machine.cache.drain().expect("sound media");
        machine.fetched().1 - before
    });
    assert!(fetched[0] > 0 && fetched[1] == 0, "{fetched:?} pages");
}

/// Draws one change of a file and makes it, here and in what the file should be.
fn draw(random: &mut SeededRng, cache: &Cache, right: &mut [u8]) {
    // Often of pages just ahead of the reader, whoever that is: the file is small.
    let at = random.below(right.len() as u64);
    match random.below(6) {
        0 => {
            let len = 1 + random.below(40 * PAGE);
            change(cache, ObjectChange::Zero { object: FILE, offset: at, len });
            let end = (at + len).min(right.len() as u64);
            right[at as usize..end as usize].fill(0);
        }
        kind => {
            let at = if kind < 3 { at / PAGE * PAGE } else { at } as usize;
            let len = if kind < 3 { BLOCK_BYTES } else { 1 + random.below(3000) as usize };
            let len = len.min(right.len() - at);
            let bytes = vec![random.below(256) as u8; len];
            change(cache, ObjectChange::Write { object: FILE, offset: at as u64, bytes: &bytes });
            right[at..at + len].copy_from_slice(&bytes);
        }
    }
}

#[test]
fn pages_that_change_while_they_are_fetched_ahead_are_right() {
    const FEW_PAGES: u64 = 256;
    let mut ahead = 0;
    let mut meddled = 0;
    for seed in 0..6 {
        let machine = Machine::new(if seed % 2 == 0 { 512 << 20 } else { 2 << 20 });
        let cache = machine.cache.clone();
        let right = Arc::new(Mutex::new(original(FILE, 0, FEW_PAGES)));
        let times = Arc::new(Mutex::new(0));
        let meddling: Meddling = Box::new({
            let cache = cache.clone();
            let right = right.clone();
            let times = times.clone();
            let mut random = SeededRng::new(100 + seed);
            move || {
                let mut right = right.lock().expect("one thread");
                (0..random.below(4)).for_each(|_| draw(&mut random, &cache, &mut right));
                // What changed, cuts too, is written back while older pages are on their way.
                if random.once_in(3) {
                    cache.drain().expect("sound media");
                }
                *times.lock().expect("one thread") += 1;
            }
        });
        *machine.meddling.lock().expect("one thread") = Some(meddling);
        let mut random = SeededRng::new(seed);
        for _ in 0..60 {
            let mut page = random.below(FEW_PAGES / 2);
            let pages = 1 + random.below(12);
            // What is fetched ahead of this reader is changed while it comes.
            while page + pages <= FEW_PAGES && !random.once_in(12) {
                read(&cache, FILE, page, pages);
                page += pages;
                for _ in 0..random.below(3) {
                    let others = BackgroundTask::ALL[random.below(4) as usize];
                    if random.once_in(8) {
                        machine.undisturbed(|| cache.step(others))
                    } else {
                        cache.step(BackgroundTask::Fetch)
                    };
                }
            }
            machine.fetch_all();
            let found = machine.undisturbed(|| read(&cache, FILE, 0, FEW_PAGES));
            assert!(found == *right.lock().expect("one thread"), "seed {seed}");
            // All is written back, and is fetched anew.
            if random.once_in(3) {
                machine.undisturbed(|| {
                    cache.drain().expect("sound media");
                    read(&cache, OTHER, 0, PAGES);
                });
            }
        }
        ahead += machine.fetched().1;
        meddled += *times.lock().expect("one thread");
        // The cache and what meddles with it own each other.
        *machine.meddling.lock().expect("one thread") = None;
    }
    assert!(ahead > 1000 && meddled > 100, "{ahead} pages ahead, changed {meddled} times");
}

#[test]
fn an_object_that_is_deleted_while_it_is_fetched_ahead_leaves_no_page() {
    let machine = Machine::new(512 << 20);
    let cache = machine.cache.clone();
    for number in 0..4 {
        read(&cache, FILE, number * READ_PAGES, READ_PAGES);
    }
    // In the middle of a step, with more steps to come.
    let deleting = cache.clone();
    let delete: Meddling = Box::new(move || change(&deleting, ObjectChange::Delete { object: FILE }));
    *machine.meddling.lock().expect("one thread") = Some(delete);
    assert_eq!(cache.step(BackgroundTask::Fetch), StepProgress::Worked);
    *machine.meddling.lock().expect("one thread") = None;
    machine.fetch_all();
    let status = cache.status();
    assert_eq!((status.pages, status.fetching, status.memory_bytes), (0, 0, 0), "{status:?}");
    assert!(read(&cache, FILE, 0, 1) == [0; BLOCK_BYTES]);
}

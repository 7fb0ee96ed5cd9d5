//! Classes of requests: what is logged for whom, and who goes first.

use crate::common::plain::Machine;
use cache::{
    BackgroundTask, Cache, CacheError, CacheTransaction, ObjectChange, SyncScope, TaskLoan, TransactionCost,
};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, VolumeId};
use request::{LendingLevel, Origin, RequestClass};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const LOG: ObjectId = VolumeId::MAIN.object(6, 1);
const CRITICAL: Origin = Origin::UNMATCHED;
const BACKGROUND: Origin = Origin { class: RequestClass::Background, ..Origin::UNMATCHED };
const PAGE: u64 = BLOCK_BYTES as u64;

fn crash(machine: &Machine, cache: Cache) -> Cache {
    drop(cache);
    machine.crash();
    machine.open_under_policy()
}

/// Makes a change, unless it has to wait.
fn change_at_once(cache: &Cache, origin: Origin, change: ObjectChange<'_>) -> Option<Result<(), CacheError>> {
    let cost = TransactionCost { origin, ..TransactionCost::of(&[change]) };
    cache.try_transact(cost, |tx| tx.apply(&[change]).map(drop))
}

/// Whole pages, which bypass the buffer.
fn pages_of(object: ObjectId, offset: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::FileWrite { object, offset, bytes, size: 1 << 30 }
}

/// A part of a page, which is logged.
fn part_of(object: ObjectId, page: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::Write { object, offset: page * PAGE, bytes }
}

fn is_synced(cache: &Cache, origin: Origin, object: ObjectId) -> Arc<AtomicBool> {
    let synced = Arc::new(AtomicBool::new(false));
    let told = synced.clone();
    let then =
        Box::new(move |outcome: Result<(), CacheError>| told.store(outcome.is_ok(), Ordering::Relaxed));
    cache.sync_for(origin, SyncScope::Object(object), then);
    synced
}

fn is_synced_now(cache: &Cache, object: ObjectId) -> bool {
    let synced = is_synced(cache, CRITICAL, object);
    cache.step(BackgroundTask::Commit);
    synced.load(Ordering::Relaxed)
}

#[test]
fn a_critical_sync_is_logged_and_a_background_one_waits_for_the_store() {
    let machine = Machine::new(1);
    let cache = machine.open_under_policy();
    for object in [FILE, LOG] {
        change_at_once(&cache, BACKGROUND, pages_of(object, 0, &[2; 2 * BLOCK_BYTES]))
            .expect("space")
            .unwrap();
    }
    let of_background = is_synced(&cache, BACKGROUND, FILE);
    let of_critical = is_synced(&cache, CRITICAL, LOG);
    cache.step(BackgroundTask::Commit);
    assert_eq!(cache.status().counters.pages_logged_late, 2, "those of the critical sync");
    assert!(of_critical.load(Ordering::Relaxed) && !of_background.load(Ordering::Relaxed));
    cache.step(BackgroundTask::WriteBack);
    cache.step(BackgroundTask::Commit);
    assert!(of_background.load(Ordering::Relaxed));
    assert_eq!(cache.status().counters.pages_logged_late, 2);
    let cache = crash(&machine, cache);
    for object in [FILE, LOG] {
        assert_eq!(cache.read_now(object, 0, 2 * BLOCK_BYTES).unwrap(), [2; 2 * BLOCK_BYTES]);
    }
}

#[test]
fn background_changes_leave_space_to_critical_ones_which_pass_them() {
    let machine = Machine::new(2);
    let cache = machine.open_under_policy();
    let bytes = [1; 2048];
    let mut page = 0;
    while change_at_once(&cache, BACKGROUND, part_of(FILE, page, &bytes)).is_some() {
        page += 1;
    }
    let capacity = cache.buffer().capacity_bytes();
    let free = cache.buffer().free_bytes();
    assert!((capacity * 3 / 10..capacity * 4 / 10).contains(&free), "{free} of {capacity}");
    let answered = Arc::new(AtomicBool::new(false));
    let answer = answered.clone();
    let change = part_of(FILE, page, &[1; 2048]);
    let cost = TransactionCost { origin: BACKGROUND, ..TransactionCost::of(&[change]) };
    let done = move |outcome: Result<_, CacheError>| answer.store(outcome.is_ok(), Ordering::Relaxed);
    cache.transact(cost, |tx| tx.apply(&[part_of(FILE, 9999, &[1; 2048])]), done);
    assert_eq!(cache.status().parked_admissions, 1);
    change_at_once(&cache, CRITICAL, part_of(LOG, 0, &bytes)).expect("it goes first").unwrap();
    assert!(!answered.load(Ordering::Relaxed));
    for _ in 0..100 {
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
    }
    assert!(answered.load(Ordering::Relaxed));
}

#[test]
fn a_critical_write_is_logged_where_a_background_one_waits_to_bypass() {
    let machine = Machine::new(3);
    let cache = machine.open_under_policy();
    let bytes = [3; 16 * BLOCK_BYTES];
    let mut offset = 0;
    while change_at_once(&cache, BACKGROUND, pages_of(FILE, offset, &bytes)).is_some() {
        offset += bytes.len() as u64;
    }
    let before = cache.status().counters.pages_bypassed;
    assert!(before > 0);
    change_at_once(&cache, CRITICAL, pages_of(LOG, 0, &bytes)).expect("it is logged").unwrap();
    assert_eq!(cache.status().counters.pages_bypassed, before);
    assert_eq!(cache.status().parked_admissions, 0);
}

#[test]
fn writes_of_a_log_are_logged_at_once_and_then_only_where_they_differ() {
    let machine = Machine::new(5);
    let cache = machine.open_under_policy();
    let of_log = Origin { logs_at_once: true, ..CRITICAL };
    let mut page = [1; BLOCK_BYTES];
    let write = |bytes: &[u8]| {
        let before = cache.status().counters.appended.total();
        change_at_once(&cache, of_log, pages_of(LOG, 0, bytes)).expect("space").unwrap();
        assert!(is_synced_now(&cache, LOG));
        cache.status().counters.appended.total() - before
    };
    assert!((4096..4300).contains(&write(&page)));
    page[100..200].fill(2);
    let appended = write(&page);
    assert!((100..400).contains(&appended), "{appended}");
    let counters = cache.status().counters;
    assert_eq!((counters.pages_bypassed, counters.pages_logged_late), (0, 0));
    let cache = crash(&machine, cache);
    assert_eq!(cache.read_now(LOG, 0, BLOCK_BYTES).unwrap(), page);
}

#[test]
fn the_ends_of_an_unaligned_write_are_logged_and_the_pages_between_bypass() {
    let machine = Machine::new(4);
    let cache = machine.open_under_policy();
    let append = |cache: &Cache, offset: u64, byte: u8| {
        let bytes = vec![byte; 10240];
        let change = ObjectChange::FileWrite { object: FILE, offset, bytes: &bytes, size: offset };
        change_at_once(cache, BACKGROUND, change).expect("space").unwrap();
    };
    append(&cache, 0, 1);
    assert_eq!(cache.status().counters.pages_bypassed, 2);
    machine.sync(&cache).expect("a buffer that works");
    append(&cache, 10240, 2);
    assert_eq!(cache.status().counters.pages_bypassed, 4);
    // A commit without the bypassed pages.
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), [(FILE, PageNo(3))], "the part of page 2 was logged");
    let kept = cache.read_now(FILE, 0, 12288).unwrap();
    assert_eq!(kept, [vec![1; 10240], vec![2; 2048]].concat());
    cache.forget_lost_tail(FILE);
    append(&cache, 12288, 3);
    machine.sync(&cache).expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!(cache.read_now(FILE, 12288, 10240).unwrap(), [3; 10240]);
}

/// Writes pages 2 and 3 of a file of `size` bytes, and has only what is logged survive a crash. Returns how many pages
/// bypassed the buffer, and the objects that lost their end.
fn write_of_a_file_that_ends(size: u64) -> (u64, usize) {
    let machine = Machine::new(9);
    let cache = machine.open_under_policy();
    let bytes = [6; 2 * BLOCK_BYTES];
    let change = ObjectChange::FileWrite { object: FILE, offset: 2 * PAGE, bytes: &bytes, size };
    change_at_once(&cache, CRITICAL, change).expect("space").unwrap();
    let bypassed = cache.status().counters.pages_bypassed;
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    let cache = crash(&machine, cache);
    if bypassed == 0 {
        assert_eq!(cache.read_now(FILE, 2 * PAGE, bytes.len()).unwrap(), bytes);
    }
    (bypassed, cache.lost_tails().len())
}

#[test]
fn whole_pages_are_logged_where_losing_them_would_leave_a_hole() {
    assert_eq!(write_of_a_file_that_ends(2 * PAGE), (2, 1), "at the end");
    assert_eq!(write_of_a_file_that_ends(3 * PAGE), (2, 1), "over the end, between two pages");
    assert_eq!(write_of_a_file_that_ends(4 * PAGE), (2, 0), "before the end");
    assert_eq!(write_of_a_file_that_ends(2 * PAGE + 100), (0, 0), "the end is within a page");
    assert_eq!(write_of_a_file_that_ends(PAGE), (0, 0), "behind the end");
}

#[test]
fn what_is_lent_to_goes_first_and_its_sync_is_logged() {
    let machine = Machine::new(5);
    let cache = machine.open_under_policy();
    let task = Origin { task: 7, ..BACKGROUND };
    let bytes = [3; 16 * BLOCK_BYTES];
    let mut offset = 0;
    while change_at_once(&cache, task, pages_of(FILE, offset, &bytes)).is_some() {
        offset += bytes.len() as u64;
    }
    let written = Arc::new(AtomicBool::new(false));
    let told = written.clone();
    let cost = TransactionCost { origin: task, ..TransactionCost::of(&[pages_of(FILE, offset, &bytes)]) };
    let write =
        move |tx: &mut CacheTransaction<'_>| tx.apply(&[pages_of(FILE, offset, &[3; 16 * BLOCK_BYTES])]);
    cache.transact(cost, write, move |done: Result<_, CacheError>| {
        told.store(done.is_ok(), Ordering::Relaxed)
    });
    let synced = is_synced(&cache, task, FILE);
    assert!(!cache.lend(TaskLoan { to: 8, lent_for: 9 }, LendingLevel::AdmissionAndSync), "another task");
    assert!(!cache.lend(TaskLoan { to: 7, lent_for: 9 }, LendingLevel::None));
    assert!(cache.lend(TaskLoan { to: 7, lent_for: 9 }, LendingLevel::Admission));
    assert!(written.load(Ordering::Relaxed), "it is logged");
    cache.step(BackgroundTask::Commit);
    assert!(!synced.load(Ordering::Relaxed), "its sync waits on");
    assert!(cache.lend(TaskLoan { to: 7, lent_for: 9 }, LendingLevel::AdmissionAndSync));
    cache.step(BackgroundTask::Commit);
    assert!(synced.load(Ordering::Relaxed));
    let cache = crash(&machine, cache);
    let all = cache.read_now(FILE, 0, offset as usize).unwrap();
    assert!(all.iter().all(|&byte| byte == 3), "the sync covered what was there when it was asked for");
}

#[test]
fn pages_for_critical_reads_are_fetched_first() {
    let machine = Machine::new(6);
    let cache = machine.open_under_policy();
    for object in [FILE, LOG] {
        machine.write(&cache, object, 0, &[4; 100 * BLOCK_BYTES]).expect("space");
    }
    cache.drain().expect("sound disks");
    let cache = crash(&machine, cache);
    let read = |origin, object, page: u64| {
        let answered = Arc::new(AtomicBool::new(false));
        let answer = answered.clone();
        let then = Box::new(move |bytes: Result<Vec<u8>, CacheError>| {
            answer.store(bytes.is_ok_and(|bytes| bytes == [4; 100]), Ordering::Relaxed);
        });
        cache.read_for(origin, (object, page * PAGE, 100), 0, then);
        answered
    };
    let task = Origin { task: 7, ..BACKGROUND };
    let of_backup: Vec<_> = (0..100).map(|page| read(task, FILE, page)).collect();
    let of_critical = read(CRITICAL, LOG, 99);
    cache.step(BackgroundTask::Fetch);
    assert!(of_critical.load(Ordering::Relaxed));
    assert!(!of_backup.iter().any(|read| read.load(Ordering::Relaxed)));
    assert!(cache.lend(TaskLoan { to: 7, lent_for: 9 }, LendingLevel::Admission), "its reads wait");
    while !of_backup.iter().all(|read| read.load(Ordering::Relaxed)) {
        cache.step(BackgroundTask::Fetch);
    }
}

/// Reads 100 bytes of a page. The result says whether they have been read.
fn read_soon(cache: &Cache, origin: Origin, object: ObjectId, page: u64) -> Arc<AtomicBool> {
    let answered = Arc::new(AtomicBool::new(false));
    let answer = answered.clone();
    let then = Box::new(move |bytes: Result<_, CacheError>| answer.store(bytes.is_ok(), Ordering::Relaxed));
    cache.read_for(origin, (object, page * PAGE, 100), 0, then);
    answered
}

/// A cache that has nothing in memory, and the objects FILE and LOG in its store.
fn open_cold(machine: &Machine) -> Cache {
    let cache = machine.open_under_policy();
    for object in [FILE, LOG] {
        for page in 0..60 {
            machine.write(&cache, object, page * 16, &[4; 16 * BLOCK_BYTES]).expect("space");
        }
    }
    cache.drain().expect("sound disks");
    crash(machine, cache)
}

/// Fetches, while one critical read after the other arrives.
fn fetch_beside_critical_reads(cache: &Cache) {
    for page in 0..900 {
        read_soon(cache, CRITICAL, LOG, page);
        cache.step(BackgroundTask::Fetch);
    }
}

#[test]
fn a_background_read_is_answered_beside_critical_ones_that_never_end() {
    let machine = Machine::new(7);
    let cache = open_cold(&machine);
    let of_backup = read_soon(&cache, BACKGROUND, FILE, 1);
    fetch_beside_critical_reads(&cache);
    assert!(of_backup.load(Ordering::Relaxed));
}

#[test]
fn a_critical_read_joins_a_background_one_on_a_page_that_a_clone_blocks() {
    let machine = Machine::new(8);
    let cache = open_cold(&machine);
    let target = VolumeId::MAIN.object(9, 1);
    let clone = ObjectChange::Transfer(PageTransfer::clone_of(FILE, target));
    machine.apply(&cache, &[clone]).expect("space");
    read_soon(&cache, BACKGROUND, target, 1);
    cache.step(BackgroundTask::Fetch);
    let of_critical = read_soon(&cache, CRITICAL, target, 1);
    while cache.status().pending_transfers > 0 {
        cache.step(BackgroundTask::WriteBack);
        cache.step(BackgroundTask::Commit);
    }
    cache.step(BackgroundTask::Fetch);
    assert!(of_critical.load(Ordering::Relaxed));
}

#[test]
fn a_background_write_that_waits_for_the_log_has_it_written_back() {
    let machine = Machine::new(9);
    // A store that could get more space: no reason to write back by itself.
    machine.store.set_space(16384);
    let cache = machine.open_under_policy();
    let capacity = cache.buffer().capacity_bytes();
    let mut page = 0;
    while cache.buffer().free_bytes() > capacity / 2 + 3 * PAGE {
        machine.write(&cache, LOG, 16 * page, &[1; BLOCK_BYTES]).expect("space");
        page += 1;
    }
    machine.sync(&cache).expect("a buffer that works");
    let answered = Arc::new(AtomicBool::new(false));
    let answer = answered.clone();
    static BYTES: [u8; 63 * BLOCK_BYTES] = [2; 63 * BLOCK_BYTES];
    let cost = TransactionCost::of(&[pages_of(FILE, 0, &BYTES)]).by(BACKGROUND);
    let write = |tx: &mut CacheTransaction<'_>| tx.apply(&[pages_of(FILE, 0, &BYTES)]);
    cache.transact(cost, write, move |done: Result<_, CacheError>| {
        answer.store(done.is_ok(), Ordering::Relaxed)
    });
    assert!(!answered.load(Ordering::Relaxed), "the log is too full for it");
    for _ in 0..20 {
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
    }
    assert!(answered.load(Ordering::Relaxed));
}

//! Bypassed pages: their records in the log, and what recovery makes of these.

use crate::common::apply_at_once;
use crate::common::plain::Machine;
use buffer::LogRecord;
use cache::{
    BackgroundTask, Cache, CacheError, CacheSettings, CacheTransaction, ObjectChange, TransactionCost,
};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, VolumeId};
use sim_disk::SimClock;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store::Store;

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const COPY: ObjectId = VolumeId::MAIN.object(6, 1);
const PAGE: u64 = BLOCK_BYTES as u64;

fn write_bypassing(machine: &Machine, cache: &Cache, pages: std::ops::Range<u64>, byte: u8, grows: bool) {
    let bytes = vec![byte; ((pages.end - pages.start) * PAGE) as usize];
    let size = if grows { pages.start * PAGE } else { pages.end * PAGE };
    let change = ObjectChange::FileWrite { object: FILE, offset: pages.start * PAGE, bytes: &bytes, size };
    machine.apply(cache, &[change]).expect("space");
}

/// The records in the log of a bypassing write that was not synced.
fn commit(machine: &Machine, cache: &Cache) {
    machine.wait(cache, |then| cache.sync_logged(then)).expect("a buffer that works");
}

fn crash(machine: &Machine, cache: Cache) -> Cache {
    drop(cache);
    machine.crash();
    machine.open()
}

fn bytes(cache: &Cache, page: u64, at: std::ops::Range<u64>) -> Vec<u8> {
    let len = (at.end - at.start) as usize;
    cache.read_now(FILE, page * PAGE + at.start, len).expect("disks that work")
}

#[test]
fn what_is_not_stored_at_a_crash_is_what_it_was_and_stays_so_under_what_is_written_then() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    write_bypassing(&machine, &cache, 0..1, 2, false);
    commit(&machine, &cache);
    assert_eq!(cache.status().counters.pages_bypassed, 1);
    let cache = crash(&machine, cache);
    assert_eq!(bytes(&cache, 0, 0..4096), [1; BLOCK_BYTES]);
    machine.write(&cache, FILE, 0, &[3; 100]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!([bytes(&cache, 0, 0..100), bytes(&cache, 0, 100..200)], [vec![3; 100], vec![1; 100]]);
}

#[test]
fn older_records_are_not_laid_over_what_was_stored_since() {
    let machine = Machine::new(2);
    let cache = machine.open();
    // Another page needs the group of the older record, which stays in the log.
    machine.write(&cache, COPY, 0, &[1; 100]).expect("space");
    machine.write(&cache, FILE, 0, &[1; 100]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    write_bypassing(&machine, &cache, 0..40, 2, false);
    cache.step(BackgroundTask::WriteBack);
    assert_eq!(cache.status().counters.pages_stored, 40);
    assert_eq!(cache.status().dirty_pages, 1, "that the log is needed for");
    let cache = crash(&machine, cache);
    assert_eq!(bytes(&cache, 0, 0..200), [2; 200]);
}

#[test]
fn a_sync_of_an_object_logs_its_own_pages_and_nobody_else_s() {
    let machine = Machine::new(3);
    let cache = machine.open();
    write_bypassing(&machine, &cache, 0..2, 2, false);
    machine.wait(&cache, |then| cache.sync_object(COPY, then)).expect("a buffer that works");
    assert_eq!(cache.status().counters.pages_logged_late, 0);
    machine.wait(&cache, |then| cache.sync_object(FILE, then)).expect("a buffer that works");
    assert_eq!(cache.status().counters.pages_logged_late, 2);
    let cache = crash(&machine, cache);
    assert_eq!(bytes(&cache, 1, 0..4096), [2; BLOCK_BYTES]);
}

#[test]
fn a_clone_and_a_new_name_come_after_what_was_written_before_them() {
    let transfer = PageTransfer::clone_range(FILE, PageNo(1)..PageNo(3), COPY, PageNo(1));
    for (change, logged) in
        [(ObjectChange::Transfer(transfer), 2), (ObjectChange::LogBypassed { object: FILE }, 4)]
    {
        let machine = Machine::new(6);
        let cache = machine.open();
        write_bypassing(&machine, &cache, 0..4, 2, false);
        // A transaction of `LogBypassed` alone leaves no record itself.
        let name = ObjectChange::Write { object: VolumeId::MAIN.object(0, 0), offset: 0, bytes: b"name" };
        machine.apply(&cache, &[change, name]).expect("space");
        assert_eq!(cache.status().counters.pages_logged_late, logged, "{change:?}");
        commit(&machine, &cache);
        let cache = crash(&machine, cache);
        assert_eq!(bytes(&cache, 1, 0..4096), [2; BLOCK_BYTES], "{change:?}");
        assert_eq!(bytes(&cache, 2, 0..4096), [2; BLOCK_BYTES], "{change:?}");
    }
}

#[test]
fn an_object_is_lost_from_the_first_page_on_that_it_grew_with_and_the_store_lacks_until_that_is_forgotten() {
    let machine = Machine::new(4);
    let cache = machine.open();
    write_bypassing(&machine, &cache, 0..3, 2, true);
    // A partial overwrite: all of the page is logged.
    machine.write(&cache, FILE, 0, &[3; 100]).expect("space");
    commit(&machine, &cache);
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), [(FILE, PageNo(1))]);
    // No record names it.
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), [(FILE, PageNo(1))]);
    let end = ObjectChange::Zero { object: FILE, offset: PAGE, len: u64::MAX - PAGE };
    machine.apply(&cache, &[end]).expect("space");
    commit(&machine, &cache);
    cache.forget_lost_tail(FILE);
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), []);
    assert_eq!([bytes(&cache, 0, 0..100), bytes(&cache, 0, 100..200)], [vec![3; 100], vec![2; 100]]);
}

#[test]
fn what_was_logged_again_beside_a_clone_says_nothing_of_what_came_after_it() {
    let machine = Machine::new(5);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[1; 100]).expect("space");
    let transfer = PageTransfer::clone_range(FILE, PageNo(0)..PageNo(1), COPY, PageNo(0));
    machine.apply(&cache, &[ObjectChange::Transfer(transfer)]).expect("space");
    let cloned = cache.status().applied;
    machine.write(&cache, FILE, 0, &[3; 50]).expect("space");
    write_bypassing(&machine, &cache, 0..1, 4, true);
    // As if the clone could not be stored for long.
    let beside = LogRecord::Write { object: FILE, page: PageNo(0), start: 0, bytes: &[1; 100] };
    cache.buffer().append_relogged(cloned, &[LogRecord::Transfer(transfer), beside]).expect("space");
    cache.buffer().commit().expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!(cache.lost_tails(), [(FILE, PageNo(0))], "it grew with that page");
    assert_eq!([bytes(&cache, 0, 0..50), bytes(&cache, 0, 50..100)], [vec![3; 50], vec![1; 50]]);
}

#[test]
fn a_stream_that_never_ends_does_not_keep_others_from_being_written_back() {
    let machine = Machine::new(7);
    let cache = machine.open();
    machine.write(&cache, COPY, 0, &[1; 100]).expect("space");
    machine.clock.advance(CacheSettings::default().dirty_age_max);
    let mut steps = 0;
    while cache.status().dirty_age >= CacheSettings::default().dirty_age_max {
        // Enough for the next step to store bypassed pages.
        write_bypassing(&machine, &cache, 0..40, 2, false);
        cache.step(BackgroundTask::WriteBack);
        steps += 1;
        assert!(steps < 10, "{:?}", cache.status());
    }
}

#[test]
fn a_file_that_grows_and_grows_does_not_keep_a_sync_of_another_waiting() {
    let machine = Machine {
        disks: crate::common::Disks::new(13, 1 << 16, 1 << 15, 32),
        clock: Arc::new(SimClock::new()),
    };
    let settings = CacheSettings {
        bypass_after: 0,
        sync_log_bytes_max: 0,
        commit_inline_below: Duration::ZERO,
        ..CacheSettings::default()
    };
    let store = Arc::new(Store::open(machine.store.clone()).expect("sound media"));
    let cache = Cache::open(store, machine.buffer.clone(), machine.clock.clone(), settings);
    let cache = cache.expect("sound media");
    let mut next = 0;
    let bytes = vec![7; 256 * BLOCK_BYTES];
    // As much as may be bypassed at a time, which is several steps of write-back.
    let mut grow = || loop {
        let change =
            ObjectChange::FileWrite { object: COPY, offset: next * PAGE, bytes: &bytes, size: next * PAGE };
        let Some(applied) = apply_at_once(&cache, &[change]) else { break };
        applied.expect("space");
        next += 256;
    };
    grow();
    cache.step(BackgroundTask::WriteBack);
    write_bypassing(&machine, &cache, 0..32, 2, false);
    let synced = Arc::new(AtomicBool::new(false));
    let told = synced.clone();
    cache.sync_object(FILE, Box::new(move |_| told.store(true, Ordering::Relaxed)));
    for step in 0.. {
        assert!(step < 20, "{:?}", cache.status());
        grow();
        for task in [BackgroundTask::Checkpoint, BackgroundTask::WriteBack, BackgroundTask::Commit] {
            cache.step(task);
        }
        if synced.load(Ordering::Relaxed) {
            break;
        }
    }
}

#[test]
fn what_entered_before_nothing_is_written_directly_any_more_is_logged() {
    let machine = Machine::new(14);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    let change = ObjectChange::FileWrite { object: FILE, offset: 0, bytes: &[2; BLOCK_BYTES], size: PAGE };
    let mut entered =
        machine.wait(&cache, |then| cache.admit(TransactionCost::of(&[change]), then)).expect("space");
    cache.set_bypass_after(u64::MAX);
    machine.sync(&cache).expect("a buffer that works");
    cache.apply(&mut entered, &[change]).expect("space");
    machine.write(&cache, COPY, 0, &[3; 100]).expect("space");
    machine.wait(&cache, |then| cache.sync_object(COPY, then)).expect("a buffer that works");
    let cache = crash(&machine, cache);
    assert_eq!(bytes(&cache, 0, 0..4096), [2; BLOCK_BYTES], "a later change is there");
}

/// Grows the file by 16 pages, as a file system does that undoes its change of the size if it has to wait.
/// Returns whether the write is answered.
fn grow(cache: &Cache, size: &Arc<AtomicU64>, offset: u64) -> Arc<AtomicBool> {
    let bytes = vec![7; 16 * BLOCK_BYTES];
    let cost =
        TransactionCost::of(&[ObjectChange::FileWrite { object: FILE, offset, bytes: &bytes, size: offset }]);
    let size = size.clone();
    let answered = Arc::new(AtomicBool::new(false));
    let answer = answered.clone();
    let write = move |tx: &mut CacheTransaction<'_>| {
        let before = size.load(Ordering::Relaxed);
        tx.apply(&[ObjectChange::FileWrite { object: FILE, offset, bytes: &bytes, size: before }])?;
        size.fetch_max(offset + 16 * PAGE, Ordering::Relaxed);
        Ok::<_, CacheError>(())
    };
    cache.transact(cost, write, move |done| {
        done.expect("space");
        answer.store(true, Ordering::Relaxed);
    });
    answered
}

#[test]
fn file_that_grew_ends_before_its_first_lost_page_though_a_write_was_parked() {
    let machine = Machine::new(79);
    let cache = machine.open();
    let size = Arc::new(AtomicU64::new(0));
    let mut offset = 0;
    let parked = loop {
        let answered = grow(&cache, &size, offset);
        if !answered.load(Ordering::Relaxed) {
            break answered;
        }
        offset += 16 * PAGE;
    };
    let second = grow(&cache, &size, offset + 16 * PAGE);
    assert!(!second.load(Ordering::Relaxed), "it overtakes the parked one");
    while !parked.load(Ordering::Relaxed) {
        cache.step(BackgroundTask::WriteBack);
    }
    commit(&machine, &cache);
    let cache = crash(&machine, cache);
    let first_lost = cache.lost_tails().first().map(|&(_, page)| page);
    let is_cut = first_lost.is_some_and(|page| page.offset() <= offset);
    assert!(is_cut || bytes(&cache, offset / PAGE, 0..4) == [7; 4], "{first_lost:?}");
}

/// Writes a file of 200 times 16 pages in order, with `depth` writes under way. Returns how many pages
/// bypassed the buffer.
fn stream(depth: u64) -> u64 {
    let machine = Machine::new(77);
    let settings = CacheSettings {
        commit_inline_below: Duration::ZERO,
        bypass_after: 64 * PAGE,
        ..CacheSettings::default()
    };
    let store = Arc::new(Store::open(machine.store.clone()).expect("a sound store"));
    let cache = Cache::open(store, machine.buffer.clone(), machine.clock.clone(), settings);
    let cache = cache.expect("a sound buffer");
    let under_way = Arc::new(AtomicU64::new(0));
    let mut next = 0;
    while next < 200 || under_way.load(Ordering::Relaxed) > 0 {
        while next < 200 && under_way.load(Ordering::Relaxed) < depth {
            let bytes = vec![next as u8; 16 * BLOCK_BYTES];
            let offset = next * 16 * PAGE;
            let size = 200 * 16 * PAGE;
            let cost =
                TransactionCost::of(&[ObjectChange::FileWrite { object: FILE, offset, bytes: &bytes, size }]);
            let write = move |tx: &mut CacheTransaction<'_>| {
                tx.apply(&[ObjectChange::FileWrite { object: FILE, offset, bytes: &bytes, size }])
            };
            under_way.fetch_add(1, Ordering::Relaxed);
            let ended = under_way.clone();
            cache.transact(cost, write, move |done: Result<_, CacheError>| {
                done.expect("space");
                ended.fetch_sub(1, Ordering::Relaxed);
            });
            next += 1;
        }
        for task in BackgroundTask::ALL {
            let _ = cache.step(task);
        }
        machine.clock.advance(Duration::from_millis(1));
    }
    cache.status().counters.pages_bypassed
}

#[test]
fn stream_stays_one_however_many_writes_are_under_way() {
    assert_eq!([1, 2, 8, 32].map(stream), [196 * 16; 4]);
}

#[test]
fn write_reserves_what_its_pages_take() {
    let machine = Machine::new(78);
    let cache = machine.open();
    let changes = [ObjectChange::FileWrite { object: FILE, offset: 0, bytes: &[1; BLOCK_BYTES], size: 0 }];
    // As the file system states it.
    let cost = TransactionCost { pages: 6, bytes: 96 + 4096, records: 9, run: 3, ..TransactionCost::NONE };
    cache.try_transact(cost, |tx| tx.apply(&changes)).expect("space").expect("power");
    let counted = cache.store().space().now().reserved;
    assert_eq!(counted, cache.store_without_spare().space().now().reserved);
}

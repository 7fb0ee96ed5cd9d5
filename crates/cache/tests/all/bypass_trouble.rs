//! Bypassed pages while media fail, are put back or stand still, or while other clients stream.

use crate::common::Disks;
use crate::common::apply_at_once;
use crate::common::plain::Machine;
use crate::common::slow_disk::SlowDisk;
use cache::{BackgroundTask, Cache, CacheError, CacheSettings, ObjectChange, SpaceClaim, TransactionCost};
use device::{BLOCK_BYTES, Block, Device, ObjectId, PageNo, PageTransfer, VolumeId};
use sim_disk::{DiskFaults, SimClock};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;

const ALWAYS: DiskFaults =
    DiskFaults { write_one_in: 1, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };
const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER: ObjectId = VolumeId::MAIN.object(1 << 40, 1);
const THIRD: ObjectId = VolumeId::MAIN.object(9, 1);
const COPY: ObjectId = VolumeId::MAIN.object(1 << 20, 1);
const PAGE: u64 = BLOCK_BYTES as u64;

fn open(machine: &Machine) -> Cache {
    let settings = CacheSettings {
        commit_inline_below: Duration::ZERO,
        bypass_after: 0,
        sync_log_bytes_max: 0,
        ..CacheSettings::default()
    };
    machine.disks.open(machine.clock.clone(), settings).expect("sound media")
}

/// A machine with a buffer of 64 MiB, so that it is not half full so soon.
fn roomy(seed: u64) -> Machine {
    Machine { disks: Disks::new(seed, 65536, 16384, 256), clock: Arc::new(SimClock::new()) }
}

type Answer<T> = Arc<Mutex<Option<Result<T, CacheError>>>>;

fn ask<T: Send + 'static>(with: impl FnOnce(cache::CacheCompletion<T>)) -> Answer<T> {
    let slot: Answer<T> = Arc::default();
    let answer = slot.clone();
    with(Box::new(move |outcome| *answer.lock().expect("one thread") = Some(outcome)));
    slot
}

fn is_answered<T>(answer: &Answer<T>) -> bool {
    answer.lock().expect("one thread").is_some()
}

fn steps(machine: &Machine, cache: &Cache, count: usize) {
    for _ in 0..count {
        BackgroundTask::ALL.into_iter().for_each(|task| {
            cache.step(task);
        });
        machine.clock.advance(Duration::from_millis(10));
    }
}

fn bypassing(object: ObjectId, from: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::FileWrite { object, offset: from * PAGE, bytes, size: from * PAGE + bytes.len() as u64 }
}

fn stuck_sync(with_clone: bool) -> bool {
    let machine = Machine::new(1);
    let cache = open(&machine);
    machine.write(&cache, OTHER, 0, &[1; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    machine.store.set_faults(ALWAYS);
    if with_clone {
        machine.apply(&cache, &[ObjectChange::Transfer(PageTransfer::clone_of(OTHER, COPY))]).expect("space");
    }
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    let synced = ask(|then| cache.sync_object(FILE, then));
    steps(&machine, &cache, 60_000);
    is_answered(&synced)
}

#[test]
fn a_sync_that_waits_for_a_store_that_fails_is_answered() {
    assert!(stuck_sync(false));
}

#[test]
fn a_sync_that_waits_for_a_store_that_fails_is_answered_where_a_clone_comes_first() {
    assert!(stuck_sync(true), "ten minutes, and the buffer works");
}

#[test]
fn a_sync_that_waits_for_the_store_is_not_answered_by_an_older_state_of_its_page() {
    let machine = roomy(5);
    let slow = SlowDisk::of(&machine, Duration::ZERO, Duration::from_millis(1));
    let settings = CacheSettings {
        commit_inline_below: Duration::ZERO,
        bypass_after: 0,
        sync_log_bytes_max: 0,
        ..CacheSettings::default()
    };
    let store = Arc::new(Store::open(slow.clone()).expect("sound media"));
    let cache =
        Cache::open(store, machine.buffer.clone(), machine.clock.clone(), settings).expect("sound media");
    // Enough pages to be stored at once.
    machine.apply(&cache, &[bypassing(FILE, 0, &[1; 256 * BLOCK_BYTES])]).expect("space");
    // Meanwhile a page is written again, and the file is synced.
    let synced: Answer<()> = Arc::default();
    let writer = cache.clone();
    let answer = synced.clone();
    let mut is_first = true;
    slow.meanwhile(move || {
        if std::mem::take(&mut is_first) {
            let change = [bypassing(FILE, 0, &[2; BLOCK_BYTES])];
            apply_at_once(&writer, &change).expect("space").expect("sensible");
            let answer = answer.clone();
            let told = move |outcome| *answer.lock().expect("one thread") = Some(outcome);
            writer.sync_object(FILE, Box::new(told));
        }
    });
    cache.step(BackgroundTask::WriteBack);
    slow.alone();
    cache.step(BackgroundTask::Commit);
    assert!(!is_answered(&synced), "the store has what the page was before");
    cache.step(BackgroundTask::WriteBack);
    cache.step(BackgroundTask::Commit);
    assert!(is_answered(&synced));
    drop(cache);
    machine.crash();
    assert_eq!(open(&machine).read_now(FILE, 0, 10).expect("sound"), [2; 10]);
}

#[test]
fn a_sync_is_answered_when_somebody_else_logs_or_cuts_what_it_waits_for() {
    let part = ObjectChange::Write { object: FILE, offset: 10, bytes: &[3; 10] };
    let cut = ObjectChange::Zero { object: FILE, offset: 0, len: u64::MAX };
    for change in [part, cut] {
        let machine = Machine::new(1);
        let cache = open(&machine);
        machine.apply(&cache, &[bypassing(FILE, 0, &[2; BLOCK_BYTES])]).expect("space");
        let synced = ask(|then| cache.sync_object(FILE, then));
        machine.apply(&cache, &[change]).expect("space");
        steps(&machine, &cache, 100);
        assert!(is_answered(&synced), "{change:?}: {:?}", cache.status());
    }
}

#[test]
fn a_bypassing_write_that_finds_no_space_beside_others_is_told_where_a_clone_comes_first() {
    let machine = Machine::new(1);
    let cache = open(&machine);
    machine.write(&cache, OTHER, 0, &[1; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    machine.store.set_faults(ALWAYS);
    machine.apply(&cache, &[ObjectChange::Transfer(PageTransfer::clone_of(OTHER, COPY))]).expect("space");
    let bytes = vec![2; 40 * BLOCK_BYTES];
    machine.apply(&cache, &[bypassing(FILE, 0, &bytes)]).expect("space");
    let change = [bypassing(FILE, 40, &bytes)];
    let admitted = ask(|then| cache.admit(TransactionCost::of(&change), then));
    steps(&machine, &cache, 60_000);
    assert!(is_answered(&admitted), "{:?}", cache.status());
}

/// Where the store holds pages that consist of this byte.
fn places_of(machine: &Machine, byte: u8) -> Vec<Block> {
    let is_it = |&at: &Block| {
        let mut page = device::pages(1);
        machine.store.read(at, &mut page).is_ok() && page[0].0 == [byte; BLOCK_BYTES]
    };
    machine.store.written_blocks().into_iter().filter(is_it).collect()
}

#[test]
fn a_sync_of_what_a_stuck_clone_holds_back_is_answered_while_somebody_streams() {
    let source = FILE;
    let machine = roomy(3);
    let write = |cache: &Cache, object, page, byte| {
        machine.write(cache, object, page, &[byte; BLOCK_BYTES]).expect("space")
    };
    let cache = open(&machine);
    write(&cache, source, 2, 0xab);
    (1..6).for_each(|number| write(&cache, source, 20 * number, 1));
    (0..16).for_each(|_| machine.fill(&cache, OTHER).expect("space"));
    cache.drain().expect("devices that work");
    drop(cache);
    let cache = open(&machine);
    machine
        .apply(&cache, &[ObjectChange::Write { object: source, offset: 2 * PAGE, bytes: &[7; 10] }])
        .expect("space");
    cache.drain().expect("devices that work");
    machine.store.damage(places_of(&machine, 0xab)[0], sim_disk::BlockDamage::Unreadable);
    let transfer = PageTransfer::clone_range(source, PageNo(1)..PageNo(4), COPY, PageNo(1));
    machine.apply(&cache, &[ObjectChange::Transfer(transfer)]).expect("space");
    machine.apply(&cache, &[bypassing(COPY, 1, &[9; 2 * BLOCK_BYTES])]).expect("space");
    let synced = ask(|then| cache.sync_object(COPY, then));
    for round in 0..4000 {
        let bytes = [4; 2 * BLOCK_BYTES];
        let change = [bypassing(THIRD, 2 * (round % 100), &bytes)];
        // Some find no space.
        let _ = apply_at_once(&cache, &change);
        steps(&machine, &cache, 1);
        if is_answered(&synced) {
            return;
        }
    }
    panic!("nobody answered for 40 s while the buffer works: {:?}", cache.status());
}

#[test]
fn a_sync_that_waits_for_the_store_is_told_when_the_buffer_fails_as_it_grows() {
    let machine = Machine::new(1);
    let cache = open(&machine);
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    let synced = ask(|then| cache.sync_object(FILE, then));
    assert!(!is_answered(&synced));
    machine.buffer.set_faults(DiskFaults { write_one_in: 0, ..ALWAYS });
    cache.grow_buffer(Some(2048)).expect_err("a flush that fails");
    machine.buffer.set_faults(DiskFaults::default());
    let change = [ObjectChange::Write { object: OTHER, offset: 0, bytes: &[1; 10] }];
    let told = apply_at_once(&cache, &change).expect("it waits for nothing");
    told.expect_err("the buffer has failed");
    steps(&machine, &cache, 60_000);
    assert!(is_answered(&synced), "{:?}", cache.status());
}

#[test]
fn what_bypassed_the_buffer_is_durable_after_a_while() {
    let machine = Machine::new(1);
    let cache = open(&machine);
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; 4 * BLOCK_BYTES])]).expect("space");
    steps(&machine, &cache, 25_000);
    drop(cache);
    machine.crash();
    let cache = open(&machine);
    assert_eq!(cache.read_now(FILE, 0, 10).expect("sound"), [2; 10], "after 250 s");
}

/// For each block that the store wrote since: the machine as it is, with that block unreadable.
fn with_one_unreadable<'a>(
    machine: &'a Machine,
    before: &'a [Block],
) -> impl Iterator<Item = (Block, Machine)> + 'a {
    let after = machine.store.written_blocks().into_iter();
    after.filter(|at| !before.contains(at)).map(|at| {
        let store = machine.store.fork(&machine.power, 3);
        store.damage(at, sim_disk::BlockDamage::Unreadable);
        let buffer = machine.buffer.fork(&machine.power, 3);
        let disks = Disks { power: machine.power.clone(), store, buffer };
        (at, Machine { disks, clock: machine.clock.clone() })
    })
}

/// The page after a start. `None`: the start was refused.
fn found(machine: &Machine, store: Arc<dyn Device>) -> Option<Result<u8, CacheError>> {
    let cache = machine.open_on(store, machine.buffer.clone()).ok()?;
    Some(cache.read_now(FILE, 0, 1).map(|bytes| bytes[0]))
}

#[test]
fn a_store_whose_last_block_cannot_be_read_is_refused_where_a_sync_relied_on_it() {
    let machine = Machine::new(7);
    let cache = open(&machine);
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    let before = machine.store.written_blocks();
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_object(FILE, then)).expect("disks that work");
    assert_eq!(cache.status().counters.pages_logged_late, 0, "the store has it");
    std::mem::forget(cache);
    for (at, other) in with_one_unreadable(&machine, &before) {
        match found(&other, other.store.clone()) {
            None | Some(Ok(2) | Err(_)) => {}
            Some(Ok(byte)) => {
                panic!("block {at:?} is damaged, and nobody says so: {byte} is read, 2 was synced")
            }
        }
    }
}

#[test]
fn a_store_that_was_put_back_is_refused_where_a_sync_relied_on_it() {
    let machine = Machine::new(7);
    let cache = open(&machine);
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    let older = machine.store.fork(&machine.power, 9);
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_object(FILE, then)).expect("disks that work");
    std::mem::forget(cache);
    match found(&machine, older) {
        None => {}
        Some(read) => panic!("it is mounted, and {read:?} is read, 2 was synced"),
    }
}

#[test]
fn a_sync_of_what_is_stored_already_has_the_buffer_name_the_store_s_batch() {
    let machine = Machine::new(7);
    let cache = open(&machine);
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    let older = machine.store.fork(&machine.power, 9);
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    let stored = || cache.status().counters.pages_stored;
    let before = stored();
    let first = ask(|then| cache.sync_object(FILE, then));
    cache.step(BackgroundTask::WriteBack);
    assert_eq!((stored(), is_answered(&first)), (before + 1, false), "it waits for a commit");
    machine.wait(&cache, |then| cache.sync_object(FILE, then)).expect("disks that work");
    std::mem::forget(cache);
    assert!(found(&machine, older).is_none(), "it is mounted without what was synced");
}

#[test]
fn a_store_whose_last_block_cannot_be_read_is_refused_where_a_later_record_relied_on_it() {
    let machine = Machine::new(7);
    let cache = machine.open();
    // Before all that, the page is in the log only.
    machine.write(&cache, OTHER, 0, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    machine.write(&cache, THIRD, 0, &[1; 100]).expect("space");
    machine.sync(&cache).expect("disks that work");
    let before = machine.store.written_blocks();
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; 40 * BLOCK_BYTES])]).expect("space");
    cache.step(BackgroundTask::WriteBack);
    assert_eq!(cache.status().counters.pages_stored, 40 + 1);
    machine
        .apply(&cache, &[ObjectChange::Write { object: FILE, offset: 0, bytes: &[3; 100] }])
        .expect("space");
    machine.sync(&cache).expect("disks that work");
    std::mem::forget(cache);
    for (at, other) in with_one_unreadable(&machine, &before) {
        let Ok(cache) = other.try_open() else { continue };
        let Ok(bytes) = cache.read_now(FILE, 0, 200) else { continue };
        let torn = (bytes[0], bytes[199]);
        assert!(torn == (3, 2) || torn == (3, 1), "block {at:?} is damaged, and nobody says so: {torn:?}");
    }
}

#[test]
fn a_start_asks_a_store_again_that_cannot_be_read_once() {
    let machine = Machine::new(46);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[7; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    machine.write(&cache, FILE, 0, &[1; BLOCK_BYTES]).expect("space");
    machine.apply(&cache, &[bypassing(FILE, 0, &[2; BLOCK_BYTES])]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let store = Arc::new(store::Store::open(machine.store.clone()).expect("sound"));
    let recovered =
        cache::RecoveredBuffer::read(machine.buffer.clone(), store.id(), &*machine.clock).expect("sound");
    machine.store.set_faults(DiskFaults { once_after: Some(0), ..DiskFaults::default() });
    let begun = Cache::begin(store, recovered, machine.clock, CacheSettings::default());
    assert!(begun.is_ok(), "{:?}", begun.err());
}

#[test]
fn a_sync_is_told_when_the_buffer_has_failed_as_it_grew_and_somebody_wrote_before_the_committer_came() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.write(&cache, FILE, 0, &[1; 10]).expect("space");
    machine.buffer.set_faults(DiskFaults { write_one_in: 0, ..ALWAYS });
    cache.grow_buffer(Some(2048)).expect_err("a flush that fails");
    machine.buffer.set_faults(DiskFaults::default());
    let synced = ask(|then| cache.sync(then));
    let change = [ObjectChange::Write { object: OTHER, offset: 0, bytes: &[1; 10] }];
    let told = apply_at_once(&cache, &change).expect("it waits for nothing");
    told.expect_err("the buffer has failed");
    steps(&machine, &cache, 60_000);
    assert!(is_answered(&synced), "{:?}", cache.status());
}

#[test]
fn what_bypassed_the_buffer_can_be_logged_when_the_buffer_is_full() {
    let machine = Machine::new(1);
    let cache = machine.open();
    let bytes = vec![2; 30 * BLOCK_BYTES];
    machine.apply(&cache, &[bypassing(FILE, 0, &bytes)]).expect("space");
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("a buffer that works");
    // Other pages fill it, each with a commit of its own; nothing is written back.
    for page in 0.. {
        let change = [ObjectChange::Write { object: OTHER, offset: page * PAGE, bytes: &[1; BLOCK_BYTES] }];
        let mut cost = TransactionCost::of(&change);
        cost.claim = SpaceClaim::Frees;
        let Some(applied) = cache.try_transact(cost, |tx| tx.apply(&change)) else { break };
        applied.expect("sound disks");
        cache.step(BackgroundTask::Commit);
        let done = ask(|then| cache.sync_logged(then));
        (0..4).for_each(|_| _ = cache.step(BackgroundTask::Commit));
        assert!(is_answered(&done));
    }
    let synced = ask(|then| cache.sync_object(FILE, then));
    (0..4).for_each(|_| _ = cache.step(BackgroundTask::Commit));
    let answer = synced.lock().expect("one thread").take();
    assert!(matches!(answer, Some(Ok(()))), "{answer:?} {:?}", cache.status().failed);
    assert_eq!(cache.status().counters.pages_logged_late, 30);
}

#[test]
fn what_is_lost_stays_so_while_the_log_goes_on_behind_it() {
    let machine = Machine::new(4);
    let cache = machine.open();
    let bytes = vec![2; 3 * BLOCK_BYTES];
    machine
        .apply(&cache, &[ObjectChange::FileWrite { object: FILE, offset: 0, bytes: &bytes, size: 0 }])
        .expect("space");
    let done = ask(|then| cache.sync_logged(then));
    (0..4).for_each(|_| _ = cache.step(BackgroundTask::Commit));
    assert!(is_answered(&done));
    drop(cache);
    machine.crash();
    let cache = machine.open();
    assert_eq!(cache.lost_tails(), [(FILE, PageNo(0))]);
    for round in 0..4 {
        (0..16).for_each(|page| {
            machine.write(&cache, OTHER, 8 * page, &[round; 8 * BLOCK_BYTES]).expect("space")
        });
        cache.drain().expect("disks that work");
    }
    drop(cache);
    machine.crash();
    assert_eq!(machine.open().lost_tails(), [(FILE, PageNo(0))]);
}

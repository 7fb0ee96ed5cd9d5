//! Who waits, for what, and for how long: the last waits of a millisecond and more.

use crate::common::plain::Machine;
use cache::{
    BackgroundTask, Cache, CacheError, EndedWait, ObjectChange, RequestWait, SyncScope, TaskLoan,
    TransactionCost, WaitCause,
};
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use request::{LendingLevel, Origin, RequestClass, RequestKind};
use std::time::Duration;

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const PAGES: [u8; 4 * BLOCK_BYTES] = [3; 4 * BLOCK_BYTES];
const WRITER: Origin = Origin { task: 7, kind: RequestKind::Write, file: 5, ..Origin::UNMATCHED };
const BACKUP: Origin = Origin { task: 8, rule: 3, class: RequestClass::Background, ..WRITER };

fn write(offset: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::FileWrite { object: FILE, offset, bytes, size: 1 << 30 }
}

/// A part of a page, which is logged.
fn part(page: u64) -> ObjectChange<'static> {
    write(page * BLOCK_BYTES as u64, &[1; 2048])
}

/// Writes a part of a page. Returns whether that waits.
fn waits_to_write(cache: &Cache, origin: Origin, page: u64) -> bool {
    let before = cache.waits().waiting.len();
    let cost = TransactionCost::of(&[part(page)]).by(origin);
    cache.transact(
        cost,
        move |tx| tx.apply(&[part(page)]),
        |done: Result<_, CacheError>| {
            done.expect("space");
        },
    );
    cache.waits().waiting.len() > before
}

fn only(waits: &[EndedWait]) -> EndedWait {
    assert_eq!(waits.len(), 1, "{waits:?}");
    waits[0]
}

#[test]
fn writers_wait_for_space_in_the_buffer_and_behind_each_other() {
    let machine = Machine::new(1);
    let cache = machine.open_under_policy();
    let began = cache.waits().now;
    let first = (0..).find(|&page| waits_to_write(&cache, WRITER, page)).expect("the buffer has an end");
    assert!(waits_to_write(&cache, BACKUP, first + 1));
    let wait = |origin, cause| RequestWait { origin, cause, since: began, lent_for: None };
    let waiting = cache.waits().waiting;
    assert_eq!(waiting, [wait(WRITER, WaitCause::BufferSpace), wait(BACKUP, WaitCause::EarlierRequest)]);
    assert_eq!(cache.waits().ended, []);
    machine.clock.advance(Duration::from_millis(30));
    machine.sync(&cache).expect("a buffer");
    for _ in 0..100 {
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
    }
    let waits = cache.waits();
    assert_eq!(waits.waiting, []);
    let writer = waits.ended.iter().find(|ended| ended.wait.origin == WRITER).expect("it waited");
    assert_eq!(writer.wait.cause, WaitCause::BufferSpace);
    assert!(writer.took >= Duration::from_millis(30));
    assert!(waits.ended.iter().any(|ended| ended.wait.origin == BACKUP));
}

#[test]
fn the_first_writer_of_a_queue_waits_for_no_other() {
    let machine = Machine::new(5);
    let cache = machine.open_under_policy();
    let first = (0..).find(|&page| waits_to_write(&cache, WRITER, page)).expect("the buffer has an end");
    let all = 2 * first as usize;
    (1..all as u64).for_each(|page| assert!(waits_to_write(&cache, WRITER, first + page)));
    let mut later_ones = 0;
    for _ in 0..100_000 {
        for task in BackgroundTask::ALL {
            cache.step(task);
        }
        machine.clock.advance(Duration::from_millis(1));
        let waiting = cache.waits().waiting;
        let Some(head) = waiting.first() else { break };
        assert_ne!(head.cause, WaitCause::EarlierRequest);
        later_ones += usize::from(waiting.len() < all);
    }
    assert_eq!(cache.waits().waiting, []);
    assert!(later_ones > 0, "they waited longer than the first one");
}

#[test]
fn a_sync_waits_for_a_commit_and_only_a_long_wait_is_kept() {
    let machine = Machine::new(2);
    let cache = machine.open_under_policy();
    for (millis, kept) in [(0, 0), (5, 1)] {
        machine.apply(&cache, &[part(millis)]).expect("space");
        let before = cache.waits().ended.len();
        cache.sync_for(WRITER, SyncScope::All, Box::new(|synced| synced.expect("a buffer")));
        machine.clock.advance(Duration::from_millis(millis));
        cache.step(BackgroundTask::Commit);
        assert_eq!(cache.waits().ended.len() - before, kept);
    }
    let ended = only(&cache.waits().ended);
    assert_eq!((ended.wait.cause, ended.took), (WaitCause::Commit, Duration::from_millis(5)));
}

#[test]
fn a_lent_sync_tells_for_whom() {
    let machine = Machine::new(3);
    let cache = machine.open_under_policy();
    machine.apply(&cache, &[write(0, &PAGES)]).expect("space");
    cache.sync_for(BACKUP, SyncScope::Object(FILE), Box::new(|synced| synced.expect("a buffer")));
    assert_eq!(
        cache.waits().waiting.iter().map(|wait| wait.cause).collect::<Vec<_>>(),
        [WaitCause::WriteBack]
    );
    machine.clock.advance(Duration::from_millis(3));
    assert!(cache.lend(TaskLoan { to: BACKUP.task, lent_for: WRITER.task }, LendingLevel::AdmissionAndSync));
    cache.step(BackgroundTask::Commit);
    let ended = only(&cache.waits().ended);
    assert_eq!((ended.wait.cause, ended.wait.lent_for), (WaitCause::WriteBack, Some(WRITER.task)));
    assert_eq!(ended.wait.origin, BACKUP, "the class that the rules gave");
}

#[test]
fn a_read_waits_for_a_page_from_the_store() {
    let machine = Machine::new(4);
    let cache = machine.open_under_policy();
    machine.apply(&cache, &[write(0, &PAGES)]).expect("space");
    cache.drain().expect("sound media");
    drop(cache);
    let cache = machine.open_under_policy();
    let reader = Origin { kind: RequestKind::Read, ..WRITER };
    cache.read_for(
        reader,
        (FILE, 0, 100),
        0,
        Box::new(|bytes| assert_eq!(bytes.expect("sound media"), [3; 100])),
    );
    assert_eq!(cache.waits().waiting.len(), 1);
    machine.clock.advance(Duration::from_millis(2));
    cache.step(BackgroundTask::Fetch);
    let ended = only(&cache.waits().ended);
    assert_eq!((ended.wait.origin, ended.wait.cause), (reader, WaitCause::StoredPage));
}

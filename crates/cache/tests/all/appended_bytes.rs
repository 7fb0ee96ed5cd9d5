//! Every byte that the cache appends to the buffer is counted once, with its cause.

use crate::common::plain::Machine;
use cache::{AppendCause, BackgroundTask, Cache, ObjectChange, SyncScope, TaskLoan};
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use request::{LendingLevel, Origin, RequestClass};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const NAMES: ObjectId = VolumeId::MAIN.object(0, 1);
const PAGES: [u8; 4 * BLOCK_BYTES] = [3; 4 * BLOCK_BYTES];

fn write(offset: u64, bytes: &[u8]) -> ObjectChange<'_> {
    ObjectChange::FileWrite { object: FILE, offset, bytes, size: 1 << 30 }
}

fn of(cache: &Cache, cause: AppendCause) -> u64 {
    let appended = cache.status().counters.appended;
    assert_eq!(appended.total(), cache.buffer().counters().bytes_appended);
    appended.of(cause)
}

/// Runs `work`, and returns the bytes that it appended for `cause`.
fn appended_by(cache: &Cache, cause: AppendCause, work: impl FnOnce()) -> u64 {
    let before = of(cache, cause);
    work();
    of(cache, cause) - before
}

#[test]
fn every_byte_has_the_cause_of_its_change() {
    let machine = Machine::new(1);
    let cache = machine.open_under_policy();
    let apply = |changes: &[ObjectChange<'_>]| machine.apply(&cache, changes).expect("space");
    let pages = PAGES.len() as u64..PAGES.len() as u64 + 500;
    let name = ObjectChange::Write { object: NAMES, offset: 0, bytes: &[1; 300] };
    let named = appended_by(&cache, AppendCause::Metadata, || apply(&[name]));
    assert!((300..400).contains(&named), "{named}");
    let part = appended_by(&cache, AppendCause::PartOfPage, || apply(&[write(100, &[2; 300]), name]));
    assert!((300..400).contains(&part), "{part}");
    apply(&[write(0, &PAGES)]);
    assert_eq!(of(&cache, AppendCause::Sync) + of(&cache, AppendCause::WholePage), 0, "they bypass");
    let synced = appended_by(&cache, AppendCause::Sync, || machine.sync(&cache).expect("a buffer"));
    assert!(pages.contains(&synced), "{synced}");
    apply(&[write(0, &PAGES)]);
    let renamed = [ObjectChange::LogBypassed { object: FILE }, name];
    let renamed = appended_by(&cache, AppendCause::Metadata, || apply(&renamed));
    assert!((pages.start + 300..pages.end + 400).contains(&renamed), "{renamed}");
    apply(&[write(0, &PAGES)]);
    let torn = appended_by(&cache, AppendCause::WholePage, || apply(&[write(100, &[2; 300])]));
    assert!((4096..4200).contains(&torn), "the page must be logged before its part: {torn}");
    machine.sync(&cache).expect("a buffer");
    cache.set_bypass_after(u64::MAX);
    let whole = appended_by(&cache, AppendCause::WholePage, || apply(&[write(1 << 20, &PAGES)]));
    assert!(pages.contains(&whole), "{whole}");
}

#[test]
fn the_pages_of_a_lent_sync_are_told_from_those_of_others() {
    let machine = Machine::new(2);
    let cache = machine.open_under_policy();
    machine.apply(&cache, &[write(0, &PAGES)]).expect("space");
    let background = Origin { task: 7, class: RequestClass::Background, ..Origin::UNMATCHED };
    cache.sync_for(background, SyncScope::Object(FILE), Box::new(|_| {}));
    let lent = appended_by(&cache, AppendCause::LentSync, || {
        assert!(cache.lend(TaskLoan { to: 7, lent_for: 9 }, LendingLevel::AdmissionAndSync));
    });
    assert!(lent > PAGES.len() as u64);
    assert_eq!(of(&cache, AppendCause::Sync), 0);
}

#[test]
fn a_page_that_is_written_again_and_again_is_relogged() {
    let machine = Machine::new(3);
    let cache = machine.open();
    for round in 0..4000 {
        let hot = ObjectChange::Write { object: NAMES, offset: 0, bytes: &[round as u8; 100] };
        let other = ObjectChange::Write { object: FILE, offset: round << 12, bytes: &[1; 2000] };
        machine.apply(&cache, &[hot, other]).expect("space");
        if round % 100 == 0 {
            cache.step(BackgroundTask::Commit);
            cache.step(BackgroundTask::WriteBack);
        }
    }
    assert!(cache.status().counters.pages_relogged > 0);
    assert!(of(&cache, AppendCause::Relogged) > 0);
}

//! Bytes in the buffer count for the rule of the request that has them appended.

use crate::common::plain::Machine;
use cache::{BackgroundTask, Cache, CacheError, ObjectChange, SyncScope, TaskLoan, TransactionCost};
use device::{BLOCK_BYTES, ObjectId, VolumeId};
use request::{LendingLevel, Origin, RequestClass, RuleSet};
use std::sync::Arc;

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const PAGES: [u8; 4 * BLOCK_BYTES] = [3; 4 * BLOCK_BYTES];
const RULED: Origin = Origin { task: 7, rule: 0, ..Origin::UNMATCHED };
const BACKUP: Origin = Origin { task: 8, class: RequestClass::Background, ..RULED };

fn open(machine: &Machine) -> Cache {
    let cache = machine.open_under_policy();
    cache.set_rules(Arc::new(RuleSet::parse("critical share=50%").expect("a rule")));
    cache
}

fn counted(cache: &Cache) -> u64 {
    cache.rule_shares()[0].bytes
}

fn write(cache: &Cache, bytes: &'static [u8]) {
    let change = || ObjectChange::FileWrite { object: FILE, offset: 0, bytes, size: 1 << 30 };
    let cost = TransactionCost::of(&[change()]).by(RULED);
    let then = |done: Result<_, CacheError>| {
        done.expect("space");
    };
    cache.transact(cost, move |tx| tx.apply(&[change()]), then);
}

#[test]
fn synced_pages_count_for_the_rule_of_the_sync() {
    let machine = Machine::new(1);
    let cache = open(&machine);
    write(&cache, &PAGES);
    let named = counted(&cache);
    assert!((1..200).contains(&named), "{named}: the bytes bypass");
    cache.sync_for(RULED, SyncScope::Object(FILE), Box::new(|synced| synced.expect("a buffer")));
    assert_eq!(counted(&cache) - named, PAGES.len() as u64);
}

#[test]
fn pages_of_a_lent_sync_count_for_no_rule() {
    let machine = Machine::new(2);
    let cache = open(&machine);
    write(&cache, &PAGES);
    let named = counted(&cache);
    cache.sync_for(BACKUP, SyncScope::Object(FILE), Box::new(|synced| synced.expect("a buffer")));
    let loan = TaskLoan { to: BACKUP.task, lent_for: 1 };
    assert!(cache.lend(loan, LendingLevel::AdmissionAndSync));
    assert!(cache.status().counters.pages_logged_late > 0);
    assert_eq!(counted(&cache), named);
    cache.step(BackgroundTask::Commit);
}

#[test]
fn stored_bytes_leave_the_count() {
    let machine = Machine::new(3);
    let cache = open(&machine);
    write(&cache, &[3; 100]);
    assert!(counted(&cache) > 100);
    cache.drain().expect("disks that work");
    assert_eq!(counted(&cache), 0);
}

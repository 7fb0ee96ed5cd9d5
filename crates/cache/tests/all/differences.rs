//! Writes over pages that memory has whole: only what differs is logged.

use crate::common::plain::Machine;
use buffer::LogRecord;
use cache::{Cache, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, StoreId, VolumeId};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const PAGE: u64 = BLOCK_BYTES as u64;

fn write(machine: &Machine, cache: &Cache, bytes: &[u8]) {
    let change = ObjectChange::FileWrite { object: FILE, offset: 0, bytes, size: 4 * PAGE };
    machine.apply(cache, &[change]).expect("space");
}

/// Lengths of the records of writes in the log, after a crash.
fn logged_lengths(machine: &Machine, cache: Cache) -> Vec<usize> {
    drop(cache);
    machine.crash();
    let mut lengths = Vec::new();
    let recovered = buffer::Buffer::open(machine.buffer.clone(), StoreId([7; 16]), &mut |transactions| {
        for record in transactions.iter().flat_map(|transaction| transaction.records) {
            if let LogRecord::Write { bytes, .. } = record {
                lengths.push(bytes.len());
            }
        }
    });
    recovered.expect("a sound buffer");
    lengths
}

fn open(machine: &Machine) -> Cache {
    let cache = machine.open();
    cache.set_bypass_after(u64::MAX);
    cache
}

#[test]
fn a_page_that_is_written_again_is_logged_from_its_first_difference_to_its_last() {
    let machine = Machine::new(1);
    let cache = open(&machine);
    let mut bytes = vec![1; 2 * BLOCK_BYTES];
    write(&machine, &cache, &bytes);
    bytes[100] = 2;
    bytes[130] = 2;
    write(&machine, &cache, &bytes);
    machine.sync(&cache).expect("a buffer that works");
    let lengths = logged_lengths(&machine, cache);
    assert_eq!(lengths, [4096, 4096, 31, 1]);
    let cache = open(&machine);
    assert_eq!(cache.read_now(FILE, 0, 2 * BLOCK_BYTES).unwrap(), bytes);
}

#[test]
fn a_bypassed_page_is_overwritten_whole() {
    let machine = Machine::new(2);
    let cache = machine.open();
    write(&machine, &cache, &[1; BLOCK_BYTES]);
    assert_eq!(cache.status().counters.pages_bypassed, 1);
    cache.set_bypass_after(u64::MAX);
    let mut bytes = vec![1; BLOCK_BYTES];
    bytes[9] = 2;
    let change = ObjectChange::FileWrite { object: FILE, offset: 0, bytes: &bytes, size: 4 * PAGE };
    let logged = crate::common::apply_at_once(&cache, &[change]).expect("space");
    logged.expect("space");
    assert_eq!(cache.status().counters.pages_logged_late, 0);
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let cache = open(&machine);
    assert_eq!(cache.read_now(FILE, 0, BLOCK_BYTES).unwrap(), bytes);
}

#[test]
fn a_write_is_not_compared_with_what_its_transaction_changes() {
    let machine = Machine::new(3);
    let cache = open(&machine);
    write(&machine, &cache, &[1; BLOCK_BYTES]);
    let zero = ObjectChange::Zero { object: FILE, offset: 0, len: PAGE };
    let again = ObjectChange::FileWrite { object: FILE, offset: 0, bytes: &[1; BLOCK_BYTES], size: 4 * PAGE };
    machine.apply(&cache, &[zero, again]).expect("space");
    machine.sync(&cache).expect("a buffer that works");
    drop(cache);
    machine.crash();
    let cache = open(&machine);
    assert_eq!(cache.read_now(FILE, 0, BLOCK_BYTES).unwrap(), [1; BLOCK_BYTES]);
}

#[test]
fn a_page_that_is_stored_is_logged_as_a_whole_again() {
    let machine = Machine::new(4);
    let cache = open(&machine);
    let mut bytes = vec![1; BLOCK_BYTES];
    write(&machine, &cache, &bytes);
    cache.drain().expect("sound disks");
    bytes[9] = 2;
    write(&machine, &cache, &bytes);
    machine.sync(&cache).expect("a buffer that works");
    // The block in the store may be damaged by now: the log does not need it.
    assert_eq!(logged_lengths(&machine, cache).last(), Some(&4096));
}

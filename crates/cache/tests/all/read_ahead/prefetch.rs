//! Fetching behind writes, in adaptive mode: once a read had to wait for the rest of a partial page, the next such pages of its file
//! are there before they are read.

use super::machine::*;
use cache::{Cache, ObjectChange};
use device::BLOCK_BYTES;
use sim_disk::DiskFaults;

const PART: usize = 100;
/// As many as one read earns.
const EARNED: u64 = 8;

/// Overwrites the beginning of pages.
fn write_parts(cache: &Cache, pages: std::ops::Range<u64>) {
    pages.for_each(|page| {
        change(cache, ObjectChange::Write { object: FILE, offset: page * PAGE, bytes: &[7; PART] })
    });
}

fn expected(page: u64) -> Vec<u8> {
    [vec![7; PART], vec![byte(FILE, page); BLOCK_BYTES - PART]].concat()
}

fn fetched_behind(machine: &Machine) -> u64 {
    machine.cache.status().counters.fetched_in_background
}

/// A machine whose file has earned fetches: page 0 was written in part, and read.
fn read_once() -> Machine {
    let machine = Machine::new(512 << 20);
    write_parts(&machine.cache, 0..1);
    machine.fetch_all();
    assert_eq!(fetched_behind(&machine), 0, "nobody has read");
    assert!(read(&machine.cache, FILE, 0, 1) == expected(0));
    machine
}

#[test]
fn pages_of_a_file_that_is_read_are_there_before_they_are_read() {
    let machine = read_once();
    write_parts(&machine.cache, 10..30);
    machine.fetch_all();
    assert_eq!(fetched_behind(&machine), EARNED);
    let parked = machine.cache.status().counters.reads_parked;
    for page in 10..10 + EARNED {
        assert!(read(&machine.cache, FILE, page, 1) == expected(page), "page {page}");
    }
    assert_eq!(machine.cache.status().counters.reads_parked, parked, "none waited");
    assert!(read(&machine.cache, FILE, 29, 1) == expected(29));
    assert_eq!(machine.cache.status().counters.reads_parked, parked + 1, "this one did");
}

#[test]
fn an_error_behind_a_write_is_told_to_nobody_and_a_read_fetches_again() {
    let machine = read_once();
    machine.disks.store.set_faults(DiskFaults { read_one_in: 1, ..DiskFaults::default() });
    write_parts(&machine.cache, 10..12);
    machine.fetch_all();
    machine.disks.store.set_faults(DiskFaults::default());
    assert_eq!(fetched_behind(&machine), 0);
    for page in 10..12 {
        assert!(read(&machine.cache, FILE, page, 1) == expected(page), "page {page}");
    }
}

#[test]
fn pages_that_change_while_they_are_fetched_behind_a_write_are_right() {
    let machine = read_once();
    write_parts(&machine.cache, 10..14);
    let cache = machine.cache.clone();
    let meddling: Meddling = Box::new(move || {
        write(&cache, FILE, 10, 9);
        change(&cache, ObjectChange::Zero { object: FILE, offset: 11 * PAGE, len: PAGE });
        change(&cache, ObjectChange::Write { object: FILE, offset: 12 * PAGE + 50, bytes: &[8; PART] });
        cache.drain().expect("sound media");
    });
    *machine.meddling.lock().expect("one thread") = Some(meddling);
    machine.step();
    *machine.meddling.lock().expect("one thread") = None;
    machine.fetch_all();
    let overlapped = [vec![7; 50], vec![8; PART], vec![byte(FILE, 12); BLOCK_BYTES - 50 - PART]].concat();
    let right = [vec![9; BLOCK_BYTES], vec![0; BLOCK_BYTES], overlapped, expected(13)].concat();
    assert!(read(&machine.cache, FILE, 10, 4) == right);
}

//! Bugs planted on purpose: the model finds each within 12,000 operations (10 seeds of 20 rounds of 60), but that of a larger ring.

use crate::growth_failures::found_by_one_slot;
use crate::model::{ID, Opened, Plan, Run, Transaction};
use buffer::{Buffer, BufferBug};
use device::Device;
use sim_disk::DiskFaults;
use std::sync::Arc;

fn open_with(device: Arc<dyn Device>, bug: BufferBug) -> Opened {
    let mut found = Vec::new();
    let replay = &mut |replayed: &[buffer::ReplayedTransaction<'_>]| {
        found.extend(replayed.iter().map(Transaction::of))
    };
    let buffer = Buffer::open_with_bug(device, ID, replay, bug)?;
    Ok((buffer, found))
}

/// The seed, below `seeds`, at which the model finds the bug, and what it says.
fn found(seeds: u64, opener: fn(Arc<dyn Device>) -> Opened) -> Option<(u64, String)> {
    (0..seeds).find_map(|seed| {
        let plan = Plan { seed, rounds: 20, operations: 60, faults: DiskFaults::default() };
        Run::new(seed, 256, opener).go(&plan).err().map(|broken| (seed, broken))
    })
}

#[test]
fn a_torn_group_that_is_applied_is_found() {
    let found = found(10, |device| open_with(device, BufferBug::TornGroupApplied));
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn a_stale_incarnation_that_is_replayed_is_found() {
    let found = found(10, |device| open_with(device, BufferBug::StaleIncarnation));
    println!("{found:?}");
    assert!(found.is_some());
}

#[test]
fn a_larger_ring_that_one_slot_names_is_found() {
    let opener = |disk| open_with(disk, BufferBug::LargerInOneSlot).expect("a buffer").0;
    let found = [1, 2].map(|slot| found_by_one_slot(slot, opener));
    println!("{found:?}");
    assert_ne!(found, [Some(400); 2]);
}

#[test]
fn a_missing_flush_is_found() {
    let found = found(10, |device| open_with(device, BufferBug::MissingFlush));
    println!("{found:?}");
    assert!(found.is_some());
}

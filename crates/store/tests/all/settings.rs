//! Settings that are changed while the store is in use, on disks that fail: a refused setting is not found
//! after a crash.

use crate::common::*;
use device::{Block, Device, Lsn, PageNo};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::sync::Arc;
use store::{DataMode, Store, StoreChange, StoreError, VolumeId};

const BOTH: [DataMode; 2] = [DataMode::Journal, DataMode::Ordered];

fn other(order: DataMode) -> DataMode {
    if order == DataMode::Journal { DataMode::Ordered } else { DataMode::Journal }
}

fn change(store: &Store, order: DataMode) -> Result<(), StoreError> {
    let mut settings = store.settings();
    settings.data = Some(order);
    store.change_settings(settings)
}

/// A store with this order in both roots.
fn with_order(seed: u64, order: DataMode) -> (Arc<PowerSupply>, Arc<SimDisk>, Store) {
    let (power, disk, store) = fresh(120, seed);
    change(&store, order).expect("no faults");
    (power, disk, store)
}

fn after_a_crash(
    (power, disk, store): (Arc<PowerSupply>, Arc<SimDisk>, Store),
) -> (Arc<SimDisk>, Option<DataMode>) {
    drop(store);
    disk.set_faults(DiskFaults::default());
    power.cut();
    disk.crash();
    power.restore();
    let order = open(&disk).expect("it opens").settings().data;
    (disk, order)
}

/// The setting that the store finds without the newer root.
fn from_the_older_root(disk: &SimDisk) -> Option<DataMode> {
    let generation = |at: u64| {
        let mut root = device::pages(1);
        disk.read(Block(at), &mut root).expect("no faults");
        u64::from_le_bytes(root[0].0[32..40].try_into().expect("8 bytes"))
    };
    let newer = if generation(1) > generation(2) { 1 } else { 2 };
    let fork = disk.fork(&PowerSupply::new(), 1);
    fork.rot(Block(newer), 77);
    open(&fork).expect("from the other root").settings().data
}

#[test]
fn both_roots_have_what_was_changed() {
    for order in BOTH {
        let (disk, found) = after_a_crash(with_order(1, order));
        assert_eq!([found, from_the_older_root(&disk)], [Some(order); 2]);
    }
}

#[test]
fn a_change_that_meets_an_error_is_made_and_found_or_refused_and_not_found() {
    for before in BOTH {
        let (mut made, mut refused) = (0, 0);
        for after in 0..30 {
            let made_one = with_order(after, before);
            made_one.1.set_faults(DiskFaults { once_after: Some(after), ..DiskFaults::default() });
            let outcome = change(&made_one.2, other(before));
            let expected = Some(if outcome.is_ok() { other(before) } else { before });
            assert_eq!(made_one.2.settings().data, expected, "the fault after {after}: {outcome:?}");
            let (_, found) = after_a_crash(made_one);
            assert_eq!(found, expected, "the fault after {after}: {outcome:?}");
            *(if outcome.is_ok() { &mut made } else { &mut refused }) += 1;
        }
        assert!(made > 0 && refused > 0, "{made} made, {refused} refused");
    }
}

#[test]
fn where_the_device_goes_on_failing_both_roots_agree_before_anything_else_is_acknowledged() {
    let (mut made, mut refused) = (0, 0);
    for seed in 0..60 {
        let before = BOTH[seed as usize % 2];
        let (power, disk, store) = with_order(seed, before);
        disk.set_faults(DiskFaults { write_one_in: 12, flush_one_in: 3, ..DiskFaults::default() });
        let outcome = change(&store, other(before));
        disk.set_faults(DiskFaults::default());
        let expected = Some(if outcome.is_ok() { other(before) } else { before });
        assert_eq!(store.settings().data, expected, "seed {seed}: {outcome:?}");
        let (object, bytes) = (VolumeId::MAIN.object(1, 1), page(1));
        let write = StoreChange::Write { object, page: PageNo(0), bytes, page_lsn: Lsn(1) };
        store.data().apply(&[write]).expect("the device works again");
        let (disk, found) = after_a_crash((power, disk, store));
        assert_eq!([found, from_the_older_root(&disk)], [expected; 2], "seed {seed}: {outcome:?}");
        *(if outcome.is_ok() { &mut made } else { &mut refused }) += 1;
    }
    assert!(made > 5 && refused > 5, "{made} made, {refused} refused");
}

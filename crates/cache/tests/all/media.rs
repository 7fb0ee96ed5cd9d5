//! Media that do not fit each other: one was put back to an older state, or lost its cache. A start notices
//! missing changes, and makes what it relies on durable before it builds on that.

use crate::common::plain::Machine;
use buffer::Buffer;
use cache::{BackgroundTask, Cache, CacheError, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, OverlayDevice, VolumeId};
use sim_disk::{BlockDamage, DiskFaults, DroppedWrites, SimDisk};
use std::sync::Arc;
use std::time::Duration;
use store::{NewVolume, Store, StoreError, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);
const ONE_FLUSH: DiskFaults =
    DiskFaults { write_one_in: 0, flush_one_in: 1, read_one_in: 0, trim_one_in: 0, once_after: None };

fn first_byte(cache: &Cache, page: u64) -> u8 {
    cache.read_now(FILE, page * BLOCK_BYTES as u64, 1).expect("it can be read")[0]
}

/// Writes, and writes back, until the buffer has released everything older.
fn turn_over(machine: &Machine, cache: &Cache) {
    for round in 0..3 {
        for page in 0..64 {
            machine.write(cache, FILE, 100 + 16 * page, &[round; 16 * BLOCK_BYTES]).expect("space");
        }
        cache.drain().expect("disks that work");
    }
}

/// The answer of a mount to a store that was put back to `older`, with the machine's buffer.
fn mounted_on(machine: &Machine, older: &Arc<SimDisk>) -> Result<Cache, CacheError> {
    machine.open_on(older.clone(), machine.buffer.clone())
}

#[test]
fn a_store_that_was_put_back_to_an_earlier_mount_is_refused() {
    let machine = Machine::new(1);
    let cache = machine.open();
    machine.write(&cache, FILE, 3, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    drop(cache);
    let older = machine.store.fork(&machine.power, 9);
    // Two more mounts: one page is written, synced and written back; the records of another stay in the
    // buffer.
    for page in [3, 4] {
        let cache = machine.open();
        machine.write(&cache, FILE, page, &[2; BLOCK_BYTES]).expect("space");
        machine.sync(&cache).expect("disks that work");
        if page == 3 {
            turn_over(&machine, &cache);
        }
    }
    let refused = mounted_on(&machine, &older).err();
    assert!(
        matches!(refused, Some(CacheError::StaleStore { what: "mount", store: 3, buffer: 5 })),
        "{refused:?}"
    );
    let cache = machine.open();
    assert_eq!([first_byte(&cache, 3), first_byte(&cache, 4)], [2, 2], "its own store is not refused");
}

#[test]
fn a_store_that_was_put_back_within_a_mount_is_refused_once_the_buffer_has_let_go() {
    let machine = Machine::new(2);
    let cache = machine.open();
    machine.write(&cache, FILE, 3, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    // A copy of the disk while the store is mounted, as cloud volumes offer.
    let older = machine.store.fork(&machine.power, 9);
    machine.write(&cache, FILE, 3, &[2; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("disks that work");
    let still_in_the_buffer = machine.buffer.fork(&machine.power, 9);
    turn_over(&machine, &cache);
    machine.write(&cache, FILE, 4, &[3; 100]).expect("space");
    machine.sync(&cache).expect("disks that work");
    std::mem::forget(cache);
    let refused = mounted_on(&machine, &older).err();
    assert!(matches!(refused, Some(CacheError::StaleStore { what: "batch", .. })), "{refused:?}");
    // As long as the buffer has everything that the copy lacks, the two fit.
    let cache = machine.open_on(older, still_in_the_buffer).expect("nothing is missing");
    assert_eq!(first_byte(&cache, 3), 2);
    let cache = machine.open();
    assert_eq!([first_byte(&cache, 3), first_byte(&cache, 4)], [2, 3]);
}

#[test]
fn wherever_a_start_is_cut_off_the_store_knows_of_each_mount_that_the_buffer_knows_of() {
    let mut cut_off = 0;
    for seed in 0..4 {
        for operations in 0..40 {
            let machine = Machine::new(seed);
            let cache = machine.open();
            machine.write(&cache, FILE, 3, &[1; 100]).expect("space");
            machine.sync(&cache).expect("disks that work");
            drop(cache);
            machine.power.cut_after(operations);
            cut_off += u32::from(machine.try_open().is_err());
            machine.crash();
            let store = Store::open(machine.store.clone()).expect("a sound store");
            let buffer =
                Buffer::open(machine.buffer.clone(), store.id(), &mut |_| {}).expect("a sound buffer");
            let of_store = store.incarnation();
            let of_buffer = buffer.incarnation();
            assert!(
                of_store >= of_buffer,
                "cut off after {operations}: {of_store}, and {of_buffer} in the buffer"
            );
            assert_eq!(first_byte(&machine.open(), 3), 1);
        }
    }
    assert!(cut_off > 20, "{cut_off} starts were cut off");
}

/// The operator mounts again, without a restart of the machine; then its power fails.
fn lose_power(machine: &Machine) {
    machine.crash();
}

#[test]
fn what_a_failed_flush_of_the_buffer_dropped_is_written_again_before_anything_relies_on_it() {
    let mut believed = 0;
    for seed in 0..60 {
        let machine = Machine::new(seed);
        machine.buffer.set_dropped(DroppedWrites::AtPowerLoss);
        let cache = machine.open();
        machine.write(&cache, FILE, 1, &[1; 100]).expect("space");
        machine.sync(&cache).expect("disks that work");
        machine.write(&cache, FILE, 2, &[2; 9]).expect("space");
        machine.buffer.set_faults(ONE_FLUSH);
        machine.sync(&cache).expect_err("its flush fails");
        machine.buffer.set_faults(DiskFaults::default());
        std::mem::forget(cache);
        let cache = machine.open();
        believed += u32::from(first_byte(&cache, 2) == 2);
        machine.write(&cache, FILE, 3, &[3; 100]).expect("space");
        machine.sync(&cache).expect("disks that work");
        let second = first_byte(&cache, 2);
        drop(cache);
        lose_power(&machine);
        let cache = machine.open();
        let found = [1, 2, 3].map(|page| first_byte(&cache, page));
        assert_eq!(found, [1, second, 3], "seed {seed}: what was seen before a sync is there after it");
    }
    assert!(believed > 20, "what was dropped was still read in {believed} of 60 lives");
}

#[test]
fn what_a_failed_flush_of_the_store_dropped_is_written_again_before_the_buffer_lets_go_of_it() {
    let mut replayed = 0;
    for seed in 0..60 {
        let machine = Machine::new(seed);
        machine.store.set_dropped(DroppedWrites::AtPowerLoss);
        let cache = machine.open();
        machine.write(&cache, FILE, 1, &[1; BLOCK_BYTES]).expect("space");
        machine.sync(&cache).expect("disks that work");
        // It is written back, the store's flush fails, and the process is killed.
        machine.store.set_faults(ONE_FLUSH);
        machine.clock.advance(Duration::from_secs(1000));
        cache.step(BackgroundTask::WriteBack);
        machine.store.set_faults(DiskFaults::default());
        assert_eq!(cache.status().counters.write_back_errors, 1, "seed {seed}");
        std::mem::forget(cache);
        let before = Store::open(machine.store.clone()).expect("a sound store");
        replayed +=
            u32::from(before.data().page_lsn(FILE, device::PageNo(1)).expect("it can be read").is_some());
        drop(before);
        let cache = machine.open();
        cache.step(BackgroundTask::WriteBack);
        turn_over(&machine, &cache);
        drop(cache);
        lose_power(&machine);
        assert_eq!(first_byte(&machine.open(), 1), 1, "seed {seed}");
    }
    assert!(replayed > 20, "what was dropped was still read in {replayed} of 60 lives");
}

#[test]
fn a_store_whose_last_blocks_cannot_be_read_is_refused_where_they_deleted_a_volume() {
    let machine = Machine::new(8);
    let cache = machine.open();
    machine.write(&cache, FILE, 3, &[1; BLOCK_BYTES]).expect("space");
    let new = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 1 };
    let copy = cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    cache.drain().expect("disks that work");
    let before = machine.store.written_blocks();
    cache.delete_volume(copy).expect("it is there");
    std::mem::forget(cache);
    let after = machine.store.written_blocks();
    let written: Vec<_> = after.into_iter().filter(|at| !before.contains(at)).collect();
    assert_eq!(written.len(), 1, "a deletion is one block");
    machine.store.damage(written[0], BlockDamage::Unreadable);
    let refused = machine.try_open().err();
    assert!(matches!(refused, Some(CacheError::StaleStore { what: "batch", .. })), "{refused:?}");
    machine.store.heal();
    assert!(machine.open().store().volumes().named("copy").is_none(), "a deleted volume stays deleted");
}

#[test]
fn a_store_whose_last_blocks_cannot_be_read_is_refused_where_they_held_what_only_the_store_has() {
    let machine = Machine::new(7);
    let cache = machine.open();
    machine.write(&cache, FILE, 3, &[1; BLOCK_BYTES]).expect("space");
    cache.drain().expect("disks that work");
    let before = machine.store.written_blocks();
    let new = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 1 };
    cache.clone_volume(VolumeId::MAIN, &new).expect("space");
    std::mem::forget(cache);
    let after = machine.store.written_blocks();
    let written: Vec<_> = after.into_iter().filter(|at| !before.contains(at)).collect();
    assert_eq!(written.len(), 1, "a clone is one block");
    machine.store.damage(written[0], BlockDamage::Unreadable);
    let refused = machine.try_open().err();
    assert!(matches!(refused, Some(CacheError::StaleStore { what: "batch", .. })), "{refused:?}");
    machine.store.heal();
    assert!(machine.open().store().volumes().named("copy").is_some(), "nothing was changed meanwhile");
}

/// Whether each of six pages of an object can be read, and is right.
fn are_read(cache: &Cache, object: ObjectId, first_bytes: [u8; 6]) -> Vec<bool> {
    let read = |page: u64| cache.read_now(object, 30 * page * BLOCK_BYTES as u64, 1);
    let pages = (0..).zip(first_bytes);
    pages.map(|(page, expected)| read(page).map(|bytes| assert_eq!(bytes[0], expected)).is_ok()).collect()
}

#[test]
fn a_store_with_a_change_below_a_damaged_node_is_looked_at_only_and_all_that_is_not_below_it_is_there() {
    const OTHER: ObjectId = VolumeId::MAIN.object(2, 1);
    let machine = Machine::new(1);
    let cache = machine.open();
    for object in [FILE, OTHER] {
        (0..6).for_each(|page| machine.write(&cache, object, 30 * page, &[1; BLOCK_BYTES]).expect("space"));
    }
    cache.drain().expect("sound media");
    // One page is stored again, and another is in the buffer only; no checkpoint comes before the crash.
    let bypassing = ObjectChange::FileWrite {
        object: FILE,
        offset: 0,
        bytes: &[2; BLOCK_BYTES],
        size: BLOCK_BYTES as u64,
    };
    machine.apply(&cache, &[bypassing]).expect("space");
    machine.clock.advance(Duration::from_millis(600));
    machine.wait(&cache, |then| cache.sync_logged(then)).expect("sound media");
    cache.step(BackgroundTask::WriteBack);
    machine.write(&cache, OTHER, 30, &[3; BLOCK_BYTES]).expect("space");
    machine.sync(&cache).expect("sound media");
    drop(cache);
    machine.crash();
    let mut refused = 0;
    let mut in_part = 0;
    for pair in machine.pairs() {
        let copy = |disk: &Arc<SimDisk>, seed| disk.fork(&machine.power, seed);
        let damaged = copy(&machine.store, 3);
        pair.into_iter().for_each(|at| damaged.rot(at, 77));
        let outcome = machine.open_on(damaged.clone(), copy(&machine.buffer, 4));
        let Err(CacheError::Store(StoreError::ChangeBelowDamage { object, .. })) = &outcome else { continue };
        assert_eq!(*object, FILE);
        refused += 1;
        // Like a mount that is only read.
        let overlay = |disk: Arc<SimDisk>| {
            Arc::new(OverlayDevice::new(Arc::into_inner(disk.fork(&machine.power, 5)).expect("a copy")))
        };
        let cache = machine.open_on(overlay(damaged), overlay(copy(&machine.buffer, 6)));
        let cache = cache.expect("nothing that is written lasts");
        let file = are_read(&cache, FILE, [2, 1, 1, 1, 1, 1]);
        assert!(!file[0], "what lies below the node is an error");
        let other = are_read(&cache, OTHER, [1, 3, 1, 1, 1, 1]);
        assert!(other[1], "the buffer has it");
        in_part += u64::from(other.into_iter().all(|is_read| is_read));
    }
    assert!(refused > 1 && in_part > 0, "{refused} refused, the other file read in {in_part}");
}

//! Devices with unusual failures: acknowledged changes survive, and the store continues.

use crate::common::phases::{Phase, Phases, failing_flush};
use crate::common::*;
use device::{
    Block, Device, DeviceError, DeviceOperation, Incarnation, Lsn, ObjectId, Page, PageNo, VolumeId,
};
use sim_disk::{DiskFaults, DiskHooks, HookedDisk, PowerSupply, ScratchedBlocks, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{PageRead, ReservationEstimate, Store, StoreChange, StoreError};

const FILE: ObjectId = VolumeId::MAIN.object(1, 1);

fn write(store: &Store, number: u64, stamp: u64) -> Result<(), StoreError> {
    let (page_no, page_lsn) = (PageNo(number), Lsn(stamp));
    store.data().apply(&[StoreChange::Write { object: FILE, page: page_no, bytes: page(stamp), page_lsn }])
}

#[test]
fn a_device_that_fails_trims_keeps_its_space() {
    let (_power, disk, store) = fresh(120, 1);
    // As some disks behind USB do.
    disk.set_faults(DiskFaults { trim_one_in: 1, ..DiskFaults::default() });
    // Many times the store's size, of which eight pages live.
    for round in 1..=6_000 {
        write(&store, round % 8, round).expect("there is space, as next to nothing is live");
        if round % 20 == 0 {
            store.maintenance().checkpoint_twice().expect("the disk works");
        }
    }
    let counters = store.counters();
    assert_eq!(counters.trims_failed, 1, "after the first the device is asked for none");
    assert!(counters.segments_freed > 200, "{counters:?}");
    assert_eq!(findings(&store), Vec::new());
}

#[test]
fn a_block_that_was_never_written_and_cannot_be_read_refuses_no_start() {
    for is_checkpointed in [false, true] {
        let (power, disk, store) = fresh_of(2048, 48, 1);
        (1..6).for_each(|round| write(&store, round, round).expect("there is space"));
        if is_checkpointed {
            store.maintenance().checkpoint_twice().expect("the disk works");
        }
        drop(store);
        power.cut();
        disk.crash();
        power.restore();
        let used = disk.written_blocks();
        let unused: Vec<u64> = (4..disk.blocks()).filter(|&at| !used.contains(&Block(at))).collect();
        // All unused blocks at once, as if the medium ended at the end of the log, and each one alone near
        // the places where the log may continue.
        let near: Vec<u64> = unused.iter().copied().take(300).collect();
        let alone = near.iter().map(std::slice::from_ref);
        for scratches in alone.chain([&unused[..]]) {
            let scratched = ScratchedBlocks::new(&disk, scratches);
            let store = Store::open(scratched).expect("nothing that was written is missing");
            for round in 1..6 {
                let page_lsn = store.data().page_lsn(FILE, PageNo(round)).expect("its nodes can be read");
                assert_eq!(page_lsn, Some(Lsn(round)), "with {} blocks unreadable", scratches.len());
            }
        }
    }
}

/// A disk on which one flush fails and drops another thread's writes. That thread gets no error, and the
/// thread that requested the flush gets its error late.
struct ToldOnce(Phases);

impl DiskHooks for ToldOnce {
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let written = disk.write(at, from);
        self.0.step(Phase::Asked, Phase::Written);
        written
    }

    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if self.0.step(Phase::Armed, Phase::Asked) {
            self.0.wait_for(Phase::Written);
            let failed = failing_flush(disk);
            self.0.step(Phase::Written, Phase::Failed);
            self.0.wait_for(Phase::Flushed);
            return failed;
        }
        if self.0.are(Phase::Written) {
            self.0.wait_for(Phase::Failed);
        }
        let flushed = disk.flush();
        self.0.step(Phase::Failed, Phase::Flushed);
        flushed
    }
}

/// A store in which the cleaner has work, on a disk that reports a failed flush once.
fn with_something_to_clean(seed: u64) -> (Arc<PowerSupply>, Arc<HookedDisk<ToldOnce>>, Arc<Store>) {
    let (power, disk, store) = fresh(100, seed);
    drop(store);
    let told = HookedDisk::new(&disk, ToldOnce(Phases::quiet()));
    let store = Arc::new(Store::open(told.clone() as Arc<dyn Device>).expect("a sound store"));
    store.begin(Incarnation(store.incarnation().0 + 1)).expect("the disk works");
    for number in (0..200).chain((0..200).step_by(2)) {
        write(&store, number, 1).expect("there is space");
    }
    store.maintenance().checkpoint_twice().expect("the disk works");
    (power, told, store)
}

#[test]
fn a_failed_flush_fails_what_was_written_before_it_even_where_another_thread_hears_of_it_first() {
    let mut refused = 0;
    for seed in 0..10 {
        let (power, told, store) = with_something_to_clean(seed);
        assert!(told.0.step(Phase::Quiet, Phase::Armed));
        let cleaning = store.clone();
        let cleaner =
            std::thread::spawn(move || (0..100).any(|_| cleaning.maintenance().clean_step().is_err()));
        told.0.wait_for(Phase::Asked);
        let written = write(&store, 7, 9999);
        assert!(cleaner.join().expect("no panic"), "the cleaner's flush failed");
        refused += u32::from(written.is_err());
        drop(store);
        power.cut();
        told.disk.crash();
        power.restore();
        let store = Store::open(told.clone() as Arc<dyn Device>).expect("a sound store");
        let page_lsn = store.data().page_lsn(FILE, PageNo(7)).expect("its nodes can be read");
        assert!(written.is_err() || page_lsn == Some(Lsn(9999)), "acknowledged, and lost: seed {seed}");
    }
    assert!(refused > 0, "the write never came in time for the flush that failed");
}

/// A disk below a process that ends while it waits for a flush.
struct KilledInFlush(AtomicBool);

impl DiskHooks for KilledInFlush {
    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if !self.0.load(Ordering::Relaxed) {
            return disk.flush();
        }
        let (device, operation, reason) = ("disk".to_owned(), DeviceOperation::Flush, "killed".to_owned());
        Err(DeviceError { device, operation, at: Block(0), count: 0, errno: 5, reason })
    }
}

#[test]
fn a_start_whose_flush_took_away_what_it_had_read_does_not_go_on_as_if_it_were_there() {
    let mut taken = 0;
    for seed in 0..60 {
        let (_power, disk, store) = fresh(120, seed);
        drop(store);
        let killed = HookedDisk::new(&disk, KilledInFlush(AtomicBool::new(false)));
        let store = Store::open(killed.clone() as Arc<dyn Device>).expect("a sound store");
        store.begin(Incarnation(store.incarnation().0 + 1)).expect("the disk works");
        write(&store, 1, 1).expect("there is space");
        killed.0.store(true, Ordering::Relaxed);
        write(&store, 1, 2).expect_err("it ends in the flush");
        drop(store);
        // Its writes are in the drive's cache. The next start reads them, and then drops them with a failed
        // flush.
        let store = Store::open(disk.clone()).expect("a sound store");
        assert_eq!(store.data().page_lsn(FILE, PageNo(1)).expect("its nodes can be read"), Some(Lsn(2)));
        let next = Incarnation(store.incarnation().0 + 1);
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        store.begin(next).expect_err("its flush fails");
        disk.set_faults(DiskFaults::default());
        let is_refused = matches!(store.begin(next), Err(StoreError::Stopped { .. }));
        let mut wants = [PageRead::new(FILE, PageNo(1))];
        store.data().read(&mut wants);
        assert!(is_refused || wants[0].result.is_ok(), "seed {seed}: {:?}", wants[0].result.as_ref().err());
        drop(store);
        let store = Store::open(disk).expect("what is on the medium is whole");
        store.begin(Incarnation(next.0 + 1)).expect("the disk works");
        assert_eq!(findings(&store), Vec::new(), "seed {seed}");
        taken +=
            u32::from(store.data().page_lsn(FILE, PageNo(1)).expect("its nodes can be read") == Some(Lsn(1)));
    }
    assert!(taken > 10, "the flush took the batch away in {taken} of 60 starts");
}

#[test]
fn a_sparse_file_that_is_overwritten_asks_for_little_space_again_and_gives_back_what_is_deleted() {
    let power = PowerSupply::new();
    let disk = disk(4 + 2000 * u64::from(SEGMENT), &power, 1);
    disk.set_space(u64::MAX);
    let store = format(&disk);
    tend(&store);
    let begun = disk.space_taken();
    let mut stamp = 0;
    let mut overwrite = |pages: u64, rounds: u64| {
        for _ in 0..rounds * pages / 4 {
            let vector: Vec<StoreChange> = (0..4)
                .map(|_| {
                    stamp += 1;
                    let (page_no, page_lsn) = (PageNo(stamp % pages), Lsn(stamp));
                    StoreChange::Write { object: FILE, page: page_no, bytes: page(stamp), page_lsn }
                })
                .collect();
            store.space().reserve(4, ReservationEstimate::default()).expect("space was asked for ahead");
            store.data().apply(&vector).expect("it was reserved");
            store.space().release(4);
            if stamp % 512 == 0 {
                store.maintenance().checkpoint_twice().expect("a sound disk");
            }
            tend(&store);
        }
    };
    overwrite(8192, 1);
    let (filled, asked) = (disk.space_taken(), store.counters().segments_allocated);
    assert!(filled > 8192 && filled < 3 * 8192, "{filled} blocks for 8192 pages");
    overwrite(8192, 4);
    let again = store.counters().segments_allocated - asked;
    assert!(again < 4 * 8192 / u64::from(SEGMENT) / 10, "{again} segments more for what was there");
    let lsn = Lsn(1 << 40);
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn }]).expect("deleting takes no space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    store.maintenance().checkpoint_twice().expect("a sound disk");
    let left = disk.space_taken();
    assert!(left < filled / 2 && begun < filled / 4, "{begun}, {filled}, then {left} blocks");
}

#[test]
fn a_trim_leaves_a_sparse_file_what_reservations_count_on_dead_as_it_may_be() {
    const OTHER: ObjectId = VolumeId::MAIN.object(9, 1);
    let disk = disk(4 + 2000 * u64::from(SEGMENT), &PowerSupply::new(), 1);
    disk.set_space(u64::MAX);
    let store = format(&disk);
    let mut lsn = 0;
    let mut vector = |object, from: u64| -> Vec<StoreChange> {
        let write = |number| {
            lsn += 1;
            StoreChange::Write { object, page: PageNo(number), bytes: page(lsn), page_lsn: Lsn(lsn) }
        };
        (from..from + 8).map(write).collect()
    };
    for from in (0..12_000).step_by(8) {
        tend(&store);
        store.data().apply(&vector(FILE, from)).expect("space was asked for ahead");
        if from % 512 == 0 {
            store.maintenance().checkpoint_twice().expect("a sound disk");
        }
    }
    for from in (0..12_000).step_by(2) {
        let cut =
            StoreChange::Punch { object: FILE, pages: PageNo(from)..PageNo(from + 1), lsn: Lsn(1 << 39) };
        store.data().apply(&[cut]).expect("cutting takes no space");
        if from % 64 == 0 {
            store.maintenance().checkpoint_twice().expect("a sound disk");
        }
    }
    let known = |pages: u64| ReservationEstimate {
        data_pages: pages,
        pages_in_same_leaf: pages - pages.div_ceil(128),
    };
    let mut reserved = 0;
    while reserved < 6000 {
        match store.space().reserve(8, known(reserved + 8)) {
            Ok(()) => reserved += 8,
            Err(_) => assert_eq!(store.maintenance().allocate_more(), Ok(true)),
        }
    }
    let taken = disk.space_taken();
    store
        .data()
        .apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(1 << 40) }])
        .expect("deleting takes no space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    store.maintenance().checkpoint_twice().expect("a sound disk");
    assert!(disk.space_taken() < taken, "nothing was given back");
    // Other programs take the space.
    disk.set_space(disk.space_taken());
    for from in (0..6000).step_by(8) {
        apply_reserved(&store, &vector(OTHER, from)).expect("a sound disk");
        store.space().release(8);
        reserved -= 8;
        store.space().set_reservation_estimate(known(reserved));
    }
    assert_eq!(findings(&store), []);
}

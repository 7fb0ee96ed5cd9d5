//! The store always finds the segments that it needs to open, to checkpoint, to delete and to clean: decision
//! 0018. The tests build each state directly, and repeat cycles that would use up a segment each if the store
//! leaked any.

use crate::common::*;
use device::{
    Block, Device, DeviceError, DeviceOperation, Incarnation, Lsn, ObjectId, Page, PageNo, SeededRng,
};
use sim_disk::{DiskFaults, DiskHooks, HookedDisk, PowerSupply, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use store::{ReservationEstimate, Store, StoreChange, StoreError, VolumeId, VolumeMode};

/// Files in the store. Each of their pages may be overwritten.
const FILES: u64 = 8;
const PAGES: u64 = 160;
/// Cycles: far more than segments.
const CYCLES: u64 = 300;

fn file(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

/// A write to one of `files` files. The pages of the first file are metadata.
fn write_below(files: u64, random: &mut SeededRng, page_lsn: u64) -> StoreChange {
    let (slot, number) = (random.below(files), random.below(PAGES * FILES / files));
    StoreChange::Write {
        object: file(slot),
        page: PageNo(number),
        bytes: page(page_lsn),
        page_lsn: Lsn(page_lsn),
    }
}

/// A store whose files were written until no further page could be reserved, and the next change.
struct Full {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    store: Store,
    random: SeededRng,
    page_lsn: u64,
    files: u64,
}

impl Full {
    fn new(seed: u64) -> Full {
        Full::of(FILES, seed)
    }

    /// A full store with `files` files.
    fn of(files: u64, seed: u64) -> Full {
        let (power, disk, store) = fresh(120, seed);
        let mut full = Full { power, disk, store, random: SeededRng::new(seed), page_lsn: 0, files };
        full.fill();
        full
    }

    fn next(&mut self) -> StoreChange {
        self.page_lsn += 1;
        write_below(self.files, &mut self.random, self.page_lsn)
    }

    /// Writes until a writer finds no segment. Every other store is filled until no page can be reserved even
    /// after cleaning.
    fn fill(&mut self) {
        while self.write() == Ok(()) {}
        if self.random.once_in(2) {
            return;
        }
        while self.store.space().reserve(1, ReservationEstimate::default()).is_ok() {
            let change = self.next();
            apply_reserved(&self.store, &[change]).expect("no faults");
            self.store.space().release(1);
        }
    }

    /// Writes one page as the cache does, with a reservation.
    fn write(&mut self) -> Result<(), StoreError> {
        self.store.space().reserve(1, ReservationEstimate::default())?;
        let change = self.next();
        let outcome = self.store.data().apply(&[change]);
        self.store.space().release(1);
        outcome
    }

    fn crash(&mut self) {
        self.power.cut();
        self.disk.crash();
        self.power.restore();
    }

    /// Asserts that all operations that a full store must support succeed.
    fn assert_lives(mut self, when: &str) {
        self.store.maintenance().checkpoint().unwrap_or_else(|error| panic!("{when}: a checkpoint: {error}"));
        self.store.maintenance().checkpoint().unwrap_or_else(|error| panic!("{when}: a checkpoint: {error}"));
        for _ in 0..20 {
            self.store
                .maintenance()
                .clean_round()
                .unwrap_or_else(|error| panic!("{when}: cleaning: {error}"));
            self.store
                .maintenance()
                .checkpoint()
                .unwrap_or_else(|error| panic!("{when}: a checkpoint: {error}"));
        }
        let cleaned = self.store.counters().segments_cleaned;
        assert!(cleaned > 0, "{when}: nothing could be cleaned: {:?}", self.store.space().now());
        for slot in 0..FILES {
            self.page_lsn += 1;
            let delete = StoreChange::Delete { object: file(slot), lsn: Lsn(self.page_lsn) };
            self.store.data().apply(&[delete]).unwrap_or_else(|error| panic!("{when}: deleting: {error}"));
        }
        while self
            .store
            .maintenance()
            .free_deleted_step()
            .unwrap_or_else(|error| panic!("{when}: freeing: {error}"))
        {}
        self.store.maintenance().checkpoint().unwrap_or_else(|error| panic!("{when}: a checkpoint: {error}"));
        self.store.maintenance().checkpoint().unwrap_or_else(|error| panic!("{when}: a checkpoint: {error}"));
        for _ in 0..200 {
            self.write().unwrap_or_else(|error| panic!("{when}: {error}: {:?}", self.store.space().now()));
        }
        assert_eq!(findings(&self.store), [], "{when}");
    }
}

#[test]
fn recoveries_cut_off_anywhere_again_and_again_never_use_up_a_full_store() {
    for seed in 0..30 {
        let mut full = Full::new(seed);
        full.crash();
        for cycle in 0..CYCLES {
            let store = open(&full.disk).unwrap_or_else(|error| panic!("seed {seed} cycle {cycle}: {error}"));
            full.power.cut_after(full.random.below(12));
            let begun = store.begin(Incarnation(store.incarnation().0 + 1));
            match begun {
                Ok(()) => full.power.cut(),
                Err(_) if full.power.is_lost() => {}
                Err(error) => panic!("seed {seed} cycle {cycle}: {error}"),
            }
            full.crash();
        }
        full.store = mount(&full.disk).expect("it opens");
        full.assert_lives(&format!("seed {seed}"));
    }
}

#[test]
fn a_page_written_between_crashes_never_uses_up_a_full_store() {
    for seed in 0..20 {
        let mut full = Full::of(if seed < 10 { FILES } else { 1 }, seed);
        for cycle in 0..CYCLES {
            full.crash();
            full.store =
                mount(&full.disk).unwrap_or_else(|error| panic!("seed {seed} cycle {cycle}: {error}"));
            match full.write() {
                Ok(()) | Err(StoreError::Full) => {}
                Err(error) => panic!("seed {seed} cycle {cycle}: {error}"),
            }
        }
        full.assert_lives(&format!("seed {seed}"));
    }
}

#[test]
fn a_page_written_without_a_reservation_between_crashes_never_uses_up_a_full_store() {
    for seed in 0..20 {
        let mut full = Full::of(if seed < 10 { FILES } else { 1 }, seed);
        for cycle in 0..CYCLES {
            full.crash();
            full.store =
                mount(&full.disk).unwrap_or_else(|error| panic!("seed {seed} cycle {cycle}: {error}"));
            // A cache writes pages from its buffer back without a reservation.
            let change = full.next();
            match full.store.data().apply(&[change]) {
                Ok(()) | Err(StoreError::Full) => {}
                Err(error) => panic!("seed {seed} cycle {cycle}: {error}"),
            }
        }
        full.assert_lives(&format!("seed {seed}"));
    }
}

#[test]
fn writes_that_fail_again_and_again_never_use_up_a_full_store() {
    for seed in 0..20 {
        let mut full = Full::of(if seed < 10 { FILES } else { 1 }, seed);
        for _ in 0..CYCLES {
            full.disk
                .set_faults(DiskFaults { once_after: Some(full.random.below(4)), ..DiskFaults::default() });
            let _ = full.write();
            full.disk.set_faults(DiskFaults::default());
            match full.write() {
                Ok(()) | Err(StoreError::Full) => {}
                Err(error) => panic!("seed {seed}: {error}"),
            }
        }
        full.assert_lives(&format!("seed {seed}"));
    }
}

#[test]
fn checkpoints_that_fail_again_and_again_never_use_up_a_full_store() {
    let faults = |seed| match seed % 3 {
        0 => DiskFaults { write_one_in: 1, ..DiskFaults::default() },
        1 => DiskFaults { flush_one_in: 1, ..DiskFaults::default() },
        _ => DiskFaults { write_one_in: 3, flush_one_in: 3, ..DiskFaults::default() },
    };
    for seed in 0..12 {
        let full = Full::new(seed);
        full.disk.set_faults(faults(seed));
        for _ in 0..CYCLES {
            let _ = full.store.maintenance().checkpoint();
        }
        full.disk.set_faults(DiskFaults::default());
        full.assert_lives(&format!("seed {seed}"));
    }
}

#[test]
fn copies_that_fail_again_and_again_never_use_up_a_full_store() {
    for seed in 0..12 {
        let full = Full::of(if seed < 6 { FILES } else { 1 }, seed);
        full.disk.set_faults(DiskFaults { write_one_in: 1, ..DiskFaults::default() });
        for _ in 0..CYCLES {
            let _ = full.store.maintenance().clean_step();
        }
        full.disk.set_faults(DiskFaults::default());
        full.assert_lives(&format!("seed {seed}"));
    }
}

/// A disk on which writes of checkpoint roots report an error although they succeed.
struct Rootless {
    /// Roots that fail, from now on.
    fails: AtomicU64,
}

impl DiskHooks for Rootless {
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        disk.write(at, from)?;
        let less = |fails: u64| fails.checked_sub(1);
        let fails = (1..3).contains(&at.0)
            && self.fails.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        let (device, reason) = (disk.name().to_owned(), "made-up error".to_owned());
        let error = DeviceError { device, operation: DeviceOperation::Write, at, count: 1, errno: 5, reason };
        if fails { Err(error) } else { Ok(()) }
    }
}

#[test]
fn roots_that_fail_again_and_again_never_use_up_a_full_store_and_may_be_what_a_crash_leaves() {
    for seed in 0..10 {
        let mut full = Full::new(seed);
        full.crash();
        let rootless = HookedDisk::new(&full.disk, Rootless { fails: AtomicU64::new(0) });
        full.store = Store::open(rootless.clone() as Arc<dyn Device>).expect("it opens");
        full.store.begin(Incarnation(100)).expect("a higher one");
        for cycle in 0..CYCLES {
            rootless.fails.store(1 + full.random.below(3), Ordering::Relaxed);
            while full.store.maintenance().checkpoint().is_err() {}
            match full.write() {
                Ok(()) | Err(StoreError::Full) => {}
                Err(error) => panic!("seed {seed} cycle {cycle}: {error}"),
            }
            let power = PowerSupply::new();
            let fork = full.disk.fork(&power, seed * CYCLES + cycle);
            fork.crash();
            let store = mount(&fork).unwrap_or_else(|error| panic!("seed {seed} cycle {cycle}: {error}"));
            assert_eq!(findings(&store), [], "seed {seed} cycle {cycle}");
        }
        rootless.fails.store(0, Ordering::Relaxed);
        full.assert_lives(&format!("seed {seed}"));
    }
}

/// Leaves of a file. Each clone has changed each leaf, so a node of each clone refers to the shared pages.
const LEAVES: u64 = 32;
const CLONES: u32 = 60;

#[test]
fn cleaning_what_many_clones_share_that_differ_leaves_space_to_delete() {
    for seed in 0..6 {
        let (_power, _disk, store) = fresh(1200, seed);
        let (mut random, mut page_lsn) = (SeededRng::new(seed), 0);
        let mut next = || {
            page_lsn += 1;
            page_lsn
        };
        let write = |object, number, page_lsn| StoreChange::Write {
            object,
            page: PageNo(number),
            bytes: page(page_lsn),
            page_lsn: Lsn(page_lsn),
        };
        // Shared pages, among pages that will be removed.
        let mut shared: Vec<u64> = (0..LEAVES * 8).map(|number| number / 8 * 128 + number % 8).collect();
        (1..shared.len()).for_each(|at| shared.swap(at, random.below(at as u64 + 1) as usize));
        for (number, at) in shared.into_iter().zip(0..) {
            store.data().apply(&[write(file(0), number, next()), write(file(1), at, next())]).expect("space");
        }
        for clone in 1..=CLONES {
            let lsn = Lsn(next());
            let volume = clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, lsn).expect("space");
            let vector: Vec<StoreChange> = (0..LEAVES)
                .map(|leaf| write(file(0).in_volume(volume), leaf * 128 + 20 + u64::from(clone), next()))
                .collect();
            store.data().apply(&vector).expect("space");
            store.maintenance().checkpoint().expect("space");
        }
        store.data().apply(&[StoreChange::Delete { object: file(1), lsn: Lsn(next()) }]).expect("space");
        let mut number = 0;
        for cycle in 0..60 {
            while store.space().reserve(12, ReservationEstimate::default()).is_ok() {
                let vector: Vec<StoreChange> =
                    (0..12).map(|one| write(file(2), number + one, next())).collect();
                number += 12;
                let written = store.data().apply(&vector);
                store.space().release(12);
                if written.is_err() {
                    break;
                }
            }
            store.maintenance().clean_round().expect("no faults");
            store.maintenance().checkpoint_twice().expect("from every state there are enough segments");
            // Some of the newest pages are removed, so that cleaning can gain space.
            let at = random.below(number / 64) * 64;
            let cut =
                StoreChange::Punch { object: file(2), pages: PageNo(at)..PageNo(at + 24), lsn: Lsn(next()) };
            assert_eq!(
                store.data().apply(&[cut]),
                Ok(()),
                "seed {seed}, cycle {cycle}: {:?}",
                store.space().now()
            );
        }
        for clone in 1..=CLONES {
            store.volumes().delete(VolumeId(clone), Lsn(next())).expect("a clone can be deleted");
        }
        while store.maintenance().free_deleted_step().expect("freeing") {}
        while store.maintenance().clean_round().expect("no faults") {
            store.maintenance().checkpoint_twice().expect("from every state there are enough segments");
        }
        store.space().reserve(500, ReservationEstimate::default()).expect("what only clones held is free");
        store.space().release(500);
        assert_eq!(findings(&store), []);
    }
}

#[test]
fn a_clone_can_be_deleted_after_everything_was_deleted_in_it() {
    for seed in 0..10 {
        for files in [100, 400, 900] {
            let (_power, _disk, store) = fresh(400, seed);
            let mut page_lsn = 0;
            let mut next = || {
                page_lsn += 1;
                Lsn(page_lsn)
            };
            let write = |slot: u64, number, page_lsn: Lsn| StoreChange::Write {
                object: file(slot),
                page: PageNo(number),
                bytes: page(page_lsn.0),
                page_lsn,
            };
            // Each in a leaf of its own.
            for slot in 0..files {
                store.data().apply(&[write(slot * 256, 0, next())]).expect("space");
            }
            clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, next()).expect("space");
            let mut number = 0;
            loop {
                let pages = 1 + number % 7;
                while store.space().reserve(pages, ReservationEstimate::default()).is_ok() {
                    number += 1;
                    let written = store.data().apply(&[write(7, number, next())]);
                    store.space().release(pages);
                    if written.is_err() {
                        break;
                    }
                }
                let cleaned = store.maintenance().clean_round().expect("no faults");
                store.maintenance().checkpoint_twice().expect("segments");
                if !cleaned {
                    break;
                }
            }
            let mut deleted = 0;
            for slot in 0..files {
                let delete =
                    StoreChange::Delete { object: file(slot * 256).in_volume(VolumeId(1)), lsn: next() };
                if store.data().apply(&[delete]).is_err() {
                    break;
                }
                deleted += 1;
                if slot % (1 + seed) == 0 {
                    store.maintenance().checkpoint().expect("segments");
                }
            }
            assert!(deleted > 0, "nothing could be deleted: {:?}", store.space().now());
            store.volumes().delete(VolumeId(1), next()).expect("a clone can be deleted");
        }
    }
}

#[test]
fn what_was_reserved_can_be_written_when_a_clone_has_come_to_share_all_of_it() {
    for seed in 0..10 {
        let (_power, _disk, store) = fresh(400, seed);
        let (mut random, mut page_lsn) = (SeededRng::new(seed), 0);
        let mut write = |file: ObjectId, page_number| {
            page_lsn += 1;
            let (bytes, page_lsn) = (page(page_lsn), Lsn(page_lsn));
            StoreChange::Write { object: file, page: PageNo(page_number), bytes, page_lsn }
        };
        // Half full, in leaves of which each has few pages.
        let pages: Vec<(u64, u64)> = (0..2000).map(|number| (1 + number % 5, number / 5 * 19)).collect();
        for some in pages.chunks(20) {
            store.space().reserve(20, ReservationEstimate::default()).expect("space");
            let vector: Vec<StoreChange> =
                some.iter().map(|&(slot, number)| write(file(slot), number)).collect();
            apply_reserved(&store, &vector).expect("no faults");
            store.space().release(20);
        }
        let mut reserved = 0;
        while store.space().reserve(1, ReservationEstimate::default()).is_ok() {
            reserved += 1;
        }
        assert!(reserved > 50, "seed {seed}: {reserved}");
        clone_volume(&store, VolumeId::MAIN, VolumeMode::Writable, Lsn(1 << 40)).expect("space");
        for _ in 0..reserved {
            let (slot, number) = pages[random.below(2000) as usize];
            let volume = VolumeId(random.below(2) as u32);
            apply_reserved(&store, &[write(file(slot).in_volume(volume), number)]).expect("no faults");
            store.space().release(1);
        }
        assert_eq!(findings(&store), []);
    }
}

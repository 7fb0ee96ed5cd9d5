//! A store that is full a hundred times, with crashes: writes are refused early, and operations that free
//! space succeed.

use crate::common::*;
use device::{Lsn, ObjectId, PageNo, SeededRng, VolumeId};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Store, StoreChange, StoreError};

const FILES: u64 = 24;
const PAGES: u64 = 64;
/// Blocks of 140 segments.
const SPACE: u64 = 4 + 140 * SEGMENT as u64;

/// A store with its model, and power that fails.
struct Life {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    store: Option<Store>,
    /// The acknowledged pages: the page LSN of each, which is also its content.
    pages: BTreeMap<(u64, u64), u64>,
    /// The pages after a vector that may or may not have happened.
    maybe: Option<BTreeMap<(u64, u64), u64>>,
    page_lsn: u64,
    random: SeededRng,
}

fn file(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

impl Life {
    fn new(seed: u64) -> Life {
        let (power, disk, store) = fresh(140, seed);
        Life::of(seed, power, disk, store)
    }

    /// A life whose store is a sparse file of 400 segments, on a file system with space for 140.
    fn sparse(seed: u64) -> Life {
        let power = PowerSupply::new();
        let disk = disk(4 + 400 * u64::from(SEGMENT), &power, seed);
        disk.set_space(SPACE);
        let store = format(&disk);
        Life::of(seed, power, disk, store)
    }

    fn of(seed: u64, power: Arc<PowerSupply>, disk: Arc<SimDisk>, store: Store) -> Life {
        let (pages, random) = (BTreeMap::new(), SeededRng::new(seed));
        Life { power, disk, store: Some(store), pages, maybe: None, page_lsn: 0, random }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("mounted")
    }

    /// Writes a few pages, as the cache does: with a reservation. `Err(Full)` if it is refused.
    fn write(&mut self) -> Result<(), StoreError> {
        let slot = self.random.below(FILES);
        let count = 1 + self.random.below(6);
        self.store().space().reserve(count, store::ReservationEstimate::default())?;
        let (mut vector, mut after) = (Vec::new(), self.pages.clone());
        for _ in 0..count {
            self.page_lsn += 1;
            let number = self.random.below(PAGES);
            let (object, page_lsn) = (file(slot), Lsn(self.page_lsn));
            vector.push(StoreChange::Write {
                object,
                page: PageNo(number),
                bytes: page(self.page_lsn),
                page_lsn,
            });
            after.insert((slot, number), self.page_lsn);
        }
        let applied = self.apply(&vector, after);
        self.store().space().release(count);
        applied
    }

    fn delete(&mut self, slot: u64) -> Result<(), StoreError> {
        self.page_lsn += 1;
        let mut after = self.pages.clone();
        after.retain(|&(there, _), _| there != slot);
        self.apply(&[StoreChange::Delete { object: file(slot), lsn: Lsn(self.page_lsn) }], after)
    }

    fn apply(&mut self, vector: &[StoreChange], after: BTreeMap<(u64, u64), u64>) -> Result<(), StoreError> {
        let outcome = self.store().data().apply(vector);
        match outcome {
            Ok(()) => self.pages = after,
            Err(StoreError::Full) => {}
            Err(_) => self.maybe = Some(after),
        }
        outcome
    }

    /// Restores power. The store must have all acknowledged vectors, and may have the vector in progress.
    fn recover(&mut self, when: &str) {
        self.store = None;
        self.power.cut();
        self.disk.crash();
        self.power.restore();
        let store = mount(&self.disk).unwrap_or_else(|error| panic!("{when}: {error}"));
        let holds = |pages: &BTreeMap<(u64, u64), u64>| {
            let all = (0..FILES).flat_map(|slot| (0..PAGES).map(move |number| (slot, number)));
            all.into_iter().all(|(slot, number)| {
                let page_lsn = store.data().page_lsn(file(slot), PageNo(number)).expect("readable");
                page_lsn.map(|page_lsn| page_lsn.0) == pages.get(&(slot, number)).copied()
            })
        };
        match self.maybe.take() {
            Some(maybe) if holds(&maybe) => self.pages = maybe,
            _ => assert!(holds(&self.pages), "{when}: not what was acknowledged"),
        }
        assert_eq!(findings(&store), [], "{when}");
        self.store = Some(store);
    }

    /// Works until the store says that it is full, and cleaning does not help. `Err` if power fails.
    fn fill(&mut self) -> Result<(), StoreError> {
        loop {
            match self.write() {
                Ok(()) => {}
                Err(StoreError::Full) => {
                    // As the cache does, allocate in the host file system before cleaning.
                    if self.store().maintenance().allocate_more()? {
                        continue;
                    }
                    let before = self.store().space().now().free;
                    while self.store().maintenance().clean_round()? {}
                    self.store().maintenance().checkpoint()?;
                    self.store().maintenance().checkpoint()?;
                    if self.store().space().now().free <= before {
                        return Ok(());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Deletes two files, and gets space for writes. `Err` if power fails.
    fn make_space(&mut self) -> Result<(), StoreError> {
        for _ in 0..2 {
            let pages: Vec<u64> = self.pages.keys().map(|(slot, _)| *slot).collect();
            let slot = pages[self.random.below(pages.len() as u64) as usize];
            self.delete(slot)?;
        }
        while self.store().maintenance().clean_round()? {}
        self.store().maintenance().checkpoint()?;
        self.store().maintenance().checkpoint()
    }
}

#[test]
fn a_hundred_times_full_deleted_from_and_written_to_with_crashes() {
    let mut full = 0;
    let mut crashes = 0;
    for seed in 0..10 {
        let mut life = Life::new(seed);
        let mut round = 0;
        while round < 10 {
            let when = format!("seed {seed} round {round}");
            let cut = if life.random.once_in(2) { Some(life.random.below(400)) } else { None };
            cut.into_iter().for_each(|after| life.power.cut_after(after));
            let outcome = life.fill().and_then(|()| {
                life.make_space()?;
                life.write()
            });
            match outcome {
                Ok(()) => {
                    life.power.restore();
                    (full, round) = (full + 1, round + 1);
                }
                Err(StoreError::Device(_)) if life.power.is_lost() => {
                    crashes += 1;
                    life.recover(&when);
                }
                Err(error) => panic!("{when}: {error}: {:?}", life.store().space().now()),
            }
        }
        life.recover(&format!("seed {seed} at the end"));
        assert!(life.pages.len() > 300, "seed {seed}: only {} pages", life.pages.len());
    }
    assert_eq!(full, 100);
    assert!(crashes > 40, "only {crashes} crashes");
}

#[test]
fn a_sparse_file_on_a_full_file_system_is_a_smaller_store_through_crashes() {
    let (mut full, mut crashes, mut deleted_while_full) = (0, 0, 0);
    for seed in 0..10 {
        let mut life = Life::sparse(seed);
        life.fill().expect("power is on");
        let mut round = 0;
        while round < 10 {
            let when = format!("seed {seed} round {round}");
            // Other programs fill the host file system to its last block, or free some of its space.
            let taken = life.disk.space_taken();
            let others = life.random.once_in(2);
            life.disk.set_space(if others { taken } else { taken.max(SPACE) });
            let cut = if life.random.once_in(2) { Some(life.random.below(400)) } else { None };
            cut.into_iter().for_each(|after| life.power.cut_after(after));
            let outcome = life
                .fill()
                .and_then(|()| life.make_space())
                .and_then(|()| if others { Ok(()) } else { life.write() });
            deleted_while_full += u32::from(others && outcome.is_ok());
            match outcome {
                Ok(()) => {
                    life.power.restore();
                    (full, round) = (full + 1, round + 1);
                }
                Err(StoreError::Device(_)) if life.power.is_lost() => {
                    crashes += 1;
                    life.recover(&when);
                }
                Err(error) => panic!("{when}: {error}: {:?}", life.store().space().now()),
            }
        }
        life.disk.set_space(SPACE);
        life.recover(&format!("seed {seed} at the end"));
        life.fill().expect("there is space again");
        assert!(life.pages.len() > 300, "seed {seed}: only {} pages", life.pages.len());
    }
    assert_eq!(full, 100);
    assert!(crashes > 40 && deleted_while_full > 20, "{crashes} crashes, {deleted_while_full} deletions");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_forgotten_reservation_is_noticed() {
    let (_power, _disk, store) = fresh(100, 1);
    let reservations = |store: &Store| {
        (0..2000)
            .take_while(|_| store.space().reserve(1, store::ReservationEstimate::default()).is_ok())
            .count() as u64
    };
    let kept = |store: &Store, reserved: u64| {
        (1..=reserved).try_for_each(|page_lsn| {
            let (object, bytes) = (file(1), page(page_lsn));
            store.data().apply(&[StoreChange::Write {
                object,
                page: PageNo(page_lsn * 1000),
                bytes,
                page_lsn: Lsn(page_lsn),
            }])
        })
    };
    let reserved = reservations(&store);
    assert!((10..2000).contains(&reserved));
    kept(&store, reserved).expect("it was reserved");
    let (_power, _disk, store) = fresh(100, 1);
    store.plant(store::StoreBug::ForgottenReservation);
    let reserved = reservations(&store);
    assert_eq!(reserved, 2000, "it reserves for ever");
    assert_eq!(kept(&store, reserved), Err(StoreError::Full));
}

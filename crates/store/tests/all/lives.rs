//! Small stores that are full most of the time: volumes cloned, changed and deleted in steps while cleaning
//! runs, with the power cut at any write, flush or trim, and again in the recovery.

use crate::common::*;
use device::{Device, Incarnation, Lsn, ObjectId, PageNo, SeededRng};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
#[cfg(feature = "planted-bugs")]
use store::StoreBug;
use store::{Store, StoreChange, StoreError, VolumeId, VolumeMode};

/// Segments of 64 KiB: a few times the reserves.
const SEGMENTS: [u64; 3] = [72, 96, 140];
const FILES: u64 = 3;
const PAGES: u64 = 300;
const VOLUMES_MAX: usize = 10;
/// Recoveries cut off in a row.
const DEPTH_MAX: u64 = 5;

/// The page LSNs of the pages of each volume.
type World = BTreeMap<u32, BTreeMap<(u64, u64), u64>>;

fn file(slot: u64) -> ObjectId {
    VolumeId::MAIN.object(slot, 1)
}

struct Life {
    power: Arc<PowerSupply>,
    disk: Arc<SimDisk>,
    store: Option<Store>,
    now: World,
    /// The model with the change that was in progress when the power failed.
    maybe: Option<World>,
    next: u32,
    lsn: u64,
    /// Pages that the store has reserved space for, and that are not written yet.
    reserved: u64,
    random: SeededRng,
    steps: u64,
    fulls: u64,
    crashes: u64,
    #[cfg(feature = "planted-bugs")]
    bug: Option<StoreBug>,
}

/// The failure that ends a life.
type Wrong = String;

impl Life {
    fn new(seed: u64) -> Life {
        let mut random = SeededRng::new(seed);
        let segments = SEGMENTS[random.below(3) as usize];
        let (power, disk, store) = fresh(segments, seed);
        Life {
            power,
            disk,
            store: Some(store),
            now: World::from([(0, BTreeMap::new())]),
            maybe: None,
            next: 1,
            lsn: 0,
            reserved: 0,
            random,
            steps: 0,
            fulls: 0,
            crashes: 0,
            #[cfg(feature = "planted-bugs")]
            bug: None,
        }
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("mounted")
    }

    /// Does one change of the model and the store.
    fn change(
        &mut self,
        after: World,
        make: impl FnOnce(&Store) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let outcome = make(self.store());
        match &outcome {
            Ok(()) => self.now = after,
            Err(StoreError::Full) => {}
            Err(_) => self.maybe = Some(after),
        }
        outcome
    }

    fn some_volume(&mut self) -> u32 {
        let at = self.random.below(self.now.len() as u64) as usize;
        *self.now.keys().nth(at).expect("volume 0 is always there")
    }

    /// Writes a few pages that were reserved some time before. Reserved pages must fit, whatever changes came
    /// between.
    fn write(&mut self) -> Result<(), StoreError> {
        self.reserve()?;
        let (volume, slot) = (self.some_volume(), self.random.below(FILES));
        let count = self.reserved.min(1 + self.random.below(30));
        let (mut after, mut vector) = (self.now.clone(), Vec::new());
        for _ in 0..count {
            self.lsn += 1;
            let (number, page_lsn) = (self.random.below(PAGES), Lsn(self.lsn));
            vector.push(StoreChange::Write {
                object: file(slot).in_volume(VolumeId(volume)),
                page: PageNo(number),
                bytes: page(page_lsn.0),
                page_lsn,
            });
            after.entry(volume).or_default().insert((slot, number), page_lsn.0);
        }
        let outcome = self.change(after, |store| apply_reserved(store, &vector));
        self.store().space().release(count);
        self.reserved -= count;
        outcome
    }

    /// Takes reservations for later writes, one after the other, until one is refused.
    fn reserve(&mut self) -> Result<(), StoreError> {
        let times = if self.random.once_in(20) { 200 } else { self.random.below(10) };
        for _ in 0..times.max(u64::from(self.reserved == 0)) {
            let more = 1 + self.random.below(30);
            // Up to the last block that any operation may reserve.
            match self.store().space().reserve_for_names(more, store::ReservationEstimate::default()) {
                Ok(()) => self.reserved += more,
                Err(StoreError::Full) if self.reserved > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn cut(&mut self, volume: u32, slot: u64) -> Result<(), StoreError> {
        self.lsn += 1;
        let (from, lsn) = (self.random.below(PAGES), Lsn(self.lsn));
        let to = if self.random.once_in(2) { PAGES } else { from + self.random.below(60) };
        let mut after = self.now.clone();
        after.entry(volume).or_default().retain(|&(of, at), _| of != slot || !(from..to).contains(&at));
        let cut = StoreChange::Punch {
            object: file(slot).in_volume(VolumeId(volume)),
            pages: PageNo(from)..PageNo(to),
            lsn,
        };
        self.change(after, |store| store.data().apply(&[cut]))
    }

    fn clone_volume(&mut self, from: u32) -> Result<(), StoreError> {
        self.lsn += 1;
        let (to, lsn) = (self.next, Lsn(self.lsn));
        let mut after = self.now.clone();
        after.insert(to, self.now[&from].clone());
        self.change(after, |store| {
            let made = clone_volume(store, VolumeId(from), VolumeMode::Writable, lsn)?;
            assert_eq!(made, VolumeId(to));
            Ok(())
        })?;
        self.next += 1;
        Ok(())
    }

    fn delete_volume(&mut self, volume: u32) -> Result<(), StoreError> {
        self.lsn += 1;
        let lsn = Lsn(self.lsn);
        let mut after = self.now.clone();
        after.remove(&volume);
        self.change(after, |store| store.volumes().delete(VolumeId(volume), lsn))
    }

    /// Compares all pages with the model, from the medium.
    fn look(&self) -> Result<(), StoreError> {
        if let Some(wrong) = difference(&self.now, self.store()) {
            assert!(self.power.is_lost(), "{wrong}");
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), StoreError> {
        let volume = self.some_volume();
        match self.random.below(40) {
            0 | 1 if self.now.len() < VOLUMES_MAX => self.clone_volume(volume),
            2 if volume != 0 => self.delete_volume(volume),
            3 => {
                let slot = self.random.below(FILES);
                self.cut(volume, slot)
            }
            4 => self.store().maintenance().checkpoint(),
            5 => self.look(),
            6..10 => self.store().maintenance().free_deleted_step().map(drop),
            10..16 => self.store().maintenance().clean_step().map(drop),
            _ => self.write(),
        }
    }

    /// Frees space in a full store. If cleaning does not help, a deletion must succeed and free space.
    fn relieve(&mut self) -> Result<(), StoreError> {
        self.fulls += 1;
        let tidy = |store: &Store| {
            while store.maintenance().free_deleted_step()? {}
            for _ in 0..20 {
                if !store.maintenance().clean_round()? {
                    break;
                }
                store.maintenance().checkpoint()?;
            }
            store.maintenance().checkpoint()?;
            store.maintenance().checkpoint()
        };
        if self.random.once_in(2) {
            tidy(self.store())?;
        }
        // Some deletions free only a little space.
        let all = self.random.once_in(3);
        while self
            .store()
            .space()
            .reserve(12, store::ReservationEstimate::default())
            .map(|()| self.store().space().release(12))
            .is_err()
            || all
        {
            let volume = self.some_volume();
            match volume {
                0 => (0..FILES).try_for_each(|slot| self.cut(0, slot))?,
                _ => self.delete_volume(volume)?,
            }
            tidy(self.store())?;
            if self.now.len() == 1 && self.now[&0].len() < 40 {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Cuts the power. After the recovery the store must have all acknowledged changes, and may have the
    /// change in progress.
    fn crash(&mut self) -> Result<(), Wrong> {
        self.crashes += 1;
        (self.store, self.reserved) = (None, 0);
        for depth in 0.. {
            self.power.cut();
            self.disk.crash();
            self.power.restore();
            let store = self.open().map_err(|error| format!("at depth {depth}: {error}"))?;
            self.compare(&store)?;
            if depth < DEPTH_MAX && self.random.once_in(2) {
                self.power.cut_after(self.random.below(12));
            }
            match store.begin(Incarnation(store.incarnation().0 + 1)) {
                Ok(()) if !self.power.is_lost() => {
                    self.power.restore();
                    self.store = Some(store);
                    return Ok(());
                }
                Err(error) if !self.power.is_lost() => return Err(format!("at depth {depth}: {error}")),
                _ => {}
            }
        }
        unreachable!("the last recovery is not cut off")
    }

    fn open(&self) -> Result<Store, StoreError> {
        let device = self.disk.clone() as Arc<dyn Device>;
        #[cfg(feature = "planted-bugs")]
        if let Some(bug) = self.bug {
            return Store::open_with_bug(device, bug);
        }
        Store::open(device)
    }

    fn compare(&mut self, store: &Store) -> Result<(), Wrong> {
        let wrong = difference(&self.now, store);
        match (self.maybe.take(), wrong) {
            (None, None) | (Some(_), None) => {}
            (Some(maybe), Some(_)) if difference(&maybe, store).is_none() => {
                self.next = self.next.max(1 + maybe.keys().last().expect("volume 0 is always there"));
                self.now = maybe;
            }
            (_, Some(wrong)) => return Err(wrong),
        }
        match findings(store).first() {
            Some(finding) => Err(finding.to_string()),
            None => Ok(()),
        }
    }

    fn live(&mut self, steps: u64) -> Result<(), Wrong> {
        while self.steps < steps {
            self.steps += 1;
            #[cfg(feature = "planted-bugs")]
            self.bug.into_iter().for_each(|bug| self.store().plant(bug));
            if self.random.once_in(40) {
                self.power.cut_after(self.random.below(60));
            }
            let outcome = match self.step() {
                Err(StoreError::Full) => self.relieve(),
                outcome => outcome,
            };
            match outcome {
                Ok(()) => {}
                Err(_) if self.power.is_lost() => self.crash()?,
                Err(error) => return Err(format!("{error}: {:?}", self.store().space().now())),
            }
        }
        self.power.restore();
        self.crash()
    }
}

/// The difference between a store and its model.
fn difference(world: &World, store: &Store) -> Option<Wrong> {
    let volumes: Vec<u32> = store.volumes().all().into_iter().map(|(volume, _)| volume.0).collect();
    if volumes != world.keys().copied().collect::<Vec<_>>() {
        return Some(format!("volumes {volumes:?}"));
    }
    for (&volume, held) in world {
        for slot in 0..FILES {
            let object = file(slot).in_volume(VolumeId(volume));
            let all = (0..PAGES).map(|number| store::PageRead::new(object, PageNo(number)));
            let mut wants: Vec<store::PageRead> = all.collect();
            store.data().read(&mut wants);
            for want in wants {
                let found = match want.result {
                    Ok(store::StoredPage::Hole) => None,
                    Ok(store::StoredPage::Page { bytes, .. }) => Some(stamp(&bytes)),
                    Err(error) => return Some(format!("volume {volume}: {error}")),
                };
                if found != held.get(&(slot, want.page.0)).copied() {
                    return Some(format!("volume {volume} file {slot} page {}: {found:?}", want.page));
                }
            }
        }
    }
    None
}

/// Lives for some steps. Returns the first failure, which may be a panic.
fn lives(mut life: Life, steps: u64) -> (Life, Option<Wrong>) {
    let outcome = catch_unwind(AssertUnwindSafe(|| life.live(steps)));
    let wrong = match outcome {
        Ok(outcome) => outcome.err(),
        Err(panic) => {
            // Its locks are poisoned.
            std::mem::forget(life.store.take());
            let words = panic.downcast_ref::<String>().cloned();
            Some(
                words
                    .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()))
                    .unwrap_or_default(),
            )
        }
    };
    (life, wrong)
}

/// Seeds, and the steps of each: `WEIR_LIVES=FROM,COUNT,STEPS` for more.
fn wanted() -> (u64, u64, u64) {
    let words = std::env::var("WEIR_LIVES").unwrap_or_default();
    let numbers: Vec<u64> = words.split(',').filter_map(|word| word.parse().ok()).collect();
    if let [from, count, steps] = numbers[..] { (from, count, steps) } else { (0, 40, 600) }
}

#[test]
fn volumes_in_full_stores_with_cleaning_and_crashes_in_crashes_hold_what_they_should() {
    let (from, count, steps) = wanted();
    let (mut fulls, mut crashes) = (0, 0);
    for seed in from..from + count {
        let (life, wrong) = lives(Life::new(seed), steps);
        assert_eq!(wrong, None, "seed {seed} after {} steps", life.steps);
        (fulls, crashes) = (fulls + life.fulls, crashes + life.crashes);
    }
    println!("{count} lives of {steps} steps: full {fulls} times, {crashes} crashes");
    assert!(fulls > count && crashes > count, "full {fulls} times, {crashes} crashes");
}

#[cfg(feature = "planted-bugs")]
mod planted {
    use super::*;

    /// Asserts that every seed finds `bug` within so many steps.
    #[track_caller]
    fn is_found_within(bound: u64, bug: StoreBug) {
        for seed in 0..3 {
            let mut life = Life::new(seed);
            life.bug = Some(bug);
            let (life, wrong) = lives(life, bound);
            let wrong =
                wrong.unwrap_or_else(|| panic!("seed {seed}: {bug:?} is not found within {bound} steps"));
            println!("seed {seed}: {bug:?} is found after {} steps: {wrong}", life.steps);
        }
    }

    #[test]
    fn a_clone_s_node_freed_once_too_often_is_found() {
        is_found_within(2000, StoreBug::FreedOnceTooOften);
    }

    #[test]
    fn a_leaked_node_is_found() {
        is_found_within(2000, StoreBug::LeakedNode);
    }

    #[test]
    fn a_forgotten_reservation_is_found() {
        is_found_within(4000, StoreBug::ForgottenReservation);
    }

    #[test]
    fn repointing_before_the_copy_is_durable_is_found() {
        is_found_within(2000, StoreBug::RepointBeforeCopy);
    }

    #[test]
    fn trimming_after_reuse_is_found() {
        is_found_within(2000, StoreBug::TrimAfterReuse);
    }

    #[test]
    fn a_log_entry_replayed_past_the_root_that_has_it_is_found() {
        is_found_within(10_000, StoreBug::EntriesBeforeRoot);
    }

    #[test]
    fn a_missing_flush_is_found() {
        is_found_within(2000, StoreBug::MissingFlush);
    }

    #[test]
    fn a_segment_reused_before_it_may_be_is_found() {
        is_found_within(2000, StoreBug::ReusedBeforePins);
    }
}

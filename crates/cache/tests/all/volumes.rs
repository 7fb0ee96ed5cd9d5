//! Clones of volumes, writes to one volume after the other, rollbacks and deletions, on a machine that loses
//! power and any subset of the writes that were not flushed. Clones are states of their sources during the
//! call, or do not exist. A volume that is not written any more keeps its state, even if only the buffer has
//! some of it.

use crate::common::meddled::{Meddled, Meddler};
use crate::common::volume_model::{ObjectStep, VolumeModel, read_objects};
use crate::common::{Machine, Run, apply_at_once, delete_rescued};
use cache::{BackgroundTask, Cache, CacheError, FetchMode, ObjectChange};
use crash_oracle::{CrashHistory, SyncedBytes};
use device::SeededRng;
use sim_disk::{DiskFaults, SimDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, StoreError, VolumeId, VolumeMode};

/// Blocks of a store that fills up.
const SMALL: u64 = 1800;
/// Volumes beside the mounted one, at most.
const OTHERS_MAX: usize = 3;

/// An operation that a crash may have let happen or not.
enum Pending {
    Nothing,
    /// Clones of which all exist or none, and the states that each may have.
    Clones(Vec<PendingClone>),
    /// The clone, which has the name of this volume, or the volume still has it.
    RollBack(VolumeId, PendingClone),
    Delete(VolumeId),
}

/// The name of a clone, and the states that it may have.
type PendingClone = (String, CrashHistory<VolumeModel>);

/// Counts of events, so that a run that tests little is noticed.
#[derive(Debug, Default)]
struct Tally {
    cloned: u64,
    rolled_back: u64,
    /// Calls for clones without an answer whose clones existed after the crash, and those whose did not.
    found: u64,
    not_found: u64,
    /// Transactions applied during a clone's call.
    meddled: u64,
    switched: u64,
    deleted: u64,
    /// Operations for which there was no space.
    full: u64,
}

struct World {
    seed: u64,
    machine: Machine,
    meddler: Arc<Mutex<Option<Meddler>>>,
    /// The mounted volume's.
    run: Run,
    mounted: VolumeId,
    /// The state of each other volume.
    others: BTreeMap<VolumeId, VolumeModel>,
    pending: Pending,
    names: u64,
    tally: Tally,
}

impl World {
    fn new(seed: u64, blocks: u64) -> World {
        World {
            seed,
            machine: Machine::sized(seed, blocks),
            meddler: Arc::default(),
            run: Run::new(seed),
            mounted: VolumeId::MAIN,
            others: BTreeMap::new(),
            pending: Pending::Nothing,
            names: 0,
            tally: Tally::default(),
        }
    }

    /// Opens the cache, crashing whenever the power fails meanwhile, and compares everything.
    fn open(&mut self) -> Cache {
        let cache = loop {
            let meddled =
                |disk: &Arc<SimDisk>| Arc::new(Meddled { disk: disk.clone(), meddler: self.meddler.clone() });
            let store = meddled(&self.machine.store);
            let buffer = meddled(&self.machine.buffer);
            match self.machine.open_on(store, buffer) {
                Ok(cache) => break cache,
                Err(_) if self.machine.power.is_lost() => self.machine.crash(),
                Err(error) => panic!("seed {}: {error}", self.seed),
            }
        };
        self.machine.power.restore();
        self.settle(&cache);
        self.run.adopt(&cache);
        self.compare_others(&cache);
        cache
    }

    /// Finds out whether the operation happened that the crash cut off.
    fn settle(&mut self, cache: &Cache) {
        delete_rescued(cache);
        let found: Vec<VolumeId> = cache.store().volumes().all().into_iter().map(|(id, _)| id).collect();
        match std::mem::replace(&mut self.pending, Pending::Nothing) {
            Pending::Clones(clones) => {
                let named = |(name, _): &PendingClone| cache.store().volumes().named(name);
                let volumes: Vec<VolumeId> = clones.iter().filter_map(named).map(|one| one.id).collect();
                if volumes.is_empty() {
                    self.tally.not_found += 1;
                } else {
                    assert_eq!(volumes.len(), clones.len(), "seed {}: clones are missing", self.seed);
                    self.add_clones(cache, &volumes, &clones);
                    self.tally.found += 1;
                }
            }
            Pending::RollBack(volume, clone) => {
                let named = cache.store().volumes().named(&clone.0).map(|one| one.id);
                let named = named.unwrap_or_else(|| panic!("seed {}: {} is gone", self.seed, clone.0));
                if named == volume {
                    self.tally.not_found += 1;
                } else {
                    self.add_clones(cache, &[named], &[clone]);
                    self.tally.found += 1;
                }
            }
            Pending::Delete(volume) if !found.contains(&volume) => drop(self.others.remove(&volume)),
            _ => {}
        }
        let mut expected: Vec<VolumeId> = self.others.keys().copied().chain([self.mounted]).collect();
        expected.sort();
        assert_eq!(found, expected, "seed {}: other volumes than there should be", self.seed);
    }

    /// Adds clones to the other volumes.
    fn add_clones(&mut self, cache: &Cache, volumes: &[VolumeId], clones: &[PendingClone]) {
        for (&volume, (_, may_be)) in volumes.iter().zip(clones) {
            self.others.insert(volume, self.state_of(cache, volume, may_be));
        }
    }

    /// Mounts the other volume. Everything of this one is durable.
    fn mount(&mut self, to: VolumeId) {
        self.others.insert(self.mounted, self.run.history.now().clone());
        self.run.begin_anew(self.others.remove(&to).expect("one that is there"));
        self.mounted = to;
        self.run.volume = to;
    }

    fn compare_others(&self, cache: &Cache) {
        for (&volume, model) in &self.others {
            self.state_of(cache, volume, &CrashHistory::new(model.clone()));
        }
    }

    /// The state that a volume has; the last one among equal states.
    fn state_of(&self, cache: &Cache, volume: VolumeId, may_be: &CrashHistory<VolumeModel>) -> VolumeModel {
        let models = self.others.values().chain([self.run.history.now(), may_be.now()]);
        let found = read_objects(cache, volume, models.flat_map(VolumeModel::objects));
        match may_be.find_both(|model| model.difference(&found)) {
            Ok((_, last)) => last.model,
            Err(report) => panic!("seed {}: volume {volume}: {report}", self.seed),
        }
    }

    /// One operation; `false` if the cache is to be opened again.
    fn operate(&mut self, cache: &Cache) -> bool {
        let go_on = match self.run.random.below(40) {
            0 | 1 if self.others.len() < OTHERS_MAX => self.clone_volumes(cache),
            2 if !self.others.is_empty() => self.switch(cache),
            3 if !self.others.is_empty() => self.delete(cache),
            4..8 => self.run.sync(&self.machine, cache) || self.needs_power(),
            8..12 => self.run.read(&self.machine, cache) || self.needs_power(),
            12..22 => {
                cache.step(BackgroundTask::ALL[self.run.random.below(4) as usize]);
                self.machine.clock.advance(Duration::from_millis(self.run.random.below(400)));
                true
            }
            22..25 if self.others.len() < OTHERS_MAX => self.roll_back(cache),
            _ => self.run.apply(&self.machine, cache) || self.needs_space(),
        };
        go_on && !self.machine.power.is_lost()
    }

    /// An operation failed for want of power alone.
    fn needs_power(&self) -> bool {
        assert!(self.machine.power.is_lost(), "seed {}: an operation failed with power on", self.seed);
        false
    }

    fn needs_space(&mut self) -> bool {
        self.tally.full += u64::from(!self.machine.power.is_lost());
        false
    }

    /// A new name for a volume.
    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("c{}", self.names)
    }

    /// The present state of a volume.
    fn model_of(&self, volume: VolumeId) -> VolumeModel {
        let now = if volume == self.mounted { self.run.history.now() } else { &self.others[&volume] };
        now.clone()
    }

    /// Clones the mounted volume, and at times another one with it.
    fn clone_volumes(&mut self, cache: &Cache) -> bool {
        let mut sources = vec![self.mounted];
        if !self.others.is_empty() && self.run.random.once_in(2) {
            sources.push(self.some_other());
        }
        let asked = self.run.history.moment();
        let mut clones: Vec<PendingClone> = sources
            .iter()
            .map(|&source| (self.new_name(), CrashHistory::new(self.model_of(source))))
            .collect();
        let faulty = self.begin_faults();
        let meddled = self.meddle(cache);
        let new = clones.iter().map(|(name, _)| NewVolume { name, mode: VolumeMode::Writable, created: 1 });
        let wanted: Vec<_> = sources.iter().copied().zip(new).collect();
        let cloned = cache.clone_volumes(&wanted);
        self.meddler.lock().expect("one thread").take();
        self.end_faults();
        for steps in std::mem::take(&mut *meddled.lock().expect("one thread")) {
            let Ok(()) = clones[0].1.record(steps.clone());
            self.run.record(steps);
            self.tally.meddled += 1;
        }
        self.run.number_anew();
        match cloned {
            // The power failed before the buffer named the volume. The next start tells what it has.
            Ok(_) if self.machine.power.is_lost() => {
                self.pending = Pending::Clones(clones);
                false
            }
            Ok(volumes) => {
                // Each is some state during the call. Every state before the first possible one was durable
                // when the call returned.
                self.add_clones(cache, &volumes, &clones);
                self.tally.cloned += 1;
                self.run.history.synced(asked, SyncedBytes::All);
                goes_on(cache)
            }
            Err(error) => {
                self.allow(faulty, &error);
                self.pending = Pending::Clones(clones);
                // The next start tells whether they exist.
                false
            }
        }
    }

    /// Rolls another volume than the mounted one back to one of its clones.
    fn roll_back(&mut self, cache: &Cache) -> bool {
        let all = cache.store().volumes().describe();
        let clones = all.iter().filter_map(|clone| Some((clone.from?, clone.id)));
        let pairs: Vec<_> = clones.filter(|(volume, _)| self.others.contains_key(volume)).collect();
        if pairs.is_empty() {
            return true;
        }
        let (volume, snapshot) = pairs[self.run.random.below(pairs.len() as u64) as usize];
        let name = all.into_iter().find(|one| one.id == volume).expect("it is there").name;
        let kept_name = self.new_name();
        let asked = self.run.history.moment();
        let clone = (name, CrashHistory::new(self.model_of(snapshot)));
        let faulty = self.begin_faults();
        let outcome = cache.roll_back(volume, snapshot, &kept_name, 1);
        self.end_faults();
        match outcome {
            Ok(made) if !self.machine.power.is_lost() => {
                self.tally.rolled_back += 1;
                let kept = cache.store().volumes().named(&kept_name).map(|kept| kept.id);
                assert_eq!(kept, Some(volume), "seed {}", self.seed);
                self.add_clones(cache, &[made], &[clone]);
                if snapshot == self.mounted {
                    self.run.history.synced(asked, SyncedBytes::All);
                }
                goes_on(cache)
            }
            outcome => {
                outcome.err().into_iter().for_each(|error| self.allow(faulty, &error));
                self.pending = Pending::RollBack(volume, clone);
                false
            }
        }
    }

    /// Lets transactions be applied while devices work. Returns them.
    fn meddle(&mut self, cache: &Cache) -> Arc<Mutex<Vec<Vec<ObjectStep>>>> {
        let applied: Arc<Mutex<Vec<Vec<ObjectStep>>>> = Arc::default();
        if cache.settings().fetch == FetchMode::Blocking {
            return applied;
        }
        let mut waiting: Vec<Vec<ObjectStep>> =
            (0..self.run.random.below(8)).map(|_| self.run.transaction()).collect();
        waiting.reverse();
        let every = 1 + self.run.random.below(6);
        let mut random = SeededRng::new(self.run.random.next_u64());
        let cache = cache.clone();
        let done = applied.clone();
        let volume = self.mounted;
        *self.meddler.lock().expect("one thread") = Some(Box::new(move || {
            if !random.once_in(every) {
                return;
            }
            let Some(steps) = waiting.pop() else { return };
            let changes: Vec<ObjectChange<'_>> = steps.iter().map(|step| step.change(volume)).collect();
            if matches!(apply_at_once(&cache, &changes), Some(Ok(_))) {
                done.lock().expect("one thread").push(steps);
            } else {
                // Later ones may build on it.
                waiting.clear();
            }
        }));
        applied
    }

    /// Half of the operations on volumes lose power, or meet one error of a device; `true` if they may.
    fn begin_faults(&mut self) -> bool {
        let within = 1 << self.run.random.below(7);
        let after = self.run.random.below(within);
        let once = DiskFaults { once_after: Some(after), ..DiskFaults::default() };
        match self.run.random.below(6) {
            0 => self.machine.store.set_faults(once),
            1 => self.machine.buffer.set_faults(once),
            2 | 3 => self.machine.power.cut_after(after),
            _ => return false,
        }
        true
    }

    /// Whether an operation may have failed.
    fn allow(&mut self, faulty: bool, error: &CacheError) {
        if matches!(error, CacheError::Store(StoreError::Full)) {
            self.tally.full += 1;
            return;
        }
        assert!(faulty || self.machine.power.is_lost(), "seed {}: {error}", self.seed);
    }

    fn end_faults(&self) {
        self.machine.store.set_faults(DiskFaults::default());
        self.machine.buffer.set_faults(DiskFaults::default());
    }

    fn some_other(&mut self) -> VolumeId {
        let index = self.run.random.below(self.others.len() as u64) as usize;
        *self.others.keys().nth(index).expect("there is one")
    }

    fn switch(&mut self, cache: &Cache) -> bool {
        if !self.run.sync(&self.machine, cache) {
            return self.needs_power();
        }
        let to = self.some_other();
        self.mount(to);
        self.tally.switched += 1;
        true
    }

    fn delete(&mut self, cache: &Cache) -> bool {
        let volume = self.some_other();
        let faulty = self.begin_faults();
        let outcome = cache.delete_volume(volume);
        self.end_faults();
        match outcome {
            Ok(()) => {
                self.others.remove(&volume);
                self.tally.deleted += 1;
                goes_on(cache)
            }
            Err(error) => {
                self.allow(faulty, &error);
                self.pending = Pending::Delete(volume);
                false
            }
        }
    }

    fn go(&mut self, crashes: u64) {
        for _ in 0..crashes {
            let cache = self.open();
            cache.store().maintenance().check(&mut |finding| panic!("seed {}: {finding:?}", self.seed));
            self.machine.power.cut_after(self.run.random.below(250));
            while self.operate(&cache) {}
            self.meddler.lock().expect("one thread").take();
            drop(cache);
            // The next start may come without a crash.
            if self.machine.power.is_lost() || self.run.random.once_in(2) {
                self.machine.crash();
            }
            // Half of the recoveries are interrupted, too.
            let interrupted = self.run.random.once_in(2);
            self.machine.power.cut_after(if interrupted { self.run.random.below(8) } else { u64::MAX });
        }
        self.end();
    }

    /// Deletes all volumes but the mounted one: their space comes back, and nothing else is lost.
    fn end(&mut self) {
        let cache = self.open();
        self.machine.power.restore();
        for volume in std::mem::take(&mut self.others).into_keys() {
            cache.delete_volume(volume).expect("power is on");
        }
        cache.drain().expect("power is on");
        while cache.store().maintenance().is_freeing() {
            cache.step(BackgroundTask::Checkpoint);
            self.machine.clock.advance(Duration::from_secs(1));
        }
        assert_eq!(cache.store().space().now().reserved, 0, "seed {}: reservations are left", self.seed);
        cache.store().maintenance().check(&mut |finding| panic!("seed {}: {finding:?}", self.seed));
        self.run.adopt(&cache);
    }
}

/// Whether there is more to do before the next start. The operation is durable, but the buffer, which names
/// it, may have failed.
fn goes_on(cache: &Cache) -> bool {
    cache.status().failed.is_none()
}

#[test]
fn after_a_crash_at_any_moment_every_volume_is_what_it_was_or_became() {
    let mut tally = Tally::default();
    for seed in 0..16 {
        let mut world = World { tally, ..World::new(seed, 6144) };
        world.go(25);
        tally = world.tally;
    }
    let Tally { cloned, rolled_back, found, not_found, meddled, switched, deleted, full } = tally;
    let seldom = found == 0
        || [cloned, rolled_back, not_found, meddled, switched, deleted].iter().any(|&count| count < 50);
    assert!(!seldom && full == 0, "{tally:?}: the run tests little");
}

#[test]
fn where_a_store_has_no_space_for_what_volumes_no_longer_share_nothing_is_lost() {
    let mut tally = Tally::default();
    for seed in 0..16 {
        let mut world = World { tally, ..World::new(seed, SMALL) };
        world.go(25);
        tally = world.tally;
    }
    assert!(tally.full > 50 && tally.cloned > 50 && tally.deleted > 50, "{tally:?}: the run tests little");
}

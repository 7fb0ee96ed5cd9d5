//! Random transactions on a simulated machine, beside a model that knows the result of every prefix of them.
#![allow(dead_code, missing_docs, unreachable_pub)]

mod disks;
pub mod meddled;
pub mod plain;
pub mod slow_disk;
pub mod volume_model;

use cache::{
    BackgroundTask, Cache, CacheError, CacheSettings, FetchMode, ObjectChange, SpaceReservation,
    TransactionCost,
};
use crash_oracle::{CrashHistory, SyncedBytes};
use device::{BLOCK_BYTES, Device, Lsn, ObjectId, PageNo, PageTransfer, SeededRng, TransferKind};
pub use disks::Disks;
use sim_disk::SimClock;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{PageRead, Store, StoredPage, VolumeId};
use volume_model::{ObjectStep, VolumeModel, read_objects};

/// Applies changes that need not wait for space. `None` if they do.
pub fn apply_at_once(cache: &Cache, changes: &[ObjectChange<'_>]) -> Option<Result<Lsn, CacheError>> {
    cache.try_transact(TransactionCost::of(changes), |tx| tx.apply(changes))
}

pub const OBJECTS: u64 = 6;
pub const OBJECT_BYTES: usize = 24 * BLOCK_BYTES;

pub struct Machine {
    pub disks: Disks,
    pub clock: Arc<SimClock>,
    pub fetch: FetchMode,
    /// Few: pages are written back because memory is short. Many: because the buffer is.
    pub dirty_pages_max: u64,
}

impl Deref for Machine {
    type Target = Disks;
    fn deref(&self) -> &Disks {
        &self.disks
    }
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine::sized(seed, 4096)
    }

    /// With a store of `blocks` blocks.
    pub fn sized(seed: u64, blocks: u64) -> Machine {
        let modes = [FetchMode::Blocking, FetchMode::Lazy, FetchMode::Background, FetchMode::Adaptive];
        let fetch = modes[(seed % 4) as usize];
        let dirty_pages_max = if seed.is_multiple_of(2) { 40 } else { 1000 };
        let disks = Disks::new(seed, blocks, 256, 16);
        Machine { disks, clock: Arc::new(SimClock::new()), fetch, dirty_pages_max }
    }

    pub fn open(&self) -> Result<Cache, CacheError> {
        self.open_on(self.store.clone(), self.buffer.clone())
    }

    /// Opens the cache on disks that are wrapped.
    pub fn open_on(&self, store: Arc<dyn Device>, buffer: Arc<dyn Device>) -> Result<Cache, CacheError> {
        let settings = CacheSettings {
            fetch: self.fetch,
            memory_bytes_max: (self.dirty_pages_max + 20) * BLOCK_BYTES as u64,
            dirty_bytes_max: self.dirty_pages_max * BLOCK_BYTES as u64,
            commit_inline_below: Duration::ZERO,
            checkpoint_blocks: 100,
            ..CacheSettings::default()
        };
        let store = Arc::new(Store::open(store)?);
        Cache::open(store, buffer, self.clock.clone(), settings)
    }
}

/// The result that a completion leaves behind.
pub struct Slot<T>(Arc<Mutex<Option<Result<T, CacheError>>>>);

impl<T: Send + 'static> Slot<T> {
    pub fn new() -> Slot<T> {
        Slot(Arc::default())
    }

    pub fn then(&self) -> cache::CacheCompletion<T> {
        let slot = self.0.clone();
        Box::new(move |outcome| *slot.lock().expect("one thread") = Some(outcome))
    }

    pub fn take(&self) -> Option<Result<T, CacheError>> {
        self.0.lock().expect("one thread").take()
    }

    /// Steps the cache until the completion came, or the power is lost.
    pub fn wait(&self, machine: &Machine, cache: &Cache, random: &mut SeededRng) -> Result<T, CacheError> {
        for _ in 0..100_000 {
            if let Some(outcome) = self.take() {
                return outcome;
            }
            if machine.power.is_lost() {
                return Err(CacheError::Stopping);
            }
            cache.step(BackgroundTask::ALL[random.below(4) as usize]);
            machine.clock.advance(Duration::from_millis(1));
        }
        panic!("nobody answered: {:?}", cache.status());
    }
}

pub struct Run {
    pub random: SeededRng,
    /// The volume that is written to. Models name the objects of all volumes as those of the main one.
    pub volume: VolumeId,
    pub generations: BTreeMap<u64, u32>,
    highest: BTreeMap<u64, u32>,
    pub history: CrashHistory<VolumeModel>,
}

impl Run {
    pub fn new(seed: u64) -> Run {
        Run {
            random: SeededRng::new(seed),
            volume: VolumeId::MAIN,
            generations: BTreeMap::new(),
            highest: BTreeMap::new(),
            history: CrashHistory::new(VolumeModel::default()),
        }
    }

    pub fn object(&mut self) -> ObjectId {
        let slot = self.random.below(OBJECTS);
        VolumeId::MAIN.object(slot, *self.generations.entry(slot).or_default())
    }

    pub fn transaction(&mut self) -> Vec<ObjectStep> {
        (0..1 + self.random.below(3)).map(|_| self.step()).collect()
    }

    /// Some pages of an object and a new place for them, mostly the same place in another object.
    fn transfer(&mut self) -> Option<PageTransfer> {
        let from = self.object();
        let to = self.object();
        let pages = (OBJECT_BYTES / BLOCK_BYTES) as u64;
        let first = if self.random.once_in(2) { 0 } else { self.random.below(pages) };
        let len = 1 + self.random.below(pages - first);
        let at = if self.random.once_in(3) { self.random.below(pages - len + 1) } else { first };
        let transfer = PageTransfer::clone_range(from, PageNo(first)..PageNo(first + len), to, PageNo(at));
        transfer.is_valid().then_some(transfer)
    }

    pub fn step(&mut self) -> ObjectStep {
        if self.random.once_in(12)
            && let Some(transfer) = self.transfer()
        {
            let kind = if self.random.once_in(3) { TransferKind::Move } else { TransferKind::Clone };
            return ObjectStep::Transfer(PageTransfer { kind, ..transfer });
        }
        let object = self.object();
        let at = self.random.below(OBJECT_BYTES as u64) as usize;
        match self.random.below(20) {
            0 => {
                *self.generations.entry(object.slot).or_default() += 1;
                ObjectStep::Delete(object)
            }
            1 | 2 => ObjectStep::Zero(object, at, usize::MAX / 2),
            3 => ObjectStep::Zero(object, at, self.random.below(5 * BLOCK_BYTES as u64) as usize),
            _ => {
                let limit = if self.random.once_in(4) { 3 * BLOCK_BYTES as u64 } else { 600 };
                let len = (1 + self.random.below(limit) as usize).min(OBJECT_BYTES - at);
                ObjectStep::Write(object, at, vec![1 + self.random.below(255) as u8; len])
            }
        }
    }

    /// Records a transaction that was applied.
    pub fn record(&mut self, steps: Vec<ObjectStep>) {
        let Ok(()) = self.history.record(steps);
    }

    /// Records that everything is durable.
    pub fn all_synced(&mut self) {
        self.history.synced(self.history.moment(), SyncedBytes::All);
    }

    /// Applies one transaction; `false` if the power failed.
    pub fn apply(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let steps = self.transaction();
        let changes: Vec<ObjectChange<'_>> = steps.iter().map(|step| step.change(self.volume)).collect();
        for step in &steps {
            if let ObjectStep::Write(object, at, bytes) = step {
                let slot = Slot::new();
                cache.prepare_write(object.in_volume(self.volume), *at as u64, bytes.len(), slot.then());
                if slot.wait(machine, cache, &mut self.random).is_err() {
                    return false;
                }
            }
        }
        let slot: Slot<SpaceReservation> = Slot::new();
        cache.admit(TransactionCost::of(&changes), slot.then());
        let Ok(mut reservation) = slot.wait(machine, cache, &mut self.random) else { return false };
        let applied = cache.apply(&mut reservation, &changes).is_ok();
        if applied {
            self.record(steps);
        }
        applied
    }

    pub fn sync(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let slot = Slot::new();
        cache.sync(slot.then());
        let synced = slot.wait(machine, cache, &mut self.random).is_ok();
        if synced {
            self.all_synced();
        }
        synced
    }

    /// Compares some bytes of an object, and at times those that follow, which are read ahead.
    pub fn read(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let object = self.object();
        let at = self.random.below(OBJECT_BYTES as u64) as usize;
        let len = (1 + self.random.below(9000) as usize).min(OBJECT_BYTES - at);
        let next = at + len;
        self.read_at(machine, cache, object, at, len)
            && (next == OBJECT_BYTES
                || self.random.once_in(2)
                || self.read_at(machine, cache, object, next, len.min(OBJECT_BYTES - next)))
    }

    fn read_at(&mut self, machine: &Machine, cache: &Cache, object: ObjectId, at: usize, len: usize) -> bool {
        let slot = Slot::new();
        cache.read(object.in_volume(self.volume), at as u64, len, OBJECT_BYTES as u64, slot.then());
        let Ok(found) = slot.wait(machine, cache, &mut self.random) else { return false };
        assert!(found == self.history.now().bytes(object)[at..at + len], "object {object} at {at}+{len}");
        true
    }

    /// After a crash: finds the prefix that the cache has, and continues from it.
    pub fn adopt(&mut self, cache: &Cache) {
        let found = read_objects(cache, self.volume, self.history.now().objects());
        // Several prefixes may look alike. The shortest is the least that counts as durable from here on.
        match self.history.find(|model| model.difference(&found)) {
            Ok(prefix) => self.begin_anew(prefix.model),
            Err(none) => panic!("{}", none.report),
        }
    }

    /// Continues from a model. An object of zeros may have been deleted, and its slot reused by another one
    /// of zeros, so it counts as deleted.
    pub fn begin_anew(&mut self, mut model: VolumeModel) {
        model.forget_zeros();
        self.history.restart(model);
        self.number_anew();
    }

    /// Sets the generations to new ones: a slot is reused with a generation that no volume had.
    pub fn number_anew(&mut self) {
        let now = self.history.now();
        for (slot, generation) in &mut self.generations {
            let highest = self.highest.entry(*slot).or_default();
            *highest = *generation.max(highest);
            *generation = now.generation(*slot).unwrap_or(*highest + 1);
        }
    }
}

/// Deletes volumes that were rescued from a buffer that failed and works again.
pub fn delete_rescued(cache: &Cache) {
    for volume in cache.store().volumes().describe() {
        if volume.name.starts_with("rescu") {
            cache.delete_volume(volume.id).expect("a write with power");
        }
    }
}

/// An object, from the store alone.
pub fn read_whole(cache: &Cache, object: ObjectId) -> Vec<u8> {
    let pages = (OBJECT_BYTES / BLOCK_BYTES) as u64;
    let mut wants: Vec<PageRead> = (0..pages).map(|page| PageRead::new(object, PageNo(page))).collect();
    cache.store().data().read(&mut wants);
    let page = |want: PageRead| match want.result.expect("a read with power") {
        StoredPage::Hole => vec![0; BLOCK_BYTES],
        StoredPage::Page { bytes, .. } => bytes.0.to_vec(),
    };
    wants.into_iter().flat_map(page).collect()
}

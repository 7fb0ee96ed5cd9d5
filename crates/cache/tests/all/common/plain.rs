//! A machine with sound disks, on which a test decides what happens when.

use super::Disks;
use cache::{
    BackgroundTask, Cache, CacheCompletion, CacheError, CacheSettings, ObjectChange, TransactionCost,
};
use device::{BLOCK_BYTES, Device, ObjectId};
use sim_disk::SimClock;
use std::ops::Deref;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;

/// How long writers wait for space that does not come.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct Machine {
    pub disks: Disks,
    pub clock: Arc<SimClock>,
}

impl Deref for Machine {
    type Target = Disks;
    fn deref(&self) -> &Disks {
        &self.disks
    }
}

impl Machine {
    pub fn new(seed: u64) -> Machine {
        Machine { disks: Disks::new(seed, 16384, 1024, 32), clock: Arc::new(SimClock::new()) }
    }

    pub fn open(&self) -> Cache {
        self.try_open().expect("sound media")
    }

    /// Opens the cache. Whole pages bypass the buffer, as under a policy.
    pub fn open_under_policy(&self) -> Cache {
        let cache = self.open();
        cache.set_follows_classes(true);
        cache
    }

    pub fn try_open(&self) -> Result<Cache, CacheError> {
        self.open_on(self.store.clone(), self.buffer.clone())
    }

    /// Opens the cache on disks that are wrapped or replaced.
    pub fn open_on(&self, store: Arc<dyn Device>, buffer: Arc<dyn Device>) -> Result<Cache, CacheError> {
        let settings = CacheSettings {
            commit_inline_below: Duration::ZERO,
            bypass_after: 0,
            ..CacheSettings::default()
        };
        assert_eq!(settings.store_patience, PATIENCE);
        Cache::open(Arc::new(Store::open(store)?), buffer, self.clock.clone(), settings)
    }

    pub fn apply(&self, cache: &Cache, changes: &[ObjectChange<'_>]) -> Result<(), CacheError> {
        let reservation = self.wait(cache, |then| cache.admit(TransactionCost::of(changes), then));
        cache.apply(&mut reservation?, changes).map(drop)
    }

    pub fn write(&self, cache: &Cache, object: ObjectId, page: u64, bytes: &[u8]) -> Result<(), CacheError> {
        self.apply(cache, &[ObjectChange::Write { object, offset: page * BLOCK_BYTES as u64, bytes }])
    }

    pub fn sync(&self, cache: &Cache) -> Result<(), CacheError> {
        self.wait(cache, |then| cache.sync(then))
    }

    /// Does all background work, and lets time pass, until there is an answer.
    pub fn wait<T: Send + 'static>(
        &self,
        cache: &Cache,
        ask: impl FnOnce(CacheCompletion<T>),
    ) -> Result<T, CacheError> {
        let slot = Arc::new(Mutex::new(None));
        let answer = slot.clone();
        ask(Box::new(move |outcome| *answer.lock().expect("one thread") = Some(outcome)));
        for _ in 0..20_000 {
            if let Some(outcome) = slot.lock().expect("one thread").take() {
                return outcome;
            }
            for task in BackgroundTask::ALL {
                cache.step(task);
            }
            self.clock.advance(Duration::from_millis(10));
        }
        panic!("nobody answered: {:?}", cache.status());
    }

    /// Ten times the buffer goes through it.
    pub fn fill(&self, cache: &Cache, object: ObjectId) -> Result<(), CacheError> {
        (0..640).try_for_each(|index| self.write(cache, object, 16 * (index % 64), &[2; 16 * BLOCK_BYTES]))
    }
}

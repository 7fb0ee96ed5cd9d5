//! Random transactions on a simulated machine that loses power: what is found afterwards is what some prefix of them
//! left, and at least what was synced.

use cache::{Cache, CacheError, Change, Cost, Credit, FetchMode, Progress, Settings, Task};
use device::{BLOCK_BYTES, ObjectId, Random, StoreId};
use sim::{Power, SimClock, SimDisk};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{Layout, Store};

const OBJECTS: u64 = 6;
const OBJECT_BYTES: usize = 24 * BLOCK_BYTES;

/// One transaction, owned.
#[derive(Debug, Clone)]
enum Step {
    Write(ObjectId, usize, Vec<u8>),
    Zero(ObjectId, usize, usize),
    Delete(ObjectId),
}

type Model = BTreeMap<ObjectId, Vec<u8>>;

fn apply_to(model: &mut Model, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Write(object, at, bytes) => {
                let content = model.entry(*object).or_insert_with(|| vec![0; OBJECT_BYTES]);
                content[*at..*at + bytes.len()].copy_from_slice(bytes);
            }
            Step::Zero(object, at, len) => {
                if let Some(content) = model.get_mut(object) {
                    let end = (*at + *len).min(OBJECT_BYTES);
                    content[*at..end].fill(0);
                }
            }
            Step::Delete(object) => drop(model.remove(object)),
        }
    }
}

struct Machine {
    power: Arc<Power>,
    store: Arc<SimDisk>,
    buffer: Arc<SimDisk>,
    clock: Arc<SimClock>,
    fetch: FetchMode,
    /// Few: pages go home because memory is short. Many: because the buffer is.
    dirty_pages_max: u64,
}

impl Machine {
    fn new(seed: u64) -> Machine {
        let power = Power::new();
        let store = SimDisk::new("store", 4096, &power, seed);
        let buffer = SimDisk::new("buffer", 256, &power, seed + 1);
        let id = StoreId([7; 16]);
        Store::format(&*store, &Layout { id, segment_blocks: Some(16) }).expect("a format with power");
        buffer::Buffer::format(&*buffer, id).expect("a format with power");
        let fetch = if seed.is_multiple_of(4) { FetchMode::Blocking } else { FetchMode::Lazy };
        let dirty_pages_max = if seed.is_multiple_of(2) { 40 } else { 1000 };
        Machine { power, store, buffer, clock: Arc::new(SimClock::new()), fetch, dirty_pages_max }
    }

    fn open(&self) -> Result<Cache, CacheError> {
        let settings = Settings {
            fetch: self.fetch,
            memory_bytes_max: (self.dirty_pages_max + 20) * BLOCK_BYTES as u64,
            dirty_bytes_max: self.dirty_pages_max * BLOCK_BYTES as u64,
            commit_inline_below: Duration::ZERO,
            checkpoint_blocks: 100,
            ..Settings::default()
        };
        let store = Arc::new(Store::open(self.store.clone())?);
        Cache::open(store, self.buffer.clone(), self.clock.clone(), settings)
    }

    fn crash(&self) {
        self.power.cut();
        self.store.crash();
        self.buffer.crash();
        self.power.restore();
    }
}

/// A value that a completion leaves behind.
struct Slot<T>(Arc<Mutex<Option<Result<T, CacheError>>>>);

impl<T: Send + 'static> Slot<T> {
    fn new() -> Slot<T> {
        Slot(Arc::default())
    }

    fn then(&self) -> cache::Then<T> {
        let slot = self.0.clone();
        Box::new(move |outcome| *slot.lock().expect("one thread") = Some(outcome))
    }

    fn take(&self) -> Option<Result<T, CacheError>> {
        self.0.lock().expect("one thread").take()
    }

    /// Steps the cache until the completion came, or the power is lost.
    fn wait(&self, machine: &Machine, cache: &Cache, random: &mut Random) -> Result<T, CacheError> {
        for _ in 0..100_000 {
            if let Some(outcome) = self.take() {
                return outcome;
            }
            if machine.power.lost() {
                return Err(CacheError::Stopping);
            }
            cache.step(Task::ALL[random.below(4) as usize]);
            machine.clock.advance(Duration::from_millis(1));
        }
        panic!("nobody answered: {:?}", cache.status());
    }
}

struct Run {
    random: Random,
    generations: BTreeMap<u64, u32>,
    /// What is surely durable, and every transaction since.
    durable: Model,
    since: Vec<Vec<Step>>,
}

impl Run {
    fn object(&mut self) -> ObjectId {
        let slot = self.random.below(OBJECTS);
        ObjectId { slot, generation: *self.generations.entry(slot).or_default() }
    }

    fn transaction(&mut self) -> Vec<Step> {
        (0..1 + self.random.below(3)).map(|_| self.step()).collect()
    }

    fn step(&mut self) -> Step {
        let object = self.object();
        let at = self.random.below(OBJECT_BYTES as u64) as usize;
        match self.random.below(20) {
            0 => {
                *self.generations.entry(object.slot).or_default() += 1;
                Step::Delete(object)
            }
            1 | 2 => Step::Zero(object, at, usize::MAX / 2),
            3 => Step::Zero(object, at, self.random.below(5 * BLOCK_BYTES as u64) as usize),
            _ => {
                let limit = if self.random.once_in(4) { 3 * BLOCK_BYTES as u64 } else { 600 };
                let len = (1 + self.random.below(limit) as usize).min(OBJECT_BYTES - at);
                Step::Write(object, at, vec![1 + self.random.below(255) as u8; len])
            }
        }
    }

    fn now(&self) -> Model {
        let mut model = self.durable.clone();
        self.since.iter().for_each(|steps| apply_to(&mut model, steps));
        model
    }

    /// Applies one transaction; `false` if the power failed.
    fn apply(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let steps = self.transaction();
        let changes: Vec<Change<'_>> = steps.iter().map(change).collect();
        for step in &steps {
            if let Step::Write(object, at, bytes) = step {
                let slot = Slot::new();
                cache.prepare_write(*object, *at as u64, bytes.len(), slot.then());
                if slot.wait(machine, cache, &mut self.random).is_err() {
                    return false;
                }
            }
        }
        let slot: Slot<Credit> = Slot::new();
        cache.admit(Cost::of(&changes), slot.then());
        let Ok(mut credit) = slot.wait(machine, cache, &mut self.random) else { return false };
        let applied = cache.apply(&mut credit, &changes).is_ok();
        if applied {
            self.since.push(steps);
        }
        applied
    }

    fn sync(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let slot = Slot::new();
        cache.sync(slot.then());
        let synced = slot.wait(machine, cache, &mut self.random).is_ok();
        if synced {
            self.durable = self.now();
            self.since.clear();
        }
        synced
    }

    /// Compares one object's bytes, all or some.
    fn read(&mut self, machine: &Machine, cache: &Cache) -> bool {
        let object = self.object();
        let at = self.random.below(OBJECT_BYTES as u64) as usize;
        let len = (1 + self.random.below(9000) as usize).min(OBJECT_BYTES - at);
        let slot = Slot::new();
        cache.read(object, at as u64, len, slot.then());
        let Ok(found) = slot.wait(machine, cache, &mut self.random) else { return false };
        let zeros = vec![0; OBJECT_BYTES];
        assert!(
            found == self.now().get(&object).unwrap_or(&zeros)[at..at + len],
            "object {object} at {at}+{len}"
        );
        true
    }

    /// After a crash: finds the prefix that is there, and goes on from it.
    fn adopt(&mut self, cache: &Cache) {
        let mut model = self.durable.clone();
        let mut candidates = vec![model.clone()];
        for steps in &self.since {
            apply_to(&mut model, steps);
            candidates.push(model.clone());
        }
        let mut objects: Vec<ObjectId> = candidates.iter().flat_map(|model| model.keys().copied()).collect();
        objects.sort();
        objects.dedup();
        for &object in &objects {
            let found = cache.read_now(object, 0, OBJECT_BYTES).expect("a read with power");
            let zeros = vec![0; OBJECT_BYTES];
            candidates.retain(|model| *model.get(&object).unwrap_or(&zeros) == found);
            assert!(
                !candidates.is_empty(),
                "object {object} is no prefix's, after {} since",
                self.since.len()
            );
        }
        // Several prefixes may look alike; the shortest is the least that may be promised from here on.
        self.durable = candidates.swap_remove(0);
        self.since.clear();
        // A slot is used again, under a higher generation, only when its object is gone.
        for (slot, generation) in &mut self.generations {
            let alive = self.durable.keys().find(|object| object.slot == *slot);
            *generation = alive.map_or(*generation + 1, |object| object.generation);
        }
    }
}

fn change(step: &Step) -> Change<'_> {
    match step {
        Step::Write(object, at, bytes) => Change::Write { object: *object, offset: *at as u64, bytes },
        Step::Zero(object, at, len) => Change::Zero { object: *object, offset: *at as u64, len: *len as u64 },
        Step::Delete(object) => Change::Delete { object: *object },
    }
}

fn run(seed: u64, crashes: u64) {
    let machine = Machine::new(seed);
    let mut run = Run {
        random: Random::new(seed),
        generations: BTreeMap::new(),
        durable: Model::new(),
        since: Vec::new(),
    };
    for _ in 0..crashes {
        let cache = loop {
            match machine.open() {
                Ok(cache) => break cache,
                Err(error) if machine.power.lost() => {
                    let _ = error;
                    machine.crash();
                }
                Err(error) => panic!("seed {seed}: {error}"),
            }
        };
        run.adopt(&cache);
        machine.power.cut_after(run.random.below(150));
        loop {
            let went = match run.random.below(10) {
                0 => run.sync(&machine, &cache),
                1 | 2 => run.read(&machine, &cache),
                3..6 => {
                    cache.step(Task::ALL[run.random.below(4) as usize]);
                    machine.clock.advance(Duration::from_millis(run.random.below(400)));
                    true
                }
                _ => run.apply(&machine, &cache),
            };
            if !went || machine.power.lost() {
                assert!(
                    machine.power.lost(),
                    "seed {seed}: an operation failed with power on: {:?}",
                    cache.status()
                );
                break;
            }
        }
        drop(cache);
        machine.crash();
        // Half of the recoveries are interrupted, too.
        machine.power.cut_after(if run.random.once_in(2) { run.random.below(8) } else { u64::MAX });
    }
}

#[test]
fn after_a_crash_at_any_moment_some_prefix_is_there_and_all_that_was_synced() {
    (0..12).for_each(|seed| run(seed, 25));
}

#[test]
fn what_was_drained_is_in_the_store_alone() {
    let machine = Machine::new(1);
    let cache = machine.open().expect("an empty store");
    let mut run = Run {
        random: Random::new(3),
        generations: BTreeMap::new(),
        durable: Model::new(),
        since: Vec::new(),
    };
    (0..100).for_each(|_| assert!(run.apply(&machine, &cache)));
    cache.drain().expect("devices that work");
    assert_eq!(cache.status().dirty_pages, 0);
    drop(cache);
    let cache = machine.open().expect("a drained store");
    assert_eq!(cache.status().counters.replayed, 0, "a drained buffer still held records");
    run.durable = run.now();
    run.since.clear();
    run.adopt(&cache);
}

#[test]
fn a_buffer_full_of_what_is_home_already_is_room_after_a_restart() {
    let machine = Machine::new(3);
    let object = ObjectId { slot: 1, generation: 1 };
    let cache = machine.open().expect("an empty store");
    let write = |cache: &Cache, page: u64, count: usize| {
        let bytes = vec![7; count * BLOCK_BYTES];
        let changes = [Change::Write { object, offset: page * BLOCK_BYTES as u64, bytes: &bytes }];
        let slot: Slot<Credit> = Slot::new();
        cache.admit(Cost::of(&changes), slot.then());
        let credit = slot.take().unwrap_or_else(|| slot.wait(&machine, cache, &mut Random::new(page)));
        let mut credit = credit.expect("room, sooner or later");
        cache.apply(&mut credit, &changes).expect("power");
    };
    // Until the buffer is so full that a writer would have to wait.
    let has_room = |cache: &Cache| cache.status().buffer_room_bytes > cache.status().buffer_bytes / 7;
    let pages = (0..).take_while(|_| has_room(&cache)).map(|page| write(&cache, page, 1)).count() as u64;
    let slot = Slot::new();
    cache.sync(slot.then());
    cache.step(Task::Commit);
    slot.take().expect("a commit").expect("power");
    // Home, but killed before any commit could say so.
    while cache.status().counters.pages_home < pages {
        cache.step(Task::WriteBack);
        machine.clock.advance(Duration::from_secs(400));
    }
    drop(cache);
    let cache = machine.open().expect("a sound store");
    // The store is asked what is home once the mount is ready.
    while cache.step(Task::WriteBack) == Progress::Worked {}
    let status = cache.status();
    assert_eq!((status.dirty_pages, status.counters.pages_home), (0, 0), "it went home twice");
    (0..50).for_each(|index| write(&cache, 20 * index, 20));
}

#[test]
fn a_read_larger_than_memory_ends() {
    let machine = Machine::new(0);
    let cache = machine.open().expect("an empty store");
    let object = ObjectId { slot: 1, generation: 1 };
    let len = 4 * machine.dirty_pages_max as usize * BLOCK_BYTES;
    let slot = Slot::new();
    cache.read(object, 0, len, slot.then());
    assert_eq!(slot.wait(&machine, &cache, &mut Random::new(1)).expect("power"), vec![0; len]);
}

//! Random transactions, some of them bypassing, on a machine that loses power, with requests in the middle of
//! the store's work. After the crash the cache has a prefix of the transactions; except that each bypassed
//! page that was not synced is, as a whole, one of its versions.

use crate::common::Disks;
use crate::common::apply_at_once;
use crate::common::meddled::{Meddled, Meddler};
use cache::{BackgroundTask, Cache, CacheSettings, ObjectChange};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, SeededRng, VolumeId};
use sim_disk::SimClock;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const OBJECTS: u64 = 3;
const PAGES: u64 = 8;
const HALF: usize = BLOCK_BYTES / 2;
const COUNTER: ObjectId = VolumeId::MAIN.object(0, 0);

type Halves = [u32; 2];
type Snapshot = BTreeMap<(u64, u64), State>;

#[derive(Clone, Default, Debug)]
struct State {
    now: Halves,
    /// The older content, and the change that replaced it.
    older: Vec<(Halves, u64)>,
}

struct World {
    random: SeededRng,
    first: u64,
    /// Beginning with change `first`.
    history: Vec<Snapshot>,
    synced: u64,
    acts: u64,
}

#[derive(Clone, Copy)]
enum What {
    All,
    Logged,
    Object(u64),
}

fn object(number: u64) -> ObjectId {
    VolumeId::MAIN.object(1 + number, 1)
}

impl World {
    fn newest(&self) -> u64 {
        self.first + self.history.len() as u64 - 1
    }

    fn was_synced(&mut self, moment: u64, what: What) {
        self.synced = self.synced.max(moment);
        if moment < self.first {
            return;
        }
        for snapshot in &mut self.history[(moment - self.first) as usize..] {
            for (&(object, _), state) in snapshot.iter_mut() {
                let is_covered = match what {
                    What::All => true,
                    What::Logged => false,
                    What::Object(of) => of == object,
                };
                if is_covered {
                    state.older.retain(|&(_, until)| until > moment);
                }
            }
        }
    }
}

fn bytes_of(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes().repeat(HALF / 4)).collect()
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().expect("one thread")
}

fn sync(world: &Arc<Mutex<World>>, cache: &Cache, moment: u64, what: What) {
    let told = world.clone();
    let then = Box::new(move |done: Result<(), _>| {
        if done.is_ok() {
            lock(&told).was_synced(moment, what);
        }
    });
    match what {
        What::All => cache.sync(then),
        What::Logged => cache.sync_logged(then),
        What::Object(of) => cache.sync_object(object(of), then),
    }
}

/// The pages after a clone or a move of `count` pages.
fn transfer(
    after: &mut Snapshot,
    (of, page): (u64, u64),
    (to, at): (u64, u64),
    count: u64,
    is_clone: bool,
) -> PageTransfer {
    for index in 0..count {
        let now = after.entry((of, page + index)).or_default().now;
        after.insert((to, at + index), State { now, older: Vec::new() });
        let left = if is_clone { now } else { [0; 2] };
        after.insert((of, page + index), State { now: left, older: Vec::new() });
    }
    let first = PageNo(page);
    let end = PageNo(page + count);
    PageTransfer { from: object(of), first, end, to: object(to), at: PageNo(at) }
}

/// One request of a client.
fn act(world: &Arc<Mutex<World>>, cache: &Cache) {
    let mut guard = lock(world);
    guard.acts += 1;
    let moment = guard.newest();
    let number = guard.newest() + 1;
    let value = number as u32;
    let random = &mut guard.random;
    let of = random.below(OBJECTS);
    let page = random.below(PAGES);
    let count = 1 + random.below((PAGES - page).min(4));
    let kind = random.below(20);
    let to = random.below(OBJECTS);
    let at = random.below(PAGES);
    let half = random.below(2);
    let what = [What::All, What::Logged, What::Object(of)][random.below(3) as usize];
    if kind < 3 {
        drop(guard);
        return sync(world, cache, moment, what);
    }
    let mut after = guard.history.last().expect("one").clone();
    let whole = bytes_of(&vec![value; 2 * count as usize]);
    let part = bytes_of(&[value]);
    let offset = page * BLOCK_BYTES as u64;
    let mut settled = |of, page, now: Halves| after.insert((of, page), State { now, older: Vec::new() });
    let change = match kind {
        3..5 => {
            (page..page + count).for_each(|page| drop(settled(of, page, [value; 2])));
            ObjectChange::Write { object: object(of), offset, bytes: &whole }
        }
        5..9 => {
            let mut now = after.entry((of, page)).or_default().now;
            now[half as usize] = value;
            after.insert((of, page), State { now, older: Vec::new() });
            ObjectChange::Write { object: object(of), offset: offset + half * HALF as u64, bytes: &part }
        }
        9..15 => {
            for page in page..page + count {
                let state = after.entry((of, page)).or_default();
                state.older.push((state.now, number));
                state.now = [value; 2];
            }
            ObjectChange::FileWrite {
                object: object(of),
                offset,
                bytes: &whole,
                size: offset + whole.len() as u64,
            }
        }
        15..17 => {
            (page..page + count).for_each(|page| drop(settled(of, page, [0; 2])));
            ObjectChange::Zero { object: object(of), offset, len: count * BLOCK_BYTES as u64 }
        }
        17 => {
            after.iter_mut().filter(|((one, _), _)| *one == of).for_each(|(_, state)| state.older.clear());
            ObjectChange::LogBypassed { object: object(of) }
        }
        kind => {
            let count = count.min(PAGES - at);
            if of == to {
                return;
            }
            let transfer = transfer(&mut after, (of, page), (to, at), count, kind == 18);
            if kind == 18 { ObjectChange::Clone { transfer } } else { ObjectChange::Move { transfer } }
        }
    };
    let marker = number.to_le_bytes();
    let changes = [change, ObjectChange::Write { object: COUNTER, offset: 0, bytes: &marker }];
    if matches!(apply_at_once(cache, &changes), Some(Ok(_))) {
        guard.history.push(after);
    }
    drop(guard);
}

fn check(seed: u64, world: &mut World, cache: &Cache) {
    let counter = cache.read_now(COUNTER, 0, 8).expect("sound disks");
    let found = u64::from_le_bytes(counter.try_into().expect("eight"));
    let synced = world.synced;
    let newest = world.newest();
    assert!(synced <= found && found <= newest, "seed {seed}: {found} of {newest}, {synced} synced");
    let mut expected = world.history[(found - world.first) as usize].clone();
    for of in 0..OBJECTS {
        let bytes = cache.read_now(object(of), 0, PAGES as usize * BLOCK_BYTES).expect("sound disks");
        for page in 0..PAGES {
            let state = expected.entry((of, page)).or_default();
            let seen = [0, 1].map(|half| {
                let at = page as usize * BLOCK_BYTES + half * HALF;
                let words: Vec<u32> = bytes[at..at + HALF]
                    .chunks(4)
                    .map(|word| u32::from_le_bytes(word.try_into().expect("four")))
                    .collect();
                assert!(words.iter().all(|word| *word == words[0]), "seed {seed}: half a half");
                words[0]
            });
            let may_be = seen == state.now || state.older.iter().any(|(older, _)| *older == seen);
            assert!(
                may_be,
                "seed {seed}: object {of} page {page} is {seen:?} at change {found} ({synced} synced): {state:?}"
            );
            *state = State { now: seen, older: Vec::new() };
        }
    }
    world.first = found;
    world.history = vec![expected];
    world.synced = found;
}

fn draw_settings(random: &mut SeededRng) -> CacheSettings {
    CacheSettings {
        bypass_after: 0,
        commit_inline_below: Duration::ZERO,
        checkpoint_blocks: 100,
        dirty_bytes_max: [30, 1000][random.below(2) as usize] * BLOCK_BYTES as u64,
        sync_log_bytes_max: [0, 8192, u64::MAX][random.below(3) as usize],
        dirty_age_max: Duration::from_secs([2, 300][random.below(2) as usize]),
        ..CacheSettings::default()
    }
}

fn run(seed: u64, crashes: u64) -> u64 {
    let disks = Disks::new(seed, 4096, 256, 16);
    let clock = Arc::new(SimClock::new());
    let mut random = SeededRng::new(seed);
    let world = Arc::new(Mutex::new(World {
        random: SeededRng::new(seed ^ 77),
        first: 0,
        history: vec![Snapshot::new()],
        synced: 0,
        acts: 0,
    }));
    for _ in 0..crashes {
        let settings = draw_settings(&mut random);
        let meddler: Arc<Mutex<Option<Meddler>>> = Arc::default();
        let meddled = Arc::new(Meddled { disk: disks.store.clone(), meddler: meddler.clone() });
        let open = || {
            let store = Arc::new(store::Store::open(meddled.clone())?);
            Cache::open(store, disks.buffer.clone(), clock.clone(), settings.clone())
        };
        let cache = loop {
            match open() {
                Ok(cache) if !disks.power.is_lost() => break cache,
                Ok(_) | Err(_) if disks.power.is_lost() => disks.crash(),
                Ok(_) => unreachable!(),
                Err(error) => panic!("seed {seed}: {error}"),
            }
        };
        disks.power.cut_after(u64::MAX);
        // The content is compared at once, or after some work.
        if random.once_in(2) {
            (0..5).for_each(|_| drop(format!("{:?}", cache.step(BackgroundTask::WriteBack))));
        }
        check(seed, &mut lock(&world), &cache);
        disks.power.cut_after(random.below(120));
        let others = world.clone();
        let of_others = cache.clone();
        let mut when = SeededRng::new(random.below(u64::MAX));
        *meddler.lock().expect("one thread") = Some(Box::new(move || {
            if when.once_in(3) {
                act(&others, &of_others);
            }
            if when.once_in(8) {
                of_others.step(BackgroundTask::Commit);
            }
        }));
        for _ in 0..3000 {
            if disks.power.is_lost() {
                break;
            }
            match random.below(10) {
                0..6 => act(&world, &cache),
                _ => {
                    cache.step(BackgroundTask::ALL[random.below(4) as usize]);
                    clock.advance(Duration::from_millis(random.below(300)));
                }
            }
        }
        *meddler.lock().expect("one thread") = None;
        drop(cache);
        disks.crash();
        disks.power.cut_after(if random.once_in(2) { random.below(12) } else { u64::MAX });
    }
    lock(&world).acts
}

#[test]
fn each_page_is_what_it_was_or_became() {
    let seeds: u64 = std::env::var("SEEDS").ok().and_then(|one| one.parse().ok()).unwrap_or(20);
    let from: u64 = std::env::var("FROM").ok().and_then(|one| one.parse().ok()).unwrap_or(0);
    let acts: u64 = (from..from + seeds).map(|seed| run(seed, 40)).sum();
    eprintln!("{acts} acts");
}

//! Random transactions, some of them bypassing, on a machine that loses power, with requests in the middle of
//! the store's work. After the crash the cache has a prefix of the transactions; except that each bypassed
//! page that was not synced is, as a whole, one of its versions.

use crate::common::meddled::{Meddled, Meddler};
use crate::common::volume_model::{ObjectStep, VolumeModel, read_objects};
use crate::common::{Disks, apply_at_once};
use cache::{BackgroundTask, Cache, CacheSettings, ObjectChange};
use crash_oracle::{CrashHistory, HistoryMoment, SyncedBytes};
use device::{BLOCK_BYTES, ObjectId, PageNo, PageTransfer, SeededRng, TransferKind, VolumeId};
use sim_disk::SimClock;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

const OBJECTS: u64 = 3;
const PAGES: u64 = 8;
const HALF: usize = BLOCK_BYTES / 2;
/// Holds the number of the newest transaction, so that no two prefixes look alike.
const COUNTER: ObjectId = VolumeId::MAIN.object(0, 0);

struct World {
    random: SeededRng,
    history: CrashHistory<VolumeModel>,
    acts: u64,
}

fn object(number: u64) -> ObjectId {
    VolumeId::MAIN.object(1 + number, 1)
}

fn lock(world: &Mutex<World>) -> MutexGuard<'_, World> {
    world.lock().expect("one thread")
}

fn sync(world: &Arc<Mutex<World>>, cache: &Cache, moment: HistoryMoment, scope: SyncedBytes<ObjectId>) {
    let told = world.clone();
    let then = Box::new(move |done: Result<(), _>| {
        if done.is_ok() {
            lock(&told).history.synced(moment, scope);
        }
    });
    match scope {
        SyncedBytes::All => cache.sync(then),
        SyncedBytes::Logged => cache.sync_logged(then),
        SyncedBytes::File(object) => cache.sync_object(object, then),
    }
}

/// One request of a client.
fn act(world: &Arc<Mutex<World>>, cache: &Cache) {
    let mut guard = lock(world);
    guard.acts += 1;
    let moment = guard.history.moment();
    let number = moment.changes() + 1;
    let random = &mut guard.random;
    let of = random.below(OBJECTS);
    let page = random.below(PAGES);
    let count = 1 + random.below((PAGES - page).min(4));
    let kind = random.below(20);
    let to = random.below(OBJECTS);
    let at = random.below(PAGES);
    let half = random.below(2) as usize;
    let scope =
        [SyncedBytes::All, SyncedBytes::Logged, SyncedBytes::File(object(of))][random.below(3) as usize];
    if kind < 3 {
        drop(guard);
        return sync(world, cache, moment, scope);
    }
    let offset = page as usize * BLOCK_BYTES;
    let len = count as usize * BLOCK_BYTES;
    let bytes = |len: usize| (number as u32).to_le_bytes().repeat(len / 4);
    let step = match kind {
        3..5 => ObjectStep::Write(object(of), offset, bytes(len)),
        5..9 => ObjectStep::Write(object(of), offset + half * HALF, bytes(HALF)),
        9..15 => ObjectStep::Bypass(object(of), offset, bytes(len)),
        15..17 => ObjectStep::Zero(object(of), offset, len),
        17 => ObjectStep::LogBypassed(object(of)),
        kind => {
            let end = PageNo(page + count.min(PAGES - at));
            if of == to {
                return;
            }
            let kind = if kind == 18 { TransferKind::Clone } else { TransferKind::Move };
            let transfer = PageTransfer {
                kind,
                from: object(of),
                first: PageNo(page),
                end,
                to: object(to),
                at: PageNo(at),
            };
            ObjectStep::Transfer(transfer)
        }
    };
    let steps = vec![step, ObjectStep::Write(COUNTER, 0, number.to_le_bytes().to_vec())];
    let changes: Vec<ObjectChange<'_>> = steps.iter().map(|step| step.change(VolumeId::MAIN)).collect();
    if matches!(apply_at_once(cache, &changes), Some(Ok(_))) {
        let Ok(()) = guard.history.record(steps);
    }
}

fn check(seed: u64, world: &mut World, cache: &Cache) {
    let objects = (0..OBJECTS).map(object).chain([COUNTER]);
    let found = read_objects(cache, VolumeId::MAIN, objects);
    match world.history.find(|model| model.difference(&found)) {
        Ok(mut prefix) => {
            prefix.model.found(&found);
            world.history.restart(prefix.model);
        }
        Err(none) => panic!("seed {seed}: {}", none.report),
    }
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
    let mut history = CrashHistory::new(VolumeModel::default());
    history.allow_bypassing();
    let world = Arc::new(Mutex::new(World { random: SeededRng::new(seed ^ 77), history, acts: 0 }));
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

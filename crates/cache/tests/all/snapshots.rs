//! Clones of several volumes at one moment, and rollbacks.

use crate::common::apply_at_once;
use crate::common::meddled::{Meddled, Meddler};
use crate::common::plain::Machine;
use cache::{Cache, CacheError, ObjectChange};
use device::{ObjectId, SeededRng};
use std::sync::{Arc, Mutex};
use store::{NewVolume, StoreError, VolumeId, VolumeMode};

const FILE: ObjectId = VolumeId::MAIN.object(5, 1);
const OTHER: VolumeId = VolumeId(1);

fn named(name: &str, mode: VolumeMode) -> NewVolume<'_> {
    NewVolume { name, mode, created: 1 }
}

fn names(cache: &Cache) -> Vec<(u32, String)> {
    cache.store().volumes().describe().into_iter().map(|volume| (volume.id.0, volume.name)).collect()
}

/// The counter in the volume's file.
fn counter(cache: &Cache, volume: VolumeId) -> u64 {
    let bytes = cache.read_now(FILE.in_volume(volume), 0, 8).expect("sound media");
    u64::from_le_bytes(bytes.try_into().expect("as many as were asked for"))
}

fn count_to(cache: &Cache, volume: VolumeId, number: u64) -> bool {
    let change =
        ObjectChange::Write { object: FILE.in_volume(volume), offset: 0, bytes: &number.to_le_bytes() };
    matches!(apply_at_once(cache, &[change]), Some(Ok(_)))
}

/// Writes each number to the main volume and then to the other one, now and then at a call of a device.
fn counting(cache: &Cache, from: u64, seed: u64) -> Meddler {
    let cache = cache.clone();
    let mut random = SeededRng::new(seed);
    let mut writes = 2 * from;
    Box::new(move || {
        for _ in 0..random.below(4) {
            let volume = if writes.is_multiple_of(2) { VolumeId::MAIN } else { OTHER };
            writes += u64::from(count_to(&cache, volume, 1 + writes / 2));
        }
    })
}

/// Clones two volumes again and again while they are written to, then crashes. The counters of each two clones
/// were those of the volumes at one moment, and stay so.
fn snapshots_show_one_moment(seed: u64) -> Result<(), String> {
    let machine = Machine::new(seed);
    let meddler: Arc<Mutex<Option<Meddler>>> = Arc::default();
    let meddled = |disk| Arc::new(Meddled { disk, meddler: meddler.clone() });
    let cache = machine
        .open_on(meddled(machine.store.clone()), meddled(machine.buffer.clone()))
        .expect("sound media");
    cache.create_volume(&named("other", VolumeMode::Writable), &[]).expect("space");
    let mut snapshots = Vec::new();
    let mut newest = 0;
    for round in 0..8 {
        *meddler.lock().expect("one thread") = Some(counting(&cache, newest, seed + round));
        let names = [format!("main-{round}"), format!("other-{round}")];
        let new = |name| named(name, VolumeMode::ReadOnly);
        let made = cache.clone_volumes(&[(VolumeId::MAIN, new(&names[0])), (OTHER, new(&names[1]))]);
        meddler.lock().expect("one thread").take();
        let made = made.expect("space");
        let [main, other] = [made[0], made[1]].map(|clone| counter(&cache, clone));
        if main < newest || !(other..=other + 1).contains(&main) {
            return Err(format!("round {round}: {main} and {other} after {newest}"));
        }
        newest = counter(&cache, VolumeId::MAIN);
        assert!(count_to(&cache, OTHER, newest), "round {round}: no space");
        snapshots.push((made, [main, other]));
    }
    assert!(newest > 16, "{newest}: the run tests little");
    drop(cache);
    machine.crash();
    let cache = machine.open();
    for (made, counters) in snapshots {
        assert_eq!([made[0], made[1]].map(|clone| counter(&cache, clone)), counters, "seed {seed}");
    }
    cache.store().maintenance().check(&mut |finding| panic!("seed {seed}: {finding:?}"));
    Ok(())
}

#[test]
fn snapshots_of_two_volumes_show_one_moment() {
    for seed in 0..20 {
        assert_eq!(snapshots_show_one_moment(seed), Ok(()), "seed {seed}");
    }
}

#[cfg(feature = "planted-bugs")]
#[test]
fn snapshots_of_another_moment_are_noticed() {
    for bug in [cache::CacheBug::SnapshotsOfTwoMoments, cache::CacheBug::CloneTooEarly] {
        cache::plant(Some(bug));
        let noticed = (0..20).find_map(|seed| snapshots_show_one_moment(seed).err());
        cache::plant(None);
        println!("{bug:?}: {}", noticed.expect("the bug is noticed"));
    }
}

#[test]
fn snapshots_that_cannot_all_be_made_are_refused() {
    let machine = Machine::new(1);
    let cache = machine.open();
    let copy = |name| (VolumeId::MAIN, named(name, VolumeMode::ReadOnly));
    let is_bad = |clones: &[(VolumeId, NewVolume<'_>)]| {
        matches!(cache.clone_volumes(clones), Err(CacheError::Store(StoreError::BadName { .. })))
    };
    assert!(is_bad(&[copy("first"), copy("first")]) && is_bad(&[copy("first"), copy("rescued-1")]));
    assert_eq!(names(&cache), [(0, "main".into())]);
    assert_eq!(cache.clone_volumes(&[]).expect("nothing to do"), []);
    assert_eq!(cache.clone_volumes(&[copy("first"), copy("second")]).expect("space"), [1, 2].map(VolumeId));
}

/// The volumes before and after a rollback: numbers, names and counters.
const BEFORE: [(u32, &str, u64); 2] = [(0, "main", 8), (1, "snapshot", 9)];
const AFTER: [(u32, &str, u64); 3] = [(0, "kept", 8), (1, "snapshot", 9), (2, "main", 9)];

fn described(cache: &Cache) -> Vec<(u32, String, u64)> {
    names(cache).into_iter().map(|(id, name)| (id, name, counter(cache, VolumeId(id)))).collect()
}

fn is_like(found: &[(u32, String, u64)], expected: &[(u32, &str, u64)]) -> bool {
    found.iter().map(|(id, name, counter)| (*id, &**name, *counter)).eq(expected.iter().copied())
}

fn roll_back(cache: &Cache) -> Result<VolumeId, CacheError> {
    cache.roll_back(VolumeId::MAIN, VolumeId(1), "kept", 2)
}

/// Rolls a volume back while the power fails at each operation of a disk in turn. The buffer alone has the
/// newest changes of the volume and of the snapshot. After the crash all of the rollback is there or nothing.
fn rollback_is_whole_after_every_crash() -> Result<(), String> {
    let mut outcomes = [0, 0];
    for operations in 0.. {
        let machine = Machine::new(operations);
        let cache = machine.open();
        assert!(count_to(&cache, VolumeId::MAIN, 7));
        cache.clone_volume(VolumeId::MAIN, &named("snapshot", VolumeMode::Writable)).expect("space");
        assert!(count_to(&cache, VolumeId::MAIN, 8) && count_to(&cache, VolumeId(1), 9));
        machine.sync(&cache).expect("sound media");
        machine.power.cut_after(operations);
        let answer = roll_back(&cache);
        let is_over = !machine.power.is_lost();
        drop(cache);
        machine.crash();
        let cache = machine.open();
        let found = described(&cache);
        let is_made = is_like(&found, &AFTER);
        if !is_made && (!is_like(&found, &BEFORE) || answer.is_ok()) {
            return Err(format!("{operations}: {found:?} after {answer:?}"));
        }
        if !is_made {
            roll_back(&cache).expect("it can be made still");
        }
        assert!(is_like(&described(&cache), &AFTER), "{operations}");
        cache.drain().expect("sound media");
        assert!(is_like(&described(&cache), &AFTER), "{operations}");
        cache.store().maintenance().check(&mut |finding| panic!("{operations}: {finding:?}"));
        outcomes[usize::from(is_made)] += 1;
        if is_over {
            break;
        }
    }
    assert!(outcomes.iter().all(|&count| count > 0), "{outcomes:?}: the runs test little");
    Ok(())
}

#[test]
fn rollback_is_whole_after_a_crash_or_did_not_happen() {
    assert_eq!(rollback_is_whole_after_every_crash(), Ok(()));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn half_a_rollback_is_noticed() {
    cache::plant(Some(cache::CacheBug::HalfARollback));
    let noticed = rollback_is_whole_after_every_crash().err();
    cache::plant(None);
    println!("{}", noticed.expect("the bug is noticed"));
}

#[test]
fn rollback_of_a_used_volume_is_refused() {
    let machine = Machine::new(2);
    let cache = machine.open();
    let snapshot =
        cache.clone_volume(VolumeId::MAIN, &named("snapshot", VolumeMode::ReadOnly)).expect("space");
    let used = cache.use_volume(VolumeId::MAIN);
    let refused = roll_back(&cache).expect_err("it is used");
    assert!(matches!(refused, CacheError::InUse { volume: VolumeId::MAIN }), "{refused}");
    assert!(refused.help().is_some());
    drop(used);
    let refused = cache.roll_back(VolumeId::MAIN, snapshot, "rescued-1", 2).expect_err("a reserved name");
    assert!(matches!(refused, CacheError::Store(StoreError::BadName { .. })), "{refused}");
    let refused = cache.roll_back(snapshot, snapshot, "kept", 2).expect_err("the volume itself");
    assert!(matches!(refused, CacheError::Store(StoreError::NotASnapshot { .. })), "{refused}");
    assert_eq!(names(&cache), [(0, "main".into()), (1, "snapshot".into())]);
    // The snapshot may be used meanwhile.
    let _used = cache.use_volume(snapshot);
    assert_eq!(roll_back(&cache).expect("space"), VolumeId(2));
}

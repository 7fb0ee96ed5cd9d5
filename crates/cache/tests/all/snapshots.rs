//! Clones of several volumes at one moment.

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
fn snapshots_of_two_moments_are_noticed() {
    cache::plant(Some(cache::CacheBug::SnapshotsOfTwoMoments));
    let noticed = (0..20).find_map(|seed| snapshots_show_one_moment(seed).err());
    cache::plant(None);
    println!("{}", noticed.expect("the bug is noticed"));
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

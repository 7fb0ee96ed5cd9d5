//! Epochs: a read-only copy of the mounted volume, taken in the background and replaced by a newer one now and then. A store without its
//! buffer is of no one moment; its epoch is, so that a lost buffer costs some minutes and not the volume.
//!
//! A new one is taken before the old one goes: after a crash between the two there are both. The cache gives them up before it tells an
//! operation that the store is full.

use crate::volume;
use cache::{Cache, CacheError};
use device::{Clock, Lsn};
use host::SystemClock;
use serde_json::{Value, json};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{NewVolume, Store, StoreError, VolumeId, VolumeInfo, VolumeMode};

/// How their names begin. Users may not choose them.
pub(crate) const PREFIX: &str = "epoch-";

/// How the names of copies begin that take the place of what a lost buffer has damaged.
const RESTORED: &str = "restored-";

/// Between two looks at space and time.
const INTERVAL: Duration = Duration::from_secs(1);

/// None is taken where less than this part of what is usable is left: it would go again soon.
const SPARE_PART_MIN: u64 = 8;

/// Keeps an epoch of a volume.
pub(crate) struct EpochKeeper {
    cache: Cache,
    volume: VolumeId,
    /// How far apart; `None`: none is taken.
    every: Option<Duration>,
    /// Held while one is taken or given up.
    turn: Mutex<EpochSchedule>,
    /// Why there is none, or none that is newer. Held for moments.
    problem: Mutex<Option<String>>,
}

struct EpochSchedule {
    /// Since when the clock runs for the next one.
    since: Instant,
    /// The one that this mount took last, and the newest change that it has.
    taken: Option<(VolumeId, Lsn)>,
}

impl EpochKeeper {
    /// Those of `volume`, which is mounted.
    pub(crate) fn new(cache: Cache, volume: VolumeId, every: Option<Duration>) -> EpochKeeper {
        let turn = EpochSchedule { since: Instant::now(), taken: None };
        let epochs = EpochKeeper { cache, volume, every, turn: Mutex::new(turn), problem: Mutex::default() };
        epochs.name_expendable();
        epochs
    }

    /// Takes and gives up epochs until `serving` ends; the process need not wait for it.
    pub(crate) fn start(self: &Arc<EpochKeeper>, serving: Arc<AtomicBool>) -> io::Result<()> {
        let epochs = self.clone();
        let keep = move || {
            while serving.load(Ordering::Acquire) {
                epochs.take_if_due();
                std::thread::sleep(INTERVAL);
            }
        };
        std::thread::Builder::new().name("epochs".into()).spawn(keep).map(drop)
    }

    /// The mount has ended, and everything is stored: that is the last epoch, where there is one. It shares all that it has.
    pub(crate) fn end(&self) {
        if self.every.is_some() && !self.all().is_empty() {
            self.take(&mut lock(&self.turn));
        }
    }

    /// How things stand.
    pub(crate) fn report(&self) -> Value {
        let last = self.all().pop();
        let age = |epoch: &VolumeInfo| now().saturating_sub(epoch.created) / 1_000_000;
        json!({
            "every_ms": self.every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            "last": last.as_ref().map(|epoch| &epoch.name),
            "age_ms": last.as_ref().map(age),
            "given_up": self.cache.status().counters.volumes_given_up,
            "problem": *lock(&self.problem),
        })
    }

    fn take_if_due(&self) {
        let Some(every) = self.every else { return };
        let mut turn = lock(&self.turn);
        if turn.since.elapsed() < every {
            return;
        }
        turn.since = Instant::now();
        let space = self.cache.store_without_spare().space();
        // What is reserved may be needed: an epoch would be given up for it at once.
        let unreserved = space.usable().saturating_sub(space.live + space.reserved);
        match unreserved < space.usable() / SPARE_PART_MIN {
            true => *lock(&self.problem) = Some("the store is nearly full".into()),
            false => self.take(&mut turn),
        }
    }

    /// Takes one, if anything has changed since the last, which then goes.
    fn take(&self, turn: &mut EpochSchedule) {
        let newest = self.cache.status().applied;
        let mut old = self.all();
        if turn.taken.is_some() && turn.taken == old.last().map(|last| (last.id, newest)) {
            return;
        }
        let created = now();
        let name = name_of(created);
        let new = NewVolume { name: &name, mode: VolumeMode::ReadOnly, created };
        let taken = self.cache.clone_expendable(self.volume, &new);
        *lock(&self.problem) = taken.as_ref().err().map(ToString::to_string);
        if let Ok(taken) = taken {
            turn.taken = Some((taken, newest));
            old.drain(..).for_each(|epoch| self.delete(&epoch));
            self.name_expendable();
        }
    }

    /// Those of other volumes, too.
    fn name_expendable(&self) {
        let all = self.cache.store().describe_volumes();
        let expendable = all.iter().filter(|volume| is_epoch(volume) && volume.id != self.volume);
        self.cache.set_expendable_volumes(expendable.map(|volume| volume.id).collect());
    }

    fn delete(&self, epoch: &VolumeInfo) {
        match self.cache.delete_volume(epoch.id) {
            // A user was faster.
            Ok(()) | Err(CacheError::Store(StoreError::NoSuchVolume { .. })) => {}
            Err(error) => {
                *lock(&self.problem) = Some(format!("{} could not be deleted: {error}", epoch.name))
            }
        }
    }

    fn all(&self) -> Vec<VolumeInfo> {
        of_volume(self.cache.store(), self.volume)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In nanoseconds since 1970.
fn now() -> u64 {
    u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0)
}

/// Makes a writable copy of the newest epoch of each volume, for users to go on with: the next epoch would take its place. Returns these;
/// an earlier copy may have been written to since.
pub(crate) fn restore(store: &Store, newest: Lsn) -> Result<Vec<VolumeInfo>, StoreError> {
    let mut restored = Vec::new();
    for (volume, _) in store.volumes() {
        let Some(epoch) = of_volume(store, volume).pop() else { continue };
        let first = format!("{RESTORED}{}", &epoch.name[PREFIX.len()..]);
        let others = (2..).map(|number: u64| format!("{first}-{number}"));
        let is_free = |name: &String| store.volume_named(name).is_none();
        let name = std::iter::once(first.clone()).chain(others).find(is_free).expect("one is free");
        let new = NewVolume { name: &name, mode: VolumeMode::Writable, created: epoch.created };
        store.clone_named(epoch.id, &new, newest)?;
        restored.extend(store.volume_named(&name));
    }
    Ok(restored)
}

fn name_of(created: u64) -> String {
    format!("{PREFIX}{}", volume::rfc3339(created / 1_000_000_000))
}

/// Not what a user called so when that was allowed.
fn is_epoch(volume: &VolumeInfo) -> bool {
    volume.mode == VolumeMode::ReadOnly && volume.name == name_of(volume.created)
}

/// The epochs of a volume, the newest one last.
fn of_volume(store: &Store, volume: VolumeId) -> Vec<VolumeInfo> {
    let mut all = store.describe_volumes();
    all.retain(|one| is_epoch(one) && one.from == Some(volume));
    all.sort_by_key(|one| one.id);
    all
}

//! Epochs: read-only copies of the mounted volume, taken in the background.
//!
//! Without the buffer, the pages of a store come from different points in time. An epoch is a point in time,
//! so a lost buffer costs some minutes of changes, and not the volume. A new epoch is taken before the old
//! one is deleted: a crash between the two leaves both. The cache deletes epochs before it fails an operation
//! because the store is full.

use crate::volume;
use cache::{Cache, CacheError};
use device::{Clock, Lsn};
use host::SystemClock;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{NewVolume, Store, StoreError, VolumeId, VolumeInfo, VolumeMode};
use weir_status::EpochReport;

/// The start of an epoch's name. Users may not choose such names.
const PREFIX: &str = "epoch-";

/// The start of the name of a writable copy, which replaces a volume that a lost buffer has damaged.
const RESTORED: &str = "restored-";

/// The time between two checks whether an epoch is due.
const INTERVAL: Duration = Duration::from_secs(1);

/// No epoch is taken if less than one part in so many of the usable space is left: it would be deleted again
/// soon.
const SPARE_PART_MIN: u64 = 8;

/// Takes the epochs of a volume, and deletes old ones.
pub(crate) struct EpochKeeper {
    cache: Cache,
    volume: VolumeId,
    /// The time between two epochs; `None` if none is taken.
    every: Option<Duration>,
    /// Locked while an epoch is taken.
    schedule: Mutex<EpochSchedule>,
    /// Why there is no epoch, or no newer one. Locked for moments.
    problem: Mutex<Option<String>>,
}

struct EpochSchedule {
    /// When the time to the next epoch began.
    since: Instant,
    /// The last epoch that this mount took, and the LSN of its newest change.
    taken: Option<(VolumeId, Lsn)>,
}

impl EpochKeeper {
    /// Keeps epochs of `volume`, which is mounted.
    pub(crate) fn new(cache: Cache, volume: VolumeId, every: Option<Duration>) -> EpochKeeper {
        let schedule = Mutex::new(EpochSchedule { since: Instant::now(), taken: None });
        let epochs = EpochKeeper { cache, volume, every, schedule, problem: Mutex::default() };
        epochs.mark_expendable();
        epochs
    }

    /// Takes epochs until `serving` is false, in a thread of its own. The process need not wait for the
    /// thread.
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

    /// Takes the last epoch of a mount that has ended and has written everything back, if the volume has an
    /// epoch already. It shares all its blocks with the volume.
    pub(crate) fn take_last(&self) {
        if self.every.is_some() && !self.all().is_empty() {
            self.take(&mut lock(&self.schedule));
        }
    }

    /// The part `epoch` of `weir status`.
    pub(crate) fn report(&self) -> EpochReport {
        let last = self.all().pop();
        let age_ms = |epoch: &VolumeInfo| now().saturating_sub(epoch.created) / 1_000_000;
        EpochReport {
            every_ms: self.every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            age_ms: last.as_ref().map(age_ms),
            last: last.map(|epoch| epoch.name),
            given_up: self.cache.status().counters.volumes_given_up,
            problem: lock(&self.problem).clone(),
        }
    }

    fn take_if_due(&self) {
        let Some(every) = self.every else { return };
        let mut schedule = lock(&self.schedule);
        if schedule.since.elapsed() < every {
            return;
        }
        schedule.since = Instant::now();
        let space = self.cache.store_without_spare().space().now();
        // Reserved space may be needed: an epoch would be deleted for it at once.
        let unreserved = space.usable().saturating_sub(space.live + space.reserved);
        if unreserved < space.usable() / SPARE_PART_MIN {
            *lock(&self.problem) = Some("the store is nearly full".into());
        } else {
            self.take(&mut schedule);
        }
    }

    /// Takes an epoch if anything has changed since the last one, and then deletes the older ones.
    fn take(&self, schedule: &mut EpochSchedule) {
        let newest = self.cache.status().applied;
        let mut old = self.all();
        if schedule.taken.is_some() && schedule.taken == old.last().map(|last| (last.id, newest)) {
            return;
        }
        let created = now();
        let name = name_of(created);
        let new = NewVolume { name: &name, mode: VolumeMode::ReadOnly, created };
        let taken = self.cache.clone_expendable(&[(self.volume, new)]).map(|taken| taken[0]);
        *lock(&self.problem) = taken.as_ref().err().map(ToString::to_string);
        if let Ok(taken) = taken {
            schedule.taken = Some((taken, newest));
            old.drain(..).for_each(|epoch| self.delete(&epoch));
            self.mark_expendable();
        }
    }

    /// Lets the cache delete epochs when the store is full, those of other volumes included.
    fn mark_expendable(&self) {
        let all = self.cache.store().volumes().describe();
        let expendable = all.iter().filter(|volume| is_epoch(volume) && volume.id != self.volume);
        self.cache.set_expendable_volumes(expendable.map(|volume| volume.id).collect());
    }

    fn delete(&self, epoch: &VolumeInfo) {
        match self.cache.delete_volume(epoch.id) {
            // A user has deleted it.
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

/// Nanoseconds since 1970.
fn now() -> u64 {
    u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0)
}

/// Makes a writable copy of the newest epoch of each volume, and returns the copies.
///
/// Users continue with a copy, because the next epoch replaces the epoch itself. Copies of an earlier call
/// stay: users may have written to them since.
pub(crate) fn restore(store: &Store, newest: Lsn) -> Result<Vec<VolumeInfo>, StoreError> {
    let mut restored = Vec::new();
    for (volume, _) in store.volumes().all() {
        let Some(epoch) = of_volume(store, volume).pop() else { continue };
        let first = format!("{RESTORED}{}", &epoch.name[PREFIX.len()..]);
        let others = (2..).map(|number: u64| format!("{first}-{number}"));
        let is_free = |name: &String| store.volumes().named(name).is_none();
        let name = std::iter::once(first.clone()).chain(others).find(is_free).expect("a free name");
        let new = NewVolume { name: &name, mode: VolumeMode::Writable, created: epoch.created };
        store.volumes().clone_named(epoch.id, &new, newest)?;
        restored.extend(store.volumes().named(&name));
    }
    Ok(restored)
}

/// Refuses names that only weir may choose.
pub(crate) fn ensure_not_reserved(name: &str) -> Result<(), StoreError> {
    if !name.starts_with(PREFIX) {
        return Ok(());
    }
    let why = format!("names that begin with {PREFIX} are for copies that weir takes itself");
    Err(StoreError::BadName { name: name.into(), why })
}

fn name_of(created: u64) -> String {
    format!("{PREFIX}{}", volume::rfc3339(created / 1_000_000_000))
}

/// Whether weir took the volume as an epoch. A user may have chosen such a name when that was allowed.
pub(crate) fn is_epoch(volume: &VolumeInfo) -> bool {
    volume.mode == VolumeMode::ReadOnly && volume.name == name_of(volume.created)
}

/// The epochs of a volume, the newest one last.
fn of_volume(store: &Store, volume: VolumeId) -> Vec<VolumeInfo> {
    let mut all = store.volumes().describe();
    all.retain(|one| is_epoch(one) && one.from == Some(volume));
    all.sort_by_key(|one| one.id);
    all
}

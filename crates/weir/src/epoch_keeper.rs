//! Epochs: read-only copies of the volumes that are mounted for writing, taken in the background.
//!
//! Without the buffer, the pages of a store come from different points in time. An epoch is a point in time,
//! so a lost buffer costs some minutes of changes, and not the volume. A new epoch is taken before the old
//! one is deleted: a crash between the two leaves both. The cache deletes epochs before it fails an operation
//! because the store is full.

use crate::volume;
use cache::{Cache, CacheError, FINISHED_RESCUE};
use device::{Clock, Lsn};
use host::SystemClock;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::slice;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use store::{
    NewVolume, RestoredSnapshot, Store, StoreError, VOLUME_NAME_BYTES_MAX, VolumeId, VolumeInfo, VolumeMode,
    VolumeRestoration,
};
use weir_status::EpochReport;

/// The start of an epoch's name. Users may not choose such names.
const PREFIX: &str = "epoch-";

/// The start of the name of a writable copy, which replaces a volume that a lost buffer has damaged.
const RESTORED: &str = "restored-";

/// Stands in the name of a volume that a lost buffer has damaged, behind the name that it had.
const DAMAGED: &str = "-damaged-";

/// The time between two checks whether an epoch is due.
const INTERVAL: Duration = Duration::from_secs(1);

/// No epoch is taken if less than one part in so many of the usable space is left: it would be deleted again
/// soon.
const SPARE_PART_MIN: u64 = 8;

/// Takes the epochs of a store's volumes, and deletes old ones.
pub(crate) struct EpochKeeper {
    cache: Cache,
    /// The time between two epochs; `None` if none is taken.
    every: Option<Duration>,
    started: Instant,
    /// Locked while epochs are taken.
    schedule: Mutex<EpochSchedule>,
    /// Locked for moments.
    volumes: Mutex<KnownVolumes>,
    /// Why there is no epoch, or no newer one. Locked for moments.
    problem: Mutex<Option<String>>,
}

struct EpochSchedule {
    /// When the time to the next epochs began.
    since: Instant,
    /// The last epoch that this process took of each volume, and the newest LSN then.
    taken: BTreeMap<VolumeId, (VolumeId, Lsn)>,
}

#[derive(Default)]
struct KnownVolumes {
    /// Volumes that are mounted.
    mounted: BTreeSet<VolumeId>,
    /// Volumes that are, or were, mounted for writing.
    written: BTreeSet<VolumeId>,
}

impl EpochKeeper {
    pub(crate) fn new(cache: Cache, every: Option<Duration>) -> EpochKeeper {
        let schedule = Mutex::new(EpochSchedule { since: Instant::now(), taken: BTreeMap::new() });
        let epochs = EpochKeeper {
            cache,
            every,
            started: Instant::now(),
            schedule,
            volumes: Mutex::default(),
            problem: Mutex::default(),
        };
        epochs.mark_expendable();
        epochs
    }

    /// Keeps epochs of a volume that is about to be mounted, if it is writable. An epoch that is mounted is not
    /// deleted meanwhile.
    pub(crate) fn note_mount(&self, volume: &VolumeInfo) {
        let mut volumes = lock(&self.volumes);
        volumes.mounted.insert(volume.id);
        if volume.mode == VolumeMode::Writable {
            volumes.written.insert(volume.id);
        }
        drop(volumes);
        self.mark_expendable();
    }

    /// Notes that a volume is not mounted any more.
    pub(crate) fn note_unmount(&self, volume: VolumeId) {
        lock(&self.volumes).mounted.remove(&volume);
        self.mark_expendable();
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

    /// Takes the last epochs, once everything is written back: of each volume that was mounted and would go on from an
    /// epoch after a loss. They share all their blocks with the volumes.
    pub(crate) fn take_last(&self) {
        if self.every.is_none() {
            return;
        }
        let written = lock(&self.volumes).written.clone();
        let store = self.cache.store();
        // Some may be deleted: their epochs stay.
        let all = store.volumes().describe();
        let has_epoch = |volume: &&VolumeInfo| epoch_to_go_on_from(&all, volume).is_some();
        let due = all.iter().filter(|volume| written.contains(&volume.id)).filter(has_epoch);
        self.take(&mut lock(&self.schedule), due.map(|volume| volume.id));
    }

    /// The part `epoch` of `weir status` for a mounted volume.
    pub(crate) fn report(&self, volume: VolumeId) -> EpochReport {
        let last = self.epochs_of(volume).pop();
        let age_ms = |epoch: &VolumeInfo| now().saturating_sub(epoch.created) / 1_000_000;
        EpochReport {
            behind_ms: self.every.map(|_| self.behind_ms(volume, last.as_ref())),
            every_ms: self.every.map(|every| u64::try_from(every.as_millis()).unwrap_or(u64::MAX)),
            age_ms: last.as_ref().map(age_ms),
            last: last.map(|epoch| epoch.name),
            given_up: self.cache.status().counters.volumes_given_up,
            problem: lock(&self.problem).clone(),
        }
    }

    /// How old the oldest change of a volume is that may be in no epoch, in milliseconds. Changes from before this process's time
    /// count from its start.
    fn behind_ms(&self, volume: VolumeId, last: Option<&VolumeInfo>) -> u64 {
        let since_start = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let Some(last) = last else { return since_start };
        let newest = self.cache.status().applied;
        // Locked while epochs are taken, which may take long.
        let has_all = self
            .schedule
            .try_lock()
            .is_ok_and(|schedule| schedule.taken.get(&volume).copied() == Some((last.id, newest)));
        let age_ms = now().saturating_sub(last.created) / 1_000_000;
        if has_all { 0 } else { age_ms.min(since_start) }
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
            let volumes = lock(&self.volumes);
            let due: Vec<VolumeId> = volumes.written.intersection(&volumes.mounted).copied().collect();
            drop(volumes);
            self.take(&mut schedule, due);
        }
    }

    /// Takes epochs of the volumes, all of one moment if each can be cloned, and then deletes the older ones. A
    /// volume of which nothing can have changed since its last epoch keeps that.
    fn take(&self, schedule: &mut EpochSchedule, volumes: impl IntoIterator<Item = VolumeId>) {
        let newest = self.cache.status().applied;
        let is_due = |&volume: &VolumeId| {
            let last = self.epochs_of(volume).last().map(|last| (last.id, newest));
            last.is_none() || schedule.taken.get(&volume).copied() != last
        };
        let due: Vec<VolumeId> = volumes.into_iter().filter(is_due).collect();
        if due.is_empty() {
            return;
        }
        let created = now();
        let new_name = |(index, &volume)| {
            let name = name_of(created);
            let is_taken = index > 0 || self.cache.store().volumes().named(&name).is_some();
            if is_taken { name_with_source(created, volume) } else { name }
        };
        let names: Vec<String> = due.iter().enumerate().map(new_name).collect();
        let new = |name| NewVolume { name, mode: VolumeMode::ReadOnly, created };
        let clones: Vec<_> = due.iter().copied().zip(names.iter().map(|name| new(name))).collect();
        let mut problems = Vec::new();
        let taken = self.clone_each(&clones, &mut problems);
        self.set_problem((!problems.is_empty()).then(|| problems.join("; ")));
        for (volume, epoch) in taken {
            schedule.taken.insert(volume, (epoch, newest));
            let is_outdated = |old: &VolumeInfo| old.id != epoch && !self.is_only_epoch_of_another(old.id);
            let earlier = self.epochs_of(volume).into_iter().chain(self.epoch_before_the_loss(volume));
            earlier.filter(is_outdated).for_each(|old| self.delete(&old));
        }
        self.mark_expendable();
    }

    /// Whether a volume comes from this epoch, and has no epoch of its own yet: it was restored.
    fn is_only_epoch_of_another(&self, epoch: VolumeId) -> bool {
        let all = self.cache.store().volumes().describe();
        all.iter()
            .any(|one| is_restorable(one) && one.from == Some(epoch) && self.epochs_of(one.id).is_empty())
    }

    /// The epoch from which a volume was restored, if its source does not need it: it is deleted, or a damaged state.
    fn epoch_before_the_loss(&self, restored: VolumeId) -> Option<VolumeInfo> {
        let all = self.cache.store().volumes().describe();
        let find = |id: VolumeId| all.iter().find(|one| one.id == id);
        let epoch = find(restored)?.from.and_then(find).filter(|one| is_epoch(one))?;
        (!epoch.from.and_then(find).is_some_and(is_restorable)).then(|| epoch.clone())
    }

    /// Makes clones: all at one point in time, or, if one of them cannot be made, one after the other. Returns
    /// those that exist, each behind its source.
    fn clone_each(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
        problems: &mut Vec<String>,
    ) -> Vec<(VolumeId, VolumeId)> {
        match (self.cache.clone_expendable(clones), clones) {
            (Ok(made), _) => clones.iter().map(|&(source, _)| source).zip(made).collect(),
            (Err(error), [(source, _)]) => {
                let volumes = self.cache.store().volumes().describe();
                let found = volumes.into_iter().find(|volume| volume.id == *source);
                let name = found.map_or_else(|| source.to_string(), |volume| volume.name);
                problems.push(format!("volume {name} could not be cloned: {error}"));
                Vec::new()
            }
            (Err(_), _) => {
                clones.iter().flat_map(|clone| self.clone_each(slice::from_ref(clone), problems)).collect()
            }
        }
    }

    /// Sets the problem for `weir status`, and logs a problem when it is new.
    fn set_problem(&self, problem: Option<String>) {
        let mut known = lock(&self.problem);
        if let Some(new) = problem.as_ref().filter(|&new| known.as_ref() != Some(new)) {
            tracing::warn!("no new epoch: {new}");
        }
        *known = problem;
    }

    /// Lets the cache delete epochs when the store is full, those of volumes that are not mounted included.
    fn mark_expendable(&self) {
        let volumes = lock(&self.volumes);
        let all = self.cache.store().volumes().describe();
        let expendable =
            all.iter().filter(|volume| is_epoch(volume) && !volumes.mounted.contains(&volume.id));
        self.cache.set_expendable_volumes(expendable.map(|volume| volume.id).collect());
    }

    fn delete(&self, epoch: &VolumeInfo) {
        match self.cache.delete_volume(epoch.id) {
            // A user has deleted it, or has mounted it.
            Ok(()) | Err(CacheError::Store(StoreError::NoSuchVolume { .. }) | CacheError::InUse { .. }) => {}
            Err(error) => {
                *lock(&self.problem) = Some(format!("{} could not be deleted: {error}", epoch.name))
            }
        }
    }

    fn epochs_of(&self, volume: VolumeId) -> Vec<VolumeInfo> {
        of_volume(self.cache.store(), volume)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nanoseconds since 1970.
fn now() -> u64 {
    u64::try_from(SystemClock::new().wall_nanos()).unwrap_or(0)
}

/// A writable copy of an epoch, and the volume that can go on from it.
pub(crate) struct EpochCopy {
    pub(crate) copy: VolumeInfo,
    pub(crate) of: VolumeInfo,
}

/// Makes a writable copy of each epoch from which a volume can go on.
///
/// Users continue with a copy, because the next epoch replaces the epoch itself. Copies of an earlier call
/// stay: users may have written to them since.
pub(crate) fn restore(store: &Store, newest: Lsn) -> Result<Vec<EpochCopy>, StoreError> {
    let mut copies: Vec<EpochCopy> = Vec::new();
    let all = store.volumes().describe();
    for of in &all {
        let Some(epoch) = epoch_to_go_on_from(&all, of) else { continue };
        // A volume and an earlier copy of its epoch have the same.
        if copies.iter().any(|other| other.copy.from == Some(epoch.id)) {
            continue;
        }
        let first = format!("{RESTORED}{}", &epoch.name[PREFIX.len()..]);
        let name = volume::free_name(store, |number| volume::numbered(&first, number));
        let new = NewVolume { name: &name, mode: VolumeMode::Writable, created: epoch.created };
        store.volumes().clone_named(epoch.id, &new, newest)?;
        copies.extend(store.volumes().named(&name).map(|copy| EpochCopy { copy, of: of.clone() }));
    }
    Ok(copies)
}

/// The changes to the writable volumes of a store whose buffer is lost: each loses its name to a clone of its newest epoch, if
/// there is one. A volume that lost its name so before keeps what it has.
pub(crate) fn restorations(store: &Store) -> Vec<VolumeRestoration> {
    let date = volume::rfc3339(now() / 1_000_000_000);
    let all = store.volumes().describe();
    let damaged = all.iter().filter(|one| is_restorable(one));
    let mut kept_names = BTreeSet::new();
    let mut restoration = |volume: &VolumeInfo| {
        let epoch = epoch_to_go_on_from(&all, volume);
        let first = kept_name(&volume.name, &date, 1);
        let others = (2..).map(|number| kept_name(&volume.name, &date, number));
        let is_free = |name: &String| !kept_names.contains(name) && store.volumes().named(name).is_none();
        let kept_name = std::iter::once(first).chain(others).find(is_free).expect("a free name");
        kept_names.insert(kept_name.clone());
        let snapshot = epoch.map(|epoch| RestoredSnapshot { id: epoch.id, created: epoch.created });
        VolumeRestoration { volume: volume.id, kept_name, snapshot }
    };
    damaged.map(&mut restoration).collect()
}

/// The name of a volume that loses its name `name`: cut so that it is no longer than names may be.
fn kept_name(name: &str, date: &str, number: u64) -> String {
    let end = if number == 1 { String::new() } else { format!("-{number}") };
    let end = format!("{DAMAGED}{date}{end}");
    // A volume without a name is called by `#` and its number, which is no name.
    let name = name.trim_start_matches('#');
    format!("{}{end}", &name[..name.len().min(VOLUME_NAME_BYTES_MAX - end.len())])
}

/// Whether a mount whose buffer is lost goes on from an epoch of this volume. It does not for a damaged state.
fn is_restorable(volume: &VolumeInfo) -> bool {
    volume.mode == VolumeMode::Writable && !is_damaged_state(&volume.name)
}

/// Whether this is the name of a volume that lost its name to an epoch.
fn is_damaged_state(name: &str) -> bool {
    let date = name.rfind(DAMAGED).map(|at| &name[at + DAMAGED.len()..]);
    let form =
        |date: &str| date.bytes().map(|byte| if byte.is_ascii_digit() { b'0' } else { byte }).collect();
    date.is_some_and(|date| {
        let form: Vec<u8> = form(date);
        form.starts_with(b"0000-00-00T00:00:00Z")
    })
}

/// A volume with everything that was in memory when a buffer failed, if there is one.
pub(crate) fn rescued(store: &Store) -> Option<String> {
    let names = store.volumes().describe().into_iter().map(|volume| volume.name);
    names.into_iter().find(|name| name.starts_with(FINISHED_RESCUE))
}

/// The volume with the state that a volume had when its buffer was lost, if there is one.
pub(crate) fn damaged_state(store: &Store, name: &str) -> Option<String> {
    let of_volume = format!("{name}{DAMAGED}");
    let all = store.volumes().describe().into_iter().map(|volume| volume.name);
    all.filter(|other| other.starts_with(&of_volume)).max()
}

/// Refuses names that only weir may choose.
pub(crate) fn ensure_not_reserved(name: &str) -> Result<(), StoreError> {
    let why = if name.starts_with(PREFIX) {
        format!("names that begin with {PREFIX} are for copies that weir takes itself")
    } else if is_damaged_state(name) {
        format!("names with {DAMAGED} are for volumes whose buffer was lost")
    } else {
        return Ok(());
    };
    Err(StoreError::BadName { name: name.into(), why })
}

fn name_of(created: u64) -> String {
    format!("{PREFIX}{}", volume::rfc3339(created / 1_000_000_000))
}

/// The name of an epoch if another volume has an epoch of the same second.
fn name_with_source(created: u64, source: VolumeId) -> String {
    format!("{}-{source}", name_of(created))
}

/// Whether weir took the volume as an epoch. A user may have chosen such a name when that was allowed.
pub(crate) fn is_epoch(volume: &VolumeInfo) -> bool {
    let is_named_so = || {
        volume.name == name_of(volume.created)
            || volume.from.is_some_and(|from| volume.name == name_with_source(volume.created, from))
    };
    volume.mode == VolumeMode::ReadOnly && is_named_so()
}

/// The epochs of a volume, the newest one last.
fn of_volume(store: &Store, volume: VolumeId) -> Vec<VolumeInfo> {
    let mut all = store.volumes().describe();
    all.retain(|one| one.from == Some(volume) && is_epoch(one));
    all.sort_by_key(|one| one.id);
    all
}

/// The epoch among `all` volumes from which one of them can go on after a loss: its newest. A volume that was restored has none of its
/// own yet, and goes on from the same as before.
fn epoch_to_go_on_from<'v>(all: &'v [VolumeInfo], volume: &VolumeInfo) -> Option<&'v VolumeInfo> {
    let own = all.iter().filter(|one| one.from == Some(volume.id) && is_epoch(one)).max_by_key(|one| one.id);
    let source = || {
        let from = volume.from.filter(|_| is_restorable(volume));
        all.iter().find(|one| Some(one.id) == from && is_epoch(one))
    };
    own.or_else(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cache::CacheSettings;
    use device::StoreId;
    use sim_disk::{PowerSupply, SimClock, SimDisk};
    use store::StoreLayout;

    /// A cache above new simulated disks, with two empty volumes.
    fn cache_with_two_volumes() -> (Cache, [VolumeId; 2]) {
        let power = PowerSupply::new();
        let [store, buffer] =
            [("store", 4096), ("buffer", 256)].map(|(name, blocks)| SimDisk::new(name, blocks, &power, 1));
        let id = StoreId([7; 16]);
        Store::format(&*store, &StoreLayout { id, segment_blocks: Some(16) }).expect("power");
        buffer::Buffer::format(&*buffer, id).expect("power");
        let store = Arc::new(Store::open(store).expect("a store"));
        let cache = Cache::open(store, buffer, Arc::new(SimClock::new()), CacheSettings::default());
        let cache = cache.expect("sound media");
        let volumes = ["first", "second"].map(|name| {
            cache.create_volume(&NewVolume { name, ..NewVolume::default() }, &[]).expect("space")
        });
        (cache, volumes)
    }

    #[test]
    fn volume_that_cannot_be_cloned_holds_up_no_other() {
        let (cache, [first, second]) = cache_with_two_volumes();
        let keeper = EpochKeeper::new(cache, Some(INTERVAL));
        let missing = VolumeId(77);
        keeper.take(&mut lock(&keeper.schedule), [first, missing, second]);
        let epochs = |volume| keeper.epochs_of(volume).len();
        assert_eq!([first, missing, second].map(epochs), [1, 0, 1]);
        let problem = keeper.report(first).problem.expect("a problem");
        assert_eq!(problem, "volume 77 could not be cloned: there is no volume 77");
    }

    #[test]
    fn the_newest_epoch_gives_a_volume_its_state_and_its_source_does_where_it_has_none() {
        let (cache, [first, second]) = cache_with_two_volumes();
        let volumes = cache.store().volumes();
        let epoch = |of: VolumeId, created: u64| {
            let name = name_of(created * 1_000_000_000);
            let new = NewVolume { name: &name, mode: VolumeMode::ReadOnly, created: created * 1_000_000_000 };
            volumes.clone_named(of, &new, Lsn(0)).expect("space")
        };
        let [_, newest] = [epoch(first, 100), epoch(first, 200)];
        let new = NewVolume { name: "restored", mode: VolumeMode::Writable, created: 5 };
        let restored = volumes.clone_named(newest, &new, Lsn(0)).expect("space");
        let all = restorations(cache.store());
        let snapshot = |of: VolumeId| {
            let found = all.iter().find(|one| one.volume == of).expect("a writable volume");
            found.snapshot.map(|snapshot| (snapshot.id, snapshot.created))
        };
        let expected = Some((newest, 200 * 1_000_000_000));
        assert_eq!([first, second, restored].map(snapshot), [expected, None, expected]);
        // The epoch that the restored volume needs is not deleted with the older ones.
        let keeper = EpochKeeper::new(cache.clone(), Some(INTERVAL));
        keeper.take(&mut lock(&keeper.schedule), [first]);
        assert!(volumes.mode(newest).is_some());
        keeper.take(&mut lock(&keeper.schedule), [restored]);
        keeper.take(&mut lock(&keeper.schedule), [first]);
        assert_eq!(keeper.epochs_of(restored).len(), 1);
    }

    #[test]
    fn a_second_loss_copies_the_epoch_of_what_was_restored_after_the_first() {
        let (cache, [damaged, _]) = cache_with_two_volumes();
        let keeper = EpochKeeper::new(cache.clone(), Some(INTERVAL));
        keeper.take(&mut lock(&keeper.schedule), [damaged]);
        let [epoch] = &keeper.epochs_of(damaged)[..] else { panic!("not one epoch") };
        let lose = || {
            let copies = restore(cache.store(), Lsn(0)).expect("space");
            let [EpochCopy { copy, of }] = &copies[..] else { panic!("not one copy") };
            assert_eq!(copy.from, Some(epoch.id));
            (copy.id, of.id)
        };
        let (first, of) = lose();
        assert_eq!(of, damaged);
        cache.store().volumes().delete(damaged, Lsn(0)).expect("space");
        assert_eq!(lose().1, first);
    }

    #[test]
    fn a_restored_volume_gets_an_epoch_at_its_first_unmount() {
        let (cache, [damaged, other]) = cache_with_two_volumes();
        let keeper = EpochKeeper::new(cache.clone(), Some(INTERVAL));
        keeper.take(&mut lock(&keeper.schedule), [damaged]);
        let [EpochCopy { copy, .. }] = &restore(cache.store(), Lsn(0)).expect("space")[..] else {
            panic!("not one copy")
        };
        for volume in
            cache.store().volumes().describe().iter().filter(|one| [copy.id, other].contains(&one.id))
        {
            keeper.note_mount(volume);
        }
        keeper.take_last();
        assert_eq!([copy.id, other].map(|volume| keeper.epochs_of(volume).len()), [1, 0]);
    }

    #[test]
    fn the_epoch_of_a_damaged_state_goes_once_what_was_restored_has_one() {
        let (cache, [damaged, other]) = cache_with_two_volumes();
        let keeper = EpochKeeper::new(cache.clone(), Some(INTERVAL));
        keeper.take(&mut lock(&keeper.schedule), [damaged]);
        let [epoch] = &keeper.epochs_of(damaged)[..] else { panic!("not one epoch") };
        let volumes = cache.store().volumes();
        let new = NewVolume { name: "restored", mode: VolumeMode::Writable, created: 5 };
        let restored = volumes.clone_named(epoch.id, &new, Lsn(0)).expect("space");
        volumes.delete(damaged, Lsn(0)).expect("space");
        keeper.take(&mut lock(&keeper.schedule), [other]);
        assert!(volumes.mode(epoch.id).is_some(), "it is the only epoch of what was restored");
        keeper.take(&mut lock(&keeper.schedule), [restored]);
        assert!(volumes.mode(epoch.id).is_none());
    }

    #[test]
    fn the_epoch_of_two_damaged_states_goes_once_what_was_restored_last_has_one() {
        let (cache, [first, _]) = cache_with_two_volumes();
        let keeper = EpochKeeper::new(cache.clone(), Some(INTERVAL));
        keeper.take(&mut lock(&keeper.schedule), [first]);
        let [epoch] = &keeper.epochs_of(first)[..] else { panic!("not one epoch") };
        let volumes = cache.store().volumes();
        let restore = |name| {
            let new = NewVolume { name, mode: VolumeMode::Writable, created: 5 };
            volumes.clone_named(epoch.id, &new, Lsn(0)).expect("space")
        };
        let lose = |volume, name| volumes.rename(volume, name).expect("space");
        lose(first, "first-damaged-2026-11-28T01:02:03Z");
        let second = restore("first");
        lose(second, "first-damaged-2026-11-28T01:02:04Z");
        let third = restore("first");
        keeper.take(&mut lock(&keeper.schedule), [third]);
        assert!(volumes.mode(epoch.id).is_none());
    }

    #[test]
    fn names_of_damaged_states_have_a_date_and_are_no_longer_than_names_may_be() {
        let date = "2026-11-28T01:02:03Z";
        for name in ["main", "#7", &"x".repeat(127)] {
            for number in [1, 2, 1000] {
                let kept = kept_name(name, date, number);
                assert!(is_damaged_state(&kept), "{kept}");
                store::check_volume_name(&kept).expect("a name");
            }
        }
        for other in ["main", "disk-damaged-by-me", "-damaged-", "a-damaged-2026-11-28"] {
            assert!(!is_damaged_state(other), "{other}");
        }
    }

    #[test]
    fn a_rescued_volume_is_named() {
        let (cache, [first, _]) = cache_with_two_volumes();
        assert_eq!(rescued(cache.store()), None);
        let new = NewVolume { name: "rescued-1", mode: VolumeMode::Writable, created: 5 };
        cache.store().volumes().clone_named(first, &new, Lsn(0)).expect("space");
        assert_eq!(rescued(cache.store()).as_deref(), Some("rescued-1"));
    }
}

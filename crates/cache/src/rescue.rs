//! What a buffer that fails takes with it: everything that is in memory and nowhere else becomes a volume of its own.
//!
//! Nothing changes after the failure, and nothing is written back, so what is in memory is one moment: after every change that
//! anybody was told of, synced or not. It is written over a clone of each volume of which there is something, which itself stays as it
//! was, so that the buffer still fits it should its device come back. Every change keeps its LSN and its place in the order; those that
//! the buffer may not have do not count when it is compared with the store.
//!
//! After a crash in the middle there is a volume `rescuing-…` with some of the pages, which is no file system; the next start
//! deletes it. The one that is whole is called `rescued-…`, which one log entry in the store makes.

use crate::checkpoint::Checkpointer;
use crate::error::CacheError;
use crate::page::Entry;
use crate::pages::Key;
use crate::plant::{PlantedBug, is_planted};
use crate::retry::RETRY_AFTER;
use crate::shared::{Shared, State};
use crate::sync::{Mutex, MutexGuard};
use crate::task::Progress;
use crate::transfers::{Ordered, Pending};
use crate::write_back::{Applied, Dirty, STEP_PAGES, Why, WriteBack, cut_change, with_bases};
use device::{Lsn, ObjectId, PageNo};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{Change, NewVolume, PageRead, Store, StoreError, VolumeId, VolumeMode};

/// How the names of volumes begin that are not whole yet. Users may not choose them.
pub const UNFINISHED: &str = "rescuing-";

/// How those begin that are whole. Users may not choose them either: one that was there already would count as what was rescued.
pub(crate) const RESCUED: &str = "rescued-";

/// Deletes what crashes have left of rescues. What a device keeps from going now goes with the next start.
pub(crate) fn delete_unfinished(store: &Store, newest: Lsn) {
    for volume in store.describe_volumes().iter().filter(|volume| volume.name.starts_with(UNFINISHED)) {
        let _ = store.delete_volume(volume.id, newest);
    }
}

/// How far a rescue is. After a crash a rescue begins anew, if there is anything to rescue.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    /// The volume that has everything.
    volume: Option<String>,
    /// Changes that the store could not take, because what it has there is damaged.
    left_out: u64,
    /// Why the last attempt failed.
    error: Option<CacheError>,
    /// When the next one may be made.
    not_before: Duration,
}

impl Outcome {
    pub(crate) fn volume(&self) -> Option<&str> {
        self.volume.as_deref()
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.left_out
    }

    pub(crate) fn error(&self) -> Option<&CacheError> {
        self.error.as_ref()
    }
}

/// Saves what only memory has.
pub(crate) struct Rescuer {
    shared: Arc<Shared>,
    write_back: Arc<WriteBack>,
    checkpointer: Arc<Checkpointer>,
    /// Held for moments, and no other lock is taken meanwhile.
    outcome: Mutex<Outcome>,
}

/// The copy of each volume.
type Copies = BTreeMap<VolumeId, VolumeId>;

impl Rescuer {
    pub(crate) fn new(
        shared: Arc<Shared>,
        write_back: Arc<WriteBack>,
        checkpointer: Arc<Checkpointer>,
    ) -> Rescuer {
        Rescuer { shared, write_back, checkpointer, outcome: Mutex::default() }
    }

    /// How far it is.
    pub(crate) fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().expect("no panic while holding a rescue's outcome")
    }

    /// True if the buffer has failed and something is in memory alone.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        state.failed().is_some() && state.pages.is_dirty() && self.outcome().volume.is_none()
    }

    /// What to say of a failed buffer when everything is in a volume.
    pub(crate) fn rescued(&self) -> Option<CacheError> {
        let why = self.shared.state().failed().cloned()?;
        Some(CacheError::Rescued { why, volume: self.outcome().volume.clone()? })
    }

    /// Makes the volume, if it is due; not if that was just tried in vain, unless the mount ends.
    pub(crate) fn step(&self, why: Why) -> Progress {
        let _turn = self.write_back.turn();
        let now = self.shared.now();
        let may_try = why == Why::All || now >= self.outcome().not_before;
        if !may_try || !self.is_due(&self.shared.state()) {
            return Progress::Idle;
        }
        self.outcome().not_before = now + RETRY_AFTER;
        let rescued = self.checkpointer.with_space(|| self.rescue());
        let mut outcome = self.outcome();
        match rescued {
            Ok(name) => {
                outcome.volume = Some(name);
                outcome.error = None;
            }
            Err(error) => outcome.error = Some(error),
        }
        Progress::Worked
    }

    /// Returns the names of the volumes. What an attempt that failed has written is written again, which does no harm.
    fn rescue(&self) -> Result<String, CacheError> {
        let (store, durable) = (self.shared.store_io(), self.shared.buffer().durable());
        let number = store.incarnation().0;
        let volumes = self.shared.state().pages.dirty_volumes();
        let suffix = |of: &VolumeId| {
            if *of == VolumeId::MAIN { format!("{number}") } else { format!("{number}-{of}") }
        };
        let created = u64::try_from(self.shared.clock().wall_nanos()).unwrap_or(0);
        let find = |prefix: &str, of: &VolumeId| store.volume_named(&format!("{prefix}{}", suffix(of)));
        let clone = |from, prefix: &str, of: &VolumeId| {
            let name = &*format!("{prefix}{}", suffix(of));
            store.clone_named(from, &NewVolume { name, mode: VolumeMode::Writable, created }, durable)
        };
        // Once one of them is whole, all were.
        if !volumes.iter().any(|of| find(RESCUED, of).is_some()) {
            let mut copies = BTreeMap::new();
            for of in &volumes {
                let begun = find(UNFINISHED, of).map(|begun| begun.id);
                copies.insert(*of, begun.map_or_else(|| clone(*of, UNFINISHED, of), Ok)?);
            }
            self.outcome().left_out = self.write_into(&copies)?;
            for (of, &copy) in &copies {
                clone(copy, RESCUED, of)?;
            }
        }
        for of in &volumes {
            // One that shares everything with the one that is whole.
            if let Some(begun) = find(UNFINISHED, of) {
                if find(RESCUED, of).is_none() {
                    clone(begun.id, RESCUED, of)?;
                }
                store.delete_volume(begun.id, durable)?;
            }
        }
        let names: Vec<String> = volumes.iter().map(|of| format!("{RESCUED}{}", suffix(of))).collect();
        Ok(names.join(", "))
    }

    /// Writes all that is in memory into copies of its volumes. Returns how many changes the store could not take.
    fn write_into(&self, copies: &Copies) -> Result<u64, CacheError> {
        let mut left_out = 0;
        let mut transfers: Vec<Ordered> = {
            let state = self.shared.state();
            state.pages.transfers().iter().map(|one| one.what).collect()
        };
        transfers.sort_by_key(|what| what.lsn);
        let mut since = Lsn(0);
        for what in &transfers {
            left_out += self.rescue_cuts(since..what.lsn, copies)?;
            left_out += self.rescue_transfer(what, copies)?;
            since = what.lsn;
        }
        left_out += self.rescue_cuts(since..Lsn(u64::MAX), copies)?;
        let keys: Vec<Key> = self.shared.state().pages.by_group().map(|(_, key)| key).collect();
        let mut by_object: BTreeMap<ObjectId, Vec<PageNo>> = BTreeMap::new();
        keys.into_iter().for_each(|key| by_object.entry(key.object).or_default().push(key.page));
        for (object, pages) in by_object {
            for some in pages.chunks(STEP_PAGES) {
                let dirty: Vec<Dirty> = {
                    let state = self.shared.state();
                    let entry = |&page: &PageNo| Some((page, state.pages.get(&Key { object, page })?));
                    some.iter().filter_map(entry).filter_map(Dirty::of).collect()
                };
                left_out += self.rescue_pages(object.in_volume(copies[&object.volume]), &dirty)?;
                let mut state = self.shared.state();
                let mut was_reserved = |page: &&PageNo| {
                    state.pages.change(Key { object, page: **page }, Entry::take_reservation)
                };
                let reserved = some.iter().filter(|page| was_reserved(page)).count();
                self.shared.store().release(reserved as u64);
            }
        }
        Ok(left_out)
    }

    /// Cuts with LSNs in a range, each with its own place in the order: what was written after it, and is in the store already, stays.
    /// Returns how many objects could not be deleted, which no name leads to any more. A cut that cannot be made would let what it
    /// took away be read again, so without it nothing is whole.
    fn rescue_cuts(&self, lsns: Range<Lsn>, copies: &Copies) -> Result<u64, CacheError> {
        let all = self.shared.state().pages.cuts().collect::<Vec<_>>().into_iter();
        let mut cuts: Vec<_> = all.filter(|(_, cut)| lsns.contains(&cut.lsn)).collect();
        cuts.sort_by_key(|(_, cut)| cut.lsn);
        if is_planted(PlantedBug::RescueCutsLate) {
            let late = self.shared.buffer().appended().plus(1);
            cuts.iter_mut().for_each(|(_, cut)| cut.lsn = late);
        }
        let copy = |object: ObjectId| object.in_volume(copies[&object.volume]);
        let vector: Vec<Change> = cuts.iter().map(|&(object, cut)| cut_change(copy(object), cut)).collect();
        let refused = self.apply(&vector)?;
        let left = refused.len() as u64;
        match refused.into_iter().find(|(index, _)| !cuts[*index].1.whole_object) {
            Some((_, error)) => Err(error.into()),
            None => Ok(left),
        }
    }

    /// A clone or a move, after what its source had before it, unless the copies have had it: from the store, or an earlier attempt.
    fn rescue_transfer(&self, what: &Ordered, copies: &Copies) -> Result<u64, CacheError> {
        let mut transfer = what.transfer;
        let copy = |object: ObjectId| object.in_volume(copies[&object.volume]);
        (transfer.from, transfer.to) = (copy(transfer.from), copy(transfer.to));
        if self.shared.store_io().has_applied_transfer(&transfer, what.lsn)? {
            return Ok(0);
        }
        let dirty: Vec<Dirty> = {
            let state = self.shared.state();
            let pending = state.pages.transfers().get(what.lsn).into_iter();
            pending.flat_map(Pending::before).filter_map(Dirty::of).collect()
        };
        let mut left_out = 0;
        for some in dirty.chunks(STEP_PAGES) {
            left_out += self.rescue_pages(transfer.from, some)?;
        }
        // What is damaged at its edges is lost in it.
        match self.shared.store_io().merge_deltas_for_transfer(&transfer) {
            Err(error) if error.is_damage() => left_out += 1,
            outcome => outcome?,
        }
        // Where it cannot be made, its target would be what it was before.
        match self.apply(&[Ordered { transfer, ..*what }.change()])?.pop_first() {
            Some((_, error)) => Err(error.into()),
            None => Ok(left_out),
        }
    }

    /// Pages whole, or what the store has with the changes over it. Returns how many could not be: what is damaged stays damaged there,
    /// and is an error to its readers.
    fn rescue_pages(&self, object: ObjectId, pages: &[Dirty]) -> Result<u64, CacheError> {
        let (mut vector, mut left_out) = (Vec::new(), 0);
        for (page, whole) in with_bases(self.shared.store_io(), object, pages) {
            match whole {
                Ok((bytes, page_lsn)) => vector.push(Change::Write { object, page, bytes, page_lsn }),
                Err(error) if error.is_damage() => left_out += 1,
                Err(error) => return Err(error.into()),
            }
        }
        let refused = self.apply(&vector)?;
        left_out += refused.len() as u64;
        self.ensure_unreadable(&vector, refused)?;
        Ok(left_out)
    }

    /// Applies changes of which not all are durable in the buffer, and of some of which it may not even have a record: their LSNs do not
    /// count when the two are compared. Returns those that the store could not take.
    fn apply(&self, vector: &[Change]) -> Result<BTreeMap<usize, StoreError>, CacheError> {
        let (store, mut applied) = (self.shared.store_io(), Applied::default());
        applied.apply_rest(store, &|part| store.apply_bypassed(part), vector)?;
        Ok(applied.refused)
    }

    /// What was refused because something is damaged must be an error to its readers, not what was there before.
    fn ensure_unreadable(
        &self,
        vector: &[Change],
        refused: BTreeMap<usize, StoreError>,
    ) -> Result<(), CacheError> {
        for (index, error) in refused {
            let Change::Write { object, page, .. } = vector[index] else { continue };
            let mut wants = [PageRead::new(object, page)];
            self.shared.store_io().read(&mut wants);
            if !wants[0].result.as_ref().is_err_and(StoreError::is_damage) {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

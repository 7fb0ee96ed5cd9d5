//! Rescue: when the buffer fails for good, everything that is in memory alone is saved in a volume of its
//! own.
//!
//! Nothing changes after the failure, and nothing is written back. So memory is consistent: it is the point
//! in time after every change that was answered, synced or not. The changes are written over a clone of each
//! volume that has some. The volume itself stays as it was, so that the buffer still fits it if its device
//! comes back. Every change keeps its LSN. The LSNs that the buffer may lack do not count when buffer and
//! store are compared.
//!
//! After a crash in the middle there is a volume `rescuing-…` with some of the pages, which is no file
//! system; the next start deletes it. A complete one is named `rescued-…`: one log entry of the store makes
//! it.

use crate::error::CacheError;
use crate::locks::{CacheLock, OrderedGuard, OrderedMutex};
use crate::maintenance::StoreMaintainer;
use crate::page::CachedPage;
use crate::page_table::PageKey;
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::{PendingRangeOp, RangeOp};
use crate::retry::RETRY_AFTER;
use crate::state::{CacheShared, CacheState};
use crate::task::StepProgress;
use crate::write_back::{
    AppliedChanges, DirtyPage, STEP_PAGES, WriteBack, WriteBackReason, merge_with_store, punch_change,
};
use device::{Lsn, ObjectId, PageNo};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::{NewVolume, PageRead, Store, StoreChange, StoreError, VolumeId, VolumeMode};

/// The prefix of names of unfinished volumes. Users may not choose it.
pub const UNFINISHED_RESCUE: &str = "rescuing-";

/// The prefix of names of complete volumes. Users may not choose it: an existing volume would count as
/// rescued.
pub const FINISHED_RESCUE: &str = "rescued-";

/// Deletes unfinished volumes of rescues that a crash cut off. If a device prevents that, the next start
/// tries again.
pub(crate) fn delete_unfinished(store: &Store, newest: Lsn) {
    for volume in
        store.volumes().describe().iter().filter(|volume| volume.name.starts_with(UNFINISHED_RESCUE))
    {
        let _ = store.volumes().delete(volume.id, newest);
    }
}

/// The progress of a rescue. After a crash it begins anew, if there is anything to rescue.
#[derive(Debug, Clone, Default)]
pub(crate) struct RescueOutcome {
    /// The volume that has everything.
    volume: Option<String>,
    /// Changes that the store refused, because what it has there is damaged.
    left_out: u64,
    /// Why the last attempt failed.
    error: Option<CacheError>,
    /// When the next attempt may be made.
    not_before: Duration,
}

impl RescueOutcome {
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

/// Saves what is in memory alone.
pub(crate) struct Rescuer {
    shared: Arc<CacheShared>,
    write_back: Arc<WriteBack>,
    maintainer: Arc<StoreMaintainer>,
    outcome: OrderedMutex<RescueOutcome>,
}

/// The clone of each volume.
type VolumeCopies = BTreeMap<VolumeId, VolumeId>;

impl Rescuer {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        write_back: Arc<WriteBack>,
        maintainer: Arc<StoreMaintainer>,
    ) -> Rescuer {
        let outcome = OrderedMutex::new(CacheLock::RescueOutcome, RescueOutcome::default());
        Rescuer { shared, write_back, maintainer, outcome }
    }

    /// The progress.
    pub(crate) fn outcome(&self) -> OrderedGuard<'_, RescueOutcome> {
        self.outcome.lock()
    }

    /// Whether the buffer has failed and something is in memory alone.
    pub(crate) fn is_due(&self, state: &CacheState) -> bool {
        state.log.failed().is_some() && state.pages.is_dirty() && self.outcome().volume.is_none()
    }

    /// The error of a failed buffer when everything has been saved.
    pub(crate) fn rescued(&self) -> Option<CacheError> {
        let why = self.shared.state().log.failed().cloned()?;
        Some(CacheError::Rescued { why, volume: self.outcome().volume.clone()? })
    }

    /// Makes the volume if a rescue is due. Pauses after a failed attempt, unless the mount ends.
    pub(crate) fn step(&self, why: WriteBackReason) -> StepProgress {
        let _turn = self.write_back.lock();
        let now = self.shared.now();
        let may_try = why == WriteBackReason::All || now >= self.outcome().not_before;
        if !may_try || !self.is_due(&self.shared.state()) {
            return StepProgress::Idle;
        }
        self.outcome().not_before = now + RETRY_AFTER;
        let rescued = self.maintainer.with_space(|| self.rescue());
        let mut outcome = self.outcome();
        match rescued {
            Ok(name) => {
                outcome.volume = Some(name);
                outcome.error = None;
            }
            Err(error) => outcome.error = Some(error),
        }
        StepProgress::Worked
    }

    /// Returns the names of the volumes. Writes again what a failed attempt has written, which does no harm.
    fn rescue(&self) -> Result<String, CacheError> {
        let store = self.shared.store_io();
        let durable = self.shared.buffer().durable_lsn();
        let number = store.incarnation().0;
        let volumes = self.shared.state().pages.dirty_volumes();
        let suffix = |of: &VolumeId| {
            if *of == VolumeId::MAIN { format!("{number}") } else { format!("{number}-{of}") }
        };
        let created = u64::try_from(self.shared.clock().wall_nanos()).unwrap_or(0);
        let find = |prefix: &str, of: &VolumeId| store.volumes().named(&format!("{prefix}{}", suffix(of)));
        let clone = |from, prefix: &str, of: &VolumeId| {
            let name = &*format!("{prefix}{}", suffix(of));
            store.volumes().clone_named(
                from,
                &NewVolume { name, mode: VolumeMode::Writable, created },
                durable,
            )
        };
        // If one is complete, all were.
        if !volumes.iter().any(|of| find(FINISHED_RESCUE, of).is_some()) {
            let mut copies = BTreeMap::new();
            for of in &volumes {
                let begun = find(UNFINISHED_RESCUE, of).map(|begun| begun.id);
                copies.insert(*of, begun.map_or_else(|| clone(*of, UNFINISHED_RESCUE, of), Ok)?);
            }
            self.outcome().left_out = self.write_into(&copies)?;
            for (of, &copy) in &copies {
                clone(copy, FINISHED_RESCUE, of)?;
            }
        }
        for of in &volumes {
            // The unfinished one shares everything with the complete one.
            if let Some(begun) = find(UNFINISHED_RESCUE, of) {
                if find(FINISHED_RESCUE, of).is_none() {
                    clone(begun.id, FINISHED_RESCUE, of)?;
                }
                store.volumes().delete(begun.id, durable)?;
            }
        }
        let names: Vec<String> =
            volumes.iter().map(|of| format!("{FINISHED_RESCUE}{}", suffix(of))).collect();
        Ok(names.join(", "))
    }

    /// Writes everything in memory into clones of its volumes. Returns how many changes the store refused.
    fn write_into(&self, copies: &VolumeCopies) -> Result<u64, CacheError> {
        let mut left_out = 0;
        let mut transfers: Vec<RangeOp> = {
            let state = self.shared.state();
            state.pages.range_ops().iter().map(|one| one.op).collect()
        };
        transfers.sort_by_key(|op| op.lsn);
        let mut since = Lsn(0);
        for op in &transfers {
            left_out += self.rescue_punches(since..op.lsn, copies)?;
            left_out += self.rescue_range_op(op, copies)?;
            since = op.lsn;
        }
        left_out += self.rescue_punches(since..Lsn(u64::MAX), copies)?;
        let keys: Vec<PageKey> = self.shared.state().pages.by_group().map(|(_, key)| key).collect();
        let mut by_object: BTreeMap<ObjectId, Vec<PageNo>> = BTreeMap::new();
        keys.into_iter().for_each(|key| by_object.entry(key.object).or_default().push(key.page));
        for (object, pages) in by_object {
            for some in pages.chunks(STEP_PAGES) {
                let dirty: Vec<DirtyPage> = {
                    let state = self.shared.state();
                    let entry = |&page: &PageNo| Some((page, state.pages.get(&PageKey { object, page })?));
                    some.iter().filter_map(entry).filter_map(DirtyPage::of).collect()
                };
                left_out += self.rescue_pages(object.in_volume(copies[&object.volume]), &dirty)?;
                let mut state = self.shared.state();
                let mut was_reserved = |page: &&PageNo| {
                    state.pages.change(PageKey { object, page: **page }, CachedPage::take_reservation)
                };
                let reserved = some.iter().filter(|page| was_reserved(page)).count();
                state.space.release(reserved as u64);
            }
        }
        Ok(left_out)
    }

    /// Applies the punches with LSNs in a range, each under its own LSN: newer pages that the store has
    /// already stay. Returns how many deletions of objects the store refused; no name leads to these objects
    /// any more. If a punch fails, the rescue does: what it removed would be readable again.
    fn rescue_punches(&self, lsns: Range<Lsn>, copies: &VolumeCopies) -> Result<u64, CacheError> {
        let all = self.shared.state().pages.punches().collect::<Vec<_>>().into_iter();
        let mut punches: Vec<_> = all.filter(|(_, punch)| lsns.contains(&punch.lsn)).collect();
        punches.sort_by_key(|(_, punch)| punch.lsn);
        if is_planted(CacheBug::RescueCutsLate) {
            let late = self.shared.buffer().appended_lsn().plus(1);
            punches.iter_mut().for_each(|(_, punch)| punch.lsn = late);
        }
        let copy = |object: ObjectId| object.in_volume(copies[&object.volume]);
        let vector: Vec<StoreChange> =
            punches.iter().map(|&(object, punch)| punch_change(copy(object), punch)).collect();
        let refused = self.apply(&vector)?;
        let left = refused.len() as u64;
        match refused.into_iter().find(|(index, _)| !punches[*index].1.whole_object) {
            Some((_, error)) => Err(error.into()),
            None => Ok(left),
        }
    }

    /// Applies a range operation after its dependencies, unless the clones have it, from the store or from an
    /// earlier attempt. Returns how many changes the store refused.
    fn rescue_range_op(&self, op: &RangeOp, copies: &VolumeCopies) -> Result<u64, CacheError> {
        let mut transfer = op.transfer;
        let copy = |object: ObjectId| object.in_volume(copies[&object.volume]);
        transfer.from = copy(transfer.from);
        transfer.to = copy(transfer.to);
        if self.shared.store_io().data().has_applied_transfer(&transfer, op.lsn)? {
            return Ok(0);
        }
        let dirty: Vec<DirtyPage> = {
            let state = self.shared.state();
            let pending = state.pages.range_ops().get(op.lsn).into_iter();
            pending.flat_map(PendingRangeOp::dependencies).filter_map(DirtyPage::of).collect()
        };
        let mut left_out = 0;
        for some in dirty.chunks(STEP_PAGES) {
            left_out += self.rescue_pages(transfer.from, some)?;
        }
        // Damaged pages at the edges of the range are lost in the target.
        match self.shared.store_io().data().merge_deltas_for_transfer(&transfer) {
            Err(error) if error.is_damage() => left_out += 1,
            outcome => outcome?,
        }
        // Without it, the target would be what it was before.
        match self.apply(&[RangeOp { transfer, ..*op }.change()])?.pop_first() {
            Some((_, error)) => Err(error.into()),
            None => Ok(left_out),
        }
    }

    /// Writes pages, deltas merged with what the store has. Returns how many failed: damaged pages stay
    /// damaged, and reading them is an error.
    fn rescue_pages(&self, object: ObjectId, pages: &[DirtyPage]) -> Result<u64, CacheError> {
        let mut vector = Vec::new();
        let mut left_out = 0;
        for (page, whole) in merge_with_store(self.shared.store_io(), object, pages) {
            match whole {
                Ok((bytes, page_lsn)) => vector.push(StoreChange::Write { object, page, bytes, page_lsn }),
                Err(error) if error.is_damage() => left_out += 1,
                Err(error) => return Err(error.into()),
            }
        }
        let refused = self.apply(&vector)?;
        left_out += refused.len() as u64;
        self.ensure_unreadable(&vector, refused)?;
        Ok(left_out)
    }

    /// Applies changes that may not be durable in the buffer, or not even be there: their LSNs do not count
    /// when buffer and store are compared. Returns the changes that the store refused, by index.
    fn apply(&self, vector: &[StoreChange]) -> Result<BTreeMap<usize, StoreError>, CacheError> {
        let store = self.shared.store_io();
        let mut applied = AppliedChanges::default();
        applied.apply_rest(store, &|part| store.data().apply_bypassed(part), vector)?;
        Ok(applied.refused)
    }

    /// Makes sure that reading a refused page is an error: it must not show what was there before.
    fn ensure_unreadable(
        &self,
        vector: &[StoreChange],
        refused: BTreeMap<usize, StoreError>,
    ) -> Result<(), CacheError> {
        for (index, error) in refused {
            let StoreChange::Write { object, page, .. } = vector[index] else { continue };
            let mut wants = [PageRead::new(object, page)];
            self.shared.store_io().data().read(&mut wants);
            if !wants[0].result.as_ref().is_err_and(StoreError::is_damage) {
                return Err(error.into());
            }
        }
        Ok(())
    }
}

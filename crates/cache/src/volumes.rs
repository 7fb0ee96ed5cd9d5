//! Clones of volumes, all clones of a call at one point in time, made while other threads go on. If writers
//! waited for the write-back, they would wait too long; if they wrote to pages that are written back, some
//! pages would have newer changes than others.
//!
//! 1. Ordinary write-back, until little is dirty or as much was written back as was dirty at the beginning.
//! 2. The point in time: under one hold of the lock, every dirty page and every punch of all the sources is
//!    frozen. Later changes are newer than the clones.
//! 3. The frozen batch becomes durable in the buffer, then is written back. Nothing newer is written back
//!    meanwhile: this thread holds the write-back lock.
//! 4. One batch of the store's log makes all the clones and names them.
//!
//! After a crash before that batch is durable there is no clone; what was written back would have been anyway.
//! A rollback is a clone whose batch also renames the volume that it replaces.

use crate::commit::Committer;
use crate::dirty_scan::DirtyScan;
use crate::error::CacheError;
use crate::maintenance::StoreMaintainer;
use crate::page_table::PageKey;
use crate::planted_bug::{CacheBug, is_planted};
use crate::range_ops::RangeOp;
use crate::rescue::{FINISHED_RESCUE, UNFINISHED_RESCUE};
use crate::state::CacheShared;
use crate::task::{BackgroundTask, StepProgress};
use crate::used_volumes::{UsedVolumes, VolumeInUse};
use crate::write_back::{FrozenBatch, FrozenPage, STEP_PAGES, WriteBack, WriteBackReason};
use device::{Lsn, ObjectId, PageNo, SharedPage};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{NewVolume, StoreError, StoreVolumes, VolumeId, VolumeMode, VolumeRollback};

/// Dirty pages that may be frozen under one hold of the lock: some milliseconds of it.
const FEW_PAGES: usize = 4096;

/// Creates, clones, renames, rolls back and deletes volumes.
pub(crate) struct VolumeManager {
    used: UsedVolumes,
    shared: Arc<CacheShared>,
    committer: Arc<Committer>,
    write_back: Arc<WriteBack>,
    maintainer: Arc<StoreMaintainer>,
}

impl VolumeManager {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        committer: Arc<Committer>,
        write_back: Arc<WriteBack>,
        maintainer: Arc<StoreMaintainer>,
        used: UsedVolumes,
    ) -> VolumeManager {
        VolumeManager { used, shared, committer, write_back, maintainer }
    }

    pub(crate) fn use_volume(&self, volume: VolumeId) -> Result<VolumeInUse, CacheError> {
        self.used.begin_use(volume)
    }

    pub(crate) fn create(
        &self,
        new: &NewVolume<'_>,
        pages: &[(PageNo, SharedPage)],
    ) -> Result<VolumeId, CacheError> {
        ensure_not_reserved(new.name)?;
        let create = || {
            let _turn = self.write_back.lock();
            self.shared.ensure_works()?;
            // As for a deletion.
            let durable = self.shared.buffer().durable_lsn();
            Ok(self.shared.store_io().volumes().create(new, pages, durable)?)
        };
        let volume = self.maintainer.with_space(create)?;
        self.record_store_batch();
        Ok(volume)
    }

    pub(crate) fn rename(&self, volume: VolumeId, name: &str) -> Result<(), CacheError> {
        ensure_not_reserved(name)?;
        let _used = self.used.begin_use(volume)?;
        let rename = || {
            let _turn = self.write_back.lock();
            self.shared.ensure_works()?;
            Ok(self.shared.store_io().volumes().rename(volume, name)?)
        };
        self.maintainer.with_space(rename)?;
        self.record_store_batch();
        Ok(())
    }

    pub(crate) fn is_used(&self, volume: VolumeId) -> bool {
        self.used.contain(volume)
    }

    pub(crate) fn delete(&self, volume: VolumeId) -> Result<(), CacheError> {
        // No mount may begin meanwhile.
        let _used = self.used.begin_use(volume)?;
        let _turn = self.write_back.lock();
        // Range operations between this volume and others.
        let of_others = |op: &RangeOp| op.volumes().contains(&volume) && op.volumes() != [volume; 2];
        self.maintainer.with_space(|| self.write_back.store_range_ops_locked(&of_others))?;
        // Not the newest appended LSN: the store may name no change that the buffer may still lose.
        let durable = || self.shared.buffer().durable_lsn();
        let delete = || Ok(self.shared.store_io().volumes().delete(volume, durable())?);
        self.maintainer.with_space(delete)?;
        self.record_store_batch();
        let mut state = self.shared.state();
        state.writable.remove(&volume);
        let (reservations, waiters) = state.pages.drop_volume(volume);
        state.space.release(reservations);
        state.reads.unblock();
        state.seeks.unblock();
        state.reads.retry(waiters);
        state.space.admission.note_possible_space();
        state.release_groups();
        drop(state);
        self.shared.wake(BackgroundTask::Commit);
        self.shared.wake(BackgroundTask::Fetch);
        self.shared.wake(BackgroundTask::Checkpoint);
        Ok(())
    }

    /// Makes clones. If segments are short, cleaning makes some first; other threads go on meanwhile.
    pub(crate) fn make_clones(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
    ) -> Result<Vec<VolumeId>, CacheError> {
        self.maintainer.with_space(|| self.clone_once(clones, |_| {}))
    }

    /// Makes clones that are expendable as soon as they exist.
    pub(crate) fn make_expendable_clones(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
    ) -> Result<Vec<VolumeId>, CacheError> {
        let mark = |made: &[VolumeId]| self.maintainer.add_expendable_volumes(made);
        self.maintainer.with_space(|| self.clone_once(clones, mark))
    }

    /// Makes clones, and hands them to `mark` as soon as they exist.
    fn clone_once(
        &self,
        clones: &[(VolumeId, NewVolume<'_>)],
        mark: impl Fn(&[VolumeId]),
    ) -> Result<Vec<VolumeId>, CacheError> {
        if clones.is_empty() {
            return Ok(Vec::new());
        }
        self.shared.store().volumes().check_clones(clones)?;
        clones.iter().try_for_each(|(_, new)| ensure_not_reserved(new.name))?;
        let sources = clones.iter().map(|&(from, _)| from).collect();
        self.at_point_in_time(&sources, |volumes, lsn| {
            let made = volumes.clone_volumes(clones, lsn)?;
            mark(&made);
            Ok(made)
        })
    }

    /// Rolls a volume back. If segments are short, cleaning makes some first.
    pub(crate) fn roll_back(&self, rollback: &VolumeRollback<'_>) -> Result<VolumeId, CacheError> {
        let _used = self.used.begin_use(rollback.volume)?;
        self.maintainer.with_space(|| self.roll_back_once(rollback))
    }

    fn roll_back_once(&self, rollback: &VolumeRollback<'_>) -> Result<VolumeId, CacheError> {
        self.shared.store().volumes().check_rollback(rollback)?;
        ensure_not_reserved(rollback.kept_name)?;
        self.at_point_in_time(&BTreeSet::from([rollback.snapshot]), |volumes, lsn| {
            if is_planted(CacheBug::HalfARollback) {
                return Ok(roll_back_in_halves(volumes, rollback, lsn)?);
            }
            Ok(volumes.roll_back(rollback, lsn)?)
        })
    }

    /// Writes the sources back as they are at one point in time. Then calls `change` with that point's LSN,
    /// while the store has nothing newer of them.
    fn at_point_in_time<T>(
        &self,
        sources: &BTreeSet<VolumeId>,
        change: impl FnOnce(StoreVolumes<'_>, Lsn) -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        self.write_back_most()?;
        let _turn = self.write_back.lock();
        self.shared.ensure_works()?;
        let (lsn, frozen) = self.freeze_volumes(sources);
        let is_of_source = |op: &RangeOp| op.volumes().iter().any(|volume| sources.contains(volume));
        let before = |op: &RangeOp| op.lsn <= lsn && is_of_source(op);
        let written = self.write_back.store_range_ops_locked(&before);
        written.inspect_err(|_| self.write_back.abandon(&frozen)).and_then(|()| {
            self.write_back_frozen(frozen)?;
            if self.shared.buffer().durable_lsn() < lsn {
                self.committer.commit_now().map(drop)
            } else {
                Ok(())
            }
        })?;
        let changed = change(self.shared.store_io().volumes(), lsn)?;
        self.record_store_batch();
        Ok(changed)
    }

    /// Lets the buffer name the store's newest batch, which changed a volume. Otherwise, if a block of the
    /// batch were unreadable at the next start, the log would seem to end before it. The batch is durable
    /// either way, and other calls report a buffer that fails here.
    fn record_store_batch(&self) {
        self.shared.buffer().record_store_batch(self.shared.store().data().durable_batch());
        let _ = self.committer.commit_now();
    }

    /// Writes back roughly what is dirty now, so that little is left to freeze.
    fn write_back_most(&self) -> Result<(), CacheError> {
        // Writers make more pages dirty meanwhile; this ends all the same.
        let steps = self.shared.state().pages.dirty_pages() / STEP_PAGES + 1;
        let mut scan = DirtyScan::once(self.shared.state().space.retries.failures());
        for _ in 0..steps {
            if self.shared.state().pages.dirty_pages() <= FEW_PAGES
                || self.write_back.drain_step(WriteBackReason::All, &mut scan)? == StepProgress::Idle
            {
                break;
            }
        }
        Ok(())
    }

    /// Freezes volumes at one point in time: everything of theirs that is not stored. Returns that point's
    /// LSN. The caller holds the write-back lock, so nothing is being written back.
    fn freeze_volumes(&self, volumes: &BTreeSet<VolumeId>) -> (Lsn, FrozenBatch) {
        if is_planted(CacheBug::SnapshotsOfTwoMoments) && volumes.len() > 1 {
            return self.freeze_one_by_one(volumes);
        }
        let mut state = self.shared.state();
        let is_frozen = |object: ObjectId| volumes.contains(&object.volume);
        let keys: Vec<PageKey> =
            state.pages.by_group().map(|(_, key)| key).filter(|key| is_frozen(key.object)).collect();
        let pages = keys.into_iter().filter_map(|key| FrozenPage::begin(&mut state.pages, key)).collect();
        let punches = state.pages.punches().filter(|&(object, _)| is_frozen(object)).collect();
        let mut frozen = FrozenBatch { pages, punches };
        frozen.sort();
        (self.shared.buffer().appended_lsn(), frozen)
    }

    /// For a planted bug.
    fn freeze_one_by_one(&self, volumes: &BTreeSet<VolumeId>) -> (Lsn, FrozenBatch) {
        let mut newest = Lsn(0);
        let mut together = FrozenBatch::default();
        for &volume in volumes {
            let (lsn, frozen) = self.freeze_volumes(&BTreeSet::from([volume]));
            newest = lsn;
            together.pages.extend(frozen.pages);
            together.punches.extend(frozen.punches);
            // Other threads go on meanwhile.
            let _ = self.committer.commit_now();
        }
        together.sort();
        (newest, together)
    }

    /// For planted bugs: what is frozen becomes newer, or lacks the pages that were written meanwhile.
    fn spoil_frozen(&self, frozen: &mut FrozenBatch) {
        // Other threads go on meanwhile.
        let _ = self.committer.commit_now();
        if is_planted(CacheBug::CloneTooLate) {
            frozen.pages.iter_mut().for_each(|page| page.freeze_again(&self.shared.state().pages));
            return;
        }
        let pages = std::mem::take(&mut frozen.pages);
        let (pages, newer) = pages.into_iter().partition(|page| !page.is_newer(&self.shared.state().pages));
        frozen.pages = pages;
        self.write_back.abandon(&FrozenBatch { pages: newer, punches: Vec::new() });
    }

    /// Writes a frozen batch back in pieces, the punches first.
    fn write_back_frozen(&self, mut frozen: FrozenBatch) -> Result<(), CacheError> {
        let mut pages = std::mem::take(&mut frozen.pages);
        let mut piece = frozen;
        loop {
            let rest = pages.split_off(pages.len().min(STEP_PAGES));
            piece.pages = pages;
            pages = rest;
            if piece.is_empty() {
                return Ok(());
            }
            if is_planted(CacheBug::CloneTooLate) || is_planted(CacheBug::CloneTooEarly) {
                self.spoil_frozen(&mut piece);
            }
            let taken =
                self.write_back.write_frozen(piece).and_then(|refused| match refused.into_iter().next() {
                    Some((_, error)) => Err(error.into()),
                    None => Ok(()),
                });
            if let Err(error) = taken {
                self.write_back.abandon(&FrozenBatch { pages, punches: Vec::new() });
                return Err(error);
            }
            piece = FrozenBatch::default();
        }
    }
}

/// For a planted bug.
fn roll_back_in_halves(
    volumes: StoreVolumes<'_>,
    rollback: &VolumeRollback<'_>,
    lsn: Lsn,
) -> Result<VolumeId, StoreError> {
    let VolumeRollback { volume, snapshot, kept_name, created } = *rollback;
    let replaced = volumes.describe().into_iter().find(|one| one.id == volume);
    let name = &replaced.ok_or(StoreError::NoSuchVolume { volume })?.name;
    volumes.rename(volume, kept_name)?;
    volumes.clone_named(snapshot, &NewVolume { name, mode: VolumeMode::Writable, created }, lsn)
}

/// Refuses names that rescues use.
fn ensure_not_reserved(name: &str) -> Result<(), CacheError> {
    match [UNFINISHED_RESCUE, FINISHED_RESCUE].into_iter().find(|&prefix| name.starts_with(prefix)) {
        Some(prefix) => {
            let why = format!(
                "names that begin with {prefix} are reserved for data that weir saves when a buffer fails"
            );
            Err(StoreError::BadName { name: name.into(), why }.into())
        }
        None => Ok(()),
    }
}

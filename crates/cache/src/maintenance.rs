//! The cache's part in the store's maintenance: it makes space for waiting operations, and admits them. The
//! store decides by itself what is due: see [`StoreMaintenance::step`](store::StoreMaintenance::step).

use crate::admission::AdmissionControl;
use crate::dirty_scan::DirtyScan;
use crate::error::CacheError;
use crate::locks::{CacheLock, OrderedMutex};
use crate::state::{CacheShared, CacheState};
use crate::task::{BackgroundTask, DeferredCompletions, StepProgress};
use crate::used_volumes::UsedVolumes;
use crate::write_back::{WriteBack, WriteBackReason};
use std::sync::Arc;
use store::{MaintenanceProgress, SpacePressure, SpaceSearch, StoreError, StoreSpace, VolumeId};

/// Attempts of work that finds the store full, before its caller gets that error.
const ATTEMPTS_MAX: usize = 8;

/// An attempt to make space, for operations that wait or for pages that found none. It writes everything back
/// before the store cleans: a dirty page may reserve more blocks than it takes, and deletions free some.
struct SpaceAttempt {
    /// The space when it began.
    before: StoreSpace,
    /// The store's part.
    search: SpaceSearch,
    /// The write-back of this attempt: each item is tried once.
    scan: DirtyScan,
}

/// Whether more is free than before, or less is used.
fn is_more(now: &StoreSpace, before: &StoreSpace) -> bool {
    now.free > before.free || now.live + now.reserved < before.live + before.reserved
}

/// Lets the store maintain itself, and makes space for waiting operations.
pub(crate) struct StoreMaintainer {
    shared: Arc<CacheShared>,
    admission: AdmissionControl,
    write_back: Arc<WriteBack>,
    making_space: OrderedMutex<Option<SpaceAttempt>>,
    /// Volumes that are deleted before an operation is told that the store is full.
    expendable: OrderedMutex<Vec<VolumeId>>,
    used: UsedVolumes,
}

impl StoreMaintainer {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        admission: AdmissionControl,
        write_back: Arc<WriteBack>,
        used: UsedVolumes,
    ) -> StoreMaintainer {
        let making_space = OrderedMutex::new(CacheLock::SpaceAttempt, None);
        let expendable = OrderedMutex::new(CacheLock::ExpendableVolumes, Vec::new());
        StoreMaintainer { shared, admission, write_back, making_space, expendable, used }
    }

    /// Whether no thread makes space.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_not_making_space(&self) -> bool {
        self.making_space.is_free()
    }

    /// Whether an operation waits for space, or the store has something to do.
    pub(crate) fn is_due(&self, state: &CacheState) -> bool {
        state.space.admission.wants_space() || self.shared.store().maintenance().is_due(self.shared.now())
    }

    pub(crate) fn step(&self) -> StepProgress {
        let wants_space = self.shared.state().space.admission.wants_space();
        let outcome = if wants_space {
            self.make_space()
        } else {
            match self.maintain(SpacePressure::None) {
                Ok(MaintenanceProgress::Idle) => return StepProgress::Idle,
                outcome => outcome.map(drop).map_err(CacheError::from),
            }
        };
        if outcome.is_err() {
            self.shared.state().counters.checkpoint_errors += 1;
            return StepProgress::Idle;
        }
        StepProgress::Worked
    }

    /// Makes a step of the cleaning that is owed for earlier pages, or allocates in its place. `false` if
    /// none is owed, or it failed: pages are written back all the same.
    pub(crate) fn clean_before_write_back(&self) -> bool {
        let progress = self.maintain(SpacePressure::WriteBack);
        self.shared.state().counters.checkpoint_errors += u64::from(progress.is_err());
        progress.is_ok_and(|progress| progress != MaintenanceProgress::Idle)
    }

    /// Lets the store make a step.
    fn maintain(&self, pressure: SpacePressure<'_>) -> Result<MaintenanceProgress, StoreError> {
        let progress = self.shared.store_io().maintenance().step(self.shared.clock(), pressure)?;
        if let MaintenanceProgress::Worked { may_have_space: true } = progress {
            // An operation that was told that the store is full may try again.
            self.shared.state().space.admission.note_possible_space();
        }
        Ok(progress)
    }

    /// Makes the store larger. Operations that wait for space get some.
    pub(crate) fn grow(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        let grown = self.shared.store_io().grow(blocks);
        let mut completions = DeferredCompletions::default();
        {
            let mut state = self.shared.state();
            // Also after an error: the store may have grown.
            state.space.admission.note_possible_space();
            state.space.retries.may_have_space(self.shared.now());
            self.admission.admit_waiting(state.for_admission(), &mut completions);
        }
        completions.deliver();
        self.write_back.retry_for_space();
        self.shared.wake(BackgroundTask::Checkpoint);
        Ok(grown?)
    }

    /// Writes everything back. If the store has no space for that, cleans as long as that makes some.
    pub(crate) fn write_all_back(&self) -> Result<(), CacheError> {
        let mut scan = DirtyScan::once(self.shared.state().space.retries.failures());
        loop {
            let full = match self.write_back.drain_step(WriteBackReason::All, &mut scan) {
                Ok(StepProgress::Worked) => continue,
                Ok(StepProgress::Idle) => {
                    let mut state = self.shared.state();
                    let CacheState { space, pages, .. } = &mut *state;
                    let Some(error) = space.retries.space_error(pages) else {
                        // A page may have failed and been removed since. If it is written to again, it has not failed yet.
                        space.retries.retain(|item| item.is_pending(pages));
                        return Ok(());
                    };
                    scan = DirtyScan::once(space.retries.failures());
                    error.clone().into()
                }
                Err(error) if error.is_full() => error,
                Err(error) => return Err(error),
            };
            if !self.gain_space()? {
                return Err(full);
            }
        }
    }

    /// Gets free segments in the caller's thread. `false` if there are no more than before.
    fn gain_space(&self) -> Result<bool, CacheError> {
        Ok(self.shared.store_io().maintenance().gain_space(self.shared.clock())?)
    }

    /// Does `work` in the caller's thread. If segments are short, gains some and does it again.
    pub(crate) fn with_space<T>(
        &self,
        mut work: impl FnMut() -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        for _ in 0..ATTEMPTS_MAX {
            match work() {
                Err(error) if error.is_full() && self.gain_space()? => {}
                outcome => return outcome,
            }
        }
        work()
    }

    /// One step towards space, for waiting operations or for pages that found none; then admits what fits.
    fn make_space(&self) -> Result<(), CacheError> {
        let mut making_space = self.making_space.lock();
        let free = || {
            let failures = {
                let mut state = self.shared.state();
                let CacheState { space, pages, .. } = &mut *state;
                space.settle(pages);
                space.retries.failures()
            };
            (self.shared.store().space().now(), failures)
        };
        let attempt = making_space.get_or_insert_with(|| {
            let (before, failures) = free();
            let scan = DirtyScan::once(failures);
            SpaceAttempt { before, search: SpaceSearch::default(), scan }
        });
        let outcome = self.space_step(attempt);
        let (now, _) = free();
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        let over = !matches!(outcome, Ok(StepProgress::Worked));
        let is_more = is_more(&now, &attempt.before);
        if over {
            // If `total` grew, the host file system gave space. Even if that is used already, or what
            // cleaning made, there may be more, so the attempt was not in vain. Trimmed segments lower `total`.
            let was_in_vain = !is_more && now.total <= attempt.before.total && !attempt.search.makes_more();
            state.space.admission.note_attempt_ended(was_in_vain);
        }
        if is_more {
            state.space.retries.may_have_space(self.shared.now());
        }
        if !over {
            state.space.retries.restart_space_patience(self.shared.now());
        }
        self.admission.admit_waiting(state.for_admission(), &mut completions);
        let CacheState { space, pages, .. } = &mut *state;
        let needed = space.admission.is_waiting()
            || space.retries.needs_space()
            || space.retries.space_error(pages).is_some();
        if over || !needed {
            if !needed {
                space.admission.cancel_space_request();
            }
            *making_space = None;
        }
        drop(state);
        drop(making_space);
        completions.deliver();
        if is_more {
            self.write_back.retry_for_space();
        }
        outcome.map(drop)
    }

    /// One step. `Idle` if nothing is left to do.
    fn space_step(&self, attempt: &mut SpaceAttempt) -> Result<StepProgress, CacheError> {
        let SpaceAttempt { search, scan, .. } = attempt;
        search.set_expendable_volume(!self.expendable.lock().is_empty());
        loop {
            let progress = match self.maintain(SpacePressure::Waiting(search)) {
                // Pages are written back all the same.
                Err(_) if !search.is_written_back() => {
                    self.shared.state().counters.checkpoint_errors += 1;
                    MaintenanceProgress::NeedsWriteBack
                }
                outcome => outcome?,
            };
            match progress {
                MaintenanceProgress::NeedsDeletion if self.delete_expendable_volume() => {
                    return Ok(StepProgress::Worked);
                }
                MaintenanceProgress::SearchEnded
                    if !search.makes_more() && self.delete_expendable_volume() =>
                {
                    return Ok(StepProgress::Worked);
                }
                MaintenanceProgress::NeedsDeletion => search.set_expendable_volume(false),
                MaintenanceProgress::NeedsWriteBack => {
                    match self.write_back.drain_step(WriteBackReason::Space, scan) {
                        Ok(StepProgress::Worked) => return Ok(StepProgress::Worked),
                        // Pages that found no space may find some after cleaning.
                        Ok(StepProgress::Idle) => {}
                        Err(error) if error.is_full() => {}
                        Err(error) => return Err(error),
                    }
                    search.note_written_back();
                }
                MaintenanceProgress::SearchEnded => return Ok(StepProgress::Idle),
                MaintenanceProgress::Idle | MaintenanceProgress::Worked { .. } => {
                    return Ok(StepProgress::Worked);
                }
            }
        }
    }

    /// Deletes the oldest expendable volume that nobody uses. If a crash undoes that, the volume is back, which does
    /// no harm.
    fn delete_expendable_volume(&self) -> bool {
        let expendable = self.expendable.lock().clone();
        // A mount of the others began after they were set.
        let mut unused =
            expendable.iter().filter_map(|&volume| Some((volume, self.used.begin_use(volume).ok()?)));
        let Some((volume, _used)) = unused.next() else { return false };
        let deleted = self.shared.store_io().volumes().delete(volume, self.shared.buffer().durable_lsn());
        if deleted.is_ok() {
            self.shared.state().counters.volumes_given_up += 1;
        }
        // Another thread may have deleted it. After another error, cleaning may make the space that the
        // deletion needs.
        let is_gone = matches!(deleted, Ok(()) | Err(StoreError::NoSuchVolume { .. }));
        if is_gone {
            self.expendable.lock().retain(|&one| one != volume);
        }
        is_gone
    }

    /// Adds expendable volumes.
    pub(crate) fn add_expendable_volumes(&self, volumes: &[VolumeId]) {
        self.expendable.lock().extend(volumes);
    }

    /// Replaces the expendable volumes.
    pub(crate) fn set_expendable_volumes(&self, volumes: Vec<VolumeId>) {
        *self.expendable.lock() = volumes;
    }
}

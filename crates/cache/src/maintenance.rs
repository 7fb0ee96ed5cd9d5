//! Maintenance of the store: short recovery by checkpoints, and free space by cleaning and freeing, a bounded
//! step at a time.

use crate::admission::AdmissionControl;
use crate::dirty_scan::DirtyScan;
use crate::error::CacheError;
use crate::retry::RETRY_AFTER;
use crate::state::{CacheShared, CacheState};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::task::{BackgroundTask, DeferredCompletions, StepProgress};
use crate::write_back::{WriteBack, WriteBackReason};
use std::sync::Arc;
use std::time::Duration;
use store::{CleaningOutcome, StoreError, VolumeId};

/// Rounds of cleaning in one attempt to make space, before a waiting writer is told that the store is full.
const CLEANING_ROUNDS_MAX: usize = 8;

/// If nothing was written back for this long, stored deltas are merged into their pages: then these are read
/// as fast as pages that were stored whole. Freed segments are trimmed no more often than this, either.
const QUIET_PERIOD: Duration = Duration::from_secs(5);

/// How long segments that could not be emptied are left alone while an operation waits for space.
const RETRY_STUCK_AFTER: Duration = Duration::from_secs(60);

/// Reads of the store's log after which a checkpoint is due: those of 256 MiB of log in extents of 16 MiB. A
/// checkpoint comes earlier if extents are shorter, or if the log has too many entries for an index block to
/// sum them up.
const LOG_READS_MAX: u64 = 16;

/// An attempt to make space, for operations that wait or for pages that found none. It writes everything back
/// first: a dirty page may reserve more blocks than it takes, and deletions free some. Writers wait
/// meanwhile, so the attempt must end.
struct SpaceAttempt {
    /// The space when it began.
    before: SpaceFound,
    is_written_back: bool,
    is_merged: bool,
    /// Reserved blocks when the host file system was last asked for more space. Until an operation gets a
    /// reservation, more would be of no use.
    allocated_at: Option<u64>,
    /// The write-back of this attempt: each item is tried once.
    scan: DirtyScan,
    rounds: usize,
    /// Pages moved when this round last asked for two checkpoints.
    checkpoint_asked_at: Option<u64>,
}

/// The store's space at one time.
#[derive(Clone, Copy)]
struct SpaceFound {
    /// Blocks in free segments.
    free: u64,
    /// Blocks that are live or reserved.
    used: u64,
    /// All blocks, as far as the host file system has space for them.
    total: u64,
}

impl SpaceFound {
    fn is_more_than(&self, before: &SpaceFound) -> bool {
        self.free > before.free || self.used < before.used
    }
}

/// Keeps recovery short and space free.
pub(crate) struct StoreMaintainer {
    shared: Arc<CacheShared>,
    admission: AdmissionControl,
    write_back: Arc<WriteBack>,
    /// Held for a step. Taken before the write-back lock.
    making_space: Mutex<Option<SpaceAttempt>>,
    /// The store's batch number when there was nothing to clean.
    nothing_to_clean_as_of: AtomicU64,
    /// The store's batch number when dead segments were last trimmed because the host file system was full.
    trimmed_as_of: AtomicU64,
    /// Held for moments. No other lock is taken meanwhile.
    pauses: Mutex<MaintenancePauses>,
    /// Volumes that are deleted before an operation is told that the store is full. Locked like `pauses`.
    expendable: Mutex<Vec<VolumeId>>,
}

/// When work that failed, or rests, may be tried again.
#[derive(Clone, Copy, Default)]
struct MaintenancePauses {
    /// Freeing the blocks of deleted files and volumes.
    free_not_before: Duration,
    /// Blocks were freed: two checkpoints make free segments of them.
    has_freed: bool,
    /// These two checkpoints, if no operation waits for space.
    trim_not_before: Duration,
    /// Asking the host file system for space.
    allocate_not_before: Duration,
    /// Merging deltas while nothing is written back.
    merge_not_before: Duration,
    /// The number of stored pages when that was last checked.
    stored: u64,
    /// Retrying segments that could not be emptied.
    retry_not_before: Duration,
}

impl StoreMaintainer {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        admission: AdmissionControl,
        write_back: Arc<WriteBack>,
    ) -> StoreMaintainer {
        StoreMaintainer {
            shared,
            admission,
            write_back,
            making_space: Mutex::default(),
            nothing_to_clean_as_of: AtomicU64::new(u64::MAX),
            trimmed_as_of: AtomicU64::new(0),
            pauses: Mutex::default(),
            expendable: Mutex::default(),
        }
    }

    fn pauses(&self) -> MutexGuard<'_, MaintenancePauses> {
        self.pauses.lock().expect("no panic while holding pauses")
    }

    /// Whether no thread makes space.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_not_making_space(&self) -> bool {
        self.making_space.try_lock().is_ok()
    }

    /// Whether recovery would take too long, an operation waits for space, or other maintenance is due.
    pub(crate) fn is_due(&self, state: &CacheState) -> bool {
        state.admission.wants_space()
            || self.checkpoint_is_due()
            || self.allocation_is_due()
            || self.freeing_is_due()
            || self.trimming_is_due()
            || self.cleaning_is_due()
            || self.merging_is_due(state)
    }

    fn checkpoint_is_due(&self) -> bool {
        self.shared.store().blocks_since_checkpoint() >= self.shared.settings().checkpoint_blocks
            || self.shared.store().reads_since_checkpoint() >= LOG_READS_MAX
            || self.shared.store().has_many_dirty_nodes()
    }

    /// Whether cleaning is owed for what was written. After a step that found nothing to clean, not before
    /// something is written.
    fn cleaning_is_due(&self) -> bool {
        self.shared.store().cleaning_is_due()
            && self.shared.store().counters().batches != self.nothing_to_clean_as_of.load(Ordering::Relaxed)
    }

    /// A step of cleaning before pages are written back, if cleaning is owed for earlier pages. So free space
    /// is gained as fast as it is used, and a writer that waits for a write-back waits for its share of the
    /// cleaning, never for a whole segment. `false` if none is owed or the store cannot clean; pages are
    /// stored all the same.
    pub(crate) fn clean_before_write_back(&self) -> bool {
        if !self.cleaning_is_due() {
            return false;
        }
        // Asking the host file system for space costs less than cleaning.
        if self.allocation_is_due() && self.allocate_ahead() {
            return true;
        }
        let cleaned = self.clean_step();
        self.shared.state().counters.checkpoint_errors += u64::from(cleaned.is_err());
        cleaned.is_ok()
    }

    pub(crate) fn step(&self) -> StepProgress {
        let state = self.shared.state();
        let wanted = state.admission.wants_space();
        let freeing = self.freeing_is_due();
        let allocating = self.allocation_is_due();
        let merging = self.merging_is_due(&state);
        drop(state);
        let outcome = if wanted {
            self.make_space()
        } else if self.checkpoint_is_due() {
            self.shared.store_io().checkpoint().map_err(CacheError::from)
        } else if allocating && self.allocate_ahead() {
            // If the host file system has none, there is other work.
            Ok(())
        } else if freeing {
            self.free_step()
        } else if self.cleaning_is_due() {
            self.clean_step()
        } else if self.host_is_full() {
            self.trim_dead_segments()
        } else if self.trimming_is_due() {
            self.trim_freed()
        } else if merging {
            self.merge_step()
        } else {
            return StepProgress::Idle;
        };
        if outcome.is_err() {
            self.shared.state().counters.checkpoint_errors += 1;
            return StepProgress::Idle;
        }
        StepProgress::Worked
    }

    /// Whether to ask the host file system for space: more is needed soon, and the last refusal was a while
    /// ago.
    fn allocation_is_due(&self) -> bool {
        self.shared.store().allocation_is_due() && self.shared.now() >= self.pauses().allocate_not_before
    }

    /// Asks the host file system for space. If it has none, pauses. If it has some, a writer that was told
    /// that the store is full may try again.
    fn allocate_ahead(&self) -> bool {
        let outcome = self.shared.store().allocate_ahead();
        match outcome {
            Ok(true) => self.shared.state().admission.note_possible_space(),
            _ => self.pauses().allocate_not_before = self.shared.now() + RETRY_AFTER,
        }
        outcome.is_ok_and(|has_space| has_space)
    }

    /// Asks for more than that, because an operation needs it. `false` if there is none.
    pub(crate) fn allocate_more(&self) -> bool {
        if self.shared.now() < self.pauses().allocate_not_before {
            return false;
        }
        let has_more = self.shared.store().allocate_more().is_ok_and(|has_more| has_more);
        if !has_more {
            self.pauses().allocate_not_before = self.shared.now() + RETRY_AFTER;
        }
        has_more
    }

    /// Whether an operation needs space of the host file system, and segments may have died since they were
    /// last trimmed for that.
    fn host_is_full(&self) -> bool {
        self.shared.store().counters().batches != self.trimmed_as_of.load(Ordering::Relaxed)
            && self.shared.store().host_fs_free_bytes_if_full().is_some()
    }

    /// Trims dead segments, without waiting for a checkpoint that is due for other reasons.
    fn trim_dead_segments(&self) -> Result<(), CacheError> {
        let batches = self.shared.store().counters().batches;
        self.checkpoint_twice()?;
        self.trimmed_as_of.store(batches, Ordering::Relaxed);
        Ok(())
    }

    /// Whether deleted files and volumes have blocks that can be freed now.
    fn freeing_is_due(&self) -> bool {
        self.shared.store().is_freeing() && self.shared.now() >= self.pauses().free_not_before
    }

    /// Frees a step's worth of blocks of deleted files and volumes.
    fn free_step(&self) -> Result<(), CacheError> {
        let freed = self.shared.store_io().free_deleted_step();
        match &freed {
            // A writer that was told that the store is full may try again.
            Ok(_) => {
                self.shared.state().admission.note_possible_space();
                self.pauses().has_freed = true;
            }
            Err(_) => self.pauses().free_not_before = self.shared.now() + RETRY_AFTER,
        }
        Ok(freed.map(drop)?)
    }

    /// Whether freed blocks are to become free segments, which a sparse file trims, though nothing else asks
    /// for a checkpoint.
    fn trimming_is_due(&self) -> bool {
        let MaintenancePauses { has_freed, trim_not_before, .. } = *self.pauses();
        has_freed && self.shared.now() >= trim_not_before && !self.shared.store().is_freeing()
    }

    fn trim_freed(&self) -> Result<(), CacheError> {
        self.pauses().trim_not_before = self.shared.now() + QUIET_PERIOD;
        self.checkpoint_twice()?;
        // Blocks that are freed meanwhile are trimmed next time.
        let is_freeing = self.shared.store().is_freeing();
        self.pauses().has_freed = is_freeing;
        Ok(())
    }

    /// Whether deltas are to be merged: nothing was written back for a while.
    fn merging_is_due(&self, state: &CacheState) -> bool {
        let now = self.shared.now();
        let stored = state.counters.pages_stored;
        let mut pauses = self.pauses();
        if pauses.stored != stored {
            pauses.stored = stored;
            pauses.merge_not_before = now + QUIET_PERIOD;
        }
        now >= pauses.merge_not_before && self.shared.store().idle_merge_is_due()
    }

    /// Merges the deltas of a leaf, then leaves the devices alone for as long as that took. Pages that cannot
    /// be merged stay as they are.
    fn merge_step(&self) -> Result<(), CacheError> {
        let begun = self.shared.now();
        let merged = self.shared.store_io().idle_merge_step();
        let now = self.shared.now();
        let pause = if merged.is_ok() { now - begun } else { RETRY_AFTER };
        self.pauses().merge_not_before = now + pause;
        match merged {
            Err(error) if !error.is_full() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// One step of cleaning, if it is still owed, before writers need the space.
    fn clean_step(&self) -> Result<(), CacheError> {
        let batches = self.shared.store().counters().batches;
        match self.shared.store_io().clean_step_if_due()? {
            None | Some(CleaningOutcome::Working) => {}
            Some(CleaningOutcome::RoundEnded(_)) => self.checkpoint_twice()?,
            Some(CleaningOutcome::NeedsCheckpoint) => {
                self.checkpoint_twice()?;
                if self.shared.store_io().clean_step()? == CleaningOutcome::NeedsCheckpoint {
                    self.shared.store().give_up_round();
                }
            }
            Some(CleaningOutcome::Idle) => {
                self.checkpoint_twice()?;
                self.nothing_to_clean_as_of.store(batches, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Makes the store larger. Operations that wait for space get some.
    pub(crate) fn grow(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        let grown = self.shared.store_io().grow(blocks);
        // A sparse file may have had no segments left to ask for.
        self.pauses().allocate_not_before = Duration::ZERO;
        let mut completions = DeferredCompletions::default();
        {
            let mut state = self.shared.state();
            // Also after an error: the store may have grown.
            state.admission.note_possible_space();
            state.retries.may_have_space(self.shared.now());
            self.admission.admit_waiting(&mut state, &mut completions);
        }
        completions.deliver();
        self.write_back.retry_for_space();
        self.shared.wake(BackgroundTask::Checkpoint);
        Ok(grown?)
    }

    /// Makes two checkpoints. A segment is free when two in a row do not need it.
    pub(crate) fn checkpoint_twice(&self) -> Result<(), CacheError> {
        Ok(self.shared.store_io().checkpoint_twice()?)
    }

    /// Writes everything back. If the store has no space for that, cleans as long as that makes some.
    pub(crate) fn write_all_back(&self) -> Result<(), CacheError> {
        let mut scan = DirtyScan::once(self.shared.state().retries.failures());
        loop {
            let full = match self.write_back.drain_step(WriteBackReason::All, &mut scan) {
                Ok(StepProgress::Worked) => continue,
                Ok(StepProgress::Idle) => {
                    let state = self.shared.state();
                    let Some(error) = state.retries.space_error(&state.pages) else {
                        return Ok(());
                    };
                    scan = DirtyScan::once(state.retries.failures());
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

    /// Gets free segments in the caller's thread: from the host file system, from deleted files and volumes,
    /// or by a round of cleaning. `false` if there are no more than before.
    fn gain_space(&self) -> Result<bool, CacheError> {
        if self.allocate_more() {
            return Ok(true);
        }
        let before = self.shared.store().space().free;
        // Freeing what was deleted copies nothing. An unreadable node keeps the nodes and pages below it from
        // being freed, and nothing else.
        while self.shared.store_io().free_deleted_step().unwrap_or(false) {}
        let cleaned = self.shared.store_io().clean_round()?;
        self.checkpoint_twice()?;
        Ok(cleaned || self.shared.store().space().free > before)
    }

    /// Does `work` in the caller's thread. If segments are short, gains some and does it again.
    pub(crate) fn with_space<T>(
        &self,
        mut work: impl FnMut() -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        for _ in 0..CLEANING_ROUNDS_MAX {
            match work() {
                Err(error) if error.is_full() && self.gain_space()? => {}
                outcome => return outcome,
            }
        }
        work()
    }

    /// One step towards space, for waiting operations or for pages that found none; then admits what fits.
    fn make_space(&self) -> Result<(), CacheError> {
        let mut making_space = self.making_space.lock().expect("no panic while making space");
        let free = || {
            let failures = {
                let mut state = self.shared.state();
                state.admission.release_spare(self.shared.store());
                self.shared.store().set_reservation_estimate(state.reservation_estimate());
                state.retries.failures()
            };
            let space = self.shared.store().space();
            (SpaceFound { free: space.free, used: space.live + space.reserved, total: space.total }, failures)
        };
        let attempt = making_space.get_or_insert_with(|| {
            self.try_stuck_segments_again();
            let (before, failures) = free();
            let scan = DirtyScan::once(failures);
            SpaceAttempt {
                before,
                is_written_back: false,
                is_merged: false,
                scan,
                allocated_at: None,
                rounds: 0,
                checkpoint_asked_at: None,
            }
        });
        let expendable = self.expendable().len();
        let outcome = self.space_step(attempt);
        let (now, _) = free();
        let mut completions = DeferredCompletions::default();
        let mut state = self.shared.state();
        // A volume that became expendable during this step is deleted before the attempt counts as in vain.
        let over = match outcome {
            Ok(StepProgress::Worked) => false,
            Ok(StepProgress::Idle) => self.expendable().len() <= expendable,
            Err(_) => true,
        };
        let is_more = now.is_more_than(&attempt.before);
        if over {
            // Space from the host file system may be used up already, and there may be more; unless segments
            // were trimmed.
            state.admission.note_attempt_ended(!is_more && now.total <= attempt.before.total);
        }
        if is_more {
            state.retries.may_have_space(self.shared.now());
        }
        if !over {
            state.retries.restart_space_patience(self.shared.now());
        }
        self.admission.admit_waiting(&mut state, &mut completions);
        let needed = state.admission.is_waiting()
            || state.retries.needs_space()
            || state.retries.space_error(&state.pages).is_some();
        if over || !needed {
            if !needed {
                state.admission.cancel_space_request();
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

    /// Deletes the oldest expendable volume. If a crash undoes that, the volume is back, which does no harm.
    fn delete_expendable_volume(&self) -> bool {
        // First the blocks of the last deleted one are freed.
        let next = if self.freeing_is_due() { None } else { self.expendable().first().copied() };
        let Some(volume) = next else { return false };
        let deleted = self.shared.store_io().delete_volume(volume, self.shared.buffer().durable_lsn());
        if deleted.is_ok() {
            self.shared.state().counters.volumes_given_up += 1;
        }
        // Another thread may have deleted it. After another error, cleaning may make the space that the
        // deletion needs.
        let is_gone = matches!(deleted, Ok(()) | Err(StoreError::NoSuchVolume { .. }));
        if is_gone {
            self.expendable().retain(|&one| one != volume);
        }
        is_gone
    }

    fn expendable(&self) -> MutexGuard<'_, Vec<VolumeId>> {
        self.expendable.lock().expect("no panic while holding a list")
    }

    /// Adds an expendable volume.
    pub(crate) fn add_expendable_volume(&self, volume: VolumeId) {
        self.expendable().push(volume);
    }

    /// Replaces the expendable volumes.
    pub(crate) fn set_expendable_volumes(&self, volumes: Vec<VolumeId>) {
        *self.expendable() = volumes;
    }

    /// Once in a while: segments that could not be read may be readable now.
    fn try_stuck_segments_again(&self) {
        let now = self.shared.now();
        let mut pauses = self.pauses();
        if now >= pauses.retry_not_before {
            pauses.retry_not_before = now + RETRY_STUCK_AFTER;
            drop(pauses);
            self.shared.store().retry_stuck_segments();
        }
    }

    /// One step. `Idle` if nothing is left to do.
    fn space_step(&self, attempt: &mut SpaceAttempt) -> Result<StepProgress, CacheError> {
        let reserved = self.shared.store().space().reserved;
        let is_more = attempt.allocated_at.is_none_or(|before| reserved > before);
        if is_more && self.allocate_more() {
            attempt.allocated_at = Some(reserved);
            return Ok(StepProgress::Worked);
        }
        if self.delete_expendable_volume() {
            return Ok(StepProgress::Worked);
        }
        // A node that cannot be read keeps what is below it from being freed, but does not keep cleaning from
        // making space.
        if self.freeing_is_due() && self.free_step().is_ok() {
            return Ok(StepProgress::Worked);
        }
        if !attempt.is_written_back {
            if self.clean_before_write_back() {
                return Ok(StepProgress::Worked);
            }
            match self.write_back.drain_step(WriteBackReason::Space, &mut attempt.scan) {
                Ok(StepProgress::Worked) => return Ok(StepProgress::Worked),
                // Pages that found no space may find some after cleaning.
                Ok(StepProgress::Idle) => attempt.is_written_back = true,
                Err(error) if error.is_full() => attempt.is_written_back = true,
                Err(error) => return Err(error),
            }
            self.shared.store_io().checkpoint()?;
            return Ok(StepProgress::Worked);
        }
        if !attempt.is_merged {
            // Deltas take space that their pages, once merged, do not. If there is no space for merging,
            // cleaning may make some.
            attempt.is_merged = !self.shared.store_io().idle_merge_step().unwrap_or(false);
            return Ok(StepProgress::Worked);
        }
        if attempt.rounds == CLEANING_ROUNDS_MAX || !self.shared.store().cleaning_may_help() {
            self.checkpoint_twice()?;
            return Ok(StepProgress::Idle);
        }
        match self.shared.store_io().clean_step()? {
            CleaningOutcome::Working => {}
            CleaningOutcome::Idle => attempt.rounds = CLEANING_ROUNDS_MAX,
            // The first round may have begun before the blocks died that can be gained now.
            CleaningOutcome::RoundEnded(0) if attempt.rounds > 0 => attempt.rounds = CLEANING_ROUNDS_MAX,
            CleaningOutcome::RoundEnded(_) => {
                attempt.rounds += 1;
                attempt.checkpoint_asked_at = None;
                attempt.is_merged = false;
                self.checkpoint_twice()?;
            }
            CleaningOutcome::NeedsCheckpoint => {
                let moved = self.shared.store().counters().pages_cleaned;
                if attempt.checkpoint_asked_at.replace(moved) == Some(moved) {
                    self.shared.store().give_up_round();
                    attempt.rounds = CLEANING_ROUNDS_MAX;
                } else {
                    self.checkpoint_twice()?;
                }
            }
        }
        Ok(StepProgress::Worked)
    }
}

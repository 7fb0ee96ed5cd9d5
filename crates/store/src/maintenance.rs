//! Maintenance of the store, a bounded step at a time: short recovery by checkpoints, and free space by
//! cleaning, freeing, trimming and merging.
//!
//! [`maintenance_plan`](crate::maintenance_plan) says which step is due, and
//! [`space_search`](crate::space_search) which comes next while a caller waits for space. Here the gauges are
//! read and the step is made. A segment is free when two checkpoints in a row do not need it: steps that free
//! segments make two.

use crate::cleaner::CleaningOutcome;
use crate::error::StoreError;
use crate::host_space;
use crate::maintenance_plan::{
    MaintenanceGauges, MaintenancePauses, MaintenanceStep, QUIET_PERIOD, RETRY_AFTER, RETRY_STUCK_AFTER,
};
use crate::space_search::{AfterCleaning, SearchStep, SpaceSearch};
use crate::store::Store;
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use device::Clock;
use std::time::Duration;

/// Who waits while [`Store::maintain`] makes a step.
#[derive(Debug)]
pub enum SpacePressure<'a> {
    /// No caller waits: whatever is due is done.
    None,
    /// Pages are about to be written back: only cleaning that is owed for earlier pages is done, or an
    /// allocation in its place.
    WriteBack,
    /// Callers wait for space: the next step of this search is made.
    Waiting(&'a mut SpaceSearch),
}

/// The outcome of [`Store::maintain`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MaintenanceProgress {
    /// Nothing was due.
    Idle,
    /// A step was made: call again.
    Worked {
        /// There may be space for callers that were told that the store is full.
        may_have_space: bool,
    },
    /// A search goes on once its caller has written everything back, and
    /// [said so](SpaceSearch::note_written_back).
    NeedsWriteBack,
    /// A search has done what it could.
    SearchEnded,
}

/// A step was made that frees nothing by itself.
const WORKED: MaintenanceProgress = MaintenanceProgress::Worked { may_have_space: false };
const MAY_HAVE_SPACE: MaintenanceProgress = MaintenanceProgress::Worked { may_have_space: true };

/// What maintenance remembers between steps. Lost in a crash, which does no harm.
pub(crate) struct MaintenanceState {
    checkpoint_blocks: AtomicU64,
    /// Pages that callers have applied.
    pages_applied: AtomicU64,
    /// Held for moments. No other lock is taken meanwhile.
    pauses: Mutex<MaintenancePauses>,
}

impl Default for MaintenanceState {
    fn default() -> MaintenanceState {
        MaintenanceState {
            checkpoint_blocks: AtomicU64::new(u64::MAX),
            pages_applied: AtomicU64::new(0),
            pauses: Mutex::default(),
        }
    }
}

impl MaintenanceState {
    /// Notes that a caller has applied pages.
    pub(crate) fn note_applied(&self, pages: u64) {
        self.pages_applied.fetch_add(pages, Ordering::Relaxed);
    }

    /// Lets the host file system be asked for space again.
    pub(crate) fn may_allocate_again(&self) {
        self.pauses().allocate_not_before = Duration::ZERO;
    }

    fn pauses(&self) -> MutexGuard<'_, MaintenancePauses> {
        self.pauses.lock().expect("no panic while holding pauses")
    }

    /// The pauses at `now`. Merging rests for a while after pages were applied.
    fn pauses_at(&self, now: Duration) -> MaintenancePauses {
        let applied = self.pages_applied.load(Ordering::Relaxed);
        let mut pauses = self.pauses();
        if pauses.pages_applied != applied {
            pauses.pages_applied = applied;
            pauses.merge_not_before = now + QUIET_PERIOD;
        }
        *pauses
    }
}

/// Maintenance.
impl Store {
    /// Sets after how many blocks of log a checkpoint is due: the most that a recovery reads. Without this
    /// only the number of reads counts.
    pub fn set_checkpoint_blocks(&self, blocks: u64) {
        self.maintenance.checkpoint_blocks.store(blocks, Ordering::Relaxed);
    }

    /// Whether a step of [`maintain`](Store::maintain) is due though no caller waits. Waits for no device,
    /// nor for the host file system: whether that is full, only a step finds out.
    pub fn maintenance_is_due(&self, now: Duration) -> bool {
        self.maintenance_gauges(now).next_step().is_some()
    }

    /// Makes a bounded step of maintenance, the one that `pressure` makes most urgent.
    ///
    /// # Errors
    /// The device's, and those of the step: [`checkpoint`](Store::checkpoint),
    /// [`clean_step`](Store::clean_step), [`free_deleted_step`](Store::free_deleted_step) or
    /// [`idle_merge_step`](Store::idle_merge_step). It will be tried again.
    pub fn maintain(
        &self,
        clock: &dyn Clock,
        pressure: SpacePressure<'_>,
    ) -> Result<MaintenanceProgress, StoreError> {
        match pressure {
            SpacePressure::Waiting(search) => self.search_step(clock, search),
            SpacePressure::WriteBack => loop {
                let gauges = self.maintenance_gauges(clock.monotonic());
                let Some(step) = gauges.step_before_write_back() else {
                    return Ok(MaintenanceProgress::Idle);
                };
                if let Some(progress) = self.make_step(clock, step)? {
                    return Ok(progress);
                }
            },
            SpacePressure::None => loop {
                let mut gauges = self.maintenance_gauges(clock.monotonic());
                gauges.host_fs_is_full = host_space::host_fs_free_bytes_if_full(&self.shared).is_some();
                let Some(step) = gauges.next_step() else {
                    return Ok(MaintenanceProgress::Idle);
                };
                if let Some(progress) = self.make_step(clock, step)? {
                    return Ok(progress);
                }
            },
        }
    }

    /// Gets free segments in the caller's thread: from the host file system, from deleted files and volumes,
    /// or by a round of cleaning. Returns whether there are more than before.
    ///
    /// # Errors
    /// Those of [`clean_round`](Store::clean_round).
    pub fn gain_space(&self, clock: &dyn Clock) -> Result<bool, StoreError> {
        let may_ask_host_fs = self.maintenance_gauges(clock.monotonic()).may_ask_host_fs();
        if may_ask_host_fs && self.allocate_more_or_pause(clock) {
            return Ok(true);
        }
        let before = self.space().free;
        // Freeing what was deleted copies nothing. An unreadable node keeps the nodes and pages below it from
        // being freed, and nothing else.
        while self.free_deleted_step().unwrap_or(false) {}
        let cleaned = self.clean_round()?;
        self.checkpoint_twice()?;
        Ok(cleaned || self.space().free > before)
    }

    /// Whether the host file system is full stays open: it would have to be asked.
    fn maintenance_gauges(&self, now: Duration) -> MaintenanceGauges {
        let length = self.shared.progress.length();
        let merge_is_worth_it = self.idle_merge_is_due();
        let backed_run_low = host_space::allocation_is_due(&self.shared);
        let pauses = self.maintenance.pauses_at(now);
        let map = self.shared.map();
        MaintenanceGauges {
            now,
            pauses,
            log_blocks: length.blocks,
            log_blocks_max: self.maintenance.checkpoint_blocks.load(Ordering::Relaxed),
            log_reads: length.reads,
            has_many_dirty_nodes: map.has_many_dirty(),
            batches: self.shared.medium.counting().now().batches,
            reserved: map.reserved_blocks(),
            backed_run_low,
            host_fs_is_full: false,
            is_freeing: map.volumes.dying().len() > 0,
            cleaning_is_owed: map.cleaning_is_due(),
            cleaning_may_help: map.is_short_of_space() || map.nodes.segments.counts_may_be_high(),
            merge_is_worth_it,
        }
    }

    /// Makes a step. `None` if it gained nothing and rests from now on: another may be due.
    fn make_step(
        &self,
        clock: &dyn Clock,
        step: MaintenanceStep,
    ) -> Result<Option<MaintenanceProgress>, StoreError> {
        match step {
            MaintenanceStep::Checkpoint => self.checkpoint()?,
            MaintenanceStep::AllocateAhead => {
                return Ok(self.allocate_ahead_or_pause(clock).then_some(MAY_HAVE_SPACE));
            }
            MaintenanceStep::Free => {
                self.free_step(clock)?;
                return Ok(Some(MAY_HAVE_SPACE));
            }
            MaintenanceStep::Clean => self.clean_owed()?,
            MaintenanceStep::TrimDead => {
                let batches = self.counters().batches;
                self.checkpoint_twice()?;
                self.maintenance.pauses().trimmed_as_of = batches;
            }
            MaintenanceStep::TrimFreed => {
                self.maintenance.pauses().trim_not_before = clock.monotonic() + QUIET_PERIOD;
                self.checkpoint_twice()?;
                // Blocks that are freed meanwhile are trimmed next time.
                let is_freeing = self.is_freeing();
                self.maintenance.pauses().has_freed = is_freeing;
            }
            MaintenanceStep::Merge => self.merge_step(clock)?,
        }
        Ok(Some(WORKED))
    }

    /// Makes a step of a search.
    fn search_step(
        &self,
        clock: &dyn Clock,
        search: &mut SpaceSearch,
    ) -> Result<MaintenanceProgress, StoreError> {
        if search.begins() {
            self.retry_stuck_now_and_then(clock.monotonic());
        }
        loop {
            let gauges = self.maintenance_gauges(clock.monotonic());
            match search.next_step(&gauges) {
                SearchStep::AllocateMore => {
                    if self.allocate_more_or_pause(clock) {
                        search.note_allocated(gauges.reserved);
                        return Ok(WORKED);
                    }
                }
                SearchStep::Free => {
                    // A node that cannot be read keeps what is below it from being freed, but does not keep
                    // cleaning from making space.
                    if self.free_step(clock).is_ok() {
                        return Ok(MAY_HAVE_SPACE);
                    }
                }
                SearchStep::Owed(step) => {
                    if let Some(progress) = self.make_step(clock, step)? {
                        return Ok(progress);
                    }
                }
                SearchStep::WriteBack => return Ok(MaintenanceProgress::NeedsWriteBack),
                SearchStep::Checkpoint => {
                    self.checkpoint()?;
                    search.note_checkpoint();
                    return Ok(WORKED);
                }
                SearchStep::Merge => {
                    if !self.idle_merge_step().unwrap_or(false) {
                        search.note_merged();
                    }
                    return Ok(WORKED);
                }
                SearchStep::Clean => {
                    let outcome = self.clean_step()?;
                    match search.note_cleaned(outcome, self.counters().pages_cleaned) {
                        AfterCleaning::Nothing => {}
                        AfterCleaning::FreesDead => self.checkpoint_twice()?,
                        AfterCleaning::GivesUpRound => self.give_up_round(),
                    }
                    return Ok(WORKED);
                }
                SearchStep::End => {
                    self.checkpoint_twice()?;
                    return Ok(MaintenanceProgress::SearchEnded);
                }
            }
        }
    }

    /// Asks the host file system for the space that will be needed soon. If it has none, pauses.
    fn allocate_ahead_or_pause(&self, clock: &dyn Clock) -> bool {
        let has_space = host_space::allocate_ahead(&self.shared).unwrap_or(false);
        if !has_space {
            self.maintenance.pauses().allocate_not_before = clock.monotonic() + RETRY_AFTER;
        }
        has_space
    }

    /// Asks for more than that, because a caller needs it. If there is no more, pauses.
    fn allocate_more_or_pause(&self, clock: &dyn Clock) -> bool {
        let has_more = host_space::allocate_more(&self.shared).unwrap_or(false);
        if !has_more {
            self.maintenance.pauses().allocate_not_before = clock.monotonic() + RETRY_AFTER;
        }
        has_more
    }

    /// Frees a step's worth of blocks of deleted files and volumes. After an error, pauses.
    fn free_step(&self, clock: &dyn Clock) -> Result<(), StoreError> {
        let freed = self.free_deleted_step();
        let now = clock.monotonic();
        let mut pauses = self.maintenance.pauses();
        match &freed {
            Ok(_) => pauses.has_freed = true,
            Err(_) => pauses.free_not_before = now + RETRY_AFTER,
        }
        freed.map(drop)
    }

    /// A step of cleaning, if it is still owed, before writers need the space.
    fn clean_owed(&self) -> Result<(), StoreError> {
        let batches = self.counters().batches;
        match self.clean_step_if_due()? {
            None | Some(CleaningOutcome::Working) => {}
            Some(CleaningOutcome::RoundEnded(_)) => self.checkpoint_twice()?,
            Some(CleaningOutcome::NeedsCheckpoint) => {
                self.checkpoint_twice()?;
                if self.clean_step()? == CleaningOutcome::NeedsCheckpoint {
                    self.give_up_round();
                }
            }
            Some(CleaningOutcome::Idle) => {
                self.checkpoint_twice()?;
                self.maintenance.pauses().nothing_to_clean_as_of = Some(batches);
            }
        }
        Ok(())
    }

    /// Merges the deltas of a leaf, then leaves the devices alone for as long as that took. Pages that cannot
    /// be merged stay as they are.
    fn merge_step(&self, clock: &dyn Clock) -> Result<(), StoreError> {
        let begun = clock.monotonic();
        let merged = self.idle_merge_step();
        let now = clock.monotonic();
        let pause = if merged.is_ok() { now - begun } else { RETRY_AFTER };
        self.maintenance.pauses().merge_not_before = now + pause;
        match merged {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Once in a while: segments that could not be read may be readable now.
    fn retry_stuck_now_and_then(&self, now: Duration) {
        {
            let mut pauses = self.maintenance.pauses();
            if now < pauses.retry_not_before {
                return;
            }
            pauses.retry_not_before = now + RETRY_STUCK_AFTER;
        }
        self.retry_stuck_segments();
    }
}

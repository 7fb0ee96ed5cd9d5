//! Maintenance of the store, a bounded step at a time: short recovery by checkpoints, and free space by
//! cleaning, freeing, trimming and merging.
//!
//! [`maintenance_plan`](crate::maintenance_plan) says which step is due, and
//! [`space_search`](crate::space_search) which comes next while a caller waits for space. Here the gauges are
//! read and the step is made. A segment is free when two checkpoints in a row do not need it: steps that free
//! segments make two.

use crate::check::{self, RepairedCounts, StoreFinding};
use crate::cleaner::{CleaningOutcome, SegmentCleaner};
use crate::delta_merge::IdleMergeRound;
use crate::error::StoreError;
use crate::host_space;
use crate::maintenance_plan::{
    MaintenanceGauges, MaintenanceNotes, MaintenanceStep, QUIET_PERIOD, RETRY_AFTER, RETRY_STUCK_AFTER,
};
use crate::map::ScanPurpose;
use crate::scrub::{ScrubProgress, StoreScrub};
use crate::shared::StoreShared;
use crate::space::CleaningWork;
use crate::space_search::{SearchStep, SpaceSearch};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::volume_changes;
use crate::writer::WriterLock;
use device::Clock;
use std::time::Duration;

/// The callers that wait while [`StoreMaintenance::step`] makes a step.
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

/// The outcome of [`StoreMaintenance::step`].
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
    /// A search goes on once its caller has deleted a volume that it
    /// [offered](SpaceSearch::set_expendable_volume), or has none any more.
    NeedsDeletion,
    /// A search has done what it could.
    SearchEnded,
}

/// A step was made. A caller that was told that the store is full need not try again.
const WORKED: MaintenanceProgress = MaintenanceProgress::Worked { may_have_space: false };
/// A step was made after which such a caller may try again.
const MAY_HAVE_SPACE: MaintenanceProgress = MaintenanceProgress::Worked { may_have_space: true };

/// The state that maintenance keeps between steps. Lost in a crash, which does no harm.
pub(crate) struct MaintenanceState {
    /// Taken before the writer's lock, where both are taken.
    cleaner: Mutex<SegmentCleaner>,
    /// Taken before the writer's lock, too.
    scrub: Mutex<Option<StoreScrub>>,
    /// Taken after the writer's lock.
    idle_merge: Mutex<IdleMergeRound>,
    checkpoint_blocks: AtomicU64,
    /// Pages that callers have applied.
    pages_applied: AtomicU64,
    /// Held for moments. No other lock is taken meanwhile.
    notes: Mutex<MaintenanceNotes>,
}

impl Default for MaintenanceState {
    fn default() -> MaintenanceState {
        MaintenanceState {
            cleaner: Mutex::default(),
            scrub: Mutex::default(),
            idle_merge: Mutex::default(),
            checkpoint_blocks: AtomicU64::new(u64::MAX),
            pages_applied: AtomicU64::new(0),
            notes: Mutex::default(),
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
        self.notes().allocate_not_before = Duration::ZERO;
    }

    pub(crate) fn lock_cleaner(&self) -> MutexGuard<'_, SegmentCleaner> {
        self.cleaner.lock().expect("no panic while cleaning")
    }

    /// Whether no thread has the cleaner's lock.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn cleaner_is_idle(&self) -> bool {
        self.cleaner.try_lock().is_ok()
    }

    fn lock_scrub(&self) -> MutexGuard<'_, Option<StoreScrub>> {
        self.scrub.lock().expect("no panic while scrubbing")
    }

    fn notes(&self) -> MutexGuard<'_, MaintenanceNotes> {
        self.notes.lock().expect("no panic while holding notes")
    }

    /// The notes at `now`. Merging rests for a while after pages were applied.
    fn notes_at(&self, now: Duration) -> MaintenanceNotes {
        let applied = self.pages_applied.load(Ordering::Relaxed);
        let mut notes = self.notes();
        if notes.pages_applied != applied {
            notes.pages_applied = applied;
            notes.merge_not_before = now + QUIET_PERIOD;
        }
        *notes
    }
}

/// Maintains a [`Store`](crate::Store), checks it and repairs it.
#[derive(Clone, Copy)]
pub struct StoreMaintenance<'a> {
    shared: &'a StoreShared,
    writer: &'a WriterLock,
    state: &'a MaintenanceState,
}

impl<'a> StoreMaintenance<'a> {
    pub(crate) fn new(
        shared: &'a StoreShared,
        writer: &'a WriterLock,
        state: &'a MaintenanceState,
    ) -> StoreMaintenance<'a> {
        StoreMaintenance { shared, writer, state }
    }

    /// Sets after how many blocks of log a checkpoint is due: the most that a recovery reads. Without this,
    /// only reads of the log and dirty nodes ask for a checkpoint.
    pub fn set_checkpoint_blocks(&self, blocks: u64) {
        self.state.checkpoint_blocks.store(blocks, Ordering::Relaxed);
    }

    /// Whether a [step](StoreMaintenance::step) is due though no caller waits. Waits for no device. Does not
    /// ask the host file system whether it is full; only a step does.
    pub fn is_due(&self, now: Duration) -> bool {
        self.gauges(now).next_step().is_some()
    }

    /// Makes a bounded step of maintenance, the one that `pressure` makes most urgent.
    ///
    /// # Errors
    /// The device's, and those of the step: [`checkpoint`](StoreMaintenance::checkpoint),
    /// [`clean_step`](StoreMaintenance::clean_step),
    /// [`free_deleted_step`](StoreMaintenance::free_deleted_step) or
    /// [`idle_merge_step`](StoreMaintenance::idle_merge_step). It will be tried again.
    pub fn step(
        &self,
        clock: &dyn Clock,
        pressure: SpacePressure<'_>,
    ) -> Result<MaintenanceProgress, StoreError> {
        match pressure {
            SpacePressure::Waiting(search) => self.search_step(clock, search),
            SpacePressure::WriteBack => loop {
                let gauges = self.gauges(clock.monotonic());
                let Some(step) = gauges.step_before_write_back() else {
                    return Ok(MaintenanceProgress::Idle);
                };
                if let Some(progress) = self.make_step(clock, step)? {
                    return Ok(progress);
                }
            },
            SpacePressure::None => loop {
                let mut gauges = self.gauges(clock.monotonic());
                gauges.host_fs_is_full = host_space::host_fs_free_bytes_if_full(self.shared).is_some();
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
    /// Those of [`clean_round`](StoreMaintenance::clean_round).
    pub fn gain_space(&self, clock: &dyn Clock) -> Result<bool, StoreError> {
        let may_allocate = self.gauges(clock.monotonic()).may_allocate();
        if may_allocate && self.allocate_more_or_pause(clock) {
            return Ok(true);
        }
        let before = self.shared.space().free;
        // Freeing what was deleted copies nothing. An unreadable node keeps the nodes and pages below it from
        // being freed, and nothing else.
        while self.free_deleted_step().unwrap_or(false) {}
        let cleaned = self.clean_round()?;
        self.checkpoint_twice()?;
        Ok(cleaned || self.shared.space().free > before)
    }

    /// Makes the map durable so that recovery starts here. Frees segments that no root needs any more: those
    /// in which nothing was live at the checkpoint before this one either.
    ///
    /// # Errors
    /// The device's: the store goes on as before, and the next checkpoint does it all again.
    pub fn checkpoint(&self) -> Result<(), StoreError> {
        self.writer.lock().checkpoint(self.shared)
    }

    /// Blocks written to the log since the last checkpoint: recovery would read them.
    pub fn blocks_since_checkpoint(&self) -> u64 {
        self.shared.progress.length().blocks
    }

    /// Most reads of the device by which recovery would follow the log up to its open extent. For that
    /// extent, the log's end and the proof that it is the end, it makes ten more at most; and those of pages
    /// of metadata in the last batch.
    pub fn reads_since_checkpoint(&self) -> u64 {
        self.shared.progress.length().reads
    }

    /// The work of the round of cleaning under way; `None` if there is none. Does no I/O.
    pub fn cleaning_work(&self) -> Option<CleaningWork> {
        self.shared.map().cleaning_work()
    }

    /// Whether cleaning is owed: free space is low and a round may find some, or the round under way is
    /// behind. [`step`](StoreMaintenance::step) makes such a step unless the last one found nothing to clean.
    pub fn cleaning_is_owed(&self) -> bool {
        self.shared.map().cleaning_is_owed()
    }

    /// Pages that may be written back before the next [`step`](StoreMaintenance::step) with
    /// [`SpacePressure::WriteBack`]. So a thread that waits for these pages never waits for a whole segment
    /// to be cleaned.
    pub fn pages_between_cleaning_checks(&self) -> u64 {
        self.shared.map().pages_between_cleaning_checks()
    }

    /// Whether deleted volumes and files still hold something that
    /// [`free_deleted_step`](StoreMaintenance::free_deleted_step) would free.
    pub fn is_freeing(&self) -> bool {
        self.shared.map().volumes.dying().len() > 0
    }

    /// Walks the whole map, reads every block that the map refers to, and calls `report` for each finding.
    /// Findings are damaged nodes and pages, misplaced blocks, blocks used twice, wrong reference counts,
    /// unreferenced nodes and wrong live counts. Changes wait meanwhile.
    pub fn check(&self, report: &mut dyn FnMut(StoreFinding)) {
        check::check(self.shared, &self.writer.lock(), report);
    }

    /// Corrects all counts: references, unreferenced nodes, live blocks. Writes them with two checkpoints, so
    /// that both roots have them. Reports first what `check` would find. Returns what it corrected. Lost
    /// bytes stay errors.
    ///
    /// # Errors
    /// [`StoreError::NotBegun`]; [`StoreError::CannotCount`] where a node cannot be read, as what is below it
    /// cannot be counted: no count is changed then; the device's.
    pub fn repair(&self, report: &mut dyn FnMut(StoreFinding)) -> Result<RepairedCounts, StoreError> {
        // A round of cleaning would go on with the old counts.
        let mut cleaner = self.state.lock_cleaner();
        cleaner.give_up_round(self.shared);
        check::repair(self.shared, &mut self.writer.lock(), report)
    }

    /// One bounded step of a scrub: it visits at most four nodes and reads what they refer to. The first step
    /// reads what lies at fixed places. Damaged data is reported by the last step, which looks up the pages.
    pub fn scrub_step(&self, report: &mut dyn FnMut(StoreFinding)) -> ScrubProgress {
        let mut scrub = self.state.lock_scrub();
        StoreScrub::step(&mut scrub, self.shared, self.writer, report)
    }

    /// Ends a scrub: the next step begins a new one.
    pub fn end_scrub(&self) {
        *self.state.lock_scrub() = None;
        self.shared.map_mut().nodes.end_scan(ScanPurpose::StoreScrub);
    }
}

/// Single steps, for callers that choose them: tests and benchmarks. [`step`](StoreMaintenance::step) makes
/// them when they are due.
impl StoreMaintenance<'_> {
    /// Makes two [checkpoints](StoreMaintenance::checkpoint) with nothing between them, which frees
    /// everything that died before. The second writes little, as no other thread can make the nodes dirty
    /// again that the first has written.
    ///
    /// # Errors
    /// As [`checkpoint`](StoreMaintenance::checkpoint).
    pub fn checkpoint_twice(&self) -> Result<(), StoreError> {
        self.writer.lock().checkpoint_twice(self.shared)
    }

    /// Whether free space is low, so that checkpoints and rounds of cleaning should find some.
    pub fn is_short_of_space(&self) -> bool {
        self.shared.map().is_short_of_space()
    }

    /// Frees some of what deleted volumes and files held: at most 256 nodes. Returns whether there was
    /// anything to free. The blocks are free after two checkpoints.
    ///
    /// # Errors
    /// The device's, or [`StoreError::Corrupt`]: a node that cannot be read stays on the list, with what is
    /// below.
    pub fn free_deleted_step(&self) -> Result<bool, StoreError> {
        volume_changes::free_deleted_step(self.shared, self.writer)
    }

    /// Cleans until a round has ended. Each step takes its locks anew, so others may use the store meanwhile.
    ///
    /// Returns whether segments died, or held less than was counted. Dead ones are free after two
    /// checkpoints.
    ///
    /// # Errors
    /// Those of [`clean_step`](StoreMaintenance::clean_step).
    pub fn clean_round(&self) -> Result<bool, StoreError> {
        loop {
            match self.clean_step()? {
                CleaningOutcome::Idle => return Ok(false),
                CleaningOutcome::Working => {}
                CleaningOutcome::RoundEnded(segments) => return Ok(segments > 0),
            }
        }
    }

    /// One bounded step of cleaning: it visits 64 nodes of the map, or moves an eighth of a segment, at most
    /// a MiB. Other threads wait at most for the repointing of what one step moved. No lock that readers or
    /// writers need is held during I/O.
    ///
    /// Where moving lacks space, the step makes two checkpoints and tries again. If it still lacks space, it
    /// gives the round up: the victims are left alone until more of them has died.
    ///
    /// # Errors
    /// [`StoreError::NotBegun`], [`StoreError::Stopped`], or the device's: the step may be tried again. A
    /// block that cannot be read is no error here: it stays where it is, and its segment with it.
    pub fn clean_step(&self) -> Result<CleaningOutcome, StoreError> {
        self.state.lock_cleaner().step(self.shared, self.writer)
    }

    /// Allocates more space in the host file system than [`step`](StoreMaintenance::step) does, because a
    /// caller needs it now. `false` if there is no more than before.
    ///
    /// # Errors
    /// The device's, except for a full host file system.
    pub fn allocate_more(&self) -> Result<bool, StoreError> {
        host_space::allocate_more(self.shared)
    }

    /// A bounded step of merging all deltas, from where the last call stopped. `false` at the end, or if no
    /// delta was stored since the last complete round began.
    ///
    /// # Errors
    /// [`StoreError::Full`], after which the next call tries the same leaf again; a node that cannot be read,
    /// which ends the round; as [`apply`](crate::StoreData::apply), where the device fails a write. A leaf
    /// whose pages cannot be read stays as it is.
    pub fn idle_merge_step(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        self.state.idle_merge.lock().expect("no panic while merging deltas").step(self.shared, &mut writer)
    }
}

impl StoreMaintenance<'_> {
    /// Whether merging is worth its reads and writes while no caller waits for space: enough was stored as
    /// deltas since the store was opened or the last round began, and free space is not short.
    fn merge_is_worth_it(&self) -> bool {
        // A thread that merges would have to be waited for.
        let Ok(round) = self.state.idle_merge.try_lock() else { return false };
        round.is_worth_it(self.shared) && !self.shared.map().is_short_of_space()
    }

    /// Whether the host file system is full stays open: it would have to be asked.
    fn gauges(&self, now: Duration) -> MaintenanceGauges {
        let length = self.shared.progress.length();
        let merge_is_worth_it = self.merge_is_worth_it();
        let free_segments_run_low = host_space::allocation_is_due(self.shared);
        let notes = self.state.notes_at(now);
        let map = self.shared.map();
        MaintenanceGauges {
            now,
            notes,
            log_blocks: length.blocks,
            log_blocks_max: self.state.checkpoint_blocks.load(Ordering::Relaxed),
            log_reads: length.reads,
            has_many_dirty_nodes: map.has_many_dirty(),
            batches: self.shared.medium.counting().now().batches,
            reserved: map.reserved_blocks(),
            free_segments_run_low,
            has_unbacked: map.nodes.segments.unbacked_count() > 0,
            host_fs_is_full: false,
            is_freeing: map.volumes.dying().len() > 0,
            is_tight: map.is_tight(self.shared.medium.is_host_fs_known_full()),
            cleaning_is_owed: map.cleaning_is_owed(),
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
                let batches = self.shared.medium.counting().now().batches;
                self.checkpoint_twice()?;
                self.state.notes().trimmed_as_of = batches;
            }
            MaintenanceStep::TrimFreed => {
                self.state.notes().trim_not_before = clock.monotonic() + QUIET_PERIOD;
                self.checkpoint_twice()?;
                // Blocks that are freed meanwhile are trimmed next time.
                let is_freeing = self.is_freeing();
                self.state.notes().has_freed = is_freeing;
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
            let gauges = self.gauges(clock.monotonic());
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
                SearchStep::DeleteVolume => return Ok(MaintenanceProgress::NeedsDeletion),
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
                    search.note_cleaned(outcome);
                    if let CleaningOutcome::RoundEnded(_) = outcome {
                        self.checkpoint_twice()?;
                    }
                    return Ok(WORKED);
                }
                SearchStep::End => {
                    self.checkpoint_twice()?;
                    search.note_ended(&gauges);
                    return Ok(MaintenanceProgress::SearchEnded);
                }
            }
        }
    }

    /// Asks the host file system for the space that will be needed soon. If it has none, pauses.
    fn allocate_ahead_or_pause(&self, clock: &dyn Clock) -> bool {
        let has_space = host_space::allocate_ahead(self.shared).unwrap_or(false);
        if !has_space {
            self.state.notes().allocate_not_before = clock.monotonic() + RETRY_AFTER;
        }
        has_space
    }

    /// Asks for more than that, because a caller needs it. If the host file system has no more, pauses; not
    /// if all segments are allocated, since some may be trimmed in a moment.
    fn allocate_more_or_pause(&self, clock: &dyn Clock) -> bool {
        let allocated = host_space::allocate_more(self.shared);
        if allocated.is_err() || self.shared.medium.is_host_fs_known_full() {
            self.state.notes().allocate_not_before = clock.monotonic() + RETRY_AFTER;
        }
        allocated.unwrap_or(false)
    }

    /// Frees a step's worth of blocks of deleted files and volumes. After an error, pauses.
    fn free_step(&self, clock: &dyn Clock) -> Result<(), StoreError> {
        let freed = self.free_deleted_step();
        let now = clock.monotonic();
        let mut notes = self.state.notes();
        match &freed {
            Ok(_) => notes.has_freed = true,
            Err(_) => notes.free_not_before = now + RETRY_AFTER,
        }
        freed.map(drop)
    }

    /// A step of cleaning, if it is still owed, before writers need the space.
    fn clean_owed(&self) -> Result<(), StoreError> {
        let batches = self.shared.medium.counting().now().batches;
        let outcome = {
            let mut cleaner = self.state.lock_cleaner();
            // Of several threads that owe a step, only one makes it.
            if !self.cleaning_is_owed() {
                return Ok(());
            }
            cleaner.step(self.shared, self.writer)?
        };
        match outcome {
            CleaningOutcome::Working => {}
            CleaningOutcome::RoundEnded(_) => self.checkpoint_twice()?,
            CleaningOutcome::Idle => {
                self.checkpoint_twice()?;
                self.state.notes().nothing_to_clean_as_of = Some(batches);
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
        self.state.notes().merge_not_before = now + pause;
        match merged {
            Err(error) if !error.is_full() => Err(error),
            _ => Ok(()),
        }
    }

    /// Once in a while: segments that could not be read may be readable now.
    fn retry_stuck_now_and_then(&self, now: Duration) {
        {
            let mut notes = self.state.notes();
            if now < notes.retry_not_before {
                return;
            }
            notes.retry_not_before = now + RETRY_STUCK_AFTER;
        }
        self.shared.map_mut().nodes.segments.retry_stuck();
    }
}

//! Keeping recovery short and space free: checkpoints and cleaning, a bounded step at a time.

use crate::admission::Admission;
use crate::error::CacheError;
use crate::retry::RETRY_AFTER;
use crate::scan::Scan;
use crate::shared::{Shared, State};
use crate::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use crate::task::{Completions, Progress, Task};
use crate::write_back::{Why, WriteBack};
use std::sync::Arc;
use std::time::Duration;
use store::{CleaningOutcome, StoreError, VolumeId};

/// Rounds of cleaning of one attempt to make space, before a writer that waits is told that the store is full.
const ROUNDS_MAX: usize = 8;

/// Where nothing was written back for so long, what was stored as deltas is folded: then it is read as fast as pages that were stored whole.
/// Segments that were freed are trimmed no more often either.
const QUIET: Duration = Duration::from_secs(5);

/// How long segments that could not be emptied are left alone, where an operation waits for space.
const RETRY_STUCK_AFTER: Duration = Duration::from_secs(60);

/// Reads of the store's log after which a checkpoint is due: those of 256 MiB of it in stretches of 16 MiB. Where stretches
/// are shorter, or the log is of so many log entries that nothing sums them up, it comes earlier.
const LOG_READS_MAX: u64 = 16;

/// An attempt to make space for operations that wait for it, or for pages that found none. Everything is written back first: a dirty
/// page may reserve more blocks than it takes; deletions give some back. Writers wait meanwhile, so this ends.
struct MakingSpace {
    /// What there was when it began.
    before: Found,
    is_stored: bool,
    is_folded: bool,
    /// Blocks that were reserved when the file system below was last asked for more space: as long as no operation gets a reservation, more
    /// would be of no use.
    allocated_at: Option<u64>,
    /// What had its turn to be written back.
    scan: Scan,
    rounds: usize,
    /// What had been moved when the round under way last asked for two checkpoints.
    asked: Option<u64>,
}

/// How much space was found.
#[derive(Clone, Copy)]
struct Found {
    /// Blocks in free segments.
    free: u64,
    /// Blocks that are live or reserved.
    used: u64,
    /// Blocks that there are in all, as far as the file system below has space for them.
    total: u64,
}

impl Found {
    fn is_more_than(&self, before: &Found) -> bool {
        self.free > before.free || self.used < before.used
    }
}

/// Keeps recovery short and space free.
pub(crate) struct Checkpointer {
    shared: Arc<Shared>,
    admission: Admission,
    write_back: Arc<WriteBack>,
    /// Held for a step; taken before the turn to write back.
    making_space: Mutex<Option<MakingSpace>>,
    /// The store's batches when there was nothing to clean.
    clean_as_of: AtomicU64,
    /// The store's batches when what was dead was last given back to the file system below, because that was full.
    given_back_as_of: AtomicU64,
    /// Held for moments, and no other lock is taken meanwhile.
    pauses: Mutex<Pauses>,
    /// Volumes that go before an operation is told that the store is full. Held likewise.
    expendable: Mutex<Vec<VolumeId>>,
}

/// When what failed, or rests, may be tried again.
#[derive(Clone, Copy, Default)]
struct Pauses {
    /// Freeing what deleted files and volumes held.
    free_not_before: Duration,
    /// Something was freed that two checkpoints make free segments of.
    has_freed: bool,
    /// Making them, where nobody waits for space.
    trim_not_before: Duration,
    /// Asking the file system below the store for space.
    allocate_not_before: Duration,
    /// Folding while nothing is written back.
    fold_not_before: Duration,
    /// Pages that had been stored when that was last looked at.
    stored: u64,
    /// Trying segments again that could not be emptied.
    retry_not_before: Duration,
}

impl Checkpointer {
    pub(crate) fn new(shared: Arc<Shared>, admission: Admission, write_back: Arc<WriteBack>) -> Checkpointer {
        Checkpointer {
            shared,
            admission,
            write_back,
            making_space: Mutex::default(),
            clean_as_of: AtomicU64::new(u64::MAX),
            given_back_as_of: AtomicU64::new(0),
            pauses: Mutex::default(),
            expendable: Mutex::default(),
        }
    }

    fn pauses(&self) -> MutexGuard<'_, Pauses> {
        self.pauses.lock().expect("no panic while holding pauses")
    }

    /// Whether no thread makes space.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn makes_no_space(&self) -> bool {
        self.making_space.try_lock().is_ok()
    }

    /// True if recovery would take too long, or an operation waits for space.
    pub(crate) fn is_due(&self, state: &State) -> bool {
        state.admission.wants_space()
            || self.checkpoint_is_due()
            || self.allocation_is_due()
            || self.freeing_due()
            || self.trimming_is_due()
            || self.cleaning_is_due()
            || self.folding_is_due(state)
    }

    fn checkpoint_is_due(&self) -> bool {
        self.shared.store().blocks_since_checkpoint() >= self.shared.settings().checkpoint_blocks
            || self.shared.store().reads_since_checkpoint() >= LOG_READS_MAX
            || self.shared.store().has_many_dirty_nodes()
    }

    /// As much as is owed for what was written. Where there was nothing to clean, there is nothing until something is
    /// written.
    fn cleaning_is_due(&self) -> bool {
        self.shared.store().cleaning_is_due()
            && self.shared.store().counters().batches != self.clean_as_of.load(Ordering::Relaxed)
    }

    /// A step of cleaning before pages are written back, if one is owed for those that went before: so free space is won as fast as
    /// it is used, and a writer that waits for a page to be written back waits for its share of the cleaning, never for a whole segment.
    /// False where nothing is owed, or the store cannot clean: that keeps no page from being stored.
    pub(crate) fn pay_with_cleaning(&self) -> bool {
        if !self.cleaning_is_due() {
            return false;
        }
        // Free space that has to be asked for costs less than any that has to be won.
        if self.allocation_is_due() && self.allocate_ahead() {
            return true;
        }
        let cleaned = self.clean_some();
        self.shared.state().counters.checkpoint_errors += u64::from(cleaned.is_err());
        cleaned.is_ok()
    }

    pub(crate) fn step(&self) -> Progress {
        let state = self.shared.state();
        let (wanted, freeing) = (state.admission.wants_space(), self.freeing_due());
        let allocating = self.allocation_is_due();
        let folding = self.folding_is_due(&state);
        drop(state);
        let outcome = match wanted {
            true => self.make_space(),
            false if self.checkpoint_is_due() => {
                self.shared.store_io().checkpoint().map_err(CacheError::from)
            }
            // Where there is none, there is other work.
            false if allocating && self.allocate_ahead() => Ok(()),
            false if freeing => self.free_some(),
            false if self.cleaning_is_due() => self.clean_some(),
            false if self.is_full_below() => self.give_back(),
            false if self.trimming_is_due() => self.trim_freed(),
            false if folding => self.fold_some(),
            false => return Progress::Idle,
        };
        if outcome.is_err() {
            self.shared.state().counters.checkpoint_errors += 1;
            return Progress::Idle;
        }
        Progress::Worked
    }

    /// Whether the file system below the store is to be asked for space: more will be needed soon, or it had none a while ago.
    fn allocation_is_due(&self) -> bool {
        self.shared.store().allocation_is_due() && self.shared.now() >= self.pauses().allocate_not_before
    }

    /// Asks for it. Where there is none, it is asked again after a while; where there is some again, a writer that was told that the store is
    /// full may try once more.
    fn allocate_ahead(&self) -> bool {
        let outcome = self.shared.store().allocate_ahead();
        match outcome {
            Ok(true) => self.shared.state().admission.may_have_space(),
            _ => self.pauses().allocate_not_before = self.shared.now() + RETRY_AFTER,
        }
        outcome.is_ok_and(|has_space| has_space)
    }

    /// Asks for more than that, because an operation needs it. `false` where there is none.
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

    /// Whether an operation needs the space below, of which some may be in segments that have died since it was last looked at.
    fn is_full_below(&self) -> bool {
        self.shared.store().counters().batches != self.given_back_as_of.load(Ordering::Relaxed)
            && self.shared.store().host_fs_free_bytes_if_full().is_some()
    }

    /// Trims what is dead, without waiting for a checkpoint that is due for other reasons.
    fn give_back(&self) -> Result<(), CacheError> {
        let batches = self.shared.store().counters().batches;
        self.checkpoint_twice()?;
        self.given_back_as_of.store(batches, Ordering::Relaxed);
        Ok(())
    }

    /// Whether deleted files and volumes hold space that may be freed now.
    fn freeing_due(&self) -> bool {
        self.shared.store().is_freeing() && self.shared.now() >= self.pauses().free_not_before
    }

    /// Frees a step's worth of what deleted files and volumes held.
    fn free_some(&self) -> Result<(), CacheError> {
        let freed = self.shared.store_io().free_deleted_step();
        match &freed {
            // Worth another attempt for a writer that was told that the store is full.
            Ok(_) => {
                self.shared.state().admission.may_have_space();
                self.pauses().has_freed = true;
            }
            Err(_) => self.pauses().free_not_before = self.shared.now() + RETRY_AFTER,
        }
        Ok(freed.map(drop)?)
    }

    /// Whether what was freed is to become free segments, which a sparse file trims, though nothing else asks for a checkpoint.
    fn trimming_is_due(&self) -> bool {
        let Pauses { has_freed, trim_not_before, .. } = *self.pauses();
        has_freed && self.shared.now() >= trim_not_before && !self.shared.store().is_freeing()
    }

    fn trim_freed(&self) -> Result<(), CacheError> {
        self.pauses().trim_not_before = self.shared.now() + QUIET;
        self.checkpoint_twice()?;
        // What is freed meanwhile is for the next time.
        let is_freeing = self.shared.store().is_freeing();
        self.pauses().has_freed = is_freeing;
        Ok(())
    }

    /// Whether deltas are to be folded: nothing was written back for a while.
    fn folding_is_due(&self, state: &State) -> bool {
        let (now, stored) = (self.shared.now(), state.counters.pages_stored);
        let mut pauses = self.pauses();
        if pauses.stored != stored {
            (pauses.stored, pauses.fold_not_before) = (stored, now + QUIET);
        }
        now >= pauses.fold_not_before && self.shared.store().idle_merge_is_due()
    }

    /// Folds a leaf, and leaves the devices alone for as long as that took. What cannot be folded is left as it is.
    fn fold_some(&self) -> Result<(), CacheError> {
        let begun = self.shared.now();
        let folded = self.shared.store_io().idle_merge_step();
        let now = self.shared.now();
        let pause = if folded.is_ok() { now - begun } else { RETRY_AFTER };
        self.pauses().fold_not_before = now + pause;
        match folded {
            Err(error) if !error.is_full() => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// One step of cleaning, if it is still owed, before writers need what it gives them.
    fn clean_some(&self) -> Result<(), CacheError> {
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
                self.clean_as_of.store(batches, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Makes the store larger; who waits for space gets some of that.
    pub(crate) fn grow(&self, blocks: Option<u64>) -> Result<u64, CacheError> {
        let grown = self.shared.store_io().grow(blocks);
        // Of a sparse file that had no segments left to ask for.
        self.pauses().allocate_not_before = Duration::ZERO;
        let mut completions = Completions::default();
        {
            let mut state = self.shared.state();
            // Also after an error: it may have grown.
            state.admission.may_have_space();
            state.retries.may_have_space(self.shared.now());
            self.admission.admit_waiting(&mut state, &mut completions);
        }
        completions.deliver();
        self.write_back.try_again();
        self.shared.wake(Task::Checkpoint);
        Ok(grown?)
    }

    /// A segment is free when two checkpoints in a row do not need it.
    pub(crate) fn checkpoint_twice(&self) -> Result<(), CacheError> {
        Ok(self.shared.store_io().checkpoint_twice()?)
    }

    /// Writes everything back; where the store has no space for it, cleaning makes some as long as it can.
    pub(crate) fn write_all_back(&self) -> Result<(), CacheError> {
        let mut scan = Scan::once(self.shared.state().retries.failures());
        loop {
            let full = match self.write_back.everything(Why::All, &mut scan) {
                Ok(Progress::Worked) => continue,
                Ok(Progress::Idle) => {
                    let state = self.shared.state();
                    let Some(error) = state.retries.lacks_space(&state.pages) else {
                        return Ok(());
                    };
                    scan = Scan::once(state.retries.failures());
                    error.clone().into()
                }
                Err(error) if error.is_full() => error,
                Err(error) => return Err(error),
            };
            if !self.win_space()? {
                return Err(full);
            }
        }
    }

    /// Gets free segments in the caller's thread: from the file system below, from what was deleted, or by a round of cleaning. `false`
    /// if there are no more than before.
    fn win_space(&self) -> Result<bool, CacheError> {
        if self.allocate_more() {
            return Ok(true);
        }
        let before = self.shared.store().space().free;
        // What was deleted costs no copies. A node of it that cannot be read holds up what is below it, and nothing else.
        while self.shared.store_io().free_deleted_step().unwrap_or(false) {}
        let cleaned = self.shared.store_io().clean_round()?;
        self.checkpoint_twice()?;
        Ok(cleaned || self.shared.store().space().free > before)
    }

    /// Does `work` in the caller's thread; where segments are short, it wins some and does it again.
    pub(crate) fn with_space<T>(
        &self,
        mut work: impl FnMut() -> Result<T, CacheError>,
    ) -> Result<T, CacheError> {
        for _ in 0..ROUNDS_MAX {
            match work() {
                Err(error) if error.is_full() && self.win_space()? => {}
                outcome => return outcome,
            }
        }
        work()
    }

    /// An operation was told to wait because the store is full, or pages are not written back because it is: one step towards space, and
    /// what fits is let in.
    fn make_space(&self) -> Result<(), CacheError> {
        let mut turn = self.making_space.lock().expect("no panic while making space");
        let free = || {
            let failures = {
                let mut state = self.shared.state();
                state.admission.give_back_spare(self.shared.store());
                self.shared.store().set_reservation_estimate(state.known_to_store());
                state.retries.failures()
            };
            let space = self.shared.store().space();
            (Found { free: space.free, used: space.live + space.reserved, total: space.total }, failures)
        };
        let attempt = turn.get_or_insert_with(|| {
            self.try_stuck_segments_again();
            let (before, failures) = free();
            let scan = Scan::once(failures);
            MakingSpace {
                before,
                is_stored: false,
                is_folded: false,
                scan,
                allocated_at: None,
                rounds: 0,
                asked: None,
            }
        });
        let expendable = self.expendable().len();
        let outcome = self.make_some_space(attempt);
        let (now, _) = free();
        let mut completions = Completions::default();
        let mut state = self.shared.state();
        // A volume that became expendable during this step goes before the attempt counts as in vain.
        let over = match outcome {
            Ok(Progress::Worked) => false,
            Ok(Progress::Idle) => self.expendable().len() <= expendable,
            Err(_) => true,
        };
        let is_more = now.is_more_than(&attempt.before);
        if over {
            // What came from the file system below may be used up already, and there may be more; unless it was given back.
            state.admission.attempt_ended(!is_more && now.total <= attempt.before.total);
        }
        if is_more {
            state.retries.may_have_space(self.shared.now());
        }
        if !over {
            state.retries.space_is_made(self.shared.now());
        }
        self.admission.admit_waiting(&mut state, &mut completions);
        let needed = state.admission.is_waiting()
            || state.retries.needs_space()
            || state.retries.lacks_space(&state.pages).is_some();
        if over || !needed {
            if !needed {
                state.admission.needs_no_space();
            }
            *turn = None;
        }
        drop(state);
        drop(turn);
        completions.deliver();
        if is_more {
            self.write_back.try_again();
        }
        outcome.map(drop)
    }

    /// Deletes the oldest volume that is expendable. A crash that undoes this gives it back, which does no harm.
    fn give_up_volume(&self) -> bool {
        // What the last one held comes first.
        let next = if self.freeing_due() { None } else { self.expendable().first().copied() };
        let Some(volume) = next else { return false };
        let deleted = self.shared.store_io().delete_volume(volume, self.shared.buffer().durable());
        if deleted.is_ok() {
            self.shared.state().counters.volumes_given_up += 1;
        }
        // Somebody may have been faster. After another error cleaning may give what the deletion takes.
        let is_gone = matches!(deleted, Ok(()) | Err(StoreError::NoSuchVolume { .. }));
        if is_gone {
            self.expendable().retain(|&one| one != volume);
        }
        is_gone
    }

    fn expendable(&self) -> MutexGuard<'_, Vec<VolumeId>> {
        self.expendable.lock().expect("no panic while holding a list")
    }

    /// This volume goes before an operation is told that the store is full, too.
    pub(crate) fn may_give_up_too(&self, volume: VolumeId) {
        self.expendable().push(volume);
    }

    /// These volumes, and no others, go before an operation is told that the store is full.
    pub(crate) fn may_give_up(&self, volumes: Vec<VolumeId>) {
        *self.expendable() = volumes;
    }

    /// Once in a while: what could not be read may be by now.
    fn try_stuck_segments_again(&self) {
        let now = self.shared.now();
        let mut pauses = self.pauses();
        if now >= pauses.retry_not_before {
            pauses.retry_not_before = now + RETRY_STUCK_AFTER;
            drop(pauses);
            self.shared.store().retry_stuck_segments();
        }
    }

    /// One step; `Idle` where there is nothing left to do.
    fn make_some_space(&self, attempt: &mut MakingSpace) -> Result<Progress, CacheError> {
        let reserved = self.shared.store().space().reserved;
        let is_more = attempt.allocated_at.is_none_or(|before| reserved > before);
        if is_more && self.allocate_more() {
            attempt.allocated_at = Some(reserved);
            return Ok(Progress::Worked);
        }
        if self.give_up_volume() {
            return Ok(Progress::Worked);
        }
        // A node that cannot be read holds up what is below it, and not what cleaning gives.
        if self.freeing_due() && self.free_some().is_ok() {
            return Ok(Progress::Worked);
        }
        if !attempt.is_stored {
            if self.pay_with_cleaning() {
                return Ok(Progress::Worked);
            }
            match self.write_back.everything(Why::Space, &mut attempt.scan) {
                Ok(Progress::Worked) => return Ok(Progress::Worked),
                // What found no space may find it after cleaning.
                Ok(Progress::Idle) => attempt.is_stored = true,
                Err(error) if error.is_full() => attempt.is_stored = true,
                Err(error) => return Err(error),
            }
            self.shared.store_io().checkpoint()?;
            return Ok(Progress::Worked);
        }
        if !attempt.is_folded {
            // Deltas take space that their pages, once whole, do not. Where there is none for that, cleaning may give some.
            attempt.is_folded = !self.shared.store_io().idle_merge_step().unwrap_or(false);
            return Ok(Progress::Worked);
        }
        if attempt.rounds == ROUNDS_MAX || !self.shared.store().cleaning_may_help() {
            self.checkpoint_twice()?;
            return Ok(Progress::Idle);
        }
        match self.shared.store_io().clean_step()? {
            CleaningOutcome::Working => {}
            CleaningOutcome::Idle => attempt.rounds = ROUNDS_MAX,
            // The first one may have begun before what can be won now was dead.
            CleaningOutcome::RoundEnded(0) if attempt.rounds > 0 => attempt.rounds = ROUNDS_MAX,
            CleaningOutcome::RoundEnded(_) => {
                (attempt.rounds, attempt.asked, attempt.is_folded) = (attempt.rounds + 1, None, false);
                self.checkpoint_twice()?;
            }
            CleaningOutcome::NeedsCheckpoint => {
                let moved = self.shared.store().counters().pages_cleaned;
                if attempt.asked.replace(moved) == Some(moved) {
                    self.shared.store().give_up_round();
                    attempt.rounds = ROUNDS_MAX;
                } else {
                    self.checkpoint_twice()?;
                }
            }
        }
        Ok(Progress::Worked)
    }
}

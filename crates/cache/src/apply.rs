//! Applying a transaction: its records are appended to the buffer, then its pages change in the page table,
//! both under one hold of the state's lock.

use crate::admission::{AdmissionControl, AdmissionDecision, SpaceReservation};
use crate::change::{ObjectChange, SpaceClaim, TransactionCost, TransactionRecords};
use crate::commit::Committer;
use crate::error::CacheError;
use crate::locks::OrderedGuard;
use crate::planted_bug::{CacheBug, is_planted, is_refused};
use crate::range_ops::TRANSFER_PAGES_MAX;
use crate::record_applier::{LazyNow, RecordApplier, RecordEffects};
use crate::space::ReservedSpace;
use crate::state::{CacheShared, CacheState};
use crate::stream_detector::StreamDetector;
use crate::task::BackgroundTask;
use buffer::LogRecord;
use device::{Lsn, ObjectId};
use request::Origin;
use std::sync::Arc;
use store::{StoreError, VolumeMode};

/// The result of a transaction that did not reserve its space before.
pub(crate) enum AppliedAtOnce {
    /// It is applied. The LSN is that of its last record.
    Applied(Lsn),
    /// It has to wait for space. This many pages of it may bypass the buffer.
    MustWait { bypass_pages: u64 },
}

/// Applies transactions.
pub(crate) struct TransactionApplier {
    pub(crate) shared: Arc<CacheShared>,
    pub(crate) admission: AdmissionControl,
    pub(crate) committer: Arc<Committer>,
}

impl TransactionApplier {
    pub(crate) fn new(
        shared: Arc<CacheShared>,
        admission: AdmissionControl,
        committer: Arc<Committer>,
    ) -> TransactionApplier {
        TransactionApplier { shared, admission, committer }
    }

    /// Reserves space for `changes` and applies them, if there is space now and the operation need not queue
    /// behind others. Calls no completion: a reader that waits for a changed page is retried later.
    pub(crate) fn apply_at_once(
        &self,
        claim: SpaceClaim,
        origin: Origin,
        changes: &[ObjectChange<'_>],
    ) -> Result<AppliedAtOnce, CacheError> {
        ensure_sensible(changes)?;
        let mut cost = TransactionCost { claim, origin, ..TransactionCost::of(changes) };
        let mut state = self.shared.state();
        self.ensure_writable(&mut state, changes)?;
        if cost.bypass_pages > 0
            && (origin.logs_at_once || !self.note_stream_writes(&mut state.streams, changes))
        {
            cost.bypass_pages = 0;
        }
        let mut reserved = match self.admission.decide_new(&mut state.for_admission(), &cost) {
            AdmissionDecision::Admit(reserved) => reserved,
            AdmissionDecision::Refuse(error) => return Err(error),
            AdmissionDecision::Wait(_) => {
                return Ok(AppliedAtOnce::MustWait { bypass_pages: cost.bypass_pages });
            }
        };
        let may_bypass = reserved.may_bypass();
        let applied = self.append_and_change(&mut state, &mut reserved, changes, may_bypass);
        let is_awaited = state.release_unused(&mut reserved);
        self.end_apply(state, applied, is_awaited).map(AppliedAtOnce::Applied)
    }

    /// Applies `changes` within a reservation. Success releases what was not used.
    pub(crate) fn apply_reserved(
        &self,
        reservation: &mut SpaceReservation,
        changes: &[ObjectChange<'_>],
    ) -> Result<Lsn, CacheError> {
        ensure_sensible(changes)?;
        let mut state = self.shared.state();
        state.log.ensure_works()?;
        self.ensure_writable(&mut state, changes)?;
        let count = changes.iter().map(ObjectChange::pages).sum();
        let reserved = reservation.space();
        let CacheState { pages, space, .. } = &mut *state;
        space.grow(reserved, count, pages)?;
        // If bypassing was switched off since the admission, the pages are logged: one sync after the switch
        // covers all bypassed pages, and no more may follow.
        let may_bypass = reserved.may_bypass() && self.shared.bypass_after() != u64::MAX;
        let applied = self.append_and_change(&mut state, reserved, changes, may_bypass);
        let is_awaited = applied.is_ok() && reservation.release_unused(&mut state);
        self.end_apply(state, applied, is_awaited)
    }

    /// Refuses changes of volumes that are read-only, or do not exist. The store would refuse them, too, but
    /// only at write-back, and for ever.
    fn ensure_writable(
        &self,
        state: &mut CacheState,
        changes: &[ObjectChange<'_>],
    ) -> Result<(), CacheError> {
        let known = &mut state.writable;
        for ObjectId { volume, .. } in changes.iter().flat_map(ObjectChange::changed_objects) {
            if state.refuses_changes {
                let is_stopping = state.log.is_stopping();
                return Err(if is_stopping {
                    CacheError::Stopping
                } else {
                    CacheError::ReadOnlyVolume { volume }
                });
            }
            if known.contains(&volume) || is_planted(CacheBug::ReadOnlyVolumeChanged) {
                continue;
            }
            match self.shared.store().volumes().mode(volume) {
                Some(VolumeMode::Writable) => drop(known.insert(volume)),
                Some(VolumeMode::ReadOnly) => return Err(CacheError::ReadOnlyVolume { volume }),
                None => return Err(StoreError::NoSuchVolume { volume }.into()),
            }
        }
        Ok(())
    }

    /// Notes the transaction's writes to files. Returns whether their whole pages may bypass the buffer: one of
    /// the writes belongs to a stream.
    fn note_stream_writes(&self, streams: &mut StreamDetector, changes: &[ObjectChange<'_>]) -> bool {
        let after = self.shared.bypass_after();
        let counts_parts = self.shared.follows_classes();
        let mut belongs = false;
        for change in changes.iter().filter(|change| counts_parts || change.is_of_whole_pages()) {
            let &ObjectChange::FileWrite { object, offset, bytes, .. } = change else { continue };
            belongs |= streams.note_write(object, offset, bytes.len() as u64, after);
        }
        belongs
    }

    /// Appends the transaction, then changes the pages.
    fn append_and_change(
        &self,
        state: &mut CacheState,
        reserved: &mut ReservedSpace,
        changes: &[ObjectChange<'_>],
        may_bypass: bool,
    ) -> Result<AppliedTransaction, CacheError> {
        if reserved.claim() != SpaceClaim::Frees && is_refused() {
            return Err(StoreError::Full.into());
        }
        let CacheState { pages, log, space, reads, counters, .. } = state;
        let made = TransactionRecords::of(changes, may_bypass, pages);
        let now = LazyNow::new(self.shared.clock());
        let appended = log.append(pages, reserved.origin(), changes, &made, || now.get())?;
        counters.transactions += 1;
        let mut applier = RecordApplier {
            pages,
            reads,
            counters,
            reserved,
            now: &now,
            group: appended.group,
            fetch: self.shared.settings().fetch,
            effects: RecordEffects::default(),
        };
        let mut bypassing = made.bypassing.iter();
        for (index, record) in made.records.iter().enumerate() {
            let lsn = appended.first_lsn.plus(index as u64);
            match *record {
                LogRecord::Bypassed { object, from, .. } => {
                    let bytes = bypassing.next().expect("as many as there are records");
                    applier.write_bypassing(object, from, bytes, lsn);
                }
                _ => applier.apply(record, lsn),
            }
        }
        let effects = applier.effects;
        space.release(effects.released_pages);
        // Writing back a change of names releases most of what it reserved.
        if effects.has_removed || reserved.claim() == SpaceClaim::Names {
            space.admission.note_possible_space();
        }
        Ok(AppliedTransaction { last_lsn: appended.last_lsn, effects })
    }

    /// Releases the lock, and wakes the workers that have something to do now.
    fn end_apply(
        &self,
        mut state: OrderedGuard<'_, CacheState>,
        applied: Result<AppliedTransaction, CacheError>,
        is_awaited: bool,
    ) -> Result<Lsn, CacheError> {
        let applied = match applied {
            Ok(applied) => applied,
            Err(error) => {
                drop(state);
                if is_awaited {
                    self.shared.wake(BackgroundTask::Commit);
                }
                return Err(error);
            }
        };
        let wakes_committer = is_awaited || self.committer.is_requested(&state.log);
        let wakes_fetcher =
            applied.effects.readers_may_go_on || state.reads.has_prefetches() || state.pages.has_discarded();
        let wakes_write_back = applied.effects.has_range_op || self.admission.wants_write_back(&state);
        state.evict(self.shared.settings());
        drop(state);
        if wakes_committer {
            self.shared.wake(BackgroundTask::Commit);
        }
        if wakes_fetcher {
            self.shared.wake(BackgroundTask::Fetch);
        }
        if wakes_write_back {
            self.shared.wake(BackgroundTask::WriteBack);
        }
        Ok(applied.last_lsn)
    }
}

/// A transaction that is in the log and in the page table.
struct AppliedTransaction {
    last_lsn: Lsn,
    effects: RecordEffects,
}

/// Refuses clones and moves that make no sense, or are too long.
fn ensure_sensible(changes: &[ObjectChange<'_>]) -> Result<(), CacheError> {
    if !changes.iter().all(ObjectChange::is_sensible) {
        return Err(CacheError::BadTransfer);
    }
    match changes.iter().find_map(ObjectChange::excess_pages) {
        Some(pages) => Err(CacheError::TransferTooLong { pages, limit: TRANSFER_PAGES_MAX }),
        None => Ok(()),
    }
}

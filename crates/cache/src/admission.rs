//! Admission: an operation has its space in buffer and store before it is acknowledged (invariant 6). One
//! for which there is no space waits here, without a lock.

use crate::bypass;
use crate::bypassed_pages::BypassedAge;
use crate::change::{SpaceClaim, TransactionCost};
use crate::error::CacheError;
use crate::reservation_estimate::estimate_of_run;
use crate::state::{CacheShared, CacheState};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions};
use std::collections::VecDeque;
use std::sync::Arc;
use store::{ReservationEstimate, Store, StoreError};

/// Appended bytes that the device has not been given yet. Past it writers wait for the committer, so that
/// memory stays bounded however slow the buffer's device is. A second's worth of a slow disk.
const UNWRITTEN_BYTES_MAX: u64 = 8 * buffer::GROUP_BYTES;

/// Punches that may be pending before they alone cause write-back: looking them up stays cheap.
const PUNCHES_MAX: usize = 512;
/// Reservations that operations did not use are kept for the next ones, up to this many pages. A write of
/// less than a page reserves five pages in case its page is clean; with spare pages, a write to a dirty page
/// asks the store for nothing.
const SPARE_PAGES_MAX: u64 = 16;

/// Operations that wait for space, in their order of arrival, and the reservations of admitted ones.
#[derive(Default)]
pub(crate) struct AdmissionQueue {
    waiting: VecDeque<WaitingOperation>,
    /// Bypassing operations that wait for earlier bypassed pages to be stored. Later bypassing operations
    /// queue behind them; all others pass.
    waiting_to_bypass: VecDeque<WaitingOperation>,
    /// Pages that admitted operations may bypass.
    bypass_pages: u64,
    /// Bytes of the buffer that admitted operations reserved.
    reserved_bytes: u64,
    /// The estimate for the pages that admitted operations reserved.
    estimate: ReservationEstimate,
    /// Reserved pages that neither an operation nor a dirty page needs. None while an operation waits.
    spare_pages: u64,
    /// An operation waits for space in the store, or write-back found none: cleaning is worth while.
    wants_space: bool,
    /// The last attempt gained no space, and nothing has changed since.
    cannot_gain_space: bool,
}

struct WaitingOperation {
    cost: TransactionCost,
    then: CacheCompletion<SpaceReservation>,
    /// Pages that the cleaner had moved when the operation began to wait.
    cleaned_before: u64,
}

/// The answer to an operation that asks for space.
pub(crate) enum AdmissionDecision {
    Admit(ReservedSpace),
    Wait,
    WaitToBypass,
    Refuse(CacheError),
}

/// Space of one transaction. Its pages are reserved in the store; the rest counts only where it is
/// [booked](AdmissionQueue::book).
#[derive(Debug, Default)]
pub(crate) struct ReservedSpace {
    /// Reserved pages of the store that no dirty page has taken over.
    pages: u64,
    claim: SpaceClaim,
    buffer_bytes: u64,
    /// The pages among them that may bypass the buffer.
    bypass_pages: u64,
    /// The estimate for its pages.
    estimate: ReservationEstimate,
}

impl ReservedSpace {
    /// Which space its operation may take.
    pub(crate) fn claim(&self) -> SpaceClaim {
        self.claim
    }

    /// Whether its operation may bypass the buffer.
    pub(crate) fn may_bypass(&self) -> bool {
        self.bypass_pages > 0
    }

    /// Extends it to `pages` pages.
    fn grow_to(&mut self, pages: u64, store: &Store, state: &mut CacheState) -> Result<(), StoreError> {
        if pages > self.pages {
            state.reserve(store, pages - self.pages, self.claim, ReservationEstimate::default())?;
            self.pages = pages;
        }
        Ok(())
    }

    /// A page that becomes dirty, or a range operation, takes over a part.
    pub(crate) fn take_pages(&mut self, pages: u64) {
        self.pages -= pages;
    }

    /// Releases the pages that were not used. Returns true if operations wait: the committer must be woken to
    /// admit them.
    pub(crate) fn release_pages(&mut self, store: &Store, state: &mut CacheState) -> bool {
        let pages = std::mem::take(&mut self.pages);
        if pages > 0 {
            state.release_reserved(pages, self.claim, store);
        }
        // The released space may be all that an operation waits for.
        let awaited = state.admission.is_waiting() || state.admission.is_waiting_to_bypass();
        if awaited {
            state.syncs.ask_for_commit();
        }
        awaited
    }
}

/// Permission to apply one transaction within its cost. Dropping it releases what was not used.
pub struct SpaceReservation {
    shared: Arc<CacheShared>,
    /// Booked. `None` once it is released.
    space: Option<ReservedSpace>,
}

impl SpaceReservation {
    /// The space, extended to `pages` pages. The caller holds the state's lock.
    pub(crate) fn space_for(
        &mut self,
        pages: u64,
        state: &mut CacheState,
    ) -> Result<&mut ReservedSpace, StoreError> {
        let space = self.space.as_mut().expect("a reservation is good for one transaction");
        space.grow_to(pages, self.shared.store(), state)?;
        Ok(space)
    }

    /// Releases what was not used, under the state's lock; dropping it then does nothing more. Returns true
    /// if operations wait: the committer must be woken to admit them.
    pub(crate) fn release_unused(&mut self, state: &mut CacheState) -> bool {
        let Some(mut space) = self.space.take() else { return false };
        state.admission.unbook(&space);
        space.release_pages(self.shared.store(), state)
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        if self.space.is_some() {
            let shared = self.shared.clone();
            let awaited = self.release_unused(&mut shared.state());
            if awaited {
                shared.wake(BackgroundTask::Commit);
            }
        }
    }
}

impl CacheState {
    /// Reserves pages in the store, of which `own_estimate` is known: all of them spare ones, if there are
    /// enough. An operation that frees space gets them in any case: the store keeps a reserve for that, and
    /// reserves nothing for others until there is space for these pages.
    fn reserve(
        &mut self,
        store: &Store,
        pages: u64,
        claim: SpaceClaim,
        own_estimate: ReservationEstimate,
    ) -> Result<(), StoreError> {
        let more = pages.saturating_sub(self.admission.spare_pages);
        if more > 0 {
            let estimate = self.reservation_estimate() + own_estimate;
            let outcome = if claim == SpaceClaim::Data {
                store.space().reserve(more, estimate)
            } else {
                store.space().reserve_for_names(more, estimate)
            };
            match outcome {
                Err(error) if error.is_full() && claim == SpaceClaim::Frees => {
                    store.space().reserve_unchecked(more)
                }
                outcome => outcome?,
            }
        }
        self.admission.spare_pages -= pages - more;
        Ok(())
    }

    /// Releases reserved pages, or keeps them for the next operations.
    fn release_reserved(&mut self, pages: u64, claim: SpaceClaim, store: &Store) {
        // An operation with a larger claim may have got pages that the store does not have. They must not
        // become spare.
        if claim > SpaceClaim::Data || self.is_stopping() || self.admission.is_waiting() {
            self.admission.release_spare(store);
            return store.space().release(pages);
        }
        self.admission.spare_pages += pages;
        let beyond = self.admission.spare_pages.saturating_sub(SPARE_PAGES_MAX);
        if beyond > 0 {
            store.space().release(beyond);
            self.admission.spare_pages = SPARE_PAGES_MAX;
        }
    }
}

impl AdmissionQueue {
    /// Whether an operation waits for space. Those that wait to bypass do not count.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Counts the space of an operation that applies its changes later.
    fn book(&mut self, space: &ReservedSpace) {
        self.reserved_bytes += space.buffer_bytes;
        self.bypass_pages += space.bypass_pages;
        self.estimate = self.estimate + space.estimate;
    }

    fn unbook(&mut self, space: &ReservedSpace) {
        self.reserved_bytes -= space.buffer_bytes;
        self.bypass_pages -= space.bypass_pages;
        self.estimate = self.estimate - space.estimate;
    }

    /// Whether an operation must wait behind others. Operations that free space pass all of them; changes of
    /// names pass while the others wait for space in the store.
    fn must_queue(&self, claim: SpaceClaim) -> bool {
        let passes = match claim {
            SpaceClaim::Data => false,
            SpaceClaim::Names => self.wants_space || self.cannot_gain_space,
            SpaceClaim::Frees => true,
        };
        self.is_waiting() && !passes
    }

    /// Whether a bypassing operation waits.
    pub(crate) fn is_waiting_to_bypass(&self) -> bool {
        !self.waiting_to_bypass.is_empty()
    }

    /// Number of waiting operations.
    pub(crate) fn waiting_count(&self) -> u64 {
        (self.waiting.len() + self.waiting_to_bypass.len()) as u64
    }

    /// The estimate for the pages that admitted operations reserved.
    pub(crate) fn reservation_estimate(&self) -> ReservationEstimate {
        self.estimate
    }

    /// Bytes of the buffer that admitted operations reserved.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Whether cleaning is worth while: an operation waits for space in the store, or write-back found none.
    pub(crate) fn wants_space(&self) -> bool {
        self.wants_space
    }

    /// Whether a reader may be told of this error now: while space is being made, none is told that there is
    /// none.
    pub(crate) fn may_tell(&self, error: &CacheError) -> bool {
        !(self.wants_space && error.is_full())
    }

    /// Asks for an attempt to make space, because write-back found none; unless the last attempt was in vain
    /// and nothing has changed since. Returns whether it asks.
    pub(crate) fn ask_for_space(&mut self) -> bool {
        self.wants_space |= !self.cannot_gain_space;
        !self.cannot_gain_space
    }

    /// Notes the end of an attempt to make space.
    pub(crate) fn note_attempt_ended(&mut self, was_in_vain: bool) {
        self.wants_space = false;
        self.cannot_gain_space = was_in_vain;
    }

    /// Nothing needs the space any more for which an attempt was asked for.
    pub(crate) fn cancel_space_request(&mut self) {
        self.wants_space = false;
    }

    /// Notes that there may be space: the next operation without space is worth another attempt.
    pub(crate) fn note_possible_space(&mut self) {
        self.cannot_gain_space = false;
    }

    /// Releases the spare pages to the store.
    pub(crate) fn release_spare(&mut self, store: &Store) {
        if self.spare_pages > 0 {
            store.space().release(std::mem::take(&mut self.spare_pages));
        }
    }
}

/// Decides which operations are admitted.
#[derive(Clone)]
pub(crate) struct AdmissionControl {
    shared: Arc<CacheShared>,
}

impl AdmissionControl {
    pub(crate) fn new(shared: Arc<CacheShared>) -> AdmissionControl {
        AdmissionControl { shared }
    }

    /// Decides about a new operation. One that would pass others in their queue waits behind them, so a
    /// stream's writes keep their order.
    pub(crate) fn decide_new(&self, state: &mut CacheState, cost: TransactionCost) -> AdmissionDecision {
        if cost.bypass_pages > 0 && state.admission.is_waiting_to_bypass() {
            AdmissionDecision::WaitToBypass
        } else if state.admission.must_queue(cost.claim) {
            AdmissionDecision::Wait
        } else {
            self.decide(state, cost)
        }
    }

    fn reservation(&self, state: &mut CacheState, space: ReservedSpace) -> SpaceReservation {
        state.admission.book(&space);
        SpaceReservation { shared: self.shared.clone(), space: Some(space) }
    }

    /// Asks for space. `then` gets a reservation: at once if there is space, otherwise when there is. Refused
    /// if the store is full, at once or after an attempt to make space.
    pub(crate) fn admit(&self, cost: TransactionCost, then: CacheCompletion<SpaceReservation>) {
        let mut state = self.shared.state();
        match self.decide_new(&mut state, cost) {
            AdmissionDecision::Wait => {
                let operation = self.begin_wait(&mut state, cost, then);
                state.admission.release_spare(self.shared.store());
                // Groups that were released, but not yet durably, may be all that is missing.
                state.syncs.ask_for_commit();
                state.admission.waiting.push_back(operation);
                drop(state);
                self.shared.wake(BackgroundTask::Commit);
                self.shared.wake(BackgroundTask::WriteBack);
                self.shared.wake(BackgroundTask::Checkpoint);
            }
            AdmissionDecision::WaitToBypass => {
                let operation = self.begin_wait(&mut state, cost, then);
                state.admission.waiting_to_bypass.push_back(operation);
                drop(state);
                self.shared.wake(BackgroundTask::WriteBack);
            }
            AdmissionDecision::Admit(space) => {
                let reservation = self.reservation(&mut state, space);
                drop(state);
                then(Ok(reservation));
            }
            AdmissionDecision::Refuse(error) => {
                drop(state);
                then(Err(error));
            }
        }
    }

    fn begin_wait(
        &self,
        state: &mut CacheState,
        cost: TransactionCost,
        then: CacheCompletion<SpaceReservation>,
    ) -> WaitingOperation {
        state.counters.admissions_parked += 1;
        WaitingOperation { cost, then, cleaned_before: self.shared.store().counters().pages_cleaned }
    }

    /// Admits waiting operations, in order, as far as there is space.
    pub(crate) fn admit_waiting(&self, state: &mut CacheState, completions: &mut DeferredCompletions) {
        while let Some(first) = state.admission.waiting.pop_front() {
            match self.decide(state, first.cost) {
                AdmissionDecision::Wait => return state.admission.waiting.push_front(first),
                AdmissionDecision::WaitToBypass => state.admission.waiting_to_bypass.push_back(first),
                AdmissionDecision::Admit(space) => self.complete_waiter(state, first, Ok(space), completions),
                AdmissionDecision::Refuse(error) => {
                    self.complete_waiter(state, first, Err(error), completions)
                }
            }
        }
        while let Some(first) = state.admission.waiting_to_bypass.pop_front() {
            match self.decide(state, first.cost) {
                AdmissionDecision::Wait => return state.admission.waiting.push_back(first),
                AdmissionDecision::WaitToBypass => {
                    return state.admission.waiting_to_bypass.push_front(first);
                }
                AdmissionDecision::Admit(space) => self.complete_waiter(state, first, Ok(space), completions),
                AdmissionDecision::Refuse(error) => {
                    self.complete_waiter(state, first, Err(error), completions)
                }
            }
        }
    }

    fn complete_waiter(
        &self,
        state: &mut CacheState,
        operation: WaitingOperation,
        outcome: Result<ReservedSpace, CacheError>,
        completions: &mut DeferredCompletions,
    ) {
        let outcome = outcome.map(|space| self.reservation(state, space));
        let WaitingOperation { then, cleaned_before, .. } = operation;
        let cleaned = self.shared.store().counters().pages_cleaned - cleaned_before;
        state.counters.cleaned_while_parked = state.counters.cleaned_while_parked.max(cleaned);
        completions.push(move || then(outcome));
    }

    /// Decides about an operation, and reserves its pages if it is admitted.
    fn decide(&self, state: &mut CacheState, cost: TransactionCost) -> AdmissionDecision {
        if let Some(why) = state.failed().cloned() {
            return AdmissionDecision::Refuse(CacheError::ReadOnly { why });
        }
        if state.is_stopping() {
            return AdmissionDecision::Refuse(CacheError::Stopping);
        }
        let buffer_bytes = buffer::footprint(cost.records, cost.bytes);
        let limit = self.shared.buffer().transaction_bytes_max();
        if buffer_bytes > limit {
            return AdmissionDecision::Refuse(CacheError::TooBig { bytes: buffer_bytes, limit });
        }
        let unlogged = state.pages.unlogged() as u64;
        let buffer = self.shared.buffer();
        // A write that has no space to bypass even alone is written like any other.
        let may_bypass = cost.bypass_pages > 0 && bypass::has_space_for(buffer, cost.bypass_pages, 0);
        let bypass_pages = if may_bypass { cost.bypass_pages } else { 0 };
        let others = unlogged + state.admission.bypass_pages;
        if may_bypass
            && (!bypass::has_space_for(buffer, bypass_pages, others)
                || self.shared.bypassed_age(&state.pages) >= BypassedAge::Due)
        {
            return AdmissionDecision::WaitToBypass;
        }
        let buffer_bytes = buffer_bytes + bypass::reserved_bytes(bypass_pages);
        // Log space that an operation leaves; relogging leaves 2/32.
        let thirty_seconds = match cost.claim {
            SpaceClaim::Data => 5,
            SpaceClaim::Names => 4,
            SpaceClaim::Frees => 2,
        };
        let kept = buffer.capacity_bytes() / 32 * thirty_seconds;
        let reserved = state.admission.reserved_bytes + bypass::reserved_bytes(unlogged);
        let space = buffer.free_bytes().saturating_sub(reserved);
        let crowded =
            cost.claim < SpaceClaim::Frees && self.shared.settings().is_over_limit(state.pages.memory());
        if self.shared.buffer().open_bytes() > UNWRITTEN_BYTES_MAX {
            return AdmissionDecision::Wait;
        }
        if space < buffer_bytes + kept || crowded {
            // Write-back must come first, and it finds no space, nor has cleaning made any.
            if state.admission.cannot_gain_space
                && state.retries.needs_space()
                && cost.claim == SpaceClaim::Data
            {
                return AdmissionDecision::Refuse(StoreError::Full.into());
            }
            if state.admission.wants_space {
                return AdmissionDecision::Wait;
            }
            let error =
                state.retries.no_space_error(self.shared.now(), self.shared.settings().store_patience);
            return error.map_or(AdmissionDecision::Wait, |error| AdmissionDecision::Refuse(error.clone()));
        }
        state.retries.note_space_found();
        let own_estimate = estimate_of_run(cost.run);
        match state.reserve(self.shared.store(), cost.pages, cost.claim, own_estimate) {
            Ok(()) => AdmissionDecision::Admit(ReservedSpace {
                pages: cost.pages,
                claim: cost.claim,
                buffer_bytes,
                bypass_pages,
                estimate: own_estimate,
            }),
            Err(error) if error.is_full() && !state.admission.cannot_gain_space => {
                state.admission.wants_space = true;
                AdmissionDecision::Wait
            }
            Err(error) => AdmissionDecision::Refuse(error.into()),
        }
    }

    /// Whether pages must be written back so that no operation has to wait.
    pub(crate) fn wants_write_back(&self, state: &CacheState) -> bool {
        self.bypassed_pages_need_write_back(state) || self.logged_pages_need_write_back(state)
    }

    /// [`wants_write_back`](AdmissionControl::wants_write_back) without bypassed pages: at half of the limits
    /// at which operations wait.
    pub(crate) fn logged_pages_need_write_back(&self, state: &CacheState) -> bool {
        state.failed().is_none()
            && (state.pages.has_unchecked_pages()
                || self.shared.buffer_is_half_full()
                || self.shared.settings().is_near_limit(state.pages.memory())
                || state.pages.punches_pending() > PUNCHES_MAX
                || (state.pages.punches_pending() > 0 && self.shared.store().space().is_host_fs_known_full())
                // Unless the host file system gives them space.
                || (state.admission.is_waiting()
                    && state.pages.is_dirty()
                    && !self.shared.store().space().may_allocate()))
    }

    /// Whether bypassed pages are to be stored now.
    pub(crate) fn bypassed_pages_need_write_back(&self, state: &CacheState) -> bool {
        state.failed().is_none()
            && (bypass::need_write_back(self.shared.buffer(), &state.pages)
                || self.shared.bypassed_age(&state.pages) >= BypassedAge::Due
                || state.admission.is_waiting_to_bypass()
                || state.syncs.any_waiting_for_store())
    }

    /// Whether bypassed pages may wait: no sync waits for the store to have them, and they will not be logged
    /// soon.
    pub(crate) fn bypassed_pages_can_wait(&self, state: &CacheState) -> bool {
        !state.syncs.any_waiting_for_store() && self.shared.bypassed_age(&state.pages) < BypassedAge::Urgent
    }

    /// Fails all waiting operations: nothing can change any more.
    pub(crate) fn refuse_all(
        &self,
        state: &mut CacheState,
        error: &CacheError,
        completions: &mut DeferredCompletions,
    ) {
        let AdmissionQueue { waiting, waiting_to_bypass, .. } = &mut state.admission;
        for WaitingOperation { then, .. } in waiting.drain(..).chain(waiting_to_bypass.drain(..)) {
            let error = error.clone();
            completions.push(move || then(Err(error)));
        }
    }
}

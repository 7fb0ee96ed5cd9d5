//! Admission: an operation has its space in buffer and store before it is acknowledged (invariant 6). One
//! for which there is no space waits here, without a lock.

use crate::bypass;
use crate::bypassed_pages::BypassedAge;
use crate::change::{SpaceClaim, TransactionCost};
use crate::error::CacheError;
use crate::log::CacheLog;
use crate::page_table::PageTable;
use crate::range_ops::{PendingRangeOp, PendingRangeOps};
use crate::request_wait::{RequestWait, TaskLoan, WaitCause, WaitLog};
use crate::space::{CacheSpace, ReservedSpace};
use crate::state::{CacheShared, CacheState};
use crate::task::{BackgroundTask, CacheCompletion, DeferredCompletions};
use request::RequestClass;
use std::collections::VecDeque;
use std::sync::Arc;
use store::StoreError;

/// Appended bytes that the device has not been given yet. Past it writers wait for the committer, so that
/// memory stays bounded however slow the buffer's device is. A second's worth of a slow disk.
const UNWRITTEN_BYTES_MAX: u64 = 8 * buffer::GROUP_BYTES;

/// Punches that may be pending before they alone cause write-back: looking them up stays cheap.
const PUNCHES_MAX: usize = 512;

/// Clones and moves that may be pending before further ones wait: a read of a target waits until the store has all of them
/// that came before, and each takes the store a flush. On a slow cloud disk these are two seconds.
const RANGE_OPS_MAX: u64 = 64;

/// Operations that wait for space, in their order of arrival. A part of
/// [`CacheSpace`].
#[derive(Default)]
pub(crate) struct AdmissionQueue {
    /// Critical ones, which go before all others.
    critical: VecDeque<WaitingOperation>,
    background: VecDeque<WaitingOperation>,
    /// Operations that wait for earlier bypassed pages to be stored. Later ones of their kind queue behind
    /// them; all others pass.
    to_bypass: VecDeque<WaitingOperation>,
    /// Clones and moves that wait until earlier ones are stored. Only later ones queue behind them.
    copies: VecDeque<WaitingOperation>,
    /// An operation waits for space in the store, or write-back found none: cleaning is worth while.
    wants_space: bool,
    /// The operation that was decided about last waits for space that write-back makes in the buffer or in memory.
    needs_write_back: bool,
    /// The last attempt gained no space, and nothing has changed since.
    cannot_gain_space: bool,
    /// Operations that had to wait so far.
    parked: u64,
    /// The most pages that the cleaner moved while one of them waited.
    cleaned_while_parked: u64,
}

struct WaitingOperation {
    cost: TransactionCost,
    then: CacheCompletion<SpaceReservation>,
    wait: RequestWait,
    /// Pages that the cleaner had moved when the operation began to wait.
    cleaned_before: u64,
}

/// The answer to an operation that asks for space.
pub(crate) enum AdmissionDecision {
    Admit(ReservedSpace),
    Wait(WaitCause),
    Refuse(CacheError),
}

/// Permission to apply one transaction within its cost. Dropping it releases what was not used.
pub struct SpaceReservation {
    shared: Arc<CacheShared>,
    /// Booked. `None` once it is released.
    space: Option<ReservedSpace>,
}

impl SpaceReservation {
    /// The space. The caller holds the state's lock.
    ///
    /// # Panics
    /// If it was released.
    pub(crate) fn space(&mut self) -> &mut ReservedSpace {
        self.space.as_mut().expect("a reservation is good for one transaction")
    }

    /// Releases what was not used, under the state's lock; dropping it then does nothing more. Returns
    /// whether the committer must be woken to admit others.
    pub(crate) fn release_unused(&mut self, state: &mut CacheState) -> bool {
        let Some(mut space) = self.space.take() else { return false };
        state.space.unbook(&space);
        state.release_unused(&mut space)
    }
}

impl Drop for SpaceReservation {
    fn drop(&mut self) {
        if self.space.is_some() {
            let shared = self.shared.clone();
            let is_awaited = self.release_unused(&mut shared.state());
            if is_awaited {
                shared.wake(BackgroundTask::Commit);
            }
        }
    }
}

impl AdmissionQueue {
    /// Whether an operation waits for space. Those that wait to bypass do not count.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_critical_waiting() || !self.background.is_empty()
    }

    /// Whether an operation waits for space that write-back makes.
    fn needs_write_back(&self) -> bool {
        self.needs_write_back && self.is_waiting()
    }

    /// Whether a critical operation waits for space.
    pub(crate) fn is_critical_waiting(&self) -> bool {
        !self.critical.is_empty()
    }

    /// Whether an operation must wait behind others. Operations that free space pass all of them, critical
    /// ones pass background ones, and changes of names pass while the others wait for space in the store.
    fn must_queue(&self, cost: &TransactionCost) -> bool {
        let passes = match cost.claim {
            SpaceClaim::Data => false,
            SpaceClaim::Names => self.wants_space || self.cannot_gain_space,
            SpaceClaim::Frees => true,
        };
        let is_behind = match cost.origin.class {
            RequestClass::Critical => self.is_critical_waiting(),
            RequestClass::Background => self.is_waiting(),
        };
        is_behind && !passes
    }

    /// The queue for a decision that lets an operation of this class wait.
    fn queue_of(&mut self, cause: WaitCause, class: RequestClass) -> &mut VecDeque<WaitingOperation> {
        match (cause, class) {
            (WaitCause::EarlierCopies, _) => &mut self.copies,
            (WaitCause::WriteBack, _) => &mut self.to_bypass,
            (_, RequestClass::Critical) => &mut self.critical,
            (_, RequestClass::Background) => &mut self.background,
        }
    }

    /// Whether a bypassing operation waits.
    pub(crate) fn is_waiting_to_bypass(&self) -> bool {
        !self.to_bypass.is_empty()
    }

    /// Whether a copy waits for earlier ones.
    pub(crate) fn is_copy_waiting(&self) -> bool {
        !self.copies.is_empty()
    }

    /// Whether any operation waits.
    pub(crate) fn any_waiting(&self) -> bool {
        self.is_waiting() || self.is_waiting_to_bypass() || self.is_copy_waiting()
    }

    /// The waits of the waiting operations.
    pub(crate) fn waits(&self) -> impl Iterator<Item = &RequestWait> {
        [&self.critical, &self.background, &self.to_bypass, &self.copies]
            .into_iter()
            .flatten()
            .map(|operation| &operation.wait)
    }

    /// Number of waiting operations.
    pub(crate) fn waiting_count(&self) -> u64 {
        (self.critical.len() + self.background.len() + self.to_bypass.len() + self.copies.len()) as u64
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

    fn park(&mut self, operation: WaitingOperation) {
        self.parked += 1;
        self.queue_of(operation.wait.cause, operation.cost.origin.class).push_back(operation);
    }

    /// Makes the waiting operations of a task critical. Returns whether there are some. Copies that wait for earlier ones
    /// would not go on sooner.
    pub(crate) fn lend(&mut self, loan: TaskLoan) -> bool {
        let AdmissionQueue { critical, background, to_bypass, .. } = self;
        let before = critical.len();
        for queue in [background, to_bypass] {
            for mut operation in std::mem::take(queue) {
                if operation.wait.lend(loan) {
                    operation.cost.origin.class = RequestClass::Critical;
                    critical.push_back(operation);
                } else {
                    queue.push_back(operation);
                }
            }
        }
        critical.len() > before
    }

    /// Fails all waiting operations: nothing can change any more.
    pub(crate) fn refuse_all(&mut self, error: &CacheError, completions: &mut DeferredCompletions) {
        let AdmissionQueue { critical, background, to_bypass, copies, .. } = self;
        for queue in [critical, background, to_bypass, copies] {
            for WaitingOperation { then, .. } in queue.drain(..) {
                let error = error.clone();
                completions.push(move || then(Err(error)));
            }
        }
    }

    /// Operations that had to wait so far, and the most pages that the cleaner moved while one of them waited.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.parked, self.cleaned_while_parked)
    }
}

/// What deciding about an operation changes, and what it looks at, under the state's lock.
pub(crate) struct AdmissionView<'a> {
    pub(crate) space: &'a mut CacheSpace,
    pub(crate) waits: &'a mut WaitLog,
    pub(crate) pages: &'a PageTable,
    pub(crate) log: &'a CacheLog,
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
    pub(crate) fn decide_new(
        &self,
        view: &mut AdmissionView<'_>,
        cost: &TransactionCost,
    ) -> AdmissionDecision {
        let queue = &view.space.admission;
        if cost.transfers > 0 && !queue.copies.is_empty() {
            AdmissionDecision::Wait(WaitCause::EarlierCopies)
        } else if queue.is_waiting_to_bypass() && self.must_bypass(cost) {
            AdmissionDecision::Wait(WaitCause::WriteBack)
        } else if queue.must_queue(cost) {
            AdmissionDecision::Wait(WaitCause::EarlierRequest)
        } else {
            self.decide(view, cost)
        }
    }

    fn reservation(&self, to: &mut CacheSpace, space: ReservedSpace) -> SpaceReservation {
        to.book(&space);
        SpaceReservation { shared: self.shared.clone(), space: Some(space) }
    }

    /// Asks for space. `then` gets a reservation: at once if there is space, otherwise when there is. Refused
    /// if the store is full, at once or after an attempt to make space.
    pub(crate) fn admit(&self, cost: TransactionCost, then: CacheCompletion<SpaceReservation>) {
        let mut state = self.shared.state();
        let decision = self.decide_new(&mut state.for_admission(), &cost);
        let cleaned = || self.shared.store().counters().pages_cleaned;
        match decision {
            AdmissionDecision::Wait(cause) => {
                let wait = RequestWait::new(cost.origin, cause, self.shared.now());
                state.space.admission.park(WaitingOperation { cost, then, wait, cleaned_before: cleaned() });
                if cause.is_for_space() {
                    state.space.release_spare();
                    // Groups that were released, but not yet durably, may be all that is missing.
                    state.log.syncs.ask_for_commit();
                }
                drop(state);
                self.shared.wake(BackgroundTask::WriteBack);
                if cause.is_for_space() {
                    self.shared.wake(BackgroundTask::Commit);
                    self.shared.wake(BackgroundTask::Checkpoint);
                }
            }
            AdmissionDecision::Admit(space) => {
                let reservation = self.reservation(&mut state.space, space);
                drop(state);
                then(Ok(reservation));
            }
            AdmissionDecision::Refuse(error) => {
                drop(state);
                then(Err(error));
            }
        }
    }

    /// Admits waiting operations, in order, as far as there is space.
    pub(crate) fn admit_waiting(&self, mut view: AdmissionView<'_>, completions: &mut DeferredCompletions) {
        self.admit_copies(&mut view, completions);
        let queues = [
            (WaitCause::BufferSpace, RequestClass::Critical),
            (WaitCause::BufferSpace, RequestClass::Background),
            (WaitCause::WriteBack, RequestClass::Background),
        ];
        for (waits, class) in queues {
            while let Some(mut first) = view.space.admission.queue_of(waits, class).pop_front() {
                let outcome = match self.decide(&mut view, &first.cost) {
                    AdmissionDecision::Admit(space) => Ok(space),
                    AdmissionDecision::Refuse(error) => Err(error),
                    AdmissionDecision::Wait(cause) => {
                        first.wait.cause = cause;
                        let queue = view.space.admission.queue_of(cause, first.cost.origin.class);
                        if cause.is_for_space() == waits.is_for_space() {
                            return queue.push_front(first);
                        }
                        queue.push_back(first);
                        if cause.is_for_space() {
                            return;
                        }
                        continue;
                    }
                };
                self.complete(&mut view, first, outcome, completions);
            }
        }
    }

    /// Admits copies that wait for earlier copies only.
    fn admit_copies(&self, view: &mut AdmissionView<'_>, completions: &mut DeferredCompletions) {
        while let Some(mut first) = view.space.admission.copies.pop_front() {
            let outcome = match self.decide(view, &first.cost) {
                AdmissionDecision::Admit(space) => Ok(space),
                AdmissionDecision::Refuse(error) => Err(error),
                AdmissionDecision::Wait(WaitCause::EarlierCopies) => {
                    return view.space.admission.copies.push_front(first);
                }
                AdmissionDecision::Wait(cause) => {
                    first.wait.cause = cause;
                    view.space.admission.queue_of(cause, first.cost.origin.class).push_back(first);
                    continue;
                }
            };
            self.complete(view, first, outcome, completions);
        }
    }

    /// Answers an operation that waited.
    fn complete(
        &self,
        view: &mut AdmissionView<'_>,
        operation: WaitingOperation,
        outcome: Result<ReservedSpace, CacheError>,
        completions: &mut DeferredCompletions,
    ) {
        let outcome = outcome.map(|space| self.reservation(view.space, space));
        let WaitingOperation { then, wait, cleaned_before, .. } = operation;
        view.waits.note_end(&wait, self.shared.now());
        let cleaned = self.shared.store().counters().pages_cleaned - cleaned_before;
        let most = &mut view.space.admission.cleaned_while_parked;
        *most = cleaned.max(*most);
        completions.push(move || then(outcome));
    }

    /// Decides about an operation, and reserves its pages if it is admitted.
    fn decide(&self, view: &mut AdmissionView<'_>, cost: &TransactionCost) -> AdmissionDecision {
        let AdmissionView { space, pages, log, .. } = view;
        if let Err(error) = log.ensure_works() {
            return AdmissionDecision::Refuse(error);
        }
        if log.is_stopping() {
            return AdmissionDecision::Refuse(CacheError::Stopping);
        }
        let buffer = self.shared.buffer();
        let record_bytes = buffer::footprint(cost.records, cost.bytes);
        let limit = buffer.transaction_bytes_max();
        if record_bytes > limit {
            return AdmissionDecision::Refuse(CacheError::TooBig { bytes: record_bytes, limit });
        }
        let unlogged = pages.unlogged() as u64;
        let mut bypass_pages = cost.bypass_pages;
        if bypass_pages > 0 {
            let others = unlogged + space.booked_bypass_pages();
            let has_space = bypass::has_space_for(buffer, bypass_pages, others)
                && self.shared.bypassed_age(pages) < BypassedAge::Due;
            // A write that has no space to bypass even alone is written like any other.
            if !has_space && self.must_bypass(cost) && bypass::has_space_for(buffer, bypass_pages, 0) {
                return AdmissionDecision::Wait(WaitCause::WriteBack);
            }
            if !has_space {
                bypass_pages = 0;
            }
        }
        let buffer_bytes = record_bytes + bypass::reserved_bytes(bypass_pages);
        let crowded = cost.claim < SpaceClaim::Frees
            && self.shared.settings().is_over_limit(pages.memory(), cost.origin.class);
        if buffer.open_bytes() > UNWRITTEN_BYTES_MAX {
            return AdmissionDecision::Wait(WaitCause::Commit);
        }
        let reserved = log.reserved_bytes(pages, space);
        let lacks_buffer = self.lacks_buffer(buffer_bytes, reserved, cost.claim, cost.origin.class);
        space.admission.needs_write_back = lacks_buffer || crowded;
        if space.admission.needs_write_back {
            let lacking = if lacks_buffer { WaitCause::BufferSpace } else { WaitCause::DirtyMemory };
            return self.decide_without_write_back(space, cost.claim, lacking);
        }
        if cost.transfers > 0 && self.are_too_many_copies(pages.range_ops(), space.booked_transfers()) {
            return AdmissionDecision::Wait(WaitCause::EarlierCopies);
        }
        space.retries.note_space_found();
        match space.reserve(cost, buffer_bytes, bypass_pages, pages) {
            Ok(reserved) => AdmissionDecision::Admit(reserved),
            Err(error) if error.is_full() && !space.admission.cannot_gain_space => {
                space.admission.wants_space = true;
                AdmissionDecision::Wait(WaitCause::StoreSpace)
            }
            Err(error) => AdmissionDecision::Refuse(error.into()),
        }
    }

    /// Whether a further copy waits for pending ones. Copies that cannot be stored, because a page cannot be read, hold
    /// others up only as long as writers wait for a store without space.
    fn are_too_many_copies(&self, pending: &PendingRangeOps, booked: u64) -> bool {
        let is_stuck = |oldest: &PendingRangeOp| {
            self.shared.now().saturating_sub(oldest.since) >= self.shared.settings().store_patience
        };
        pending.len() as u64 + booked >= RANGE_OPS_MAX && !pending.iter().next().is_some_and(is_stuck)
    }

    /// Whether the buffer lacks space for an operation of this claim and class that appends `bytes` bytes, beside
    /// the `reserved` bytes of others.
    fn lacks_buffer(&self, bytes: u64, reserved: u64, claim: SpaceClaim, class: RequestClass) -> bool {
        let buffer = self.shared.buffer();
        // Log space that an operation leaves; relogging leaves 2/32.
        let thirty_seconds = match (claim, class) {
            (SpaceClaim::Frees, _) => 2,
            (_, RequestClass::Background) => 11,
            (SpaceClaim::Names, _) => 4,
            (SpaceClaim::Data, _) => 5,
        };
        let kept = buffer.capacity_bytes() / 32 * thirty_seconds;
        buffer.free_bytes().saturating_sub(reserved) < bytes + kept
    }

    /// Whether a transaction that needs space in the buffer alone, for one record of `bytes` bytes of data, may
    /// be appended now: it would not wait, and nothing waits that it must not pass.
    pub(crate) fn may_append_now(&self, view: &AdmissionView<'_>, class: RequestClass, bytes: u64) -> bool {
        let AdmissionView { space, pages, log, .. } = view;
        let reserved = log.reserved_bytes(pages, space);
        log.failed().is_none()
            && !log.is_stopping()
            && !space.admission.any_waiting()
            && self.shared.buffer().open_bytes() <= UNWRITTEN_BYTES_MAX
            && !self.lacks_buffer(buffer::footprint(1, bytes), reserved, SpaceClaim::Data, class)
    }

    /// Decides about an operation for which write-back must make the space that is `lacking`.
    fn decide_without_write_back(
        &self,
        space: &mut CacheSpace,
        claim: SpaceClaim,
        lacking: WaitCause,
    ) -> AdmissionDecision {
        let CacheSpace { admission, retries, .. } = space;
        // Write-back finds no space, nor has cleaning made any.
        if admission.cannot_gain_space && retries.needs_space() && claim == SpaceClaim::Data {
            return AdmissionDecision::Refuse(StoreError::Full.into());
        }
        if admission.wants_space {
            return AdmissionDecision::Wait(WaitCause::StoreSpace);
        }
        let error = retries.no_space_error(self.shared.now(), self.shared.settings().store_patience);
        error.map_or(AdmissionDecision::Wait(lacking), |error| AdmissionDecision::Refuse(error.clone()))
    }

    /// Whether an operation waits rather than have whole pages logged, which fill the buffer.
    fn must_bypass(&self, cost: &TransactionCost) -> bool {
        let is_logged = || cost.origin.class == RequestClass::Critical && self.shared.follows_classes();
        cost.bypass_pages > 0 && !is_logged()
    }

    /// Whether pages must be written back so that no operation has to wait.
    pub(crate) fn wants_write_back(&self, state: &CacheState) -> bool {
        self.bypassed_pages_need_write_back(state) || self.logged_pages_need_write_back(state)
    }

    /// [`wants_write_back`](AdmissionControl::wants_write_back) without bypassed pages: at half of the limits
    /// at which operations wait.
    pub(crate) fn logged_pages_need_write_back(&self, state: &CacheState) -> bool {
        let CacheState { pages, log, space, .. } = state;
        log.failed().is_none()
            && (pages.has_unchecked_pages()
                || log.is_half_full()
                || self.shared.settings().is_near_limit(pages.memory())
                || pages.punches_pending() > PUNCHES_MAX
                || (space.admission.needs_write_back() && pages.is_dirty())
                || (pages.punches_pending() > 0 && space.store().space().is_host_fs_known_full())
                // Unless the host file system gives them space.
                || (space.admission.is_waiting()
                    && pages.is_dirty()
                    && !space.store().space().may_allocate()))
    }

    /// Whether bypassed pages are to be stored now.
    pub(crate) fn bypassed_pages_need_write_back(&self, state: &CacheState) -> bool {
        state.log.failed().is_none()
            && (bypass::need_write_back(self.shared.buffer(), &state.pages)
                || self.shared.bypassed_age(&state.pages) >= BypassedAge::Due
                || state.space.admission.is_waiting_to_bypass()
                || state.log.syncs.any_waiting_for_store())
    }

    /// Whether bypassed pages may wait: no sync waits for the store to have them, and they will not be logged
    /// soon.
    pub(crate) fn bypassed_pages_can_wait(&self, state: &CacheState) -> bool {
        !state.log.syncs.any_waiting_for_store()
            && self.shared.bypassed_age(&state.pages) < BypassedAge::Urgent
    }
}

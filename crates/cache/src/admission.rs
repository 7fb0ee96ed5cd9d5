//! Free space before acknowledgement: an operation takes its reservation when it enters, holding no lock, or waits here.

use crate::bypass;
use crate::bypass_age::BypassedAge;
use crate::change::{Claim, Cost};
use crate::error::CacheError;
use crate::reserved::known_of_run;
use crate::shared::{Shared, State};
use crate::task::{Completion, Completions, Task};
use std::collections::VecDeque;
use std::sync::Arc;
use store::{ReservationEstimate, Store, StoreError};

/// Appended and not yet handed to the device; past it writers wait for the committer, so that memory stays bounded
/// however slow the buffer's device is. A second's worth of a slow disk.
const UNWRITTEN_BYTES_MAX: u64 = 8 * buffer::GROUP_BYTES;

/// Cuts that may wait before they alone are reason enough for write-back: looking them up stays cheap.
const CUTS_MAX: usize = 512;
/// What operations reserved in the store and did not need is kept for the next ones, up to so many pages, so that a write to a page that
/// is dirty already asks the store for nothing: such a write reserves five, in case the page is not.
const SPARE_PAGES_MAX: u64 = 16;

/// Operations that wait for space, in the order in which they came, and what is reserved for those that go.
#[derive(Default)]
pub(crate) struct AdmissionQueue {
    waiting: VecDeque<Parked>,
    /// Those that bypass the buffer, and wait for what was written so before to be stored. No other waits for them.
    waiting_to_bypass: VecDeque<Parked>,
    /// Pages that those which have entered may bypass the buffer.
    bypass_pages: u64,
    /// Bytes of the buffer that reservations hold.
    reserved_bytes: u64,
    /// What the store may know of the pages for which operations have entered.
    known: ReservationEstimate,
    /// Pages that the store counts space for and that neither an operation nor a dirty page needs. None while an operation waits.
    spare_pages: u64,
    /// An operation waits for space in the store, or pages found none: it is worth cleaning for.
    wants_space: bool,
    /// Nothing could be freed at the last attempt, and nothing has changed since.
    exhausted: bool,
}

struct Parked {
    cost: Cost,
    then: Completion<Reservation>,
    /// Pages that the cleaner had moved by then.
    cleaned: u64,
}

enum Verdict {
    Go(Reservation),
    Wait,
    WaitToBypass,
    Refuse(CacheError),
}

/// Permission to apply one transaction within its cost. Dropping it gives back what was not used.
pub struct Reservation {
    shared: Arc<Shared>,
    /// The store's reservations, in pages, that no dirty page has taken over.
    pages: u64,
    claim: Claim,
    buffer_bytes: u64,
    /// Of the pages, so many may bypass the buffer.
    bypass_pages: u64,
    /// What the store may know of its pages.
    known: ReservationEstimate,
}

impl Reservation {
    /// Which space its operation may take.
    pub(crate) fn claim(&self) -> Claim {
        self.claim
    }

    /// Whether what it was asked for may bypass the buffer.
    pub(crate) fn is_bypassing(&self) -> bool {
        self.bypass_pages > 0
    }

    /// Makes it enough for a change of so many pages.
    pub(crate) fn grow_to(&mut self, pages: u64, state: &mut State) -> Result<(), StoreError> {
        if pages > self.pages {
            let known = state.known_to_store();
            state.admission.reserve(self.shared.store(), pages - self.pages, self.claim, known)?;
            self.pages = pages;
        }
        Ok(())
    }

    /// A page that was clean, or a clone or a move, takes over a part of it.
    pub(crate) fn take_pages(&mut self, pages: u64) {
        self.pages -= pages;
    }

    /// Gives back what was not used, under the lock. Dropping it does nothing more then. True if the committer must be
    /// woken, to let in those that wait.
    pub(crate) fn settle(&mut self, state: &mut State) -> bool {
        let pages = std::mem::take(&mut self.pages);
        if pages > 0 {
            self.give_back(pages, state);
        }
        state.admission.reserved_bytes -= std::mem::take(&mut self.buffer_bytes);
        state.admission.known = state.admission.known - std::mem::take(&mut self.known);
        state.admission.bypass_pages -= std::mem::take(&mut self.bypass_pages);
        // What was given back may be all that an operation waits for.
        let awaited = state.admission.is_waiting() || state.admission.is_waiting_to_bypass();
        if awaited {
            state.syncs.ask_for_commit();
        }
        awaited
    }
}

impl Reservation {
    fn give_back(&self, pages: u64, state: &mut State) {
        let store = self.shared.store();
        // What gives space back may have got some that there is not: it is for no other operation.
        if self.claim > Claim::Data || state.is_stopping() || state.admission.is_waiting() {
            state.admission.give_back_spare(store);
            return store.release(pages);
        }
        state.admission.spare_pages += pages;
        let beyond = state.admission.spare_pages.saturating_sub(SPARE_PAGES_MAX);
        if beyond > 0 {
            store.release(beyond);
            state.admission.spare_pages = SPARE_PAGES_MAX;
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.pages == 0
            && self.buffer_bytes == 0
            && self.bypass_pages == 0
            && self.known == ReservationEstimate::default()
        {
            return;
        }
        let shared = self.shared.clone();
        let awaited = self.settle(&mut shared.state());
        if awaited {
            shared.wake(Task::Commit);
        }
    }
}

impl AdmissionQueue {
    /// True if an operation waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether an operation goes behind those that wait. What frees passes all of them, names those that wait for the store's space.
    fn must_queue(&self, claim: Claim) -> bool {
        let passes = match claim {
            Claim::Data => false,
            Claim::Names => self.wants_space || self.exhausted,
            Claim::Frees => true,
        };
        self.is_waiting() && !passes
    }

    /// Whether one that bypasses the buffer waits.
    pub(crate) fn is_waiting_to_bypass(&self) -> bool {
        !self.waiting_to_bypass.is_empty()
    }

    /// How many wait.
    pub(crate) fn parked(&self) -> u64 {
        (self.waiting.len() + self.waiting_to_bypass.len()) as u64
    }

    /// What the store may know of the pages for which operations have entered.
    pub(crate) fn known_to_store(&self) -> ReservationEstimate {
        self.known
    }

    /// Bytes of the buffer reserved for operations that have entered.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Whether it is worth cleaning for an operation that waits, or for pages that found no space.
    pub(crate) fn wants_space(&self) -> bool {
        self.wants_space
    }

    /// Pages found no space: some is to be made, unless the last attempt was in vain and nothing has changed since. Whether it is.
    pub(crate) fn ask_for_space(&mut self) -> bool {
        self.wants_space |= !self.exhausted;
        !self.exhausted
    }

    /// An attempt to make space is over.
    pub(crate) fn attempt_ended(&mut self, was_in_vain: bool) {
        self.wants_space = false;
        self.exhausted = was_in_vain;
    }

    /// Nobody needs the space any more that an attempt to make some is for.
    pub(crate) fn needs_no_space(&mut self) {
        self.wants_space = false;
    }

    /// There may be space by now: worth another attempt for the next operation that finds none.
    pub(crate) fn may_have_space(&mut self) {
        self.exhausted = false;
    }

    /// Gives the store back what nothing needs now.
    pub(crate) fn give_back_spare(&mut self, store: &Store) {
        if self.spare_pages > 0 {
            store.release(std::mem::take(&mut self.spare_pages));
        }
    }

    /// Space in the store for so many pages, where this is known of them and of those that have some. What gives space back gets it in any
    /// case: the store keeps a reserve for that, and lets no other operation reserve anything before there is space for these pages.
    fn reserve(
        &mut self,
        store: &Store,
        pages: u64,
        claim: Claim,
        known: ReservationEstimate,
    ) -> Result<(), StoreError> {
        let more = pages.saturating_sub(self.spare_pages);
        if more > 0 {
            let outcome = if claim == Claim::Data {
                store.reserve(more, known)
            } else {
                store.reserve_for_names(more, known)
            };
            match outcome {
                Err(error) if error.is_full() && claim == Claim::Frees => store.reserve_unchecked(more),
                outcome => outcome?,
            }
        }
        self.spare_pages -= pages - more;
        Ok(())
    }
}

/// Lets operations in.
#[derive(Clone)]
pub(crate) struct Admission {
    shared: Arc<Shared>,
}

impl Admission {
    pub(crate) fn new(shared: Arc<Shared>) -> Admission {
        Admission { shared }
    }

    /// A reservation if there is space at once and no operation waits, `None` if one has to wait.
    pub(crate) fn admit_at_once(&self, cost: Cost) -> Result<Option<Reservation>, CacheError> {
        let mut state = self.shared.state();
        if state.admission.must_queue(cost.claim) {
            return Ok(None);
        }
        match self.verdict(&mut state, cost) {
            Verdict::Wait | Verdict::WaitToBypass => Ok(None),
            Verdict::Go(reservation) => Ok(Some(reservation)),
            Verdict::Refuse(error) => Err(error),
        }
    }

    pub(crate) fn admit(&self, cost: Cost, then: Completion<Reservation>) {
        let mut state = self.shared.state();
        let queued = state.admission.must_queue(cost.claim);
        let verdict = if queued { Verdict::Wait } else { self.verdict(&mut state, cost) };
        match verdict {
            Verdict::Wait => {
                state.counters.admissions_parked += 1;
                state.admission.give_back_spare(self.shared.store());
                // What was released, but not yet durably, may be all that is missing.
                state.syncs.ask_for_commit();
                let cleaned = self.shared.store().counters().pages_cleaned;
                state.admission.waiting.push_back(Parked { cost, then, cleaned });
                drop(state);
                self.shared.wake(Task::Commit);
                self.shared.wake(Task::WriteBack);
                self.shared.wake(Task::Checkpoint);
            }
            Verdict::WaitToBypass => {
                state.counters.admissions_parked += 1;
                let cleaned = self.shared.store().counters().pages_cleaned;
                state.admission.waiting_to_bypass.push_back(Parked { cost, then, cleaned });
                drop(state);
                self.shared.wake(Task::WriteBack);
            }
            Verdict::Go(reservation) => {
                drop(state);
                then(Ok(reservation));
            }
            Verdict::Refuse(error) => {
                drop(state);
                then(Err(error));
            }
        }
    }

    /// Lets in operations that wait, as far as there is space for them.
    pub(crate) fn admit_waiting(&self, state: &mut State, completions: &mut Completions) {
        while let Some(first) = state.admission.waiting.pop_front() {
            match self.verdict(state, first.cost) {
                Verdict::Wait => return state.admission.waiting.push_front(first),
                Verdict::WaitToBypass => state.admission.waiting_to_bypass.push_back(first),
                Verdict::Go(reservation) => self.tell(state, first, Ok(reservation), completions),
                Verdict::Refuse(error) => self.tell(state, first, Err(error), completions),
            }
        }
        while let Some(first) = state.admission.waiting_to_bypass.pop_front() {
            match self.verdict(state, first.cost) {
                Verdict::Wait => return state.admission.waiting.push_back(first),
                Verdict::WaitToBypass => return state.admission.waiting_to_bypass.push_front(first),
                Verdict::Go(reservation) => self.tell(state, first, Ok(reservation), completions),
                Verdict::Refuse(error) => self.tell(state, first, Err(error), completions),
            }
        }
    }

    fn tell(
        &self,
        state: &mut State,
        parked: Parked,
        outcome: Result<Reservation, CacheError>,
        completions: &mut Completions,
    ) {
        let Parked { then, cleaned, .. } = parked;
        let cleaned = self.shared.store().counters().pages_cleaned - cleaned;
        state.counters.cleaned_while_parked = state.counters.cleaned_while_parked.max(cleaned);
        completions.push(move || then(outcome));
    }

    /// Whether an operation may enter now, and with what.
    fn verdict(&self, state: &mut State, cost: Cost) -> Verdict {
        if let Some(why) = state.failed().cloned() {
            return Verdict::Refuse(CacheError::ReadOnly { why });
        }
        if state.is_stopping() {
            return Verdict::Refuse(CacheError::Stopping);
        }
        let buffer_bytes = buffer::footprint(cost.records, cost.bytes);
        let limit = self.shared.buffer().transaction_bytes_max();
        if buffer_bytes > limit {
            return Verdict::Refuse(CacheError::TooBig { bytes: buffer_bytes, limit });
        }
        let (unlogged, buffer) = (state.pages.unlogged() as u64, self.shared.buffer());
        // What finds no space there even alone is written as any other.
        let bypass_pages = if bypass::fit(buffer, cost.bypass_pages, 0) { cost.bypass_pages } else { 0 };
        let has_space = bypass::fit(buffer, bypass_pages, unlogged + state.admission.bypass_pages);
        if bypass_pages > 0 && (!has_space || self.shared.bypassed_age(&state.pages) >= BypassedAge::Due) {
            return Verdict::WaitToBypass;
        }
        let buffer_bytes = buffer_bytes + bypass::reserved_bytes(bypass_pages);
        // What writers must leave for names, both for re-logging, and all of them for deletions.
        let kept = match cost.claim {
            Claim::Data => buffer.capacity_bytes() / 8 + buffer.capacity_bytes() / 32,
            Claim::Names => buffer.capacity_bytes() / 8,
            Claim::Frees => buffer.capacity_bytes() / 16,
        };
        let reserved = state.admission.reserved_bytes + bypass::reserved_bytes(unlogged);
        let space = buffer.free_bytes().saturating_sub(reserved);
        let crowded =
            cost.claim < Claim::Frees && self.shared.settings().crowding(state.pages.memory()) > 1.0;
        if self.shared.buffer().open_bytes() > UNWRITTEN_BYTES_MAX {
            return Verdict::Wait;
        }
        if space < buffer_bytes + kept || crowded {
            // What must be written back first finds no space, and cleaning has made none.
            if state.admission.exhausted && state.retries.needs_space() && cost.claim == Claim::Data {
                return Verdict::Refuse(StoreError::Full.into());
            }
            if state.admission.wants_space {
                return Verdict::Wait;
            }
            let told = state.retries.no_space(self.shared.now(), self.shared.settings().store_patience);
            return told.map_or(Verdict::Wait, |error| Verdict::Refuse(error.clone()));
        }
        state.retries.has_space();
        let own = known_of_run(cost.run);
        let known = state.known_to_store() + own;
        match state.admission.reserve(self.shared.store(), cost.pages, cost.claim, known) {
            Ok(()) => {
                state.admission.known = state.admission.known + own;
                state.admission.reserved_bytes += buffer_bytes;
                state.admission.bypass_pages += bypass_pages;
                Verdict::Go(Reservation {
                    shared: self.shared.clone(),
                    pages: cost.pages,
                    claim: cost.claim,
                    buffer_bytes,
                    bypass_pages,
                    known: own,
                })
            }
            Err(error) if error.is_full() && !state.admission.exhausted => {
                state.admission.wants_space = true;
                Verdict::Wait
            }
            Err(error) => Verdict::Refuse(error.into()),
        }
    }

    /// True if pages are to be written back so that no operation has to wait.
    pub(crate) fn presses_for_write_back(&self, state: &State) -> bool {
        self.bypassed_pages_press(state) || self.logged_writes_press(state)
    }

    /// The same for any but those that bypassed the buffer: at half of what an operation would wait at.
    pub(crate) fn logged_writes_press(&self, state: &State) -> bool {
        state.failed().is_none()
            && (state.pages.is_asking()
                || self.shared.buffer_is_half_full()
                || self.shared.settings().crowding(state.pages.memory()) > 0.5
                || state.pages.cuts_pending() > CUTS_MAX
                || (state.pages.cuts_pending() > 0 && self.shared.store().is_host_fs_known_full())
                // Unless they get space by asking for it below.
                || (state.admission.is_waiting() && state.pages.is_dirty() && !self.shared.store().may_allocate()))
    }

    /// Whether what bypassed the buffer is to be stored now.
    pub(crate) fn bypassed_pages_press(&self, state: &State) -> bool {
        state.failed().is_none()
            && (bypass::press(self.shared.buffer(), &state.pages)
                || self.shared.bypassed_age(&state.pages) >= BypassedAge::Due
                || state.admission.is_waiting_to_bypass()
                || state.syncs.wait_for_store())
    }

    /// Whether no sync waits for bypassed pages to be stored, and they will not be logged soon if they are not.
    pub(crate) fn bypassed_pages_can_wait(&self, state: &State) -> bool {
        !state.syncs.wait_for_store() && self.shared.bypassed_age(&state.pages) < BypassedAge::Urgent
    }

    /// Fails all operations that wait: nothing can change any more.
    pub(crate) fn refuse_all(&self, state: &mut State, error: &CacheError, completions: &mut Completions) {
        let AdmissionQueue { waiting, waiting_to_bypass, .. } = &mut state.admission;
        for Parked { then, .. } in waiting.drain(..).chain(waiting_to_bypass.drain(..)) {
            let error = error.clone();
            completions.push(move || then(Err(error)));
        }
    }
}

//! Free space before acknowledgement: an operation takes its reservation when it enters, holding no lock, or waits here.

use crate::cache::{Completion, Core, Task};
use crate::commit::Completions;
use crate::error::CacheError;
use crate::settings::Cost;
use crate::state::State;
use buffer::BufferError;
use std::collections::VecDeque;
use std::sync::Arc;
use store::StoreError;

/// Appended and not yet handed to the device; past it writers wait for the committer, so that memory stays bounded
/// however slow the buffer's device is. A second's worth of a slow disk.
const OPEN_BYTES_MAX: u64 = 8 << 20;

/// Operations that wait for space, in the order in which they came, and what is reserved for those that go.
#[derive(Default)]
pub(crate) struct AdmissionQueue {
    waiting: VecDeque<Parked>,
    /// Bytes of the buffer that reservations hold.
    reserved_bytes: u64,
    /// An operation waits for space in the store, or pages found none: it is worth cleaning for.
    pub(crate) wants_space: bool,
    /// Nothing could be freed at the last attempt, and nothing has changed since.
    pub(crate) exhausted: bool,
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
    Refuse(CacheError),
}

/// Permission to apply one transaction within its cost. Dropping it gives back what was not used.
pub struct Reservation {
    core: Arc<Core>,
    /// The store's reservations, in pages, that no dirty page has taken over.
    pub(crate) pages: u64,
    /// It is for something that gives space back.
    pub(crate) frees: bool,
    buffer_bytes: u64,
}

impl Reservation {
    /// Gives back what was not used, under the lock. Dropping it does nothing more then. True if the committer must be
    /// woken, to let in those that wait.
    pub(crate) fn settle(&mut self, state: &mut State) -> bool {
        let pages = std::mem::take(&mut self.pages);
        if pages > 0 {
            self.core.store.release(pages);
        }
        state.admission.reserved_bytes -= std::mem::take(&mut self.buffer_bytes);
        // What was given back may be all that an operation waits for.
        let awaited = state.admission.is_waiting();
        state.syncs.commit_wanted |= awaited;
        awaited
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if self.pages == 0 && self.buffer_bytes == 0 {
            return;
        }
        let core = self.core.clone();
        let awaited = self.settle(&mut core.state());
        if awaited {
            core.wake(Task::Commit);
        }
    }
}

impl AdmissionQueue {
    /// True if an operation waits.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// How many wait.
    pub(crate) fn parked(&self) -> u64 {
        self.waiting.len() as u64
    }

    /// Bytes of the buffer reserved for operations that have entered.
    pub(crate) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }
}

impl Core {
    /// A reservation if there is space at once and no operation waits, `None` if one has to wait.
    pub(crate) fn admit_at_once(self: &Arc<Core>, cost: Cost) -> Result<Option<Reservation>, CacheError> {
        let mut state = self.state();
        if state.admission.is_waiting() && !cost.frees {
            return Ok(None);
        }
        match self.verdict(&mut state, cost) {
            Verdict::Wait => Ok(None),
            Verdict::Go(reservation) => Ok(Some(reservation)),
            Verdict::Refuse(error) => Err(error),
        }
    }

    pub(crate) fn admit(self: &Arc<Core>, cost: Cost, then: Completion<Reservation>) {
        let mut state = self.state();
        let queued = state.admission.is_waiting() && !cost.frees;
        let verdict = if queued { Verdict::Wait } else { self.verdict(&mut state, cost) };
        match verdict {
            Verdict::Wait => {
                state.counters.admissions_parked += 1;
                // What was released, but not yet durably, may be all that is missing.
                state.syncs.commit_wanted = true;
                let cleaned = self.store.counters().pages_cleaned;
                state.admission.waiting.push_back(Parked { cost, then, cleaned });
                drop(state);
                self.wake(Task::Commit);
                self.wake(Task::WriteBack);
                self.wake(Task::Checkpoint);
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
    pub(crate) fn admit_waiting(self: &Arc<Core>, state: &mut State, completions: &mut Completions) {
        while let Some(first) = state.admission.waiting.front() {
            let cost = first.cost;
            let outcome = match self.verdict(state, cost) {
                Verdict::Wait => return,
                Verdict::Go(reservation) => Ok(reservation),
                Verdict::Refuse(error) => Err(error),
            };
            let Some(Parked { then, cleaned, .. }) = state.admission.waiting.pop_front() else { return };
            let cleaned = self.store.counters().pages_cleaned - cleaned;
            state.counters.cleaned_while_parked = state.counters.cleaned_while_parked.max(cleaned);
            completions.push(move || then(outcome));
        }
    }

    /// Whether an operation may enter now, and with what.
    fn verdict(self: &Arc<Core>, state: &mut State, cost: Cost) -> Verdict {
        if let Some(why) = state.failed.clone() {
            return Verdict::Refuse(CacheError::ReadOnly { why });
        }
        if state.stopping {
            return Verdict::Refuse(CacheError::Stopping);
        }
        let buffer_bytes = buffer::footprint(cost.records, cost.bytes);
        let limit = self.buffer.transaction_bytes_max();
        if buffer_bytes > limit {
            return Verdict::Refuse(CacheError::TooBig { bytes: buffer_bytes, limit });
        }
        // What writers must leave for re-logging, and both for deletions.
        let kept = self.buffer.capacity_bytes() / if cost.frees { 16 } else { 8 };
        let space = self.buffer.free_bytes().saturating_sub(state.admission.reserved_bytes);
        let crowded = !cost.frees && state.dirty_bytes > self.settings.dirty_bytes_max;
        if self.buffer.open_bytes() > OPEN_BYTES_MAX {
            return Verdict::Wait;
        }
        if space < buffer_bytes + kept || crowded {
            // What must be written back first finds no space, and cleaning has made none.
            if state.admission.exhausted && state.retries.needs_space() && !cost.frees {
                return Verdict::Refuse(StoreError::Full.into());
            }
            let told = state.retries.no_space(self.clock.monotonic(), self.settings.store_patience);
            return told.map_or(Verdict::Wait, |error| Verdict::Refuse(error.clone()));
        }
        state.retries.has_space();
        match self.reserve(cost.pages, cost.frees) {
            Ok(()) => {
                state.admission.reserved_bytes += buffer_bytes;
                Verdict::Go(Reservation {
                    core: self.clone(),
                    pages: cost.pages,
                    frees: cost.frees,
                    buffer_bytes,
                })
            }
            Err(error) if error.is_full() && !state.admission.exhausted => {
                state.admission.wants_space = true;
                Verdict::Wait
            }
            Err(error) => Verdict::Refuse(error.into()),
        }
    }

    /// Free space in the store for so many pages. What gives space back gets it in any case: the store keeps a reserve for that, and
    /// lets no other operation reserve anything before there is space for these pages.
    pub(crate) fn reserve(&self, pages: u64, frees: bool) -> Result<(), StoreError> {
        match self.store.reserve(pages) {
            Err(error) if error.is_full() && frees => {
                self.store.reserve_unchecked(pages);
                Ok(())
            }
            outcome => outcome,
        }
    }

    /// Fails all operations that wait: nothing can change any more.
    pub(crate) fn refuse_all(&self, state: &mut State, error: &CacheError, completions: &mut Completions) {
        for Parked { then, .. } in state.admission.waiting.drain(..) {
            let error = error.clone();
            completions.push(move || then(Err(error)));
        }
    }

    /// Remembers that the buffer failed.
    pub(crate) fn fail(&self, state: &mut State, why: &BufferError) {
        state.failed.get_or_insert_with(|| why.clone());
    }
}

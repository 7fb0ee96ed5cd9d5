//! The space that operations reserve before they change anything, and the items that found none.

use crate::admission::AdmissionQueue;
use crate::change::{SpaceClaim, TransactionCost};
use crate::page_table::PageTable;
use crate::reservation_estimate::estimate_of_run;
use crate::retry::{RetryList, WriteBackItem};
use request::Origin;
use std::sync::Arc;
use store::{ReservationEstimate, Store, StoreError};

/// Reservations that operations did not use are kept for the next ones, up to this many pages. A write of
/// less than a page reserves five pages in case its page is clean; with spare pages, a write to a dirty page
/// asks the store for nothing.
const SPARE_PAGES_MAX: u64 = 16;

/// Reservations, and who waits for space, under the cache's lock. After a crash, recovery reserves what the
/// recovered pages need; the rest begins empty.
pub(crate) struct CacheSpace {
    store: Arc<Store>,
    pub(crate) admission: AdmissionQueue,
    pub(crate) retries: RetryList,
    /// Space of admitted operations that have not applied their changes yet.
    booked: BookedSpace,
    /// Reserved pages that neither an operation nor a dirty page needs. None while an operation waits.
    spare_pages: u64,
}

/// The sum of the space of some operations.
#[derive(Default)]
struct BookedSpace {
    buffer_bytes: u64,
    bypass_pages: u64,
    transfers: u64,
    estimate: ReservationEstimate,
}

/// Space of one transaction. Its pages are reserved in the store; the rest counts only where it is
/// [booked](CacheSpace::book).
#[derive(Debug)]
pub(crate) struct ReservedSpace {
    /// Reserved pages of the store that no dirty page has taken over.
    pages: u64,
    claim: SpaceClaim,
    origin: Origin,
    /// Bytes of the buffer, with what bypassed pages may need there.
    buffer_bytes: u64,
    /// The pages that may bypass the buffer.
    bypass_pages: u64,
    /// Its clones and moves of pages.
    transfers: u64,
    /// The estimate for its pages.
    estimate: ReservationEstimate,
}

impl ReservedSpace {
    /// Which space its operation may take.
    pub(crate) fn claim(&self) -> SpaceClaim {
        self.claim
    }

    /// Who asked for it.
    pub(crate) fn origin(&self) -> Origin {
        self.origin
    }

    /// Whether its operation may bypass the buffer.
    pub(crate) fn may_bypass(&self) -> bool {
        self.bypass_pages > 0
    }

    /// A page that becomes dirty, or a range operation, takes over a part.
    pub(crate) fn take_pages(&mut self, pages: u64) {
        self.pages -= pages;
    }
}

impl CacheSpace {
    pub(crate) fn new(store: Arc<Store>) -> CacheSpace {
        CacheSpace {
            store,
            admission: AdmissionQueue::default(),
            retries: RetryList::default(),
            booked: BookedSpace::default(),
            spare_pages: 0,
        }
    }

    pub(crate) fn store(&self) -> &Store {
        &self.store
    }

    /// The estimate for the pages for which the store counts space: dirty pages, and those of operations that
    /// were admitted.
    fn reservation_estimate(&self, pages: &PageTable) -> ReservationEstimate {
        pages.reservation_estimate() + self.booked.estimate
    }

    /// Reserves the pages of an operation, which takes these bytes of the buffer beside them.
    pub(crate) fn reserve(
        &mut self,
        cost: &TransactionCost,
        buffer_bytes: u64,
        bypass_pages: u64,
        pages: &PageTable,
    ) -> Result<ReservedSpace, StoreError> {
        let TransactionCost { claim, origin, .. } = *cost;
        let estimate = estimate_of_run(cost.run);
        self.reserve_pages(cost.pages, claim, estimate, pages)?;
        let transfers = cost.transfers;
        Ok(ReservedSpace {
            pages: cost.pages,
            claim,
            origin,
            buffer_bytes,
            bypass_pages,
            transfers,
            estimate,
        })
    }

    /// Reserves pages in the store, of which `own_estimate` is known: all of them spare ones, if there are
    /// enough. An operation that frees space gets them in any case: the store keeps a reserve for that, and
    /// reserves nothing for others until there is space for these pages.
    fn reserve_pages(
        &mut self,
        count: u64,
        claim: SpaceClaim,
        own_estimate: ReservationEstimate,
        pages: &PageTable,
    ) -> Result<(), StoreError> {
        let more = count.saturating_sub(self.spare_pages);
        if more > 0 {
            let estimate = self.reservation_estimate(pages) + own_estimate;
            let space = self.store.space();
            let outcome = match claim {
                SpaceClaim::Data => space.reserve(more, estimate),
                SpaceClaim::Names | SpaceClaim::Frees => space.reserve_for_names(more, estimate),
            };
            match outcome {
                Err(error) if error.is_full() && claim == SpaceClaim::Frees => space.reserve_unchecked(more),
                outcome => outcome?,
            }
        }
        self.spare_pages -= count - more;
        Ok(())
    }

    /// Extends an operation's space to `count` pages.
    pub(crate) fn grow(
        &mut self,
        space: &mut ReservedSpace,
        count: u64,
        pages: &PageTable,
    ) -> Result<(), StoreError> {
        if count > space.pages {
            let own_estimate = ReservationEstimate::default();
            self.reserve_pages(count - space.pages, space.claim, own_estimate, pages)?;
            space.pages = count;
        }
        Ok(())
    }

    /// Releases what an operation did not use, or keeps it for the next ones. The space may be all that
    /// another operation waits for: if one [waits](AdmissionQueue::any_waiting), wake the committer to admit
    /// it.
    pub(crate) fn release_unused(&mut self, space: &mut ReservedSpace, is_stopping: bool) {
        let pages = std::mem::take(&mut space.pages);
        if pages == 0 {
            return;
        }
        // An operation with a larger claim may have got pages that the store does not have. They must not
        // become spare.
        if space.claim > SpaceClaim::Data || is_stopping || self.admission.is_waiting() {
            self.release_spare();
            return self.release(pages);
        }
        self.spare_pages += pages;
        let beyond = self.spare_pages.saturating_sub(SPARE_PAGES_MAX);
        if beyond > 0 {
            self.release(beyond);
            self.spare_pages = SPARE_PAGES_MAX;
        }
    }

    /// Releases the reservations of pages that need none any more.
    pub(crate) fn release(&self, pages: u64) {
        if pages > 0 {
            self.store.space().release(pages);
        }
    }

    /// Releases the spare pages to the store.
    pub(crate) fn release_spare(&mut self) {
        self.release(self.spare_pages);
        self.spare_pages = 0;
    }

    /// Releases the spare pages, and gives the store the estimate for all others.
    pub(crate) fn settle(&mut self, pages: &PageTable) {
        self.release_spare();
        self.store.space().set_reservation_estimate(self.reservation_estimate(pages));
    }

    /// Counts the space of an operation that applies its changes later.
    pub(crate) fn book(&mut self, space: &ReservedSpace) {
        let BookedSpace { buffer_bytes, bypass_pages, transfers, estimate } = &mut self.booked;
        *buffer_bytes += space.buffer_bytes;
        *bypass_pages += space.bypass_pages;
        *transfers += space.transfers;
        *estimate = *estimate + space.estimate;
    }

    pub(crate) fn unbook(&mut self, space: &ReservedSpace) {
        let BookedSpace { buffer_bytes, bypass_pages, transfers, estimate } = &mut self.booked;
        *buffer_bytes -= space.buffer_bytes;
        *bypass_pages -= space.bypass_pages;
        *transfers -= space.transfers;
        *estimate = *estimate - space.estimate;
    }

    /// Bytes of the buffer that are booked.
    pub(crate) fn booked_bytes(&self) -> u64 {
        self.booked.buffer_bytes
    }

    /// Pages that admitted operations may bypass.
    pub(crate) fn booked_bypass_pages(&self) -> u64 {
        self.booked.bypass_pages
    }

    /// Clones and moves that admitted operations will make.
    pub(crate) fn booked_transfers(&self) -> u64 {
        self.booked.transfers
    }

    /// Notes that these items were written back: if there are some, that works, and may have made space.
    pub(crate) fn note_stored(&mut self, items: impl IntoIterator<Item = WriteBackItem>) {
        for item in items {
            self.retries.forget(item);
            self.retries.note_success();
        }
        self.admission.note_possible_space();
    }

    /// If nothing is written back for lack of space, asks for an attempt to make some. Returns whether it
    /// asks.
    pub(crate) fn ask_for_needed_space(&mut self) -> bool {
        self.retries.needs_space() && self.admission.ask_for_space()
    }
}

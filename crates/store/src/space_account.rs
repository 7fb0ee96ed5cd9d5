//! The store's space, for callers that reserve some before they acknowledge a change.

use crate::error::StoreError;
use crate::host_space;
use crate::shared::StoreShared;
use crate::space::{ReservationEstimate, StoreSpace};

/// Measures and reserves the space of a [`Store`](crate::Store).
#[derive(Clone, Copy)]
pub struct StoreSpaceAccount<'a> {
    shared: &'a StoreShared,
}

impl<'a> StoreSpaceAccount<'a> {
    pub(crate) fn new(shared: &'a StoreShared) -> StoreSpaceAccount<'a> {
        StoreSpaceAccount { shared }
    }

    /// How full the store is.
    pub fn now(&self) -> StoreSpace {
        self.shared.space()
    }

    /// Reserves space for writing back `pages` more pages, map nodes included. `known` estimates what all
    /// reserved pages are, these included. Reserved space can be written, though it may have to be cleaned
    /// first. Does no I/O.
    ///
    /// # Errors
    /// [`StoreError::Full`] where more would be live than the store can hold beside what checkpoints,
    /// cleaning and deletions need.
    pub fn reserve(&self, pages: u64, known: ReservationEstimate) -> Result<(), StoreError> {
        self.shared.map_mut().reserve(pages, known)
    }

    /// As [`reserve`](StoreSpaceAccount::reserve), for pages of names and attributes, which may take a
    /// 64th of the store, 8 MiB at most, that data may not.
    pub fn reserve_for_names(&self, pages: u64, known: ReservationEstimate) -> Result<(), StoreError> {
        self.shared.map_mut().reserve_for_names(pages, known)
    }

    /// Counts `pages` pages as reserved, even if there is no space for them: they were acknowledged already,
    /// or go with a change that frees space, and will be written back. Other callers can reserve nothing
    /// until there is space for these.
    pub fn reserve_unchecked(&self, pages: u64) {
        self.shared.map_mut().reserve_unchecked(pages);
    }

    /// Updates the estimate of what the reserved pages are. After each release the estimate is lower until
    /// this is called.
    pub fn set_reservation_estimate(&self, known: ReservationEstimate) {
        self.shared.map_mut().set_reservation_estimate(known);
    }

    /// Releases the reservations of `pages` pages, used or not.
    pub fn release(&self, pages: u64) {
        self.shared.map_mut().release(pages);
    }

    /// Whether the host file system had no space for a segment when last asked.
    pub fn is_host_fs_known_full(&self) -> bool {
        self.shared.medium.is_host_fs_known_full()
    }

    /// Whether allocating more may help: there are unbacked segments, and the host file system was not full
    /// the last time.
    pub fn may_allocate(&self) -> bool {
        host_space::may_allocate(self.shared)
    }

    /// Bytes left in the host file system, if it has no space for a segment that the store could use.
    pub fn host_fs_free_bytes_if_full(&self) -> Option<u64> {
        host_space::host_fs_free_bytes_if_full(self.shared)
    }
}

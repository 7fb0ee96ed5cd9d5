//! Which pages the store holds, a bounded piece at a time: what seeking holes and data needs.

use crate::error::StoreError;
use crate::store::Store;
use crate::volume::VolumeId;
use device::{Lsn, ObjectId, PageNo};
use std::ops::Range;

/// Pages of an object that the store holds, from some page on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The pages, in order, each with its page LSN: the highest one whose change its bytes contain.
    pub pages: Vec<(PageNo, Lsn)>,
    /// The first page that was not looked at: nothing below it was left out.
    pub until: PageNo,
}

impl Store {
    /// Lists the pages that the store holds of `object` within `range`, of at most `leaves_max` leaves of its map
    /// (128 pages each). What is empty between them costs nothing, however wide it is. May read map nodes.
    ///
    /// # Errors
    /// A map node that cannot be read, or is damaged.
    pub fn list(
        &self,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<Listed, StoreError> {
        self.list_in(VolumeId::MAIN, object, range, leaves_max)
    }

    /// As [`list`](Store::list), in any volume.
    ///
    /// # Errors
    /// Those of `list`.
    pub fn list_in(
        &self,
        volume: VolumeId,
        object: ObjectId,
        range: Range<PageNo>,
        leaves_max: usize,
    ) -> Result<Listed, StoreError> {
        self.resolve(|map| map.list(volume, object, range.clone(), leaves_max.max(1)))
    }

    /// Blocks that can still be written, once all dead space is given back: free and dead ones, without the reserves
    /// and what is reserved.
    pub fn writable_blocks(&self) -> u64 {
        let spare = self.device.spare_blocks();
        self.map().writable_blocks(spare)
    }
}

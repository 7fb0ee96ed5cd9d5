//! Where a search for leaves with deltas is.

use device::{ObjectId, PageNo, VolumeId};

/// How far a search for leaves with deltas has come: a volume, a slot, and a leaf of the object in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct MergeCursor {
    pub(super) volume: VolumeId,
    pub(super) slot: u64,
    pub(super) leaf: u64,
}

/// What a piece of the search came to.
#[derive(Debug, Default)]
pub(crate) struct MergeSearch {
    /// A leaf to fold, by its object and first page.
    pub(crate) found: Option<(ObjectId, PageNo)>,
    /// Where it goes on; `None` at the end.
    pub(crate) next: Option<MergeCursor>,
}

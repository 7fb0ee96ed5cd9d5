//! Position of a search for leaves with deltas.

use device::{ObjectId, PageNo, VolumeId};

/// How far a search for leaves with deltas has come: a volume, a slot, and a leaf of the object in that slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct MergeCursor {
    pub(super) volume: VolumeId,
    pub(super) slot: u64,
    pub(super) leaf: u64,
}

/// Result of one step of the search.
#[derive(Debug, Default)]
pub(crate) struct MergeSearch {
    /// A leaf to merge, by its object and first page.
    pub(crate) found: Option<(ObjectId, PageNo)>,
    /// Where the search continues; `None` at its end.
    pub(crate) next: Option<MergeCursor>,
}

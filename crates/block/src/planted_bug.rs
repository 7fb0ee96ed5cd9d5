//! Bugs that the simulator can plant in the block volumes of one thread, to prove that it would find them. Only
//! with the feature `planted-bugs`.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;

/// A rule that the block volumes of one thread can be made to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum BlockBug {
    /// A sync does not wait for the volume's bypassed pages.
    SyncWithoutBytes,
    /// Zeros leave the pages at their ends as they are, unless they cover these pages as a whole.
    ZeroWithoutEdges,
    /// Each page of a write is a transaction.
    WriteInPages,
    /// The extents call the last page a hole, if the range ends within it.
    LastPageIsHole,
    /// A smaller size leaves the bytes that it cuts off, and a larger one shows them again.
    SizeWithoutZeros,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<BlockBug>> = const { Cell::new(None) };
}

/// Makes the block volumes of this thread break this rule, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<BlockBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: BlockBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: BlockBug) -> bool {
    false
}

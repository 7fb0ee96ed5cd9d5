//! Bugs that the simulator can plant in the file systems of one thread, to prove that it would find them. Only
//! with the feature `planted-bugs`.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;

/// A rule that the file systems of one thread can be made to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum FsBug {
    /// A failed transaction leaves its changes in memory.
    NotUndone,
    /// A short overwrite leaves the file's times as they are, although the clock has gone on since.
    OverwriteOfAnotherTick,
    /// A batch is two transactions.
    BatchInTwo,
    /// The comparisons of a batch are made before its transaction.
    StaleComparison,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<FsBug>> = const { Cell::new(None) };
}

/// Makes the file systems of this thread break this rule, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<FsBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: FsBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: FsBug) -> bool {
    false
}

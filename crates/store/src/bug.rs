//! Rules that the store can be made to break, so that the simulator can prove that it would notice. Without the feature
//! `planted-bugs` none of them can be.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;

/// A rule to break from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum PlantedBug {
    /// A cut removes pages whose page LSN is newer than the cut.
    CutIgnoresPageLsn,
    /// A segment is used again as soon as nothing in memory refers to it, whatever roots and readers need.
    ReusedBeforePins,
    /// Applying a vector returns without a flush.
    MissingFlush,
    /// The cleaner points entries at copies before these are written, which they are with the next checkpoint but one.
    RepointBeforeCopy,
    /// A deleted volume drops its reference to a node that others share twice.
    FreedOnceTooOften,
    /// Some of the nodes below one that dies are forgotten.
    LeakedNode,
    /// Space that is reserved is not remembered.
    ForgottenReservation,
    /// Segments are trimmed only after they may be used again.
    TrimAfterReuse,
    /// Recovery applies log entries again that lie before the root where it begins.
    EntriesBeforeRoot,
    /// A segment is trimmed and used again, though it is still read.
    PinsIgnored,
    /// Who flushes does not ask whether another's flush failed meanwhile.
    OthersFlushesIgnored,
    /// Each checkpoint writes the same root.
    OneRoot,
    /// The cleaner settles a victim though its walk has more to visit.
    SettledEarly,
    /// What a later chunk knows to have been durable, and is damaged, counts as torn.
    RotTakenForTorn,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
}

/// From now on the stores of this thread break this rule, or none. Those that one store remembers are for
/// [`Store::plant`](crate::Store::plant).
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: PlantedBug) -> bool {
    false
}

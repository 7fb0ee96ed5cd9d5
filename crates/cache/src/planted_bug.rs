//! What only the simulator asks for: rules to break, and a change to refuse. Without the feature
//! `planted-bugs` nothing here can be switched on.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;

/// A rule that the caches of one thread can be made to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum PlantedBug {
    /// A page that was written to while it was being written back counts as clean afterwards.
    NewerBytesLostAtMerge,
    /// A page that was fetched knows only the cuts that are pending when it arrives, not one that was written back meanwhile.
    CutForgotten,
    /// A cut needs its own group only, not those of the changes that it took out of memory.
    CutWithoutGroups,
    /// A page that was written to while it failed to be written back needs the newer changes' group only.
    OldGroupForgotten,
    /// A cut that was written to the log again takes out newer pages, too.
    MergedCutKills,
    /// Pages are written back before the buffer has their changes.
    StoredBeforeDurable,
    /// The old copy of what is written to the log again is let go before the new one is durable.
    RelogNotDurable,
    /// A copy of a volume gets what some pages are when they are written back, not what they were at its moment.
    CloneTooLate,
    /// A copy of a volume does without the changes of a page that is written to again while it is made.
    CloneTooEarly,
    /// A rescue makes each cut as if it were the newest change of all.
    RescueCutsLate,
    /// A page is stored before the clone or move of it that is older.
    TransferOvertaken,
    /// Recovery makes a clone or a move again that the store has.
    TransferRepeated,
    /// A delta of a page that was cut is stored over what the store has of it, which the cut finds newer.
    DeltaOverCut,
    /// What was written to the log again goes where it stands there, whatever came before it.
    MergedByPlace,
    /// A new name of a file does not wait for its bypassed pages.
    NameBeforeBytes,
    /// Pages that bypassed the buffer are cloned before the buffer or the store has them.
    CloneBeforeBytes,
    /// A part of a page that bypassed the buffer is logged without the rest of it.
    PartBeforeWhole,
    /// A sync of a file does without its bypassed pages.
    SyncWithoutBytes,
    /// Recovery lays older records over a page that bypassed the buffer since and stored.
    OlderOverBypassed,
    /// A bypassed page that the store does not have after a commit interval is not logged.
    OverdueNotLogged,
    /// An end of a mount does not log bypassed pages that it could not store.
    EndWithoutCommit,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<PlantedBug>> = const { Cell::new(None) };
    static REFUSAL: Cell<Refusal> = const { Cell::new(Refusal::None) };
}

/// From now on the caches of this thread break this rule, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<PlantedBug>) {
    PLANTED.set(bug);
}

/// Of one change.
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    None,
    Next,
    Happened,
}

/// Lets the next change that gives no space back find no space, after it was admitted.
#[cfg(feature = "planted-bugs")]
pub fn refuse_next_change() {
    REFUSAL.set(Refusal::Next);
}

/// Whether such a change was refused; from now on none is.
#[cfg(feature = "planted-bugs")]
pub fn end_refusal() -> bool {
    REFUSAL.replace(Refusal::None) == Refusal::Happened
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: PlantedBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: PlantedBug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_refused() -> bool {
    let refused = REFUSAL.get() == Refusal::Next;
    if refused {
        REFUSAL.set(Refusal::Happened);
    }
    refused
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_refused() -> bool {
    false
}

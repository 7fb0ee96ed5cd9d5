//! For the simulator only: rules to break, and a change to refuse. Without the feature `planted-bugs` nothing
//! here can be switched on.

#[cfg(feature = "planted-bugs")]
use std::cell::Cell;

/// A rule that the caches of one thread can be made to break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum CacheBug {
    /// A page that was written while it was written back counts as clean afterwards.
    NewerBytesLostAtMerge,
    /// A fetched page knows only the punches that are pending when it arrives, not one that was stored
    /// meanwhile.
    CutForgotten,
    /// A punch needs its own group only, not those of the changes that it removed from memory.
    CutWithoutGroups,
    /// A page that was written while its write-back failed needs only the group of the newer changes.
    OldGroupForgotten,
    /// A relogged punch removes newer pages, too.
    MergedCutKills,
    /// Pages are written back before the buffer has their changes.
    StoredBeforeDurable,
    /// The old record of what is relogged is released before the new one is durable.
    RelogNotDurable,
    /// A clone of a volume gets some pages as they are when they are written back, not as they were at its
    /// point in time.
    CloneTooLate,
    /// A clone of a volume lacks the changes of a page that is written again while it is made.
    CloneTooEarly,
    /// Volumes that are cloned together are frozen one by one, each under its own hold of the lock.
    SnapshotsOfTwoMoments,
    /// A rollback is two batches of the store's log: the old volume's new name, and the clone.
    HalfARollback,
    /// A rescue applies each punch as if it were the newest change of all.
    RescueCutsLate,
    /// A page is stored before an older clone or move of it.
    TransferOvertaken,
    /// Recovery repeats a clone or a move that the store has.
    TransferRepeated,
    /// A delta of a punched page is stored over what the store has, although the punch is newer.
    DeltaOverCut,
    /// A relogged record is applied by its place in the log, not by its LSN.
    MergedByPlace,
    /// A new name of a file does not wait for the file's bypassed pages.
    NameBeforeBytes,
    /// Bypassed pages are cloned before the buffer or the store has them.
    CloneBeforeBytes,
    /// A part of a bypassed page is logged without the rest.
    PartBeforeWhole,
    /// A sync of a file does not cover its bypassed pages.
    SyncWithoutBytes,
    /// A background sync is answered although the store lacks bypassed pages.
    BackgroundSyncTold,
    /// Of a write over a bypassed page that the log lacks, only what differs is logged.
    DifferenceOverUnlogged,
    /// A sync to which is lent does not have its pages logged.
    LentPagesNotLogged,
    /// Recovery lays older records over a later bypassed page that the store has.
    OlderOverBypassed,
    /// A bypassed page that the store lacks after a commit interval is not logged.
    OverdueNotLogged,
    /// The end of a mount does not log bypassed pages that it could not store.
    EndWithoutCommit,
    /// What a pending clone is to get is overwritten in place of the page that was cloned.
    OverwriteBesideClone,
    /// A page that is being written back is overwritten as if it were still dirty.
    OverwriteBesideWriteBack,
    /// A change of a read-only volume is applied.
    ReadOnlyVolumeChanged,
    /// Recovery applies the changes of volumes that the store has deleted.
    DeletedVolumeReplayed,
    /// A store that lacks changes of the buffer is called complete.
    CompleteTooEarly,
    /// Recovery applies the newest group's changes of one volume, and leaves out its changes of other volumes.
    VolumesOfTwoMoments,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<CacheBug>> = const { Cell::new(None) };
    static REFUSAL: Cell<ChangeRefusal> = const { Cell::new(ChangeRefusal::None) };
}

/// Makes the caches of this thread break this rule, or none.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<CacheBug>) {
    PLANTED.set(bug);
}

/// The state of [`refuse_next_change`].
#[cfg(feature = "planted-bugs")]
#[derive(Clone, Copy, PartialEq, Eq)]
enum ChangeRefusal {
    None,
    Next,
    Happened,
}

/// Lets the next change that does not free space find none, although it was admitted.
#[cfg(feature = "planted-bugs")]
pub fn refuse_next_change() {
    REFUSAL.set(ChangeRefusal::Next);
}

/// Ends that. Returns whether a change was refused.
#[cfg(feature = "planted-bugs")]
pub fn end_refusal() -> bool {
    REFUSAL.replace(ChangeRefusal::None) == ChangeRefusal::Happened
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: CacheBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: CacheBug) -> bool {
    false
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_refused() -> bool {
    let refused = REFUSAL.get() == ChangeRefusal::Next;
    if refused {
        REFUSAL.set(ChangeRefusal::Happened);
    }
    refused
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_refused() -> bool {
    false
}

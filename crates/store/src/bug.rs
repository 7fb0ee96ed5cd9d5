//! Rules that the store can be made to break, so that the simulator can prove that it would notice. Needs the
//! feature `planted-bugs`.

#[cfg(feature = "planted-bugs")]
use {
    device::{Block, Page},
    std::cell::Cell,
    std::sync::Mutex,
    std::sync::atomic::{AtomicBool, Ordering},
};

/// A rule to break from now on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "planted-bugs"), allow(dead_code, unreachable_pub))]
pub enum StoreBug {
    /// A punch removes pages whose page LSN is newer than the punch.
    CutIgnoresPageLsn,
    /// A segment is used again as soon as nothing in memory refers to it, whatever roots and readers need.
    ReusedBeforePins,
    /// Applying a vector returns without a flush.
    MissingFlush,
    /// The cleaner repoints entries to copies before these are written, which happens with the next
    /// checkpoint but one.
    RepointBeforeCopy,
    /// A deleted volume drops its reference to a shared node twice.
    FreedOnceTooOften,
    /// Some of the nodes below one that dies are forgotten.
    LeakedNode,
    /// Reserved space is not remembered.
    ForgottenReservation,
    /// Reserved space counts twice, and is released once.
    ReservationCountedTwice,
    /// Deletions of volumes have no segments of their own.
    DeletionsWithoutClass,
    /// The cleaner leaves one of a block's several references pointing at the old place.
    HolderMissed,
    /// A shared block counts as dead when the first reference to it goes.
    FreedWithOneHolder,
    /// A leaf of pages that a clone shares is changed in place.
    SharedLeafChanged,
    /// The shared tree of a deleted file is on the dying list twice.
    DyingTwice,
    /// Segments are trimmed only after they may be used again.
    TrimAfterReuse,
    /// Recovery applies log entries again that lie before the root where it begins.
    EntriesBeforeRoot,
    /// A segment is trimmed and used again while it is still read.
    PinsIgnored,
    /// A thread that flushes does not ask whether another's flush failed meanwhile.
    OthersFlushesIgnored,
    /// Each checkpoint writes the same root.
    OneRoot,
    /// The cleaner takes a victim for dead though its walk has more to visit.
    SettledEarly,
    /// A punch, clone or move that an object has had is made again.
    RangeRepeated,
    /// The number of a deleted volume is given to another.
    VolumeNumberUsedAgain,
    /// A volume's new tree of objects is known in memory only, not in its leaf.
    VolumeLeafForgotten,
    /// A damaged batch that a later chunk knows to have been durable counts as torn.
    RotTakenForTorn,
    /// Repair overwrites the whole copy of a block of metadata with the damaged one.
    RepairFromWrongCopy,
    /// The copy of a block of metadata is written next to it.
    CopiesInOneSegment,
    /// The cleaner writes no summary of what it moves.
    OwnerListForgotten,
    /// The second copy of a page of metadata is not written.
    PageCopyForgotten,
    /// Recovery accepts a batch of which some blocks in mirrored pairs are missing.
    MissingPairBelieved,
    /// A page's deltas are laid over each other newest first.
    DeltasInWrongOrder,
    /// A block of deltas counts as dead once one of its pages does not need it any more.
    DeltaBlockFreedEarly,
    /// The base of a page counts as dead once it has a delta.
    BaseFreedEarly,
    /// A page is merged without its deltas.
    FoldWithoutDeltas,
    /// A superblock is restored from a copy that the roots know nothing of.
    AnyCopyRestored,
}

#[cfg(feature = "planted-bugs")]
thread_local! {
    static PLANTED: Cell<Option<StoreBug>> = const { Cell::new(None) };
}

/// From now on the stores of this thread break this rule, or none. [`Store::plant`](crate::Store::plant)
/// plants those that one store remembers.
#[cfg(feature = "planted-bugs")]
pub fn plant(bug: Option<StoreBug>) {
    PLANTED.set(bug);
}

#[cfg(feature = "planted-bugs")]
pub(crate) fn is_planted(bug: StoreBug) -> bool {
    PLANTED.get() == Some(bug)
}

#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn is_planted(_bug: StoreBug) -> bool {
    false
}

/// Bugs that one store has until it is closed, beside those of its map.
#[cfg(feature = "planted-bugs")]
#[derive(Default)]
pub(crate) struct PlantedStoreBugs {
    missing_flush: AtomicBool,
    late_copies: AtomicBool,
    late_trims: AtomicBool,
    /// Copies and trims that are late.
    delayed: Mutex<Vec<DelayedWrite>>,
}

/// A copy or trim that is late.
#[cfg(feature = "planted-bugs")]
pub(crate) enum DelayedWrite {
    /// The flag says whether a checkpoint has begun since.
    Copy(Vec<(Block, Box<Page>)>, bool),
    Trim(Vec<u32>),
}

#[cfg(feature = "planted-bugs")]
impl PlantedStoreBugs {
    pub(crate) fn plant(&self, bug: StoreBug) {
        let planted = match bug {
            StoreBug::MissingFlush => &self.missing_flush,
            StoreBug::RepointBeforeCopy => &self.late_copies,
            StoreBug::TrimAfterReuse => &self.late_trims,
            other => unreachable!("{other:?} is another's"),
        };
        planted.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_missing_flush(&self) -> bool {
        self.missing_flush.load(Ordering::Relaxed)
    }

    /// Takes a copy if it is to be late; otherwise returns it.
    pub(crate) fn copy_later(&self, blocks: Vec<(Block, Box<Page>)>) -> Option<Vec<(Block, Box<Page>)>> {
        self.later(&self.late_copies, DelayedWrite::Copy(blocks, false)).map(|delayed| match delayed {
            DelayedWrite::Copy(blocks, _) => blocks,
            DelayedWrite::Trim(_) => unreachable!("given back as it was"),
        })
    }

    /// Takes a trim if it is to be late. Returns whether it is.
    pub(crate) fn trim_later(&self, segments: &[u32]) -> bool {
        self.later(&self.late_trims, DelayedWrite::Trim(segments.to_vec())).is_none()
    }

    /// Takes out everything that is late.
    pub(crate) fn take_delayed(&self) -> Vec<DelayedWrite> {
        std::mem::take(&mut *self.delayed.lock().expect("no panic while planting"))
    }

    /// Keeps a copy or trim for later.
    pub(crate) fn delay(&self, delayed: DelayedWrite) {
        self.delayed.lock().expect("no panic while planting").push(delayed);
    }

    fn later(&self, planted: &AtomicBool, delayed: DelayedWrite) -> Option<DelayedWrite> {
        if !planted.load(Ordering::Relaxed) {
            return Some(delayed);
        }
        self.delay(delayed);
        None
    }
}

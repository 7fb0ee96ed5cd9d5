//! The rules that the stack can be made to break.

use clap::ValueEnum;

/// A rule that the stack can break on request, to show that the simulator notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlantedRule {
    /// The store lets a cut remove pages whose bytes are newer than the cut.
    CutIgnoresPageLsn,
    /// The store reuses a segment while a root or a reader still needs it.
    ReusedBeforePins,
    /// The store reports writes as durable without a flush.
    StoreWithoutFlush,
    /// The cleaner points entries at copies that are not written yet.
    RepointBeforeCopy,
    /// The store trims a segment after the segment may have been reused.
    TrimAfterReuse,
    /// A deleted volume drops its reference to a shared node twice.
    FreedOnceTooOften,
    /// The store forgets some of the nodes below a node that dies.
    LeakedNode,
    /// The store forgets reservations.
    ForgottenReservation,
    /// The store counts reservations twice.
    ReservationCountedTwice,
    /// The cleaner leaves one of a block's several holders pointing at the block's old place.
    HolderMissed,
    /// The store counts a shared block as dead when its first holder is deleted.
    FreedWithOneHolder,
    /// The store changes a leaf of pages in place although a copy of the volume or file shares it.
    SharedLeafChanged,
    /// The store puts the shared tree of a deleted file on its dying list twice.
    DyingTwice,
    /// The store's recovery applies log entries again that its root already has.
    EntriesBeforeRoot,
    /// The buffer's recovery applies the parts of a torn group that parse.
    TornGroupApplied,
    /// The buffer's recovery accepts records that an earlier mount left behind.
    StaleIncarnation,
    /// The buffer reports records as durable without a flush.
    BufferWithoutFlush,
    /// The cache marks a page clean although it was written to during its write-back.
    NewerBytesLostAtMerge,
    /// The store trims and reuses a segment while readers still use it.
    PinsIgnored,
    /// A thread that flushes the store does not check whether another thread's flush failed meanwhile.
    OthersFlushesIgnored,
    /// Each checkpoint writes the same root.
    OneRoot,
    /// The cleaner treats a segment as finished while its walk has more to visit.
    SettledEarly,
    /// The store takes damage in its log for the torn end.
    StoreRotTakenForTorn,
    /// The store repairs metadata from the damaged copy.
    RepairFromWrongCopy,
    /// The store writes both copies of metadata to one segment.
    CopiesInOneSegment,
    /// The store repeats a clone, a cut or a deletion that an object already had.
    RangeRepeated,
    /// A page is stored before an older clone of it.
    RangeOvertaken,
    /// Recovery repeats a clone that the store already has.
    RangeRecoveredTwice,
    /// The store writes only one copy of metadata pages.
    PageCopyForgotten,
    /// The store's recovery accepts a batch of which some metadata pages are missing.
    MissingPairBelieved,
    /// The buffer begins without flushing the writes that the previous mount left in the device's cache.
    BeginWithoutFlush,
    /// The buffer takes damage in its log for the torn end.
    BufferRotTakenForTorn,
    /// A fetched page forgets a cut that was written back meanwhile.
    CutForgotten,
    /// A cut releases the groups of the changes that it removed from memory.
    CutWithoutGroups,
    /// A page that was written to while its write-back failed forgets its old group.
    OldGroupForgotten,
    /// A cut that was written to the buffer again removes newer pages.
    MergedCutKills,
    /// The cache writes pages back before their changes are in the buffer.
    StoredBeforeDurable,
    /// The cache writes records to the buffer again, and releases the old copy before the new one is durable.
    RelogNotDurable,
    /// A copy of a volume has changes made after its moment.
    CloneTooLate,
    /// A copy of a volume lacks changes made before its moment.
    CloneTooEarly,
    /// A rescued volume lacks writes made after a cut.
    RescueCutsLate,
    /// The store applies the oldest delta of a page last.
    DeltasInWrongOrder,
    /// The store frees a block of deltas that some page still needs.
    DeltaBlockFreedEarly,
    /// The store frees the base page of a page that has a delta.
    BaseFreedEarly,
    /// The store merges a page without its deltas.
    FoldWithoutDeltas,
    /// The cache stores a delta of a page that a cut removes.
    DeltaOverCut,
    /// A file gets its name before its bypassed pages are durable.
    NameBeforeBytes,
    /// Pages are cloned before their bypassed bytes are logged or stored.
    CloneBeforeBytes,
    /// The cache logs a part of a bypassed page without the rest.
    PartBeforeWhole,
    /// A sync of a file does not wait for its bypassed pages.
    SyncWithoutBytes,
    /// A background sync does not wait for the store to have bypassed pages.
    BackgroundSyncTold,
    /// The cache logs only what differs from a bypassed page that neither log nor store has.
    DifferenceOverUnlogged,
    /// The cache answers a sync to which was lent, and does not log its pages.
    LentPagesNotLogged,
    /// Recovery applies older changes over newer bypassed pages.
    OlderOverBypassed,
    /// The cache does not log a bypassed page that the store has not taken after a commit interval.
    OverdueNotLogged,
    /// The cache ends a mount without logging bypassed pages that it could not store.
    EndWithoutCommit,
    /// The store gives the number of a deleted volume to a new one.
    VolumeNumberUsedAgain,
    /// The cache overwrites what a pending clone is to get, in place of the page that was cloned.
    OverwriteBesideClone,
    /// The cache overwrites a page that is being written back, and takes it for dirty.
    OverwriteBesideWriteBack,
    /// The cache applies a change of a read-only volume.
    ReadOnlyVolumeChanged,
    /// Recovery applies the changes of volumes that the store has deleted.
    DeletedVolumeReplayed,
    /// A store that lacks changes of the buffer is called complete.
    CompleteTooEarly,
    /// Recovery leaves out one volume's newest changes, and applies another volume's.
    VolumesOfTwoMoments,
    /// The file system does not undo a failed transaction in memory.
    NotUndone,
    /// The file system leaves a file's times as they are when its bytes are overwritten.
    OverwriteOfAnotherTick,
    /// A batch is two transactions.
    BatchInTwo,
    /// The ranges that a batch expects to be equal are compared before its transaction.
    StaleComparison,
    /// A sync of a block volume does not wait for its bypassed pages.
    BlockSyncWithoutBytes,
    /// Zeros of a block volume leave pages that they cover in part as they are.
    BlockZeroWithoutEdges,
    /// Each page of a write to a block volume is a transaction.
    BlockWriteInPages,
    /// The extents of a block volume call the last page of a range a hole, if the range ends within it.
    BlockLastPageIsHole,
    /// A smaller size of a block volume leaves the bytes that it cuts off, and a larger one shows them again.
    BlockSizeWithoutZeros,
}

impl PlantedRule {
    /// The name of the rule at the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("every rule has a name").get_name().to_owned()
    }

    pub(crate) fn in_store(self) -> Option<store::StoreBug> {
        match self {
            PlantedRule::CutIgnoresPageLsn => Some(store::StoreBug::CutIgnoresPageLsn),
            PlantedRule::ReusedBeforePins => Some(store::StoreBug::ReusedBeforePins),
            PlantedRule::StoreWithoutFlush => Some(store::StoreBug::MissingFlush),
            PlantedRule::RepointBeforeCopy => Some(store::StoreBug::RepointBeforeCopy),
            PlantedRule::TrimAfterReuse => Some(store::StoreBug::TrimAfterReuse),
            PlantedRule::ForgottenReservation => Some(store::StoreBug::ForgottenReservation),
            PlantedRule::ReservationCountedTwice => Some(store::StoreBug::ReservationCountedTwice),
            PlantedRule::HolderMissed => Some(store::StoreBug::HolderMissed),
            PlantedRule::FreedWithOneHolder => Some(store::StoreBug::FreedWithOneHolder),
            PlantedRule::SharedLeafChanged => Some(store::StoreBug::SharedLeafChanged),
            PlantedRule::DyingTwice => Some(store::StoreBug::DyingTwice),
            PlantedRule::FreedOnceTooOften => Some(store::StoreBug::FreedOnceTooOften),
            PlantedRule::LeakedNode => Some(store::StoreBug::LeakedNode),
            PlantedRule::EntriesBeforeRoot => Some(store::StoreBug::EntriesBeforeRoot),
            PlantedRule::PinsIgnored => Some(store::StoreBug::PinsIgnored),
            PlantedRule::OthersFlushesIgnored => Some(store::StoreBug::OthersFlushesIgnored),
            PlantedRule::OneRoot => Some(store::StoreBug::OneRoot),
            PlantedRule::SettledEarly => Some(store::StoreBug::SettledEarly),
            PlantedRule::RepairFromWrongCopy => Some(store::StoreBug::RepairFromWrongCopy),
            PlantedRule::CopiesInOneSegment => Some(store::StoreBug::CopiesInOneSegment),
            PlantedRule::PageCopyForgotten => Some(store::StoreBug::PageCopyForgotten),
            PlantedRule::MissingPairBelieved => Some(store::StoreBug::MissingPairBelieved),
            PlantedRule::StoreRotTakenForTorn => Some(store::StoreBug::RotTakenForTorn),
            PlantedRule::DeltasInWrongOrder => Some(store::StoreBug::DeltasInWrongOrder),
            PlantedRule::DeltaBlockFreedEarly => Some(store::StoreBug::DeltaBlockFreedEarly),
            PlantedRule::BaseFreedEarly => Some(store::StoreBug::BaseFreedEarly),
            PlantedRule::FoldWithoutDeltas => Some(store::StoreBug::FoldWithoutDeltas),
            PlantedRule::RangeRepeated => Some(store::StoreBug::RangeRepeated),
            PlantedRule::VolumeNumberUsedAgain => Some(store::StoreBug::VolumeNumberUsedAgain),
            _ => None,
        }
    }

    pub(crate) fn in_buffer(self) -> Option<buffer::BufferBug> {
        match self {
            PlantedRule::TornGroupApplied => Some(buffer::BufferBug::TornGroupApplied),
            PlantedRule::StaleIncarnation => Some(buffer::BufferBug::StaleIncarnation),
            PlantedRule::BufferWithoutFlush => Some(buffer::BufferBug::MissingFlush),
            PlantedRule::BeginWithoutFlush => Some(buffer::BufferBug::BeginWithoutFlush),
            PlantedRule::BufferRotTakenForTorn => Some(buffer::BufferBug::RotTakenForTorn),
            _ => None,
        }
    }

    fn in_cache(self) -> Option<cache::CacheBug> {
        match self {
            PlantedRule::NewerBytesLostAtMerge => Some(cache::CacheBug::NewerBytesLostAtMerge),
            PlantedRule::CutForgotten => Some(cache::CacheBug::CutForgotten),
            PlantedRule::CutWithoutGroups => Some(cache::CacheBug::CutWithoutGroups),
            PlantedRule::OldGroupForgotten => Some(cache::CacheBug::OldGroupForgotten),
            PlantedRule::MergedCutKills => Some(cache::CacheBug::MergedCutKills),
            PlantedRule::StoredBeforeDurable => Some(cache::CacheBug::StoredBeforeDurable),
            PlantedRule::RelogNotDurable => Some(cache::CacheBug::RelogNotDurable),
            PlantedRule::CloneTooLate => Some(cache::CacheBug::CloneTooLate),
            PlantedRule::CloneTooEarly => Some(cache::CacheBug::CloneTooEarly),
            PlantedRule::RescueCutsLate => Some(cache::CacheBug::RescueCutsLate),
            PlantedRule::RangeOvertaken => Some(cache::CacheBug::TransferOvertaken),
            PlantedRule::DeltaOverCut => Some(cache::CacheBug::DeltaOverCut),
            PlantedRule::RangeRecoveredTwice => Some(cache::CacheBug::TransferRepeated),
            PlantedRule::NameBeforeBytes => Some(cache::CacheBug::NameBeforeBytes),
            PlantedRule::CloneBeforeBytes => Some(cache::CacheBug::CloneBeforeBytes),
            PlantedRule::PartBeforeWhole => Some(cache::CacheBug::PartBeforeWhole),
            PlantedRule::SyncWithoutBytes => Some(cache::CacheBug::SyncWithoutBytes),
            PlantedRule::BackgroundSyncTold => Some(cache::CacheBug::BackgroundSyncTold),
            PlantedRule::DifferenceOverUnlogged => Some(cache::CacheBug::DifferenceOverUnlogged),
            PlantedRule::LentPagesNotLogged => Some(cache::CacheBug::LentPagesNotLogged),
            PlantedRule::OlderOverBypassed => Some(cache::CacheBug::OlderOverBypassed),
            PlantedRule::OverdueNotLogged => Some(cache::CacheBug::OverdueNotLogged),
            PlantedRule::EndWithoutCommit => Some(cache::CacheBug::EndWithoutCommit),
            PlantedRule::OverwriteBesideClone => Some(cache::CacheBug::OverwriteBesideClone),
            PlantedRule::OverwriteBesideWriteBack => Some(cache::CacheBug::OverwriteBesideWriteBack),
            PlantedRule::ReadOnlyVolumeChanged => Some(cache::CacheBug::ReadOnlyVolumeChanged),
            PlantedRule::DeletedVolumeReplayed => Some(cache::CacheBug::DeletedVolumeReplayed),
            PlantedRule::CompleteTooEarly => Some(cache::CacheBug::CompleteTooEarly),
            PlantedRule::VolumesOfTwoMoments => Some(cache::CacheBug::VolumesOfTwoMoments),
            _ => None,
        }
    }

    fn in_fs(self) -> Option<fs::FsBug> {
        match self {
            PlantedRule::NotUndone => Some(fs::FsBug::NotUndone),
            PlantedRule::OverwriteOfAnotherTick => Some(fs::FsBug::OverwriteOfAnotherTick),
            PlantedRule::BatchInTwo => Some(fs::FsBug::BatchInTwo),
            PlantedRule::StaleComparison => Some(fs::FsBug::StaleComparison),
            _ => None,
        }
    }

    fn in_block(self) -> Option<block::BlockBug> {
        match self {
            PlantedRule::BlockSyncWithoutBytes => Some(block::BlockBug::SyncWithoutBytes),
            PlantedRule::BlockZeroWithoutEdges => Some(block::BlockBug::ZeroWithoutEdges),
            PlantedRule::BlockWriteInPages => Some(block::BlockBug::WriteInPages),
            PlantedRule::BlockLastPageIsHole => Some(block::BlockBug::LastPageIsHole),
            PlantedRule::BlockSizeWithoutZeros => Some(block::BlockBug::SizeWithoutZeros),
            _ => None,
        }
    }

    /// Plants a rule for the whole thread, or none. A rule of one store or buffer is planted when that is
    /// opened.
    pub(crate) fn for_this_thread(plant: Option<PlantedRule>) {
        cache::plant(plant.and_then(PlantedRule::in_cache));
        store::plant(plant.and_then(PlantedRule::in_store));
        fs::plant(plant.and_then(PlantedRule::in_fs));
        block::plant(plant.and_then(PlantedRule::in_block));
    }
}

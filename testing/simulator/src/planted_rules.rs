//! Rules that the stack can be made to break.

use clap::ValueEnum;

/// A rule that the stack can be made to break, to show that the simulator notices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum PlantedRule {
    /// The store cuts pages whose bytes are newer than the cut.
    CutIgnoresPageLsn,
    /// The store uses a segment again while a root or a reader still needs it.
    ReusedBeforePins,
    /// The store says durable without a flush.
    StoreWithoutFlush,
    /// The cleaner points entries at copies that are not written yet.
    RepointBeforeCopy,
    /// The store trims a segment after it may have been used again.
    TrimAfterReuse,
    /// A deleted volume drops its reference to a node that others share twice.
    FreedOnceTooOften,
    /// Some of the nodes below one that dies are forgotten.
    LeakedNode,
    /// The store forgets reservations.
    ForgottenReservation,
    /// The store counts reservations twice.
    ReservationCountedTwice,
    /// The cleaner leaves one of a block's several holders pointing at where it was.
    HolderMissed,
    /// The store counts a shared block as dead when the first of its holders goes.
    FreedWithOneHolder,
    /// The tree of a deleted file that others share is on the store's dying list twice.
    DyingTwice,
    /// The store's recovery applies log entries again that its root has.
    EntriesBeforeRoot,
    /// The buffer's recovery applies what parses of a torn group.
    TornGroupApplied,
    /// The buffer's recovery takes what an earlier mount left behind.
    StaleIncarnation,
    /// The buffer says durable without a flush.
    BufferWithoutFlush,
    /// The cache takes a page for clean that was written to while it was being written back.
    NewerBytesLostAtMerge,
    /// The store trims and uses a segment again, whoever reads it.
    PinsIgnored,
    /// Who flushes the store does not ask whether another's flush failed meanwhile.
    OthersFlushesIgnored,
    /// Each checkpoint writes the same root.
    OneRoot,
    /// The cleaner settles a segment though its walk has more to visit.
    SettledEarly,
    /// Damage in the store's log counts as its torn end.
    StoreRotTakenForTorn,
    /// The store repairs metadata from the copy that is damaged.
    RepairFromWrongCopy,
    /// The store writes both copies of metadata to one segment.
    CopiesInOneSegment,
    /// The store makes a clone, a cut or a deletion again that an object has had.
    RangeRepeated,
    /// A page is stored before the clone of it that is older.
    RangeOvertaken,
    /// Recovery makes a clone again that the store has.
    RangeRecoveredTwice,
    /// The store writes pages of metadata once.
    PageCopyForgotten,
    /// The store's recovery believes a batch of whose pages of metadata some are missing.
    MissingPairBelieved,
    /// The buffer begins without a flush of what the mount before left in the device's cache.
    BeginWithoutFlush,
    /// Damage in the buffer's log counts as its torn end.
    BufferRotTakenForTorn,
    /// A page that was fetched forgets a cut that was written back meanwhile.
    CutForgotten,
    /// A cut gives up the groups of what it took out of memory.
    CutWithoutGroups,
    /// A page that was written to while it failed to be written back forgets its old group.
    OldGroupForgotten,
    /// A cut that was written to the buffer again takes out newer pages.
    MergedCutKills,
    /// Pages are written back before the buffer has their changes.
    StoredBeforeDurable,
    /// What is written to the buffer again is let go before the new copy is durable.
    RelogNotDurable,
    /// A copy of a volume has changes from after its moment.
    CloneTooLate,
    /// A copy of a volume lacks changes from before its moment.
    CloneTooEarly,
    /// A volume that is rescued lacks what was written after a cut.
    RescueCutsLate,
    /// The store lays the oldest delta of a page over the others.
    DeltasInWrongOrder,
    /// The store frees a block of deltas that some page needs still.
    DeltaBlockFreedEarly,
    /// The store frees the base of a page that has a delta.
    BaseFreedEarly,
    /// The store folds a page without its deltas.
    FoldWithoutDeltas,
    /// A delta is stored over what a cut takes away.
    DeltaOverCut,
    /// A file gets a name before its bypassed pages.
    NameBeforeBytes,
    /// Pages are cloned before their bypassed bytes are logged or stored.
    CloneBeforeBytes,
    /// A part of a page that bypassed the buffer is logged without the rest.
    PartBeforeWhole,
    /// A sync of a file does without its bypassed pages.
    SyncWithoutBytes,
    /// Recovery lays older changes over what bypassed the buffer since.
    OlderOverBypassed,
    /// A bypassed page that the store does not have after a commit interval is not logged.
    OverdueNotLogged,
    /// An end of a mount does not log bypassed pages that it could not store.
    EndWithoutCommit,
    /// The number of a deleted volume is given to another.
    VolumeNumberUsedAgain,
    /// A transaction that fails is not undone in memory.
    NotUndone,
}

impl PlantedRule {
    /// As it is called at the command line.
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
            PlantedRule::OlderOverBypassed => Some(cache::CacheBug::OlderOverBypassed),
            PlantedRule::OverdueNotLogged => Some(cache::CacheBug::OverdueNotLogged),
            PlantedRule::EndWithoutCommit => Some(cache::CacheBug::EndWithoutCommit),
            _ => None,
        }
    }

    /// Plants what is planted for a whole thread; nothing where `plant` is none, or is told to each store and buffer when it is
    /// opened.
    pub(crate) fn for_this_thread(plant: Option<PlantedRule>) {
        cache::plant(plant.and_then(PlantedRule::in_cache));
        store::plant(plant.and_then(PlantedRule::in_store));
        fs::plant_never_undoes(plant == Some(PlantedRule::NotUndone));
    }
}

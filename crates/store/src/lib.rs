#![doc = include_str!("../README.md")]
mod blocks;
mod bug;
mod change;
mod check;
mod checkpoint;
mod chunk;
mod cleaner;
mod coalesce;
mod counters;
mod delta;
mod entry;
mod error;
mod flusher;
mod fold;
mod follow;
mod format;
mod gc_pacer;
#[cfg(test)]
mod golden;
mod host_space;
mod log;
mod log_progress;
mod map;
mod map_walk;
mod medium;
mod mirror_repair;
mod mirrored;
#[cfg(feature = "planted-bugs")]
mod plant;
pub mod policy;
mod recover;
mod reverse_map;
mod root;
mod scrub;
mod segment_summary;
mod segments;
mod settings;
mod shared;
mod space;
mod store;
mod stretch;
mod superblock;
mod sync;
mod tables;
mod tables_stream;
mod volume;
mod volume_changes;
mod volume_usage;
mod writer;

/// More of what the store decides, pure as [`policy`]: a prediction of what it costs decides with the same.
pub mod decide {
    pub use crate::chunk::{Piece, Place, plan_writes};
    pub use crate::gc_pacer::{GcPacer, GcRound};
    pub use crate::reverse_map::{
        lookup_is_worth_it as lookups_are_worth_it, lookup_work as price_of_lookup,
    };
    pub use crate::space::RESERVED_BLOCKS_PER_PAGE;
}

#[cfg(feature = "planted-bugs")]
pub use bug::{StoreBug, plant};
pub use change::Change;
pub use check::{RepairedCounts, StoreFinding};
pub use cleaner::CleaningOutcome;
pub use counters::StoreCounters;
pub use delta::{DeltaBlock, DeltaPacker, Piece, leaf_of};
pub use error::StoreError;
pub use recover::Identified;
pub use scrub::ScrubProgress;
pub use settings::{COMMIT_INTERVAL_MS_RANGE, DataMode, StoreSettings};
pub use shared::{PageRead, PageResult, StoredPage};
pub use space::{ReservationEstimate, StoreSpace};
pub use store::Store;
pub use superblock::{Layout, Mended};
pub use volume::{
    ListedPages, MAIN_VOLUME_NAME, NewVolume, VolumeId, VolumeInfo, VolumeMode, check_volume_name,
};
pub use volume_usage::{StoreUsage, VolumeUsage};

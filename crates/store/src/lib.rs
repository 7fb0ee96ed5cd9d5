#![doc = include_str!("../README.md")]
mod allocate;
mod audit;
mod blocks;
mod bug;
mod change;
mod check;
mod checkpoint;
mod chunk;
mod clean;
mod coalesce;
mod counters;
mod delta;
mod entry;
mod error;
mod flushes;
mod fold;
mod follow;
mod format;
#[cfg(test)]
mod golden;
mod log;
mod lookup;
mod map;
mod medium;
mod owners;
mod pace;
mod pairs;
#[cfg(feature = "planted-bugs")]
mod plant;
pub mod policy;
mod progress;
mod recover;
mod repair;
mod root;
mod scrub;
mod segments;
mod settings;
mod shared;
mod space;
mod store;
mod stream;
mod stretch;
mod superblock;
mod sync;
mod tables;
mod usage;
mod volume;
mod volume_changes;
mod writer;

/// More of what the store decides, pure as [`policy`]: a prediction of what it costs decides with the same.
pub mod decide {
    pub use crate::chunk::{Piece, Place, plan_writes};
    pub use crate::lookup::{is_worth_it as lookups_are_worth_it, price as price_of_lookup};
    pub use crate::pace::{Pace, Round};
    pub use crate::space::RESERVED_BLOCKS_PER_PAGE;
}

#[cfg(feature = "planted-bugs")]
pub use bug::{PlantedBug, plant};
pub use change::Change;
pub use check::{Finding, RepairedCounts};
pub use clean::Cleaning;
pub use counters::Counters;
pub use delta::{DeltaBlock, DeltaPacker, Piece, leaf_of};
pub use error::StoreError;
pub use recover::Identified;
pub use scrub::ScrubProgress;
pub use settings::{COMMIT_INTERVAL_MS_RANGE, DataMode, StoreSettings};
pub use shared::{Found, PageResult, Want};
pub use space::{Known, Space};
pub use store::Store;
pub use superblock::{Layout, Mended};
pub use usage::{Usage, VolumeUsage};
pub use volume::{Listed, MAIN_VOLUME_NAME, NewVolume, VolumeId, VolumeInfo, VolumeMode, check_name};

#![doc = include_str!("../README.md")]
mod allocate;
mod audit;
mod block_set;
mod bug;
mod change;
mod check;
mod checkpoint;
mod checkpoint_root;
mod checkpoint_tables;
mod clean;
mod coalesce;
mod counters;
mod delta_block;
mod delta_merge;
mod error;
mod flushes;
mod format;
#[cfg(test)]
mod golden;
mod log_chunk;
mod log_entry;
mod log_extent;
mod log_reader;
mod log_writer;
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
mod scrub;
mod segments;
mod settings;
mod shared;
mod space;
mod store;
mod stream;
mod superblock;
mod sync;
mod usage;
mod volume;
mod volume_changes;
mod writer;

/// More of what the store decides, pure as [`policy`]: a prediction of what it costs decides with the same.
pub mod decide {
    pub use crate::log_chunk::{ChunkPlan, LogPosition, plan_writes};
    pub use crate::lookup::{is_worth_it as lookups_are_worth_it, price as price_of_lookup};
    pub use crate::pace::{Pace, Round};
    pub use crate::space::BLOCKS_PER_PAGE;
}

#[cfg(feature = "planted-bugs")]
pub use bug::{PlantedBug, plant};
pub use change::StoreChange;
pub use check::{Finding, Repaired};
pub use clean::Cleaning;
pub use counters::Counters;
pub use delta_block::{DeltaBlock, DeltaPacker, DeltaPiece, leaf_first_page};
pub use error::StoreError;
pub use recover::IdentifiedStore;
pub use scrub::Scrubbed;
pub use settings::{COMMIT_INTERVALS_MS, DataMode, StoreSettings};
pub use shared::{Found, FoundPage, Want};
pub use space::{Known, Space};
pub use store::Store;
pub use superblock::{StoreLayout, SuperblockRepair};
pub use usage::{Usage, VolumeUsage};
pub use volume::{Listed, MAIN_NAME, NewVolume, VolumeId, VolumeInfo, VolumeMode, check_name};

#[cfg(fuzzing)]
pub mod fuzz;

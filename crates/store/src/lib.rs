#![doc = include_str!("../README.md")]
mod block_set;
mod bug;
mod change;
mod check;
mod checkpoint;
mod checkpoint_root;
mod checkpoint_tables;
mod cleaner;
mod coalesce;
mod counters;
mod data;
mod delta_block;
mod delta_merge;
mod error;
mod flusher;
mod format;
mod gc_pacer;
#[cfg(test)]
mod golden;
mod host_space;
mod log_chunk;
mod log_entry;
mod log_extent;
mod log_progress;
mod log_reader;
mod log_writer;
mod maintenance;
mod maintenance_plan;
mod map;
mod map_walk;
mod medium;
mod mirror_repair;
mod mirrored;
#[cfg(feature = "planted-bugs")]
mod plant;
mod policy;
mod recover;
mod reverse_map;
mod scrub;
mod segment_summary;
mod segments;
mod settings;
mod shared;
mod space;
mod space_account;
mod space_search;
mod store;
mod superblock;
mod sync;
mod tables_stream;
mod volume;
mod volume_changes;
mod volume_usage;
mod volumes;
mod writer;

#[cfg(feature = "planted-bugs")]
pub use bug::{StoreBug, plant};
pub use change::StoreChange;
pub use check::{RepairedCounts, StoreFinding};
pub use cleaner::CleaningOutcome;
pub use counters::StoreCounters;
pub use data::StoreData;
pub use delta_block::{DeltaBlock, DeltaPacker, DeltaPiece, leaf_first_page};
pub use error::StoreError;
pub use maintenance::{MaintenanceProgress, SpacePressure, StoreMaintenance};
pub use recover::IdentifiedStore;
pub use scrub::ScrubProgress;
pub use settings::{COMMIT_INTERVAL_MS_RANGE, DataMode, StoreSettings};
pub use shared::{PageRead, PageResult, StoredPage};
pub use space::{CleaningWork, RESERVED_BLOCKS_PER_PAGE, ReservationEstimate, StoreSpace};
pub use space_account::StoreSpaceAccount;
pub use space_search::SpaceSearch;
pub use store::Store;
pub use superblock::{StoreLayout, SuperblockRepair};
pub use volume::{
    ListedPages, MAIN_VOLUME_NAME, NewVolume, RestoredSnapshot, VOLUME_NAME_BYTES_MAX, VolumeId, VolumeInfo,
    VolumeMode, VolumeRestoration, VolumeRollback, check_volume_name,
};
pub use volume_usage::{StoreUsage, VolumeUsage};
pub use volumes::StoreVolumes;

#[cfg(fuzzing)]
pub mod fuzz;

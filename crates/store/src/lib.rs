#![doc = include_str!("../README.md")]
mod allocate;
mod append;
mod attempt;
mod audit;
mod change;
mod check;
mod checkpoint;
mod clean;
mod counters;
mod error;
mod flushes;
mod follow;
mod format;
#[cfg(test)]
mod golden;
mod label;
mod list;
mod log;
mod map;
mod near;
mod note;
mod pace;
#[cfg(feature = "planted-bugs")]
mod plant;
pub mod policy;
pub mod predict;
mod read;
mod recover;
mod root;
mod scrub;
mod segments;
mod space;
mod store;
mod stretch;
mod superblock;
mod sync;
mod tables;
mod usage;
mod volume;

pub use change::Change;
pub use check::{Finding, Repaired};
pub use clean::Cleaning;
pub use counters::Counters;
pub use error::StoreError;
pub use label::{MAIN_NAME, NewVolume, VolumeInfo, check_name};
pub use list::Listed;
pub use near::FoundPage;
#[cfg(feature = "planted-bugs")]
pub use plant::PlantedBug;
pub use read::{Found, Want};
pub use recover::Identified;
pub use scrub::Scrubbed;
pub use space::Space;
pub use store::Store;
pub use superblock::Layout;
pub use usage::{Usage, VolumeUsage};
pub use volume::{VolumeId, VolumeMode};

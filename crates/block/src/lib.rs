#![doc = include_str!("../README.md")]

mod error;
mod extents;
mod format;
mod planted_bug;
mod range_parts;
mod volume;

pub use error::BlockVolumeError;
pub use extents::{BlockExtent, BlockExtentKind};
pub use format::{BLOCK_VOLUME_BYTES_MAX, SECTOR_BYTES, block_volume_size, new_block_volume, resize};
#[cfg(feature = "planted-bugs")]
pub use planted_bug::{BlockBug, plant};
pub use volume::{BlockCompletion, BlockVolume};

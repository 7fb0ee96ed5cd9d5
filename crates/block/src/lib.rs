#![doc = include_str!("../README.md")]

mod error;
mod extents;
mod format;
mod range_parts;
mod volume;

pub use error::BlockVolumeError;
pub use extents::{BlockExtent, BlockExtentKind};
pub use format::{BLOCK_VOLUME_BYTES_MAX, SECTOR_BYTES, block_volume_size, new_block_volume, resize};
pub use volume::{BlockCompletion, BlockVolume};

//! Block volumes: each is one array of bytes, a disk for a virtual machine or for another file system.
//!
//! README.md says what this crate is, and FORMAT.md what it writes.

mod error;
mod extents;
mod format;
mod range_parts;
mod volume;

pub use error::BlockVolumeError;
pub use extents::{BlockExtent, BlockExtentKind};
pub use format::{BLOCK_VOLUME_BYTES_MAX, SECTOR_BYTES, block_volume_size, new_block_volume, resize};
pub use volume::{BlockCompletion, BlockVolume};

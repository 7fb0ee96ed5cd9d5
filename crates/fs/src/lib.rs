#![doc = include_str!("../README.md")]
mod acl;
mod arena;
mod atomic_writes;
mod charge;
mod charge_tracker;
mod check;
mod client_cache;
mod cost;
mod deferred_free;
mod directory;
mod directory_names;
mod error;
mod file_rules;
mod format;
mod fs;
mod heap_allocator;
mod inode;
mod ops;
mod owner_table;
mod planted_bug;
mod small_file_readahead;
#[cfg(test)]
mod tests;
mod types;
mod xattr;

pub use atomic_writes::{ATOMIC_WRITE_BYTES_MAX, ATOMIC_WRITES_MARK, ATOMIC_WRITES_OFF};
pub use check::FsFinding;
pub use client_cache::ClientCacheNote;
pub use error::FsError;
pub use format::{FILE_BYTES_MAX, INODES_MAX, LINK_BYTES_MAX, LINKS_MAX, NAME_BYTES_MAX};
pub use fs::Fs;
pub use ops::allocate::{FallocateMode, SeekWhence, SizePolicy};
pub use ops::batch::{BATCH_BYTES_MAX, BATCH_CHANGES_MAX, BatchChange};
pub use ops::copy_range::CopySource;
pub use ops::range_change::{BATCH_COMPARED_BYTES_MAX, BatchPlace, BatchSource};
#[cfg(feature = "planted-bugs")]
pub use planted_bug::{FsBug, plant};
pub use types::{
    CallerCredentials, DirectoryEntry, FileAttributes, FileKind, FsCompletion, FsUsage, IfExists, Ino,
    PrivilegeChange, SetAttributes, SetTime, SetXattrMode,
};
pub use xattr::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX};

#[cfg(fuzzing)]
pub mod fuzz;

//! The operations of a file system, each a method of [`FsTransaction`](crate::arena::FsTransaction): what it changes in the arena and
//! in files' bytes. Extended attributes have theirs in `xattr`.

pub(crate) mod allocate;
pub(crate) mod attributes;
pub(crate) mod copy_range;
mod crash_truncate;
pub(crate) mod create;
pub(crate) mod file_data;
mod mkfs;
mod remove;
mod rename;

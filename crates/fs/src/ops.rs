//! The operations of a file system: methods of [`FsTransaction`](crate::arena::FsTransaction) that change the
//! arena and files' data. Those of extended attributes are in `xattr`.

pub(crate) mod allocate;
pub(crate) mod attributes;
pub(crate) mod batch;
pub(crate) mod copy_range;
mod crash_truncate;
pub(crate) mod create;
pub(crate) mod file_data;
mod mkfs;
pub(crate) mod range_change;
mod remove;
mod rename;

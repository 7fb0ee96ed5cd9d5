#![doc = include_str!("../README.md")]
mod batch;
mod directory;
mod file;
mod open_volume;
mod path;
mod permissions;
mod weir;

pub use batch::Batch;
pub use directory::{Directory, DirectoryItem};
pub use file::WeirFile;
pub use fs::{
    FallocateMode, FileAttributes, FileKind, IfExists, Ino, SeekWhence, SetTime, SetXattrMode, SizePolicy,
};
pub use rustix::fs::{Access, OFlags};
pub use stack::StackError;
pub use weir::{Weir, WeirOptions};

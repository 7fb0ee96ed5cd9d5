#![doc = include_str!("../README.md")]
mod batch;
mod directory;
mod file;
mod file_mode;
mod handle_table;
mod open_volume;
mod path;
mod permissions;
mod waiting;
mod weir;

pub use batch::Batch;
pub use directory::{Directory, DirectoryItem};
pub use file::WeirFile;
pub use file_mode::{BLOCK_BYTES, DEVICE_MINOR, full_mode, kind_bits};
pub use fs::{
    FallocateMode, FileAttributes, FileKind, IfExists, Ino, SeekWhence, SetTime, SetXattrMode, SizePolicy,
};
pub use handle_table::HandleTable;
pub use rustix::fs::{Access, OFlags};
pub use stack::StackError;
pub use waiting::{WaitWrapper, set_wait_wrapper};
pub use weir::{Weir, WeirOptions};

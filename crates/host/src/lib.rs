#![doc = include_str!("../README.md")]
mod awake;
mod batch;
mod counted;
mod disk;
mod error;
mod fork;
mod fuse_device;
mod machine;
mod mounts;
mod open;
mod privacy;
mod process;
mod shell;
mod slowest;
mod sparse;
mod volatile;
mod write_out;

pub use awake::{Asleep, ProcessorTimes, WakeUps};
pub use counted::{Account, Busy, Counted, Reads, ReadsNow};
pub use disk::Disk;
pub use error::HostError;
pub use fork::{Forked, fork};
pub use fuse_device::clone_fuse_device;
pub use machine::{
    SystemClock, WriteCache, are_on_one_disk, mark_io_flusher, memory_bytes, random_bytes, write_cache,
};
pub use mounts::{Mount, Mounts, Owner};
pub use open::{Access, Overwrite, has_direct_io};
pub use privacy::open_to_others;
pub use process::{Peer, is_stopped, keep_descriptors, lock_holder, peer_of};
pub use shell::quoted;
pub use slowest::{Call, Slowest};
pub use sparse::spare_bytes;
pub use volatile::{Volatile, why_volatile};
pub use write_out::write_out;

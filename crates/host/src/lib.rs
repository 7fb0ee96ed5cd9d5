#![doc = include_str!("../README.md")]
mod batch;
mod disk;
mod error;
mod machine;
mod mounts;
mod open;
mod sparse;
mod write_out;

pub use disk::Disk;
pub use error::HostError;
pub use machine::{SystemClock, WriteCache, mark_io_flusher, random_bytes, write_cache};
pub use mounts::{Mount, Mounts};
pub use open::{Access, Overwrite};
pub use sparse::spare_bytes;
pub use write_out::write_out;

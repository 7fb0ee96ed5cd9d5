#![doc = include_str!("../README.md")]
mod buffer;
mod bug;
mod counters;
mod decode;
mod error;
mod format;
mod groups;
mod open;
mod record;
mod recover;
mod ring;
mod sync;

pub use buffer::{Appended, Buffer};
#[cfg(feature = "planted-bugs")]
pub use bug::Bug;
pub use counters::Counters;
pub use error::BufferError;
pub use format::Identity;
pub use groups::GROUP_BYTES;
pub use record::{RECORD_OVERHEAD_BYTES, Record, TRANSACTION_OVERHEAD_BYTES, TRANSFER_BYTES, footprint};
pub use recover::Replayed;
pub use ring::GroupNo;

#[cfg(fuzzing)]
pub mod fuzz;

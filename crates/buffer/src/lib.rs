#![doc = include_str!("../README.md")]
mod buffer;
mod counters;
mod decode;
mod error;
mod format;
mod groups;
mod layout;
mod planted_bug;
mod record;
mod recover;
mod ring;
mod sync;

pub use buffer::{AppendedTransaction, Buffer};
pub use counters::BufferCounters;
pub use error::BufferError;
pub use format::BufferIdentity;
pub use groups::GROUP_BYTES;
#[cfg(feature = "planted-bugs")]
pub use planted_bug::BufferBug;
pub use record::{
    LogRecord, RECORD_OVERHEAD_BYTES, TRANSACTION_OVERHEAD_BYTES, TRANSFER_BYTES, footprint, record_bytes,
    transaction_bytes,
};
pub use recover::ReplayedTransaction;
pub use ring::GroupNo;

#[cfg(fuzzing)]
pub mod fuzz;

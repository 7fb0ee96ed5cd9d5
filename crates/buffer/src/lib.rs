#![doc = include_str!("../README.md")]
mod bug;
mod buffer;
mod decode;
mod draft;
mod error;
mod format;
mod open;
mod record;
mod recover;
mod ring;
mod state;

#[cfg(feature = "planted-bugs")]
pub use bug::Bug;
pub use buffer::{Appended, Buffer, Counters};
pub use error::BufferError;
pub use record::{RECORD_OVERHEAD_BYTES, Record, TRANSACTION_OVERHEAD_BYTES, footprint};
pub use recover::Replayed;
pub use ring::GroupNo;

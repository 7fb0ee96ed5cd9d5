#![doc = include_str!("../README.md")]
mod address;
mod connection;
mod descriptor_stream;
mod error;
mod log_directory;
mod mount;
mod ranges;

pub use address::{ControlAddress, DeviceNumber, connect, listen};
pub use connection::ControlClient;
pub use descriptor_stream::DescriptorStream;
pub use error::ClientError;
pub use log_directory::{LOG_EXTENSION, ROOT_LOG_DIRECTORY, own_log_directory};
pub use mount::{WeirMount, mount_point_spellings};
pub use ranges::{BYTES_MAX, FilePlace, RANGES_MAX, RangeChange, RangeVector, RangesReply, VectorOutcome};

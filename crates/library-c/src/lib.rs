#![doc = include_str!("../README.md")]
mod answer;
mod attributes;
mod file;
mod handles;
mod listing;
mod names;
mod store;
mod xattrs;

pub use answer::weir_error;
pub use attributes::*;
pub use file::*;
pub use handles::{FileHandle, ListingHandle, StoreHandle};
pub use listing::*;
pub use names::*;
pub use store::*;
pub use xattrs::*;

#![doc = include_str!("../README.md")]
mod answer;
mod attributes;
mod batch;
mod file;
mod handles;
mod listing;
mod names;
mod store;
mod xattrs;

/// Pages are aligned, and glibc takes two for each. It serves weir alone, not the program around it.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

pub use answer::weir_error;
pub use attributes::*;
pub use batch::*;
pub use file::*;
pub use handles::{FileHandle, ListingHandle, StoreHandle};
pub use listing::*;
pub use names::*;
pub use store::*;
pub use xattrs::*;

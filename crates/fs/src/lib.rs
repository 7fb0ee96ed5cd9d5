#![doc = include_str!("../README.md")]
mod acl;
mod allocate;
mod arena;
mod attributes;
mod check;
mod cost;
mod count;
mod counts;
mod create;
mod data;
mod directory;
mod error;
mod format;
mod fs;
mod gone;
mod heap;
mod inode;
mod kept_pages;
mod lost;
mod names;
mod nearby;
mod open;
mod owners;
mod plant;
mod preload;
mod remove;
mod rename;
mod share;
mod streams;
#[cfg(test)]
mod tests;
mod types;
mod xattr;

pub use allocate::{Allocate, Seek, Size};
pub use check::Finding;
pub use error::FsError;
pub use format::{FILE_BYTES_MAX, INODES_MAX, LINK_BYTES_MAX, LINKS_MAX, NAME_BYTES_MAX};
pub use fs::Fs;
pub use kept_pages::KeptPages;
#[cfg(feature = "planted-bugs")]
pub use plant::plant_never_undoes;
pub use preload::PreloadedArena;
pub use types::{
    Attributes, Caller, Completion, Entry, IfExists, Ino, Kind, Privileges, SetAttributes, SetTime, SetXattr,
    Usage,
};
pub use xattr::{XATTR_LIST_BYTES_MAX, XATTR_NAME_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX};

#[cfg(fuzzing)]
pub mod fuzz;

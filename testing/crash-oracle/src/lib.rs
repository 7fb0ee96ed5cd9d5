#![doc = include_str!("../README.md")]
mod crash_file;
mod history;
mod unsynced_pages;

pub use crash_file::{CrashFile, WritePath, bytes_difference};
pub use history::{CrashHistory, CrashModel, FoundPrefix, HistoryMoment, NoPrefix, SyncedBytes};
pub use unsynced_pages::{BypassScope, PAGE_BYTES, UnsyncedPages};

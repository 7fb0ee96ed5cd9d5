#![doc = include_str!("../README.md")]
mod attributes;
mod background_requests;
mod connection;
mod errno;
mod error_log;
mod hole_search;
mod kernel_settings;
mod latency;
mod listing;
mod page_invalidation;
mod privileges;
mod proc_reader;
mod protocol;
mod range_flags;
mod recent_inodes;
mod request_classes;
mod server;
mod session;
mod sync;
mod task_table;
mod thread_hints;
mod xattr;

pub use background_requests::{BackgroundRequest, BackgroundRequests, LockedInodes};
pub use kernel_settings::{KernelCachePolicy, configure_kernel};
pub use latency::{CLASSED_KINDS, LatencySummary, RequestCounter, RequestLatencies};
pub use page_invalidation::PageInvalidator;
pub use request_classes::RequestClasses;
pub use server::FuseServer;
pub use session::{FuseSession, MountOptions, mount};
pub use task_table::{FoundTask, TaskCursor, TaskTable, TaskTableKeeper, TaskTableStatus, UnreadTaskRules};
pub use thread_hints::LockedHints;

#[cfg(fuzzing)]
pub mod fuzz;

#![doc = include_str!("../README.md")]
mod block_devices;
mod errno;
mod error;
mod find_buffer;
mod media;
mod medium_content;
mod storage_stack;
mod worker_threads;

pub use error::StackError;
pub use find_buffer::{
    BufferSearch, PlaceContent, SearchedPlace, StoreDescription, content_of_place, describe_store,
    search_buffer,
};
pub use media::{
    BUFFER_FILE, MediumKind, NEW_BUFFER_FILE, STORE_FILE, StoreMedia, absolute, ensure_leads_somewhere,
    ensure_not_on_weir, host_error, medium_kind, open_medium, store_of, warn_of_readers,
};
pub use medium_content::MediumContent;
pub use storage_stack::{DiskAccounts, ExpectedBuffer, StartTimes, StorageStack, volume_named};
pub use worker_threads::{WorkerStopper, WorkerThreads};

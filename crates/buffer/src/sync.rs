//! What threads hand over to each other by, under these names: `tests/threads.rs` compiles the same sources with `shuttle`'s in their
//! place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

//! The locks and atomics of this crate. `tests/threads.rs` compiles the same sources with those of `shuttle`
//! in their place.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

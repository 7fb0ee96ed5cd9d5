//! The atomics and the lock of the task table. `tests/task_table.rs` compiles the same source with those of `shuttle`
//! in their place.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard};

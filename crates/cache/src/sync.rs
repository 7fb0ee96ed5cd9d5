//! The primitives with which threads synchronise. `tests/hand_over.rs` compiles the same sources with those
//! of `shuttle`.

pub(crate) use std::sync::atomic::{AtomicU64, Ordering};
pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
pub(crate) use std::thread_local;

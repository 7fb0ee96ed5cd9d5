//! Locks and atomics of the store. `tests/threads` compiles the same sources with `shuttle`'s types under
//! these names.

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
pub(crate) use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

//! What several threads share, by these names: tests compile files that use no others with `shuttle`'s in their place.

pub(crate) use std::sync::Mutex;
pub(crate) use std::sync::atomic::{AtomicU64, Ordering};

//! Tests of the crate as a whole. `in_memory` runs operations on a map of pages instead of a cache;
//! `simulated_stack` runs them through the real cache on simulated disks; `model` is a plain file system with
//! which both are compared.

mod atomic_writes;
mod batch;
mod batch_ranges;
mod crash_truncate;
mod directory;
mod file_rules;
mod format;
mod in_memory;
mod model;
mod operations;
mod random;
mod simulated_stack;
mod space;

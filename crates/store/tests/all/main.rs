//! All tests of the store but the models of threads, in one program: each links but once.

mod between;
mod cleaner;
mod common;
mod concurrent;
mod crash;
mod damage;
mod deletions;
mod deltas;
mod devices;
mod draft_before;
mod errors;
mod flips;
mod foreground;
mod full;
mod full_clones;
mod growth;
mod growth_flushes;
mod list;
mod lives;
mod lookups;
mod maintenance;
mod model;
mod owners;
#[cfg(feature = "planted-bugs")]
mod planted;
mod refuse;
mod reserve;
mod settings;
mod start;
mod twice;
mod volume_batches;
mod volumes;

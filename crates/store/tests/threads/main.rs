//! Models of threads: the store's sources with `shuttle`'s locks and atomics in place of the standard
//! library's. `shuttle` runs one thread at a time and chooses at random which one continues at each lock,
//! atomic and device call. Every access is sequentially consistent there: effects of weaker memory orders do
//! not show.
//!
//! A test binary of its own, as it compiles the sources again (by `#[path]`). It has no test harness, which
//! would also run the unit tests of these sources, outside of any model.

mod flush_counter;
mod pins;

/// In place of `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU32, AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
}

/// Linted in the library.
#[path = "../../src"]
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub, unused_imports)]
mod shipped {
    pub(crate) mod block_set;
    pub(crate) mod bug;
    pub(crate) mod change;
    pub(crate) mod check;
    pub(crate) mod checkpoint;
    pub(crate) mod checkpoint_root;
    pub(crate) mod checkpoint_tables;
    pub(crate) mod cleaner;
    pub(crate) mod coalesce;
    pub(crate) mod counters;
    pub(crate) mod data;
    pub(crate) mod delta_block;
    pub(crate) mod delta_merge;
    pub(crate) mod error;
    pub(crate) mod flusher;
    pub(crate) mod format;
    pub(crate) mod gc_pacer;
    pub(crate) mod host_space;
    pub(crate) mod log_chunk;
    pub(crate) mod log_entry;
    pub(crate) mod log_extent;
    pub(crate) mod log_progress;
    pub(crate) mod log_reader;
    pub(crate) mod log_writer;
    pub(crate) mod maintenance;
    pub(crate) mod maintenance_plan;
    pub(crate) mod map;
    pub(crate) mod map_walk;
    pub(crate) mod medium;
    pub(crate) mod mirror_repair;
    pub(crate) mod mirrored;
    #[cfg(feature = "planted-bugs")]
    pub(crate) mod plant;
    pub(crate) mod policy;
    pub(crate) mod recover;
    pub(crate) mod reverse_map;
    pub(crate) mod scrub;
    pub(crate) mod segment_summary;
    pub(crate) mod segments;
    pub(crate) mod settings;
    pub(crate) mod shared;
    pub(crate) mod space;
    pub(crate) mod space_account;
    pub(crate) mod space_search;
    pub(crate) mod store;
    pub(crate) mod superblock;
    pub(crate) mod tables_stream;
    pub(crate) mod volume;
    pub(crate) mod volume_changes;
    pub(crate) mod volume_usage;
    pub(crate) mod volumes;
    pub(crate) mod writer;
}
use shipped::*;

use shuttle::scheduler::RandomScheduler;
use shuttle::{Config, Runner};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Schedules that each model is run in.
const ORDERS: usize = 2_000;

/// Runs a model in that many schedules. Prints the schedule of one that fails.
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    // Recovery's frames are larger than what shuttle gives a thread.
    config.stack_size = 1 << 20;
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(19, ORDERS), config).run(model);
}

/// Runs a model that must fail in one of these schedules. Returns the message that it fails with.
fn failure(model: impl Fn() + Send + Sync + 'static) -> String {
    let failed = catch_unwind(AssertUnwindSafe(|| check(model))).expect_err("the wrong way was not found");
    let message = failed.downcast_ref::<String>().cloned();
    message.or_else(|| failed.downcast_ref::<&str>().map(ToString::to_string)).unwrap_or_default()
}

/// Runs the models whose names contain the first argument.
fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    for (name, test) in flush_counter::TESTS.into_iter().chain(pins::TESTS) {
        if name.contains(&wanted) {
            let begun = Instant::now();
            test();
            // Printed after shuttle's output on the models that must fail.
            println!("test {name} ... ok, {:.1} s", begun.elapsed().as_secs_f32());
        }
    }
}

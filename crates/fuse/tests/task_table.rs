//! The task table's own source with `shuttle`'s atomics in place of the standard library's. `shuttle` runs
//! one thread at a time and chooses at random which one continues at each atomic. Every access is
//! sequentially consistent there.
//!
//! It has no test harness, which would also run the unit tests of the source, outside of any model.

/// In place of `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
}

/// Linted in the library.
#[path = "../src"]
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub, unused_imports)]
mod shipped {
    pub(crate) mod task_table;
}
use shipped::task_table::{SETS, TaskTable, WAYS};

use request::RuleMask;
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::Ordering;
use shuttle::{Config, Runner, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};

const READERS: usize = 2;
const LOOK_UPS_EACH: usize = 3;
/// The first task; the others are in the same set.
const FIRST: u32 = 3;
const UNKNOWN: RuleMask = RuleMask(0);

/// As many tasks as a set holds, and one more.
fn task(number: usize) -> u32 {
    FIRST + (number * SETS) as u32
}

/// Looks tasks up while the keeper gives a slot to another task. `rules_of` is the look-up.
fn model(rules_of: fn(&TaskTable, u32) -> RuleMask) {
    let (table, mut keeper) = TaskTable::new(UNKNOWN);
    let mut read = |task| Ok(RuleMask(u64::from(task)));
    for number in 0..WAYS {
        table.rules_of(task(number));
        keeper.step(&mut read);
    }
    let look_up = move || {
        for _ in 0..LOOK_UPS_EACH {
            let task = task(thread_rng().gen_range(0..=WAYS));
            let found = rules_of(&table, task);
            assert!(found == UNKNOWN || found == RuleMask(task.into()), "the rules of another task");
        }
    };
    let readers: Vec<_> = (0..READERS).map(|_| thread::spawn(look_up.clone())).collect();
    (0..2).for_each(|_| {
        keeper.step(&mut read);
    });
    readers.into_iter().for_each(|reader| reader.join().expect("no panic"));
}

/// Wrong: does not look at the key again.
fn rules_of_without_second_look(table: &TaskTable, task: u32) -> RuleMask {
    let set = &table.sets[task as usize % SETS];
    let slot = set.iter().find(|slot| slot.key.load(Ordering::Acquire) as u32 == task);
    match slot {
        Some(slot) => RuleMask(slot.mask.load(Ordering::Acquire)),
        None => table.rules_of(task),
    }
}

/// Runs a model in 2,000 orders of its threads. Prints how to repeat one that fails.
fn check(rules_of: fn(&TaskTable, u32) -> RuleMask) {
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(19, 2000), config).run(move || model(rules_of));
}

fn main() {
    check(TaskTable::rules_of);
    let wrong = catch_unwind(AssertUnwindSafe(|| check(rules_of_without_second_look)));
    wrong.expect_err("a look-up without a second look gets the rules of another task");
    println!("test task_table ... ok");
}

//! The task table's own source with `shuttle`'s atomics and lock in place of the standard library's. `shuttle` runs
//! one thread at a time and chooses at random which one continues at each atomic. Every access is
//! sequentially consistent there.
//!
//! It has no test harness, which would also run the unit tests of the source, outside of any model.

/// In place of `src/sync.rs`.
mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
    pub(crate) use shuttle::sync::{Mutex, MutexGuard};
}

/// Linted in the library.
#[path = "../src"]
#[allow(clippy::all, dead_code, missing_docs, unreachable_pub, unused_imports)]
mod shipped {
    pub(crate) mod task_table;
    pub(crate) mod thread_hints;
}
use shipped::task_table::{FoundTask, SETS, TaskTable, UnreadTaskRules, WAYS};
use shipped::thread_hints::{self, LockedHints};

use request::{RequestClass, RuleMask};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::RandomScheduler;
use shuttle::sync::atomic::Ordering;
use shuttle::{Config, Runner, thread};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

const READERS: usize = 2;
const LOOK_UPS_EACH: usize = 3;
/// The first task; the others are in the same set.
const FIRST: u32 = 3;
const UNKNOWN: RuleMask = RuleMask(0);
const UNREAD: UnreadTaskRules =
    UnreadTaskRules { unknown: UNKNOWN, critical: RuleMask(1 << 62), background: RuleMask(1 << 61) };
/// The first step of the keeper does not read its set again, the second does.
const HINTED: u32 = 15;

/// As many tasks as a set holds, and one more.
fn task(number: usize) -> u32 {
    FIRST + (number * SETS) as u32
}

/// Looks tasks up while the keeper gives a slot to another task. `rules_of` is the look-up.
fn model(rules_of: fn(&TaskTable, u32) -> RuleMask) {
    let (table, mut keeper) = TaskTable::new(UNREAD, Arc::default());
    for number in 0..WAYS {
        table.rules_of(task(number));
        keeper.step(&mut read);
    }
    // The keeper enters this one next.
    table.rules_of(task(WAYS));
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

/// What the keeper reads about a task.
fn read(task: u32) -> Result<FoundTask, host::TaskReadError> {
    Ok(FoundTask { rules: RuleMask(task.into()), start_ticks: 1 })
}

type SetHint = fn(&TaskTable, &LockedHints, Option<RequestClass>);

/// A thread changes its hint, and looks itself up, while the keeper enters it and reads it again.
fn model_of_hints(set_hint: SetHint) {
    let hints: Arc<LockedHints> = Arc::default();
    let (table, mut keeper) = TaskTable::new(UNREAD, hints.clone());
    table.rules_of(HINTED);
    keeper.step(&mut read);
    let hinting = thread::spawn(move || {
        for class in [Some(RequestClass::Background), Some(RequestClass::Critical), None] {
            set_hint(&table, &hints, class);
            for _ in 0..LOOK_UPS_EACH {
                let found = table.rules_of(HINTED);
                let is_right = match class {
                    Some(RequestClass::Background) => found == UNREAD.background,
                    Some(RequestClass::Critical) => found == UNREAD.critical,
                    None => found == UNKNOWN || found == RuleMask(HINTED.into()),
                };
                assert!(is_right, "an earlier class of the thread");
            }
        }
    });
    (0..2).for_each(|_| {
        keeper.step(&mut read);
    });
    hinting.join().expect("no panic");
}

fn set_hint(table: &TaskTable, hints: &LockedHints, class: Option<RequestClass>) {
    let mut hints = hints.lock();
    hints.set(HINTED, 1, class);
    table.forget(HINTED, &hints);
}

/// Wrong: the keeper may enter the task in between.
fn set_hint_last(table: &TaskTable, hints: &LockedHints, class: Option<RequestClass>) {
    table.forget(HINTED, &hints.lock());
    hints.lock().set(HINTED, 1, class);
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
fn check(model: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.silence_warnings = true;
    Runner::new(RandomScheduler::new_from_seed(19, 2000), config).run(model);
}

fn main() {
    check(|| model(TaskTable::rules_of));
    let wrong = catch_unwind(AssertUnwindSafe(|| check(|| model(rules_of_without_second_look))));
    wrong.expect_err("a look-up without a second look gets the rules of another task");
    check(|| model_of_hints(set_hint));
    let wrong = catch_unwind(AssertUnwindSafe(|| check(|| model_of_hints(set_hint_last))));
    wrong.expect_err("a look-up gets the rules that held before the hint");
    println!("test task_table ... ok");
}

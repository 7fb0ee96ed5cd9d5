//! Counts the instructions of a look-up in the task table, and of a decision by rules.
//!
//! ```text
//! cargo build --release -p weir-fuse --example task_look_up
//! for operation in one_look_up one_decision; do
//!     valgrind --tool=callgrind --toggle-collect="*$operation*" --callgrind-out-file=$operation.out \
//!         target/release/examples/task_look_up
//!     callgrind_annotate --inclusive=yes $operation.out > $operation.txt
//! done
//! ```
//!
//! The first figure, divided by the number of operations that the program prints, is the instructions of one.

use fuse::{FoundTask, TaskTable, UnreadTaskRules};
use request::{RuleDecision, RuleMask, RuleSet};
use std::hint::black_box;
use std::sync::Arc;

const OPERATIONS: u32 = 20_000;
/// Threads of a server, with thread ids in a row.
const TASKS: u32 = 500;

/// The look-up that is counted.
#[inline(never)]
fn one_look_up(table: &TaskTable, task: u32) -> RuleMask {
    table.rules_of(task)
}

/// The decision that is counted.
#[inline(never)]
fn one_decision(rules: &RuleSet, task: RuleMask, file: RuleMask) -> RuleDecision {
    rules.decide(task, file)
}

fn main() {
    let (table, mut keeper) = TaskTable::new(UnreadTaskRules::of(&RuleSet::default()), Arc::default());
    for task in 1..=TASKS {
        while table.rules_of(task) != RuleMask(task.into()) {
            keeper.step(&mut |task| Ok(FoundTask { rules: RuleMask(task.into()), start_ticks: 1 }));
        }
    }
    let rules = RuleSet::parse("critical file=/log\nbackground nice=10..19").expect("rules");
    for number in 0..OPERATIONS {
        let task = 1 + number % TASKS;
        assert_eq!(black_box(one_look_up(&table, task)), RuleMask(task.into()));
        black_box(one_decision(&rules, RuleMask(task.into()), RuleMask(2)));
    }
    println!("{OPERATIONS} operations of each kind");
}

//! Results that differ from the trace, and why.

use crate::action::{Action, Fate};
use crate::benchmark::Benchmark;
use crate::op::{Op, Outcome};
use crate::replay::Run;
use serde::{Deserialize, Serialize};

/// Why a result differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The same action gives the recorded result when one thread makes all calls.
    Order,
    /// Nobody ran the same with one thread, so the order cannot be told from the other causes.
    Unattributed,
    /// The target has no more room.
    Space,
    /// The target or this user may not do it.
    Permission,
    /// The target lacks the feature.
    Feature,
    /// Too few descriptors are allowed.
    Descriptors,
    /// The initial tree, as far as snapshot and trace show it, is not what the program saw.
    Tree,
}

/// One result that differs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Difference {
    /// The action's number.
    pub action: u32,
    /// Its line in the trace.
    pub line: u64,
    /// Its call.
    pub call: String,
    /// What the program got.
    pub recorded: String,
    /// What the replay got.
    pub replayed: String,
    /// Why.
    pub cause: Cause,
}

pub(super) fn find(benchmark: &Benchmark, run: &Run, single: Option<&Run>) -> Vec<Difference> {
    let mut found = Vec::new();
    for (id, (action, sample)) in benchmark.actions.iter().zip(&run.samples).enumerate() {
        if action.fate != Fate::Executed || same(action, sample.outcome) {
            continue;
        }
        let cause = match single.map(|single| single.samples[id].outcome) {
            Some(alone) if same(action, alone) => Cause::Order,
            Some(_) => cause(sample.outcome),
            None => Cause::Unattributed,
        };
        found.push(Difference {
            action: id as u32,
            line: action.line,
            call: benchmark.names.show(action.name),
            recorded: show(action.recorded),
            replayed: show(sample.outcome),
            cause,
        });
    }
    found
}

fn cause(outcome: Outcome) -> Cause {
    match outcome {
        Outcome::Error(libc::ENOSPC | libc::EDQUOT) => Cause::Space,
        Outcome::Error(libc::EPERM | libc::EACCES | libc::EROFS) => Cause::Permission,
        Outcome::Error(libc::EOPNOTSUPP | libc::ENOSYS) => Cause::Feature,
        Outcome::Error(libc::EMFILE | libc::ENFILE) => Cause::Descriptors,
        _ => Cause::Tree,
    }
}

/// Whether a program would see the same. Descriptors' numbers are the kernel's choice, and the sizes of directory entries
/// the file system's.
fn same(action: &Action, outcome: Outcome) -> bool {
    match (action.recorded, outcome) {
        (Outcome::Value(recorded), Outcome::Value(replayed)) => match &action.op {
            Op::Read { .. } | Op::Write { .. } | Op::Seek { .. } | Op::Copy { .. } => recorded == replayed,
            Op::ReadLink { target: Some(_), .. } | Op::Submit { .. } | Op::Collect { .. } => {
                recorded == replayed
            }
            Op::List { .. } => (recorded == 0) == (replayed == 0),
            _ => true,
        },
        // An interrupted close has closed; a process's end has no result of its own.
        (_, Outcome::Value(_)) if matches!(action.op, Op::Close { .. }) => true,
        (recorded, replayed) => recorded == replayed,
    }
}

pub(super) fn show(outcome: Outcome) -> String {
    match outcome {
        Outcome::Value(value) => value.to_string(),
        Outcome::Error(number) => crate::decode::errno_name(number),
        Outcome::Unknown => "unknown".into(),
    }
}

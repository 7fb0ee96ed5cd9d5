//! Results that differ from the trace, and why.

use crate::replay::Run;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use trace_file::{Action, Benchmark, Fate, Handle, Op, Outcome};

/// Why a result differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The same action gives the recorded result when one thread makes all calls.
    Order,
    /// The recorded result itself is a race: no order of the calls that overlapped explains it.
    Race,
    /// Nobody ran the same with one thread, so the order cannot be told from the other causes.
    Unattributed,
    /// The target has no more space.
    Space,
    /// The target or this user may not do it.
    Permission,
    /// The target lacks the feature.
    Feature,
    /// Too few descriptors are allowed.
    Descriptors,
    /// The call that should have opened its file failed.
    NotOpened,
    /// The file stands for one in /proc or /sys, which says something else each time.
    StandIn,
    /// The initial tree, as far as snapshot and trace show it, is not what the program saw.
    Tree,
}

impl Cause {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Cause::Order => "the order: with one thread, the result is the recorded one",
            Cause::Race => "the recorded result is a race: no order of the calls that overlapped explains it",
            Cause::Unattributed => "unknown, as no replay with one thread was made to compare with",
            Cause::Space => "the target has no more space",
            Cause::Permission => "the target, or this user, may not do it",
            Cause::Feature => "the target lacks the feature",
            Cause::Descriptors => "too few descriptors are allowed: see `ulimit -n`",
            Cause::NotOpened => "the call that should have opened its file failed",
            Cause::StandIn => "its file stands for one in /proc or /sys, which says something else each time",
            Cause::Tree => {
                "the files that were there before are not those that the program saw, of which trace and snapshot do not tell \
                 enough"
            }
        }
    }
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

/// Differences that look the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Group {
    /// Why.
    pub cause: Cause,
    /// The call.
    pub call: String,
    /// What the program got; of numbers, that of the first.
    pub recorded: String,
    /// What the replay got; of numbers, that of the first.
    pub replayed: String,
    /// How many.
    pub count: u64,
    /// The first action of them.
    pub first: u32,
    /// Its line in the trace.
    #[serde(default)]
    pub line: u64,
}

/// Differences by cause and kind, the most frequent first.
pub(super) fn group(all: &[Difference]) -> Vec<Group> {
    // Numbers differ in a thousand ways that look the same.
    let kind = |text: &str| text.parse::<i64>().is_err().then(|| text.to_owned());
    let mut groups: BTreeMap<_, Group> = BTreeMap::new();
    for difference in all {
        let Difference { action, line, call, recorded, replayed, cause } = difference;
        let key = (*cause, call, kind(recorded), kind(replayed));
        let first = || Group {
            cause: *cause,
            call: call.clone(),
            recorded: recorded.clone(),
            replayed: replayed.clone(),
            count: 0,
            first: *action,
            line: *line,
        };
        groups.entry(key).or_insert_with(first).count += 1;
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    groups.sort_by_key(|group| (group.cause, std::cmp::Reverse(group.count)));
    groups
}

pub(super) fn find(benchmark: &Benchmark, run: &Run, single: Option<&Run>) -> Vec<Difference> {
    let mut found = Vec::new();
    let stand_ins = stand_ins(benchmark);
    let races: BTreeSet<u64> = benchmark.about.races.iter().copied().collect();
    for (id, (action, sample)) in benchmark.actions.iter().zip(&run.samples).enumerate() {
        if action.fate != Fate::Executed || same(action, sample.outcome) {
            continue;
        }
        let cause = match single.map(|single| single.samples[id].outcome) {
            Some(_) if races.contains(&action.line) => Cause::Race,
            Some(alone) if same(action, alone) => Cause::Order,
            Some(_) if on(&action.op).is_some_and(|handle| stand_ins.contains(&handle)) => Cause::StandIn,
            Some(_) => cause(action, sample.outcome),
            None => Cause::Unattributed,
        };
        found.push(Difference {
            action: id as u32,
            line: action.line,
            call: benchmark.names.show(action.name),
            recorded: seen_size(action)
                .map_or_else(|| show(action.recorded), |size| show(Outcome::Value(size))),
            replayed: show(sample.outcome),
            cause,
        });
    }
    found
}

/// Descriptions of files that stand for those of /proc and /sys.
fn stand_ins(benchmark: &Benchmark) -> BTreeSet<Handle> {
    let mut found = BTreeSet::new();
    for action in &benchmark.actions {
        let Op::Open { at, made, .. } = &action.op else { continue };
        let path = benchmark.names.bytes(at.path);
        if path.starts_with(b"/proc/") || path.starts_with(b"/sys/") || found.contains(&at.dir) {
            found.insert(*made);
        }
    }
    found
}

fn on(op: &Op<Handle>) -> Option<Handle> {
    match op {
        Op::Read { on, .. } | Op::ReadWith { on, .. } | Op::Seek { on, .. } | Op::List { on, .. } => {
            Some(*on)
        }
        Op::Copy { from, .. } => Some(*from),
        _ => None,
    }
}

fn cause(action: &Action, outcome: Outcome) -> Cause {
    let writes = matches!(action.op, Op::Write { .. } | Op::WriteWith { .. });
    match outcome {
        // A user namespace knows one user.
        Outcome::Error(libc::EINVAL) if matches!(action.op, Op::SetOwner { .. }) => Cause::Permission,
        Outcome::Error(libc::EBADF) => Cause::NotOpened,
        Outcome::Error(libc::ENOSPC | libc::EDQUOT) => Cause::Space,
        Outcome::Error(libc::EPERM | libc::EACCES | libc::EROFS) => Cause::Permission,
        Outcome::Error(libc::EOPNOTSUPP | libc::ENOSYS) => Cause::Feature,
        Outcome::Error(libc::EMFILE | libc::ENFILE) => Cause::Descriptors,
        // No signal interrupts a replay: a write that ends early has no space.
        Outcome::Value(_) if writes && action.recorded.succeeded() => Cause::Space,
        _ => Cause::Tree,
    }
}

/// The size that a stat showed. Of regular files only: those of others are the file system's choice.
fn seen_size(action: &Action) -> Option<i64> {
    match &action.op {
        Op::Stat { seen: Some(seen), .. } if seen.mode & libc::S_IFMT == libc::S_IFREG => {
            i64::try_from(seen.size).ok().filter(|_| action.recorded.succeeded())
        }
        _ => None,
    }
}

/// Whether a program would see the same. Descriptors' numbers are the kernel's choice, and the sizes of directory entries
/// the file system's.
pub fn same(action: &Action, outcome: Outcome) -> bool {
    match (action.recorded, outcome) {
        (Outcome::Value(recorded), Outcome::Value(replayed)) => match &action.op {
            Op::ReadWith { .. } | Op::WriteWith { .. } | Op::GetAttribute { .. } => recorded == replayed,
            Op::Read { .. } | Op::Write { .. } | Op::Seek { .. } | Op::Copy { .. } => recorded == replayed,
            Op::ReadLink { target: Some(_), .. } | Op::Submit { .. } | Op::Collect { .. } => {
                recorded == replayed
            }
            Op::Stat { .. } => seen_size(action).is_none_or(|size| size == replayed),
            Op::List { .. } => (recorded == 0) == (replayed == 0),
            _ => true,
        },
        // An interrupted close has closed; a process's end has no result of its own.
        (_, Outcome::Value(_)) if matches!(action.op, Op::Close { .. }) => true,
        (recorded, replayed) => recorded == replayed,
    }
}

/// A result, for people.
pub fn show(outcome: Outcome) -> String {
    match outcome {
        Outcome::Value(value) => value.to_string(),
        Outcome::Error(number) => trace_file::errno_name(number),
        Outcome::Unknown => "unknown".into(),
    }
}

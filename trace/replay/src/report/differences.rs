//! Results that differ from the trace, and their causes.

use crate::replay::ReplayRun;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use trace_file::{Action, CompiledTrace, Fate, Handle, Op, Outcome};

/// The cause of a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DifferenceCause {
    /// The same action has the recorded result when one thread makes all calls.
    Order,
    /// The recorded result itself is a race: no order of the overlapping calls explains it.
    Race,
    /// There was no run with one thread, so the cause is unknown.
    Unattributed,
    /// The target has no more space.
    Space,
    /// The target or this user lacks the permission.
    Permission,
    /// The target lacks the feature.
    Feature,
    /// The descriptor limit is too low.
    Descriptors,
    /// The call that should have opened its file failed.
    NotOpened,
    /// The file stands for one in /proc or /sys, whose contents change all the time.
    StandIn,
    /// The initial tree, as derived from snapshot and trace, is not the tree that the program saw.
    Tree,
}

impl DifferenceCause {
    /// The text for reports.
    pub fn text(self) -> &'static str {
        match self {
            DifferenceCause::Order => "the order: with one thread, the result is the recorded one",
            DifferenceCause::Race => {
                "the recorded result is a race: no order of the calls that overlapped explains it"
            }
            DifferenceCause::Unattributed => "unknown, as no replay with one thread was made to compare with",
            DifferenceCause::Space => "the target has no more space",
            DifferenceCause::Permission => "the target, or this user, may not do it",
            DifferenceCause::Feature => "the target lacks the feature",
            DifferenceCause::Descriptors => "too few descriptors are allowed: see `ulimit -n`",
            DifferenceCause::NotOpened => "the call that should have opened its file failed",
            DifferenceCause::StandIn => {
                "its file stands for one in /proc or /sys, which says something else each time"
            }
            DifferenceCause::Tree => {
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
    /// The result that the program got.
    pub recorded: String,
    /// The result that the replay got.
    pub replayed: String,
    /// The cause.
    pub cause: DifferenceCause,
}

/// Differences that look the same.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DifferenceGroup {
    /// The cause.
    pub cause: DifferenceCause,
    /// The call.
    pub call: String,
    /// The result that the program got. For numbers, the first difference's.
    pub recorded: String,
    /// The result that the replay got. For numbers, the first difference's.
    pub replayed: String,
    /// Number of differences.
    pub count: u64,
    /// The first action with this difference.
    pub first: u32,
    /// Its line in the trace.
    #[serde(default)]
    pub line: u64,
}

/// Differences by cause and kind, the most frequent first.
pub(super) fn group(all: &[Difference]) -> Vec<DifferenceGroup> {
    // Differences between numbers look alike, so numbers are not compared here.
    let kind = |text: &str| text.parse::<i64>().is_err().then(|| text.to_owned());
    let mut groups: BTreeMap<_, DifferenceGroup> = BTreeMap::new();
    for difference in all {
        let Difference { action, line, call, recorded, replayed, cause } = difference;
        let key = (*cause, call, kind(recorded), kind(replayed));
        let first = || DifferenceGroup {
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

pub(super) fn find(compiled: &CompiledTrace, run: &ReplayRun, single: Option<&ReplayRun>) -> Vec<Difference> {
    let mut found = Vec::new();
    let stand_ins = stand_ins(compiled);
    let races: BTreeSet<u64> = compiled.about.races.iter().copied().collect();
    for (id, (action, sample)) in compiled.actions.iter().zip(&run.samples).enumerate() {
        if action.fate != Fate::Executed || !sample.is_reached() || same(action, sample.outcome) {
            continue;
        }
        let cause = match single.map(|single| single.samples[id].outcome) {
            Some(_) if races.contains(&action.line) => DifferenceCause::Race,
            Some(alone) if same(action, alone) => DifferenceCause::Order,
            Some(_) if on(&action.op).is_some_and(|handle| stand_ins.contains(&handle)) => {
                DifferenceCause::StandIn
            }
            Some(_) => cause(action, sample.outcome),
            None => DifferenceCause::Unattributed,
        };
        found.push(Difference {
            action: id as u32,
            line: action.line,
            call: compiled.names.show(action.name),
            recorded: seen_size(action)
                .map_or_else(|| show(action.recorded), |size| show(Outcome::Value(size))),
            replayed: show(sample.outcome),
            cause,
        });
    }
    found
}

/// Handles of files that stand for files in /proc and /sys.
fn stand_ins(compiled: &CompiledTrace) -> BTreeSet<Handle> {
    let mut found = BTreeSet::new();
    for action in &compiled.actions {
        let Op::Open { at, made, .. } = &action.op else { continue };
        let path = compiled.names.bytes(at.path);
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

fn cause(action: &Action, outcome: Outcome) -> DifferenceCause {
    let writes = matches!(action.op, Op::Write { .. } | Op::WriteWith { .. });
    match outcome {
        // A user namespace has only one user.
        Outcome::Error(libc::EINVAL) if matches!(action.op, Op::SetOwner { .. }) => {
            DifferenceCause::Permission
        }
        Outcome::Error(libc::EBADF) => DifferenceCause::NotOpened,
        Outcome::Error(libc::ENOSPC | libc::EDQUOT) => DifferenceCause::Space,
        Outcome::Error(libc::EPERM | libc::EACCES | libc::EROFS) => DifferenceCause::Permission,
        Outcome::Error(libc::EOPNOTSUPP | libc::ENOSYS) => DifferenceCause::Feature,
        Outcome::Error(libc::EMFILE | libc::ENFILE) => DifferenceCause::Descriptors,
        // No signal interrupts a replay, so a short write means a full device.
        Outcome::Value(_) if writes && action.recorded.succeeded() => DifferenceCause::Space,
        _ => DifferenceCause::Tree,
    }
}

/// The size that a stat showed. Only for regular files, because the file system chooses the sizes of others.
fn seen_size(action: &Action) -> Option<i64> {
    match &action.op {
        Op::Stat { seen: Some(seen), .. } if seen.mode & libc::S_IFMT == libc::S_IFREG => {
            i64::try_from(seen.size).ok().filter(|_| action.recorded.succeeded())
        }
        _ => None,
    }
}

/// Whether the result is the same for a program. Descriptor numbers are the kernel's choice, and sizes of
/// directory entries the file system's.
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
        // An interrupted close still closes, and a process's end has no result of its own.
        (_, Outcome::Value(_)) if matches!(action.op, Op::Close { .. }) => true,
        (recorded, replayed) => recorded == replayed,
    }
}

/// The text of a result.
pub fn show(outcome: Outcome) -> String {
    match outcome {
        Outcome::Value(value) => value.to_string(),
        Outcome::Error(number) => trace_file::errno_name(number),
        Outcome::Unknown => "unknown".into(),
    }
}

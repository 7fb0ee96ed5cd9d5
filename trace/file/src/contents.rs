//! The contents of a compiled trace.

use crate::action::{Action, Fate, Nap};
use crate::error::TraceError;
use crate::names::{Name, Names};
use crate::op::Handle;
use crate::order::Order;
use crate::tracer_cost::TracerCost;
use crate::untraced::UntracedIo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A compiled trace: all that a replay needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CompiledTrace {
    /// The origin, and how much of the trace the file covers.
    pub about: TraceOrigin,
    /// All byte strings.
    pub names: Names,
    /// The tree before the first action: parents before children.
    pub tree: Vec<InitialFile>,
    /// Descriptions that are open before the first action.
    pub inherited: Vec<InheritedHandle>,
    /// All actions, in an order that explains the trace's results.
    pub actions: Vec<Action>,
    /// The waits of the actions, in each order that was compiled.
    pub orders: Vec<Order>,
}

/// The origin of a compiled trace, and counts of its problems.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceOrigin {
    /// The trace's file name.
    pub trace: String,
    /// Number of threads.
    pub threads: u32,
    /// Number of open file descriptions, including the inherited ones.
    pub handles: u32,
    /// Number of asynchronous requests.
    pub requests: u32,
    /// Lines of the trace.
    pub lines: u64,
    /// Lines that could be used.
    pub used: u64,
    /// Calls that never ended.
    pub unfinished: u64,
    /// Problems with lines and calls: kind, count, first line.
    pub problems: Vec<(String, u64, u64)>,
    /// Contradictions that the model repaired.
    pub repairs: ModelRepairs,
    /// Lines of the first races.
    pub races: Vec<u64>,
    /// I/O of the program that the trace cannot show.
    pub unseen: UntracedIo,
    /// The time that the tracer adds between two calls, if known.
    pub tracer: TracerCost,
    /// Sleeps that end early in a replay in which other threads are faster.
    pub naps: Vec<Nap>,
}

/// Contradictions between trace and model, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModelRepairs {
    /// Files that a process outside of the trace must have made or removed.
    pub outside: u64,
    /// Descriptors in use whose opening the trace does not show.
    pub descriptors: u64,
    /// Calls whose result no order of overlapping calls explains.
    pub races: u64,
    /// Overlapping calls that were reordered against the order of their ends, to explain a result.
    pub reordered: u64,
    /// Calls whose lines came after later calls had already been applied.
    pub late: u64,
}

/// A description that was open before the trace began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InheritedHandle {
    /// Its handle.
    pub handle: Handle,
    /// The file's path before the trace began.
    pub path: Name,
}

/// A file of the initial tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InitialFile {
    /// The absolute path, within the target.
    pub path: Name,
    /// The kind of file.
    pub kind: InitialKind,
    /// Permission bits.
    pub mode: u32,
    /// Extended attributes: names and sizes.
    pub attributes: Box<[(Name, u32)]>,
    /// Holes of a regular file: starts and lengths in bytes.
    pub holes: Box<[(u64, u64)]>,
}

/// The kind of an initial file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum InitialKind {
    /// A directory.
    Directory,
    /// A regular file, with its size in bytes.
    File(u64),
    /// A symbolic link, with its target.
    Link(Name),
    /// A hard link to a file that comes before it.
    HardLink(Name),
    /// A stand-in for a device or another special file.
    Special(Device),
}

/// Special files that a tree can hold. Regular files stand for all other devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// /dev/null.
    Null,
    /// /dev/zero.
    Zero,
    /// Random bytes that never block.
    Random,
    /// A socket without a listener, which cannot be opened.
    Socket,
}

impl CompiledTrace {
    /// The order of that name.
    pub fn order(&self, name: &str) -> Result<&Order, TraceError> {
        let has = || self.orders.iter().map(|order| order.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.orders.iter().find(|order| order.name == name);
        found.ok_or_else(|| TraceError::NoOrder { name: name.into(), has: has() })
    }

    /// The number of actions with each fate.
    pub fn fates(&self) -> BTreeMap<Fate, u64> {
        let mut fates = BTreeMap::new();
        for action in &self.actions {
            *fates.entry(action.fate).or_default() += 1;
        }
        fates
    }
}

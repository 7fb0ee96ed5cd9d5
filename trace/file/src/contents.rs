//! What a benchmark holds.

use crate::action::{Action, Fate, Nap};
use crate::error::TraceError;
use crate::names::{Name, Names};
use crate::op::Handle;
use crate::order::Order;
use crate::tracer_cost::TracerCost;
use crate::untraced::Unseen;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Everything that a replay needs.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Benchmark {
    /// Where it comes from, and how much of the trace it covers.
    pub about: About,
    /// All byte strings.
    pub names: Names,
    /// The tree before the first action: parents before children.
    pub tree: Vec<Initial>,
    /// Descriptions that are open before the first action.
    pub inherited: Vec<Inherited>,
    /// All actions, in an order that explains the trace's results.
    pub actions: Vec<Action>,
    /// What they wait for, in each order that was compiled.
    pub orders: Vec<Order>,
}

/// Where a benchmark comes from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct About {
    /// The trace's file name.
    pub trace: String,
    /// How many threads it shows.
    pub threads: u32,
    /// How many open file descriptions it makes, the inherited ones among them.
    pub handles: u32,
    /// How many asynchronous requests it makes.
    pub requests: u32,
    /// Lines of the trace.
    pub lines: u64,
    /// Lines that could be used.
    pub used: u64,
    /// Calls that never ended.
    pub unfinished: u64,
    /// What could not be used: kind, how often, first line.
    pub problems: Vec<(String, u64, u64)>,
    /// What contradicted the model.
    pub repairs: Repairs,
    /// Lines of the first races among them.
    pub races: Vec<u64>,
    /// What the program did that the trace cannot show.
    pub unseen: Unseen,
    /// What the tracer adds between two calls, as far as known.
    pub tracer: TracerCost,
    /// Sleeps that end early in a replay in which others are faster.
    pub naps: Vec<Nap>,
}

/// Contradictions between trace and model, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Repairs {
    /// Files that something outside of the trace must have made or removed.
    pub outside: u64,
    /// Descriptors that the trace shows in use, and nobody saw being made.
    pub descriptors: u64,
    /// Calls whose result no order of overlapping calls explains.
    pub races: u64,
    /// Overlapping calls that were put into another order than that of their ends, to explain a result.
    pub reordered: u64,
    /// Calls whose lines came so late that others, which took effect after them, were applied already.
    pub late: u64,
}

/// A description that was open before the trace began.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inherited {
    /// Its handle.
    pub handle: Handle,
    /// The file's path before the trace began.
    pub path: Name,
}

/// A file of the initial tree.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Initial {
    /// Absolute, within the target.
    pub path: Name,
    /// What it is.
    pub kind: InitialKind,
    /// Permission bits.
    pub mode: u32,
    /// Extended attributes: names and sizes.
    pub attributes: Box<[(Name, u32)]>,
    /// Where a regular file has no bytes: starts and lengths.
    pub holes: Box<[(u64, u64)]>,
}

/// What an initial file is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum InitialKind {
    /// A directory.
    Directory,
    /// A regular file of that many bytes.
    File(u64),
    /// A symbolic link to that.
    Link(Name),
    /// Another name of a file that comes before it.
    HardLink(Name),
    /// A stand-in for a device or another special file.
    Special(Device),
}

/// Devices that a tree can hold; all others are stood in for by files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Device {
    /// /dev/null.
    Null,
    /// /dev/zero.
    Zero,
    /// Random bytes that never block.
    Random,
    /// A socket that nobody listens to: it cannot be opened.
    Socket,
}

impl Benchmark {
    /// The order of that name.
    pub fn order(&self, name: &str) -> Result<&Order, TraceError> {
        let has = || self.orders.iter().map(|order| order.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = self.orders.iter().find(|order| order.name == name);
        found.ok_or_else(|| TraceError::NoOrder { name: name.into(), has: has() })
    }

    /// How many actions have each fate.
    pub fn fates(&self) -> BTreeMap<Fate, u64> {
        let mut fates = BTreeMap::new();
        for action in &self.actions {
            *fates.entry(action.fate).or_default() += 1;
        }
        fates
    }
}

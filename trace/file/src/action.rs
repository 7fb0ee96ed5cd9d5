//! What the model makes of a call: something to execute or not, what it touches, and what it must wait for.

use crate::names::Name;
use crate::op::{Handle, Op, Outcome};
use serde::{Deserialize, Serialize};

/// The number of an action: its place in the one order in which the model explains the trace.
pub type ActionId = u32;

/// One call of the trace, as a replay sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The thread that makes it; threads are numbered by first appearance.
    pub thread: u32,
    /// Nanoseconds since the trace began: entry.
    pub start: u64,
    /// Nanoseconds since the trace began: return.
    pub end: u64,
    /// Line of the trace.
    pub line: u64,
    /// The call's name.
    pub name: Name,
    /// Whether it is executed.
    pub fate: Fate,
    /// What is executed; `Op::Nothing` unless `fate` says so.
    pub op: Op<Handle>,
    /// What the program got.
    pub recorded: Outcome,
}

/// A sleep with a limit, which passed; and who would have ended it before, had they been faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nap {
    /// The sleep.
    pub action: ActionId,
    /// The wake that ended a later sleep of the same thread at the same place; the start of it counts.
    pub ends_with: ActionId,
}

/// What a replay does with an action. Each is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fate {
    /// A call is made.
    Executed,
    /// The model knows what it does; nothing is left to execute.
    Modelled(Modelled),
    /// It should be executed, and is not.
    Skipped(Skipped),
}

/// Why nothing is left to execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Modelled {
    /// It changes which number stands for a file, and handles have no numbers.
    Descriptors,
    /// It makes, changes or ends a task.
    Process,
    /// It works on a pipe, socket or other descriptor that is no file: an edge where the other side is in the trace.
    NoFile,
    /// It waits, or touches no file.
    Idle,
    /// A lock through a description that another process's locks are held through already: one replay cannot hold both.
    SharedLock,
}

/// Why something that should be executed is not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Skipped {
    /// No replay of this call exists, or its arguments could not be read.
    Unsupported,
    /// The trace never shows where its descriptor comes from.
    UnknownDescriptor,
    /// It never returned in the trace.
    NeverReturned,
}

impl Fate {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Fate::Executed => "executed",
            Fate::Modelled(Modelled::Descriptors) => "modelled: changes descriptors only",
            Fate::Modelled(Modelled::Process) => "modelled: makes, changes or ends a task",
            Fate::Modelled(Modelled::NoFile) => "modelled: pipe, socket or other descriptor that is no file",
            Fate::Modelled(Modelled::Idle) => "modelled: waits, or touches no file",
            Fate::Modelled(Modelled::SharedLock) => "modelled: a lock through a description of two processes",
            Fate::Skipped(Skipped::Unsupported) => "skipped: no replay of this call exists",
            Fate::Skipped(Skipped::UnknownDescriptor) => "skipped: its descriptor is unknown",
            Fate::Skipped(Skipped::NeverReturned) => {
                "skipped: it never returned, or the trace does not say what"
            }
        }
    }
}

/// What of the earlier action must have happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// It has begun.
    Start,
    /// It is done.
    End,
}

/// Why one action waits for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Rule {
    /// `root`: all actions on a regular file, in order.
    FileSequence,
    /// `root`: a path is made before it is used, and used before it is deleted.
    PathStage,
    /// `root`: one generation of a path ends before the next begins.
    PathName,
    /// `root`: all actions on a descriptor, in order.
    DescriptorSequence,
    /// `root`: a request is submitted before it is collected.
    AioStage,
    /// Both: a description is open before and while it is used.
    DescriptionStage,
    /// `weir`: bytes of a file.
    Bytes,
    /// `weir`: a file's size.
    Size,
    /// `weir`: a file's attributes.
    Attributes,
    /// `weir`: a name in a directory.
    Name,
    /// `weir`: what a directory lists.
    Listing,
    /// `weir`: a description and its position.
    Description,
    /// `weir`: locks.
    Lock,
    /// Both: a task is made before it acts.
    Clone,
    /// Both: a child ends before it is waited for.
    ChildEnd,
    /// Both: vfork holds the parent.
    Hold,
    /// Both: bytes are written to a pipe before they are read.
    Pipe,
    /// `temporal`: every action in the order of the trace.
    Temporal,
    /// `root`: a descriptor is made before it is used, and used before it is closed. Subsumed by `DescriptorSequence`.
    DescriptorStage,
    /// `root`: every action in the order that explains the trace. Off unless asked for; subsumes all others.
    ProgramSequence,
    /// Both: a descriptor is sent to another process before it is used there.
    Passed,
    /// Both: a thread that sleeps (futex) goes on when another one wakes it, or ends.
    Wake,
}

impl Rule {
    /// Rules that can be switched, in the order of the reports. A thread's own order cannot: the replay has a thread for it.
    pub const SWITCHABLE: [Rule; 21] = [
        Rule::ProgramSequence,
        Rule::FileSequence,
        Rule::PathStage,
        Rule::PathName,
        Rule::DescriptorSequence,
        Rule::DescriptorStage,
        Rule::DescriptionStage,
        Rule::AioStage,
        Rule::Bytes,
        Rule::Size,
        Rule::Attributes,
        Rule::Name,
        Rule::Listing,
        Rule::Description,
        Rule::Lock,
        Rule::Clone,
        Rule::ChildEnd,
        Rule::Hold,
        Rule::Pipe,
        Rule::Passed,
        Rule::Wake,
    ];

    /// The rule's name at the command line: its words, joined by dashes.
    pub fn switch_name(self) -> String {
        let mut name = String::new();
        for letter in format!("{self:?}").chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    /// The switchable rule of that name.
    pub fn from_switch_name(name: &str) -> Option<Rule> {
        Rule::SWITCHABLE.into_iter().find(|rule| rule.switch_name() == name)
    }
}

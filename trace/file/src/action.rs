//! The actions of a compiled trace: the operation to execute, if any, and the rules for waits.

use crate::names::Name;
use crate::op::{Handle, Op, Outcome};
use serde::{Deserialize, Serialize};

/// The number of an action: its place in the order in which the model explains the trace.
pub type ActionId = u32;

/// One call of the trace, as a replay sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Action {
    /// The thread that makes the call. Threads are numbered by first appearance.
    pub thread: u32,
    /// Time of entry, in nanoseconds since the trace began.
    pub start: u64,
    /// Time of return, in nanoseconds since the trace began.
    pub end: u64,
    /// Line of the trace.
    pub line: u64,
    /// The call's name.
    pub name: Name,
    /// Whether a replay executes the call.
    pub fate: Fate,
    /// The operation to execute. `Op::Nothing` unless `fate` is `Executed`.
    pub op: Op<Handle>,
    /// The result that the program got.
    pub recorded: Outcome,
}

/// A sleep that reached its timeout, and the wake that would have ended the sleep early if other threads had
/// been faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Nap {
    /// The sleep.
    pub action: ActionId,
    /// The wake that ended a later sleep of the same thread at the same place. The start of the wake counts.
    pub ends_with: ActionId,
}

/// The treatment of an action in a replay. Each kind is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Fate {
    /// The replay makes the call.
    Executed,
    /// The model follows the call, and nothing is left to execute.
    Modelled(Modelled),
    /// The replay leaves the call out, although it should be executed.
    Skipped(Skipped),
}

/// The reason why nothing is left to execute.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Modelled {
    /// The call changes the file behind a descriptor number, and handles have no numbers.
    Descriptors,
    /// The call makes, changes or ends a task.
    Process,
    /// The call works on a pipe, a socket or another descriptor that is not a file. If the trace shows the
    /// other side, an edge stands for the call.
    NoFile,
    /// The call waits, or touches no file.
    Idle,
    /// A lock through a description through which another process's locks are already held. One replay cannot
    /// hold both.
    SharedLock,
}

/// The reason why a replay leaves out a call that should be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Skipped {
    /// No replay of this call exists, or its arguments could not be read.
    Unsupported,
    /// The trace never shows the origin of the call's descriptor.
    UnknownDescriptor,
    /// The call never returned in the trace.
    NeverReturned,
}

impl Fate {
    /// The text for reports.
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

/// The moment of the earlier action to wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Moment {
    /// The action has begun.
    Start,
    /// The action is done.
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
    /// `weir`: the list of a directory's names.
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
    /// `root`: a descriptor is opened before its uses, and used before its close. Subsumed by
    /// `DescriptorSequence`.
    DescriptorStage,
    /// `root`: every action in the order that explains the trace. Off by default; subsumes all other rules.
    ProgramSequence,
    /// Both: a descriptor is sent to another process before it is used there.
    Passed,
    /// Both: a thread that sleeps on a futex continues after a wake by another thread, or after that thread's
    /// end.
    Wake,
}

impl Rule {
    /// Rules that can be switched off, in the order of the reports. A thread's own order cannot be switched
    /// off, because a replay has a thread for it.
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

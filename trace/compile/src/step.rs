//! What the model says of an action to the orders: what it touches, and what it must wait for.

use trace_file::{Action, ActionId, Handle, Moment, Name, Rule};

/// Something that actions share. Numbers are the model's; a file is its inode, never its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// A file's bytes; touched in ranges.
    Bytes(u32),
    /// A file's size.
    Size(u32),
    /// A file's mode, owner, times and count of links.
    Attributes(u32),
    /// A name in a directory, there or not.
    Name(u32, Name),
    /// What a directory lists; its emptiness.
    Listing(u32),
    /// An open file description: its life and its position.
    Description(Handle),
    /// Locks on a file: ranges for byte-range locks.
    Locks(u32),
    /// flock on a file.
    Flock(u32),
}

/// How a resource is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TouchMode {
    /// Its state decides the result. Commutes with `Read`.
    Read,
    /// Changes that commute with each other, such as names made in one directory.
    Update,
    /// Commutes with nothing.
    Write,
}

/// One touch, for orders that know what commutes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    /// What.
    pub on: Resource,
    /// How.
    pub how: TouchMode,
    /// Which bytes, from and up to; all of it for resources without ranges.
    pub range: (u64, u64),
}

/// A resource of the paper, section 2.4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Series {
    /// A regular file, by inode.
    File(u32),
    /// A path, by the directory and the name in it. An action also uses the paths of the directories on its way, so that
    /// renaming a directory ends the paths below it. Generations follow from `SeriesRole`.
    Path(u32, Name),
    /// A descriptor, by table, number and generation.
    Descriptor(u64),
    /// An open file description. Not in the paper: without it, a descriptor shared by processes closes too early.
    Description(Handle),
    /// An asynchronous request.
    Request(u32),
}

/// What an action is in a resource's series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeriesRole {
    /// The first: it makes the resource.
    Create,
    /// It uses the resource.
    Use,
    /// The last: it ends the resource.
    Delete,
    /// It saw that there is no such resource.
    Absent,
}

/// An action that must come first, whatever rules are on: processes, pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prerequisite {
    /// The earlier action.
    pub on: ActionId,
    /// Which moment of it.
    pub moment: Moment,
    /// Why.
    pub rule: Rule,
}

impl Resource {
    /// The rule that orders touches of it.
    pub(crate) fn rule(self) -> Rule {
        match self {
            Resource::Bytes(_) => Rule::Bytes,
            Resource::Size(_) => Rule::Size,
            Resource::Attributes(_) => Rule::Attributes,
            Resource::Name(..) => Rule::Name,
            Resource::Listing(_) => Rule::Listing,
            Resource::Description(_) => Rule::Description,
            Resource::Locks(_) | Resource::Flock(_) => Rule::Lock,
        }
    }
}

/// An action with what the orders need to know. It is streamed from the model to the orders and not kept.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// What a replay sees.
    pub action: Action,
    /// Touches for the order `weir`.
    pub touches: Vec<Touch>,
    /// Series for the order `root`.
    pub series: Vec<(Series, SeriesRole)>,
    /// What comes first in every order.
    pub needs: Vec<Prerequisite>,
    /// What no later action can touch.
    pub gone: Vec<GoneResource>,
}

/// Something of which nothing is left: no later action touches it, and its number does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoneResource {
    /// A file without names that nobody has open.
    File(u32),
    /// An open file description after its last close.
    Description(Handle),
}

//! An action as the model hands it to the orders: the resources it touches and its prerequisites.

use trace_file::{Action, ActionId, Handle, Moment, Name, Rule};

/// A resource that actions share. The model numbers the files; a file is identified by inode, never by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Resource {
    /// A file's bytes; touched in ranges.
    Bytes(u32),
    /// A file's size.
    Size(u32),
    /// A file's mode, owner, times and count of links.
    Attributes(u32),
    /// A name in a directory, present or absent.
    Name(u32, Name),
    /// The list of a directory's names, and whether the list is empty.
    Listing(u32),
    /// An open file description: its lifetime and position.
    Description(Handle),
    /// Locks on a file: ranges for byte-range locks.
    Locks(u32),
    /// flock on a file.
    Flock(u32),
}

/// How an action touches a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TouchMode {
    /// The state of the resource decides the result. Commutes with `Read`.
    Read,
    /// Changes that commute with each other, such as names made in one directory.
    Update,
    /// Commutes with nothing.
    Write,
}

/// One touch of a resource, for orders that use commutativity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Touch {
    /// The resource.
    pub on: Resource,
    /// The mode.
    pub how: TouchMode,
    /// First byte, and the byte after the last. Resources without ranges have the whole range.
    pub range: (u64, u64),
}

/// A resource of the paper, section 2.4.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Series {
    /// A regular file, by inode.
    File(u32),
    /// A path, by directory and name. An action also uses the paths of the directories on the way, so
    /// renaming a directory ends the paths below it. `SeriesRole` determines the generations.
    Path(u32, Name),
    /// A descriptor, by table, number and generation.
    Descriptor(u64),
    /// An open file description. Not in the paper: without this series, a descriptor that processes share
    /// closes too early.
    Description(Handle),
    /// An asynchronous request.
    Request(u32),
}

/// The role of an action in a resource's series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SeriesRole {
    /// First: creates the resource.
    Create,
    /// Uses the resource.
    Use,
    /// Last: ends the resource.
    Delete,
    /// Found the resource absent.
    Absent,
}

/// An action that must come first in every order, whichever rules are on: processes, pipes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Prerequisite {
    /// The earlier action.
    pub on: ActionId,
    /// The moment of the earlier action to wait for.
    pub moment: Moment,
    /// The rule that asks for the wait.
    pub rule: Rule,
}

impl Resource {
    /// The rule that orders touches of this resource.
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

/// An action with the facts that the orders need. The model streams steps to the orders and does not keep
/// them.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    /// The action as a replay gets it.
    pub action: Action,
    /// Touches for the order `weir`.
    pub touches: Vec<Touch>,
    /// Series for the order `root`.
    pub series: Vec<(Series, SeriesRole)>,
    /// Actions that come first in every order.
    pub needs: Vec<Prerequisite>,
    /// Resources that no later action can touch.
    pub gone: Vec<GoneResource>,
}

/// A resource that no longer exists. No later action touches the resource, and its number is not reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GoneResource {
    /// A file without names and without open descriptions.
    File(u32),
    /// An open file description after its last close.
    Description(Handle),
}

//! The facts about a task that rules look at.

/// The facts about a task that rules look at. Bytes that are not UTF-8 are replaced by U+FFFD.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TaskFacts {
    /// The command line of its process, the arguments joined by blanks. Servers set it to a title.
    pub title: String,
    /// The name of the thread.
    pub thread: String,
    /// The path of its cgroup, which begins with `/`; empty if it is unknown.
    pub cgroup: String,
    /// The effective user id.
    pub uid: u32,
    /// The nice value, from -20 to 19.
    pub nice: i8,
    /// The class that `weir class --pid` assigned, else `WEIR_TAG` of the environment with which its process began;
    /// empty if it has none.
    pub tag: String,
}

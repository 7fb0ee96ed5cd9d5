//! The errors of recording, compiling and replaying. Each says what failed, where, and the next step.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

/// Why recording, compiling or replaying failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum TraceError {
    #[error("{}: {doing}: {source}", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not a compiled trace", path.display())]
    NotCompiledTrace { path: PathBuf },
    #[error("{}: format {found} cannot be read, only {supported}", path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },
    #[error("{}: section {section}: checksum is {found:08x}, expected {expected:08x}", path.display())]
    Checksum { path: PathBuf, section: &'static str, found: u32, expected: u32 },
    #[error("{}: section {section}: {why}", path.display())]
    Contents { path: PathBuf, section: &'static str, why: String },
    #[error("{}: line {line}: {why}", path.display())]
    Snapshot { path: PathBuf, line: u64, why: &'static str },
    #[error("{}:{line}: {what}", path.display())]
    TooLarge { path: PathBuf, line: u64, what: &'static str },
    #[error("{}: no call could be read from it{}{why}", path.display(), if why.is_empty() { "" } else { ": " })]
    Empty { path: PathBuf, why: String },
    #[error(
        "{}: {used} of {all} calls can be used ({percent} %), and {percent_min} % are asked for. Why the others cannot: {why}",
        path.display()
    )]
    LittleUsed { path: PathBuf, used: u64, all: u64, percent: u64, percent_min: u8, why: String },
    #[error("{}: not empty", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{}: needs {needed} bytes, and {free} are free", path.display())]
    Space { path: PathBuf, needed: u64, free: u64 },
    #[error("{}: cannot be confined: {source}", path.display())]
    Confine { path: PathBuf, source: io::Error },
    #[error("{}: {doing}: {source}", path.display())]
    Target { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not a tree that a replay has kept: {why}", path.display())]
    NotOurs { path: PathBuf, why: String },
    #[error("{}: another replay uses it", path.display())]
    TreeInUse { path: PathBuf },
    #[error("the replay stalled: {what}")]
    Stalled { what: String },
    #[error("strace cannot be started: {source}")]
    NoStrace { source: io::Error },
    #[error("the replay's results cannot be read: {why}")]
    Results { why: String },
    #[error("order {name}: this compiled trace has {has}")]
    NoOrder { name: String, has: String },
    #[error("{count} files cannot be laid over each other: {what}")]
    Contradiction { count: usize, what: String },
    #[error("these compiled traces have more actions, edges or handles than can be numbered")]
    TooMany,
    #[error("action {action}: there are {count}")]
    NoAction { action: u32, count: usize },
}

impl TraceError {
    /// The next step for the user.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            TraceError::Io { .. } => "check that it exists and may be used",
            TraceError::NotCompiledTrace { .. } => "make one with `weir-trace compile`",
            TraceError::Version { .. } => "compile the trace again, or upgrade weir-trace",
            TraceError::Checksum { .. } => "copy or compile it again",
            TraceError::Contents { .. } => "compile it again",
            TraceError::Snapshot { .. } => "make the snapshot with `weir-trace record`",
            TraceError::Empty { .. } => "see `weir-trace compile --help` for the forms that can",
            TraceError::LittleUsed { .. } => {
                "record it with `weir-trace record` or `strace -f -y -ttt -T -o FILE`, or take less with --min-used"
            }
            TraceError::NotEmpty { .. } => "give an empty directory, or a new name",
            TraceError::Space { .. } => "free some space, or give another directory",
            TraceError::Confine { .. } => {
                "run as root, or let users make namespaces: `sysctl user.max_user_namespaces`"
            }
            TraceError::Target { .. } => "give another target",
            TraceError::TooLarge { .. } => "compile a part of the trace",
            TraceError::NotOurs { .. } => "move it away, or give another target",
            TraceError::TreeInUse { .. } => "wait for its end, or replay without --reuse",
            TraceError::Stalled { .. } => "replay with `--order temporal` and report this trace",
            TraceError::NoStrace { .. } => "install the package `strace`",
            TraceError::Results { .. } => "see its own message above",
            TraceError::NoOrder { .. } => "compile the trace again",
            TraceError::Contradiction { .. } => "replay these compiled traces one by one",
            TraceError::TooMany => "replay fewer together",
            TraceError::NoAction { .. } => "see `weir-trace info`",
        };
        Some(help.into())
    }

    /// Whether the target is the reason: it is full, read-only, forbidden, or lacks a feature.
    pub fn is_about_the_target(&self) -> bool {
        matches!(
            self,
            TraceError::Target { .. }
                | TraceError::Space { .. }
                | TraceError::Confine { .. }
                | TraceError::NotOurs { .. }
                | TraceError::TreeInUse { .. }
        )
    }

    /// Makes an error about an operation that failed on the target.
    pub fn target(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> TraceError {
        let path = path.into();
        move |source| TraceError::Target { doing, path, source }
    }

    /// Adds the operation and the path to an I/O error.
    pub fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> TraceError {
        let path = path.into();
        move |source| TraceError::Io { doing, path, source }
    }
}

//! What can go wrong: what, where, and the next step.

use std::io;
use std::path::PathBuf;

/// Why recording, compiling or replaying failed. Each text ends with the next step, after a semicolon.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts say what the fields are")]
pub enum TraceError {
    #[error("{}: {doing}: {source}; check that it exists and may be used", path.display())]
    Io { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not a compiled benchmark; make one with `weir trace compile`", path.display())]
    NotBenchmark { path: PathBuf },
    #[error("{}: format {found} cannot be read, only {supported}; compile the trace again, or upgrade weir", path.display())]
    Version { path: PathBuf, found: u32, supported: u32 },
    #[error("{}: section {section}: checksum is {found:08x}, expected {expected:08x}; copy or compile it again", path.display())]
    Checksum { path: PathBuf, section: &'static str, found: u32, expected: u32 },
    #[error("{}: section {section}: {why}; compile it again", path.display())]
    Contents { path: PathBuf, section: &'static str, why: String },
    #[error("{}: line {line}: {why}; make the snapshot with `weir trace record`", path.display())]
    Snapshot { path: PathBuf, line: u64, why: &'static str },
    #[error("{}:{line}: {what}; compile a part of the trace", path.display())]
    TooLarge { path: PathBuf, line: u64, what: &'static str },
    #[error("{}: no call could be read from it; see `weir trace compile --help` for the forms that can", path.display())]
    Empty { path: PathBuf },
    #[error("{}: not empty; give an empty directory, or a new name", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{}: needs {needed} bytes, and {free} are free; free some space, or give another directory", path.display())]
    Space { path: PathBuf, needed: u64, free: u64 },
    #[error("{}: cannot be confined: {source}; run as root, or let users make namespaces: `sysctl user.max_user_namespaces`", path.display())]
    Confine { path: PathBuf, source: io::Error },
    #[error("{}: {doing}: {source}; give another target", path.display())]
    Target { doing: &'static str, path: PathBuf, source: io::Error },
    #[error("{}: not a tree that a replay has kept: {why}; move it away, or give another target", path.display())]
    NotOurs { path: PathBuf, why: String },
    #[error("{}: another replay uses it; wait for its end, or replay without --reuse", path.display())]
    TreeInUse { path: PathBuf },
    #[error("the replay stalled: {what}; replay with `--order temporal` and report this trace")]
    Stalled { what: String },
    #[error("strace cannot be started: {source}; install the package `strace`")]
    NoStrace { source: io::Error },
    #[error("the replay's results cannot be read: {why}; see its own message above")]
    Results { why: String },
    #[error("order {name}: this benchmark has {has}; compile the trace again")]
    NoOrder { name: String, has: String },
    #[error("{count} files cannot be laid over each other: {what}; replay these benchmarks one by one")]
    Contradiction { count: usize, what: String },
    #[error(
        "these benchmarks have more actions, edges or handles than can be numbered; replay fewer together"
    )]
    TooMany,
    #[error("actions {from} to {to} are no window; give at most {most} actions, the first one first")]
    Window { from: u32, to: u32, most: u32 },
    #[error("action {action}: there are {count}; see `weir trace info`")]
    NoAction { action: u32, count: usize },
}

impl TraceError {
    /// Whether the target is the reason: it is full, read-only, lacks a feature, or may not be used.
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

    /// Something that the target did not do.
    pub fn target(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> TraceError {
        let path = path.into();
        move |source| TraceError::Target { doing, path, source }
    }

    /// An I/O error with what was being done to what.
    pub(crate) fn io(doing: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> TraceError {
        let path = path.into();
        move |source| TraceError::Io { doing, path, source }
    }
}

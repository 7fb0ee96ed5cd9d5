//! What the machine refuses, and what to do next.

use crate::shell::shell_quoted;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

/// Why the machine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("{path}: no such file, directory or device")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Something there that would be lost.
    #[error("{path}: exists already")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Not permitted.
    #[error("{path}: permission denied")]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// The media, or the file system that the file lies on, cannot be written.
    #[error("{path}: is read-only")]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// Others can read a file that holds, or will hold, everybody's files.
    #[error(
        "{path}: others than its owner may use it (mode {mode:04o}), and that cannot be changed: {source}"
    )]
    NotPrivate {
        /// The path.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
        /// Why they stay.
        source: io::Error,
    },
    /// Another process has it open.
    #[error("{path}: in use by another process")]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// Neither a file nor a block device.
    #[error("{path}: is {what}, not a file or a block device")]
    NotADisk {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A size that makes no sense.
    #[error("{path}: {bytes} bytes cannot be the size of a disk")]
    InvalidSize {
        /// The path.
        path: PathBuf,
        /// The size.
        bytes: u64,
    },
    /// The file system has no space.
    #[error("{path}: no space left for {doing}")]
    Full {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
    },
    /// A limit that is not that of space.
    #[error("{path}: {doing}: larger than the file system below allows a file to be")]
    TooLarge {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
    },
    /// Anything else.
    #[error("{path}: {doing}: {source}")]
    Io {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl HostError {
    /// The next step.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            HostError::ReadOnly { .. } => {
                "make it writable; `weir mount --read-only` shows what a store holds without writing to it"
            }
            HostError::NotPrivate { path, .. } => {
                return Some(format!("as its owner or root: `chmod 600 {}`", shell_quoted(path)).into());
            }
            HostError::TooLarge { .. } => {
                "give a smaller size, see `ulimit -f`, or use a block device or another file system"
            }
            HostError::Missing { .. } => "check the path (`weir format` creates a store)",
            HostError::Exists { .. } => "give another path, or --force to overwrite it",
            HostError::Permission { .. } => "run as a user who may read and write it",
            HostError::Busy { .. } => {
                "if it is mounted, `findmnt -t fuse.weir` shows where, and `weir status` what it does"
            }
            HostError::NotADisk { .. } => "give the path of a file or a block device",
            HostError::InvalidSize { .. } => "give a multiple of 4096 above 0",
            HostError::Full { .. } => "free some space, or give a smaller size",
            HostError::Io { .. } => "see the kernel's log (`dmesg`) for the device's own words",
        };
        Some(help.into())
    }

    /// Names what went wrong while `doing` something with `path`.
    pub(crate) fn of(path: &Path, doing: &'static str, source: impl Into<io::Error>) -> HostError {
        let (path, source) = (path.to_owned(), source.into());
        match source.kind() {
            io::ErrorKind::NotFound => HostError::Missing { path },
            io::ErrorKind::AlreadyExists => HostError::Exists { path },
            io::ErrorKind::PermissionDenied => HostError::Permission { path },
            io::ErrorKind::ReadOnlyFilesystem => HostError::ReadOnly { path },
            io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => HostError::Busy { path },
            io::ErrorKind::IsADirectory => HostError::NotADisk { path, what: "a directory" },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => HostError::Full { path, doing },
            io::ErrorKind::FileTooLarge => HostError::TooLarge { path, doing },
            _ => HostError::Io { path, doing, source },
        }
    }
}

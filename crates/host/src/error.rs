//! What the machine refuses, and what to do next.

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
    Size {
        /// The path.
        path: PathBuf,
        /// The size.
        bytes: u64,
    },
    /// The file system has no room.
    #[error("{path}: no space left for {doing}")]
    Full {
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
            HostError::Missing { .. } => "check the path (`weir format` creates a store)",
            HostError::Exists { .. } => "give another path, or --force to overwrite it",
            HostError::Permission { .. } => "run as a user who may read and write it",
            HostError::Busy { .. } => "if it is mounted, `findmnt -t fuse.weir` shows where",
            HostError::NotADisk { .. } => "give the path of a file or a block device",
            HostError::Size { .. } => "give a multiple of 4096 above 0",
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
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                HostError::Permission { path }
            }
            io::ErrorKind::WouldBlock | io::ErrorKind::ResourceBusy => HostError::Busy { path },
            io::ErrorKind::IsADirectory => HostError::NotADisk { path, what: "a directory" },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                HostError::Full { path, doing }
            }
            _ => HostError::Io { path, doing, source },
        }
    }
}

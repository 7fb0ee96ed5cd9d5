//! What the machine refuses, and what to do next.

use std::io;
use std::path::{Path, PathBuf};

/// Why the machine could not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Nothing there.
    #[error("{path}: no such file, directory or device; check the path (`weir format` creates a store)")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// Something there that would be lost.
    #[error("{path}: exists already; give another path, or --force to overwrite it")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// Not permitted.
    #[error("{path}: permission denied; run as a user who may read and write it")]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// Another process has it open.
    #[error("{path}: in use by another process; mounted already? see `weir status`")]
    Busy {
        /// The path.
        path: PathBuf,
    },
    /// Neither a file nor a block device.
    #[error("{path}: is {what}, not a file or a block device; give the path of one")]
    NotADisk {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// A size that makes no sense.
    #[error("{path}: {bytes} bytes cannot be the size of a disk; give a multiple of 4096 above 0")]
    Size {
        /// The path.
        path: PathBuf,
        /// The size.
        bytes: u64,
    },
    /// The file system has no room.
    #[error("{path}: no space left for {doing}; free some, or give a smaller size")]
    Full {
        /// The path.
        path: PathBuf,
        /// What was tried.
        doing: &'static str,
    },
    /// Anything else.
    #[error("{path}: {doing}: {source}; see the kernel's log (dmesg) for the device's own words")]
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

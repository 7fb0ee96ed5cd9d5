//! Errors of the host, with the next step for the operator.

use crate::shell::shell_quoted;
use rustix::io::Errno;
use std::borrow::Cow;
use std::io;
use std::path::{Path, PathBuf};

/// Why an operation on the host failed.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// Nothing exists at the path.
    #[error("{path}: no such file, directory or device")]
    Missing {
        /// The path.
        path: PathBuf,
    },
    /// A file exists whose content would be lost.
    #[error("{path}: exists already")]
    Exists {
        /// The path.
        path: PathBuf,
    },
    /// This user may not.
    #[error("{path}: permission denied")]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// The medium, or the file system that holds it, is read-only.
    #[error("{path}: is read-only")]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// Other users may read the file, and its permissions cannot be changed.
    #[error(
        "{path}: users other than its owner have access (mode {mode:04o}), and that cannot be changed: {source}"
    )]
    NotPrivate {
        /// The path.
        path: PathBuf,
        /// Its mode.
        mode: u32,
        /// Why the mode cannot be changed.
        source: io::Error,
    },
    /// Another process has the disk open.
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
        /// What it is instead.
        what: &'static str,
    },
    /// A size that no disk can have.
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
    /// A limit other than space: of the file system, or of this process.
    #[error("{path}: {doing}: larger than the host file system allows a file to be")]
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
    /// What the operator can do next.
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
                "if it is mounted, `findmnt -t fuse.weir` shows where, and `weir status` shows what it does"
            }
            HostError::NotADisk { .. } => "give the path of a file or a block device",
            HostError::InvalidSize { .. } => "give a multiple of 4096 above 0",
            HostError::Full { .. } => "free some space, or give a smaller size",
            HostError::Io { .. } => "look for messages of the device in the kernel's log (`dmesg`)",
        };
        Some(help.into())
    }

    /// Whether there is a device node without a device, or a drive without a medium.
    pub fn is_no_medium(&self) -> bool {
        let HostError::Io { source, .. } = self else { return false };
        matches!(Errno::from_io_error(source), Some(Errno::NXIO | Errno::NODEV | Errno::NOMEDIUM))
    }

    /// The error for a failure while `doing` something with `path`.
    pub(crate) fn of(path: &Path, doing: &'static str, source: impl Into<io::Error>) -> HostError {
        let path = path.to_owned();
        let source = source.into();
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

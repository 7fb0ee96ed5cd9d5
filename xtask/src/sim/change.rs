//! The operations that change something. What a new one needs, in this order: its variant and the three tables here, its
//! effect (`model.rs`), its call (`call.rs`), clients that ask for it (`workload.rs`), and its place in the short
//! programs (`exhaust.rs`). The compiler asks for all but the last two.

use super::model::{Id, Model, Name};
use fs::{FsError, IfExists, Kind};
use std::sync::Arc;

/// A change that somebody asks for. It has its effect at one moment, as a whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Make {
        parent: Id,
        name: Name,
        kind: Kind,
        mode: u16,
    },
    Symlink {
        parent: Id,
        name: Name,
        target: Vec<u8>,
    },
    Link {
        file: Id,
        parent: Id,
        name: Name,
    },
    Unlink {
        parent: Id,
        name: Name,
    },
    RemoveDirectory {
        parent: Id,
        name: Name,
    },
    Rename {
        from: (Id, Name),
        to: (Id, Name),
        if_exists: IfExists,
    },
    Write {
        file: Id,
        offset: u64,
        bytes: Arc<Vec<u8>>,
    },
    SetSize {
        file: Id,
        size: u64,
    },
    SetMode {
        inode: Id,
        mode: u16,
    },
    SetOwner {
        inode: Id,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Access and modification, in nanoseconds.
    SetTimes {
        inode: Id,
        accessed: Option<i64>,
        modified: Option<i64>,
    },
    /// The last holder of an unlinked file let go. Nobody can see it.
    Forget {
        inode: Id,
    },
}

/// Why a change has no effect, by errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    Invalid,
}

impl Refusal {
    /// Whether the real file system may refuse with this error where the model does so.
    pub(crate) fn allows(self, error: &FsError) -> bool {
        match self {
            // What was removed but is held: ENOENT on Linux, ESTALE over the network.
            Refusal::NotFound => matches!(error, FsError::NotFound | FsError::Stale),
            Refusal::Exists => matches!(error, FsError::Exists),
            Refusal::NotDirectory => matches!(error, FsError::NotDirectory),
            Refusal::IsDirectory => matches!(error, FsError::IsDirectory),
            // POSIX lets both errors say so.
            Refusal::NotEmpty => matches!(error, FsError::NotEmpty | FsError::Exists),
            Refusal::Invalid => matches!(error, FsError::Invalid),
        }
    }
}

impl Change {
    /// The inodes that it needs to find, as far as they exist: whoever asks holds them.
    pub(crate) fn needs(&self, model: &Model) -> Vec<Id> {
        let needed = match self {
            Change::Make { parent, .. } | Change::Symlink { parent, .. } => vec![*parent],
            Change::Link { file, parent, .. } => vec![*file, *parent],
            Change::Unlink { parent, .. } | Change::RemoveDirectory { parent, .. } => vec![*parent],
            Change::Rename { from, to, .. } => vec![from.0, to.0],
            Change::Write { file, .. } | Change::SetSize { file, .. } => vec![*file],
            Change::SetMode { inode, .. }
            | Change::SetOwner { inode, .. }
            | Change::SetTimes { inode, .. } => vec![*inode],
            Change::Forget { .. } => Vec::new(),
        };
        needed.into_iter().filter(|id| model.inodes.contains_key(id)).collect()
    }

    /// The inode whose content or attributes it changes, beside those of directories.
    pub(crate) fn touches(&self) -> Option<Id> {
        match self {
            Change::Write { file, .. } | Change::SetSize { file, .. } | Change::Link { file, .. } => {
                Some(*file)
            }
            Change::SetMode { inode, .. }
            | Change::SetOwner { inode, .. }
            | Change::SetTimes { inode, .. } => Some(*inode),
            _ => None,
        }
    }

    /// Pages that it may need room for, at most: those of its bytes, and of metadata two inodes in each of two trees.
    pub(crate) fn pages_max(&self) -> u64 {
        const METADATA: u64 = 80;
        match self {
            Change::Write { bytes, .. } => METADATA + bytes.len() as u64 / 4096 + 2,
            _ => METADATA,
        }
    }

    /// In words, without its bytes, and with names that can be read.
    pub(crate) fn describe(&self) -> String {
        match self {
            Change::Make { parent, name, kind, mode } => {
                format!("make {kind:?} {} in {parent:?}, mode {mode:o}", show(name))
            }
            Change::Symlink { parent, name, target } => {
                format!("symlink {} in {parent:?} to {} bytes", show(name), target.len())
            }
            Change::Link { file, parent, name } => format!("link {file:?} as {} in {parent:?}", show(name)),
            Change::Unlink { parent, name } => format!("unlink {} in {parent:?}", show(name)),
            Change::RemoveDirectory { parent, name } => format!("rmdir {} in {parent:?}", show(name)),
            Change::Rename { from, to, if_exists } => {
                let (old, new) = (show(&from.1), show(&to.1));
                format!("rename {old} in {:?} to {new} in {:?}, {if_exists:?}", from.0, to.0)
            }
            Change::Write { file, offset, bytes } => {
                let start = &bytes[..bytes.len().min(8)];
                format!("write {file:?}, {} bytes at {offset}: {start:02x?}…", bytes.len())
            }
            Change::SetSize { .. }
            | Change::SetMode { .. }
            | Change::SetOwner { .. }
            | Change::SetTimes { .. }
            | Change::Forget { .. } => format!("{self:?}"),
        }
    }
}

fn show(name: &[u8]) -> String {
    match name {
        [first, .., last] if name.len() > 16 => {
            format!("{}…{} ({} bytes)", first.escape_ascii(), last.escape_ascii(), name.len())
        }
        _ => name.escape_ascii().to_string(),
    }
}

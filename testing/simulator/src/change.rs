//! The operations that change something. What a new one needs, in this order: its variant and the three tables here, its
//! effect (`model.rs`), its call (`call.rs`), clients that ask for it (`workload.rs`), and its place in the short
//! programs (`exhaust.rs`). The compiler asks for all but the last two.

use crate::model::{Id, Model, Name};
use fs::{FallocateMode, FileKind, FsError, IfExists, SetXattrMode, SizePolicy};
use std::sync::Arc;

/// A change that somebody asks for. It has its effect at one moment, as a whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum Change {
    Make {
        parent: Id,
        name: Name,
        kind: FileKind,
        mode: u16,
    },
    /// A node for the device `number`.
    MakeDevice {
        parent: Id,
        name: Name,
        kind: FileKind,
        number: u32,
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
    /// A rename that leaves a whiteout at the old name.
    WhiteOut {
        from: (Id, Name),
        to: (Id, Name),
        if_exists: IfExists,
    },
    Exchange {
        one: (Id, Name),
        other: (Id, Name),
    },
    Write {
        file: Id,
        offset: u64,
        bytes: Arc<Vec<u8>>,
        /// Whether whole pages of it may bypass the buffer.
        bypasses: bool,
    },
    SetSize {
        file: Id,
        size: u64,
    },
    Allocate {
        file: Id,
        what: FallocateMode,
        offset: u64,
        len: u64,
        size: SizePolicy,
    },
    /// A copy of a range that shares its pages.
    Copy {
        from: Id,
        offset: u64,
        len: u64,
        to: Id,
        at: u64,
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
    /// Setuid, setgid and capabilities go, as before a write by somebody without privileges.
    DropPowers {
        inode: Id,
    },
    SetXattr {
        inode: Id,
        name: Vec<u8>,
        value: Arc<Vec<u8>>,
        how: SetXattrMode,
    },
    RemoveXattr {
        inode: Id,
        name: Vec<u8>,
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
    NotPermitted,
    NoXattr,
    Unsupported,
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
            Refusal::NotPermitted => matches!(error, FsError::NotPermitted),
            Refusal::NoXattr => matches!(error, FsError::NoXattr),
            Refusal::Unsupported => matches!(error, FsError::Unsupported),
        }
    }
}

impl Change {
    /// Whether both are writes, and it does not matter which comes first. Of bypassing writes to one file it does: whether they bypass,
    /// and what is lost of a file that grew, depends on its size.
    pub(crate) fn is_write_apart_from(&self, other: &Change) -> bool {
        let written = |change: &Change| match change {
            Change::Write { file, offset, bytes, bypasses } => {
                Some((*file, *offset..offset + bytes.len() as u64, *bypasses))
            }
            _ => None,
        };
        let (Some((one_file, one, one_bypasses)), Some((file, other, bypasses))) =
            (written(self), written(other))
        else {
            return false;
        };
        let is_apart = one.end <= other.start || other.end <= one.start;
        one_file != file || is_apart && !one_bypasses && !bypasses
    }

    /// The inodes that it needs to find, as far as they exist: whoever asks holds them.
    pub(crate) fn needs(&self, model: &Model) -> Vec<Id> {
        let needed = match self {
            Change::Make { parent, .. }
            | Change::MakeDevice { parent, .. }
            | Change::Symlink { parent, .. } => vec![*parent],
            Change::Link { file, parent, .. } => vec![*file, *parent],
            Change::Unlink { parent, .. } | Change::RemoveDirectory { parent, .. } => vec![*parent],
            Change::Rename { from: one, to: other, .. }
            | Change::WhiteOut { from: one, to: other, .. }
            | Change::Exchange { one, other } => vec![one.0, other.0],
            Change::Copy { from, to, .. } => vec![*from, *to],
            _ => self.touches().into_iter().collect(),
        };
        needed.into_iter().filter(|id| model.inodes.contains_key(id)).collect()
    }

    /// The inode whose content or attributes it changes, beside those of directories.
    pub(crate) fn touches(&self) -> Option<Id> {
        match self {
            Change::Write { file, .. }
            | Change::SetSize { file, .. }
            | Change::Allocate { file, .. }
            | Change::Copy { to: file, .. }
            | Change::Link { file, .. } => Some(*file),
            Change::SetMode { inode, .. }
            | Change::SetOwner { inode, .. }
            | Change::SetTimes { inode, .. }
            | Change::DropPowers { inode }
            | Change::SetXattr { inode, .. }
            | Change::RemoveXattr { inode, .. } => Some(*inode),
            Change::Make { .. }
            | Change::MakeDevice { .. }
            | Change::Symlink { .. }
            | Change::Unlink { .. }
            | Change::RemoveDirectory { .. }
            | Change::Rename { .. }
            | Change::WhiteOut { .. }
            | Change::Exchange { .. }
            | Change::Forget { .. } => None,
        }
    }

    /// Pages that it may need space for, at most: those of its bytes, and of metadata two inodes in each of two trees.
    pub(crate) fn pages_max(&self) -> u64 {
        const METADATA: u64 = 80;
        METADATA
            + match self {
                Change::Write { bytes, .. } => bytes.len() as u64 / 4096 + 2,
                Change::Allocate { what: FallocateMode::Allocate, len, .. } => len / 4096 + 2,
                // All attributes of the inode, written anew.
                Change::SetXattr { .. } => 2 * (192 << 10) / 4096,
                _ => 0,
            }
    }

    /// In words, without its bytes, and with names that can be read.
    pub(crate) fn describe(&self) -> String {
        match self {
            Change::Make { parent, name, kind, mode } => {
                format!("make {kind:?} {} in {parent:?}, mode {mode:o}", show(name))
            }
            Change::MakeDevice { parent, name, kind, number, mode } => {
                format!("make {kind:?} {number} {} in {parent:?}, mode {mode:o}", show(name))
            }
            Change::Exchange { one, other } => {
                format!("exchange {} in {:?} and {} in {:?}", show(&one.1), one.0, show(&other.1), other.0)
            }
            Change::SetXattr { inode, name, value, how } => {
                format!("set {} of {inode:?} to {} bytes, {how:?}", show(name), value.len())
            }
            Change::RemoveXattr { inode, name } => format!("remove {} of {inode:?}", show(name)),
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
            Change::WhiteOut { from, to, if_exists } => {
                let (old, new) = (show(&from.1), show(&to.1));
                format!("rename {old} in {:?} to {new} in {:?}, {if_exists:?}, whiteout", from.0, to.0)
            }
            Change::Write { file, offset, bytes, .. } => {
                let start = &bytes[..bytes.len().min(8)];
                format!("write {file:?}, {} bytes at {offset}: {start:02x?}…", bytes.len())
            }
            Change::SetSize { .. }
            | Change::Allocate { .. }
            | Change::Copy { .. }
            | Change::DropPowers { .. }
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

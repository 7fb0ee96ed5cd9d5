//! The operations that change something.
//!
//! To add an operation, write in this order: its variant and the three tables here, its effect (`model.rs`),
//! its call (`request_call.rs`), clients that ask for it (`request_generator.rs`), and its place in short
//! programs (`exhaustive.rs`). The compiler asks for all but the last two.

use crate::model::{FsModel, ModelId, ModelName};
use crash_oracle::BypassScope;
use device::TransferKind;
use fs::{CopySource, FallocateMode, FileKind, FsError, IfExists, SetXattrMode, SizePolicy};
use std::sync::Arc;

/// A change that a client asks for. The change takes effect at one moment, as a whole or not at all.
#[derive(Debug, Clone)]
pub(crate) enum ModelChange {
    Make {
        parent: ModelId,
        name: ModelName,
        kind: FileKind,
        mode: u16,
    },
    /// A node for the device `number`.
    MakeDevice {
        parent: ModelId,
        name: ModelName,
        kind: FileKind,
        number: u32,
        mode: u16,
    },
    Symlink {
        parent: ModelId,
        name: ModelName,
        target: Vec<u8>,
    },
    Link {
        file: ModelId,
        parent: ModelId,
        name: ModelName,
    },
    Unlink {
        parent: ModelId,
        name: ModelName,
    },
    RemoveDirectory {
        parent: ModelId,
        name: ModelName,
    },
    Rename {
        from: (ModelId, ModelName),
        to: (ModelId, ModelName),
        if_exists: IfExists,
    },
    /// A rename that leaves a whiteout at the old name.
    WhiteOut {
        from: (ModelId, ModelName),
        to: (ModelId, ModelName),
        if_exists: IfExists,
    },
    Exchange {
        one: (ModelId, ModelName),
        other: (ModelId, ModelName),
    },
    Write {
        file: ModelId,
        offset: u64,
        bytes: Arc<Vec<u8>>,
        /// What of it may bypass the buffer.
        bypasses: BypassScope,
    },
    SetSize {
        file: ModelId,
        size: u64,
    },
    Allocate {
        file: ModelId,
        what: FallocateMode,
        offset: u64,
        len: u64,
        size: SizePolicy,
    },
    /// A copy of a range that shares its pages.
    Copy {
        from: ModelId,
        offset: u64,
        len: u64,
        to: ModelId,
        at: u64,
    },
    SetMode {
        inode: ModelId,
        mode: u16,
    },
    SetOwner {
        inode: ModelId,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    /// Sets the access and modification times, in nanoseconds.
    SetTimes {
        inode: ModelId,
        accessed: Option<i64>,
        modified: Option<i64>,
    },
    /// Removes setuid, setgid and capabilities, as before a write by an unprivileged caller.
    DropPowers {
        inode: ModelId,
    },
    SetXattr {
        inode: ModelId,
        name: Vec<u8>,
        value: Arc<Vec<u8>>,
        how: SetXattrMode,
    },
    RemoveXattr {
        inode: ModelId,
        name: Vec<u8>,
    },
    /// Several changes as one: writes, renames, removals, holes, and the two kinds below. Their bytes never bypass the buffer.
    Batch(Vec<ModelChange>),
    /// A clone or a move of a range of a file, within a batch.
    Transfer {
        kind: TransferKind,
        from: ModelId,
        offset: u64,
        len: u64,
        to: ModelId,
        at: u64,
    },
    /// A clone of a range of a file of another volume, within a batch. `bytes` are those of the range.
    CloneFrom {
        source: CopySource,
        offset: u64,
        bytes: Arc<Vec<u8>>,
        to: ModelId,
        at: u64,
    },
    /// Refuses its batch unless both ranges have the same bytes before the batch.
    ExpectEqual {
        one: (ModelId, u64),
        other: (ModelId, u64),
        len: u64,
    },
    /// The last holder of an unlinked file released it. Programs cannot see this.
    Forget {
        inode: ModelId,
    },
}

/// Why a change has no effect, by errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChangeErrno {
    NotFound,
    Exists,
    NotDirectory,
    IsDirectory,
    NotEmpty,
    Invalid,
    BadRange,
    Differs,
    NotPermitted,
    NoXattr,
    Unsupported,
}

impl ChangeErrno {
    /// Whether the real file system may refuse with this error where the model does so.
    pub(crate) fn allows(self, error: &FsError) -> bool {
        match self {
            // A removed inode that is still held: ENOENT on Linux, ESTALE over the network.
            ChangeErrno::NotFound => matches!(error, FsError::NotFound | FsError::Stale),
            ChangeErrno::Exists => matches!(error, FsError::Exists),
            ChangeErrno::NotDirectory => matches!(error, FsError::NotDirectory),
            ChangeErrno::IsDirectory => matches!(error, FsError::IsDirectory),
            // POSIX allows both errors here.
            ChangeErrno::NotEmpty => matches!(error, FsError::NotEmpty | FsError::Exists),
            ChangeErrno::Invalid => matches!(error, FsError::Invalid),
            ChangeErrno::BadRange => matches!(error, FsError::BadRange(_)),
            ChangeErrno::Differs => matches!(error, FsError::Differs { .. }),
            ChangeErrno::NotPermitted => matches!(error, FsError::NotPermitted),
            ChangeErrno::NoXattr => matches!(error, FsError::NoXattr),
            ChangeErrno::Unsupported => matches!(error, FsError::Unsupported),
        }
    }
}

impl ModelChange {
    /// Whether both are writes whose order does not matter. The order of bypassing writes to one file
    /// matters: the size decides whether a write bypasses the buffer, and how much of a file that grew is
    /// lost.
    pub(crate) fn is_write_apart_from(&self, other: &ModelChange) -> bool {
        let written = |change: &ModelChange| match change {
            ModelChange::Write { file, offset, bytes, bypasses } => {
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
        one_file != file || is_apart && [one_bypasses, bypasses] == [BypassScope::Nothing; 2]
    }

    /// The existing inodes that the change must find. The client holds them until the reply.
    pub(crate) fn needs(&self, model: &FsModel) -> Vec<ModelId> {
        self.names().into_iter().filter(|id| model.inodes.contains_key(id)).collect()
    }

    /// The inodes that the change names, whether they exist or not.
    pub(crate) fn names(&self) -> Vec<ModelId> {
        match self {
            ModelChange::Make { parent, .. }
            | ModelChange::MakeDevice { parent, .. }
            | ModelChange::Symlink { parent, .. } => vec![*parent],
            ModelChange::Link { file, parent, .. } => vec![*file, *parent],
            ModelChange::Unlink { parent, .. } | ModelChange::RemoveDirectory { parent, .. } => vec![*parent],
            ModelChange::Rename { from: one, to: other, .. }
            | ModelChange::WhiteOut { from: one, to: other, .. }
            | ModelChange::Exchange { one, other } => vec![one.0, other.0],
            ModelChange::Copy { from, to, .. } | ModelChange::Transfer { from, to, .. } => vec![*from, *to],
            ModelChange::ExpectEqual { one, other, .. } => vec![one.0, other.0],
            ModelChange::Batch(parts) => parts.iter().flat_map(ModelChange::names).collect(),
            _ => self.touches(),
        }
    }

    /// The names that it removes, with their directories.
    pub(crate) fn unlinked_names(&self) -> impl Iterator<Item = (ModelId, &[u8])> {
        let parts = if let ModelChange::Batch(parts) = self { parts } else { std::slice::from_ref(self) };
        parts.iter().filter_map(|part| match part {
            ModelChange::Unlink { parent, name } => Some((*parent, &name[..])),
            _ => None,
        })
    }

    /// The inodes whose content or attributes the change modifies, besides its directories.
    pub(crate) fn touches(&self) -> Vec<ModelId> {
        match self {
            ModelChange::Batch(parts) => parts.iter().flat_map(ModelChange::touches).collect(),
            ModelChange::Write { file, .. }
            | ModelChange::SetSize { file, .. }
            | ModelChange::Allocate { file, .. }
            | ModelChange::Copy { to: file, .. }
            | ModelChange::CloneFrom { to: file, .. }
            | ModelChange::Link { file, .. } => vec![*file],
            ModelChange::Transfer { kind: TransferKind::Clone, to, .. } => vec![*to],
            ModelChange::Transfer { kind: TransferKind::Move, from, to, .. } => vec![*from, *to],
            ModelChange::SetMode { inode, .. }
            | ModelChange::SetOwner { inode, .. }
            | ModelChange::SetTimes { inode, .. }
            | ModelChange::DropPowers { inode }
            | ModelChange::SetXattr { inode, .. }
            | ModelChange::RemoveXattr { inode, .. } => vec![*inode],
            ModelChange::Make { .. }
            | ModelChange::MakeDevice { .. }
            | ModelChange::Symlink { .. }
            | ModelChange::Unlink { .. }
            | ModelChange::RemoveDirectory { .. }
            | ModelChange::Rename { .. }
            | ModelChange::WhiteOut { .. }
            | ModelChange::Exchange { .. }
            | ModelChange::ExpectEqual { .. }
            | ModelChange::Forget { .. } => Vec::new(),
        }
    }

    /// The most pages that the change may need space for: its bytes, and metadata of two inodes in each of
    /// two trees.
    pub(crate) fn pages_max(&self) -> u64 {
        const METADATA: u64 = 80;
        METADATA
            + match self {
                ModelChange::Batch(parts) => parts.iter().map(ModelChange::pages_max).sum(),
                ModelChange::Write { bytes, .. } => bytes.len() as u64 / 4096 + 2,
                ModelChange::Allocate { what: FallocateMode::Allocate, len, .. } => len / 4096 + 2,
                // All attributes of the inode are written again.
                ModelChange::SetXattr { .. } => 2 * (192 << 10) / 4096,
                _ => 0,
            }
    }

    /// Describes the change in words, without its bytes, with readable names.
    pub(crate) fn describe(&self) -> String {
        match self {
            ModelChange::Make { parent, name, kind, mode } => {
                format!("make {kind:?} {} in {parent:?}, mode {mode:o}", show(name))
            }
            ModelChange::MakeDevice { parent, name, kind, number, mode } => {
                format!("make {kind:?} {number} {} in {parent:?}, mode {mode:o}", show(name))
            }
            ModelChange::Exchange { one, other } => {
                format!("exchange {} in {:?} and {} in {:?}", show(&one.1), one.0, show(&other.1), other.0)
            }
            ModelChange::SetXattr { inode, name, value, how } => {
                format!("set {} of {inode:?} to {} bytes, {how:?}", show(name), value.len())
            }
            ModelChange::RemoveXattr { inode, name } => format!("remove {} of {inode:?}", show(name)),
            ModelChange::Symlink { parent, name, target } => {
                format!("symlink {} in {parent:?} to {} bytes", show(name), target.len())
            }
            ModelChange::Link { file, parent, name } => {
                format!("link {file:?} as {} in {parent:?}", show(name))
            }
            ModelChange::Unlink { parent, name } => format!("unlink {} in {parent:?}", show(name)),
            ModelChange::RemoveDirectory { parent, name } => format!("rmdir {} in {parent:?}", show(name)),
            ModelChange::Rename { from, to, if_exists } => {
                let (old, new) = (show(&from.1), show(&to.1));
                format!("rename {old} in {:?} to {new} in {:?}, {if_exists:?}", from.0, to.0)
            }
            ModelChange::WhiteOut { from, to, if_exists } => {
                let (old, new) = (show(&from.1), show(&to.1));
                format!("rename {old} in {:?} to {new} in {:?}, {if_exists:?}, whiteout", from.0, to.0)
            }
            ModelChange::Write { file, offset, bytes, .. } => {
                let start = &bytes[..bytes.len().min(8)];
                format!("write {file:?}, {} bytes at {offset}: {start:02x?}…", bytes.len())
            }
            ModelChange::CloneFrom { source, offset, bytes, to, at } => {
                format!("clone {} bytes at {offset} of {source:?} to {to:?} at {at}", bytes.len())
            }
            ModelChange::Batch(parts) => {
                parts.iter().map(ModelChange::describe).collect::<Vec<_>>().join(", and at once ")
            }
            ModelChange::SetSize { .. }
            | ModelChange::Allocate { .. }
            | ModelChange::Copy { .. }
            | ModelChange::Transfer { .. }
            | ModelChange::ExpectEqual { .. }
            | ModelChange::DropPowers { .. }
            | ModelChange::SetMode { .. }
            | ModelChange::SetOwner { .. }
            | ModelChange::SetTimes { .. }
            | ModelChange::Forget { .. } => format!("{self:?}"),
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

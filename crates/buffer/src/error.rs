//! Errors of the buffer, with the next step for the operator.

use crate::format::VERSION;
use crate::ring::GroupNo;
use device::{Block, DeviceError, StoreId};
use std::borrow::Cow;

/// Why an operation on the buffer failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The device failed. After a failed write or flush every later append and commit returns this error
    /// again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No space until changes are written back and released, and a commit has made the release durable.
    #[error("the buffer is full")]
    Full,
    /// A transaction is larger than the buffer allows.
    #[error("a transaction of {bytes} bytes is over the buffer's limit of {limit}")]
    TransactionTooLarge {
        /// Its footprint.
        bytes: u64,
        /// The largest footprint.
        limit: u64,
    },
    /// There is no buffer on this device.
    #[error("{device}: not a weir buffer")]
    NotABuffer {
        /// The device.
        device: String,
    },
    /// The superblock is a buffer's, and damaged.
    #[error("{device}: block 0: checksum is {found:08x}, expected {expected:08x}")]
    SuperblockDamaged {
        /// The device.
        device: String,
        /// The checksum of the block's bytes.
        found: u32,
        /// The checksum that the block carries.
        expected: u32,
    },
    /// The superblock's checksum is right, but a number in it is impossible.
    #[error("{device}: block 0: {field} is {found}, which is impossible")]
    InvalidField {
        /// The device.
        device: String,
        /// Which field.
        field: &'static str,
        /// Its value.
        found: u64,
    },
    /// Neither header slot can be read.
    #[error("{device}: blocks 1 and 2: both header slots are damaged, so the log's beginning is unknown")]
    HeadersDamaged {
        /// The device.
        device: String,
    },
    /// A newer weir wrote this.
    #[error("{device}: block {block}: format {found} is newer than {supported}")]
    Version {
        /// The device.
        device: String,
        /// The block that has the version.
        block: Block,
        /// The version found.
        found: u32,
        /// The newest that this weir reads.
        supported: u32,
    },
    /// An older weir wrote this.
    #[error(
        "{device}: a buffer of format {found}, which weir 0.1 made; this weir reads format {VERSION} only; nothing was changed"
    )]
    OldVersion {
        /// The device.
        device: String,
        /// The version found.
        found: u32,
    },
    /// The buffer belongs to another store.
    #[error("{device}: is the buffer of store {found}, not of {wanted}")]
    WrongStore {
        /// The device.
        device: String,
        /// The store it belongs to.
        found: StoreId,
        /// The store that was opened.
        wanted: StoreId,
    },
    /// The device became shorter.
    #[error("{device}: is {blocks} blocks long, but its log needs {expected}")]
    Truncated {
        /// The device.
        device: String,
        /// Blocks now.
        blocks: u64,
        /// Blocks that the log needs.
        expected: u64,
    },
    /// The device is too small for a buffer.
    #[error("{device}: {bytes} bytes are too few for a buffer")]
    TooSmall {
        /// The device.
        device: String,
        /// Its size.
        bytes: u64,
        /// The least.
        minimum: u64,
    },
    /// A buffer cannot shrink while it is in use.
    #[error("{device}: the buffer has {now} blocks, more than {blocks}")]
    ShrinkRefused {
        /// The device.
        device: String,
        /// Blocks asked for.
        blocks: u64,
        /// Blocks now.
        now: u64,
    },
    /// A group that was durable is damaged.
    #[error("{device}: block {block}: commit group {group} was durable and is damaged")]
    GroupDamaged {
        /// The device.
        device: String,
        /// Where the group began.
        block: Block,
        /// Its number.
        group: GroupNo,
    },
    /// A group's checksum is right, but its content is invalid: a bug, or a forgery.
    #[error("{device}: block {block}: commit group {group}: {reason}")]
    Malformed {
        /// The device.
        device: String,
        /// Where the group begins.
        block: Block,
        /// Its number.
        group: GroupNo,
        /// The rule that the group breaks.
        reason: &'static str,
    },
}

impl BufferError {
    /// What the operator can do next.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        Some(match self {
            BufferError::Device(error) => return error.help(),
            BufferError::Full | BufferError::TransactionTooLarge { .. } => return None,
            BufferError::NotABuffer { .. } => "give the path that `weir format` used for the buffer".into(),
            BufferError::SuperblockDamaged { .. }
            | BufferError::HeadersDamaged { .. }
            | BufferError::GroupDamaged { .. } => {
                "restore it from a copy, or accept the loss with `weir replace-buffer --accept-loss`".into()
            }
            BufferError::InvalidField { .. } => "format the buffer again".into(),
            BufferError::Version { .. } => "upgrade weir to read it".into(),
            BufferError::OldVersion { .. } => {
                "mount its store with weir 0.1, and copy the files with rsync into a new store; or give the path of this \
                 store's buffer"
                    .into()
            }
            BufferError::WrongStore { .. } => "give the path of this store's buffer".into(),
            BufferError::Truncated { .. } => "restore the missing end".into(),
            BufferError::TooSmall { minimum, .. } => format!("give it at least {minimum} bytes").into(),
            BufferError::ShrinkRefused { .. } => {
                "for a smaller one, unmount and use `weir replace-buffer`".into()
            }
            BufferError::Malformed { .. } => "please report this with a copy of the buffer".into(),
        })
    }
}

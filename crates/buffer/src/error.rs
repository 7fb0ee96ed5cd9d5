//! What can go wrong, and what to do next.

use crate::format::VERSION;
use crate::ring::GroupNo;
use device::{Block, DeviceError, StoreId};
use std::borrow::Cow;

/// Why the buffer could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The device failed. After a failed write or flush every later append and commit says so again.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No space until something is written back, is released, and a commit has made that durable.
    #[error("the buffer is full")]
    Full,
    /// A single transaction is larger than the buffer allows.
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
    /// The superblock was a buffer's once.
    #[error("{device}: block 0: checksum is {found:08x}, expected {expected:08x}")]
    SuperblockDamaged {
        /// The device.
        device: String,
        /// The checksum of the bytes that are there.
        found: u32,
        /// The checksum that the block carries.
        expected: u32,
    },
    /// The superblock's checksum is right but its numbers make no sense.
    #[error("{device}: block 0: {field} is {found}, which cannot be")]
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
        /// Where it says so.
        block: Block,
        /// The version found.
        found: u32,
        /// The newest that this weir reads.
        supported: u32,
    },
    /// A weir before this format wrote this.
    #[error(
        "{device}: a buffer of format {found}, which weir 0.1 made; this weir knows format {VERSION} only; nothing was changed"
    )]
    OldVersion {
        /// The device.
        device: String,
        /// The version found.
        found: u32,
    },
    /// The buffer is of another store.
    #[error("{device}: the buffer of store {found}, not of {wanted}")]
    WrongStore {
        /// The device.
        device: String,
        /// The store it belongs to.
        found: StoreId,
        /// The store that was opened.
        wanted: StoreId,
    },
    /// The device lost its end.
    #[error("{device}: {blocks} blocks long, and its log takes {expected}")]
    Truncated {
        /// The device.
        device: String,
        /// Blocks now.
        blocks: u64,
        /// Blocks that it needs.
        expected: u64,
    },
    /// A buffer needs more space than this.
    #[error("{device}: {bytes} bytes are too few for a buffer")]
    TooSmall {
        /// The device.
        device: String,
        /// Its size.
        bytes: u64,
        /// The least.
        minimum: u64,
    },
    /// A buffer does not get smaller in use.
    #[error("{device}: the buffer has {now} blocks, more than {blocks}")]
    ShrinkRefused {
        /// The device.
        device: String,
        /// Blocks asked for.
        blocks: u64,
        /// Blocks now.
        now: u64,
    },
    /// A group that was durable can no longer be read.
    #[error("{device}: block {block}: commit group {group} was durable and is damaged")]
    GroupDamaged {
        /// The device.
        device: String,
        /// Where the group began.
        block: Block,
        /// Its number.
        group: GroupNo,
    },
    /// A group's checksum is right, but not what it says: a bug, or forged.
    #[error("{device}: block {block}: commit group {group}: {reason}")]
    Malformed {
        /// The device.
        device: String,
        /// Where the group begins.
        block: Block,
        /// Its number.
        group: GroupNo,
        /// What is wrong.
        reason: &'static str,
    },
}

impl BufferError {
    /// The next step.
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

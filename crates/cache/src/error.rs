//! Why an operation failed.

use buffer::BufferError;
use device::Lsn;
use std::borrow::Cow;
use store::{StoreError, VolumeId};

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CacheError {
    /// The store failed or is full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The buffer failed: what was to be made durable is not.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The buffer failed earlier. Nothing can be made durable any more, so every later change is refused
    /// until the next mount; reads go on. The last resort: failures of the store are waited for instead.
    #[error("read-only until it is mounted again, since changes cannot be made durable: {why}")]
    ReadOnly {
        /// What happened to the buffer.
        why: BufferError,
    },
    /// The buffer failed, and everything that was in memory has been saved.
    #[error("{why}; everything, synced or not, is in the store as volume {volume}")]
    Rescued {
        /// What happened to the buffer.
        why: BufferError,
        /// Where it was saved.
        volume: String,
    },
    /// The store has changes that the buffer never had: laying an old buffer's records over them would be
    /// wrong.
    #[error(
        "the buffer ends with change {buffer}, and the store has change {store}: it is an old copy, or the store has been \
         used with another buffer"
    )]
    StaleBuffer {
        /// The newest change that the buffer knows of.
        buffer: Lsn,
        /// The newest change in the store.
        store: Lsn,
    },
    /// The store lacks changes that the buffer has released because the store had them.
    #[error(
        "the store is an older copy of the one that its buffer belongs to, or the end of its log cannot be read: it ends with \
         {what} {store}, and the buffer counts on {what} {buffer}"
    )]
    StaleStore {
        /// What the two numbers count.
        what: &'static str,
        /// The last one in the store.
        store: u64,
        /// The last one that the buffer knows of.
        buffer: u64,
    },
    /// The volume is in use.
    #[error("volume {volume} is mounted here")]
    InUse {
        /// The volume.
        volume: VolumeId,
    },
    /// A single transaction is larger than the buffer allows.
    #[error("a transaction of {bytes} bytes is over the limit of {limit}")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// A clone or a move without pages, or with a target that overlaps its source.
    #[error("a clone or a move of no pages, or of pages onto themselves")]
    BadTransfer,
    /// A clone or a move of too many pages, whose source and target differ modulo 128 pages.
    #[error(
        "a clone or a move of {pages} pages whose source and target are not at the same place modulo 128 pages: {limit} at most"
    )]
    TransferTooLong {
        /// Its pages.
        pages: u64,
        /// The limit.
        limit: u64,
    },
    /// The mount is ending.
    #[error("the stack is stopping")]
    Stopping,
}

impl CacheError {
    /// Whether the store, or what holds it, is full: to a program, ENOSPC.
    pub fn is_full(&self) -> bool {
        matches!(self, CacheError::Store(error) if error.is_full())
    }

    /// What to do next.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            CacheError::Store(error) => return error.help(),
            CacheError::Buffer(error) => return error.help(),
            CacheError::ReadOnly { .. } => "repair the buffer's device, unmount, and mount again",
            CacheError::Rescued { .. } => "repair or replace the buffer, and mount that volume",
            CacheError::StaleBuffer { .. } => {
                "give that buffer, or a new one by `weir replace-buffer --accept-loss`"
            }
            CacheError::StaleStore { .. } => {
                "give the store's newest copy, or copies of store and buffer of one moment; where its device has bad blocks, a copy of it; to go on with this one, \
                 without what only the buffer has, run `weir replace-buffer --accept-loss`"
            }
            CacheError::InUse { .. } => "unmount it, and mount another one, to delete it",
            CacheError::TooBig { .. } | CacheError::TransferTooLong { .. } => "split it",
            CacheError::BadTransfer | CacheError::Stopping => return None,
        };
        Some(help.into())
    }
}

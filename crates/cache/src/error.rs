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
    #[error("read-only until the next mount, because changes cannot be made durable: {why}")]
    ReadOnly {
        /// The failure of the buffer.
        why: BufferError,
    },
    /// The buffer failed, and everything that was in memory has been saved.
    #[error("{why}; all data, synced or not, has been saved in the store as volume {volume}")]
    Rescued {
        /// The failure of the buffer.
        why: BufferError,
        /// Where it was saved.
        volume: String,
    },
    /// The store has changes that the buffer never had: laying an old buffer's records over them would be
    /// wrong.
    #[error(
        "the buffer ends with change {buffer}, but the store has change {store}: this buffer is an older copy, or the store \
         has been used with another buffer"
    )]
    StaleBuffer {
        /// The newest change that the buffer knows of.
        buffer: Lsn,
        /// The newest change in the store.
        store: Lsn,
    },
    /// The store lacks changes that the buffer has released because the store had them.
    #[error(
        "the store ends with {what} {store}, but its buffer relies on {what} {buffer}: this store is an older copy, or the \
         end of its log cannot be read"
    )]
    StaleStore {
        /// Mounts or batches: the kind of both numbers.
        what: &'static str,
        /// The last one in the store.
        store: u64,
        /// The last one that the buffer knows of.
        buffer: u64,
    },
    /// The volume is in use: it is mounted, or is being deleted, renamed or rolled back.
    #[error("volume {volume} is mounted here, or is being changed")]
    InUse {
        /// The volume.
        volume: VolumeId,
    },
    /// The volume may not be changed.
    #[error("volume {volume} is read-only")]
    ReadOnlyVolume {
        /// Which.
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
    /// A transaction must wait, for space or for a page. Only the work passed to
    /// [`transact`](crate::Cache::transact) sees this error: it undoes its changes, and runs again later.
    #[error("the transaction must wait for space")]
    MustWait,
    /// A clone or a move without pages, or with a target that overlaps its source.
    #[error("a clone or a move without pages, or of pages onto themselves")]
    BadTransfer,
    /// A clone or a move of too many pages, whose source and target differ modulo 128 pages.
    #[error(
        "a clone or a move of {pages} pages is over the limit of {limit}, which applies if source and target differ modulo 128 \
         pages"
    )]
    TransferTooLong {
        /// Its pages.
        pages: u64,
        /// The limit.
        limit: u64,
    },
    /// The mount is ending.
    #[error("the store is being closed")]
    Stopping,
}

impl CacheError {
    /// Whether the store, or what holds it, is full: to a program, ENOSPC.
    pub fn is_full(&self) -> bool {
        matches!(self, CacheError::Store(error) if error.is_full())
    }

    /// The next step for the user.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        let help = match self {
            CacheError::Store(error) => return error.help(),
            CacheError::Buffer(error) => return error.help(),
            CacheError::ReadOnly { .. } => "repair the buffer's device, unmount, and mount again",
            CacheError::Rescued { .. } => "repair or replace the buffer's device, then mount that volume",
            CacheError::StaleBuffer { .. } => {
                "use the newest buffer; if it is lost, run `weir replace-buffer --accept-loss`: what only that buffer has is \
                 then lost, too"
            }
            CacheError::StaleStore { .. } => {
                "use the newest copy of the store, or copies of store and buffer from the same point in time; if the store's \
                 device has bad blocks, copy it to a good device; to go on with this store, without what only the buffer has, run \
                 `weir replace-buffer --accept-loss`"
            }
            CacheError::InUse { .. } => "to delete it, rename it or roll it back, unmount it first",
            CacheError::ReadOnlyVolume { .. } => "change a writable clone of it instead",
            CacheError::TooBig { .. } | CacheError::TransferTooLong { .. } => "split it into smaller ones",
            CacheError::BadTransfer | CacheError::MustWait | CacheError::Stopping => return None,
        };
        Some(help.into())
    }
}

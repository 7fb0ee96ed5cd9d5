//! Why an operation failed.

use buffer::BufferError;
use store::{StoreError, VolumeId};

/// Why an operation failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CacheError {
    /// The store failed or is full.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The buffer failed. Nothing can be made durable any more, so every later change is refused until the next
    /// mount; reads go on.
    #[error(transparent)]
    Buffer(#[from] BufferError),
    /// The volume is the one that is cached.
    #[error("volume {volume} is mounted here; unmount it, and mount another one, to delete it")]
    InUse {
        /// Which.
        volume: VolumeId,
    },
    /// A single transaction is larger than the buffer allows.
    #[error("a transaction of {bytes} bytes is over the limit of {limit}; split it")]
    TooBig {
        /// Its size.
        bytes: u64,
        /// The limit.
        limit: u64,
    },
    /// The mount is going away.
    #[error("the stack is stopping")]
    Stopping,
}

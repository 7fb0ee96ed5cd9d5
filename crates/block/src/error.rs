//! Why an operation on a block volume failed.

use cache::CacheError;
use rustix::io::Errno;
use std::borrow::Cow;

/// Why an operation on a block volume failed. Each variant names its errno.
#[derive(Debug, Clone, thiserror::Error)]
pub enum BlockVolumeError {
    /// EINVAL
    #[error("the range ends behind the end of the volume")]
    PastEnd,
    /// EINVAL
    #[error("a block volume has between 512 bytes and 128 TiB, in steps of 512 bytes")]
    BadSize,
    /// EINVAL
    #[error("the volume holds a file system, and is no block volume")]
    NotBlockVolume,
    /// EOPNOTSUPP
    #[error("the block volume has format version {version}, which is newer than this weir; upgrade weir")]
    NewerVersion {
        /// The version of its header.
        version: u32,
    },
    /// EUCLEAN
    #[error("the header of the block volume is damaged")]
    Damaged,
    /// ENOSPC for a full store, EROFS for a volume that is read-only, EBUSY for one in use, else EIO
    #[error(transparent)]
    Cache(#[from] CacheError),
}

impl BlockVolumeError {
    /// The errno that a program sees.
    pub fn errno(&self) -> Errno {
        match self {
            BlockVolumeError::PastEnd | BlockVolumeError::BadSize | BlockVolumeError::NotBlockVolume => {
                Errno::INVAL
            }
            BlockVolumeError::NewerVersion { .. } => Errno::OPNOTSUPP,
            BlockVolumeError::Damaged => Errno::UCLEAN,
            BlockVolumeError::Cache(error) if error.is_full() => Errno::NOSPC,
            BlockVolumeError::Cache(CacheError::ReadOnlyVolume { .. }) => Errno::ROFS,
            BlockVolumeError::Cache(CacheError::InUse { .. }) => Errno::BUSY,
            BlockVolumeError::Cache(_) => Errno::IO,
        }
    }

    /// The next step for the user.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        match self {
            BlockVolumeError::BadSize => Some("choose such a size".into()),
            BlockVolumeError::NotBlockVolume => Some(
                "mount it with `weir mount`; `weir volume create PATH NAME --size SIZE` makes a block volume"
                    .into(),
            ),
            BlockVolumeError::Damaged => Some("export a clone of an older snapshot of it".into()),
            BlockVolumeError::Cache(error) => error.help(),
            _ => None,
        }
    }
}

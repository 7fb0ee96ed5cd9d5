//! Why an operation failed.

use cache::CacheError;
use rustix::io::Errno;
use std::borrow::Cow;

/// Why an operation failed. Each variant names its errno.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists already")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG
    #[error("the name is longer than 255 bytes, or the link than 4095")]
    NameTooLong,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// EFBIG
    #[error("more changes at once than the buffer takes, or than a batch may have")]
    BatchTooLarge,
    /// EINVAL
    #[error("{0}")]
    BadRange(&'static str),
    /// ECANCELED: a batch changed nothing
    #[error("the ranges of part {part} have different bytes")]
    Differs {
        /// The place of the comparison in the batch.
        part: usize,
    },
    /// EBUSY
    #[error("memory is so short that ranges to be compared were dropped")]
    Busy,
    /// EFBIG
    #[error("the file would be larger than 128 TiB")]
    TooLarge,
    /// ENXIO
    #[error("no data at or after this offset")]
    PastEnd,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ENOSPC
    #[error("no space left")]
    NoSpace,
    /// ESTALE
    #[error("the file no longer exists")]
    Stale,
    /// EPERM
    #[error("not permitted")]
    NotPermitted,
    /// ENODATA
    #[error("no such extended attribute")]
    NoXattr,
    /// ERANGE
    #[error("the extended attribute's name is longer than 255 bytes")]
    XattrNameTooLong,
    /// E2BIG
    #[error("the extended attribute's value is larger than 64 KiB")]
    XattrTooBig,
    /// EOPNOTSUPP
    #[error("not supported")]
    Unsupported,
    /// EROFS where changes are over, else EIO
    #[error("{0}")]
    Cache(CacheError),
    /// EIO
    #[error("the metadata of the file system is damaged, at offset {offset} of its arena: {what}")]
    Corrupt {
        /// The arena offset.
        offset: u64,
        /// The problem, in words.
        what: String,
    },
}

impl FsError {
    /// The errno that a program sees.
    pub fn errno(&self) -> Errno {
        match self {
            FsError::NotFound => Errno::NOENT,
            FsError::Exists => Errno::EXIST,
            FsError::NotDirectory => Errno::NOTDIR,
            FsError::IsDirectory => Errno::ISDIR,
            FsError::NotEmpty => Errno::NOTEMPTY,
            FsError::NameTooLong => Errno::NAMETOOLONG,
            FsError::Invalid | FsError::BadRange(_) => Errno::INVAL,
            FsError::Differs { .. } => Errno::CANCELED,
            FsError::Busy => Errno::BUSY,
            FsError::TooLarge | FsError::BatchTooLarge => Errno::FBIG,
            FsError::PastEnd => Errno::NXIO,
            FsError::TooManyLinks => Errno::MLINK,
            FsError::NoSpace => Errno::NOSPC,
            FsError::Stale => Errno::STALE,
            FsError::NotPermitted => Errno::PERM,
            FsError::NoXattr => Errno::NODATA,
            FsError::XattrNameTooLong => Errno::RANGE,
            FsError::XattrTooBig => Errno::TOOBIG,
            FsError::Unsupported => Errno::OPNOTSUPP,
            FsError::Cache(error) if error.is_full() => Errno::NOSPC,
            FsError::Cache(CacheError::TooBig { .. }) => Errno::TOOBIG,
            FsError::Cache(CacheError::ReadOnly { .. } | CacheError::ReadOnlyVolume { .. }) => Errno::ROFS,
            FsError::Cache(_) => Errno::IO,
            FsError::Corrupt { .. } => Errno::IO,
        }
    }

    /// The next step for an operator, if there is one. Errors of programs have none.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        match self {
            FsError::Cache(error) => error.help(),
            FsError::Corrupt { .. } => {
                Some("unmount the file system, then run `weir check` on the store".into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreError;

    #[test]
    fn a_full_store_is_enospc_a_broken_one_eio_and_one_without_a_buffer_erofs() {
        let full = FsError::Cache(CacheError::Store(StoreError::Full));
        assert_eq!(full.errno(), Errno::NOSPC);
        let below = FsError::Cache(CacheError::Store(StoreError::HostFsFull { device: "store".into() }));
        assert_eq!(below.errno(), Errno::NOSPC);
        let corrupt = FsError::Corrupt { offset: 64, what: "a link count of 0".into() };
        assert_eq!(corrupt.errno(), Errno::IO);
        let why = buffer::BufferError::TransactionTooLarge { bytes: 2, limit: 1 };
        let over = FsError::Cache(CacheError::ReadOnly { why: why.clone() });
        assert_eq!(over.errno(), Errno::ROFS);
        let read_only = FsError::Cache(CacheError::ReadOnlyVolume { volume: store::VolumeId(1) });
        assert_eq!(read_only.errno(), Errno::ROFS);
        assert_eq!(FsError::Cache(why.into()).errno(), Errno::IO);
        let too_big = FsError::Cache(CacheError::TooBig { bytes: 2, limit: 1 });
        assert_eq!(too_big.errno(), Errno::TOOBIG);
    }
}

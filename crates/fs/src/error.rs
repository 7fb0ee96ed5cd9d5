//! Why an operation failed.

use cache::CacheError;
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
    #[error("metadata at arena offset {offset}: {what}")]
    Corrupt {
        /// The arena offset.
        offset: u64,
        /// The problem, in words.
        what: String,
    },
}

impl FsError {
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

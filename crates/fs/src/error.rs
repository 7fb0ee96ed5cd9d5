//! Why an operation failed.

use cache::CacheError;
use std::borrow::Cow;

/// Why an operation failed; each names its errno at the front ends.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists")]
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
    #[error("past the largest file")]
    TooLarge,
    /// ENXIO
    #[error("no data there, or past the end of the file")]
    PastEnd,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ENOSPC
    #[error("no space left")]
    NoSpace,
    /// ESTALE
    #[error("the file is gone")]
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
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

impl FsError {
    /// The next step, where an operator has one: what a program did wrong is the program's to mend.
    pub fn help(&self) -> Option<Cow<'static, str>> {
        match self {
            FsError::Cache(error) => error.help(),
            FsError::Corrupt { .. } => Some("unmount it, and run `weir check` on the store".into()),
            _ => None,
        }
    }
}

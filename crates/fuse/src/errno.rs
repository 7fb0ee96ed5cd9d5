//! One table from what went wrong to what the program is told.

use crate::complaint::complain;
use cache::CacheError;
use fs::FsError;
use fuser::Errno;

/// The errno of `error`, for a program; what no program can mend is told to the log, too.
pub(crate) fn refused(error: &FsError) -> Errno {
    let errno = errno(error);
    if errno.code() == Errno::EIO.code() {
        complain(error, error.help().as_deref());
    }
    errno
}

/// The errno of `error`.
fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::ENOENT,
        FsError::Exists => Errno::EEXIST,
        FsError::NotDirectory => Errno::ENOTDIR,
        FsError::IsDirectory => Errno::EISDIR,
        FsError::NotEmpty => Errno::ENOTEMPTY,
        FsError::NameTooLong => Errno::ENAMETOOLONG,
        FsError::Invalid => Errno::EINVAL,
        FsError::TooLarge => Errno::EFBIG,
        FsError::PastEnd => Errno::ENXIO,
        FsError::TooManyLinks => Errno::EMLINK,
        FsError::NoSpace => Errno::ENOSPC,
        FsError::Stale => Errno::ESTALE,
        FsError::NotPermitted => Errno::EPERM,
        FsError::NoXattr => Errno::ENODATA,
        FsError::XattrNameTooLong => Errno::ERANGE,
        FsError::XattrTooBig => Errno::E2BIG,
        FsError::Unsupported => Errno::EOPNOTSUPP,
        FsError::Cache(error) if error.is_full() => Errno::ENOSPC,
        FsError::Cache(CacheError::TooBig { .. }) => Errno::E2BIG,
        FsError::Cache(CacheError::ReadOnly { .. }) => Errno::EROFS,
        FsError::Cache(_) => Errno::EIO,
        FsError::Corrupt { .. } => Errno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreError;

    #[test]
    fn a_full_store_is_enospc_a_broken_one_eio_and_one_without_a_buffer_erofs() {
        let full = FsError::Cache(CacheError::Store(StoreError::Full));
        assert_eq!(errno(&full).code(), libc::ENOSPC);
        let below = FsError::Cache(CacheError::Store(StoreError::FullBelow { device: "store".into() }));
        assert_eq!(errno(&below).code(), libc::ENOSPC);
        let corrupt = FsError::Corrupt { offset: 64, what: "a link count of 0".into() };
        assert_eq!(errno(&corrupt).code(), libc::EIO);
        let why = buffer::BufferError::TooBig { bytes: 2, limit: 1 };
        let over = FsError::Cache(CacheError::ReadOnly { why: why.clone() });
        assert_eq!(errno(&over).code(), libc::EROFS);
        assert_eq!(errno(&FsError::Cache(why.into())).code(), libc::EIO);
        let too_big = FsError::Cache(CacheError::TooBig { bytes: 2, limit: 1 });
        assert_eq!(errno(&too_big).code(), libc::E2BIG);
    }
}

//! The table from errors to errnos.

use crate::error_log::log_error;
use cache::CacheError;
use fs::FsError;
use rustix::io::Errno;

/// The errno of `error`, for a reply. An EIO is also logged, because no program can mend its cause.
pub(crate) fn reply_errno(error: &FsError) -> Errno {
    let errno = errno(error);
    if errno == Errno::IO {
        log_error(error, error.help().as_deref());
    }
    errno
}

/// The errno of `error`.
fn errno(error: &FsError) -> Errno {
    match error {
        FsError::NotFound => Errno::NOENT,
        FsError::Exists => Errno::EXIST,
        FsError::NotDirectory => Errno::NOTDIR,
        FsError::IsDirectory => Errno::ISDIR,
        FsError::NotEmpty => Errno::NOTEMPTY,
        FsError::NameTooLong => Errno::NAMETOOLONG,
        FsError::Invalid => Errno::INVAL,
        FsError::TooLarge => Errno::FBIG,
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

#[cfg(test)]
mod tests {
    use super::*;
    use store::StoreError;

    #[test]
    fn a_full_store_is_enospc_a_broken_one_eio_and_one_without_a_buffer_erofs() {
        let full = FsError::Cache(CacheError::Store(StoreError::Full));
        assert_eq!(errno(&full), Errno::NOSPC);
        let below = FsError::Cache(CacheError::Store(StoreError::HostFsFull { device: "store".into() }));
        assert_eq!(errno(&below), Errno::NOSPC);
        let corrupt = FsError::Corrupt { offset: 64, what: "a link count of 0".into() };
        assert_eq!(errno(&corrupt), Errno::IO);
        let why = buffer::BufferError::TransactionTooLarge { bytes: 2, limit: 1 };
        let over = FsError::Cache(CacheError::ReadOnly { why: why.clone() });
        assert_eq!(errno(&over), Errno::ROFS);
        let read_only = FsError::Cache(CacheError::ReadOnlyVolume { volume: store::VolumeId(1) });
        assert_eq!(errno(&read_only), Errno::ROFS);
        assert_eq!(errno(&FsError::Cache(why.into())), Errno::IO);
        let too_big = FsError::Cache(CacheError::TooBig { bytes: 2, limit: 1 });
        assert_eq!(errno(&too_big), Errno::TOOBIG);
    }
}

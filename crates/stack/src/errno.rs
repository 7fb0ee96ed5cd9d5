//! The errno of each error, for programs that open a store themselves.

use crate::error::StackError;
use buffer::BufferError;
use cache::CacheError;
use host::HostError;
use rustix::io::Errno;
use store::StoreError;

impl StackError {
    /// The errno that a program sees.
    ///
    /// EBUSY: in use. ENOENT: no store, no buffer or no volume at the place. EINVAL: something else is there. EUCLEAN: damaged.
    /// EOPNOTSUPP: of another version, or not durable. ESTALE: store and buffer do not belong together, or one is outdated.
    pub fn errno(&self) -> Errno {
        match self {
            StackError::Missing { .. }
            | StackError::LeadsNowhere { .. }
            | StackError::BufferMissing { .. }
            | StackError::NoSuchVolume { .. } => Errno::NOENT,
            StackError::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
            StackError::NotMedia { .. }
            | StackError::NotFileSystem { .. }
            | StackError::SameMedia { .. }
            | StackError::PerhapsBuffer { .. }
            | StackError::TwoBuffers { .. }
            | StackError::MemoryTooSmall { .. } => Errno::INVAL,
            StackError::OtherBuffer { .. } => Errno::STALE,
            StackError::BufferNotWritable { .. } | StackError::LostEnds { .. } => Errno::IO,
            StackError::VolatileBuffer { .. } => Errno::OPNOTSUPP,
            StackError::OnOwnMount { .. } => Errno::LOOP,
            StackError::Busy { .. } | StackError::InUse { .. } => Errno::BUSY,
            StackError::Host { source, .. } => of_host(source),
            StackError::Store { source, .. } => of_store(source),
            StackError::Cache { source, .. } => of_cache(source),
            StackError::Volume { source, .. } => source.errno(),
            StackError::BlockVolume { source, .. } => source.errno(),
        }
    }
}

fn of_host(error: &HostError) -> Errno {
    match error {
        HostError::Missing { .. } => Errno::NOENT,
        HostError::Exists { .. } => Errno::EXIST,
        HostError::Permission { .. } | HostError::NotPrivate { .. } => Errno::ACCESS,
        HostError::ReadOnly { .. } => Errno::ROFS,
        HostError::Busy { .. } => Errno::BUSY,
        HostError::NotADisk { .. } | HostError::InvalidSize { .. } => Errno::INVAL,
        HostError::Full { .. } => Errno::NOSPC,
        HostError::TooLarge { .. } => Errno::FBIG,
        HostError::Io { source, .. } => Errno::from_io_error(source).unwrap_or(Errno::IO),
    }
}

fn of_store(error: &StoreError) -> Errno {
    match error {
        StoreError::NotAStore { .. } => Errno::INVAL,
        StoreError::NewerVersion { .. } | StoreError::OldVersion { .. } | StoreError::OtherDraft { .. } => {
            Errno::OPNOTSUPP
        }
        StoreError::SuperblockDamaged { .. }
        | StoreError::NoGoodCopy { .. }
        | StoreError::Damaged { .. }
        | StoreError::Corrupt { .. }
        | StoreError::ChangeBelowDamage { .. }
        | StoreError::Truncated { .. } => Errno::UCLEAN,
        error if error.is_full() => Errno::NOSPC,
        _ => Errno::IO,
    }
}

fn of_buffer(error: &BufferError) -> Errno {
    match error {
        BufferError::NotABuffer { .. } => Errno::INVAL,
        BufferError::WrongStore { .. } => Errno::STALE,
        BufferError::Version { .. } | BufferError::OldVersion { .. } => Errno::OPNOTSUPP,
        BufferError::SuperblockDamaged { .. }
        | BufferError::InvalidField { .. }
        | BufferError::HeadersDamaged { .. }
        | BufferError::GroupDamaged { .. }
        | BufferError::Malformed { .. }
        | BufferError::Truncated { .. } => Errno::UCLEAN,
        _ => Errno::IO,
    }
}

fn of_cache(error: &CacheError) -> Errno {
    match error {
        CacheError::Store(error) => of_store(error),
        CacheError::Buffer(error) => of_buffer(error),
        CacheError::StaleBuffer { .. } | CacheError::StaleStore { .. } => Errno::STALE,
        _ => Errno::IO,
    }
}

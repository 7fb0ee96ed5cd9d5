//! What a program's fsync means in a replay. Platforms differ: on some, it does not flush the device's cache.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use trace_file::SyncKind;

/// Writes a file's range out to the device, and waits for that: start, and bytes or none for all.
pub type WriteOut = fn(BorrowedFd<'_>, u64, u64) -> io::Result<()>;

/// What fsync and fdatasync mean.
#[derive(Debug, Clone, Copy, Default)]
pub enum Syncs {
    /// What they mean here: durable on return.
    #[default]
    Durable,
    /// The device has the file's bytes; whether it keeps them is not asked.
    Device(WriteOut),
    /// Nothing: they return at once.
    Nothing,
}

impl Syncs {
    pub(super) fn file(self, file: BorrowedFd<'_>, kind: SyncKind) -> Result<(), Errno> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        match (self, kind) {
            (_, SyncKind::Full) | (Syncs::Durable, SyncKind::File) => rustix::fs::fsync(file),
            (Syncs::Nothing, _) => Ok(()),
            (Syncs::Device(write_out), SyncKind::Range(start, bytes)) => {
                write_out(file, start, bytes).map_err(errno)
            }
            (Syncs::Device(write_out), SyncKind::File | SyncKind::Data) => {
                write_out(file, 0, 0).map_err(errno)
            }
            // Writing a range out starts what fdatasync finishes.
            (Syncs::Durable, SyncKind::Data | SyncKind::Range(..)) => rustix::fs::fdatasync(file),
            (_, SyncKind::FileSystem) => rustix::fs::syncfs(file),
        }
    }

    /// For reports.
    pub fn text(self) -> &'static str {
        match self {
            Syncs::Durable => "durable",
            Syncs::Device(_) => "device",
            Syncs::Nothing => "none",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::sync::atomic::{AtomicU64, Ordering};

    static WRITTEN_OUT: AtomicU64 = AtomicU64::new(0);

    fn count(_: BorrowedFd<'_>, _: u64, _: u64) -> io::Result<()> {
        WRITTEN_OUT.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    #[test]
    fn a_sync_is_what_was_chosen_but_a_full_one_is_durable() {
        // What cannot be synced shows that it was asked to be.
        let (end, _other) = std::io::pipe().expect("a pipe");
        let refused = Err(Errno::INVAL);
        let fd = || end.as_fd();
        assert_eq!(Syncs::Durable.file(fd(), SyncKind::File), refused);
        assert_eq!(Syncs::Durable.file(fd(), SyncKind::Data), refused);
        assert_eq!(Syncs::Nothing.file(fd(), SyncKind::File), Ok(()));
        assert_eq!(Syncs::Device(count).file(fd(), SyncKind::File), Ok(()));
        assert_eq!(Syncs::Device(count).file(fd(), SyncKind::Range(0, 1)), Ok(()));
        assert_eq!(WRITTEN_OUT.load(Ordering::Relaxed), 2);
        for syncs in [Syncs::Durable, Syncs::Device(count), Syncs::Nothing] {
            assert_eq!(syncs.file(fd(), SyncKind::Full), refused);
        }
    }
}

//! The meaning of a program's fsync in a replay. On some platforms, fsync does not flush the device's cache.

use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::io;
use trace_file::SyncKind;

/// Writes a file's range to the device and waits. Arguments: file, start, and length in bytes or 0 for all.
pub type WriteOut = fn(BorrowedFd<'_>, u64, u64) -> io::Result<()>;

/// The meaning of fsync and fdatasync.
#[derive(Debug, Clone, Copy, Default)]
pub enum FsyncMeaning {
    /// As on Linux: durable on return.
    #[default]
    Durable,
    /// On return, the device has the file's bytes, but its cache is not flushed.
    Device(WriteOut),
    /// They return at once.
    Nothing,
}

impl FsyncMeaning {
    pub(super) fn file(self, file: BorrowedFd<'_>, kind: SyncKind) -> Result<(), Errno> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        match (self, kind) {
            (_, SyncKind::Full) | (FsyncMeaning::Durable, SyncKind::File) => rustix::fs::fsync(file),
            (FsyncMeaning::Nothing, _) => Ok(()),
            (FsyncMeaning::Device(write_out), SyncKind::Range(start, bytes)) => {
                write_out(file, start, bytes).map_err(errno)
            }
            (FsyncMeaning::Device(write_out), SyncKind::File | SyncKind::Data) => {
                write_out(file, 0, 0).map_err(errno)
            }
            // sync_file_range starts the write-back that fdatasync completes.
            (FsyncMeaning::Durable, SyncKind::Data | SyncKind::Range(..)) => rustix::fs::fdatasync(file),
            (_, SyncKind::FileSystem) => rustix::fs::syncfs(file),
        }
    }

    /// The text for reports.
    pub fn text(self) -> &'static str {
        match self {
            FsyncMeaning::Durable => "durable",
            FsyncMeaning::Device(_) => "device",
            FsyncMeaning::Nothing => "none",
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
        // A pipe cannot be synced, so the error shows that a sync was attempted.
        let (end, _other) = std::io::pipe().expect("a pipe");
        let refused = Err(Errno::INVAL);
        let fd = || end.as_fd();
        assert_eq!(FsyncMeaning::Durable.file(fd(), SyncKind::File), refused);
        assert_eq!(FsyncMeaning::Durable.file(fd(), SyncKind::Data), refused);
        assert_eq!(FsyncMeaning::Nothing.file(fd(), SyncKind::File), Ok(()));
        assert_eq!(FsyncMeaning::Device(count).file(fd(), SyncKind::File), Ok(()));
        assert_eq!(FsyncMeaning::Device(count).file(fd(), SyncKind::Range(0, 1)), Ok(()));
        assert_eq!(WRITTEN_OUT.load(Ordering::Relaxed), 2);
        for syncs in [FsyncMeaning::Durable, FsyncMeaning::Device(count), FsyncMeaning::Nothing] {
            assert_eq!(syncs.file(fd(), SyncKind::Full), refused);
        }
    }
}

//! Writing a file's dirty bytes to its device, without a flush.

use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;

/// Writes the dirty bytes of a file from `start` on, `bytes` of them or all (0), and waits until the device
/// has accepted them.
///
/// They are *not* durable then: no metadata is written, and the device's cache is not flushed. Some other
/// platforms' fsync does only this.
pub fn write_out(file: BorrowedFd<'_>, start: u64, bytes: u64) -> io::Result<()> {
    let all =
        libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let start = start.min(i64::MAX as u64) as i64;
    // The kernel refuses ranges that end behind the largest file.
    let bytes = bytes.min((i64::MAX - start) as u64) as i64;
    // SAFETY: the call takes numbers only, and the descriptor is open for as long as it is borrowed.
    match unsafe { libc::sync_file_range(file.as_raw_fd(), start, bytes, all) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::Write;

    #[test]
    fn files_are_written_out_and_pipes_are_refused() {
        let mut file = tempfile::tempfile().expect("a temporary file");
        file.write_all(&[7; 100_000]).expect("it is written");
        write_out(file.as_fd(), 0, 0).expect("all of it");
        write_out(file.as_fd(), 4096, u64::MAX).expect("the rest of it");
        let (read, _write) = std::io::pipe().expect("a pipe");
        assert!(write_out(read.as_fd(), 0, 0).is_err());
    }
}

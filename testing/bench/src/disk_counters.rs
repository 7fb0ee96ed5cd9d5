//! The kernel's counters of a disk. They include the requests of all processes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};
use serde::Serialize;

/// Bytes of a sector in the kernel's counters, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Reads, writes and busy time of a disk, since it appeared or between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct DiskCounters {
    pub(super) read_bytes: u64,
    pub(super) write_requests: u64,
    pub(super) written_bytes: u64,
    /// Milliseconds in which at least one request was waiting or being served. The kernel samples once a
    /// tick, which is 1 to 10 ms.
    pub(super) busy_ms: u64,
}

impl DiskCounters {
    /// Reads the counters of a block device, such as `/dev/loop0`.
    pub(super) fn of(device: &Path) -> Option<DiskCounters> {
        DiskCounters::of_number(std::fs::metadata(device).ok()?.rdev())
    }

    /// Reads the counters of the disk below `path`'s file system; `None` if that is not on one disk.
    pub(super) fn below(path: &Path) -> Option<DiskCounters> {
        DiskCounters::of_number(std::fs::metadata(path).ok()?.dev())
    }

    fn of_number(device: u64) -> Option<DiskCounters> {
        let number = (major(device) as i32, minor(device) as i32);
        let stat = procfs::diskstats().ok()?.into_iter().find(|stat| (stat.major, stat.minor) == number)?;
        Some(DiskCounters {
            read_bytes: stat.sectors_read * SECTOR_BYTES,
            write_requests: stat.writes,
            written_bytes: stat.sectors_written * SECTOR_BYTES,
            busy_ms: stat.time_in_progress,
        })
    }

    /// Difference to `earlier`, of the same disk.
    pub(super) fn since(self, earlier: DiskCounters) -> DiskCounters {
        DiskCounters {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            write_requests: self.write_requests.saturating_sub(earlier.write_requests),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            busy_ms: self.busy_ms.saturating_sub(earlier.busy_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_belong_to_a_disk_and_differences_to_a_time() {
        assert_eq!(DiskCounters::below(Path::new("/proc")), None);
        let before = DiskCounters { read_bytes: 5 << 20, write_requests: 1, written_bytes: 512, busy_ms: 10 };
        let now = DiskCounters { read_bytes: 6 << 20, write_requests: 3, written_bytes: 1536, busy_ms: 20 };
        let since = now.since(before);
        assert_eq!((since.write_requests, since.written_bytes), (2, 1024));
        assert_eq!((since.read_bytes, since.busy_ms), (1 << 20, 10));
    }
}

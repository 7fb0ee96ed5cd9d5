//! The kernel's counters of a disk. They include the requests of all processes.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::fs::{major, minor};
use serde::Serialize;

/// Bytes of a sector in the kernel's counters, whatever the disk's own sectors are.
const SECTOR_BYTES: u64 = 512;

/// Reads and busy time of a disk, since it appeared or between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct DiskTime {
    /// Bytes read from the disk.
    pub(super) read_bytes: u64,
    /// Milliseconds in which at least one request was waiting or being served. The kernel samples once a
    /// tick, which is 1 to 10 ms.
    pub(super) busy_ms: u64,
}

impl DiskTime {
    /// Reads the counters of the disk below `path`'s file system; `None` if that is not on one disk.
    pub(super) fn below(path: &Path) -> Option<DiskTime> {
        let device = std::fs::metadata(path).ok()?.dev();
        let stat = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        DiskTime::parse(&std::fs::read_to_string(stat).ok()?)
    }

    /// The fields are described in the kernel's Documentation/block/stat.rst.
    fn parse(stat: &str) -> Option<DiskTime> {
        let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
        let read_bytes = fields.get(2)?.checked_mul(SECTOR_BYTES)?;
        Some(DiskTime { read_bytes, busy_ms: *fields.get(9)? })
    }

    /// Read rate while the disk was busy, in MiB/s.
    pub(super) fn rate(self) -> f64 {
        self.read_bytes as f64 / 1_048_576.0 / self.busy_ms as f64 * 1000.0
    }

    /// Difference to `earlier`, of the same disk.
    pub(super) fn since(self, earlier: DiskTime) -> DiskTime {
        DiskTime {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            busy_ms: self.busy_ms.saturating_sub(earlier.busy_ms),
        }
    }
}

/// Writes to a block device, since it appeared or between two moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DiskWrites {
    pub(super) requests: u64,
    pub(super) bytes: u64,
}

impl DiskWrites {
    /// Writes to a block device, such as `/dev/loop0`.
    pub(super) fn to(device: &Path) -> Option<DiskWrites> {
        let number = std::fs::metadata(device).ok()?.rdev();
        DiskWrites::of(number)
    }

    /// Writes to the disk below `path`'s file system; `None` if that is not on one disk.
    pub(super) fn below(path: &Path) -> Option<DiskWrites> {
        DiskWrites::of(std::fs::metadata(path).ok()?.dev())
    }

    fn of(device: u64) -> Option<DiskWrites> {
        let stat = format!("/sys/dev/block/{}:{}/stat", major(device), minor(device));
        DiskWrites::parse(&std::fs::read_to_string(stat).ok()?)
    }

    fn parse(stat: &str) -> Option<DiskWrites> {
        let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(DiskWrites { requests: *fields.get(4)?, bytes: fields.get(6)?.checked_mul(SECTOR_BYTES)? })
    }

    /// Difference to `earlier`, of the same device.
    pub(super) fn since(self, earlier: DiskWrites) -> DiskWrites {
        DiskWrites {
            requests: self.requests.saturating_sub(earlier.requests),
            bytes: self.bytes.saturating_sub(earlier.bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_fields_are_requests_and_sectors_written() {
        let stat = "  14111413   317761 465627330 12608392  7285614   351718 672402392  1353415        0  1166572 14173674";
        let found = DiskWrites::parse(stat).expect("two counts");
        assert_eq!(found, DiskWrites { requests: 7_285_614, bytes: 672_402_392 * 512 });
        assert_eq!(DiskWrites::parse("1 2 3"), None);
    }

    #[test]
    fn the_kernels_fields_are_sectors_read_and_milliseconds_busy() {
        let stat = "  14111413   317761 465627330 12608392  7285614   351718 672402392  1353415        0  1166572 14173674";
        let found = DiskTime::parse(stat).expect("two counts");
        assert_eq!(found, DiskTime { read_bytes: 465_627_330 * 512, busy_ms: 1_166_572 });
        assert_eq!(DiskTime::parse("1 2 3"), None);
        assert_eq!(DiskTime::below(Path::new("/proc")), None);
    }
}

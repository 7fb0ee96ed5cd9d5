//! Time, randomness, memory, and what the kernel reports about disks.

use crate::open::FileIdentity;
use device::Clock;
use rustix::fs::{FileType, major, minor};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::ClockId;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The machine's clock.
#[derive(Debug, Clone)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock whose monotonic time begins now.
    pub fn new() -> SystemClock {
        SystemClock { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock::new()
    }
}

impl Clock for SystemClock {
    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    /// The time of the kernel's last tick, at most some milliseconds ago: the time that file systems stamp
    /// with.
    fn wall_nanos(&self) -> i64 {
        let now = rustix::time::clock_gettime(ClockId::RealtimeCoarse);
        now.tv_sec.saturating_mul(NANOS_PER_SECOND).saturating_add(now.tv_nsec)
    }
}

/// The memory that this process may use: the machine's, or less if its control group (version 2) has a limit.
pub fn memory_bytes() -> u64 {
    let machine = rustix::system::sysinfo();
    let physical = (machine.totalram as u64).saturating_mul(u64::from(machine.mem_unit));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let limit = group.and_then(|group| memory_limit(Path::new("/sys/fs/cgroup"), group));
    limit.map_or(physical, |limit| limit.min(physical))
}

/// The lowest limit of `group` and its ancestors; control groups are mounted at `root`.
fn memory_limit(root: &Path, group: &str) -> Option<u64> {
    let group = root.join(group);
    let groups = group.ancestors().take_while(|at| at.starts_with(root));
    let limits = groups.filter_map(|at| std::fs::read_to_string(at.join("memory.max")).ok());
    // A group without a limit has the text `max`.
    limits.filter_map(|limit| limit.trim().parse().ok()).min()
}

/// Sixteen unguessable random bytes, for identities.
///
/// # Panics
/// On kernels before 3.17, which have no such call.
pub fn random_bytes() -> [u8; 16] {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(more) => filled += more,
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => panic!("the kernel gives no random bytes: {errno}"),
        }
    }
    bytes
}

/// Tells the kernel that memory reclaim may wait for this process, so that this process's own allocations
/// must not wait for reclaim. Needs CAP_SYS_RESOURCE; returns whether it was permitted.
pub fn mark_io_flusher() -> bool {
    rustix::process::configure_io_flusher_behavior(true).is_ok()
}

/// Whether a disk reports that it keeps accepted writes in volatile memory until a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteCache {
    /// It does: a flush has the cost of the medium.
    Volatile,
    /// It does not: a flush is nearly free.
    None,
    /// Not a block device, or not reported.
    Unknown,
}

/// The write cache of the block device at `path`, as the kernel reports it. A hint for operators: nothing
/// relies on it.
pub fn write_cache(path: &Path) -> WriteCache {
    let Ok(stat) = rustix::fs::stat(path) else { return WriteCache::Unknown };
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return WriteCache::Unknown;
    }
    write_cache_of(stat.st_rdev)
}

/// The write cache of the block device with this number.
pub(crate) fn write_cache_of(device: u64) -> WriteCache {
    let text = whole_disk(Path::new(SYS), device)
        .and_then(|disk| std::fs::read_to_string(disk.join("queue/write_cache")).ok());
    text.map_or(WriteCache::Unknown, |text| parse_write_cache(&text))
}

fn parse_write_cache(text: &str) -> WriteCache {
    match text.trim() {
        "write back" => WriteCache::Volatile,
        "write through" => WriteCache::None,
        _ => WriteCache::Unknown,
    }
}

/// Whether two files or block devices lie on one disk, as far as the kernel reports, so that work on one
/// slows the other. A partition counts as its disk, a loop device as the disk of its file.
pub fn are_on_one_disk(one: &Path, other: &Path) -> bool {
    let disks = (disk_of(one, LOOPS_MAX), disk_of(other, LOOPS_MAX));
    matches!(disks, (Some(one), Some(other)) if one == other)
}

/// Whether two paths lead to the same bytes: to one file, by two names perhaps, to one block device, or to a file and a loop device
/// over it. False if one of them cannot be looked at.
pub fn are_same_medium(one: &Path, other: &Path) -> bool {
    let media = (medium_of(one, LOOPS_MAX), medium_of(other, LOOPS_MAX));
    matches!(media, (Some(one), Some(other)) if one == other)
}

/// A file or a block device.
#[derive(Debug, PartialEq, Eq)]
enum MediumIdentity {
    File {
        file: FileIdentity,
        /// Its first byte that belongs to the medium.
        from: u64,
    },
    Device(u64),
}

/// The file or the block device at `path`. A loop device is its file.
fn medium_of(path: &Path, loops_max: u32) -> Option<MediumIdentity> {
    let stat = rustix::fs::stat(path).ok()?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Some(MediumIdentity::File { file: FileIdentity::from_stat(&stat), from: 0 });
    }
    let entry = Path::new(SYS).join(format!("dev/block/{}:{}", major(stat.st_rdev), minor(stat.st_rdev)));
    // Partitions have no such file.
    let file = loop_file(&entry).filter(|_| loops_max > 0);
    Some(match file.and_then(|file| medium_of(&file, loops_max - 1)) {
        Some(MediumIdentity::File { file, from }) => {
            let offset = std::fs::read_to_string(entry.join("loop/offset")).ok();
            let offset: u64 = offset.and_then(|offset| offset.trim().parse().ok()).unwrap_or(0);
            MediumIdentity::File { file, from: from + offset }
        }
        Some(device) => device,
        None => MediumIdentity::Device(stat.st_rdev),
    })
}

/// The nesting of loop devices that is followed.
pub(crate) const LOOPS_MAX: u32 = 8;

/// The mount point of sysfs.
pub(crate) const SYS: &str = "/sys";

/// The device number of the disk that `path` lies on.
fn disk_of(path: &Path, loops_max: u32) -> Option<u64> {
    let stat = rustix::fs::stat(path).ok()?;
    let is_device = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = if is_device { stat.st_rdev } else { stat.st_dev };
    // A file system that lies on no block device has no such entry.
    let Some(disk) = whole_disk(Path::new(SYS), number) else { return Some(number) };
    if let Some(file) = loop_file(&disk)
        && loops_max > 0
    {
        return disk_of(&file, loops_max - 1).or(Some(number));
    }
    let text = std::fs::read_to_string(disk.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// The directory in `sys` of the block device with this number, or of the disk of which it is a partition.
/// The directory's name is the disk's.
pub(crate) fn whole_disk(sys: &Path, device: u64) -> Option<PathBuf> {
    let entry = sys.join(format!("dev/block/{}:{}", major(device), minor(device)));
    let mut entry = std::fs::canonicalize(entry).ok()?;
    if entry.join("partition").exists() {
        entry.pop();
    }
    Some(entry)
}

/// The backing file of a disk that is a loop device.
pub(crate) fn loop_file(disk: &Path) -> Option<PathBuf> {
    let file = std::fs::read_to_string(disk.join("loop/backing_file")).ok()?;
    Some(file.trim_end_matches('\n').into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_one_disk_share_a_disk() {
        assert!(are_on_one_disk(Path::new("/etc/passwd"), Path::new("/etc")));
        assert!(!are_on_one_disk(Path::new("/etc"), Path::new("/proc")));
        assert!(!are_on_one_disk(Path::new("/not/there"), Path::new("/not/there")), "nobody knows");
    }

    #[test]
    fn two_names_of_a_file_are_one_medium() {
        let directory = tempfile::tempdir().expect("a directory");
        let [file, link, other] = ["file", "link", "other"].map(|name| directory.path().join(name));
        [&file, &other].into_iter().for_each(|path| std::fs::write(path, "").expect("a file"));
        std::fs::hard_link(&file, &link).expect("a link");
        assert!(are_same_medium(&file, &link));
        assert!(!are_same_medium(&file, &other) && !are_same_medium(&file, &directory.path().join("absent")));
    }

    #[test]
    fn the_clock_never_goes_back_and_knows_the_year() {
        let clock = SystemClock::new();
        let before = clock.monotonic();
        let after = clock.monotonic();
        assert!(before <= after);
        assert!(clock.wall_nanos() > 1_700_000_000_000_000_000, "it is after 2023");
    }

    #[test]
    fn random_bytes_differ() {
        assert_ne!(random_bytes(), random_bytes());
    }

    #[test]
    fn write_cache_is_parsed_and_unknown_for_files() {
        assert_eq!(parse_write_cache("write back\n"), WriteCache::Volatile);
        assert_eq!(parse_write_cache("write through\n"), WriteCache::None);
        assert_eq!(write_cache(Path::new("/proc/self/mountinfo")), WriteCache::Unknown);
        assert_eq!(write_cache(Path::new("/no such path")), WriteCache::Unknown);
    }

    #[test]
    fn the_memory_limit_is_the_least_of_all_groups_around() {
        let root = tempfile::tempdir().expect("a directory");
        let limit = |group: &str, limit: &str| {
            std::fs::create_dir_all(root.path().join(group)).expect("a directory");
            std::fs::write(root.path().join(group).join("memory.max"), format!("{limit}\n")).expect("a file");
        };
        limit("a/b/c", "max");
        assert_eq!(memory_limit(root.path(), "a/b/c"), None);
        limit("a", "4096");
        limit("a/b", "8192");
        assert_eq!(memory_limit(root.path(), "a/b/c"), Some(4096));
        assert_eq!(memory_limit(root.path(), ""), None);
    }
}

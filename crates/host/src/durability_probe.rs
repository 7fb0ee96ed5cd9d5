//! Media that lose with the power what was flushed to them, as far as the kernel tells.
//!
//! What is not known is taken for durable: a hypervisor's unsafe cache and a drive that lies cannot be seen from here.

use crate::machine::{LOOPS_MAX, SYS, WriteCache, loop_file, whole_disk, write_cache_of};
use crate::mount_table::{MountEntry, MountTable};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, makedev};
use std::fmt::{self, Display, Formatter};
use std::path::{Path, PathBuf};

/// Why what was flushed to a medium is lost with the power. As text it goes on after "it".
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VolatileReason {
    /// Its file system is in memory.
    MemoryFs {
        /// Such as `tmpfs`.
        fs_type: String,
    },
    /// Its file system is an overlay that was told to flush nothing.
    Overlay {
        /// Where that is mounted.
        point: PathBuf,
    },
    /// Its file system was told not to flush its disk, which has a cache, or may have one.
    NoBarriers {
        /// Where that is mounted.
        point: PathBuf,
        /// What it was told.
        option: String,
    },
    /// It is, or lies on, a disk that is memory.
    MemoryDisk {
        /// Such as `zram0`.
        name: String,
    },
    /// It is, or lies on, a loop device.
    Loop {
        /// Such as `loop0`.
        name: String,
        /// What that leads to.
        file: PathBuf,
        /// Why what is flushed to that is lost.
        why: Box<VolatileReason>,
    },
}

impl VolatileReason {
    /// Whether nothing of the medium is left when the power is back, or nothing that can be relied on.
    pub fn loses_all(&self) -> bool {
        match self {
            VolatileReason::MemoryFs { .. }
            | VolatileReason::Overlay { .. }
            | VolatileReason::MemoryDisk { .. } => true,
            VolatileReason::NoBarriers { .. } => false,
            VolatileReason::Loop { why, .. } => why.loses_all(),
        }
    }
}

impl Display for VolatileReason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            VolatileReason::MemoryFs { fs_type } => write!(f, "lies on {fs_type}, which is memory"),
            VolatileReason::Overlay { point } => {
                write!(f, "lies on {}, an overlay mounted `volatile`, which flushes nothing", point.display())
            }
            VolatileReason::NoBarriers { point, option } => {
                write!(f, "lies on {}, mounted `{option}`, which does not flush its disk", point.display())
            }
            VolatileReason::MemoryDisk { name } => write!(f, "lies on {name}, which is memory"),
            VolatileReason::Loop { name, file, why } => {
                write!(f, "lies on {name}, a loop device over {}, and that {why}", file.display())
            }
        }
    }
}

/// Why what is flushed to the file, directory or block device at `path` is lost with the power; `None` where it is not, or
/// where nobody knows. If it does not exist yet, its directory counts.
pub fn probe_durability(path: &Path) -> Option<VolatileReason> {
    let path = std::path::absolute(path).ok()?;
    of_path(path.ancestors().find(|at| at.exists())?, LOOPS_MAX)
}

fn of_path(path: &Path, loops_max: u32) -> Option<VolatileReason> {
    let path = path.canonicalize().ok()?;
    let stat = rustix::fs::stat(&path).ok()?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice {
        return of_disk(stat.st_rdev, loops_max);
    }
    let mounts = MountTable::read().ok()?;
    // A mount point may lie below another that hides it: the kernel knows which one it is.
    let mount = mount_id(&path).and_then(|id| mounts.with_id(id)).or_else(|| mounts.mount_of(&path))?;
    let disk = disk_below(mount);
    of_file_system(mount)
        .or_else(|| disk.and_then(|disk| of_disk(disk, loops_max)))
        .or_else(|| of_barriers(mount, disk.map_or(WriteCache::Unknown, write_cache_of)))
}

/// What the kernel calls the mount that `path` lies on; it says so since Linux 5.8.
fn mount_id(path: &Path) -> Option<u64> {
    let found = rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

fn of_file_system(mount: &MountEntry) -> Option<VolatileReason> {
    let has = |option: &str| mount.options.iter().any(|other| other == option);
    match mount.fs_type.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" | "rootfs" | "hugetlbfs" => {
            Some(VolatileReason::MemoryFs { fs_type: mount.fs_type.clone() })
        }
        "overlay" if has("volatile") || has("fsync=volatile") => {
            Some(VolatileReason::Overlay { point: mount.point.clone() })
        }
        _ => None,
    }
}

/// A flush that the file system keeps to itself does no harm above a disk without a cache.
fn of_barriers(mount: &MountEntry, cache: WriteCache) -> Option<VolatileReason> {
    if cache == WriteCache::None {
        return None;
    }
    let without = ["nobarrier", "barrier=0", "barrier=none", "fsync_mode=nobarrier"];
    let option = mount.options.iter().find(|option| without.contains(&option.as_str()))?;
    Some(VolatileReason::NoBarriers { point: mount.point.clone(), option: option.clone() })
}

/// The number of the block device that a file system lies on. btrfs has numbers of its own, but names one of its devices.
fn disk_below(mount: &MountEntry) -> Option<u64> {
    let number = makedev(mount.device.0, mount.device.1);
    if whole_disk(Path::new(SYS), number).is_some() {
        return Some(number);
    }
    let source = Some(&mount.source).filter(|source| source.starts_with("/dev"))?;
    let stat = rustix::fs::stat(source).ok()?;
    (FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice).then_some(stat.st_rdev)
}

fn of_disk(device: u64, loops_max: u32) -> Option<VolatileReason> {
    match backing_medium(Path::new(SYS), device)? {
        BackingMedium::Memory { name } => Some(VolatileReason::MemoryDisk { name }),
        BackingMedium::File { name, file } => {
            let why = Box::new(of_path(&file, loops_max.checked_sub(1)?)?);
            Some(VolatileReason::Loop { name, file, why })
        }
    }
}

/// What is behind a disk that is none.
#[derive(Debug, PartialEq, Eq)]
enum BackingMedium {
    Memory { name: String },
    File { name: String, file: PathBuf },
}

/// What `sys` says of the block device with this number; `None` of one that may be a disk.
fn backing_medium(sys: &Path, device: u64) -> Option<BackingMedium> {
    let disk = whole_disk(sys, device)?;
    let name = disk.file_name()?.to_string_lossy().into_owned();
    let is_numbered = |prefix: &str| {
        let number = name.strip_prefix(prefix);
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    if is_numbered("zram") || is_numbered("ram") {
        return Some(BackingMedium::Memory { name });
    }
    loop_file(&disk).map(|file| BackingMedium::File { name, file })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &[u8] = b"\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
23 22 0:25 / /dev/shm rw - tmpfs tmpfs rw,size=5k
24 22 0:26 / /ram rw - ramfs none rw
25 22 0:27 / /build rw - overlay overlay rw,lowerdir=/l,upperdir=/u,workdir=/w,volatile
26 22 0:28 / /run rw,nobarrier - overlay overlay rw,lowerdir=/a\\054volatile,upperdir=/volatile,workdir=/w
27 22 8:1 / /ext4 rw - ext4 /dev/sda1 rw,nobarrier
28 22 8:2 / /old rw - ext3 /dev/sda2 rw,barrier=0
29 22 0:40 /sub /btrfs rw - btrfs /dev/sdb rw,nobarrier,subvolid=256
30 22 8:3 / /barrier rw - ext4 /dev/sda3 rw,barrier=1
31 22 0:41 / /net rw - nfs4 server:/export rw,volatile,soft
";

    fn mount_of(path: &str) -> MountEntry {
        MountTable::parse(TEXT).mount_of(Path::new(path)).expect("a mount").clone()
    }

    fn text(found: Option<VolatileReason>) -> Option<String> {
        found.map(|found| found.to_string())
    }

    #[test]
    fn what_lies_on_a_file_system_in_memory_is_lost() {
        let why = |path| text(of_file_system(&mount_of(path)));
        assert_eq!(why("/dev/shm/buffer").as_deref(), Some("lies on tmpfs, which is memory"));
        assert_eq!(why("/ram/buffer").as_deref(), Some("lies on ramfs, which is memory"));
        assert_eq!(why("/buffer"), None);
        assert_eq!(why("/net/buffer"), None);
    }

    #[test]
    fn what_lies_on_a_volatile_overlay_is_lost_and_on_another_one_not() {
        let why = |path| of_file_system(&mount_of(path));
        assert_eq!(why("/build/buffer"), Some(VolatileReason::Overlay { point: "/build".into() }));
        assert_eq!(why("/run/buffer"), None, "it has directories of that name");
    }

    #[test]
    fn without_barriers_only_a_disk_that_has_no_cache_keeps_what_was_flushed() {
        for (path, option) in [("/ext4/b", "nobarrier"), ("/old/b", "barrier=0"), ("/btrfs/b", "nobarrier")] {
            let mount = mount_of(path);
            let lost = Some(VolatileReason::NoBarriers { point: mount.point.clone(), option: option.into() });
            assert_eq!(of_barriers(&mount, WriteCache::Volatile), lost);
            assert_eq!(of_barriers(&mount, WriteCache::Unknown), lost);
            assert_eq!(of_barriers(&mount, WriteCache::None), None);
        }
    }

    #[test]
    fn with_barriers_a_disk_may_have_a_cache() {
        for path in ["/buffer", "/barrier/buffer", "/net/buffer"] {
            assert_eq!(of_barriers(&mount_of(path), WriteCache::Volatile), None);
            assert_eq!(of_barriers(&mount_of(path), WriteCache::Unknown), None);
        }
    }

    /// What the kernel tells of a few disks.
    fn sys() -> tempfile::TempDir {
        let sys = tempfile::tempdir().expect("a directory");
        let disk = |number: &str, path: &str| {
            let disk = sys.path().join("devices").join(path);
            std::fs::create_dir_all(&disk).expect("a directory");
            let numbers = sys.path().join("dev/block");
            std::fs::create_dir_all(&numbers).expect("a directory");
            std::os::unix::fs::symlink(&disk, numbers.join(number)).expect("a link");
            disk
        };
        let write = |path: PathBuf, text: &str| std::fs::write(path, text).expect("a file");
        disk("1:3", "ram3");
        disk("252:0", "zram0");
        disk("8:0", "sda");
        disk("9:0", "rambler");
        disk("10:0", "ram");
        write(disk("259:1", "zram0/zram0p1").join("partition"), "1\n");
        std::fs::create_dir_all(disk("7:5", "loop5").join("loop")).expect("a directory");
        write(sys.path().join("devices/loop5/loop/backing_file"), "/dev/shm/an image\n");
        write(disk("259:2", "loop5/loop5p1").join("partition"), "1\n");
        disk("7:6", "loop6");
        sys
    }

    #[test]
    fn a_disk_that_is_memory_is_known_by_its_name_and_its_partitions_are_that_disk() {
        let sys = sys();
        let kind = |major, minor| backing_medium(sys.path(), makedev(major, minor));
        let memory = |name: &str| Some(BackingMedium::Memory { name: name.into() });
        assert_eq!(kind(1, 3), memory("ram3"));
        assert_eq!(kind(252, 0), memory("zram0"));
        assert_eq!(kind(259, 1), memory("zram0"));
        for (major, what) in [(8, "a disk"), (9, "another name"), (10, "no number"), (11, "not there")] {
            assert_eq!(kind(major, 0), None, "{what}");
        }
    }

    #[test]
    fn a_loop_device_is_its_file() {
        let sys = sys();
        let file = Some(BackingMedium::File { name: "loop5".into(), file: "/dev/shm/an image".into() });
        assert_eq!(backing_medium(sys.path(), makedev(7, 5)), file);
        assert_eq!(backing_medium(sys.path(), makedev(259, 2)), file);
        assert_eq!(backing_medium(sys.path(), makedev(7, 6)), None, "it has none");
    }

    #[test]
    fn what_a_loop_device_loses_is_what_its_file_does() {
        let over =
            |why| VolatileReason::Loop { name: "loop5".into(), file: "/a/b".into(), why: Box::new(why) };
        let memory = over(VolatileReason::MemoryFs { fs_type: "tmpfs".into() });
        assert_eq!(
            memory.to_string(),
            "lies on loop5, a loop device over /a/b, and that lies on tmpfs, which is memory"
        );
        assert!(memory.loses_all());
        let flushes = over(VolatileReason::NoBarriers { point: "/a".into(), option: "nobarrier".into() });
        assert!(!flushes.loses_all(), "a store is on its disk sooner or later");
    }

    #[test]
    fn what_is_not_known_is_not_lost() {
        assert_eq!(probe_durability(Path::new("/proc/self/mountinfo")), None);
        assert_eq!(of_path(Path::new("/dev/shm/no such image"), LOOPS_MAX), None, "a file of somewhere else");
    }

    #[test]
    fn what_is_not_there_yet_will_lie_where_its_directory_does() {
        let mounts = MountTable::read().expect("a table");
        if mounts.mounted_at(Path::new("/dev/shm")).is_some_and(|mount| mount.fs_type == "tmpfs") {
            let lost = Some(VolatileReason::MemoryFs { fs_type: "tmpfs".into() });
            assert_eq!(probe_durability(Path::new("/dev/shm")), lost);
            assert_eq!(probe_durability(Path::new("/dev/shm/not/there/yet")), lost);
        }
    }
}

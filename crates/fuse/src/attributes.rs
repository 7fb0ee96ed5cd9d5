//! Attributes as the kernel wants them, and requests to set them as `fs` wants them.

use device::nanos_since_epoch;
use fs::{Attributes, Caller, Ino, Kind, SetTime};
use fuser::{FileAttr, FileType, Generation, INodeNo, Request, TimeOrNow};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Permission bits with setuid, setgid and sticky.
const PERMISSIONS: u32 = 0o7777;

/// `st_blksize`: what `stat` recommends as the size of a read or write. A page, as everywhere below.
const BLOCK_SIZE: u32 = device::BLOCK_BYTES as u32;

pub(crate) fn to_kernel(from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(from.ino.0),
        size: from.size,
        blocks: blocks(from),
        atime: system_time(from.accessed),
        mtime: system_time(from.modified),
        ctime: system_time(from.changed),
        crtime: system_time(from.created),
        kind: file_type(from.kind),
        perm: from.mode,
        nlink: from.links,
        uid: from.uid,
        gid: from.gid,
        rdev: from.device,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// `st_blocks`. `tar -S` takes a file that has none for one hole, without seeking; what was stored into a mapping of it may be in the
/// kernel's memory only.
fn blocks(from: &Attributes) -> u64 {
    let stored = from.stored_bytes.div_ceil(512);
    match from.kind {
        Kind::File if from.size > 0 => stored.max(1),
        _ => stored,
    }
}

/// What the kernel takes as "there is no such name", for as long as the reply's time to live: an entry with inode 0.
pub(crate) fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

pub(crate) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::File => FileType::RegularFile,
        Kind::Directory => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Fifo => FileType::NamedPipe,
        Kind::Socket => FileType::Socket,
        Kind::CharDevice => FileType::CharDevice,
        Kind::BlockDevice => FileType::BlockDevice,
    }
}

/// What `mknod` is asked to make; `None`: nothing that it makes.
pub(crate) fn kind(mode: u32) -> Option<Kind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(Kind::File),
        libc::S_IFIFO => Some(Kind::Fifo),
        libc::S_IFSOCK => Some(Kind::Socket),
        libc::S_IFCHR => Some(Kind::CharDevice),
        libc::S_IFBLK => Some(Kind::BlockDevice),
        _ => None,
    }
}

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSIONS) as u16
}

pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(at) => SetTime::To(nanos_since_epoch(at)),
    }
}

fn system_time(nanos: i64) -> SystemTime {
    let distance = Duration::from_nanos(nanos.unsigned_abs());
    if nanos >= 0 { UNIX_EPOCH + distance } else { UNIX_EPOCH - distance }
}

/// What tells the files apart that have had this number: 32 bits, of which handles are made.
///
/// A crash may take back a file that nobody synced, and its number and generation with it; the next file gets both. So the
/// time of creation is part of it. The kernel's own root has generation 0: told of another, Linux before 6.9 gives it up.
pub(crate) fn generation(of: &Attributes) -> Generation {
    if of.ino == Ino::ROOT {
        return Generation(0);
    }
    // 2^64 divided by the golden ratio: times that are near each other are far apart in the upper half.
    let created = (of.created as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    Generation(u64::from(of.generation) ^ created)
}

pub(crate) fn caller(request: &Request, umask: u32) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), umask: permissions(umask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_both_ways() {
        for nanos in [0, 1, -1, 1_700_000_000_123_456_789, -86_400_000_000_001, i64::MAX] {
            assert_eq!(set_time(TimeOrNow::SpecificTime(system_time(nanos))), SetTime::To(nanos));
        }
    }

    #[test]
    fn a_generation_differs_by_count_and_by_creation_and_is_32_bits_and_the_roots_is_0() {
        let made = |ino, generation, created| {
            let attributes = Attributes {
                ino: Ino(ino),
                generation,
                kind: Kind::File,
                size: 0,
                stored_bytes: 0,
                mode: 0,
                links: 1,
                uid: 0,
                gid: 0,
                device: 0,
                accessed: 0,
                modified: 0,
                changed: 0,
                created,
            };
            super::generation(&attributes).0
        };
        assert_eq!((made(1, 1, 5), made(1, 1, 6)), (0, 0));
        assert_ne!(made(7, 1, 5), made(7, 2, 5));
        let (now, tick) = (1_700_000_000_000_000_000, 4_000_000);
        let all: std::collections::BTreeSet<u64> = (0..1000).map(|at| made(7, 1, now + at * tick)).collect();
        assert_eq!(all.len(), 1000);
        assert!(all.iter().all(|&generation| u32::try_from(generation).is_ok()));
    }

    #[test]
    fn a_mode_keeps_its_permission_bits_and_loses_its_type() {
        assert_eq!(permissions(libc::S_IFREG | 0o6755), 0o6755);
    }
}

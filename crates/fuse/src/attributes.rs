//! Attributes, converted from `fs` to the kernel's form and back.

use crate::privileges::privilege_change;
use crate::protocol::{AttrReply, EntryReply, RequestHeader, SetTimeIn, SetattrIn, WireAttributes};
use fs::{CallerCredentials, FileAttributes, FileKind, Ino, SetAttributes, SetTime};
use std::time::Duration;

/// Permission bits with setuid, setgid and sticky.
const PERMISSIONS: u32 = 0o7777;

/// `st_blksize`, the size that `stat` recommends for reads and writes: a page.
const BLOCK_SIZE: u32 = device::BLOCK_BYTES as u32;

const SECOND_NANOS: i64 = 1_000_000_000;

fn to_wire(from: &FileAttributes) -> WireAttributes {
    let (accessed, accessed_nanos) = seconds(from.accessed);
    let (modified, modified_nanos) = seconds(from.modified);
    let (changed, changed_nanos) = seconds(from.changed);
    WireAttributes {
        node: from.ino.0,
        size: from.size,
        blocks: blocks(from),
        accessed,
        modified,
        changed,
        accessed_nanos,
        modified_nanos,
        changed_nanos,
        mode: mode_of(from.kind) | u32::from(from.mode),
        links: from.links,
        uid: from.uid,
        gid: from.gid,
        device: from.device,
        block_bytes: BLOCK_SIZE,
        flags: 0,
    }
}

/// `st_blocks`, at least 1 for a file that has bytes: for `tar -S` a file without blocks is one hole, without
/// seeking, but the kernel may hold bytes that were stored into a mapping of it.
fn blocks(from: &FileAttributes) -> u64 {
    let stored = from.stored_bytes.div_ceil(512);
    match from.kind {
        FileKind::File if from.size > 0 => stored.max(1),
        _ => stored,
    }
}

/// A reply with attributes, which the kernel may cache for `ttl`.
pub(crate) fn attr_reply(of: &FileAttributes, ttl: Duration) -> AttrReply {
    AttrReply {
        valid_seconds: ttl.as_secs(),
        valid_nanos: ttl.subsec_nanos(),
        padding: 0,
        attributes: to_wire(of),
    }
}

/// A reply with a name's inode, which the kernel may cache for `ttl`.
pub(crate) fn entry_reply(of: &FileAttributes, ttl: Duration) -> EntryReply {
    EntryReply { node: of.ino.0, generation: generation(of), attributes: to_wire(of), ..no_entry(ttl) }
}

/// A reply that says "no such name", which the kernel may cache for `ttl`: an entry with inode 0.
pub(crate) fn no_entry(ttl: Duration) -> EntryReply {
    EntryReply {
        name_valid_seconds: ttl.as_secs(),
        attributes_valid_seconds: ttl.as_secs(),
        name_valid_nanos: ttl.subsec_nanos(),
        attributes_valid_nanos: ttl.subsec_nanos(),
        ..EntryReply::default()
    }
}

/// The file type bits of a mode.
pub(crate) fn mode_of(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

/// The kind of file that `mknod` is to make; `None` if `mknod` cannot make it.
pub(crate) fn mknod_kind(mode: u32) -> Option<FileKind> {
    match mode & libc::S_IFMT {
        libc::S_IFREG => Some(FileKind::File),
        libc::S_IFIFO => Some(FileKind::Fifo),
        libc::S_IFSOCK => Some(FileKind::Socket),
        libc::S_IFCHR => Some(FileKind::CharDevice),
        libc::S_IFBLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

pub(crate) fn permissions(mode: u32) -> u16 {
    (mode & PERMISSIONS) as u16
}

/// The attributes that a SETATTR request sets.
pub(crate) fn attributes_to_set(asked: &SetattrIn) -> SetAttributes {
    let set = SetAttributes {
        mode: asked.mode().map(permissions),
        uid: asked.uid(),
        gid: asked.gid(),
        size: asked.size(),
        accessed: asked.accessed().map(set_time),
        modified: asked.modified().map(set_time),
        ..Default::default()
    };
    SetAttributes { privileges: privilege_change(asked.kills_privileges(), &set), ..set }
}

/// A time to set. A time beyond the range of an i64 of nanoseconds becomes the nearest one in it.
fn set_time(time: SetTimeIn) -> SetTime {
    match time {
        SetTimeIn::Now => SetTime::Now,
        SetTimeIn::To(seconds, nanos) => {
            let exact = i128::from(seconds) * i128::from(SECOND_NANOS) + i128::from(nanos);
            SetTime::To(exact.clamp(i64::MIN.into(), i64::MAX.into()) as i64)
        }
    }
}

/// Splits a time into the second that has begun and the nanoseconds since then.
fn seconds(nanos: i64) -> (i64, u32) {
    (nanos.div_euclid(SECOND_NANOS), nanos.rem_euclid(SECOND_NANOS) as u32)
}

/// The generation that the kernel and file handles see: 32 bits that differ for all files that have had one
/// number.
///
/// A crash may take back a file that was never synced, with its number and generation, and the next file gets
/// both. So the generation includes the time of creation. The kernel's root has generation 0: if told another
/// one, Linux before 6.9 gives its root up.
fn generation(of: &FileAttributes) -> u64 {
    if of.ino == Ino::ROOT {
        return 0;
    }
    // 2^64 divided by the golden ratio spreads times that are close to each other over the upper half.
    let created = (of.created as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    u64::from(of.generation) ^ created
}

pub(crate) fn caller(header: &RequestHeader, umask: u32) -> CallerCredentials {
    CallerCredentials { uid: header.uid, gid: header.gid, umask: permissions(umask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_and_after_1970_survive_both_ways() {
        for nanos in [0, 1, -1, 1_700_000_000_123_456_789, -86_400_000_000_001, i64::MIN, i64::MAX] {
            let (seconds, rest) = seconds(nanos);
            assert_eq!(set_time(SetTimeIn::To(seconds, rest)), SetTime::To(nanos));
        }
        assert_eq!(seconds(-500_000_000), (-1, 500_000_000), "half a second before 1970");
    }

    #[test]
    fn a_time_that_64_bits_cannot_hold_becomes_the_nearest_that_they_can() {
        let (first, last) = (seconds(i64::MIN), seconds(i64::MAX));
        for (time, nearest) in [
            ((i64::MIN, 0), i64::MIN),
            ((i64::MIN, u32::MAX), i64::MIN),
            ((first.0, first.1 - 1), i64::MIN),
            ((last.0, last.1 + 1), i64::MAX),
            ((i64::MAX, u32::MAX), i64::MAX),
        ] {
            assert_eq!(set_time(SetTimeIn::To(time.0, time.1)), SetTime::To(nearest), "{time:?}");
        }
    }

    #[test]
    fn a_generation_differs_by_count_and_by_creation_and_is_32_bits_and_the_roots_is_0() {
        let made = |ino, generation, created| {
            let attributes = FileAttributes {
                ino: Ino(ino),
                generation,
                kind: FileKind::File,
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
            super::generation(&attributes)
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

//! Files that have less space than they are long: what has some, asking for more, and how much the file system has left.

use device::{BLOCK_BYTES, Block};
use rustix::fs::{FallocateFlags, IFlags, StatVfs};
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater, opcode};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Gives these bytes of a file space. Where a file system does not know what that is, writing is the only way to find out, so there it
/// counts as done.
pub(crate) fn allocate(file: BorrowedFd<'_>, offset: u64, bytes: u64) -> Result<(), Errno> {
    // What had space before keeps it: only what comes is given back after an error.
    let before = allocated_bytes(file, offset..offset + bytes);
    loop {
        return match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, offset, bytes) {
            Err(Errno::INTR) => continue,
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NODEV) => Ok(()),
            Err(errno) => {
                punch_unallocated(file, offset..offset + bytes, before.unwrap_or_default());
                Err(errno)
            }
        };
    }
}

/// Takes the space from what lies between the ranges that are to stay.
fn punch_unallocated(file: BorrowedFd<'_>, within: Range<u64>, stay: Vec<Range<u64>>) {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let mut from = within.start;
    for range in stay.into_iter().chain(std::iter::once(within.end..within.end)) {
        if range.start > from {
            // Nothing is lost if it stays: it has more space than it was known to have.
            let _ = rustix::fs::fallocate(file, mode, from, range.start - from);
        }
        from = from.max(range.end);
    }
}

/// The whole blocks of a file that have space, as far as its file system says.
pub(crate) fn allocated(file: BorrowedFd<'_>, blocks: u64) -> Vec<Range<Block>> {
    let block = BLOCK_BYTES as u64;
    let whole = |range: Range<u64>| Block(range.start.div_ceil(block))..Block(range.end / block);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in allocated_bytes(file, 0..blocks * block).unwrap_or_default() {
        match joined.last_mut() {
            Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
            _ => joined.push(range),
        }
    }
    joined.into_iter().map(whole).filter(|range| range.start < range.end).collect()
}

/// `FS_IOC_FIEMAP` of linux/fs.h, and what it takes and gives: linux/fiemap.h.
const FIEMAP: Opcode = opcode::read_write::<FiemapHead>(b'f', 11);
/// The extent is the last one.
const LAST: u32 = 1;
/// Its place is not known: not allocated yet.
const UNKNOWN: u32 = 2;
/// Other files have it, too: a write takes new space.
const SHARED: u32 = 0x2000;
/// Extents asked for at once: 28 KiB.
const EXTENTS: usize = 500;

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct FiemapHead {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

#[repr(C)]
struct FiemapRequest {
    head: FiemapHead,
    extents: [FiemapExtent; EXTENTS],
}

const _: () = assert!(size_of::<FiemapHead>() == 32 && size_of::<FiemapExtent>() == 56);

/// The bytes within `within` that have space of their own, written or not; `None` where the file system does not say.
fn allocated_bytes(file: BorrowedFd<'_>, within: Range<u64>) -> Option<Vec<Range<u64>>> {
    let (mut found, mut at) = (Vec::new(), within.start);
    let mut map =
        Box::new(FiemapRequest { head: FiemapHead::default(), extents: [FiemapExtent::default(); EXTENTS] });
    while at < within.end {
        let (length, extent_count) = (within.end - at, EXTENTS as u32);
        map.head = FiemapHead { start: at, length, extent_count, ..FiemapHead::default() };
        // SAFETY: FIEMAP reads the head, and writes to it and to at most `extent_count` extents behind it, all of which `FiemapRequest` has.
        unsafe { rustix::ioctl::ioctl(file, Updater::<FIEMAP, FiemapRequest>::new(&mut map)) }.ok()?;
        let extents = &map.extents[..(map.head.mapped_extents as usize).min(EXTENTS)];
        let Some(last) = extents.last() else { break };
        for extent in extents.iter().filter(|extent| extent.flags & (UNKNOWN | SHARED) == 0) {
            let end = (extent.logical + extent.length).min(within.end);
            found.push(extent.logical.max(within.start)..end);
        }
        if last.flags & LAST != 0 || last.logical + last.length <= at {
            break;
        }
        at = last.logical + last.length;
    }
    Some(found)
}

/// Where a file system would write each change of a file to a new place, asks it to write in place: it keeps no older version of what the
/// store overwrites, and what has space keeps it. Only a file that is empty can be asked for; others do not know the flag.
pub(crate) fn disable_copy_on_write(file: impl AsFd) {
    if let Ok(flags) = rustix::fs::ioctl_getflags(&file) {
        let _ = rustix::fs::ioctl_setflags(&file, flags | IFlags::NOCOW);
    }
}

/// Bytes that the file system of `path` has left for users. One that tells of no blocks at all, as `ramfs` does, has no limit.
pub fn spare_bytes(path: &Path) -> std::io::Result<u64> {
    Ok(available_bytes(&rustix::fs::statvfs(path)?).unwrap_or(u64::MAX))
}

fn available_bytes(of: &StatVfs) -> Option<u64> {
    (of.f_blocks > 0).then(|| of.f_bavail.saturating_mul(of.f_frsize))
}

/// How long what a file system said counts as true.
const SPARE_FOR: Duration = Duration::from_secs(1);

/// What a file system had left when it was last asked.
#[derive(Debug, Default)]
pub(crate) struct SpareSpaceCache(Mutex<Option<(Instant, Option<u64>)>>);

impl SpareSpaceCache {
    pub(crate) fn blocks(&self, file: BorrowedFd<'_>) -> Option<u64> {
        let known = *self.state();
        if let Some((_, blocks)) = known.filter(|(since, _)| since.elapsed() < SPARE_FOR) {
            return blocks;
        }
        let bytes = rustix::fs::fstatvfs(file).ok().and_then(|stat| available_bytes(&stat));
        let blocks = bytes.map(|bytes| bytes / BLOCK_BYTES as u64);
        *self.state() = Some((Instant::now(), blocks));
        blocks
    }

    /// It is asked anew the next time.
    pub(crate) fn forget(&self) {
        *self.state() = None;
    }

    fn state(&self) -> std::sync::MutexGuard<'_, Option<(Instant, Option<u64>)>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

//! Opening and creating disks: access, locks, sizes.

use crate::disk::{DiskKind, HostDisk};
use crate::error::HostError;
use crate::process::{is_ending, lock_holder};
use crate::sparse;
use device::{BLOCK_BYTES, Block, Device, DeviceError};
use rustix::fs::{FileType, FlockOperation, Mode, OFlags, Stat, major, minor};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// How a disk is opened, and how it is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskAccess {
    /// For reading. Others may read at the same time.
    Read,
    /// For reading and writing. No other process may have it open, not even for reading.
    Write,
}

/// How long an open waits for another process, which may use the disk for a moment only.
const BUSY_WAIT: Duration = Duration::from_secs(2);

/// How long an open waits for a process that is ending: many times what a killed one takes on a busy machine.
const ENDING_WAIT: Duration = Duration::from_secs(10);

/// The pause between two attempts.
const BUSY_PAUSE: Duration = Duration::from_millis(10);

/// The lowest number of a disk's descriptor, unless the process may have fewer.
const DESCRIPTOR_MIN: i32 = 500;

/// What to do if the file exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingFile {
    /// Leave the file alone, and fail.
    Refuse,
    /// Empty the file, once no other process uses it.
    Overwrite,
}

impl HostDisk {
    /// Opens a file or block device, with O_DIRECT where the file system allows it. Changes nothing.
    ///
    /// The lock lasts as long as the `HostDisk`. A file's last bytes are ignored if they are less than a
    /// block.
    pub fn open(path: &Path, access: DiskAccess) -> Result<HostDisk, HostError> {
        let (flags, lock) = match access {
            DiskAccess::Read => (OFlags::RDONLY, FlockOperation::NonBlockingLockShared),
            DiskAccess::Write => (OFlags::RDWR, FlockOperation::NonBlockingLockExclusive),
        };
        // Checked before opening, which would wait for the other end of a pipe, and set a tape in motion.
        let stat = rustix::fs::stat(path).map_err(|errno| HostError::of(path, "looking at it", errno))?;
        let exclusive = match (disk_kind(path, stat.st_mode)?, access) {
            // With O_EXCL the kernel refuses a device that is mounted or part of another device.
            (DiskKind::BlockDevice, DiskAccess::Write) => OFlags::EXCL,
            _ => OFlags::empty(),
        };
        if access == DiskAccess::Write && is_read_only(stat.st_mode, stat.st_rdev) {
            return Err(HostError::ReadOnly { path: path.to_owned() });
        }
        let is_user_ending = || matches!(lock_holder(path), Ok(Some(pid)) if is_ending(pid));
        let file = retry_while_busy(is_user_ending, || {
            let file = open_direct(path, flags | exclusive)?;
            rustix::fs::flock(&file, lock).map_err(|errno| HostError::of(path, "locking it", errno))?;
            Ok(file)
        })?;
        HostDisk::of(path, file)
    }

    /// Opens a file or block device for reading, without a lock: another process may change it meanwhile.
    pub fn open_unlocked(path: &Path) -> Result<HostDisk, HostError> {
        let stat = rustix::fs::stat(path).map_err(|errno| HostError::of(path, "looking at it", errno))?;
        disk_kind(path, stat.st_mode)?;
        HostDisk::of(path, open_direct(path, OFlags::RDONLY)?)
    }

    /// Allocates space for the whole file, for good. After an error the file is as sparse as before.
    pub fn preallocate(self) -> Result<HostDisk, DeviceError> {
        self.allocate(Block(0), self.blocks())?;
        self.flush()?;
        Ok(self.into_preallocated())
    }

    /// Makes a sparse file of `bytes` bytes, a multiple of 4096 above 0, and opens it for writing.
    ///
    /// After a crash the file exists as a whole or not at all. If it replaces another, it may also be empty
    /// or unchanged.
    pub fn create(path: &Path, bytes: u64, overwrite: ExistingFile) -> Result<HostDisk, HostError> {
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_BYTES as u64) || i64::try_from(bytes).is_err() {
            return Err(HostError::InvalidSize { path: path.to_owned(), bytes });
        }
        let error = |doing| move |errno: Errno| HostError::of(path, doing, errno);
        let flags = OFlags::RDWR | OFlags::CREATE;
        let file = match open_direct(path, flags | OFlags::EXCL) {
            Err(HostError::Exists { .. }) if overwrite == ExistingFile::Overwrite => {
                return overwrite_existing(path, bytes);
            }
            other => other?,
        };
        sparse::disable_copy_on_write(&file);
        let made = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)
            .map_err(error("locking it"))
            .and_then(|()| rustix::fs::ftruncate(&file, bytes).map_err(error("making it as long as asked")))
            .and_then(|()| rustix::fs::fsync(&file).map_err(error("making it durable")))
            .and_then(|()| sync_parent(path));
        if let Err(error) = made {
            // This call made the file, and no other process can use it yet. But one may have put another file there.
            if FileIdentity::of(&file).is_some_and(|made| FileIdentity::at(path) == Some(made)) {
                let _ = std::fs::remove_file(path);
            }
            return Err(error);
        }
        HostDisk::of(path, file)
    }

    /// Which file the disk is, whatever is at its path by now.
    pub fn file_identity(&self) -> Option<FileIdentity> {
        FileIdentity::of(self.file())
    }

    fn of(path: &Path, file: OwnedFd) -> Result<HostDisk, HostError> {
        let stat = rustix::fs::fstat(&file).map_err(|errno| HostError::of(path, "looking at it", errno))?;
        let is_full = stat.st_blocks as u64 >= stat.st_size as u64 / 512;
        let kind = match disk_kind(path, stat.st_mode)? {
            DiskKind::File if is_full => DiskKind::Preallocated,
            kind => kind,
        };
        // The library opens disks in programs that expect the low numbers for themselves.
        let file = rustix::io::fcntl_dupfd_cloexec(&file, DESCRIPTOR_MIN).unwrap_or(file);
        let disk = HostDisk::new(file, path, kind, 0);
        let bytes = disk.measure().map_err(|errno| HostError::of(path, "finding its size", errno))?;
        Ok(disk.with_blocks(bytes / BLOCK_BYTES as u64))
    }
}

/// Which file a file is. Another one may have the same identity once it is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    device: u64,
    inode: u64,
}

impl FileIdentity {
    /// The file at `path`, without following a symbolic link. `None` if nothing is there.
    pub fn at(path: &Path) -> Option<FileIdentity> {
        rustix::fs::lstat(path).ok().as_ref().map(FileIdentity::from_stat)
    }

    fn of(file: impl AsFd) -> Option<FileIdentity> {
        rustix::fs::fstat(file).ok().as_ref().map(FileIdentity::from_stat)
    }

    pub(crate) fn from_stat(stat: &Stat) -> FileIdentity {
        FileIdentity { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// Whether the kernel treats this block device as read-only. Some kernels open it for writing all the same,
/// and fail later.
fn is_read_only(mode: u32, device: u64) -> bool {
    let at = format!("/sys/dev/block/{}:{}/ro", major(device), minor(device));
    FileType::from_raw_mode(mode) == FileType::BlockDevice
        && std::fs::read_to_string(at).is_ok_and(|says| says.trim() == "1")
}

/// Repeats `attempt` while another process uses the file: for up to [`BUSY_WAIT`], or [`ENDING_WAIT`] if that process is ending.
///
/// A daemon that was killed holds its lock until the last of its threads has ended. An administrator who
/// restarts it at once should not be told that it is still running.
fn retry_while_busy(
    is_user_ending: impl Fn() -> bool,
    mut attempt: impl FnMut() -> Result<OwnedFd, HostError>,
) -> Result<OwnedFd, HostError> {
    let began = Instant::now();
    loop {
        // Asked before the attempt: in its course the process may have ended.
        let may_wait = began.elapsed() < BUSY_WAIT || began.elapsed() < ENDING_WAIT && is_user_ending();
        match attempt() {
            Err(HostError::Busy { .. }) if may_wait => std::thread::sleep(BUSY_PAUSE),
            other => return other,
        }
    }
}

/// Empties an existing file that no other process uses, and makes it `bytes` long.
fn overwrite_existing(path: &Path, bytes: u64) -> Result<HostDisk, HostError> {
    let stat = rustix::fs::stat(path).map_err(|errno| HostError::of(path, "looking at it", errno))?;
    if disk_kind(path, stat.st_mode)? == DiskKind::BlockDevice {
        return Err(HostError::NotADisk {
            path: path.to_owned(),
            what: "a block device, whose size is fixed",
        });
    }
    let disk = HostDisk::open(path, DiskAccess::Write)?;
    disk.make_private()?;
    for length in [0, bytes] {
        rustix::fs::ftruncate(disk.file(), length)
            .map_err(|errno| HostError::of(path, "making it as long as asked", errno))?;
    }
    rustix::fs::fsync(disk.file()).map_err(|errno| HostError::of(path, "making it durable", errno))?;
    Ok(disk.with_blocks(bytes / BLOCK_BYTES as u64))
}

/// Whether reads of the file or device at `path` come from the device, because direct I/O works there.
///
/// Without direct I/O the kernel's page cache returns data that a failed flush has lost, until the power
/// fails.
pub fn has_direct_io(path: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    !matches!(rustix::fs::open(path, flags, Mode::empty()), Err(Errno::INVAL))
}

fn open_direct(path: &Path, flags: OFlags) -> Result<OwnedFd, HostError> {
    // Only the owner may read it: a store holds other users' files.
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = flags | OFlags::CLOEXEC;
    let made = if flags.contains(OFlags::CREATE) { OFlags::EXCL } else { OFlags::empty() };
    match rustix::fs::open(path, flags | OFlags::DIRECT, mode) {
        // The file system has no direct I/O, and created the file before it noticed.
        Err(Errno::INVAL) => rustix::fs::open(path, flags.difference(made), mode),
        other => other,
    }
    .map_err(|errno| HostError::of(path, "opening it", errno))
}

fn sync_parent(path: &Path) -> Result<(), HostError> {
    let parent = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    rustix::fs::open(parent, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .and_then(|directory| rustix::fs::fsync(&directory))
        .map_err(|errno| HostError::of(parent, "making its new entry durable", errno))
}

pub(crate) fn disk_kind(path: &Path, mode: u32) -> Result<DiskKind, HostError> {
    let what = match FileType::from_raw_mode(mode) {
        FileType::RegularFile => return Ok(DiskKind::File),
        FileType::BlockDevice => return Ok(DiskKind::BlockDevice),
        FileType::Directory => "a directory",
        FileType::CharacterDevice => "a character device",
        FileType::Fifo => "a pipe",
        FileType::Socket => "a socket",
        _ => "something else",
    };
    Err(HostError::NotADisk { path: path.to_owned(), what })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn busy() -> Result<OwnedFd, HostError> {
        Err(HostError::Busy { path: "file".into() })
    }

    #[test]
    fn an_open_waits_longer_for_a_process_that_is_ending_and_not_for_others() {
        let asked = Cell::new(0);
        let ask = |answer: bool| {
            asked.set(asked.get() + 1);
            answer
        };
        let file = || tempfile::tempfile().expect("a temporary file").into();
        let opened = retry_while_busy(|| ask(true), || if asked.get() < 3 { busy() } else { Ok(file()) });
        assert!(opened.is_ok());
        asked.set(0);
        assert!(matches!(retry_while_busy(|| ask(false), busy), Err(HostError::Busy { .. })));
        assert_eq!(asked.get(), 1);
    }
}

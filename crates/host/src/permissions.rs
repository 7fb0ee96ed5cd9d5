//! Who else may read a medium: a store holds everybody's files.

use crate::disk::{DiskKind, HostDisk};
use crate::error::HostError;
use crate::open::disk_kind;
use device::Device;
use rustix::fs::Mode;
use std::path::Path;

/// Permission bits of a file's group and of all others.
const OTHERS: u32 = 0o077;

/// Permission to read, for all others. A block device's group is the administrator's choice: on most systems, those who may
/// make backups of whole disks.
const ALL_READ: u32 = 0o004;

impl HostDisk {
    /// Takes every permission on a file from all but its owner; a block device stays as it is. To be called before anything
    /// is written: who has opened the file already can still read it.
    pub fn make_private(&self) -> Result<(), HostError> {
        let path = Path::new(self.name());
        let stat =
            rustix::fs::fstat(self.file()).map_err(|errno| HostError::of(path, "looking at it", errno))?;
        if self.kind() == DiskKind::BlockDevice || stat.st_mode & OTHERS == 0 {
            return Ok(());
        }
        rustix::fs::fchmod(self.file(), Mode::RUSR | Mode::WUSR).map_err(|errno| HostError::NotPrivate {
            path: path.to_owned(),
            mode: stat.st_mode & 0o7777,
            source: errno.into(),
        })
    }
}

/// The permissions of the medium at `path`, if others can read it: others than the owner of a file, or than the owner and the
/// group of a block device.
pub fn mode_if_public(path: &Path) -> Result<Option<u32>, HostError> {
    let stat = rustix::fs::stat(path).map_err(|errno| HostError::of(path, "looking at it", errno))?;
    let theirs = match disk_kind(path, stat.st_mode)? {
        DiskKind::File | DiskKind::Preallocated => OTHERS,
        DiskKind::BlockDevice => ALL_READ,
    };
    Ok((stat.st_mode & theirs != 0).then_some(stat.st_mode & 0o7777))
}

//! Checks whether a directory can be mounted on, before anything is written anywhere.

use crate::error::WeirError;
use crate::unmount::{UnmountMode, unmount};
use client::{ClientError, DeviceNumber, WeirMount, mount_point_spellings};
use host::{MountEntry, MountTable};
use stack::{StackError, StoreMedia, absolute};
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A directory that can be mounted on.
pub(crate) struct MountPoint {
    /// An absolute path without symbolic links.
    pub(crate) dir: PathBuf,
    below: PresentMount,
}

/// The mount that a directory already has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PresentMount {
    Nothing,
    /// The mount that a killed daemon of the same store left behind.
    DeadMount(DeviceNumber),
}

impl MountPoint {
    /// Checks whether the store at `store`, an absolute path, can be mounted on `dir`.
    pub(crate) fn check(dir: &Path, allow_other: bool, store: &Path) -> Result<MountPoint, WeirError> {
        let point = match mount_at(dir)? {
            Some(mount) => dead_mount(&mount, store)?,
            None => MountPoint { dir: check_directory(dir)?, below: PresentMount::Nothing },
        };
        check_kernel()?;
        check_permission(&point, allow_other)?;
        Ok(point)
    }

    /// Refuses media below the mount point: the mount would hide them.
    pub(crate) fn ensure_not_over(&self, media: &StoreMedia) -> Result<(), WeirError> {
        match [&media.store, &media.buffer].into_iter().find(|path| path.starts_with(&self.dir)) {
            Some(path) => Err(WeirError::BelowMountPoint { path: path.clone(), dir: self.dir.clone() }),
            None => Ok(()),
        }
    }

    /// Removes a dead mount, if there is one.
    ///
    /// This is the last step before the new mount. Until then, programs on the dead mount get errors, and do
    /// not reach the directory below.
    pub(crate) fn clear(&self) -> Result<(), WeirError> {
        let PresentMount::DeadMount(dead) = self.below else { return Ok(()) };
        if device_of(&self.dir).is_ok_and(|device| device == dead) {
            let failed = |why| WeirError::Unmount { dir: self.dir.clone(), why };
            unmount(&self.dir, UnmountMode::Detach).map_err(failed)?;
            let dir = self.dir.display();
            tracing::info!("{dir}: the last daemon was killed or crashed; removing its dead mount");
        }
        match mount_at(&self.dir)? {
            // Another process has mounted here meanwhile.
            Some(mount) => Err(WeirError::MountPointBusy { dir: mount.point, fs_type: mount.fs_type }),
            None => check_directory(&self.dir).map(drop),
        }
    }
}

/// The device number of the weir mount on `dir`.
pub(crate) fn device_of(dir: &Path) -> Result<DeviceNumber, WeirError> {
    Ok(WeirMount::at(dir)?.device())
}

/// The mount on `dir`, from the mount table. `dir` itself is not touched: access to a mount fails if its
/// daemon has ended, and hangs if the daemon hangs.
fn mount_at(dir: &Path) -> Result<Option<MountEntry>, WeirError> {
    let mounts = MountTable::read().map_err(|source| StackError::Host { path: dir.into(), source })?;
    Ok(mount_point_spellings(dir).find_map(|dir| mounts.mounted_at(&dir)).cloned())
}

/// Accepts a mounted directory only if the mount is a dead mount of this store that the user may remove.
fn dead_mount(mount: &MountEntry, store: &Path) -> Result<MountPoint, WeirError> {
    let (dir, fs_type) = (mount.point.clone(), mount.fs_type.clone());
    let Some(found) = WeirMount::of(mount) else { return Err(WeirError::MountPointBusy { dir, fs_type }) };
    let is_dead = match found.connect().and_then(|mut daemon| daemon.request("status")) {
        Err(ClientError::DaemonGone { .. }) => true,
        // The daemon may have died during the request.
        Err(ClientError::NoAnswer { .. }) => found.is_dead(),
        Err(error @ ClientError::DaemonStopped { .. }) => return Err(error.into()),
        _ => false,
    };
    if !is_dead {
        return Err(WeirError::MountPointBusy { dir, fs_type });
    }
    found.ensure_may_control()?;
    if found.store() == store {
        Ok(MountPoint { dir, below: PresentMount::DeadMount(found.device()) })
    } else {
        Err(WeirError::DeadMount { dir, store: found.store().into() })
    }
}

fn check_directory(dir: &Path) -> Result<PathBuf, WeirError> {
    let found = match fs::metadata(dir) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Err(WeirError::MountPointMissing { dir: dir.into() });
        }
        Err(error) => return Err(WeirError::io("looking at the mount point", dir)(error)),
    };
    if !found.is_dir() {
        return Err(WeirError::MountPointNotDirectory { dir: dir.into() });
    }
    let dir = absolute(dir)?;
    let mut entries = fs::read_dir(&dir).map_err(WeirError::io("listing the mount point", &dir))?;
    match entries.next() {
        Some(_) => Err(WeirError::MountPointNotEmpty { dir }),
        None => Ok(dir),
    }
}

fn check_kernel() -> Result<(), WeirError> {
    let opened = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse");
    opened.map(drop).map_err(|source| WeirError::NoFuse { source })
}

/// Checks whether the user may mount. Root needs nothing. Other users need fusermount3, and a directory that
/// they may write to.
fn check_permission(point: &MountPoint, allow_other: bool) -> Result<(), WeirError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let may_write = || rustix::fs::access(&point.dir, rustix::fs::Access::WRITE_OK).is_ok();
    // The directory below a dead mount cannot be checked. fusermount3 checks it once the dead mount is
    // removed.
    let may_mount = point.below != PresentMount::Nothing || may_write();
    if !may_mount || !has_fusermount() {
        return Err(WeirError::MayNotMount { dir: point.dir.clone() });
    }
    if allow_other && !fuse_conf_allows_other() {
        return Err(WeirError::MayNotAllowOther);
    }
    Ok(())
}

fn has_fusermount() -> bool {
    let tried = std::process::Command::new("fusermount3").arg("-V").output();
    !matches!(tried, Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn fuse_conf_allows_other() -> bool {
    let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
    conf.lines().any(|line| line.trim() == "user_allow_other")
}

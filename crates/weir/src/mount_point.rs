//! Whether a directory can be mounted on, asked before anything is written anywhere.

use crate::cli::MountArgs;
use crate::client::spellings;
use crate::error::WeirError;
use crate::media::absolute;
use host::Mounts;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Checks `dir` and returns it as an absolute path without symbolic links.
pub(crate) fn check(args: &MountArgs) -> Result<PathBuf, WeirError> {
    let dir = check_directory(&args.dir)?;
    check_kernel()?;
    check_permission(&dir, args.allow_other)?;
    Ok(dir)
}

fn check_directory(dir: &Path) -> Result<PathBuf, WeirError> {
    let mounts = Mounts::now().map_err(|source| WeirError::Host { path: dir.into(), source })?;
    // Before `dir` itself is touched: a mount whose daemon is gone, or hangs, would fail or hang here, too.
    if let Some(mount) = spellings(dir).find_map(|dir| mounts.mounted_at(&dir)) {
        return Err(WeirError::MountPointBusy { dir: mount.point.clone(), fs_type: mount.fs_type.clone() });
    }
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

/// Root mounts by itself; others need fusermount3, and a directory that they may write to.
fn check_permission(dir: &Path, allow_other: bool) -> Result<(), WeirError> {
    if rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let may_write = rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).is_ok();
    if !may_write || !has_fusermount() {
        return Err(WeirError::MayNotMount { dir: dir.into() });
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

//! Finds mounts of weir, and their daemons.
//!
//! A program finds a mount in the mount table. It never touches the mount itself, which may hang.

use crate::address::{self, ControlAddress, DeviceNumber};
use crate::connection::ControlClient;
use crate::error::ClientError;
use host::{FuseMountOwner, MountEntry, MountTable, WEIR_FS_TYPE};
use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};
use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

/// How long the kernel may take to report that a mount has no daemon.
const KERNEL_WAIT: Duration = Duration::from_secs(2);

/// A mount of weir.
pub struct WeirMount {
    dir: PathBuf,
    store: PathBuf,
    device: DeviceNumber,
    owner: FuseMountOwner,
}

impl WeirMount {
    /// The mount at `dir`.
    pub fn at(dir: &Path) -> Result<WeirMount, ClientError> {
        let mounts = MountTable::read().map_err(|source| ClientError::MountTable { source })?;
        mount_point_spellings(dir)
            .find_map(|dir| mounts.mounted_at(&dir).and_then(WeirMount::of))
            .ok_or_else(|| not_mounted(dir, &mounts))
    }

    /// The mount that `path` lies on, and the path from the mount's root. Touches the mount only if `path` leads
    /// there through links.
    pub fn containing(path: &Path) -> Result<(WeirMount, PathBuf), ClientError> {
        let mounts = MountTable::read().map_err(|source| ClientError::MountTable { source })?;
        let find = |path: PathBuf| {
            let found = WeirMount::of(mounts.mount_of(&path)?)?;
            let inside = path.strip_prefix(&found.dir).ok()?.to_owned();
            Some((found, inside))
        };
        let is_plain = |path: &PathBuf| !path.components().any(|part| part == Component::ParentDir);
        let plain = std::path::absolute(path).ok().filter(is_plain);
        plain
            .and_then(find)
            .or_else(|| find(std::fs::canonicalize(path).ok()?))
            .ok_or_else(|| not_mounted(path, &mounts))
    }

    /// The mount that an open file lies on. Does not wait for the mount's daemon.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotOnMount`] if the file is not one of weir, or if its mount is not in the mount namespace of this
    /// process.
    pub fn of_file(file: impl AsFd) -> Result<WeirMount, ClientError> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let found = statx(file, c"", flags, StatxFlags::empty());
        let found = found.map_err(|errno| ClientError::FileDevice { source: errno.into() })?;
        let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
        let mounts = MountTable::read().map_err(|source| ClientError::MountTable { source })?;
        let mut of_device = mounts.iter().filter(|mount| mount.device == (major, minor));
        of_device.find_map(WeirMount::of).ok_or(ClientError::NotOnMount { major, minor })
    }

    /// All mounts that the user may control.
    pub fn all_of_user() -> Result<Vec<WeirMount>, ClientError> {
        let mounts = MountTable::read().map_err(|source| ClientError::MountTable { source })?;
        let mounts = mounts.iter().filter_map(WeirMount::of);
        Ok(mounts.filter(|mount| mount.ensure_may_control().is_ok()).collect())
    }

    /// A mount of the store on `medium`, an absolute path, which the process `pid` serves. A dead mount is served by
    /// none, and nobody can pretend to be another process.
    pub fn served_by(pid: u32, medium: &Path) -> Option<WeirMount> {
        let is_served = |mount: &WeirMount| {
            let daemon = address::connect(ControlAddress::Mount(mount.device), mount.owner.uid);
            daemon.is_ok_and(|daemon| daemon.is_some_and(|(_, peer)| peer.pid == Some(pid)))
        };
        let mounts = MountTable::read().ok()?;
        let mut of_store =
            mounts.iter().filter_map(WeirMount::of).filter(|mount| medium.starts_with(&mount.store));
        of_store.find(is_served)
    }

    /// The mount in a line of the mount table, if it is a mount of weir.
    pub fn of(mount: &MountEntry) -> Option<WeirMount> {
        let owner = mount.owner.filter(|_| mount.fs_type == WEIR_FS_TYPE)?;
        let (dir, store) = (mount.point.clone(), mount.source.clone());
        Some(WeirMount { dir, store, device: mount.device, owner })
    }

    /// The mount point.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The path of the store.
    pub fn store(&self) -> &Path {
        &self.store
    }

    /// The device number, which leads to the daemon.
    pub fn device(&self) -> DeviceNumber {
        self.device
    }

    /// Connects to the mount's daemon.
    pub fn connect(&self) -> Result<ControlClient, ClientError> {
        let no_answer = |source| ClientError::NoAnswer { dir: self.dir.clone(), source };
        let address = ControlAddress::Mount(self.device);
        match address::connect(address, self.owner.uid).map_err(no_answer)? {
            Some((stream, peer)) => {
                Ok(ControlClient::over(stream, self.dir.clone(), self.owner.uid, peer.pid))
            }
            None if self.is_dead() => Err(self.gone()),
            None => {
                Err(no_answer(io::Error::other("no daemon listens for this mount in this network namespace")))
            }
        }
    }

    /// Fails unless the user is root or the mount's owner.
    pub fn ensure_may_control(&self) -> Result<(), ClientError> {
        match geteuid() {
            user if user.is_root() || user.as_raw() == self.owner.uid => Ok(()),
            _ => Err(ClientError::DaemonOfOther { dir: self.dir.clone(), owner: self.owner.uid }),
        }
    }

    /// The error for a mount whose daemon has ended.
    pub fn gone(&self) -> ClientError {
        ClientError::DaemonGone { dir: self.dir.clone(), store: self.store.clone(), owner: self.owner.uid }
    }

    /// Whether the daemon has ended.
    ///
    /// The kernel caches most replies of a daemon, but not those to `statfs`. Unless the mount allows other
    /// users, the kernel forwards `statfs` only for the mount's owner, so the call needs a thread that takes
    /// the owner's user id. The call blocks as long as the daemon hangs, so the thread may have to be left
    /// behind.
    pub fn is_dead(&self) -> bool {
        let (tell, told) = mpsc::channel();
        let (dir, FuseMountOwner { uid, gid }) = (self.dir.clone(), self.owner);
        let ask = move || {
            if geteuid().is_root() && uid != 0 {
                let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
                // After a failure the kernel does not forward the call, and the mount does not count as dead.
                let _ = set_thread_res_gid(gid, gid, gid).and_then(|()| set_thread_res_uid(uid, uid, uid));
            }
            // ECONNABORTED: the daemon died after it had received the call.
            let dead = matches!(rustix::fs::statfs(&dir), Err(Errno::NOTCONN | Errno::CONNABORTED));
            // Fails if the call took too long: the receiver is gone.
            let _ = tell.send(dead);
        };
        let asked = std::thread::Builder::new().name("statfs".into()).spawn(ask);
        asked.is_ok() && told.recv_timeout(KERNEL_WAIT).unwrap_or(false)
    }
}

fn not_mounted(path: &Path, mounts: &MountTable) -> ClientError {
    let spellings: Vec<PathBuf> = mount_point_spellings(path).collect();
    let of_store = mounts.iter().filter_map(WeirMount::of).filter(|mount| spellings.contains(&mount.store));
    ClientError::NotMounted { dir: path.into(), mounts_of_store: of_store.map(|mount| mount.dir).collect() }
}

/// The spellings of `dir` that the mount table may contain.
///
/// Only the last spelling touches `dir` itself, which may hang, so callers get it last. That spelling exists
/// only if `dir` is a symbolic link, which is never a mount point itself.
pub fn mount_point_spellings(dir: &Path) -> impl Iterator<Item = PathBuf> {
    let plain = std::path::absolute(dir).ok();
    let (named, link) = (plain.clone(), plain.clone());
    let parents_resolved = move || {
        let named = named?;
        let name = named.file_name()?.to_os_string();
        Some(std::fs::canonicalize(named.parent()?).ok()?.join(name))
    };
    let resolved = move || std::fs::canonicalize(link.filter(|link| link.is_symlink())?).ok();
    plain
        .into_iter()
        .chain(std::iter::once_with(parents_resolved).flatten())
        .chain(std::iter::once_with(resolved).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_elsewhere_has_no_mount() {
        let file = tempfile::tempfile().expect("a file");
        let error = WeirMount::of_file(&file).map(|mount| mount.dir).expect_err("no mount of weir");
        assert!(matches!(error, ClientError::NotOnMount { .. }), "{error}");
        assert!(error.to_string().starts_with("the file lies on device "), "{error}");
    }
}

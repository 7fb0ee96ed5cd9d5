//! Confines a replay to its target by the kernel's means. No path of a trace is inspected to decide where it
//! leads.

mod sandbox;

pub use sandbox::{AfterReplay, ReplaySandbox};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::process::{Resource, getegid, geteuid, getrlimit, pivot_root, setrlimit};
use std::io;
use std::path::Path;
use trace_file::TraceError;

/// Proof that the root directory of this process is a replay's own tree.
#[derive(Debug)]
pub struct Confined(());

/// Makes a replay's tree the root directory of this process for good: absolute paths, `..` and links then end
/// inside the tree. This process must have one thread and no other open directory. From here on, modes of new
/// files are exactly those of the trace.
///
/// The process gets its own mount namespace, with only the tree; without root, in a user namespace in which
/// its user is called root. If root may not have a mount namespace, as in some containers, the process uses
/// chroot instead. No replayed call can leave the chroot, because no outside directory is open.
pub fn confine(sandbox: ReplaySandbox) -> Result<Confined, TraceError> {
    let dir = sandbox.path();
    let failed = |source| TraceError::Confine { path: dir.clone(), source };
    let root = geteuid().is_root();
    match own_mounts(&dir, root) {
        Ok(()) => {}
        Err(_) if root => std::os::unix::fs::chroot(&dir).map_err(failed)?,
        Err(source) => return Err(failed(source)),
    }
    std::env::set_current_dir("/").map_err(failed)?;
    // The tree was found by its name, and another process may have given that name to another directory.
    if !sandbox.is_root().map_err(failed)? {
        return Err(failed(io::Error::other("another directory took its place")));
    }
    rustix::process::umask(rustix::fs::Mode::empty());
    Ok(Confined(()))
}

fn own_mounts(dir: &Path, root: bool) -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    let user_namespace = if root { CloneFlags::empty() } else { CloneFlags::CLONE_NEWUSER };
    unshare(CloneFlags::CLONE_NEWNS | user_namespace)?;
    if !root {
        // An unprivileged process may map only its own user, and only after it gives up setgroups.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Only a mount can become the root.
    mount_bind_recursive(dir, dir)?;
    std::env::set_current_dir(dir)?;
    pivot_root(".", ".")?;
    // The old root is now mounted on top of the new one.
    unmount(".", UnmountFlags::DETACH)?;
    Ok(())
}

/// Raises the descriptor limit, because a replay holds the files of all traced processes in one. If that is
/// not allowed, opens fail, and the failures are counted.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        eprintln!("warning: the limit of open files stays at {:?}", getrlimit(Resource::Nofile).current);
    }
}

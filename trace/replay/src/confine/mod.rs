//! Keeps a replay inside of its target, by the kernel: no path of a trace is ever looked at to decide where it leads.

mod site;

pub use site::{Site, Stay};

use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_bind_recursive, mount_change, unmount};
use rustix::process::{Resource, getegid, geteuid, getrlimit, pivot_root, setrlimit};
use std::io;
use std::path::Path;
use trace_file::TraceError;

/// That the root directory of this process is a replay's own tree.
#[derive(Debug)]
pub struct Confined(());

/// Makes a replay's tree the root directory of this process, for good: absolute paths, `..` and links then end in it. This
/// process must have one thread and hold no other directory open. Modes of new files are exactly those of the trace from here on.
///
/// The process gets a table of mounts of its own, in which nothing but the tree is left; without root, in a user namespace, in
/// which its user is called root. Where root may not have a table of mounts, as in some containers, the root directory is
/// changed without one; no replayed call can leave that, because no directory outside is open.
pub fn confine(site: Site) -> Result<Confined, TraceError> {
    let dir = site.path();
    let failed = |source| TraceError::Confine { path: dir.clone(), source };
    let root = geteuid().is_root();
    match own_mounts(&dir, root) {
        Ok(()) => {}
        Err(_) if root => std::os::unix::fs::chroot(&dir).map_err(failed)?,
        Err(source) => return Err(failed(source)),
    }
    std::env::set_current_dir("/").map_err(failed)?;
    // The tree was found by its name, and somebody may have given that to another directory.
    if !site.is_root().map_err(failed)? {
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
        // Who has no privilege may map only himself, and only after giving up groups.
        std::fs::write("/proc/self/setgroups", "deny")?;
        std::fs::write("/proc/self/uid_map", format!("0 {user} 1"))?;
        std::fs::write("/proc/self/gid_map", format!("0 {group} 1"))?;
    }
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    // Only a mount can become the root.
    mount_bind_recursive(dir, dir)?;
    std::env::set_current_dir(dir)?;
    pivot_root(".", ".")?;
    // The old root lies on top of the new one now.
    unmount(".", UnmountFlags::DETACH)?;
    Ok(())
}

/// A replay holds the files of all traced processes in one. If that is not allowed, opens fail, and are counted.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        eprintln!("warning: the limit of open files stays at {:?}", getrlimit(Resource::Nofile).current);
    }
}

//! Keeps a replay inside of its target, by the kernel: no path of a trace is ever looked at to decide where it leads.

use crate::error::TraceError;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::path::Path;

/// Makes `dir` the root directory of this process, for good: absolute paths, `..` and links then end in it. Nothing outside
/// may be held open as a directory. Modes of new files are exactly those of the trace from here on.
pub fn confine(dir: &Path) -> Result<(), TraceError> {
    let failed = |source| TraceError::Confine { path: dir.into(), source };
    std::os::unix::fs::chroot(dir).map_err(failed)?;
    std::env::set_current_dir("/").map_err(failed)?;
    rustix::process::umask(rustix::fs::Mode::empty());
    Ok(())
}

/// A replay holds the files of all traced processes in one. If that is not allowed, opens fail, and are counted.
pub(super) fn raise_descriptor_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if setrlimit(Resource::Nofile, limit).is_err() {
        eprintln!("warning: the limit of open files stays at {:?}", getrlimit(Resource::Nofile).current);
    }
}

//! Which paths are weir's.

use crate::descriptors;
use crate::session::{self, Session};
use arc_swap::ArcSwapOption;
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use weir_library::{Directory, Ino};

/// The component of a path behind which the volume begins.
const MARKER: &[u8] = b"@@";

static WORKING_DIRECTORY: ArcSwapOption<WorkingDirectory> = ArcSwapOption::const_empty();

/// The program's working directory, while it is in the volume. The kernel's is a removed one meanwhile: a relative path
/// that the shim does not see leads nowhere.
pub(crate) struct WorkingDirectory {
    /// Its path in the volume.
    pub(crate) path: Vec<u8>,
    pub(crate) ino: Ino,
    /// Its path for the program, with the marker.
    pub(crate) shown: Vec<u8>,
    /// The working directory before, of the machine.
    pub(crate) outside: Vec<u8>,
}

impl WorkingDirectory {
    /// Refuses a directory that was moved or removed: another one may have its path now.
    fn ensure_in_place(&self) -> io::Result<()> {
        let found = session::get()?.root().metadata(OsStr::from_bytes(&self.path))?;
        if found.ino == self.ino { Ok(()) } else { Err(Errno::NOENT.into()) }
    }
}

/// A path of the volume.
pub(crate) struct Place {
    /// Keeps the store open during the call: see `session::close_if_unused`.
    _session: Arc<Session>,
    start: Directory,
    path: Vec<u8>,
    /// The path from the volume's root, for messages and `chdir`.
    pub(crate) full: Vec<u8>,
}

impl Place {
    pub(crate) fn of_root(path: Vec<u8>) -> io::Result<Place> {
        let session = session::get()?;
        Ok(Place { start: session.root().clone(), _session: session, full: path.clone(), path })
    }

    /// The directory that relative paths begin at.
    pub(crate) fn start(&self) -> &Directory {
        &self.start
    }

    pub(crate) fn path(&self) -> &Path {
        Path::new(OsStr::from_bytes(&self.path))
    }
}

/// The bytes of a path; `None` for a null pointer.
pub(crate) fn bytes_of<'a>(path: *const c_char) -> Option<&'a [u8]> {
    if path.is_null() {
        return None;
    }
    // SAFETY: the program passes a string that ends with a zero byte, and leaves it alone during the call.
    Some(unsafe { CStr::from_ptr(path) }.to_bytes())
}

/// The path in the volume, which begins with a slash, if `path` has the marker; and the path before it.
pub(crate) fn split_at_marker(path: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let mut begin = 0;
    for component in path.split(|&byte| byte == b'/') {
        let end = begin + component.len();
        if component == MARKER {
            let rest = &path[end..];
            let inner = if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() };
            return Some((&path[..begin], inner));
        }
        begin = end + 1;
    }
    None
}

/// The place of a path that a call names; `None` if it is not weir's.
pub(crate) fn find(directory: c_int, path: *const c_char) -> Option<io::Result<Place>> {
    let path = bytes_of(path)?;
    if let Some((_, inner)) = split_at_marker(path) {
        return Some(Place::of_root(inner));
    }
    if path.is_empty() || path[0] == b'/' {
        return None;
    }
    if directory == libc::AT_FDCWD {
        let working = WORKING_DIRECTORY.load_full()?;
        return Some(working.ensure_in_place().and_then(|()| Place::of_root(joined(&working.path, path))));
    }
    Some(descriptors::get(directory)?.and_then(|open| {
        let start = Directory::of(&open.file)?;
        Ok(Place { _session: session::get()?, start, path: path.to_vec(), full: joined(&open.path, path) })
    }))
}

/// The answer of `operation` at a place; `None` if it is not weir's.
pub(crate) fn at<T>(
    directory: c_int,
    path: *const c_char,
    operation: impl FnOnce(&Place) -> io::Result<T>,
) -> Option<io::Result<T>> {
    Some(find(directory, path)?.and_then(|place| operation(&place)))
}

/// The answer of `operation` on an open file; `None` if it is not weir's.
pub(crate) fn on<T>(
    fd: c_int,
    operation: impl FnOnce(&Arc<descriptors::OpenFile>) -> io::Result<T>,
) -> Option<io::Result<T>> {
    Some(descriptors::get(fd)?.and_then(|open| operation(&open)))
}

/// The two places of a call that moves or links. One of them outside of the volume is EXDEV.
pub(crate) fn both(
    old: (c_int, *const c_char),
    new: (c_int, *const c_char),
) -> Option<io::Result<(Place, Place)>> {
    match (find(old.0, old.1), find(new.0, new.1)) {
        (None, None) => None,
        (Some(old), Some(new)) => Some(old.and_then(|old| Ok((old, new?)))),
        _ => Some(Err(Errno::XDEV.into())),
    }
}

fn joined(directory: &[u8], path: &[u8]) -> Vec<u8> {
    [directory, b"/", path].concat()
}

pub(crate) fn working_directory() -> Option<Arc<WorkingDirectory>> {
    WORKING_DIRECTORY.load_full()
}

pub(crate) fn set_working_directory(working: Option<WorkingDirectory>) {
    WORKING_DIRECTORY.store(working.map(Arc::new));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_marker_is_a_whole_component() {
        let inner = |path: &[u8]| split_at_marker(path).map(|(before, inner)| (before.to_vec(), inner));
        let found = |before: &[u8], path: &[u8]| Some((before.to_vec(), path.to_vec()));
        assert_eq!(inner(b"@@"), found(b"", b"/"));
        assert_eq!(inner(b"@@/a/b"), found(b"", b"/a/b"));
        assert_eq!(inner(b"/tmp/@@/a"), found(b"/tmp/", b"/a"));
        assert_eq!(inner(b"./@@"), found(b"./", b"/"));
        assert_eq!(inner(b"@@/@@/x"), found(b"", b"/@@/x"));
        assert!([&b"a@@/b"[..], b"@@a", b"@", b"", b"/a/@@b/c"].iter().all(|path| inner(path).is_none()));
    }
}

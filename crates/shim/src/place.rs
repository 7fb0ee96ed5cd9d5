//! Which paths are weir's.

use crate::descriptors;
use crate::session::{self, Session};
use crate::settings;
use arc_swap::ArcSwapOption;
use rustix::io::Errno;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use weir_library::{Directory, Ino};

/// The component of a path behind which the volume begins.
pub(crate) const MARKER: &[u8] = b"@@";

static WORKING_DIRECTORY: ArcSwapOption<WorkingDirectory> = ArcSwapOption::const_empty();

/// The program's working directory, while it is in the volume. The kernel's is a removed one meanwhile: a relative path
/// that the shim does not see leads nowhere.
pub(crate) struct WorkingDirectory {
    /// Its path in the volume.
    pub(crate) path: Vec<u8>,
    pub(crate) ino: Ino,
    /// Its path for the program, behind the marker or the prefix.
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

/// The part of a path that stands for the root of the volume, and the path in the volume, which begins with a slash.
/// `None` if the path does not say that it is the volume's.
pub(crate) fn split_at_root(path: &[u8]) -> Option<(&[u8], Vec<u8>)> {
    let prefix = settings::get()?.prefix.as_deref();
    let end = prefix.and_then(|prefix| end_of_prefix(path, prefix)).or_else(|| end_of_marker(path))?;
    let (root, rest) = path.split_at(end);
    Some((root, if rest.is_empty() { b"/".to_vec() } else { rest.to_vec() }))
}

/// The root of the volume in a path that is shown to a program which has not named the root itself.
pub(crate) fn default_root() -> &'static [u8] {
    settings::get().and_then(|settings| settings.prefix.as_deref()).unwrap_or(MARKER)
}

/// The path of the machine in front of the marker at the end of a root; `None` if the root is the prefix.
pub(crate) fn before_marker(root: &[u8]) -> Option<&[u8]> {
    root.strip_suffix(MARKER).filter(|before| before.is_empty() || before.ends_with(b"/"))
}

/// Where the path in the volume begins, for a path that is the prefix or below it.
fn end_of_prefix(path: &[u8], prefix: &[u8]) -> Option<usize> {
    let rest = path.strip_prefix(prefix)?;
    (rest.is_empty() || rest[0] == b'/').then_some(prefix.len())
}

/// Where the path in the volume begins, for a path with the marker.
fn end_of_marker(path: &[u8]) -> Option<usize> {
    let mut begin = 0;
    for component in path.split(|&byte| byte == b'/') {
        let end = begin + component.len();
        if component == MARKER {
            return Some(end);
        }
        begin = end + 1;
    }
    None
}

/// The place of a path that a call names; `None` if it is not weir's.
pub(crate) fn find(directory: c_int, path: *const c_char) -> Option<io::Result<Place>> {
    let path = bytes_of(path)?;
    if let Some((_, inner)) = split_at_root(path) {
        // The kernel counts what stands before the root, too.
        let is_too_long = path.len() >= libc::PATH_MAX as usize;
        return Some(if is_too_long { Err(Errno::NAMETOOLONG.into()) } else { Place::of_root(inner) });
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
        let split = |path: &'static [u8]| path.split_at(end_of_marker(path).expect("it has a marker"));
        assert_eq!(split(b"@@"), (&b"@@"[..], &b""[..]));
        assert_eq!(split(b"@@/a/b"), (&b"@@"[..], &b"/a/b"[..]));
        assert_eq!(split(b"/tmp/@@/a"), (&b"/tmp/@@"[..], &b"/a"[..]));
        assert_eq!(split(b"@@/@@/x"), (&b"@@"[..], &b"/@@/x"[..]));
        let without = [&b"a@@/b"[..], b"@@a", b"@", b"", b"/a/@@b/c"];
        assert!(without.iter().all(|path| end_of_marker(path).is_none()));
        assert_eq!(before_marker(b"/tmp/@@"), Some(&b"/tmp/"[..]));
        assert_eq!(before_marker(b"@@"), Some(&b""[..]));
        assert_eq!(before_marker(b"/data@@"), None, "that is a prefix");
    }

    #[test]
    fn a_prefix_ends_with_a_whole_component() {
        let end = |path: &[u8]| end_of_prefix(path, b"/data/db");
        assert_eq!(
            (end(b"/data/db"), end(b"/data/db/a"), end(b"/data/db/../a")),
            (Some(8), Some(8), Some(8))
        );
        assert!([&b"/data/dbx"[..], b"/data", b"data/db/a", b""].iter().all(|path| end(path).is_none()));
    }
}

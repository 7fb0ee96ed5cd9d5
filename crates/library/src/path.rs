//! From a path to a file: components, `.` and `..`, symbolic links, permissions.

use crate::open_volume::OpenVolume;
use fs::{FileAttributes, FileKind, FsError, Ino};
use rustix::fs::Access;
use rustix::io::Errno;

/// Symbolic links on one path, as in Linux.
const LINKS_MAX: u32 = 40;

/// Bytes of a path, as in Linux, which counts a byte at the end.
const PATH_BYTES_MAX: usize = 4095;

/// Whether a symbolic link at the end of a path is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastLink {
    Follow,
    Keep,
}

/// The place to which a path leads.
#[derive(Debug)]
pub(crate) struct ResolvedPath {
    /// The directory with the last name.
    pub(crate) parent: FileAttributes,
    /// The last name; empty if the path ends in `.`, in `..`, or at the root.
    pub(crate) name: Vec<u8>,
    /// The file; `None` if the directory has no such name.
    pub(crate) found: Option<FileAttributes>,
    /// Whether the path ends in a slash, so that it names a directory.
    pub(crate) names_directory: bool,
}

impl ResolvedPath {
    /// The file.
    pub(crate) fn existing(self) -> Result<FileAttributes, Errno> {
        let found = self.found.ok_or(Errno::NOENT)?;
        if self.names_directory && found.kind != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        Ok(found)
    }

    /// The last name, of a path that ends in one: else `errno`.
    pub(crate) fn own_name(&self, errno: Errno) -> Result<&[u8], Errno> {
        if self.name.is_empty() { Err(errno) } else { Ok(&self.name) }
    }
}

impl OpenVolume {
    /// Follows `path` from the directory `start`, or from the root if it begins with a slash. All its directories must
    /// exist, and the caller must be allowed to pass through them.
    pub(crate) fn resolve(&self, start: Ino, path: &[u8], last: LastLink) -> Result<ResolvedPath, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if path.contains(&0) {
            return Err(Errno::INVAL);
        }
        let mut rest = path.to_vec();
        let mut directory = self.attributes(if path[0] == b'/' { Ino::ROOT } else { start })?;
        let mut links = 0;
        loop {
            let (name, after) = first_name(&rest);
            if directory.kind != FileKind::Directory {
                return Err(Errno::NOTDIR);
            }
            let is_last = after.iter().all(|&byte| byte == b'/');
            let names_directory = !after.is_empty() || name.is_empty();
            if !name.is_empty() {
                self.caller.ensure_may(Access::EXEC_OK, &directory)?;
            }
            let next = match name {
                b"" | b"." => Some(directory),
                b".." => {
                    Some(self.attributes(self.fs.parent(directory.ino).map_err(|error| error.errno())?)?)
                }
                name => match self.fs.lookup(directory.ino, name) {
                    Ok(found) => Some(found),
                    Err(FsError::NotFound) if is_last => None,
                    Err(error) => return Err(error.errno()),
                },
            };
            let is_followed = !is_last || last == LastLink::Follow || names_directory;
            if let Some(link) = next.filter(|found| found.kind == FileKind::Symlink && is_followed) {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP);
                }
                let mut target = self.fs.read_link(link.ino).map_err(|error| error.errno())?;
                if target.first() == Some(&b'/') {
                    directory = self.attributes(Ino::ROOT)?;
                }
                target.extend_from_slice(after);
                rest = target;
                continue;
            }
            match next {
                Some(next) if !is_last => {
                    directory = next;
                    rest = after.to_vec();
                }
                found => {
                    let name = if matches!(name, b"." | b"..") { Vec::new() } else { name.to_vec() };
                    return Ok(ResolvedPath { parent: directory, name, found, names_directory });
                }
            }
        }
    }

    /// A file's attributes.
    pub(crate) fn attributes(&self, ino: Ino) -> Result<FileAttributes, Errno> {
        self.fs.attributes(ino).map_err(|error| error.errno())
    }
}

/// The first name of a path, and what follows it.
fn first_name(path: &[u8]) -> (&[u8], &[u8]) {
    let begin = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    let path = &path[begin..];
    path.split_at(path.iter().position(|&byte| byte == b'/').unwrap_or(path.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_its_slashes() {
        assert_eq!(first_name(b"//a//b/"), (&b"a"[..], &b"//b/"[..]));
        assert_eq!(first_name(b"a"), (&b"a"[..], &b""[..]));
        assert_eq!(first_name(b"/"), (&b""[..], &b""[..]));
    }
}

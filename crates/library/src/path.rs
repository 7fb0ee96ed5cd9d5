//! From a path to a file: components, `.` and `..`, symbolic links, permissions.

use crate::open_volume::OpenVolume;
use fs::{FileAttributes, FileKind, FsError, Ino};
use rustix::fs::Access;
use rustix::io::Errno;
use std::borrow::Cow;
use std::ops::Range;

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
pub(crate) struct ResolvedPath<'p> {
    /// The directory with the last name.
    pub(crate) parent: FileAttributes,
    /// The path, or what the last symbolic link made of it.
    text: Cow<'p, [u8]>,
    /// Where the last name is; empty if the path ends in `.`, in `..`, or at the root.
    name: Range<usize>,
    /// The file; `None` if the directory has no such name.
    pub(crate) found: Option<FileAttributes>,
    /// Whether the path ends in a slash, so that it names a directory.
    pub(crate) names_directory: bool,
}

impl ResolvedPath<'_> {
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
        if self.name.is_empty() { Err(errno) } else { Ok(&self.text[self.name.clone()]) }
    }
}

impl OpenVolume {
    /// Follows `path` from the directory `start`, or from the root if it begins with a slash. All its directories must
    /// exist, and the caller must be allowed to pass through them.
    pub(crate) fn resolve<'p>(
        &self,
        start: Ino,
        path: &'p [u8],
        last: LastLink,
    ) -> Result<ResolvedPath<'p>, Errno> {
        if path.is_empty() {
            return Err(Errno::NOENT);
        }
        if path.len() > PATH_BYTES_MAX {
            return Err(Errno::NAMETOOLONG);
        }
        if path.contains(&0) {
            return Err(Errno::INVAL);
        }
        let (mut text, mut begin) = (Cow::Borrowed(path), 0);
        let mut directory = self.attributes(if path[0] == b'/' { Ino::ROOT } else { start })?;
        let mut links = 0;
        loop {
            let mut range = first_name(&text, begin);
            let (name, after) = (&text[range.clone()], &text[range.end..]);
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
                (text, begin) = (target.into(), 0);
                continue;
            }
            match next {
                Some(next) if !is_last => {
                    directory = next;
                    begin = range.end;
                }
                found => {
                    if matches!(name, b"." | b"..") {
                        range = 0..0;
                    }
                    return Ok(ResolvedPath { parent: directory, text, name: range, found, names_directory });
                }
            }
        }
    }

    /// A file's attributes.
    pub(crate) fn attributes(&self, ino: Ino) -> Result<FileAttributes, Errno> {
        self.fs.attributes(ino).map_err(|error| error.errno())
    }
}

/// Where the first name of a path is, from `begin` on; empty at its end.
fn first_name(path: &[u8], begin: usize) -> Range<usize> {
    let end_of = |begin: usize, is_in: fn(u8) -> bool| {
        begin + path[begin..].iter().position(|&byte| !is_in(byte)).unwrap_or(path.len() - begin)
    };
    let begin = end_of(begin, |byte| byte == b'/');
    begin..end_of(begin, |byte| byte != b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_split_at_its_slashes() {
        assert_eq!(first_name(b"//ab//c/", 0), 2..4);
        assert_eq!(first_name(b"//ab//c/", 4), 6..7);
        assert_eq!(first_name(b"//ab//c/", 7), 8..8);
        assert_eq!(first_name(b"a", 0), 0..1);
    }
}

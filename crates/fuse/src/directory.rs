//! Listing directories: `.` and `..` are ours, the rest is `fs`'s.
//!
//! The kernel goes on from an offset that we gave it: 0 is the start, 1 is after `.`, 2 after `..`, and every other
//! offset is a cookie of `fs` plus 2.

use fs::{Entry, Fs, FsError, Ino, Kind};

/// Offset after `..`.
const AFTER_DOTS: u64 = 2;

/// An entry as the kernel gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Listed<'a> {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) kind: Kind,
    pub(crate) name: &'a [u8],
}

impl<'a> Listed<'a> {
    /// An entry of `fs`.
    pub(crate) fn of(entry: Entry<'a>) -> Listed<'a> {
        let Entry { ino, cookie, kind, name } = entry;
        Listed { ino, offset: cookie + AFTER_DOTS, kind, name }
    }
}

/// Whether the reply takes more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Space {
    Left,
    Full,
}

/// Hands those of `.` and `..` to `take` that come after `offset`. Returns the cookie from which `fs` goes on, or
/// `None` if the reply is full.
pub(crate) fn dots(
    fs: &Fs,
    ino: Ino,
    offset: u64,
    take: &mut dyn FnMut(Listed<'_>) -> Result<Space, FsError>,
) -> Result<Option<u64>, FsError> {
    if offset < 1 && take(Listed { ino, offset: 1, kind: Kind::Directory, name: b"." })? == Space::Full {
        return Ok(None);
    }
    if offset < AFTER_DOTS {
        let parent = fs.parent(ino)?;
        let dots = Listed { ino: parent, offset: AFTER_DOTS, kind: Kind::Directory, name: b".." };
        if take(dots)? == Space::Full {
            return Ok(None);
        }
    }
    Ok(Some(offset.saturating_sub(AFTER_DOTS)))
}

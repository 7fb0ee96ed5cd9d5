//! Listing directories: `.` and `..` are ours, the rest is `fs`'s.
//!
//! The kernel goes on from an offset that we gave it: 0 is the start, 1 is after `.`, 2 after `..`, and every other
//! offset is a cookie of `fs` plus 2.

use fs::{DirectoryEntry, FileKind, Fs, FsError, Ino};

/// Offset after `..`.
const AFTER_DOTS: u64 = 2;

/// An entry as the kernel gets it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedEntry<'a> {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

impl<'a> ListedEntry<'a> {
    /// An entry of `fs`.
    pub(crate) fn of(entry: DirectoryEntry<'a>) -> ListedEntry<'a> {
        let DirectoryEntry { ino, cookie, kind, name } = entry;
        ListedEntry { ino, offset: cookie + AFTER_DOTS, kind, name }
    }
}

/// Whether the reply takes more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplySpace {
    Left,
    Full,
}

/// Hands those of `.` and `..` to `take` that come after `offset`. Returns the cookie from which `fs` goes on, or
/// `None` if the reply is full.
pub(crate) fn list_dots(
    fs: &Fs,
    ino: Ino,
    offset: u64,
    take: &mut dyn FnMut(ListedEntry<'_>) -> Result<ReplySpace, FsError>,
) -> Result<Option<u64>, FsError> {
    if offset < 1
        && take(ListedEntry { ino, offset: 1, kind: FileKind::Directory, name: b"." })? == ReplySpace::Full
    {
        return Ok(None);
    }
    if offset < AFTER_DOTS {
        let parent = fs.parent(ino)?;
        let dots = ListedEntry { ino: parent, offset: AFTER_DOTS, kind: FileKind::Directory, name: b".." };
        if take(dots)? == ReplySpace::Full {
            return Ok(None);
        }
    }
    Ok(Some(offset.saturating_sub(AFTER_DOTS)))
}

//! Listing directories: `.` and `..` are added here, other entries come from `fs`.
//!
//! The kernel continues a listing from an offset of an earlier reply: 0 is the start, 1 is after `.`, 2 after
//! `..`, and every other offset is a cookie of `fs` plus 2.

use fs::{DirectoryEntry, FileKind, Fs, FsError, Ino};

/// Offset after `..`.
const AFTER_DOTS: u64 = 2;

/// A directory entry for the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ListedEntry<'a> {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) kind: FileKind,
    pub(crate) name: &'a [u8],
}

impl<'a> ListedEntry<'a> {
    /// Converts an entry of `fs`.
    pub(crate) fn of(entry: DirectoryEntry<'a>) -> ListedEntry<'a> {
        let DirectoryEntry { ino, cookie, kind, name } = entry;
        ListedEntry { ino, offset: cookie + AFTER_DOTS, kind, name }
    }
}

/// Whether the reply has space for more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplySpace {
    Left,
    Full,
}

/// Hands `.` and `..` to `take`, if they come after `offset`. Returns the cookie from which `fs` continues,
/// or `None` if the reply is full.
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

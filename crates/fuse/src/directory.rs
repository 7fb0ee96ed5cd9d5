//! Listing directories: `.` and `..` are ours, the rest is `fs`'s.
//!
//! The kernel goes on from an offset that we gave it: 0 is the start, 1 is after `.`, 2 after `..`, and every other
//! offset is a cookie of `fs` plus 2.

use crate::attributes::file_type;
use fs::{Fs, FsError, Ino, Kind};

/// Offset after `..`.
const AFTER_DOTS: u64 = 2;

/// Entries that are gathered before their attributes are asked for: about what one reply of 4 KiB holds.
const BATCH: usize = 32;

/// An entry as the kernel gets it.
pub(crate) struct Listed {
    pub(crate) ino: Ino,
    pub(crate) offset: u64,
    pub(crate) kind: Kind,
    pub(crate) name: Vec<u8>,
}

impl Listed {
    pub(crate) fn file_type(&self) -> fuser::FileType {
        file_type(self.kind)
    }

    /// Whether it is `.` or `..`, which the kernel does not remember as a lookup.
    pub(crate) fn is_dot(&self) -> bool {
        self.offset <= AFTER_DOTS
    }
}

/// Hands the entries after `offset` to `take` until it says that the reply is full. `take` is called while no lock
/// is held, so it may ask `fs` for more.
pub(crate) fn list(
    fs: &Fs,
    ino: Ino,
    offset: u64,
    take: &mut dyn FnMut(Listed) -> Room,
) -> Result<(), FsError> {
    let mut offset = offset;
    if offset == 0 {
        let dot = Listed { ino, offset: 1, kind: Kind::Directory, name: b".".to_vec() };
        if take(dot) == Room::Full {
            return Ok(());
        }
        offset = 1;
    }
    if offset == 1 {
        let parent = fs.parent(ino)?;
        let dots = Listed { ino: parent, offset: AFTER_DOTS, kind: Kind::Directory, name: b"..".to_vec() };
        if take(dots) == Room::Full {
            return Ok(());
        }
        offset = AFTER_DOTS;
    }
    loop {
        let batch = gather(fs, ino, offset - AFTER_DOTS)?;
        let Some(last) = batch.last() else { return Ok(()) };
        offset = last.offset;
        for listed in batch {
            if take(listed) == Room::Full {
                return Ok(());
            }
        }
    }
}

/// Whether the reply takes more entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Room {
    Left,
    Full,
}

fn gather(fs: &Fs, ino: Ino, cookie: u64) -> Result<Vec<Listed>, FsError> {
    let mut batch = Vec::with_capacity(BATCH);
    fs.read_directory(ino, cookie, &mut |entry| {
        batch.push(Listed {
            ino: entry.ino,
            offset: entry.cookie + AFTER_DOTS,
            kind: entry.kind,
            name: entry.name.to_vec(),
        });
        batch.len() < BATCH
    })?;
    Ok(batch)
}

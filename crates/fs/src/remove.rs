//! Names that go, and files that go with their last name and their last opener.

use crate::arena::Transaction;
use crate::error::FsError;
use crate::format::{Hot, Slot};
use crate::types::{Ino, Kind};
use zerocopy::little_endian::U32;

impl Transaction<'_> {
    pub(crate) fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let (directory, hot) = self.find_directory(parent)?;
        let found = self.name(&hot, name)?.ok_or(FsError::NotFound)?;
        if found.kind == Kind::Directory {
            return Err(FsError::IsDirectory);
        }
        self.remove_name(directory, name)?;
        self.drop_link(found.slot)
    }

    pub(crate) fn remove_directory(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let (directory, hot) = self.find_directory(parent)?;
        let found = self.name(&hot, name)?.ok_or(FsError::NotFound)?;
        if found.kind != Kind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !self.used(found.slot)?.0.root().is_none() {
            return Err(FsError::NotEmpty);
        }
        self.remove_name(directory, name)?;
        self.drop_directory(directory, found.slot)
    }

    /// A file lost one of its names.
    pub(crate) fn drop_link(&mut self, slot: Slot) -> Result<(), FsError> {
        self.add_links(slot, -1)?;
        self.touch_changed(slot)?;
        if self.hot(slot)?.links == 0 { self.lose(slot) } else { Ok(()) }
    }

    /// An empty directory lost its name in `parent`.
    pub(crate) fn drop_directory(&mut self, parent: Slot, slot: Slot) -> Result<(), FsError> {
        self.add_links(parent, -1)?;
        let mut hot: Hot = self.hot(slot)?;
        hot.links = U32::new(0);
        self.set_hot(slot, &hot);
        self.touch_changed(slot)?;
        self.lose(slot)
    }

    /// Frees an inode whose last opener has gone, unless it got a new one meanwhile or somebody else freed it.
    pub(crate) fn free_unheld(&mut self, slot: Slot, generation: u32) -> Result<(), FsError> {
        let hot = self.hot(slot)?;
        let gone = hot.kind().is_none() || hot.generation.get() != generation;
        if gone || hot.links != 0 || self.is_open(slot) { Ok(()) } else { self.free_orphan(slot) }
    }
}

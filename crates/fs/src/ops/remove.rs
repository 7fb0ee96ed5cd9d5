//! Removes names, and files with their last name and their last opener.

use crate::arena::FsTransaction;
use crate::error::FsError;
use crate::format::{Inode, InodeSlot};
use crate::types::{FileKind, Ino};
use zerocopy::little_endian::U32;

impl FsTransaction<'_> {
    /// Removes a name of a file. Returns whether the file was synced while it was held: then the removal must be synced,
    /// too.
    pub(crate) fn unlink(&mut self, parent: Ino, name: &[u8]) -> Result<bool, FsError> {
        let (directory, inode) = self.find_directory(parent)?;
        let found = self.lookup_name(&inode, name)?.ok_or(FsError::NotFound)?;
        if found.kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        let was_synced = self.was_synced(found.slot);
        self.remove_name(directory, name, found.slot)?;
        self.drop_link(found.slot)?;
        Ok(was_synced)
    }

    pub(crate) fn remove_directory(&mut self, parent: Ino, name: &[u8]) -> Result<(), FsError> {
        let (directory, inode) = self.find_directory(parent)?;
        let found = self.lookup_name(&inode, name)?.ok_or(FsError::NotFound)?;
        if found.kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if !self.used_inode(found.slot)?.0.root().is_none() {
            return Err(FsError::NotEmpty);
        }
        self.remove_name(directory, name, found.slot)?;
        self.drop_directory(directory, found.slot)
    }

    /// Removes a link of a file that lost a name.
    pub(crate) fn drop_link(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        self.add_links(slot, -1)?;
        self.touch_changed(slot)?;
        if self.inode(slot)?.links == 0 { self.free_or_orphan(slot) } else { Ok(()) }
    }

    /// Removes an empty directory that lost its name in `parent`.
    pub(crate) fn drop_directory(&mut self, parent: InodeSlot, slot: InodeSlot) -> Result<(), FsError> {
        self.add_links(parent, -1)?;
        let mut inode: Inode = self.inode(slot)?;
        inode.links = U32::new(0);
        self.set_inode(slot, &inode);
        self.touch_changed(slot)?;
        self.free_or_orphan(slot)
    }

    /// Frees an inode whose last opener is gone, unless it was opened again or freed meanwhile.
    pub(crate) fn free_unheld(&mut self, slot: InodeSlot, generation: u32) -> Result<(), FsError> {
        let inode = self.inode(slot)?;
        let gone = inode.kind().is_none() || inode.generation.get() != generation;
        if gone || inode.links != 0 || self.is_open(slot) { Ok(()) } else { self.free_orphan(slot) }
    }
}

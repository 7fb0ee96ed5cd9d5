//! Finds, lists, adds and removes names in directories.

use crate::arena::{FsState, FsTransaction};
use crate::directory::{FoundName, LeafName, NameTree, hash_of, replace_name};
use crate::error::FsError;
use crate::file_rules::NameNote;
use crate::format::{Inode, InodeSlot, NAME_BYTES_MAX};
use crate::types::{DirectoryEntry, FileAttributes, FileKind, Ino};

/// Checks that a name can be in a directory. Front ends handle `.` and `..`.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::Invalid),
        name if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}

impl FsState {
    pub(crate) fn name_hash(&self, name: &[u8]) -> u64 {
        hash_of(&self.header().secret, name)
    }

    /// Looks up `name` in a directory.
    pub(crate) fn lookup_name(&self, directory: &Inode, name: &[u8]) -> Result<Option<FoundName>, FsError> {
        check_name(name)?;
        NameTree::of(directory).find(self.arena(), self.name_hash(name), name)
    }

    /// Looks up `name` in the directory `parent`; an error if there is no such name.
    pub(crate) fn find_name(&self, parent: Ino, name: &[u8]) -> Result<FoundName, FsError> {
        let (_, inode) = self.find_directory(parent)?;
        self.lookup_name(&inode, name)?.ok_or(FsError::NotFound)
    }

    /// A listing's entry for a name.
    pub(crate) fn directory_entry<'a>(&self, name: LeafName<'a>) -> DirectoryEntry<'a> {
        DirectoryEntry {
            cookie: name.key,
            ino: self.numbering.ino(name.slot),
            kind: name.kind,
            name: name.name,
        }
    }

    /// Offers the names of one leaf with their attributes to `take`, holds those that it takes, and counts
    /// them in `taken`. Returns where the listing continues, as [`NameTree::list`] does.
    pub(crate) fn hold_leaf_entries(
        &self,
        ino: Ino,
        cookie: u64,
        taken: &mut u64,
        take: &mut dyn FnMut(DirectoryEntry<'_>, &FileAttributes) -> bool,
    ) -> Result<Option<u64>, FsError> {
        let (_, inode) = self.find_directory(ino)?;
        let mut open_files = self.open_files.lock().expect("no panic while holding the open files");
        let mut failed = None;
        let next = NameTree::of(&inode).list(self.arena(), cookie, &mut |name| {
            let takes = match self.attributes(name.slot) {
                Ok(attributes) => take(self.directory_entry(name), &attributes),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            };
            if takes {
                open_files.entry(name.slot.0).or_default().count += 1;
                *taken += 1;
            }
            takes
        })?;
        failed.map_or(Ok(next), Err)
    }
}

impl FsTransaction<'_> {
    /// Adds a name, which must not exist, and touches the directory's times.
    pub(crate) fn add_name(
        &mut self,
        directory: InodeSlot,
        name: &[u8],
        slot: InodeSlot,
        kind: FileKind,
    ) -> Result<(), FsError> {
        let mut tree = NameTree::of(&self.inode(directory)?);
        let hash = self.name_hash(name);
        tree.insert(self, hash, name, slot, kind)?;
        self.note_name(|_| NameNote::Added { directory, hash, name: name.into(), slot, kind });
        tree.store(self, directory)?;
        self.touch_modified(directory)
    }

    /// Removes a name, which leads to the inode in `slot`, and touches the directory's times.
    pub(crate) fn remove_name(
        &mut self,
        directory: InodeSlot,
        name: &[u8],
        slot: InodeSlot,
    ) -> Result<(), FsError> {
        let mut tree = NameTree::of(&self.inode(directory)?);
        let hash = self.name_hash(name);
        tree.remove(self, hash, name)?;
        self.note_name(|_| NameNote::Removed { directory, hash, slot });
        tree.store(self, directory)?;
        self.touch_modified(directory)
    }

    /// Points a name at another inode, and touches the directory's times.
    pub(crate) fn replace_name(
        &mut self,
        directory: InodeSlot,
        (name, found): (&[u8], FoundName),
        slot: InodeSlot,
        kind: FileKind,
    ) -> Result<(), FsError> {
        replace_name(self, found, slot, kind);
        self.note_name(|state| NameNote::Removed {
            directory,
            hash: state.name_hash(name),
            slot: found.slot,
        });
        self.note_name(|state| NameNote::Added {
            directory,
            hash: state.name_hash(name),
            name: name.into(),
            slot,
            kind,
        });
        self.touch_modified(directory)
    }
}

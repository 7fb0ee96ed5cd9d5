//! Names in directories.

use crate::directory::{Found, Tree, hash_of, replace};
use crate::error::FsError;
use crate::format::{Hot, NAME_BYTES_MAX, Slot};
use crate::transaction::{State, Transaction};
use crate::types::Kind;

/// Whether a name can stand in a directory. `.` and `..` are the doors' business.
pub(crate) fn check_name(name: &[u8]) -> Result<(), FsError> {
    match name {
        [] => Err(FsError::NotFound),
        b"." | b".." => Err(FsError::Invalid),
        name if name.len() > NAME_BYTES_MAX => Err(FsError::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(FsError::Invalid),
        _ => Ok(()),
    }
}

impl State {
    pub(crate) fn hash(&self, name: &[u8]) -> u64 {
        hash_of(&self.header().secret, name)
    }

    /// What `name` leads to in a directory.
    pub(crate) fn name(&self, directory: &Hot, name: &[u8]) -> Result<Option<Found>, FsError> {
        check_name(name)?;
        Tree::of(directory).find(self.arena(), self.hash(name), name)
    }
}

impl Transaction<'_> {
    /// Adds a name that is not there yet; the directory's content changes now.
    pub(crate) fn add_name(
        &mut self,
        directory: Slot,
        name: &[u8],
        slot: Slot,
        kind: Kind,
    ) -> Result<(), FsError> {
        let mut tree = Tree::of(&self.hot(directory)?);
        let hash = self.hash(name);
        tree.insert(self, hash, name, slot, kind)?;
        tree.store(self, directory)?;
        self.touch_modified(directory)
    }

    /// Takes away a name that is there; the directory's content changes now.
    pub(crate) fn remove_name(&mut self, directory: Slot, name: &[u8]) -> Result<(), FsError> {
        let mut tree = Tree::of(&self.hot(directory)?);
        let hash = self.hash(name);
        tree.remove(self, hash, name)?;
        tree.store(self, directory)?;
        self.touch_modified(directory)
    }

    /// Lets an existing name lead elsewhere; the directory's content changes now.
    pub(crate) fn replace_name(
        &mut self,
        directory: Slot,
        found: Found,
        slot: Slot,
        kind: Kind,
    ) -> Result<(), FsError> {
        replace(self, found, slot, kind);
        self.touch_modified(directory)
    }
}

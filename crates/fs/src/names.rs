//! Names in directories.

use crate::arena::{State, Transaction};
use crate::directory::{Found, Name, Tree, hash_of, replace};
use crate::error::FsError;
use crate::format::{Hot, NAME_BYTES_MAX, Slot};
use crate::types::{Attributes, Entry, Ino, Kind};

/// Whether a name can stand in a directory. `.` and `..` are the front ends' business.
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

    /// What `name` leads to in the directory `parent`; an error if there is no such name.
    pub(crate) fn found(&self, parent: Ino, name: &[u8]) -> Result<Found, FsError> {
        let (_, hot) = self.find_directory(parent)?;
        self.name(&hot, name)?.ok_or(FsError::NotFound)
    }

    /// What a name leads to, for a listing.
    pub(crate) fn entry<'a>(&self, name: Name<'a>) -> Entry<'a> {
        Entry { cookie: name.key, ino: self.numbers.ino(name.slot), kind: name.kind, name: name.name }
    }

    /// Offers the names of one leaf with their attributes, holds those that are taken and counts them in `taken`.
    /// Returns what comes next, as [`Tree::list`] does.
    pub(crate) fn take_names(
        &self,
        ino: Ino,
        cookie: u64,
        taken: &mut u64,
        take: &mut dyn FnMut(Entry<'_>, &Attributes) -> bool,
    ) -> Result<Option<u64>, FsError> {
        let (_, hot) = self.find_directory(ino)?;
        let mut opens = self.opens.lock().expect("no panic while holding the open counts");
        let mut failed = None;
        let next = Tree::of(&hot).list(self.arena(), cookie, &mut |name| {
            let takes = match self.attributes(name.slot) {
                Ok(attributes) => take(self.entry(name), &attributes),
                Err(error) => {
                    failed = Some(error);
                    false
                }
            };
            if takes {
                opens.entry(name.slot.0).or_default().count += 1;
                *taken += 1;
            }
            takes
        })?;
        failed.map_or(Ok(next), Err)
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

//! The table of owners: owner, group and mode. Few combinations serve millions of inodes, so an inode needs 4
//! bytes for them. Entries count their references; an index in memory finds them by content.

use crate::arena::{Arena, FsTransaction};
use crate::error::FsError;
use crate::format::{ArenaRegion, Inode, OwnerRecord};
use std::collections::HashMap;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Owner, group and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct OwnerAndMode {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
}

/// The entry of each combination, and the free entries. Derived from the arena at opening, and again when a
/// transaction that changed it is undone.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct OwnerIndex {
    entries: HashMap<OwnerAndMode, u32>,
    free: Vec<u32>,
}

impl OwnerIndex {
    pub(crate) fn of(arena: &Arena) -> Result<OwnerIndex, FsError> {
        let mut index = OwnerIndex::default();
        for at in 0..arena.header().owners_used.get() {
            let owner: OwnerRecord = arena.get(ArenaRegion::Owners.at::<OwnerRecord>(at))?;
            if owner.references.get() == 0 {
                index.free.push(at);
            } else {
                index.entries.insert(owner.owner_and_mode(), at);
            }
        }
        Ok(index)
    }
}

impl OwnerRecord {
    pub(crate) fn owner_and_mode(&self) -> OwnerAndMode {
        OwnerAndMode { uid: self.uid.get(), gid: self.gid.get(), mode: self.mode.get() }
    }
}

impl Arena {
    pub(crate) fn owner(&self, inode: &Inode) -> Result<OwnerAndMode, FsError> {
        Ok(self
            .get::<OwnerRecord>(ArenaRegion::Owners.at::<OwnerRecord>(inode.owner.get()))?
            .owner_and_mode())
    }
}

impl FsTransaction<'_> {
    /// Returns the entry for `rights`, with one more reference.
    pub(crate) fn reference_owner(&mut self, rights: OwnerAndMode) -> Result<u32, FsError> {
        let known = self.owner_index().entries.get(&rights).copied();
        let at = match known {
            Some(at) => at,
            None => match self.owner_index_mut().free.pop() {
                Some(at) => at,
                None => {
                    let at = self.header().owners_used.get();
                    self.change_header(|header| header.owners_used += 1);
                    at
                }
            },
        };
        let references = match known {
            Some(at) => self.get::<OwnerRecord>(ArenaRegion::Owners.at::<OwnerRecord>(at))?.references,
            None => U32::new(0),
        };
        let owner = OwnerRecord {
            uid: U32::new(rights.uid),
            gid: U32::new(rights.gid),
            mode: U16::new(rights.mode),
            reserved: U16::new(0),
            references: references + 1,
        };
        self.write(ArenaRegion::Owners.at::<OwnerRecord>(at), owner.as_bytes());
        if known.is_none() {
            self.owner_index_mut().entries.insert(rights, at);
        }
        Ok(at)
    }

    /// Removes one reference to an entry.
    pub(crate) fn release_owner(&mut self, at: u32) -> Result<(), FsError> {
        let offset = ArenaRegion::Owners.at::<OwnerRecord>(at);
        let mut owner: OwnerRecord = self.get(offset)?;
        if owner.references == 0 {
            return Err(crate::arena::corrupt(offset, "an inode refers to a free owner"));
        }
        owner.references -= 1;
        self.write(offset, owner.as_bytes());
        if owner.references == 0 {
            let index = self.owner_index_mut();
            index.entries.remove(&owner.owner_and_mode());
            index.free.push(at);
        }
        Ok(())
    }
}

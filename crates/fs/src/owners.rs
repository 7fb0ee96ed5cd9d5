//! The shared table of owner, group and mode: few combinations serve millions of inodes, so an inode needs 4 bytes
//! for them. Entries count who refers to them; an in-memory index finds them by content.

use crate::arena::{Arena, Transaction};
use crate::error::FsError;
use crate::format::{Hot, Owner, Region};
use std::collections::HashMap;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32};

/// Owner, group and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Rights {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) mode: u16,
}

/// Where each combination lies, and which entries are free. Derived from the arena: rebuilt at opening, and when a
/// transaction that changed it is undone.
#[derive(Default, PartialEq, Eq, Debug)]
pub(crate) struct OwnerIndex {
    found: HashMap<Rights, u32>,
    free: Vec<u32>,
}

impl OwnerIndex {
    pub(crate) fn of(arena: &Arena) -> Result<OwnerIndex, FsError> {
        let mut index = OwnerIndex::default();
        for at in 0..arena.header().owners_used.get() {
            let owner: Owner = arena.get(Region::Owners.at::<Owner>(at))?;
            if owner.references.get() == 0 {
                index.free.push(at);
            } else {
                index.found.insert(owner.rights(), at);
            }
        }
        Ok(index)
    }
}

impl Owner {
    pub(crate) fn rights(&self) -> Rights {
        Rights { uid: self.uid.get(), gid: self.gid.get(), mode: self.mode.get() }
    }
}

impl Arena {
    pub(crate) fn owner(&self, hot: &Hot) -> Result<Rights, FsError> {
        Ok(self.get::<Owner>(Region::Owners.at::<Owner>(hot.owner.get()))?.rights())
    }
}

impl Transaction<'_> {
    /// The entry for `rights`, with one more reference.
    pub(crate) fn take_owner(&mut self, rights: Rights) -> Result<u32, FsError> {
        let known = self.owners().found.get(&rights).copied();
        let at = match known {
            Some(at) => at,
            None => match self.owners_mut().free.pop() {
                Some(at) => at,
                None => {
                    let at = self.header().owners_used.get();
                    self.change_header(|header| header.owners_used += 1);
                    at
                }
            },
        };
        let references = match known {
            Some(at) => self.get::<Owner>(Region::Owners.at::<Owner>(at))?.references,
            None => U32::new(0),
        };
        let owner = Owner {
            uid: U32::new(rights.uid),
            gid: U32::new(rights.gid),
            mode: U16::new(rights.mode),
            reserved: U16::new(0),
            references: references + 1,
        };
        self.write(Region::Owners.at::<Owner>(at), owner.as_bytes());
        if known.is_none() {
            self.owners_mut().found.insert(rights, at);
        }
        Ok(at)
    }

    /// Takes back one reference.
    pub(crate) fn drop_owner(&mut self, at: u32) -> Result<(), FsError> {
        let offset = Region::Owners.at::<Owner>(at);
        let mut owner: Owner = self.get(offset)?;
        if owner.references == 0 {
            return Err(crate::arena::corrupt(offset, "an inode refers to a free owner"));
        }
        owner.references -= 1;
        self.write(offset, owner.as_bytes());
        if owner.references == 0 {
            let index = self.owners_mut();
            index.found.remove(&owner.rights());
            index.free.push(at);
        }
        Ok(())
    }
}

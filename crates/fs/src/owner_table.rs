//! The table of owners: owner, group and mode. Few combinations serve millions of inodes, so an inode needs 4
//! bytes for them. Entries count their references; an index in memory finds them by content.

use crate::arena::{Arena, FsTransaction, corrupt};
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

/// The entry of each combination, and the free entries. Derived from the arena at opening.
#[derive(Default)]
pub(crate) struct OwnerIndex {
    entries: HashMap<OwnerAndMode, u32>,
    /// The last one is taken next.
    free: Vec<u32>,
}

/// A change of the index.
#[derive(Clone, Copy)]
pub(crate) enum OwnerIndexChange {
    /// An entry that was never used gets its first reference.
    Append(OwnerAndMode, u32),
    /// The last free entry gets its first reference.
    TakeFree(OwnerAndMode, u32),
    /// An entry loses its last reference.
    Free(OwnerAndMode, u32),
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

    pub(crate) fn apply(&mut self, change: OwnerIndexChange) {
        match change {
            OwnerIndexChange::Append(rights, at) => {
                self.entries.insert(rights, at);
            }
            OwnerIndexChange::TakeFree(rights, at) => {
                self.free.pop();
                self.entries.insert(rights, at);
            }
            OwnerIndexChange::Free(rights, at) => {
                self.entries.remove(&rights);
                self.free.push(at);
            }
        }
    }

    /// Undoes the last change.
    pub(crate) fn undo(&mut self, change: OwnerIndexChange) {
        match change {
            OwnerIndexChange::Append(rights, _) => {
                self.entries.remove(&rights);
            }
            OwnerIndexChange::TakeFree(rights, at) => self.apply(OwnerIndexChange::Free(rights, at)),
            OwnerIndexChange::Free(rights, at) => self.apply(OwnerIndexChange::TakeFree(rights, at)),
        }
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
        let (at, references) = match known {
            Some(at) => {
                let owner: OwnerRecord = self.get(ArenaRegion::Owners.at::<OwnerRecord>(at))?;
                (at, owner.references)
            }
            None => (self.add_owner(rights), U32::new(0)),
        };
        let owner = OwnerRecord {
            uid: U32::new(rights.uid),
            gid: U32::new(rights.gid),
            mode: U16::new(rights.mode),
            reserved: U16::new(0),
            references: references + 1,
        };
        self.write(ArenaRegion::Owners.at::<OwnerRecord>(at), owner.as_bytes());
        Ok(at)
    }

    /// Gives `rights` a free entry, or the next one that was never used.
    fn add_owner(&mut self, rights: OwnerAndMode) -> u32 {
        if let Some(&at) = self.owner_index().free.last() {
            self.change_owner_index(OwnerIndexChange::TakeFree(rights, at));
            return at;
        }
        let at = self.header().owners_used.get();
        self.change_header(|header| header.owners_used += 1);
        self.change_owner_index(OwnerIndexChange::Append(rights, at));
        at
    }

    /// Removes one reference to an entry.
    pub(crate) fn release_owner(&mut self, at: u32) -> Result<(), FsError> {
        let offset = ArenaRegion::Owners.at::<OwnerRecord>(at);
        let mut owner: OwnerRecord = self.get(offset)?;
        if owner.references == 0 {
            return Err(corrupt(offset, "an inode refers to a free owner"));
        }
        owner.references -= 1;
        self.write(offset, owner.as_bytes());
        if owner.references == 0 {
            self.change_owner_index(OwnerIndexChange::Free(owner.owner_and_mode(), at));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::FsState;
    use device::{SeededRng, VolumeId};

    /// The combinations with their entries, and the free entries, both in order.
    fn sorted(index: &OwnerIndex) -> (Vec<(u32, u32)>, Vec<u32>) {
        let mut entries: Vec<(u32, u32)> =
            index.entries.iter().map(|(rights, &at)| (rights.uid, at)).collect();
        let mut free = index.free.clone();
        entries.sort_unstable();
        free.sort_unstable();
        (entries, free)
    }

    #[test]
    fn index_follows_the_arena_through_undone_changes() {
        let mut state = FsState::blank(VolumeId::MAIN, [1; 16]).expect("an empty file system");
        let mut random = SeededRng::new(1);
        // An entry for each reference.
        let mut references: Vec<u32> = Vec::new();
        for _ in 0..2000 {
            let before = references.clone();
            let mut tx = FsTransaction::begin(&mut state, 0, &[]);
            for _ in 0..1 + random.below(6) {
                if random.once_in(2) && !references.is_empty() {
                    let at = references.swap_remove(random.below(references.len() as u64) as usize);
                    tx.release_owner(at).expect("it has a reference");
                } else {
                    let rights = OwnerAndMode { uid: random.below(9) as u32, gid: 0, mode: 0 };
                    references.push(tx.reference_owner(rights).expect("readable"));
                }
            }
            if random.once_in(2) {
                tx.keep();
            } else {
                references = before;
            }
            drop(tx);
            let derived = OwnerIndex::of(&state).expect("readable");
            assert_eq!(sorted(state.owner_index()), sorted(&derived));
        }
    }
}

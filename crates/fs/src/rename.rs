//! Moving a name: one transaction, so that after a crash exactly one of the two names leads to the file.

use crate::arena::corrupt;
use crate::directory::Found;
use crate::error::FsError;
use crate::format::{Hot, ROOT, Region, Slot};
use crate::transaction::{State, Transaction};
use crate::types::{IfExists, Ino, Kind};
use zerocopy::little_endian::U32;

impl State {
    /// Whether `slot` is `ancestor` or lies below it.
    fn is_below(&self, slot: Slot, ancestor: Slot) -> Result<bool, FsError> {
        let mut at = slot;
        // As many steps as there are inodes: more mean a loop.
        for _ in 0..=self.header().slots_used.get() {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = Slot(self.used(at)?.0.next.get());
        }
        Err(corrupt(Region::Hot.at::<Hot>(slot.0), "a directory lies below itself"))
    }

    /// Whether the name that `found` is may be replaced by one that leads to `kind`.
    fn check_replaced(&self, kind: Kind, found: Found, if_exists: IfExists) -> Result<(), FsError> {
        match (kind, found.kind) {
            _ if if_exists == IfExists::Refuse => Err(FsError::Exists),
            (Kind::Directory, Kind::Directory) if !self.used(found.slot)?.0.root().is_none() => {
                Err(FsError::NotEmpty)
            }
            (Kind::Directory, Kind::Directory) => Ok(()),
            (Kind::Directory, _) => Err(FsError::NotDirectory),
            (_, Kind::Directory) => Err(FsError::IsDirectory),
            _ => Ok(()),
        }
    }
}

impl Transaction<'_> {
    /// Lets each of two names lead to where the other led.
    pub(crate) fn exchange(&mut self, one: (Ino, &[u8]), other: (Ino, &[u8])) -> Result<(), FsError> {
        let (one_slot, one_hot) = self.find_directory(one.0)?;
        let (other_slot, other_hot) = self.find_directory(other.0)?;
        let one_found = self.name(&one_hot, one.1)?.ok_or(FsError::NotFound)?;
        let other_found = self.name(&other_hot, other.1)?.ok_or(FsError::NotFound)?;
        for (found, to) in [(one_found, other_slot), (other_found, one_slot)] {
            if found.kind == Kind::Directory && self.is_below(to, found.slot)? {
                return Err(FsError::Invalid);
            }
        }
        if one_found.slot == other_found.slot {
            return Ok(());
        }
        self.replace_name(one_slot, one_found, other_found.slot, other_found.kind)?;
        self.replace_name(other_slot, other_found, one_found.slot, one_found.kind)?;
        let is_directory = |found: Found| i64::from(found.kind == Kind::Directory);
        let more = is_directory(other_found) - is_directory(one_found);
        if one_slot != other_slot && more != 0 {
            self.add_links(one_slot, more)?;
            self.add_links(other_slot, -more)?;
        }
        for (found, parent) in [(one_found, other_slot), (other_found, one_slot)] {
            if found.kind == Kind::Directory {
                self.set_parent(found.slot, parent)?;
            }
            self.touch_changed(found.slot)?;
        }
        Ok(())
    }

    fn set_parent(&mut self, slot: Slot, parent: Slot) -> Result<(), FsError> {
        let mut hot = self.hot(slot)?;
        hot.next = U32::new(parent.0);
        self.set_hot(slot, &hot);
        Ok(())
    }

    pub(crate) fn rename(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
    ) -> Result<(), FsError> {
        let (from_slot, from_hot) = self.find_directory(from.0)?;
        let (to_slot, to_hot) = self.find_directory(to.0)?;
        let moved = self.name(&from_hot, from.1)?.ok_or(FsError::NotFound)?;
        let present = self.name(&to_hot, to.1)?;
        let is_directory = moved.kind == Kind::Directory;
        if is_directory && self.is_below(to_slot, moved.slot)? {
            return Err(FsError::Invalid);
        }
        if let Some(present) = present {
            if present.slot == moved.slot && if_exists == IfExists::Replace {
                return Ok(());
            }
            self.check_replaced(moved.kind, present, if_exists)?;
        }
        match present {
            Some(present) => self.replace_name(to_slot, present, moved.slot, moved.kind)?,
            None => self.add_name(to_slot, to.1, moved.slot, moved.kind)?,
        }
        self.remove_name(from_slot, from.1)?;
        if is_directory && from_slot != to_slot {
            self.add_links(from_slot, -1)?;
            self.add_links(to_slot, 1)?;
            self.set_parent(moved.slot, to_slot)?;
        }
        self.touch_changed(moved.slot)?;
        match present {
            Some(gone) if gone.kind == Kind::Directory => self.drop_directory(to_slot, gone.slot),
            Some(gone) => self.drop_link(gone.slot),
            None => Ok(()),
        }
    }
}

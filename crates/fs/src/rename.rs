//! Moving a name: one transaction, so that after a crash exactly one of the two names leads to the file.

use crate::arena::{State, Transaction, corrupt};
use crate::cost;
use crate::directory::Found;
use crate::error::FsError;
use crate::format::{Hot, ROOT, Region, Slot};
use crate::fs::Fs;
use crate::types::{Attributes, Caller, Completion, IfExists, Ino, Kind};
use cache::ObjectChange;
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
        self.settle(one_found.slot)?;
        self.settle(other_found.slot)?;
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

    /// A file that gets a name has what was written to it before that.
    pub(crate) fn settle(&mut self, slot: Slot) -> Result<(), FsError> {
        let (hot, kind) = self.used(slot)?;
        if kind == Kind::File {
            self.also(ObjectChange::LogBypassed { object: self.object(slot, &hot) });
        }
        Ok(())
    }

    fn set_parent(&mut self, slot: Slot, parent: Slot) -> Result<(), FsError> {
        let mut hot = self.hot(slot)?;
        hot.next = U32::new(parent.0);
        self.set_hot(slot, &hot);
        Ok(())
    }

    /// Moves a name. With a caller, whose it is, a whiteout takes the old one's place: its attributes, unless nothing moved.
    pub(crate) fn rename(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
        whiteout: Option<Caller>,
    ) -> Result<Option<Attributes>, FsError> {
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
                return Ok(None);
            }
            self.check_replaced(moved.kind, present, if_exists)?;
        }
        self.settle(moved.slot)?;
        match present {
            Some(present) => self.replace_name(to_slot, present, moved.slot, moved.kind)?,
            None => self.add_name(to_slot, to.1, moved.slot, moved.kind)?,
        }
        let whiteout = match whiteout {
            Some(caller) => Some(self.white_out(caller, from_slot, from.1)?),
            None => self.remove_name(from_slot, from.1).map(|()| None)?,
        };
        if is_directory && from_slot != to_slot {
            self.add_links(from_slot, -1)?;
            self.add_links(to_slot, 1)?;
            self.set_parent(moved.slot, to_slot)?;
        }
        self.touch_changed(moved.slot)?;
        match present {
            Some(gone) if gone.kind == Kind::Directory => self.drop_directory(to_slot, gone.slot)?,
            Some(gone) => self.drop_link(gone.slot)?,
            None => {}
        }
        whiteout.map(|slot| self.attributes(slot)).transpose()
    }
}

impl Fs {
    /// Moves a name. After a crash exactly one of the two leads to the file.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), if_exists: IfExists, done: Completion<()>) {
        let cost = cost::rename(self.levels(from.0), self.levels(to.0));
        let (from, from_name) = (from.0, from.1.to_vec());
        let (to, to_name) = (to.0, to.1.to_vec());
        let work = move |tx: &mut Transaction<'_>| {
            tx.rename((from, &from_name), (to, &to_name), if_exists, None).map(drop)
        };
        self.core().enter(cost, work, done);
    }

    /// Moves a name and leaves a whiteout of `caller`'s at the old one, a character device 0/0, as one change: overlayfs
    /// asks for that. Completes with the whiteout's attributes; `None` where both names lead to one file, and stay.
    pub fn rename_leaving_whiteout(
        &self,
        caller: Caller,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
        done: Completion<Option<Attributes>>,
    ) {
        let cost = cost::rename_leaving_whiteout(self.levels(from.0), self.levels(to.0));
        let (from, from_name) = (from.0, from.1.to_vec());
        let (to, to_name) = (to.0, to.1.to_vec());
        let work = move |tx: &mut Transaction<'_>| {
            tx.rename((from, &from_name), (to, &to_name), if_exists, Some(caller))
        };
        self.core().enter(cost, work, done);
    }

    /// Lets each of two names lead to where the other leads. After a crash both do, or none.
    pub fn exchange(&self, one: (Ino, &[u8]), other: (Ino, &[u8]), done: Completion<()>) {
        let (one, one_name) = (one.0, one.1.to_vec());
        let (other, other_name) = (other.0, other.1.to_vec());
        let work = move |tx: &mut Transaction<'_>| tx.exchange((one, &one_name), (other, &other_name));
        self.core().enter(cost::exchange(), work, done);
    }
}

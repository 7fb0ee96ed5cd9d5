//! Renames: one transaction each, so that after a crash exactly one of the two names leads to the file.

use crate::arena::{FsState, FsTransaction, corrupt};
use crate::cost;
use crate::directory::FoundName;
use crate::error::FsError;
use crate::format::{ArenaRegion, Inode, InodeSlot, ROOT};
use crate::fs::Fs;
use crate::types::{CallerCredentials, FileAttributes, FileKind, FsCompletion, IfExists, Ino};
use cache::ObjectChange;
use zerocopy::little_endian::U32;

impl FsState {
    /// Whether `slot` is `ancestor` or lies below it.
    fn is_below(&self, slot: InodeSlot, ancestor: InodeSlot) -> Result<bool, FsError> {
        let mut at = slot;
        // More steps than inodes mean a loop.
        for _ in 0..=self.header().slots_used.get() {
            if at == ancestor {
                return Ok(true);
            }
            if at == ROOT {
                return Ok(false);
            }
            at = InodeSlot(self.used_inode(at)?.0.next.get());
        }
        Err(corrupt(ArenaRegion::Inodes.at::<Inode>(slot.0), "a directory lies below itself"))
    }

    /// Checks that the name `found` may be replaced by the name of a file of this kind.
    fn check_replaced(&self, kind: FileKind, found: FoundName, if_exists: IfExists) -> Result<(), FsError> {
        match (kind, found.kind) {
            _ if if_exists == IfExists::Refuse => Err(FsError::Exists),
            (FileKind::Directory, FileKind::Directory)
                if !self.used_inode(found.slot)?.0.root().is_none() =>
            {
                Err(FsError::NotEmpty)
            }
            (FileKind::Directory, FileKind::Directory) => Ok(()),
            (FileKind::Directory, _) => Err(FsError::NotDirectory),
            (_, FileKind::Directory) => Err(FsError::IsDirectory),
            _ => Ok(()),
        }
    }
}

impl FsTransaction<'_> {
    /// Exchanges the inodes of two names.
    pub(crate) fn exchange(&mut self, one: (Ino, &[u8]), other: (Ino, &[u8])) -> Result<(), FsError> {
        let (one_slot, one_hot) = self.find_directory(one.0)?;
        let (other_slot, other_hot) = self.find_directory(other.0)?;
        let one_found = self.lookup_name(&one_hot, one.1)?.ok_or(FsError::NotFound)?;
        let other_found = self.lookup_name(&other_hot, other.1)?.ok_or(FsError::NotFound)?;
        for (found, to) in [(one_found, other_slot), (other_found, one_slot)] {
            if found.kind == FileKind::Directory && self.is_below(to, found.slot)? {
                return Err(FsError::Invalid);
            }
        }
        if one_found.slot == other_found.slot {
            return Ok(());
        }
        self.log_bypassed_pages(one_found.slot)?;
        self.log_bypassed_pages(other_found.slot)?;
        self.replace_name(one_slot, (one.1, one_found), other_found.slot, other_found.kind)?;
        self.replace_name(other_slot, (other.1, other_found), one_found.slot, one_found.kind)?;
        let is_directory = |found: FoundName| i64::from(found.kind == FileKind::Directory);
        let more = is_directory(other_found) - is_directory(one_found);
        if one_slot != other_slot && more != 0 {
            self.add_links(one_slot, more)?;
            self.add_links(other_slot, -more)?;
        }
        for (found, parent) in [(one_found, other_slot), (other_found, one_slot)] {
            if found.kind == FileKind::Directory {
                self.set_parent(found.slot, parent)?;
            }
            self.touch_changed(found.slot)?;
        }
        Ok(())
    }

    /// Logs a file's bypassed pages, so that the file does not become durable under a new name before its
    /// bytes.
    pub(crate) fn log_bypassed_pages(&mut self, slot: InodeSlot) -> Result<(), FsError> {
        let (inode, kind) = self.used_inode(slot)?;
        if kind == FileKind::File {
            self.add_data_change(ObjectChange::LogBypassed { object: self.data_object(slot, &inode) });
        }
        Ok(())
    }

    fn set_parent(&mut self, slot: InodeSlot, parent: InodeSlot) -> Result<(), FsError> {
        let mut inode = self.inode(slot)?;
        inode.next = U32::new(parent.0);
        self.set_inode(slot, &inode);
        Ok(())
    }

    /// Moves a name. With `whiteout`, a whiteout of that owner takes the old name's place; returns its
    /// attributes, unless nothing moved.
    pub(crate) fn rename(
        &mut self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
        whiteout: Option<CallerCredentials>,
    ) -> Result<Option<FileAttributes>, FsError> {
        let (from_slot, from_hot) = self.find_directory(from.0)?;
        let (to_slot, to_hot) = self.find_directory(to.0)?;
        let moved = self.lookup_name(&from_hot, from.1)?.ok_or(FsError::NotFound)?;
        let present = self.lookup_name(&to_hot, to.1)?;
        let is_directory = moved.kind == FileKind::Directory;
        if is_directory && self.is_below(to_slot, moved.slot)? {
            return Err(FsError::Invalid);
        }
        if let Some(present) = present {
            if present.slot == moved.slot && if_exists == IfExists::Replace {
                return Ok(None);
            }
            self.check_replaced(moved.kind, present, if_exists)?;
        }
        self.log_bypassed_pages(moved.slot)?;
        match present {
            Some(present) => self.replace_name(to_slot, (to.1, present), moved.slot, moved.kind)?,
            None => self.add_name(to_slot, to.1, moved.slot, moved.kind)?,
        }
        let whiteout = match whiteout {
            Some(caller) => Some(self.white_out(caller, from_slot, from.1)?),
            None => self.remove_name(from_slot, from.1, moved.slot).map(|()| None)?,
        };
        if is_directory && from_slot != to_slot {
            self.add_links(from_slot, -1)?;
            self.add_links(to_slot, 1)?;
            self.set_parent(moved.slot, to_slot)?;
        }
        self.touch_changed(moved.slot)?;
        match present {
            Some(gone) if gone.kind == FileKind::Directory => self.drop_directory(to_slot, gone.slot)?,
            Some(gone) => self.drop_link(gone.slot)?,
            None => {}
        }
        whiteout.map(|slot| self.attributes(slot)).transpose()
    }
}

impl Fs {
    /// Moves a name. After a crash exactly one of the two names leads to the file.
    pub fn rename(&self, from: (Ino, &[u8]), to: (Ino, &[u8]), if_exists: IfExists, done: FsCompletion<()>) {
        let cost = cost::rename(self.levels(from.0), self.levels(to.0));
        let done = self.then_step_rules(&[from], done);
        let from_name = from.1.to_vec();
        let from = from.0;
        let to_name = to.1.to_vec();
        let to = to.0;
        let work = move |tx: &mut FsTransaction<'_>| {
            tx.rename((from, &from_name), (to, &to_name), if_exists, None).map(drop)
        };
        self.run(cost, work, done);
    }

    /// Moves a name and leaves a whiteout of `caller`, a character device 0/0, at the old name, as one
    /// change, for overlayfs. Completes with the whiteout's attributes, or with `None` if both names were of
    /// one file: then both stay.
    pub fn rename_leaving_whiteout(
        &self,
        caller: CallerCredentials,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
        done: FsCompletion<Option<FileAttributes>>,
    ) {
        let cost = cost::rename_leaving_whiteout(self.levels(from.0), self.levels(to.0));
        let done = self.then_step_rules(&[from], done);
        let from_name = from.1.to_vec();
        let from = from.0;
        let to_name = to.1.to_vec();
        let to = to.0;
        let work = move |tx: &mut FsTransaction<'_>| {
            tx.rename((from, &from_name), (to, &to_name), if_exists, Some(caller))
        };
        self.run(cost, work, done);
    }

    /// Exchanges the files of two names. After a crash both are exchanged, or none.
    pub fn exchange(&self, one: (Ino, &[u8]), other: (Ino, &[u8]), done: FsCompletion<()>) {
        let done = self.then_step_rules(&[one, other], done);
        let one_name = one.1.to_vec();
        let one = one.0;
        let other_name = other.1.to_vec();
        let other = other.0;
        let work = move |tx: &mut FsTransaction<'_>| tx.exchange((one, &one_name), (other, &other_name));
        self.run(cost::exchange(), work, done);
    }
}

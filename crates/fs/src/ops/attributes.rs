//! Setting attributes.

use crate::arena::FsTransaction;
use crate::error::FsError;
use crate::format::{Inode, InodeSlot};
use crate::ops::create::{MODE_MASK, SETGID};
use crate::owner_table::OwnerAndMode;
use crate::types::{FileAttributes, FileKind, Ino, PrivilegeChange, SetAttributes, SetTime};
use zerocopy::little_endian::{I64, U32};

/// A process that executes the file gets its owner's rights.
pub(crate) const SETUID: u16 = 0o4000;
pub(crate) const GROUP_EXECUTE: u16 = 0o010;

/// Whether a file of this kind loses its privileges. A new owner does not inherit those that the old one
/// gave.
fn drops_privileges(kind: FileKind, set: &SetAttributes) -> bool {
    let owner_changes = set.uid.is_some() || set.gid.is_some();
    kind != FileKind::Directory && (owner_changes || set.privileges != PrivilegeChange::Keep)
}

/// Owner, group and mode after `set`.
///
/// If the file loses its privileges, setuid is cleared, and setgid if the group may execute or `DropAll` is
/// asked for. (Setgid without group execution used to request mandatory locks.)
fn owner_and_mode_after(kind: FileKind, before: OwnerAndMode, set: &SetAttributes) -> OwnerAndMode {
    let mut mode = before.mode;
    if drops_privileges(kind, set) {
        mode &= !SETUID;
        if mode & GROUP_EXECUTE != 0 || set.privileges == PrivilegeChange::DropAll {
            mode &= !SETGID;
        }
    }
    OwnerAndMode {
        uid: set.uid.unwrap_or(before.uid),
        gid: set.gid.unwrap_or(before.gid),
        mode: set.mode.map_or(mode, |mode| mode & MODE_MASK),
    }
}

impl FsTransaction<'_> {
    pub(crate) fn set_attributes(
        &mut self,
        ino: Ino,
        set: &SetAttributes,
    ) -> Result<FileAttributes, FsError> {
        let (slot, inode, kind) = self.find_inode(ino)?;
        if *set == SetAttributes::default() {
            return self.attributes(slot);
        }
        if let Some(size) = set.size {
            match kind {
                FileKind::File => self.truncate(slot, size)?,
                FileKind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
        }
        let before = self.owner(&inode)?;
        let after = owner_and_mode_after(kind, before, set);
        self.set_owner_and_mode(slot, after)?;
        if set.mode.is_some() && !inode.xattrs().is_none() {
            self.update_access_acl(slot, after.mode)?;
        }
        let had = drops_privileges(kind, set) && self.drop_capability(slot)?;
        let only_drops = *set == SetAttributes { privileges: set.privileges, ..Default::default() };
        if only_drops && !had && before == after {
            return self.attributes(slot);
        }
        let mut times = self.inode_times(slot)?;
        let now = self.now;
        let to = |time| match time {
            SetTime::Now => I64::new(now),
            SetTime::To(time) => I64::new(time),
        };
        times.changed = I64::new(now);
        if set.size.is_some() {
            times.modified = I64::new(now);
        }
        times.accessed = set.accessed.map_or(times.accessed, to);
        times.modified = set.modified.map_or(times.modified, to);
        self.set_inode_times(slot, &times);
        self.attributes(slot)
    }

    pub(crate) fn set_owner_and_mode(
        &mut self,
        slot: InodeSlot,
        rights: OwnerAndMode,
    ) -> Result<(), FsError> {
        let mut inode: Inode = self.inode(slot)?;
        if self.owner(&inode)? == rights {
            return Ok(());
        }
        let old = inode.owner.get();
        inode.owner = U32::new(self.reference_owner(rights)?);
        self.set_inode(slot, &inode);
        self.release_owner(old)
    }
}

//! Sets and removes attributes, and keeps ACLs and modes in agreement.

use super::{ACCESS_ACL, CAPABILITY, XattrKey, XattrNamespace, records};
use crate::acl::{PosixAcl, mode_with};
use crate::arena::{FsTransaction, corrupt};
use crate::atomic_writes::MARK;
use crate::error::FsError;
use crate::format::{ArenaRegion, Inode, InodeSlot};
use crate::owner_table::OwnerAndMode;
use crate::types::{FileKind, Ino, SetXattrMode};

/// A change of one attribute.
#[derive(Debug, Clone)]
pub(crate) enum XattrChange {
    Set { value: Vec<u8>, how: SetXattrMode },
    Remove,
}

impl XattrChange {
    /// The new value; `None` if the attribute is removed.
    fn value(&self) -> Option<&[u8]> {
        match self {
            XattrChange::Set { value, .. } => Some(value),
            XattrChange::Remove => None,
        }
    }
}

/// The outcome of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum XattrOutcome {
    Done,
    /// The attributes exceed the stated cost. Nothing was changed; the cost must be stated again.
    Grown,
}

impl FsTransaction<'_> {
    /// Changes an attribute, if all attributes have at most `stated` bytes so far.
    pub(crate) fn change_xattr(
        &mut self,
        ino: Ino,
        key: XattrKey<'_>,
        change: &XattrChange,
        stated: usize,
    ) -> Result<XattrOutcome, FsError> {
        let (slot, inode, kind) = self.find_inode(ino)?;
        let mut string = self.xattrs(&inode)?;
        if string.len() > stated {
            return Ok(XattrOutcome::Grown);
        }
        check_kind(key, kind)?;
        if key == MARK {
            self.check_mark(slot, change.value())?;
        }
        let present = self.xattr(&inode, key)?.is_some();
        match change {
            XattrChange::Set { how: SetXattrMode::Create, .. } if present => return Err(FsError::Exists),
            XattrChange::Set { how: SetXattrMode::Replace, .. } if !present => return Err(FsError::NoXattr),
            XattrChange::Set { value, .. } if key.space.is_acl() => {
                let acl = PosixAcl::parse(value)?;
                if key == ACCESS_ACL {
                    let rights = self.owner(&inode)?;
                    self.set_owner_and_mode(
                        slot,
                        OwnerAndMode { mode: mode_with(rights.mode, &acl), ..rights },
                    )?;
                }
                if key == ACCESS_ACL && acl.is_minimal() {
                    records::remove(&mut string, key);
                } else {
                    records::set(&mut string, key, value)?;
                }
            }
            XattrChange::Set { value, .. } => records::set(&mut string, key, value)?,
            // As in Linux's other file systems, only an ACL may be removed that does not exist.
            XattrChange::Remove if !present && key.space.is_acl() => return Ok(XattrOutcome::Done),
            XattrChange::Remove if !present => return Err(FsError::NoXattr),
            XattrChange::Remove => drop(records::remove(&mut string, key)),
        }
        self.store_xattrs(slot, &string)?;
        self.touch_changed(slot)?;
        Ok(XattrOutcome::Done)
    }

    /// Makes `string` the records of an inode.
    fn store_xattrs(&mut self, slot: InodeSlot, string: &[u8]) -> Result<(), FsError> {
        let mut inode: Inode = self.inode(slot)?;
        self.write_xattrs(&mut inode, string)?;
        self.set_inode(slot, &inode);
        Ok(())
    }

    /// Changes an access list to agree with the mode.
    pub(crate) fn update_access_acl(&mut self, slot: InodeSlot, mode: u16) -> Result<(), FsError> {
        let inode = self.inode(slot)?;
        let Some(value) = self.xattr(&inode, ACCESS_ACL)? else { return Ok(()) };
        let mut acl = PosixAcl::parse(&value).map_err(|_| self.corrupt_acl(slot))?;
        acl.set_mode(mode);
        let mut string = self.xattrs(&inode)?;
        records::set(&mut string, ACCESS_ACL, &acl.value())?;
        self.store_xattrs(slot, &string)
    }

    /// Gives a new inode the attributes that it inherits from its directory.
    pub(crate) fn set_initial_xattrs(
        &mut self,
        inode: &mut Inode,
        inherited: &[(XattrKey<'_>, Vec<u8>)],
    ) -> Result<(), FsError> {
        let mut string = Vec::new();
        for (key, value) in inherited {
            records::set(&mut string, *key, value)?;
        }
        self.write_xattrs(inode, &string)
    }

    /// Removes a file's capabilities. Returns whether it had any.
    pub(crate) fn drop_capability(&mut self, slot: InodeSlot) -> Result<bool, FsError> {
        let inode = self.inode(slot)?;
        if inode.xattrs().is_none() {
            return Ok(false);
        }
        let mut string = self.xattrs(&inode)?;
        let had = records::remove(&mut string, CAPABILITY);
        if had {
            self.store_xattrs(slot, &string)?;
        }
        Ok(had)
    }

    fn corrupt_acl(&self, slot: InodeSlot) -> FsError {
        let at = ArenaRegion::Inodes.at::<Inode>(slot.0);
        corrupt(at, "an inode's access control list makes no sense")
    }
}

/// Checks that a file of this kind may have an attribute. The kernel does so, too; this is for other front
/// ends.
pub(crate) fn check_kind(key: XattrKey<'_>, kind: FileKind) -> Result<(), FsError> {
    match (key.space, kind) {
        (XattrNamespace::User, FileKind::File | FileKind::Directory) => Ok(()),
        (XattrNamespace::User, _) => Err(FsError::NotPermitted),
        (XattrNamespace::AccessAcl | XattrNamespace::DefaultAcl, FileKind::Symlink) => {
            Err(FsError::Unsupported)
        }
        (XattrNamespace::DefaultAcl, FileKind::Directory) => Ok(()),
        (XattrNamespace::DefaultAcl, _) => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

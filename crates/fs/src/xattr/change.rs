//! Setting and removing attributes, and what that has to do with modes.

use super::{ACCESS_ACL, CAPABILITY, Key, Space, records};
use crate::acl::{Acl, mode_with};
use crate::arena::Transaction;
use crate::error::FsError;
use crate::format::{Hot, Slot};
use crate::owners::Rights;
use crate::types::{Ino, Kind, SetXattr};

/// What to do to one attribute.
#[derive(Debug, Clone)]
pub(crate) enum XattrChange {
    Set { value: Vec<u8>, how: SetXattr },
    Remove,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    /// The attributes had become more than the cost was stated for: nothing was changed, state it anew.
    Grown,
}

impl Transaction<'_> {
    /// Changes an attribute, if all of them are at most `stated` bytes so far.
    pub(crate) fn change_xattr(
        &mut self,
        ino: Ino,
        key: Key<'_>,
        change: &XattrChange,
        stated: usize,
    ) -> Result<Outcome, FsError> {
        let (slot, hot, kind) = self.find(ino)?;
        let mut string = self.xattrs(&hot)?;
        if string.len() > stated {
            return Ok(Outcome::Grown);
        }
        check_kind(key, kind)?;
        let present = self.xattr(&hot, key)?.is_some();
        match change {
            XattrChange::Set { how: SetXattr::Create, .. } if present => return Err(FsError::Exists),
            XattrChange::Set { how: SetXattr::Replace, .. } if !present => return Err(FsError::NoXattr),
            XattrChange::Set { value, .. } if key.space.is_acl() => {
                let acl = Acl::parse(value)?;
                if key == ACCESS_ACL {
                    let rights = self.owner(&hot)?;
                    self.set_rights(slot, Rights { mode: mode_with(rights.mode, &acl), ..rights })?;
                }
                if key == ACCESS_ACL && acl.is_minimal() {
                    records::remove(&mut string, key);
                } else {
                    records::set(&mut string, key, value)?;
                }
            }
            XattrChange::Set { value, .. } => records::set(&mut string, key, value)?,
            // Linux's file systems let a list be removed that is not there, and nothing else.
            XattrChange::Remove if !present && key.space.is_acl() => return Ok(Outcome::Done),
            XattrChange::Remove if !present => return Err(FsError::NoXattr),
            XattrChange::Remove => drop(records::remove(&mut string, key)),
        }
        self.store_xattrs(slot, &string)?;
        self.touch_changed(slot)?;
        Ok(Outcome::Done)
    }

    /// Lets `string` be all attributes of an inode.
    fn store_xattrs(&mut self, slot: Slot, string: &[u8]) -> Result<(), FsError> {
        let mut hot: Hot = self.hot(slot)?;
        self.write_xattrs(&mut hot, string)?;
        self.set_hot(slot, &hot);
        Ok(())
    }

    /// The access list says what the mode says.
    pub(crate) fn follow_mode(&mut self, slot: Slot, mode: u16) -> Result<(), FsError> {
        let hot = self.hot(slot)?;
        let Some(value) = self.xattr(&hot, ACCESS_ACL)? else { return Ok(()) };
        let mut acl = Acl::parse(&value).map_err(|_| self.damaged(slot))?;
        acl.set_mode(mode);
        let mut string = self.xattrs(&hot)?;
        records::set(&mut string, ACCESS_ACL, &acl.value())?;
        self.store_xattrs(slot, &string)
    }

    /// Gives a new inode its access list and, if it is a directory, its default list.
    pub(crate) fn give_acls(&mut self, hot: &mut Hot, acls: &[(Key<'_>, Vec<u8>)]) -> Result<(), FsError> {
        let mut string = Vec::new();
        for (key, value) in acls {
            records::set(&mut string, *key, value)?;
        }
        self.write_xattrs(hot, &string)
    }

    /// Takes from a file the capabilities that its content had. Whether it had any.
    pub(crate) fn drop_capability(&mut self, slot: Slot) -> Result<bool, FsError> {
        let hot = self.hot(slot)?;
        if hot.xattrs().is_none() {
            return Ok(false);
        }
        let mut string = self.xattrs(&hot)?;
        let had = records::remove(&mut string, CAPABILITY);
        if had {
            self.store_xattrs(slot, &string)?;
        }
        Ok(had)
    }

    fn damaged(&self, slot: Slot) -> FsError {
        let at = crate::format::Region::Hot.at::<Hot>(slot.0);
        crate::arena::corrupt(at, "an inode's access control list makes no sense")
    }
}

/// Which attributes a file of this kind may have. The kernel refuses the same, so this is for other front ends.
pub(crate) fn check_kind(key: Key<'_>, kind: Kind) -> Result<(), FsError> {
    match (key.space, kind) {
        (Space::User, Kind::File | Kind::Directory) => Ok(()),
        (Space::User, _) => Err(FsError::NotPermitted),
        (Space::AccessAcl | Space::DefaultAcl, Kind::Symlink) => Err(FsError::Unsupported),
        (Space::DefaultAcl, Kind::Directory) => Ok(()),
        (Space::DefaultAcl, _) => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

//! Setting attributes.

use crate::arena::Transaction;
use crate::create::{MODE_MASK, SETGID};
use crate::error::FsError;
use crate::format::{Hot, Slot};
use crate::owners::Rights;
use crate::types::{Attributes, Ino, Kind, Privileges, SetAttributes, SetTime};
use zerocopy::little_endian::{I64, U32};

/// Who executes the file gets its owner's rights.
pub(crate) const SETUID: u16 = 0o4000;
pub(crate) const GROUP_EXECUTE: u16 = 0o010;

/// Whether a file of this kind loses its powers: a new owner does not inherit those that the old one gave it.
fn drops(kind: Kind, set: &SetAttributes) -> bool {
    let owner_changes = set.uid.is_some() || set.gid.is_some();
    kind != Kind::Directory && (owner_changes || set.privileges != Privileges::Keep)
}

/// The rights after `set`. Where powers go, setuid goes, and setgid where it is one, or where all go (without group
/// execution it asked for mandatory locks, when there were any).
fn rights_after(kind: Kind, before: Rights, set: &SetAttributes) -> Rights {
    let mut mode = before.mode;
    if drops(kind, set) {
        mode &= !SETUID;
        if mode & GROUP_EXECUTE != 0 || set.privileges == Privileges::DropAll {
            mode &= !SETGID;
        }
    }
    Rights {
        uid: set.uid.unwrap_or(before.uid),
        gid: set.gid.unwrap_or(before.gid),
        mode: set.mode.map_or(mode, |mode| mode & MODE_MASK),
    }
}

impl Transaction<'_> {
    pub(crate) fn set_attributes(&mut self, ino: Ino, set: &SetAttributes) -> Result<Attributes, FsError> {
        let (slot, hot, kind) = self.find(ino)?;
        if *set == SetAttributes::default() {
            return self.attributes(slot);
        }
        if let Some(size) = set.size {
            match kind {
                Kind::File => self.truncate(slot, size)?,
                Kind::Directory => return Err(FsError::IsDirectory),
                _ => return Err(FsError::Invalid),
            }
        }
        let before = self.owner(&hot)?;
        let after = rights_after(kind, before, set);
        self.set_rights(slot, after)?;
        if set.mode.is_some() && !hot.xattrs().is_none() {
            self.follow_mode(slot, after.mode)?;
        }
        let had = drops(kind, set) && self.drop_capability(slot)?;
        let only_drops = *set == SetAttributes { privileges: set.privileges, ..Default::default() };
        if only_drops && !had && before == after {
            return self.attributes(slot);
        }
        let mut cold = self.cold(slot)?;
        let now = self.now;
        let to = |time| match time {
            SetTime::Now => I64::new(now),
            SetTime::To(time) => I64::new(time),
        };
        cold.changed = I64::new(now);
        if set.size.is_some() {
            cold.modified = I64::new(now);
        }
        cold.accessed = set.accessed.map_or(cold.accessed, to);
        cold.modified = set.modified.map_or(cold.modified, to);
        self.set_cold(slot, &cold);
        self.attributes(slot)
    }

    pub(crate) fn set_rights(&mut self, slot: Slot, rights: Rights) -> Result<(), FsError> {
        let mut hot: Hot = self.hot(slot)?;
        if self.owner(&hot)? == rights {
            return Ok(());
        }
        let old = hot.owner.get();
        hot.owner = U32::new(self.take_owner(rights)?);
        self.set_hot(slot, &hot);
        self.drop_owner(old)
    }
}

//! POSIX access control lists (IEEE 1003.1e draft 17, as in Linux): how they relate to modes, and what a new
//! file inherits from its directory's default list. Pure. The kernel checks access.
//!
//! A list is kept in the form that the kernel uses, as the value of an extended attribute: a version, then
//! entries of 8 bytes.

use crate::error::FsError;
use crate::format::{AclEntry, AclHead};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

/// Bytes of the longest list: the kernel passes on at most a page.
pub(crate) const ACL_BYTES_MAX: usize = 4096;

/// The only version.
const VERSION: u32 = 2;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// The permission bits of one entry.
const RWX: u16 = 7;
/// The bits of a mode that a list contains.
const PERMISSIONS: u16 = 0o777;

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PosixAcl(Vec<AclEntry>);

/// A class of a mode, with the shift of its bits. One entry of a list stands for each class.
#[derive(Clone, Copy)]
enum ModeClass {
    Owner = 6,
    Group = 3,
    Others = 0,
}

impl PosixAcl {
    /// Parses an attribute's value.
    ///
    /// # Errors
    /// [`FsError::Invalid`] unless the list is complete: owner, named users, owning group, named groups,
    /// mask, others, in this order, and a mask if a user or group is named.
    pub(crate) fn parse(value: &[u8]) -> Result<PosixAcl, FsError> {
        let (head, entries) = AclHead::ref_from_prefix(value).map_err(|_| FsError::Invalid)?;
        let entries = <[AclEntry]>::ref_from_bytes(entries).map_err(|_| FsError::Invalid)?;
        let sane = head.version.get() == VERSION && value.len() <= ACL_BYTES_MAX;
        let acl = PosixAcl(entries.to_vec());
        if sane && acl.is_whole() { Ok(acl) } else { Err(FsError::Invalid) }
    }

    /// The attribute's value.
    pub(crate) fn value(&self) -> Vec<u8> {
        let head = AclHead { version: U32::new(VERSION) };
        [head.as_bytes(), self.0.as_bytes()].concat()
    }

    fn is_whole(&self) -> bool {
        let count = |tag: u16| self.0.iter().filter(|entry| entry.tag.get() == tag).count();
        let named = count(USER) + count(GROUP) > 0;
        let known = [OWNER, USER, OWNING_GROUP, GROUP, MASK, OTHERS];
        self.0.is_sorted_by_key(|entry| entry.tag.get())
            && self.0.iter().all(|entry| known.contains(&entry.tag.get()) && entry.permissions.get() <= RWX)
            && [OWNER, OWNING_GROUP, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (count(MASK) == 1 || !named)
    }

    /// Whether a mode says the same: no user or group is named, and there is no mask.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }

    /// The permissions of the entry that stands for a class. For the group that is the mask, if there is one.
    fn entry(&mut self, class: ModeClass) -> &mut U16 {
        let masked = self.0.iter().any(|entry| entry.tag.get() == MASK);
        let tag = match class {
            ModeClass::Owner => OWNER,
            ModeClass::Group if masked => MASK,
            ModeClass::Group => OWNING_GROUP,
            ModeClass::Others => OTHERS,
        };
        let entry = self.0.iter_mut().find(|entry| entry.tag.get() == tag);
        &mut entry.expect("a valid list has it").permissions
    }

    /// The permission bits of the mode of a file with this access list.
    pub(crate) fn mode(&self) -> u16 {
        let mut copy = self.clone();
        let classes = [ModeClass::Owner, ModeClass::Group, ModeClass::Others];
        classes.into_iter().fold(0, |mode, class| mode | copy.entry(class).get() << class as u16)
    }

    /// Changes an access list as chmod to `mode` does.
    pub(crate) fn set_mode(&mut self, mode: u16) {
        for class in [ModeClass::Owner, ModeClass::Group, ModeClass::Others] {
            *self.entry(class) = U16::new(mode >> class as u16 & RWX);
        }
    }

    /// The access list and the mode of a new file in a directory with this default list: permissions that
    /// both the list and `mode` allow. The umask does not apply.
    pub(crate) fn inherit(&self, mode: u16) -> (PosixAcl, u16) {
        let mut acl = self.clone();
        acl.set_mode(self.mode() & mode);
        let mode = mode & !PERMISSIONS | acl.mode();
        (acl, mode)
    }
}

/// The mode of a file after its access list was set to `acl`.
pub(crate) fn mode_with(mode: u16, acl: &PosixAcl) -> u16 {
    mode & !PERMISSIONS | acl.mode()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A list's value from (tag, permissions, id).
    pub(crate) fn value(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, permissions, id)| AclEntry {
            tag: U16::new(tag),
            permissions: U16::new(permissions),
            id: U32::new(id),
        });
        PosixAcl(entries.collect()).value()
    }

    const NOBODY: u32 = u32::MAX;

    #[test]
    fn only_whole_lists_are_taken() {
        let minimal = [(OWNER, 6, NOBODY), (OWNING_GROUP, 4, NOBODY), (OTHERS, 0, NOBODY)];
        let acl = PosixAcl::parse(&value(&minimal)).expect("a minimal list");
        assert!(acl.is_minimal());
        assert_eq!((acl.mode(), acl.value()), (0o640, value(&minimal)));
        let named = [minimal[0], (USER, 7, 5), minimal[1], (MASK, 6, NOBODY), minimal[2]];
        let acl = PosixAcl::parse(&value(&named)).expect("a list with a name");
        assert!(!acl.is_minimal());
        assert_eq!(acl.mode(), 0o660, "the mask stands for the group");
        let bad =
            |entries: &[(u16, u16, u32)]| assert!(PosixAcl::parse(&value(entries)).is_err(), "{entries:?}");
        bad(&[]);
        bad(&minimal[..2]);
        bad(&[minimal[1], minimal[0], minimal[2]]);
        bad(&[minimal[0], (USER, 7, 5), minimal[1], minimal[2]]);
        bad(&[minimal[0], minimal[0], minimal[1], minimal[2]]);
        bad(&[(OWNER, 8, NOBODY), minimal[1], minimal[2]]);
        bad(&[minimal[0], minimal[1], (0x40, 0, NOBODY), minimal[2]]);
        let good = value(&minimal);
        assert!(PosixAcl::parse(&good[..good.len() - 1]).is_err());
        assert!(PosixAcl::parse(&good[..3]).is_err());
        assert!(PosixAcl::parse(&[&[3, 0, 0, 0], &good[4..]].concat()).is_err());
    }

    #[test]
    fn a_new_file_gets_what_the_default_list_and_its_creator_both_allow() {
        let default = [
            (OWNER, 7, NOBODY),
            (USER, 6, 5),
            (OWNING_GROUP, 5, NOBODY),
            (MASK, 7, NOBODY),
            (OTHERS, 4, NOBODY),
        ];
        let (acl, mode) = PosixAcl::parse(&value(&default)).expect("a list").inherit(0o2644);
        assert_eq!(mode, 0o2644);
        // The group's own entry stays; the mask is what the mode's group bits are.
        let expected = [(OWNER, 6), (USER, 6), (OWNING_GROUP, 5), (MASK, 4), (OTHERS, 4)];
        let found: Vec<_> = acl.0.iter().map(|entry| (entry.tag.get(), entry.permissions.get())).collect();
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn chmod_and_the_mode_agree(mode in 0..=0o777u16, user in 0..=7u16, named: bool) {
            let mut entries = vec![(OWNER, 7, NOBODY), (OWNING_GROUP, 7, NOBODY), (OTHERS, 7, NOBODY)];
            if named {
                entries.insert(1, (USER, user, 9));
                entries.insert(3, (MASK, 0, NOBODY));
            }
            let mut acl = PosixAcl::parse(&value(&entries)).expect("a list");
            acl.set_mode(mode);
            prop_assert_eq!(acl.mode(), mode);
            prop_assert_eq!(mode_with(0o4000, &acl), 0o4000 | mode);
        }
    }
}

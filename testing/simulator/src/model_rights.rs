//! Rights in the model: modes, owners, access control lists and the other extended attributes.

use crate::change::ChangeErrno;
use crate::model::{CALLER, FsModel, ModelId, ModelInode};
use fs::{FileKind, SetXattrMode};

pub(crate) const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

const OWNER: u16 = 0x01;
const OWNING_GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// An access control list: (tag, permissions, id), as Linux orders them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ModelAcl(pub(crate) Vec<(u16, u16, u32)>);

impl ModelAcl {
    /// A list for `mode`. The list also names the user `uid`, if there is one.
    pub(crate) fn new(mode: u16, mask: u16, uid: Option<u32>) -> ModelAcl {
        let nobody = u32::MAX;
        let mut entries = vec![(OWNER, mode >> 6 & 7, nobody)];
        entries.extend(uid.map(|uid| (0x02, 6, uid)));
        entries.push((OWNING_GROUP, mode >> 3 & 7, nobody));
        entries.extend(uid.map(|_| (MASK, mask & 7, nobody)));
        entries.push((OTHERS, mode & 7, nobody));
        ModelAcl(entries)
    }

    fn of(value: &[u8]) -> ModelAcl {
        let entry = |bytes: &[u8]| {
            let short = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            let id = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
            (short(0), short(2), id)
        };
        ModelAcl(value[4..].chunks_exact(8).map(entry).collect())
    }

    pub(crate) fn value(&self) -> Vec<u8> {
        let mut value = vec![2, 0, 0, 0];
        for (tag, permissions, id) in &self.0 {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    /// The tag of the entry that the group bits of the mode stand for.
    fn group(&self) -> u16 {
        if self.0.iter().any(|&(tag, ..)| tag == MASK) { MASK } else { OWNING_GROUP }
    }

    fn mode(&self) -> u16 {
        let of = |wanted| self.0.iter().find(|&&(tag, ..)| tag == wanted).map_or(0, |&(_, bits, _)| bits);
        of(OWNER) << 6 | of(self.group()) << 3 | of(OTHERS)
    }

    fn set_mode(&mut self, mode: u16) {
        let group = self.group();
        for (tag, bits, _) in &mut self.0 {
            match *tag {
                OWNER => *bits = mode >> 6 & 7,
                OTHERS => *bits = mode & 7,
                tag if tag == group => *bits = mode >> 3 & 7,
                _ => {}
            }
        }
    }

    fn says_more_than_a_mode(&self) -> bool {
        self.0.len() > 3
    }
}

impl ModelInode {
    /// Removes setuid, capabilities, and setgid if the group may execute. Without that right, setgid marks
    /// mandatory locking and stays.
    fn drop_powers(&mut self) -> bool {
        let before = self.mode;
        let setgid = if self.mode & 0o010 == 0 { 0 } else { 0o2000 };
        self.mode &= !(0o4000 | setgid);
        self.xattrs.remove(CAPABILITY).is_some() || self.mode != before
    }

    fn set_mode(&mut self, mode: u16) {
        self.mode = mode;
        if let Some(value) = self.xattrs.get_mut(ACCESS_ACL) {
            let mut acl = ModelAcl::of(value);
            acl.set_mode(mode);
            *value = acl.value();
        }
    }

    /// Takes the group, setgid and the default access list from the directory, as a new inode does.
    pub(crate) fn inherit(&mut self, directory: &ModelInode) {
        let is_directory = self.is_directory();
        if directory.mode & 0o2000 != 0 {
            self.gid = directory.gid;
            self.mode |= if is_directory { 0o2000 } else { 0 };
        }
        if self.kind() == FileKind::Symlink {
            return;
        }
        let Some(default) = directory.xattrs.get(DEFAULT_ACL) else {
            self.mode &= !CALLER.umask;
            return;
        };
        let mut access = ModelAcl::of(default);
        access.set_mode(access.mode() & self.mode);
        self.mode = self.mode & !0o777 | access.mode();
        if access.says_more_than_a_mode() {
            self.xattrs.insert(ACCESS_ACL.to_vec(), access.value());
        }
        if is_directory {
            self.xattrs.insert(DEFAULT_ACL.to_vec(), default.clone());
        }
    }
}

impl FsModel {
    pub(crate) fn set_mode(&mut self, id: ModelId, mode: u16, now: Option<i64>) {
        let inode = self.get_mut(id);
        inode.set_mode(mode);
        inode.change(now);
    }

    /// Sets the owner. The new owner does not get setuid, setgid or capabilities of a file.
    pub(crate) fn set_owner(&mut self, id: ModelId, uid: Option<u32>, gid: Option<u32>, now: Option<i64>) {
        let inode = self.get_mut(id);
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
        if !inode.is_directory() && (uid.is_some() || gid.is_some()) {
            inode.drop_powers();
        }
        inode.change(now);
    }

    pub(crate) fn drop_powers(&mut self, id: ModelId, now: Option<i64>) {
        let inode = self.get_mut(id);
        if !inode.is_directory() && inode.drop_powers() {
            inode.change(now);
        }
    }

    pub(crate) fn set_xattr(
        &mut self,
        id: ModelId,
        name: &[u8],
        value: &[u8],
        how: SetXattrMode,
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let inode = self.get_mut(id);
        may_have(inode.kind(), name)?;
        match (how, inode.xattrs.contains_key(name)) {
            (SetXattrMode::Create, true) => return Err(ChangeErrno::Exists),
            (SetXattrMode::Replace, false) => return Err(ChangeErrno::NoXattr),
            _ => {}
        }
        inode.xattrs.insert(name.to_vec(), value.to_vec());
        if name == ACCESS_ACL {
            let acl = ModelAcl::of(value);
            inode.mode = inode.mode & !0o777 | acl.mode();
            if !acl.says_more_than_a_mode() {
                inode.xattrs.remove(name);
            }
        }
        inode.change(now);
        Ok(())
    }

    pub(crate) fn remove_xattr(
        &mut self,
        id: ModelId,
        name: &[u8],
        now: Option<i64>,
    ) -> Result<(), ChangeErrno> {
        let inode = self.get_mut(id);
        may_have(inode.kind(), name)?;
        match inode.xattrs.remove(name) {
            Some(_) => inode.change(now),
            None if [ACCESS_ACL, DEFAULT_ACL].contains(&name) => {}
            None => return Err(ChangeErrno::NoXattr),
        }
        Ok(())
    }
}

/// Whether an inode of this kind may have the attribute.
fn may_have(kind: FileKind, name: &[u8]) -> Result<(), ChangeErrno> {
    let is_acl = [ACCESS_ACL, DEFAULT_ACL].contains(&name);
    match kind {
        FileKind::Symlink if is_acl => Err(ChangeErrno::Unsupported),
        FileKind::File | FileKind::Directory if name.starts_with(b"user.") => Ok(()),
        _ if name.starts_with(b"user.") => Err(ChangeErrno::NotPermitted),
        FileKind::Directory => Ok(()),
        _ if name == DEFAULT_ACL => Err(ChangeErrno::NotPermitted),
        _ => Ok(()),
    }
}

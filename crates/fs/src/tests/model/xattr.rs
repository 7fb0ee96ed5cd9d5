//! Extended attributes and access control lists of the model: written apart from the real ones, from what acl(5) and
//! setxattr(2) say.

use super::{ModelFs, ModelNode, ModelOutcome};
use crate::error::FsError;
use crate::types::{FileKind, Ino, SetXattrMode};

pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";
const CAPABILITY: &[u8] = b"security.capability";

/// The bytes of a list's entries: tag, permissions, id.
pub(crate) fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn entries(value: &[u8]) -> Vec<(u16, u16, u32)> {
    let half = |bytes: &[u8]| u16::from_le_bytes([bytes[0], bytes[1]]);
    let id = |bytes: &[u8]| u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    value[4..].chunks(8).map(|entry| (half(entry), half(&entry[2..]), id(entry))).collect()
}

/// The permissions of the three classes: owner; mask, or group where there is none; others.
fn classes(value: &[u8]) -> u16 {
    let all = entries(value);
    let of = |tag| all.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
    of(1).unwrap_or(0) << 6 | of(16).or(of(4)).unwrap_or(0) << 3 | of(32).unwrap_or(0)
}

/// The list with the permissions of its three classes set to those of `mode`.
fn with_classes(value: &[u8], mode: u16) -> Vec<u8> {
    let mut all = entries(value);
    let masked = all.iter().any(|entry| entry.0 == 16);
    for entry in &mut all {
        match (entry.0, masked) {
            (1, _) => entry.1 = mode >> 6 & 7,
            (16, _) | (4, false) => entry.1 = mode >> 3 & 7,
            (32, _) => entry.1 = mode & 7,
            _ => {}
        }
    }
    acl(&all)
}

impl ModelNode {
    /// What a directory's default list gives to something new: its mode, and its lists.
    pub(super) fn inherit(&self, new: &mut ModelNode) {
        let Some(default) = self.xattrs.get(DEFAULT) else { return };
        let mode = new.rights.2;
        let access = with_classes(default, mode & classes(default));
        new.rights.2 = mode & !0o777 | classes(&access);
        if entries(&access).len() > 3 {
            new.xattrs.insert(ACCESS.to_vec(), access);
        }
        if new.kind == FileKind::Directory {
            new.xattrs.insert(DEFAULT.to_vec(), default.clone());
        }
    }

    pub(super) fn update_access_acl(&mut self) {
        let mode = self.rights.2;
        if let Some(access) = self.xattrs.get_mut(ACCESS) {
            *access = with_classes(access, mode);
        }
    }

    /// Whether there were any capabilities.
    pub(super) fn drop_capability(&mut self) -> bool {
        self.xattrs.remove(CAPABILITY).is_some()
    }

    /// Bytes of a list of all names.
    fn list_bytes(&self) -> usize {
        self.xattrs.keys().map(|name| name.len() + 1).sum()
    }
}

impl ModelFs {
    pub(super) fn set_xattr(
        &mut self,
        ino: Ino,
        name: &[u8],
        value: Vec<u8>,
        how: SetXattrMode,
    ) -> ModelOutcome {
        let now = self.now;
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        check(name, node.kind)?;
        match (how, node.xattrs.contains_key(name)) {
            (SetXattrMode::Create, true) => return Err(FsError::Exists),
            (SetXattrMode::Replace, false) => return Err(FsError::NoXattr),
            _ => {}
        }
        let mut after = node.clone();
        if name == ACCESS {
            after.rights.2 = after.rights.2 & !0o777 | classes(&value);
        }
        if name == ACCESS && entries(&value).len() == 3 {
            after.xattrs.remove(name);
        } else if value.len() > 65536 {
            return Err(FsError::XattrTooBig);
        } else {
            after.xattrs.insert(name.to_vec(), value);
        }
        after.times[2] = now;
        let bytes: usize = after.xattrs.iter().map(|(name, value)| 6 + short(name) + value.len()).sum();
        if after.list_bytes() > 65536 || bytes > 192 << 10 {
            return Err(FsError::NoSpace);
        }
        *node = after;
        Ok(())
    }

    pub(super) fn remove_xattr(&mut self, ino: Ino, name: &[u8]) -> ModelOutcome {
        let now = self.now;
        let node = self.nodes.get_mut(&ino).ok_or(FsError::Stale)?;
        check(name, node.kind)?;
        match node.xattrs.remove(name) {
            Some(_) => {
                node.times[2] = now;
                Ok(())
            }
            None if name == ACCESS || name == DEFAULT => Ok(()),
            None => Err(FsError::NoXattr),
        }
    }
}

/// Bytes of a name without its space.
fn short(name: &[u8]) -> usize {
    let dot = name.iter().position(|&byte| byte == b'.').expect("every space ends with a dot");
    if name.starts_with(b"system.") { 0 } else { name.len() - dot - 1 }
}

fn check(name: &[u8], kind: FileKind) -> ModelOutcome {
    let plain = matches!(kind, FileKind::File | FileKind::Directory);
    match name {
        name if name.starts_with(b"user.") && !plain => Err(FsError::NotPermitted),
        ACCESS | DEFAULT if kind == FileKind::Symlink => Err(FsError::Unsupported),
        DEFAULT if kind != FileKind::Directory => Err(FsError::NotPermitted),
        _ => Ok(()),
    }
}

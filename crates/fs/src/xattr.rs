//! Extended attributes of inodes: names with values.
//!
//! All attributes of an inode are one string of records (`records`) in heap blocks (`chain`), to which the
//! inode refers. Most inodes have few and small ones, so one small block is nearly always enough. Setting an
//! attribute changes it in place or appends a record. Removing one marks its record, so it costs the same
//! however many there are, and works on a full store.

mod chain;
mod change;
mod records;

pub(crate) use chain::blocks_for;
pub(crate) use change::{XattrChange, XattrOutcome, check_kind};
pub(crate) use records::{XATTR_HEAD, live_bytes, records};

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::Inode;

/// Bytes of the longest name, including its namespace's prefix: Linux's XATTR_NAME_MAX.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes of the largest value: Linux's XATTR_SIZE_MAX.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names of a file in a reply to `listxattr`, each with a zero byte: Linux's XATTR_LIST_MAX.
/// More are refused, so that a list always fits a reply.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names and values of a file. They are resident, so there must be a bound: a full list, and a
/// value of the largest size.
pub const XATTRS_BYTES_MAX: usize = 192 << 10;

/// The namespace of a name, which determines who may read and set the attribute. The kernel checks that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum XattrNamespace {
    User,
    AccessAcl,
    DefaultAcl,
    Trusted,
    Security,
}

impl XattrNamespace {
    const ALL: [XattrNamespace; 5] = [
        XattrNamespace::User,
        XattrNamespace::AccessAcl,
        XattrNamespace::DefaultAcl,
        XattrNamespace::Trusted,
        XattrNamespace::Security,
    ];

    /// The number in records: that of ext4; 0 marks a removed record.
    pub(crate) fn number(self) -> u8 {
        match self {
            XattrNamespace::User => 1,
            XattrNamespace::AccessAcl => 2,
            XattrNamespace::DefaultAcl => 3,
            XattrNamespace::Trusted => 4,
            XattrNamespace::Security => 6,
        }
    }

    pub(crate) fn of_number(number: u8) -> Option<XattrNamespace> {
        XattrNamespace::ALL.into_iter().find(|space| space.number() == number)
    }

    /// The prefix of the whole name. An ACL's prefix is its whole name.
    pub(crate) fn prefix(self) -> &'static [u8] {
        match self {
            XattrNamespace::User => b"user.",
            XattrNamespace::AccessAcl => b"system.posix_acl_access",
            XattrNamespace::DefaultAcl => b"system.posix_acl_default",
            XattrNamespace::Trusted => b"trusted.",
            XattrNamespace::Security => b"security.",
        }
    }

    pub(crate) fn is_acl(self) -> bool {
        matches!(self, XattrNamespace::AccessAcl | XattrNamespace::DefaultAcl)
    }
}

/// An attribute's name in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct XattrKey<'a> {
    pub(crate) space: XattrNamespace,
    pub(crate) name: &'a [u8],
}

/// File capabilities, which a write drops.
pub(crate) const CAPABILITY: XattrKey<'static> =
    XattrKey { space: XattrNamespace::Security, name: b"capability" };
/// The access ACL. Its owner, mask and others are those of the mode.
pub(crate) const ACCESS_ACL: XattrKey<'static> = XattrKey { space: XattrNamespace::AccessAcl, name: b"" };
/// The default ACL, which new files in a directory inherit.
pub(crate) const DEFAULT_ACL: XattrKey<'static> = XattrKey { space: XattrNamespace::DefaultAcl, name: b"" };

impl<'a> XattrKey<'a> {
    /// Splits a whole name.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] for an unknown namespace, [`FsError::Invalid`] for an empty name or a zero
    /// byte, [`FsError::XattrNameTooLong`].
    pub(crate) fn parse(name: &'a [u8]) -> Result<XattrKey<'a>, FsError> {
        if name.len() > XATTR_NAME_BYTES_MAX {
            return Err(FsError::XattrNameTooLong);
        }
        let part =
            |space: XattrNamespace| name.strip_prefix(space.prefix()).map(|name| XattrKey { space, name });
        match XattrNamespace::ALL.into_iter().find_map(part) {
            Some(key) if key.space.is_acl() && !key.name.is_empty() => Err(FsError::Unsupported),
            Some(key) if !key.space.is_acl() && key.name.is_empty() => Err(FsError::Invalid),
            Some(key) if key.name.contains(&0) => Err(FsError::Invalid),
            Some(key) => Ok(key),
            None => Err(FsError::Unsupported),
        }
    }

    /// The whole name.
    pub(crate) fn whole(&self) -> Vec<u8> {
        [self.space.prefix(), self.name].concat()
    }

    /// Bytes in a list of names, including the zero byte.
    pub(crate) fn list_bytes(&self) -> usize {
        self.space.prefix().len() + self.name.len() + 1
    }
}

impl Arena {
    /// An attribute's value.
    pub(crate) fn xattr(&self, inode: &Inode, key: XattrKey<'_>) -> Result<Option<Vec<u8>>, FsError> {
        if inode.xattrs().is_none() {
            return Ok(None);
        }
        let string = self.xattrs(inode)?;
        let found = records(&string).find(|record| record.as_ref().is_ok_and(|one| one.key() == Some(key)));
        match found {
            Some(Ok(record)) => Ok(Some(record.value.to_vec())),
            _ => Ok(None),
        }
    }

    /// All names.
    pub(crate) fn xattr_names(&self, inode: &Inode) -> Result<Vec<Vec<u8>>, FsError> {
        let string = self.xattrs(inode)?;
        Ok(records(&string).flatten().filter_map(|record| Some(record.key()?.whole())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_names_come_apart_and_together_again() {
        for (whole, space, rest) in [
            (&b"user.x"[..], XattrNamespace::User, &b"x"[..]),
            (b"trusted.overlay.opaque", XattrNamespace::Trusted, b"overlay.opaque"),
            (b"security.capability", XattrNamespace::Security, b"capability"),
            (b"system.posix_acl_access", XattrNamespace::AccessAcl, b""),
            (b"system.posix_acl_default", XattrNamespace::DefaultAcl, b""),
            (b"user.\xff\xfe", XattrNamespace::User, b"\xff\xfe"),
        ] {
            let key = XattrKey::parse(whole).expect("a name");
            assert_eq!((key.space, key.name), (space, rest));
            assert_eq!(key.whole(), whole);
            assert_eq!(XattrNamespace::of_number(space.number()), Some(space));
        }
    }

    #[test]
    fn names_that_mean_nothing_here_are_refused() {
        for name in [&b"user"[..], b"", b"os2.x", b"system.nfs4_acl", b"system.posix_acl_accessx"] {
            assert!(matches!(XattrKey::parse(name), Err(FsError::Unsupported)), "{name:?}");
        }
        for name in [&b"user."[..], b"trusted.", b"user.a\0b"] {
            assert!(matches!(XattrKey::parse(name), Err(FsError::Invalid)), "{name:?}");
        }
        let long = [&b"user."[..], &[b'x'; 250]].concat();
        assert!(XattrKey::parse(&long).is_ok());
        assert!(matches!(XattrKey::parse(&[&long[..], b"x"].concat()), Err(FsError::XattrNameTooLong)));
    }
}

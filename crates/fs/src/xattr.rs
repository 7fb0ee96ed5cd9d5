//! Extended attributes: names with values, beside a file's bytes.
//!
//! All attributes of an inode are one string of records (`records`), which lies in heap blocks (`chain`) that the
//! inode refers to; few are set, most are small, so the string seldom needs more than one small block. Setting one
//! changes what differs and appends the rest; removing one marks it, so that it costs the same however many there are,
//! and works on a full store.

mod chain;
mod change;
mod records;

pub(crate) use chain::blocks_for;
pub(crate) use change::{XattrChange, XattrOutcome, check_kind};
pub(crate) use records::{XATTR_HEAD, live_bytes, records};

use crate::arena::Arena;
use crate::error::FsError;
use crate::format::Inode;

/// Bytes of the longest name, its space's prefix included: Linux's XATTR_NAME_MAX.
pub const XATTR_NAME_BYTES_MAX: usize = 255;

/// Bytes of the largest value: Linux's XATTR_SIZE_MAX.
pub const XATTR_VALUE_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names of a file as `listxattr` gives them, each with its end mark: Linux's XATTR_LIST_MAX. One more is
/// refused, so that a list can always be asked for.
pub const XATTR_LIST_BYTES_MAX: usize = 64 << 10;

/// Bytes of all names and values of a file: they are resident, so there must be a bound. A full list and a value of the
/// largest size fit.
pub const XATTRS_BYTES_MAX: usize = 192 << 10;

/// The first part of a name, which says who may read and set it. The kernel checks that.
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

    /// In records: Linux's numbers of the same, as ext4 stores them; 0 is a record that is gone.
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

    /// What stands before the rest of the name; an ACL's is the whole name.
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

/// A name in two parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct XattrKey<'a> {
    pub(crate) space: XattrNamespace,
    pub(crate) name: &'a [u8],
}

/// What a write takes from a file: the powers that its old content was given.
pub(crate) const CAPABILITY: XattrKey<'static> =
    XattrKey { space: XattrNamespace::Security, name: b"capability" };
/// The access ACL, whose owner, mask and others are the mode's.
pub(crate) const ACCESS_ACL: XattrKey<'static> = XattrKey { space: XattrNamespace::AccessAcl, name: b"" };
/// What a directory gives to what is made in it.
pub(crate) const DEFAULT_ACL: XattrKey<'static> = XattrKey { space: XattrNamespace::DefaultAcl, name: b"" };

impl<'a> XattrKey<'a> {
    /// The parts of a whole name.
    ///
    /// # Errors
    /// [`FsError::Unsupported`] in a space that we do not have, [`FsError::Invalid`] and [`FsError::XattrNameTooLong`]
    /// as they say.
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

    /// Bytes in a list of names, the end mark included.
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

//! Extended attributes: the kernel's flags, sizes and lists.

use crate::connection::PendingReply;
use crate::errno::reply_errno;
use crate::protocol::XattrSizeReply;
use fs::{FsError, SetXattrMode};
use rustix::io::Errno;

/// Names with this prefix are listed only for root, who may read these attributes. The kernel checks other
/// accesses, but does not filter lists.
const TRUSTED: &[u8] = b"trusted.";

/// Decodes the flags of `setxattr`; `None` if they are invalid.
pub(crate) fn set_xattr_mode(flags: i32) -> Option<SetXattrMode> {
    match flags {
        0 => Some(SetXattrMode::Any),
        libc::XATTR_CREATE => Some(SetXattrMode::Create),
        libc::XATTR_REPLACE => Some(SetXattrMode::Replace),
        _ => None,
    }
}

/// The reply to `listxattr` by `uid`: names, each with a zero byte at its end.
pub(crate) fn list_for(uid: u32, names: Vec<Vec<u8>>) -> Vec<u8> {
    let shown = names.into_iter().filter(|name| uid == 0 || !name.starts_with(TRUSTED));
    shown.flat_map(|name| [name, vec![0]].concat()).collect()
}

/// Replies with bytes, or, if the caller's `size` is 0, with their number.
pub(crate) fn reply_xattr(found: Result<Vec<u8>, FsError>, size: u32, reply: PendingReply) {
    match found {
        Ok(bytes) if size == 0 => reply.body(&XattrSizeReply { bytes: bytes.len() as u32, padding: 0 }),
        Ok(bytes) if bytes.len() > size as usize => reply.error(Errno::RANGE),
        Ok(bytes) => reply.bytes(&bytes),
        Err(error) => reply.error(reply_errno(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_sees_the_names_of_trusted_attributes() {
        let names = || vec![b"user.a".to_vec(), b"trusted.b".to_vec(), b"security.c".to_vec()];
        assert_eq!(list_for(0, names()), b"user.a\0trusted.b\0security.c\0");
        assert_eq!(list_for(1000, names()), b"user.a\0security.c\0");
    }

    #[test]
    fn flags_that_contradict_each_other_are_refused() {
        assert_eq!(set_xattr_mode(0), Some(SetXattrMode::Any));
        assert_eq!(set_xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE), None);
        assert_eq!(set_xattr_mode(64), None);
    }
}

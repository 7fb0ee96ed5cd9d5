//! Entrances for the targets in `fuzz/`, and compiled for them only.

use crate::acl::PosixAcl;
use crate::xattr;

/// Reads `bytes` as an inode's string of extended attributes.
pub fn xattr_records(bytes: &[u8]) {
    let _ = xattr::live_bytes(bytes);
}

/// Reads `bytes` as an access control list; a list that is accepted says the same after it was written and read.
pub fn acl(bytes: &[u8]) {
    if let Ok(acl) = PosixAcl::parse(bytes) {
        assert_eq!(acl.value(), bytes);
    }
}

//! The rules of extended attributes.

use super::Check;
use crate::acl::Acl;
use crate::error::FsError;
use crate::format::{Hot, Slot};
use crate::types::Kind;
use crate::xattr::{
    ACCESS_ACL, Key, Space, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, check_kind,
    live_bytes, records,
};
use std::collections::HashSet;

impl Check<'_> {
    /// One inode's.
    pub(super) fn xattrs(&mut self, slot: Slot, hot: &Hot, kind: Kind) -> Result<(), FsError> {
        for link in self.state.xattr_blocks(hot)? {
            self.claim(link.block, link.log2);
        }
        let string = self.state.xattrs(hot)?;
        let mut seen = HashSet::new();
        let mut last = None;
        for record in records(&string) {
            let record = match record {
                Ok(record) => record,
                Err(what) => {
                    self.find(Some(slot), what);
                    return Ok(());
                }
            };
            last = record.key();
            let Some(key) = last else { continue };
            let name = String::from_utf8_lossy(&key.whole()).into_owned();
            if !seen.insert(key) {
                self.find(Some(slot), format!("two extended attributes are named {name}"));
            }
            if record.value.len() > XATTR_VALUE_BYTES_MAX || check_kind(key, kind).is_err() {
                self.find(
                    Some(slot),
                    format!("{name} cannot be an attribute of a {kind:?}, or is too large"),
                );
            }
            self.acl(slot, hot, key, record.value)?;
        }
        if !hot.xattrs().is_none() && last.is_none() {
            self.find(Some(slot), "the last extended attribute is one that is gone, or there is none");
        }
        let (bytes, list) = live_bytes(&string);
        if bytes > XATTRS_BYTES_MAX || list > XATTR_LIST_BYTES_MAX {
            self.find(Some(slot), format!("{bytes} bytes of extended attributes, {list} of their names"));
        }
        Ok(())
    }

    fn acl(&mut self, slot: Slot, hot: &Hot, key: Key<'_>, value: &[u8]) -> Result<(), FsError> {
        if !matches!(key.space, Space::AccessAcl | Space::DefaultAcl) {
            return Ok(());
        }
        let Ok(acl) = Acl::parse(value) else {
            self.find(Some(slot), "an access control list makes no sense");
            return Ok(());
        };
        if key == ACCESS_ACL {
            let mode = self.state.owner(hot)?.mode & 0o777;
            if acl.is_minimal() || acl.mode() != mode {
                self.find(
                    Some(slot),
                    format!("the access control list says {:o}, the mode {mode:o}", acl.mode()),
                );
            }
        }
        Ok(())
    }
}

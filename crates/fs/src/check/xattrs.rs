//! Checks extended attributes.

use super::MetadataCheck;
use crate::acl::PosixAcl;
use crate::error::FsError;
use crate::format::{Inode, InodeSlot};
use crate::types::FileKind;
use crate::xattr::{
    ACCESS_ACL, XATTR_LIST_BYTES_MAX, XATTR_VALUE_BYTES_MAX, XATTRS_BYTES_MAX, XattrKey, XattrNamespace,
    check_kind, live_bytes, records,
};
use std::collections::HashSet;

impl MetadataCheck<'_> {
    /// Checks the extended attributes of one inode.
    pub(super) fn check_xattrs(
        &mut self,
        slot: InodeSlot,
        inode: &Inode,
        kind: FileKind,
    ) -> Result<(), FsError> {
        for link in self.state.xattr_blocks(inode)? {
            self.claim_block(link.block, link.log2);
        }
        let string = self.state.xattrs(inode)?;
        let mut seen = HashSet::new();
        let mut last = None;
        for record in records(&string) {
            let record = match record {
                Ok(record) => record,
                Err(what) => {
                    self.report_finding(Some(slot), what);
                    return Ok(());
                }
            };
            last = record.key();
            let Some(key) = last else { continue };
            let name = String::from_utf8_lossy(&key.whole()).into_owned();
            if !seen.insert(key) {
                self.report_finding(Some(slot), format!("two extended attributes are named {name}"));
            }
            if record.value.len() > XATTR_VALUE_BYTES_MAX || check_kind(key, kind).is_err() {
                self.report_finding(
                    Some(slot),
                    format!("{name} cannot be an attribute of a {kind:?}, or is too large"),
                );
            }
            self.check_acl(slot, inode, key, record.value)?;
        }
        if !inode.xattrs().is_none() && last.is_none() {
            self.report_finding(
                Some(slot),
                "the last extended attribute is one that is gone, or there is none",
            );
        }
        let (bytes, list) = live_bytes(&string);
        if bytes > XATTRS_BYTES_MAX || list > XATTR_LIST_BYTES_MAX {
            self.report_finding(
                Some(slot),
                format!("{bytes} bytes of extended attributes, {list} of their names"),
            );
        }
        Ok(())
    }

    fn check_acl(
        &mut self,
        slot: InodeSlot,
        inode: &Inode,
        key: XattrKey<'_>,
        value: &[u8],
    ) -> Result<(), FsError> {
        if !matches!(key.space, XattrNamespace::AccessAcl | XattrNamespace::DefaultAcl) {
            return Ok(());
        }
        let Ok(acl) = PosixAcl::parse(value) else {
            self.report_finding(Some(slot), "an access control list makes no sense");
            return Ok(());
        };
        if key == ACCESS_ACL {
            let mode = self.state.owner(inode)?.mode & 0o777;
            if acl.is_minimal() || acl.mode() != mode {
                self.report_finding(
                    Some(slot),
                    format!("the access control list says {:o}, the mode {mode:o}", acl.mode()),
                );
            }
        }
        Ok(())
    }
}

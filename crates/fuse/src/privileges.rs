//! When setuid, setgid and file capabilities go: what the kernel tells us, and how.
//!
//! With FUSE_HANDLE_KILLPRIV_V2 the kernel leaves it to us, and in return does not ask for `security.capability` before
//! each write. It then tells us in four ways:
//!
//! | event | what comes |
//! | --- | --- |
//! | a new owner or group | FUSE_SETATTR with it: they go in any case, and `fs` sees to it |
//! | a write, an allocation, or anything else that changes content | before it, where the kernel knows of powers that must go, a FUSE_SETATTR that sets nothing |
//! | the write itself | FUSE_WRITE_KILL_SUIDGID, unless the writer has CAP_FSETID |
//! | a new size | FATTR_KILL_SUIDGID, unless the caller has CAP_FSETID |
//!
//! We are not told who is in the file's group, and may keep a setgid that nobody executes: where the kernel asks because of
//! that alone it has looked; else it goes.

use fs::{FileAttributes, Fs, FsCompletion, FsError, Ino, PrivilegeChange, SetAttributes};
use std::sync::Arc;

/// What a FUSE_SETATTR that asks for `set` does to a file's powers; `kills` is what the kernel says of a new size.
pub(crate) fn privilege_change(kills: bool, set: &SetAttributes) -> PrivilegeChange {
    let nothing = *set == SetAttributes::default();
    if nothing || kills && set.size.is_some() { PrivilegeChange::DropAll } else { PrivilegeChange::Keep }
}

/// A write by somebody whose content has not earned the file's powers. The kernel has said so before, where it knew of any;
/// this is the protocol's own word for it.
pub(crate) fn write_dropping_privileges(
    fs: &Arc<Fs>,
    ino: Ino,
    offset: u64,
    data: &[u8],
    done: FsCompletion<()>,
) {
    let (then_fs, bytes) = (fs.clone(), data.to_vec());
    let then = move |dropped: Result<FileAttributes, FsError>| match dropped {
        Ok(_) => then_fs.write(ino, offset, bytes, done),
        Err(error) => done(Err(error)),
    };
    fs.drop_privileges(ino, Box::new(then));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_sets_nothing_and_a_size_without_the_right_to_keep_them_take_powers() {
        let size = SetAttributes { size: Some(0), ..Default::default() };
        let mode = SetAttributes { mode: Some(0o4755), ..Default::default() };
        assert_eq!(privilege_change(false, &SetAttributes::default()), PrivilegeChange::DropAll);
        assert_eq!(privilege_change(true, &size), PrivilegeChange::DropAll);
        assert_eq!(privilege_change(false, &size), PrivilegeChange::Keep);
        assert_eq!(privilege_change(true, &mode), PrivilegeChange::Keep);
    }
}

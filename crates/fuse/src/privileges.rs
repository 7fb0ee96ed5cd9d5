//! When a file loses its privileges: setuid, setgid and file capabilities.
//!
//! With FUSE_HANDLE_KILLPRIV_V2 the kernel leaves this to weir, and in return does not ask for
//! `security.capability` before each write. It then requests it in four ways:
//!
//! | event | request |
//! | --- | --- |
//! | a new owner or group | FUSE_SETATTR with it; `fs` drops privileges in any case |
//! | a write, an allocation, or another change of content | before it, if the kernel knows of privileges to drop, a FUSE_SETATTR that sets nothing |
//! | the write itself | FUSE_WRITE_KILL_SUIDGID, unless the writer has CAP_FSETID |
//! | a new size | FATTR_KILL_SUIDGID, unless the caller has CAP_FSETID |
//!
//! The requests do not say whether the caller is in the file's group, whose members may keep a setgid without
//! group execution. If the kernel asks because of that bit alone, it has checked; otherwise the bit is
//! dropped.

use fs::{FileAttributes, Fs, FsCompletion, FsError, Ino, PrivilegeChange, SetAttributes};

/// What a FUSE_SETATTR does to a file's privileges. `kills` is its flag FATTR_KILL_SUIDGID.
pub(crate) fn privilege_change(kills: bool, set: &SetAttributes) -> PrivilegeChange {
    let nothing = *set == SetAttributes::default();
    if nothing || kills && set.size.is_some() { PrivilegeChange::DropAll } else { PrivilegeChange::Keep }
}

/// Drops the file's privileges, then writes. The kernel has asked for that before, if it knew of any
/// privileges; the flag of the write asks again.
pub(crate) fn write_dropping_privileges(fs: &Fs, ino: Ino, offset: u64, data: &[u8], done: FsCompletion<()>) {
    let then_fs = fs.clone();
    let bytes = data.to_vec();
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

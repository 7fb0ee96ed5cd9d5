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
//! | a new size | a bit of FUSE_SETATTR, unless the caller has CAP_FSETID |
//!
//! `fuser` does not hand on that last bit. In its place stands whether the caller is root: a process of another user that
//! has CAP_FSETID loses the bits, where ext4 would keep them; one of root without it keeps them, but as the owner of
//! everything it could set them again. Nor are we told who is in the file's group, and may keep a setgid that nobody executes:
//! where the kernel asks because of that alone it has looked; else it goes.

use fs::{Attributes, Completion, Fs, FsError, Ino, Privileges, SetAttributes};
use fuser::Request;
use std::sync::Arc;

/// What a FUSE_SETATTR that asks for `set` does to a file's powers.
pub(crate) fn privileges(request: &Request, set: &SetAttributes) -> Privileges {
    of(request.uid(), set)
}

/// A write by somebody whose content has not earned the file's powers. The kernel has said so before, where it knew of any;
/// this is the protocol's own word for it.
pub(crate) fn write_without_powers(fs: &Arc<Fs>, ino: Ino, offset: u64, data: &[u8], done: Completion<()>) {
    let (then_fs, bytes) = (fs.clone(), data.to_vec());
    let then = move |dropped: Result<Attributes, FsError>| match dropped {
        Ok(_) => then_fs.write(ino, offset, bytes, done),
        Err(error) => done(Err(error)),
    };
    fs.drop_privileges(ino, Box::new(then));
}

fn of(uid: u32, set: &SetAttributes) -> Privileges {
    let nothing = *set == SetAttributes::default();
    let cuts_as_user = set.size.is_some() && uid != 0;
    if nothing || cuts_as_user { Privileges::DropAll } else { Privileges::Keep }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_sets_nothing_and_a_size_from_a_user_take_powers() {
        let size = SetAttributes { size: Some(0), ..Default::default() };
        let mode = SetAttributes { mode: Some(0o4755), ..Default::default() };
        assert_eq!(of(0, &SetAttributes::default()), Privileges::DropAll);
        assert_eq!(of(1000, &size), Privileges::DropAll);
        assert_eq!(of(0, &size), Privileges::Keep);
        assert_eq!(of(1000, &mode), Privileges::Keep);
    }
}

//! Permissions. Above a mounted file system the kernel checks them; here the library has to.

use fs::FileAttributes;
use rustix::fs::Access;
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};

/// The sticky bit: in a directory with it, only owners remove names.
const STICKY: u16 = 0o1000;

/// The user of this process, as of the opening of the store.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    groups: Vec<u32>,
}

impl Caller {
    pub(crate) fn of_process() -> Caller {
        let groups = getgroups().unwrap_or_default().into_iter().map(|group| group.as_raw()).collect();
        Caller { uid: geteuid().as_raw(), gid: getegid().as_raw(), groups }
    }

    fn is_root(&self) -> bool {
        self.uid == 0
    }

    /// Whether the caller is in the group.
    pub(crate) fn is_in(&self, group: u32) -> bool {
        self.gid == group || self.groups.contains(&group)
    }

    /// Refuses what the file's mode does not allow.
    pub(crate) fn ensure_may(&self, wanted: Access, file: &FileAttributes) -> Result<(), Errno> {
        if self.is_root() {
            let executes = wanted.contains(Access::EXEC_OK);
            let may = !executes || file.kind == fs::FileKind::Directory || file.mode & 0o111 != 0;
            return if may { Ok(()) } else { Err(Errno::ACCESS) };
        }
        let bits = if file.uid == self.uid {
            file.mode >> 6
        } else if self.is_in(file.gid) {
            file.mode >> 3
        } else {
            file.mode
        };
        let refused = [(Access::READ_OK, 4), (Access::WRITE_OK, 2), (Access::EXEC_OK, 1)]
            .into_iter()
            .any(|(access, bit)| wanted.contains(access) && bits & bit == 0);
        if refused { Err(Errno::ACCESS) } else { Ok(()) }
    }

    /// Refuses to change the names in `directory`.
    pub(crate) fn ensure_may_add(&self, directory: &FileAttributes) -> Result<(), Errno> {
        self.ensure_may(Access::WRITE_OK | Access::EXEC_OK, directory)
    }

    /// Refuses to remove the name of `file` from `directory`.
    pub(crate) fn ensure_may_remove(
        &self,
        directory: &FileAttributes,
        file: &FileAttributes,
    ) -> Result<(), Errno> {
        self.ensure_may_add(directory)?;
        let is_owner = || self.uid == directory.uid || self.uid == file.uid;
        if directory.mode & STICKY == 0 || self.is_root() || is_owner() { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Refuses what only the owner may do.
    pub(crate) fn ensure_owns(&self, file: &FileAttributes) -> Result<(), Errno> {
        if self.is_root() || self.uid == file.uid { Ok(()) } else { Err(Errno::PERM) }
    }

    /// Refuses a change of owner or group that only root may make.
    pub(crate) fn ensure_may_give(
        &self,
        file: &FileAttributes,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        let keeps_owner = uid.is_none_or(|uid| uid == file.uid);
        let joins_own = gid.is_none_or(|gid| gid == file.gid || self.is_in(gid));
        if self.is_root() || (self.uid == file.uid && keeps_owner && joins_own) {
            Ok(())
        } else {
            Err(Errno::PERM)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fs::{FileKind, Ino};

    fn file(mode: u16, uid: u32, gid: u32) -> FileAttributes {
        FileAttributes {
            ino: Ino(7),
            generation: 0,
            kind: FileKind::File,
            size: 0,
            stored_bytes: 0,
            mode,
            links: 1,
            uid,
            gid,
            device: 0,
            accessed: 0,
            modified: 0,
            changed: 0,
            created: 0,
        }
    }

    fn user(uid: u32) -> Caller {
        Caller { uid, gid: 100, groups: vec![200] }
    }

    #[test]
    fn the_first_class_that_fits_decides_alone() {
        let read = |mode, uid, gid| user(1).ensure_may(Access::READ_OK, &file(mode, uid, gid));
        assert_eq!(read(0o044, 1, 100), Err(Errno::ACCESS));
        assert_eq!(read(0o404, 2, 200), Err(Errno::ACCESS));
        assert_eq!(read(0o040, 2, 200), Ok(()));
        assert_eq!(read(0o004, 2, 300), Ok(()));
        assert_eq!(
            user(1).ensure_may(Access::READ_OK | Access::WRITE_OK, &file(0o400, 1, 1)),
            Err(Errno::ACCESS)
        );
    }

    #[test]
    fn root_may_all_but_execute_what_nobody_may() {
        assert_eq!(user(0).ensure_may(Access::READ_OK | Access::WRITE_OK, &file(0, 5, 5)), Ok(()));
        assert_eq!(user(0).ensure_may(Access::EXEC_OK, &file(0o666, 5, 5)), Err(Errno::ACCESS));
        assert_eq!(user(0).ensure_may(Access::EXEC_OK, &file(0o100, 5, 5)), Ok(()));
    }

    #[test]
    fn in_a_sticky_directory_only_owners_remove_names() {
        let directory = file(0o1777, 9, 9);
        assert_eq!(user(1).ensure_may_remove(&directory, &file(0o666, 2, 2)), Err(Errno::PERM));
        assert_eq!(user(1).ensure_may_remove(&directory, &file(0, 1, 2)), Ok(()));
        assert_eq!(user(9).ensure_may_remove(&directory, &file(0, 1, 2)), Ok(()));
        assert_eq!(user(1).ensure_may_remove(&file(0o777, 9, 9), &file(0o666, 2, 2)), Ok(()));
    }

    #[test]
    fn an_owner_gives_a_file_only_to_groups_of_its_own() {
        let own = file(0o600, 1, 100);
        assert_eq!(user(1).ensure_may_give(&own, None, Some(200)), Ok(()));
        assert_eq!(user(1).ensure_may_give(&own, None, Some(300)), Err(Errno::PERM));
        assert_eq!(user(1).ensure_may_give(&own, Some(2), None), Err(Errno::PERM));
        assert_eq!(user(2).ensure_may_give(&own, None, Some(200)), Err(Errno::PERM));
    }
}

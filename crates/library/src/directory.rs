//! Names: the operations that take a path.

use crate::batch::Batch;
use crate::file::WeirFile;
use crate::open_volume::{HeldFile, OpenVolume, wait, wait_for_media};
use crate::path::{LastLink, ResolvedPath};
use fs::{FileAttributes, FileKind, FsUsage, IfExists, Ino, SetAttributes, SetTime, SetXattrMode};
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most entries that are read at once.
const ENTRIES_AT_ONCE: usize = 512;

/// An open directory. Its operations take paths: relative to the directory, or, with a slash at the start, to the volume's
/// root.
///
/// All changes are atomic, and in one order with all other changes of the volume. They are durable after a later
/// [`commit`](crate::Weir::commit) or [`sync_names`](Directory::sync_names).
#[derive(Clone)]
pub struct Directory {
    volume: Arc<OpenVolume>,
    held: Arc<HeldFile>,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryItem {
    /// Continues a listing after this entry.
    pub cookie: u64,
    /// The file's number.
    pub ino: Ino,
    /// The file's kind.
    pub kind: FileKind,
    /// The name.
    pub name: OsString,
}

/// A directory, and a name in it.
type NamePlace = (Ino, Vec<u8>);

impl Directory {
    pub(crate) fn root(volume: Arc<OpenVolume>) -> Result<Directory, Errno> {
        let held = Arc::new(HeldFile::new(volume.clone(), Ino::ROOT)?);
        Ok(Directory { volume, held })
    }

    /// The directory that an open file is.
    ///
    /// # Errors
    /// ENOTDIR if it is none.
    pub fn of(file: &WeirFile) -> io::Result<Directory> {
        let volume = file.volume().clone();
        if volume.attributes(file.ino())?.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let held = Arc::new(HeldFile::new(volume.clone(), file.ino())?);
        Ok(Directory { volume, held })
    }

    /// Opens a file, or makes it. `mode` is that of a new file, before the umask.
    ///
    /// Takes the flags of `open(2)`: CREATE, EXCL, TRUNC, APPEND, SYNC, DSYNC, DIRECTORY, NOFOLLOW. NOCTTY, CLOEXEC, NONBLOCK,
    /// NOATIME, LARGEFILE and DIRECT change nothing here.
    ///
    /// # Errors
    /// As of `open(2)`; EOPNOTSUPP for PATH and TMPFILE, and for FIFOs, sockets and devices, which the kernel serves.
    pub fn open(&self, path: impl AsRef<Path>, flags: OFlags, mode: u32) -> io::Result<WeirFile> {
        if flags.intersects(OFlags::PATH) || flags.contains(OFlags::TMPFILE) {
            return Err(Errno::OPNOTSUPP.into());
        }
        let is_exclusive = flags.contains(OFlags::CREATE | OFlags::EXCL);
        let last =
            if is_exclusive || flags.contains(OFlags::NOFOLLOW) { LastLink::Keep } else { LastLink::Follow };
        let place = self.resolve(path.as_ref(), last)?;
        match place.found {
            Some(_) if is_exclusive => Err(Errno::EXIST.into()),
            Some(_) => match self.open_existing(place.existing()?, flags) {
                // Another file has the name by now.
                Err(Errno::STALE) => self.open(path, flags, mode),
                opened => Ok(opened?),
            },
            None if !flags.contains(OFlags::CREATE) => Err(Errno::NOENT.into()),
            None if place.names_directory => Err(Errno::ISDIR.into()),
            None => {
                let made = self.make(&place, FileKind::File, mode);
                match made.and_then(|made| self.hold_and_open(&made, flags)) {
                    // Another thread made it meanwhile, or removed it again.
                    Err(Errno::EXIST | Errno::STALE) if !is_exclusive => self.open(path, flags, mode),
                    opened => Ok(opened?),
                }
            }
        }
    }

    fn open_existing(&self, found: FileAttributes, flags: OFlags) -> Result<WeirFile, Errno> {
        let access = access_of(flags);
        let writes = access.contains(Access::WRITE_OK) || flags.contains(OFlags::TRUNC);
        match found.kind {
            FileKind::Directory if writes || flags.contains(OFlags::CREATE) => {
                return Err(Errno::ISDIR);
            }
            FileKind::Directory => {}
            FileKind::File if flags.contains(OFlags::DIRECTORY) => return Err(Errno::NOTDIR),
            FileKind::File => {}
            FileKind::Symlink => return Err(Errno::LOOP),
            _ => return Err(Errno::OPNOTSUPP),
        }
        self.volume.ensure_may(if writes { access | Access::WRITE_OK } else { access }, &found)?;
        if flags.contains(OFlags::NOATIME) {
            self.volume.caller.ensure_owns(&found)?;
        }
        let file = self.hold_and_open(&found, flags)?;
        if flags.contains(OFlags::TRUNC) {
            self.volume.set_size(&found, 0)?;
        }
        Ok(file)
    }

    /// Opens the file that was found: ESTALE if another one has its number by now.
    fn hold_and_open(&self, found: &FileAttributes, flags: OFlags) -> Result<WeirFile, Errno> {
        let file = WeirFile::new(self.volume.clone(), found.ino, flags)?;
        let is_same = self.volume.attributes(found.ino)?.generation == found.generation;
        if is_same { Ok(file) } else { Err(Errno::STALE) }
    }

    /// Makes a directory.
    pub fn create_dir(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let place = self.resolve(path.as_ref(), LastLink::Keep)?;
        if place.found.is_some() {
            return Err(Errno::EXIST.into());
        }
        self.make(&place, FileKind::Directory, mode)?;
        Ok(())
    }

    fn make(&self, place: &ResolvedPath<'_>, kind: FileKind, mode: u32) -> Result<FileAttributes, Errno> {
        let name = place.own_name(Errno::EXIST)?;
        self.volume.caller.ensure_may_add(&place.parent)?;
        let (caller, parent) = (self.volume.credentials(), place.parent.ino);
        wait(|done| self.volume.fs.make(caller, parent, name, kind, (mode & 0o7777) as u16, done))
    }

    /// Makes a symbolic link at `path` that leads to `target`.
    pub fn symlink(&self, target: impl AsRef<Path>, path: impl AsRef<Path>) -> io::Result<()> {
        let place = self.resolve(path.as_ref(), LastLink::Keep)?;
        let name = place.own_name(Errno::EXIST)?;
        match place.found {
            Some(_) => return Err(Errno::EXIST.into()),
            None if place.names_directory => return Err(Errno::NOENT.into()),
            None => {}
        }
        self.volume.caller.ensure_may_add(&place.parent)?;
        let (caller, target) = (self.volume.credentials(), target.as_ref().as_os_str().as_bytes());
        wait(|done| self.volume.fs.symlink(caller, place.parent.ino, name, target, done))?;
        Ok(())
    }

    /// A symbolic link's target.
    pub fn read_link(&self, path: impl AsRef<Path>) -> io::Result<PathBuf> {
        let found = self.resolve(path.as_ref(), LastLink::Keep)?.existing()?;
        let target = self.volume.fs.read_link(found.ino).map_err(|error| error.errno())?;
        Ok(OsString::from_vec(target).into())
    }

    /// Gives the file at `path` the further name `new`. A symbolic link itself gets it.
    pub fn hard_link(&self, path: impl AsRef<Path>, new: impl AsRef<Path>) -> io::Result<()> {
        self.hard_link_to((self, path.as_ref()), (self, new.as_ref()), false)
    }

    /// Adds a name across two open directories of the volume. A symbolic link is followed if `follows`.
    ///
    /// # Errors
    /// As of `link(2)`; EXDEV if the directories are of two stores.
    pub fn hard_link_to(
        &self,
        (old_start, old): (&Directory, &Path),
        (new_start, new): (&Directory, &Path),
        follows: bool,
    ) -> io::Result<()> {
        if !Arc::ptr_eq(&old_start.volume, &new_start.volume) {
            return Err(Errno::XDEV.into());
        }
        let last = if follows { LastLink::Follow } else { LastLink::Keep };
        let file = old_start.resolve(old, last)?.existing()?;
        if file.kind == FileKind::Directory {
            return Err(Errno::PERM.into());
        }
        let place = new_start.resolve(new, LastLink::Keep)?;
        let name = place.own_name(Errno::EXIST)?;
        match place.found {
            Some(_) => return Err(Errno::EXIST.into()),
            None if place.names_directory => return Err(Errno::NOENT.into()),
            None => {}
        }
        self.volume.caller.ensure_may_add(&place.parent)?;
        wait(|done| self.volume.fs.link(file.ino, place.parent.ino, name, done))?;
        Ok(())
    }

    pub(crate) fn volume(&self) -> &Arc<OpenVolume> {
        &self.volume
    }

    /// Begins changes that take effect together.
    ///
    /// ```no_run
    /// # fn move_money(weir: &weir_library::Weir, from: &weir_library::WeirFile, to: &weir_library::WeirFile) -> std::io::Result<()> {
    /// let mut batch = weir.batch();
    /// batch.write_at(from, b"40", 0)?;
    /// batch.write_at(to, b"60", 0)?;
    /// batch.rename("/pending", "/done")?;
    /// batch.apply()?;
    /// # Ok(()) }
    /// ```
    pub fn batch(&self) -> Batch {
        Batch::new(self.clone())
    }

    /// Removes a name of a file, which lives while it has another name or is open.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let ((parent, name), removed) = self.place_of_removal(path.as_ref())?;
        let fs = &self.volume.fs;
        if self.volume.is_among_synced(removed) {
            // Its removal is synced, too.
            wait_for_media(|done| fs.unlink(parent, &name, done))?;
        } else {
            wait(|done| fs.unlink(parent, &name, done))?;
        }
        self.volume.note_removal(removed);
        Ok(())
    }

    /// The directory and the name that a removal of the file at `path` takes away, and the file.
    pub(crate) fn place_of_removal(&self, path: &Path) -> Result<(NamePlace, Ino), Errno> {
        let place = self.resolve(path, LastLink::Keep)?;
        let found = place.found.ok_or(Errno::NOENT)?;
        if found.kind == FileKind::Directory {
            return Err(Errno::ISDIR);
        }
        if place.names_directory {
            return Err(Errno::NOTDIR);
        }
        self.volume.caller.ensure_may_remove(&place.parent, &found)?;
        Ok(((place.parent.ino, place.own_name(Errno::ISDIR)?.to_vec()), found.ino))
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        let place = self.resolve(path, LastLink::Keep)?;
        let found = place.found.ok_or(Errno::NOENT)?;
        if found.kind != FileKind::Directory {
            return Err(Errno::NOTDIR.into());
        }
        let name = place.own_name(errno_of_no_name(path))?;
        self.volume.caller.ensure_may_remove(&place.parent, &found)?;
        Ok(wait(|done| self.volume.fs.remove_directory(place.parent.ino, name, done))?)
    }

    /// Renames a file or directory, and replaces what has the new name, atomically.
    pub fn rename(&self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> io::Result<()> {
        self.rename_to((self, old.as_ref()), (self, new.as_ref()), IfExists::Replace)
    }

    /// Renames across two open directories of the volume.
    ///
    /// # Errors
    /// As of `rename(2)`; EXDEV if the directories are of two stores.
    pub fn rename_to(
        &self,
        (old_start, old): (&Directory, &Path),
        (new_start, new): (&Directory, &Path),
        if_exists: IfExists,
    ) -> io::Result<()> {
        let (from, to, replaced) = Directory::places_of_rename((old_start, old), (new_start, new))?;
        wait(|done| self.volume.fs.rename((from.0, &from.1), (to.0, &to.1), if_exists, done))?;
        replaced.into_iter().for_each(|replaced| self.volume.note_removal(replaced));
        Ok(())
    }

    /// The directories and names that a rename changes, and the file that it replaces.
    pub(crate) fn places_of_rename(
        (old_start, old): (&Directory, &Path),
        (new_start, new): (&Directory, &Path),
    ) -> Result<(NamePlace, NamePlace, Option<Ino>), Errno> {
        if !Arc::ptr_eq(&old_start.volume, &new_start.volume) {
            return Err(Errno::XDEV);
        }
        let from = old_start.resolve(old, LastLink::Keep)?;
        let to = new_start.resolve(new, LastLink::Keep)?;
        let moved = from.found.ok_or(Errno::NOENT)?;
        let (old_name, new_name) = (from.own_name(Errno::BUSY)?, to.own_name(Errno::BUSY)?);
        if moved.kind != FileKind::Directory && (from.names_directory || to.names_directory) {
            return Err(Errno::NOTDIR);
        }
        let caller = &old_start.volume.caller;
        caller.ensure_may_remove(&from.parent, &moved)?;
        match &to.found {
            Some(replaced) => caller.ensure_may_remove(&to.parent, replaced)?,
            None => caller.ensure_may_add(&to.parent)?,
        }
        if moved.kind == FileKind::Directory && from.parent.ino != to.parent.ino {
            // Its entry `..` changes.
            caller.ensure_may(Access::WRITE_OK, &moved)?;
        }
        let replaced = to.found.map(|replaced| replaced.ino);
        Ok(((from.parent.ino, old_name.to_vec()), (to.parent.ino, new_name.to_vec()), replaced))
    }

    /// The attributes of the file to which `path` leads.
    pub fn metadata(&self, path: impl AsRef<Path>) -> io::Result<FileAttributes> {
        Ok(self.resolve(path.as_ref(), LastLink::Follow)?.existing()?)
    }

    /// The attributes of the file at `path`, also if that is a symbolic link.
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> io::Result<FileAttributes> {
        Ok(self.resolve(path.as_ref(), LastLink::Keep)?.existing()?)
    }

    /// Whether the caller may use the file so.
    ///
    /// # Errors
    /// EACCES, EROFS, or those of the path.
    pub fn ensure_access(&self, path: impl AsRef<Path>, wanted: Access) -> io::Result<()> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.ensure_may(wanted, &found)?)
    }

    /// Sets the permission bits of the file to which `path` leads.
    pub fn set_mode(&self, path: impl AsRef<Path>, mode: u32) -> io::Result<()> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.set_mode(&found, mode)?)
    }

    /// Sets owner and group of the file at `path`; `None` leaves one as it is. A symbolic link is followed if `follows`.
    pub fn set_owner(
        &self,
        path: impl AsRef<Path>,
        uid: Option<u32>,
        gid: Option<u32>,
        follows: bool,
    ) -> io::Result<()> {
        let last = if follows { LastLink::Follow } else { LastLink::Keep };
        let found = self.resolve(path.as_ref(), last)?.existing()?;
        Ok(self.volume.set_owner(&found, uid, gid)?)
    }

    /// Sets the times of last access and last change; `None` leaves one as it is. A symbolic link is followed if
    /// `follows`.
    pub fn set_times(
        &self,
        path: impl AsRef<Path>,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
        follows: bool,
    ) -> io::Result<()> {
        let last = if follows { LastLink::Follow } else { LastLink::Keep };
        let found = self.resolve(path.as_ref(), last)?.existing()?;
        Ok(self.volume.set_times(&found, accessed, modified)?)
    }

    /// Sets the size of the file to which `path` leads.
    pub fn truncate(&self, path: impl AsRef<Path>, size: u64) -> io::Result<()> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        self.volume.caller.ensure_may(Access::WRITE_OK, &found)?;
        self.volume.set_size(&found, size)?;
        Ok(())
    }

    /// An extended attribute of the file to which `path` leads.
    pub fn xattr(&self, path: impl AsRef<Path>, name: &[u8]) -> io::Result<Vec<u8>> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.xattr(&found, name)?)
    }

    /// The names of all extended attributes of the file to which `path` leads.
    pub fn xattr_names(&self, path: impl AsRef<Path>) -> io::Result<Vec<Vec<u8>>> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.xattr_names(&found)?)
    }

    /// Sets an extended attribute of the file to which `path` leads.
    pub fn set_xattr(
        &self,
        path: impl AsRef<Path>,
        name: &[u8],
        value: &[u8],
        how: SetXattrMode,
    ) -> io::Result<()> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.set_xattr(&found, name, value, how)?)
    }

    /// Removes an extended attribute of the file to which `path` leads.
    pub fn remove_xattr(&self, path: impl AsRef<Path>, name: &[u8]) -> io::Result<()> {
        let found = self.resolve(path.as_ref(), LastLink::Follow)?.existing()?;
        Ok(self.volume.remove_xattr(&found, name)?)
    }

    /// The entries of this directory, without `.` and `..`, in an order that never changes. Entries that are added or
    /// removed meanwhile are listed or not; all others exactly once.
    pub fn entries(&self) -> impl Iterator<Item = io::Result<DirectoryItem>> + '_ {
        let mut batch = Vec::new().into_iter();
        let mut next = Some(0);
        std::iter::from_fn(move || {
            if let Some(entry) = batch.next() {
                return Some(Ok(entry));
            }
            match self.entries_after(next?, ENTRIES_AT_ONCE) {
                Ok(read) => {
                    next = read.last().map(|entry: &DirectoryItem| entry.cookie);
                    batch = read.into_iter();
                    batch.next().map(Ok)
                }
                Err(error) => {
                    next = None;
                    Some(Err(error))
                }
            }
        })
    }

    /// At most `count` entries after the entry with this cookie; 0: from the start.
    pub fn entries_after(&self, cookie: u64, count: usize) -> io::Result<Vec<DirectoryItem>> {
        let mut entries = Vec::new();
        let mut take = |entry: fs::DirectoryEntry<'_>| {
            let (cookie, ino, kind) = (entry.cookie, entry.ino, entry.kind);
            entries.push(DirectoryItem { cookie, ino, kind, name: OsString::from_vec(entry.name.to_vec()) });
            entries.len() < count
        };
        let read = self.volume.fs.read_directory(self.ino(), cookie, &mut take);
        read.map_err(|error| error.errno())?;
        Ok(entries)
    }

    /// Makes the names in all directories durable, as `fsync` of a directory does.
    pub fn sync_names(&self) -> io::Result<()> {
        Ok(wait_for_media(|done| self.volume.fs.sync_names(done))?)
    }

    /// The directory's number.
    pub fn ino(&self) -> Ino {
        self.held.ino()
    }

    /// The directory's parent; the root is its own.
    pub fn parent_ino(&self) -> io::Result<Ino> {
        Ok(self.volume.fs.parent(self.ino()).map_err(|error| error.errno())?)
    }

    /// The space of the store.
    pub fn usage(&self) -> FsUsage {
        self.volume.fs.usage()
    }

    fn resolve<'p>(&self, path: &'p Path, last: LastLink) -> Result<ResolvedPath<'p>, Errno> {
        self.volume.resolve(self.ino(), path.as_os_str().as_bytes(), last)
    }
}

impl OpenVolume {
    /// Refuses what the file's mode does not allow, and writing where nothing can change.
    fn ensure_may(&self, wanted: Access, file: &FileAttributes) -> Result<(), Errno> {
        if self.is_read_only && wanted.contains(Access::WRITE_OK) {
            return Err(Errno::ROFS);
        }
        self.caller.ensure_may(wanted, file)
    }

    pub(crate) fn set_mode(&self, file: &FileAttributes, mode: u32) -> Result<(), Errno> {
        /// The bit that lets a program run as a file's group.
        const SETGID: u16 = 0o2000;
        self.caller.ensure_owns(file)?;
        let mut mode = (mode & 0o7777) as u16;
        if self.caller.uid != 0 && !self.caller.is_in(file.gid) {
            mode &= !SETGID;
        }
        let set = SetAttributes { mode: Some(mode), ..Default::default() };
        wait(|done| self.fs.set_attributes(file.ino, set, done)).map(drop)
    }

    pub(crate) fn set_owner(
        &self,
        file: &FileAttributes,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(), Errno> {
        self.caller.ensure_may_give(file, uid, gid)?;
        let set = SetAttributes { uid, gid, ..Default::default() };
        wait(|done| self.fs.set_attributes(file.ino, set, done)).map(drop)
    }

    pub(crate) fn set_times(
        &self,
        file: &FileAttributes,
        accessed: Option<SetTime>,
        modified: Option<SetTime>,
    ) -> Result<(), Errno> {
        let is_now = |time: Option<SetTime>| time.is_none_or(|time| time == SetTime::Now);
        if let Err(errno) = self.caller.ensure_owns(file) {
            if !is_now(accessed) || !is_now(modified) {
                return Err(errno);
            }
            self.caller.ensure_may(Access::WRITE_OK, file)?;
        }
        let set = SetAttributes { accessed, modified, ..Default::default() };
        wait(|done| self.fs.set_attributes(file.ino, set, done)).map(drop)
    }

    pub(crate) fn set_size(&self, file: &FileAttributes, size: u64) -> Result<(), Errno> {
        match file.kind {
            FileKind::File => {}
            FileKind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::INVAL),
        }
        let set = SetAttributes { size: Some(size), ..Default::default() };
        let turn = self.take_append_turn();
        wait(|done| self.fs.set_attributes(file.ino, set, done)).map(drop)?;
        drop(turn);
        self.drop_privileges(file.ino)
    }

    /// Drops setuid, setgid and capabilities of a file whose content an unprivileged user has changed.
    pub(crate) fn drop_privileges(&self, ino: Ino) -> Result<(), Errno> {
        if self.caller.uid == 0 || !self.fs.is_privileged(ino) {
            return Ok(());
        }
        wait(|done| self.fs.drop_privileges(ino, done)).map(drop)
    }

    pub(crate) fn xattr(&self, file: &FileAttributes, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.fs.xattr(file.ino, name).map_err(|error| error.errno())
    }

    pub(crate) fn xattr_names(&self, file: &FileAttributes) -> Result<Vec<Vec<u8>>, Errno> {
        self.fs.xattr_names(file.ino).map_err(|error| error.errno())
    }

    pub(crate) fn set_xattr(
        &self,
        file: &FileAttributes,
        name: &[u8],
        value: &[u8],
        how: SetXattrMode,
    ) -> Result<(), Errno> {
        self.ensure_may_set_xattr(file, name)?;
        wait(|done| self.fs.set_xattr(file.ino, name, value, how, done))
    }

    pub(crate) fn remove_xattr(&self, file: &FileAttributes, name: &[u8]) -> Result<(), Errno> {
        self.ensure_may_set_xattr(file, name)?;
        wait(|done| self.fs.remove_xattr(file.ino, name, done))
    }

    fn ensure_may_set_xattr(&self, file: &FileAttributes, name: &[u8]) -> Result<(), Errno> {
        if name.starts_with(b"user.") {
            return self.caller.ensure_may(Access::WRITE_OK, file);
        }
        if name.starts_with(b"system.") {
            return self.caller.ensure_owns(file);
        }
        if self.caller.uid == 0 { Ok(()) } else { Err(Errno::PERM) }
    }
}

/// The access that `flags` ask for.
pub(crate) fn access_of(flags: OFlags) -> Access {
    match flags & OFlags::RWMODE {
        OFlags::WRONLY => Access::WRITE_OK,
        OFlags::RDWR => Access::READ_OK | Access::WRITE_OK,
        _ => Access::READ_OK,
    }
}

/// Why a directory cannot be removed by a path that does not end in its name, as Linux says it.
fn errno_of_no_name(path: &Path) -> Errno {
    let mut names = path.as_os_str().as_bytes().rsplit(|&byte| byte == b'/');
    match names.find(|name| !name.is_empty()) {
        Some(b".") => Errno::INVAL,
        Some(b"..") => Errno::NOTEMPTY,
        _ => Errno::BUSY,
    }
}

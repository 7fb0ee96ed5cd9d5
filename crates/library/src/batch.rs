//! Batches: several changes that take effect together.

use crate::directory::Directory;
use crate::file::WeirFile;
use crate::open_volume::{HeldFile, OpenVolume, wait_for_media};
use fs::{BatchChange, IfExists, Ino};
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use std::io;
use std::path::Path;
use std::sync::Arc;

/// Changes that take effect together, in the order in which they were added: see
/// [`Directory::batch`]. Dropping it without [`apply`](Batch::apply) changes nothing.
pub struct Batch {
    directory: Directory,
    changes: Vec<BatchChange>,
    /// Files that are written to.
    written: Vec<Ino>,
    /// Files that lose a name.
    removed: Vec<Ino>,
    /// Files and directories that the changes name. They are held, so that no other file gets their numbers.
    held: Vec<HeldFile>,
    /// Whether a file of the batch was opened with SYNC or DSYNC.
    is_synchronous: bool,
}

impl Batch {
    pub(crate) fn new(directory: Directory) -> Batch {
        let (changes, written, removed, held) = Default::default();
        Batch { directory, changes, written, removed, held, is_synchronous: false }
    }

    fn hold(&mut self, ino: Ino) -> Result<(), Errno> {
        self.held.push(HeldFile::new(self.volume().clone(), ino)?);
        Ok(())
    }

    fn volume(&self) -> &Arc<OpenVolume> {
        self.directory.volume()
    }

    /// Adds a write of all `bytes` at `offset`, in a file opened with APPEND, too. If the file was opened with SYNC or
    /// DSYNC, the whole batch is durable when [`apply`](Batch::apply) returns.
    ///
    /// # Errors
    /// EBADF if the file is not open for writing, EXDEV if it is of another store.
    pub fn write_at(&mut self, file: &WeirFile, bytes: &[u8], offset: u64) -> io::Result<&mut Batch> {
        file.ensure_is(Access::WRITE_OK)?;
        if !Arc::ptr_eq(self.volume(), file.volume()) {
            return Err(Errno::XDEV.into());
        }
        self.hold(file.ino())?;
        self.is_synchronous |= file.flags().intersects(OFlags::SYNC | OFlags::DSYNC);
        self.written.push(file.ino());
        self.changes.push(BatchChange::Write { ino: file.ino(), offset, bytes: bytes.to_vec() });
        Ok(self)
    }

    /// Adds a [`rename`](Directory::rename).
    ///
    /// # Errors
    /// As of `rename(2)`, for the names as they are now.
    pub fn rename(&mut self, old: impl AsRef<Path>, new: impl AsRef<Path>) -> io::Result<&mut Batch> {
        let directory = &self.directory;
        let (from, to, replaced) =
            Directory::places_of_rename((directory, old.as_ref()), (directory, new.as_ref()))?;
        self.hold(from.0)?;
        self.hold(to.0)?;
        self.removed.extend(replaced);
        self.changes.push(BatchChange::Rename { from, to, if_exists: IfExists::Replace });
        Ok(self)
    }

    /// Adds a [`remove_file`](Directory::remove_file).
    ///
    /// # Errors
    /// As of `unlink(2)`, for the names as they are now.
    pub fn remove_file(&mut self, path: impl AsRef<Path>) -> io::Result<&mut Batch> {
        let ((parent, name), removed) = self.directory.place_of_removal(path.as_ref())?;
        self.hold(parent)?;
        self.removed.push(removed);
        self.changes.push(BatchChange::Unlink { parent, name });
        Ok(self)
    }

    /// Makes all changes at once: every other thread, and whoever opens the store after a crash, sees all of them or none.
    /// Only a read that began before may have some pages from before and others from after. They are durable after a later
    /// [`commit`](crate::Weir::commit).
    ///
    /// # Errors
    /// That of the first change that fails: nothing has changed then, but that set-user-ID bits of written files may be gone.
    /// Names are looked up again: if another thread has moved one, that is ENOENT, or the change is that of the file that
    /// has the name now. EFBIG for more than 64 changes or more than 1 MiB, or if the buffer is too small for so many;
    /// ENOSPC, EIO, EROFS. If the changes are made and their sync fails, that is EIO, too, and all of them are there.
    pub fn apply(self) -> io::Result<()> {
        let volume = self.volume().clone();
        for &ino in &self.written {
            volume.drop_privileges(ino)?;
        }
        // One of the writes may make a file longer.
        let turn = (!self.written.is_empty()).then(|| volume.take_append_turn());
        wait_for_media(|done| volume.fs.apply_batch(self.changes, done))?;
        drop(turn);
        self.removed.iter().for_each(|&ino| volume.note_removal(ino));
        if self.is_synchronous {
            wait_for_media(|done| volume.fs.sync_names(done))?;
        }
        Ok(())
    }
}

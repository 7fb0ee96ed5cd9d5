//! Open files.

use crate::directory::access_of;
use crate::open_volume::{HeldFile, OpenVolume, wait, wait_for_media};
use crate::waiting::lock_waiting;
use fs::{FallocateMode, FileAttributes, FileKind, Ino, SeekWhence, SetTime, SetXattrMode, SizePolicy};
use rustix::fs::{Access, OFlags};
use rustix::io::Errno;
use std::io::{self, SeekFrom};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are written at once. A longer write is several, in order.
const PIECE_BYTES: usize = 16 << 20;

/// An open file or directory.
///
/// `read`, `write` and `seek` take turns; `read_at` and `write_at` run beside each other. A file without a name lives until
/// it is dropped.
pub struct WeirFile {
    volume: Arc<OpenVolume>,
    ino: Ino,
    _held: HeldFile,
    access: Access,
    /// APPEND, SYNC and DSYNC: what may be changed while the file is open.
    flags: Mutex<OFlags>,
    /// Where the next read or write begins.
    position: Mutex<u64>,
}

impl WeirFile {
    pub(crate) fn new(volume: Arc<OpenVolume>, ino: Ino, flags: OFlags) -> Result<WeirFile, Errno> {
        let held = HeldFile::new(volume.clone(), ino)?;
        Ok(WeirFile {
            volume,
            ino,
            _held: held,
            access: access_of(flags),
            flags: Mutex::new(flags),
            position: Mutex::new(0),
        })
    }

    pub(crate) fn volume(&self) -> &Arc<OpenVolume> {
        &self.volume
    }

    /// The file's number.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    /// The flags with which it was opened.
    pub fn flags(&self) -> OFlags {
        *self.flags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets APPEND, and clears it if it is not in `flags`, as `fcntl(F_SETFL)` does.
    pub fn set_flags(&self, flags: OFlags) {
        let mut own = self.flags.lock().unwrap_or_else(PoisonError::into_inner);
        own.set(OFlags::APPEND, flags.contains(OFlags::APPEND));
    }

    /// Its attributes.
    pub fn metadata(&self) -> io::Result<FileAttributes> {
        Ok(self.volume.attributes(self.ino)?)
    }

    /// Reads from `offset` on. Returns the number of bytes: fewer than wanted at the end of the file.
    pub fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<usize> {
        self.ensure_is(Access::READ_OK)?;
        if offset.checked_add(into.len() as u64).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::INVAL.into());
        }
        if let Some(read) = self.volume.fs.try_read(self.ino, offset, into) {
            return Ok(read.map_err(|error| error.errno())?);
        }
        let len = into.len();
        let read = wait_for_media(|done| self.volume.fs.read(self.ino, offset, len, done))?;
        into[..read.len()].copy_from_slice(&read);
        Ok(read.len())
    }

    /// Writes `bytes` at `offset`, or, in a file opened with APPEND, at its end. Returns the number of bytes written: fewer
    /// than there are only if the rest failed.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        Ok(self.write_from(bytes, offset, self.appends())?.1)
    }

    /// [`write_at`](WeirFile::write_at), or with `None` [`write`](WeirFile::write), that returns also where the written bytes
    /// end.
    pub fn write_and_tell_end(&self, bytes: &[u8], offset: Option<u64>) -> io::Result<(u64, usize)> {
        let Some(offset) = offset else {
            let mut position = self.position();
            let (end, written) = self.write_from(bytes, *position, self.appends())?;
            *position = end;
            return Ok((end, written));
        };
        Ok(self.write_from(bytes, offset, self.appends())?)
    }

    /// Writes all `bytes` at `offset`, in a file opened with APPEND, too.
    pub fn overwrite_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        match self.write_from(bytes, offset, false)? {
            (_, written) if written == bytes.len() => Ok(()),
            _ => Err(Errno::NOSPC.into()),
        }
    }

    /// Reads from the position on, and moves it.
    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        let mut position = self.position();
        let read = self.read_at(into, *position)?;
        *position += read as u64;
        Ok(read)
    }

    /// [`write_at`](WeirFile::write_at) the position, which moves behind what was written.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_and_tell_end(bytes, None)?.1)
    }

    /// Moves the position, and returns it.
    pub fn seek(&self, to: SeekFrom) -> io::Result<u64> {
        let mut position = self.position();
        let (from, by) = match to {
            SeekFrom::Start(offset) => (0, i64::try_from(offset).map_err(|_| Errno::INVAL)?),
            SeekFrom::Current(by) => (*position, by),
            SeekFrom::End(by) => (self.volume.attributes(self.ino)?.size, by),
        };
        let moved = from.checked_add_signed(by).filter(|&at| at <= i64::MAX as u64).ok_or(Errno::INVAL)?;
        *position = moved;
        Ok(moved)
    }

    /// Moves the position to the first data, or the first hole, from `offset` on.
    ///
    /// # Errors
    /// ENXIO past the end of the file, or if no data follow.
    pub fn seek_to(&self, offset: u64, what: SeekWhence) -> io::Result<u64> {
        let mut position = self.position();
        *position = wait_for_media(|done| self.volume.fs.seek(self.ino, offset, what, done))?;
        Ok(*position)
    }

    /// Makes the file's content and attributes durable, and what was changed before in the whole volume.
    pub fn sync_data(&self) -> io::Result<()> {
        wait_for_media(|done| self.volume.fs.sync_file(self.ino, done))?;
        self.volume.note_sync(self.ino);
        Ok(())
    }

    /// Sets the size. New bytes are zeros.
    pub fn set_len(&self, size: u64) -> io::Result<()> {
        self.ensure_is(Access::WRITE_OK).map_err(|_| Errno::INVAL)?;
        if size > i64::MAX as u64 {
            return Err(Errno::INVAL.into());
        }
        Ok(self.volume.set_size(&self.volume.attributes(self.ino)?, size)?)
    }

    /// Allocates, punches or zeroes the range `(offset, length)`, as `fallocate(2)` does.
    pub fn allocate(&self, mode: FallocateMode, range: (u64, u64), size: SizePolicy) -> io::Result<()> {
        self.ensure_is(Access::WRITE_OK)?;
        wait(|done| self.volume.fs.allocate(self.ino, mode, range, size, done))?;
        Ok(self.volume.drop_privileges(self.ino)?)
    }

    /// Whether the caller may use the file so.
    ///
    /// # Errors
    /// EACCES.
    pub fn ensure_access(&self, wanted: Access) -> io::Result<()> {
        Ok(self.volume.caller.ensure_may(wanted, &self.metadata()?)?)
    }

    /// Sets the permission bits.
    pub fn set_mode(&self, mode: u32) -> io::Result<()> {
        Ok(self.volume.set_mode(&self.volume.attributes(self.ino)?, mode)?)
    }

    /// Sets owner and group; `None` leaves one as it is.
    pub fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        Ok(self.volume.set_owner(&self.volume.attributes(self.ino)?, uid, gid)?)
    }

    /// Sets the times of last access and last change; `None` leaves one as it is.
    pub fn set_times(&self, accessed: Option<SetTime>, modified: Option<SetTime>) -> io::Result<()> {
        Ok(self.volume.set_times(&self.volume.attributes(self.ino)?, accessed, modified)?)
    }

    /// An extended attribute.
    pub fn xattr(&self, name: &[u8]) -> io::Result<Vec<u8>> {
        Ok(self.volume.xattr(&self.metadata()?, name)?)
    }

    /// The names of all extended attributes.
    pub fn xattr_names(&self) -> io::Result<Vec<Vec<u8>>> {
        Ok(self.volume.xattr_names(&self.metadata()?)?)
    }

    /// Sets an extended attribute.
    pub fn set_xattr(&self, name: &[u8], value: &[u8], how: SetXattrMode) -> io::Result<()> {
        Ok(self.volume.set_xattr(&self.metadata()?, name, value, how)?)
    }

    /// Removes an extended attribute.
    pub fn remove_xattr(&self, name: &[u8]) -> io::Result<()> {
        Ok(self.volume.remove_xattr(&self.metadata()?, name)?)
    }

    fn appends(&self) -> bool {
        self.flags().contains(OFlags::APPEND)
    }

    /// Writes at `offset`, or at the end of the file. Returns where the written bytes end, and their number.
    fn write_from(&self, bytes: &[u8], offset: u64, appends: bool) -> Result<(u64, usize), Errno> {
        self.ensure_is(Access::WRITE_OK)?;
        let flags = self.flags();
        let volume = &self.volume;
        let extends = appends || offset.saturating_add(bytes.len() as u64) > self.size()?;
        let turn = extends.then(|| volume.take_append_turn());
        let begin = if appends { self.size()? } else { offset };
        let end = begin.checked_add(bytes.len() as u64).filter(|&end| end <= i64::MAX as u64);
        end.ok_or(Errno::INVAL)?;
        volume.drop_privileges(self.ino)?;
        let mut written = 0;
        for piece in bytes.chunks(PIECE_BYTES) {
            match self.write_piece(piece, begin + written as u64) {
                Ok(()) => written += piece.len(),
                Err(errno) if written == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        drop(turn);
        if flags.intersects(OFlags::SYNC | OFlags::DSYNC) {
            wait_for_media(|done| volume.fs.sync_bytes(self.ino, done))?;
        }
        Ok((begin + written as u64, written))
    }

    fn write_piece(&self, bytes: &[u8], offset: u64) -> Result<(), Errno> {
        let fs = &self.volume.fs;
        match fs.try_write(self.ino, offset, bytes) {
            Some(written) => written.map_err(|error| error.errno()),
            None => wait_for_media(|done| fs.write(self.ino, offset, bytes.to_vec(), done)),
        }
    }

    fn size(&self) -> Result<u64, Errno> {
        Ok(self.volume.attributes(self.ino)?.size)
    }

    pub(crate) fn ensure_is(&self, access: Access) -> Result<(), Errno> {
        if self.access.contains(access) { Ok(()) } else { Err(Errno::BADF) }
    }

    fn position(&self) -> MutexGuard<'_, u64> {
        lock_waiting(&self.position)
    }

    /// The kind of file that is open.
    pub fn kind(&self) -> io::Result<FileKind> {
        Ok(self.volume.attributes(self.ino)?.kind)
    }
}

impl io::Read for &WeirFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        WeirFile::read(self, into)
    }
}

impl io::Write for &WeirFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        WeirFile::write(self, bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl io::Seek for &WeirFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        WeirFile::seek(self, to)
    }
}

impl std::fmt::Debug for WeirFile {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("WeirFile").field("ino", &self.ino).finish_non_exhaustive()
    }
}

//! Open files.

use crate::answer::{CallError, answer, answer_at};
use crate::handles::{FileHandle, Handle, OpenFile, StoreHandle, number_of, source, target};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::io::SeekFrom;
use weir_library::{Directory, FallocateMode, OFlags, SeekWhence, SizePolicy, WeirFile};

/// Opens a file or directory, or makes a file. `mode` is that of a new file.
///
/// Takes the flags of open(): O_CREAT, O_EXCL, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC, O_DIRECTORY, O_NOFOLLOW. O_PATH and O_TMPFILE,
/// FIFOs, sockets and devices are EOPNOTSUPP. Other flags change nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_open(
    store: *mut StoreHandle,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut FileHandle {
    answer_at("weir_open", path, |path| {
        let file = StoreHandle::get(store)?.open(path, OFlags::from_bits_retain(flags as u32), mode)?;
        give_while_open(number_of(store)?, file)
    })
}

/// Gives C a file, unless its store was closed while it was opened.
fn give_while_open(store: u64, file: WeirFile) -> Result<*mut FileHandle, CallError> {
    let handle = FileHandle::give(OpenFile { store, file });
    if StoreHandle::TABLE.get(store).is_err() {
        let _ = FileHandle::close(handle);
        return Err(Errno::BADF.into());
    }
    Ok(handle)
}

/// As weir_open(). A path without a slash at its start begins at `directory`, which is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_openat(
    directory: *mut FileHandle,
    path: *const c_char,
    flags: c_int,
    mode: libc::mode_t,
) -> *mut FileHandle {
    answer_at("weir_openat", path, |path| {
        let from = FileHandle::get(directory)?;
        let file = Directory::of(&from.file)?.open(path, OFlags::from_bits_retain(flags as u32), mode)?;
        give_while_open(from.store, file)
    })
}

/// Closes a file. A file without a name ends with the last handle.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_close(file: *mut FileHandle) -> c_int {
    answer("weir_close", || {
        FileHandle::close(file)?;
        Ok(0)
    })
}

/// Reads from the file's position on, and moves it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_read(file: *mut FileHandle, into: *mut c_void, count: usize) -> libc::ssize_t {
    answer("weir_read", || Ok(FileHandle::get(file)?.file.read(target(into, count)?)? as isize))
}

/// Reads from `offset` on.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pread(
    file: *mut FileHandle,
    into: *mut c_void,
    count: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    answer("weir_pread", || {
        Ok(FileHandle::get(file)?.file.read_at(target(into, count)?, offset_of(offset)?)? as isize)
    })
}

/// Writes at the file's position, or with O_APPEND at its end, and moves the position behind what was written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_write(
    file: *mut FileHandle,
    from: *const c_void,
    count: usize,
) -> libc::ssize_t {
    answer("weir_write", || Ok(FileHandle::get(file)?.file.write(source(from, count)?)? as isize))
}

/// Writes at `offset`, or with O_APPEND at the file's end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_pwrite(
    file: *mut FileHandle,
    from: *const c_void,
    count: usize,
    offset: libc::off_t,
) -> libc::ssize_t {
    answer("weir_pwrite", || {
        Ok(FileHandle::get(file)?.file.write_at(source(from, count)?, offset_of(offset)?)? as isize)
    })
}

/// Moves the file's position, and returns it. `whence` is SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA or SEEK_HOLE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lseek(
    file: *mut FileHandle,
    offset: libc::off_t,
    whence: c_int,
) -> libc::off_t {
    answer("weir_lseek", || {
        let open = FileHandle::get(file)?;
        let to = |what| -> Result<u64, CallError> {
            let from = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            Ok(open.file.seek_to(from, what)?)
        };
        let moved = match whence {
            libc::SEEK_SET => open.file.seek(SeekFrom::Start(offset_of(offset)?))?,
            libc::SEEK_CUR => open.file.seek(SeekFrom::Current(offset))?,
            libc::SEEK_END => open.file.seek(SeekFrom::End(offset))?,
            libc::SEEK_DATA => to(SeekWhence::Data)?,
            libc::SEEK_HOLE => to(SeekWhence::Hole)?,
            _ => return Err(Errno::INVAL.into()),
        };
        Ok(moved as i64)
    })
}

/// Makes the file durable, and every earlier change of the volume.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fsync(file: *mut FileHandle) -> c_int {
    answer("weir_fsync", || {
        FileHandle::get(file)?.file.sync_data()?;
        Ok(0)
    })
}

/// The same as weir_fsync().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fdatasync(file: *mut FileHandle) -> c_int {
    answer("weir_fdatasync", || {
        FileHandle::get(file)?.file.sync_data()?;
        Ok(0)
    })
}

/// Sets the size of an open file. New bytes are zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_ftruncate(file: *mut FileHandle, size: libc::off_t) -> c_int {
    answer("weir_ftruncate", || {
        FileHandle::get(file)?.file.set_len(offset_of(size)?)?;
        Ok(0)
    })
}

/// Allocates a range, or with FALLOC_FL_ZERO_RANGE or FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE makes it zeros.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fallocate(
    file: *mut FileHandle,
    mode: c_int,
    offset: libc::off_t,
    length: libc::off_t,
) -> c_int {
    answer("weir_fallocate", || {
        let open = FileHandle::get(file)?;
        let keeps_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
        let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => FallocateMode::Allocate,
            libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
            libc::FALLOC_FL_PUNCH_HOLE if keeps_size => FallocateMode::PunchHole,
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let size = if keeps_size { SizePolicy::Keep } else { SizePolicy::Grow };
        let length = u64::try_from(length).ok().filter(|&length| length > 0).ok_or(Errno::INVAL)?;
        open.file.allocate(what, (offset_of(offset)?, length), size)?;
        Ok(0)
    })
}

/// An offset or a size.
pub(crate) fn offset_of(offset: libc::off_t) -> Result<u64, Errno> {
    u64::try_from(offset).map_err(|_| Errno::INVAL)
}

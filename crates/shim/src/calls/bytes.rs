//! Reading, writing and the size of files.

use crate::descriptors::OpenFile;
use crate::place;
use crate::symbol::{Answer, pass_on, symbols};
use crate::{descriptors, mappings};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::io::{self, SeekFrom};
use weir_library::{FallocateMode, OFlags, SeekWhence, SizePolicy};

symbols! {
    read(fd: c_int, into: *mut c_void, count: usize) -> isize = place::on(fd, |open| read_to(open, into, count));
    __read_chk(fd: c_int, into: *mut c_void, count: usize, size: usize) -> isize = {
        place::on(fd, |open| read_to(open, into, count.min(size)))
    };
    pread(fd: c_int, into: *mut c_void, count: usize, at: i64) -> isize = place::on(fd, |open| read_at(open, into, count, at));
    pread64(fd: c_int, into: *mut c_void, count: usize, at: i64) -> isize = place::on(fd, |open| read_at(open, into, count, at));
    __pread_chk(fd: c_int, into: *mut c_void, count: usize, at: i64, size: usize) -> isize = {
        place::on(fd, |open| read_at(open, into, count.min(size), at))
    };
    __pread64_chk(fd: c_int, into: *mut c_void, count: usize, at: i64, size: usize) -> isize = {
        place::on(fd, |open| read_at(open, into, count.min(size), at))
    };
    write(fd: c_int, from: *const c_void, count: usize) -> isize = place::on(fd, |open| write_from(open, from, count));
    pwrite(fd: c_int, from: *const c_void, count: usize, at: i64) -> isize = place::on(fd, |open| write_at(open, from, count, at));
    pwrite64(fd: c_int, from: *const c_void, count: usize, at: i64) -> isize = place::on(fd, |open| write_at(open, from, count, at));
    readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = place::on(fd, |open| {
        in_parts(parts, count, |base, length, _| read_to(open, base, length))
    });
    writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = place::on(fd, |open| {
        in_parts(parts, count, |base, length, _| write_from(open, base, length))
    });
    preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = read_parts(fd, parts, count, at);
    preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = read_parts(fd, parts, count, at);
    preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        let _ = flags;
        read_parts(fd, parts, count, at)
    };
    preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        let _ = flags;
        read_parts(fd, parts, count, at)
    };
    pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = write_parts(fd, parts, count, at, 0);
    pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = write_parts(fd, parts, count, at, 0);
    pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        write_parts(fd, parts, count, at, flags)
    };
    pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        write_parts(fd, parts, count, at, flags)
    };
    lseek(fd: c_int, offset: i64, whence: c_int) -> i64 = place::on(fd, |open| seek(open, offset, whence));
    lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 = place::on(fd, |open| seek(open, offset, whence));
    ftruncate(fd: c_int, size: i64) -> c_int = place::on(fd, |open| set_size(open, size));
    ftruncate64(fd: c_int, size: i64) -> c_int = place::on(fd, |open| set_size(open, size));
    truncate(path: *const c_char, size: i64) -> c_int = place::at(libc::AT_FDCWD, path, |place| truncate_at(place, size));
    truncate64(path: *const c_char, size: i64) -> c_int = place::at(libc::AT_FDCWD, path, |place| truncate_at(place, size));
    fallocate(fd: c_int, mode: c_int, at: i64, length: i64) -> c_int = place::on(fd, |open| allocate(open, mode, at, length));
    fallocate64(fd: c_int, mode: c_int, at: i64, length: i64) -> c_int = place::on(fd, |open| allocate(open, mode, at, length));
    posix_fallocate(fd: c_int, at: i64, length: i64) -> c_int = errno_of(place::on(fd, |open| allocate(open, 0, at, length)));
    posix_fallocate64(fd: c_int, at: i64, length: i64) -> c_int = errno_of(place::on(fd, |open| allocate(open, 0, at, length)));
    // Advice changes nothing here.
    posix_fadvise(fd: c_int, at: i64, length: i64, advice: c_int) -> c_int = place::on(fd, |_| { let _ = (at, length, advice); Ok(0) });
    posix_fadvise64(fd: c_int, at: i64, length: i64, advice: c_int) -> c_int = place::on(fd, |_| { let _ = (at, length, advice); Ok(0) });
    readahead(fd: c_int, at: i64, length: usize) -> isize = place::on(fd, |_| { let _ = (at, length); Ok(0) });
    sendfile(out: c_int, from: c_int, at: *mut i64, count: usize) -> isize = send_file(out, from, at, count);
    sendfile64(out: c_int, from: c_int, at: *mut i64, count: usize) -> isize = send_file(out, from, at, count);
    // Programs then copy by reading and writing.
    copy_file_range(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, count: usize, flags: u32) -> isize = {
        let _ = (from_at, to_at, count, flags);
        refuse_either(from, to, Errno::XDEV)
    };
    splice(from: c_int, from_at: *mut i64, to: c_int, to_at: *mut i64, count: usize, flags: u32) -> isize = {
        let _ = (from_at, to_at, count, flags);
        refuse_either(from, to, Errno::INVAL)
    };
}

/// The most bytes of one `sendfile`.
const SEND_MAX: usize = 256 << 10;

/// A buffer of the program to read into.
fn target<'a>(into: *mut c_void, count: usize) -> io::Result<&'a mut [u8]> {
    if count == 0 {
        return Ok(&mut []);
    }
    if into.is_null() || count > isize::MAX as usize {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: the program passes a buffer of `count` bytes, and leaves it to the call until that returns. Any bytes are
    // valid, and reads of the store write without looking at them first.
    Ok(unsafe { std::slice::from_raw_parts_mut(into.cast(), count) })
}

/// Bytes that the program writes.
fn source<'a>(from: *const c_void, count: usize) -> io::Result<&'a [u8]> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() || count > isize::MAX as usize {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: the program passes `count` bytes, and does not change them before the call returns.
    Ok(unsafe { std::slice::from_raw_parts(from.cast(), count) })
}

fn offset_of(at: i64) -> io::Result<u64> {
    u64::try_from(at).map_err(|_| Errno::INVAL.into())
}

pub(crate) fn read_to(open: &OpenFile, into: *mut c_void, count: usize) -> io::Result<isize> {
    mappings::write_back(open.file.ino());
    Ok(open.file.read(target(into, count)?)? as isize)
}

fn read_at(open: &OpenFile, into: *mut c_void, count: usize, at: i64) -> io::Result<isize> {
    mappings::write_back(open.file.ino());
    Ok(open.file.read_at(target(into, count)?, offset_of(at)?)? as isize)
}

pub(crate) fn write_from(open: &OpenFile, from: *const c_void, count: usize) -> io::Result<isize> {
    let bytes = source(from, count)?;
    let written = open.file.write(bytes)?;
    if mappings::any() {
        let end = open.file.seek(SeekFrom::Current(0))?;
        mappings::note_write(open.file.ino(), &bytes[..written], end - written as u64);
    }
    Ok(written as isize)
}

fn write_at(open: &OpenFile, from: *const c_void, count: usize, at: i64) -> io::Result<isize> {
    let (bytes, mut at) = (source(from, count)?, offset_of(at)?);
    let written = open.file.write_at(bytes, at)?;
    if mappings::any() {
        if open.file.flags().contains(OFlags::APPEND) {
            at = open.file.metadata()?.size.saturating_sub(written as u64);
        }
        mappings::note_write(open.file.ino(), &bytes[..written], at);
    }
    Ok(written as isize)
}

/// Moves the bytes of all parts, until one of them is moved in part.
fn in_parts(
    parts: *const libc::iovec,
    count: c_int,
    mut operation: impl FnMut(*mut c_void, usize, usize) -> io::Result<isize>,
) -> io::Result<isize> {
    if !(0..=libc::UIO_MAXIOV).contains(&count) || (parts.is_null() && count > 0) {
        return Err(Errno::INVAL.into());
    }
    let mut total = 0;
    for index in 0..count as usize {
        // SAFETY: the program passes `count` parts.
        let part = unsafe { *parts.add(index) };
        match operation(part.iov_base, part.iov_len, total) {
            Ok(moved) => {
                total += moved as usize;
                if (moved as usize) < part.iov_len {
                    break;
                }
            }
            Err(error) if total == 0 => return Err(error),
            Err(_) => break,
        }
    }
    Ok(total as isize)
}

fn read_parts(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> Answer<isize> {
    place::on(fd, |open| {
        in_parts(parts, count, |base, length, done| match at {
            -1 => read_to(open, base, length),
            _ => read_at(open, base, length, at.saturating_add(done as i64)),
        })
    })
}

fn write_parts(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> Answer<isize> {
    place::on(fd, |open| {
        let written = in_parts(parts, count, |base, length, done| match at {
            -1 => write_from(open, base, length),
            _ => write_at(open, base, length, at.saturating_add(done as i64)),
        })?;
        if flags & (libc::RWF_DSYNC | libc::RWF_SYNC) != 0 {
            open.file.sync_data()?;
        }
        Ok(written)
    })
}

fn seek(open: &OpenFile, offset: i64, whence: c_int) -> io::Result<i64> {
    let moved = match whence {
        libc::SEEK_SET => open.file.seek(SeekFrom::Start(offset_of(offset)?)),
        libc::SEEK_CUR => open.file.seek(SeekFrom::Current(offset)),
        libc::SEEK_END => open.file.seek(SeekFrom::End(offset)),
        libc::SEEK_DATA | libc::SEEK_HOLE => {
            mappings::write_back(open.file.ino());
            let what = if whence == libc::SEEK_DATA { SeekWhence::Data } else { SeekWhence::Hole };
            let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
            open.file.seek_to(offset, what)
        }
        _ => Err(Errno::INVAL.into()),
    };
    Ok(moved? as i64)
}

fn set_size(open: &OpenFile, size: i64) -> io::Result<c_int> {
    open.file.set_len(offset_of(size)?)?;
    mappings::truncate(open.file.ino(), size as u64);
    Ok(0)
}

fn truncate_at(place: &place::Place, size: i64) -> io::Result<c_int> {
    place.start().truncate(place.path(), offset_of(size)?)?;
    mappings::truncate(place.start().metadata(place.path())?.ino, size as u64);
    Ok(0)
}

fn allocate(open: &OpenFile, mode: c_int, at: i64, length: i64) -> io::Result<c_int> {
    let what = match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => FallocateMode::Allocate,
        libc::FALLOC_FL_ZERO_RANGE => FallocateMode::ZeroRange,
        libc::FALLOC_FL_PUNCH_HOLE if mode & libc::FALLOC_FL_KEEP_SIZE != 0 => FallocateMode::PunchHole,
        _ => return Err(Errno::OPNOTSUPP.into()),
    };
    let size = if mode & libc::FALLOC_FL_KEEP_SIZE == 0 { SizePolicy::Grow } else { SizePolicy::Keep };
    let length = u64::try_from(length).ok().filter(|&length| length > 0).ok_or(Errno::INVAL)?;
    mappings::write_back(open.file.ino());
    open.file.allocate(what, (offset_of(at)?, length), size)?;
    mappings::refresh(open.file.ino());
    Ok(0)
}

/// Of a function that returns the errno itself.
pub(crate) fn errno_of(answer: Answer<c_int>) -> Answer<c_int> {
    answer.map(|result| Ok(result.unwrap_or_else(|error| error.raw_os_error().unwrap_or(libc::EIO))))
}

fn refuse_either(one: c_int, other: c_int, errno: Errno) -> Answer<isize> {
    let weirs = descriptors::get(one).or_else(|| descriptors::get(other))?;
    Some(weirs.and(Err(errno.into())))
}

/// Copies through a buffer, whichever of the two is weir's.
fn send_file(out: c_int, from: c_int, at: *mut i64, count: usize) -> Answer<isize> {
    let (target, source) = (descriptors::get(out), descriptors::get(from));
    if target.is_none() && source.is_none() {
        return None;
    }
    let copy = || -> io::Result<isize> {
        let (target, source) = (target.transpose()?, source.transpose()?);
        let mut buffer = vec![0; count.min(SEND_MAX)];
        // SAFETY: `at` is null, or points to an offset of the program.
        let begin = unsafe { at.as_ref().copied() };
        let (into, length) = (buffer.as_mut_ptr().cast::<c_void>(), buffer.len());
        let read = match (&source, begin) {
            (Some(source), None) => read_to(source, into, length)?,
            (Some(source), Some(at)) => read_at(source, into, length, at)?,
            (None, None) => {
                real(pass_on!(next::read, (from, into, length), (c_int, *mut c_void, usize) -> isize))?
            }
            (None, Some(at)) => real(
                pass_on!(next::pread64, (from, into, length, at), (c_int, *mut c_void, usize, i64) -> isize),
            )?,
        };
        let bytes = buffer.as_ptr().cast::<c_void>();
        let written = match &target {
            Some(target) => write_from(target, bytes, read as usize)?,
            None => real(
                pass_on!(next::write, (out, bytes, read as usize), (c_int, *const c_void, usize) -> isize),
            )?,
        };
        match (begin, &source) {
            // SAFETY: as above.
            (Some(begin), _) => unsafe { *at = begin + written as i64 },
            (None, Some(source)) if written < read => {
                source.file.seek(SeekFrom::Current((written - read) as i64))?;
            }
            _ => {}
        }
        Ok(written)
    };
    Some(copy())
}

fn real(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

const _: () = assert!(size_of::<c_long>() == 8, "offsets and pointers are passed in registers of 64 bits");

//! Reading, writing and the size of files.

use crate::descriptors::OpenFile;
use crate::place;
use crate::symbol::{Answer, pass_on, symbols};
use crate::{descriptors, mappings};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::io::{self, SeekFrom};
use weir_library::{FallocateMode, SeekWhence, SizePolicy};

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
    readv(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = read_parts(fd, parts, count, None, 0);
    writev(fd: c_int, parts: *const libc::iovec, count: c_int) -> isize = write_parts(fd, parts, count, None, 0);
    preadv(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = read_parts(fd, parts, count, Some(at), 0);
    preadv64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = read_parts(fd, parts, count, Some(at), 0);
    preadv2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        read_parts(fd, parts, count, Some(at).filter(|&at| at != -1), flags)
    };
    preadv64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        read_parts(fd, parts, count, Some(at).filter(|&at| at != -1), flags)
    };
    pwritev(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = write_parts(fd, parts, count, Some(at), 0);
    pwritev64(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64) -> isize = write_parts(fd, parts, count, Some(at), 0);
    pwritev2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        write_parts(fd, parts, count, Some(at).filter(|&at| at != -1), flags)
    };
    pwritev64v2(fd: c_int, parts: *const libc::iovec, count: c_int, at: i64, flags: c_int) -> isize = {
        write_parts(fd, parts, count, Some(at).filter(|&at| at != -1), flags)
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
    write_bytes(open, source(from, count)?, None)
}

fn write_at(open: &OpenFile, from: *const c_void, count: usize, at: i64) -> io::Result<isize> {
    write_bytes(open, source(from, count)?, Some(offset_of(at)?))
}

fn write_bytes(open: &OpenFile, bytes: &[u8], at: Option<u64>) -> io::Result<isize> {
    let change = mappings::begin_change_of(open.file.ino());
    let (end, written) = open.file.write_and_tell_end(bytes, at)?;
    change.wrote(open.file.ino(), &bytes[..written], end - written as u64);
    Ok(written as isize)
}

/// The parts of the program's buffer, without empty ones, and their length together.
fn parts_of(parts: *const libc::iovec, count: c_int) -> io::Result<(Vec<libc::iovec>, usize)> {
    if !(0..=libc::UIO_MAXIOV).contains(&count) || (parts.is_null() && count > 0) {
        return Err(Errno::INVAL.into());
    }
    // SAFETY: the program passes `count` parts.
    let parts = (0..count as usize).map(|index| unsafe { *parts.add(index) });
    let parts: Vec<libc::iovec> = parts.filter(|part| part.iov_len > 0).collect();
    let total = parts.iter().try_fold(0_usize, |total, part| total.checked_add(part.iov_len));
    Ok((parts, total.filter(|&total| total <= isize::MAX as usize).ok_or(Errno::INVAL)?))
}

/// Reads all parts by one read: those of other threads at the same position come before or after all of it.
fn read_parts(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
    flags: c_int,
) -> Answer<isize> {
    place::on(fd, |open| {
        let (parts, total) = parts_of(parts, count)?;
        if flags & !libc::RWF_HIPRI != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        let read_once = |into, length| match at {
            None => read_to(open, into, length),
            Some(at) => read_at(open, into, length, at),
        };
        if let [part] = parts[..] {
            return read_once(part.iov_base, part.iov_len);
        }
        let mut bytes = vec![0_u8; total];
        let read = read_once(bytes.as_mut_ptr().cast(), total)?;
        let mut rest = &bytes[..read as usize];
        for part in parts {
            let (now, later) = rest.split_at(rest.len().min(part.iov_len));
            target(part.iov_base, now.len())?.copy_from_slice(now);
            rest = later;
        }
        Ok(read)
    })
}

/// Writes all parts by one write, which no other thread's tears apart.
fn write_parts(
    fd: c_int,
    parts: *const libc::iovec,
    count: c_int,
    at: Option<i64>,
    flags: c_int,
) -> Answer<isize> {
    place::on(fd, |open| {
        let (parts, total) = parts_of(parts, count)?;
        if flags & !(libc::RWF_DSYNC | libc::RWF_SYNC | libc::RWF_HIPRI) != 0 {
            return Err(Errno::OPNOTSUPP.into());
        }
        let at = at.map(offset_of).transpose()?;
        let written = if let [part] = parts[..] {
            write_bytes(open, source(part.iov_base, part.iov_len)?, at)?
        } else {
            let mut bytes = Vec::with_capacity(total);
            for part in parts {
                bytes.extend_from_slice(source(part.iov_base, part.iov_len)?);
            }
            write_bytes(open, &bytes, at)?
        };
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
    let change = mappings::begin_change();
    open.file.set_len(offset_of(size)?)?;
    change.set_size(open.file.ino(), size as u64);
    Ok(0)
}

fn truncate_at(place: &place::Place, size: i64) -> io::Result<c_int> {
    let size = offset_of(size)?;
    let change = mappings::begin_change();
    let ino = place.start().metadata(place.path())?.ino;
    place.start().truncate(place.path(), size)?;
    change.set_size(ino, size);
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
    let at = offset_of(at)?;
    mappings::write_back(open.file.ino());
    let change = mappings::begin_change();
    open.file.allocate(what, (at, length), size)?;
    change.changed(open.file.ino(), at, length);
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

/// One end of a copy, which is weir's if there is an open file.
struct CopyEnd {
    fd: c_int,
    open: Option<std::sync::Arc<OpenFile>>,
}

impl CopyEnd {
    fn read(&self, into: *mut c_void, length: usize, at: Option<i64>) -> io::Result<isize> {
        let fd = self.fd;
        match (&self.open, at) {
            (Some(open), None) => read_to(open, into, length),
            (Some(open), Some(at)) => read_at(open, into, length, at),
            (None, None) => {
                real(pass_on!(next::read, (fd, into, length), (c_int, *mut c_void, usize) -> isize))
            }
            (None, Some(at)) => real(
                pass_on!(next::pread64, (fd, into, length, at), (c_int, *mut c_void, usize, i64) -> isize),
            ),
        }
    }

    fn write(&self, from: *const c_void, length: usize) -> io::Result<isize> {
        let fd = self.fd;
        match &self.open {
            Some(open) => write_from(open, from, length),
            None => real(pass_on!(next::write, (fd, from, length), (c_int, *const c_void, usize) -> isize)),
        }
    }

    fn seek(&self, by: i64) -> io::Result<i64> {
        match &self.open {
            Some(open) => Ok(open.file.seek(SeekFrom::Current(by))? as i64),
            None => {
                let moved =
                    pass_on!(next::lseek64, (self.fd, by, libc::SEEK_CUR), (c_int, i64, c_int) -> i64);
                if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(moved) }
            }
        }
    }
}

/// Copies through a buffer, whichever of the two is weir's. The position of the source moves by what was written.
fn send_file(out: c_int, from: c_int, at: *mut i64, count: usize) -> Answer<isize> {
    let (target, source) = (descriptors::get(out), descriptors::get(from));
    if target.is_none() && source.is_none() {
        return None;
    }
    let copy = || -> io::Result<isize> {
        let target = CopyEnd { fd: out, open: target.transpose()? };
        let source = CopyEnd { fd: from, open: source.transpose()? };
        let mut buffer = vec![0_u8; count.min(SEND_MAX)];
        // SAFETY: `at` is null, or points to an offset of the program.
        let begin = unsafe { at.as_ref().copied() };
        let read = source.read(buffer.as_mut_ptr().cast(), buffer.len(), begin)?;
        let result = target.write(buffer.as_ptr().cast(), read as usize);
        let written = *result.as_ref().unwrap_or(&0);
        match begin {
            // SAFETY: as above.
            Some(begin) => unsafe { *at = begin + written as i64 },
            None if written < read => {
                source.seek((written - read) as i64)?;
            }
            None => {}
        }
        result
    };
    Some(copy())
}

fn real(result: isize) -> io::Result<isize> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

const _: () = assert!(size_of::<c_long>() == 8, "offsets and pointers are passed in registers of 64 bits");

//! The C library's streams on files of the store.
//!
//! A stream is made by `fopencookie`, with functions that read and write the file. Its number is set to the placeholder, for
//! `fileno`.

use crate::calls::bytes::{read_to, write_from};
use crate::calls::descriptors::open_place;
use crate::descriptors::{self, OpenFile, real_close};
use crate::place;
use crate::symbol::{Answer, always_inside, symbols};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use std::io::{self, SeekFrom};
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use weir_library::OFlags;

type File = *mut c_void;

symbols! {
    fopen(path: *const c_char, mode: *const c_char) -> File [after: note_number] = open_stream(path, mode);
    fopen64(path: *const c_char, mode: *const c_char) -> File [after: note_number] = open_stream(path, mode);
    fdopen(fd: c_int, mode: *const c_char) -> File = place::on(fd, |open| {
        let (flags, mode) = mode_of(mode)?;
        let (asked, opened) = (flags & libc::O_ACCMODE, open.file.flags().bits() as c_int & libc::O_ACCMODE);
        if asked != opened && opened != libc::O_RDWR {
            return Err(Errno::INVAL.into());
        }
        if flags & libc::O_APPEND != 0 {
            open.file.set_flags(open.file.flags() | OFlags::APPEND);
        }
        make_stream(fd, open.clone(), mode)
    });
    freopen(path: *const c_char, mode: *const c_char, stream: File) -> File = { let _ = mode; refuse_to_reopen(path, stream) };
    freopen64(path: *const c_char, mode: *const c_char, stream: File) -> File = { let _ = mode; refuse_to_reopen(path, stream) };
    fclose(stream: File) -> c_int = {
        if !forget(stream) {
            // The C library closes the number itself, which may stand for a file of the store by `dup2`.
            descriptors::remove(number_of(stream));
        }
        None
    };
}

/// The most open streams: no more than there are numbers.
const STREAMS_MAX: usize = descriptors::SLOTS;
/// Where glibc's `FILE` has its descriptor's number: behind its flags, eleven pointers into buffers, and two more.
const FILENO_AT: usize = 112;

static STREAMS: [AtomicPtr<c_void>; STREAMS_MAX] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; STREAMS_MAX];
/// One more than the highest place in use.
static STREAMS_END: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> File;
    fn fflush(stream: File) -> c_int;
    fn fileno(stream: File) -> c_int;
}

#[repr(C)]
struct CookieFunctions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize,
    seek: unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

/// The argument of a stream's functions.
struct StreamCookie {
    fd: c_int,
    open: Arc<OpenFile>,
}

fn open_stream(path: *const c_char, mode: *const c_char) -> Answer<File> {
    place::at(libc::AT_FDCWD, path, |place| {
        let (flags, mode) = mode_of(mode)?;
        let opened = open_place(place, flags, 0o666)?;
        let open = OpenFile::new(opened, place.full.clone());
        let fd = descriptors::add(open.clone(), flags & libc::O_CLOEXEC == 0)?;
        make_stream(fd, open, mode).inspect_err(|_| {
            descriptors::remove(fd);
            real_close(fd);
        })
    })
}

/// The flags of a mode such as `r+e`, and the mode itself.
fn mode_of<'a>(mode: *const c_char) -> io::Result<(c_int, &'a [u8])> {
    let mode = place::bytes_of(mode).ok_or(Errno::INVAL)?;
    let both = mode.contains(&b'+');
    let access = |one: c_int| if both { libc::O_RDWR } else { one };
    let mut flags = match mode.first() {
        Some(b'r') => access(libc::O_RDONLY),
        Some(b'w') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_TRUNC,
        Some(b'a') => access(libc::O_WRONLY) | libc::O_CREAT | libc::O_APPEND,
        _ => return Err(Errno::INVAL.into()),
    };
    if mode.contains(&b'x') {
        flags |= libc::O_EXCL;
    }
    if mode.contains(&b'e') {
        flags |= libc::O_CLOEXEC;
    }
    Ok((flags, mode))
}

fn make_stream(fd: c_int, open: Arc<OpenFile>, mode: &[u8]) -> io::Result<File> {
    let mut simple = vec![mode[0]];
    if mode.contains(&b'+') {
        simple.push(b'+');
    }
    simple.push(0);
    let cookie = Box::into_raw(Box::new(StreamCookie { fd, open }));
    let functions = CookieFunctions { read, write, seek, close };
    // SAFETY: the mode ends with a zero byte, and the functions take the cookie until `close` frees it.
    let stream = unsafe { fopencookie(cookie.cast(), simple.as_ptr().cast(), functions) };
    if stream.is_null() {
        // SAFETY: the cookie was made above, and no stream has it.
        drop(unsafe { Box::from_raw(cookie) });
        return Err(Errno::NOMEM.into());
    }
    // SAFETY: `has_known_layout` has seen in three streams that their number lies here.
    unsafe {
        if has_known_layout() {
            stream.cast::<u8>().add(FILENO_AT).cast::<c_int>().write(fd);
        }
    }
    remember(stream);
    Ok(stream)
}

/// Whether the standard streams have their numbers where we expect them.
fn has_known_layout() -> bool {
    unsafe extern "C" {
        static stdin: File;
        static stdout: File;
        static stderr: File;
    }
    // SAFETY: the streams of the C library are larger than the place that is read.
    unsafe {
        [stdin, stdout, stderr]
            .into_iter()
            .filter(|stream| !stream.is_null())
            .all(|stream| stream.cast::<u8>().add(FILENO_AT).cast::<c_int>().read() == fileno(stream))
    }
}

/// The number of an open stream.
fn number_of(stream: File) -> c_int {
    // SAFETY: the program passes an open stream. The function keeps `errno` if the stream has a number.
    if stream.is_null() { -1 } else { unsafe { fileno(stream) } }
}

/// Notes the number of a stream that the C library has opened.
fn note_number(stream: File) {
    if !stream.is_null() {
        descriptors::note_replaced(number_of(stream));
    }
}

/// The C library knows only how to reopen its own files.
fn refuse_to_reopen(path: *const c_char, stream: File) -> Answer<File> {
    let refused = |_: &place::Place| Err(Errno::OPNOTSUPP.into());
    if is_known(stream) {
        return Some(Err(Errno::OPNOTSUPP.into()));
    }
    let answer = place::at(libc::AT_FDCWD, path, refused);
    if answer.is_none() {
        descriptors::remove(number_of(stream));
    }
    answer
}

fn remember(stream: File) {
    for (at, place) in STREAMS.iter().enumerate() {
        if place.compare_exchange(std::ptr::null_mut(), stream, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            STREAMS_END.fetch_max(at + 1, Ordering::AcqRel);
            return;
        }
    }
}

/// Whether a stream is on a file of the store.
fn is_known(stream: File) -> bool {
    let known = &STREAMS[..STREAMS_END.load(Ordering::Acquire)];
    !stream.is_null() && known.iter().any(|place| place.load(Ordering::Acquire) == stream)
}

/// Removes a stream from the list; `false` if it is not there.
fn forget(stream: File) -> bool {
    let known = &STREAMS[..STREAMS_END.load(Ordering::Acquire)];
    !stream.is_null()
        && known.iter().any(|place| {
            place.compare_exchange(stream, std::ptr::null_mut(), Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })
}

/// Writes out what the program's streams on the store hold.
pub(crate) fn flush_all() {
    for place in &STREAMS[..STREAMS_END.load(Ordering::Acquire)] {
        let stream = place.load(Ordering::Acquire);
        if !stream.is_null() {
            // SAFETY: the stream is open: `fclose` would have removed it.
            unsafe { fflush(stream) };
        }
    }
}

/// In a forked child: the streams are the parent's, which flushes them itself.
pub(crate) fn forget_of_parent() {
    STREAMS.iter().for_each(|place| place.store(std::ptr::null_mut(), Ordering::Relaxed));
}

/// The result of a stream's function, which is `failed` after an error.
fn answer<T>(cookie: *mut c_void, failed: T, operation: impl FnOnce(&StreamCookie) -> io::Result<T>) -> T {
    // SAFETY: the C library passes the cookie of the stream, until it has closed it.
    let cookie = unsafe { &*cookie.cast::<StreamCookie>() };
    let result = always_inside(|| {
        cookie.open.ensure_own()?;
        let operation = std::panic::AssertUnwindSafe(|| operation(cookie));
        std::panic::catch_unwind(operation).unwrap_or_else(|_| Err(Errno::IO.into()))
    });
    result.unwrap_or_else(|error| {
        crate::symbol::set_errno(error.raw_os_error().unwrap_or(libc::EIO));
        failed
    })
}

unsafe extern "C" fn read(cookie: *mut c_void, into: *mut c_char, count: usize) -> isize {
    answer(cookie, -1, |cookie| read_to(&cookie.open, into.cast(), count))
}

/// Returns 0 after an error, as `fopencookie` wants it.
unsafe extern "C" fn write(cookie: *mut c_void, from: *const c_char, count: usize) -> isize {
    answer(cookie, 0, |cookie| write_from(&cookie.open, from.cast(), count))
}

unsafe extern "C" fn seek(cookie: *mut c_void, offset: *mut i64, whence: c_int) -> c_int {
    answer(cookie, -1, |cookie| {
        // SAFETY: the C library passes a valid offset.
        let by = unsafe { *offset };
        let to = match whence {
            libc::SEEK_SET => SeekFrom::Start(u64::try_from(by).map_err(|_| Errno::INVAL)?),
            libc::SEEK_CUR => SeekFrom::Current(by),
            _ => SeekFrom::End(by),
        };
        let moved = cookie.open.file.seek(to)?;
        // SAFETY: as above.
        unsafe { *offset = moved as i64 };
        Ok(0)
    })
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: made by `make_stream`, and the C library calls this once.
    let cookie = unsafe { Box::from_raw(cookie.cast::<StreamCookie>()) };
    always_inside(|| {
        descriptors::remove(cookie.fd);
        let result = real_close(cookie.fd);
        if cookie.open.ensure_own().is_err() {
            // It is the parent's: see `descriptors::forget_of_parent`.
            let _ = ManuallyDrop::new(cookie);
        }
        result
    })
}

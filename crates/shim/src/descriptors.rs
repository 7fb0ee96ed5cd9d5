//! The program's numbers for open files.
//!
//! Each number is a real descriptor, a placeholder: a duplicate of one `O_PATH` descriptor of an empty file. The kernel
//! keeps the number for us, and refuses with EBADF each call that the shim does not serve.

use crate::calls::descriptors::next;
use crate::symbol::pass_on;
use arc_swap::ArcSwapOption;
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use weir_library::WeirFile;

/// The most descriptors. The kernel's default limit for a process is 1024, and often 65536 at most.
const SLOTS: usize = 65_536;

/// The lowest number for descriptors of the shim itself.
const OWN_MIN: c_int = 500;

/// The most descriptors of the media: both of them, each perhaps twice.
const MEDIA_MAX: usize = 4;

static FILES: [ArcSwapOption<OpenFile>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];
/// Whether a number is a placeholder. Read by a signal handler too, which must not load a file.
static IS_PLACEHOLDER: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);
/// The descriptor of which all placeholders are duplicates.
static ORIGINAL: AtomicI32 = AtomicI32::new(-1);
static MEDIA: [AtomicI32; MEDIA_MAX] = [const { AtomicI32::new(-1) }; MEDIA_MAX];
/// The process that may use the files in the table; others have inherited it by a fork.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// An open file of the store.
pub(crate) struct OpenFile {
    pub(crate) file: WeirFile,
    /// Its path in the volume when it was opened.
    pub(crate) path: Vec<u8>,
    owner: i32,
}

impl OpenFile {
    pub(crate) fn new(file: WeirFile, path: Vec<u8>) -> Arc<OpenFile> {
        Arc::new(OpenFile { file, path, owner: OWNER.load(Ordering::Relaxed) })
    }

    /// Refuses a file that the parent of this forked process has opened.
    pub(crate) fn ensure_own(&self) -> io::Result<()> {
        if self.owner == OWNER.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::BADF.into()) }
    }
}

/// Names this process as the owner of what it opens from now on.
pub(crate) fn own_by_this_process() {
    OWNER.store(rustix::process::getpid().as_raw_nonzero().get(), Ordering::Relaxed);
}

fn slot(fd: c_int) -> Option<usize> {
    usize::try_from(fd).ok().filter(|&slot| slot < SLOTS)
}

/// The file with this number; `None` if the number is not weir's.
///
/// # Errors
/// EBADF if the parent of this forked process has opened it.
pub(crate) fn get(fd: c_int) -> Option<io::Result<Arc<OpenFile>>> {
    let slot = slot(fd)?;
    if !IS_PLACEHOLDER[slot].load(Ordering::Acquire) {
        return None;
    }
    let file = FILES[slot].load_full()?;
    Some(file.ensure_own().map(|()| file))
}

/// Gives a file the lowest free number.
pub(crate) fn add(file: Arc<OpenFile>, is_inherited: bool) -> io::Result<c_int> {
    let command = if is_inherited { libc::F_DUPFD } else { libc::F_DUPFD_CLOEXEC };
    let fd = real_fcntl(original()?, command, 0)?;
    if slot(fd).is_none() {
        real_close(fd);
        return Err(Errno::MFILE.into());
    }
    set(fd, file);
    Ok(fd)
}

/// Makes `fd`, which is a placeholder in the kernel, stand for `file`.
pub(crate) fn set(fd: c_int, file: Arc<OpenFile>) {
    let Some(slot) = slot(fd) else { return };
    OPEN_COUNT.fetch_add(1, Ordering::Relaxed);
    let replaced = FILES[slot].swap(Some(file));
    IS_PLACEHOLDER[slot].store(true, Ordering::Release);
    release(replaced);
}

/// Forgets what `fd` stands for. The number itself stays open.
pub(crate) fn remove(fd: c_int) {
    let Some(slot) = slot(fd) else { return };
    if IS_PLACEHOLDER[slot].swap(false, Ordering::AcqRel) {
        release(FILES[slot].swap(None));
    }
}

fn release(file: Option<Arc<OpenFile>>) {
    let Some(file) = file else { return };
    if file.ensure_own().is_err() {
        // It is the parent's, and its locks may be held by threads that are not here.
        std::mem::forget(file);
        return;
    }
    OPEN_COUNT.fetch_sub(1, Ordering::Relaxed);
    crate::mappings::write_back(file.file.ino());
}

/// The placeholders in a range of numbers.
pub(crate) fn placeholders(first: u32, last: u32) -> impl Iterator<Item = c_int> {
    let end = (last as usize).saturating_add(1).min(SLOTS);
    (first as usize..end)
        .filter(|&slot| IS_PLACEHOLDER[slot].load(Ordering::Acquire))
        .map(|slot| slot as c_int)
}

pub(crate) fn any_open() -> bool {
    OPEN_COUNT.load(Ordering::Relaxed) > 0
}

/// Names the descriptors of the store and its buffer, which the program must not close.
pub(crate) fn set_media(media: &[RawFd]) {
    for (at, place) in MEDIA.iter().enumerate() {
        place.store(media.get(at).copied().unwrap_or(-1), Ordering::Release);
    }
}

/// Whether a number is the shim's own, so that the program has no business with it.
pub(crate) fn is_own(fd: c_int) -> bool {
    fd >= 0
        && (ORIGINAL.load(Ordering::Acquire) == fd
            || MEDIA.iter().any(|media| media.load(Ordering::Acquire) == fd))
}

/// All numbers of the shim itself, in order.
pub(crate) fn own() -> Vec<c_int> {
    let mut own: Vec<c_int> = MEDIA.iter().chain([&ORIGINAL]).map(|fd| fd.load(Ordering::Acquire)).collect();
    own.retain(|&fd| fd >= 0);
    own.sort_unstable();
    own
}

/// In a forked child: gives up what the parent has opened.
pub(crate) fn forget_of_parent() {
    own_by_this_process();
    OPEN_COUNT.store(0, Ordering::Relaxed);
    for media in &MEDIA {
        let fd = media.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            real_close(fd);
        }
    }
}

/// The descriptor that is duplicated.
fn original() -> io::Result<c_int> {
    let known = ORIGINAL.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    let empty = rustix::fs::memfd_create("weir", MemfdFlags::CLOEXEC)?;
    let by_name = format!("/proc/self/fd/{}", empty.as_raw_fd());
    let path = rustix::fs::open(by_name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    // A number that programs do not expect to be free.
    let high = real_fcntl(path.as_raw_fd(), libc::F_DUPFD_CLOEXEC, OWN_MIN.into());
    let made = high.unwrap_or_else(|_| path.into_raw_fd());
    match ORIGINAL.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(made),
        Err(other) => {
            real_close(made);
            Ok(other)
        }
    }
}

pub(crate) fn real_fcntl(fd: c_int, command: c_int, argument: c_long) -> io::Result<c_int> {
    let result = pass_on!(next::fcntl, (fd, command, argument), (c_int, c_int, c_long) -> c_int);
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

pub(crate) fn real_close(fd: c_int) -> c_int {
    pass_on!(next::close, (fd), (c_int) -> c_int)
}

//! The program's numbers for open files.
//!
//! Each number is a real descriptor, a placeholder: a duplicate of one `O_PATH` descriptor of a symbolic link. The kernel
//! keeps the number for us, and refuses with EBADF each call that the shim does not serve. By its name in `/dev/fd` it
//! cannot be opened (ELOOP), in another program that inherited it neither: an empty file would take all bytes.
//!
//! The kernel can close or replace a number without the shim: for a signal handler that interrupted the shim, or for a
//! function of the C library. So each number that the kernel gives to the program is looked up in the table, and removed
//! from it.

use crate::calls::descriptors::next;
use crate::symbol::pass_on;
use arc_swap::ArcSwapOption;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{c_int, c_long};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};
use weir_library::WeirFile;

/// The most descriptors. The kernel's default limit for a process is 1024, and often 65536 at most.
pub(crate) const SLOTS: usize = 65_536;

/// The lowest number for descriptors of the shim itself.
const OWN_MIN: c_int = 500;

/// The most descriptors of the media: both of them, each perhaps twice.
const MEDIA_MAX: usize = 4;

/// The numbers of the shim itself, with which the program has no business.
static IS_OWN: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];

static FILES: [ArcSwapOption<OpenFile>; SLOTS] = [const { ArcSwapOption::const_empty() }; SLOTS];
/// Whether a number is a placeholder. Read by a signal handler too, which must not load a file.
static IS_PLACEHOLDER: [AtomicBool; SLOTS] = [const { AtomicBool::new(false) }; SLOTS];
static OPEN_COUNT: AtomicUsize = AtomicUsize::new(0);
/// How many files were opened.
static OPENED: AtomicU64 = AtomicU64::new(0);
/// Whether the table may have files whose numbers are closed.
static HAS_STALE: AtomicBool = AtomicBool::new(false);
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
    /// No other open file of this process has had it.
    pub(crate) number: u64,
    owner: i32,
}

impl OpenFile {
    pub(crate) fn new(file: WeirFile, path: Vec<u8>) -> Arc<OpenFile> {
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        Arc::new(OpenFile { file, path, number, owner: OWNER.load(Ordering::Relaxed) })
    }

    /// Refuses a file that the parent of this forked process has opened.
    pub(crate) fn ensure_own(&self) -> io::Result<()> {
        if self.owner == OWNER.load(Ordering::Relaxed) { Ok(()) } else { Err(Errno::BADF.into()) }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        crate::locks::release_of(self);
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
    set(fd, file)?;
    Ok(fd)
}

/// Makes `fd`, which is a placeholder in the kernel, stand for `file`.
///
/// # Errors
/// EMFILE if the number is too high. It is closed then.
pub(crate) fn set(fd: c_int, file: Arc<OpenFile>) -> io::Result<()> {
    let Some(slot) = slot(fd) else {
        real_close(fd);
        return Err(Errno::MFILE.into());
    };
    OPEN_COUNT.fetch_add(1, Ordering::Relaxed);
    let replaced = FILES[slot].swap(Some(file));
    IS_PLACEHOLDER[slot].store(true, Ordering::Release);
    release(replaced);
    Ok(())
}

/// Notes that `fd` stands for something else now, or for nothing. Only clears a mark, as a signal handler may.
pub(crate) fn note_replaced(fd: c_int) {
    if let Some(slot) = slot(fd)
        && IS_PLACEHOLDER[slot].load(Ordering::Relaxed)
    {
        HAS_STALE.store(true, Ordering::Release);
        IS_PLACEHOLDER[slot].store(false, Ordering::Release);
    }
}

/// [`note_replaced`] for a range of numbers.
pub(crate) fn note_closed_range(first: u32, last: u32) {
    placeholders(first, last).for_each(note_replaced);
}

/// Whether `fd` stands for a file of the store.
pub(crate) fn is_placeholder(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| IS_PLACEHOLDER[slot].load(Ordering::Acquire))
}

/// Whether `fd` can be a number of an open file.
pub(crate) fn has_slot(fd: c_int) -> bool {
    slot(fd).is_some()
}

/// Releases the files whose numbers were closed without the shim.
fn release_stale() {
    if HAS_STALE.swap(false, Ordering::AcqRel) {
        let stale = |slot: &usize| !IS_PLACEHOLDER[*slot].load(Ordering::Acquire);
        (0..SLOTS).filter(stale).for_each(|slot| release(FILES[slot].swap(None)));
    }
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
    release_stale();
    OPEN_COUNT.load(Ordering::Relaxed) > 0
}

/// Names the descriptors of the store and its buffer, which the program must not close.
pub(crate) fn set_media(media: &[RawFd]) {
    for (at, place) in MEDIA.iter().enumerate() {
        let fd = media.get(at).copied().unwrap_or(-1);
        set_own(place.swap(fd, Ordering::AcqRel), false);
        set_own(fd, true);
    }
}

/// Marks a number as the shim's own.
pub(crate) fn set_own(fd: c_int, is_own: bool) {
    if let Some(slot) = slot(fd) {
        IS_OWN[slot].store(is_own, Ordering::Release);
    }
}

/// Whether a number is the shim's own, so that the program has no business with it.
pub(crate) fn is_own(fd: c_int) -> bool {
    slot(fd).is_some_and(|slot| IS_OWN[slot].load(Ordering::Acquire))
}

/// All numbers of the shim itself, in order.
pub(crate) fn own() -> Vec<c_int> {
    (0..SLOTS as c_int).filter(|&fd| is_own(fd)).collect()
}

/// A descriptor of the shim itself, with a number that programs do not expect to be free.
pub(crate) struct OwnDescriptor(OwnedFd);

impl OwnDescriptor {
    pub(crate) fn new(low: OwnedFd) -> io::Result<OwnDescriptor> {
        // Perhaps the process may have no such number.
        let high = rustix::io::fcntl_dupfd_cloexec(&low, OWN_MIN).unwrap_or(low);
        set_own(high.as_raw_fd(), true);
        Ok(OwnDescriptor(high))
    }

    pub(crate) fn raw(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    pub(crate) fn borrow(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for OwnDescriptor {
    fn drop(&mut self) {
        set_own(self.raw(), false);
    }
}

/// In a forked child: gives up what the parent has opened.
pub(crate) fn forget_of_parent() {
    own_by_this_process();
    OPEN_COUNT.store(0, Ordering::Relaxed);
    for media in &MEDIA {
        let fd = media.swap(-1, Ordering::AcqRel);
        if fd >= 0 {
            set_own(fd, false);
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
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = rustix::fs::open("/proc/self", flags, Mode::empty())?;
    // A number that programs do not expect to be free.
    let high = real_fcntl(path.as_raw_fd(), libc::F_DUPFD_CLOEXEC, OWN_MIN.into());
    let made = high.unwrap_or_else(|_| path.into_raw_fd());
    match ORIGINAL.compare_exchange(-1, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => {
            set_own(made, true);
            Ok(made)
        }
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

//! Files in memory: `mmap`.
//!
//! A private mapping is memory of its own, with the file's bytes copied into it. A shared one is a piece of a file in memory,
//! one for each file of the store, so that all mappings of a file have the same bytes. Its changes are written to the store
//! before the file is read, synced or closed, at `msync` and `munmap`, each second, and at the end of the process.
//!
//! A copy of the memory has the bytes that the file is known to have, too ([`FileInMemory::known`]). Only bytes that differ
//! from the copy are written, so that a mapping never undoes what another thread writes to the same page by a call.

use crate::descriptors::{OpenFile, OwnDescriptor};
use crate::place;
use crate::symbol::{Answer, pass_on, symbols};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use std::cell::RefCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use weir_library::{FileKind, Ino};

symbols! {
    mmap64(at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> isize = map(at, length, protection, flags, fd, offset);
    munmap(at: *mut c_void, length: usize) -> c_int = { unmap(at as usize, length); None };
    msync(at: *mut c_void, length: usize, flags: c_int) -> c_int = sync(at as usize, length, flags);
    mprotect(at: *mut c_void, length: usize, protection: c_int) -> c_int = {
        note_protection(at as usize, length, protection);
        None
    };
    pkey_mprotect(at: *mut c_void, length: usize, protection: c_int, key: c_int) -> c_int = {
        let _ = key;
        note_protection(at as usize, length, protection);
        None
    };
    madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int = {
        // It would empty a copy of the file, not read the file again.
        let empties = matches!(advice, libc::MADV_DONTNEED | libc::MADV_FREE);
        if empties && has_private(at as usize, length) { Some(Ok(0)) } else { None }
    };
    mremap(at: *mut c_void, length: usize, new: usize, flags: c_int, to: *mut c_void) -> isize = remap(at, length, new, flags, to);
}

/// Maps a file or memory. An allocator may call this before the next definition is known, and while that is looked up.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[cfg_attr(test, allow(dead_code))]
unsafe extern "C" fn mmap(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> isize {
    if (fd >= 0 || (flags & libc::MAP_FIXED != 0 && any()))
        && let Some(answer) = next::mmap64.serve(|| map(at, length, protection, flags, fd, offset))
    {
        return answer;
    }
    // SAFETY: the arguments are the program's.
    let made = unsafe { libc::syscall(libc::SYS_mmap, at, length, protection, flags, fd, offset) };
    made as isize
}

/// Whether a file is in memory. True before its bytes are copied there: a write that saw false is in the copy.
static ANY: AtomicBool = AtomicBool::new(false);
/// Whether there were private mappings.
static ANY_PRIVATE: AtomicBool = AtomicBool::new(false);
static MAPPINGS: Mutex<Option<Mappings>> = Mutex::new(None);
/// Whether the thread that writes changes each second runs.
static HAS_WRITER: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Held by a thread that forks: the child could not get it from another one.
    static HELD_BY_FORK: RefCell<Option<MutexGuard<'static, Option<Mappings>>>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Mappings {
    files: HashMap<u64, FileInMemory>,
    shared: Vec<MappedRange>,
    private: Vec<(usize, usize)>,
}

/// The bytes of a file that is mapped, or that was and could not be written back.
struct FileInMemory {
    memory: OwnDescriptor,
    /// The file's bytes, as they were last read or written.
    known: Vec<u8>,
    /// Through which changes are written; `None` while no mapping can change the file.
    writable: Option<Arc<OpenFile>>,
    open: Arc<OpenFile>,
}

#[derive(Clone)]
struct MappedRange {
    begin: usize,
    length: usize,
    open: Arc<OpenFile>,
}

const PAGE_BYTES: usize = 4096;
/// Bytes that are compared at once.
const PIECE_BYTES: usize = 64 << 10;
/// Changed bytes with fewer unchanged ones between them are written at once.
const GAP_BYTES: usize = 16;
/// How often changes are written without a call of the program.
const WRITE_INTERVAL: Duration = Duration::from_secs(1);
/// The writing thread sleeps for as many times as long as it takes to compare all mapped files.
const SLEEP_RATIO: u32 = 20;

fn lock() -> MutexGuard<'static, Option<Mappings>> {
    MAPPINGS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether files are in memory.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::SeqCst)
}

fn real_map(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> io::Result<*mut c_void> {
    let made = pass_on!(
        next::mmap64,
        (at, length, protection, flags, fd, offset),
        (*mut c_void, usize, c_int, c_int, c_int, i64) -> *mut c_void
    );
    if made == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(made) }
}

fn map(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> Answer<isize> {
    let answer = if flags & libc::MAP_ANONYMOUS != 0 {
        None
    } else {
        place::on(fd, |open| map_file(at, length, protection, flags, open, offset))
    };
    if answer.is_none() && flags & libc::MAP_FIXED != 0 && any() {
        // It replaces what was there.
        let made = real_map(at, length, protection, flags, fd, offset);
        if made.is_ok() {
            unmap(at as usize, length);
        }
        return Some(made.map(|made| made as isize));
    }
    answer
}

fn map_file(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    open: &Arc<OpenFile>,
    offset: i64,
) -> io::Result<isize> {
    if length == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE_BYTES) {
        return Err(Errno::INVAL.into());
    }
    if access_mode(open) == libc::O_WRONLY {
        return Err(Errno::ACCESS.into());
    }
    if open.file.kind()? != FileKind::File {
        return Err(Errno::NODEV.into());
    }
    let made = if flags & libc::MAP_TYPE == libc::MAP_PRIVATE {
        map_private(at, length, protection, flags, open, offset)?
    } else {
        map_shared(at, length, protection, flags, open, offset)?
    };
    Ok(made as isize)
}

fn access_mode(open: &OpenFile) -> c_int {
    open.file.flags().bits() as c_int & libc::O_ACCMODE
}

fn map_private(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    open: &OpenFile,
    offset: i64,
) -> io::Result<*mut c_void> {
    let flags = flags | libc::MAP_ANONYMOUS;
    let made = real_map(at, length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)?;
    // SAFETY: the kernel has just made this memory, and no other code has its address.
    let bytes = unsafe { std::slice::from_raw_parts_mut(made.cast::<u8>(), length) };
    write_back(open.file.ino());
    let filled = fill(open, bytes, offset as u64);
    // SAFETY: as above.
    let protected = unsafe { libc::syscall(libc::SYS_mprotect, made, length, protection) };
    if filled.is_err() || protected != 0 {
        let error = filled.err().unwrap_or_else(io::Error::last_os_error);
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_munmap, made, length) };
        return Err(error);
    }
    let mut mappings = lock();
    let mappings = mappings.get_or_insert_default();
    mappings.cut(made as usize, length);
    mappings.private.push((made as usize, length));
    ANY_PRIVATE.store(true, Ordering::Release);
    Ok(made)
}

/// Reads until `bytes` are full, or the file ends. Returns how many were read.
fn fill(open: &OpenFile, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match open.file.read_at(&mut bytes[filled..], offset + filled as u64)? {
            0 => break,
            read => filled += read,
        }
    }
    Ok(filled)
}

fn map_shared(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    open: &Arc<OpenFile>,
    offset: i64,
) -> io::Result<*mut c_void> {
    let is_writable = access_mode(open) == libc::O_RDWR;
    let writes = protection & libc::PROT_WRITE != 0;
    if writes && !is_writable {
        return Err(Errno::ACCESS.into());
    }
    let mut guard = lock();
    ANY.store(true, Ordering::SeqCst);
    let mappings = guard.get_or_insert_default();
    let made = mappings.file_of(open).and_then(|file| {
        if is_writable {
            return real_map(at, length, protection, flags, file.memory.raw(), offset);
        }
        // Memory that the program cannot make writable.
        let name = format!("/proc/self/fd/{}", file.memory.raw());
        let only_read = rustix::fs::open(name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        real_map(at, length, protection, flags, only_read.as_raw_fd(), offset)
    });
    if let Ok(made) = &made {
        mappings.cut(*made as usize, length);
        mappings.shared.push(MappedRange { begin: *made as usize, length, open: open.clone() });
        if writes {
            mappings.make_writable(open);
        }
    }
    mappings.drop_unmapped();
    made
}

impl Mappings {
    /// The file's bytes in memory. If they are there already, then with the program's newer ones.
    fn file_of(&mut self, open: &Arc<OpenFile>) -> io::Result<&mut FileInMemory> {
        match self.files.entry(open.file.ino().0) {
            Entry::Occupied(place) => Ok(place.into_mut()),
            Entry::Vacant(place) => Ok(place.insert(FileInMemory::load(open)?)),
        }
    }

    /// Writes changes of this file from now on.
    fn make_writable(&mut self, open: &Arc<OpenFile>) {
        if let Some(file) = self.files.get_mut(&open.file.ino().0)
            && file.writable.is_none()
        {
            file.writable = Some(open.clone());
        }
        if !HAS_WRITER.swap(true, Ordering::AcqRel) {
            start_writer();
        }
    }

    /// Forgets what lies in a range.
    fn cut(&mut self, begin: usize, length: usize) {
        let end = begin.saturating_add(length);
        let parts = |range: (usize, usize)| {
            let range_end = range.0 + range.1;
            let before = (range.0, begin.clamp(range.0, range_end) - range.0);
            let after_begin = end.clamp(range.0, range_end);
            let after = (after_begin, range_end - after_begin);
            if before.1 + after.1 >= range.1 { [range, (0, 0)] } else { [before, after] }
        };
        let shared = std::mem::take(&mut self.shared).into_iter().flat_map(|range| {
            parts((range.begin, range.length)).map(|(begin, length)| MappedRange {
                begin,
                length,
                ..range.clone()
            })
        });
        self.shared = shared.filter(|range| range.length > 0).collect();
        let private = std::mem::take(&mut self.private).into_iter().flat_map(parts);
        self.private = private.filter(|range| range.1 > 0).collect();
    }

    /// Drops the memory of files that have no mapping any more, and no changes that could not be written.
    fn drop_unmapped(&mut self) {
        let shared = &self.shared;
        self.files.retain(|ino, file| {
            shared.iter().any(|range| range.open.file.ino().0 == *ino) || file.has_changes().unwrap_or(true)
        });
        ANY.store(!self.files.is_empty(), Ordering::SeqCst);
    }

    fn overlaps_private(&self, begin: usize, length: usize) -> bool {
        self.private.iter().any(|range| range.0 < begin.saturating_add(length) && begin < range.0 + range.1)
    }

    fn overlapping(&self, begin: usize, length: usize) -> impl Iterator<Item = &MappedRange> {
        self.shared.iter().filter(move |range| {
            range.begin < begin.saturating_add(length) && begin < range.begin + range.length
        })
    }
}

impl FileInMemory {
    /// Copies the file's bytes into new memory of its size.
    fn load(open: &Arc<OpenFile>) -> io::Result<FileInMemory> {
        let memory = OwnDescriptor::new(rustix::fs::memfd_create("weir", MemfdFlags::CLOEXEC)?)?;
        let mut file = FileInMemory { memory, known: Vec::new(), writable: None, open: open.clone() };
        let size = open.file.metadata()?.size;
        file.set_size(size)?;
        file.read_again(0, size)?;
        Ok(file)
    }

    fn memory(&self) -> BorrowedFd<'_> {
        self.memory.borrow()
    }

    fn set_size(&mut self, size: u64) -> io::Result<()> {
        let bytes = usize::try_from(size).map_err(|_| Errno::NOMEM)?;
        if bytes > self.known.len() {
            self.known.try_reserve_exact(bytes - self.known.len()).map_err(|_| Errno::NOMEM)?;
        }
        rustix::fs::ftruncate(self.memory(), size)?;
        self.known.resize(bytes, 0);
        Ok(())
    }

    /// Takes over `bytes` that the file has at `offset`.
    fn take_over(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        if end > self.known.len() as u64 {
            self.set_size(end)?;
        }
        let mut done = 0;
        while done < bytes.len() {
            done += rustix::io::pwrite(self.memory(), &bytes[done..], offset + done as u64)?;
        }
        self.known[offset as usize..end as usize].copy_from_slice(bytes);
        Ok(())
    }

    /// Takes over what the file has in a range.
    fn read_again(&mut self, begin: u64, length: u64) -> io::Result<()> {
        let end = begin.saturating_add(length).min(self.known.len() as u64);
        let mut piece = vec![0; PIECE_BYTES];
        let mut offset = begin;
        while offset < end {
            let count = (end - offset).min(PIECE_BYTES as u64) as usize;
            let read = fill(&self.open, &mut piece[..count], offset)?;
            if piece[..read] != self.known[offset as usize..][..read] || self.changes_in(offset, read)? {
                self.take_over(&piece[..read], offset)?;
            }
            if read < count {
                break;
            }
            offset += read as u64;
        }
        Ok(())
    }

    /// The bytes of the memory at `offset`.
    fn memory_at<'a>(&self, offset: usize, into: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let count = into.len().min(self.known.len() - offset);
        let read = rustix::io::pread(self.memory(), &mut into[..count], offset as u64)?;
        Ok(&into[..read])
    }

    fn changes_in(&self, offset: u64, length: usize) -> io::Result<bool> {
        let mut piece = vec![0; length];
        let memory = self.memory_at(offset as usize, &mut piece)?;
        Ok(*memory != self.known[offset as usize..][..memory.len()])
    }

    /// Whether the program has changed bytes that are not written.
    fn has_changes(&self) -> io::Result<bool> {
        if self.writable.is_none() {
            return Ok(false);
        }
        for offset in (0..self.known.len()).step_by(PIECE_BYTES) {
            if self.changes_in(offset as u64, PIECE_BYTES.min(self.known.len() - offset))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Writes the bytes that the program has changed.
    fn store(&mut self) -> io::Result<()> {
        let Some(writable) = self.writable.clone() else { return Ok(()) };
        let mut piece = vec![0; PIECE_BYTES];
        for offset in (0..self.known.len()).step_by(PIECE_BYTES) {
            let memory = self.memory_at(offset, &mut piece)?;
            let known = &mut self.known[offset..][..memory.len()];
            for (begin, end) in changed_runs(known, memory) {
                writable.file.overwrite_at(&memory[begin..end], (offset + begin) as u64)?;
                known[begin..end].copy_from_slice(&memory[begin..end]);
            }
        }
        Ok(())
    }
}

/// Where `new` differs from `old`: begins and ends, in order. Both have the same length.
fn changed_runs(old: &[u8], new: &[u8]) -> Vec<(usize, usize)> {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for page in (0..new.len()).step_by(PAGE_BYTES) {
        let end = (page + PAGE_BYTES).min(new.len());
        if old[page..end] == new[page..end] {
            continue;
        }
        for at in (page..end).filter(|&at| old[at] != new[at]) {
            match runs.last_mut() {
                Some(run) if at - run.1 < GAP_BYTES => run.1 = at + 1,
                _ => runs.push((at, at + 1)),
            }
        }
    }
    runs
}

/// Writes changes of mappings each second, until there are none.
fn start_writer() {
    // SAFETY: a set of signals is plain numbers; the calls fill it, and change this thread's mask, which is put back below.
    let before = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        before
    };
    let started =
        std::thread::Builder::new().name("weir-mappings".into()).stack_size(256 << 10).spawn(|| {
            crate::symbol::always_inside(|| {
                let mut pause = WRITE_INTERVAL;
                loop {
                    std::thread::sleep(pause);
                    let begin = Instant::now();
                    let mut guard = lock();
                    if !any() {
                        HAS_WRITER.store(false, Ordering::Release);
                        return;
                    }
                    // A sync of the file tells the program of the error.
                    guard.iter_mut().flat_map(|mappings| mappings.files.values_mut()).for_each(|file| {
                        let _ = file.store();
                    });
                    drop(guard);
                    pause = WRITE_INTERVAL.max(begin.elapsed() * SLEEP_RATIO);
                }
            });
        });
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut()) };
    if started.is_err() {
        HAS_WRITER.store(false, Ordering::Release);
    }
}

/// Tells the user of an error for which the program's call has no errno.
fn say_if_failed(result: io::Result<()>) {
    if let Err(error) = result {
        crate::settings::say(&format!("a mapped file: {error}"));
    }
}

/// Writes the changes of a file's mappings to the store.
pub(crate) fn try_write_back(ino: Ino) -> io::Result<()> {
    if !any() {
        return Ok(());
    }
    let mut guard = lock();
    let Some(mappings) = guard.as_mut() else { return Ok(()) };
    let Some(file) = mappings.files.get_mut(&ino.0) else { return Ok(()) };
    file.store()?;
    if !mappings.shared.iter().any(|range| range.open.file.ino() == ino) {
        mappings.drop_unmapped();
    }
    Ok(())
}

/// [`try_write_back`], which says why it failed: the changes stay in memory, and the next sync fails, too.
pub(crate) fn write_back(ino: Ino) {
    say_if_failed(try_write_back(ino));
}

/// Writes the changes of all mappings to the store. Returns the first error.
pub(crate) fn try_write_back_all() -> io::Result<()> {
    if !any() {
        return Ok(());
    }
    let mut guard = lock();
    let Some(mappings) = guard.as_mut() else { return Ok(()) };
    let mut result = Ok(());
    for file in mappings.files.values_mut() {
        result = result.and(file.store());
    }
    mappings.drop_unmapped();
    result
}

/// [`try_write_back_all`], which says why it failed.
pub(crate) fn write_back_all() {
    say_if_failed(try_write_back_all());
}

/// A call that changes files by other ways than their mappings, which then show it. No mapping is written meanwhile.
pub(crate) struct FileChange(Option<MutexGuard<'static, Option<Mappings>>>);

/// Begins a change of any file.
pub(crate) fn begin_change() -> FileChange {
    FileChange(any().then(lock))
}

/// Begins a change of one file. If that file is not mapped, the changes of other files need not wait for it.
pub(crate) fn begin_change_of(ino: Ino) -> FileChange {
    let is_mapped = |guard: &MutexGuard<'_, Option<Mappings>>| {
        guard.as_ref().is_some_and(|mappings| mappings.files.contains_key(&ino.0))
    };
    FileChange(any().then(lock).filter(is_mapped))
}

impl FileChange {
    fn show(mut self, ino: Ino, show: impl FnOnce(&mut FileInMemory) -> io::Result<()>) {
        if self.0.is_none() && any() {
            self.0 = Some(lock());
        }
        let mappings = self.0.as_mut().and_then(|guard| guard.as_mut());
        if let Some(file) = mappings.and_then(|mappings| mappings.files.get_mut(&ino.0)) {
            say_if_failed(show(file));
        }
    }

    /// Shows `bytes` that were written at `offset`.
    pub(crate) fn wrote(self, ino: Ino, bytes: &[u8], offset: u64) {
        self.show(ino, |file| file.take_over(bytes, offset));
    }

    /// Shows a new size.
    pub(crate) fn set_size(self, ino: Ino, size: u64) {
        self.show(ino, |file| file.set_size(size));
    }

    /// Shows what the file has now in a range, and its size.
    pub(crate) fn changed(self, ino: Ino, offset: u64, length: u64) {
        self.show(ino, |file| {
            let size = file.open.file.metadata()?.size;
            file.set_size(size)?;
            file.read_again(offset, length)
        });
    }
}

/// Writes back the files that are mapped in a range, and forgets these mappings. Bytes that could not be written stay in
/// memory until the file's next sync.
fn unmap(begin: usize, length: usize) {
    if !any() && !ANY_PRIVATE.load(Ordering::Acquire) {
        return;
    }
    let mut guard = lock();
    let Some(mappings) = guard.as_mut() else { return };
    let touched: Vec<u64> =
        mappings.overlapping(begin, length).map(|range| range.open.file.ino().0).collect();
    mappings.cut(begin, length);
    if touched.is_empty() {
        return;
    }
    for ino in touched {
        if let Some(file) = mappings.files.get_mut(&ino) {
            say_if_failed(file.store());
        }
    }
    mappings.drop_unmapped();
}

fn note_protection(begin: usize, length: usize, protection: c_int) {
    if protection & libc::PROT_WRITE == 0 || !any() {
        return;
    }
    let mut guard = lock();
    let Some(mappings) = guard.as_mut() else { return };
    let touched: Vec<MappedRange> = mappings.overlapping(begin, length).cloned().collect();
    touched.iter().filter(|range| access_mode(&range.open) == libc::O_RDWR).for_each(|range| {
        mappings.make_writable(&range.open);
    });
}

fn has_private(begin: usize, length: usize) -> bool {
    ANY_PRIVATE.load(Ordering::Acquire)
        && lock().as_ref().is_some_and(|mappings| mappings.overlaps_private(begin, length))
}

fn remap(at: *mut c_void, length: usize, new: usize, flags: c_int, to: *mut c_void) -> Answer<isize> {
    if !any() && !ANY_PRIVATE.load(Ordering::Acquire) {
        return None;
    }
    let begin = at as usize;
    let mut guard = lock();
    let mappings = guard.as_mut()?;
    let overlaps_private = mappings.overlaps_private(begin, length);
    if overlaps_private && new > length {
        // The new part would not have the file's bytes.
        return Some(Err(Errno::OPNOTSUPP.into()));
    }
    let open = mappings.overlapping(begin, length.max(1)).next().map(|range| range.open.clone());
    if open.is_none() && !overlaps_private {
        return None;
    }
    let made = pass_on!(
        next::mremap,
        (at, length, new, flags, to),
        (*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void
    );
    if made == libc::MAP_FAILED {
        return Some(Err(io::Error::last_os_error()));
    }
    if flags & libc::MREMAP_DONTUNMAP == 0 {
        mappings.cut(begin, length);
    }
    mappings.cut(made as usize, new);
    match open {
        Some(open) => mappings.shared.push(MappedRange { begin: made as usize, length: new, open }),
        None => mappings.private.push((made as usize, new)),
    }
    Some(Ok(made as isize))
}

fn sync(begin: usize, length: usize, flags: c_int) -> Answer<c_int> {
    if !any() {
        return None;
    }
    let mut guard = lock();
    let mappings = guard.as_mut()?;
    let opens: Vec<Arc<OpenFile>> =
        mappings.overlapping(begin, length).map(|range| range.open.clone()).collect();
    if opens.is_empty() {
        return None;
    }
    let stored = opens
        .iter()
        .try_for_each(|open| mappings.files.get_mut(&open.file.ino().0).map_or(Ok(()), FileInMemory::store));
    drop(guard);
    let synced = stored.and_then(|()| {
        if flags & libc::MS_SYNC == 0 {
            Ok(())
        } else {
            opens.iter().try_for_each(|open| open.file.sync_data())
        }
    });
    Some(synced.map(|()| 0))
}

/// Before a fork: takes the lock, so that no other thread has it in the child.
pub(crate) fn hold_for_fork() {
    if any() || ANY_PRIVATE.load(Ordering::Acquire) {
        HELD_BY_FORK.set(Some(lock()));
    }
}

/// After a fork, in the parent.
pub(crate) fn release_after_fork() {
    drop(HELD_BY_FORK.take());
}

/// In a forked child: the files are the parent's.
pub(crate) fn forget_of_parent() {
    release_after_fork();
    ANY.store(false, Ordering::SeqCst);
    HAS_WRITER.store(false, Ordering::Release);
    if let Ok(mut mappings) = MAPPINGS.try_lock() {
        std::mem::forget(mappings.take());
    }
}

const _: () = assert!(size_of::<c_long>() == size_of::<isize>());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_bytes_are_written_and_no_others() {
        let old = vec![0_u8; 3 * PAGE_BYTES];
        let mut new = old.clone();
        assert!(changed_runs(&old, &new).is_empty());
        new[5] = 1;
        new[5 + GAP_BYTES] = 1;
        new[100] = 1;
        new[2 * PAGE_BYTES] = 1;
        new[3 * PAGE_BYTES - 1] = 1;
        let end = 3 * PAGE_BYTES;
        let expected = [(5, 6 + GAP_BYTES), (100, 101), (2 * PAGE_BYTES, 2 * PAGE_BYTES + 1), (end - 1, end)];
        assert_eq!(changed_runs(&old, &new), expected);
    }

    #[test]
    fn the_parts_of_a_range_beside_a_cut_stay() {
        let mut mappings = Mappings { private: vec![(100, 100), (300, 50)], ..Mappings::default() };
        mappings.cut(130, 20);
        assert_eq!(mappings.private, [(100, 30), (150, 50), (300, 50)]);
        mappings.cut(0, 120);
        mappings.cut(190, 1000);
        assert_eq!(mappings.private, [(120, 10), (150, 40)]);
        mappings.cut(0, usize::MAX);
        assert!(mappings.private.is_empty());
    }
}

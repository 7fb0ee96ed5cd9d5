//! Files in memory: `mmap`.
//!
//! A private mapping is memory of its own, with the file's bytes copied into it. A shared one is a piece of a file in memory,
//! one for each file of the store, so that all mappings of a file have the same bytes. Its changes are written to the store
//! before the file is read, synced or closed, at `msync` and `munmap`, and at the end of the process.

use crate::descriptors::OpenFile;
use crate::place;
use crate::symbol::{Answer, pass_on, symbols};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::{c_int, c_long, c_void};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use weir_library::Ino;

symbols! {
    mmap64(at: *mut c_void, length: usize, protection: c_int, flags: c_int, fd: c_int, offset: i64) -> isize = map(at, length, protection, flags, fd, offset);
    munmap(at: *mut c_void, length: usize) -> c_int = { unmap(at as usize, length); None };
    msync(at: *mut c_void, length: usize, flags: c_int) -> c_int = sync(at as usize, length, flags);
    mremap(at: *mut c_void, length: usize, new: usize, flags: c_int, to: *mut c_void) -> isize = {
        let _ = (new, flags, to);
        if is_mapped(at as usize, length) { Some(Err(Errno::OPNOTSUPP.into())) } else { None }
    };
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
    if fd >= 0
        && let Some(answer) = next::mmap64.serve(|| map(at, length, protection, flags, fd, offset))
    {
        return answer;
    }
    // SAFETY: the arguments are the program's.
    let made = unsafe { libc::syscall(libc::SYS_mmap, at, length, protection, flags, fd, offset) };
    made as isize
}

static ANY: AtomicBool = AtomicBool::new(false);
static SHARED: Mutex<Option<SharedMappings>> = Mutex::new(None);

#[derive(Default)]
struct SharedMappings {
    files: HashMap<u64, FileInMemory>,
    ranges: Vec<MappedRange>,
}

/// The bytes of a file that is mapped.
struct FileInMemory {
    memory: OwnedFd,
    /// Through which changes are written; `None` while no mapping can change the file.
    writable: Option<Arc<OpenFile>>,
    open: Arc<OpenFile>,
}

struct MappedRange {
    begin: usize,
    length: usize,
    ino: u64,
}

const PAGE_BYTES: usize = 4096;

fn lock() -> MutexGuard<'static, Option<SharedMappings>> {
    SHARED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether there are shared mappings.
pub(crate) fn any() -> bool {
    ANY.load(Ordering::Acquire)
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
    if flags & libc::MAP_ANONYMOUS != 0 {
        return None;
    }
    place::on(fd, |open| {
        if length == 0 || offset < 0 || !(offset as usize).is_multiple_of(PAGE_BYTES) {
            return Err(Errno::INVAL.into());
        }
        let is_shared = flags & libc::MAP_TYPE != libc::MAP_PRIVATE;
        let made = if is_shared {
            map_shared(at, length, protection, flags, open, offset)?
        } else {
            map_private(at, length, protection, flags, open, offset)?
        };
        Ok(made as isize)
    })
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
    let protected = unsafe { libc::mprotect(made, length, protection) };
    if filled.is_err() || protected != 0 {
        // SAFETY: as above.
        unsafe { libc::munmap(made, length) };
        return Err(filled.err().unwrap_or_else(io::Error::last_os_error));
    }
    Ok(made)
}

/// Reads until `bytes` are full, or the file ends.
fn fill(open: &OpenFile, mut bytes: &mut [u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        let read = open.file.read_at(bytes, offset)?;
        if read == 0 {
            break;
        }
        offset += read as u64;
        bytes = &mut bytes[read..];
    }
    Ok(())
}

fn map_shared(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    open: &Arc<OpenFile>,
    offset: i64,
) -> io::Result<*mut c_void> {
    let mut shared = lock();
    let SharedMappings { files, ranges } = shared.get_or_insert_default();
    let ino = open.file.ino().0;
    let file = match files.entry(ino) {
        Entry::Vacant(place) => {
            let memory = rustix::fs::memfd_create("weir", MemfdFlags::CLOEXEC)?;
            let file = FileInMemory { memory, writable: None, open: open.clone() };
            file.load()?;
            place.insert(file)
        }
        // It has the file's bytes already, and the program's newer ones.
        Entry::Occupied(place) => place.into_mut(),
    };
    if protection & libc::PROT_WRITE != 0 {
        if open.file.flags().bits() as c_int & libc::O_ACCMODE != libc::O_RDWR {
            return Err(Errno::ACCESS.into());
        }
        file.writable = Some(open.clone());
    }
    let made = real_map(at, length, protection, flags, file.memory.as_raw_fd(), offset)?;
    ranges.push(MappedRange { begin: made as usize, length, ino });
    ANY.store(true, Ordering::Release);
    Ok(made)
}

impl FileInMemory {
    /// Copies the file's bytes into memory, which gets the file's size.
    fn load(&self) -> io::Result<()> {
        let size = self.open.file.metadata()?.size;
        rustix::fs::ftruncate(&self.memory, size)?;
        let mut mine = vec![0; PAGE_BYTES];
        let mut theirs = vec![0; PAGE_BYTES];
        for offset in (0..size).step_by(PAGE_BYTES) {
            let read = self.open.file.read_at(&mut theirs, offset)?;
            let known = rustix::io::pread(&self.memory, &mut mine, offset)?;
            if theirs[..read] != mine[..known.min(read)] {
                rustix::io::pwrite(&self.memory, &theirs[..read], offset)?;
            }
        }
        Ok(())
    }

    /// Writes the pages that the program has changed.
    fn store(&self) -> io::Result<()> {
        let Some(writable) = &self.writable else { return Ok(()) };
        let size = writable.file.metadata()?.size;
        let mut mine = vec![0; PAGE_BYTES];
        let mut theirs = vec![0; PAGE_BYTES];
        for offset in (0..size).step_by(PAGE_BYTES) {
            let known = rustix::io::pread(&self.memory, &mut mine, offset)?;
            let read = self.open.file.read_at(&mut theirs, offset)?;
            let length = known.min(read);
            if mine[..length] != theirs[..length] {
                writable.file.write_at(&mine[..length], offset)?;
            }
        }
        Ok(())
    }
}

/// Does something with a file, if it is mapped.
fn with_file(ino: Ino, operation: impl FnOnce(&FileInMemory) -> io::Result<()>) -> io::Result<()> {
    if !any() {
        return Ok(());
    }
    let shared = lock();
    let file = shared.as_ref().and_then(|shared| shared.files.get(&ino.0));
    file.map_or(Ok(()), operation)
}

/// Tells the user of an error for which the program's call has no errno.
fn say_if_failed(result: io::Result<()>) {
    if let Err(error) = result {
        crate::settings::say(&format!("a mapped file: {error}"));
    }
}

/// Writes the changes of a file's mappings to the store.
pub(crate) fn try_write_back(ino: Ino) -> io::Result<()> {
    with_file(ino, FileInMemory::store)
}

/// [`try_write_back`], which says why it failed: the changes stay in the mappings.
pub(crate) fn write_back(ino: Ino) {
    say_if_failed(try_write_back(ino));
}

/// Shows in a file's mappings the bytes that were written to the file at `offset`. The program's own changes in other
/// places of them stay.
pub(crate) fn note_write(ino: Ino, bytes: &[u8], offset: u64) {
    say_if_failed(with_file(ino, |file| {
        let mut shown = 0;
        while shown < bytes.len() {
            shown += rustix::io::pwrite(&file.memory, &bytes[shown..], offset + shown as u64)?;
        }
        Ok(())
    }));
}

/// Shows the file's bytes in its mappings. The program's own changes there must be
/// [written back](write_back) before.
pub(crate) fn refresh(ino: Ino) {
    say_if_failed(with_file(ino, FileInMemory::load));
}

/// Gives a file's mappings its new size.
pub(crate) fn truncate(ino: Ino, size: u64) {
    say_if_failed(with_file(ino, |file| Ok(rustix::fs::ftruncate(&file.memory, size)?)));
}

/// Writes the changes of all mappings to the store.
pub(crate) fn write_back_all() {
    if !any() {
        return;
    }
    let shared = lock();
    shared.iter().flat_map(|shared| shared.files.values()).for_each(|file| say_if_failed(file.store()));
}

impl MappedRange {
    fn overlaps(&self, begin: usize, length: usize) -> bool {
        self.begin < begin.saturating_add(length) && begin < self.begin + self.length
    }
}

fn is_mapped(begin: usize, length: usize) -> bool {
    any() && lock().iter().any(|shared| shared.ranges.iter().any(|range| range.overlaps(begin, length)))
}

/// Writes back what a range has, and forgets the mappings that lie in it as a whole.
fn unmap(begin: usize, length: usize) {
    if !is_mapped(begin, length) {
        return;
    }
    write_back_all();
    let mut shared = lock();
    let Some(SharedMappings { files, ranges }) = shared.as_mut() else { return };
    ranges.retain(|range| range.begin < begin || begin.saturating_add(length) < range.begin + range.length);
    files.retain(|ino, _| ranges.iter().any(|range| range.ino == *ino));
    ANY.store(!ranges.is_empty(), Ordering::Release);
}

fn sync(begin: usize, length: usize, flags: c_int) -> Answer<c_int> {
    if !is_mapped(begin, length) {
        return None;
    }
    let shared = lock();
    let Some(SharedMappings { files, ranges }) = shared.as_ref() else { return Some(Ok(0)) };
    let touched = ranges.iter().filter(|range| range.overlaps(begin, length));
    let synced = touched.filter_map(|range| files.get(&range.ino)).try_for_each(|file| {
        file.store()?;
        if flags & libc::MS_SYNC != 0 { file.open.file.sync_data() } else { Ok(()) }
    });
    Some(synced.map(|()| 0))
}

/// In a forked child: the files are the parent's.
pub(crate) fn forget_of_parent() {
    ANY.store(false, Ordering::Release);
    if let Ok(mut shared) = SHARED.try_lock() {
        std::mem::forget(shared.take());
    }
}

const _: () = assert!(size_of::<c_long>() == size_of::<isize>());

//! Listing directories.
//!
//! The program's `DIR *` points to a [`WeirListing`]. It is told from the C library's own by a mark where that has its lock.

use crate::calls::attributes::kind_bits;
use crate::descriptors::{self, OpenFile, real_close};
use crate::place;
use crate::symbol::{Answer, symbols};
use rustix::io::Errno;
use std::ffi::{CStr, c_char, c_int, c_long, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::Arc;
use std::vec::IntoIter;
use weir_library::{Directory, DirectoryItem, FileKind, Ino};

symbols! {
    opendir(path: *const c_char) -> *mut c_void = place::at(libc::AT_FDCWD, path, |place| {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        let opened = super::descriptors::open_place(place, flags, 0)?;
        let open = OpenFile::new(opened, place.full.clone());
        let fd = descriptors::add(open.clone(), false)?;
        WeirListing::begin(fd, open)
    });
    fdopendir(fd: c_int) -> *mut c_void = place::on(fd, |open| WeirListing::begin(fd, open.clone()));
    readdir(listing: *mut c_void) -> *mut libc::dirent64 = of_listing(listing, next_entry);
    readdir64(listing: *mut c_void) -> *mut libc::dirent64 = of_listing(listing, next_entry);
    readdir_r(listing: *mut c_void, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int = of_listing(listing, |listing| fill_entry(listing, into, result));
    readdir64_r(listing: *mut c_void, into: *mut libc::dirent64, result: *mut *mut libc::dirent64) -> c_int = of_listing(listing, |listing| fill_entry(listing, into, result));
    rewinddir(listing: *mut c_void) -> () = of_listing(listing, |listing| { listing.go_to(0); Ok(()) });
    telldir(listing: *mut c_void) -> c_long = of_listing(listing, |listing| Ok(listing.position as c_long));
    seekdir(listing: *mut c_void, position: c_long) -> () = of_listing(listing, |listing| { listing.go_to(position as u64); Ok(()) });
    dirfd(listing: *mut c_void) -> c_int = of_listing(listing, |listing| Ok(listing.fd));
    closedir(listing: *mut c_void) -> c_int = {
        if !is_listing(listing) {
            return None;
        }
        // SAFETY: `begin` has made it with `Box::into_raw`, and the program gives it back now.
        let listing = unsafe { Box::from_raw(listing.cast::<WeirListing>()) };
        descriptors::remove(listing.fd);
        real_close(listing.fd);
        if listing.open.ensure_own().is_err() {
            // It is the parent's: see `descriptors::forget_of_parent`.
            std::mem::forget(listing);
        }
        Some(Ok(0))
    };
}

/// Where the C library's `DIR` has a lock, which is 0, 1 or 2.
const MARK: u32 = 0x7765_6972;
const ENTRIES_AT_ONCE: usize = 256;
/// Positions below this are those of `.` and `..`.
const OWN_ENTRIES: u64 = 2;

#[repr(C)]
pub(crate) struct WeirListing {
    fd: c_int,
    mark: u32,
    open: Arc<OpenFile>,
    /// 0: before `.`; 1: before `..`; else two more than the cookie of the last entry.
    position: u64,
    read: IntoIter<DirectoryItem>,
    entry: libc::dirent64,
}

impl WeirListing {
    fn of(fd: c_int, open: Arc<OpenFile>) -> io::Result<WeirListing> {
        Directory::of(&open.file)?;
        // SAFETY: an entry has only numbers.
        let entry = unsafe { std::mem::zeroed() };
        Ok(WeirListing { fd, mark: MARK, open, position: 0, read: Vec::new().into_iter(), entry })
    }

    fn begin(fd: c_int, open: Arc<OpenFile>) -> io::Result<*mut c_void> {
        Ok(Box::into_raw(Box::new(WeirListing::of(fd, open)?)).cast())
    }

    /// Calls `use_it` with each entry of a directory, without a descriptor.
    pub(crate) fn each_of(
        place: &place::Place,
        mut use_it: impl FnMut(&libc::dirent64) -> io::Result<()>,
    ) -> io::Result<()> {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = super::descriptors::open_place(place, flags, 0)?;
        let mut listing = WeirListing::of(-1, OpenFile::new(opened, place.full.clone()))?;
        while listing.advance()? {
            use_it(&listing.entry)?;
        }
        Ok(())
    }

    fn go_to(&mut self, position: u64) {
        self.position = position;
        self.read = Vec::new().into_iter();
    }

    /// Reads the next entry; `false` at the end.
    fn advance(&mut self) -> io::Result<bool> {
        self.open.ensure_own()?;
        let directory = Directory::of(&self.open.file)?;
        match self.position {
            0 => self.put(b".", directory.ino(), FileKind::Directory, 1),
            1 => self.put(b"..", directory.parent_ino()?, FileKind::Directory, OWN_ENTRIES),
            position => {
                let mut next = self.read.next();
                if next.is_none() {
                    self.read = directory.entries_after(position - OWN_ENTRIES, ENTRIES_AT_ONCE)?.into_iter();
                    next = self.read.next();
                }
                let Some(item) = next else { return Ok(false) };
                self.put(item.name.as_bytes(), item.ino, item.kind, item.cookie + OWN_ENTRIES);
            }
        }
        Ok(true)
    }

    fn put(&mut self, name: &[u8], ino: Ino, kind: FileKind, position: u64) {
        self.position = position;
        self.entry.d_ino = ino.0;
        self.entry.d_off = position as i64;
        self.entry.d_reclen = size_of::<libc::dirent64>() as u16;
        // As in `DTTOIF`.
        self.entry.d_type = (kind_bits(kind) >> 12) as u8;
        let length = name.len().min(self.entry.d_name.len() - 1);
        for (to, &byte) in self.entry.d_name.iter_mut().zip(&name[..length]) {
            *to = byte as c_char;
        }
        self.entry.d_name[length] = 0;
    }
}

/// The name of an entry.
pub(crate) fn name_of(entry: &libc::dirent64) -> &[u8] {
    // SAFETY: `put` has ended the name with a zero byte.
    unsafe { CStr::from_ptr(entry.d_name.as_ptr()) }.to_bytes()
}

fn is_listing(listing: *mut c_void) -> bool {
    // SAFETY: the program passes what `opendir` returned: the C library's `DIR` and ours both begin with eight bytes.
    !listing.is_null() && unsafe { *listing.cast::<u32>().add(1) } == MARK
}

fn of_listing<T>(
    listing: *mut c_void,
    operation: impl FnOnce(&mut WeirListing) -> io::Result<T>,
) -> Answer<T> {
    if !is_listing(listing) {
        return None;
    }
    // SAFETY: it has our mark, so `begin` has made it. A program uses a listing in one thread at a time.
    Some(operation(unsafe { &mut *listing.cast::<WeirListing>() }))
}

fn next_entry(listing: &mut WeirListing) -> io::Result<*mut libc::dirent64> {
    Ok(if listing.advance()? { &raw mut listing.entry } else { null_mut() })
}

fn fill_entry(
    listing: &mut WeirListing,
    into: *mut libc::dirent64,
    result: *mut *mut libc::dirent64,
) -> io::Result<c_int> {
    if into.is_null() || result.is_null() {
        return Err(Errno::FAULT.into());
    }
    let has_entry = match listing.advance() {
        Ok(has_entry) => has_entry,
        Err(error) => return Ok(error.raw_os_error().unwrap_or(libc::EIO)),
    };
    // SAFETY: the program passes memory for an entry, and for a pointer.
    unsafe {
        into.write(listing.entry);
        result.write(if has_entry { into } else { null_mut() });
    }
    Ok(0)
}

//! Listing directories.

use crate::answer::{answer, answer_at};
use crate::handles::{Handle, ListingHandle, StoreHandle, number_of};
use std::ffi::{c_char, c_int};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec::IntoIter;
use weir_library::{Directory, DirectoryItem, OFlags, kind_bits};

/// Entries that are read at once.
const ENTRIES_AT_ONCE: usize = 256;

/// A listing, and the number of its store.
pub(crate) struct Listing {
    pub(crate) store: u64,
    directory: Directory,
    place: Mutex<ListingPlace>,
}

#[derive(Default)]
struct ListingPlace {
    /// The cookie of the last entry that was read.
    after: u64,
    read: IntoIter<DirectoryItem>,
    /// The entry that C looks at; it stays at its address.
    entry: Option<Box<libc::dirent>>,
}

impl Listing {
    fn place(&self) -> MutexGuard<'_, ListingPlace> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> io::Result<*mut libc::dirent> {
        let mut place = self.place();
        if place.read.len() == 0 {
            place.read = self.directory.entries_after(place.after, ENTRIES_AT_ONCE)?.into_iter();
        }
        let Some(item) = place.read.next() else { return Ok(null_mut()) };
        place.after = item.cookie;
        let entry = place.entry.get_or_insert_with(|| Box::new(zeroed_entry()));
        fill(entry, &item);
        Ok(&raw mut **entry)
    }
}

fn zeroed_entry() -> libc::dirent {
    // SAFETY: an entry has only numbers, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

fn fill(entry: &mut libc::dirent, item: &DirectoryItem) {
    entry.d_ino = item.ino.0;
    entry.d_off = item.cookie as i64;
    entry.d_reclen = size_of::<libc::dirent>() as u16;
    // As in `DTTOIF`.
    entry.d_type = (kind_bits(item.kind) >> 12) as u8;
    let name = item.name.as_bytes();
    let length = name.len().min(entry.d_name.len() - 1);
    for (to, &byte) in entry.d_name.iter_mut().zip(&name[..length]) {
        *to = byte as c_char;
    }
    entry.d_name[length] = 0;
}

/// Begins to list a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_opendir(store: *mut StoreHandle, path: *const c_char) -> *mut ListingHandle {
    answer_at("weir_opendir", path, |path| {
        let opened = StoreHandle::get(store)?.open(path, OFlags::DIRECTORY, 0)?;
        let directory = Directory::of(&opened)?;
        Ok(ListingHandle::give(Listing { store: number_of(store)?, directory, place: Mutex::default() }))
    })
}

/// The next entry, without `.` and `..`; NULL at the end, and errno is left alone then. Valid until the next call with this
/// listing, also one of another thread or weir_closedir(), and until its store is closed. Entries that are added or removed meanwhile are listed or not; all others exactly once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_readdir(listing: *mut ListingHandle) -> *mut libc::dirent {
    answer("weir_readdir", || Ok(ListingHandle::get(listing)?.next()?))
}

/// Begins again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_rewinddir(listing: *mut ListingHandle) -> c_int {
    answer("weir_rewinddir", || {
        let listing = ListingHandle::get(listing)?;
        let mut place = listing.place();
        place.after = 0;
        place.read = Vec::new().into_iter();
        Ok(0)
    })
}

/// Ends a listing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_closedir(listing: *mut ListingHandle) -> c_int {
    answer("weir_closedir", || {
        ListingHandle::close(listing)?;
        Ok(0)
    })
}

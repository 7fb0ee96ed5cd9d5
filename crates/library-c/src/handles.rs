//! What C passes: handles, paths and buffers.

use rustix::io::Errno;
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::without_provenance_mut;
use std::sync::Arc;
use weir_library::{HandleTable, Weir, WeirFile};

use crate::listing::Listing;

/// An open store.
pub struct StoreHandle {
    _nothing: (),
}

/// An open file or directory.
pub struct FileHandle {
    _nothing: (),
}

/// A listing of a directory.
pub struct ListingHandle {
    _nothing: (),
}

static STORES: HandleTable<Weir> = HandleTable::new();
static FILES: HandleTable<OpenFile> = HandleTable::new();
static LISTINGS: HandleTable<Listing> = HandleTable::new();

/// A file, and the number of its store.
pub(crate) struct OpenFile {
    pub(crate) store: u64,
    pub(crate) file: WeirFile,
}

/// A handle that C holds. Its pointer is a number, and leads nowhere.
pub(crate) trait Handle: Sized {
    type Opened: 'static;
    const TABLE: &'static HandleTable<Self::Opened>;

    fn give(opened: Self::Opened) -> *mut Self {
        without_provenance_mut(Self::TABLE.add(opened) as usize)
    }

    fn get(handle: *mut Self) -> io::Result<Arc<Self::Opened>> {
        Self::TABLE.get(number_of(handle)?)
    }

    fn close(handle: *mut Self) -> io::Result<Arc<Self::Opened>> {
        Self::TABLE.remove(number_of(handle)?)
    }
}

impl Handle for StoreHandle {
    type Opened = Weir;
    const TABLE: &'static HandleTable<Weir> = &STORES;
}

impl Handle for FileHandle {
    type Opened = OpenFile;
    const TABLE: &'static HandleTable<OpenFile> = &FILES;
}

impl Handle for ListingHandle {
    type Opened = Listing;
    const TABLE: &'static HandleTable<Listing> = &LISTINGS;
}

/// The number of a handle.
pub(crate) fn number_of<T>(handle: *mut T) -> Result<u64, Errno> {
    if handle.is_null() { Err(Errno::FAULT) } else { Ok(handle.addr() as u64) }
}

/// Closes the files and listings of a store.
pub(crate) fn close_all_of(store: u64) {
    FILES.remove_where(|open| open.store == store);
    LISTINGS.remove_where(|listing| listing.store == store);
}

/// Called in a forked child.
pub(crate) unsafe extern "C" fn forget_of_parent() {
    STORES.forget_of_parent();
    FILES.forget_of_parent();
    LISTINGS.forget_of_parent();
}

/// A path, or another text.
pub(crate) fn path_of<'a>(path: *const c_char) -> Result<&'a Path, Errno> {
    Ok(Path::new(OsStr::from_bytes(bytes_of(path)?)))
}

/// The bytes of a text.
pub(crate) fn bytes_of<'a>(text: *const c_char) -> Result<&'a [u8], Errno> {
    if text.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: C passes a text that ends with a zero byte, and leaves it alone during the call.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// A buffer to read into.
pub(crate) fn target<'a>(into: *mut c_void, count: usize) -> Result<&'a mut [u8], Errno> {
    ensure_length(count)?;
    if count == 0 {
        return Ok(&mut []);
    }
    if into.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: C passes a buffer of `count` bytes, and leaves it to the call until that returns. Any bytes are valid, and the
    // library writes them without looking at them first.
    Ok(unsafe { std::slice::from_raw_parts_mut(into.cast(), count) })
}

/// Bytes to write.
pub(crate) fn source<'a>(from: *const c_void, count: usize) -> Result<&'a [u8], Errno> {
    structures(from.cast(), count)
}

/// Several structures of C, one behind another.
pub(crate) fn structures<'a, T>(from: *const T, count: usize) -> Result<&'a [T], Errno> {
    ensure_length(count.saturating_mul(size_of::<T>()))?;
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: C passes `count` of them, aligned, and does not change them before the call returns.
    Ok(unsafe { std::slice::from_raw_parts(from, count) })
}

fn ensure_length(count: usize) -> Result<(), Errno> {
    if count > isize::MAX as usize { Err(Errno::INVAL) } else { Ok(()) }
}

/// Gives C a value.
pub(crate) fn put<T>(into: *mut T, value: T) -> Result<(), Errno> {
    if into.is_null() {
        return Err(Errno::FAULT);
    }
    // SAFETY: C passes a pointer to memory for one `T`.
    unsafe { into.write(value) };
    Ok(())
}

/// Gives C a value of several bytes in a buffer, and returns its length. A buffer of no bytes asks for the length alone.
pub(crate) fn put_bytes(value: &[u8], into: *mut c_void, size: usize) -> Result<isize, Errno> {
    let into = target(into, size)?;
    if !into.is_empty() {
        into.get_mut(..value.len()).ok_or(Errno::RANGE)?.copy_from_slice(value);
    }
    Ok(value.len() as isize)
}

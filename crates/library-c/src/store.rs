//! Stores.

use crate::answer::{answer, answer_at};
use crate::handles::{self, Handle, StoreHandle, close_all_of, number_of, path_of};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_uint};
use std::sync::Once;
use weir_library::{Weir, WeirOptions};

/// For weir_options.flags: never writes to the store; changes fail with EROFS.
pub const WEIR_READ_ONLY: c_uint = 1;

/// For weir_options.flags: accepts a buffer that loses synced data when the power fails.
pub const WEIR_VOLATILE_BUFFER: c_uint = 2;

/// How a store is opened. All zeros are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct StoreOptions {
    /// The volume; NULL: `main`.
    pub volume: *const c_char,
    /// The buffer's file or device; NULL: where it was last, or beside the store.
    pub buffer: *const c_char,
    /// Memory for pages and deltas, in bytes: at least 16 MiB; 0: 128 MiB.
    pub memory_bytes: u64,
    /// Several of WEIR_READ_ONLY and WEIR_VOLATILE_BUFFER, or 0.
    pub flags: c_uint,
}

/// Opens the store that was formatted at `path`, and recovers. `options` may be NULL. Starts threads, which take no signals.
///
/// Fails with EBUSY if it is mounted or open; ENOENT if the store, its buffer or the volume is missing; EINVAL if something else
/// is there; EUCLEAN if it is damaged; EOPNOTSUPP if it is of another version of weir, or its buffer is not durable; ESTALE if the
/// buffer is outdated or another store's. weir_error() says what to do next.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_open_store(
    path: *const c_char,
    options: *const StoreOptions,
) -> *mut StoreHandle {
    answer("weir_open_store", || {
        // SAFETY: C passes null, or a pointer to options, and leaves these alone during the call.
        let options = options_of(unsafe { options.as_ref() })?;
        watch_forks();
        Ok(StoreHandle::give(Weir::open(path_of(path)?, &options)?))
    })
}

fn options_of(from: Option<&StoreOptions>) -> Result<WeirOptions, Errno> {
    let mut options = WeirOptions::default();
    let Some(from) = from else { return Ok(options) };
    if from.flags & !(WEIR_READ_ONLY | WEIR_VOLATILE_BUFFER) != 0 {
        return Err(Errno::INVAL);
    }
    options.read_only = from.flags & WEIR_READ_ONLY != 0;
    options.volatile_buffer = from.flags & WEIR_VOLATILE_BUFFER != 0;
    if !from.volume.is_null() {
        options.volume = path_of(from.volume)?.to_str().ok_or(Errno::INVAL)?.to_owned();
    }
    if !from.buffer.is_null() {
        options.buffer = Some(path_of(from.buffer)?.to_owned());
    }
    if from.memory_bytes > 0 {
        options.memory_bytes = from.memory_bytes;
    }
    Ok(options)
}

/// Has the C library tell us of forks.
fn watch_forks() {
    static IS_WATCHING: Once = Once::new();
    IS_WATCHING.call_once(|| {
        // SAFETY: the function lives as long as the library. The C library forgets it when a program unloads the library.
        unsafe { libc::pthread_atfork(None, None, Some(handles::forget_of_parent)) };
    });
}

/// Closes the store with all its files and listings, and writes everything back. Without this call, a program that ends loses
/// what was not synced and is younger than the commit interval, as if it were killed.
///
/// Fails with EIO if not everything could be written back: the store is closed all the same, and what was synced is safe. Fails
/// with EBADF if the store was closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_close_store(store: *mut StoreHandle) -> c_int {
    answer("weir_close_store", || {
        let weir = StoreHandle::close(store)?;
        close_all_of(number_of(store)?);
        weir.close_shared()?;
        Ok(0)
    })
}

/// Makes everything durable that was changed before the call. weir_fsync() of one file may cost less.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_commit(store: *mut StoreHandle) -> c_int {
    answer("weir_commit", || {
        StoreHandle::get(store)?.commit()?;
        Ok(0)
    })
}

/// Makes a read-only volume of the present state, durably on return.
///
/// Fails with EEXIST if there is a volume of that name, EINVAL for a name that no volume can have, ENOSPC, EIO, EROFS.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_snapshot(store: *mut StoreHandle, name: *const c_char) -> c_int {
    answer_at("weir_snapshot", name, |name| {
        StoreHandle::get(store)?.snapshot(name.to_str().ok_or(Errno::INVAL)?)?;
        Ok(0)
    })
}

/// Sets the permission bits that new files do not get, and returns the old ones. At first they are 022; the mask of the process
/// does not count.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_umask(store: *mut StoreHandle, mask: libc::mode_t) -> c_int {
    answer("weir_umask", || Ok(StoreHandle::get(store)?.set_umask((mask & 0o777) as u16).into()))
}

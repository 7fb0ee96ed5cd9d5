//! Names: the functions that take a path.

use crate::answer::{CallError, answer, answer_at};
use crate::handles::{Handle, StoreHandle, path_of, target};
use std::ffi::{c_char, c_int, c_void};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use weir_library::Weir;

/// Answers a call that changes the names at `path`.
fn change(
    function: &str,
    store: *mut StoreHandle,
    path: *const c_char,
    operation: impl FnOnce(&Weir, &Path) -> io::Result<()>,
) -> c_int {
    answer_at(function, path, |path| {
        operation(&*StoreHandle::get(store)?, path)?;
        Ok(0)
    })
}

/// Answers a call that changes names at two paths.
fn change_both(
    function: &str,
    store: *mut StoreHandle,
    (path, other): (*const c_char, *const c_char),
    operation: impl FnOnce(&Weir, &Path, &Path) -> io::Result<()>,
) -> c_int {
    answer(function, || {
        let (path, other) = (path_of(path)?, path_of(other)?);
        let done = operation(&*StoreHandle::get(store)?, path, other);
        let about = format_args!("{} and {}", path.display(), other.display());
        done.map_err(|error| CallError::from(error).about(about)).map(|()| 0)
    })
}

/// Makes a directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_mkdir(
    store: *mut StoreHandle,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    change("weir_mkdir", store, path, |weir, path| weir.create_dir(path, mode))
}

/// Removes an empty directory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_rmdir(store: *mut StoreHandle, path: *const c_char) -> c_int {
    change("weir_rmdir", store, path, |weir, path| weir.remove_directory(path))
}

/// Removes a name of a file. Of a file that was synced lately this is durable on return.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_unlink(store: *mut StoreHandle, path: *const c_char) -> c_int {
    change("weir_unlink", store, path, |weir, path| weir.remove_file(path))
}

/// Renames a file or directory, and replaces what has the new name, atomically.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_rename(
    store: *mut StoreHandle,
    old: *const c_char,
    new: *const c_char,
) -> c_int {
    change_both("weir_rename", store, (old, new), |weir, old, new| weir.rename(old, new))
}

/// Gives the file at `path` a further name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_link(
    store: *mut StoreHandle,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    change_both("weir_link", store, (path, name), |weir, path, name| weir.hard_link(path, name))
}

/// Makes a symbolic link at `path` that leads to `target`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_symlink(
    store: *mut StoreHandle,
    target: *const c_char,
    path: *const c_char,
) -> c_int {
    change("weir_symlink", store, path, |weir, path| weir.symlink(path_of(target)?, path))
}

/// Reads where a symbolic link leads: at most `size` bytes, without a zero byte at the end.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_readlink(
    store: *mut StoreHandle,
    path: *const c_char,
    into: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    answer_at("weir_readlink", path, |path| {
        let into = target(into.cast::<c_void>(), size)?;
        let found = StoreHandle::get(store)?.read_link(path)?;
        let found = found.as_os_str().as_bytes();
        let length = found.len().min(into.len());
        into[..length].copy_from_slice(&found[..length]);
        Ok::<_, CallError>(length as isize)
    })
}

//! Extended attributes.

use crate::answer::{CallError, answer, answer_at};
use crate::handles::{FileHandle, Handle, StoreHandle, bytes_of, put_bytes, source};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_void};
use weir_library::SetXattrMode;

/// Reads an extended attribute, and returns its length. With `size` 0 it returns the length alone; too small a buffer is ERANGE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_getxattr(
    store: *mut StoreHandle,
    path: *const c_char,
    name: *const c_char,
    into: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    answer_at("weir_getxattr", path, |path| {
        let value = StoreHandle::get(store)?.xattr(path, bytes_of(name)?)?;
        Ok(put_bytes(&value, into, size)?)
    })
}

/// As weir_getxattr(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fgetxattr(
    file: *mut FileHandle,
    name: *const c_char,
    into: *mut c_void,
    size: usize,
) -> libc::ssize_t {
    answer("weir_fgetxattr", || {
        let value = FileHandle::get(file)?.file.xattr(bytes_of(name)?)?;
        Ok(put_bytes(&value, into, size)?)
    })
}

/// Reads the names of all extended attributes, each with a zero byte at its end. Sizes are as of weir_getxattr().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_listxattr(
    store: *mut StoreHandle,
    path: *const c_char,
    into: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    answer_at("weir_listxattr", path, |path| {
        let names = StoreHandle::get(store)?.xattr_names(path)?;
        Ok(put_bytes(&list_of(names), into.cast(), size)?)
    })
}

/// As weir_listxattr(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_flistxattr(
    file: *mut FileHandle,
    into: *mut c_char,
    size: usize,
) -> libc::ssize_t {
    answer("weir_flistxattr", || {
        let names = FileHandle::get(file)?.file.xattr_names()?;
        Ok(put_bytes(&list_of(names), into.cast(), size)?)
    })
}

fn list_of(names: Vec<Vec<u8>>) -> Vec<u8> {
    names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect()
}

/// Sets an extended attribute. `flags` are 0, XATTR_CREATE or XATTR_REPLACE.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_setxattr(
    store: *mut StoreHandle,
    path: *const c_char,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    answer_at("weir_setxattr", path, |path| {
        let weir = StoreHandle::get(store)?;
        weir.set_xattr(path, bytes_of(name)?, source(value, size)?, mode_of(flags)?)?;
        Ok(0)
    })
}

/// As weir_setxattr(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fsetxattr(
    file: *mut FileHandle,
    name: *const c_char,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> c_int {
    answer("weir_fsetxattr", || {
        let open = FileHandle::get(file)?;
        open.file.set_xattr(bytes_of(name)?, source(value, size)?, mode_of(flags)?)?;
        Ok::<_, CallError>(0)
    })
}

fn mode_of(flags: c_int) -> Result<SetXattrMode, Errno> {
    match flags {
        0 => Ok(SetXattrMode::Any),
        libc::XATTR_CREATE => Ok(SetXattrMode::Create),
        libc::XATTR_REPLACE => Ok(SetXattrMode::Replace),
        _ => Err(Errno::INVAL),
    }
}

/// Removes an extended attribute.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_removexattr(
    store: *mut StoreHandle,
    path: *const c_char,
    name: *const c_char,
) -> c_int {
    answer_at("weir_removexattr", path, |path| {
        StoreHandle::get(store)?.remove_xattr(path, bytes_of(name)?)?;
        Ok(0)
    })
}

/// As weir_removexattr(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fremovexattr(file: *mut FileHandle, name: *const c_char) -> c_int {
    answer("weir_fremovexattr", || {
        FileHandle::get(file)?.file.remove_xattr(bytes_of(name)?)?;
        Ok(0)
    })
}

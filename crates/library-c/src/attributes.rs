//! Attributes: `stat` and its likes, permissions, owners, times.

use crate::answer::{answer, answer_at};
use crate::file::offset_of;
use crate::handles::{FileHandle, Handle, StoreHandle, put};
use rustix::fs::Access;
use rustix::io::Errno;
use std::ffi::{c_char, c_int};
use weir_library::{BLOCK_BYTES, DEVICE_MINOR, FileAttributes, SetTime, full_mode};

const NANOS: i64 = 1_000_000_000;

fn put_stat(into: *mut libc::stat, found: &FileAttributes) -> Result<c_int, Errno> {
    // SAFETY: it has only numbers, for which zeros are valid.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    stat.st_dev = libc::makedev(0, DEVICE_MINOR);
    stat.st_ino = found.ino.0;
    stat.st_mode = full_mode(found);
    stat.st_nlink = found.links as _;
    stat.st_uid = found.uid;
    stat.st_gid = found.gid;
    stat.st_rdev = found.device.into();
    stat.st_size = found.size as i64;
    stat.st_blksize = BLOCK_BYTES as _;
    stat.st_blocks = found.stored_bytes.div_ceil(512) as i64;
    (stat.st_atime, stat.st_atime_nsec) = split_time(found.accessed);
    (stat.st_mtime, stat.st_mtime_nsec) = split_time(found.modified);
    (stat.st_ctime, stat.st_ctime_nsec) = split_time(found.changed);
    put(into, stat)?;
    Ok(0)
}

/// Seconds, and nanoseconds beside them.
fn split_time(nanos: i64) -> (i64, i64) {
    (nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS))
}

/// The attributes of the file to which `path` leads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_stat(
    store: *mut StoreHandle,
    path: *const c_char,
    into: *mut libc::stat,
) -> c_int {
    answer_at("weir_stat", path, |path| Ok(put_stat(into, &StoreHandle::get(store)?.metadata(path)?)?))
}

/// The attributes of the file at `path`, also if that is a symbolic link.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lstat(
    store: *mut StoreHandle,
    path: *const c_char,
    into: *mut libc::stat,
) -> c_int {
    answer_at("weir_lstat", path, |path| {
        Ok(put_stat(into, &StoreHandle::get(store)?.symlink_metadata(path)?)?)
    })
}

/// The attributes of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fstat(file: *mut FileHandle, into: *mut libc::stat) -> c_int {
    answer("weir_fstat", || Ok(put_stat(into, &FileHandle::get(file)?.file.metadata()?)?))
}

/// Whether this process may use the file so: F_OK, or several of R_OK, W_OK and X_OK.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_access(store: *mut StoreHandle, path: *const c_char, mode: c_int) -> c_int {
    answer_at("weir_access", path, |path| {
        if mode & !(libc::R_OK | libc::W_OK | libc::X_OK) != 0 {
            return Err(Errno::INVAL.into());
        }
        let wanted = Access::from_bits_retain(mode as u32);
        StoreHandle::get(store)?.ensure_access(path, wanted)?;
        Ok(0)
    })
}

/// Sets the size of the file to which `path` leads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_truncate(
    store: *mut StoreHandle,
    path: *const c_char,
    size: libc::off_t,
) -> c_int {
    answer_at("weir_truncate", path, |path| {
        StoreHandle::get(store)?.truncate(path, offset_of(size)?)?;
        Ok(0)
    })
}

/// Sets the permission bits of the file to which `path` leads.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_chmod(
    store: *mut StoreHandle,
    path: *const c_char,
    mode: libc::mode_t,
) -> c_int {
    answer_at("weir_chmod", path, |path| {
        StoreHandle::get(store)?.set_mode(path, mode)?;
        Ok(0)
    })
}

/// Sets the permission bits of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fchmod(file: *mut FileHandle, mode: libc::mode_t) -> c_int {
    answer("weir_fchmod", || {
        FileHandle::get(file)?.file.set_mode(mode)?;
        Ok(0)
    })
}

/// Sets owner and group of the file to which `path` leads. (uid_t)-1 and (gid_t)-1 leave one as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_chown(
    store: *mut StoreHandle,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
) -> c_int {
    answer_at("weir_chown", path, |path| {
        StoreHandle::get(store)?.set_owner(path, id_of(uid), id_of(gid), true)?;
        Ok(0)
    })
}

/// As weir_chown(), but of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lchown(
    store: *mut StoreHandle,
    path: *const c_char,
    uid: libc::uid_t,
    gid: libc::gid_t,
) -> c_int {
    answer_at("weir_lchown", path, |path| {
        StoreHandle::get(store)?.set_owner(path, id_of(uid), id_of(gid), false)?;
        Ok(0)
    })
}

/// As weir_chown(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_fchown(file: *mut FileHandle, uid: libc::uid_t, gid: libc::gid_t) -> c_int {
    answer("weir_fchown", || {
        FileHandle::get(file)?.file.set_owner(id_of(uid), id_of(gid))?;
        Ok(0)
    })
}

/// A user or group to set; `None` leaves it as it is.
fn id_of(id: u32) -> Option<u32> {
    Some(id).filter(|&id| id != u32::MAX)
}

/// Sets the times of last access and last change of the file to which `path` leads. `times` are two, as of utimensat(); NULL is now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_utimens(
    store: *mut StoreHandle,
    path: *const c_char,
    times: *const libc::timespec,
) -> c_int {
    answer_at("weir_utimens", path, |path| {
        let [accessed, modified] = times_of(times)?;
        StoreHandle::get(store)?.set_times(path, accessed, modified, true)?;
        Ok(0)
    })
}

/// As weir_utimens(), but of a symbolic link itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_lutimens(
    store: *mut StoreHandle,
    path: *const c_char,
    times: *const libc::timespec,
) -> c_int {
    answer_at("weir_lutimens", path, |path| {
        let [accessed, modified] = times_of(times)?;
        StoreHandle::get(store)?.set_times(path, accessed, modified, false)?;
        Ok(0)
    })
}

/// As weir_utimens(), of an open file.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn weir_futimens(file: *mut FileHandle, times: *const libc::timespec) -> c_int {
    answer("weir_futimens", || {
        let [accessed, modified] = times_of(times)?;
        FileHandle::get(file)?.file.set_times(accessed, modified)?;
        Ok(0)
    })
}

fn times_of(times: *const libc::timespec) -> Result<[Option<SetTime>; 2], Errno> {
    if times.is_null() {
        return Ok([Some(SetTime::Now); 2]);
    }
    // SAFETY: C passes two times, and leaves them alone during the call.
    let [accessed, modified] = unsafe { *times.cast::<[libc::timespec; 2]>() };
    Ok([time_of(accessed)?, time_of(modified)?])
}

/// A time to set; `None` leaves it as it is.
fn time_of(time: libc::timespec) -> Result<Option<SetTime>, Errno> {
    match time.tv_nsec {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        nanos @ 0..NANOS => Ok(Some(SetTime::To(time.tv_sec.saturating_mul(NANOS).saturating_add(nanos)))),
        _ => Err(Errno::INVAL),
    }
}

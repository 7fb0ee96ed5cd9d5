//! Opening, closing, duplicating and locking files.

use crate::descriptors::{self, OpenFile};
use crate::symbol::{Answer, pass_on, symbols};
use crate::{locks, place};
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_long, c_uint, c_ulong};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use weir_library::{Access, OFlags, WeirFile};

symbols! {
    open(path: *const c_char, flags: c_int, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, flags, mode);
    open64(path: *const c_char, flags: c_int, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, flags, mode);
    __open_2(path: *const c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, flags, 0);
    __open64_2(path: *const c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, flags, 0);
    openat(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(at, path, flags, mode);
    openat64(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(at, path, flags, mode);
    __openat_2(at: c_int, path: *const c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = open_at(at, path, flags, 0);
    __openat64_2(at: c_int, path: *const c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = open_at(at, path, flags, 0);
    creat(path: *const c_char, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, CREAT, mode);
    creat64(path: *const c_char, mode: c_uint) -> c_int [after: descriptors::note_replaced] = open_at(libc::AT_FDCWD, path, CREAT, mode);
    mkstemp(template: *mut c_char) -> c_int [after: descriptors::note_replaced] = make_temporary(template, 0, 0);
    mkstemp64(template: *mut c_char) -> c_int [after: descriptors::note_replaced] = make_temporary(template, 0, 0);
    mkostemp(template: *mut c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, 0, flags);
    mkostemp64(template: *mut c_char, flags: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, 0, flags);
    mkstemps(template: *mut c_char, suffix: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, suffix, 0);
    mkstemps64(template: *mut c_char, suffix: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, suffix, 0);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, suffix, flags);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int) -> c_int [after: descriptors::note_replaced] = make_temporary(template, suffix, flags);
    mkdtemp(template: *mut c_char) -> *mut c_char = at_free_name(template, 0, |place| {
        place.start().create_dir(place.path(), 0o700)?;
        Ok(template)
    });
    close(fd: c_int) -> c_int [before: replaced_in_handler(fd)] = close_number(fd);
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int
        [before: { if flags & CLOSE_RANGE_CLOEXEC == 0 { descriptors::note_closed_range(first, last); } None }]
        = close_numbers(first, last, flags);
    closefrom(first: c_int) -> ()
        [before: { descriptors::note_closed_range(first.max(0) as c_uint, c_uint::MAX); None }]
        = close_numbers(first.max(0) as c_uint, c_uint::MAX, 0).map(|done| done.map(drop));
    dup(fd: c_int) -> c_int [after: descriptors::note_replaced] = place::on(fd, |open| {
        let new = descriptors::real_fcntl(fd, libc::F_DUPFD, 0)?;
        descriptors::set(new, open.clone())?;
        Ok(new)
    });
    dup2(old: c_int, new: c_int) -> c_int [before: if old == new { None } else { replaced_in_handler(new) }] = {
        if old == new { place::on(old, |_| Ok(new)) } else { duplicate_to(old, new, 0) }
    };
    dup3(old: c_int, new: c_int, flags: c_int) -> c_int [before: if old == new { None } else { replaced_in_handler(new) }] = {
        if old == new { None } else { duplicate_to(old, new, flags) }
    };
    fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int
        [after: |made| if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { descriptors::note_replaced(made) }]
        = control(fd, command, argument);
    fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int
        [after: |made| if matches!(command, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) { descriptors::note_replaced(made) }]
        = control(fd, command, argument);
    ioctl(fd: c_int, request: c_ulong, argument: c_ulong) -> c_int = place::on(fd, |_| {
        let _ = argument;
        match request {
            libc::FIOCLEX => descriptors::real_fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC.into()),
            libc::FIONCLEX => descriptors::real_fcntl(fd, libc::F_SETFD, 0),
            _ => Err(Errno::NOTTY.into()),
        }
    });
    isatty(fd: c_int) -> u32 = place::on(fd, |_| Err(Errno::NOTTY.into()));
    flock(fd: c_int, operation: c_int) -> c_int = place::on(fd, |open| locks::lock_whole(open, operation));
    // A lock of the whole process: no other process has the store, so it is always free.
    lockf(fd: c_int, command: c_int, length: i64) -> c_int = place::on(fd, |_| { let _ = (command, length); Ok(0) });
    lockf64(fd: c_int, command: c_int, length: i64) -> c_int = place::on(fd, |_| { let _ = (command, length); Ok(0) });
    fsync(fd: c_int) -> c_int = place::on(fd, |open| sync_file(open));
    fdatasync(fd: c_int) -> c_int = place::on(fd, |open| sync_file(open));
    syncfs(fd: c_int) -> c_int = place::on(fd, |_| crate::session::get()?.commit().map(|()| 0));
    sync_file_range(fd: c_int, offset: i64, length: i64, flags: c_uint) -> c_int = place::on(fd, |open| {
        let _ = (offset, length, flags);
        sync_file(open)
    });
    sync() -> () = {
        crate::session::commit();
        None
    };
}

/// The flag of `close_range` that closes nothing yet.
const CLOSE_RANGE_CLOEXEC: c_int = 4;
const CREAT: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;

fn open_at(at: c_int, path: *const c_char, flags: c_int, mode: c_uint) -> Answer<c_int> {
    place::at(at, path, |place| {
        let opened = open_place(place, flags, mode)?;
        descriptors::add(OpenFile::new(opened, place.full.clone()), flags & libc::O_CLOEXEC == 0)
    })
}

/// Opens a file. One opened with O_PATH, which `cp` and `mv` use for the directory into which they go, can also be read.
pub(crate) fn open_place(place: &place::Place, flags: c_int, mode: c_uint) -> io::Result<WeirFile> {
    let mut flags = OFlags::from_bits_retain(flags as c_uint);
    if flags.contains(OFlags::PATH) {
        flags &= OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    }
    if !flags.contains(OFlags::TRUNC) {
        return place.start().open(place.path(), flags, mode);
    }
    let change = crate::mappings::begin_change();
    let opened = place.start().open(place.path(), flags, mode)?;
    change.set_size(opened.ino(), 0);
    Ok(opened)
}

fn make_temporary(template: *mut c_char, suffix: c_int, flags: c_int) -> Answer<c_int> {
    at_free_name(template, suffix, |place| {
        let flags = flags | libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let opened = open_place(place, flags, 0o600)?;
        descriptors::add(OpenFile::new(opened, place.full.clone()), flags & libc::O_CLOEXEC == 0)
    })
}

/// Replaces the `XXXXXX` in `template` until `operation` meets a name that is free.
fn at_free_name<T>(
    template: *mut c_char,
    suffix: c_int,
    mut operation: impl FnMut(&place::Place) -> io::Result<T>,
) -> Answer<T> {
    const MARKS: &[u8] = b"XXXXXX";
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    const ATTEMPTS: u32 = 100;
    // Whether it is ours, before it changes.
    if let Err(error) = place::find(libc::AT_FDCWD, template)? {
        return Some(Err(error));
    }
    let bytes = place::bytes_of(template)?;
    let suffix = usize::try_from(suffix).unwrap_or(usize::MAX);
    let begin = bytes.len().checked_sub(suffix.saturating_add(MARKS.len()));
    let Some(begin) = begin.filter(|&begin| bytes[begin..].starts_with(MARKS)) else {
        return Some(Err(Errno::INVAL.into()));
    };
    for _ in 0..ATTEMPTS {
        let mut random = RandomState::new().build_hasher().finish();
        for index in 0..MARKS.len() {
            let letter = LETTERS[(random % LETTERS.len() as u64) as usize];
            random /= LETTERS.len() as u64;
            // SAFETY: the program's string has the marks here, and may be changed.
            unsafe { *template.add(begin + index) = letter as c_char };
        }
        match place::at(libc::AT_FDCWD, template, &mut operation) {
            Some(Err(error)) if error.raw_os_error() == Some(libc::EEXIST) => {}
            answer => return answer,
        }
    }
    Some(Err(Errno::EXIST.into()))
}

fn close_number(fd: c_int) -> Answer<c_int> {
    if descriptors::is_own(fd) {
        return Some(Err(Errno::BADF.into()));
    }
    descriptors::remove(fd);
    None
}

/// Of a call that is about to close or replace `fd`, in a signal handler that interrupted the shim.
fn replaced_in_handler(fd: c_int) -> Option<c_int> {
    if descriptors::is_own(fd) {
        crate::symbol::set_errno(libc::EBADF);
        return Some(-1);
    }
    descriptors::note_replaced(fd);
    None
}

/// Closes a range of numbers, but for those of the shim.
fn close_numbers(first: c_uint, last: c_uint, flags: c_int) -> Answer<c_int> {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        return None;
    }
    if first > last || flags & !CLOSE_RANGE_UNSHARE != 0 {
        return Some(Err(Errno::INVAL.into()));
    }
    let placeholders: Vec<c_int> = descriptors::placeholders(first, last).collect();
    placeholders.into_iter().for_each(descriptors::remove);
    let own = descriptors::own();
    let mut begin = first;
    for fd in own.into_iter().map(|fd| fd as c_uint).filter(|&fd| first <= fd && fd <= last) {
        if begin < fd
            && let Err(error) = real_close_range(begin, fd - 1, flags)
        {
            return Some(Err(error));
        }
        begin = fd + 1;
    }
    if begin > last {
        return Some(Ok(0));
    }
    Some(real_close_range(begin, last, flags).map(|()| 0))
}

fn real_close_range(first: c_uint, last: c_uint, flags: c_int) -> io::Result<()> {
    // SAFETY: the call takes numbers. The program closes what it has opened, and nothing of the shim is in the range.
    match unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// `dup3`, of two numbers that differ.
fn duplicate_to(old: c_int, new: c_int, flags: c_int) -> Answer<c_int> {
    if descriptors::is_own(new) {
        return Some(Err(Errno::BADF.into()));
    }
    let open = match descriptors::get(old).transpose() {
        Ok(open) => open,
        Err(error) => return Some(Err(error)),
    };
    if open.is_none() && !descriptors::is_placeholder(new) {
        return None;
    }
    if open.is_some() && !descriptors::has_slot(new) {
        return Some(Err(Errno::BADF.into()));
    }
    let made = pass_on!(next::dup3, (old, new, flags), (c_int, c_int, c_int) -> c_int);
    if made < 0 {
        return Some(Err(io::Error::last_os_error()));
    }
    match open {
        Some(open) => Some(descriptors::set(new, open).map(|()| new)),
        None => {
            descriptors::remove(new);
            Some(Ok(new))
        }
    }
}

fn control(fd: c_int, command: c_int, argument: c_long) -> Answer<c_int> {
    place::on(fd, |open| match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            let lowest = argument as c_int;
            if lowest < 0 || !descriptors::has_slot(lowest) {
                return Err(Errno::INVAL.into());
            }
            let new = descriptors::real_fcntl(fd, command, argument)?;
            descriptors::set(new, open.clone())?;
            Ok(new)
        }
        libc::F_GETFD | libc::F_SETFD => descriptors::real_fcntl(fd, command, argument),
        libc::F_GETFL => Ok(status_flags(&open.file)),
        libc::F_SETFL => {
            open.file.set_flags(OFlags::from_bits_retain(argument as c_uint));
            Ok(0)
        }
        libc::F_SETLK
        | libc::F_SETLKW
        | libc::F_GETLK
        | libc::F_OFD_SETLK
        | libc::F_OFD_SETLKW
        | libc::F_OFD_GETLK => {
            let lock = argument as *mut libc::flock;
            // SAFETY: for these commands the argument points to a `flock` of the program.
            let lock = unsafe { lock.as_mut() }.ok_or(Errno::FAULT)?;
            locks::lock_range(open, command, lock).map(|()| 0)
        }
        _ => Err(Errno::INVAL.into()),
    })
}

fn status_flags(file: &WeirFile) -> c_int {
    let at_opening = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::NOCTTY | OFlags::CLOEXEC;
    file.flags().difference(at_opening).bits() as c_int
}

fn sync_file(open: &OpenFile) -> io::Result<c_int> {
    crate::mappings::try_write_back(open.file.ino())?;
    open.file.sync_data().map(|()| 0)
}

/// The permissions that `access` asks for.
pub(crate) fn access_of(mode: c_int) -> Access {
    Access::from_bits_truncate(mode as c_uint)
}

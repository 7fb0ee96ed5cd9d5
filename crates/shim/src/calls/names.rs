//! Names: making, moving and removing them, symbolic links, the working directory.

use crate::place::{self, Place, WorkingDirectory};
use crate::symbol::{Answer, pass_on, symbols};
use rustix::io::Errno;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_uint, c_void};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::ptr::null_mut;
use weir_library::{Access, FileKind, IfExists, Ino};

symbols! {
    mkdir(path: *const c_char, mode: c_uint) -> c_int = make_directory(CWD, path, mode);
    mkdirat(at: c_int, path: *const c_char, mode: c_uint) -> c_int = make_directory(at, path, mode);
    rmdir(path: *const c_char) -> c_int = remove_name(CWD, path, libc::AT_REMOVEDIR);
    unlink(path: *const c_char) -> c_int = remove_name(CWD, path, 0);
    unlinkat(at: c_int, path: *const c_char, flags: c_int) -> c_int = remove_name(at, path, flags);
    remove(path: *const c_char) -> c_int = place::at(CWD, path, |place| {
        let is_directory = place.start().symlink_metadata(place.path())?.kind == FileKind::Directory;
        remove_at(place, is_directory)
    });
    rename(old: *const c_char, new: *const c_char) -> c_int = move_name((CWD, old), (CWD, new), 0);
    renameat(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char) -> c_int = move_name((old_at, old), (new_at, new), 0);
    renameat2(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_uint) -> c_int = {
        move_name((old_at, old), (new_at, new), flags)
    };
    link(old: *const c_char, new: *const c_char) -> c_int = add_name((CWD, old), (CWD, new), 0);
    linkat(old_at: c_int, old: *const c_char, new_at: c_int, new: *const c_char, flags: c_int) -> c_int = {
        add_name((old_at, old), (new_at, new), flags)
    };
    symlink(target: *const c_char, path: *const c_char) -> c_int = make_link(target, CWD, path);
    symlinkat(target: *const c_char, at: c_int, path: *const c_char) -> c_int = make_link(target, at, path);
    readlink(path: *const c_char, into: *mut c_char, size: usize) -> isize = read_link(CWD, path, into, size);
    readlinkat(at: c_int, path: *const c_char, into: *mut c_char, size: usize) -> isize = read_link(at, path, into, size);
    __readlink_chk(path: *const c_char, into: *mut c_char, size: usize, space: usize) -> isize = read_link(CWD, path, into, size.min(space));
    __readlinkat_chk(at: c_int, path: *const c_char, into: *mut c_char, size: usize, space: usize) -> isize = {
        read_link(at, path, into, size.min(space))
    };
    realpath(path: *const c_char, into: *mut c_char) -> *mut c_char = real_path(path, into);
    __realpath_chk(path: *const c_char, into: *mut c_char, space: usize) -> *mut c_char = { let _ = space; real_path(path, into) };
    canonicalize_file_name(path: *const c_char) -> *mut c_char = real_path(path, null_mut());
    // The store has no pipes, sockets and devices of its own: the kernel would have to serve them.
    mkfifo(path: *const c_char, mode: c_uint) -> c_int = { let _ = mode; refuse(CWD, path) };
    mkfifoat(at: c_int, path: *const c_char, mode: c_uint) -> c_int = { let _ = mode; refuse(at, path) };
    mknod(path: *const c_char, mode: c_uint, device: u64) -> c_int = make_node(CWD, path, mode, device);
    mknodat(at: c_int, path: *const c_char, mode: c_uint, device: u64) -> c_int = make_node(at, path, mode, device);
    chdir(path: *const c_char) -> c_int = change_directory(path);
    fchdir(fd: c_int) -> c_int = match crate::descriptors::get(fd) {
        Some(open) => Some(open.and_then(|open| enter(None, &open.path, Some(open.file.ino())))),
        None => leave(|| pass_on!(next::fchdir, (fd), (c_int) -> c_int)),
    };
    getcwd(into: *mut c_char, size: usize) -> *mut c_char = {
        place::working_directory().map(|working| give_string(&working.shown, into, size))
    };
    __getcwd_chk(into: *mut c_char, size: usize, space: usize) -> *mut c_char = {
        place::working_directory().map(|working| give_string(&working.shown, into, size.min(space)))
    };
    getwd(into: *mut c_char) -> *mut c_char = {
        place::working_directory().map(|working| give_string(&working.shown, into, libc::PATH_MAX as usize))
    };
    get_current_dir_name() -> *mut c_char = place::working_directory().map(|working| give_string(&working.shown, null_mut(), 0));
}

const CWD: c_int = libc::AT_FDCWD;

fn make_directory(at: c_int, path: *const c_char, mode: c_uint) -> Answer<c_int> {
    place::at(at, path, |place| place.start().create_dir(place.path(), mode).map(|()| 0))
}

fn remove_name(at: c_int, path: *const c_char, flags: c_int) -> Answer<c_int> {
    place::at(at, path, |place| remove_at(place, flags & libc::AT_REMOVEDIR != 0))
}

fn remove_at(place: &Place, is_directory: bool) -> io::Result<c_int> {
    if is_directory {
        place.start().remove_directory(place.path())?;
    } else {
        place.start().remove_file(place.path())?;
    }
    Ok(0)
}

fn move_name(old: (c_int, *const c_char), new: (c_int, *const c_char), flags: c_uint) -> Answer<c_int> {
    let places = place::both(old, new)?;
    Some(places.and_then(|(old, new)| {
        let if_exists = match flags {
            0 => IfExists::Replace,
            libc::RENAME_NOREPLACE => IfExists::Refuse,
            _ => return Err(Errno::INVAL.into()),
        };
        old.start().rename_to((old.start(), old.path()), (new.start(), new.path()), if_exists).map(|()| 0)
    }))
}

fn add_name(old: (c_int, *const c_char), new: (c_int, *const c_char), flags: c_int) -> Answer<c_int> {
    let places = place::both(old, new)?;
    let follows = flags & libc::AT_SYMLINK_FOLLOW != 0;
    Some(places.and_then(|(old, new)| {
        old.start().hard_link_to((old.start(), old.path()), (new.start(), new.path()), follows).map(|()| 0)
    }))
}

fn make_link(target: *const c_char, at: c_int, path: *const c_char) -> Answer<c_int> {
    place::at(at, path, |place| {
        let target = place::bytes_of(target).ok_or(Errno::FAULT)?;
        place.start().symlink(Path::new(OsStr::from_bytes(target)), place.path()).map(|()| 0)
    })
}

fn read_link(at: c_int, path: *const c_char, into: *mut c_char, size: usize) -> Answer<isize> {
    place::at(at, path, |place| {
        if size == 0 {
            return Err(Errno::INVAL.into());
        }
        let target = place.start().read_link(place.path())?.into_os_string().into_vec();
        let length = target.len().min(size);
        // SAFETY: the program passes a buffer of `size` bytes.
        unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), into.cast(), length) };
        Ok(length as isize)
    })
}

fn refuse(at: c_int, path: *const c_char) -> Answer<c_int> {
    place::at(at, path, |_| Err(Errno::OPNOTSUPP.into()))
}

fn make_node(at: c_int, path: *const c_char, mode: c_uint, device: u64) -> Answer<c_int> {
    let _ = device;
    place::at(at, path, |place| match mode & libc::S_IFMT {
        0 | libc::S_IFREG => {
            let flags =
                weir_library::OFlags::CREATE | weir_library::OFlags::EXCL | weir_library::OFlags::WRONLY;
            place.start().open(place.path(), flags, mode & 0o7777).map(|_| 0)
        }
        _ => Err(Errno::OPNOTSUPP.into()),
    })
}

/// The path without links, `.` and `..`, behind the marker or the prefix: `/tmp/@@/a`.
fn real_path(path: *const c_char, into: *mut c_char) -> Answer<*mut c_char> {
    let found = place::find(CWD, path)?;
    let root = root_of(path);
    Some(found.and_then(|place| {
        let inner = without_links(&place.full, 0)?;
        let shown = match root {
            Some(root) => shown_path(&root, &inner)?,
            None => place::working_directory()
                .map(|working| below_root_of(&working.shown, &inner))
                .ok_or(Errno::NOENT)?,
        };
        give_string(&shown, into, libc::PATH_MAX as usize)
    }))
}

fn without_links(path: &[u8], links: u32) -> io::Result<Vec<u8>> {
    const LINKS_MAX: u32 = 40;
    if links > LINKS_MAX {
        return Err(Errno::LOOP.into());
    }
    let root = crate::session::get()?;
    let mut real: Vec<u8> = Vec::new();
    let names: Vec<&[u8]> = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect();
    for (index, name) in names.iter().enumerate() {
        match *name {
            b"." => continue,
            b".." => {
                // The path before it must lead to a directory.
                root.root().metadata(Path::new(OsStr::from_bytes(&[&real, &b"/."[..]].concat())))?;
                let end = real.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                real.truncate(end);
                continue;
            }
            name => {
                let parent = real.len();
                real.push(b'/');
                real.extend_from_slice(name);
                let found = root.root().symlink_metadata(Path::new(OsStr::from_bytes(&real)))?;
                if found.kind == FileKind::Symlink {
                    let target = root.root().read_link(Path::new(OsStr::from_bytes(&real)))?;
                    let target = target.into_os_string().into_vec();
                    real.truncate(parent);
                    let mut rest = if target.starts_with(b"/") { Vec::new() } else { real };
                    for part in [&target[..]].into_iter().chain(names[index + 1..].iter().copied()) {
                        rest.push(b'/');
                        rest.extend_from_slice(part);
                    }
                    return without_links(&rest, links + 1);
                }
            }
        }
    }
    Ok(real)
}

/// What stands for the root of the volume in a path of the program.
fn root_of(path: *const c_char) -> Option<Vec<u8>> {
    place::bytes_of(path).and_then(place::split_at_root).map(|(root, _)| root.to_vec())
}

/// The absolute path of the program for `inner` in the volume, whose root the program calls `root`.
fn shown_path(root: &[u8], inner: &[u8]) -> io::Result<Vec<u8>> {
    let Some(before) = place::before_marker(root) else { return Ok([root, inner].concat()) };
    let mut shown = match place::working_directory() {
        Some(working) if !before.starts_with(b"/") => {
            real_path_outside(&[&working.outside, &b"/"[..], before].concat())?
        }
        _ if before.is_empty() => real_path_outside(b".")?,
        _ => real_path_outside(before)?,
    };
    if !shown.ends_with(b"/") {
        shown.push(b'/');
    }
    shown.extend_from_slice(place::MARKER);
    shown.extend_from_slice(inner);
    Ok(shown)
}

/// The machine's path without links, `.` and `..`.
fn real_path_outside(path: &[u8]) -> io::Result<Vec<u8>> {
    let path = CString::new(path)?;
    let real =
        pass_on!(next::realpath, (path.as_ptr(), null_mut()), (*const c_char, *mut c_char) -> *mut c_char);
    if real.is_null() {
        return Err(io::Error::last_os_error());
    }
    let found = place::bytes_of(real).unwrap_or_default().to_vec();
    // SAFETY: `realpath` has allocated the string for this call.
    unsafe { libc::free(real.cast()) };
    Ok(found)
}

/// `inner` behind the root of another shown path.
fn below_root_of(shown: &[u8], inner: &[u8]) -> Vec<u8> {
    let root = place::split_at_root(shown).map_or(place::default_root(), |(root, _)| root);
    [root, inner].concat()
}

/// Gives a string to the program: in its buffer of `size` bytes, or in memory that the program frees.
fn give_string(string: &[u8], into: *mut c_char, size: usize) -> io::Result<*mut c_char> {
    let length = string.len() + 1;
    let memory = if into.is_null() {
        // SAFETY: the call takes a number.
        unsafe { libc::malloc(length.max(size)) }.cast()
    } else if size < length {
        return Err(Errno::RANGE.into());
    } else {
        into
    };
    if memory.is_null() {
        return Err(Errno::NOMEM.into());
    }
    // SAFETY: the memory has room for the string and the zero behind it.
    unsafe {
        std::ptr::copy_nonoverlapping(
            string.as_ptr().cast::<c_void>(),
            memory.cast::<c_void>(),
            string.len(),
        );
        *memory.add(string.len()) = 0;
    }
    Ok(memory)
}

fn change_directory(path: *const c_char) -> Answer<c_int> {
    let root = root_of(path);
    match place::find(CWD, path) {
        Some(place) => Some(place.and_then(|place| enter(root.as_deref(), &place.full, None))),
        None => leave(|| pass_on!(next::chdir, (path), (*const c_char) -> c_int)),
    }
}

/// Leaves the volume for a directory of the machine, unless that fails.
fn leave(change: impl FnOnce() -> c_int) -> Answer<c_int> {
    place::working_directory()?;
    if change() != 0 {
        return Some(Err(io::Error::last_os_error()));
    }
    place::set_working_directory(None);
    Some(Ok(0))
}

/// Enters a directory of the volume, which is the one with the number `ino`, if that is known. The program has called the
/// volume's root `root`, if it named it.
fn enter(root: Option<&[u8]>, path: &[u8], ino: Option<Ino>) -> io::Result<c_int> {
    let session = crate::session::get()?;
    let found = session.root().metadata(Path::new(OsStr::from_bytes(path)))?;
    if ino.is_some_and(|ino| ino != found.ino) {
        // It was moved, and another one has its path now.
        return Err(Errno::NOENT.into());
    }
    if found.kind != FileKind::Directory {
        return Err(Errno::NOTDIR.into());
    }
    session.root().ensure_access(Path::new(OsStr::from_bytes(path)), Access::EXEC_OK)?;
    let inner = without_links(path, 0)?;
    let shown = match (root, place::working_directory()) {
        (Some(root), _) => shown_path(root, &inner)?,
        (None, Some(working)) => below_root_of(&working.shown, &inner),
        (None, None) => shown_path(place::default_root(), &inner)?,
    };
    let outside = match place::working_directory() {
        Some(working) => working.outside.clone(),
        None => {
            let outside = real_path_outside(b".")?;
            enter_nowhere()?;
            outside
        }
    };
    let path = if inner.is_empty() { b"/".to_vec() } else { inner };
    place::set_working_directory(Some(WorkingDirectory { path, ino: found.ino, shown, outside }));
    Ok(0)
}

/// Makes an empty directory that is removed already the kernel's working directory.
fn enter_nowhere() -> io::Result<()> {
    let places = [std::env::temp_dir(), "/tmp".into(), "/var/tmp".into(), "/dev/shm".into()];
    let mut result = Err(Errno::NOENT.into());
    for place in places {
        let template = place.join("weir-XXXXXX").into_os_string().into_vec();
        let mut template = CString::new(template)?.into_bytes_with_nul();
        // SAFETY: the template ends with six marks and a zero byte. We are inside, so that this is the C library's function.
        let made = unsafe { libc::mkdtemp(template.as_mut_ptr().cast()) };
        if made.is_null() {
            result = Err(io::Error::last_os_error());
            continue;
        }
        let changed = rustix::process::chdir(CStr::from_bytes_with_nul(&template).unwrap_or(c"/"));
        // An empty directory that stays behind harms nobody.
        let _ = rustix::fs::rmdir(CStr::from_bytes_with_nul(&template).unwrap_or(c""));
        result = changed.map_err(io::Error::from);
        if result.is_ok() {
            break;
        }
    }
    result
}

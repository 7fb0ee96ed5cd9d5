//! Attributes: `stat` and its likes, permissions, owners, times, extended attributes.

use crate::calls::descriptors::access_of;
use crate::descriptors;
use crate::place;
use crate::symbol::{Answer, symbols};
use rustix::fs::Access;
use rustix::io::Errno;
use std::ffi::{c_char, c_int, c_long, c_uint, c_void};
use std::io;
use weir_library::{Directory, FileAttributes, FileKind, SetTime, SetXattrMode, WeirFile};

type Path = *const c_char;
type Stat = *mut libc::stat;
type Uid = libc::uid_t;
type Gid = libc::gid_t;

symbols! {
    stat(path: Path, into: Stat) -> c_int = stat_at(CWD, path, into, 0);
    stat64(path: Path, into: Stat) -> c_int = stat_at(CWD, path, into, 0);
    lstat(path: Path, into: Stat) -> c_int = stat_at(CWD, path, into, NOFOLLOW);
    lstat64(path: Path, into: Stat) -> c_int = stat_at(CWD, path, into, NOFOLLOW);
    fstat(fd: c_int, into: Stat) -> c_int = stat_of(fd, into);
    fstat64(fd: c_int, into: Stat) -> c_int = stat_of(fd, into);
    fstatat(at: c_int, path: Path, into: Stat, flags: c_int) -> c_int = stat_at(at, path, into, flags);
    fstatat64(at: c_int, path: Path, into: Stat, flags: c_int) -> c_int = stat_at(at, path, into, flags);
    __xstat(version: c_int, path: Path, into: Stat) -> c_int = { let _ = version; stat_at(CWD, path, into, 0) };
    __xstat64(version: c_int, path: Path, into: Stat) -> c_int = { let _ = version; stat_at(CWD, path, into, 0) };
    __lxstat(version: c_int, path: Path, into: Stat) -> c_int = { let _ = version; stat_at(CWD, path, into, NOFOLLOW) };
    __lxstat64(version: c_int, path: Path, into: Stat) -> c_int = { let _ = version; stat_at(CWD, path, into, NOFOLLOW) };
    __fxstat(version: c_int, fd: c_int, into: Stat) -> c_int = { let _ = version; stat_of(fd, into) };
    __fxstat64(version: c_int, fd: c_int, into: Stat) -> c_int = { let _ = version; stat_of(fd, into) };
    __fxstatat(version: c_int, at: c_int, path: Path, into: Stat, flags: c_int) -> c_int = {
        let _ = version;
        stat_at(at, path, into, flags)
    };
    __fxstatat64(version: c_int, at: c_int, path: Path, into: Stat, flags: c_int) -> c_int = {
        let _ = version;
        stat_at(at, path, into, flags)
    };
    statx(at: c_int, path: Path, flags: c_int, mask: c_uint, into: *mut libc::statx) -> c_int = {
        let _ = mask;
        of_place_or_file(at, path, flags, |found| fill_statx(into, found))
    };
    access(path: Path, mode: c_int) -> c_int = access_at(CWD, path, mode, 0);
    eaccess(path: Path, mode: c_int) -> c_int = access_at(CWD, path, mode, 0);
    euidaccess(path: Path, mode: c_int) -> c_int = access_at(CWD, path, mode, 0);
    faccessat(at: c_int, path: Path, mode: c_int, flags: c_int) -> c_int = access_at(at, path, mode, flags);

    chmod(path: Path, mode: c_uint) -> c_int = chmod_at(CWD, path, mode, 0);
    lchmod(path: Path, mode: c_uint) -> c_int = chmod_at(CWD, path, mode, NOFOLLOW);
    fchmodat(at: c_int, path: Path, mode: c_uint, flags: c_int) -> c_int = chmod_at(at, path, mode, flags);
    fchmod(fd: c_int, mode: c_uint) -> c_int = place::on(fd, |open| open.file.set_mode(mode).map(|()| 0));
    chown(path: Path, uid: Uid, gid: Gid) -> c_int = chown_at(CWD, path, uid, gid, 0);
    lchown(path: Path, uid: Uid, gid: Gid) -> c_int = chown_at(CWD, path, uid, gid, NOFOLLOW);
    fchownat(at: c_int, path: Path, uid: Uid, gid: Gid, flags: c_int) -> c_int = chown_at(at, path, uid, gid, flags);
    fchown(fd: c_int, uid: Uid, gid: Gid) -> c_int = {
        place::on(fd, |open| open.file.set_owner(id_of(uid), id_of(gid)).map(|()| 0))
    };
    utime(path: Path, times: *const libc::utimbuf) -> c_int = {
        // SAFETY: `times` is null, or points to the program's times.
        let times = unsafe { times.as_ref() }.map(|times| [times.actime, times.modtime].map(|time| (time, 0)));
        set_times_at(CWD, path, times_of(times), 0)
    };
    utimes(path: Path, times: *const libc::timeval) -> c_int = set_times_at(CWD, path, times_of(micros(times)), 0);
    lutimes(path: Path, times: *const libc::timeval) -> c_int = set_times_at(CWD, path, times_of(micros(times)), NOFOLLOW);
    futimesat(at: c_int, path: Path, times: *const libc::timeval) -> c_int = set_times_at(at, path, times_of(micros(times)), 0);
    futimes(fd: c_int, times: *const libc::timeval) -> c_int = set_times_of(fd, times_of(micros(times)));
    futimens(fd: c_int, times: *const libc::timespec) -> c_int = set_times_of(fd, times_of(nanos(times)));
    utimensat(at: c_int, path: Path, times: *const libc::timespec, flags: c_int) -> c_int = {
        let is_of_file = path.is_null() || (flags & libc::AT_EMPTY_PATH != 0 && is_empty(path));
        if is_of_file { set_times_of(at, times_of(nanos(times))) } else { set_times_at(at, path, times_of(nanos(times)), flags) }
    };

    statfs(path: Path, into: *mut libc::statfs) -> c_int = place::at(CWD, path, |place| fill_statfs(into, place.start()));
    statfs64(path: Path, into: *mut libc::statfs) -> c_int = place::at(CWD, path, |place| fill_statfs(into, place.start()));
    fstatfs(fd: c_int, into: *mut libc::statfs) -> c_int = place::on(fd, |_| fill_statfs(into, crate::session::get()?.root()));
    fstatfs64(fd: c_int, into: *mut libc::statfs) -> c_int = place::on(fd, |_| fill_statfs(into, crate::session::get()?.root()));
    statvfs(path: Path, into: *mut libc::statvfs) -> c_int = place::at(CWD, path, |place| fill_statvfs(into, place.start()));
    statvfs64(path: Path, into: *mut libc::statvfs) -> c_int = place::at(CWD, path, |place| fill_statvfs(into, place.start()));
    fstatvfs(fd: c_int, into: *mut libc::statvfs) -> c_int = place::on(fd, |_| fill_statvfs(into, crate::session::get()?.root()));
    fstatvfs64(fd: c_int, into: *mut libc::statvfs) -> c_int = place::on(fd, |_| fill_statvfs(into, crate::session::get()?.root()));
    pathconf(path: Path, name: c_int) -> c_long = place::at(CWD, path, |_| configuration(name));
    fpathconf(fd: c_int, name: c_int) -> c_long = place::on(fd, |_| configuration(name));

    getxattr(path: Path, name: Path, into: *mut c_void, size: usize) -> isize = xattr_at(path, 0, |file| get_xattr(file, name, into, size));
    lgetxattr(path: Path, name: Path, into: *mut c_void, size: usize) -> isize = xattr_at(path, NOFOLLOW, |file| get_xattr(file, name, into, size));
    fgetxattr(fd: c_int, name: Path, into: *mut c_void, size: usize) -> isize = xattr_of(fd, |file| get_xattr(file, name, into, size));
    listxattr(path: Path, into: *mut c_void, size: usize) -> isize = xattr_at(path, 0, |file| list_xattrs(file, into, size));
    llistxattr(path: Path, into: *mut c_void, size: usize) -> isize = xattr_at(path, NOFOLLOW, |file| list_xattrs(file, into, size));
    flistxattr(fd: c_int, into: *mut c_void, size: usize) -> isize = xattr_of(fd, |file| list_xattrs(file, into, size));
    setxattr(path: Path, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int = {
        xattr_at(path, 0, |file| set_xattr(file, name, value, size, flags))
    };
    lsetxattr(path: Path, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int = {
        xattr_at(path, NOFOLLOW, |file| set_xattr(file, name, value, size, flags))
    };
    fsetxattr(fd: c_int, name: Path, value: *const c_void, size: usize, flags: c_int) -> c_int = {
        xattr_of(fd, |file| set_xattr(file, name, value, size, flags))
    };
    removexattr(path: Path, name: Path) -> c_int = xattr_at(path, 0, |file| remove_xattr(file, name));
    lremovexattr(path: Path, name: Path) -> c_int = xattr_at(path, NOFOLLOW, |file| remove_xattr(file, name));
    fremovexattr(fd: c_int, name: Path) -> c_int = xattr_of(fd, |file| remove_xattr(file, name));
}

const CWD: c_int = libc::AT_FDCWD;
const NOFOLLOW: c_int = libc::AT_SYMLINK_NOFOLLOW;
const BLOCK_BYTES: u64 = 4096;
const NANOS: i64 = 1_000_000_000;
/// The device number of all files of the store. No device has it: `mv` must see that files outside are on another one.
const DEVICE_MINOR: u32 = 0x7_7765;
/// The longest name, in bytes.
const NAME_MAX: u32 = 255;
/// The number of FUSE file systems in `statfs`, which a mount of the store has, too.
const FUSE_SUPER_MAGIC: i64 = 0x6573_5546;

fn is_empty(path: Path) -> bool {
    place::bytes_of(path).is_some_and(<[u8]>::is_empty)
}

/// Hands the attributes of a place, or with AT_EMPTY_PATH of an open file, to `use_them`.
fn of_place_or_file(
    at: c_int,
    path: Path,
    flags: c_int,
    use_them: impl FnOnce(&FileAttributes) -> io::Result<c_int>,
) -> Answer<c_int> {
    if flags & libc::AT_EMPTY_PATH != 0 && (path.is_null() || is_empty(path)) {
        return place::on(at, |open| use_them(&open.file.metadata()?));
    }
    place::at(at, path, |place| {
        let found = if flags & NOFOLLOW == 0 {
            place.start().metadata(place.path())?
        } else {
            place.start().symlink_metadata(place.path())?
        };
        use_them(&found)
    })
}

fn stat_at(at: c_int, path: Path, into: Stat, flags: c_int) -> Answer<c_int> {
    of_place_or_file(at, path, flags, |found| fill_stat(into, found))
}

fn stat_of(fd: c_int, into: Stat) -> Answer<c_int> {
    place::on(fd, |open| fill_stat(into, &open.file.metadata()?))
}

/// Gives `value` to the program.
fn put<T>(into: *mut T, value: T) -> io::Result<c_int> {
    if into.is_null() {
        return Err(Errno::FAULT.into());
    }
    // SAFETY: the program passes a pointer to memory for one `T`.
    unsafe { into.write(value) };
    Ok(0)
}

fn zeroed<T: Copy>() -> T {
    // SAFETY: used for the C library's plain structures of numbers only, for which zeros are valid.
    unsafe { std::mem::zeroed() }
}

pub(crate) fn kind_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

fn fill_stat(into: Stat, found: &FileAttributes) -> io::Result<c_int> {
    let mut stat: libc::stat = zeroed();
    stat.st_dev = libc::makedev(0, DEVICE_MINOR);
    stat.st_ino = found.ino.0;
    stat.st_mode = kind_bits(found.kind) | u32::from(found.mode);
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
    put(into, stat)
}

fn split_time(nanos: i64) -> (i64, i64) {
    (nanos.div_euclid(NANOS), nanos.rem_euclid(NANOS))
}

fn fill_statx(into: *mut libc::statx, found: &FileAttributes) -> io::Result<c_int> {
    let time = |nanos: i64| {
        let mut time: libc::statx_timestamp = zeroed();
        time.tv_sec = nanos.div_euclid(NANOS);
        time.tv_nsec = nanos.rem_euclid(NANOS) as u32;
        time
    };
    let mut statx: libc::statx = zeroed();
    statx.stx_mask = libc::STATX_BASIC_STATS | libc::STATX_BTIME;
    statx.stx_blksize = BLOCK_BYTES as u32;
    statx.stx_nlink = found.links;
    statx.stx_uid = found.uid;
    statx.stx_gid = found.gid;
    statx.stx_mode = (kind_bits(found.kind) | u32::from(found.mode)) as u16;
    statx.stx_ino = found.ino.0;
    statx.stx_size = found.size;
    statx.stx_blocks = found.stored_bytes.div_ceil(512);
    statx.stx_atime = time(found.accessed);
    statx.stx_btime = time(found.created);
    statx.stx_ctime = time(found.changed);
    statx.stx_mtime = time(found.modified);
    statx.stx_rdev_major = libc::major(found.device.into());
    statx.stx_rdev_minor = libc::minor(found.device.into());
    statx.stx_dev_minor = DEVICE_MINOR;
    put(into, statx)
}

fn access_at(at: c_int, path: Path, mode: c_int, flags: c_int) -> Answer<c_int> {
    let wanted = access_of(mode);
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty(path) {
        return place::on(at, |open| open.file.ensure_access(wanted).map(|()| 0));
    }
    place::at(at, path, |place| {
        if wanted != Access::EXISTS {
            place.start().ensure_access(place.path(), wanted)?;
        } else if flags & NOFOLLOW != 0 {
            place.start().symlink_metadata(place.path())?;
        } else {
            place.start().metadata(place.path())?;
        }
        Ok(0)
    })
}

fn chmod_at(at: c_int, path: Path, mode: c_uint, flags: c_int) -> Answer<c_int> {
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty(path) {
        return place::on(at, |open| open.file.set_mode(mode).map(|()| 0));
    }
    place::at(at, path, |place| {
        let is_link =
            || place.start().symlink_metadata(place.path()).map(|found| found.kind == FileKind::Symlink);
        if flags & NOFOLLOW != 0 && is_link()? {
            return Err(Errno::OPNOTSUPP.into());
        }
        place.start().set_mode(place.path(), mode).map(|()| 0)
    })
}

/// A user or group to set; `None` leaves it as it is.
fn id_of(id: u32) -> Option<u32> {
    Some(id).filter(|&id| id != u32::MAX)
}

fn chown_at(at: c_int, path: Path, uid: Uid, gid: Gid, flags: c_int) -> Answer<c_int> {
    let (uid, gid) = (id_of(uid), id_of(gid));
    if flags & libc::AT_EMPTY_PATH != 0 && is_empty(path) {
        return place::on(at, |open| open.file.set_owner(uid, gid).map(|()| 0));
    }
    place::at(at, path, |place| {
        place.start().set_owner(place.path(), uid, gid, flags & NOFOLLOW == 0).map(|()| 0)
    })
}

type TimePair = Option<[(i64, i64); 2]>;
type SetTimes = io::Result<[Option<SetTime>; 2]>;

fn micros(times: *const libc::timeval) -> TimePair {
    if times.is_null() {
        return None;
    }
    // SAFETY: the program passes two times.
    let times = unsafe { [*times, *times.add(1)] };
    Some(times.map(|time| (time.tv_sec, time.tv_usec * 1000)))
}

fn nanos(times: *const libc::timespec) -> TimePair {
    if times.is_null() {
        return None;
    }
    // SAFETY: the program passes two times.
    let times = unsafe { [*times, *times.add(1)] };
    Some(times.map(|time| (time.tv_sec, time.tv_nsec)))
}

fn times_of(times: TimePair) -> SetTimes {
    let Some(times) = times else { return Ok([Some(SetTime::Now); 2]) };
    let one = |(seconds, nanos): (i64, i64)| match nanos {
        libc::UTIME_NOW => Ok(Some(SetTime::Now)),
        libc::UTIME_OMIT => Ok(None),
        0..NANOS => Ok(Some(SetTime::To(seconds.saturating_mul(NANOS).saturating_add(nanos)))),
        _ => Err(io::Error::from(Errno::INVAL)),
    };
    Ok([one(times[0])?, one(times[1])?])
}

fn set_times_at(at: c_int, path: Path, times: SetTimes, flags: c_int) -> Answer<c_int> {
    place::at(at, path, |place| {
        let [accessed, modified] = times?;
        place.start().set_times(place.path(), accessed, modified, flags & NOFOLLOW == 0).map(|()| 0)
    })
}

fn set_times_of(fd: c_int, times: SetTimes) -> Answer<c_int> {
    descriptors::get(fd).map(|open| {
        let [accessed, modified] = times?;
        open?.file.set_times(accessed, modified).map(|()| 0)
    })
}

fn fill_statfs(into: *mut libc::statfs, directory: &Directory) -> io::Result<c_int> {
    let usage = directory.usage();
    let mut statfs: libc::statfs = zeroed();
    statfs.f_type = FUSE_SUPER_MAGIC;
    statfs.f_bsize = BLOCK_BYTES as _;
    statfs.f_frsize = BLOCK_BYTES as _;
    statfs.f_blocks = usage.blocks;
    statfs.f_bfree = usage.available;
    statfs.f_bavail = usage.available;
    statfs.f_files = usage.inodes;
    statfs.f_ffree = usage.inodes_free;
    statfs.f_namelen = NAME_MAX.into();
    put(into, statfs)
}

fn fill_statvfs(into: *mut libc::statvfs, directory: &Directory) -> io::Result<c_int> {
    let usage = directory.usage();
    let mut statvfs: libc::statvfs = zeroed();
    statvfs.f_bsize = BLOCK_BYTES;
    statvfs.f_frsize = BLOCK_BYTES;
    statvfs.f_blocks = usage.blocks;
    statvfs.f_bfree = usage.available;
    statvfs.f_bavail = usage.available;
    statvfs.f_files = usage.inodes;
    statvfs.f_ffree = usage.inodes_free;
    statvfs.f_favail = usage.inodes_free;
    statvfs.f_namemax = NAME_MAX.into();
    put(into, statvfs)
}

fn configuration(name: c_int) -> io::Result<c_long> {
    match name {
        libc::_PC_NAME_MAX => Ok(NAME_MAX.into()),
        libc::_PC_PATH_MAX => Ok(libc::PATH_MAX.into()),
        libc::_PC_LINK_MAX => Ok(i32::MAX.into()),
        libc::_PC_PIPE_BUF => Ok(BLOCK_BYTES as c_long),
        libc::_PC_CHOWN_RESTRICTED | libc::_PC_NO_TRUNC | libc::_PC_2_SYMLINKS => Ok(1),
        _ => Err(Errno::INVAL.into()),
    }
}

fn name_of<'a>(name: Path) -> io::Result<&'a [u8]> {
    place::bytes_of(name).ok_or_else(|| Errno::FAULT.into())
}

/// Gives `value` to the program, or, without a buffer, its length.
fn put_bytes(value: &[u8], into: *mut c_void, size: usize) -> io::Result<isize> {
    if size > 0 {
        if value.len() > size {
            return Err(Errno::RANGE.into());
        }
        // SAFETY: the program passes a buffer of `size` bytes, at least as long as `value`.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), into.cast(), value.len()) };
    }
    Ok(value.len() as isize)
}

/// A file of which extended attributes are asked.
enum XattrHolder<'a> {
    Place(&'a place::Place),
    Open(&'a WeirFile),
    /// It has none: user attributes are not for symbolic links.
    Symlink,
}

fn xattr_at<T>(
    path: Path,
    flags: c_int,
    operation: impl FnOnce(&XattrHolder<'_>) -> io::Result<T>,
) -> Answer<T> {
    place::at(CWD, path, |place| {
        if flags & NOFOLLOW != 0 && place.start().symlink_metadata(place.path())?.kind == FileKind::Symlink {
            return operation(&XattrHolder::Symlink);
        }
        operation(&XattrHolder::Place(place))
    })
}

fn xattr_of<T>(fd: c_int, operation: impl FnOnce(&XattrHolder<'_>) -> io::Result<T>) -> Answer<T> {
    place::on(fd, |open| operation(&XattrHolder::Open(&open.file)))
}

fn get_xattr(file: &XattrHolder<'_>, name: Path, into: *mut c_void, size: usize) -> io::Result<isize> {
    let value = match file {
        XattrHolder::Place(place) => place.start().xattr(place.path(), name_of(name)?)?,
        XattrHolder::Open(open) => open.xattr(name_of(name)?)?,
        XattrHolder::Symlink => return Err(Errno::NODATA.into()),
    };
    put_bytes(&value, into, size)
}

fn list_xattrs(file: &XattrHolder<'_>, into: *mut c_void, size: usize) -> io::Result<isize> {
    let names = match file {
        XattrHolder::Place(place) => place.start().xattr_names(place.path())?,
        XattrHolder::Open(open) => open.xattr_names()?,
        XattrHolder::Symlink => Vec::new(),
    };
    let list: Vec<u8> = names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect();
    put_bytes(&list, into, size)
}

fn set_xattr(
    file: &XattrHolder<'_>,
    name: Path,
    value: *const c_void,
    size: usize,
    flags: c_int,
) -> io::Result<c_int> {
    let how = match flags {
        0 => SetXattrMode::Any,
        libc::XATTR_CREATE => SetXattrMode::Create,
        libc::XATTR_REPLACE => SetXattrMode::Replace,
        _ => return Err(Errno::INVAL.into()),
    };
    // SAFETY: the program passes a value of `size` bytes.
    let value = if size == 0 { &[] } else { unsafe { std::slice::from_raw_parts(value.cast(), size) } };
    match file {
        XattrHolder::Place(place) => place.start().set_xattr(place.path(), name_of(name)?, value, how)?,
        XattrHolder::Open(open) => open.set_xattr(name_of(name)?, value, how)?,
        XattrHolder::Symlink => return Err(Errno::PERM.into()),
    }
    Ok(0)
}

fn remove_xattr(file: &XattrHolder<'_>, name: Path) -> io::Result<c_int> {
    match file {
        XattrHolder::Place(place) => place.start().remove_xattr(place.path(), name_of(name)?)?,
        XattrHolder::Open(open) => open.remove_xattr(name_of(name)?)?,
        XattrHolder::Symlink => return Err(Errno::PERM.into()),
    }
    Ok(0)
}

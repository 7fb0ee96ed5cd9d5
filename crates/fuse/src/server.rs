//! The table from requests to operations.
//!
//! Who owns what: the kernel's memory of an inode counts as one opener per lookup reply (`fs.hold`), given back by
//! `forget`. The kernel keeps an inode while it is open, so open files need no count of their own, and `open`
//! answers ENOSYS: from then on the kernel opens and closes without asking.

mod completions;

use crate::attributes::{absent, caller, file_type, generation, kind, permissions, set_time, to_kernel};
use crate::directory::{Listed, Space, dots};
use crate::errno::refused;
use crate::holes::Holes;
use crate::kernel::{KernelCache, ask_of_kernel};
use crate::latency::{Class, Latencies, Timer, Traffic};
use crate::privileges::{privileges, write_without_powers};
use crate::space;
use crate::xattr::{answer, list_for, set_xattr};
use fs::{
    Attributes, Completion, FILE_BYTES_MAX, Fs, FsError, IfExists, Ino, Kind, Privileges, SetAttributes,
};
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr,
    Request, TimeOrNow, WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Serves the kernel from a file system.
#[derive(Clone)]
pub struct Server {
    fs: Arc<Fs>,
    latencies: Arc<Latencies>,
    traffic: Arc<Traffic>,
    kernel_cache: KernelCache,
    pub(crate) holes: Arc<Holes>,
    /// How long the kernel may believe what we said.
    ttl: Duration,
}

impl Server {
    /// A server of `fs` that measures into `latencies` and counts in `traffic`.
    pub fn new(
        fs: Arc<Fs>,
        latencies: Arc<Latencies>,
        traffic: Arc<Traffic>,
        kernel_cache: KernelCache,
    ) -> Server {
        Server { fs, latencies, traffic, kernel_cache, holes: Arc::default(), ttl: kernel_cache.ttl() }
    }

    /// For an operation that ends in a completion.
    fn timer(&self, class: Class) -> Timer {
        self.traffic.note();
        Timer::start(self.latencies.clone(), class)
    }

    /// For an operation that ends before it returns.
    fn short_timer(&self, class: Class) -> Timer<&Latencies> {
        self.traffic.note();
        Timer::start(&self.latencies, class)
    }

    fn list(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectory) -> Result<(), FsError> {
        let mut add = |listed: Listed<'_>| {
            let name = OsStr::from_bytes(listed.name);
            let full = reply.add(INodeNo(listed.ino.0), listed.offset, file_type(listed.kind), name);
            if full { Space::Full } else { Space::Left }
        };
        match dots(&self.fs, ino, offset, &mut |dot| Ok(add(dot)))? {
            Some(cookie) => {
                self.fs.read_directory(ino, cookie, &mut |entry| add(Listed::of(entry)) == Space::Left)
            }
            None => Ok(()),
        }
    }

    /// The kernel remembers what is in the reply, but for the dots.
    fn list_plus(&self, ino: Ino, offset: u64, reply: &mut ReplyDirectoryPlus) -> Result<(), FsError> {
        let mut add = |listed: Listed<'_>, found: &Attributes| {
            let (ino, name) = (INodeNo(listed.ino.0), OsStr::from_bytes(listed.name));
            let full = reply.add(ino, listed.offset, name, &self.ttl, &to_kernel(found), generation(found));
            if full { Space::Full } else { Space::Left }
        };
        let mut add_dot = |dot: Listed<'_>| Ok(add(dot, &self.fs.attributes(dot.ino)?));
        match dots(&self.fs, ino, offset, &mut add_dot)? {
            Some(cookie) => self.fs.take_directory(ino, cookie, &mut |entry, found| {
                add(Listed::of(entry), found) == Space::Left
            }),
            None => Ok(()),
        }
    }
}

impl Filesystem for Server {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        ask_of_kernel(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _timer = self.short_timer(Class::Lookup);
        let found = match name.as_bytes() {
            // The kernel has a handle of an inode that it forgot, and looks for its place.
            b"." => self.fs.find_and_hold(ino(parent)),
            b".." => self.fs.parent(ino(parent)).and_then(|parent| self.fs.find_and_hold(parent)),
            name => self.fs.lookup_and_hold(ino(parent), name),
        };
        match found {
            Ok(found) => reply.entry(&self.ttl, &to_kernel(&found), generation(&found)),
            // The kernel may remember that, too: names appear only through itself.
            Err(FsError::NotFound) => reply.entry(&self.ttl, &absent(), Generation(0)),
            Err(error) => reply.error(refused(&error)),
        }
    }

    fn forget(&self, _request: &Request, number: INodeNo, times: u64) {
        self.fs.forget(ino(number), times);
    }

    fn getattr(&self, _request: &Request, number: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let _timer = self.short_timer(Class::Getattr);
        match self.fs.attributes(ino(number)) {
            Ok(now) => reply.attr(&self.ttl, &to_kernel(&now)),
            Err(error) => reply.error(refused(&error)),
        }
    }

    fn setattr(
        &self,
        request: &Request,
        number: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _mac_changed: Option<SystemTime>,
        _mac_backup: Option<SystemTime>,
        _mac_flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttributes {
            mode: mode.map(permissions),
            uid,
            gid,
            size,
            accessed: accessed.map(set_time),
            modified: modified.map(set_time),
            privileges: Privileges::Keep,
        };
        let set = SetAttributes { privileges: privileges(request, &set), ..set };
        self.fs.set_attributes(ino(number), set, self.attr(Class::Setattr, reply));
    }

    fn readlink(&self, _request: &Request, number: INodeNo, reply: ReplyData) {
        let _timer = self.short_timer(Class::Other);
        match self.fs.read_link(ino(number)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(refused(&error)),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let Some(kind) = kind(mode) else { return reply.error(Errno::EINVAL) };
        let (caller, parent, name, mode) =
            (caller(request, umask), ino(parent), name.as_bytes(), permissions(mode));
        let done = self.entry(Class::Create, reply);
        match kind {
            Kind::CharDevice | Kind::BlockDevice => {
                self.fs.make_device(caller, parent, name, (kind, device), mode, done);
            }
            _ => self.fs.make(caller, parent, name, kind, mode, done),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let (done, caller, mode) =
            (self.entry(Class::Create, reply), caller(request, umask), permissions(mode));
        self.fs.make(caller, ino(parent), name.as_bytes(), Kind::Directory, mode, done);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let (timer, fs, ttl) = (self.timer(Class::Create), self.fs.clone(), self.ttl);
        let done: Completion<Attributes> = Box::new(move |made| {
            let _timer = timer;
            match made.and_then(|made| fs.hold(made.ino).map(|()| made)) {
                Ok(made) => reply.created(
                    &ttl,
                    &to_kernel(&made),
                    generation(&made),
                    FileHandle(0),
                    FopenFlags::FOPEN_KEEP_CACHE,
                ),
                Err(error) => reply.error(refused(&error)),
            }
        });
        let (caller, mode) = (caller(request, umask), permissions(mode));
        self.fs.make(caller, ino(parent), name.as_bytes(), Kind::File, mode, done);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.fs.unlink(ino(parent), name.as_bytes(), self.empty(Class::Unlink, reply));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.fs.remove_directory(ino(parent), name.as_bytes(), self.empty(Class::Unlink, reply));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let done = self.entry(Class::Create, reply);
        let target = target.as_os_str().as_bytes();
        self.fs.symlink(caller(request, 0), ino(parent), name.as_bytes(), target, done);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((ino(parent), name.as_bytes()), (ino(new_parent), new_name.as_bytes()));
        let if_exists = match flags.contains(RenameFlags::RENAME_NOREPLACE) {
            true => IfExists::Refuse,
            false => IfExists::Replace,
        };
        match flags - RenameFlags::RENAME_NOREPLACE {
            rest if rest.is_empty() => {
                self.fs.rename(from, to, if_exists, self.empty(Class::Rename, reply));
            }
            RenameFlags::RENAME_WHITEOUT => {
                let done = self.empty(Class::Rename, reply);
                let done: Completion<_> = Box::new(move |moved| done(moved.map(drop)));
                self.fs.rename_leaving_whiteout(caller(request, 0), from, to, if_exists, done);
            }
            RenameFlags::RENAME_EXCHANGE if if_exists == IfExists::Replace => {
                self.fs.exchange(from, to, self.empty(Class::Rename, reply));
            }
            _ => reply.error(Errno::EINVAL),
        }
    }

    fn link(&self, _request: &Request, of: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.fs.link(ino(of), ino(parent), name.as_bytes(), self.entry(Class::Create, reply));
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.kernel_cache {
            // The kernel opens by itself from then on, and keeps listings.
            KernelCache::Full => reply.error(Errno::ENOSYS),
            KernelCache::None => reply.opened(FileHandle(0), FopenFlags::empty()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let timer = self.timer(Class::Read);
        let done: Completion<Vec<u8>> = Box::new(move |read| {
            let _timer = timer;
            match read {
                Ok(bytes) => reply.data(&bytes),
                Err(error) => reply.error(refused(&error)),
            }
        });
        self.fs.read(ino(number), offset, size as usize, done);
    }

    fn write(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let data = fitting(offset, data);
        // A request is at most WRITE_BYTES_MAX long.
        let (timer, len) = (self.timer(Class::Write), data.len() as u32);
        let finish = move |done| {
            let _timer = timer;
            match done {
                Ok(()) => reply.written(len),
                Err(error) => reply.error(refused(&error)),
            }
        };
        let write = Write {
            ino: ino(number),
            offset,
            data,
            is_synchronous: flags.0 & (libc::O_SYNC | libc::O_DSYNC) != 0,
            takes_powers: write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID),
        };
        write.run(&self.fs, finish);
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // Nothing is held back until a close: the kernel need not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _request: &Request, number: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fs.sync_file(ino(number), self.empty(Class::Fsync, reply));
    }

    fn fsyncdir(&self, _request: &Request, _ino: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.fs.sync_names(self.empty(Class::Fsync, reply));
    }

    fn readdir(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let _timer = self.short_timer(Class::Readdir);
        let listing = self.list(ino(number), offset, &mut reply);
        match listing {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(refused(&error)),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _timer = self.short_timer(Class::Readdir);
        let listing = self.list_plus(ino(number), offset, &mut reply);
        match listing {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(refused(&error)),
        }
    }

    fn fallocate(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        match space::allocation(mode) {
            Ok((what, size)) => {
                let done = self.empty(Class::Setattr, reply);
                self.fs.allocate(ino(number), what, (offset, len), size, done);
            }
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _request: &Request,
        from: INodeNo,
        _from_handle: FileHandle,
        offset: u64,
        to: INodeNo,
        _to_handle: FileHandle,
        at: u64,
        len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let (timer, fs) = (self.timer(Class::Write), self.fs.clone());
        let reply = move |copied: Result<u64, FsError>| {
            let _timer = timer;
            match copied {
                Ok(copied) => reply.written(copied as u32),
                // Where pages cannot be shared, EOPNOTSUPP has the kernel read and write.
                Err(error) => reply.error(refused(&error)),
            }
        };
        // Nothing tells whether the target was opened with O_SYNC: so it is durable in any case.
        let copied = move |copied: Result<u64, FsError>| match copied {
            Ok(copied) => fs.sync_bytes(ino(to), Box::new(move |synced| reply(synced.map(|()| copied)))),
            Err(error) => reply(Err(error)),
        };
        self.fs.copy_range(ino(from), (offset, len.min(COPY_BYTES_MAX)), ino(to), at, Box::new(copied));
    }

    fn lseek(
        &self,
        _request: &Request,
        number: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let done = space::answer(self.timer(Class::Other), reply);
        match space::seek(offset, whence) {
            Ok((offset, what)) => self.holes.seek(&self.fs, ino(number), offset, what, done),
            Err(error) => done(Err(error)),
        }
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        let _timer = self.short_timer(Class::Other);
        let usage = self.fs.usage();
        let block = device::BLOCK_BYTES as u32;
        reply.statfs(
            usage.blocks,
            usage.available,
            usage.available,
            usage.inodes,
            usage.inodes_free,
            block,
            NAME_BYTES_MAX,
            block,
        );
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let _timer = self.timer(Class::Other);
        answer(self.fs.xattr(ino(number), name.as_bytes()), size, reply);
    }

    fn setxattr(
        &self,
        _request: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = set_xattr(flags) else { return reply.error(Errno::EINVAL) };
        let done = self.empty(Class::Setattr, reply);
        self.fs.set_xattr(ino(number), name.as_bytes(), value, how, done);
    }

    fn listxattr(&self, request: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        let _timer = self.timer(Class::Other);
        answer(self.fs.xattr_names(ino(number)).map(|names| list_for(request.uid(), names)), size, reply);
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.fs.remove_xattr(ino(number), name.as_bytes(), self.empty(Class::Setattr, reply));
    }

    // What is not here is refused by name, once: ENOSYS tells the kernel not to ask again, and it then does the operation
    // by itself, as with locks.
}

/// Bytes of one copy: its reply has 32 bits.
const COPY_BYTES_MAX: u64 = 1 << 30;

/// Bytes of the longest name, as `statfs` tells it.
const NAME_BYTES_MAX: u32 = 255;

fn ino(number: INodeNo) -> Ino {
    Ino(number.0)
}

/// The part of a write that ends within the largest file. POSIX: where nothing fits, EFBIG; else as much as fits.
fn fitting(offset: u64, data: &[u8]) -> &[u8] {
    match FILE_BYTES_MAX.checked_sub(offset) {
        Some(left) if left > 0 => &data[..data.len().min(usize::try_from(left).unwrap_or(usize::MAX))],
        // All of it, to be refused.
        _ => data,
    }
}

/// A write: at once where nothing has to be waited for, which is nearly always.
struct Write<'a> {
    ino: Ino,
    offset: u64,
    data: &'a [u8],
    /// It completes when it is durable (`O_SYNC`, `O_DSYNC`).
    is_synchronous: bool,
    /// Its writer may not keep the file's powers.
    takes_powers: bool,
}

impl Write<'_> {
    /// Writes, and calls `finish` in the end. Only a write that has to wait needs memory of its own.
    fn run(self, fs: &Arc<Fs>, finish: impl FnOnce(Result<(), FsError>) + Send + 'static) {
        let kills = self.takes_powers && fs.is_privileged(self.ino);
        let at_once = if kills { None } else { fs.write_at_once(self.ino, self.offset, self.data) };
        match at_once {
            Some(done) if self.is_synchronous => then_sync(fs.clone(), self.ino, Box::new(finish))(done),
            Some(done) => finish(done),
            None => {
                let finish: Completion<()> = Box::new(finish);
                let done = if self.is_synchronous { then_sync(fs.clone(), self.ino, finish) } else { finish };
                match kills {
                    true => write_without_powers(fs, self.ino, self.offset, self.data, done),
                    false => fs.write(self.ino, self.offset, self.data.to_vec(), done),
                }
            }
        }
    }
}

/// Completes `finish` once what was written is durable.
fn then_sync(fs: Arc<Fs>, ino: Ino, finish: Completion<()>) -> Completion<()> {
    Box::new(move |written| match written {
        Ok(()) => fs.sync_bytes(ino, finish),
        Err(error) => finish(Err(error)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_over_the_last_byte_of_the_largest_file_is_cut_off_there() {
        assert_eq!(fitting(FILE_BYTES_MAX - 3, b"abcde"), b"abc");
        assert_eq!(fitting(FILE_BYTES_MAX - 5, b"abcde"), b"abcde");
        assert_eq!(fitting(0, b"abcde"), b"abcde");
        // Refused further down, as a whole.
        assert_eq!(fitting(FILE_BYTES_MAX, b"abcde"), b"abcde");
        assert_eq!(fitting(u64::MAX, b"abcde"), b"abcde");
    }
}

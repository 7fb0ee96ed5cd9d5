//! Two media that fail on demand: a file system with the files `store` and `buffer`, served by the test
//! itself from files that work.

use fuser::{
    BackgroundSession, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request,
    WriteFlags,
};
use rustix::io::Errno as HostErrno;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, UNIX_EPOCH};

const NAMES: [&str; 2] = ["store", "buffer"];
/// How long the kernel may cache attributes. They never change.
const TTL: Duration = Duration::from_secs(3600);

/// The faults of one medium.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    reads: AtomicI32,
    writes: AtomicI32,
    flushes: AtomicI32,
    /// One in this many calls fails with EIO; 0: none.
    every: AtomicU64,
    calls: AtomicU64,
    failed: AtomicU64,
}

impl Faults {
    /// Fails reads, writes and flushes with these errors; `None`: they work.
    pub(crate) fn set(&self, [reads, writes, flushes]: [Option<HostErrno>; 3]) {
        let number = |errno: Option<HostErrno>| errno.map_or(0, HostErrno::raw_os_error);
        self.reads.store(number(reads), Ordering::Release);
        self.writes.store(number(writes), Ordering::Release);
        self.flushes.store(number(flushes), Ordering::Release);
    }

    /// Fails every `number`th call, whatever it is.
    pub(crate) fn set_every(&self, number: u64) {
        self.every.store(number, Ordering::Release);
    }

    /// How many calls failed.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Acquire)
    }

    fn check(&self, errno: &AtomicI32) -> Result<(), Errno> {
        let call = self.calls.fetch_add(1, Ordering::AcqRel) + 1;
        let every = self.every.load(Ordering::Acquire);
        let errno = match errno.load(Ordering::Acquire) {
            0 if every > 0 && call.is_multiple_of(every) => HostErrno::IO.raw_os_error(),
            errno => errno,
        };
        if errno == 0 {
            return Ok(());
        }
        self.failed.fetch_add(1, Ordering::AcqRel);
        Err(Errno::from_i32(errno))
    }
}

/// Serves both media until it is dropped.
pub(crate) struct Media {
    pub store: Arc<Faults>,
    pub buffer: Arc<Faults>,
    _session: BackgroundSession,
}

struct Medium {
    file: File,
    faults: Arc<Faults>,
}

struct Server([Medium; 2]);

impl Media {
    /// Serves `store` and `buffer` of the directory `below` on `dir`.
    pub(crate) fn serve(below: &Path, dir: &Path) -> Media {
        let open = |name| {
            let file = OpenOptions::new().read(true).write(true).open(below.join(name)).expect("a medium");
            Medium { file, faults: Arc::default() }
        };
        let media = NAMES.map(open);
        let [store, buffer] = [0, 1].map(|index: usize| media[index].faults.clone());
        let session = fuser::spawn_mount(Server(media), dir, &fuser::Config::default()).expect("a mount");
        Media { store, buffer, _session: session }
    }
}

impl Server {
    fn medium(&self, ino: INodeNo) -> Result<&Medium, Errno> {
        self.0.get((ino.0 as usize).wrapping_sub(2)).ok_or(Errno::ENOENT)
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let size = self.medium(ino).map_or(0, |medium| medium.file.metadata().expect("it is there").len());
        let kind = if ino.0 == 1 { FileType::Directory } else { FileType::RegularFile };
        let (blocks, blksize, nlink) = (size.div_ceil(512), 4096, 1);
        let (uid, gid, rdev, flags, perm) = (0, 0, 0, 0, 0o700);
        let [atime, mtime, ctime, crtime] = [UNIX_EPOCH; 4];
        FileAttr {
            ino,
            size,
            blocks,
            atime,
            mtime,
            ctime,
            crtime,
            kind,
            perm,
            nlink,
            uid,
            gid,
            rdev,
            blksize,
            flags,
        }
    }
}

impl Medium {
    fn read(&self, offset: u64, size: u32) -> Result<Vec<u8>, Errno> {
        self.faults.check(&self.faults.reads)?;
        let mut bytes = vec![0; size as usize];
        self.file.read_exact_at(&mut bytes, offset).map_err(|_| Errno::EIO)?;
        Ok(bytes)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.faults.check(&self.faults.writes)?;
        self.file.write_all_at(bytes, offset).map_err(|_| Errno::EIO)
    }

    fn flush(&self) -> Result<(), Errno> {
        self.faults.check(&self.faults.flushes)?;
        self.file.sync_data().map_err(|_| Errno::EIO)
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match NAMES.iter().position(|known| name == *known) {
            Some(index) => reply.entry(&TTL, &self.attributes(INodeNo(index as u64 + 2)), Generation(0)),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attributes(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // The kernel caches nothing, so every call comes here.
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.medium(ino).and_then(|medium| medium.read(offset, size)) {
            Ok(bytes) => reply.data(&bytes),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        match self.medium(ino).and_then(|medium| medium.write(offset, bytes)) {
            Ok(()) => reply.written(bytes.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        match self.medium(ino).and_then(Medium::flush) {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

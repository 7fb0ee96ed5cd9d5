//! The peer: files and directories in maps, behind one lock, on `fuser`. A plain first implementation.
//!
//! It stores nothing durably, checks little, and drops a file with its name. It asks the kernel for the same
//! features as weir. weir.

use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime};

use clap::Args;
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    KernelConfig, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyWrite, Request, TimeOrNow, WriteFlags,
};

use super::super::error::BenchError;
use super::mounted::KernelCacheMode;

/// Arguments of the peer's process.
#[derive(Debug, Args)]
pub(crate) struct PeerArgs {
    directory: PathBuf,
    #[arg(long, default_value_t = 1)]
    threads: u8,
    #[arg(long, value_enum, default_value_t = KernelCacheMode::Full)]
    kernel_cache: KernelCacheMode,
}

/// Serves the file system until it is unmounted.
pub(crate) fn run_peer(args: &PeerArgs) -> Result<(), BenchError> {
    // A session of its own, as weir has. Schedulers that share processors out by session would otherwise
    // group the peer with the client: switches between the two would cost less than weir's, and the peer
    // would wait less on a busy machine.
    let _ = rustix::process::setsid();
    let mut config = fuser::Config::default();
    config.mount_options =
        vec![MountOption::FSName("weir-bench-peer".into()), MountOption::DefaultPermissions];
    config.n_threads = Some(usize::from(args.threads));
    config.clone_fd = args.threads > 1;
    fuser::Session::new(NullServer::new(args.kernel_cache), &args.directory, &config)
        .and_then(fuser::Session::run)
        .map_err(|error| BenchError::io("cannot mount the peer on", &args.directory, error))
}

struct PeerNode {
    attributes: FileAttr,
    body: PeerBody,
}

enum PeerBody {
    File(Vec<u8>),
    /// Entries by name, and in the order of creation, which is that of their inode numbers.
    Directory {
        by_name: HashMap<OsString, u64>,
        in_order: BTreeMap<u64, OsString>,
    },
}

impl PeerBody {
    fn directory() -> PeerBody {
        PeerBody::Directory { by_name: HashMap::new(), in_order: BTreeMap::new() }
    }
}

struct PeerNodes {
    nodes: HashMap<u64, PeerNode>,
    newest: u64,
}

struct NullServer {
    nodes: RwLock<PeerNodes>,
    kernel_cache: KernelCacheMode,
    /// Time for which the kernel may use a cached answer.
    ttl: Duration,
}

const ROOT: u64 = 1;

impl NullServer {
    fn new(kernel_cache: KernelCacheMode) -> NullServer {
        let root = PeerNode {
            attributes: attributes(ROOT, FileType::Directory, 0o755),
            body: PeerBody::directory(),
        };
        let nodes = PeerNodes { nodes: HashMap::from([(ROOT, root)]), newest: ROOT };
        NullServer { nodes: RwLock::new(nodes), kernel_cache, ttl: kernel_cache.ttl() }
    }

    fn read(&self) -> RwLockReadGuard<'_, PeerNodes> {
        self.nodes.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, PeerNodes> {
        self.nodes.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn attributes(ino: u64, kind: FileType, mode: u32) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm: (mode & 0o7777) as u16,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl PeerNodes {
    fn node(&self, ino: INodeNo) -> Result<&PeerNode, Errno> {
        self.nodes.get(&ino.0).ok_or(Errno::ENOENT)
    }

    fn node_mut(&mut self, ino: INodeNo) -> Result<&mut PeerNode, Errno> {
        self.nodes.get_mut(&ino.0).ok_or(Errno::ENOENT)
    }

    fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let PeerBody::Directory { by_name, .. } = &self.node(parent)?.body else {
            return Err(Errno::ENOTDIR);
        };
        let ino = by_name.get(name).ok_or(Errno::ENOENT)?;
        Ok(self.node(INodeNo(*ino))?.attributes)
    }

    fn make(
        &mut self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        body: PeerBody,
    ) -> Result<FileAttr, Errno> {
        let ino = self.newest + 1;
        let PeerBody::Directory { by_name, in_order } = &mut self.node_mut(parent)?.body else {
            return Err(Errno::ENOTDIR);
        };
        if by_name.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        by_name.insert(name.to_owned(), ino);
        in_order.insert(ino, name.to_owned());
        let kind = match body {
            PeerBody::File(_) => FileType::RegularFile,
            PeerBody::Directory { .. } => FileType::Directory,
        };
        let attributes = FileAttr { uid: request.uid(), gid: request.gid(), ..attributes(ino, kind, mode) };
        let directory = self.node_mut(parent)?;
        directory.attributes.mtime = attributes.mtime;
        directory.attributes.ctime = attributes.mtime;
        self.nodes.insert(ino, PeerNode { attributes, body });
        self.newest = ino;
        Ok(attributes)
    }

    fn remove(&mut self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let directory = self.node_mut(parent)?;
        let PeerBody::Directory { by_name, in_order } = &mut directory.body else {
            return Err(Errno::ENOTDIR);
        };
        let ino = by_name.remove(name).ok_or(Errno::ENOENT)?;
        in_order.remove(&ino);
        let now = SystemTime::now();
        directory.attributes.mtime = now;
        directory.attributes.ctime = now;
        self.nodes.remove(&ino);
        Ok(())
    }

    fn write(&mut self, ino: INodeNo, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let node = self.node_mut(ino)?;
        let PeerBody::File(bytes) = &mut node.body else { return Err(Errno::EISDIR) };
        let (start, end) = (offset as usize, offset as usize + data.len());
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
        node.attributes.size = bytes.len() as u64;
        node.attributes.blocks = node.attributes.size.div_ceil(512);
        let now = SystemTime::now();
        node.attributes.mtime = now;
        node.attributes.ctime = now;
        Ok(())
    }

    /// Calls `each` with number, name and attributes of the entries after `offset`, until `each` returns
    /// true: full.
    fn list(
        &self,
        ino: INodeNo,
        offset: u64,
        mut each: impl FnMut(u64, &OsStr, &FileAttr) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.node(ino)?;
        let PeerBody::Directory { in_order, .. } = &directory.body else { return Err(Errno::ENOTDIR) };
        // Entry numbers are above 2, so 1 and 2 are free for the dots.
        for (dot, name) in [(1, "."), (2, "..")] {
            if offset < dot && each(dot, OsStr::new(name), &directory.attributes) {
                return Ok(());
            }
        }
        for (&child, name) in in_order.range(offset.saturating_sub(1).max(2)..) {
            if each(child + 2, name, &self.node(INodeNo(child))?.attributes) {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Filesystem for NullServer {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        fuse::configure_kernel(config);
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let done = self.read().lookup(parent, name);
        match done {
            Ok(found) => reply.entry(&self.ttl, &found, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        let found = self.read().node(ino).map(|node| node.attributes);
        match found {
            Ok(found) => reply.attr(&self.ttl, &found),
            Err(error) => reply.error(error),
        }
    }

    /// Sets the size only; the benchmark sets nothing else.
    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        size: Option<u64>,
        _accessed: Option<TimeOrNow>,
        _modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _mac_changed: Option<SystemTime>,
        _mac_backup: Option<SystemTime>,
        _mac_flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        match self.write().node_mut(ino) {
            Ok(node) => {
                if let (Some(size), PeerBody::File(bytes)) = (size, &mut node.body) {
                    bytes.resize(size as usize, 0);
                    node.attributes.size = size;
                }
                reply.attr(&self.ttl, &node.attributes);
            }
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        let done = self.write().make(request, parent, name, mode, PeerBody::File(Vec::new()));
        match done {
            Ok(made) => reply.entry(&self.ttl, &made, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let done = self.write().make(request, parent, name, mode, PeerBody::directory());
        match done {
            Ok(made) => reply.entry(&self.ttl, &made, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let done = self.write().make(request, parent, name, mode, PeerBody::File(Vec::new()));
        match done {
            Ok(made) => {
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&self.ttl, &made, Generation(0), FileHandle(0), flags);
            }
            Err(error) => reply.error(error),
        }
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.write().remove(parent, name);
        match done {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        match self.kernel_cache {
            KernelCacheMode::Full => reply.error(Errno::ENOSYS),
            KernelCacheMode::None => reply.opened(FileHandle(0), FopenFlags::empty()),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.read().node(ino) {
            Ok(PeerNode { body: PeerBody::File(bytes), .. }) => {
                let start = bytes.len().min(offset as usize);
                let end = bytes.len().min(start + size as usize);
                reply.data(&bytes[start..end]);
            }
            Ok(_) => reply.error(Errno::EISDIR),
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let done = self.write().write(ino, offset, data);
        match done {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self
            .read()
            .list(ino, offset, |offset, name, found| reply.add(found.ino, offset, found.kind, name));
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let listed = self.read().list(ino, offset, |offset, name, found| {
            reply.add(found.ino, offset, name, &self.ttl, found, Generation(0))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }
}

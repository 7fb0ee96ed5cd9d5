//! Requests: a header, fixed arguments, then names or bytes.

use request::RequestKind;
use rustix::io::Errno;
use std::ffi::CStr;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// The header of every request.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub(crate) struct RequestHeader {
    /// Bytes of the whole request.
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    /// The request's number, for the reply.
    pub(crate) unique: u64,
    /// The inode on which the request operates.
    pub(crate) node: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) extensions: u32,
}

impl RequestHeader {
    /// Splits a request into its header and the rest; `None` if the request ends within its header.
    pub(crate) fn split(request: &[u8]) -> Option<(RequestHeader, &[u8])> {
        RequestHeader::read_from_prefix(request).ok()
    }

    /// Whether the kernel waits for a reply.
    pub(crate) fn wants_reply(&self) -> bool {
        !matches!(self.opcode, opcode::FORGET | opcode::BATCH_FORGET | opcode::NOTIFY_REPLY)
    }
}

pub(super) mod opcode {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;
}

/// FUSE_WRITE_KILL_SUIDGID, a flag of [`FuseOp::Write`]: the file loses its privileges before its content
/// changes.
pub(crate) const WRITE_KILLS_PRIVILEGES: u32 = 1 << 2;

/// FUSE_WRITE_CACHE, a flag of [`FuseOp::Write`]: the kernel writes a page of its cache back, for no task.
pub(crate) const IS_WRITE_BACK: u32 = 1 << 0;

/// FUSE_READ_LOCKOWNER and FUSE_WRITE_LOCKOWNER: the request names an owner of locks. The kernel sets this
/// flag for reads and writes around its page cache (O_DIRECT), and for no others.
pub(crate) const IS_DIRECT_IO: u32 = 1 << 1;

/// The width of the byte count in the reply to a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CopyCount {
    Bits32,
    Bits64,
}

/// A decoded request. Names are not empty, and have no zero byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FuseOp<'a> {
    Lookup { name: &'a [u8] },
    Forget { lookups: u64 },
    BatchForget(BatchForget<'a>),
    Getattr,
    Setattr(SetattrIn),
    Readlink,
    Symlink { name: &'a [u8], target: &'a [u8] },
    Mknod { name: &'a [u8], mode: u32, device: u32, umask: u32 },
    Mkdir { name: &'a [u8], mode: u32, umask: u32 },
    Unlink { name: &'a [u8] },
    Rmdir { name: &'a [u8] },
    Rename { name: &'a [u8], new_parent: u64, new_name: &'a [u8], flags: u32 },
    Link { of: u64, name: &'a [u8] },
    Open { flags: i32 },
    Read { offset: u64, size: u32, flags: u32 },
    Write { handle: u64, offset: u64, data: &'a [u8], flags: u32, open_flags: i32 },
    Statfs,
    Release,
    Fsync,
    Setxattr { name: &'a [u8], value: &'a [u8], flags: i32 },
    Getxattr { name: &'a [u8], size: u32 },
    Listxattr { size: u32 },
    Removexattr { name: &'a [u8] },
    Opendir,
    Readdir { offset: u64, size: u32 },
    Readdirplus { offset: u64, size: u32 },
    Releasedir,
    Fsyncdir,
    Create { name: &'a [u8], mode: u32, umask: u32 },
    Destroy,
    Fallocate { offset: u64, len: u64, mode: i32 },
    Lseek { offset: i64, whence: i32 },
    CopyFileRange { offset: u64, to: u64, to_offset: u64, len: u64, count: CopyCount },
}

impl<'a> FuseOp<'a> {
    /// Decodes the request with this header and `body`.
    ///
    /// # Errors
    /// ENOSYS for an operation that weir does not have: the kernel then does without it, and mostly does not
    /// ask again. EIO for a body that ends too early.
    pub(crate) fn decode(header: &RequestHeader, body: &'a [u8]) -> Result<FuseOp<'a>, Errno> {
        match FuseOp::on_name(header.opcode, RequestBody(body))? {
            Some(op) => Ok(op),
            None => FuseOp::on_inode(header.opcode, RequestBody(body)),
        }
    }

    /// The kind of request under which it is reported.
    pub(crate) fn kind(&self) -> RequestKind {
        match self {
            FuseOp::Lookup { .. } => RequestKind::Lookup,
            FuseOp::Getattr => RequestKind::Getattr,
            FuseOp::Setattr(_)
            | FuseOp::Setxattr { .. }
            | FuseOp::Removexattr { .. }
            | FuseOp::Fallocate { .. } => RequestKind::Setattr,
            FuseOp::Read { .. } => RequestKind::Read,
            FuseOp::Write { .. } | FuseOp::CopyFileRange { .. } => RequestKind::Write,
            FuseOp::Fsync | FuseOp::Fsyncdir => RequestKind::Fsync,
            FuseOp::Symlink { .. }
            | FuseOp::Mknod { .. }
            | FuseOp::Mkdir { .. }
            | FuseOp::Create { .. }
            | FuseOp::Link { .. } => RequestKind::Create,
            FuseOp::Unlink { .. } | FuseOp::Rmdir { .. } => RequestKind::Unlink,
            FuseOp::Rename { .. } => RequestKind::Rename,
            FuseOp::Readdir { .. } | FuseOp::Readdirplus { .. } => RequestKind::Readdir,
            FuseOp::Forget { .. }
            | FuseOp::BatchForget(_)
            | FuseOp::Readlink
            | FuseOp::Open { .. }
            | FuseOp::Statfs
            | FuseOp::Release
            | FuseOp::Getxattr { .. }
            | FuseOp::Listxattr { .. }
            | FuseOp::Opendir
            | FuseOp::Releasedir
            | FuseOp::Lseek { .. }
            | FuseOp::Destroy => RequestKind::Other,
        }
    }

    /// Decodes an operation on a name in a directory or on an attribute's name; `None` for all others.
    fn on_name(opcode: u32, mut body: RequestBody<'a>) -> Result<Option<FuseOp<'a>>, Errno> {
        let op = match opcode {
            opcode::LOOKUP => FuseOp::Lookup { name: body.name()? },
            opcode::SYMLINK => FuseOp::Symlink { name: body.name()?, target: body.string()? },
            opcode::MKNOD => {
                let MknodIn { mode, device, umask, .. } = body.take()?;
                FuseOp::Mknod { name: body.name()?, mode, device, umask }
            }
            opcode::MKDIR => {
                let MkdirIn { mode, umask } = body.take()?;
                FuseOp::Mkdir { name: body.name()?, mode, umask }
            }
            opcode::UNLINK => FuseOp::Unlink { name: body.name()? },
            opcode::RMDIR => FuseOp::Rmdir { name: body.name()? },
            opcode::RENAME => {
                let new_parent = body.take()?;
                FuseOp::Rename { name: body.name()?, new_parent, new_name: body.name()?, flags: 0 }
            }
            opcode::RENAME2 => {
                let Rename2In { new_parent, flags, .. } = body.take()?;
                FuseOp::Rename { name: body.name()?, new_parent, new_name: body.name()?, flags }
            }
            opcode::LINK => FuseOp::Link { of: body.take()?, name: body.name()? },
            opcode::CREATE => {
                let CreateIn { mode, umask, .. } = body.take()?;
                FuseOp::Create { name: body.name()?, mode, umask }
            }
            opcode::SETXATTR => {
                let SetxattrIn { size, flags } = body.take()?;
                FuseOp::Setxattr { name: body.name()?, value: body.bytes(size)?, flags }
            }
            opcode::GETXATTR => {
                let GetxattrIn { size, .. } = body.take()?;
                FuseOp::Getxattr { name: body.name()?, size }
            }
            opcode::REMOVEXATTR => FuseOp::Removexattr { name: body.name()? },
            _ => return Ok(None),
        };
        Ok(Some(op))
    }

    fn on_inode(opcode: u32, mut body: RequestBody<'a>) -> Result<FuseOp<'a>, Errno> {
        let op = match opcode {
            opcode::FORGET => FuseOp::Forget { lookups: body.take()? },
            opcode::BATCH_FORGET => FuseOp::BatchForget(BatchForget::decode(body)?),
            opcode::GETATTR => FuseOp::Getattr,
            opcode::SETATTR => FuseOp::Setattr(body.take()?),
            opcode::READLINK => FuseOp::Readlink,
            opcode::OPEN => {
                let OpenIn { flags, .. } = body.take()?;
                FuseOp::Open { flags }
            }
            opcode::READ => {
                let ReadIn { offset, size, flags, .. } = body.take()?;
                FuseOp::Read { offset, size, flags }
            }
            opcode::WRITE => {
                let WriteIn { handle, offset, size, flags, open_flags, .. } = body.take()?;
                FuseOp::Write { handle, offset, data: body.bytes(size)?, flags, open_flags }
            }
            opcode::STATFS => FuseOp::Statfs,
            opcode::RELEASE => FuseOp::Release,
            opcode::FSYNC => FuseOp::Fsync,
            opcode::LISTXATTR => {
                let GetxattrIn { size, .. } = body.take()?;
                FuseOp::Listxattr { size }
            }
            opcode::OPENDIR => FuseOp::Opendir,
            opcode::READDIR => {
                let ReadIn { offset, size, .. } = body.take()?;
                FuseOp::Readdir { offset, size }
            }
            opcode::READDIRPLUS => {
                let ReadIn { offset, size, .. } = body.take()?;
                FuseOp::Readdirplus { offset, size }
            }
            opcode::RELEASEDIR => FuseOp::Releasedir,
            opcode::FSYNCDIR => FuseOp::Fsyncdir,
            opcode::DESTROY => FuseOp::Destroy,
            opcode::FALLOCATE => {
                let FallocateIn { offset, len, mode, .. } = body.take()?;
                FuseOp::Fallocate { offset, len, mode }
            }
            opcode::LSEEK => {
                let LseekIn { offset, whence, .. } = body.take()?;
                FuseOp::Lseek { offset, whence }
            }
            opcode::COPY_FILE_RANGE => body.take::<CopyIn>()?.counted(CopyCount::Bits32),
            opcode::COPY_FILE_RANGE_64 => body.take::<CopyIn>()?.counted(CopyCount::Bits64),
            _ => return Err(Errno::NOSYS),
        };
        Ok(op)
    }
}

/// The part of a request's body that is not decoded yet.
struct RequestBody<'a>(&'a [u8]);

impl<'a> RequestBody<'a> {
    /// Takes the next bytes as a structure of any alignment.
    fn take<T: FromBytes>(&mut self) -> Result<T, Errno> {
        let (taken, rest) = T::read_from_prefix(self.0).map_err(|_| Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    fn bytes(&mut self, len: u32) -> Result<&'a [u8], Errno> {
        let (taken, rest) = self.0.split_at_checked(len as usize).ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Takes the bytes before the next zero byte.
    fn string(&mut self) -> Result<&'a [u8], Errno> {
        let string = CStr::from_bytes_until_nul(self.0).map_err(|_| Errno::IO)?;
        self.0 = &self.0[string.count_bytes() + 1..];
        Ok(string.to_bytes())
    }

    fn name(&mut self) -> Result<&'a [u8], Errno> {
        self.string().and_then(|name| if name.is_empty() { Err(Errno::IO) } else { Ok(name) })
    }
}

/// The inodes of a BATCH_FORGET, as bytes of the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BatchForget<'a>(&'a [u8]);

#[derive(FromBytes)]
#[repr(C)]
struct ForgottenInode {
    node: u64,
    lookups: u64,
}

impl<'a> BatchForget<'a> {
    fn decode(mut body: RequestBody<'a>) -> Result<BatchForget<'a>, Errno> {
        let BatchForgetIn { count, .. } = body.take()?;
        let len = count.checked_mul(size_of::<ForgottenInode>() as u32).ok_or(Errno::IO)?;
        body.bytes(len).map(BatchForget)
    }

    /// Each inode, with the number of look-ups to remove.
    pub(crate) fn nodes(self) -> impl Iterator<Item = (u64, u64)> {
        let nodes = self.0.chunks_exact(size_of::<ForgottenInode>());
        nodes.filter_map(|node| ForgottenInode::read_from_bytes(node).ok()).map(|one| (one.node, one.lookups))
    }
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SetTimeIn {
    Now,
    /// Seconds since 1970, and nanoseconds after that second.
    To(i64, u32),
}

/// Attributes to set: those whose bits are in `valid`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
pub(crate) struct SetattrIn {
    pub(crate) valid: u32,
    pub(crate) padding: u32,
    pub(crate) handle: u64,
    pub(crate) size: u64,
    pub(crate) lock_owner: u64,
    pub(crate) accessed: i64,
    pub(crate) modified: i64,
    pub(crate) changed: i64,
    pub(crate) accessed_nanos: u32,
    pub(crate) modified_nanos: u32,
    pub(crate) changed_nanos: u32,
    pub(crate) mode: u32,
    pub(crate) unused4: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) unused5: u32,
}

impl SetattrIn {
    pub(crate) const MODE: u32 = 1 << 0;
    pub(crate) const UID: u32 = 1 << 1;
    pub(crate) const GID: u32 = 1 << 2;
    pub(crate) const SIZE: u32 = 1 << 3;
    pub(crate) const ACCESSED: u32 = 1 << 4;
    pub(crate) const MODIFIED: u32 = 1 << 5;
    pub(crate) const ACCESSED_NOW: u32 = 1 << 7;
    pub(crate) const MODIFIED_NOW: u32 = 1 << 8;
    pub(crate) const KILLS_PRIVILEGES: u32 = 1 << 11;

    fn has(&self, flag: u32) -> bool {
        self.valid & flag != 0
    }

    pub(crate) fn mode(&self) -> Option<u32> {
        self.has(Self::MODE).then_some(self.mode)
    }

    pub(crate) fn uid(&self) -> Option<u32> {
        self.has(Self::UID).then_some(self.uid)
    }

    pub(crate) fn gid(&self) -> Option<u32> {
        self.has(Self::GID).then_some(self.gid)
    }

    pub(crate) fn size(&self) -> Option<u64> {
        self.has(Self::SIZE).then_some(self.size)
    }

    pub(crate) fn accessed(&self) -> Option<SetTimeIn> {
        let to = SetTimeIn::To(self.accessed, self.accessed_nanos);
        let time = if self.has(Self::ACCESSED_NOW) { SetTimeIn::Now } else { to };
        self.has(Self::ACCESSED).then_some(time)
    }

    pub(crate) fn modified(&self) -> Option<SetTimeIn> {
        let to = SetTimeIn::To(self.modified, self.modified_nanos);
        let time = if self.has(Self::MODIFIED_NOW) { SetTimeIn::Now } else { to };
        self.has(Self::MODIFIED).then_some(time)
    }

    /// Whether the file loses its privileges: it gets a new owner, or a new size from a process without
    /// CAP_FSETID.
    pub(crate) fn kills_privileges(&self) -> bool {
        self.has(Self::KILLS_PRIVILEGES)
    }
}

#[repr(C)]
#[derive(FromBytes)]
struct BatchForgetIn {
    count: u32,
    _dummy: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct MknodIn {
    mode: u32,
    device: u32,
    umask: u32,
    _padding: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct MkdirIn {
    mode: u32,
    umask: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct Rename2In {
    new_parent: u64,
    flags: u32,
    _padding: u32,
}

/// Of reads, and of listings, for which `offset` is where the last one ended.
#[repr(C)]
#[derive(FromBytes)]
struct ReadIn {
    _handle: u64,
    offset: u64,
    size: u32,
    flags: u32,
    _lock_owner: u64,
    _open_flags: u32,
    _padding: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct OpenIn {
    flags: i32,
    _open_flags: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct WriteIn {
    handle: u64,
    offset: u64,
    size: u32,
    flags: u32,
    _lock_owner: u64,
    open_flags: i32,
    _padding: u32,
}

/// Without the fields of FUSE_SETXATTR_EXT, which weir does not request.
#[repr(C)]
#[derive(FromBytes)]
struct SetxattrIn {
    size: u32,
    flags: i32,
}

/// Also for LISTXATTR.
#[repr(C)]
#[derive(FromBytes)]
struct GetxattrIn {
    size: u32,
    _padding: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct CreateIn {
    _open_flags: u32,
    mode: u32,
    umask: u32,
    _flags: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct FallocateIn {
    _handle: u64,
    offset: u64,
    len: u64,
    mode: i32,
    _padding: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct LseekIn {
    _handle: u64,
    offset: i64,
    whence: i32,
    _padding: u32,
}

#[repr(C)]
#[derive(FromBytes)]
struct CopyIn {
    _handle: u64,
    offset: u64,
    to: u64,
    _to_handle: u64,
    to_offset: u64,
    len: u64,
    _flags: u64,
}

impl CopyIn {
    fn counted(self, count: CopyCount) -> FuseOp<'static> {
        let CopyIn { offset, to, to_offset, len, .. } = self;
        FuseOp::CopyFileRange { offset, to, to_offset, len, count }
    }
}

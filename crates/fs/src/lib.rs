#![doc = include_str!("../README.md")]
use cache::{Cache, CacheError};
use device::{Clock, Sequence};
use std::sync::Arc;

/// An inode's number, as programs see it: derived from its place, mixed with the file system's secret, so that it
/// is stable over mounts and tells nobody where the inode lies. The root is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// What a file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
}

/// What `stat` tells. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The number.
    pub ino: Ino,
    /// Which of the files that have had this number; (ino, generation) is never used again.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that it is charged for: size rounded up to blocks, a bound where the file has holes.
    pub stored_bytes: u64,
    /// Permission bits, with setuid, setgid and sticky: the lowest 12 bits of a mode.
    pub mode: u16,
    /// Links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last access, as far as it is kept.
    pub accessed: i64,
    /// Last change of content.
    pub modified: i64,
    /// Last change of attributes.
    pub changed: i64,
    /// Creation.
    pub created: i64,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user whom a new file belongs to.
    pub uid: u32,
    /// Its group, unless the directory passes on its own.
    pub gid: u32,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time now.
    Now,
    /// This time.
    To(i64),
}

/// Which attributes to set; `None` leaves one as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size: bytes past it go, new ones are zeros.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of content.
    pub modified: Option<SetTime>,
}

/// What to do when the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// The new name's file goes.
    Replace,
    /// Nothing happens: [`FsError::Exists`].
    Refuse,
}

/// One entry of a directory. `.` and `..` are not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Where to go on after this entry; never 0, stable while the directory changes.
    pub cookie: u64,
    /// Whose name it is.
    pub ino: Ino,
    /// What it is.
    pub kind: Kind,
    /// The name.
    pub name: &'a [u8],
}

/// Sizes for `statfs`, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Blocks in all.
    pub blocks: u64,
    /// Blocks that can still be written.
    pub free: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// Why an operation failed; each names its errno at the doors.
#[derive(Debug, Clone, thiserror::Error)]
pub enum FsError {
    /// ENOENT
    #[error("no such file or directory")]
    NotFound,
    /// EEXIST
    #[error("the name exists")]
    Exists,
    /// ENOTDIR
    #[error("not a directory")]
    NotDirectory,
    /// EISDIR
    #[error("is a directory")]
    IsDirectory,
    /// ENOTEMPTY
    #[error("the directory is not empty")]
    NotEmpty,
    /// ENAMETOOLONG
    #[error("the name is longer than 255 bytes, or the link than 4095")]
    NameTooLong,
    /// EINVAL
    #[error("invalid argument")]
    Invalid,
    /// EFBIG
    #[error("past the largest file")]
    TooLarge,
    /// EMLINK
    #[error("too many links")]
    TooManyLinks,
    /// ENOSPC
    #[error("no space left")]
    NoSpace,
    /// ESTALE
    #[error("the file is gone")]
    Stale,
    /// EPERM
    #[error("not permitted")]
    NotPermitted,
    /// EIO
    #[error("{0}")]
    Cache(CacheError),
    /// EIO
    #[error("metadata at arena offset {offset}: {what}; run `weir check`")]
    Corrupt {
        /// Where.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

/// A completion: called once, with no lock held, maybe on the caller's own thread before the call returns.
pub type Done<T> = Box<dyn FnOnce(Result<T, FsError>) + Send>;

/// The file system.
pub struct Fs {}

impl Fs {
    /// Makes an empty file system whose root belongs to `owner`; `secret` mixes inode numbers and name hashes.
    pub fn create(cache: &Arc<Cache>, clock: &dyn Clock, owner: Caller, secret: [u8; 16]) -> Result<(), FsError> {
        let _ = (cache, clock, owner, secret);
        unimplemented!()
    }

    /// Opens the file system in `cache`; deletes what was unlinked but open at the last stop.
    pub fn open(cache: Arc<Cache>, clock: Arc<dyn Clock>) -> Result<Fs, FsError> {
        let _ = (cache, clock);
        unimplemented!()
    }

    /// The file that `name` names. Adds nothing to its open count.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attributes, FsError> {
        let _ = (parent, name);
        unimplemented!()
    }

    /// A file's attributes.
    pub fn attributes(&self, ino: Ino) -> Result<Attributes, FsError> {
        let _ = ino;
        unimplemented!()
    }

    /// Sets attributes, as one transaction.
    pub fn set_attributes(&self, ino: Ino, set: SetAttributes, done: Done<Attributes>) {
        let _ = (ino, set, done);
        unimplemented!()
    }

    /// Makes a file or a directory.
    pub fn make(&self, caller: Caller, parent: Ino, name: &[u8], kind: Kind, mode: u16, done: Done<Attributes>) {
        let _ = (caller, parent, name, kind, mode, done);
        unimplemented!()
    }

    /// Makes a symbolic link.
    pub fn symlink(&self, caller: Caller, parent: Ino, name: &[u8], target: &[u8], done: Done<Attributes>) {
        let _ = (caller, parent, name, target, done);
        unimplemented!()
    }

    /// A symbolic link's target.
    pub fn read_link(&self, ino: Ino) -> Result<Vec<u8>, FsError> {
        let _ = ino;
        unimplemented!()
    }

    /// Gives a file another name.
    pub fn link(&self, ino: Ino, parent: Ino, name: &[u8], done: Done<Attributes>) {
        let _ = (ino, parent, name, done);
        unimplemented!()
    }

    /// Takes a name from a file; the file goes with its last name and its last opener.
    pub fn unlink(&self, parent: Ino, name: &[u8], done: Done<()>) {
        let _ = (parent, name, done);
        unimplemented!()
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: Ino, name: &[u8], done: Done<()>) {
        let _ = (parent, name, done);
        unimplemented!()
    }

    /// Moves a name.
    pub fn rename(
        &self,
        from: (Ino, &[u8]),
        to: (Ino, &[u8]),
        if_exists: IfExists,
        done: Done<()>,
    ) {
        let _ = (from, to, if_exists, done);
        unimplemented!()
    }

    /// Counts an opener (a handle, or the kernel's memory of the inode): an unlinked file lives until the last one is closed.
    pub fn hold(&self, ino: Ino) -> Result<(), FsError> {
        let _ = ino;
        unimplemented!()
    }

    /// Takes back `times` of [`hold`](Fs::hold).
    pub fn unhold(&self, ino: Ino, times: u64) {
        let _ = (ino, times);
        unimplemented!()
    }

    /// Reads at most `len` bytes from `offset` on; fewer at the end of the file.
    pub fn read(&self, ino: Ino, offset: u64, len: usize, done: Done<Vec<u8>>) {
        let _ = (ino, offset, len, done);
        unimplemented!()
    }

    /// Writes all of `bytes` at `offset`, as one transaction with size and times. Completes when visible; durable
    /// after a later `sync`, or `commit_interval`.
    pub fn write(&self, ino: Ino, offset: u64, bytes: Vec<u8>, done: Done<()>) {
        let _ = (ino, offset, bytes, done);
        unimplemented!()
    }

    /// Calls `each` with the entries after `cookie` (0: from the start), in an order that does not change, until
    /// it returns `false`.
    pub fn read_directory(
        &self,
        ino: Ino,
        cookie: u64,
        each: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<(), FsError> {
        let _ = (ino, cookie, each);
        unimplemented!()
    }

    /// The directory that holds this directory; the root's is the root.
    pub fn parent(&self, ino: Ino) -> Result<Ino, FsError> {
        let _ = ino;
        unimplemented!()
    }

    /// Completes when every operation completed before the call is durable. One for all files: the order is one.
    pub fn sync(&self, done: Done<()>) {
        let _ = done;
        unimplemented!()
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        unimplemented!()
    }

    /// The newest sequence, for tests.
    pub fn newest(&self) -> Sequence {
        unimplemented!()
    }
}

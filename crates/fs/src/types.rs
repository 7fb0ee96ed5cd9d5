//! What callers say and are told.

use crate::error::FsError;

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
    /// A named pipe; the kernel keeps what is in it.
    Fifo,
    /// A socket's name; the kernel keeps who listens.
    Socket,
    /// A character device, known by its number.
    CharDevice,
    /// A block device, known by its number.
    BlockDevice,
}

/// What `stat` tells. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    /// The number.
    pub ino: Ino,
    /// Which of the files that have had this number; (ino, generation) is never used again, unless a crash took the file back.
    pub generation: u32,
    /// What it is.
    pub kind: Kind,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that it is charged for: what it has; more where pages of a file with holes
    /// were written again.
    pub stored_bytes: u64,
    /// Permission bits, with setuid, setgid and sticky: the lowest 12 bits of a mode.
    pub mode: u16,
    /// Links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// A device's number, as the kernel encodes it; 0 for everything else.
    pub device: u32,
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
    /// Permission bits that a new file does not get, unless the directory has a default ACL.
    pub umask: u16,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The time now.
    Now,
    /// This time.
    To(i64),
}

/// What becomes of setuid, setgid and capabilities: powers that a file's content was given, and that new content has
/// not earned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Privileges {
    /// They stay.
    #[default]
    Keep,
    /// They go: setuid, setgid where the group may execute, and `security.capability`.
    Drop,
    /// So does setgid without group execution, which only a member of the file's group may keep.
    DropAll,
}

/// When an extended attribute may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattr {
    /// Whether it is there or not.
    Any,
    /// Unless it is there: [`FsError::Exists`].
    Create,
    /// If it is there: else [`FsError::NoXattr`].
    Replace,
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
    /// The file's powers. A new owner or group takes them in any case.
    pub privileges: Privileges,
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
    /// Blocks that can be used: without those that are kept for deletions and for the store itself.
    pub blocks: u64,
    /// Of these, blocks that can still be written.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that can still be made.
    pub inodes_free: u64,
}

/// As [`cache::CacheCompletion`], and with no lock of the file system held.
pub type Completion<T> = cache::CacheCompletion<T, FsError>;

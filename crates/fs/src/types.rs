//! The arguments and results of [`Fs`](crate::Fs).

use crate::error::FsError;

/// An inode's number, as programs see it.
///
/// The number is the inode's slot under a permutation that the file system's secret selects: stable over
/// mounts, and no hint of where the inode lies. The root is 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ino(pub u64);

impl Ino {
    /// The root directory.
    pub const ROOT: Ino = Ino(1);
}

/// The kind of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A named pipe; its content is in the kernel.
    Fifo,
    /// A socket's name; the socket is in the kernel.
    Socket,
    /// A character device, identified by its number.
    CharDevice,
    /// A block device, identified by its number.
    BlockDevice,
}

/// Attributes for `stat`. Times are nanoseconds since 1970-01-01 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileAttributes {
    /// The inode's number.
    pub ino: Ino,
    /// Tells apart files that have had one number. A pair (ino, generation) is used again only if a crash
    /// took its file back.
    pub generation: u32,
    /// The file's kind.
    pub kind: FileKind,
    /// Bytes.
    pub size: u64,
    /// Bytes of storage that the file is charged for. More than it has, if pages of a sparse file were
    /// written again.
    pub stored_bytes: u64,
    /// Permission bits, with setuid, setgid and sticky: the lowest 12 bits of a mode.
    pub mode: u16,
    /// Links.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// A device's number, as the kernel encodes it; 0 for other kinds.
    pub device: u32,
    /// Creation, or the last access time that was set: reading does not change it.
    pub accessed: i64,
    /// Last change of content.
    pub modified: i64,
    /// Last change of attributes.
    pub changed: i64,
    /// Creation.
    pub created: i64,
}

/// The credentials of the process that creates a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallerCredentials {
    /// The owner of a new file.
    pub uid: u32,
    /// The group of a new file, unless its directory has setgid.
    pub gid: u32,
    /// Permission bits to clear in a new file, unless its directory has a default ACL.
    pub umask: u16,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present time.
    Now,
    /// This time.
    To(i64),
}

/// Whether a file loses its privileges: setuid, setgid and capabilities, which its owner gave to its old
/// content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PrivilegeChange {
    /// Privileges stay.
    #[default]
    Keep,
    /// Drops setuid, `security.capability`, and setgid if the group may execute.
    Drop,
    /// Like `Drop`, and drops setgid without group execution, too, which only a member of the file's group
    /// may keep.
    DropAll,
}

/// When an extended attribute may be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetXattrMode {
    /// Whether it exists or not.
    Any,
    /// Only if it does not exist: else [`FsError::Exists`].
    Create,
    /// Only if it exists: else [`FsError::NoXattr`].
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
    /// Size. Bytes past it are removed, new ones are zeros.
    pub size: Option<u64>,
    /// Last access.
    pub accessed: Option<SetTime>,
    /// Last change of content.
    pub modified: Option<SetTime>,
    /// Whether the file loses its privileges. With a new owner or group it does in any case.
    pub privileges: PrivilegeChange,
}

/// What a rename does if the new name exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// The new name's file loses that name.
    Replace,
    /// The rename fails with [`FsError::Exists`].
    Refuse,
}

/// One entry of a directory, never `.` or `..`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryEntry<'a> {
    /// Continues a listing after this entry. Never 0, and stable while the directory changes.
    pub cookie: u64,
    /// The inode with this name.
    pub ino: Ino,
    /// The file's kind.
    pub kind: FileKind,
    /// The name.
    pub name: &'a [u8],
}

/// Sizes for `statfs`, in blocks of 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FsUsage {
    /// Usable blocks, without those reserved for deletions and for the store itself.
    pub blocks: u64,
    /// Usable blocks that can still be written.
    pub available: u64,
    /// Inodes in all.
    pub inodes: u64,
    /// Inodes that can still be created.
    pub inodes_free: u64,
}

/// Like [`cache::CacheCompletion`], and called without a lock of the file system.
pub type FsCompletion<T> = cache::CacheCompletion<T, FsError>;

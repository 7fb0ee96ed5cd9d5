//! Typed operations. Before the model, an operation refers to files by the traced process's descriptor
//! numbers; in a compiled trace, by handle ([`Handle`]).

use crate::names::Name;
use serde::{Deserialize, Serialize};

/// An open file description of a compiled trace. Handles are numbered from 0 and never reused.
pub type Handle = u32;
/// No handle. In a place: the path is absolute. In a failed open: nothing was opened.
pub const NO_HANDLE: Handle = Handle::MAX;

/// The result of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Success, with the value.
    Value(i64),
    /// An error, by the kernel's number.
    Error(i32),
    /// The call never returned, or its result is unknown.
    Unknown,
}

impl Outcome {
    /// Whether the call is known to have succeeded.
    pub fn succeeded(self) -> bool {
        matches!(self, Outcome::Value(_))
    }

    /// The value of a success if not negative; 0 otherwise.
    pub fn bytes(self) -> u64 {
        match self {
            Outcome::Value(value) => value.max(0) as u64,
            _ => 0,
        }
    }
}

/// Where a file is: a path, and the directory from which a relative path starts. An empty path means the
/// descriptor itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place<D> {
    /// The directory from which a relative path starts.
    pub dir: D,
    /// The path, as the program gave it.
    pub path: Name,
}

/// The attributes of a file that a program saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Size in bytes.
    pub size: u64,
    /// The inode number in the traced file system; 0 if the trace does not show it. Only the model needs the
    /// number: it is 0 in a compiled trace.
    pub inode: u64,
}

/// The kind of a synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncKind {
    /// fsync.
    File,
    /// fdatasync.
    Data,
    /// syncfs.
    FileSystem,
    /// sync_file_range, with start and length.
    Range(u64, u64),
    /// F_FULLFSYNC of another platform: always durable, whatever fsync means in the replay.
    Full,
}

/// The kind of lock that a call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Shared with other readers.
    Shared,
    /// Exclusive.
    Exclusive,
    /// Release the lock.
    Unlock,
}

/// The owner of a byte-range lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockOwner {
    /// The process (F_SETLK).
    Process,
    /// The open file description (F_OFD_SETLK).
    Description,
}

/// One request of an asynchronous batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request<D> {
    /// The file.
    pub on: D,
    /// The kind of request.
    pub kind: RequestKind,
    /// Start, in bytes.
    pub start: u64,
    /// Length, in bytes.
    pub bytes: u64,
}

/// The kind of an asynchronous request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestKind {
    /// Reads from the file.
    Read,
    /// Writes to the file.
    Write,
    /// fsync or fdatasync.
    Sync,
}

/// An operation that a replay executes. The variants' order is part of the format: new ones go to the
/// end, and make a new version.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the arguments of the call that the variant names")]
pub enum Op<D> {
    /// Nothing to execute.
    Nothing,
    /// open, openat, openat2, creat. `made` is the handle of the opened file.
    Open {
        at: Place<D>,
        flags: u32,
        mode: u32,
        made: D,
    },
    /// Closes the last references: by close, dup2, exec, or the end of a process. Descriptions in `unlocked`
    /// stay open and lose the byte-range locks taken through them.
    Close {
        all: Box<[D]>,
        unlocked: Box<[D]>,
    },
    /// read and its family; `at` is the position of the positional forms.
    Read {
        on: D,
        bytes: u64,
        at: Option<u64>,
    },
    /// write and its family.
    Write {
        on: D,
        bytes: u64,
        at: Option<u64>,
    },
    Seek {
        on: D,
        offset: i64,
        whence: u32,
    },
    /// stat and its family, by path or descriptor.
    Stat {
        at: Place<D>,
        follow: bool,
        seen: Option<Seen>,
    },
    Access {
        at: Place<D>,
        mode: u32,
    },
    ReadLink {
        at: Place<D>,
        target: Option<Name>,
    },
    StatFs {
        at: Place<D>,
    },
    MakeDir {
        at: Place<D>,
        mode: u32,
    },
    RemoveDir {
        at: Place<D>,
    },
    Unlink {
        at: Place<D>,
    },
    Rename {
        from: Place<D>,
        to: Place<D>,
        flags: u32,
    },
    Link {
        from: Place<D>,
        to: Place<D>,
        follow: bool,
    },
    Symlink {
        target: Name,
        at: Place<D>,
    },
    SetMode {
        at: Place<D>,
        mode: u32,
    },
    SetOwner {
        at: Place<D>,
        follow: bool,
        user: Option<u32>,
        group: Option<u32>,
    },
    SetTimes {
        at: Place<D>,
        follow: bool,
    },
    /// truncate and ftruncate.
    Resize {
        at: Place<D>,
        size: u64,
    },
    Allocate {
        on: D,
        mode: u32,
        start: u64,
        bytes: u64,
    },
    Advise {
        on: D,
        start: u64,
        bytes: u64,
        advice: u32,
    },
    Sync {
        on: D,
        kind: SyncKind,
    },
    SyncAll,
    /// getdents.
    List {
        on: D,
        bytes: u64,
    },
    Flock {
        on: D,
        kind: LockKind,
    },
    /// fcntl locks. In a compiled trace, `on` is the description through which the owner holds its locks.
    Lock {
        on: D,
        kind: LockKind,
        start: u64,
        bytes: u64,
        owner: LockOwner,
    },
    /// copy_file_range and sendfile between files.
    Copy {
        from: D,
        from_at: Option<u64>,
        to: D,
        to_at: Option<u64>,
        bytes: u64,
    },
    /// io_submit; `first` numbers the requests, in the order of submission.
    Submit {
        context: u32,
        first: u32,
        requests: Box<[Request<D>]>,
    },
    /// io_getevents: waits until these requests are done.
    Collect {
        context: u32,
        requests: Box<[u32]>,
    },
    /// chdir. `made` is the handle of the new working directory.
    ChangeDir {
        at: Place<D>,
        made: D,
    },
    /// mknod, and bind to a name. Regular files and sockets are made as such; a stand-in replaces all other
    /// kinds.
    MakeNode {
        at: Place<D>,
        mode: u32,
    },
    /// preadv2 with flags.
    ReadWith {
        on: D,
        bytes: u64,
        at: Option<u64>,
        flags: u32,
    },
    /// pwritev2 with flags.
    WriteWith {
        on: D,
        bytes: u64,
        at: Option<u64>,
        flags: u32,
    },
    /// F_SETFL.
    SetFlags {
        on: D,
        flags: u32,
    },
    /// getxattr and its family. Zero bytes: only the size is asked for.
    GetAttribute {
        at: Place<D>,
        follow: bool,
        name: Name,
        bytes: u64,
    },
    SetAttribute {
        at: Place<D>,
        follow: bool,
        name: Name,
        bytes: u64,
        flags: u32,
    },
    ListAttributes {
        at: Place<D>,
        follow: bool,
        bytes: u64,
    },
    RemoveAttribute {
        at: Place<D>,
        follow: bool,
        name: Name,
    },
    /// exchangedata of another platform: exchanges the files of two names.
    Exchange {
        one: Place<D>,
        other: Place<D>,
    },
}

//! Typed operations. Each exists with two kinds of files: descriptors as the traced process numbered them, before the
//! model, and the model's handles ([`Handle`]) in a compiled trace.

use crate::names::Name;
use serde::{Deserialize, Serialize};

/// An open file description of a compiled trace; numbered from 0 and never used again.
pub type Handle = u32;
/// No handle: of a place, that its path is absolute; of a failed open, that nothing was opened.
pub const NO_HANDLE: Handle = Handle::MAX;

/// What a call returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Outcome {
    /// Success, with the value.
    Value(i64),
    /// An error, by the kernel's number.
    Error(i32),
    /// It never returned, or nobody knows.
    Unknown,
}

impl Outcome {
    /// Whether it is known to have succeeded.
    pub fn succeeded(self) -> bool {
        matches!(self, Outcome::Value(_))
    }

    /// The value of a success that is not negative; 0 otherwise.
    pub fn bytes(self) -> u64 {
        match self {
            Outcome::Value(value) => value.max(0) as u64,
            _ => 0,
        }
    }
}

/// Where a file is: a path, and what it starts from if it is relative. An empty path is the descriptor itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place<D> {
    /// Where a relative path starts.
    pub dir: D,
    /// The path, as the program gave it.
    pub path: Name,
}

/// What a program saw of a file's attributes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Kind and permissions, as in `st_mode`.
    pub mode: u32,
    /// Bytes.
    pub size: u64,
    /// Its number in the traced file system; 0 if the trace does not show it. Only the model needs it: 0 in a compiled trace.
    pub inode: u64,
}

/// What a synchronisation covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum SyncKind {
    /// fsync.
    File,
    /// fdatasync.
    Data,
    /// syncfs.
    FileSystem,
    /// sync_file_range: these bytes.
    Range(u64, u64),
    /// F_FULLFSYNC of another platform: durable, whatever its fsync means.
    Full,
}

/// What a lock call asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockKind {
    /// Shared with other readers.
    Shared,
    /// For one only.
    Exclusive,
    /// Give it back.
    Unlock,
}

/// To whom a byte-range lock belongs.
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
    /// Which way.
    pub kind: RequestKind,
    /// Where it starts, in bytes.
    pub start: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// Which way an asynchronous request goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RequestKind {
    /// From the file.
    Read,
    /// To the file.
    Write,
    /// fsync or fdatasync.
    Sync,
}

/// An operation that a replay executes. The variants' order is part of the format: new ones go to the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the arguments of the call that the variant names")]
pub enum Op<D> {
    /// Nothing to execute.
    Nothing,
    /// open, openat, openat2, creat. `made` is what it returned.
    Open {
        at: Place<D>,
        flags: u32,
        mode: u32,
        made: D,
    },
    /// Closes of last references: by close, dup2, exec, or the end of a process. Those in `unlocked` stay open and lose the
    /// byte-range locks taken through them.
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
    /// fcntl's locks. In a compiled trace, `on` is the description through which their owner holds them.
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
    /// chdir; `made` stands for the new working directory.
    ChangeDir {
        at: Place<D>,
        made: D,
    },
    /// mknod, and bind to a name. Only regular files and sockets are what they say: for all else there is a stand-in.
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
    /// getxattr and its family; no bytes: only the size is asked for.
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
    /// exchangedata of another platform: two names exchange their files.
    Exchange {
        one: Place<D>,
        other: Place<D>,
    },
}

//! A call of the trace, typed: what it asks for, with descriptors as the traced process numbered them.

use serde::{Deserialize, Serialize};
use trace_file::{Name, Op, Outcome, Request};

/// A descriptor as the traced process numbered it; also `AT_FDCWD`, and −1 for none.
pub(crate) type Fd = i32;

/// What only changes the model: descriptors, processes, and what a replay does not execute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the arguments of the call that the variant names")]
pub(crate) enum Ask {
    /// Something that a replay can execute.
    File(Op<Fd>),
    Duplicate {
        on: Fd,
        made: Fd,
        close_on_exec: bool,
    },
    CloseRange {
        first: u32,
        last: u32,
    },
    SetCloseOnExec {
        on: Fd,
        yes: bool,
    },
    /// Makes descriptors that are no files: pipes, sockets, epoll, timers.
    Opaque {
        made: Box<[Fd]>,
        close_on_exec: bool,
    },
    /// A pipe, read end first; the ends are unknown where the trace leaves them out.
    Pipe {
        ends: Option<(Fd, Fd)>,
        close_on_exec: bool,
    },
    /// What a process may share with its parent, and where the kernel wakes who waits for the child's end.
    Clone {
        child: Option<u32>,
        share: Share,
        wakes: Option<u64>,
    },
    /// A thread slept at an address in memory, and was woken.
    Sleep {
        address: u64,
    },
    /// A thread slept at an address in memory until its time was over.
    Nap {
        address: u64,
    },
    /// So many threads that slept there were woken.
    Wake {
        address: u64,
        count: u64,
    },
    Exec,
    /// The end of the caller.
    Exit,
    /// The end of the caller, because another thread of its process called exec, which goes on under the caller's number.
    Supersede {
        by: u32,
    },
    /// Waiting for a child to end.
    Wait {
        child: Option<u32>,
    },
    ChangeMask {
        mask: u32,
    },
    /// fchdir.
    ChangeDirTo {
        on: Fd,
    },
    /// sendmsg with SCM_RIGHTS: these descriptors are on their way.
    Pass {
        all: Box<[Fd]>,
    },
    /// recvmsg with SCM_RIGHTS: these numbers stand for what was sent.
    Receive {
        made: Box<[Fd]>,
    },
    AioSetup {
        context: u64,
    },
    AioSubmit {
        context: u64,
        requests: Box<[Request<Fd>]>,
    },
    AioCollect {
        context: u64,
        count: u32,
    },
    /// Waiting, or other work, that touches no file; executed by nobody.
    Idle,
    /// It touches files, and no replay of it exists.
    Unsupported,
}

/// What a new task shares with the one that made it, and whether that one is held (vfork).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The descriptor table.
    pub files: bool,
    /// Working directory and umask.
    pub directory: bool,
    /// The process.
    pub process: bool,
    /// The parent is held until the child runs another program or ends.
    pub hold: bool,
}

/// One call of the trace, typed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The task that called.
    pub task: u32,
    /// Nanoseconds: entry.
    pub start: u64,
    /// Nanoseconds: return.
    pub end: u64,
    /// Line of the trace.
    pub line: u64,
    /// The call's name.
    pub name: Name,
    /// What it asks for.
    pub ask: Ask,
    /// What it returned.
    pub outcome: Outcome,
    /// What the trace says that descriptors are, before the call; `AT_FDCWD` is the working directory.
    pub notes: Box<[(Fd, Name)]>,
    /// What the trace says that the returned descriptor is.
    pub made_note: Option<Name>,
}

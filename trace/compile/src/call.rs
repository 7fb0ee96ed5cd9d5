//! A typed call of the trace. Its descriptors have the traced process's numbers.

use serde::{Deserialize, Serialize};
use trace_file::{Name, Op, Outcome, Request};

/// A descriptor number of the traced process. `AT_FDCWD` is the working directory, and −1 is no descriptor.
pub(crate) type Fd = i32;

/// The operation of a call: a file operation, or an operation that a replay does not execute (on descriptors,
/// tasks, pipes, waits).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the fields are the arguments of the call that the variant names")]
pub(crate) enum Ask {
    /// A file operation, which a replay can execute.
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
    /// Makes descriptors that are not files: sockets, epoll, timers.
    Opaque {
        made: Box<[Fd]>,
        close_on_exec: bool,
    },
    /// A pipe, read end first. `ends` is `None` where the trace omits the ends.
    Pipe {
        ends: Option<(Fd, Fd)>,
        close_on_exec: bool,
    },
    /// Makes a task. The kernel wakes futex waiters at the address `wakes` when the child ends.
    Clone {
        child: Option<u32>,
        share: Share,
        wakes: Option<u64>,
    },
    /// A futex sleep that a wake ended.
    Sleep {
        address: u64,
    },
    /// A futex sleep that its timeout ended.
    Nap {
        address: u64,
    },
    /// A futex wake, which woke `count` sleepers.
    Wake {
        address: u64,
        count: u64,
    },
    Exec,
    /// The end of the caller.
    Exit,
    /// The end of the caller because another thread of its process called exec. That thread continues under
    /// the caller's number.
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
    /// sendmsg with SCM_RIGHTS: sends these descriptors.
    Pass {
        all: Box<[Fd]>,
    },
    /// recvmsg with SCM_RIGHTS: receives descriptors under these numbers.
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
    /// A wait or other call that touches no file. A replay does not execute the call.
    Idle,
    /// A call that touches files and that no replay supports.
    Unsupported,
}

/// The parts that a new task shares with its parent, and whether the parent waits (vfork).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The descriptor table.
    pub files: bool,
    /// Working directory and umask.
    pub directory: bool,
    /// The process: the new task is a thread.
    pub process: bool,
    /// The parent waits until the child runs another program or ends.
    pub hold: bool,
}

/// One call of the trace, typed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Call {
    /// The task that called.
    pub task: u32,
    /// Time of entry, in nanoseconds.
    pub start: u64,
    /// Time of return, in nanoseconds.
    pub end: u64,
    /// Line of the trace.
    pub line: u64,
    /// The call's name.
    pub name: Name,
    /// The operation and its arguments.
    pub ask: Ask,
    /// The result.
    pub outcome: Outcome,
    /// The files that the trace notes beside descriptors, before the call. `AT_FDCWD` is the working
    /// directory.
    pub notes: Box<[(Fd, Name)]>,
    /// The file that the trace notes beside the returned descriptor.
    pub made_note: Option<Name>,
}

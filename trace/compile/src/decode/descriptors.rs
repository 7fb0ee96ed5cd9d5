//! Decodes calls that take a descriptor.

use super::arguments::{CallArguments, Unusable, fd, number};
use super::symbols;
use crate::call::{Ask, Fd};
use crate::event::Value;
use trace_file::{LockKind, LockOwner, Op, Request, RequestKind, SyncKind};

type DecodedOp = Result<Op<Fd>, Unusable>;

/// Decodes calls that a replay executes; `None` for other calls.
pub(super) fn op(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    transfer(name, a).or_else(|| other(name, a))
}

/// Calls that move bytes or the position.
fn transfer(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    let at = |a: &CallArguments<'_>, at: usize| a.bytes(at).map(Some);
    Some(match name {
        "read" => (|| Ok(Op::Read { on: a.fd(0)?, bytes: a.bytes(2)?, at: None }))(),
        "write" => (|| Ok(Op::Write { on: a.fd(0)?, bytes: a.bytes(2)?, at: None }))(),
        "pread64" | "pread" => (|| Ok(Op::Read { on: a.fd(0)?, bytes: a.bytes(2)?, at: at(a, 3)? }))(),
        "pwrite64" | "pwrite" => (|| Ok(Op::Write { on: a.fd(0)?, bytes: a.bytes(2)?, at: at(a, 3)? }))(),
        "readv" => (|| Ok(Op::Read { on: a.fd(0)?, bytes: vector(a)?, at: None }))(),
        "writev" => (|| Ok(Op::Write { on: a.fd(0)?, bytes: vector(a)?, at: None }))(),
        "preadv" => (|| Ok(Op::Read { on: a.fd(0)?, bytes: vector(a)?, at: at(a, 3)? }))(),
        "pwritev" => (|| Ok(Op::Write { on: a.fd(0)?, bytes: vector(a)?, at: at(a, 3)? }))(),
        "preadv2" => (|| {
            let (on, bytes, at, flags) = flagged(a)?;
            Ok(if flags == 0 { Op::Read { on, bytes, at } } else { Op::ReadWith { on, bytes, at, flags } })
        })(),
        "pwritev2" => (|| {
            let (on, bytes, at, flags) = flagged(a)?;
            Ok(if flags == 0 { Op::Write { on, bytes, at } } else { Op::WriteWith { on, bytes, at, flags } })
        })(),
        "sendfile" | "sendfile64" => (|| {
            let from_at = match a.value(2)? {
                Value::List(one) => one.first().map(number).transpose()?.map(|at| at as u64),
                _ => None,
            };
            Ok(Op::Copy { from: a.fd(1)?, from_at, to: a.fd(0)?, to_at: None, bytes: a.bytes(3)? })
        })(),
        "lseek" => (|| Ok(Op::Seek { on: a.fd(0)?, offset: a.number(1)?, whence: a.flags(2)? }))(),
        // The returned position is the argument between offset and whence: see `position`.
        "_llseek" => (|| Ok(Op::Seek { on: a.fd(0)?, offset: a.number(1)?, whence: a.flags(3)? }))(),
        "copy_file_range" | "splice" => (|| {
            let position = |at: usize| match a.value(at)? {
                Value::List(one) => one.first().map(number).transpose().map(|at| at.map(|at| at as u64)),
                _ => Ok(None),
            };
            let (from_at, to_at) = (position(1)?, position(3)?);
            Ok(Op::Copy { from: a.fd(0)?, from_at, to: a.fd(2)?, to_at, bytes: a.bytes(4)? })
        })(),
        _ => return None,
    })
}

/// The new position among the arguments. `_llseek` returns 0, and a replay's lseek the position.
pub(super) fn position(name: &str, values: &[Value]) -> Option<i64> {
    match (name, values.get(2)) {
        ("_llseek", Some(Value::List(position))) => number(position.first()?).ok(),
        _ => None,
    }
}

/// The arguments of preadv2 and pwritev2; a position of −1 is the description's own.
fn flagged(a: &CallArguments<'_>) -> Result<(Fd, u64, Option<u64>, u32), Unusable> {
    Ok((a.fd(0)?, vector(a)?, u64::try_from(a.number(3)?).ok(), a.flags_or_none(4)?))
}

/// The sum of a vector's lengths. If the trace omits them, the number of bytes moved.
fn vector(a: &CallArguments<'_>) -> Result<u64, Unusable> {
    let Value::List(parts) = a.value(1)? else { return Ok(a.outcome.bytes()) };
    let lengths: Option<Vec<u64>> =
        parts.iter().map(|part| number(part.field("iov_len")?).ok().map(|length| length as u64)).collect();
    Ok(lengths.map_or(a.outcome.bytes(), |lengths| lengths.into_iter().fold(0, u64::saturating_add)))
}

fn other(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    let sync = |on: Result<Fd, Unusable>, kind| on.map(|on| Op::Sync { on, kind });
    Some(match name {
        "close" => a.fd(0).map(|fd| Op::Close { all: Box::new([fd]), unlocked: Box::default() }),
        "getdents64" | "getdents" => (|| Ok(Op::List { on: a.fd(0)?, bytes: a.bytes(2)? }))(),
        "fsync" => sync(a.fd(0), SyncKind::File),
        "fdatasync" => sync(a.fd(0), SyncKind::Data),
        "syncfs" => sync(a.fd(0), SyncKind::FileSystem),
        "sync_file_range" => {
            (|| Ok(Op::Sync { on: a.fd(0)?, kind: SyncKind::Range(a.bytes(1)?, a.bytes(2)?) }))()
        }
        "sync" => Ok(Op::SyncAll),
        "fallocate" => {
            (|| Ok(Op::Allocate { on: a.fd(0)?, mode: a.flags(1)?, start: a.bytes(2)?, bytes: a.bytes(3)? }))(
            )
        }
        "fadvise64" => {
            (|| Ok(Op::Advise { on: a.fd(0)?, start: a.bytes(1)?, bytes: a.bytes(2)?, advice: a.flags(3)? }))(
            )
        }
        "readahead" => (|| {
            let advice = libc::POSIX_FADV_WILLNEED as u32;
            Ok(Op::Advise { on: a.fd(0)?, start: a.bytes(1)?, bytes: a.bytes(2)?, advice })
        })(),
        "flock" => (|| {
            let kind = match a.number(1)? as i32 & !libc::LOCK_NB {
                libc::LOCK_SH => LockKind::Shared,
                libc::LOCK_EX => LockKind::Exclusive,
                libc::LOCK_UN => LockKind::Unlock,
                _ => return Err("a lock of no known kind"),
            };
            Ok(Op::Flock { on: a.fd(0)?, kind })
        })(),
        "fcntl" | "fcntl64" if locks(a) => lock(a),
        "fcntl" | "fcntl64" if command(a) == "F_SETFL" => {
            (|| Ok(Op::SetFlags { on: a.fd(0)?, flags: a.flags(2)? }))()
        }
        _ => return None,
    })
}

/// The name of fcntl's command. Names that end in 64 are the same commands of 32-bit programs.
pub(super) fn command<'a>(a: &CallArguments<'a>) -> &'a str {
    const COMMANDS: [(&str, i64); 22] = [
        ("F_DUPFD", libc::F_DUPFD as i64),
        ("F_GETFD", libc::F_GETFD as i64),
        ("F_SETFD", libc::F_SETFD as i64),
        ("F_GETFL", libc::F_GETFL as i64),
        ("F_SETFL", libc::F_SETFL as i64),
        ("F_GETLK", libc::F_GETLK as i64),
        ("F_SETLK", libc::F_SETLK as i64),
        ("F_SETLKW", libc::F_SETLKW as i64),
        ("F_SETOWN", libc::F_SETOWN as i64),
        ("F_GETOWN", libc::F_GETOWN as i64),
        ("F_SETSIG", 10),
        ("F_GETSIG", 11),
        ("F_GETLK64", 12),
        ("F_SETLK64", 13),
        ("F_SETLKW64", 14),
        ("F_OFD_GETLK", libc::F_OFD_GETLK as i64),
        ("F_OFD_SETLK", libc::F_OFD_SETLK as i64),
        ("F_OFD_SETLKW", libc::F_OFD_SETLKW as i64),
        ("F_GETLEASE", libc::F_GETLEASE as i64),
        ("F_DUPFD_CLOEXEC", libc::F_DUPFD_CLOEXEC as i64),
        ("F_GETPIPE_SZ", libc::F_GETPIPE_SZ as i64),
        ("F_GET_SEALS", libc::F_GET_SEALS as i64),
    ];
    let command = a.values.get(1).map_or("", |value| symbols::choice(value, &COMMANDS));
    command.strip_suffix("64").unwrap_or(command)
}

fn locks(a: &CallArguments<'_>) -> bool {
    matches!(command(a), "F_SETLK" | "F_SETLKW" | "F_OFD_SETLK" | "F_OFD_SETLKW")
}

fn lock(a: &CallArguments<'_>) -> DecodedOp {
    let lock = a.value(2)?;
    let field = |name: &str| lock.field(name).ok_or("a lock's field is missing");
    const KINDS: [(&str, i64); 3] = [
        ("F_RDLCK", libc::F_RDLCK as i64),
        ("F_WRLCK", libc::F_WRLCK as i64),
        ("F_UNLCK", libc::F_UNLCK as i64),
    ];
    let kind = match symbols::choice(field("l_type")?, &KINDS) {
        "F_RDLCK" => LockKind::Shared,
        "F_WRLCK" => LockKind::Exclusive,
        "F_UNLCK" => LockKind::Unlock,
        _ => return Err("a lock of no known kind"),
    };
    if number(field("l_whence")?)? != i64::from(libc::SEEK_SET) {
        return Err("a lock relative to the position");
    }
    let position = |name| u64::try_from(number(field(name)?)?).map_err(|_| "a lock before the file");
    let owner = if command(a).starts_with("F_OFD_") { LockOwner::Description } else { LockOwner::Process };
    Ok(Op::Lock { on: a.fd(0)?, kind, start: position("l_start")?, bytes: position("l_len")?, owner })
}

/// Decodes calls that only the model follows; `None` for other calls.
pub(super) fn ask(name: &str, a: &mut CallArguments<'_>) -> Option<Result<Ask, Unusable>> {
    Some(match name {
        "dup" => a.fd(0).map(|on| Ask::Duplicate { on, made: a.made(), close_on_exec: false }),
        "dup2" | "dup3" => {
            let close_on_exec = a.has_flag(2, "O_CLOEXEC");
            a.fd(0).map(|on| Ask::Duplicate { on, made: a.made(), close_on_exec })
        }
        "fcntl" | "fcntl64" => fcntl(a),
        "sendmsg" | "sendmmsg" | "recvmsg" | "recvmmsg" => Ok(rights(name, a)),
        "close_range" if !a.has_flag(2, "CLOSE_RANGE_CLOEXEC") => {
            (|| Ok(Ask::CloseRange { first: a.flags(0)?, last: a.flags(1)? }))()
        }
        "fchdir" => a.fd(0).map(|on| Ask::ChangeDirTo { on }),
        "pipe" | "pipe2" => {
            let ends = match a.values.first() {
                Some(Value::List(ends)) => match &ends[..] {
                    [read, write] => fd(read).ok().zip(fd(write).ok()),
                    _ => None,
                },
                _ => None,
            };
            Ok(Ask::Pipe { ends, close_on_exec: a.has_flag(1, "O_CLOEXEC") })
        }
        "socket" | "accept" | "accept4" | "eventfd" | "eventfd2" | "epoll_create" | "epoll_create1"
        | "timerfd_create" | "signalfd" | "signalfd4" | "inotify_init" | "inotify_init1" | "memfd_create"
        | "pidfd_open" | "userfaultfd" | "perf_event_open" => {
            let named = |flag: &Value| matches!(flag, Value::Symbol(flags) if flags.contains("CLOEXEC"));
            let flags = match name {
                "epoll_create1" | "inotify_init1" | "userfaultfd" => Some(0),
                "socket" | "eventfd2" | "timerfd_create" => Some(1),
                "accept4" | "signalfd4" => Some(3),
                _ => None,
            };
            let numbered = flags.is_some_and(|at| a.has_flag(at, "SOCK_CLOEXEC"));
            let close_on_exec = numbered || a.values.iter().any(named);
            Ok(Ask::Opaque { made: Box::new([a.made()]), close_on_exec })
        }
        "socketpair" => {
            match a.value(3) {
                Ok(Value::List(ends)) => ends.iter().map(fd).collect::<Result<Vec<_>, _>>().map(|made| {
                    Ask::Opaque { made: made.into(), close_on_exec: a.has_flag(1, "SOCK_CLOEXEC") }
                }),
                _ => Ok(Ask::Idle),
            }
        }
        "io_setup" => (|| match a.value(1)? {
            Value::List(one) => Ok(Ask::AioSetup { context: one.first().map_or(Ok(0), number)? as u64 }),
            _ => Err("the context is missing"),
        })(),
        "io_submit" => submit(a),
        "io_getevents" | "io_pgetevents" => {
            (|| Ok(Ask::AioCollect { context: a.number(0)? as u64, count: a.outcome.bytes() as u32 }))()
        }
        _ => return None,
    })
}

/// Decodes a message. One without descriptors touches no file.
fn rights(name: &str, a: &CallArguments<'_>) -> Ask {
    fn walk(value: &Value, found: &mut Vec<Fd>) {
        let all = match value {
            Value::List(all) => all.iter().collect::<Vec<_>>(),
            Value::Fields(fields) => fields.iter().map(|(_, value)| value).collect(),
            _ => return,
        };
        let rights = [("SCM_RIGHTS", libc::SCM_RIGHTS as i64)];
        let kind = value.field("cmsg_type").map(|kind| symbols::choice(kind, &rights));
        if kind == Some("SCM_RIGHTS")
            && let Some(Value::List(sent)) = value.field("cmsg_data")
        {
            return found.extend(sent.iter().filter_map(|sent| fd(sent).ok()));
        }
        all.into_iter().for_each(|value| walk(value, found));
    }
    let mut found = Vec::new();
    a.values.iter().for_each(|value| walk(value, &mut found));
    match (found.is_empty() || !a.outcome.succeeded(), name.starts_with("send")) {
        (true, _) => Ask::Idle,
        (_, true) => Ask::Pass { all: found.into() },
        (_, false) => Ask::Receive { made: found.into() },
    }
}

fn fcntl(a: &CallArguments<'_>) -> Result<Ask, Unusable> {
    let on = a.fd(0)?;
    Ok(match command(a) {
        "F_DUPFD" => Ask::Duplicate { on, made: a.made(), close_on_exec: false },
        "F_DUPFD_CLOEXEC" => Ask::Duplicate { on, made: a.made(), close_on_exec: true },
        "F_SETFD" => Ask::SetCloseOnExec { on, yes: a.has_flag(2, "FD_CLOEXEC") },
        "F_GETFD" | "F_GETFL" | "F_GETLK" | "F_OFD_GETLK" | "F_GETPIPE_SZ" | "F_SETPIPE_SZ" => Ask::Idle,
        // Hints about the lifetime of data. They change nothing that a program sees.
        "F_GET_RW_HINT" | "F_SET_RW_HINT" | "F_GET_FILE_RW_HINT" | "F_SET_FILE_RW_HINT" => Ask::Idle,
        "F_GETOWN" | "F_SETOWN" | "F_GETSIG" | "F_SETSIG" | "F_GETLEASE" | "F_GET_SEALS" => Ask::Idle,
        // Of macOS: hints, and questions about a descriptor or about signatures.
        "F_RDADVISE" | "F_RDAHEAD" | "F_NOCACHE" | "F_GETPATH" | "F_SETNOSIGPIPE" => Ask::Idle,
        "F_ADDFILESIGS" | "F_ADDFILESIGS_RETURN" | "F_CHECK_LV" => Ask::Idle,
        // Linux's hints by number, if strace has no name for them.
        _ => match a.number(1) {
            Ok(1024 | 1035..=1038) => Ask::Idle,
            _ => return Err("an fcntl that nobody replays"),
        },
    })
}

fn submit(a: &CallArguments<'_>) -> Result<Ask, Unusable> {
    let Value::List(blocks) = a.value(2)? else { return Err("the requests are left out") };
    let requests: Result<Vec<Request<Fd>>, Unusable> = blocks.iter().map(request).collect();
    let mut requests = requests?;
    // The kernel accepts a prefix of the batch.
    requests.truncate(a.outcome.bytes() as usize);
    Ok(Ask::AioSubmit { context: a.number(0)? as u64, requests: requests.into() })
}

fn request(block: &Value) -> Result<Request<Fd>, Unusable> {
    let field = |name: &str| block.field(name).ok_or("a request's field is missing");
    const CODES: [(&str, i64); 6] = [
        ("IOCB_CMD_PREAD", 0),
        ("IOCB_CMD_PWRITE", 1),
        ("IOCB_CMD_FSYNC", 2),
        ("IOCB_CMD_FDSYNC", 3),
        ("IOCB_CMD_PREADV", 7),
        ("IOCB_CMD_PWRITEV", 8),
    ];
    let kind = match symbols::choice(field("aio_lio_opcode")?, &CODES) {
        "IOCB_CMD_PREAD" | "IOCB_CMD_PREADV" => RequestKind::Read,
        "IOCB_CMD_PWRITE" | "IOCB_CMD_PWRITEV" => RequestKind::Write,
        "IOCB_CMD_FSYNC" | "IOCB_CMD_FDSYNC" => RequestKind::Sync,
        _ => return Err("a request of no known kind"),
    };
    let on = fd(field("aio_fildes")?)?;
    if kind == RequestKind::Sync {
        return Ok(Request { on, kind, start: 0, bytes: 0 });
    }
    Ok(Request {
        on,
        kind,
        start: number(field("aio_offset")?)? as u64,
        bytes: number(field("aio_nbytes")?)? as u64,
    })
}

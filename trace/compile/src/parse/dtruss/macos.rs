//! The numbers of macOS, and their counterparts on Linux. Numbers and names are those of macOS's
//! `sys/fcntl.h`, `sys/errno.h` and `sys/unistd.h`.

use crate::event::{Recorded, Value};

/// dtruss cuts strings off after this many bytes.
const TEXT_BYTES_MAX: usize = 255;
/// Bytes for which getattrlistbulk has space. dtruss does not print them.
const LIST_BYTES: i64 = 32 << 10;
/// `AT_FDCWD`.
const WORKING_DIRECTORY: i32 = -2;

/// Gives a call the arguments and result that the call has on Linux.
pub(super) fn translate(name: &str, args: &mut Vec<Value>, result: &mut Recorded) {
    for arg in args.iter_mut() {
        if let Value::Text { bytes, whole } = arg {
            if bytes.last() == Some(&0) {
                bytes.pop();
            }
            *whole = bytes.len() < TEXT_BYTES_MAX;
        }
    }
    let name = name.strip_suffix("_nocancel").unwrap_or(name);
    if name.ends_with("at") || name == "renameatx_np" {
        args.iter_mut().for_each(working_directory);
    }
    match name {
        "open" => open(args, 1),
        "openat" => open(args, 2),
        "unlinkat" => change(args, 2, |flags| bits(flags, &AT_FLAGS)),
        "faccessat" | "fchmodat" | "fstatat" | "fstatat64" => change(args, 3, |flags| bits(flags, &AT_FLAGS)),
        "linkat" | "fchownat" => change(args, 4, |flags| bits(flags, &AT_FLAGS)),
        // Behind the arguments of short calls, dtruss prints what the registers contain.
        "dup2" => args.truncate(2),
        "pipe" => args.clear(),
        "fcntl" => fcntl(args),
        "lseek" => lseek(args, result),
        "getattrlistbulk" => change(args, 2, |_| LIST_BYTES),
        // In the places of fstatat's result and flags, this call has addresses.
        "getattrlistat" => {
            args.truncate(2);
            args.extend([Value::Elided, Value::Symbol("AT_SYMLINK_NOFOLLOW".into())]);
        }
        _ => {}
    }
}

/// Translates the flags, and the mode behind them. Without O_CREAT, dtruss prints the value of a register in the
/// place of the mode.
fn open(args: &mut [Value], flags_at: usize) {
    let Some([Value::Number(flags), Value::Number(mode)]) = args.get_mut(flags_at..) else { return };
    *flags = bits(*flags, &OPEN_FLAGS) | *flags & i64::from(libc::O_ACCMODE);
    *mode = if *flags & i64::from(libc::O_CREAT) == 0 { 0 } else { *mode & 0o7777 };
}

fn change(args: &mut [Value], at: usize, change: impl Fn(i64) -> i64) {
    if let Some(Value::Number(number)) = args.get_mut(at) {
        *number = change(*number);
    }
}

/// The sum of Linux's flags for macOS's. Flags without a counterpart are left out.
fn bits(flags: i64, table: &[(i64, i32)]) -> i64 {
    table.iter().filter(|(theirs, _)| flags & theirs != 0).fold(0, |sum, (_, ours)| sum | i64::from(*ours))
}

fn working_directory(arg: &mut Value) {
    if let Value::Number(number) = arg
        && *number as i32 == WORKING_DIRECTORY
        && matches!(*number >> 32, 0 | -1)
    {
        *arg = Value::Symbol("AT_FDCWD".into());
    }
}

fn fcntl(args: &mut [Value]) {
    let [_, command, rest @ ..] = args else { return };
    let Value::Number(number) = *command else { return };
    let known = COMMANDS.iter().find(|(known, _)| *known == number);
    *command = Value::Symbol(known.map_or_else(|| format!("F_{number}"), |(_, name)| (*name).to_owned()));
    if let (Some((_, "F_SETFL")), Some(Value::Number(flags))) = (known, rest.first_mut()) {
        *flags = bits(*flags, &OPEN_FLAGS);
    }
}

fn lseek(args: &mut [Value], result: &mut Recorded) {
    let [_, Value::Number(offset), Value::Number(whence)] = args else { return };
    if let Recorded::Value(position, _) = result {
        // dtruss prints 32 bits of the position.
        let whole = if *whence == i64::from(libc::SEEK_SET) { *offset } else { i64::from(*position as u32) };
        *position = whole;
    }
    *whence = match *whence {
        3 => libc::SEEK_HOLE.into(),
        4 => libc::SEEK_DATA.into(),
        other => other,
    };
}

/// The result of a call that failed with this error.
pub(super) fn error(number: i32) -> Recorded {
    let name = match usize::try_from(number) {
        Ok(11) => "EDEADLK".to_owned(),
        Ok(1..=34) => trace_file::errno_name(number),
        Ok(number) => match ERRORS_FROM_35.get(number.wrapping_sub(35)) {
            Some(name) if !name.is_empty() => (*name).to_owned(),
            _ => return Recorded::Unknown,
        },
        Err(_) => return Recorded::Unknown,
    };
    Recorded::Error(name)
}

const OPEN_FLAGS: [(i64, i32); 12] = [
    (0x4, libc::O_NONBLOCK),
    (0x8, libc::O_APPEND),
    (0x40, libc::O_ASYNC),
    (0x80, libc::O_SYNC),
    (0x100, libc::O_NOFOLLOW),
    (0x200, libc::O_CREAT),
    (0x400, libc::O_TRUNC),
    (0x800, libc::O_EXCL),
    (0x2_0000, libc::O_NOCTTY),
    (0x10_0000, libc::O_DIRECTORY),
    (0x40_0000, libc::O_DSYNC),
    (0x100_0000, libc::O_CLOEXEC),
];

const AT_FLAGS: [(i64, i32); 4] = [
    (0x10, libc::AT_EACCESS),
    (0x20, libc::AT_SYMLINK_NOFOLLOW),
    (0x40, libc::AT_SYMLINK_FOLLOW),
    (0x80, libc::AT_REMOVEDIR),
];

const COMMANDS: [(i64, &str); 24] = [
    (0, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (3, "F_GETFL"),
    (4, "F_SETFL"),
    (5, "F_GETOWN"),
    (6, "F_SETOWN"),
    (7, "F_GETLK"),
    (8, "F_SETLK"),
    (9, "F_SETLKW"),
    (42, "F_PREALLOCATE"),
    (44, "F_RDADVISE"),
    (45, "F_RDAHEAD"),
    (48, "F_NOCACHE"),
    (50, "F_GETPATH"),
    (51, "F_FULLFSYNC"),
    (61, "F_ADDFILESIGS"),
    (67, "F_DUPFD_CLOEXEC"),
    (73, "F_SETNOSIGPIPE"),
    (85, "F_BARRIERFSYNC"),
    (90, "F_OFD_SETLK"),
    (91, "F_OFD_SETLKW"),
    (97, "F_ADDFILESIGS_RETURN"),
    (98, "F_CHECK_LV"),
];

/// The names of errors from 35 on; empty if Linux has no counterpart. The errors before have the numbers of
/// Linux, except 11.
const ERRORS_FROM_35: [&str; 72] = [
    "EAGAIN",
    "EINPROGRESS",
    "EALREADY",
    "ENOTSOCK",
    "EDESTADDRREQ",
    "EMSGSIZE",
    "EPROTOTYPE",
    "ENOPROTOOPT",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "ENOTSUP",
    "EPFNOSUPPORT",
    "EAFNOSUPPORT",
    "EADDRINUSE",
    "EADDRNOTAVAIL",
    "ENETDOWN",
    "ENETUNREACH",
    "ENETRESET",
    "ECONNABORTED",
    "ECONNRESET",
    "ENOBUFS",
    "EISCONN",
    "ENOTCONN",
    "ESHUTDOWN",
    "ETOOMANYREFS",
    "ETIMEDOUT",
    "ECONNREFUSED",
    "ELOOP",
    "ENAMETOOLONG",
    "EHOSTDOWN",
    "EHOSTUNREACH",
    "ENOTEMPTY",
    "",
    "EUSERS",
    "EDQUOT",
    "ESTALE",
    "EREMOTE",
    "",
    "",
    "",
    "",
    "",
    "ENOLCK",
    "ENOSYS",
    "",
    "",
    "",
    "",
    "",
    "EOVERFLOW",
    "",
    "",
    "",
    "",
    "ECANCELED",
    "EIDRM",
    "ENOMSG",
    "EILSEQ",
    // ENOATTR.
    "ENODATA",
    "EBADMSG",
    "EMULTIHOP",
    "ENODATA",
    "ENOLINK",
    "ENOSR",
    "ENOSTR",
    "EPROTO",
    "ETIME",
    "EOPNOTSUPP",
    "",
    "ENOTRECOVERABLE",
    "EOWNERDEAD",
    "",
];

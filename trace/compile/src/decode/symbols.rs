//! The kernel's names for flags and errors.

use crate::event::Value;

/// The sum of flags joined by `|`; `None` if one of them is unknown.
pub(super) fn flags(joined: &str) -> Option<i64> {
    joined.split('|').try_fold(0, |sum, flag| Some(sum | one(flag)?))
}

/// The sum of those flags that are known.
pub(super) fn known_flags(joined: &str) -> i64 {
    joined.split('|').filter_map(one).fold(0, |sum, flag| sum | flag)
}

/// Whether an argument has a flag, by name or in a number (`-X raw`, `-X verbose`, or flags without a name in
/// strace).
pub(crate) fn has_flag(value: &Value, flag: &str) -> bool {
    match value {
        Value::Symbol(joined) => {
            joined.split('|').any(|part| part == flag || number(part).is_some_and(|bits| is_in(bits, flag)))
        }
        Value::Number(bits) => is_in(*bits, flag),
        _ => false,
    }
}

fn is_in(bits: i64, flag: &str) -> bool {
    one(flag).is_some_and(|flag| flag != 0 && bits & flag == flag)
}

/// The name of one of several values, from a name or number in the trace.
pub(super) fn choice<'a>(value: &'a Value, choices: &[(&'a str, i64)]) -> &'a str {
    match value {
        Value::Symbol(name) => name,
        Value::Number(number) => {
            choices.iter().find(|(_, value)| value == number).map_or("", |(name, _)| name)
        }
        _ => "",
    }
}

fn one(flag: &str) -> Option<i64> {
    let found = FLAGS.iter().find(|(name, _)| *name == flag).map(|(_, value)| *value);
    found.or_else(|| number(flag))
}

/// `0644`, `0x80000` or `17`.
fn number(text: &str) -> Option<i64> {
    if let Some(octal) = text.strip_prefix('0').filter(|rest| !rest.is_empty() && !rest.starts_with('x')) {
        return i64::from_str_radix(octal, 8).ok();
    }
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok().map(|value| value as i64),
        None => text.parse().ok(),
    }
}

const FLAGS: &[(&str, i64)] = &[
    ("NULL", 0),
    // Constants that libc lacks, from the kernel's headers.
    ("AT_STATX_SYNC_AS_STAT", 0),
    ("O_LARGEFILE", 0),
    ("RENAME_WHITEOUT", 4),
    ("FALLOC_FL_NO_HIDE_STALE", 4),
    ("MFD_CLOEXEC", 1),
    ("__O_SYNC", (libc::O_SYNC & !libc::O_DSYNC) as i64),
    ("__O_TMPFILE", (libc::O_TMPFILE & !libc::O_DIRECTORY) as i64),
    ("SYNC_FILE_RANGE_WAIT_BEFORE", 1),
    ("SYNC_FILE_RANGE_WRITE", 2),
    ("SYNC_FILE_RANGE_WAIT_AFTER", 4),
    ("O_ACCMODE", libc::O_ACCMODE as i64),
    ("O_RDONLY", libc::O_RDONLY as i64),
    ("O_WRONLY", libc::O_WRONLY as i64),
    ("O_RDWR", libc::O_RDWR as i64),
    ("O_CREAT", libc::O_CREAT as i64),
    ("O_EXCL", libc::O_EXCL as i64),
    ("O_NOCTTY", libc::O_NOCTTY as i64),
    ("O_TRUNC", libc::O_TRUNC as i64),
    ("O_APPEND", libc::O_APPEND as i64),
    ("O_NONBLOCK", libc::O_NONBLOCK as i64),
    ("O_NDELAY", libc::O_NONBLOCK as i64),
    ("O_DSYNC", libc::O_DSYNC as i64),
    ("O_SYNC", libc::O_SYNC as i64),
    ("O_DIRECT", libc::O_DIRECT as i64),
    ("O_DIRECTORY", libc::O_DIRECTORY as i64),
    ("O_NOFOLLOW", libc::O_NOFOLLOW as i64),
    ("O_NOATIME", libc::O_NOATIME as i64),
    ("O_CLOEXEC", libc::O_CLOEXEC as i64),
    ("O_PATH", libc::O_PATH as i64),
    ("O_TMPFILE", libc::O_TMPFILE as i64),
    ("AT_FDCWD", libc::AT_FDCWD as i64),
    ("AT_SYMLINK_NOFOLLOW", libc::AT_SYMLINK_NOFOLLOW as i64),
    ("AT_SYMLINK_FOLLOW", libc::AT_SYMLINK_FOLLOW as i64),
    ("AT_REMOVEDIR", libc::AT_REMOVEDIR as i64),
    ("AT_NO_AUTOMOUNT", libc::AT_NO_AUTOMOUNT as i64),
    ("AT_EMPTY_PATH", libc::AT_EMPTY_PATH as i64),
    ("AT_EACCESS", libc::AT_EACCESS as i64),
    ("F_OK", 0),
    ("R_OK", libc::R_OK as i64),
    ("W_OK", libc::W_OK as i64),
    ("X_OK", libc::X_OK as i64),
    ("SEEK_SET", libc::SEEK_SET as i64),
    ("SEEK_CUR", libc::SEEK_CUR as i64),
    ("SEEK_END", libc::SEEK_END as i64),
    ("SEEK_DATA", libc::SEEK_DATA as i64),
    ("SEEK_HOLE", libc::SEEK_HOLE as i64),
    ("RENAME_NOREPLACE", libc::RENAME_NOREPLACE as i64),
    ("RENAME_EXCHANGE", libc::RENAME_EXCHANGE as i64),
    ("FALLOC_FL_KEEP_SIZE", libc::FALLOC_FL_KEEP_SIZE as i64),
    ("FALLOC_FL_PUNCH_HOLE", libc::FALLOC_FL_PUNCH_HOLE as i64),
    ("FALLOC_FL_COLLAPSE_RANGE", libc::FALLOC_FL_COLLAPSE_RANGE as i64),
    ("FALLOC_FL_ZERO_RANGE", libc::FALLOC_FL_ZERO_RANGE as i64),
    ("FALLOC_FL_INSERT_RANGE", libc::FALLOC_FL_INSERT_RANGE as i64),
    ("FALLOC_FL_UNSHARE_RANGE", libc::FALLOC_FL_UNSHARE_RANGE as i64),
    ("POSIX_FADV_NORMAL", libc::POSIX_FADV_NORMAL as i64),
    ("POSIX_FADV_RANDOM", libc::POSIX_FADV_RANDOM as i64),
    ("POSIX_FADV_SEQUENTIAL", libc::POSIX_FADV_SEQUENTIAL as i64),
    ("POSIX_FADV_WILLNEED", libc::POSIX_FADV_WILLNEED as i64),
    ("POSIX_FADV_DONTNEED", libc::POSIX_FADV_DONTNEED as i64),
    ("POSIX_FADV_NOREUSE", libc::POSIX_FADV_NOREUSE as i64),
    ("LOCK_SH", libc::LOCK_SH as i64),
    ("LOCK_EX", libc::LOCK_EX as i64),
    ("LOCK_NB", libc::LOCK_NB as i64),
    ("LOCK_UN", libc::LOCK_UN as i64),
    ("FD_CLOEXEC", libc::FD_CLOEXEC as i64),
    ("S_IFREG", libc::S_IFREG as i64),
    ("S_IFDIR", libc::S_IFDIR as i64),
    ("S_IFLNK", libc::S_IFLNK as i64),
    ("S_IFCHR", libc::S_IFCHR as i64),
    ("S_IFBLK", libc::S_IFBLK as i64),
    ("S_IFIFO", libc::S_IFIFO as i64),
    ("S_IFSOCK", libc::S_IFSOCK as i64),
    ("S_ISUID", libc::S_ISUID as i64),
    ("S_ISGID", libc::S_ISGID as i64),
    ("S_ISVTX", libc::S_ISVTX as i64),
    ("S_IFMT", libc::S_IFMT as i64),
    ("O_ASYNC", libc::O_ASYNC as i64),
    ("RWF_HIPRI", libc::RWF_HIPRI as i64),
    ("RWF_DSYNC", libc::RWF_DSYNC as i64),
    ("RWF_SYNC", libc::RWF_SYNC as i64),
    ("RWF_NOWAIT", libc::RWF_NOWAIT as i64),
    ("RWF_APPEND", libc::RWF_APPEND as i64),
    ("XATTR_CREATE", libc::XATTR_CREATE as i64),
    ("XATTR_REPLACE", libc::XATTR_REPLACE as i64),
    ("CLONE_VM", libc::CLONE_VM as i64),
    ("CLONE_FS", libc::CLONE_FS as i64),
    ("CLONE_FILES", libc::CLONE_FILES as i64),
    ("CLONE_THREAD", libc::CLONE_THREAD as i64),
    ("CLONE_VFORK", libc::CLONE_VFORK as i64),
    ("SOCK_CLOEXEC", libc::SOCK_CLOEXEC as i64),
    ("MAP_SHARED", libc::MAP_SHARED as i64),
    ("PROT_WRITE", libc::PROT_WRITE as i64),
    ("CLOSE_RANGE_CLOEXEC", libc::CLOSE_RANGE_CLOEXEC as i64),
    ("CLOSE_RANGE_UNSHARE", libc::CLOSE_RANGE_UNSHARE as i64),
];

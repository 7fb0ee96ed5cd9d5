//! Decodes calls that take a path.

use super::arguments::{CallArguments, Unusable};
use crate::call::Fd;
use crate::event::Value;
use trace_file::{Op, Place, Seen};

/// Stand-in for the name of an extended attribute that a trace cuts off, as strace does with `-s 0`.
const UNKNOWN_ATTRIBUTE: &[u8] = b"user.unknown";

type DecodedOp = Result<Op<Fd>, Unusable>;

/// Decodes calls on paths; `None` for other calls.
pub(super) fn op(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    look(name, a).or_else(|| change(name, a)).or_else(|| attributes(name, a)).or_else(|| extended(name, a))
}

/// Calls that change nothing, except that open may create a file.
fn look(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    Some(match name {
        "open" => open(a, |a| a.path(0), 1),
        "openat" => open(a, |a| a.place(0, 1), 2),
        "openat2" => (|| {
            let how = a.value(2)?;
            let field = |name: &str| how.field(name).map(super::arguments::number).transpose();
            let flags = field("flags")?.ok_or("the flags are missing")? as u32;
            let mode = field("mode")?.unwrap_or(0) as u32;
            Ok(Op::Open { at: a.place(0, 1)?, flags, mode, made: a.made() })
        })(),
        "creat" => (|| {
            let flags = (libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC) as u32;
            Ok(Op::Open { at: a.path(0)?, flags, mode: a.flags(1)?, made: a.made() })
        })(),
        "stat" | "stat64" => stat(a, |a| a.path(0), 1, true),
        "lstat" | "lstat64" => stat(a, |a| a.path(0), 1, false),
        "fstat" | "fstat64" => stat(a, |a| a.itself(0), 1, true),
        "newfstatat" | "fstatat64" => {
            let follow = !a.has_flag(3, "AT_SYMLINK_NOFOLLOW");
            stat(a, |a| a.place(0, 1), 2, follow)
        }
        "statx" => {
            let follow = !a.has_flag(2, "AT_SYMLINK_NOFOLLOW");
            stat(a, |a| a.place(0, 1), 4, follow)
        }
        "access" => (|| Ok(Op::Access { at: a.path(0)?, mode: a.flags(1)? }))(),
        "faccessat" | "faccessat2" => (|| Ok(Op::Access { at: a.place(0, 1)?, mode: a.flags(2)? }))(),
        "readlink" => read_link(a, |a| a.path(0), 1),
        "readlinkat" => read_link(a, |a| a.place(0, 1), 2),
        "statfs" => a.path(0).map(|at| Op::StatFs { at }),
        "fstatfs" => a.itself(0).map(|at| Op::StatFs { at }),
        "chdir" => a.path(0).map(|at| Op::ChangeDir { at, made: -1 }),
        _ => return None,
    })
}

/// Calls that change names or sizes.
fn change(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    Some(match name {
        "mkdir" => (|| Ok(Op::MakeDir { at: a.path(0)?, mode: a.flags(1)? }))(),
        "mkdirat" => (|| Ok(Op::MakeDir { at: a.place(0, 1)?, mode: a.flags(2)? }))(),
        "rmdir" => a.path(0).map(|at| Op::RemoveDir { at }),
        "unlink" => a.path(0).map(|at| Op::Unlink { at }),
        "unlinkat" => {
            if a.has_flag(2, "AT_REMOVEDIR") {
                a.place(0, 1).map(|at| Op::RemoveDir { at })
            } else {
                a.place(0, 1).map(|at| Op::Unlink { at })
            }
        }
        "rename" => (|| Ok(Op::Rename { from: a.path(0)?, to: a.path(1)?, flags: 0 }))(),
        "renameat" | "renameat2" => (|| {
            let (from, to) = (a.place(0, 1)?, a.place(2, 3)?);
            Ok(Op::Rename { from, to, flags: a.flags_or_none(4)? })
        })(),
        "link" => (|| Ok(Op::Link { from: a.path(0)?, to: a.path(1)?, follow: false }))(),
        "linkat" => (|| {
            let follow = a.has_flag(4, "AT_SYMLINK_FOLLOW");
            Ok(Op::Link { from: itself_by_path(a)?, to: a.place(2, 3)?, follow })
        })(),
        "mknod" => (|| Ok(Op::MakeNode { at: a.path(0)?, mode: a.flags(1)? }))(),
        "mknodat" => (|| Ok(Op::MakeNode { at: a.place(0, 1)?, mode: a.flags(2)? }))(),
        "bind" => bound(a)?,
        "symlink" => (|| Ok(Op::Symlink { target: a.name(0)?, at: a.path(1)? }))(),
        "symlinkat" => (|| Ok(Op::Symlink { target: a.name(0)?, at: a.place(1, 2)? }))(),
        "truncate" => (|| Ok(Op::Resize { at: a.path(0)?, size: a.bytes(1)? }))(),
        "ftruncate" => (|| Ok(Op::Resize { at: a.itself(0)?, size: a.bytes(1)? }))(),
        _ => return None,
    })
}

/// The place of a socket's name in the file system, if any.
fn bound(a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    let path = a.value(1).ok()?.field("sun_path")?;
    let Value::Text { bytes, whole: true } = path else { return None };
    let at = Place { dir: libc::AT_FDCWD, path: a.names.intern(bytes) };
    Some(Ok(Op::MakeNode { at, mode: libc::S_IFSOCK | 0o777 }))
}

/// The first place of linkat. A path in /proc, which gives a name to a file without one, becomes the
/// descriptor itself.
fn itself_by_path(a: &mut CallArguments<'_>) -> Result<Place<Fd>, Unusable> {
    let place = a.place(0, 1)?;
    let number = a.names.bytes(place.path).strip_prefix(b"/proc/self/fd/").map(<[u8]>::to_vec);
    match number.and_then(|number| std::str::from_utf8(&number).ok()?.parse().ok()) {
        Some(dir) => Ok(Place { dir, path: a.names.intern(b"") }),
        None => Ok(place),
    }
}

/// Calls that change attributes.
fn attributes(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    Some(match name {
        "chmod" => (|| Ok(Op::SetMode { at: a.path(0)?, mode: a.flags(1)? }))(),
        "fchmod" => (|| Ok(Op::SetMode { at: a.itself(0)?, mode: a.flags(1)? }))(),
        "fchmodat" => (|| Ok(Op::SetMode { at: a.place(0, 1)?, mode: a.flags(2)? }))(),
        "chown" => owner(a, |a| a.path(0), 1, true),
        "lchown" => owner(a, |a| a.path(0), 1, false),
        "fchown" => owner(a, |a| a.itself(0), 1, true),
        "fchownat" => {
            let follow = !a.has_flag(4, "AT_SYMLINK_NOFOLLOW");
            owner(a, |a| a.place(0, 1), 2, follow)
        }
        "utime" | "utimes" => a.path(0).map(|at| Op::SetTimes { at, follow: true }),
        "futimesat" => a.place(0, 1).map(|at| Op::SetTimes { at, follow: true }),
        "utimensat" => {
            let follow = !a.has_flag(3, "AT_SYMLINK_NOFOLLOW");
            a.place(0, 1).map(|at| Op::SetTimes { at, follow })
        }
        _ => return None,
    })
}

/// Calls on extended attributes. A name that the trace cuts off becomes a name that no attribute has.
fn extended(name: &str, a: &mut CallArguments<'_>) -> Option<DecodedOp> {
    if !name.ends_with("xattr") {
        return None;
    }
    let (family, at, follow) = match name.as_bytes().first()? {
        b'f' => (&name[1..], a.itself(0), true),
        b'l' if name != "listxattr" => (&name[1..], a.path(0), false),
        _ => (name, a.path(0), true),
    };
    let key = |a: &mut CallArguments<'_>| a.name(1).unwrap_or_else(|_| a.names.intern(UNKNOWN_ATTRIBUTE));
    Some(match family {
        "getxattr" => (|| Ok(Op::GetAttribute { at: at?, follow, name: key(a), bytes: a.bytes(3)? }))(),
        "setxattr" => (|| {
            Ok(Op::SetAttribute { at: at?, follow, name: key(a), bytes: a.bytes(3)?, flags: a.flags(4)? })
        })(),
        "listxattr" => (|| Ok(Op::ListAttributes { at: at?, follow, bytes: a.bytes(2)? }))(),
        "removexattr" => (|| Ok(Op::RemoveAttribute { at: at?, follow, name: key(a) }))(),
        _ => return None,
    })
}

fn open(
    a: &mut CallArguments<'_>,
    place: impl Fn(&mut CallArguments<'_>) -> Result<Place<Fd>, Unusable>,
    flags: usize,
) -> DecodedOp {
    let mode = a.flags_or_none(flags + 1)?;
    Ok(Op::Open { at: place(a)?, flags: a.open_flags(flags)?, mode, made: a.made() })
}

fn stat(
    a: &mut CallArguments<'_>,
    place: impl Fn(&mut CallArguments<'_>) -> Result<Place<Fd>, Unusable>,
    shown: usize,
    follow: bool,
) -> DecodedOp {
    let seen = a.value(shown).ok().filter(|_| a.outcome.succeeded()).and_then(seen);
    Ok(Op::Stat { at: place(a)?, follow, seen })
}

fn seen(shown: &Value) -> Option<Seen> {
    let number = |name: &str| {
        let field = shown.field(&format!("st_{name}")).or_else(|| shown.field(&format!("stx_{name}")))?;
        super::arguments::number(field).ok()
    };
    // Devices have no size.
    Some(Seen {
        mode: number("mode")? as u32,
        size: number("size").unwrap_or(0).max(0) as u64,
        inode: number("ino").unwrap_or(0) as u64,
    })
}

fn owner(
    a: &mut CallArguments<'_>,
    place: impl Fn(&mut CallArguments<'_>) -> Result<Place<Fd>, Unusable>,
    user: usize,
    follow: bool,
) -> DecodedOp {
    let id = |number: i64| u32::try_from(number).ok().filter(|id| *id != u32::MAX);
    let (user, group) = (id(a.number(user)?), id(a.number(user + 1)?));
    Ok(Op::SetOwner { at: place(a)?, follow, user, group })
}

fn read_link(
    a: &mut CallArguments<'_>,
    place: impl Fn(&mut CallArguments<'_>) -> Result<Place<Fd>, Unusable>,
    text: usize,
) -> DecodedOp {
    let target = a.name(text).ok().filter(|_| a.outcome.succeeded());
    Ok(Op::ReadLink { at: place(a)?, target })
}

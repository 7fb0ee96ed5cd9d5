//! Calls of other platforms, as the most similar call here. Parameters and options without a counterpart are ignored; those
//! that only other platforms' kernels can answer become small accesses to metadata.

use super::arguments::{Arguments, Unusable, number};
use crate::event::Value;
use crate::names::Name;
use crate::op::{Fd, Op, Place, SyncKind};

type Found = Result<Op<Fd>, Unusable>;

/// Calls of other platforms that are emulated, and by what. Names in parentheses are commands of fcntl.
pub const EMULATED: [(&str, &str); 19] = [
    ("getattrlist", "stat"),
    ("fgetattrlist", "fstat"),
    ("setattrlist", "utimensat"),
    ("fsetattrlist", "futimens"),
    ("getdirentriesattr", "getdents64"),
    ("chflags", "utimensat"),
    ("fchflags", "futimens"),
    ("extattr_get_file", "getxattr"),
    ("extattr_set_file", "setxattr"),
    ("extattr_list_file", "listxattr"),
    ("extattr_delete_file", "removexattr"),
    ("fcntl(F_RDADVISE)", "posix_fadvise, will need"),
    ("fcntl(F_NOCACHE)", "posix_fadvise, no reuse"),
    ("fcntl(F_PREALLOCATE)", "fallocate, size kept"),
    ("fsctl", "stat"),
    ("ffsctl", "fstat"),
    ("fsgetpath", "statfs"),
    ("fcntl(F_FULLFSYNC)", "fsync; what fsync itself means is for the replay to say"),
    ("exchangedata", "renameat2, exchanging; or link and two renames"),
];

/// What getdirentriesattr is given space for, where the trace does not say.
const LIST_BYTES: u64 = 32 << 10;

/// `None` if the call is none of these.
pub(super) fn op(name: &str, a: &mut Arguments<'_>) -> Option<Found> {
    let follow = |a: &Arguments<'_>, at: usize| !a.has_flag(at, "FSOPT_NOFOLLOW");
    Some(match name {
        "getattrlist" => {
            let follow = follow(a, 4);
            a.path(0).map(|at| Op::Stat { at, follow, seen: None })
        }
        "fgetattrlist" | "ffsctl" => a.itself(0).map(|at| Op::Stat { at, follow: true, seen: None }),
        "fsctl" => a.path(0).map(|at| Op::Stat { at, follow: true, seen: None }),
        "setattrlist" => {
            let follow = follow(a, 4);
            a.path(0).map(|at| Op::SetTimes { at, follow })
        }
        "chflags" => a.path(0).map(|at| Op::SetTimes { at, follow: true }),
        "fsetattrlist" | "fchflags" => a.itself(0).map(|at| Op::SetTimes { at, follow: true }),
        "getdirentriesattr" => a.fd(0).map(|on| Op::List { on, bytes: a.bytes(3).unwrap_or(LIST_BYTES) }),
        "fsgetpath" => Ok(Op::StatFs { at: Place { dir: libc::AT_FDCWD, path: a.names.intern(b".") } }),
        "exchangedata" => (|| Ok(Op::Exchange { one: a.path(0)?, other: a.path(1)? }))(),
        "fcntl" => return command(a),
        _ => return attribute(name, a),
    })
}

fn command(a: &Arguments<'_>) -> Option<Found> {
    let Some(Value::Symbol(command)) = a.values.get(1) else { return None };
    let field = |name: &str| {
        let value = a.value(2)?.field(name).ok_or("a field is missing")?;
        u64::try_from(number(value)?).map_err(|_| "a size is negative")
    };
    Some(match command.as_str() {
        "F_RDADVISE" => (|| {
            let advice = libc::POSIX_FADV_WILLNEED as u32;
            Ok(Op::Advise { on: a.fd(0)?, start: field("ra_offset")?, bytes: field("ra_count")?, advice })
        })(),
        "F_NOCACHE" => a.fd(0).map(|on| {
            let advice = libc::POSIX_FADV_NOREUSE as u32;
            Op::Advise { on, start: 0, bytes: 0, advice }
        }),
        "F_PREALLOCATE" => (|| {
            let mode = libc::FALLOC_FL_KEEP_SIZE as u32;
            let start = field("fst_offset").unwrap_or(0);
            Ok(Op::Allocate { on: a.fd(0)?, mode, start, bytes: field("fst_length")? })
        })(),
        "F_FULLFSYNC" | "F_BARRIERFSYNC" => a.fd(0).map(|on| Op::Sync { on, kind: SyncKind::Full }),
        _ => return None,
    })
}

/// FreeBSD's extended attributes: path, name space, name, value, bytes.
fn attribute(name: &str, a: &mut Arguments<'_>) -> Option<Found> {
    let user = |a: &mut Arguments<'_>| -> Result<Name, Unusable> {
        let name = a.name(2)?;
        let name = [b"user.", a.names.bytes(name)].concat();
        Ok(a.names.intern(&name))
    };
    let follow = true;
    Some(match name {
        "extattr_get_file" => {
            (|| Ok(Op::GetAttribute { at: a.path(0)?, follow, name: user(a)?, bytes: a.bytes(4)? }))()
        }
        "extattr_set_file" => {
            (|| Ok(Op::SetAttribute { at: a.path(0)?, follow, name: user(a)?, bytes: a.bytes(4)?, flags: 0 }))(
            )
        }
        "extattr_list_file" => (|| Ok(Op::ListAttributes { at: a.path(0)?, follow, bytes: a.bytes(3)? }))(),
        "extattr_delete_file" => (|| Ok(Op::RemoveAttribute { at: a.path(0)?, follow, name: user(a)? }))(),
        _ => return None,
    })
}

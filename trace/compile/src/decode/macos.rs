//! Decodes calls that only macOS has, as the most similar call of Linux. Other calls of macOS have the names and
//! arguments of Linux's, after `parse` has translated the numbers.

use super::arguments::{CallArguments, Unusable};
use super::descriptors::command;
use crate::call::Fd;
use trace_file::{Op, SyncKind};

/// The usual name of a call with the same effect on files.
pub(super) fn usual_name(name: &str) -> Option<&'static str> {
    Some(match name {
        // dtruss does not print the option to follow a link. lstat succeeds in both cases.
        "getattrlist" => "lstat",
        "fgetattrlist" => "fstat",
        "getattrlistat" => "newfstatat",
        "getdirentries" | "getdirentries64" | "getattrlistbulk" => "getdents64",
        "chflags" => "utimes",
        "guarded_close_np" => "close",
        "posix_spawn" => "fork",
        "kqueue" | "guarded_kqueue_np" => "epoll_create",
        "shm_open" => "memfd_create",
        _ => return None,
    })
}

/// Decodes calls that a replay executes; `None` for other calls.
pub(super) fn op(name: &str, a: &mut CallArguments<'_>) -> Option<Result<Op<Fd>, Unusable>> {
    Some(match name {
        "fcntl" if matches!(command(a), "F_FULLFSYNC" | "F_BARRIERFSYNC") => {
            a.fd(0).map(|on| Op::Sync { on, kind: SyncKind::Full })
        }
        "futimes" | "fchflags" | "fsetattrlist" => a.itself(0).map(|at| Op::SetTimes { at, follow: true }),
        "setattrlist" => a.path(0).map(|at| Op::SetTimes { at, follow: false }),
        "exchangedata" => (|| Ok(Op::Exchange { one: a.path(0)?, other: a.path(1)? }))(),
        "renameatx_np" => (|| {
            let (from, to) = (a.place(0, 1)?, a.place(2, 3)?);
            let flags = if a.has_flag(4, "RENAME_EXCL") { libc::RENAME_NOREPLACE } else { 0 };
            Ok(if a.has_flag(4, "RENAME_SWAP") {
                Op::Exchange { one: from, other: to }
            } else {
                Op::Rename { from, to, flags }
            })
        })(),
        _ => return None,
    })
}

/// Whether a call touches no file.
pub(super) fn idle(name: &str) -> bool {
    const PREFIXES: [&str; 15] = [
        "__",
        "audit",
        "bsdthread_",
        "csops",
        "csr",
        "kdebug_",
        "kevent",
        "mach",
        "necp_",
        "proc_",
        "psynch_",
        "sig",
        "sysctl",
        "ulock_",
        "workq_",
    ];
    const NAMES: &str = " abort_with_payload change_fdguard_np crossarch_trap disconnectx connectx iopolicysys \
        issetugid map_with_linking_np mlockall munlockall objc_bp_assist_cfg_np pselect shared_region_check_np \
        terminate_with_payload thread_selfid usrctl ";
    PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || NAMES.contains(&format!(" {name} "))
}

#[cfg(test)]
mod tests {
    use crate::call::Ask;
    use crate::coverage::Coverage;
    use crate::decode::decode;
    use crate::parse::{Dtruss, Source};
    use trace_file::{Names, Op, SyncKind};

    /// The operation of a call, or the reason why the call cannot be used.
    fn ask(line: &str) -> Result<Ask, String> {
        let (mut names, mut coverage) = (Names::default(), Coverage::default());
        let mut source = Dtruss::new(line.as_bytes());
        let event = source.next_event().expect("memory does not fail").expect("a call");
        let call = decode(&event, &mut names, &mut coverage);
        coverage.problems.pop_first().map_or(Ok(call.ask), |(kind, _)| Err(kind))
    }

    #[test]
    fn sync_of_the_device_is_always_durable() {
        for command in ["0x33", "0x55"] {
            let synced = Op::Sync { on: 3, kind: SyncKind::Full };
            assert_eq!(ask(&format!("fcntl(0x3, {command}, 0x0)\t\t = 0 0")), Ok(Ask::File(synced)));
        }
    }

    #[test]
    fn calls_that_touch_no_file_are_used() {
        for name in ["__mac_syscall", "csops", "kevent_qos", "psynch_cvwait", "sigprocmask", "thread_selfid"]
        {
            assert_eq!(ask(&format!("{name}(0x0, 0x0, 0x0)\t\t = 0 0")), Ok(Ask::Idle), "{name}");
        }
        assert_eq!(ask("fcntl(0x3, 0x32, 0x7FFEE0)\t\t = 0 0"), Ok(Ask::Idle));
    }

    #[test]
    fn descriptors_that_are_no_files_are_followed() {
        for line in ["kqueue(0x0, 0x0, 0x0)\t\t = 4 0", "shm_open(0x7FFEE0, 0x0, 0x10)\t\t = 4 0"] {
            assert!(matches!(ask(line), Ok(Ask::Opaque { made, .. }) if *made == [4]), "{line}");
        }
    }

    #[test]
    fn calls_with_addresses_for_names_or_locks_are_counted() {
        let refused = |line: &str| ask(line).expect_err(line);
        assert_eq!(refused("rmdir(0x7FFEE0, 0x0, 0x0)\t\t = 0 0"), "rmdir: a path is not a string");
        assert_eq!(
            refused("exchangedata(0x7FFEE0, 0x7FFEE8, 0x0) = 0 0"),
            "exchangedata: a path is not a string"
        );
        assert_eq!(refused("fcntl(0x3, 0x8, 0x7FFEE0)\t\t = 0 0"), "fcntl: a lock's field is missing");
        assert_eq!(refused("fcntl(0x3, 0x2A, 0x7FFEE0)\t\t = 0 0"), "fcntl: an fcntl that nobody replays");
        assert_eq!(
            refused("fsgetpath(0x7FFEE0, 0x400, 0x0)\t\t = 9 0"),
            "fsgetpath: no replay of this call exists"
        );
    }
}

//! Decodes calls that make, change and end tasks, and calls that touch no file.

use super::arguments::{CallArguments, Unusable};
use super::symbols;
use crate::call::{Ask, Share};
use crate::event::Value;
use trace_file::Outcome;

/// Decodes these calls; `None` for other calls.
pub(super) fn ask(name: &str, a: &mut CallArguments<'_>) -> Option<Result<Ask, Unusable>> {
    Some(match name {
        "fork" => Ok(Ask::Clone { child: child(a), share: Share::default(), wakes: None }),
        "vfork" => {
            let share = Share { hold: true, ..Share::default() };
            Ok(Ask::Clone { child: child(a), share, wakes: None })
        }
        "clone" | "clone2" | "clone3" => {
            Ok(Ask::Clone { child: child(a), share: share(a), wakes: told_at(a) })
        }
        "futex" => Ok(futex(a)),
        "execve" | "execveat" => Ok(Ask::Exec),
        "exit" | "exit_group" => Ok(Ask::Idle),
        "wait4" | "waitid" | "waitpid" => Ok(Ask::Wait { child: child(a) }),
        "umask" => a.flags(0).map(|mask| Ask::ChangeMask { mask }),
        _ if idle(name) => Ok(Ask::Idle),
        _ => return None,
    })
}

/// Whether numbers with notes are tasks (`-Y`) and not descriptors in this call.
pub(super) fn takes_tasks(name: &str) -> bool {
    const NAMES: &str = " fork vfork clone clone2 clone3 wait4 waitid waitpid kill tkill tgkill ptrace prlimit64 capget capset \
        pidfd_open rt_sigqueueinfo rt_tgsigqueueinfo rt_sigtimedwait get_robust_list migrate_pages move_pages kcmp \
        process_vm_readv process_vm_writev ";
    let by_prefix =
        ["getp", "getsid", "gettid", "setp", "sched_"].iter().any(|prefix| name.starts_with(prefix));
    by_prefix || NAMES.contains(&format!(" {name} "))
}

fn child(a: &CallArguments<'_>) -> Option<u32> {
    match a.outcome {
        Outcome::Value(child) => u32::try_from(child).ok().filter(|child| *child > 0),
        _ => None,
    }
}

/// The address where the kernel clears a thread's id and wakes waiters after the thread's end.
fn told_at(a: &CallArguments<'_>) -> Option<u64> {
    let number = |value: &Value| match value {
        Value::Number(address) => Some(*address as u64),
        _ => None,
    };
    let named = |value: &Value| {
        ["child_tid", "child_tidptr"].into_iter().find_map(|name| value.field(name)).and_then(number)
    };
    a.values.iter().find_map(named)
}

/// Decodes a futex call. Only sleeps and wakes matter to other threads. Requeueing and priority inheritance
/// are left out: C libraries no longer use the former, and few programs use the latter.
fn futex(a: &CallArguments<'_>) -> Ask {
    const COMMANDS: [(&str, i64); 4] = [
        ("FUTEX_WAIT", libc::FUTEX_WAIT as i64),
        ("FUTEX_WAKE", libc::FUTEX_WAKE as i64),
        ("FUTEX_WAIT_BITSET", libc::FUTEX_WAIT_BITSET as i64),
        ("FUTEX_WAKE_BITSET", libc::FUTEX_WAKE_BITSET as i64),
    ];
    const OPTIONS: i64 = (libc::FUTEX_PRIVATE_FLAG | libc::FUTEX_CLOCK_REALTIME) as i64;
    let (Some(Value::Number(address)), Some(what)) = (a.values.first(), a.values.get(1)) else {
        return Ask::Idle;
    };
    let address = *address as u64;
    let command = match what {
        Value::Number(command) => Value::Number(command & !OPTIONS),
        what => what.clone(),
    };
    let what = symbols::choice(&command, &COMMANDS);
    let what = what.split('|').next().unwrap_or_default().trim_end_matches("_PRIVATE");
    match (what, a.outcome) {
        ("FUTEX_WAIT" | "FUTEX_WAIT_BITSET", Outcome::Value(_)) => Ask::Sleep { address },
        ("FUTEX_WAIT" | "FUTEX_WAIT_BITSET", Outcome::Error(libc::ETIMEDOUT)) => Ask::Nap { address },
        ("FUTEX_WAKE" | "FUTEX_WAKE_BITSET", Outcome::Value(count)) if count > 0 => {
            Ask::Wake { address, count: count as u64 }
        }
        _ => Ask::Idle,
    }
}

/// The shared parts, from an argument `flags=...` or clone3's structure.
fn share(a: &CallArguments<'_>) -> Share {
    let flags = a.values.iter().find_map(|value| value.field("flags"));
    let has = |name: &str| flags.is_some_and(|flags| symbols::has_flag(flags, name));
    Share {
        files: has("CLONE_FILES"),
        directory: has("CLONE_FS"),
        process: has("CLONE_THREAD"),
        hold: has("CLONE_VFORK"),
    }
}

/// Whether a call touches no file, waits, or has effects on files that system calls do not show (mappings).
fn idle(name: &str) -> bool {
    const PREFIXES: [&str; 8] = ["epoll_", "futex", "sched_", "rt_sig", "timer_", "set", "get", "sh"];
    const NAMES: &str = " mmap munmap mremap mprotect madvise brk mlock munlock poll ppoll select pselect6 ioctl \
        nanosleep clock_nanosleep timerfd_settime timerfd_gettime io_destroy io_cancel prctl arch_prctl prlimit64 \
        kill tgkill tkill pause restart_syscall sigaltstack uname sysinfo times alarm ptrace capget capset \
        sendto recvfrom sendmsg recvmsg sendmmsg recvmmsg connect bind listen shutdown membarrier rseq unshare setns \
        pidfd_send_signal personality msgget msgsnd msgrcv msgctl semget semop semctl semtimedop ";
    let by_prefix = PREFIXES.iter().any(|prefix| name.starts_with(prefix)) && !name.ends_with("xattr");
    by_prefix || NAMES.contains(&format!(" {name} "))
}

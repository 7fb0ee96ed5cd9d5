//! The names of the calls that the model follows. Calls that only wait or touch no file are known too, and not listed.

/// Calls that a replay executes, on files.
pub const EXECUTED: [&str; 76] = [
    "open",
    "openat",
    "openat2",
    "creat",
    "stat",
    "stat64",
    "lstat",
    "lstat64",
    "fstat",
    "fstat64",
    "newfstatat",
    "fstatat64",
    "statx",
    "access",
    "faccessat",
    "faccessat2",
    "readlink",
    "readlinkat",
    "statfs",
    "fstatfs",
    "chdir",
    "mkdir",
    "mkdirat",
    "rmdir",
    "unlink",
    "unlinkat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "truncate",
    "ftruncate",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "lchown",
    "fchown",
    "fchownat",
    "utime",
    "utimes",
    "futimesat",
    "utimensat",
    "read",
    "write",
    "pread64",
    "pread",
    "pwrite64",
    "pwrite",
    "readv",
    "writev",
    "preadv",
    "pwritev",
    "preadv2",
    "pwritev2",
    "lseek",
    "_llseek",
    "copy_file_range",
    "sendfile",
    "close",
    "getdents64",
    "getdents",
    "fsync",
    "fdatasync",
    "syncfs",
    "sync_file_range",
    "sync",
    "fallocate",
    "fadvise64",
    "readahead",
    "flock",
    "io_submit",
    "io_getevents",
];

/// Calls that change what descriptors, directories and tasks the program has. They leave nothing to execute, but decide what
/// the others mean, and what waits for what. fcntl takes locks too, which are executed.
pub const MODELLED: [&str; 47] = [
    "fcntl",
    "fcntl64",
    "dup",
    "dup2",
    "dup3",
    "close_range",
    "fchdir",
    "pipe",
    "pipe2",
    "socket",
    "socketpair",
    "accept",
    "accept4",
    "sendmsg",
    "sendmmsg",
    "recvmsg",
    "recvmmsg",
    "eventfd",
    "eventfd2",
    "epoll_create",
    "epoll_create1",
    "timerfd_create",
    "signalfd",
    "signalfd4",
    "inotify_init",
    "inotify_init1",
    "memfd_create",
    "pidfd_open",
    "userfaultfd",
    "perf_event_open",
    "io_setup",
    "io_pgetevents",
    "fork",
    "vfork",
    "clone",
    "clone2",
    "clone3",
    "execve",
    "execveat",
    "exit",
    "exit_group",
    "wait4",
    "waitid",
    "waitpid",
    "futex",
    "umask",
    "restart_syscall",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::Arguments;
    use crate::names::Names;
    use crate::op::Outcome;

    #[test]
    fn at_least_a_hundred_calls_are_followed_and_each_listed_one_is_known() {
        let all: std::collections::BTreeSet<&str> = EXECUTED.into_iter().chain(MODELLED).collect();
        assert_eq!(all.len(), EXECUTED.len() + MODELLED.len());
        assert!(all.len() >= 100);
        for name in all {
            let mut names = Names::default();
            let mut arguments = Arguments { values: &[], names: &mut names, outcome: Outcome::Value(0) };
            let known = crate::decode::ask(name, &mut arguments);
            assert_ne!(known.err(), Some(crate::decode::UNKNOWN), "{name}");
        }
    }
}

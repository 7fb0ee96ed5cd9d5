//! Locks of the kernel that a task may wait for, from the system call that it is in.

use crate::system_call::{SystemCall, SystemCallReader};
use crate::task::{TaskReadError, read_task_origin};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Locks of the kernel that a task may wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskWait {
    /// Locks of these inodes, or of their pages.
    Inodes(Vec<OpenInode>),
    /// Locks of directories that the paths of the call lead through.
    Directories,
    /// A lock that a program holds on this file (`fcntl`, `flock`).
    FileLock(OpenInode),
    /// Nothing, or anything else.
    Other,
}

/// An inode that a task has open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenInode {
    /// The inode's number in its file system.
    pub inode: u64,
    /// The mount through which it was opened, as in the task's `mountinfo`.
    pub mount_id: u64,
}

/// Reads which locks tasks may wait for. For tasks of other users this takes CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: both
/// for `syscall`, which its owner alone may open, and the first for `fdinfo`.
///
/// None of what is read leads to a file system, so a reader cannot wait for the locks itself.
#[derive(Debug, Default)]
pub struct TaskWaitReader {
    calls: SystemCallReader,
}

impl TaskWaitReader {
    /// The locks that a task may wait for at this moment.
    pub fn read(&mut self, task: u32) -> Result<TaskWait, TaskReadError> {
        let Some(call) = self.calls.read(task)? else { return Ok(TaskWait::Other) };
        let inode = |descriptor: u64| read_open_inode(task, descriptor);
        match call.operands() {
            CallOperands::Descriptors(descriptors) => {
                let inodes = descriptors.iter().map(|&argument| inode(call.arguments[argument]));
                let inodes: Vec<OpenInode> =
                    inodes.filter_map(Result::transpose).collect::<Result<_, _>>()?;
                Ok(if inodes.is_empty() { TaskWait::Other } else { TaskWait::Inodes(inodes) })
            }
            CallOperands::Lock => {
                let locked = inode(call.arguments[0])?;
                Ok(locked.map_or(TaskWait::Other, TaskWait::FileLock))
            }
            CallOperands::Paths => Ok(TaskWait::Directories),
            CallOperands::None => Ok(TaskWait::Other),
        }
    }
}

/// All processes that this user can see.
pub fn processes() -> io::Result<Vec<u32>> {
    let entries = fs::read_dir("/proc")?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The threads of a process, at most `max` of them; none if it is gone. Some may be missing while others end.
pub fn process_threads(process: u32, max: usize) -> Vec<u32> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).take(max).collect()
}

/// A process and its descendants, as far as this user can see them. When a process ends, its children get another
/// parent, so they are not found any more.
pub fn process_tree(process: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for child in processes().unwrap_or_default() {
        if let Ok(origin) = read_task_origin(child) {
            children.entry(origin.parent).or_default().push(child);
        }
    }
    let mut tree = vec![process];
    let mut next = 0;
    while let Some(parent) = tree.get(next) {
        tree.extend(children.remove(parent).unwrap_or_default());
        next += 1;
    }
    tree
}

/// The path through which a task has an inode open; `None` if it has not, or this user may not know. As with
/// [`TaskWaitReader`], nothing of what is read leads to a file system.
pub fn open_path(task: u32, inode: u64) -> Option<PathBuf> {
    let descriptors = fs::read_dir(format!("/proc/{task}/fd")).ok()?;
    let mut links = descriptors.filter_map(|entry| Some(entry.ok()?.path()));
    let leads_to_inode = |link: &PathBuf| {
        let descriptor = link.file_name().and_then(|name| name.to_str()?.parse().ok());
        let open = descriptor.and_then(|descriptor| read_open_inode(task, descriptor).ok()?);
        open.is_some_and(|open| open.inode == inode)
    };
    fs::read_link(links.find(leads_to_inode)?).ok()
}

/// The arguments of a system call that lead to locks.
#[derive(Debug, PartialEq, Eq)]
enum CallOperands {
    /// The arguments with these numbers are descriptors.
    Descriptors(&'static [usize]),
    /// The call waits for a lock on its first argument.
    Lock,
    /// Some arguments are paths.
    Paths,
    /// None.
    None,
}

impl SystemCall {
    fn operands(&self) -> CallOperands {
        #[cfg(target_arch = "x86_64")]
        if is_old_path_call(self.number) {
            return CallOperands::Paths;
        }
        match self.number {
            libc::SYS_read
            | libc::SYS_readv
            | libc::SYS_pread64
            | libc::SYS_preadv
            | libc::SYS_preadv2
            | libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwrite64
            | libc::SYS_pwritev
            | libc::SYS_pwritev2
            | libc::SYS_fsync
            | libc::SYS_fdatasync
            | libc::SYS_ftruncate
            | libc::SYS_fallocate
            | libc::SYS_lseek
            | libc::SYS_getdents64
            | libc::SYS_fchmod
            | libc::SYS_fchown
            | libc::SYS_fsetxattr
            | libc::SYS_fremovexattr
            | libc::SYS_fgetxattr
            | libc::SYS_flistxattr => CallOperands::Descriptors(&[0]),
            libc::SYS_sendfile => CallOperands::Descriptors(&[0, 1]),
            libc::SYS_copy_file_range | libc::SYS_splice => CallOperands::Descriptors(&[0, 2]),
            libc::SYS_flock => CallOperands::Lock,
            libc::SYS_fcntl => match self.arguments[1] as libc::c_int {
                libc::F_SETLKW | libc::F_OFD_SETLKW => CallOperands::Lock,
                _ => CallOperands::None,
            },
            libc::SYS_openat
            | libc::SYS_openat2
            | libc::SYS_newfstatat
            | libc::SYS_statx
            | libc::SYS_faccessat
            | libc::SYS_faccessat2
            | libc::SYS_readlinkat
            | libc::SYS_mkdirat
            | libc::SYS_mknodat
            | libc::SYS_unlinkat
            | SYS_RENAMEAT
            | libc::SYS_renameat2
            | libc::SYS_linkat
            | libc::SYS_symlinkat
            | libc::SYS_fchmodat
            | libc::SYS_fchownat
            | libc::SYS_utimensat
            | libc::SYS_truncate
            | libc::SYS_chdir
            | libc::SYS_execve
            | libc::SYS_execveat
            | libc::SYS_statfs
            | libc::SYS_setxattr
            | libc::SYS_lsetxattr
            | libc::SYS_getxattr
            | libc::SYS_lgetxattr
            | libc::SYS_listxattr
            | libc::SYS_llistxattr
            | libc::SYS_removexattr
            | libc::SYS_lremovexattr => CallOperands::Paths,
            _ => CallOperands::None,
        }
    }
}

#[cfg(target_arch = "x86_64")]
const SYS_RENAMEAT: libc::c_long = libc::SYS_renameat;
/// The crate `libc` lacks it on other architectures, which share their numbers.
#[cfg(not(target_arch = "x86_64"))]
const SYS_RENAMEAT: libc::c_long = 38;

/// Whether a call takes a path and exists only on older architectures.
#[cfg(target_arch = "x86_64")]
fn is_old_path_call(number: libc::c_long) -> bool {
    matches!(
        number,
        libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_stat
            | libc::SYS_lstat
            | libc::SYS_access
            | libc::SYS_readlink
            | libc::SYS_mkdir
            | libc::SYS_rmdir
            | libc::SYS_mknod
            | libc::SYS_unlink
            | libc::SYS_rename
            | libc::SYS_link
            | libc::SYS_symlink
            | libc::SYS_chmod
            | libc::SYS_chown
            | libc::SYS_lchown
            | libc::SYS_utime
            | libc::SYS_utimes
            | libc::SYS_futimesat
    )
}

/// The inode behind a descriptor of a task; `None` for a descriptor that is not open.
pub(crate) fn read_open_inode(task: u32, descriptor: u64) -> Result<Option<OpenInode>, TaskReadError> {
    // Never `stat` through /proc/TASK/fd: that asks the file system, and so may wait for the lock.
    let path = format!("/proc/{task}/fdinfo/{}", descriptor as libc::c_int);
    match fs::read_to_string(path).map_err(|error| TaskReadError::of("fdinfo", error)) {
        Ok(text) => Ok(parse_open_inode(&text)),
        Err(TaskReadError::Gone) => Ok(None),
        Err(error) => Err(error),
    }
}

/// `mnt_id:` and `ino:`, which Linux has since 5.14.
pub(crate) fn parse_open_inode(fdinfo: &str) -> Option<OpenInode> {
    let value = |name| fdinfo.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
    Some(OpenInode { inode: value("ino:")?, mount_id: value("mnt_id:")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use rustix::process::{Signal, Uid, geteuid, kill_process};
    use rustix::thread::{
        CapabilitySet, CapabilitySets, gettid, set_capabilities, set_keep_capabilities, set_thread_res_uid,
    };
    use std::io::{BufRead, BufReader, Read};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    fn call(number: libc::c_long, arguments: [u64; 6]) -> CallOperands {
        SystemCall { number, arguments }.operands()
    }

    #[test]
    fn arguments_lead_to_locks() {
        assert_eq!(call(libc::SYS_pwrite64, [3; 6]), CallOperands::Descriptors(&[0]));
        assert_eq!(call(libc::SYS_copy_file_range, [3; 6]), CallOperands::Descriptors(&[0, 2]));
        assert_eq!(call(libc::SYS_renameat2, [3; 6]), CallOperands::Paths);
        assert_eq!(call(libc::SYS_futex, [3; 6]), CallOperands::None);
        let fcntl = |command: libc::c_int| call(libc::SYS_fcntl, [3, command as u64, 0, 0, 0, 0]);
        assert_eq!(fcntl(libc::F_SETLKW), CallOperands::Lock);
        assert_eq!(fcntl(libc::F_OFD_SETLKW), CallOperands::Lock);
        assert_eq!(fcntl(libc::F_GETFD), CallOperands::None);
    }

    #[test]
    fn a_descriptor_has_an_inode_and_a_mount() {
        let text = "pos:\t0\nflags:\t0100002\nmnt_id:\t31\nino:\t1234\nlock:\t1: FLOCK\n";
        assert_eq!(parse_open_inode(text), Some(OpenInode { inode: 1234, mount_id: 31 }));
        assert_eq!(parse_open_inode("pos:\t0\nmnt_id:\t31\n"), None);
    }

    /// Runs `block` in another thread until the thread waits as `is_wanted`, then calls `release`.
    fn wait_of(
        block: impl FnOnce() + Send + 'static,
        is_wanted: impl Fn(&TaskWait) -> bool,
        release: impl FnOnce(),
    ) -> TaskWait {
        let (send, receive) = channel();
        let thread = thread::spawn(move || {
            send.send(gettid().as_raw_pid() as u32).expect("the test waits");
            block();
        });
        let task = receive.recv().expect("a thread id");
        let mut reader = TaskWaitReader::default();
        let begun = Instant::now();
        let found = loop {
            // The parent of all threads may always trace them.
            let found = reader.read(task).expect("a thread of this process");
            if is_wanted(&found) || begun.elapsed() > Duration::from_secs(20) {
                break found;
            }
            thread::sleep(Duration::from_millis(1));
        };
        release();
        thread.join().expect("no panic");
        // A joined thread may stay in /proc for a moment.
        while !matches!(reader.read(task), Err(TaskReadError::Gone)) {
            assert!(begun.elapsed() < Duration::from_secs(40), "the thread is still in /proc");
            thread::sleep(Duration::from_millis(1));
        }
        found
    }

    #[test]
    fn a_blocked_read_names_its_file() {
        let (mut read, write) = io::pipe().expect("a pipe");
        let path = format!("/proc/self/fd/{}", read.as_raw_fd());
        let inode = fs::metadata(path).expect("open").ino();
        let found = wait_of(
            move || assert_eq!(read.read(&mut [0]).expect("the end"), 0),
            |wait| matches!(wait, TaskWait::Inodes(inodes) if inodes[0].inode == inode),
            move || drop(write),
        );
        assert!(matches!(found, TaskWait::Inodes(inodes) if inodes[0].inode == inode));
    }

    #[test]
    fn a_wait_for_a_file_lock_names_the_file() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let inode = file.as_file().metadata().expect("open").ino();
        flock(file.as_file(), FlockOperation::LockExclusive).expect("free");
        let other = file.reopen().expect("the file");
        let found = wait_of(
            move || flock(&other, FlockOperation::LockExclusive).expect("it is freed"),
            |wait| matches!(wait, TaskWait::FileLock(_)),
            || flock(file.as_file(), FlockOperation::Unlock).expect("it was held"),
        );
        assert!(matches!(found, TaskWait::FileLock(locked) if locked.inode == inode));
    }

    /// Reads the wait of `task` in a thread of another user, which has these capabilities.
    fn read_with(capabilities: CapabilitySet, task: u32) -> Result<TaskWait, TaskReadError> {
        let read = move || {
            let nobody = Uid::from_raw(65534);
            set_keep_capabilities(true).expect("always possible");
            set_thread_res_uid(nobody, nobody, nobody).expect("root may");
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: none };
            set_capabilities(None, sets).expect("fewer than before");
            TaskWaitReader::default().read(task)
        };
        thread::spawn(read).join().expect("no panic")
    }

    #[test]
    fn tasks_of_other_users_take_two_capabilities() {
        if !geteuid().is_root() {
            eprintln!("skipped: not root");
            return;
        }
        let mut reader = Command::new("cat").uid(1).stdin(Stdio::piped()).spawn().expect("cat starts");
        let both = CapabilitySet::SYS_PTRACE | CapabilitySet::DAC_READ_SEARCH;
        let begun = Instant::now();
        let waits = || matches!(read_with(both, reader.id()), Ok(TaskWait::Inodes(_)));
        while !waits() {
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", read_with(both, reader.id()));
        }
        for less in [CapabilitySet::SYS_PTRACE, CapabilitySet::DAC_READ_SEARCH] {
            let refused = read_with(less, reader.id());
            assert!(matches!(refused, Err(TaskReadError::NotPermitted)), "{less:?}: {refused:?}");
        }
        reader.kill().and_then(|()| reader.wait()).expect("a child of ours");
    }

    #[test]
    fn a_tree_has_grandchildren() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        let output = shell.stdout.take().expect("a pipe");
        BufReader::new(output).read_line(&mut line).expect("it runs");
        let sleeper: u32 = line.trim().parse().expect("a process id");
        let own = process_tree(std::process::id());
        let of_shell = process_tree(shell.id());
        shell.kill().and_then(|()| shell.wait()).expect("a child of ours");
        let sleeper_id = rustix::process::Pid::from_raw(sleeper as i32).expect("not 0");
        kill_process(sleeper_id, Signal::KILL).expect("nobody else's");
        assert_eq!(of_shell, [shell.id(), sleeper]);
        assert_eq!(own[0], std::process::id());
        assert!(own.contains(&shell.id()) && own.contains(&sleeper));
    }

    #[test]
    fn threads_are_those_of_the_process() {
        let own = gettid().as_raw_pid() as u32;
        // The threads of other tests end meanwhile.
        let has_own = |_| process_threads(std::process::id(), usize::MAX).contains(&own);
        assert!((0..1000).any(has_own));
        assert_eq!(process_threads(std::process::id(), 1).len(), 1);
        assert_eq!(process_threads(0, 9), []);
    }
}

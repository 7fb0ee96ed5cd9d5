//! What /proc says about a task: a thread, by its id.

use crate::processor_times::TICK_MS;
use request::TaskFacts;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use std::fs::{self, File};
use std::io::{self, Read};
use std::time::Duration;

/// As many bytes of a command line as are read.
const TITLE_BYTES_MAX: u64 = 4096;
/// The variable that tags a process, and the processes that it starts. What a process changes in its own
/// environment after its start does not count.
pub const TAG_VARIABLE: &str = "WEIR_TAG";
/// More than the kernel prints in the other files, except the environment.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// A task at the moment at which it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskSnapshot {
    /// The facts that rules look at.
    pub facts: TaskFacts,
    /// When the thread started, in clock ticks since boot. Threads that had the same id differ in it.
    pub start_ticks: u64,
    /// Whether its process has a controlling terminal.
    pub has_terminal: bool,
    /// The id of the thread's process.
    pub process: u32,
}

impl TaskSnapshot {
    /// For how long the thread has run, rounded up to the next tick.
    pub fn age(&self) -> Duration {
        let since_boot = Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default();
        since_boot.saturating_sub(Duration::from_millis(self.start_ticks * TICK_MS))
    }
}

/// Where a task comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskOrigin {
    /// The process that started the task's process, or that took its place since; 0 if there is none.
    pub parent: u32,
    /// When the thread started, in clock ticks since boot.
    pub start_ticks: u64,
}

/// Why a task could not be read.
#[derive(Debug, thiserror::Error)]
pub enum TaskReadError {
    /// No task has the id, as far as this user can see.
    #[error("there is no such process or thread")]
    Gone,
    /// This user may not read about the task.
    #[error("this user may not read about it in /proc")]
    NotPermitted,
    /// Anything else.
    #[error("its {file} in /proc: {source}")]
    Io {
        /// The entry of /proc.
        file: &'static str,
        /// Why it could not be read.
        source: io::Error,
    },
}

impl TaskReadError {
    pub(crate) fn of(file: &'static str, source: io::Error) -> TaskReadError {
        match Errno::from_io_error(&source) {
            // A file that was open when its task ended fails with ESRCH.
            Some(Errno::NOENT | Errno::SRCH) => TaskReadError::Gone,
            Some(Errno::ACCESS | Errno::PERM) => TaskReadError::NotPermitted,
            _ => TaskReadError::Io { file, source },
        }
    }

    fn unexpected(file: &'static str) -> TaskReadError {
        TaskReadError::Io { file, source: io::ErrorKind::InvalidData.into() }
    }
}

/// Reads what /proc says about the task `id`.
///
/// A thread that answers file system requests must not call this. The command line lies in the memory of
/// the process, whose lock is held by threads that wait for such answers.
pub fn read_task(id: u32) -> Result<TaskSnapshot, TaskReadError> {
    // Everything is read below one descriptor, so that all of it is about one task even if the id is reused.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = open(format!("/proc/{id}"), flags, Mode::empty())
        .map_err(|errno| TaskReadError::of("directory", errno.into()))?;
    let read = |file, bytes_max| {
        read_file(&directory, file, bytes_max).map_err(|error| TaskReadError::of(file, error))
    };
    let stat = read("stat", FILE_BYTES_MAX)?;
    let stat = TaskStat::parse(&stat).ok_or_else(|| TaskReadError::unexpected("stat"))?;
    let status = read("status", FILE_BYTES_MAX)?;
    let of_status =
        |key, index| parse_status(&status, key, index).ok_or_else(|| TaskReadError::unexpected("status"));
    let process = of_status("Tgid:", 0)?;
    // `Uid:` and the user ids: real, effective, saved, and for file systems.
    let uid = of_status("Uid:", 1)?;
    let cgroup = parse_cgroup(&read("cgroup", FILE_BYTES_MAX)?);
    let title = parse_title(&read("cmdline", TITLE_BYTES_MAX)?);
    // Only root and the process's own user may read its environment.
    let tag = read("environ", FILE_BYTES_MAX).map_or_else(|_| String::new(), |environ| parse_tag(&environ));
    let facts = TaskFacts { title, thread: stat.name, cgroup, uid, nice: stat.nice, tag };
    Ok(TaskSnapshot { facts, start_ticks: stat.start_ticks, has_terminal: stat.has_terminal, process })
}

/// Reads where the task `id` comes from.
///
/// This may wait for a directory of /proc, whose lock a program holds while it lists the directory into a mapped file.
/// So a thread that reads requests must not call this. While a request of the task is not yet answered, the call needs
/// no lock of the memory of the process. It can be the last to release that memory, if the task did not wait for its request
/// (libaio) and ends meanwhile: then it waits until all such requests are answered.
pub fn read_task_origin(id: u32) -> Result<TaskOrigin, TaskReadError> {
    let stat = fs::read(format!("/proc/{id}/stat")).map_err(|error| TaskReadError::of("stat", error))?;
    let stat = TaskStat::parse(&stat).ok_or_else(|| TaskReadError::unexpected("stat"))?;
    Ok(TaskOrigin { parent: stat.parent, start_ticks: stat.start_ticks })
}

/// Whether a task has this id, as far as this user can see.
pub fn is_task(id: u32) -> bool {
    fs::exists(format!("/proc/{id}")).unwrap_or(true)
}

/// Whether a task that made a request is being killed, or is gone: its write may then end in the middle of its bytes.
///
/// False if this user cannot see the task. A thread that answers requests must not call this: it may wait for a directory of
/// /proc, like [`read_task_origin`], and for the asynchronous writes of a process that ends meanwhile.
pub fn is_killed(id: u32) -> bool {
    // For a moment between the signal and its end, a task shows neither. So look twice.
    (0..2).any(|_| is_of_killed(fs::read(format!("/proc/{id}/stat")), || is_task(1)))
}

/// Whether what was read of a task's file `stat` is that of a killed task. In doubt it is: the program is told to write again.
fn is_of_killed(stat: io::Result<Vec<u8>>, root_is_seen: impl Fn() -> bool) -> bool {
    match stat {
        Ok(stat) => TaskStat::parse(&stat).is_none_or(|stat| stat.is_ending),
        // Where other users' processes are hidden, those of root are, too.
        Err(error) if error.kind() == io::ErrorKind::NotFound => root_is_seen(),
        Err(error) => error.kind() != io::ErrorKind::PermissionDenied,
    }
}

fn read_file(directory: &OwnedFd, name: &str, bytes_max: u64) -> io::Result<Vec<u8>> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = Vec::new();
    File::from(file).take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The arguments, joined by blanks. Servers write a title over them, and pad it with zeros or blanks.
fn parse_title(cmdline: &[u8]) -> String {
    let title = String::from_utf8_lossy(cmdline).replace('\0', " ");
    title.trim_end().to_owned()
}

/// The value of [`TAG_VARIABLE`] in an environment.
fn parse_tag(environ: &[u8]) -> String {
    let of_tag = |variable: &[u8]| {
        let value = variable.strip_prefix(TAG_VARIABLE.as_bytes())?.strip_prefix(b"=")?;
        Some(String::from_utf8_lossy(value).into_owned())
    };
    environ.split(|&byte| byte == 0).find_map(of_tag).unwrap_or_default()
}

#[derive(Debug, PartialEq, Eq)]
struct TaskStat {
    name: String,
    parent: u32,
    nice: i8,
    start_ticks: u64,
    has_terminal: bool,
    /// Whether SIGKILL waits for the thread, or the thread is on its way out. A process that ends by another signal gets SIGKILL
    /// in each of its threads.
    is_ending: bool,
}

impl TaskStat {
    /// PF_EXITING and PF_SIGNALED in the kernel's `linux/sched.h`.
    const ENDING_FLAGS: u32 = 0x4 | 0x400;
    const SIGKILL: u32 = 1 << (libc::SIGKILL - 1);

    /// `708 (a name) S 1 …`: the name may have any character.
    fn parse(stat: &[u8]) -> Option<TaskStat> {
        let stat = String::from_utf8_lossy(stat);
        let (before, after) = stat.rsplit_once(") ")?;
        let (_, name) = before.split_once('(')?;
        // The first field after the name is number 3 in proc_pid_stat(5), the parent is 4, the terminal 7, the flags 9,
        // nice 19, the start 22, the pending signals 31.
        let mut fields = after.split(' ');
        let parent = fields.nth(1)?.parse().ok()?;
        let has_terminal = fields.nth(2)? != "0";
        let flags: u32 = fields.nth(1)?.parse().ok()?;
        let nice = fields.nth(9)?.parse().ok()?;
        let start_ticks = fields.nth(2)?.parse().ok()?;
        let pending: u32 = fields.nth(8)?.parse().ok()?;
        let is_ending = flags & Self::ENDING_FLAGS != 0 || pending & Self::SIGKILL != 0;
        Some(TaskStat { name: name.into(), parent, nice, start_ticks, has_terminal, is_ending })
    }
}

/// The number at `index` in the line of `key`.
fn parse_status(status: &[u8], key: &str, index: usize) -> Option<u32> {
    let status = String::from_utf8_lossy(status);
    let numbers = status.lines().find_map(|line| line.strip_prefix(key))?;
    numbers.split_whitespace().nth(index)?.parse().ok()
}

/// `0::/system.slice/db.service`: the hierarchy of version 2. Empty if there is none.
fn parse_cgroup(cgroups: &[u8]) -> String {
    let cgroups = String::from_utf8_lossy(cgroups);
    cgroups.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{geteuid, setpriority_process};
    use rustix::thread::gettid;
    use std::os::unix::process::CommandExt;
    use std::process::Command;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn a_tag_is_found_in_the_environment() {
        assert_eq!(parse_tag(b"A=b\0WEIR_TAGS=x\0WEIR_TAG=background\0"), "background");
        assert_eq!(parse_tag(b""), "");
    }

    #[test]
    fn a_task_that_cannot_be_looked_at_counts_as_killed_unless_it_is_hidden() {
        let of = |errno: i32, root_is_seen| {
            is_of_killed(Err(io::Error::from_raw_os_error(errno)), || root_is_seen)
        };
        assert!(of(libc::ENOENT, true) && !of(libc::ENOENT, false));
        assert!(!of(libc::EACCES, true) && !of(libc::EPERM, true));
        assert!([libc::ESRCH, libc::EMFILE, libc::ENOMEM].into_iter().all(|errno| of(errno, true)));
        assert!(is_of_killed(Ok(b"no line of a task".to_vec()), || true));
    }

    #[test]
    fn a_task_is_killed_until_it_is_gone() {
        assert!(!is_killed(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep starts");
        assert!(!is_killed(child.id()));
        child.kill().expect("a kill");
        let begun = Instant::now();
        // The child stays a zombie.
        while !is_killed(child.id()) {
            assert!(begun.elapsed() < Duration::from_secs(60), "a killed task looks alive");
        }
        let id = child.id();
        child.wait().expect("it ends");
        assert!(is_killed(id), "a task that is gone");
    }

    #[test]
    fn threads_have_facts_of_their_own() {
        let begun = Instant::now();
        let (send, receive) = channel();
        let (end, ended) = channel::<()>();
        let run = move || {
            setpriority_process(Some(gettid()), 7).expect("a thread may be nicer");
            send.send(gettid().as_raw_pid() as u32).expect("the test waits");
            let _ = ended.recv();
        };
        let thread = thread::Builder::new().name("a (name) S 1".into()).spawn(run).expect("a thread");
        let id = receive.recv().expect("a thread id");
        let task = read_task(id).expect("it runs");
        let own = read_task(std::process::id()).expect("it runs");
        assert_eq!((task.facts.thread.as_str(), task.facts.nice), ("a (name) S 1", 7));
        assert_eq!(task.facts.uid, geteuid().as_raw());
        assert_eq!(task.facts.title, own.facts.title, "a process has one title");
        assert_ne!(task.facts.thread, own.facts.thread);
        assert!(task.start_ticks >= own.start_ticks && own.start_ticks > 0);
        assert!(task.age() <= begun.elapsed() + Duration::from_millis(TICK_MS), "{:?}", task.age());
        // Looked at in this order, since ages grow: both may have started in one tick.
        let task_age = task.age();
        assert!(own.age() >= task_age);
        assert_eq!([task.process, own.process], [std::process::id(); 2]);
        assert_eq!(read_task(id).expect("it runs"), task);
        drop(end);
        thread.join().expect("no panic");
    }

    /// The facts about a child that was just started. Until its program is loaded, it has no title.
    fn facts_of(child: &std::process::Child) -> TaskFacts {
        let found = || read_task(child.id()).expect("it runs").facts;
        std::iter::repeat_with(found).find(|facts| !facts.title.is_empty()).expect("it gets one")
    }

    #[test]
    fn a_title_is_read_until_the_process_is_gone() {
        let mut child =
            Command::new("sleep").arg0("postgres: checkpointer ").arg("60").spawn().expect("a child");
        let read = facts_of(&child);
        let origin = read_task_origin(child.id()).expect("it runs");
        assert_eq!(origin.parent, std::process::id());
        assert_eq!(origin.start_ticks, read_task(child.id()).expect("it runs").start_ticks);
        child.kill().and_then(|()| child.wait()).expect("a child of ours");
        assert_eq!((read.title.as_str(), read.thread.as_str()), ("postgres: checkpointer  60", "sleep"));
        assert!(matches!(read_task(child.id()), Err(TaskReadError::Gone)));
        assert!(matches!(read_task(0), Err(TaskReadError::Gone)));
        assert!(is_task(gettid().as_raw_pid() as u32) && !is_task(child.id()));
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let mut child = Command::new("sleep").arg("60").args(["00"; 4096]).spawn().expect("a child");
        let title = facts_of(&child).title;
        child.kill().and_then(|()| child.wait()).expect("a child of ours");
        assert_eq!(title.len() as u64, TITLE_BYTES_MAX);
    }

    #[test]
    fn gone_tasks_and_missing_permission_are_told_apart() {
        let error = |errno: Errno| TaskReadError::of("stat", errno.into());
        assert!(matches!(error(Errno::SRCH), TaskReadError::Gone));
        assert!(matches!(error(Errno::NOENT), TaskReadError::Gone));
        assert!(matches!(error(Errno::ACCESS), TaskReadError::NotPermitted));
        assert!(matches!(error(Errno::PERM), TaskReadError::NotPermitted));
        assert!(matches!(error(Errno::MFILE), TaskReadError::Io { file: "stat", .. }));
    }

    #[test]
    fn titles_are_joined_and_trimmed() {
        assert_eq!(parse_title(b"tar\0-c\0/data\0"), "tar -c /data");
        assert_eq!(parse_title(b"postgres: checkpointer \0\0\0\0"), "postgres: checkpointer");
        assert_eq!(parse_title(b""), "");
        assert_eq!(parse_title(b"a\xff"), "a\u{fffd}");
    }

    #[test]
    fn any_name_may_stand_in_stat() {
        let stat = |flags: u32, pending: u32| {
            let rest = "10 11 12 13 14 15 16 17 18 -5 20 21 4711 23 24 25 26 27 28 29 30";
            format!("708 (a) S (b) S 4 5 6 7 8 {flags} {rest} {pending} 32\n")
        };
        let expected = TaskStat {
            name: "a) S (b".into(),
            parent: 4,
            nice: -5,
            start_ticks: 4711,
            has_terminal: true,
            is_ending: false,
        };
        assert_eq!(TaskStat::parse(stat(0x40_0040, 1 << 14).as_bytes()), Some(expected));
        for (flags, pending) in [(0x4, 0), (0x400, 0), (0, 1 << 8)] {
            assert!(TaskStat::parse(stat(flags, pending).as_bytes()).expect("a line").is_ending);
        }
        assert_eq!(TaskStat::parse(b"708 (a) S 1"), None);
    }

    #[test]
    fn effective_user_and_second_version_of_cgroups_count() {
        assert_eq!(parse_status(b"Name:\tUid:\nUid:\t1\t2\t3\t4\n", "Uid:", 1), Some(2));
        assert_eq!(parse_status(b"Name:\ta\n", "Uid:", 1), None);
        assert_eq!(parse_cgroup(b"1:cpu:/old\n0::/system.slice/db.service\n"), "/system.slice/db.service");
        assert_eq!(parse_cgroup(b"1:cpu:/old\n"), "");
    }
}

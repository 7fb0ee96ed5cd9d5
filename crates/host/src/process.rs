//! Processes: inherited descriptors, file locks, peers of a socket.

use crate::error::HostError;
use crate::mount_table::MountTable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Marks every descriptor but 0, 1 and 2 as close-on-exec, so that programs started by this process do not
/// inherit it.
pub fn close_descriptors_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let name = entry?.file_name();
        let Some(number) = name.to_str().and_then(|name| name.parse::<RawFd>().ok()).filter(|&fd| fd > 2)
        else {
            continue;
        };
        // SAFETY: the borrow ends with the call, which changes only whether the descriptor is inherited. A
        // number that is no longer open, such as that of the listing itself, is refused.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        match fcntl_setfd(descriptor, FdFlags::CLOEXEC) {
            Ok(()) | Err(Errno::BADF) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}

/// The process at the other end of a Unix socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketPeer {
    /// The process id, if this process can see it. For a listening socket, the process that began to listen.
    pub pid: Option<u32>,
    /// The process's user at that time.
    pub uid: u32,
}

/// The process at the other end of `socket`, as the kernel recorded it.
pub fn socket_peer(socket: BorrowedFd<'_>) -> io::Result<SocketPeer> {
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `found` is valid for writes of `bytes` bytes until the call returns, any bytes make a `ucred`,
    // and the descriptor is open for as long as it is borrowed.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &mut bytes,
        )
    };
    match result {
        0 => Ok(SocketPeer { pid: u32::try_from(found.pid).ok().filter(|&pid| pid > 0), uid: found.uid }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether nobody reads any more what is written to a pipe or a socket: its other end is closed.
pub fn is_hung_up(writer: impl AsFd) -> bool {
    let mut polled = [PollFd::new(&writer, PollFlags::empty())];
    let is_known = poll(&mut polled, Some(&Timespec::default())).is_ok();
    is_known && polled[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

/// Whether /proc numbers processes as the PID namespace of this process does.
///
/// A process in a new PID namespace has the old /proc until it mounts another one.
pub fn proc_has_own_pids() -> bool {
    let own = std::fs::read_link("/proc/self");
    own.is_ok_and(|own| own.as_os_str() == std::process::id().to_string().as_str())
}

/// Whether a process is ending, or has ended. It may still have files open and locked: the kernel frees its memory first, and
/// with it its arguments.
pub fn is_ending(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline"))
        .map_or_else(|error| error.kind() == ErrorKind::NotFound, |arguments| arguments.is_empty())
}

/// Whether a process is stopped: by SIGSTOP, from its terminal, or by a debugger.
pub fn is_stopped(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state may contain any character.
    stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
}

/// A process that has locked the file or device at `path` as [`HostDisk::open`](crate::HostDisk::open) does.
/// `None` if the kernel shows no such process.
pub fn lock_holder(path: &Path) -> Result<Option<u32>, HostError> {
    // A link may lead to another file system.
    let path = &path.canonicalize().map_err(|error| HostError::of(path, "following its links", error))?;
    let stat = rustix::fs::stat(path).map_err(|errno| HostError::of(path, "looking at it", errno))?;
    let table = read_locks()?;
    // Not the number that `stat` reports, which on btrfs is a subvolume's.
    let mounts = MountTable::read()?;
    let Some(mount) = mounts.mount_of(path) else { return Ok(None) };
    let mut holders = parse_lock_holders(&table, mount.device, stat.st_ino);
    Ok(holders.find(|holder| holder.kind == "FLOCK").map(|holder| holder.pid))
}

/// The processes that hold a lock of any kind on an inode of the file system with this device number. Locks of
/// open file descriptions have no process.
pub fn lock_holders(device: (u32, u32), inode: u64) -> Result<Vec<u32>, HostError> {
    let table = read_locks()?;
    let mut pids: Vec<u32> = parse_lock_holders(&table, device, inode).map(|holder| holder.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    Ok(pids)
}

fn read_locks() -> Result<String, HostError> {
    let locks = Path::new("/proc/locks");
    std::fs::read_to_string(locks).map_err(|error| HostError::of(locks, "reading it", error))
}

/// A process that holds a lock.
#[derive(Debug, PartialEq, Eq)]
struct LockHolder<'t> {
    /// `FLOCK` or `POSIX`.
    kind: &'t str,
    pid: u32,
}

/// `1: FLOCK  ADVISORY  WRITE 708 fd:01:13107 0 EOF`: a process, and the file's device, in hexadecimal, and
/// number. What waits for a lock has an arrow before its kind, and a process that we cannot see is 0.
fn parse_lock_holders(
    table: &str,
    (major, minor): (u32, u32),
    inode: u64,
) -> impl Iterator<Item = LockHolder<'_>> {
    let wanted = format!("{major:02x}:{minor:02x}:{inode}");
    table.lines().filter_map(move |line| {
        let mut fields = line.split_whitespace().skip(1);
        let kind = fields.next().filter(|&kind| kind != "->")?;
        let pid = fields.nth(2)?;
        let file = fields.next()?;
        let pid = pid.parse().ok().filter(|&pid| pid > 0)?;
        (file == wanted).then_some(LockHolder { kind, pid })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::io::fcntl_getfd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn no_descriptor_is_passed_on() {
        let file = tempfile::tempfile().expect("a temporary file");
        fcntl_setfd(&file, FdFlags::empty()).expect("passed on by default, as from a shell");
        close_descriptors_on_exec().expect("a kernel with /proc");
        assert_eq!(fcntl_getfd(&file).expect("still open"), FdFlags::CLOEXEC);
        assert_eq!(fcntl_getfd(std::io::stderr()).expect("open"), FdFlags::empty());
    }

    #[test]
    fn stopped_process_is_recognised() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        let pid = rustix::process::Pid::from_child(&child);
        assert!(!is_stopped(child.id()));
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("a child of ours");
        let stopped = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            is_stopped(child.id())
        });
        child.kill().and_then(|()| child.wait()).expect("a child of ours");
        assert!(stopped && !is_stopped(std::process::id()));
    }

    #[test]
    fn a_process_that_has_ended_is_ending_until_somebody_waits_for_it_and_after() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("it starts");
        // It has no arguments before it has begun.
        while is_ending(child.id()) {}
        assert!(!is_ending(std::process::id()));
        child.kill().expect("a child of ours");
        let ending = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            is_ending(child.id())
        });
        child.wait().expect("a child of ours");
        assert!(ending && is_ending(child.id()));
    }

    #[test]
    fn a_pipe_is_hung_up_once_its_reader_is_gone_and_a_socket_its_other_end() {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let (one, other) = UnixStream::pair().expect("two ends");
        assert!(!is_hung_up(&writer) && !is_hung_up(&one));
        other.shutdown(std::net::Shutdown::Write).expect("an end");
        assert!(!is_hung_up(&one), "the other end still reads");
        drop((reader, other));
        assert!(is_hung_up(&writer) && is_hung_up(&one));
    }

    #[test]
    fn the_peer_of_a_socket_is_known() {
        let (one, _other) = UnixStream::pair().expect("two ends");
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(
            socket_peer(one.as_fd()).expect("a socket"),
            SocketPeer { pid: Some(std::process::id()), uid }
        );
        assert!(socket_peer(tempfile::tempfile().expect("a file").as_fd()).is_err());
    }

    #[test]
    fn lock_holders_are_found_and_waiters_are_ignored() {
        let table = "\
1: POSIX  ADVISORY  WRITE 11 fe:10:77 0 EOF
1: -> FLOCK  ADVISORY  WRITE 12 fe:10:77 0 EOF
2: FLOCK  ADVISORY  WRITE 0 fe:10:77 0 EOF
3: FLOCK  ADVISORY  READ 13 fe:10:78 0 EOF
nonsense
4: OFDLCK ADVISORY  WRITE -1 fe:10:77 0 EOF
5: FLOCK  ADVISORY  READ 14 fe:10:77 0 EOF
";
        let holders = |inode| parse_lock_holders(table, (0xfe, 0x10), inode).collect::<Vec<_>>();
        let holder = |kind, pid| LockHolder { kind, pid };
        assert_eq!(holders(77), [holder("POSIX", 11), holder("FLOCK", 14)]);
        assert_eq!(holders(79), []);
    }

    #[test]
    fn an_open_disk_is_held_by_this_process() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().canonicalize().expect("it is there").join("disk");
        let disk = crate::HostDisk::create(&path, 4096, crate::ExistingFile::Refuse).expect("a disk");
        assert_eq!(lock_holder(&path).expect("a kernel with /proc"), Some(std::process::id()));
        let elsewhere = tempfile::tempdir_in("/dev/shm").expect("another file system");
        let link = elsewhere.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert_eq!(lock_holder(&link).expect("a kernel with /proc"), Some(std::process::id()));
        drop(disk);
        // A child that another test starts meanwhile inherits the descriptor, and with it the lock, until the
        // child executes its program.
        let is_released = (0..2000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(5));
            lock_holder(&path).expect("a kernel with /proc").is_none()
        });
        assert!(is_released);
    }
}

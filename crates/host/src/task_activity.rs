//! What a task does at a moment, as far as it tells whether somebody waits for the task.
//!
//! Nothing here asks the mounted file system, which may hang: a descriptor's mount and inode come from
//! /proc/TASK/fdinfo. But the descriptors of a `poll` lie in the task's memory, whose lock is held by threads that wait
//! for a mapped file.

use crate::client_sockets::read_client_sockets;
use crate::mount_table::MountTable;
use crate::system_call::{SystemCall, SystemCallReader};
use crate::task::TaskReadError;
use crate::task_wait::{OpenInode, parse_open_inode, read_open_inode};
use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;

/// Descriptors of a `poll` that are looked at.
const POLLED_MAX: u64 = 64;
/// Bytes of `struct pollfd`, which begins with the descriptor.
const POLLFD_BYTES: usize = 8;

/// What a task does at a moment. A task that does not sleep in the kernel counts as [`TaskActivity::Other`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TaskActivity {
    /// Reads from the mount.
    Read,
    /// Writes to the mount.
    Write,
    /// Syncs a file of the mount.
    Sync,
    /// Exchanges bytes with a client, or waits for one: its socket was accepted.
    Client,
    /// Exchanges bytes with another program, through a pipe or a socket that was not accepted.
    Peer,
    /// Anything else.
    Other,
}

impl TaskActivity {
    /// How many activities there are.
    pub const COUNT: usize = TaskActivity::Other as usize + 1;
}

/// Reads what tasks do, with respect to one mounted file system. For tasks of other users this takes CAP_SYS_PTRACE and
/// CAP_DAC_READ_SEARCH.
#[derive(Debug)]
pub struct TaskActivityReader {
    /// The major and minor number of the file system.
    device: (u32, u32),
    calls: SystemCallReader,
    socket_mount: u64,
    pipe_mount: u64,
    client_sockets: HashSet<u64>,
    /// Whether a mount, by its id, is of the file system. Ids are unique in all mount namespaces.
    known_mounts: HashMap<u64, bool>,
    /// Whether a descriptor of a task is an epoll that waits for clients. To list it takes long if there are many.
    known_epolls: HashMap<(u32, u64), bool>,
}

impl TaskActivityReader {
    /// A reader that knows no clients before it is [refreshed](TaskActivityReader::refresh).
    pub fn new(device: (u32, u32)) -> io::Result<TaskActivityReader> {
        let (socket, _) = UnixStream::pair()?;
        let (pipe, _) = io::pipe()?;
        Ok(TaskActivityReader {
            device,
            calls: SystemCallReader::default(),
            socket_mount: own_mount_id(socket.as_raw_fd())?,
            pipe_mount: own_mount_id(pipe.as_raw_fd())?,
            client_sockets: HashSet::new(),
            known_mounts: HashMap::new(),
            known_epolls: HashMap::new(),
        })
    }

    /// Learns which clients the network namespaces of `processes` have, and forgets which mounts there are.
    pub fn refresh(&mut self, processes: impl Iterator<Item = u32>) {
        self.known_mounts.clear();
        self.known_epolls.clear();
        self.client_sockets.clear();
        let mut namespaces = HashSet::new();
        for process in processes {
            if let Ok(namespace) = fs::read_link(format!("/proc/{process}/ns/net"))
                && namespaces.insert(namespace)
            {
                self.client_sockets.extend(read_client_sockets(process));
            }
        }
    }

    /// Whether a process has a file of the file system open.
    pub fn has_open_file(&mut self, process: u32) -> Result<bool, TaskReadError> {
        let of_fdinfo = |error| TaskReadError::of("fdinfo", error);
        for entry in fs::read_dir(format!("/proc/{process}/fdinfo")).map_err(of_fdinfo)? {
            // A file that was closed meanwhile is gone.
            let Ok(text) = entry.and_then(|entry| fs::read_to_string(entry.path())) else { continue };
            if parse_open_inode(&text).is_some_and(|open| self.is_on_mount(process, open)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What a task does at this moment.
    pub fn read(&mut self, task: u32) -> Result<TaskActivity, TaskReadError> {
        let Some(call) = self.calls.read(task)? else { return Ok(TaskActivity::Other) };
        let waits_for_client = if is_epoll(call.number) {
            self.epoll_has_client(task, call.arguments[0])
        } else {
            is_poll(call.number) && self.poll_has_client(task, &call)?
        };
        if waits_for_client {
            return Ok(TaskActivity::Client);
        }
        for &(argument, on_mount) in transfers(call.number) {
            let activity = self.activity_on(task, call.arguments[argument], on_mount)?;
            if activity != TaskActivity::Other {
                return Ok(activity);
            }
        }
        Ok(TaskActivity::Other)
    }

    /// The number of the inode that a task syncs at this moment, on any mount; `None` if it syncs none.
    pub fn synced_inode(&mut self, task: u32) -> Option<u64> {
        let call = self.calls.read(task).ok()??;
        let &[(argument, TaskActivity::Sync)] = transfers(call.number) else { return None };
        let open = read_open_inode(task, call.arguments[argument]).ok()??;
        Some(open.inode)
    }

    /// What a task does that does `on_mount` if its descriptor is a file of the mount.
    fn activity_on(
        &mut self,
        task: u32,
        descriptor: u64,
        on_mount: TaskActivity,
    ) -> Result<TaskActivity, TaskReadError> {
        let Some(open) = read_open_inode(task, descriptor)? else { return Ok(TaskActivity::Other) };
        Ok(if self.is_client(open) {
            TaskActivity::Client
        } else if [self.socket_mount, self.pipe_mount].contains(&open.mount_id) {
            TaskActivity::Peer
        } else if self.is_on_mount(task, open) {
            on_mount
        } else {
            TaskActivity::Other
        })
    }

    fn is_client(&self, open: OpenInode) -> bool {
        open.mount_id == self.socket_mount && self.client_sockets.contains(&open.inode)
    }

    fn is_on_mount(&mut self, task: u32, open: OpenInode) -> bool {
        if let Some(&is_on_mount) = self.known_mounts.get(&open.mount_id) {
            return is_on_mount;
        }
        if let Ok(mounts) = MountTable::of_process(task) {
            let known = mounts.iter().map(|mount| (mount.id, mount.device == self.device));
            self.known_mounts.extend(known);
        }
        // Pipes and sockets are on mounts that no table has.
        *self.known_mounts.entry(open.mount_id).or_insert(false)
    }

    fn epoll_has_client(&mut self, task: u32, descriptor: u64) -> bool {
        let clients = &self.client_sockets;
        *self.known_epolls.entry((task, descriptor)).or_insert_with(|| {
            let path = format!("/proc/{task}/fdinfo/{}", descriptor as libc::c_int);
            fs::read_to_string(path)
                .is_ok_and(|text| polled_inodes(&text).any(|inode| clients.contains(&inode)))
        })
    }

    fn poll_has_client(&self, task: u32, call: &SystemCall) -> Result<bool, TaskReadError> {
        let [address, count, ..] = call.arguments;
        let mut polled = vec![0; count.min(POLLED_MAX) as usize * POLLFD_BYTES];
        let memory =
            File::open(format!("/proc/{task}/mem")).map_err(|error| TaskReadError::of("mem", error))?;
        if memory.read_exact_at(&mut polled, address).is_err() {
            return Ok(false);
        }
        for polled in polled.chunks_exact(POLLFD_BYTES) {
            let descriptor = i32::from_ne_bytes(polled[..4].try_into().expect("four bytes"));
            if read_open_inode(task, descriptor as u64)?.is_some_and(|open| self.is_client(open)) {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

fn own_mount_id(descriptor: RawFd) -> io::Result<u64> {
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}"))?;
    let open = parse_open_inode(&text).ok_or_else(|| io::Error::other("Linux 5.14 or later is needed"))?;
    Ok(open.mount_id)
}

/// `tfd:        8 events:       1f data:                8  pos:0 ino:ac26da sdev:9`: a line for each descriptor of
/// an epoll.
fn polled_inodes(fdinfo: &str) -> impl Iterator<Item = u64> {
    let targets = fdinfo.lines().filter(|line| line.starts_with("tfd:"));
    targets.filter_map(|line| {
        let inode = line.split_whitespace().find_map(|field| field.strip_prefix("ino:"))?;
        u64::from_str_radix(inode, 16).ok()
    })
}

/// The arguments of a system call that are descriptors, and what the call does with them if they are files.
fn transfers(number: libc::c_long) -> &'static [(usize, TaskActivity)] {
    match number {
        libc::SYS_read
        | libc::SYS_readv
        | libc::SYS_pread64
        | libc::SYS_preadv
        | libc::SYS_preadv2
        | libc::SYS_getdents64
        | libc::SYS_recvfrom
        | libc::SYS_recvmsg
        | libc::SYS_recvmmsg => &[(0, TaskActivity::Read)],
        libc::SYS_write
        | libc::SYS_writev
        | libc::SYS_pwrite64
        | libc::SYS_pwritev
        | libc::SYS_pwritev2
        | libc::SYS_ftruncate
        | libc::SYS_fallocate
        | libc::SYS_sendto
        | libc::SYS_sendmsg
        | libc::SYS_sendmmsg => &[(0, TaskActivity::Write)],
        libc::SYS_fsync | libc::SYS_fdatasync | libc::SYS_sync_file_range => &[(0, TaskActivity::Sync)],
        libc::SYS_sendfile => &[(0, TaskActivity::Write), (1, TaskActivity::Read)],
        libc::SYS_copy_file_range | libc::SYS_splice => &[(0, TaskActivity::Read), (2, TaskActivity::Write)],
        _ => &[],
    }
}

fn is_epoll(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_epoll_wait {
        return true;
    }
    matches!(number, libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2)
}

fn is_poll(number: libc::c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    if number == libc::SYS_poll {
        return true;
    }
    number == libc::SYS_ppoll
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, epoll, poll};
    use rustix::thread::gettid;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::{Duration, Instant};

    /// Runs `work` in another thread until the thread is seen to do `wanted`, then calls `release`.
    fn assert_seen(
        reader: &mut TaskActivityReader,
        wanted: TaskActivity,
        work: impl FnOnce() + Send,
        release: impl FnOnce(),
    ) {
        let (send, receive) = channel();
        thread::scope(|scope| {
            scope.spawn(move || {
                send.send(gettid().as_raw_pid() as u32).expect("the test waits");
                work();
            });
            let task = receive.recv().expect("a thread id");
            let begun = Instant::now();
            let mut seen = || reader.read(task).expect("a thread of this process") == wanted;
            let is_seen = std::iter::repeat_with(|| {
                thread::sleep(Duration::from_millis(1));
                seen()
            })
            .find(|&is_seen| is_seen || begun.elapsed() > Duration::from_secs(20));
            release();
            assert_eq!(is_seen, Some(true), "{wanted:?}");
        });
    }

    fn reader_of(device: (u32, u32)) -> TaskActivityReader {
        let mut reader = TaskActivityReader::new(device).expect("a kernel with /proc");
        reader.refresh([std::process::id()].into_iter());
        reader
    }

    #[test]
    fn servers_read_and_poll_their_clients() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = &UnixStream::connect(&path).expect("a listener");
        let accepted = &listener.accept().expect("a client").0;
        let mut reader = reader_of((0, 0));
        let read = |mut socket: &UnixStream| socket.read_exact(&mut [0]).expect("a byte");
        let write = |mut socket: &UnixStream| socket.write_all(&[0]).expect("it is read");
        assert_seen(&mut reader, TaskActivity::Client, || read(accepted), || write(client));
        assert_seen(&mut reader, TaskActivity::Peer, || read(client), || write(accepted));
        let polls = || {
            poll(&mut [PollFd::new(accepted, PollFlags::IN)], None).expect("a byte");
            read(accepted);
        };
        assert_seen(&mut reader, TaskActivity::Client, polls, || write(client));
        let waits = || {
            let events = epoll::create(epoll::CreateFlags::CLOEXEC).expect("an epoll");
            let data = epoll::EventData::new_u64(0);
            epoll::add(&events, accepted, data, epoll::EventFlags::IN).expect("a socket");
            epoll::wait(&events, &mut [epoll::Event { flags: epoll::EventFlags::IN, data }], None)
                .expect("a byte");
            read(accepted);
        };
        assert_seen(&mut reader, TaskActivity::Client, waits, || write(client));
    }

    #[test]
    fn sleepers_and_pipes_are_told_apart() {
        let (mut read, mut write) = io::pipe().expect("a pipe");
        let mut reader = reader_of((0, 0));
        let reads = move || read.read_exact(&mut [0]).expect("a byte");
        assert_seen(&mut reader, TaskActivity::Peer, reads, || write.write_all(&[0]).expect("it is read"));
        let sleeps = || thread::sleep(Duration::from_millis(100));
        assert_seen(&mut reader, TaskActivity::Other, sleeps, || {});
    }

    #[test]
    fn open_files_are_found_by_their_device() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let mounts = MountTable::read().expect("a kernel with /proc");
        let path = file.path().canonicalize().expect("it exists");
        let device = mounts.mount_of(&path).expect("a mount").device;
        assert!(reader_of(device).has_open_file(std::process::id()).expect("this process"));
        assert!(!reader_of((0xfff, 0)).has_open_file(std::process::id()).expect("this process"));
        assert!(matches!(reader_of(device).has_open_file(0), Err(TaskReadError::Gone)));
    }

    #[test]
    fn an_epoll_lists_its_inodes() {
        let text = "pos:\t0\nino:\t1038\ntfd:        8 events:       1f data:                8  pos:0 ino:ac26da sdev:9\n";
        assert_eq!(polled_inodes(text).collect::<Vec<_>>(), [0xac26da]);
    }
}

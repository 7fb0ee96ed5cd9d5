//! Where the daemon of a mount or of exports listens, and how programs find it.
//!
//! The daemon listens on an abstract Unix socket. Its name contains the mount's device number, which the
//! mount table shows to everybody. So the mount alone leads to its daemon: for root, from cron, in any
//! environment. The socket needs no directory, and a daemon that was killed leaves nothing behind. Any user
//! may take such a name, so a program believes only a socket on which the kernel says that the mount's owner
//! listens. The name ends with the time: otherwise a user who takes a name first would keep the daemon from
//! it. A program in another network namespace does not find the daemon, and says so.
//!
//! Files would be no better: root would have to guess a user's directory, and users cannot make files below
//! /run.

use host::{SocketPeer, socket_peer};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::time::{ClockId, clock_gettime};
use std::cmp::Reverse;
use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// A device number, as the mount table writes it.
pub type DeviceNumber = (u32, u32);

/// What leads to a daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlAddress {
    /// A mount with this device number.
    Mount(DeviceNumber),
    /// The process with this id, which holds the lock of the store: a daemon with exports listens there, too, because it may
    /// have no mount.
    Process(u32),
}

/// The flag of a listening socket in /proc/net/unix. Connections have the same name without it.
const LISTENS: u32 = 0x10000;

/// Listens for clients.
pub fn listen(address: ControlAddress) -> io::Result<UnixListener> {
    let now = clock_gettime(ClockId::Boottime);
    let born = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    let name = SocketAddr::from_abstract_name(format!("{}{born}", prefix(address)))?;
    UnixListener::bind_addr(&name)
}

/// Connects to a daemon of the user `owner`; `None` if no daemon listens.
pub fn connect(address: ControlAddress, owner: u32) -> io::Result<Option<(UnixStream, SocketPeer)>> {
    let table = fs::read("/proc/net/unix")?;
    let names = listening_names(&String::from_utf8_lossy(&table), address);
    Ok(names.iter().find_map(|name| {
        let stream = connect_without_waiting(name).ok()?;
        let peer = socket_peer(stream.as_fd()).ok()?;
        (peer.uid == owner).then_some((stream, peer))
    }))
}

/// Connects to a socket that may be any user's, and therefore does not wait.
fn connect_without_waiting(name: &str) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    let stream = UnixStream::from(socket);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The names of listening sockets for an address, newest first. The kernel reuses a device number as soon as
/// a mount is gone, when the daemon that had it may not have noticed yet.
fn listening_names(table: &str, address: ControlAddress) -> Vec<String> {
    let prefix = prefix(address);
    let mut names: Vec<(u64, String)> = table
        .lines()
        .filter_map(|line| {
            let mut fields = line.split_whitespace();
            let flags = u32::from_str_radix(fields.nth(3)?, 16).ok()?;
            let name = fields.nth(3)?.strip_prefix('@')?;
            let born = name.strip_prefix(&prefix)?.parse().ok()?;
            (flags & LISTENS != 0).then(|| (born, name.to_owned()))
        })
        .collect();
    names.sort_by_key(|&(born, _)| Reverse(born));
    names.into_iter().map(|(_, name)| name).collect()
}

fn prefix(address: ControlAddress) -> String {
    match address {
        ControlAddress::Mount((major, minor)) => format!("weir/{major}:{minor}/"),
        ControlAddress::Process(pid) => format!("weir/process-{pid}/"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_listener_of_the_device_comes_first() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0001 01 24234 @weir/0:41/9
0000000000000000: 00000002 00000000 00010000 0001 01 24235 @weir/0:41/10
0000000000000000: 00000003 00000000 00000000 0001 03 24236 @weir/0:41/11
0000000000000000: 00000002 00000000 00010000 0001 01 24237 @weir/0:4/12
0000000000000000: 00000002 00000000 00010000 0001 01 24238 @weir/0:41/odd
0000000000000000: 00000002 00000000 00010000 0001 01 24239 /run/weir/0:41/13
0000000000000000: 00000003 00000000 00000000 0001 03 24240
";
        assert_eq!(listening_names(table, ControlAddress::Mount((0, 41))), ["weir/0:41/10", "weir/0:41/9"]);
    }

    #[test]
    fn only_the_owner_is_believed() {
        let address = ControlAddress::Mount((u32::MAX, std::process::id()));
        let _listener = listen(address).expect("a name of its own");
        let me = rustix::process::geteuid().as_raw();
        let (_, peer) = connect(address, me).expect("a kernel with /proc").expect("it listens");
        assert_eq!(peer, SocketPeer { pid: Some(std::process::id()), uid: me });
        assert!(connect(address, me + 1).expect("a kernel with /proc").is_none());
    }
}

//! Sockets that a server has accepted: behind each of them is a client.

use std::collections::HashSet;
use std::fs;

/// The state of an established connection in /proc/net/tcp, and of a listening socket.
const TCP_ESTABLISHED: &str = "01";
const TCP_LISTENS: &str = "0A";

/// The state of a connected socket in /proc/net/unix, and the types of sockets that can be accepted: streams, and
/// sequences of packets.
const UNIX_CONNECTED: &str = "03";
const UNIX_ACCEPTED_TYPES: [&str; 2] = ["0001", "0005"];

/// The inodes of all accepted sockets in the network namespace of `process`. A table that cannot be read counts
/// as empty.
pub(crate) fn read_client_sockets(process: u32) -> HashSet<u64> {
    let table = |name: &str| fs::read(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let tcp = [table("tcp"), table("tcp6")].concat();
    let mut sockets = parse_tcp(&String::from_utf8_lossy(&tcp));
    sockets.extend(parse_unix(&String::from_utf8_lossy(&table("unix"))));
    sockets
}

/// `0: 0100007F:1F90 0100007F:D431 01 …`: number, local address, remote address, state; the inode is the tenth
/// field. An accepted socket has the port of a listening one.
fn parse_tcp(table: &str) -> HashSet<u64> {
    let sockets: Vec<(&str, &str, u64)> = table.lines().filter_map(parse_tcp_line).collect();
    let listening = sockets.iter().filter(|(_, state, _)| *state == TCP_LISTENS).map(|&(port, ..)| port);
    let listening: HashSet<&str> = listening.collect();
    let is_accepted =
        |(port, state, _): &&(&str, &str, u64)| *state == TCP_ESTABLISHED && listening.contains(port);
    sockets.iter().filter(is_accepted).map(|&(.., inode)| inode).collect()
}

/// The local port, the state and the inode.
fn parse_tcp_line(line: &str) -> Option<(&str, &str, u64)> {
    let mut fields = line.split_whitespace();
    let (_, port) = fields.nth(1)?.rsplit_once(':')?;
    let state = fields.nth(1)?;
    Some((port, state, fields.nth(5)?.parse().ok()?))
}

/// `0000000000000000: 00000003 00000000 00000000 0001 03 11281904 /run/db.socket`: the type is the fifth field,
/// then come state, inode and path. An accepted socket has the path of the listening one; the client's has none.
fn parse_unix(table: &str) -> impl Iterator<Item = u64> {
    table.lines().filter_map(|line| {
        let mut fields = line.split_whitespace().skip(4);
        let is_accepted_type = UNIX_ACCEPTED_TYPES.contains(&fields.next()?);
        let is_connected = fields.next()? == UNIX_CONNECTED;
        let inode = fields.next()?.parse().ok()?;
        fields.next()?;
        (is_accepted_type && is_connected).then_some(inode)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, RawFd};
    use std::os::unix::fs::MetadataExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    fn inode(descriptor: RawFd) -> u64 {
        fs::metadata(format!("/proc/self/fd/{descriptor}")).expect("open").ino()
    }

    #[test]
    fn accepted_tcp_sockets_have_clients() {
        let listener =
            TcpListener::bind("[::1]:0").or_else(|_| TcpListener::bind("127.0.0.1:0")).expect("a port");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("a listener");
        let (accepted, _) = listener.accept().expect("a client");
        let found = read_client_sockets(std::process::id());
        assert!(found.contains(&inode(accepted.as_raw_fd())));
        assert!(!found.contains(&inode(client.as_raw_fd())) && !found.contains(&inode(listener.as_raw_fd())));
    }

    #[test]
    fn accepted_unix_sockets_have_clients() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).expect("a socket");
        let client = UnixStream::connect(&path).expect("a listener");
        let (accepted, _) = listener.accept().expect("a client");
        let (one, _other) = UnixStream::pair().expect("two ends");
        let found = read_client_sockets(std::process::id());
        assert!(found.contains(&inode(accepted.as_raw_fd())));
        for without in [client.as_raw_fd(), listener.as_raw_fd(), one.as_raw_fd()] {
            assert!(!found.contains(&inode(without)));
        }
    }
}

//! Clients of a server, over real sockets.

mod memory_disk;
mod test_client;

use memory_disk::{LoggedChange, MemoryDisk, PAGE};
use nbd::{DiskError, Durability, ExportServer, Listener};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use test_client::*;

const SIZE: usize = 1_000_003;

/// A server on a Unix socket in a directory of its own.
struct ServedDisk {
    server: ExportServer,
    disk: Arc<MemoryDisk>,
    directory: tempfile::TempDir,
}

impl ServedDisk {
    fn new(disk: MemoryDisk) -> ServedDisk {
        let directory = tempfile::tempdir().expect("a directory");
        let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket");
        let disk = Arc::new(disk);
        let server = ExportServer::start(Listener::Unix(listener), "disk", disk.clone()).expect("a server");
        ServedDisk { server, disk, directory }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(self.directory.path().join("socket")).expect("a listener")
    }

    /// Waits until `count` clients are connected.
    fn wait_for_connections(&self, count: usize) {
        wait_until(&format!("{count} connections"), || self.server.connections() == count);
    }
}

fn wait_until(what: &str, is_reached: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_reached() {
        assert!(Instant::now() < deadline, "not reached: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The next number of a fixed sequence.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *seed >> 33
}

/// Reads and writes odd ranges, and compares each outcome with a model.
fn assert_like_model(client: &mut TestClient, disk: &MemoryDisk) {
    let mut model = vec![0; SIZE];
    let mut seed = 1;
    for round in 0..500 {
        let offset = random(&mut seed) as usize % SIZE;
        let len = random(&mut seed) as usize % 70_000 % (SIZE - offset) + 1;
        let range = offset..offset + len;
        match random(&mut seed) % 4 {
            0 => {
                let bytes: Vec<u8> = (0..len).map(|at| (at + round) as u8 | 1).collect();
                assert_eq!(client.write(0, offset as u64, &bytes), 0);
                model[range].copy_from_slice(&bytes);
            }
            1 => {
                let flags = FLAG_NO_HOLE | FLAG_FAST_ZERO;
                let zeroed = client.request(CMD_WRITE_ZEROES, flags, offset as u64, len as u32);
                assert_eq!(zeroed, (0, Vec::new()));
                model[range].fill(0);
            }
            2 => {
                assert_eq!(client.request(CMD_TRIM, 0, offset as u64, len as u32), (0, Vec::new()));
                model[range].fill(0);
            }
            _ => {
                let (errno, bytes) = client.request(CMD_READ, 0, offset as u64, len as u32);
                assert_eq!(errno, 0);
                assert!(bytes == model[range], "round {round}: {len} bytes at {offset}");
            }
        }
    }
    assert!(disk.bytes() == model);
}

#[test]
fn simple_replies_carry_the_bytes_of_the_disk() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    assert_like_model(&mut TestClient::simple(served.connect()), &served.disk);
}

#[test]
fn structured_replies_carry_the_bytes_of_the_disk() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    assert_like_model(&mut TestClient::structured(served.connect()), &served.disk);
}

#[test]
fn tcp_clients_are_served() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let address = listener.local_addr().expect("an address");
    let disk = Arc::new(MemoryDisk::new(SIZE));
    let server = ExportServer::start(Listener::Tcp(listener), "disk", disk.clone()).expect("a server");
    let mut client = TestClient::structured(TcpStream::connect(address).expect("a listener"));
    assert_like_model(&mut client, &disk);
    server.stop();
    client.assert_closed();
    assert!(TcpStream::connect(address).is_err(), "a client after the end");
}

#[test]
fn export_name_begins_transmission() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::connect(served.connect());
    client.send_option(OPT_EXPORT_NAME, b"disk");
    assert_eq!(client.read_u64(), SIZE as u64);
    assert_eq!(client.read_bytes(2), [0b1001, 0b0110_1101]);
    assert_eq!(client.write(0, 5, b"hello"), 0);
    assert_eq!(client.request(CMD_READ, 0, 4, 7), (0, b"\0hello\0".to_vec()));

    let mut client = TestClient::connect(served.connect());
    client.send_option(OPT_EXPORT_NAME, b"other");
    client.assert_closed();
}

#[test]
fn requests_complete_in_any_order() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::structured(served.connect());
    for round in 0..20 {
        served.disk.holds_completions.store(true, Ordering::SeqCst);
        for cookie in 0..64_u64 {
            if cookie % 2 == 0 {
                client.send_request(CMD_WRITE, 0, cookie, cookie * 1001, 1001);
                client.send(&[cookie as u8 + round; 1001]);
            } else {
                client.send_request(CMD_READ, 0, cookie, (cookie - 1) * 1001, 1001);
            }
        }
        served.disk.wait_for_held(64);
        served.disk.complete_held(round.into());
        let mut cookies = Vec::new();
        for _ in 0..64 {
            // The reply to a read is structured, so the length of its content is in the reply.
            let reply = client.read_reply(0);
            assert_eq!(reply.errno, 0);
            if reply.cookie % 2 == 1 {
                let written = reply.cookie as u8 - 1 + round;
                assert_eq!(reply.content, [written; 1001]);
            }
            cookies.push(reply.cookie);
        }
        assert!(!cookies.is_sorted(), "the completions ran in order");
        cookies.sort_unstable();
        assert!(cookies.into_iter().eq(0..64));
    }
}

#[test]
fn requests_beyond_the_limit_wait_for_completions() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    served.disk.holds_completions.store(true, Ordering::SeqCst);
    for cookie in 0..100 {
        client.send_request(CMD_READ, 0, cookie, 0, 1);
    }
    served.disk.wait_for_held(64);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(served.disk.started.load(Ordering::SeqCst), 64);
    served.disk.complete_held(7);
    let mut cookies: Vec<_> = (0..100).map(|_| client.read_reply(1).cookie).collect();
    cookies.sort_unstable();
    assert!(cookies.into_iter().eq(0..100));
}

#[test]
fn the_longest_requests_pass() {
    let longest = 32 << 20;
    let served = ServedDisk::new(MemoryDisk::new(longest + 1));
    let mut client = TestClient::structured(served.connect());
    let bytes: Vec<u8> = (0..longest).map(|at| (at % 251) as u8).collect();
    for offset in 0..2 {
        assert_eq!(client.write(0, offset, &bytes), 0);
        let (errno, read) = client.request(CMD_READ, FLAG_DF, offset, longest as u32);
        assert_eq!(errno, 0);
        assert!(read == bytes);
    }
}

#[test]
fn changes_are_as_durable_as_the_client_asks() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    assert_eq!(client.write(0, 0, b"x"), 0);
    assert_eq!(client.write(FLAG_FUA, 0, b"x"), 0);
    for (command, flags) in [
        (CMD_WRITE_ZEROES, 0),
        (CMD_WRITE_ZEROES, FLAG_FUA),
        (CMD_TRIM, FLAG_FUA),
        (CMD_FLUSH, 0),
        (CMD_READ, FLAG_FUA),
    ] {
        assert_eq!(client.request(command, flags, 0, 1).0, 0);
    }
    let expected = [
        LoggedChange::Write(Durability::Later),
        LoggedChange::Write(Durability::Now),
        LoggedChange::Zero(Durability::Later),
        LoggedChange::Zero(Durability::Now),
        LoggedChange::Zero(Durability::Now),
        LoggedChange::Flush,
    ];
    assert_eq!(*served.disk.log.lock().expect("a lock"), expected);
}

#[test]
fn errors_of_the_disk_reach_the_client() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let errors = [
        (DiskError::NoSpace, ENOSPC),
        (DiskError::ReadOnly, EPERM),
        (DiskError::Io, EIO),
        (DiskError::Invalid, EINVAL),
        (DiskError::ShuttingDown, ESHUTDOWN),
    ];
    let mut simple = TestClient::simple(served.connect());
    let mut structured = TestClient::structured(served.connect());
    for (error, errno) in errors {
        *served.disk.error.lock().expect("a lock") = Some(error);
        for client in [&mut simple, &mut structured] {
            assert_eq!(client.write(0, 0, b"x"), errno);
            for command in [CMD_READ, CMD_FLUSH, CMD_TRIM, CMD_WRITE_ZEROES] {
                assert_eq!(client.request(command, 0, 0, 1), (errno, Vec::new()));
            }
        }
        assert_eq!(structured.request(CMD_BLOCK_STATUS, 0, 0, 1), (errno, Vec::new()));
    }
}

#[test]
fn invalid_requests_leave_the_connection_usable() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let size = SIZE as u64;
    let cases = [
        (CMD_READ, 0, 0, u32::MAX, EINVAL),
        (CMD_READ, 0, size - 1, 2, EINVAL),
        (CMD_READ, 0, u64::MAX, 1, EINVAL),
        (CMD_READ, FLAG_REQ_ONE, 0, 1, EINVAL),
        (CMD_TRIM, 0, size, 1, EINVAL),
        (CMD_TRIM, 0, 0, u32::MAX, EINVAL),
        (CMD_WRITE_ZEROES, 0, 0, u32::MAX, ENOSPC),
        (CMD_WRITE_ZEROES, 0, u64::MAX, u32::MAX, ENOSPC),
        (CMD_WRITE_ZEROES, 1 << 15, 0, 1, EINVAL),
        (CMD_BLOCK_STATUS, 0, 0, 0, EINVAL),
        (CMD_BLOCK_STATUS, 0, 0, u32::MAX, EINVAL),
        (CMD_CACHE, 0, 0, 1, EINVAL),
        (u16::MAX, u16::MAX, u64::MAX, u32::MAX, EINVAL),
        (CMD_READ, 0, size, 0, 0),
        (CMD_READ, 0, size + 1, 0, EINVAL),
        (CMD_WRITE_ZEROES, 0, 3, 0, 0),
        (CMD_TRIM, 0, 3, 0, 0),
        (CMD_FLUSH, 0, 0, 0, 0),
    ];
    for structured in [false, true] {
        let connect = if structured { TestClient::structured } else { TestClient::simple };
        let mut client = connect(served.connect());
        for (command, flags, offset, len, errno) in cases {
            client.send_request(command, flags, 1, offset, len);
            let reply = client.read_reply(0);
            let case = format!("command {command} flags {flags} {len} bytes at {offset}");
            assert_eq!(reply, ClientReply { cookie: 1, errno, content: Vec::new() }, "{case}");
        }
        assert_eq!(client.write(0, 3, b""), 0);
        assert_eq!(client.write(0, size - 1, b"xx"), ENOSPC);
        assert_eq!(client.write(FLAG_DF, 0, b"xx"), EINVAL);
        assert_eq!(client.write(0, 0, &vec![1; (32 << 20) + 1]), EINVAL);
        assert_eq!(client.request(CMD_READ, 0, 0, 2), (0, vec![0, 0]));
    }
}

#[test]
fn block_status_and_df_must_be_negotiated() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    client.send_request(CMD_READ, FLAG_DF, 1, 0, 1);
    client.send_request(CMD_BLOCK_STATUS, 0, 1, 0, 1);
    for _ in 0..2 {
        assert_eq!(client.read_reply(0).errno, EINVAL);
    }
}

#[test]
fn block_status_reports_holes() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::structured(served.connect());
    let page = PAGE as u32;
    assert_eq!(client.write(0, 2 * u64::from(page), &[1; PAGE]), 0);
    let words = |words: &[u32]| words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>();
    let whole = client.request(CMD_BLOCK_STATUS, 0, 0, SIZE as u32);
    let rest = SIZE as u32 - 3 * page;
    assert_eq!(whole, (0, words(&[1, 2 * page, 3, page, 0, rest, 3])));
    let first = client.request(CMD_BLOCK_STATUS, FLAG_REQ_ONE, 7, SIZE as u32 - 7);
    assert_eq!(first, (0, words(&[1, 2 * page - 7, 3])));
    // The extent is cut to the range.
    let part = client.request(CMD_BLOCK_STATUS, FLAG_REQ_ONE, 2 * u64::from(page) + 1, 5);
    assert_eq!(part, (0, words(&[1, 5, 0])));
}

#[test]
fn a_read_only_export_refuses_changes() {
    let mut disk = MemoryDisk::new(SIZE);
    disk.is_read_only = true;
    let served = ServedDisk::new(disk);
    let mut client = TestClient::structured(served.connect());
    assert_eq!(client.write(0, 0, b"x"), EPERM);
    assert_eq!(client.request(CMD_TRIM, 0, 0, 1).0, EPERM);
    assert_eq!(client.request(CMD_WRITE_ZEROES, 0, 0, 1).0, EPERM);
    assert_eq!(client.request(CMD_FLUSH, 0, 0, 0).0, 0);
    assert_eq!(client.request(CMD_READ, 0, 0, 1), (0, vec![0]));
}

#[test]
fn options_after_go_end_the_connection() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    client.send_option(OPT_GO, &[0; 16]);
    client.assert_closed();
    served.wait_for_connections(0);
}

#[test]
fn disconnecting_waits_for_requests_in_flight() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    served.disk.holds_completions.store(true, Ordering::SeqCst);
    client.send_request(CMD_READ, 0, 1, 0, 3);
    client.send_request(CMD_DISC, 0, 2, 0, 0);
    served.disk.wait_for_held(1);
    served.disk.complete_held(0);
    assert_eq!(client.read_reply(3), ClientReply { cookie: 1, errno: 0, content: vec![0; 3] });
    client.assert_closed();
    served.wait_for_connections(0);
}

#[test]
fn clients_that_vanish_leave_nothing() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    served.disk.holds_completions.store(true, Ordering::SeqCst);
    let mut clients: Vec<_> = (0..4).map(|_| TestClient::simple(served.connect())).collect();
    for client in &mut clients {
        for cookie in 0..64 {
            client.send_request(CMD_READ, 0, cookie, 0, 10_000);
        }
    }
    served.disk.wait_for_held(4 * 64);
    assert_eq!(served.server.connections(), 4);
    drop(clients);
    served.disk.complete_held(3);
    served.wait_for_connections(0);
    assert_eq!(served.disk.completed.load(Ordering::SeqCst), 4 * 64);
    // Half a handshake, and half a request.
    drop(TestClient::connect(served.connect()));
    let mut client = TestClient::simple(served.connect());
    client.send_request(CMD_WRITE, 0, 0, 0, 1000);
    client.send(b"half");
    drop(client);
    served.wait_for_connections(0);
    // The server and this test are the only owners of the disk.
    served.server.stop();
    assert_eq!(Arc::strong_count(&served.disk), 1);
}

#[test]
fn a_client_that_never_reads_disturbs_nobody() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut stuck = TestClient::simple(served.connect());
    // More replies than a socket holds.
    for cookie in 0..64 {
        stuck.send_request(CMD_READ, 0, cookie, 0, 500_000);
    }
    wait_until("the requests of the stuck client", || served.disk.completed.load(Ordering::SeqCst) == 64);
    assert_like_model(&mut TestClient::structured(served.connect()), &served.disk);
    served.wait_for_connections(1);
    served.server.stop();
    assert_eq!(Arc::strong_count(&served.disk), 1);
}

#[test]
fn stop_waits_for_requests_in_flight() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut client = TestClient::simple(served.connect());
    served.disk.holds_completions.store(true, Ordering::SeqCst);
    client.send_request(CMD_FLUSH, 0, 0, 0, 0);
    served.disk.wait_for_held(1);
    let ServedDisk { server, disk, directory } = served;
    let stopping = std::thread::spawn(move || server.stop());
    client.assert_closed();
    assert!(!stopping.is_finished(), "a request is in flight");
    disk.complete_held(0);
    stopping.join().expect("no panic");
    assert_eq!(disk.completed.load(Ordering::SeqCst), 1);
    assert!(UnixStream::connect(directory.path().join("socket")).is_err(), "a client after the end");
}

#[test]
fn clients_beyond_the_limit_are_disconnected() {
    let served = ServedDisk::new(MemoryDisk::new(SIZE));
    let mut clients: Vec<_> = (0..16).map(|_| TestClient::simple(served.connect())).collect();
    let refused = served.connect();
    refused.set_deadline();
    assert_eq!(std::io::Read::read(&mut &refused, &mut [0]).expect("an end"), 0);
    clients.pop();
    served.wait_for_connections(15);
    TestClient::simple(served.connect());
}

#[test]
fn long_names_are_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let listener = UnixListener::bind(directory.path().join("socket")).expect("a socket");
    let disk = Arc::new(MemoryDisk::new(SIZE));
    let name = "x".repeat(4097);
    let error = ExportServer::start(Listener::Unix(listener), &name, disk).expect_err("a long name");
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

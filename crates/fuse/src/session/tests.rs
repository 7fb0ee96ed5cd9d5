//! Requests with any numbers, answered by the whole stack on simulated disks.

use super::*;
use crate::kernel_settings::KernelCachePolicy;
use crate::latency::{RequestCounter, RequestLatencies};
use cache::{BackgroundTask, Cache, CacheSettings, RecoveredBuffer};
use device::{SeededRng, StoreId, VolumeId};
use fs::{CallerCredentials, Fs};
use sim_disk::{PowerSupply, SimClock, SimDisk};
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::{NewVolume, Store, StoreLayout};
use zerocopy::{FromZeros, IntoBytes};

/// Steps of background work within which every reply must come.
const STEPS_MAX: u32 = 100_000;

/// Steps between two pauses.
const STEPS_AT_ONCE: u32 = 1000;

/// The bytes of each operation's fixed arguments, without names and data, by opcode.
const ARGUMENT_BYTES: [(u32, usize); 22] = [
    (2, 8),
    (3, 16),
    (4, 88),
    (8, 16),
    (9, 8),
    (12, 8),
    (13, 8),
    (14, 8),
    (15, 40),
    (16, 40),
    (18, 24),
    (20, 16),
    (21, 8),
    (22, 8),
    (23, 8),
    (28, 40),
    (35, 16),
    (43, 32),
    (44, 40),
    (45, 16),
    (46, 24),
    (47, 56),
];

/// Like opcode 47, with more bits in its reply.
const COPY_FILE_RANGE_64: u32 = 53;
const BATCH_FORGET: u32 = 42;
const READ: u32 = 15;
const WRITE: u32 = 16;
const SETXATTR: u32 = 21;
const GETXATTR: u32 = 22;
const REMOVEXATTR: u32 = 24;

/// Limits of types, of pages, and of the largest file.
const ENDS: [u64; 22] = [
    0,
    1,
    2,
    511,
    4095,
    4096,
    4097,
    8192,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 47) - 4096,
    (1 << 47) - 1,
    1 << 47,
    (1 << 47) + 1,
    (1 << 63) - 4096,
    (1 << 63) - 2,
    (1 << 63) - 1,
    1 << 63,
    u64::MAX - 1,
    u64::MAX,
];

/// A server on simulated disks; replies come into a file.
struct Bench {
    requests: RequestLoop,
    replies: File,
    cache: Arc<Cache>,
    fs: Arc<Fs>,
    clock: Arc<SimClock>,
    /// Ranges that the kernel was told to invalidate.
    dropped: Arc<Mutex<Vec<(u64, u64)>>>,
    asked: u64,
}

impl Bench {
    fn new() -> Bench {
        let power = PowerSupply::new();
        let clock = Arc::new(SimClock::new());
        let disk = |name, blocks| SimDisk::new(name, blocks, &power, 1);
        let store = disk("store", 16_384);
        let buffer = disk("buffer", 2048);
        let id = StoreId([7; 16]);
        Store::format(&*store, &StoreLayout { id, segment_blocks: Some(64) }).expect("a format");
        buffer::Buffer::format(&*buffer, id).expect("a format");
        let store = Arc::new(Store::open(store).expect("a store"));
        let recovered = RecoveredBuffer::read(buffer, id, &*clock).expect("a buffer");
        let cache = Cache::begin(store, recovered, clock.clone(), CacheSettings::default()).expect("a cache");
        let cache = Arc::new(cache);
        let owner = CallerCredentials { uid: 0, gid: 0, umask: 0 };
        let pages = Fs::create(&*clock, owner, [7; 16]).expect("a new file system");
        cache.create_volume(&NewVolume { name: "main", ..NewVolume::default() }, &pages).expect("space");
        let fs = Arc::new(Fs::open(cache.clone(), VolumeId::MAIN, clock.clone()).expect("a file system"));
        let latencies = Arc::new(RequestLatencies::default());
        let requests = Arc::new(RequestCounter::default());
        let replies = tempfile::NamedTempFile::new().expect("a file");
        let appended = File::options().append(true).open(replies.path()).expect("the file");
        let server = FuseServer::new(&fs, latencies, requests, Arc::default(), KernelCachePolicy::Full);
        let dropped: Arc<Mutex<Vec<(u64, u64)>>> = Arc::default();
        let drops = dropped.clone();
        let drop_pages =
            move |_, range: Range<u64>| drops.lock().expect("no panic").push((range.start, range.end));
        server.parts.page_invalidator.start(drop_pages).expect("threads");
        let requests = RequestLoop {
            server,
            connection: FuseConnection::of(&appended).expect("a descriptor"),
            users: AllowedUsers::All,
        };
        Bench { requests, replies: replies.into_file(), cache, fs, clock, dropped, asked: 0 }
    }

    /// Sends a request, and returns the error and the body of its reply, if it has one.
    fn ask(&mut self, opcode: u32, node: u64, body: &[u8]) -> Option<(i32, Vec<u8>)> {
        self.asked += 1;
        let header =
            RequestHeader { opcode, unique: self.asked, node, uid: 1000, ..RequestHeader::new_zeroed() };
        self.requests.answer(&header, body);
        if !header.wants_reply() {
            return None;
        }
        let mut reply = Vec::new();
        for step in 0..STEPS_MAX {
            // Another thread may be about to reply.
            if step > STEPS_AT_ONCE {
                thread::sleep(Duration::from_micros(100));
            }
            self.replies.read_to_end(&mut reply).expect("a file");
            if is_complete(&reply) {
                break;
            }
            for task in [
                BackgroundTask::Commit,
                BackgroundTask::Fetch,
                BackgroundTask::WriteBack,
                BackgroundTask::Checkpoint,
            ] {
                self.cache.step(task);
            }
        }
        assert!(is_complete(&reply), "no reply to operation {opcode} on {node:#x} with {body:x?}");
        let number = |at: usize| i32::from_ne_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(number(0) as usize, reply.len(), "one reply, which says how long it is");
        assert_eq!(reply[8..16], self.asked.to_ne_bytes());
        assert!((-133..=0).contains(&number(4)), "errno {}", number(4));
        Some((number(4), reply.split_off(16)))
    }

    /// The inode of `name` in the root directory, or 0.
    fn look_up(&mut self, name: &[u8]) -> u64 {
        let found = self.ask(1, 1, &[name, b"\0"].concat()).expect("a reply");
        found.1.first_chunk().map_or(0, |node| u64::from_ne_bytes(*node))
    }

    /// Makes a file, a directory and a symbolic link where they are missing, and returns them.
    fn tree(&mut self) -> [u64; 3] {
        let mode = |mode: u32| [mode, 0, 0, 0].as_bytes().to_vec();
        self.ask(8, 1, &[&mode(libc::S_IFREG | 0o644)[..], b"f\0"].concat());
        self.ask(9, 1, &[&mode(0o755)[..8], b"d\0"].concat());
        self.ask(6, 1, b"l\0f\0");
        [b"f", b"d", b"l"].map(|name| self.look_up(name))
    }

    #[track_caller]
    fn assert_whole(&mut self) {
        self.fs.check(&mut |finding| panic!("{finding:?}"));
        assert_eq!(self.ask(3, 1, &[0; 16]).expect("a reply").0, 0, "the root has attributes");
    }
}

/// Whether as many bytes are there as the reply says that it has.
///
/// A reply that crosses a page of the file becomes visible in two parts, when another thread writes it.
fn is_complete(reply: &[u8]) -> bool {
    reply.len() >= 16
        && reply.first_chunk().is_some_and(|len| reply.len() >= u32::from_ne_bytes(*len) as usize)
}

fn words(random: &mut SeededRng, bytes: usize, nodes: &[u64; 3]) -> Vec<u8> {
    let mut word = || match random.below(8) {
        0 => random.next_u64(),
        1 => nodes[random.index(nodes.len())],
        2 => random.below(1 << 16),
        // Two numbers of 32 bits.
        3 | 4 => ENDS[random.index(ENDS.len())] << 32 | ENDS[random.index(ENDS.len())] & 0xffff_ffff,
        _ => ENDS[random.index(ENDS.len())],
    };
    (0..bytes / 8).flat_map(|_| word().to_ne_bytes()).collect()
}

/// A request's body: arguments of any numbers, and a name or two.
fn draw(random: &mut SeededRng, opcode: u32, nodes: &[u64; 3]) -> Vec<u8> {
    let names: [&[u8]; 14] = [
        b"f",
        b"d",
        b"l",
        b"f",
        b"d",
        b"new",
        b".",
        b"..",
        b"a/b",
        &[b'n'; 255],
        &[b'n'; 256],
        b"user.x",
        b"security.capability",
        b"system.posix_acl_access",
    ];
    let same = if opcode == COPY_FILE_RANGE_64 { 47 } else { opcode };
    let bytes = ARGUMENT_BYTES.iter().find(|(of, _)| *of == same).map_or(0, |(_, bytes)| *bytes);
    let mut body = words(random, bytes, nodes);
    let data = words(random, 8 * random.clone().index(600), nodes);
    match opcode {
        // The kernel guarantees that the data are as long as the request says, and that no more bytes are
        // requested than it allows.
        WRITE => body[16..20].copy_from_slice(&(data.len() as u32).to_ne_bytes()),
        SETXATTR => body[0..4].copy_from_slice(&(data.len() as u32).to_ne_bytes()),
        READ => body[18..20].copy_from_slice(&random.below(16).to_ne_bytes()[..2]),
        BATCH_FORGET => body = [&2_u64.to_ne_bytes()[..], &words(random, 32, nodes)].concat(),
        _ => {}
    }
    if opcode != WRITE {
        for _ in 0..2 {
            body.extend_from_slice(names[random.index(names.len())]);
            body.push(0);
            if opcode == SETXATTR {
                break;
            }
        }
    }
    body.extend_from_slice(&data);
    body
}

#[test]
fn requests_with_any_numbers_are_answered_and_break_nothing() {
    let mut bench = Bench::new();
    let mut random = SeededRng::new(40);
    for round in 0..400 {
        let nodes = bench.tree();
        for _ in 0..50 {
            let opcode = match random.below(8) {
                // All but DESTROY, which ends the loop.
                0 => 39 + random.below(20) as u32,
                _ => 1 + random.below(37) as u32,
            };
            let node = match random.below(8) {
                0 => ENDS[random.index(ENDS.len())],
                1 => random.next_u64(),
                2..5 => 1,
                _ => nodes[random.index(nodes.len())],
            };
            let body = draw(&mut random, opcode, &nodes);
            bench.ask(opcode, node, &body);
        }
        if round % 50 == 0 {
            bench.assert_whole();
        }
    }
    bench.assert_whole();
}

#[test]
fn requests_cut_short_and_of_equal_bytes_are_answered_and_break_nothing() {
    let mut bench = Bench::new();
    for byte in [0, 1, 0x7f, 0x80, 0xff] {
        let [file, ..] = bench.tree();
        for opcode in (0..60).filter(|&opcode| opcode != 38) {
            for len in (0..=96).step_by(4).chain([300]) {
                let body = vec![byte; len];
                for node in [1, file, u64::MAX] {
                    bench.ask(opcode, node, &body);
                    // The same, with a zero byte that ends names.
                    bench.ask(opcode, node, &[&body[..], b"\0x\0"].concat());
                }
            }
        }
        bench.assert_whole();
    }
}

/// The flag of O_DIRECT reads and writes.
const AROUND: u32 = 2;

/// The arguments of a read or write of one page.
fn of_page(page: u64, flags: u32) -> Vec<u8> {
    let size_and_flags = 4096 | u64::from(flags) << 32;
    [0, page * 4096, size_and_flags, 0, 0].as_bytes().to_vec()
}

impl Bench {
    fn read_page(&mut self, node: u64, page: u64, flags: u32) {
        assert_eq!(self.ask(READ, node, &of_page(page, flags)).expect("a reply").0, 0);
    }

    /// Writes a page, and returns the ranges that the kernel was told to invalidate before the reply.
    fn write_page(&mut self, node: u64, page: u64, flags: u32) -> Vec<(u64, u64)> {
        let body = [&of_page(page, flags)[..], &[7; 4096]].concat();
        assert_eq!(self.ask(WRITE, node, &body).expect("a reply").0, 0);
        std::mem::take(&mut *self.dropped.lock().expect("no panic"))
    }
}

#[test]
fn the_kernel_drops_pages_that_a_write_around_them_made_old_before_that_is_answered() {
    let mut bench = Bench::new();
    let [file, ..] = bench.tree();
    assert_eq!(bench.write_page(file, 0, AROUND), []);
    bench.read_page(file, 0, AROUND);
    assert_eq!(bench.write_page(file, 0, AROUND), [], "it keeps no pages");
    bench.read_page(file, 0, 0);
    assert_eq!(bench.write_page(file, 3, AROUND), [(12_288, 16_384)]);
    assert_eq!(bench.write_page(file, 3, 0), [], "it has what it writes");
    assert_eq!(bench.write_page(file, 2, AROUND), [(8192, 12_288)]);
    // A minute after the last cached read or write, all pages are invalidated.
    bench.clock.advance(Duration::from_secs(61));
    assert_eq!(bench.write_page(file, 2, AROUND), [(0, u64::MAX)]);
    assert_eq!(bench.write_page(file, 2, AROUND), []);
    bench.write_page(file, 5, 0);
    assert_eq!(bench.write_page(file, 2, AROUND), [(8192, 12_288)]);
    // The kernel forgets a file's pages with the file.
    bench.ask(2, file, &u64::MAX.to_ne_bytes());
    let [file, ..] = bench.tree();
    assert_eq!(bench.write_page(file, 2, AROUND), []);
}

#[test]
fn classes_of_threads_hold_up_no_other_request() {
    let mut bench = Bench::new();
    let [file, ..] = bench.tree();
    let (in_use, used) = channel::<()>();
    bench.requests.server.parts.proc_reader.run(move || {
        let _ = used.recv();
    });
    let pid = rustix::thread::gettid().as_raw_pid() as u32;
    let name = b"user.weir.class\0";
    let value = b"background";
    let size = (value.len() as u64).to_ne_bytes();
    let set = [&size[..], name, value].concat();
    let get = [&size[..], name].concat();
    for (opcode, body) in [(SETXATTR, &set[..]), (GETXATTR, &get), (REMOVEXATTR, name)] {
        let header =
            RequestHeader { opcode, unique: 99, node: file, uid: 1000, pid, ..RequestHeader::new_zeroed() };
        bench.requests.answer(&header, body);
    }
    assert_eq!(bench.write_page(file, 0, 0), [], "it is the only request with a reply");
    drop(in_use);
    let reply = |body: &[u8]| [[16 + body.len() as u64, 99].as_bytes(), body].concat();
    let expected = [reply(b""), reply(value), reply(b"")].concat();
    let mut replies = Vec::new();
    while replies.len() < expected.len() {
        bench.replies.read_to_end(&mut replies).expect("a file");
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(replies, expected);
}

#[test]
fn the_end_of_a_mount_is_answered_and_ends_the_loop() {
    let mut bench = Bench::new();
    let header = RequestHeader { opcode: 38, unique: 5, ..RequestHeader::new_zeroed() };
    assert_eq!(bench.requests.answer(&header, &[]), AfterRequest::End);
    let mut reply = Vec::new();
    bench.replies.read_to_end(&mut reply).expect("a file");
    assert_eq!(reply, [16, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_reply_that_nobody_sends_is_an_error() {
    let mut bench = Bench::new();
    let header = RequestHeader { opcode: 1, unique: 6, ..RequestHeader::new_zeroed() };
    drop(bench.requests.connection.reply_to(&header));
    let forget = RequestHeader { opcode: 2, unique: 7, ..RequestHeader::new_zeroed() };
    drop(bench.requests.connection.reply_to(&forget));
    let mut reply = Vec::new();
    bench.replies.read_to_end(&mut reply).expect("a file");
    assert_eq!(reply, [16, 0, 0, 0, 0xfb, 0xff, 0xff, 0xff, 6, 0, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn a_mount_of_one_user_serves_others_only_what_the_kernel_asks_in_nobodys_name() {
    let header = |uid| RequestHeader { uid, ..RequestHeader::new_zeroed() };
    let lookup = FuseOp::Lookup { name: b"x" };
    let read = FuseOp::Read { offset: 0, size: 1, flags: 0 };
    assert!(AllowedUsers::Only(7).admit(&header(7), &lookup));
    assert!(!AllowedUsers::Only(7).admit(&header(0), &lookup));
    assert!(AllowedUsers::Only(7).admit(&header(0), &read));
    assert!(AllowedUsers::All.admit(&header(8), &lookup));
}

//! Clients that take as many resources as possible, and die in the middle. The daemon serves other clients,
//! stays within its limits, and frees all resources afterwards.

use crate::common::succeeds;
use crate::kills::{PATIENCE, Server, have, random};
use crate::weir::Weir;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use weir_status::InFlightReport;

const OPEN_FILES: u64 = 100_000;

/// `--memory` of the mounts, in MiB, and what the daemon may hold beside it.
const MEMORY: u64 = 64;
const BESIDE: u64 = 128;
const OPTIONS: [&str; 2] = ["--memory", "64MiB"];

/// MiB that the second and third of equal rounds may add to the first: the memory that an allocator keeps
/// varies a little.
const GROWTH: u64 = 16;

/// After this time most memory that is free has gone back to the kernel: the daemon keeps tens of MiB of it for
/// about a second.
const REST: Duration = Duration::from_secs(3);

/// Threads of the daemon that may wait for a device: far fewer than there are clients.
const WAITING_THREADS: usize = 12;

/// A mount, and the client's program.
struct Stage {
    weir: Weir,
    program: PathBuf,
    /// The most descriptors that the daemon may have: those at the start, and one for each thread that waits
    /// for a device. Such a thread creates its ring at its first wait.
    descriptors: usize,
}

impl Stage {
    /// `None` where nothing can be mounted or compiled.
    fn set() -> Option<Stage> {
        if !have(&[Path::new("cc")]) {
            return None;
        }
        let weir = Weir::start_with("3GiB", "64MiB", &OPTIONS)?;
        let program = weir.beside("hostile_client");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/hostile_client.c");
        succeeds(Command::new("cc").args(["-O1", "-Wall", "-pthread", "-o"]).args([&program, &source]));
        let mut stage = Stage { weir, program, descriptors: 0 };
        stage.descriptors = stage.descriptors_now() + WAITING_THREADS;
        Some(stage)
    }

    /// Starts a client, and waits until it is in the middle of its role.
    fn client(&self, role: &str, count: u64) -> Server {
        let mut command = Command::new(&self.program);
        command.arg(role).arg(self.weir.path()).arg(count.to_string()).stdout(Stdio::piped());
        let mut client = Server::start(&mut command);
        let mut says = BufReader::new(client.0.stdout.take().expect("a pipe"));
        let mut line = String::new();
        says.read_line(&mut line).expect("a pipe");
        assert_eq!(line, "ready\n", "the client for `{role}` failed: {:?}", client.0.wait());
        client
    }

    fn descriptors_now(&self) -> usize {
        let all = Path::new("/proc").join(self.weir.daemon().pid().to_string()).join("fd");
        fs::read_dir(all).expect("the daemon lives").count()
    }

    /// Resident memory in MiB. Fails if that is more than `--memory` and the allowance beside it.
    fn resident(&self) -> u64 {
        let status = Path::new("/proc").join(self.weir.daemon().pid().to_string()).join("status");
        let status = fs::read_to_string(status).expect("the daemon lives");
        let kib = |name: &str| -> u64 {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel says so");
            line.trim().trim_end_matches(" kB").parse().expect("a number")
        };
        let peak = kib("VmHWM:") >> 10;
        assert!(peak <= MEMORY + BESIDE, "{peak} MiB were resident, {} are allowed", MEMORY + BESIDE);
        kib("VmRSS:") >> 10
    }

    /// Waits until the daemon has freed all resources of the dead clients.
    #[track_caller]
    fn settles(&self) {
        let begin = Instant::now();
        loop {
            let (in_flight, descriptors) = (self.weir.daemon().status().in_flight, self.descriptors_now());
            if in_flight == InFlightReport::default() && descriptors <= self.descriptors {
                break;
            }
            let before = self.descriptors;
            assert!(
                begin.elapsed() < PATIENCE,
                "left: {in_flight:?}, {descriptors} descriptors, {before} are allowed"
            );
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(self.resident() > 0);
    }

    /// Waits until no more than this many MiB are resident.
    #[track_caller]
    fn memory_returns_to(&self, expected: u64) {
        let begin = Instant::now();
        while self.resident() > expected {
            let resident = self.resident();
            assert!(begin.elapsed() < PATIENCE, "{resident} MiB stay resident, {expected} should at most");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn inodes(&self) -> u64 {
        let usage = rustix::fs::statvfs(self.weir.path()).expect("it is mounted");
        usage.f_files - usage.f_ffree
    }

    /// Waits until only this many inodes are left. The kernel drops the open files of a dead client at any
    /// time.
    #[track_caller]
    fn inodes_return_to(&self, expected: u64) {
        let begin = Instant::now();
        while self.inodes() > expected {
            assert!(begin.elapsed() < PATIENCE, "{} inodes are left, {expected} should be", self.inodes());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn remove(&self, stem: &str) {
        for entry in fs::read_dir(self.weir.path()).expect("a listing") {
            let path = entry.expect("an entry").path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(stem)) {
                fs::remove_file(path).expect("a file can be removed");
            }
        }
    }

    fn leave(mut self) {
        self.weir.unmount_and_check();
    }
}

/// Does the same three times; after the second and third the daemon must get back to the memory of the first, or to what it had before
/// and `cached` MiB of pages of files that are still there. It is chance how many of these the first round leaves.
fn three_rounds(stage: &Stage, cached: u64, round: impl Fn()) {
    let before = stage.resident();
    round();
    stage.settles();
    std::thread::sleep(REST);
    let first = stage.resident();
    for _ in 0..2 {
        round();
        stage.settles();
        stage.memory_returns_to(first.max(before + cached) + GROWTH);
    }
}

#[test]
fn a_hundred_thousand_open_files_take_no_descriptor_and_are_gone_with_their_client() {
    let Some(stage) = Stage::set() else { return };
    let before = stage.inodes();
    three_rounds(&stage, 0, || {
        let client = stage.client("open", OPEN_FILES);
        assert!(stage.descriptors_now() <= stage.descriptors, "open files of clients are not the daemon's");
        assert_eq!(stage.inodes(), before + OPEN_FILES);
        drop(client);
        // Files without a name are removed with the client. The others stay.
        stage.inodes_return_to(before + OPEN_FILES / 2);
        stage.remove("open-");
        stage.inodes_return_to(before);
    });
    stage.leave();
}

#[test]
fn locks_of_a_killed_client_are_free_at_once() {
    let Some(stage) = Stage::set() else { return };
    three_rounds(&stage, 0, || {
        let client = stage.client("lock", 3000);
        let taken = fs::File::open(stage.weir.path().join("locked-7")).expect("a file");
        assert!(taken.try_lock().is_err(), "the client holds it");
        drop(client);
        taken.try_lock().expect("its holder is dead");
        drop(taken);
        // A new client gets all locks without waiting.
        drop(stage.client("lock", 3000));
    });
    stage.leave();
}

#[test]
fn names_that_do_not_exist_cost_the_daemon_no_memory() {
    let Some(stage) = Stage::set() else { return };
    three_rounds(&stage, 0, || drop(stage.client("lookup", 100_000)));
    stage.leave();
}

#[test]
fn thousands_of_syncs_wait_at_once_and_none_is_left_when_their_client_is_killed() {
    let Some(stage) = Stage::set() else { return };
    let (seed, mut random) = random();
    three_rounds(&stage, 0, || {
        let client = stage.client("sync", 2000);
        let others = stage.weir.path().join("of somebody else");
        for _ in 0..20 {
            fs::write(&others, b"served meanwhile").expect("others are served");
            assert_eq!(fs::read(&others).expect("others are served"), b"served meanwhile", "seed {seed}");
        }
        drop(client);
    });
    std::thread::sleep(Duration::from_millis(random.below(100)));
    stage.remove("sync-");
    stage.leave();
}

#[test]
fn calls_of_256_mib_stay_within_a_memory_of_64() {
    let Some(stage) = Stage::set() else { return };
    three_rounds(&stage, MEMORY, || {
        let mut clients = [(); 2].map(|()| {
            let mut command = Command::new(&stage.program);
            Server::start(command.arg("huge").arg(stage.weir.path()).stdout(Stdio::piped()))
        });
        for client in &mut clients {
            client.wait("a client that writes 256 MiB");
            let mut said = String::new();
            client.0.stdout.take().expect("a pipe").read_to_string(&mut said).expect("a pipe");
            assert_eq!(said, "ready\n", "256 MiB came back as it was written");
        }
    });
    stage.leave();
}

#[test]
fn clients_killed_in_the_middle_of_anything_leave_whole_files_and_a_daemon_that_serves() {
    let Some(stage) = Stage::set() else { return };
    let (seed, mut random) = random();
    for round in 0..40 {
        let roles = ["write", "fsync", "rename", "mmap", "sync"];
        let clients: Vec<Server> =
            (0..3).map(|_| stage.client(roles[random.below(roles.len() as u64) as usize], 50)).collect();
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        drop(clients);
        let when = format!("seed {seed}, round {round}");
        if let Ok(renamed) = fs::read(stage.weir.path().join("renamed")) {
            assert_eq!(renamed.len(), 64 << 10, "{when}: a name stands for a whole file or none");
            assert!(renamed.iter().all(|&byte| byte == renamed[0]), "{when}: of two files at once");
        }
        assert_requests_are_whole(&stage.weir.path(), &when);
        if round % 10 == 9 {
            stage.settles();
            ["write-", "fsync-", "rename-", "mmap-", "sync-"].iter().for_each(|stem| stage.remove(stem));
        }
    }
    stage.leave();
}

/// Asserts that each MiB of a killed writer comes from one request, so its pages are alike. The last MiB may
/// be torn.
fn assert_requests_are_whole(directory: &Path, when: &str) {
    for entry in fs::read_dir(directory).expect("a listing") {
        let entry = entry.expect("an entry");
        if !entry.file_name().to_string_lossy().starts_with("write-") {
            continue;
        }
        let bytes = fs::read(entry.path()).expect("a file");
        assert_eq!(bytes.len() as u64, entry.metadata().expect("a file").size(), "{when}");
        let torn =
            bytes.chunks(1 << 20).filter(|request| request.iter().any(|&byte| byte != request[0])).count();
        // The kernel may have split the request in whose middle the writer was killed.
        assert!(torn <= 1, "{when}: {torn} requests are there in part");
    }
}

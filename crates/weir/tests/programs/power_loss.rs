//! Databases without protection against torn pages, on disks that lose what was not flushed when their power fails. In marked files
//! on weir no page is ever torn. On ext4, where pages can be torn, the same checks fail, so they are able to.

use crate::common::{Mounted, can_mount, detach, succeeds, weir};
use crate::kills::{kills, random};
use crate::ledger::Ledger;
use crate::postgres::{self, Cluster, LoadSyncs};
use crate::powered_disk::PoweredDisks;
use crate::weir::mark_for_atomic_writes;
use crate::{kills::have, mariadb, mariadb::MariaDb};
use device::SeededRng;
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use test_support::TestDirectory;

const STORE_BYTES: u64 = 2 << 30;
const BUFFER_BYTES: u64 = 32 << 20;

/// What is mounted on the disks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileSystem {
    Weir { options: &'static [&'static str] },
    Ext4,
}

/// A file system on disks whose power can fail.
struct Machine {
    kind: FileSystem,
    mounted: Option<Mounted>,
    disks: PoweredDisks,
    directory: TestDirectory,
}

impl Machine {
    fn start(kind: FileSystem, random: &mut SeededRng) -> Machine {
        let directory = TestDirectory::new();
        fs::create_dir(directory.path("mnt")).expect("a mount point");
        let disks =
            PoweredDisks::start(&directory.path("disks"), &[STORE_BYTES, BUFFER_BYTES], random.next_u64());
        match kind {
            FileSystem::Weir { .. } => {
                let mut format = weir();
                format.arg("format").arg("--buffer").arg(disks.device(1)).arg(disks.device(0));
                succeeds(&mut format);
            }
            FileSystem::Ext4 => {
                succeeds(
                    Command::new("mke2fs").args(["-q", "-t", "ext4", "-b", "4096"]).arg(disks.device(0)),
                );
            }
        }
        let mut machine = Machine { kind, mounted: None, disks, directory };
        machine.mount();
        machine
    }

    fn mount(&mut self) {
        let (device, dir) = (self.disks.device(0), self.dir());
        match self.kind {
            FileSystem::Weir { options } => {
                self.mounted =
                    Some(Mounted::start(device, &dir, options, &self.directory.path("daemon.log")));
            }
            FileSystem::Ext4 => drop(succeeds(Command::new("mount").arg(device).arg(dir))),
        }
    }

    fn dir(&self) -> PathBuf {
        self.directory.path("mnt")
    }

    fn beside(&self, name: &str) -> PathBuf {
        self.directory.path(name)
    }

    /// Starts the machine again after its power was cut and its programs have ended.
    fn restart(&mut self) {
        match self.mounted.take() {
            Some(mounted) => mounted.kill(),
            None => detach(&self.dir()),
        }
        self.disks.restore_power();
        self.mount();
    }

    /// Unmounts in order, and checks the store.
    fn unmount_and_check(mut self) {
        self.mounted.take().expect("it is mounted").unmount();
        succeeds(weir().arg("check").arg(self.disks.device(0)));
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // A test that failed may have left the mount.
        drop(self.mounted.take());
        if self.kind == FileSystem::Ext4 {
            let _ = Command::new("umount").arg("--lazy").arg(self.dir()).status();
        }
    }
}

/// Runs PostgreSQL without `full_page_writes` on `machine`, and cuts the power `times` times. Panics if a page is torn or a
/// transaction is lost.
fn run_postgres(mut machine: Machine, times: u64, random: &mut SeededRng) -> Option<Machine> {
    let cluster = Cluster::prepare(&machine.dir().join("data"), &machine.beside("postgres"))?;
    if let FileSystem::Weir { options } = machine.kind
        && options.contains(&"--atomic-writes")
    {
        mark_for_atomic_writes(&machine.dir().join("data"), "8192");
    }
    cluster.initialize();
    let ledger = Ledger::create(&machine.beside("ledger"));
    let mut server = cluster.start_with("fdatasync", "off");
    assert!(cluster.wait_until_ready(&mut server), "{}", cluster.log());
    cluster.query(postgres::SCHEMA);
    succeeds(cluster.program("pgbench").args(["--initialize", "--quiet", "--scale", "10"]));
    for time in 1..=times {
        let after = Duration::from_millis(500 + random.below(3000));
        postgres::load_until_killed(&cluster, &ledger, LoadSyncs::Few, after, || machine.disks.cut_power());
        server.wait("PostgreSQL, whose disk is gone,");
        machine.restart();
        let when = format!("after power failure {time}, {after:?} after the start");
        let mut recovered = cluster.start_with("fdatasync", "off");
        assert!(cluster.wait_until_ready(&mut recovered), "{when}: {}", cluster.log());
        cluster.verify(&ledger, &when);
        cluster.stop_and_check(recovered);
        println!("{when}: {:?}", ledger.count());
        server = cluster.start_with("fdatasync", "off");
        assert!(cluster.wait_until_ready(&mut server), "{when}: {}", cluster.log());
    }
    cluster.stop_and_check(server);
    Some(machine)
}

/// Whether to run the tests that take minutes, as `make databases` does.
fn runs_all() -> bool {
    std::env::var_os("WEIR_TESTS_NULL_CONTROL").is_some()
}

/// PostgreSQL in marked files, on a mount with these options.
fn assert_whole(options: &'static [&'static str]) {
    if !can_mount() {
        return;
    }
    let (_, mut random) = random();
    let machine = Machine::start(FileSystem::Weir { options }, &mut random);
    let Some(machine) = run_postgres(machine, kills(), &mut random) else { return };
    machine.unmount_and_check();
}

#[test]
fn postgresql_needs_no_full_page_writes_in_marked_files() {
    if runs_all() {
        assert_whole(&["--allow-other", "--atomic-writes"]);
    }
}

#[test]
fn postgresql_needs_none_in_marked_files_under_a_policy() {
    assert_whole(&["--allow-other", "--atomic-writes", "--policy", "sync"]);
}

/// Power failures after which the checks must have failed where pages are torn.
const FAILURES_MAX: u64 = 40;

/// The checks must fail where pages can be torn: without that they would show nothing.
#[test]
fn postgresql_without_full_page_writes_is_damaged_on_ext4() {
    if !runs_all() || !can_mount() {
        return;
    }
    let (_, mut random) = random();
    let machine = Machine::start(FileSystem::Ext4, &mut random);
    let ran = catch_unwind(AssertUnwindSafe(|| run_postgres(machine, FAILURES_MAX, &mut random)));
    let Err(failure) = ran else { panic!("no page is torn in {FAILURES_MAX} power failures") };
    let why = failure.downcast_ref::<String>().expect("a failed check says why");
    let is_torn = ["invalid page in block", "page verification failed"].iter().any(|torn| why.contains(torn));
    assert!(is_torn, "the checks failed, but no page is torn: {why}");
}

#[test]
fn mariadb_needs_no_doublewrite_buffer_in_marked_files() {
    let programs = ["mariadbd", "mariadb", "mariadb-install-db", "innochecksum"];
    if !can_mount() || !have(&programs.map(Path::new)) {
        return;
    }
    let (_, mut random) = random();
    let options = &["--atomic-writes", "--policy", "sync"];
    let mut machine = Machine::start(FileSystem::Weir { options }, &mut random);
    let mariadb = MariaDb::create(&machine.dir().join("data"), &machine.beside("mariadb"));
    let ledger = Ledger::create(&machine.beside("ledger"));
    let mut server = mariadb.start_with("O_DIRECT", "OFF");
    mariadb.wait_until_ready(&mut server);
    mariadb.query(mariadb::SCHEMA);
    for time in 1..=kills() {
        let after = Duration::from_millis(500 + random.below(3000));
        mariadb::load_until_killed(&mariadb, &server, &ledger, after, || machine.disks.cut_power());
        server.wait("MariaDB, whose disk is gone,");
        machine.restart();
        let when = format!("after power failure {time}, {after:?} after the start");
        let mut recovered = mariadb.start_with("O_DIRECT", "OFF");
        mariadb.wait_until_ready(&mut recovered);
        mariadb.verify(&ledger, &when);
        mariadb.stop_and_check(recovered);
        println!("{when}: {:?}", ledger.count());
        server = mariadb.start_with("O_DIRECT", "OFF");
        mariadb.wait_until_ready(&mut server);
    }
    mariadb.stop_and_check(server);
    machine.unmount_and_check();
}

//! PostgreSQL as its own user on a mount whose daemon is killed: no acknowledged transaction is lost, and
//! none is torn.

use crate::common::succeeds;
use crate::kills::{PATIENCE, STREAMS, Server, have, kills, random};
use crate::ledger::{Ledger, whole};
use crate::weir::{Weir, mark_for_atomic_writes};
use device::SeededRng;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Clients that keep the ledger; pgbench runs four more beside them.
const CLIENTS: usize = 3;

/// How WAL gets to the disk: each one that Linux has.
const WAL_SYNC_METHODS: [&str; 4] = ["fdatasync", "fsync", "open_datasync", "open_sync"];

pub(crate) const SCHEMA: &str = "CREATE EXTENSION amcheck;
    CREATE TABLE left_half (id bigint PRIMARY KEY, body text); CREATE TABLE right_half (id bigint PRIMARY KEY)";

/// pgbench's own invariant: each transaction moves the same sum in all four tables.
const SUMS: &str =
    "SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
    AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT sum(bbalance) FROM pgbench_branches)
    AND (SELECT coalesce(sum(delta), 0) FROM pgbench_history) = (SELECT sum(bbalance) FROM pgbench_branches)";

/// A cluster, mostly on the mount; its socket and logs beside it.
pub(crate) struct Cluster {
    programs: PathBuf,
    user: (u32, u32),
    data: PathBuf,
    beside: PathBuf,
}

impl Cluster {
    /// A cluster on the mount, in files that are marked for atomic writes. `None` if PostgreSQL is not there.
    fn create(weir: &Weir) -> Option<Cluster> {
        let cluster = Cluster::prepare(&weir.path().join("data"), &weir.beside("postgres"))?;
        mark_for_atomic_writes(&cluster.data, "8192");
        cluster.initialize();
        Some(cluster)
    }

    /// A cluster that [`initialize`](Cluster::initialize) will make in the new directory `data`. `None` if PostgreSQL is not
    /// there.
    pub(crate) fn prepare(data: &Path, beside: &Path) -> Option<Cluster> {
        let programs = programs()?;
        let id = |of| -> u32 {
            let said = succeeds(Command::new("id").args([of, "postgres"])).stdout;
            String::from_utf8_lossy(&said).trim().parse().expect("a number")
        };
        let user = (id("-u"), id("-g"));
        let (data, beside) = (data.to_owned(), beside.to_owned());
        // Only the sandbox's own user may enter its directory.
        let sandbox = beside.parent().expect("a sandbox");
        fs::set_permissions(sandbox, fs::Permissions::from_mode(0o755)).expect("permissions");
        for directory in [&data, &beside] {
            fs::create_dir(directory).expect("a directory");
            chown(directory, Some(user.0), Some(user.1)).expect("an owner");
        }
        Some(Cluster { programs, user, data, beside })
    }

    /// Makes the cluster in its empty directory.
    pub(crate) fn initialize(&self) {
        let mut initdb = self.program("initdb");
        initdb.args(["--data-checksums", "--username=postgres", "--auth=trust", "--pgdata"]);
        succeeds(initdb.arg(&self.data));
    }

    /// A program of PostgreSQL, as its user, talking to the cluster's server.
    pub(crate) fn program(&self, name: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command.uid(self.user.0).gid(self.user.1).current_dir("/");
        command.env("PGHOST", &self.beside).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        command.env("PGCONNECT_TIMEOUT", PATIENCE.as_secs().to_string());
        command
    }

    /// Starts the server with random settings. All of them must be safe on weir.
    fn start(&self, random: &mut SeededRng) -> (Server, String) {
        let sync = WAL_SYNC_METHODS[random.below(WAL_SYNC_METHODS.len() as u64) as usize];
        let pages = ["on", "off"][random.below(2) as usize];
        (self.start_with(sync, pages), format!("wal_sync_method {sync}, full_page_writes {pages}"))
    }

    /// Starts the server with these values of `wal_sync_method` and `full_page_writes`.
    pub(crate) fn start_with(&self, sync: &str, pages: &str) -> Server {
        let log = File::options().create(true).append(true).open(self.beside.join("log")).expect("a log");
        let mut server = self.program("postgres");
        server.arg("-D").arg(&self.data).arg("-k").arg(&self.beside);
        let settings = [
            "listen_addresses=",
            &format!("wal_sync_method={sync}"),
            &format!("full_page_writes={pages}"),
            // With this size, checkpoints run all the time.
            "max_wal_size=32MB",
            "min_wal_size=32MB",
            "shared_buffers=16MB",
            "checkpoint_timeout=30s",
            // The kernel writes each page to the disk at once, and not only with the next sync.
            "backend_flush_after=8kB",
            "bgwriter_flush_after=8kB",
            "checkpoint_flush_after=8kB",
        ];
        settings.iter().for_each(|setting| {
            server.args(["-c", setting]);
        });
        Server::start(server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
    }

    pub(crate) fn wait_until_ready(&self, server: &mut Server) -> bool {
        let ready = || {
            self.program("pg_isready").stdout(Stdio::null()).status().expect("pg_isready starts").success()
        };
        server.wait_until(ready)
    }

    #[track_caller]
    pub(crate) fn query(&self, sql: &str) -> String {
        let output =
            succeeds(self.program("psql").args(["-X", "-A", "-t", "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn ids(&self, table: &str) -> BTreeSet<u64> {
        let ids = self.query(&format!("SELECT id FROM {table}"));
        ids.lines().map(|line| line.parse().expect("a number")).collect()
    }

    /// Verifies the data of a recovered server.
    pub(crate) fn verify(&self, ledger: &Ledger, when: &str) {
        let found = whole(&self.ids("left_half"), &self.ids("right_half"), when);
        ledger.verify(&found, when);
        let damaged =
            self.query("SELECT count(*) FROM left_half WHERE body <> repeat(id::text, (id % 300)::int)");
        assert_eq!(damaged, "0", "{when}: rows with other bytes than were inserted");
        assert_eq!(self.query(SUMS), "t", "{when}: a transaction of pgbench is there in part");
        succeeds(self.program("pg_amcheck").args(["--all", "--heapallindexed", "--install-missing"]));
    }

    /// Stops the server in order, and reads every page.
    pub(crate) fn stop_and_check(&self, mut server: Server) {
        server.signal("INT");
        server.wait("PostgreSQL, told to stop");
        succeeds(self.program("pg_checksums").arg("--check").arg(&self.data));
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.beside.join("log")).expect("a log")
    }
}

/// Where Debian, or another system, keeps the server's programs.
fn programs() -> Option<PathBuf> {
    let of_debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = of_debian.map(|version| version.path().join("bin")).max();
    let programs = newest.unwrap_or_default();
    have(&[&programs.join("postgres"), &programs.join("pg_amcheck"), &programs.join("pgbench")])
        .then_some(programs)
}

/// Commits transactions of two rows until the server is gone. An id is acknowledged once COMMIT has returned.
fn keep_ledger(cluster: &Cluster, ledger: &Ledger, pause: Duration) {
    // The program would buffer output to a pipe.
    let mut command = Command::new("stdbuf");
    command.arg("-oL").arg(cluster.programs.join("psql")).args([
        "-X",
        "-A",
        "-t",
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
    ]);
    command.env("PGHOST", &cluster.beside).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut psql = Server::start(&mut command);
    let mut statements = psql.0.stdin.take().expect("a pipe");
    let mut says = BufReader::new(psql.0.stdout.take().expect("a pipe"));
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "the daemon was killed, and still transactions are committed");
        let id = ledger.claim();
        let transaction = format!(
            "BEGIN; INSERT INTO left_half VALUES ({id}, repeat('{id}', {}));\n\
             INSERT INTO right_half VALUES ({id});\nCOMMIT;\n\\echo {id}\n",
            id % 300
        );
        let mut line = String::new();
        let sent = statements.write_all(transaction.as_bytes()).is_ok();
        if !sent || !says.read_line(&mut line).is_ok_and(|len| len > 0) {
            return;
        }
        assert_eq!(line.trim(), id.to_string(), "psql echoes what was committed");
        ledger.acknowledge(id);
        std::thread::sleep(pause);
    }
}

/// How often the clients sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LoadSyncs {
    /// With each transaction.
    All,
    /// Some twenty times a second, so that many pages are written between two syncs.
    Few,
}

/// Runs all clients against a server, and calls `kill` after the time `after`.
pub(crate) fn load_until_killed(
    cluster: &Cluster,
    ledger: &Ledger,
    syncs: LoadSyncs,
    after: Duration,
    kill: impl FnOnce(),
) {
    let log =
        File::options().create(true).append(true).open(cluster.beside.join("pgbench.log")).expect("a log");
    let errors = log.try_clone().expect("the same log");
    let mut pgbench = cluster.program("pgbench");
    pgbench.args(["--no-vacuum", "-c", "4", "-j", "2", "-T", "600"]);
    let (clients, pause) = match syncs {
        LoadSyncs::All => (CLIENTS, Duration::ZERO),
        LoadSyncs::Few => (1, Duration::from_millis(50)),
    };
    if syncs == LoadSyncs::Few {
        pgbench.env("PGOPTIONS", "-c synchronous_commit=off");
    }
    let mut pgbench = Server::start(pgbench.stdin(Stdio::null()).stdout(log).stderr(errors));
    std::thread::scope(|scope| {
        for _ in 0..clients {
            scope.spawn(|| keep_ledger(cluster, ledger, pause));
        }
        std::thread::sleep(after);
        kill();
        // Some backends have failed already. Backends that only read from memory would continue.
        pgbench.signal("KILL");
        stop_at_once(cluster);
    });
    pgbench.wait("pgbench");
}

/// Kills the server, as an administrator does after the daemon has died: no old process may live when the new
/// server starts.
fn stop_at_once(cluster: &Cluster) {
    // The data directory is out of reach, and with it the process id that `pg_ctl stop` would read. The
    // socket's lock file has the process id, too.
    let lock = fs::read_to_string(cluster.beside.join(".s.PGSQL.5432.lock")).unwrap_or_default();
    if let Some(pid) = lock.lines().next() {
        let _ = Command::new("kill").args(["-s", "QUIT", pid]).stderr(Stdio::null()).status();
    }
}

#[test]
fn postgresql_loses_no_acknowledged_transaction_when_the_daemon_is_killed() {
    loses_nothing(&["--allow-other", "--atomic-writes"]);
}

#[test]
fn postgresql_loses_none_where_whole_pages_pass_the_log_by() {
    loses_nothing(&["--allow-other", "--atomic-writes", STREAMS[0], STREAMS[1], STREAMS[2], STREAMS[3]]);
}

fn loses_nothing(options: &'static [&'static str]) {
    let (seed, mut random) = random();
    let Some(mut weir) = Weir::start_with("4GiB", "32MiB", options) else { return };
    let Some(cluster) = Cluster::create(&weir) else { return };
    let ledger = Ledger::create(&weir.beside("ledger"));
    let (mut server, mut settings) = cluster.start(&mut random);
    assert!(cluster.wait_until_ready(&mut server), "{}", cluster.log());
    cluster.query(SCHEMA);
    succeeds(cluster.program("pgbench").args(["--initialize", "--quiet", "--scale", "2"]));
    for kill in 1..=kills() {
        let after = Duration::from_millis(200 + random.below(2500));
        load_until_killed(&cluster, &ledger, LoadSyncs::All, after, || weir.kill());
        server.wait("PostgreSQL, whose disk is gone,");
        if random.below(4) == 0 {
            // The next kill hits PostgreSQL's own recovery, or its end.
            weir.mount();
            let (mut recovering, _) = cluster.start(&mut random);
            std::thread::sleep(Duration::from_millis(random.below(1000)));
            weir.kill();
            recovering.signal("QUIT");
            recovering.wait("PostgreSQL, whose disk is gone,");
        }
        weir.mount();
        let when = format!("seed {seed}, after kill {kill}, {after:?} after the start, with {settings}");
        let (mut recovered, _) = cluster.start(&mut random);
        assert!(cluster.wait_until_ready(&mut recovered), "{when}: {}", cluster.log());
        let before = ledger.count();
        cluster.verify(&ledger, &when);
        cluster.stop_and_check(recovered);
        (server, settings) = cluster.start(&mut random);
        assert!(cluster.wait_until_ready(&mut server), "{when}: {}", cluster.log());
        println!(
            "{when}: {before:?}, of these in doubt {} were committed",
            ledger.count().acknowledged - before.acknowledged
        );
    }
    let count = ledger.count().acknowledged as u64;
    assert!(count > 10 * kills(), "hardly a transaction was committed between the kills: {count}");
    cluster.stop_and_check(server);
    weir.unmount_and_check();
}

#[test]
fn postgresql_starts_again_where_it_was_after_an_unmount() {
    let (_, mut random) = random();
    let Some(mut weir) = Weir::start_with("2GiB", "32MiB", &["--allow-other", "--atomic-writes"]) else {
        return;
    };
    let Some(cluster) = Cluster::create(&weir) else { return };
    let (mut server, _) = cluster.start(&mut random);
    assert!(cluster.wait_until_ready(&mut server), "{}", cluster.log());
    cluster.query("CREATE TABLE numbers AS SELECT generate_series(1, 100000) AS n");
    cluster.stop_and_check(server);
    weir.unmount_and_check();
    weir.mount();
    let (mut server, _) = cluster.start(&mut random);
    assert!(cluster.wait_until_ready(&mut server), "{}", cluster.log());
    assert_eq!(cluster.query("SELECT sum(n) FROM numbers"), "5000050000");
    assert!(!cluster.log().contains("automatic recovery"), "it was stopped in order: {}", cluster.log());
    cluster.stop_and_check(server);
}

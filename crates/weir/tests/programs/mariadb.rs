//! MariaDB with InnoDB and a binary log on a mount whose daemon is killed: no acknowledged transaction is lost, and
//! none is torn.

use crate::common::succeeds;
use crate::kills::{PATIENCE, Server, have, kills, random};
use crate::ledger::{Ledger, whole};
use crate::weir::{Weir, mark_for_atomic_writes};
use device::SeededRng;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Clients that keep the ledger; one more changes many pages.
const CLIENTS: usize = 3;

/// How InnoDB writes its files.
const FLUSH_METHODS: [&str; 3] = ["O_DIRECT", "fsync", "O_DSYNC"];

pub(crate) const SCHEMA: &str = "CREATE DATABASE test; USE test;
    CREATE TABLE left_half (id BIGINT PRIMARY KEY, body TEXT); CREATE TABLE right_half (id BIGINT PRIMARY KEY);
    CREATE TABLE scattered (id INT PRIMARY KEY, n INT NOT NULL, body TEXT);
    INSERT INTO scattered SELECT seq, 0, repeat('x', 400) FROM seq_1_to_20000";

/// Changes 200 rows, which lie on many pages.
const SCATTER: &str = "UPDATE test.scattered SET n = n + 1 ORDER BY rand() LIMIT 200;";

/// A server whose data lie on the mount; its socket and log beside it.
pub(crate) struct MariaDb {
    data: PathBuf,
    beside: PathBuf,
}

impl MariaDb {
    /// A server whose data lie in the new directory `data`, in files that are marked for atomic writes.
    pub(crate) fn create(data: &Path, beside: &Path) -> MariaDb {
        let server = MariaDb { data: data.to_owned(), beside: beside.to_owned() };
        [data, beside].iter().for_each(|directory| fs::create_dir(directory).expect("a directory"));
        mark_for_atomic_writes(data, "16384");
        let mut install = Command::new("mariadb-install-db");
        install.args([
            "--no-defaults",
            "--user=root",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        succeeds(install.arg(server.at("--datadir=", &server.data)));
        server
    }

    fn at(&self, option: &str, path: &Path) -> String {
        format!("{option}{}", path.display())
    }

    fn socket(&self) -> String {
        self.at("--socket=", &self.beside.join("socket"))
    }

    /// Starts the server with a random setting. All of them must be safe on weir.
    fn start(&self, random: &mut SeededRng) -> (Server, String) {
        let method = FLUSH_METHODS[random.below(FLUSH_METHODS.len() as u64) as usize];
        let doublewrite = ["ON", "OFF"][random.below(2) as usize];
        (self.start_with(method, doublewrite), format!("{method}, doublewrite {doublewrite}"))
    }

    /// Starts the server with these values of `innodb_flush_method` and `innodb_doublewrite`.
    pub(crate) fn start_with(&self, method: &str, doublewrite: &str) -> Server {
        let log = File::options().create(true).append(true).open(self.beside.join("log")).expect("a log");
        let mut command = Command::new("mariadbd");
        command.args(["--no-defaults", "--user=root", "--skip-networking", "--server-id=1"]);
        command.arg(self.at("--datadir=", &self.data)).arg(self.at("--tmpdir=", &self.beside));
        command.arg(self.socket()).arg(self.at("--pid-file=", &self.beside.join("pid")));
        command.args(["--log-bin=db-bin", "--sync-binlog=1", &format!("--innodb-flush-method={method}")]);
        // With these sizes, checkpoints run all the time.
        command.args(["--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M"]);
        command.arg(format!("--innodb-doublewrite={doublewrite}"));
        Server::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log))
    }

    /// Starts the server, and waits until it answers.
    fn start_ready(&self, random: &mut SeededRng) -> (Server, String) {
        let (mut server, settings) = self.start(random);
        self.wait_until_ready(&mut server);
        (server, settings)
    }

    pub(crate) fn wait_until_ready(&self, server: &mut Server) {
        let ready = || self.client().args(["-e", "SELECT 1"]).output().expect("it starts").status.success();
        assert!(server.wait_until(ready), "{}", self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.beside.join("log")).expect("a log")
    }

    /// The client, which prints each result at once and without names of columns.
    fn client(&self) -> Command {
        let mut command = Command::new("mariadb");
        command
            .args(["--no-defaults", "--user=root", "-N", "-B", "-n", "--skip-reconnect"])
            .arg(self.socket());
        command
    }

    #[track_caller]
    pub(crate) fn query(&self, sql: &str) -> String {
        let output = succeeds(self.client().args(["-e", sql]));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn ids(&self, table: &str) -> BTreeSet<u64> {
        let ids = self.query(&format!("SELECT id FROM test.{table}"));
        ids.lines().map(|line| line.parse().expect("a number")).collect()
    }

    /// Verifies the data of a recovered server.
    pub(crate) fn verify(&self, ledger: &Ledger, when: &str) {
        let found = whole(&self.ids("left_half"), &self.ids("right_half"), when);
        ledger.verify(&found, when);
        let damaged =
            self.query("SELECT count(*) FROM test.left_half WHERE body <> repeat(concat(id, ''), id % 300)");
        assert_eq!(damaged, "0", "{when}: rows with other bytes than were inserted");
        let torn = self.query("SELECT sum(n) % 200, count(*) FROM test.scattered");
        assert_eq!(torn, "0\t20000", "{when}: an update is there in part");
        let checked = self.query("USE test; CHECK TABLE left_half, right_half, scattered EXTENDED");
        assert!(checked.lines().all(|line| line.ends_with("\tstatus\tOK")), "{when}: {checked}");
    }

    /// Stops the server in order, and reads every page of the tables.
    pub(crate) fn stop_and_check(&self, mut server: Server) {
        server.signal("TERM");
        server.wait("MariaDB, told to stop");
        for table in ["left_half", "right_half", "scattered"] {
            succeeds(Command::new("innochecksum").arg(self.data.join(format!("test/{table}.ibd"))));
        }
    }
}

/// A connected client.
struct Session {
    _client: Server,
    statements: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Session {
    fn open(server: &MariaDb) -> Session {
        let mut command = server.client();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = Server::start(&mut command);
        let statements = client.0.stdin.take().expect("a pipe");
        let says = BufReader::new(client.0.stdout.take().expect("a pipe"));
        Session { _client: client, statements, says }
    }

    /// True once the statements have succeeded, false if the server is gone.
    fn run(&mut self, statements: &str) -> bool {
        let mut line = String::new();
        let sent = self.statements.write_all(format!("{statements}\nSELECT 'done';\n").as_bytes()).is_ok();
        sent && self.says.read_line(&mut line).is_ok_and(|len| len > 0) && line == "done\n"
    }
}

/// Commits transactions of two rows until the server is gone.
fn keep_ledger(server: &MariaDb, ledger: &Ledger) {
    let mut session = Session::open(server);
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "the daemon was killed, and still transactions are committed");
        let id = ledger.claim();
        let transaction = format!(
            "BEGIN; INSERT INTO test.left_half VALUES ({id}, repeat('{id}', {}));\n\
             INSERT INTO test.right_half VALUES ({id}); COMMIT;",
            id % 300
        );
        if !session.run(&transaction) {
            return;
        }
        ledger.acknowledge(id);
    }
}

/// Runs all clients, and calls `kill` after the time `after`, and then kills the server.
pub(crate) fn load_until_killed(
    mariadb: &MariaDb,
    server: &Server,
    ledger: &Ledger,
    after: Duration,
    kill: impl FnOnce(),
) {
    std::thread::scope(|scope| {
        for _ in 0..CLIENTS {
            scope.spawn(|| keep_ledger(mariadb, ledger));
        }
        scope.spawn(|| {
            let mut session = Session::open(mariadb);
            while session.run(SCATTER) {}
        });
        std::thread::sleep(after);
        kill();
        server.signal("KILL");
    });
}

#[test]
fn mariadb_loses_no_acknowledged_transaction_when_the_daemon_is_killed() {
    let (seed, mut random) = random();
    let programs = ["mariadbd", "mariadb", "mariadb-install-db", "innochecksum"];
    if !have(&programs.map(Path::new)) {
        return;
    }
    let Some(mut weir) = Weir::start_with("2GiB", "32MiB", &["--atomic-writes"]) else { return };
    let mariadb = MariaDb::create(&weir.path().join("data"), &weir.beside("mariadb"));
    let ledger = Ledger::create(&weir.beside("ledger"));
    let (mut server, mut method) = mariadb.start_ready(&mut random);
    mariadb.query(SCHEMA);
    for kill in 1..=kills() {
        let after = Duration::from_millis(200 + random.below(2500));
        load_until_killed(&mariadb, &server, &ledger, after, || weir.kill());
        server.wait("MariaDB, whose disk is gone,");
        if random.below(4) == 0 {
            // The next kill hits MariaDB's own recovery, or its end.
            weir.mount();
            let (mut recovering, _) = mariadb.start(&mut random);
            std::thread::sleep(Duration::from_millis(random.below(1000)));
            weir.kill();
            recovering.signal("KILL");
            recovering.wait("MariaDB, whose disk is gone,");
        }
        weir.mount();
        let when = format!("seed {seed}, after kill {kill}, {after:?} after the start, with {method}");
        let (recovered, _) = mariadb.start_ready(&mut random);
        let before = ledger.count();
        mariadb.verify(&ledger, &when);
        mariadb.stop_and_check(recovered);
        (server, method) = mariadb.start_ready(&mut random);
        println!(
            "{when}: {before:?}, of these in doubt {} were committed",
            ledger.count().acknowledged - before.acknowledged
        );
    }
    let count = ledger.count().acknowledged as u64;
    assert!(count > 10 * kills(), "hardly a transaction was committed between the kills: {count}");
    mariadb.stop_and_check(server);
    weir.unmount_and_check();
}

use crate::common::succeeds;
use crate::kills::STREAMS;
use crate::weir::Weir;
use device::SeededRng;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Time limit: even under heavy load, a correct operation takes less.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const KILLS: u64 = 20;
/// Each of these kills is followed by one that hits the recovery.
const RECOVERY_KILLS: [u64; 3] = [3, 9, 15];

/// SQLite in a process of its own, which inserts rows one by one and says when each is committed.
pub(crate) struct Writer {
    sqlite: Child,
    statements: ChildStdin,
    says: BufReader<ChildStdout>,
}

impl Writer {
    /// `journal` and `synchronous` are values of SQLite's pragmas.
    pub(crate) fn start(database: &Path, journal: &str, synchronous: &str) -> Writer {
        // SQLite would buffer output to a pipe.
        let mut sqlite = Command::new("stdbuf")
            .args(["-oL", "sqlite3", "-batch", "-bail", "-init", "/dev/null"])
            .arg(database)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("sqlite3 starts; `scripts/install-test-tools` installs it");
        let mut statements = sqlite.stdin.take().expect("a pipe");
        let says = BufReader::new(sqlite.stdout.take().expect("a pipe"));
        let settings = format!(
            "PRAGMA journal_mode={journal};\nPRAGMA synchronous={synchronous};\n\
             CREATE TABLE IF NOT EXISTS rows (n INTEGER PRIMARY KEY, body TEXT);\n"
        );
        // If the daemon is dead already, the first insert fails.
        let _ = statements.write_all(settings.as_bytes());
        Writer { sqlite, statements, says }
    }

    /// Inserts a row; true once SQLite says that it is committed, false if SQLite gave up.
    pub(crate) fn insert(&mut self, n: u64) -> bool {
        let insert = format!("INSERT INTO rows VALUES ({n}, {});\nSELECT {n};\n", body(n));
        if self.statements.write_all(insert.as_bytes()).is_err() {
            return false;
        }
        loop {
            let mut line = String::new();
            match self.says.read_line(&mut line) {
                Ok(0) | Err(_) => return false,
                Ok(_) if line.trim() == n.to_string() => return true,
                // The output of a setting.
                Ok(_) => {}
            }
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.sqlite.kill();
        let _ = self.sqlite.wait();
    }
}

/// An SQL expression for the text of row `n`: of many sizes, so that rows lie over the ends of pages.
fn body(n: u64) -> String {
    format!("printf('%0{}d', {n})", 10 + n * 37 % 700)
}

/// The transactions that SQLite acknowledged, kept outside the mount.
struct Ledger {
    path: PathBuf,
    file: fs::File,
}

impl Ledger {
    fn create(path: PathBuf) -> Ledger {
        let file = fs::File::create(&path).expect("a ledger");
        Ledger { path, file }
    }

    fn acknowledge(&mut self, n: u64) {
        writeln!(self.file, "{n}").expect("the ledger takes a line");
    }

    fn rows(&self) -> Vec<u64> {
        let text = fs::read_to_string(&self.path).expect("the ledger");
        text.lines().map(|line| line.parse().expect("a number")).collect()
    }
}

pub(crate) fn query(database: &Path, sql: &str) -> String {
    let mut sqlite = Command::new("sqlite3");
    let output = succeeds(sqlite.args(["-batch", "-init", "/dev/null"]).arg(database).arg(sql));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Whether SQLite had come so far as to commit its table.
pub(crate) fn has_rows(database: &Path) -> bool {
    let tables = "SELECT count(*) FROM sqlite_master WHERE name = 'rows'";
    database.exists() && query(database, tables) == "1"
}

/// Checks the database against the ledger; returns the first number that no row has.
fn verify(database: &Path, ledger: &Ledger, when: &str) -> u64 {
    assert_eq!(query(database, "PRAGMA integrity_check"), "ok", "{when}");
    let acknowledged = ledger.rows();
    let found = query(
        database,
        "SELECT n, body = printf('%0' || (10 + n * 37 % 700) || 'd', n) FROM rows ORDER BY n",
    );
    let found: BTreeSet<&str> = found.lines().collect();
    let lost: Vec<u64> =
        acknowledged.iter().copied().filter(|n| !found.contains(format!("{n}|1").as_str())).collect();
    assert!(
        lost.is_empty(),
        "{when}: of {} acknowledged rows these are lost or damaged: {lost:?}; {} rows are there",
        acknowledged.len(),
        found.len()
    );
    // Rows were inserted one by one, so at most one unacknowledged row, the one in flight at the kill, may
    // exist.
    assert!(
        found.len() <= acknowledged.len() + 1,
        "{when}: {} rows, {} acknowledged",
        found.len(),
        acknowledged.len()
    );
    found.len() as u64
}

/// Inserts rows until the daemon is dead, which it is after `alive`.
fn write_until_killed(
    weir: &mut Weir,
    database: &Path,
    journal: &str,
    first: u64,
    ledger: &mut Ledger,
    alive: Duration,
) {
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            let start = Instant::now();
            let mut writer = Writer::start(database, journal, "FULL");
            let mut n = first;
            while writer.insert(n) {
                ledger.acknowledge(n);
                n += 1;
                assert!(start.elapsed() < PATIENCE, "the daemon was killed, and still rows are committed");
            }
        });
        std::thread::sleep(alive);
        weir.kill();
        writer.join().expect("the writer does not panic");
    });
}

fn loses_nothing(journal: &str, options: &'static [&'static str]) {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    let seed = now.as_nanos() as u64;
    println!("seed {seed}");
    let mut random = SeededRng::new(seed);
    let Some(mut weir) = Weir::start_with("1GiB", "16MiB", options) else { return };
    // SQLite that begins after the kill must not find the directory below the mount.
    let dir = weir.path().join("dir");
    fs::create_dir(&dir).and_then(|()| fs::File::open(&dir)?.sync_all()).expect("a directory");
    let database = dir.join("rows.db");
    let mut ledger = Ledger::create(weir.beside("ledger"));
    let (mut next, mut kill) = (0, 0);
    // Where programs start slowly, some lives are too short for a row.
    while kill < KILLS - RECOVERY_KILLS.len() as u64 || next <= KILLS && kill < 10 * KILLS {
        let alive = Duration::from_millis(20 + random.below(600));
        write_until_killed(&mut weir, &database, journal, next, &mut ledger, alive);
        if RECOVERY_KILLS.contains(&kill) {
            weir.kill_while_mounting(Duration::from_micros(random.below(60_000)));
        }
        weir.mount();
        kill += 1;
        let when = format!("{journal}, seed {seed}, after kill {kill}");
        if has_rows(&database) {
            next = verify(&database, &ledger, &when);
        } else {
            assert!(ledger.rows().is_empty(), "{when}: the database is gone, or its table");
        }
        // The row in flight at the kill was committed without an acknowledgement. From now on the row counts
        // as acknowledged.
        (ledger.rows().len() as u64..next).for_each(|n| ledger.acknowledge(n));
    }
    assert!(next > KILLS, "{journal}: hardly a row was written between the kills: {next}");
    weir.unmount_and_check();
}

#[test]
fn sqlite_in_wal_mode_loses_no_acknowledged_row_in_twenty_kills() {
    loses_nothing("WAL", &[]);
}

#[test]
fn sqlite_in_delete_mode_loses_no_acknowledged_row_in_twenty_kills() {
    loses_nothing("DELETE", &[]);
}

#[test]
fn sqlite_in_wal_mode_loses_none_where_whole_pages_pass_the_log_by() {
    loses_nothing("WAL", &STREAMS);
}

#[test]
fn sqlite_in_delete_mode_loses_none_where_whole_pages_pass_the_log_by() {
    loses_nothing("DELETE", &STREAMS);
}

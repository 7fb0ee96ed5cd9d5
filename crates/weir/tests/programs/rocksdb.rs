//! RocksDB with synced writes on a mount whose daemon is killed: no acknowledged batch is lost, and none is
//! torn. db_bench runs beside the client that keeps the ledger.

use crate::common::succeeds;
use crate::kills::{PATIENCE, Server, have, kills, random};
use crate::ledger::{Ledger, whole};
use crate::weir::Weir;
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Builds the tests' client from its source; `None` without RocksDB.
fn build(beside: PathBuf) -> Option<PathBuf> {
    // The header is a file; a name that is absolute is looked for as it is.
    if !have(&["cc", "db_bench", "/usr/include/rocksdb/c.h"].map(Path::new)) {
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/rocksdb_client.c");
    succeeds(Command::new("cc").args(["-O1", "-Wall", "-o"]).args([&beside, &source]).arg("-lrocksdb"));
    Some(beside)
}

/// Commits batches until RocksDB gives up.
fn keep_ledger(client: &Path, database: &Path, ledger: &Ledger) {
    let mut command = Command::new(client);
    command.arg(database).arg("commit").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut client = Server::start(&mut command);
    let mut ids = client.0.stdin.take().expect("a pipe");
    let mut says = BufReader::new(client.0.stdout.take().expect("a pipe"));
    let mut receive = || {
        let mut line = String::new();
        says.read_line(&mut line).is_ok_and(|len| len > 0).then(|| line.trim().to_owned())
    };
    if receive().as_deref() != Some("ready") {
        return;
    }
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "the daemon was killed, and still batches are committed");
        let id = ledger.claim();
        if writeln!(ids, "{id}").is_err() {
            return;
        }
        let Some(committed) = receive() else { return };
        assert_eq!(committed, id.to_string());
        ledger.acknowledge(id);
    }
}

fn verify(client: &Path, database: &Path, ledger: &Ledger, when: &str) {
    let listed = succeeds(Command::new(client).arg(database).arg("list")).stdout;
    let listed = String::from_utf8(listed).expect("plain text");
    let mut found: [BTreeSet<u64>; 3] = Default::default();
    for line in listed.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [half, id, len] = words[..] else { panic!("{when}: an invented key: {line}") };
        let id: u64 = id.parse().expect("a number");
        let place = ["left", "right", "body"].iter().position(|known| *known == half).expect("a half");
        assert_eq!(len, if place == 2 { id % 500 } else { 0 }.to_string(), "{when}: {line}");
        found[place].insert(id);
    }
    let [left, right, body] = found;
    whole(&left, &body, when);
    ledger.verify(&whole(&left, &right, when), when);
}

/// Runs benchmarks of db_bench with synced writes, on the database of an earlier run.
fn db_bench(database: &Path, benchmarks: &str) -> Command {
    let mut command = Command::new("db_bench");
    command.arg(format!("--db={}", database.display())).arg(format!("--benchmarks={benchmarks}"));
    command.args([
        "--sync=1",
        "--num=20000",
        "--value_size=400",
        "--threads=2",
        "--write_buffer_size=1048576",
    ]);
    command.args(["--use_existing_db=1", "--duration=600", "--compression_type=none"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

#[test]
fn rocksdb_with_synced_writes_loses_no_acknowledged_batch_when_the_daemon_is_killed() {
    let (seed, mut random) = random();
    let Some(mut weir) = Weir::start("2GiB", "32MiB") else { return };
    let Some(client) = build(weir.beside("rocksdb_client")) else { return };
    let (database, bench) = (weir.path().join("ledger"), weir.path().join("bench"));
    let ledger = Ledger::create(&weir.beside("ledger"));
    let fill = "--benchmarks=fillrandom";
    succeeds(db_bench(&bench, "").args([fill, "--use_existing_db=0", "--num=2000", "--duration=0"]));
    for kill in 1..=kills() {
        let after = Duration::from_millis(100 + random.below(2000));
        let mut load = Server::start(&mut db_bench(&bench, "overwrite"));
        std::thread::scope(|scope| {
            scope.spawn(|| keep_ledger(&client, &database, &ledger));
            std::thread::sleep(after);
            weir.kill();
        });
        load.signal("KILL");
        load.wait("db_bench");
        weir.mount();
        let when = format!("seed {seed}, after kill {kill}, {after:?} after the start");
        let before = ledger.count();
        verify(&client, &database, &ledger, &when);
        succeeds(db_bench(&bench, "verifychecksum,readseq").arg("--duration=0"));
        println!(
            "{when}: {before:?}, of these in doubt {} were committed",
            ledger.count().acknowledged - before.acknowledged
        );
    }
    let count = ledger.count().acknowledged as u64;
    assert!(count > 10 * kills(), "hardly a batch was committed between the kills: {count}");
    weir.unmount_and_check();
}

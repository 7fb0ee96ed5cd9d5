//! Redis with `appendfsync always` on a mount whose daemon is killed: no acknowledged transaction is lost.

use crate::common::succeeds;
use crate::kills::{PATIENCE, Server, have, kills, random};
use crate::ledger::{Ledger, whole};
use crate::weir::Weir;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const CLIENTS: usize = 4;

/// A connection that speaks just enough of Redis's protocol.
struct Connection {
    write: UnixStream,
    read: BufReader<UnixStream>,
}

impl Connection {
    fn open(socket: &Path) -> io::Result<Connection> {
        let write = UnixStream::connect(socket)?;
        write.set_read_timeout(Some(PATIENCE))?;
        Ok(Connection { read: BufReader::new(write.try_clone()?), write })
    }

    fn send(&mut self, words: &[&str]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len());
        words.iter().for_each(|word| request += &format!("${}\r\n{word}\r\n", word.len()));
        self.write.write_all(request.as_bytes())
    }

    /// One reply: its strings, in order. Errors that the server reports are errors.
    fn receive(&mut self) -> io::Result<Vec<String>> {
        let mut line = String::new();
        if self.read.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (kind, rest) = line.trim_end().split_at(1);
        match kind {
            "+" | ":" => Ok(vec![rest.to_owned()]),
            "$" => {
                let mut bytes = vec![0; rest.parse::<usize>().map_err(io::Error::other)? + 2];
                self.read.read_exact(&mut bytes)?;
                bytes.truncate(bytes.len() - 2);
                Ok(vec![String::from_utf8(bytes).map_err(io::Error::other)?])
            }
            "*" => {
                let count = rest.parse::<usize>().map_err(io::Error::other)?;
                let parts = (0..count).map(|_| self.receive()).collect::<io::Result<Vec<_>>>()?;
                Ok(parts.concat())
            }
            _ => Err(io::Error::other(line)),
        }
    }

    fn ask(&mut self, words: &[&str]) -> io::Result<Vec<String>> {
        self.send(words)?;
        self.receive()
    }

    /// Puts an id into both sets, as one transaction.
    fn commit(&mut self, id: u64) -> io::Result<()> {
        let (name, body) = (id.to_string(), "x".repeat(id as usize % 500));
        self.ask(&["MULTI"])?;
        self.ask(&["SADD", "left", &name])?;
        self.ask(&["SET", &format!("body:{name}"), &body])?;
        self.ask(&["SADD", "right", &name])?;
        self.ask(&["EXEC"]).map(drop)
    }
}

/// A server whose data lie on the mount; its socket and log beside it.
struct Redis {
    data: PathBuf,
    socket: PathBuf,
    log: PathBuf,
}

impl Redis {
    fn start(&self) -> Server {
        let log = File::options().create(true).append(true).open(&self.log).expect("a log");
        let mut command = Command::new("redis-server");
        command.args(["--port", "0", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        // With these settings the log is rewritten all the time.
        command.args(["--auto-aof-rewrite-min-size", "64kb", "--auto-aof-rewrite-percentage", "50"]);
        command.arg("--dir").arg(&self.data).arg("--unixsocket").arg(&self.socket);
        let mut server = Server::start(command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()));
        let ready = || {
            Connection::open(&self.socket)
                .and_then(|mut redis| redis.ask(&["PING"]))
                .is_ok_and(|pong| pong == ["PONG"])
        };
        assert!(server.wait_until(ready), "{}", fs::read_to_string(&self.log).expect("a log"));
        server
    }

    fn set(&self, name: &str) -> BTreeSet<u64> {
        let mut redis = Connection::open(&self.socket).expect("it is ready");
        let members = redis.ask(&["SMEMBERS", name]).expect("a set");
        members.iter().map(|id| id.parse().expect("a number")).collect()
    }

    fn verify(&self, ledger: &Ledger, when: &str) {
        let found = whole(&self.set("left"), &self.set("right"), when);
        ledger.verify(&found, when);
        let mut redis = Connection::open(&self.socket).expect("it is ready");
        for id in found {
            let body = redis.ask(&["GET", &format!("body:{id}")]).expect("half of a transaction is missing");
            assert_eq!(body, ["x".repeat(id as usize % 500)], "{when}: {id} has another body");
        }
    }
}

fn keep_ledger(socket: &Path, ledger: &Ledger) {
    let mut redis = Connection::open(socket).expect("it is ready");
    let begin = Instant::now();
    loop {
        assert!(begin.elapsed() < PATIENCE, "the daemon was killed, and still transactions are committed");
        let id = ledger.claim();
        if redis.commit(id).is_err() {
            return;
        }
        ledger.acknowledge(id);
    }
}

#[test]
fn redis_that_always_syncs_loses_no_acknowledged_transaction_when_the_daemon_is_killed() {
    let (seed, mut random) = random();
    if !have(&["redis-server", "redis-check-aof"].map(Path::new)) {
        return;
    }
    let Some(mut weir) = Weir::start("1GiB", "16MiB") else { return };
    let redis = Redis {
        data: weir.path().join("redis"),
        socket: weir.beside("redis.socket"),
        log: weir.beside("redis.log"),
    };
    fs::create_dir(&redis.data).expect("a directory");
    let ledger = Ledger::create(&weir.beside("ledger"));
    for kill in 1..=kills() {
        let mut server = redis.start();
        let after = Duration::from_millis(50 + random.below(1500));
        std::thread::scope(|scope| {
            for _ in 0..CLIENTS {
                scope.spawn(|| keep_ledger(&redis.socket, &ledger));
            }
            std::thread::sleep(after);
            weir.kill();
        });
        // Redis ends when it cannot write. A child that rewrites the log may still run.
        server.signal("KILL");
        server.wait("Redis, whose disk is gone,");
        weir.mount();
        let when = format!("seed {seed}, after kill {kill}, {after:?} after the start");
        let server = redis.start();
        let before = ledger.count();
        redis.verify(&ledger, &when);
        drop(server);
        let manifest = redis.data.join("appendonlydir/appendonly.aof.manifest");
        succeeds(Command::new("redis-check-aof").arg(manifest));
        println!(
            "{when}: {before:?}, of these in doubt {} were committed",
            ledger.count().acknowledged - before.acknowledged
        );
    }
    let count = ledger.count().acknowledged as u64;
    assert!(count > 10 * kills(), "hardly a transaction was committed between the kills: {count}");
    weir.unmount_and_check();
}

//! Redis on the mount, which syncs every update, and a load like YCSB's.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use device::SeededRng;
use rustix::process::Signal;

use super::super::cleanup;
use super::super::error::BenchError;
use super::super::program::command;
use super::super::quantile::quantile;
use super::super::server::RunningServer;
use super::super::system::MountedSystem;
use super::TurnFigure;
use super::policies::buffer_mib;

/// The rules that weir comes with.
pub(super) const RULES: &str = include_str!("../../../../rules/redis.rules");

const CLIENTS: u64 = 40;
const VALUE_BYTES: usize = 1000;
/// Snapshots and rewrites of the append-only file come soon after each other.
const SETTINGS: [[&str; 2]; 7] = [
    ["--port", "0"],
    ["--appendonly", "yes"],
    ["--appendfsync", "always"],
    ["--auto-aof-rewrite-percentage", "50"],
    ["--auto-aof-rewrite-min-size", "64mb"],
    ["--save", "30 1000"],
    ["--stop-writes-on-bgsave-error", "no"],
];

/// A Redis with `keys` keys. Its socket and log are beside the mount.
pub(super) struct RedisData {
    data: PathBuf,
    socket: PathBuf,
    log: PathBuf,
    keys: ZipfKeys,
    /// The share of the requests that are updates, in percent; the others read.
    updates_percent: u64,
}

impl RedisData {
    /// Makes the keys.
    pub(super) fn create(
        mounted: &MountedSystem,
        keys: u64,
        updates_percent: u64,
        directory: &Path,
    ) -> Result<RedisData, BenchError> {
        let data = mounted.file.with_file_name("redis");
        std::fs::create_dir(&data).map_err(|error| BenchError::io("cannot create", &data, error))?;
        let (socket, log) = (directory.join("redis.socket"), directory.join("redis.log"));
        let redis = RedisData { data, socket, log, keys: ZipfKeys::new(keys), updates_percent };
        let _server = redis.start("no")?;
        let fill = || -> io::Result<()> {
            let mut client = RedisClient::connect(&redis.socket, 0)?;
            (0..keys).take_while(|_| !cleanup::is_stopping()).try_for_each(|key| client.set(key))
        };
        fill().map_err(|error| redis.failed(error))?;
        Ok(redis)
    }

    /// Runs 40 clients for `seconds` seconds, from the start of a rewrite.
    pub(super) fn measure(
        &self,
        mounted: &MountedSystem,
        seconds: u64,
    ) -> Result<Vec<TurnFigure>, BenchError> {
        let mount_point = mounted.file.parent().unwrap_or(&mounted.file);
        let _server = self.start("always")?;
        let rewrite = || RedisClient::connect(&self.socket, 0)?.call(&[b"BGREWRITEAOF"]);
        rewrite().map_err(|error| self.failed(error))?;
        let before = buffer_mib(mount_point)?;
        let until = Instant::now() + Duration::from_secs(seconds);
        let run = |seed| self.run_client(seed, until);
        let found: io::Result<Vec<ClientRequests>> = std::thread::scope(|scope| {
            let clients: Vec<_> = (1..=CLIENTS).map(|seed| scope.spawn(move || run(seed))).collect();
            clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
        });
        let found = found.map_err(|error| self.failed(error))?;
        let buffer_kib = (buffer_mib(mount_point)? - before) * 1024.0;
        let updates: u64 = found.iter().map(|requests| requests.updates).sum();
        let took_ms: Vec<f64> = found.into_iter().flat_map(|requests| requests.took_ms).collect();
        Ok(vec![
            ("per_s", "requests/s", took_ms.len() as f64 / seconds as f64),
            ("p50_ms", "50 % ms", quantile(&took_ms, 0.5)),
            ("p999_ms", "99.9 % ms", quantile(&took_ms, 0.999)),
            ("p9999_ms", "99.99 % ms", quantile(&took_ms, 0.9999)),
            ("slowest_ms", "slowest ms", quantile(&took_ms, 1.0)),
            ("buffer_mib", "buffer MiB", buffer_kib / 1024.0),
            ("buffer_kib", "buffer KiB/update", buffer_kib / (updates as f64).max(1.0)),
        ])
    }

    fn run_client(&self, seed: u64, until: Instant) -> io::Result<ClientRequests> {
        let mut client = RedisClient::connect(&self.socket, seed)?;
        let mut random = SeededRng::new(seed);
        let mut requests = ClientRequests::default();
        while Instant::now() < until && !cleanup::is_stopping() {
            let key = self.keys.draw(&mut random);
            let is_update = random.below(100) < self.updates_percent;
            let start = Instant::now();
            if is_update {
                client.set(key)?
            } else {
                client.call(&[b"GET", &name(key)])?
            }
            requests.took_ms.push(start.elapsed().as_secs_f64() * 1e3);
            requests.updates += u64::from(is_update);
        }
        Ok(requests)
    }

    fn start(&self, appendfsync: &str) -> Result<RunningServer, BenchError> {
        let mut redis = command("redis-server", SETTINGS.as_flattened());
        redis.arg("--unixsocket").arg(&self.socket).arg("--logfile").arg(&self.log);
        redis.arg("--dir").arg(&self.data).args(["--appendfsync", appendfsync]);
        let is_ready =
            || RedisClient::connect(&self.socket, 0).and_then(|mut client| client.call(&[b"PING"])).is_ok();
        RunningServer::start(&mut redis, Signal::TERM, &self.log, is_ready)
    }

    fn failed(&self, error: io::Error) -> BenchError {
        BenchError::io("no answer from Redis at", &self.socket, error)
    }
}

/// The requests of one client.
#[derive(Default)]
struct ClientRequests {
    took_ms: Vec<f64>,
    updates: u64,
}

fn name(key: u64) -> Vec<u8> {
    format!("user{key}").into_bytes()
}

/// A connection, which waits for each answer.
struct RedisClient {
    stream: BufReader<UnixStream>,
    value: Vec<u8>,
}

impl RedisClient {
    fn connect(socket: &Path, seed: u64) -> io::Result<RedisClient> {
        let mut random = SeededRng::new(seed);
        // Snapshots are compressed, so the value is not.
        let value = (0..VALUE_BYTES).map(|_| random.next_u64() as u8).collect();
        Ok(RedisClient { stream: BufReader::new(UnixStream::connect(socket)?), value })
    }

    fn set(&mut self, key: u64) -> io::Result<()> {
        let value = std::mem::take(&mut self.value);
        let done = self.call(&[b"SET", &name(key), &value]);
        self.value = value;
        done
    }

    /// Sends a request and reads its answer, which must be no error.
    fn call(&mut self, words: &[&[u8]]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend(format!("${}\r\n", word.len()).bytes());
            request.extend(*word);
            request.extend(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)?;
        let mut line = String::new();
        self.stream.read_line(&mut line)?;
        let refused = || io::Error::other(line.clone());
        match line.split_at_checked(1) {
            Some(("+" | ":", _)) => Ok(()),
            // A string follows, or for -1 nothing.
            Some(("$", length)) => match length.trim().parse::<u64>() {
                Ok(length) => io::copy(&mut (&mut self.stream).take(length + 2), &mut io::sink()).map(drop),
                Err(_) if length.trim() == "-1" => Ok(()),
                Err(_) => Err(refused()),
            },
            _ => Err(refused()),
        }
    }
}

/// Keys as YCSB draws them: few of them often. *Quickly generating billion-record synthetic databases*
/// (SIGMOD 1994).
struct ZipfKeys {
    keys: u64,
    zeta: f64,
    eta: f64,
}

/// YCSB's.
const THETA: f64 = 0.99;

impl ZipfKeys {
    fn new(keys: u64) -> ZipfKeys {
        let zeta_of = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let zeta = zeta_of(keys);
        let eta = (1.0 - (2.0 / keys as f64).powf(1.0 - THETA)) / (1.0 - zeta_of(2) / zeta);
        ZipfKeys { keys, zeta, eta }
    }

    fn draw(&self, random: &mut SeededRng) -> u64 {
        let uniform = random.below(1 << 53) as f64 / (1_u64 << 53) as f64;
        let scaled = uniform * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < 1.0 + 0.5_f64.powf(THETA) {
            1
        } else {
            let share = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
            (self.keys as f64 * share) as u64
        };
        // The popular keys lie anywhere.
        rank.wrapping_mul(0x9E37_79B9_7F4A_7C15) % self.keys
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_drawn_often() {
        let (keys, mut random) = (ZipfKeys::new(1000), SeededRng::new(1));
        let mut drawn = vec![0_u32; 1000];
        (0..100_000).for_each(|_| drawn[keys.draw(&mut random) as usize] += 1);
        drawn.sort_unstable();
        let most: u32 = drawn[990..].iter().sum();
        // The ten most popular keys' share: zeta(10) / zeta(1000), some 0.39.
        assert!((35_000..50_000).contains(&most), "{most}");
    }
}

//! A PostgreSQL cluster of the benchmark with pgbench's tables, whose transactions are like TPC-B.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::error::BenchError;
use super::program::{command, run, run_until_stopped};
use super::server::RunningServer;
use super::system::MountedSystem;

/// A small buffer pool and log, so that one checkpoint follows the other.
const SETTINGS: [&str; 6] = [
    "listen_addresses=",
    "shared_buffers=256MB",
    "max_wal_size=256MB",
    "min_wal_size=128MB",
    "checkpoint_timeout=30s",
    "max_connections=60",
];
const CLIENTS: &str = "16";
/// How the names of pgbench's logs begin.
const LATENCY_LOG: &str = "latency";

/// One run of pgbench.
pub(super) struct PgbenchRun {
    pub(super) tps: f64,
    /// The latency of each transaction.
    pub(super) took_ms: Vec<f64>,
    pub(super) wal_bytes: f64,
}

impl PgbenchRun {
    /// The mean for each transaction of `count` of something.
    pub(super) fn per_transaction(&self, count: f64) -> f64 {
        count / (self.took_ms.len() as f64).max(1.0)
    }
}

/// A cluster. Its socket and logs are in a directory beside its data.
pub(super) struct PostgresCluster {
    programs: PathBuf,
    user: (u32, u32),
    pub(super) data: PathBuf,
    pub(super) beside: PathBuf,
}

impl PostgresCluster {
    /// Makes a cluster with pgbench's tables on a mount.
    pub(super) fn create(
        mounted: &MountedSystem,
        scale: u32,
        directory: &Path,
    ) -> Result<PostgresCluster, BenchError> {
        PostgresCluster::create_below(mounted.file.parent().unwrap_or(&mounted.file), scale, directory)
    }

    /// Makes a cluster with pgbench's tables, with its data below `parent`, and its socket and logs below `directory`.
    pub(super) fn create_below(
        parent: &Path,
        scale: u32,
        directory: &Path,
    ) -> Result<PostgresCluster, BenchError> {
        let id = |of| -> Result<u32, BenchError> {
            let said = run(&mut command("id", [of, "postgres"]))?;
            said.parse().map_err(|_| BenchError::Missing { program: "postgres" })
        };
        let user = (id("-u")?, id("-g")?);
        let (data, beside) = (parent.join("postgres"), directory.join("postgres"));
        let programs = programs().ok_or(BenchError::Missing { program: "postgres" })?;
        for owned in [&data, &beside] {
            create_for(user, owned)?;
        }
        for entered in [parent, directory] {
            open_to_all(entered)?;
        }
        let cluster = PostgresCluster { programs, user, data, beside };
        let mut initdb = cluster.program("initdb");
        initdb.args(["--data-checksums", "--username=postgres", "--auth=trust", "--pgdata"]);
        run_until_stopped(initdb.arg(&cluster.data))?;
        let server = cluster.start()?;
        let scale = scale.to_string();
        run_until_stopped(cluster.program("pgbench").args(["--initialize", "--quiet", "--scale", &scale]))?;
        cluster.query("CREATE EXTENSION pg_prewarm")?;
        cluster.query("VACUUM ANALYZE")?;
        drop(server);
        Ok(cluster)
    }

    /// The same cluster with another copy of its data. Its socket and logs are in the new directory `beside`.
    pub(super) fn with_data(&self, data: &Path, beside: &Path) -> Result<PostgresCluster, BenchError> {
        create_for(self.user, beside)?;
        let (programs, user) = (self.programs.clone(), self.user);
        Ok(PostgresCluster { programs, user, data: data.into(), beside: beside.into() })
    }

    /// Reads the tables into memory, and ends a checkpoint.
    pub(super) fn warm_up(&self) -> Result<(), BenchError> {
        for table in ["pgbench_accounts", "pgbench_accounts_pkey", "pgbench_branches", "pgbench_tellers"] {
            self.query(&format!("SELECT pg_prewarm('{table}')"))?;
        }
        self.query("CHECKPOINT").map(drop)
    }

    /// Runs pgbench for `seconds` seconds with more `options`.
    pub(super) fn measure_pgbench(&self, seconds: u64, options: &[&str]) -> Result<PgbenchRun, BenchError> {
        let wal_before = self.wal_bytes()?;
        let mut pgbench = self.pgbench(seconds);
        pgbench.args(options).args(["--log", "--log-prefix"]).arg(self.beside.join(LATENCY_LOG));
        let said = run_until_stopped(&mut pgbench)?;
        let wal_bytes = self.wal_bytes()? - wal_before;
        let took_ms = self.take_latencies()?;
        Ok(PgbenchRun { tps: tps(&said).unwrap_or(f64::NAN), took_ms, wal_bytes })
    }

    /// Bytes of WAL that were ever written.
    fn wal_bytes(&self) -> Result<f64, BenchError> {
        let position = self.query("SELECT pg_current_wal_insert_lsn() - '0/0'")?;
        Ok(position.parse().unwrap_or(f64::NAN))
    }

    /// Reads and removes pgbench's logs, one for each thread: the third word of a line is a latency.
    fn take_latencies(&self) -> Result<Vec<f64>, BenchError> {
        let failed = |error| BenchError::io("cannot read", &self.beside, error);
        let mut took_ms = Vec::new();
        for entry in fs::read_dir(&self.beside).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.starts_with(&format!("{LATENCY_LOG}.")) {
                let text = fs::read_to_string(&path).map_err(failed)?;
                let micros = text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok());
                took_ms.extend(micros.map(|micros| micros / 1e3));
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(took_ms)
    }

    /// The command that runs pgbench for `seconds` seconds.
    pub(super) fn pgbench(&self, seconds: u64) -> Command {
        let mut pgbench = self.program("pgbench");
        pgbench.args(["--no-vacuum", "--client", CLIENTS, "--jobs", "2", "--time", &seconds.to_string()]);
        pgbench
    }

    /// A program of PostgreSQL, as its user, for the cluster's server.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut program = command(self.programs.join(name), [""; 0]);
        program.uid(self.user.0).gid(self.user.1).current_dir("/");
        program.env("PGHOST", &self.beside).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        program
    }

    pub(super) fn query(&self, sql: &str) -> Result<String, BenchError> {
        let options = ["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "-v", "ON_ERROR_STOP=1"];
        run_until_stopped(self.program("psql").args(options).args(["--command", sql]))
    }

    /// Starts the server. It ends when the result is dropped.
    pub(super) fn start(&self) -> Result<RunningServer, BenchError> {
        self.start_with(&[])
    }

    /// Like [`start`](PostgresCluster::start), with `settings` that count more than [`SETTINGS`].
    pub(super) fn start_with(&self, settings: &[&str]) -> Result<RunningServer, BenchError> {
        let path = self.beside.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| BenchError::io("cannot create", &path, error))?;
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(&self.data).arg("-k").arg(&self.beside);
        for setting in SETTINGS.iter().chain(settings) {
            postgres.args(["-c", setting]);
        }
        let is_ready = || run(&mut self.program("pg_isready")).is_ok();
        RunningServer::start(postgres.stderr(log), Signal::INT, &path, is_ready)
    }
}

/// Creates a directory that belongs to `user`.
fn create_for(user: (u32, u32), directory: &Path) -> Result<(), BenchError> {
    fs::create_dir(directory)
        .and_then(|()| chown(directory, Some(user.0), Some(user.1)))
        .map_err(|error| BenchError::io("cannot create", directory, error))
}

/// Lets the server's user enter `directory`.
pub(super) fn open_to_all(directory: &Path) -> Result<(), BenchError> {
    fs::set_permissions(directory, Permissions::from_mode(0o755))
        .map_err(|error| BenchError::io("cannot open to all", directory, error))
}

/// The rate in pgbench's report.
pub(super) fn tps(report: &str) -> Option<f64> {
    report.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next()?.parse().ok())
}

/// The directory of Debian's newest PostgreSQL.
fn programs() -> Option<PathBuf> {
    let of_debian = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let newest = of_debian.map(|version| version.path().join("bin")).max()?;
    newest.join("initdb").exists().then_some(newest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_in_the_last_lines() {
        let report = "latency average = 1.7 ms\ntps = 556.251 (without initial connection time)";
        assert_eq!(tps(report), Some(556.251));
        assert_eq!(tps("pgbench (15.18)"), None);
    }
}

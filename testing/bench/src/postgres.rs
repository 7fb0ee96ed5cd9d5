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
        let mount_point = mounted.file.parent().unwrap_or(&mounted.file);
        let id = |of| -> Result<u32, BenchError> {
            let said = run(&mut command("id", [of, "postgres"]))?;
            said.parse().map_err(|_| BenchError::Missing { program: "postgres" })
        };
        let user = (id("-u")?, id("-g")?);
        let (data, beside) = (mount_point.join("postgres"), directory.join("postgres"));
        let programs = programs().ok_or(BenchError::Missing { program: "postgres" })?;
        for owned in [&data, &beside] {
            create_for(user, owned)?;
        }
        // The server's user must be able to enter.
        for entered in [mount_point, directory] {
            fs::set_permissions(entered, Permissions::from_mode(0o755))
                .map_err(|error| BenchError::io("cannot open to all", entered, error))?;
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
        let path = self.beside.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| BenchError::io("cannot create", &path, error))?;
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(&self.data).arg("-k").arg(&self.beside);
        for setting in SETTINGS {
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

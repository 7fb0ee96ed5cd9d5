//! PostgreSQL on the mount, and pgbench's transactions, which are like TPC-B.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::super::error::BenchError;
use super::super::program::{command, run, run_until_stopped};
use super::super::quantile::quantile;
use super::super::system::MountedSystem;
use super::TurnFigure;
use super::policies::buffer_mib;
use super::server::RunningServer;

/// The rules that weir comes with.
pub(super) const RULES: &str = include_str!("../../../../rules/postgresql.rules");

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

/// A cluster on the mount. Its socket and logs are beside the mount.
pub(super) struct PostgresCluster {
    programs: PathBuf,
    user: (u32, u32),
    data: PathBuf,
    beside: PathBuf,
}

impl PostgresCluster {
    /// Makes a cluster with pgbench's tables.
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
            fs::create_dir(owned)
                .and_then(|()| chown(owned, Some(user.0), Some(user.1)))
                .map_err(|error| BenchError::io("cannot create", owned, error))?;
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

    /// Runs pgbench for `seconds` seconds, from warm caches and the end of a checkpoint.
    pub(super) fn measure(
        &self,
        mounted: &MountedSystem,
        seconds: u64,
    ) -> Result<Vec<TurnFigure>, BenchError> {
        let mount_point = mounted.file.parent().unwrap_or(&mounted.file);
        let server = self.start()?;
        for table in ["pgbench_accounts", "pgbench_accounts_pkey", "pgbench_branches", "pgbench_tellers"] {
            self.query(&format!("SELECT pg_prewarm('{table}')"))?;
        }
        self.query("CHECKPOINT")?;
        let counted = || -> Result<_, BenchError> { Ok((buffer_mib(mount_point)?, self.wal_bytes()?)) };
        let before = counted()?;
        let prefix = self.beside.join("latency");
        let mut pgbench = self.program("pgbench");
        pgbench.args(["--no-vacuum", "--client", CLIENTS, "--jobs", "2", "--log"]);
        pgbench.arg("--log-prefix").arg(&prefix).args(["--time", &seconds.to_string()]);
        let said = run_until_stopped(&mut pgbench)?;
        let after = counted()?;
        drop(server);
        let took_ms = self.take_latencies()?;
        let per_transaction = |kib: f64| kib / (took_ms.len() as f64).max(1.0);
        Ok(vec![
            ("tps", "tps", tps(&said).unwrap_or(f64::NAN)),
            ("p50_ms", "50 % ms", quantile(&took_ms, 0.5)),
            ("p999_ms", "99.9 % ms", quantile(&took_ms, 0.999)),
            ("p9999_ms", "99.99 % ms", quantile(&took_ms, 0.9999)),
            ("slowest_ms", "slowest ms", quantile(&took_ms, 1.0)),
            ("buffer_kib", "buffer KiB/tx", per_transaction((after.0 - before.0) * 1024.0)),
            ("wal_kib", "WAL KiB/tx", per_transaction((after.1 - before.1) / 1024.0)),
        ])
    }

    /// A program of PostgreSQL, as its user, for the cluster's server.
    fn program(&self, name: &str) -> Command {
        let mut program = command(self.programs.join(name), [""; 0]);
        program.uid(self.user.0).gid(self.user.1).current_dir("/");
        program.env("PGHOST", &self.beside).env("PGUSER", "postgres").env("PGDATABASE", "postgres");
        program
    }

    fn query(&self, sql: &str) -> Result<String, BenchError> {
        let options = ["--no-psqlrc", "--no-align", "--tuples-only", "--quiet", "-v", "ON_ERROR_STOP=1"];
        run_until_stopped(self.program("psql").args(options).args(["--command", sql]))
    }

    /// Bytes of WAL that were ever written.
    fn wal_bytes(&self) -> Result<f64, BenchError> {
        let position = self.query("SELECT pg_current_wal_insert_lsn() - '0/0'")?;
        Ok(position.parse().unwrap_or(f64::NAN))
    }

    fn start(&self) -> Result<RunningServer, BenchError> {
        let path = self.beside.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(|error| BenchError::io("cannot create", &path, error))?;
        let mut postgres = self.program("postgres");
        postgres.arg("-D").arg(&self.data).arg("-k").arg(&self.beside);
        for setting in SETTINGS {
            postgres.args(["-c", setting]);
        }
        let is_ready = || run(&mut self.program("pg_isready")).is_ok();
        RunningServer::start(postgres.stderr(log), Signal::INT, is_ready)
    }

    /// Reads and removes pgbench's logs, one for each thread: the third word of a line is a latency.
    fn take_latencies(&self) -> Result<Vec<f64>, BenchError> {
        let failed = |error| BenchError::io("cannot read", &self.beside, error);
        let mut took_ms = Vec::new();
        for entry in fs::read_dir(&self.beside).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("latency.")) {
                let text = fs::read_to_string(&path).map_err(failed)?;
                let micros = text.lines().filter_map(|line| line.split(' ').nth(2)?.parse::<f64>().ok());
                took_ms.extend(micros.map(|micros| micros / 1e3));
                fs::remove_file(&path).map_err(failed)?;
            }
        }
        Ok(took_ms)
    }
}

/// The rate in pgbench's report.
fn tps(report: &str) -> Option<f64> {
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

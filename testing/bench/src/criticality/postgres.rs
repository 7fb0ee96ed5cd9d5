//! A turn of pgbench.

use std::fs;

use super::super::error::BenchError;
use super::super::postgres::{PostgresCluster, tps};
use super::super::program::run_until_stopped;
use super::super::quantile::quantile;
use super::super::system::MountedSystem;
use super::TurnFigure;
use super::policies::buffer_mib;

/// The rules that weir comes with.
pub(super) const RULES: &str = include_str!("../../../../rules/postgresql.rules");

/// Runs pgbench for `seconds` seconds, from warm caches and the end of a checkpoint.
pub(super) fn measure(
    cluster: &PostgresCluster,
    mounted: &MountedSystem,
    seconds: u64,
) -> Result<Vec<TurnFigure>, BenchError> {
    let mount_point = mounted.file.parent().unwrap_or(&mounted.file);
    let server = cluster.start()?;
    cluster.warm_up()?;
    let counted = || -> Result<_, BenchError> { Ok((buffer_mib(mount_point)?, wal_bytes(cluster)?)) };
    let before = counted()?;
    let mut pgbench = cluster.pgbench(seconds);
    pgbench.args(["--log", "--log-prefix"]).arg(cluster.beside.join("latency"));
    let said = run_until_stopped(&mut pgbench)?;
    let after = counted()?;
    drop(server);
    let took_ms = take_latencies(cluster)?;
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

/// Bytes of WAL that were ever written.
fn wal_bytes(cluster: &PostgresCluster) -> Result<f64, BenchError> {
    let position = cluster.query("SELECT pg_current_wal_insert_lsn() - '0/0'")?;
    Ok(position.parse().unwrap_or(f64::NAN))
}

/// Reads and removes pgbench's logs, one for each thread: the third word of a line is a latency.
fn take_latencies(cluster: &PostgresCluster) -> Result<Vec<f64>, BenchError> {
    let failed = |error| BenchError::io("cannot read", &cluster.beside, error);
    let mut took_ms = Vec::new();
    for entry in fs::read_dir(&cluster.beside).map_err(failed)? {
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

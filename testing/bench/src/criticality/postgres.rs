//! A turn of pgbench.

use super::super::error::BenchError;
use super::super::postgres::PostgresCluster;
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
    let before = buffer_mib(mount_point)?;
    let run = cluster.measure_pgbench(seconds, &[])?;
    let buffer_mib = buffer_mib(mount_point)? - before;
    drop(server);
    let took_ms = &run.took_ms;
    Ok(vec![
        ("tps", "tps", run.tps),
        ("p50_ms", "50 % ms", quantile(took_ms, 0.5)),
        ("p999_ms", "99.9 % ms", quantile(took_ms, 0.999)),
        ("p9999_ms", "99.99 % ms", quantile(took_ms, 0.9999)),
        ("slowest_ms", "slowest ms", quantile(took_ms, 1.0)),
        ("buffer_kib", "buffer KiB/tx", run.per_transaction(buffer_mib * 1024.0)),
        ("wal_kib", "WAL KiB/tx", run.per_transaction(run.wal_bytes / 1024.0)),
    ])
}

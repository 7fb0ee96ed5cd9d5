//! `weir-bench criticality`: how long a client waits beside others for which nobody waits, under each policy.
//!
//! One store is mounted with one policy after the other, in several rounds.
//!
//! | file | contents |
//! | --- | --- |
//! | `policies` | the policies, and the mounts |
//! | `clients` | threads that repeat a call side by side |
//! | `conflict` | a critical and a background client that need the same lock |
//! | `backup` | a backup beside a critical client that syncs |
//! | `postgres` | a turn of PostgreSQL, whose checkpoints are background |
//! | `redis` | Redis, whose snapshots and rewrites are background |

mod backup;
mod clients;
mod conflict;
mod policies;
mod postgres;
mod redis;

use std::path::Path;

use clap::{Args, ValueEnum};

use super::cleanup;
use super::device_model::DeviceKind;
use super::error::BenchError;
use super::postgres::PostgresCluster;
use super::program::{check_machine, check_programs};
use super::report::{BenchReport, ReportCell, ReportTable, number};
use super::run_args::RunSize;
use super::slow_device::work_directory;
use super::system::MountedSystem;
use super::workload::{PAGE_BYTES, lay_out};
use policies::{NO_POLICY, PolicyStore, StoreDesign};
use redis::RedisData;

/// A figure of a turn: its key in the JSON, the head of its column, and its value.
type TurnFigure = (&'static str, &'static str, f64);

/// Options of `weir-bench criticality`.
#[derive(Debug, Args)]
pub(super) struct CriticalityArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    size: RunSize,
    /// What the clients do
    #[arg(long, value_enum, default_value_t = CriticalityLoad::Lock)]
    load: CriticalityLoad,
    /// Measure a server instead of these clients
    #[arg(long, value_enum, conflicts_with = "load")]
    server: Option<DatabaseServer>,
    /// With `redis`: the share of the requests that are updates, in percent: 50 is like YCSB's load A, 5 like B
    #[arg(long, value_name = "PERCENT", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=100))]
    updates: u64,
    /// The modelled device of the store; the buffer is a file below the temporary directory [default: hdd,
    /// for a server capped]
    #[arg(long, value_enum)]
    model: Option<DeviceKind>,
    /// Size of the buffer, in MiB [default: 64, for a server 32]
    #[arg(long, value_name = "MIB")]
    buffer: Option<u64>,
    /// The policies, in the order of their turns; `none` is a mount without one
    #[arg(long, value_delimiter = ',', default_value = policies::POLICIES)]
    policies: Vec<String>,
    /// Seconds of each turn, and of each part of a turn of `backup` [default: 20, for a server 120, or 1 with
    /// `small`]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Turns of each policy [default: 3, or 1 with `small`]
    #[arg(long)]
    rounds: Option<u32>,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// The load of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CriticalityLoad {
    /// One overwrites a file at full speed and fsyncs it, a critical one writes 8 KiB to the file every 2 ms
    Lock,
    /// One creates and removes files at full speed, a critical one creates a file every 5 ms, in one directory
    Names,
    /// One reads the mount or writes an archive to it, a critical one syncs each write of 4 KiB
    Backup,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DatabaseServer {
    /// PostgreSQL and pgbench, 16 clients, at scale 30 or with `small` 1
    Postgres,
    /// Redis with `appendfsync always`, 40 clients, 200,000 keys of 1,000 B or with `small` 2,000
    Redis,
}

impl CriticalityArgs {
    /// Describes the load.
    fn load_text(&self) -> &'static str {
        match (self.server, self.load) {
            (Some(DatabaseServer::Postgres), _) => "pgbench, 16 clients",
            (Some(DatabaseServer::Redis), _) => "Redis, appendfsync always, 40 clients that read and update",
            (None, CriticalityLoad::Lock) => {
                "a critical client writes 8 KiB at random and sleeps 2 ms, beside one that does so at full speed and fsyncs after \
                 512 writes, in the same file"
            }
            (None, CriticalityLoad::Names) => {
                "a critical client creates a file and sleeps 5 ms, beside one that creates and removes files at full speed and fsyncs \
                 after 512 of them, in the same directory"
            }
            (None, CriticalityLoad::Backup) => {
                "a critical client makes each write of 4 KiB durable, beside a backup that reads 32 MiB/s, and beside writers of an \
                 archive, tar in 10 KiB, cp in 128 KiB"
            }
        }
    }

    fn seconds(&self) -> u64 {
        self.seconds.unwrap_or(match (self.size, self.server) {
            (RunSize::Small, _) => 1,
            (RunSize::Real, None) => 20,
            (RunSize::Real, Some(_)) => 120,
        })
    }

    fn rounds(&self) -> u32 {
        self.rounds.unwrap_or(if self.size == RunSize::Small { 1 } else { 3 })
    }

    fn store(&self) -> StoreDesign {
        let file_bytes: u64 = if self.size == RunSize::Small { 16 << 20 } else { 256 << 20 };
        let of_server = self.server.is_some();
        // A backup reads more than memory holds.
        let memory_bytes = if self.load == CriticalityLoad::Backup { file_bytes / 2 } else { 1 << 30 };
        StoreDesign {
            device: self.model.unwrap_or(if of_server { DeviceKind::Capped } else { DeviceKind::Hdd }),
            device_bytes: if of_server { 4 << 30 } else { (8 * file_bytes).max(512 << 20) },
            buffer_bytes: self.buffer.unwrap_or(if of_server { 32 } else { 64 }) << 20,
            memory_bytes: memory_bytes.max(64 << 20),
            file_pages: if of_server { 0 } else { file_bytes / PAGE_BYTES },
            rules: match self.server {
                None => clients::RULES,
                Some(DatabaseServer::Postgres) => postgres::RULES,
                Some(DatabaseServer::Redis) => redis::RULES,
            },
        }
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &CriticalityArgs) -> Result<(), BenchError> {
    check_machine()?;
    match args.server {
        None => {}
        Some(DatabaseServer::Postgres) => check_programs(&["pgbench"])?,
        Some(DatabaseServer::Redis) => check_programs(&["redis-server"])?,
    }
    cleanup::install()?;
    let (known, unknown): (Vec<&str>, Vec<&str>) =
        args.policies.iter().map(String::as_str).partition(|policy| policies::is_known(policy));
    let design = args.store();
    let (seconds, rounds) = (args.seconds(), args.rounds());
    let mut report = BenchReport::new("criticality");
    report.line(args.load_text());
    report.line(format!(
        "store: {} ({}) · buffer {} MiB, a file on this machine's disk · {rounds} rounds of {seconds} s",
        design.device.name(),
        design.device.text(),
        design.buffer_bytes >> 20
    ));
    for policy in &unknown {
        report.line(format!("left out, because this weir does not know it: --policy {policy}"));
    }
    report.fact("model", design.device);
    report.fact("buffer_mib", design.buffer_bytes >> 20);
    report.fact("seconds", seconds);
    report.fact("left_out", unknown);

    let (root, _files) = work_directory(None)?;
    let mut store = PolicyStore::set_up(design, &root)?;
    let table = match args.server {
        None => {
            let elsewhere = root.join("elsewhere");
            if args.load == CriticalityLoad::Backup {
                lay_out(&elsewhere, args.store().file_pages)?;
            }
            let measure = |mounted: &MountedSystem| measure_load(args.load, mounted, &elsewhere, seconds);
            take_turns(&mut store, &known, rounds, measure)?
        }
        Some(DatabaseServer::Postgres) => {
            let scale = if args.size == RunSize::Small { 1 } else { 30 };
            let cluster = PostgresCluster::create(&store.mount(NO_POLICY)?, scale, &root)?;
            take_turns(&mut store, &known, rounds, |mounted| postgres::measure(&cluster, mounted, seconds))?
        }
        Some(DatabaseServer::Redis) => {
            let keys = if args.size == RunSize::Small { 2000 } else { 200_000 };
            let redis = RedisData::create(&store.mount(NO_POLICY)?, keys, args.updates, &root)?;
            take_turns(&mut store, &known, rounds, |mounted| redis.measure(mounted, seconds))?
        }
    };
    report.table("rows", &table);
    report.print(args.json);
    Ok(())
}

fn measure_load(
    load: CriticalityLoad,
    mounted: &MountedSystem,
    elsewhere: &Path,
    seconds: u64,
) -> Result<Vec<TurnFigure>, BenchError> {
    let file = &mounted.file;
    match load {
        CriticalityLoad::Lock => conflict::write_one_file(file, seconds),
        CriticalityLoad::Names => conflict::change_one_directory(file.parent().unwrap_or(file), seconds),
        CriticalityLoad::Backup => backup::measure_backup(file, elsewhere, seconds),
    }
}

/// Measures each policy once a round, and returns a table with a row for each.
fn take_turns(
    store: &mut PolicyStore,
    policies: &[&str],
    rounds: u32,
    mut measure: impl FnMut(&MountedSystem) -> Result<Vec<TurnFigure>, BenchError>,
) -> Result<ReportTable, BenchError> {
    let mut turns: Vec<Vec<Vec<TurnFigure>>> = vec![Vec::new(); policies.len()];
    for round in 0..rounds {
        for (policy, turns) in policies.iter().zip(&mut turns) {
            let mounted = store.mount(policy)?;
            let figures = measure(&mounted)?;
            let shown = figures.iter().map(|(_, head, value)| format!("{head} {}", number(*value)));
            eprintln!("round {}, {policy}: {}", round + 1, shown.collect::<Vec<_>>().join(" · "));
            turns.push(figures);
        }
    }
    let mut table = ReportTable::default();
    for (policy, turns) in policies.iter().zip(&turns) {
        let mut row = vec![("policy", "policy", ReportCell::from(*policy))];
        for (column, (key, head, _)) in turns.first().into_iter().flatten().enumerate() {
            let values: Vec<f64> = turns.iter().map(|figures| figures[column].2).collect();
            row.push((*key, *head, ReportCell::median_and_range(&values)));
        }
        table.row(row);
    }
    Ok(table)
}

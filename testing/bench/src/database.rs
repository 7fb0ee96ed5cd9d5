//! `weir-bench database`: PostgreSQL on weir and on ext4, and without the pages that it logs against torn writes.
//!
//! Each system has its own modelled device and a copy of one cluster. A turn is one mount: the server starts, reads
//! the tables into memory, and runs each load from the end of a checkpoint.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use clap::{Args, ValueEnum};
use rustix::fs::{XattrFlags, getxattr, setxattr};

use super::cleanup;
use super::cpu_affinity::{self, CpuAffinity, ProcessorSplit};
use super::error::BenchError;
use super::postgres::{PostgresCluster, open_to_all};
use super::program::{check_machine, check_programs, command, run_until_stopped};
use super::quantile::quantile;
use super::report::{BenchReport, ReportCell, ReportTable, number};
use super::slow_device::{ComparedDevice, DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, MountedSystem, SystemKind};

const BUFFER_BYTES: u64 = 256 << 20;
const DEVICE_BYTES: u64 = 2 << 30;
/// Size of the tables and their indexes for each step of pgbench's scale.
const BYTES_PER_SCALE: u64 = 16 << 20;
/// The tables at the default scale fit.
const SHARED_BUFFERS: &str = "shared_buffers=512MB";
/// The mark of files whose pages weir keeps whole, and PostgreSQL's page size.
const MARK: (&str, &[u8]) = ("user.weir.atomic", b"8192");

/// Options of `weir-bench database`.
#[derive(Debug, Args)]
pub(super) struct DatabaseArgs {
    /// The modelled device
    #[arg(long, value_enum, default_value_t = ComparedDevice::Cloud)]
    model: ComparedDevice,
    /// The loads of pgbench's 16 clients
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [PgbenchLoad::TpcbLike, PgbenchLoad::SimpleUpdate])]
    loads: Vec<PgbenchLoad>,
    /// pgbench's scale; up to 24, the tables fit `shared_buffers`
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1000))]
    scale: u32,
    /// Seconds of each load in each turn
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Rounds, with a turn of each system; every other round has the opposite order
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Give the modelled devices their own processors (`apart`), and all other programs the first; or leave
    /// all to the kernel (`free`)
    #[arg(long, value_enum, default_value_t = CpuAffinity::Apart)]
    cpu_affinity: CpuAffinity,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// A load by its name in pgbench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum PgbenchLoad {
    /// Like TPC-B: three updates, of which two meet in a few rows, an insert and a read
    TpcbLike,
    /// One update of a random row, an insert and a read
    SimpleUpdate,
}

impl PgbenchLoad {
    fn name(self) -> String {
        self.to_possible_value().expect("every load can be typed").get_name().to_owned()
    }
}

/// One file system with a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DatabaseSystem {
    Ext4,
    /// ext4, with the write-ahead log on this machine's disk.
    Ext4LocalWal,
    Weir,
    /// weir, with marked files.
    WeirMarked,
}

impl DatabaseSystem {
    const ALL: [DatabaseSystem; 4] = [
        DatabaseSystem::Ext4,
        DatabaseSystem::Ext4LocalWal,
        DatabaseSystem::Weir,
        DatabaseSystem::WeirMarked,
    ];

    /// The name of the system's files.
    fn file_name(self) -> &'static str {
        match self {
            DatabaseSystem::Ext4 => "ext4",
            DatabaseSystem::Ext4LocalWal => "ext4-local-wal",
            DatabaseSystem::Weir => "weir",
            DatabaseSystem::WeirMarked => "weir-marked",
        }
    }

    fn kind(self, root: &Path) -> SystemKind {
        let mut options = vec!["--allow-other".to_owned()];
        match self {
            DatabaseSystem::Ext4 | DatabaseSystem::Ext4LocalWal => return SystemKind::Ext4,
            DatabaseSystem::Weir => {}
            DatabaseSystem::WeirMarked => options.push("--atomic-writes".to_owned()),
        }
        SystemKind::Weir {
            fetch: FetchChoice::Lazy,
            buffer_in: root.into(),
            buffer_bytes: BUFFER_BYTES,
            memory_bytes: None,
            options,
        }
    }
}

/// A system with a setting of `full_page_writes`. Each variant has its own turns.
struct DatabaseVariant {
    name: &'static str,
    system: DatabaseSystem,
    full_page_writes: bool,
}

const VARIANTS: [DatabaseVariant; 5] = [
    DatabaseVariant { name: "ext4", system: DatabaseSystem::Ext4, full_page_writes: true },
    DatabaseVariant {
        name: "ext4, WAL on this machine's disk",
        system: DatabaseSystem::Ext4LocalWal,
        full_page_writes: true,
    },
    DatabaseVariant { name: "weir", system: DatabaseSystem::Weir, full_page_writes: true },
    DatabaseVariant { name: "weir, marked", system: DatabaseSystem::WeirMarked, full_page_writes: true },
    DatabaseVariant {
        name: "weir, marked, full_page_writes=off",
        system: DatabaseSystem::WeirMarked,
        full_page_writes: false,
    },
];
/// The two variants that differ in `full_page_writes` alone: on, and off.
const PAIR: [usize; 2] = [3, 4];

/// The figures of one load in one turn.
#[derive(Debug, Clone, Copy)]
struct LoadFigures {
    tps: f64,
    p99_ms: f64,
    longest_ms: f64,
    wal_kib: f64,
}

/// The figures of one load: for each variant, those of its turns.
type LoadTurns = [Vec<LoadFigures>; VARIANTS.len()];

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &DatabaseArgs) -> Result<(), BenchError> {
    check_machine()?;
    check_programs(&["pgbench"])?;
    cleanup::install()?;
    let mut report = BenchReport::new("database");
    let processors = ProcessorSplit::claim(args.cpu_affinity)?;
    report.line(format!(
        "PostgreSQL, pgbench at scale {}, 16 clients · {} round(s), each load {} s",
        args.scale, args.rounds, args.seconds
    ));
    report.line(format!(
        "data on the {} model; weir's buffer of {} MiB is a file on this machine's disk",
        args.model.name(),
        BUFFER_BYTES >> 20
    ));
    report.line(cpu_affinity::text(processors));
    report.fact("model", args.model);
    report.fact("scale", args.scale);
    report.fact("seconds", args.seconds);
    report.fact("cpu_affinity", cpu_affinity::text(processors));
    let measured = measure_rounds(args, processors)?;
    for (load, turns) in args.loads.iter().zip(&measured) {
        let name = load.name();
        report.line(format!("\n{name}: medians{}", if args.rounds > 1 { " (range)" } else { "" }));
        report.table(&format!("{name}.rows"), &table(turns));
        let ratios = pair_ratios(turns);
        report.line(format!(
            "\nfull_page_writes=off over on, both on weir with marked files: {} times the transactions/s",
            ReportCell::median_and_range(&ratios).text()
        ));
        report.fact(&format!("{name}.full_page_writes_off_over_on"), ratios);
    }
    report.print(args.json);
    Ok(())
}

/// Sets up all systems, and measures each variant once a round. Returns the figures of each load.
fn measure_rounds(
    args: &DatabaseArgs,
    processors: Option<ProcessorSplit>,
) -> Result<Vec<LoadTurns>, BenchError> {
    let (root, _files) = work_directory(None)?;
    let bytes = DEVICE_BYTES + u64::from(args.scale) * BYTES_PER_SCALE * 4;
    let device = DeviceSpec { device: args.model.device(), bytes, processors };
    eprintln!("making a database of scale {}", args.scale);
    let template = root.join("template");
    fs::create_dir(&template).map_err(|error| BenchError::io("cannot create", &template, error))?;
    let template = PostgresCluster::create_below(&template, args.scale, &root)?;
    let mut databases = Vec::new();
    for system in DatabaseSystem::ALL {
        eprintln!("{}: setting up, with a copy of the database", system.file_name());
        databases.push(SystemDatabase::set_up(system, &template, &device, &root)?);
    }
    let mut measured: Vec<LoadTurns> = args.loads.iter().map(|_| LoadTurns::default()).collect();
    for round in 0..args.rounds {
        let mut order: Vec<usize> = (0..VARIANTS.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for index in order {
            let variant = &VARIANTS[index];
            let database = databases.iter().find(|database| database.kind == variant.system);
            let database = database.expect("every system is set up");
            let figures = database.take_turn(variant.full_page_writes, args)?;
            for ((load, turns), figures) in args.loads.iter().zip(&mut measured).zip(figures) {
                let (tps, longest) = (number(figures.tps), number(figures.longest_ms));
                eprintln!(
                    "round {}, {}, {}: {tps} transactions/s, the longest {longest} ms",
                    round + 1,
                    variant.name,
                    load.name()
                );
                turns[index].push(figures);
            }
        }
    }
    Ok(measured)
}

/// A database on one system, not mounted and not running. Fields are dropped, and so taken down, from the top.
struct SystemDatabase {
    kind: DatabaseSystem,
    cluster: PostgresCluster,
    system: ComparedSystem,
}

impl SystemDatabase {
    fn set_up(
        kind: DatabaseSystem,
        template: &PostgresCluster,
        device: &DeviceSpec,
        root: &Path,
    ) -> Result<SystemDatabase, BenchError> {
        let name = kind.file_name();
        let system = ComparedSystem::set_up(name, kind.kind(root), device, root, 0)?;
        let mounted = system.mount()?;
        let data = mount_point(&mounted).join("postgres");
        open_to_all(mount_point(&mounted))?;
        fs::create_dir(&data).map_err(|error| BenchError::io("cannot create", &data, error))?;
        if kind == DatabaseSystem::WeirMarked {
            setxattr(&data, MARK.0, MARK.1, XattrFlags::empty())
                .map_err(|error| BenchError::io("cannot mark", &data, error.into()))?;
        }
        run_until_stopped(command("cp", ["--archive"]).arg(template.data.join(".")).arg(&data))?;
        if kind == DatabaseSystem::WeirMarked {
            check_mark(&data.join("global/pg_control"))?;
        }
        if kind == DatabaseSystem::Ext4LocalWal {
            let (wal, elsewhere) = (data.join("pg_wal"), root.join(format!("{name}.wal")));
            run_until_stopped(&mut command("mv", [&wal, &elsewhere]))?;
            symlink(&elsewhere, &wal).map_err(|error| BenchError::io("cannot create", &wal, error))?;
        }
        let cluster = template.with_data(&data, &root.join(format!("{name}.postgres")))?;
        Ok(SystemDatabase { kind, cluster, system })
    }

    /// Mounts the system, starts the server, and runs each load.
    fn take_turn(&self, full_page_writes: bool, args: &DatabaseArgs) -> Result<Vec<LoadFigures>, BenchError> {
        let _mounted = self.system.mount()?;
        let full_page_writes = if full_page_writes { "full_page_writes=on" } else { "full_page_writes=off" };
        let _server = self.cluster.start_with(&[SHARED_BUFFERS, full_page_writes])?;
        args.loads.iter().map(|load| self.measure(*load, args.seconds)).collect()
    }

    fn measure(&self, load: PgbenchLoad, seconds: u64) -> Result<LoadFigures, BenchError> {
        self.cluster.warm_up()?;
        let run = self.cluster.measure_pgbench(seconds, &["--builtin", &load.name()])?;
        Ok(LoadFigures {
            tps: run.tps,
            p99_ms: quantile(&run.took_ms, 0.99),
            longest_ms: quantile(&run.took_ms, 1.0),
            wal_kib: run.per_transaction(run.wal_bytes / 1024.0),
        })
    }
}

fn mount_point(mounted: &MountedSystem) -> &Path {
    mounted.file.parent().unwrap_or(&mounted.file)
}

/// Fails if the file did not get the mark of its directory: without the mark, `full_page_writes=off` is wrong.
fn check_mark(file: &Path) -> Result<(), BenchError> {
    let mut value = [0; 16];
    let bytes = getxattr(file, MARK.0, &mut value[..])
        .map_err(|error| BenchError::io("no mark on", file, error.into()))?;
    assert_eq!(&value[..bytes], MARK.1, "the mark of {}", file.display());
    Ok(())
}

fn table(turns: &LoadTurns) -> ReportTable {
    let mut table = ReportTable::default();
    for (variant, turns) in VARIANTS.iter().zip(turns) {
        let rounds = |figure: fn(&LoadFigures) -> f64| {
            ReportCell::median_and_range(&turns.iter().map(figure).collect::<Vec<_>>())
        };
        table.row([
            ("system", "system", variant.name.into()),
            ("tps", "transactions/s", rounds(|figures| figures.tps)),
            ("p99_ms", "99 % ms", rounds(|figures| figures.p99_ms)),
            ("longest_ms", "longest ms", rounds(|figures| figures.longest_ms)),
            ("wal_kib", "WAL KiB/transaction", rounds(|figures| figures.wal_kib)),
        ]);
    }
    table
}

/// The ratio of the two rates in each round.
fn pair_ratios(turns: &LoadTurns) -> Vec<f64> {
    let [on, off] = PAIR.map(|index| &turns[index]);
    on.iter().zip(off).map(|(on, off)| off.tps / on.tps).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pair_differs_in_full_page_writes_alone() {
        let [on, off] = PAIR.map(|index| &VARIANTS[index]);
        assert_eq!(on.system, off.system);
        assert!(on.full_page_writes && !off.full_page_writes);
    }

    #[test]
    fn full_page_writes_are_off_in_marked_files_alone() {
        for variant in &VARIANTS {
            assert!(
                variant.full_page_writes || variant.system == DatabaseSystem::WeirMarked,
                "{}",
                variant.name
            );
        }
    }
}

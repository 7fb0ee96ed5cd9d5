//! `weir-bench backup`: restic backs up a mounted snapshot while pgbench writes to the live volume.
//!
//! In each round a snapshot is taken while pgbench runs, mounted, and copied to another disk. Then pgbench
//! runs alone, beside backups of the snapshot, and beside backups of the copy. After the last round the last backup
//! is restored and checked, and the next snapshot is mounted in place of the last one and backed up.
//!
//! | file | contents |
//! | --- | --- |
//! | `restic` | a repository |
//! | `file_tree` | copies of the database are compared and leave the kernel's cache |

mod file_tree;
mod restic;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::cleanup::{self, CleanupGuard};
use super::device_model::DeviceKind;
use super::disk_counters::DiskCounters;
use super::error::BenchError;
use super::postgres::{PostgresCluster, tps};
use super::program::{check_machine, check_programs, command, run, run_until_stopped};
use super::quantile::median;
use super::report::{BenchReport, ReportCell, ReportTable, number};
use super::server::RunningServer;
use super::slow_device::{DeviceSpec, work_directory};
use super::system::{ComparedSystem, FetchChoice, MountedSystem, SystemKind, weir, weir_unmount_on_drop};
use file_tree::{changed_files, drop_from_cache};
use restic::{BackupSummary, LEFT_OUT, ResticBackup, ResticRepository};

/// weir's memory and buffer. The memory is smaller than a database of the default scale, so a backup reads the
/// device.
const MEMORY_BYTES: u64 = 256 << 20;
const BUFFER_BYTES: u64 = 64 << 20;
/// Space on the device, at least and for each unit of pgbench's scale, which is some 15 MiB of tables.
const DEVICE_BYTES: u64 = 2 << 30;
const DEVICE_BYTES_PER_SCALE: u64 = 64 << 20;
/// How long pgbench runs while a snapshot is taken, and when the snapshot is taken.
const SNAPSHOT_RUN_SECONDS: u64 = 4;
const SNAPSHOT_AFTER: Duration = Duration::from_secs(2);
/// The least rate of pgbench beside the backup of the snapshot, as a share of that beside the other backup.
const TARGET_RATIO: f64 = 0.9;
/// Four sums that are equal before and after each of pgbench's transactions.
const SUMS: &str = "SELECT count(DISTINCT sum) FROM (SELECT sum(abalance) FROM pgbench_accounts \
                    UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT sum(tbalance) FROM pgbench_tellers \
                    UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) AS sums";

/// Options of `weir-bench backup`.
#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// pgbench's scale: the database has some 15 MiB for each
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..=1000))]
    scale: u32,
    /// Seconds of each turn of pgbench
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Rounds, each with three turns of pgbench
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The modelled device of the store
    #[arg(long, value_enum, default_value_t = DeviceKind::Cloud)]
    model: DeviceKind,
    /// The disk with the copy of the snapshot
    #[arg(long, value_enum, default_value_t = CopyDisk::Machine)]
    copy_on: CopyDisk,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// The disk from which restic reads the copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum CopyDisk {
    /// This machine's disk
    Machine,
    /// ext4 on a second modelled device of the same kind
    Model,
}

/// The files that restic reads beside a turn of pgbench.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum BackupSource {
    Nothing,
    Snapshot,
    Copy,
}

impl BackupSource {
    const ALL: [BackupSource; 3] = [BackupSource::Nothing, BackupSource::Snapshot, BackupSource::Copy];

    fn name(self) -> &'static str {
        match self {
            BackupSource::Nothing => "no backup",
            BackupSource::Snapshot => "the mounted snapshot",
            BackupSource::Copy => "its copy on another disk",
        }
    }
}

/// Figures of one turn.
struct BackupTurn {
    tps: f64,
    restic_mib_per_s: f64,
    /// MiB that the kernel read from the device of the store, for pgbench and for restic.
    store_read_mib: f64,
    backups: f64,
}

/// The turns of one round.
type BackupRound = BTreeMap<BackupSource, BackupTurn>;

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &BackupArgs) -> Result<(), BenchError> {
    check_machine()?;
    check_programs(&["pgbench", "restic", "cp", "sync"])?;
    cleanup::install()?;
    let mut report = BenchReport::new("backup");
    report.line(format!(
        "pgbench, 16 clients, scale {}, beside `restic backup` of the database's files",
        args.scale
    ));
    report.line(format!(
        "store: {} ({}) · memory {} MiB · buffer {} MiB, as the repositories on this machine's disk · {} rounds of {} s",
        args.model.name(),
        args.model.text(),
        MEMORY_BYTES >> 20,
        BUFFER_BYTES >> 20,
        args.rounds,
        args.seconds
    ));
    report.line(match args.copy_on {
        CopyDisk::Machine => "copy: on this machine's disk",
        CopyDisk::Model => "copy: ext4 on a second device of the store's kind",
    });
    report.fact("scale", args.scale);
    report.fact("model", args.model);
    report.fact("seconds", args.seconds);
    report.fact("copy_on", args.copy_on);

    let (root, _files) = work_directory(None)?;
    let mut bench = BackupBench::set_up(args, &root)?;
    let rounds = bench.measure_rounds(args)?;
    report.table("turns", &turns_table(&rounds));
    let ratio = |round: &BackupRound| round[&BackupSource::Snapshot].tps / round[&BackupSource::Copy].tps;
    let ratios: Vec<f64> = rounds.iter().map(ratio).collect();
    report.figures([
        ("ratio", "tps beside a backup of the snapshot / of its copy", ReportCell::median_and_range(&ratios)),
        ("met", "at least 0.9", ReportCell::verdict(median(&ratios) >= TARGET_RATIO)),
    ]);

    bench.check_restored()?;
    report.line("\nrestored: the database starts, pg_amcheck is clean, and pgbench's sums agree");
    report.fact("restored", true);
    report_next_backup(&mut report, &bench.back_up_next_snapshot()?);
    report.print(args.json);
    Ok(())
}

/// A row for each of the sources, with the figures of all rounds.
fn turns_table(rounds: &[BackupRound]) -> ReportTable {
    let mut table = ReportTable::default();
    for source in BackupSource::ALL {
        let cell = |figure: fn(&BackupTurn) -> f64| {
            ReportCell::median_and_range(
                &rounds.iter().map(|round| figure(&round[&source])).collect::<Vec<_>>(),
            )
        };
        table.row([
            ("source", "restic reads", source.name().into()),
            ("tps", "tps", cell(|turn| turn.tps)),
            ("restic_mib_per_s", "restic MiB/s", cell(|turn| turn.restic_mib_per_s)),
            ("backups", "backups", cell(|turn| turn.backups)),
            ("store_read_mib", "MiB read from the store", cell(|turn| turn.store_read_mib)),
        ]);
    }
    table
}

/// The backup of a later snapshot at the same place.
struct NextBackup {
    summary: BackupSummary,
    /// Files whose bytes differ, or that are new.
    changed: u64,
}

fn report_next_backup(report: &mut BenchReport, next: &NextBackup) {
    let summary = &next.summary;
    report.line("\nthe next snapshot, mounted at the same place and backed up:");
    report.figures([
        ("next.files_new", "files new", summary.files_new.into()),
        ("next.files_changed", "files changed", summary.files_changed.into()),
        ("next.files_unmodified", "files unmodified, not read", summary.files_unmodified.into()),
        ("next.files_that_differ", "files whose bytes differ from the last snapshot's", next.changed.into()),
    ]);
}

/// The database, its server and the mounted snapshot. Fields are dropped, and so taken down, from the top.
struct BackupBench {
    /// Unmounts the snapshot.
    snapshot: Option<CleanupGuard>,
    snapshots_taken: u32,
    _server: RunningServer,
    cluster: PostgresCluster,
    mounted: MountedSystem,
    system: ComparedSystem,
    /// The copy of the mounted snapshot.
    copy: PathBuf,
    _copy_disk: Option<(MountedSystem, ComparedSystem)>,
    root: PathBuf,
    of_snapshot: ResticRepository,
    of_copy: ResticRepository,
}

impl BackupBench {
    fn set_up(args: &BackupArgs, root: &Path) -> Result<BackupBench, BenchError> {
        let kind = SystemKind::Weir {
            fetch: FetchChoice::Lazy,
            buffer_in: root.into(),
            buffer_bytes: BUFFER_BYTES,
            memory_bytes: Some(MEMORY_BYTES),
            // weir's own snapshots in the middle of a turn would be another load.
            options: vec!["--epoch-every=0".to_owned(), "--allow-other".to_owned()],
        };
        let bytes = DEVICE_BYTES + u64::from(args.scale) * DEVICE_BYTES_PER_SCALE;
        let device = DeviceSpec { device: args.model, bytes, processors: None };
        let system = ComparedSystem::set_up("weir", kind, &device, root, 0)?;
        let mounted = system.mount()?;
        let copy_disk = match args.copy_on {
            CopyDisk::Machine => None,
            CopyDisk::Model => {
                let ext4 = ComparedSystem::set_up("copy", SystemKind::Ext4, &device, root, 0)?;
                Some((ext4.mount()?, ext4))
            }
        };
        let copy = copy_disk
            .as_ref()
            .map_or_else(|| root.join("copied"), |(disk, _)| disk.file.with_file_name("copied"));
        eprintln!("making a database of scale {}", args.scale);
        let cluster = PostgresCluster::create(&mounted, args.scale, root)?;
        let server = cluster.start()?;
        let repository = |name| ResticRepository::new(root.join(name), root);
        let (of_snapshot, of_copy) = (repository("backups-of-snapshot"), repository("backups-of-copy"));
        let snapshot_mount = root.join("snapshot");
        fs::create_dir(&snapshot_mount)
            .map_err(|error| BenchError::io("cannot create", &snapshot_mount, error))?;
        Ok(BackupBench {
            snapshot: None,
            snapshots_taken: 0,
            _server: server,
            cluster,
            mounted,
            system,
            copy,
            _copy_disk: copy_disk,
            root: root.into(),
            of_snapshot,
            of_copy,
        })
    }

    /// Where snapshots are mounted.
    fn mounted_snapshot(&self) -> PathBuf {
        self.root.join("snapshot")
    }

    /// Runs all rounds. Every other round has its turns in the opposite order.
    fn measure_rounds(&mut self, args: &BackupArgs) -> Result<Vec<BackupRound>, BenchError> {
        let mut rounds = Vec::new();
        for round in 0..args.rounds {
            self.mount_next_snapshot()?;
            self.copy_snapshot()?;
            let mut order = BackupSource::ALL;
            if round % 2 == 1 {
                order.reverse();
            }
            let mut turns = BackupRound::new();
            for source in order {
                let turn = self.measure_turn(source, args.seconds)?;
                eprintln!(
                    "round {}, {}: {} tps, restic {} MiB/s",
                    round + 1,
                    source.name(),
                    number(turn.tps),
                    number(turn.restic_mib_per_s)
                );
                turns.insert(source, turn);
            }
            rounds.push(turns);
        }
        Ok(rounds)
    }

    /// Takes a snapshot while pgbench runs, and mounts it in place of the last one.
    fn mount_next_snapshot(&mut self) -> Result<(), BenchError> {
        let live = self.mounted.file.parent().unwrap_or(&self.mounted.file);
        let name = |number: u32| format!("snapshot-{number}");
        let last = self.snapshots_taken;
        self.snapshots_taken += 1;
        let next = name(self.snapshots_taken);
        std::thread::scope(|scope| -> Result<(), BenchError> {
            let pgbench = scope.spawn(|| run_until_stopped(&mut self.cluster.pgbench(SNAPSHOT_RUN_SECONDS)));
            std::thread::sleep(SNAPSHOT_AFTER);
            let taken = run_until_stopped(weir("volume").arg("snapshot").arg(live).arg(&next));
            pgbench.join().expect("pgbench's thread does not panic")?;
            taken.map(drop)
        })?;
        if self.snapshot.take().is_some() {
            run_until_stopped(weir("volume").arg("delete").arg(live).arg(name(last)))?;
        }
        let directory = self.mounted_snapshot();
        let unmount = weir_unmount_on_drop(&directory);
        let mut mount = weir("mount");
        mount.args(["--volume", &next]).arg(self.system.device()).arg(directory);
        cleanup::uninterrupted(|| run(&mut mount))?;
        self.snapshot = Some(unmount);
        Ok(())
    }

    /// Copies the mounted snapshot to the other disk, durably: dirty pages would stay in the kernel's cache.
    fn copy_snapshot(&self) -> Result<(), BenchError> {
        let copy = &self.copy;
        if copy.exists() {
            fs::remove_dir_all(copy).map_err(|error| BenchError::io("cannot remove", copy, error))?;
        }
        run_until_stopped(command("cp", ["--archive"]).arg(self.mounted_snapshot()).arg(copy))?;
        run_until_stopped(command("sync", ["--file-system"]).arg(copy)).map(drop)
    }

    /// Runs pgbench beside backups, of which the last one is finished after pgbench has ended.
    fn measure_turn(&self, source: BackupSource, seconds: u64) -> Result<BackupTurn, BenchError> {
        self.cluster.warm_up()?;
        let has_ended = AtomicBool::new(false);
        let device = || DiskCounters::of(self.system.device());
        let before = device();
        std::thread::scope(|scope| {
            let backups = scope.spawn(|| match source {
                BackupSource::Nothing => Ok(Vec::new()),
                BackupSource::Snapshot => {
                    repeat_backups(&self.of_snapshot, &self.mounted_snapshot(), &has_ended)
                }
                BackupSource::Copy => repeat_backups(&self.of_copy, &self.copy, &has_ended),
            });
            let said = run_until_stopped(&mut self.cluster.pgbench(seconds));
            let after = device();
            has_ended.store(true, Ordering::SeqCst);
            let backups = backups.join().expect("restic's thread does not panic")?;
            let seconds: f64 = backups.iter().map(|backup| backup.summary.total_duration).sum();
            let bytes: u64 = backups.iter().map(|backup| backup.summary.total_bytes_processed).sum();
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let read = before.zip(after).map(|(before, after)| after.since(before).read_bytes);
            Ok(BackupTurn {
                tps: tps(&said?).unwrap_or(f64::NAN),
                restic_mib_per_s: mib(bytes) / seconds.max(1e-9),
                store_read_mib: read.map_or(f64::NAN, mib),
                backups: backups.len() as f64,
            })
        })
    }

    /// Restores the last backup of the mounted snapshot, starts the database from it, and checks the database.
    fn check_restored(&self) -> Result<(), BenchError> {
        eprintln!("restoring the backup of the last snapshot");
        let restored = self.root.join("restored");
        // restic would create the directory for root alone, and the server's user must be able to enter.
        fs::create_dir(&restored).map_err(|error| BenchError::io("cannot create", &restored, error))?;
        self.of_snapshot.restore(&restored)?;
        let cluster =
            self.cluster.with_data(&restored.join("postgres"), &self.root.join("beside-restored"))?;
        let _server = cluster.start()?;
        let mut amcheck = cluster.program("pg_amcheck");
        run_until_stopped(amcheck.args(["--all", "--heapallindexed", "--install-missing"]))?;
        match cluster.query(SUMS)?.as_str() {
            "1" => Ok(()),
            sums => Err(BenchError::WrongBackup { says: format!("pgbench's four sums have {sums} values") }),
        }
    }

    /// Mounts the next snapshot in place of the last one, and backs it up to the same repository.
    fn back_up_next_snapshot(&mut self) -> Result<NextBackup, BenchError> {
        self.mount_next_snapshot()?;
        let files = self.mounted_snapshot();
        let backup = self.of_snapshot.back_up(&files)?;
        let mut changed = changed_files(&self.copy, &files)
            .map_err(|error| BenchError::io("cannot compare", &files, error))?;
        changed.retain(|file| !file.ends_with(LEFT_OUT));
        match changed.difference(&backup.read).next() {
            None => Ok(NextBackup { summary: backup.summary, changed: changed.len() as u64 }),
            Some(missed) => {
                let says = format!("restic did not read the changed file {}", missed.display());
                Err(BenchError::WrongBackup { says })
            }
        }
    }
}

/// Backs up `directory`, cold, to a new repository again and again until `has_ended`, at least once.
fn repeat_backups(
    repository: &ResticRepository,
    directory: &Path,
    has_ended: &AtomicBool,
) -> Result<Vec<ResticBackup>, BenchError> {
    let mut backups = Vec::new();
    while backups.is_empty() || !has_ended.load(Ordering::SeqCst) {
        drop_from_cache(directory).map_err(|error| BenchError::io("cannot read", directory, error))?;
        repository.create()?;
        backups.push(repository.back_up(directory)?);
    }
    Ok(backups)
}

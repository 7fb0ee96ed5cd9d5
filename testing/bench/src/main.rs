#![doc = include_str!("../README.md")]

mod backup;
mod cleaning;
mod cleanup;
mod commits;
mod copies;
mod counters;
mod cpu_affinity;
mod criticality;
mod database;
mod delta_reads;
mod dense;
mod dense_sqlite;
mod device_model;
mod device_speed;
mod disk_counters;
mod error;
mod exports;
mod footprint;
mod front_end;
mod in_process;
mod interference;
mod json_lines;
mod large_store;
mod machine_info;
mod modelled_device;
mod nonblocking_writes;
mod overview;
mod overwrite_rows;
mod periodic_flushing;
mod personalities;
mod picture;
mod postgres;
mod program;
mod quantile;
mod replay_accuracy;
mod report;
mod result_matrix;
mod run_args;
mod scaling;
mod server;
mod shared_disk;
mod slow_device;
mod small_files;
mod snapshots;
mod start;
mod steady_writes;
mod streams;
mod sync_matrix;
mod system;
mod tar_archive;
mod working_set;
mod workload;

use clap::{Parser, Subcommand};
use error::BenchError;
use std::path::PathBuf;
use std::process::ExitCode;

/// The allocator of `weir`, so that experiments in this process behave like the daemon.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures weir and its baselines in one run. Results go to standard output, progress to standard error.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", version, max_term_width = 100)]
struct BenchCli {
    /// The `weir` to measure [default: $WEIR, or else the one beside this program]
    #[arg(long, value_name = "PATH", global = true)]
    weir: Option<PathBuf>,
    #[command(subcommand)]
    experiment: BenchCommand,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// SQLite and small overwrites on weir and on ext4, on one modelled device, as bars. Takes a minute.
    Overview(overview::OverviewArgs),
    /// The latencies of one client's writes on weir and on ext4, during a checkpoint, a full buffer and kill -9, as an SVG.
    Picture(picture::PictureArgs),
    /// PostgreSQL on weir and on ext4, on modelled devices, and on weir without full page writes.
    Database(database::DatabaseArgs),
    /// Small overwrites of pages that are not in memory, on weir and on ext4, on modelled devices.
    NonblockingWrites(nonblocking_writes::NonblockingWritesArgs),
    /// Small overwrites that go on until write-back limits their rate, on weir and on ext4.
    SteadyWrites(steady_writes::SteadyWritesArgs),
    /// Sequential and random reads and writes of parts of pages, with each fetch mode.
    Personalities(personalities::PersonalitiesArgs),
    /// Mail, file, web and proxy servers, with late and with early write-back: operations, and writes to the
    /// store.
    PeriodicFlushing(periodic_flushing::PeriodicFlushingArgs),
    /// Small writes of which a share is synced, by size and share, on weir and on ext4 on one disk.
    SyncMatrix(sync_matrix::SyncMatrixArgs),
    /// Large sequential writes, alone and beside small synced writes, on weir and on ext4 on one disk.
    Streams(streams::StreamsArgs),
    /// Cold reads of a file whose pages are partly stored as deltas, beside a file that was stored whole.
    DeltaReads(delta_reads::DeltaReadsArgs),
    /// How many store reads partial writes cause, and how much store I/O syncs cause.
    Counters(counters::CountersArgs),
    /// Overwrites of a store that is nearly full: blocks written for each page, and the slowest write.
    Cleaning(cleaning::CleaningArgs),
    /// Snapshots of dirty data beside a writer, later random writes, and thousands of snapshots, against targets.
    Snapshots(snapshots::SnapshotsArgs),
    /// How much of the map of a large store cleaning reads, and how long deletions and truncations delay
    /// changes.
    LargeStore(large_store::LargeStoreArgs),
    /// Requests, overwrites, trees of files and SQLite, beside a null server and ext4, against targets.
    FrontEnd(front_end::FrontEndArgs),
    /// The rate of operations without the kernel, by one thread and by several.
    Scaling(scaling::ScalingArgs),
    /// Single operations of the library, beside the same system calls on tmpfs.
    Dense(dense::DenseArgs),
    /// How much a program's own code slows down by operations of the library between its turns, beside tmpfs.
    WorkingSet(working_set::WorkingSetArgs),
    /// SQLite's inserts by `sqlite3` and Python with `weir run`, beside tmpfs, in each journal and locking mode.
    Sqlite(dense_sqlite::DenseSqliteArgs),
    /// grep and tar on many small files with `weir run`, beside tmpfs, a mount and ext4.
    SmallFiles(small_files::SmallFilesArgs),
    /// Distinct lines of code and data that operations of weir touch, or any program after `--`; needs valgrind.
    Footprint(footprint::FootprintArgs),
    /// How long small writes wait while another client reads, writes or truncates a large file.
    Interference(interference::InterferenceArgs),
    /// How long a client waits beside others for which nobody waits, under each policy.
    Criticality(criticality::CriticalityArgs),
    /// restic backs up a mounted snapshot beside pgbench on the live volume: the rate, the restored database, and
    /// the next backup.
    Backup(backup::BackupArgs),
    /// Copies of large files that share pages, and of small ones, beside copies of every byte.
    Copies(copies::CopiesArgs),
    /// Scattered pages of a file that change together: a journal of the program, beside vectors of writes and of moves.
    Commits(commits::CommitsArgs),
    /// A disk that `weir export` serves, beside nbdkit and qemu-nbd: random reads, writes and flushes, and writes after a
    /// snapshot.
    Exports(exports::ExportsArgs),
    /// How long a mount takes after kill -9, part by part.
    Start(start::StartArgs),
    /// How far the time of a replay is from the time of its program, on other storage than it was traced on.
    ReplayAccuracy(replay_accuracy::ReplayAccuracyArgs),
    /// Internal: the reading threads that `replay-accuracy` traces.
    #[command(hide = true)]
    ReplayLoad(replay_accuracy::LoadArgs),
    /// Internal: the operations that `footprint` traces.
    #[command(hide = true)]
    FootprintOperations,
    /// Internal: a modelled device, as a process.
    #[command(hide = true)]
    ModelledDevice(modelled_device::ModelledDeviceArgs),
    /// Internal: the null server, as a process.
    #[command(hide = true)]
    FrontEndPeer(front_end::PeerArgs),
    /// Internal: busy threads, as a process.
    #[command(hide = true)]
    Busy(front_end::BusyArgs),
}

fn main() -> ExitCode {
    let cli = BenchCli::parse();
    match system::find_weir(cli.weir).and_then(|()| run(&cli.experiment)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\n  help: {}", error.help());
            ExitCode::FAILURE
        }
    }
}

/// Runs an experiment; results go to stdout, progress to stderr.
///
/// # Errors A program or privilege is missing, or a program or file operation failed. Before returning, the
/// experiment removes all mounts, devices and files that it made.
fn run(experiment: &BenchCommand) -> Result<(), BenchError> {
    match experiment {
        BenchCommand::Overview(args) => overview::run_benchmark(args),
        BenchCommand::Picture(args) => picture::run_benchmark(args),
        BenchCommand::Database(args) => database::run_benchmark(args),
        BenchCommand::NonblockingWrites(args) => nonblocking_writes::run_benchmark(args),
        BenchCommand::SteadyWrites(args) => steady_writes::run_benchmark(args),
        BenchCommand::Personalities(args) => personalities::run_benchmark(args),
        BenchCommand::PeriodicFlushing(args) => periodic_flushing::run_benchmark(args),
        BenchCommand::SyncMatrix(args) => sync_matrix::run_benchmark(args),
        BenchCommand::Streams(args) => streams::run_benchmark(args),
        BenchCommand::DeltaReads(args) => delta_reads::run_benchmark(args),
        BenchCommand::Counters(args) => counters::run_benchmark(args),
        BenchCommand::Cleaning(args) => cleaning::run_benchmark(args),
        BenchCommand::Snapshots(args) => snapshots::run_benchmark(args),
        BenchCommand::LargeStore(args) => large_store::run_benchmark(args),
        BenchCommand::Interference(args) => interference::run_benchmark(args),
        BenchCommand::Criticality(args) => criticality::run_benchmark(args),
        BenchCommand::Backup(args) => backup::run_benchmark(args),
        BenchCommand::Copies(args) => copies::run_benchmark(args),
        BenchCommand::Commits(args) => commits::run_benchmark(args),
        BenchCommand::Exports(args) => exports::run_benchmark(args),
        BenchCommand::Start(args) => start::run_benchmark(args),
        BenchCommand::FrontEnd(args) => front_end::run_benchmark(args),
        BenchCommand::Scaling(args) => scaling::run_benchmark(args),
        BenchCommand::Dense(args) => dense::run_benchmark(args),
        BenchCommand::WorkingSet(args) => working_set::run_benchmark(args),
        BenchCommand::Sqlite(args) => dense_sqlite::run_benchmark(args),
        BenchCommand::SmallFiles(args) => small_files::run_benchmark(args),
        BenchCommand::Footprint(args) => footprint::run_benchmark(args),
        BenchCommand::FootprintOperations => {
            footprint::run_operations();
            Ok(())
        }
        BenchCommand::ReplayAccuracy(args) => replay_accuracy::run_benchmark(args),
        BenchCommand::ReplayLoad(args) => replay_accuracy::run_load(args),
        BenchCommand::ModelledDevice(args) => modelled_device::run_device(args),
        BenchCommand::FrontEndPeer(args) => front_end::run_peer(args),
        BenchCommand::Busy(args) => {
            front_end::run_busy(args);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        BenchCli::command().debug_assert();
    }
}

#![doc = include_str!("../README.md")]

mod bystander;
mod cells;
mod cleaning;
mod counters;
mod delta_reads;
mod device_model;
mod disk_time;
mod error;
mod front_end;
mod in_process;
mod json_lines;
mod large_store;
mod measure;
mod modelled_device;
mod nonblocking_writes;
mod overview;
mod periodic_flushing;
mod personalities;
mod placement;
mod program;
mod quantile;
mod replay_accuracy;
mod report;
mod scaling;
mod shared_disk;
mod slow_device;
mod start;
mod steady_writes;
mod streams;
mod sync_matrix;
mod system;
mod undo;
mod workload;

use clap::{Parser, Subcommand};
use error::BenchError;
use std::path::PathBuf;
use std::process::ExitCode;

/// The allocator of `weir`: what is measured in this process is measured as it is there.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Measures weir beside its baselines. Results go to standard output, everything else to standard error.
#[derive(Debug, Parser)]
#[command(name = "weir-bench", version, max_term_width = 100)]
struct Cli {
    /// The `weir` to measure [default: $WEIR, or else the one beside this program]
    #[arg(long, value_name = "PATH", global = true)]
    weir: Option<PathBuf>,
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// SQLite and small overwrites beside ext4 on the same modelled device, as bars; a minute.
    Overview(overview::OverviewArgs),
    /// Small overwrites of un-cached pages, beside ext4 on the same modelled device.
    NonblockingWrites(nonblocking_writes::NonblockingWritesArgs),
    /// Small overwrites for so long that what is written back sets the pace, beside ext4 on the same modelled device.
    SteadyWrites(steady_writes::SteadyWritesArgs),
    /// The fetch modes under sequential and random reads and writes of parts of pages, by size and modelled device.
    Personalities(personalities::PersonalitiesArgs),
    /// Mail, file, web and proxy servers, with changes written back late and soon, beside ext4: operations, and writes to the store.
    PeriodicFlushing(periodic_flushing::PeriodicFlushingArgs),
    /// Small writes of which some are synced, by size and share, beside ext4 on the same disk.
    SyncMatrix(sync_matrix::SyncMatrixArgs),
    /// Streams of whole pages, alone and beside small synced writes, next to ext4 on the same disk.
    Streams(streams::StreamsArgs),
    /// Cold reads of a file of which some pages are stored as deltas, beside one that was stored whole.
    DeltaReads(delta_reads::DeltaReadsArgs),
    /// Store reads that partial writes cause, and store I/O that fsync causes.
    Counters(counters::CountersArgs),
    /// Overwrites of a store that is nearly full: what is written for each page, and how long the slowest write waits.
    Cleaning(cleaning::CleaningArgs),
    /// What cleaning reads of the map of a large store, and how long deletions and cuts hold it up, on a device that keeps metadata only.
    LargeStore(large_store::LargeStoreArgs),
    /// Operations, overwrites, trees of files and SQLite, beside a trivial in-memory file system and ext4, against targets.
    FrontEnd(front_end::FrontEndArgs),
    /// What operations cost from the file system down, without the kernel, by one thread and by several.
    Scaling(scaling::ScalingArgs),
    /// How long small writes wait while another client reads, writes, or cuts off much at once.
    Bystander(bystander::BystanderArgs),
    /// How long a mount takes after a kill -9, by parts.
    Start(start::StartArgs),
    /// How far a replay's time is from the program's own, on other storage than that on which it was traced.
    ReplayAccuracy(replay_accuracy::ReplayAccuracyArgs),
    /// The readers that it traces.
    #[command(hide = true)]
    ReplayLoad(replay_accuracy::LoadArgs),
    /// A modelled device, in a process of its own.
    #[command(hide = true)]
    ModelledDevice(modelled_device::ServedArgs),
    /// The trivial file system, in a process of its own.
    #[command(hide = true)]
    FrontEndPeer(front_end::PeerArgs),
    /// Busy threads, in a process of their own.
    #[command(hide = true)]
    Busy(front_end::BusyArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match system::find_weir(cli.weir).and_then(|()| run(&cli.experiment)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}\n  help: {}", error.help());
            ExitCode::FAILURE
        }
    }
}

/// Runs a benchmark; results go to stdout, progress to stderr.
///
/// # Errors
/// A missing program or privilege, a program or file operation that failed; everything is taken down before it returns.
fn run(experiment: &Experiment) -> Result<(), BenchError> {
    match experiment {
        Experiment::Overview(args) => overview::run_benchmark(args),
        Experiment::NonblockingWrites(args) => nonblocking_writes::run_benchmark(args),
        Experiment::SteadyWrites(args) => steady_writes::run_benchmark(args),
        Experiment::Personalities(args) => personalities::run_benchmark(args),
        Experiment::PeriodicFlushing(args) => periodic_flushing::run_benchmark(args),
        Experiment::SyncMatrix(args) => sync_matrix::run_benchmark(args),
        Experiment::Streams(args) => streams::run_benchmark(args),
        Experiment::DeltaReads(args) => delta_reads::run_benchmark(args),
        Experiment::Counters(args) => counters::run_benchmark(args),
        Experiment::Cleaning(args) => cleaning::run_benchmark(args),
        Experiment::LargeStore(args) => large_store::run_benchmark(args),
        Experiment::Bystander(args) => bystander::run_benchmark(args),
        Experiment::Start(args) => start::run_benchmark(args),
        Experiment::FrontEnd(args) => front_end::run_benchmark(args),
        Experiment::Scaling(args) => scaling::run_benchmark(args),
        Experiment::ReplayAccuracy(args) => replay_accuracy::run_benchmark(args),
        Experiment::ReplayLoad(args) => replay_accuracy::run_load(args),
        Experiment::ModelledDevice(args) => modelled_device::run_device(args),
        Experiment::FrontEndPeer(args) => front_end::run_peer(args),
        Experiment::Busy(args) => {
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
        Cli::command().debug_assert();
    }
}

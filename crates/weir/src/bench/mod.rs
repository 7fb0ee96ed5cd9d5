//! `weir bench`: experiments that print their figures beside a baseline from the same run, on a stated device.
//!
//! | file | what it is |
//! | --- | --- |
//! | `overview` | a database and small overwrites beside ext4, as bars, in a minute |
//! | `nonblocking_writes` | the first writes to pages that nobody holds, beside ext4 |
//! | `counters` | what a million partial writes and their syncs cost the store: nothing |
//! | `cleaning` | what overwrites of a store that is nearly full cost, beside what its policy predicts |
//! | `door` | operations beside a trivial file system in memory; overwrites, trees of files and SQLite beside ext4 |
//! | `scaling` | what operations cost from the file system down, by one thread and by several |
//! | `bystander` | how long small writes wait while another client does something large |
//! | `start` | how long a mount takes after a kill -9 |
//! | `replay_engine` | how many actions a second a replay can start |
//! | `trace_memory` | how much memory a long trace takes to compile |
//! | `replay_accuracy` | how far a replay's time is from the program's own |
//! | `slow_device`, `system` | modelled devices and the file systems on them |
//! | `in_process` | a file system without the kernel's door |
//! | `workload`, `measure` | the load; what a device can do |
//! | `disk_time` | what the kernel counts of a disk |
//! | `report` | figures as text, table and JSON |
//! | `undo`, `program`, `error` | taking things down again; running programs; what went wrong |

mod bystander;
mod cleaning;
mod counters;
mod disk_time;
mod door;
mod error;
mod in_process;
mod measure;
mod nonblocking_writes;
mod overview;
mod placement;
mod program;
mod replay_accuracy;
mod replay_engine;
mod report;
mod scaling;
mod slow_device;
mod start;
mod system;
mod trace_memory;
mod undo;
mod workload;

use clap::{Args, Subcommand};

pub(crate) use error::BenchError;

/// Which benchmark to run.
#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    experiment: Experiment,
}

#[derive(Debug, Subcommand)]
enum Experiment {
    /// SQLite and small overwrites beside ext4 on the same modelled device, as bars; a minute.
    Overview(overview::OverviewArgs),
    /// Small overwrites of un-cached pages, beside ext4 on the same modelled device.
    NonblockingWrites(nonblocking_writes::NonblockingWritesArgs),
    /// Store reads that partial writes cause, and store I/O that fsync causes.
    Counters(counters::CountersArgs),
    /// Overwrites of a store that is nearly full: what is written for each page, and how long the slowest write waits.
    Cleaning(cleaning::CleaningArgs),
    /// Operations, overwrites, trees of files and SQLite, beside a trivial in-memory file system and ext4, against targets.
    Door(door::DoorArgs),
    /// What operations cost from the file system down, without the kernel, by one thread and by several.
    Scaling(scaling::ScalingArgs),
    /// How long small writes wait while another client reads, writes, or cuts off much at once.
    Bystander(bystander::BystanderArgs),
    /// How long a mount takes after a kill -9, by parts.
    Start(start::StartArgs),
    /// How many actions a second a replay can start, onto a target that does nothing.
    ReplayEngine(replay_engine::ReplayEngineArgs),
    /// How much memory and time a long trace takes to compile, and its benchmark to read and replay.
    TraceMemory(trace_memory::TraceMemoryArgs),
    /// How far a replay's time is from the program's own, on other storage than that on which it was traced.
    ReplayAccuracy(replay_accuracy::ReplayAccuracyArgs),
    /// The readers that it traces.
    #[command(hide = true)]
    ReplayLoad(replay_accuracy::LoadArgs),
    /// A modelled device, in a process of its own.
    #[command(hide = true)]
    ModelledDevice(replay_accuracy::ServedArgs),
    /// The trivial file system, in a process of its own.
    #[command(hide = true)]
    DoorPeer(door::PeerArgs),
    /// Busy threads, in a process of their own.
    #[command(hide = true)]
    DoorBusy(door::BusyArgs),
}

/// Runs a benchmark; results go to stdout, progress to stderr.
///
/// # Errors
/// A missing program or privilege, a program or file operation that failed; everything is taken down before it returns.
pub(crate) fn run(args: &BenchArgs) -> Result<(), BenchError> {
    match &args.experiment {
        Experiment::Overview(args) => overview::run_benchmark(args),
        Experiment::NonblockingWrites(args) => nonblocking_writes::run_benchmark(args),
        Experiment::Counters(args) => counters::run_benchmark(args),
        Experiment::Cleaning(args) => cleaning::run_benchmark(args),
        Experiment::Bystander(args) => bystander::run_benchmark(args),
        Experiment::Start(args) => start::run_benchmark(args),
        Experiment::Door(args) => door::run_benchmark(args),
        Experiment::Scaling(args) => scaling::run_benchmark(args),
        Experiment::ReplayEngine(args) => replay_engine::run_benchmark(args),
        Experiment::TraceMemory(args) => trace_memory::run_benchmark(args),
        Experiment::ReplayAccuracy(args) => replay_accuracy::run_benchmark(args),
        Experiment::ReplayLoad(args) => replay_accuracy::run_load(args),
        Experiment::ModelledDevice(args) => replay_accuracy::run_device(args),
        Experiment::DoorPeer(args) => door::run_peer(args),
        Experiment::DoorBusy(args) => {
            door::run_busy(args);
            Ok(())
        }
    }
}

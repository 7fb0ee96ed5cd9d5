//! The command line. The parser, the help texts and the manual pages all come from these types.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use trace_compile::CompileSettings;
use trace_file::Rule;

/// Record a program's system calls, and replay them on any directory
#[derive(Debug, Parser)]
#[command(name = "weir-trace", version, max_term_width = 100, after_help = EXAMPLE)]
pub(crate) struct TraceCommandLine {
    #[command(subcommand)]
    pub(crate) verb: TraceVerb,
}

const EXAMPLE: &str = "\
`weir trace` is the same program. Results go to standard output, everything else to standard error.

A first session:
  weir-trace record -o git.strace -- git gc
  weir-trace compile git.strace --snapshot git.strace.snapshot -o git.compiled
  weir-trace replay git.compiled --on /mnt/demo";

#[derive(Debug, Subcommand)]
pub(crate) enum TraceVerb {
    Record(RecordArgs),
    Compile(CompileArgs),
    Info(InfoArgs),
    Replay(ReplayArgs),
    Compare(CompareArgs),
    Explain(ExplainArgs),
    /// List the calls that are followed, and count them
    Calls,
    /// Write the manual pages into a directory
    #[command(hide = true)]
    Man(ManArgs),
}

/// Run a program under strace, and list the trees that it will touch
///
/// Ends with the program's own exit code. What it used outside of the listed trees and left alone is added to the list after the
/// run. What a trace cannot see: loads and stores through mappings, and io_uring; a warning says so if the program used them.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Where the trace goes; the list of files goes beside it, as FILE.snapshot
    #[arg(short, long, value_name = "FILE", default_value = "trace.strace")]
    pub(crate) output: PathBuf,
    /// A tree to list before the run; repeat it for several
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) tree: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Compile a trace into one self-contained file
///
/// Fails if less than half of the trace's calls can be used, and says why the others cannot: their lines cannot be read, no replay of
/// them exists, or the trace does not show how their descriptor was opened. Options of strace that help: `-f -y -ttt -T -o FILE`.
#[derive(Debug, Args)]
pub(crate) struct CompileArgs {
    /// strace's output, plain or gzipped; several files are one trace, as `strace -ff` writes them
    #[arg(required = true)]
    pub(crate) trace: Vec<PathBuf>,
    /// The tree before the run, as `weir-trace record` lists it
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// The directory to which relative paths in the snapshot belong
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) snapshot_root: PathBuf,
    /// What the tracer added between two calls, to be taken off think times [default: what the trace says]
    #[arg(long, value_name = "NANOSECONDS")]
    pub(crate) tracer_ns: Option<u64>,
    /// Switch a rule off, in every order that has it; repeat it for several
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub(crate) without: Vec<Rule>,
    /// Put every action after the one before it: one action at a time
    #[arg(long)]
    pub(crate) program_sequence: bool,
    /// The share of the trace's calls that must be of use
    #[arg(long, value_name = "PERCENT", default_value_t = CompileSettings::default().used_percent_min,
        value_parser = clap::value_parser!(u8).range(0..=100))]
    pub(crate) min_used: u8,
    /// The compiled trace to write
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
}

fn rule(name: &str) -> Result<Rule, String> {
    let known = || Rule::SWITCHABLE.map(Rule::switch_name).join(", ");
    Rule::from_switch_name(name).ok_or_else(|| format!("no such rule; the rules are {}", known()))
}

/// Say what a compiled trace holds, what of its trace could not be used, and what each order enforces
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// A compiled trace
    pub(crate) compiled: PathBuf,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Replay a compiled trace below a directory, or several at the same time
///
/// Several compiled traces are replayed together: their initial trees are merged in one target, each has threads of its
/// own, and one clock runs for all. What one needs to be another thing than another does is named before anything is done. There is
/// a report for the whole, and one for each.
///
/// Builds the initial tree in a new directory below DIR and replays in a process that sees nothing else: with root in a table
/// of mounts of its own, without in a user namespace. The directory goes with the replay, also with one that is killed; what nobody
/// was left to remove, the next replay below DIR removes. Unless --no-single is given, results that differ are looked up in a
/// second replay with one thread: what differs there too is not due to the order.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 done, whatever differs; 1 failed; 2 the command line makes no sense;
3 with --strict, results differ because of the order; 4 the target cannot hold the tree or confine the replay
(full, read-only, not allowed); 5 it cannot go on: nothing moved for --stall seconds, or threads could not be started.")]
pub(crate) struct ReplayArgs {
    /// Compiled traces
    #[arg(required = true)]
    pub(crate) compiled: Vec<PathBuf>,
    /// Where to replay: a directory on the file system in question
    #[arg(long, value_name = "DIR")]
    pub(crate) on: PathBuf,
    /// What orders the threads
    #[arg(long, value_enum, default_value_t = OrderArg::Weir)]
    pub(crate) order: OrderArg,
    /// Keep the program's own pauses instead of replaying as fast as possible
    #[arg(long)]
    pub(crate) natural: bool,
    /// Multiply the pauses; implies --natural
    #[arg(long, value_name = "FACTOR")]
    pub(crate) scale: Option<f64>,
    /// What is in memory when the replay begins; `cold` empties all caches of the machine if root asks
    #[arg(long, value_enum, default_value_t = CacheArg::AsBuilt)]
    pub(crate) cache: CacheArg,
    /// With --cache cold: only what lies below DIR, as the traced program named it, is not in memory; the rest of the tree,
    /// such as the program's libraries, is
    #[arg(long, value_name = "DIR")]
    pub(crate) cold_only: Option<PathBuf>,
    /// What fsync and fdatasync mean: durable, as here; written to the device but not flushed, as on some other platforms; or
    /// nothing
    #[arg(long, value_enum, default_value_t = FsyncArg::Durable)]
    pub(crate) fsync: FsyncArg,
    /// Replay so often; the report is the median run, with the interval of all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write a time line of the median run that Perfetto and Chrome open
    #[arg(long, value_name = "FILE")]
    pub(crate) time_line: Option<PathBuf>,
    /// Keep the tree as DIR/weir-replay-tree/tree and, if a replay has made it, restore only what the last one changed
    #[arg(long)]
    pub(crate) reuse: bool,
    /// Do not look up differences in a second replay
    #[arg(long)]
    pub(crate) no_single: bool,
    /// Fail if a result differs because of the order
    #[arg(long)]
    pub(crate) strict: bool,
    /// Leave the replayed tree behind, as DIR/weir-replay-kept-*/tree
    #[arg(long)]
    pub(crate) keep: bool,
    /// Give up after that many seconds in which nothing moves
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) stall: u64,
    /// As one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// Only what does not commute
    Weir,
    /// The rules of resource-oriented ordering, with sequential files
    Root,
    /// Every call in the order of the trace
    Temporal,
    /// One thread makes all calls
    Single,
    /// Nothing but each thread's own order
    Unconstrained,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum FsyncArg {
    /// On return, the bytes survive a loss of power
    Durable,
    /// On return, the device has the bytes
    Device,
    /// It returns at once
    None,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheArg {
    /// What building the tree left
    AsBuilt,
    /// Nothing
    Cold,
    /// The tree's files, as far as there is space
    Warm,
}

/// Put reports of `weir-trace replay --json` side by side
///
/// All are compared with the first. A star marks what differs by more than the noise: 95 % intervals that do not touch, which
/// needs repeated runs (`replay --runs`).
#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Reports
    #[arg(required = true, num_args = 2.., value_name = "REPORT")]
    pub(crate) reports: Vec<PathBuf>,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show an action and its waits in each order
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// A compiled trace
    pub(crate) compiled: PathBuf,
    /// The action's number, as reports give it
    pub(crate) action: u32,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// The directory
    pub(crate) dir: PathBuf,
}

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
/// Ends with the program's own exit code. After the run, files that the program used outside of the listed
/// trees and did not change are added to the list. A trace cannot show loads and stores through mappings, or
/// io_uring; a warning says so if the program used them.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// Where the trace goes; the list of files goes beside it, as FILE.snapshot
    #[arg(short, long, value_name = "FILE", default_value = "trace.strace")]
    pub(crate) output: PathBuf,
    /// A tree to list before the run; repeat the option for several
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub(crate) tree: Vec<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

/// Compile a trace of strace, or of macOS's dtruss, into one self-contained file
///
/// Fails if less than half of the trace's calls can be used, and gives the reasons for the others: the line
/// cannot be read, no replay of the call exists, or the trace does not show how the descriptor was opened.
/// These options of strace help: `-f -y -ttt -T -o FILE`; of dtruss: `-a`. The trace itself shows which of
/// them wrote it.
#[derive(Debug, Args)]
pub(crate) struct CompileArgs {
    /// The output of strace or dtruss, plain or gzipped; several files are one trace, as `strace -ff` writes
    /// them
    #[arg(required = true)]
    pub(crate) trace: Vec<PathBuf>,
    /// The tree before the run, as `weir-trace record` lists it
    #[arg(long, value_name = "FILE")]
    pub(crate) snapshot: Option<PathBuf>,
    /// The directory to which relative paths in the snapshot belong
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) snapshot_root: PathBuf,
    /// Subtract this time of the tracer between two calls from think times [default: the time that the trace
    /// notes]
    #[arg(long, value_name = "NANOSECONDS")]
    pub(crate) tracer_ns: Option<u64>,
    /// Switch a rule off in every order that has it; repeat the option for several
    #[arg(long, value_name = "RULE", value_parser = rule)]
    pub(crate) without: Vec<Rule>,
    /// Put every action after the one before it: one action at a time
    #[arg(long)]
    pub(crate) program_sequence: bool,
    /// The share of the trace's calls that must be usable
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

/// Show the contents of a compiled trace, the unused calls of its trace, and the edges of each order
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// A compiled trace
    pub(crate) compiled: PathBuf,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

/// Replay a compiled trace below a directory, or several at the same time
///
/// Several compiled traces are replayed together: their initial trees are merged in one target, each has its
/// own threads, and one clock runs for all. If two need a file to be of different kinds, the replay names the
/// file and does nothing. There is a report for the whole, and one for each.
///
/// Ctrl-C stops the replay. The report is then about the actions until then, and says so. A second Ctrl-C ends
/// it without a report.
///
/// Builds the initial tree in a new directory below DIR and replays in a process that sees nothing else: with
/// root in a mount namespace, without root in a user namespace. The directory is removed after the replay,
/// even if the replay is killed. If no process was left to remove it, the next replay below DIR does. Unless
/// --no-single is given, results that differ are checked in a second replay with one thread: the order is not
/// the cause of differences that occur there, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Exit codes: 0 done, whatever differs; 1 failed; 2 the command line makes no sense;
3 with --strict, results differ because of the order; 4 the target cannot hold the tree or confine the replay
(full, read-only, not allowed); 5 it cannot go on: nothing moved for --stall seconds, or threads could not be started;
130 after Ctrl-C, 143 after SIGTERM.")]
pub(crate) struct ReplayArgs {
    /// Compiled traces
    #[arg(required = true)]
    pub(crate) compiled: Vec<PathBuf>,
    /// The directory in which to replay, on the file system to test
    #[arg(long, value_name = "DIR")]
    pub(crate) on: PathBuf,
    /// The order that the threads keep
    #[arg(long, value_enum, default_value_t = OrderArg::Weir)]
    pub(crate) order: OrderArg,
    /// Keep the program's own pauses instead of replaying as fast as possible
    #[arg(long)]
    pub(crate) natural: bool,
    /// Multiply the pauses; implies --natural
    #[arg(long, value_name = "FACTOR")]
    pub(crate) scale: Option<f64>,
    /// The state of the page cache when the replay begins; `cold` empties all caches of the machine if you
    /// are root
    #[arg(long, value_enum, default_value_t = CacheArg::AsBuilt)]
    pub(crate) cache: CacheArg,
    /// With --cache cold: empty the cache only for files below DIR, as the traced program named it; other
    /// files, such as the program's libraries, are in memory
    #[arg(long, value_name = "DIR")]
    pub(crate) cold_only: Option<PathBuf>,
    /// The meaning of fsync and fdatasync: durable, as on Linux; written to the device but not flushed, as on
    /// some other platforms; or nothing
    #[arg(long, value_enum, default_value_t = FsyncArg::Durable)]
    pub(crate) fsync: FsyncArg,
    /// Replay N times; the report is about the median run, with the interval of all
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) runs: u32,
    /// Write a time line of the median run that Perfetto and Chrome open
    #[arg(long, value_name = "FILE")]
    pub(crate) time_line: Option<PathBuf>,
    /// Keep the tree as DIR/weir-replay-tree/tree. If an earlier replay has made it, restore only the files
    /// that changed
    #[arg(long)]
    pub(crate) reuse: bool,
    /// Do not check differences in a second replay
    #[arg(long)]
    pub(crate) no_single: bool,
    /// Fail if a result differs because of the order
    #[arg(long)]
    pub(crate) strict: bool,
    /// Leave the replayed tree behind, as DIR/weir-replay-kept-*/tree
    #[arg(long)]
    pub(crate) keep: bool,
    /// Give up after this many seconds without progress
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(crate) stall: u64,
    /// Print one JSON object, for scripts
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderArg {
    /// Order only calls that do not commute
    Weir,
    /// The rules of resource-oriented ordering, with sequential files
    Root,
    /// Every call in the order of the trace
    Temporal,
    /// One thread makes all calls
    Single,
    /// Keep only each thread's own order
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
    /// As building the tree left it
    AsBuilt,
    /// Empty
    Cold,
    /// Filled with the tree's files, as far as there is space
    Warm,
}

/// Put reports of `weir-trace replay --json` side by side
///
/// All reports are compared with the first. A star marks figures that differ by more than the noise: their 95
/// % intervals do not touch. That needs repeated runs (`replay --runs`).
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

//! `weir-bench front-end`: speed of weir for programs, against targets, beside a trivial file system in
//! memory and ext4.
//!
//! The peer is a null server: it stores nothing and promises nothing. Its times are those of the kernel
//! itself. The peer is the standard where the kernel's round trip decides. The file system of the disk below
//! is the standard where the daemon decides. All systems take turns, so that other load on the machine
//! affects each of them. No thread is pinned.
//!
//! While requests flow, weir keeps processors awake. The benchmark does so during the peer's turns.
//!
//! | file | contents |
//! | --- | --- |
//! | `peer` | the trivial file system |
//! | `mounted` | mounts, and resource usage of their processes |
//! | `operations`, `clients` | single operations, by one client and several |
//! | `overwrites` | overwrites of un-cached pages, on modelled devices |
//! | `tree`, `tar` | programs on trees of files; the archive of the tree |
//! | `sqlite` | transactions of SQLite |
//! | `machine` | processors kept awake or busy, and the load of other programs |
//! | `targets` | figures with bounds that they must meet |

mod clients;
mod machine;
mod mounted;
mod operations;
mod overwrites;
mod peer;
mod sqlite;
mod targets;
mod tree;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::cleanup;
use super::error::BenchError;
use super::nonblocking_writes::file_system_of;
use super::program::{check_machine, check_programs};
use super::report::BenchReport;
use super::run_args::RunSize;
use super::slow_device::work_directory;
use clients::ClientOperation;
use machine::{CpuTicks, PmQosHold};
use operations::{OperationPlan, OperationRow, add_operations};
use targets::{SpeedTarget, add_targets};

pub(super) use machine::{BusyArgs, run_busy};
pub(super) use mounted::ProcessUsage;
pub(super) use peer::{PeerArgs, run_peer};

/// Options of `weir-bench front-end`.
#[derive(Debug, Args)]
pub(super) struct FrontEndArgs {
    /// Scale: `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = RunSize::Real)]
    size: RunSize,
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
    /// Measure only these groups of rows [default: all; overwrites and tree need root].
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<RowGroup>,
    /// Rounds, with a turn for each system [default: 20 for operations, 5 for sqlite and tree, 3 for
    /// overwrites].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// Run as many busy threads of normal priority as there are processors.
    #[arg(long)]
    load: bool,
    /// Directory for all files; should be on ext4, the standard of the targets [default: $TMPDIR].
    #[arg(long, value_name = "DIR")]
    media: Option<PathBuf>,
    /// Operations: numbers of clients that work at once, each on its own files.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Operations: threads of each front end [default: as many as weir has by default].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    threads: Option<u8>,
    /// Operations: milliseconds of one turn.
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
    /// Operations: only these [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<ClientOperation>,
}

/// Rows of the report that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RowGroup {
    /// Single operations, beside the peer and the disk's file system.
    Operations,
    /// Un-cached 512 B overwrites on modelled devices.
    Overwrites,
    /// Untar, rm -rf, cold tar, cold ls -l, a cold sequential read.
    Tree,
    /// Transactions of one row.
    Sqlite,
}

impl FrontEndArgs {
    fn has(&self, group: RowGroup) -> bool {
        self.rows.is_empty() || self.rows.contains(&group)
    }

    fn rounds(&self, group: RowGroup) -> u16 {
        self.rounds.unwrap_or(match group {
            RowGroup::Operations => 20,
            RowGroup::Sqlite | RowGroup::Tree => 5,
            RowGroup::Overwrites => 3,
        })
    }
}

/// Runs the benchmark and prints its report.
pub(super) fn run_benchmark(args: &FrontEndArgs) -> Result<(), BenchError> {
    if args.has(RowGroup::Overwrites) {
        check_machine()?;
    }
    if args.has(RowGroup::Tree) {
        check_programs(&tree::PROGRAMS)?;
    }
    cleanup::install()?;
    machine::adopt_daemons()?;
    let (root, files) = work_directory(args.media.as_deref())?;
    let mut report = BenchReport::new("front-end");
    let (start, before) = (Instant::now(), CpuTicks::now()?);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let busy_threads = if args.load { processors } else { 0 };
    let busy = (busy_threads > 0).then(|| machine::keep_busy(busy_threads, &root)).transpose()?;
    // Of several mounts, one over the other, only the last is visible.
    let disk = file_system_of(&root).lines().next_back().unwrap_or_default().to_owned();
    let found = measure(args, &root, &disk)?;
    drop((busy, files));
    machine::take_in_adopted();
    let others = CpuTicks::now()?.others_since(before);
    let seconds = start.elapsed().as_secs();
    report.line(format!("files on {disk} · {seconds} s"));
    report.line(others);
    if busy_threads > 0 {
        report.line(format!("beside {busy_threads} busy threads of normal priority"));
    }
    found.notes.iter().for_each(|note| report.line(note));
    report.fact("disk", &disk);
    report.fact("busy_threads", busy_threads);
    report.fact("others", others);
    report.fact("seconds", seconds);
    report.fact("notes", &found.notes);
    add_operations(&mut report, &found.operations, disk.split(' ').next().unwrap_or_default());
    add_targets(&mut report, &found.targets);
    report.print(args.json);
    Ok(())
}

#[derive(Default)]
struct FrontEndFigures {
    operations: Vec<OperationRow>,
    targets: Vec<SpeedTarget>,
    notes: Vec<String>,
}

/// Measures the chosen groups, one after the other.
fn measure(args: &FrontEndArgs, root: &Path, disk: &str) -> Result<FrontEndFigures, BenchError> {
    let mut found = FrontEndFigures::default();
    let disk = disk.split_whitespace().next().unwrap_or("an unknown file system");
    if disk != "ext4" {
        found.notes.push(format!("everything lies on {disk}: the targets speak of ext4 (--media DIR)"));
    }
    if args.has(RowGroup::Operations) {
        if let Err(error) = PmQosHold::hold() {
            found.notes.push(format!("the peer was measured on processors that may sleep: {error}"));
        }
        found.operations = operations::measure(root, &plan(args))?;
        found.targets.extend(operations::targets(&found.operations));
    }
    if args.has(RowGroup::Overwrites) {
        let (targets, notes) = overwrites::measure(root, args.size, args.rounds(RowGroup::Overwrites))?;
        found.targets.extend(targets);
        found.notes.extend(notes);
    }
    if args.has(RowGroup::Tree) {
        found.targets.extend(tree::measure(root, args.size, args.rounds(RowGroup::Tree), disk)?);
    }
    if args.has(RowGroup::Sqlite) {
        match sqlite::missing() {
            Some(why) => found.notes.push(why),
            None => {
                found.targets.extend(sqlite::measure(root, args.size, args.rounds(RowGroup::Sqlite), disk)?)
            }
        }
    }
    Ok(found)
}

fn plan(args: &FrontEndArgs) -> OperationPlan<'_> {
    let chosen = |operation: &ClientOperation| args.only.is_empty() || args.only.contains(operation);
    OperationPlan {
        operations: ClientOperation::ALL.into_iter().filter(chosen).collect(),
        clients: &args.clients,
        threads: args.threads,
        rounds: args.rounds(RowGroup::Operations),
        slice: Duration::from_millis(args.slice),
    }
}

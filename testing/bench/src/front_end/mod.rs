//! `weir-bench front-end`: weir as programs see it, beside a trivial file system in memory and beside ext4, against targets.
//!
//! The peer, a null server, promises nothing and keeps nothing, so what it takes is what the kernel costs by itself:
//! where the kernel's round trip decides, it is the floor. Where the daemon decides, the file system of the disk below is the
//! standard. All take turns, so that whatever else the machine does hits each of them; no thread is put anywhere.
//!
//! While requests flow, weir keeps processors from going to sleep; the benchmark does it while the peer has its turn.
//!
//! | file | what it is |
//! | --- | --- |
//! | `peer` | the trivial file system |
//! | `mounted` | mounts, and what their processes used of the machine |
//! | `operations`, `load` | single operations, by one client and several |
//! | `overwrites` | of un-cached pages, on modelled devices |
//! | `tree`, `tar` | programs on trees of files; the tree |
//! | `sqlite` | transactions |
//! | `machine` | kept awake, kept busy, and how much of it others used |
//! | `report` | figures and targets as text and JSON |

mod load;
mod machine;
mod mounted;
mod operations;
mod overwrites;
mod peer;
mod report;
mod sqlite;
mod tar;
mod tree;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};

use super::error::BenchError;
use super::nonblocking_writes::{Size, file_system_of};
use super::program::{check_machine, check_programs};
use super::slow_device::remove_on_drop;
use super::undo;
use load::Operation;
use machine::{Awake, Ticks};
use operations::{Plan, Row};
use report::{Report, Reported, Target};

pub(super) use machine::{BusyArgs, run_busy};
pub(super) use mounted::Used;
pub(super) use peer::{PeerArgs, run_peer};

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct FrontEndArgs {
    /// `small` only shows that everything works; `real` gives figures.
    #[arg(long, value_enum, default_value_t = Size::Real)]
    size: Size,
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
    /// Only these groups of rows [default: all; overwrites and tree need root].
    #[arg(long, value_enum, value_delimiter = ',')]
    rows: Vec<Group>,
    /// How often all take their turn [default: 20 for operations, 5 for sqlite and tree, 3 for overwrites].
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: Option<u16>,
    /// The same beside as many busy threads of normal priority as there are processors.
    #[arg(long)]
    load: bool,
    /// Where everything lies; ext4 if it is to be the standard [default: $TMPDIR].
    #[arg(long, value_name = "DIR")]
    media: Option<PathBuf>,
    /// Operations: how many clients work at once, each on files of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Operations: threads of each front end [default: weir's].
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=16))]
    threads: Option<u8>,
    /// Operations: milliseconds of one turn.
    #[arg(long, value_name = "MS", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
    /// Operations: only these [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Operation>,
}

/// Rows of the report that are measured together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
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
    fn has(&self, group: Group) -> bool {
        self.rows.is_empty() || self.rows.contains(&group)
    }

    fn rounds(&self, group: Group) -> u16 {
        self.rounds.unwrap_or(match group {
            Group::Operations => 20,
            Group::Sqlite | Group::Tree => 5,
            Group::Overwrites => 3,
        })
    }
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &FrontEndArgs) -> Result<(), BenchError> {
    if args.has(Group::Overwrites) {
        check_machine()?;
    }
    if args.has(Group::Tree) {
        check_programs(&tree::PROGRAMS)?;
    }
    undo::install()?;
    machine::adopt_daemons()?;
    let parent = args.media.clone().unwrap_or_else(std::env::temp_dir);
    let root = parent.join(format!("weir-bench-{}", std::process::id()));
    let files = remove_on_drop(&root);
    fs::create_dir(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let (start, before) = (Instant::now(), Ticks::now()?);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let busy_threads = if args.load { processors } else { 0 };
    let busy = (busy_threads > 0).then(|| machine::keep_busy(busy_threads, &root)).transpose()?;
    // Where several are mounted, one over the other, only the last is to be seen.
    let disk = file_system_of(&root).lines().next_back().unwrap_or_default().to_owned();
    let found = measure(args, &root, &disk)?;
    drop((busy, files));
    machine::take_in_adopted();
    let report = Report {
        benchmark: "front-end",
        version: env!("CARGO_PKG_VERSION"),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        processors,
        disk: disk.split_whitespace().collect::<Vec<_>>().join(" "),
        busy_threads,
        others: Ticks::now()?.others_since(before),
        seconds: start.elapsed().as_secs(),
        operations: found.operations.into_iter().map(Reported::from).collect(),
        targets: found.targets,
        notes: found.notes,
    };
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("names and numbers"));
    } else {
        print!("{}", report::text(&report));
    }
    Ok(())
}

#[derive(Default)]
struct Found {
    operations: Vec<Row>,
    targets: Vec<Target>,
    notes: Vec<String>,
}

/// Measures what is asked for, one group after the other.
fn measure(args: &FrontEndArgs, root: &Path, disk: &str) -> Result<Found, BenchError> {
    let mut found = Found::default();
    let disk = disk.split_whitespace().next().unwrap_or("an unknown file system");
    if disk != "ext4" {
        found.notes.push(format!("everything lies on {disk}: the targets speak of ext4 (--media DIR)"));
    }
    if args.has(Group::Operations) {
        if let Err(error) = Awake::hold() {
            found.notes.push(format!("the peer was measured on processors that may sleep: {error}"));
        }
        found.operations = operations::measure(root, &plan(args))?;
        found.targets.extend(operations::targets(&found.operations));
    }
    if args.has(Group::Overwrites) {
        let (targets, notes) = overwrites::measure(root, args.size, args.rounds(Group::Overwrites))?;
        found.targets.extend(targets);
        found.notes.extend(notes);
    }
    if args.has(Group::Tree) {
        found.targets.extend(tree::measure(root, args.size, args.rounds(Group::Tree), disk)?);
    }
    if args.has(Group::Sqlite) {
        match sqlite::missing() {
            Some(why) => found.notes.push(why),
            None => found.targets.extend(sqlite::measure(root, args.size, args.rounds(Group::Sqlite), disk)?),
        }
    }
    Ok(found)
}

fn plan(args: &FrontEndArgs) -> Plan<'_> {
    let chosen = |operation: &Operation| args.only.is_empty() || args.only.contains(operation);
    Plan {
        operations: Operation::ALL.into_iter().filter(chosen).collect(),
        clients: &args.clients,
        threads: args.threads,
        rounds: args.rounds(Group::Operations),
        slice: Duration::from_millis(args.slice),
    }
}

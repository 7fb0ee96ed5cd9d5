//! `weir bench door`: what an operation costs through weir's door, beside a trivial file system in memory.
//!
//! The peer promises nothing and keeps nothing, so what it takes is what the kernel's door costs by itself. Both are
//! processes of their own, mounted at the same time with the same settings, and take turns: in each round each
//! operation runs for a slice on one and then on the other.
//!
//! Each client and each thread at a door has a processor: the first one the first, and so on. So with one client a
//! request and its reply are two switches of threads on one processor. Left alone, the scheduler sometimes spreads them
//! over two, where each switch wakes a processor that has gone to sleep, which takes ten times as long and drowns what
//! is measured. What weir does in the background runs where the scheduler puts it.
//!
//! | file | what it is |
//! | --- | --- |
//! | `peer` | the trivial file system |
//! | `mounted` | the two mounts, and what their processes used of the machine |
//! | `load` | the operations |
//! | `processors` | on which processors threads run |
//! | `report` | figures as text and JSON |

mod load;
mod mounted;
mod peer;
mod processors;
mod report;

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::error::BenchError;
use super::slow_device::remove_on_drop;
use super::undo;
use crate::cli::KernelCache;
use load::{Done, Load, Operation};
use mounted::{Mount, Used};
use report::{Cell, Report, Row};

pub(super) use peer::{PeerArgs, run_peer};

/// What to measure.
#[derive(Debug, Args)]
pub(super) struct DoorArgs {
    /// Write the result as JSON.
    #[arg(long)]
    json: bool,
    /// How many clients work at once, each on files of its own; several counts are measured one after the other.
    #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u8).range(1..=64))]
    clients: Vec<u8>,
    /// Threads at each door.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=16))]
    threads: u8,
    /// How often both take their turn.
    #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Milliseconds of one turn.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    slice: u64,
    /// Only these operations [default: all].
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Operation>,
    /// Where weir keeps its store and buffer [default: beside the mounts, below $TMPDIR].
    #[arg(long, value_name = "DIR")]
    media: Option<PathBuf>,
}

/// Runs the benchmark and prints what it found.
pub(super) fn run_benchmark(args: &DoorArgs) -> Result<(), BenchError> {
    undo::install()?;
    let root = std::env::temp_dir().join(format!("weir-bench-{}", std::process::id()));
    let _files = remove_on_drop(&root);
    fs::create_dir_all(&root).map_err(|error| BenchError::io("cannot create", &root, error))?;
    let media = args.media.as_ref().unwrap_or(&root).join(format!("weir-door-{}", std::process::id()));
    let _media = remove_on_drop(&media);

    let mut rows = Vec::new();
    // Data and names go through the cache that a mount has by default; what the kernel would answer from its memory is
    // measured with mounts that it may not remember anything of.
    for cache in [KernelCache::Full, KernelCache::None] {
        let chosen = |operation: &Operation| args.only.is_empty() || args.only.contains(operation);
        let operations: Vec<Operation> =
            Operation::ALL.into_iter().filter(|one| one.kernel_cache() == cache).filter(chosen).collect();
        if operations.is_empty() {
            continue;
        }
        let peer = Mount::peer(&root.join("peer"), args.threads, cache)?;
        let weir = Mount::weir(&media.join(cache.name()), &root.join("weir"), args.threads, cache)?;
        let clients = args.clients.iter().copied().max().unwrap_or(1);
        let systems = [Prepared::new(peer, clients)?, Prepared::new(weir, clients)?];
        rows.extend(measure(args, &operations, &systems)?);
    }
    let report = Report::new(args.threads, args.rounds, args.slice, rows);
    if args.json {
        println!("{}", serde_json::to_string_pretty(&report).expect("names and numbers"));
    } else {
        print!("{}", report::text(&report));
    }
    Ok(())
}

/// A mount with the clients' files on it.
struct Prepared {
    mount: Mount,
    loads: Vec<Load>,
}

impl Prepared {
    fn new(mount: Mount, clients: u8) -> Result<Prepared, BenchError> {
        let load = |client: u8| Load::prepare(&mount.directory().join(format!("client-{client}")), client);
        let loads = (0..clients).map(load).collect::<Result<_, _>>()?;
        processors::put_door(mount.process())?;
        Ok(Prepared { mount, loads })
    }

    fn turn(&self, operation: Operation, clients: u8, slice: Duration) -> Result<Cell, BenchError> {
        let before = Used::by(self.mount.process())?;
        let done: Done = load::run(&self.loads[..usize::from(clients)], operation, slice)?;
        let used = Used::by(self.mount.process())?.since(&before);
        Ok(Cell::new(done, clients, used))
    }
}

fn measure(
    args: &DoorArgs,
    operations: &[Operation],
    [peer, weir]: &[Prepared; 2],
) -> Result<Vec<Row>, BenchError> {
    let slice = Duration::from_millis(args.slice);
    let mut rows: Vec<Row> = operations
        .iter()
        .flat_map(|&operation| args.clients.iter().map(move |&clients| Row::new(operation, clients)))
        .collect();
    for round in 0..args.rounds {
        for row in &mut rows {
            let (operation, clients) = (row.operation, row.clients);
            let (peer, weir) = if round % 2 == 0 {
                let peer = peer.turn(operation, clients, slice)?;
                (peer, weir.turn(operation, clients, slice)?)
            } else {
                let weir = weir.turn(operation, clients, slice)?;
                (peer.turn(operation, clients, slice)?, weir)
            };
            row.add(peer, weir);
        }
    }
    Ok(rows)
}

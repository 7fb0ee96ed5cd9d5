//! Single operations on peer, weir and the disk's own file system, in turns.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::super::error::BenchError;
use super::load::{self, Done, Load, Operation};
use super::machine::Awake;
use super::mounted::KernelCache;
use super::mounted::{self, Mount, Used};
use super::report::{Bound, Spread, Target};

/// What to measure.
pub(super) struct Plan<'a> {
    pub(super) operations: Vec<Operation>,
    pub(super) clients: &'a [u8],
    /// In each front end, if not as many as weir has by default.
    pub(super) threads: Option<u8>,
    pub(super) rounds: u16,
    pub(super) slice: Duration,
}

/// One turn on one system.
#[derive(Debug, Clone, Copy, Serialize)]
struct Cell {
    /// Of the middle operation, in microseconds.
    p50_micros: f64,
    /// Operations of all clients in a second.
    per_s: f64,
    /// CPU time of the system's process for one operation, in microseconds.
    cpu_micros: f64,
    /// How often a thread that is not the front end's went to sleep, per operation.
    sleeps: f64,
}

impl Cell {
    fn new(done: Done, used: Used) -> Cell {
        let count = done.operations.max(1) as f64;
        Cell {
            p50_micros: done.p50.as_secs_f64() * 1e6,
            per_s: done.operations as f64 / done.elapsed.as_secs_f64().max(1e-9),
            cpu_micros: used.cpu.as_secs_f64() * 1e6 / count,
            sleeps: used.sleeps_behind_the_front_end as f64 / count,
        }
    }
}

/// One operation by so many clients at once, in every round.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) operation: Operation,
    pub(super) clients: u8,
    peer: Vec<Cell>,
    weir: Vec<Cell>,
    /// Empty where the disk's file system does not have the operation.
    disk: Vec<Cell>,
}

/// What a row comes to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Summary {
    pub(super) peer_micros: Spread,
    pub(super) weir_micros: Spread,
    pub(super) disk_micros: Option<Spread>,
    /// weir's p50 over the peer's, round by round.
    pub(super) ratio: Spread,
    pub(super) peer_per_s: Spread,
    pub(super) weir_per_s: Spread,
    pub(super) disk_per_s: Option<Spread>,
    pub(super) peer_cpu_micros: f64,
    pub(super) weir_cpu_micros: f64,
    pub(super) weir_sleeps: f64,
}

fn all(cells: &[Cell], of: fn(&Cell) -> f64) -> Vec<f64> {
    cells.iter().map(of).collect()
}

impl Row {
    fn new(operation: Operation, clients: u8) -> Row {
        Row { operation, clients, peer: Vec::new(), weir: Vec::new(), disk: Vec::new() }
    }

    pub(super) fn summary(&self) -> Summary {
        let spread = |cells: &[Cell], of: fn(&Cell) -> f64| Spread::of(&all(cells, of));
        let disk = |of| (!self.disk.is_empty()).then(|| spread(&self.disk, of));
        let p50: fn(&Cell) -> f64 = |cell| cell.p50_micros;
        let per_s: fn(&Cell) -> f64 = |cell| cell.per_s;
        let sleeps = all(&self.weir, |cell| cell.sleeps);
        let rounds = self.peer.iter().zip(&self.weir);
        let ratios: Vec<f64> = rounds.map(|(peer, weir)| weir.p50_micros / peer.p50_micros).collect();
        Summary {
            peer_micros: spread(&self.peer, p50),
            weir_micros: spread(&self.weir, p50),
            disk_micros: disk(p50),
            ratio: Spread::of(&ratios),
            peer_per_s: spread(&self.peer, per_s),
            weir_per_s: spread(&self.weir, per_s),
            disk_per_s: disk(per_s),
            peer_cpu_micros: spread(&self.peer, |cell| cell.cpu_micros).median,
            weir_cpu_micros: spread(&self.weir, |cell| cell.cpu_micros).median,
            // Rare: their median would be 0.
            weir_sleeps: sleeps.iter().sum::<f64>() / sleeps.len().max(1) as f64,
        }
    }
}

/// The targets among what was measured.
pub(super) fn targets(rows: &[Row]) -> Vec<Target> {
    let row = |operation, clients| {
        rows.iter().filter(move |row| (row.operation, row.clients) == (operation, clients))
    };
    let mut targets = Vec::new();
    for row in row(Operation::Write512, 8) {
        let rate = all(&row.weir, |cell| cell.per_s);
        targets.push(Target::own("512 B writes, 8 clients", "/s", &rate, Bound::AtLeast(80_000.0)));
    }
    for (operation, name, micros_max, ratio_max) in [
        (Operation::Write512, "512 B write, one client, p50", 20.0, 1.3),
        (Operation::CreateUnlink, "create + unlink, one client, p50", 60.0, 1.5),
    ] {
        for row in row(operation, 1) {
            let [weir, peer] = [&row.weir, &row.peer].map(|cells| all(cells, |cell| cell.p50_micros));
            targets.push(Target::own(name, "us", &weir, Bound::AtMost(micros_max)));
            let over = format!("{name}, over the peer's");
            targets.push(Target::ratio(over, "us", &weir, &peer, Bound::AtMost(ratio_max)));
        }
    }
    targets
}

/// Measures everything, below `root`.
pub(super) fn measure(root: &Path, plan: &Plan<'_>) -> Result<Vec<Row>, BenchError> {
    let mut rows = Vec::new();
    // Data and names go through the cache that a mount has by default; what the kernel would answer from its memory is
    // measured with mounts that it may not remember anything of.
    for cache in [KernelCache::Full, KernelCache::None] {
        let operations = plan.operations.iter().copied().filter(|one| one.kernel_cache() == cache);
        let turns =
            operations.flat_map(|one| plan.clients.iter().map(move |&clients| Row::new(one, clients)));
        let turns: Vec<Row> = turns.collect();
        if !turns.is_empty() {
            rows.extend(Systems::set_up(root, plan, cache)?.take_turns(turns, plan)?);
        }
    }
    Ok(rows)
}

/// The three that take turns.
struct Systems {
    peer: Prepared,
    weir: Prepared,
    disk: Prepared,
}

impl Systems {
    fn set_up(root: &Path, plan: &Plan<'_>, cache: KernelCache) -> Result<Systems, BenchError> {
        let place = |name: &str| root.join(format!("{name}-{}", cache.name()));
        let clients = plan.clients.iter().copied().max().unwrap_or(1);
        mounted::format(&place("media"))?;
        let weir = Mount::weir(&place("media"), &place("weir"), plan.threads, cache)?;
        let peer = Mount::peer(&place("peer"), weir.threads()?, cache)?;
        Ok(Systems {
            peer: Prepared::new(&place("peer"), clients, Some(peer))?,
            weir: Prepared::new(&place("weir"), clients, Some(weir))?,
            disk: Prepared::new(&place("disk"), clients, None)?,
        })
    }

    fn take_turns(&self, mut rows: Vec<Row>, plan: &Plan<'_>) -> Result<Vec<Row>, BenchError> {
        for round in 0..plan.rounds {
            for row in &mut rows {
                let turn = |one: &Prepared| one.turn(row.operation, row.clients, plan.slice);
                // Everybody is the first as often as the others.
                for number in 0..3 {
                    match (number + round) % 3 {
                        // weir's mount keeps the processors awake by itself, for a moment longer than its turn.
                        0 => {
                            let _awake = Awake::hold();
                            row.peer.push(turn(&self.peer)?);
                        }
                        1 => row.weir.push(turn(&self.weir)?),
                        _ => row.disk.extend(if_it_can(turn(&self.disk))?),
                    }
                }
            }
        }
        Ok(rows)
    }
}

/// `None` where a file system cannot do it: reads of 512 B past the kernel's memory on a disk of larger blocks, or in memory.
fn if_it_can(turn: Result<Cell, BenchError>) -> Result<Option<Cell>, BenchError> {
    match turn {
        Err(BenchError::Io { source, .. }) if source.kind() == std::io::ErrorKind::InvalidInput => Ok(None),
        turn => turn.map(Some),
    }
}

/// The clients' files on a mount, or in a directory.
struct Prepared {
    loads: Vec<Load>,
    mount: Option<Mount>,
}

impl Prepared {
    fn new(directory: &Path, clients: u8, mount: Option<Mount>) -> Result<Prepared, BenchError> {
        let load = |client: u8| Load::prepare(&directory.join(format!("client-{client}")), client);
        Ok(Prepared { loads: (0..clients).map(load).collect::<Result<_, _>>()?, mount })
    }

    fn turn(&self, operation: Operation, clients: u8, slice: Duration) -> Result<Cell, BenchError> {
        let used = || self.mount.as_ref().map_or(Ok(Used::default()), |mount| Used::by(mount.process()));
        let before = used()?;
        let done = load::run(&self.loads[..usize::from(clients)], operation, slice)?;
        Ok(Cell::new(done, used()?.since(&before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(p50: u64, operations: u64) -> Cell {
        let elapsed = Duration::from_millis(10);
        let done = Done { operations, elapsed, p50: Duration::from_micros(p50) };
        let cpu = Duration::from_micros(operations * 3);
        Cell::new(done, Used { cpu, sleeps_behind_the_front_end: 10 })
    }

    #[test]
    fn a_turn_tells_its_rate_and_what_one_operation_cost() {
        let cell = cell(4, 1000);
        assert!((cell.p50_micros - 4.0).abs() < 1e-9 && (cell.per_s - 100_000.0).abs() < 1e-6, "{cell:?}");
        assert!((cell.cpu_micros - 3.0).abs() < 1e-9 && (cell.sleeps - 0.01).abs() < 1e-9, "{cell:?}");
    }

    #[test]
    fn a_row_compares_round_by_round_and_has_no_figure_where_the_disk_cannot() {
        let mut row = Row::new(Operation::Read512, 1);
        // The machine was slow in the last round.
        for (peer, weir) in [(10, 12), (10, 13), (40, 44)] {
            row.peer.push(cell(peer, 1000));
            row.weir.push(cell(weir, 900));
        }
        let of = row.summary();
        assert!((of.ratio.median - 1.2).abs() < 1e-9, "{of:?}");
        assert!((of.weir_micros.median - 13.0).abs() < 1e-9 && of.disk_micros.is_none(), "{of:?}");
    }

    #[test]
    fn targets_speak_of_writes_and_names_by_one_client_and_of_writes_by_eight() {
        let row = |operation, clients| {
            let mut row = Row::new(operation, clients);
            row.peer.push(cell(10, 1000));
            row.weir.push(cell(12, 1000));
            row
        };
        let rows = [Operation::Write512, Operation::Fstat, Operation::CreateUnlink]
            .map(|operation| [1, 2, 8].map(|clients| row(operation, clients)))
            .concat();
        assert_eq!(targets(&rows).len(), 2 + 2 + 1);
        assert_eq!(targets(&rows[..1]).len(), 2, "only what was measured");
    }

    #[test]
    fn what_a_file_system_cannot_do_has_no_figure_and_other_failures_end_the_run() {
        let failed = |kind: std::io::ErrorKind| {
            if_it_can(Err(BenchError::io("cannot work in", "/", std::io::Error::from(kind))))
        };
        assert!(failed(std::io::ErrorKind::InvalidInput).is_ok_and(|cell| cell.is_none()));
        assert!(failed(std::io::ErrorKind::StorageFull).is_err());
    }
}

//! Single operations on peer, weir and the disk's own file system, in turns.

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use super::super::error::BenchError;
use super::super::quantile::{self, RoundSpread};
use super::super::report::{BenchReport, ReportCell, ReportTable};
use super::clients::{self, ClientFiles, ClientOperation, TurnResult};
use super::machine::PmQosHold;
use super::mounted::KernelCacheMode;
use super::mounted::{self, FrontEndMount, ProcessUsage};
use super::targets::{SpeedTarget, TargetBound};

/// Operations, clients and rounds to measure.
pub(super) struct OperationPlan<'a> {
    pub(super) operations: Vec<ClientOperation>,
    pub(super) clients: &'a [u8],
    /// Threads of each front end; `None`: weir's default.
    pub(super) threads: Option<u8>,
    pub(super) rounds: u16,
    pub(super) slice: Duration,
}

/// Figures of one turn on one system.
#[derive(Debug, Clone, Copy, Serialize)]
struct TurnFigures {
    /// Median latency of an operation, in microseconds.
    p50_micros: f64,
    /// Operations of all clients in a second.
    per_s: f64,
    /// CPU time of the server process per operation, in microseconds.
    cpu_micros: f64,
    /// Sleeps of threads other than the front end's, per operation.
    sleeps: f64,
}

impl TurnFigures {
    fn new(done: TurnResult, used: ProcessUsage) -> TurnFigures {
        let count = done.operations.max(1) as f64;
        TurnFigures {
            p50_micros: done.p50.as_secs_f64() * 1e6,
            per_s: done.operations as f64 / done.elapsed.as_secs_f64().max(1e-9),
            cpu_micros: used.cpu.as_secs_f64() * 1e6 / count,
            sleeps: used.sleeps_behind_the_front_end as f64 / count,
        }
    }
}

/// One operation by `clients` clients at once, with the figures of all rounds.
#[derive(Debug, Clone)]
pub(super) struct OperationRow {
    operation: ClientOperation,
    clients: u8,
    peer: Vec<TurnFigures>,
    weir: Vec<TurnFigures>,
    /// Empty if the disk's file system does not support the operation.
    disk: Vec<TurnFigures>,
}

fn all(cells: &[TurnFigures], of: fn(&TurnFigures) -> f64) -> Vec<f64> {
    cells.iter().map(of).collect()
}

impl OperationRow {
    fn new(operation: ClientOperation, clients: u8) -> OperationRow {
        OperationRow { operation, clients, peer: Vec::new(), weir: Vec::new(), disk: Vec::new() }
    }

    /// weir's p50 over the peer's, round by round.
    fn ratios(&self) -> Vec<f64> {
        self.peer.iter().zip(&self.weir).map(|(peer, weir)| weir.p50_micros / peer.p50_micros).collect()
    }
}

/// Adds a table of the rows; `disk` is the file system of the disk.
pub(super) fn add_operations(report: &mut BenchReport, rows: &[OperationRow], disk: &str) {
    if !rows.is_empty() {
        report.line(
            "microseconds of the middle operation (p50), operations/s of all clients, microseconds of the process's CPU; medians",
        );
    }
    let (disk_us, disk_per_s) = (format!("{disk} us"), format!("{disk} /s"));
    let mut table = ReportTable::default();
    for row in rows {
        // The disk has no figures of an operation that its file system cannot do.
        let median = |turns: &[TurnFigures], of: fn(&TurnFigures) -> f64| {
            (!turns.is_empty()).then(|| ReportCell::median(RoundSpread::of(&all(turns, of))))
        };
        let p50 = |turns: &[TurnFigures]| median(turns, |turn| turn.p50_micros).into();
        let per_s = |turns: &[TurnFigures]| median(turns, |turn| turn.per_s).into();
        let cpu = |turns: &[TurnFigures]| quantile::median(&all(turns, |turn| turn.cpu_micros)).into();
        // A mean, because sleeps are rare and their median would be 0.
        let sleeps = all(&row.weir, |turn| turn.sleeps).iter().sum::<f64>() / row.weir.len().max(1) as f64;
        table.row([
            ("operation", "operation", row.operation.name().into()),
            ("clients", "clients", u64::from(row.clients).into()),
            ("summary.peer_micros", "peer us", p50(&row.peer)),
            ("summary.weir_micros", "weir us", p50(&row.weir)),
            ("summary.disk_micros", &disk_us, p50(&row.disk)),
            ("summary.ratio", "weir/peer (quartiles)", RoundSpread::of(&row.ratios()).into()),
            ("summary.peer_per_s", "peer /s", per_s(&row.peer)),
            ("summary.weir_per_s", "weir /s", per_s(&row.weir)),
            ("summary.disk_per_s", &disk_per_s, per_s(&row.disk)),
            ("summary.peer_cpu_micros", "peer CPU", cpu(&row.peer)),
            ("summary.weir_cpu_micros", "weir CPU", cpu(&row.weir)),
            ("summary.weir_sleeps", "weir sleeps", sleeps.into()),
            ("peer", "", ReportCell::json(&row.peer)),
            ("weir", "", ReportCell::json(&row.weir)),
            ("disk", "", ReportCell::json(&row.disk)),
        ]);
    }
    report.table("operations", &table);
}

/// Targets of the rows that have one.
pub(super) fn targets(rows: &[OperationRow]) -> Vec<SpeedTarget> {
    let row = |operation, clients| {
        rows.iter().filter(move |row| (row.operation, row.clients) == (operation, clients))
    };
    let mut targets = Vec::new();
    for row in row(ClientOperation::Write512, 8) {
        let rate = all(&row.weir, |cell| cell.per_s);
        targets.push(SpeedTarget::own(
            "512 B writes, 8 clients",
            "/s",
            &rate,
            TargetBound::AtLeast(80_000.0),
        ));
    }
    for (operation, name, micros_max, ratio_max) in [
        (ClientOperation::Write512, "512 B write, one client, p50", 20.0, 1.3),
        (ClientOperation::CreateUnlink, "create + unlink, one client, p50", 60.0, 1.5),
    ] {
        for row in row(operation, 1) {
            let [weir, peer] = [&row.weir, &row.peer].map(|cells| all(cells, |cell| cell.p50_micros));
            targets.push(SpeedTarget::own(name, "us", &weir, TargetBound::AtMost(micros_max)));
            let over = format!("{name}, over the peer's");
            targets.push(SpeedTarget::ratio(over, "us", &weir, &peer, TargetBound::AtMost(ratio_max)));
        }
    }
    targets
}

/// Measures everything, below `root`.
pub(super) fn measure(root: &Path, plan: &OperationPlan<'_>) -> Result<Vec<OperationRow>, BenchError> {
    let mut rows = Vec::new();
    // Data and names are measured with the kernel cache that a mount has by default. Operations that the
    // kernel would answer itself are measured with that cache off.
    for cache in [KernelCacheMode::Full, KernelCacheMode::None] {
        let operations = plan.operations.iter().copied().filter(|one| one.kernel_cache() == cache);
        let turns = operations
            .flat_map(|one| plan.clients.iter().map(move |&clients| OperationRow::new(one, clients)));
        let turns: Vec<OperationRow> = turns.collect();
        if !turns.is_empty() {
            rows.extend(OperationSystems::set_up(root, plan, cache)?.take_turns(turns, plan)?);
        }
    }
    Ok(rows)
}

/// The three systems that take turns.
struct OperationSystems {
    peer: PreparedSystem,
    weir: PreparedSystem,
    disk: PreparedSystem,
}

impl OperationSystems {
    fn set_up(
        root: &Path,
        plan: &OperationPlan<'_>,
        cache: KernelCacheMode,
    ) -> Result<OperationSystems, BenchError> {
        let place = |name: &str| root.join(format!("{name}-{}", cache.name()));
        let clients = plan.clients.iter().copied().max().unwrap_or(1);
        mounted::format(&place("media"))?;
        let weir = FrontEndMount::weir(&place("media"), &place("weir"), plan.threads, cache)?;
        let peer = FrontEndMount::peer(&place("peer"), weir.threads()?, cache)?;
        Ok(OperationSystems {
            peer: PreparedSystem::new(&place("peer"), clients, Some(peer))?,
            weir: PreparedSystem::new(&place("weir"), clients, Some(weir))?,
            disk: PreparedSystem::new(&place("disk"), clients, None)?,
        })
    }

    fn take_turns(
        &self,
        mut rows: Vec<OperationRow>,
        plan: &OperationPlan<'_>,
    ) -> Result<Vec<OperationRow>, BenchError> {
        for round in 0..plan.rounds {
            for row in &mut rows {
                let turn = |one: &PreparedSystem| one.turn(row.operation, row.clients, plan.slice);
                // Each system begins equally often.
                for number in 0..3 {
                    match (number + round) % 3 {
                        // weir's mount keeps the processors awake by itself, until a moment after its turn.
                        0 => {
                            let _awake = PmQosHold::hold();
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

/// Turns EINVAL into `None`: the file system does not support the operation.
///
/// An example is a read of 512 B with O_DIRECT from a disk of larger blocks, or from a file system in memory.
fn if_it_can(turn: Result<TurnFigures, BenchError>) -> Result<Option<TurnFigures>, BenchError> {
    match turn {
        Err(BenchError::Io { source, .. }) if source.kind() == std::io::ErrorKind::InvalidInput => Ok(None),
        turn => turn.map(Some),
    }
}

/// The clients' files on a mount, or in a directory.
struct PreparedSystem {
    loads: Vec<ClientFiles>,
    mount: Option<FrontEndMount>,
}

impl PreparedSystem {
    fn new(
        directory: &Path,
        clients: u8,
        mount: Option<FrontEndMount>,
    ) -> Result<PreparedSystem, BenchError> {
        let load = |client: u8| ClientFiles::prepare(&directory.join(format!("client-{client}")), client);
        Ok(PreparedSystem { loads: (0..clients).map(load).collect::<Result<_, _>>()?, mount })
    }

    fn turn(
        &self,
        operation: ClientOperation,
        clients: u8,
        slice: Duration,
    ) -> Result<TurnFigures, BenchError> {
        let used = || {
            self.mount.as_ref().map_or(Ok(ProcessUsage::default()), |mount| ProcessUsage::by(mount.process()))
        };
        let before = used()?;
        let done = clients::run(&self.loads[..usize::from(clients)], operation, slice)?;
        Ok(TurnFigures::new(done, used()?.since(&before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(p50: u64, operations: u64) -> TurnFigures {
        let elapsed = Duration::from_millis(10);
        let done = TurnResult { operations, elapsed, p50: Duration::from_micros(p50) };
        let cpu = Duration::from_micros(operations * 3);
        TurnFigures::new(done, ProcessUsage { cpu, sleeps_behind_the_front_end: 10 })
    }

    #[test]
    fn a_turn_tells_its_rate_and_what_one_operation_cost() {
        let cell = cell(4, 1000);
        assert!((cell.p50_micros - 4.0).abs() < 1e-9 && (cell.per_s - 100_000.0).abs() < 1e-6, "{cell:?}");
        assert!((cell.cpu_micros - 3.0).abs() < 1e-9 && (cell.sleeps - 0.01).abs() < 1e-9, "{cell:?}");
    }

    #[test]
    fn a_row_compares_round_by_round_and_has_no_figure_where_the_disk_cannot() {
        let mut row = OperationRow::new(ClientOperation::Read512, 1);
        // The machine was slow in the last round.
        for (peer, weir) in [(10, 12), (10, 13), (40, 44)] {
            row.peer.push(cell(peer, 1000));
            row.weir.push(cell(weir, 900));
        }
        let mut report = BenchReport::default();
        add_operations(&mut report, &[row], "ext4");
        let text = report.text().replace(' ', "");
        assert!(text.contains("|1|10.0|13.0|-|1.20(1.15–1.25)|"), "{text}");
    }

    #[test]
    fn targets_speak_of_writes_and_names_by_one_client_and_of_writes_by_eight() {
        let row = |operation, clients| {
            let mut row = OperationRow::new(operation, clients);
            row.peer.push(cell(10, 1000));
            row.weir.push(cell(12, 1000));
            row
        };
        let rows = [ClientOperation::Write512, ClientOperation::Fstat, ClientOperation::CreateUnlink]
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

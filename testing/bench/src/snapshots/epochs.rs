//! What epochs cost: synced random writes while epochs are taken at different intervals.

use std::path::Path;
use std::time::{Duration, Instant};

use super::super::counters::mount;
use super::super::error::BenchError;
use super::super::quantile::{median, quantile};
use super::super::report::{BenchReport, ReportCell, ReportTable};
use super::super::system::weir_status;
use super::super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out};
use super::{SnapshotStore, SnapshotsArgs};

const BUFFER_BYTES: u64 = 256 << 20;

/// The turns of one interval.
#[derive(Default)]
struct IntervalTurns {
    writes_per_second: Vec<f64>,
    /// The latency of each write, in milliseconds.
    latencies: Vec<f64>,
    blocks_per_page: Vec<f64>,
}

/// Measures the intervals in turns, and adds the figures to the report.
pub(super) fn measure(args: &SnapshotsArgs, root: &Path, report: &mut BenchReport) -> Result<(), BenchError> {
    let pages = (args.file << 20) / PAGE_BYTES;
    let store = SnapshotStore::format(root, "epochs", 6 * (args.file << 20) + (1 << 30), BUFFER_BYTES)?;
    let mounted = store.mount(args.memory << 20)?;
    lay_out(&store.file("file"), pages)?;
    drop(mounted);
    let mut turns: Vec<IntervalTurns> = args.every.iter().map(|_| IntervalTurns::default()).collect();
    for round in 1..=args.rounds {
        for (&every, turn) in args.every.iter().zip(&mut turns) {
            eprintln!("epochs: every {every} s, round {round} of {}", args.rounds);
            measure_turn(args, &store, (every, round, pages), turn)?;
        }
    }
    let without = median(&turns[0].writes_per_second);
    let mut table = ReportTable::default();
    for (&every, turn) in args.every.iter().zip(&turns) {
        let speed = median(&turn.writes_per_second);
        table.row([
            ("every_s", "epoch every", if every == 0 { "never".into() } else { format!("{every} s").into() }),
            ("writes_per_s", "writes/s", speed.into()),
            ("ratio", "of the first", (speed / without).into()),
            ("p50_ms", "p50", super::milliseconds(quantile(&turn.latencies, 0.5))),
            ("p99_ms", "p99", super::milliseconds(quantile(&turn.latencies, 0.99))),
            ("p9999_ms", "p99.99", super::milliseconds(quantile(&turn.latencies, 0.9999))),
            ("max_ms", "longest", super::milliseconds(quantile(&turn.latencies, 1.0))),
            ("blocks", "blocks per page stored", ReportCell::from(median(&turn.blocks_per_page))),
        ]);
    }
    report.line(format!(
        "\nWrites of 4096 B at random places of a file of {} MiB, each synced, with a buffer of 256 MiB: {} s for each interval and \
         round, {} rounds.",
        args.file, args.seconds, args.rounds
    ));
    report.table("epochs", &table);
    Ok(())
}

fn measure_turn(
    args: &SnapshotsArgs,
    store: &SnapshotStore,
    (every, round, pages): (u64, u64, u64),
    turn: &mut IntervalTurns,
) -> Result<(), BenchError> {
    let settings = [format!("--memory={}", args.memory << 20), format!("--epoch-every={every}")];
    let _mounted = mount(&store.store, &store.mount_point, &settings)?;
    let before = weir_status(&store.mount_point)?.counters;
    let mut seed = round * 1000;
    let mut overwriter = PageOverwriter::open(&store.file("file"), pages, PAGE_BYTES, seed)?;
    let begun = Instant::now();
    let mut writes = 0;
    while begun.elapsed() < Duration::from_secs(args.seconds) {
        let done = overwriter.run(1, Duration::MAX, SyncMode::EachWrite)?;
        if done.writes == 0 {
            seed += 1;
            overwriter = PageOverwriter::open(&store.file("file"), pages, PAGE_BYTES, seed)?;
        }
        writes += done.writes;
        turn.latencies.push(done.elapsed.as_secs_f64() * 1000.0);
    }
    turn.writes_per_second.push(writes as f64 / begun.elapsed().as_secs_f64());
    let after = weir_status(&store.mount_point)?.counters;
    let stored = after.pages_stored - before.pages_stored;
    turn.blocks_per_page
        .push((after.store.blocks_written - before.store.blocks_written) as f64 / stored.max(1) as f64);
    Ok(())
}

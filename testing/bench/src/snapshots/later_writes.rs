//! Random overwrites without a snapshot, after one was made, and after it was deleted.

use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_status::CountersReport;

use super::super::error::BenchError;
use super::super::program::run;
use super::super::report::{BenchReport, ReportCell, ReportTable};
use super::super::system::{weir, weir_status};
use super::super::workload::{PAGE_BYTES, PageOverwriter, SyncMode, lay_out};
use super::{SnapshotStore, SnapshotsArgs};

/// Phases of the load on each store.
const PHASES: [LaterPhase; 4] =
    [LaterPhase::WarmUp, LaterPhase::Without, LaterPhase::AfterSnapshot, LaterPhase::AfterDeletion];
const BUFFER_BYTES_MIN: u64 = 64 << 20;
/// Limit for the deletion of a snapshot.
const FREED_MAX: Duration = Duration::from_secs(120);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LaterPhase {
    /// Until every leaf of the map has as many deltas as it will have from then on.
    WarmUp,
    Without,
    AfterSnapshot,
    AfterDeletion,
}

impl LaterPhase {
    fn name(self) -> &'static str {
        match self {
            LaterPhase::WarmUp => "warm-up",
            LaterPhase::Without => "no snapshot",
            LaterPhase::AfterSnapshot => "one snapshot",
            LaterPhase::AfterDeletion => "it was deleted",
        }
    }
}

/// The store's work in one pass or phase.
#[derive(Debug, Clone, Copy)]
struct LaterCounts {
    stored: u64,
    blocks: u64,
    read: u64,
    folded: u64,
    cleaned: u64,
    checkpoints: u64,
}

impl LaterCounts {
    fn since(before: &CountersReport, after: &CountersReport) -> LaterCounts {
        let since = |of: fn(&CountersReport) -> u64| of(after) - of(before);
        LaterCounts {
            stored: since(|now| now.pages_stored),
            blocks: since(|now| now.store.blocks_written),
            read: since(|now| now.store_reads.for_write_back),
            folded: since(|now| now.store.pages_folded),
            cleaned: since(|now| now.store.pages_cleaned),
            checkpoints: since(|now| now.store.checkpoints),
        }
    }

    fn per_page(self, count: u64) -> f64 {
        count as f64 / self.stored as f64
    }
}

/// Measures each size of writes, and adds the figures to the report.
pub(super) fn measure(args: &SnapshotsArgs, root: &Path, report: &mut BenchReport) -> Result<(), BenchError> {
    let mut table = ReportTable::default();
    for &bytes in &args.io {
        measure_size(args, root, bytes, &mut table)?;
    }
    report.line(format!(
        "\nRandom writes over a file of {} MiB, {} passes a phase, with {} MiB of memory. Counts are per page stored.\n\
         Targets with one snapshot: 1.03 times the blocks at 4096 B; at most 0.05 pages read in order to be stored whole \
         at 512 B.",
        args.file, args.passes, args.memory
    ));
    report.table("later", &table);
    Ok(())
}

fn measure_size(
    args: &SnapshotsArgs,
    root: &Path,
    bytes: u64,
    table: &mut ReportTable,
) -> Result<(), BenchError> {
    let pages = (args.file << 20) / PAGE_BYTES;
    // A page that is stored is a block or two. With this space nothing is cleaned.
    let stored_max = PHASES.len() as u64 * args.passes * pages * PAGE_BYTES;
    let store = SnapshotStore::format(
        root,
        &format!("later-{bytes}"),
        4 * stored_max + (1 << 30),
        (args.file << 20).max(BUFFER_BYTES_MIN),
    )?;
    let mounted = store.mount(args.memory << 20)?;
    lay_out(&store.file("file"), pages)?;
    drop(mounted);
    // A new mount, because pages that are whole in memory would be stored whole.
    let _mounted = store.mount(args.memory << 20)?;
    let mut seed = 0;
    let mut blocks_without = f64::NAN;
    for phase in PHASES {
        eprintln!("later: writes of {bytes} B, {}", phase.name());
        match phase {
            LaterPhase::AfterSnapshot => drop(store.snapshot("one")?),
            LaterPhase::AfterDeletion => delete_snapshot(&store)?,
            LaterPhase::WarmUp | LaterPhase::Without => {}
        }
        let before = weir_status(&store.mount_point)?.counters;
        let mut passes = Vec::new();
        let mut pass_began = before.clone();
        for _ in 0..args.passes {
            seed += 1;
            PageOverwriter::open(&store.file("file"), pages, bytes, seed)?.run(
                pages,
                Duration::MAX,
                SyncMode::Never,
            )?;
            let now = weir_status(&store.mount_point)?.counters;
            let counts = LaterCounts::since(&pass_began, &now);
            passes.push(counts.per_page(counts.read));
            pass_began = now;
        }
        let counts = LaterCounts::since(&before, &pass_began);
        let blocks = counts.per_page(counts.blocks);
        if phase == LaterPhase::Without {
            blocks_without = blocks;
        }
        table.row([
            ("bytes", "bytes", bytes.into()),
            ("phase", "phase", phase.name().into()),
            ("stored", "pages stored", counts.stored.into()),
            ("blocks", "blocks", blocks.into()),
            ("blocks_ratio", "of those without", (blocks / blocks_without).into()),
            ("read", "read", counts.per_page(counts.read).into()),
            ("read_most_in_a_pass", "read, in the worst pass", passes.into_iter().fold(0.0, f64::max).into()),
            ("folded", "folded", counts.per_page(counts.folded).into()),
            ("cleaned", "cleaned", counts.per_page(counts.cleaned).into()),
            ("checkpoints", "checkpoints", ReportCell::from(counts.checkpoints)),
        ]);
    }
    Ok(())
}

/// Deletes the snapshot, and waits until its space is free.
fn delete_snapshot(store: &SnapshotStore) -> Result<(), BenchError> {
    run(weir("volume").arg("delete").arg(&store.mount_point).arg("one"))?;
    let begun = Instant::now();
    while weir_status(&store.mount_point)?.space.freeing {
        if begun.elapsed() > FREED_MAX {
            let what = "the space of the deleted snapshot".to_owned();
            return Err(BenchError::Late { what, says: "it is not free yet".to_owned() });
        }
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

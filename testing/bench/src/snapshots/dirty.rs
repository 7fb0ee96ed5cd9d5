//! A snapshot while much data is dirty, and a writer beside it.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use device::SeededRng;

use super::super::error::BenchError;
use super::super::quantile::quantile;
use super::super::report::{BenchReport, ReportCell};
use super::super::system::weir_status;
use super::super::workload::{PAGE_BYTES, lay_out};
use super::{SnapshotStore, SnapshotsArgs, TargetTable, millis, milliseconds};

const WRITE_BYTES: u64 = 512;
/// Pages of the file that the writer overwrites.
const WRITER_PAGES: u64 = 4096;
/// Pause of the writer after each write, so that one stop of the writer is one slow write among as many as
/// would have waited.
const WRITER_PAUSE: Duration = Duration::from_millis(1);

/// When a write began, and its latency.
struct TimedWrite {
    began: Instant,
    ms: f64,
}

/// Measures a snapshot, and adds its figures to the report.
pub(super) fn measure(args: &SnapshotsArgs, root: &Path, report: &mut BenchReport) -> Result<(), BenchError> {
    let dirty_bytes = args.dirty << 20;
    // Write-back begins at half of the buffer, or at half of the dirty data that memory may hold.
    let store =
        SnapshotStore::format(root, "dirty", 6 * dirty_bytes + (1 << 30), 3 * dirty_bytes + (256 << 20))?;
    let memory_bytes = 6 * dirty_bytes + (256 << 20);
    let pages = dirty_bytes / PAGE_BYTES;

    eprintln!("dirty: writing back at an unmount");
    let mounted = store.mount(memory_bytes)?;
    lay_out(&store.file("writer"), WRITER_PAGES)?;
    lay_out(&store.file("first"), pages)?;
    let dirty_at_unmount = weir_status(&store.mount_point)?.dirty.bytes;
    let begun = Instant::now();
    drop(mounted);
    let unmount_ms = millis(begun);

    eprintln!("dirty: a snapshot beside a writer");
    let mounted = store.mount(memory_bytes)?;
    lay_out(&store.file("second"), pages)?;
    let stop = AtomicBool::new(false);
    let (outcome, writes) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| write_until(&store.file("writer"), &stop));
        sleep(Duration::from_secs(args.seconds));
        let outcome = make_snapshots(&store);
        stop.store(true, Ordering::Release);
        (outcome, writer.join().expect("the writer does not panic"))
    });
    drop(mounted);
    let (snapshots, writes) = (outcome?, writes?);

    let mib = |bytes: u64| ReportCell::from(bytes as f64 / f64::from(1 << 20)).unit(" MiB");
    let mut table = TargetTable::default();
    table.row("dirty at the unmount", mib(dirty_at_unmount), "");
    table.row("the unmount, which writes all back", milliseconds(unmount_ms), "");
    table.row("dirty at the snapshot", mib(snapshots.dirty_bytes), "");
    table.row("the snapshot", milliseconds(snapshots.first_ms), "the time of writing back");
    table.row("a second snapshot, right after it", milliseconds(snapshots.second_ms), "milliseconds");
    let before = writes.iter().filter(|write| ended(write) < snapshots.began);
    let beside =
        writes.iter().filter(|write| write.began < snapshots.ended && ended(write) >= snapshots.began);
    let latencies: [(&str, Vec<f64>, &str); 2] = [
        ("before", before.map(|write| write.ms).collect(), ""),
        ("beside", beside.map(|write| write.ms).collect(), "50 ms"),
    ];
    for (when, ms, target) in &latencies {
        let share = |share| milliseconds(quantile(ms, share));
        table.row(&format!("writes of {WRITE_BYTES} B {when} the snapshot"), ms.len() as u64, "");
        table.row(&format!("{when}: half take at most"), share(0.5), "");
        table.row(&format!("{when}: 99.9 % take at most"), share(0.999), target);
        table.row(&format!("{when}: the slowest"), share(1.0), "");
    }
    report.line(format!(
        "\nA snapshot of {} MiB of dirty data. One thread overwrites {WRITE_BYTES} B at random, and sleeps for {} ms \
         after each write.",
        args.dirty,
        WRITER_PAUSE.as_millis()
    ));
    report.table("dirty", &table.0);
    Ok(())
}

fn ended(write: &TimedWrite) -> Instant {
    write.began + Duration::from_secs_f64(write.ms / 1000.0)
}

/// Two snapshots, one right after the other.
struct TwoSnapshots {
    /// Dirty data when the first one began.
    dirty_bytes: u64,
    /// When the first one began and ended.
    began: Instant,
    ended: Instant,
    first_ms: f64,
    second_ms: f64,
}

fn make_snapshots(store: &SnapshotStore) -> Result<TwoSnapshots, BenchError> {
    let dirty_bytes = weir_status(&store.mount_point)?.dirty.bytes;
    let began = Instant::now();
    let first_ms = store.snapshot("one")?;
    let ended = Instant::now();
    let second_ms = store.snapshot("two")?;
    Ok(TwoSnapshots { dirty_bytes, began, ended, first_ms, second_ms })
}

/// Overwrites parts of random pages until it is stopped.
fn write_until(path: &Path, stop: &AtomicBool) -> Result<Vec<TimedWrite>, BenchError> {
    let write = || -> std::io::Result<Vec<TimedWrite>> {
        let file = OpenOptions::new().write(true).open(path)?;
        let mut random = SeededRng::new(1);
        let bytes = [0x5a; WRITE_BYTES as usize];
        let mut writes = Vec::new();
        while !stop.load(Ordering::Acquire) {
            let began = Instant::now();
            file.write_all_at(&bytes, random.below(WRITER_PAGES) * PAGE_BYTES)?;
            writes.push(TimedWrite { began, ms: millis(began) });
            sleep(WRITER_PAUSE);
        }
        Ok(writes)
    };
    write().map_err(|error| BenchError::io("cannot write", path, error))
}

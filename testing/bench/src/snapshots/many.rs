//! Thousands of snapshots with a write after each: what a write, a snapshot, a checkpoint and a start cost
//! with the first and with the last ones.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use cache::{CacheError, CacheSettings};
use device::{SeededRng, VolumeId};
use fs::{FsError, Ino};
use store::{NewVolume, VolumeMode};

use super::super::cleanup::{self, CleanupGuard};
use super::super::error::BenchError;
use super::super::in_process::{InProcessStack, lay_out, write};
use super::super::program::run;
use super::super::quantile::median;
use super::super::report::{BenchReport, ReportTable};
use super::super::slow_device::{ComparedDevice, DeviceSpec, SlowDevice};
use super::super::system::{weir, weir_on, weir_status, weir_unmount_on_drop};
use super::super::workload::PAGE_BYTES;
use super::{SnapshotsArgs, millis};

const FILE_PAGES: u64 = 16_384;
/// Snapshots, and then writes, of which the blocks are counted in one round.
const COUNTED: u64 = 100;
const ROUNDS: u64 = 5;
const BUFFER_BYTES: u64 = 64 << 20;
/// Least size of the store: the default of `weir format`.
const STORE_BYTES_MIN: u64 = 8 << 30;
/// Space for a snapshot and a write: a page, and the nodes of the map above it.
const BYTES_PER_SNAPSHOT: u64 = 32 * PAGE_BYTES;
/// Starts that are measured after an unmount.
const STARTS: usize = 5;
/// Bytes copied to a device at once.
const COPY_BYTES: usize = 1 << 20;

/// Blocks that the store wrote beside some number of snapshots.
struct BlocksWritten {
    /// For a write and the snapshot after it.
    per_snapshot: f64,
    /// By the checkpoint after `COUNTED` of these.
    checkpoint_of_snapshots: f64,
    /// For a write without a snapshot.
    per_write: f64,
    /// By the checkpoint after `COUNTED` of these.
    checkpoint_of_writes: f64,
    /// Checkpoints meanwhile that are not counted above.
    more_checkpoints: f64,
}

/// Times with some number of snapshots on the modelled device, in milliseconds.
struct SnapshotStartTimes {
    /// Log that the start after a crash reads, in MiB.
    log_mib: f64,
    after_crash: f64,
    after_unmount: f64,
    /// Reads of the store by the last start.
    store_reads: f64,
    list: f64,
    volumes_listed: f64,
}

/// Measures with few snapshots and with many, and adds the figures to the report.
pub(super) fn measure(args: &SnapshotsArgs, root: &Path, report: &mut BenchReport) -> Result<(), BenchError> {
    let directory = root.join("many");
    let file_bytes = FILE_PAGES * PAGE_BYTES;
    let store_bytes = args.count * BYTES_PER_SNAPSHOT + 4 * file_bytes + (256 << 20);
    run(weir_on(&directory, "format").arg(&directory).args([
        format!("--size={}", store_bytes.next_multiple_of(1 << 20).max(STORE_BYTES_MIN)),
        format!("--buffer-size={BUFFER_BYTES}"),
    ]))?;
    eprintln!("many: starts with one snapshot");
    let mut maker = SnapshotMaker::open(&directory)?;
    maker.make(1)?;
    let (written, log_bytes) = maker.stop();
    let few_starts = measure_starts(root, &directory, log_bytes)?;
    eprintln!("many: making {} snapshots", args.count);
    let mut maker = written.open_again(&directory)?;
    let few = maker.count_blocks()?;
    let begun = Instant::now();
    let made_between = args.count - maker.written.snapshots;
    maker.make(made_between)?;
    let snapshot_ms = millis(begun) / made_between as f64;
    let (written, log_bytes) = maker.stop();
    eprintln!("many: starts with {} snapshots", args.count);
    let many_starts = measure_starts(root, &directory, log_bytes)?;
    let many = written.open_again(&directory)?.count_blocks()?;

    let mut table = ReportTable::default();
    let mut row = |figure: &str, few: f64, many: f64, target: &str| {
        table.row([
            ("figure", "figure", figure.into()),
            ("few", "1 snapshot", few.into()),
            ("many", &args.count.to_string(), many.into()),
            ("ratio", "ratio", (many / few).into()),
            ("target", "target", target.into()),
        ]);
    };
    row("blocks of a write and a snapshot", few.per_snapshot, many.per_snapshot, "1.1 times");
    let checkpoints = (few.checkpoint_of_snapshots, many.checkpoint_of_snapshots);
    row("blocks of the checkpoint after 100 of both", checkpoints.0, checkpoints.1, "1.1 times");
    row("blocks of a write", few.per_write, many.per_write, "1.1 times");
    let checkpoints = (few.checkpoint_of_writes, many.checkpoint_of_writes);
    row("blocks of the checkpoint after 100 writes", checkpoints.0, checkpoints.1, "1.1 times");
    row("other checkpoints meanwhile", few.more_checkpoints, many.more_checkpoints, "");
    let longer = "500 ms longer";
    row("MiB of log at a crash", few_starts.log_mib, many_starts.log_mib, "");
    row("ms of a start after the crash", few_starts.after_crash, many_starts.after_crash, longer);
    row("ms of a start after an unmount", few_starts.after_unmount, many_starts.after_unmount, longer);
    row("reads of the store in it", few_starts.store_reads, many_starts.store_reads, "");
    row("ms of `weir volume list`", few_starts.list, many_starts.list, "1000 ms");
    row("volumes that it lists", few_starts.volumes_listed, many_starts.volumes_listed, "");
    report.line(format!(
        "\n{} snapshots, a write of 4 KiB before each, at random in a file of {} MiB; below the front end, both took \
         {snapshot_ms:.1} ms. Blocks are means of {ROUNDS} rounds after the number of snapshots was reached. Starts are on the \
         cloud model.",
        args.count,
        file_bytes >> 20
    ));
    report.fact("count", args.count);
    report.fact("snapshot_ms", snapshot_ms);
    report.table("many", &table);
    Ok(())
}

/// Makes snapshots in this process, with a write before each.
struct SnapshotMaker {
    stack: InProcessStack,
    written: SnapshottedFile,
}

/// The file that is written to, and what is made beside it.
struct SnapshottedFile {
    ino: Ino,
    random: SeededRng,
    snapshots: u64,
}

impl SnapshotMaker {
    /// Opens the new store in `directory`, and lays out the file.
    fn open(directory: &Path) -> Result<SnapshotMaker, BenchError> {
        let stack = InProcessStack::open(directory, settings())?;
        let ino = lay_out(&stack.fs, "file", FILE_PAGES).map_err(|source| BenchError::Fs { source })?;
        Ok(SnapshotMaker { stack, written: SnapshottedFile { ino, random: SeededRng::new(1), snapshots: 0 } })
    }

    /// Ends the work in this process like a crash. Returns also how many bytes of log the next start reads.
    fn stop(self) -> (SnapshottedFile, u64) {
        let log_bytes = self.stack.layers.store.maintenance().blocks_since_checkpoint() * PAGE_BYTES;
        self.stack.stop();
        (self.written, log_bytes)
    }

    fn make(&mut self, count: u64) -> Result<(), BenchError> {
        for _ in 0..count {
            self.write()?;
            let name = format!("snapshot-{}", self.written.snapshots);
            let new = NewVolume { name: &name, mode: VolumeMode::ReadOnly, created: self.written.snapshots };
            self.stack.layers.cache.clone_volume(VolumeId::MAIN, &new).map_err(failed)?;
            self.written.snapshots += 1;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), BenchError> {
        let page = self.written.random.below(FILE_PAGES);
        let bytes = vec![self.written.random.next_u64() as u8; PAGE_BYTES as usize];
        write(&self.stack.fs, self.written.ino, page * PAGE_BYTES, &bytes)
            .map_err(|source| BenchError::Fs { source })
    }

    /// Counts the blocks of writes and snapshots, of writes alone, and of the checkpoints after both. Returns
    /// the means of some rounds.
    fn count_blocks(&mut self) -> Result<BlocksWritten, BenchError> {
        self.wait_until_stored();
        self.checkpoint()?;
        let before = self.stack.layers.store.counters();
        let (mut for_snapshots, mut checkpoint_of_snapshots) = (0, 0);
        let (mut for_writes, mut checkpoint_of_writes) = (0, 0);
        let mut written = before.blocks_written;
        for _ in 0..ROUNDS {
            self.make(COUNTED)?;
            for_snapshots += self.written_since(&mut written);
            self.checkpoint()?;
            checkpoint_of_snapshots += self.written_since(&mut written);
            (0..COUNTED).try_for_each(|_| self.write())?;
            self.wait_until_stored();
            for_writes += self.written_since(&mut written);
            self.checkpoint()?;
            checkpoint_of_writes += self.written_since(&mut written);
        }
        let checkpoints = self.stack.layers.store.counters().checkpoints - before.checkpoints;
        Ok(BlocksWritten {
            per_snapshot: for_snapshots as f64 / (ROUNDS * COUNTED) as f64,
            checkpoint_of_snapshots: checkpoint_of_snapshots as f64 / ROUNDS as f64,
            per_write: for_writes as f64 / (ROUNDS * COUNTED) as f64,
            checkpoint_of_writes: checkpoint_of_writes as f64 / ROUNDS as f64,
            more_checkpoints: (checkpoints - 2 * ROUNDS) as f64,
        })
    }

    /// Blocks that the store wrote since it had written `before`, which becomes the number now.
    fn written_since(&self, before: &mut u64) -> u64 {
        let now = self.stack.layers.store.counters().blocks_written;
        now - std::mem::replace(before, now)
    }

    fn checkpoint(&self) -> Result<(), BenchError> {
        self.stack.layers.store.maintenance().checkpoint().map_err(|error| failed(error.into()))
    }

    fn wait_until_stored(&self) {
        while self.stack.layers.cache.status().dirty_pages > 0 {
            sleep(Duration::from_millis(5));
        }
    }
}

impl SnapshottedFile {
    fn open_again(self, directory: &Path) -> Result<SnapshotMaker, BenchError> {
        Ok(SnapshotMaker { stack: InProcessStack::open(directory, settings())?, written: self })
    }
}

/// A write without a snapshot is stored soon, but not before a snapshot that follows at once.
fn settings() -> CacheSettings {
    CacheSettings { dirty_age_max: Duration::from_secs(1), ..CacheSettings::default() }
}

fn failed(source: CacheError) -> BenchError {
    BenchError::Fs { source: FsError::Cache(source) }
}

/// Copies the store in `directory`, which a crash ended, to a modelled device, and measures mounts of it.
fn measure_starts(root: &Path, directory: &Path, log_bytes: u64) -> Result<SnapshotStartTimes, BenchError> {
    let (store, buffer) = (directory.join("store"), root.join("cloud.buffer"));
    let bytes =
        std::fs::metadata(&store).map_err(|error| BenchError::io("cannot find", &store, error))?.len();
    let spec = DeviceSpec { device: ComparedDevice::Cloud.device(), bytes, processors: None };
    let device = SlowDevice::up(&spec, &root.join("cloud"))?;
    copy_to_device(&store, device.path())?;
    std::fs::copy(directory.join("buffer"), &buffer)
        .map_err(|error| BenchError::io("cannot write", &buffer, error))?;
    let mount_point = root.join("cloud.mount");
    std::fs::create_dir_all(&mount_point)
        .map_err(|error| BenchError::io("cannot create", &mount_point, error))?;
    let start = || -> Result<(CleanupGuard, f64), BenchError> {
        let mounted = weir_unmount_on_drop(&mount_point);
        let mut mount = weir_on(&buffer, "mount");
        mount.arg(device.path()).arg(&mount_point).arg("--buffer").arg(&buffer).arg("--epoch-every=0");
        let begun = Instant::now();
        cleanup::uninterrupted(|| run(&mut mount))?;
        Ok((mounted, millis(begun)))
    };
    let (mounted, after_crash) = start()?;
    drop(mounted);
    let (mut starts, mut store_reads) = (Vec::new(), 0);
    for _ in 0..STARTS {
        let (_mounted, ms) = start()?;
        store_reads = weir_status(&mount_point)?.start.store_reads;
        starts.push(ms);
    }
    let (_mounted, _) = start()?;
    let begun = Instant::now();
    let listed = run(weir("volume").arg("list").arg(&mount_point))?;
    let list = millis(begun);
    Ok(SnapshotStartTimes {
        log_mib: log_bytes as f64 / f64::from(1 << 20),
        after_crash,
        after_unmount: median(&starts),
        store_reads: store_reads as f64,
        list,
        // The first line is the header.
        volumes_listed: (listed.lines().count() - 1) as f64,
    })
}

/// Copies a file to a new device, which is all zeros.
fn copy_to_device(file: &Path, device: &Path) -> Result<(), BenchError> {
    let copy = || -> std::io::Result<()> {
        let mut from = File::open(file)?;
        let to = OpenOptions::new().write(true).open(device)?;
        let (mut bytes, mut at) = (vec![0; COPY_BYTES], 0);
        loop {
            let count = from.read(&mut bytes)?;
            if count == 0 {
                return to.sync_all();
            }
            if bytes[..count].iter().any(|&byte| byte != 0) {
                to.write_all_at(&bytes[..count], at)?;
            }
            at += count as u64;
        }
    };
    copy().map_err(|error| BenchError::io("cannot copy a store to", device, error))
}

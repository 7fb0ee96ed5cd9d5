//! `weir-bench large-store`: cleaning, deletions and truncations in a store too large for any test.
//!
//! The store is in this process, on a device that takes no time and keeps metadata only. The report says how
//! much of the map cleaning reads, and how long deletions and truncations block changes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use clap::Args;
use device::{
    BLOCK_BYTES, Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, SeededRng, StoreId,
    VolumeId,
};
use store::{CleaningOutcome, NewVolume, Store, StoreChange, StoreError, StoreLayout};

use super::error::BenchError;
use super::quantile::quantile;
use super::report::{BenchReport, ReportTable};
use super::system::resident_bytes;

/// Pages written by one vector of changes: 2 MiB.
const VECTOR_PAGES: usize = 512;
/// Pages that a leaf of the map covers.
const LEAF_PAGES: u64 = 128;
/// Leaves that one step of a truncation changes, as in the cache.
const CUT_LEAVES: usize = 256;
/// Blocks written between two checkpoints.
const CHECKPOINT_BLOCKS: u64 = 65_536;
/// Rounds of cleaning.
const ROUNDS: usize = 8;

/// Options of `weir-bench large-store`.
#[derive(Debug, Args)]
pub(super) struct LargeStoreArgs {
    /// Size of the store, in GiB; its metadata needs a hundredth of that as memory, twice
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u64).range(1..=4096))]
    size: u64,
    /// Fill level of the store, in percent
    #[arg(long, default_value_t = 85, value_parser = clap::value_parser!(u64).range(1..=90))]
    full: u64,
    /// Write the result as JSON
    #[arg(long)]
    json: bool,
}

/// Times of the steps of an operation, in milliseconds.
#[derive(Debug)]
struct StepTimes {
    count: u64,
    median_ms: f64,
    longest_ms: f64,
    nodes_read: u64,
    /// Resident memory without the device's pages, before the first step and at its peak, in MiB.
    memory_mib: (u64, u64),
}

/// The figures of a run.
#[derive(Debug)]
struct LargeStoreResults {
    pages: u64,
    /// Leaves of the map, which a walk reads.
    leaves: u64,
    writing_s: f64,
    /// For each round of cleaning, the nodes visited or read, and the segments emptied.
    rounds: Vec<(u64, u64)>,
    walks: u64,
    delete_ms: f64,
    freeing: StepTimes,
    cutting: StepTimes,
}

/// A device that keeps metadata. All data is one and the same page, of which the device keeps only the
/// positions.
struct MetadataOnly {
    blocks: u64,
    data: Page,
    kept: Mutex<KeptPages>,
    pages: AtomicU64,
}

#[derive(Default)]
struct KeptPages {
    metadata: HashMap<u64, Box<Page>>,
    /// A bit for each block: whether it holds the page of data.
    is_data: Vec<u64>,
}

impl KeptPages {
    fn set_data(&mut self, at: u64, is_data: bool) {
        let word = &mut self.is_data[(at / 64) as usize];
        *word = if is_data { *word | 1 << (at % 64) } else { *word & !(1 << (at % 64)) };
    }
}

impl MetadataOnly {
    fn new(blocks: u64) -> MetadataOnly {
        let kept = KeptPages { metadata: HashMap::new(), is_data: vec![0; blocks.div_ceil(64) as usize] };
        MetadataOnly {
            blocks,
            data: Page([0xda; BLOCK_BYTES]),
            kept: Mutex::new(kept),
            pages: AtomicU64::new(0),
        }
    }

    fn kept(&self) -> MutexGuard<'_, KeptPages> {
        self.kept.lock().expect("no panic in the device")
    }

    /// Memory that the device uses, in bytes.
    fn memory(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * BLOCK_BYTES as u64 + self.blocks / 8
    }
}

impl Device for MetadataOnly {
    fn blocks(&self) -> u64 {
        self.blocks
    }

    fn name(&self) -> &str {
        "metadata"
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let kept = self.kept();
        for (page, at) in into.iter_mut().zip(at.0..) {
            match kept.metadata.get(&at) {
                Some(bytes) => page.0 = bytes.0,
                None if kept.is_data[(at / 64) as usize] >> (at % 64) & 1 == 1 => page.0 = self.data.0,
                None => page.0.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let mut kept = self.kept();
        for (page, at) in from.iter().zip(at.0..) {
            let is_data = page.0 == self.data.0;
            kept.set_data(at, is_data);
            if is_data {
                drop(kept.metadata.remove(&at))
            } else {
                drop(kept.metadata.insert(at, Box::new(Page(page.0))))
            }
        }
        self.pages.store(kept.metadata.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        let mut kept = self.kept();
        for at in at.0..at.0 + count {
            kept.set_data(at, false);
            kept.metadata.remove(&at);
        }
        Ok(())
    }
}

/// The store and its log position.
struct LargeStore {
    disk: Arc<MetadataOnly>,
    store: Store,
    lsn: u64,
    /// Blocks written up to the last checkpoint.
    checkpointed: u64,
}

impl LargeStore {
    fn new(blocks: u64) -> Result<LargeStore, StoreError> {
        let disk = Arc::new(MetadataOnly::new(blocks));
        Store::format(&*disk, &StoreLayout { id: StoreId([1; 16]), segment_blocks: None })?;
        let store = Store::open(disk.clone())?;
        store.begin(Incarnation(1))?;
        let main = NewVolume { name: "main", ..NewVolume::default() };
        store.volumes().create(&main, &[], Lsn(0))?;
        Ok(LargeStore { disk, store, lsn: 0, checkpointed: 0 })
    }

    fn write(&mut self, object: ObjectId, pages: &[u64]) -> Result<(), StoreError> {
        let bytes = Arc::new(Box::new(Page(self.disk.data.0)));
        for some in pages.chunks(VECTOR_PAGES) {
            let write = |&page: &u64| {
                self.lsn += 1;
                StoreChange::Write {
                    object,
                    page: PageNo(page),
                    bytes: bytes.clone(),
                    page_lsn: Lsn(self.lsn),
                }
            };
            let vector: Vec<StoreChange> = some.iter().map(write).collect();
            let mut rest = &vector[..];
            while !rest.is_empty() {
                let (now, later) = rest.split_at(self.store.data().changes_that_fit(rest).max(1));
                self.store.data().apply(now)?;
                rest = later;
            }
            self.checkpoint_if_due()?;
        }
        Ok(())
    }

    fn write_range(&mut self, object: ObjectId, pages: u64) -> Result<(), StoreError> {
        for first in (0..pages).step_by(VECTOR_PAGES) {
            let run: Vec<u64> = (first..pages.min(first + VECTOR_PAGES as u64)).collect();
            self.write(object, &run)?;
        }
        Ok(())
    }

    fn checkpoint_if_due(&mut self) -> Result<(), StoreError> {
        let written = self.store.counters().blocks_written;
        if written >= self.checkpointed + CHECKPOINT_BLOCKS {
            self.checkpointed = written;
            self.store.maintenance().checkpoint()?;
        }
        Ok(())
    }

    /// Runs one round of cleaning. Returns the nodes visited or read, and the segments emptied.
    fn round(&mut self) -> Result<(u64, u64), StoreError> {
        let nodes = |store: &Store| store.counters().nodes_visited + store.counters().node_reads;
        let before = nodes(&self.store);
        loop {
            match self.store.maintenance().clean_step()? {
                CleaningOutcome::Working => {}
                CleaningOutcome::RoundEnded(segments) => return Ok((nodes(&self.store) - before, segments)),
                CleaningOutcome::Idle => return Ok((nodes(&self.store) - before, 0)),
            }
        }
    }

    /// Repeats and times `step` until it returns false. Makes checkpoints between steps.
    fn steps(
        &mut self,
        mut step: impl FnMut(&mut LargeStore) -> Result<bool, StoreError>,
    ) -> Result<StepTimes, StoreError> {
        let (reads, before) = (self.store.counters().node_reads, self.memory());
        let (mut times, mut most) = (Vec::new(), before);
        loop {
            let begun = Instant::now();
            let goes_on = step(self)?;
            times.push(millis(begun.elapsed()));
            if times.len() % 64 == 0 {
                most = most.max(self.memory());
            }
            self.checkpoint_if_due()?;
            if !goes_on {
                break;
            }
        }
        Ok(StepTimes {
            count: times.len() as u64,
            longest_ms: times.iter().copied().fold(0.0, f64::max),
            median_ms: quantile(&times, 0.5),
            nodes_read: self.store.counters().node_reads - reads,
            memory_mib: (before >> 20, most.max(self.memory()) >> 20),
        })
    }

    /// Resident memory without the device's pages.
    fn memory(&self) -> u64 {
        resident_bytes(std::process::id()).unwrap_or(0).saturating_sub(self.disk.memory())
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

pub(super) fn run_benchmark(args: &LargeStoreArgs) -> Result<(), BenchError> {
    let results = measure(args).map_err(BenchError::opening(Path::new("the store in memory")))?;
    let LargeStoreResults { pages, leaves, writing_s, rounds, walks, delete_ms, freeing, cutting } = results;
    let mut report = BenchReport::new("large-store");
    report.fact("gib", args.size);
    report.line(format!("a store of {} GiB; the device takes no time", args.size));
    report.line(format!("cleaning: (nodes visited or read, segments emptied) {rounds:?}"));
    report.fact("rounds", rounds);
    report.figures([
        ("pages", "pages in two files", pages.into()),
        ("leaves", "leaves of the map", leaves.into()),
        ("writing_s", "seconds to write them", writing_s.into()),
        ("walks", "walks of the map for cleaning", walks.into()),
        ("delete_ms", "milliseconds to delete one of the files", delete_ms.into()),
    ]);
    let mut table = ReportTable::default();
    for (name, steps) in [("freeing the deleted file", freeing), ("cutting off the other", cutting)] {
        let StepTimes { count, median_ms, longest_ms, nodes_read, memory_mib: (before, most) } = steps;
        table.row([
            ("operation", "in steps", name.into()),
            ("count", "steps", count.into()),
            ("median_ms", "median ms", median_ms.into()),
            ("longest_ms", "longest ms", longest_ms.into()),
            ("nodes_read", "nodes read", nodes_read.into()),
            ("memory_before_mib", "MiB before", before.into()),
            ("memory_most_mib", "MiB at most", most.into()),
        ]);
    }
    report.table("steps", &table);
    report.print(args.json);
    Ok(())
}

fn measure(args: &LargeStoreArgs) -> Result<LargeStoreResults, StoreError> {
    let blocks = (args.size << 30) / BLOCK_BYTES as u64;
    let half = blocks * args.full / 200;
    let (deleted, cut) = (VolumeId::MAIN.object(7, 1), VolumeId::MAIN.object(8, 1));
    let begun = Instant::now();
    let mut large = LargeStore::new(blocks)?;
    large.write_range(deleted, half)?;
    large.write_range(cut, half)?;
    let writing_s = begun.elapsed().as_secs_f64();
    // Overwrites a fiftieth in order, and as much at random.
    large.write_range(deleted, half / 50)?;
    let mut random = SeededRng::new(1);
    let any: Vec<u64> = (0..half / 50).map(|_| random.below(half)).collect();
    large.write(cut, &any)?;
    large.store.maintenance().checkpoint_twice()?;
    let rounds = (0..ROUNDS).map(|_| large.round()).collect::<Result<_, _>>()?;
    large.store.maintenance().checkpoint_twice()?;
    large.lsn += 1;
    let begun = Instant::now();
    large.store.data().apply(&[StoreChange::Delete { object: deleted, lsn: Lsn(large.lsn) }])?;
    let delete_ms = millis(begun.elapsed());
    let freeing = large.steps(|large| large.store.maintenance().free_deleted_step())?;
    large.lsn += 1;
    let (lsn, mut from) = (Lsn(large.lsn), PageNo(0));
    let cutting = large.steps(|large| {
        let until = large.store.data().list(cut, from..PageNo(u64::MAX), CUT_LEAVES)?.until;
        large.store.data().apply(&[StoreChange::Punch { object: cut, pages: from..until, lsn }])?;
        from = until;
        Ok(until < PageNo(u64::MAX))
    })?;
    Ok(LargeStoreResults {
        pages: 2 * half,
        leaves: 2 * half.div_ceil(LEAF_PAGES),
        writing_s,
        rounds,
        walks: large.store.counters().walks,
        delete_ms,
        freeing,
        cutting,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_device_gives_back_what_it_was_given() {
        let disk = MetadataOnly::new(100);
        let other = Page([7; BLOCK_BYTES]);
        disk.write(Block(3), &[Page(disk.data.0), Page(other.0)]).expect("memory");
        let mut found = device::pages(3);
        let mut read = || {
            disk.read(Block(3), &mut found).expect("memory");
            [found[0].0[9], found[1].0[9], found[2].0[9]]
        };
        assert_eq!(read(), [0xda, 7, 0]);
        disk.write(Block(4), &[Page(disk.data.0)]).expect("memory");
        disk.trim(Block(3), 1).expect("memory");
        assert_eq!(read(), [0, 0xda, 0]);
    }

    #[test]
    fn a_small_one_is_measured_to_its_end() {
        let results = measure(&LargeStoreArgs { size: 1, full: 60, json: false }).expect("space");
        assert!(results.freeing.count > 1 && results.cutting.count > 1, "{results:?}");
        assert!(results.rounds.iter().any(|&(_, emptied)| emptied > 0), "{results:?}");
    }
}

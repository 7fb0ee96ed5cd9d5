//! The store's device, with the state that all its users share: flush errors, counters, and whether the host
//! file system is full.

#[cfg(feature = "planted-bugs")]
use crate::bug::PlantedStoreBugs;
use crate::coalesce::{self, CoalescedRead};
use crate::counters::{AtomicStoreCounters, count};
use crate::error::StoreError;
use crate::flusher::{DeviceFlusher, FailedFlushes};
use crate::superblock::StoreGeometry;
use device::{Block, BlockRead, Device, DeviceError, DeviceOperation, Page};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The error number of a failed read or write on every Linux.
const EIO: i32 = 5;

/// Blocks in one read of the device: 4 MiB. Only large reads ask for that much.
pub(crate) const RUN_BLOCKS_MAX: u64 = 1024;

/// The device and its layout. A crash loses only the counters.
pub(crate) struct StoreMedium {
    device: Arc<dyn Device>,
    /// The layout when the store was opened. The number of segments and the draft may be out of date.
    opened_geometry: StoreGeometry,
    segments: AtomicU32,
    draft: AtomicU32,
    counting: AtomicStoreCounters,
    flushes: DeviceFlusher,
    /// The host file system had no space when it was last asked.
    is_host_fs_full: AtomicBool,
    #[cfg(feature = "planted-bugs")]
    planted: PlantedStoreBugs,
}

impl StoreMedium {
    pub(crate) fn new(device: Arc<dyn Device>, geometry: StoreGeometry) -> StoreMedium {
        StoreMedium {
            device,
            opened_geometry: geometry,
            segments: AtomicU32::new(geometry.segments),
            draft: AtomicU32::new(geometry.draft),
            counting: AtomicStoreCounters::default(),
            flushes: DeviceFlusher::default(),
            is_host_fs_full: AtomicBool::new(false),
            #[cfg(feature = "planted-bugs")]
            planted: PlantedStoreBugs::default(),
        }
    }

    pub(crate) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(crate) fn name(&self) -> String {
        self.device.name().to_owned()
    }

    /// The current layout.
    pub(crate) fn geometry(&self) -> StoreGeometry {
        let geometry = self.opened_geometry.with_segments(self.segments.load(Ordering::Acquire));
        StoreGeometry { draft: self.draft.load(Ordering::Acquire), ..geometry }
    }

    /// The store has grown, or has another draft.
    pub(crate) fn set_geometry(&self, geometry: StoreGeometry) {
        self.segments.store(geometry.segments, Ordering::Release);
        self.draft.store(geometry.draft, Ordering::Release);
    }

    pub(crate) fn counting(&self) -> &AtomicStoreCounters {
        &self.counting
    }

    #[cfg(feature = "planted-bugs")]
    pub(crate) fn planted(&self) -> &PlantedStoreBugs {
        &self.planted
    }

    /// Whether no flush is under way.
    #[cfg(feature = "planted-bugs")]
    pub(crate) fn is_idle(&self) -> bool {
        self.flushes.is_idle()
    }

    /// Whether the host file system had no space for a segment when it was last asked.
    pub(crate) fn is_host_fs_known_full(&self) -> bool {
        self.is_host_fs_full.load(Ordering::Relaxed)
    }

    pub(crate) fn set_host_fs_full(&self, is_full: bool) {
        self.is_host_fs_full.store(is_full, Ordering::Relaxed);
    }

    /// To be taken before the first write that [`flush_since`](StoreMedium::flush_since) must make durable.
    pub(crate) fn failed_flushes(&self) -> FailedFlushes {
        self.flushes.failed_flushes()
    }

    /// Makes all writes durable that were made since `failed` was taken.
    pub(crate) fn flush_since(&self, failed: FailedFlushes) -> Result<(), StoreError> {
        count(&self.counting.flushes, 1);
        match self.flushes.flush_since(failed, || self.device.flush()) {
            Some(flushed) => Ok(flushed?),
            None => {
                let reason =
                    "another flush failed meanwhile, and may have taken these writes with it".to_owned();
                let device = self.device.name().to_owned();
                let operation = DeviceOperation::Flush;
                Err(DeviceError { device, operation, at: Block(0), count: 0, errno: EIO, reason }.into())
            }
        }
    }

    /// Writes, and counts the blocks.
    pub(crate) fn write(&self, at: Block, pages: &[Page]) -> Result<(), StoreError> {
        count(&self.counting.blocks_written, pages.len() as u64);
        Ok(self.device.write(at, pages)?)
    }

    /// Writes single blocks, consecutive ones together.
    pub(crate) fn write_blocks(&self, blocks: &[(Block, Box<Page>)]) -> Result<(), StoreError> {
        for run in blocks.chunk_by(|(at, _), (next, _)| at.0 + 1 == next.0) {
            let pages: Vec<Page> = run.iter().map(|(_, page)| (**page).clone()).collect();
            self.write(run[0].0, &pages)?;
        }
        Ok(())
    }

    /// Trims segments, and waits until that is durable: a late trim would destroy the next data in the
    /// segment.
    ///
    /// After a device failed one trim, it gets no more: what a segment held does no harm to the data that
    /// follows. After a failed flush the segments stay dead, and the next checkpoint tries again.
    pub(crate) fn trim(&self, segments: &[u32]) -> Result<(), StoreError> {
        let fails = || self.counting.trims_failed.load(Ordering::Relaxed) > 0;
        if segments.is_empty() || fails() {
            return Ok(());
        }
        #[cfg(feature = "planted-bugs")]
        if self.planted.trim_later(segments) {
            return Ok(());
        }
        let since = self.failed_flushes();
        for &segment in segments {
            if self
                .device
                .trim(self.geometry().segment_start(segment), self.geometry().segment_blocks)
                .is_err()
            {
                count(&self.counting.trims_failed, 1);
                break;
            }
        }
        self.flush_since(since)
    }

    /// Reads blocks, consecutive ones together, each with its own result. No block may be given twice.
    pub(crate) fn read_blocks(&self, places: &[Block]) -> Vec<Result<Page, StoreError>> {
        let mut runs: Vec<BlockRead> = places
            .chunk_by(|at, next| at.0 + 1 == next.0)
            .flat_map(|run| run.chunks(RUN_BLOCKS_MAX as usize))
            .map(|run| BlockRead::new(run[0], run.len()))
            .collect();
        count(&self.counting.device_reads, runs.len() as u64);
        self.device.read_batch(&mut runs);
        let pages = |run: BlockRead| {
            let result = run.result;
            run.pages.into_iter().map(move |page| result.clone().map(|()| page).map_err(StoreError::from))
        };
        runs.into_iter().flat_map(pages).collect()
    }

    /// Reads blocks, given in ascending order, and passes each to `take` by its index. Reads a bounded number
    /// at once, while `take` gets the ones before. If a read of several blocks fails, each of them is read by
    /// itself, so that each has its own result.
    pub(crate) fn read_coalesced(
        &self,
        places: &[Block],
        gap_blocks_max: u64,
        take: &mut dyn FnMut(usize, Result<&Page, DeviceError>),
    ) {
        let all = coalesce::coalesce_reads(places, gap_blocks_max);
        let mut rest = &all[..];
        // Memory is reused from one batch to the next: new memory costs as much as the read.
        let mut spare: Vec<Vec<Page>> = Vec::new();
        let mut before: Vec<(&CoalescedRead, BlockRead)> = Vec::new();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(coalesce::batch_len(rest));
            rest = later;
            let mut reads: Vec<BlockRead> = now.iter().map(|span| span.to_read(&mut spare)).collect();
            count(&self.counting.device_reads, reads.len() as u64);
            self.device.read_batch_while(&mut reads, &mut || {
                self.deliver(places, before.drain(..), &mut spare, take);
            });
            before = now.iter().zip(reads).collect();
        }
        self.deliver(places, before.drain(..), &mut spare, take);
    }

    /// Passes the blocks that were read to `take`, and their memory to `spare`.
    fn deliver<'a>(
        &self,
        places: &[Block],
        reads: impl Iterator<Item = (&'a CoalescedRead, BlockRead)>,
        spare: &mut Vec<Vec<Page>>,
        take: &mut dyn FnMut(usize, Result<&Page, DeviceError>),
    ) {
        for (span, read) in reads {
            match &read.result {
                Ok(()) => span.members.clone().for_each(|index| {
                    take(index, Ok(&read.pages[(places[index].0 - span.at.0) as usize]));
                }),
                Err(error) if span.blocks == 1 => {
                    span.members.clone().for_each(|index| take(index, Err(error.clone())));
                }
                Err(_) => span.members.clone().for_each(|index| self.read_one(places[index], index, take)),
            }
            spare.push(read.pages);
        }
    }

    fn read_one(&self, place: Block, index: usize, take: &mut dyn FnMut(usize, Result<&Page, DeviceError>)) {
        let mut page = Page::zeroed();
        let read = self.device.read(place, std::slice::from_mut(&mut *page));
        take(index, read.map(|()| &*page));
    }

    pub(crate) fn corrupt(&self, place: Block, what: String, expected: u32, found: u32) -> StoreError {
        StoreError::Corrupt { device: self.device.name().to_owned(), place, what, expected, found }
    }
}

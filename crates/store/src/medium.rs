//! The store's device, with what all who use it share: how errors of flushes are told, what is counted, how many reads it takes.

#[cfg(feature = "planted-bugs")]
use crate::bug::PlantedStoreBugs;
use crate::coalesce::{self, Span};
use crate::counters::{AtomicStoreCounters, count};
use crate::error::StoreError;
use crate::flusher::{DeviceFlusher, FailedFlushes};
use crate::superblock::Geometry;
use device::{Block, Device, DeviceError, Operation, Page, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The error number of a failed read or write, on every Linux.
const EIO: i32 = 5;

/// Blocks in one read of the device: 4 MiB, which only those who read much ask for.
pub(crate) const RUN_BLOCKS_MAX: u64 = 1024;

/// The device and its layout. Nothing of it is lost in a crash but the counters.
pub(crate) struct Medium {
    device: Arc<dyn Device>,
    /// As the store was opened, but for how many segments it has.
    opened: Geometry,
    segments: AtomicU32,
    counting: AtomicStoreCounters,
    flushes: DeviceFlusher,
    /// The file system below had no space when it was last asked.
    is_full_below: AtomicBool,
    #[cfg(feature = "planted-bugs")]
    planted: PlantedStoreBugs,
}

impl Medium {
    pub(crate) fn new(device: Arc<dyn Device>, geometry: Geometry) -> Medium {
        Medium {
            device,
            opened: geometry,
            segments: AtomicU32::new(geometry.segments),
            counting: AtomicStoreCounters::default(),
            flushes: DeviceFlusher::default(),
            is_full_below: AtomicBool::new(false),
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

    /// The layout by now.
    pub(crate) fn geometry(&self) -> Geometry {
        self.opened.with_segments(self.segments.load(Ordering::Acquire))
    }

    /// The store has been made larger.
    pub(crate) fn set_geometry(&self, grown: Geometry) {
        self.segments.store(grown.segments, Ordering::Release);
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

    /// Whether the file system below had no space for a segment when it was last asked.
    pub(crate) fn is_known_full_below(&self) -> bool {
        self.is_full_below.load(Ordering::Relaxed)
    }

    pub(crate) fn set_full_below(&self, is_full: bool) {
        self.is_full_below.store(is_full, Ordering::Relaxed);
    }

    /// Taken before anything is written for which [`flush_since`](Medium::flush_since) is to answer.
    pub(crate) fn failed_flushes(&self) -> FailedFlushes {
        self.flushes.failed_flushes()
    }

    /// Makes everything durable that was written since `failed` was taken.
    pub(crate) fn flush_since(&self, failed: FailedFlushes) -> Result<(), StoreError> {
        count(&self.counting.flushes, 1);
        match self.flushes.flush_since(failed, || self.device.flush()) {
            Some(flushed) => Ok(flushed?),
            None => {
                let reason =
                    "another flush failed meanwhile, and may have taken these writes with it".to_owned();
                let (device, operation) = (self.device.name().to_owned(), Operation::Flush);
                Err(DeviceError { device, operation, at: Block(0), count: 0, errno: EIO, reason }.into())
            }
        }
    }

    /// Writes, and counts it.
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

    /// Trims segments, and waits until that is durable: a trim that came late would take what is written next.
    /// A device that fails a trim is asked for none any more: what a segment held does no harm to what comes next. After a
    /// failed flush they stay dead, and the next checkpoint tries again.
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
            if self.device.trim(self.geometry().start(segment), self.geometry().segment_blocks).is_err() {
                count(&self.counting.trims_failed, 1);
                break;
            }
        }
        self.flush_since(since)
    }

    /// Reads blocks, consecutive ones together, each with its own result. No place may come twice.
    pub(crate) fn read_blocks(&self, places: &[Block]) -> Vec<Result<Page, StoreError>> {
        let mut runs: Vec<Read> = places
            .chunk_by(|at, next| at.0 + 1 == next.0)
            .flat_map(|run| run.chunks(RUN_BLOCKS_MAX as usize))
            .map(|run| Read::new(run[0], run.len()))
            .collect();
        count(&self.counting.device_reads, runs.len() as u64);
        self.device.read_batch(&mut runs);
        let pages = |run: Read| {
            let result = run.result;
            run.pages.into_iter().map(move |page| result.clone().map(|()| page).map_err(StoreError::from))
        };
        runs.into_iter().flat_map(pages).collect()
    }

    /// Reads blocks that are given in ascending order, and hands each to `take` by its number. A bounded number are read at
    /// once, while `take` gets those before them. Where a read of several fails, each of them is read by itself, so that each
    /// has its own result.
    pub(crate) fn read_coalesced(
        &self,
        places: &[Block],
        gap_blocks_max: u64,
        take: &mut dyn FnMut(usize, Result<&Page, DeviceError>),
    ) {
        let all = coalesce::spans(places, gap_blocks_max);
        let mut rest = &all[..];
        // Memory is kept from one batch to the next: new memory costs as much as the reading.
        let mut spare: Vec<Vec<Page>> = Vec::new();
        let mut before: Vec<(&Span, Read)> = Vec::new();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(coalesce::batch(rest));
            rest = later;
            let mut reads: Vec<Read> = now.iter().map(|span| span.read(&mut spare)).collect();
            count(&self.counting.device_reads, reads.len() as u64);
            self.device.read_batch_while(&mut reads, &mut || {
                self.hand_out(places, before.drain(..), &mut spare, take);
            });
            before = now.iter().zip(reads).collect();
        }
        self.hand_out(places, before.drain(..), &mut spare, take);
    }

    /// Hands to `take` what was read, and to `spare` its memory.
    fn hand_out<'a>(
        &self,
        places: &[Block],
        reads: impl Iterator<Item = (&'a Span, Read)>,
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

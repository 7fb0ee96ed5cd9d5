//! Reading many blocks with few reads: those that lie near each other are read together, and what lies between them is
//! thrown away.

use crate::counters::count;
use crate::error::StoreError;
use crate::read::Want;
use crate::store::Store;
use crate::volume::VolumeId;
use device::{Block, DeviceError, Lsn, ObjectId, Page, PageNo, Read};
use std::ops::Range;
use zerocopy::FromZeros;

/// Blocks that are read for nothing rather than begin another read: 128 KiB, what a volume that takes 1 ms for a read and
/// gives 128 MiB a second reads in that time.
pub(crate) const GAP_BLOCKS_MAX: u64 = 32;

/// The same while a store starts and `nodes` of the map are read, level by level, for which everybody waits: 1 MiB, what a disk
/// reads in the time of a seek, and other devices in less than a millisecond; or half of it where they are so many that what is
/// read for nothing would be hundreds of MiB.
pub(crate) fn gap_blocks_max_at_start(nodes: usize) -> u64 {
    if nodes <= 4096 { 256 } else { 128 }
}

/// Blocks of one read: 16 MiB, more than any device needs for its full speed.
const SPAN_BLOCKS_MAX: u64 = 4096;

/// Blocks read at once, so that memory for them is bounded: 16 MiB, and as much is being used that was read before.
const BATCH_BLOCKS: usize = 4096;

/// What is found of a page: its bytes and its page LSN, or `None` for a hole.
pub type FoundPage<'a> = Result<Option<(&'a Page, Lsn)>, StoreError>;

/// One read of the device, for some of the blocks that are wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Span {
    at: Block,
    blocks: usize,
    /// Which of the blocks wanted.
    members: Range<usize>,
}

/// The reads for blocks in ascending order, of which some may come twice.
fn spans(places: &[Block], gap_blocks_max: u64) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    for (index, &place) in places.iter().enumerate() {
        if let Some(last) = spans.last_mut() {
            let end = last.at.0 + last.blocks as u64;
            let blocks = place.0 + 1 - last.at.0;
            if place.0 <= end + gap_blocks_max && blocks <= SPAN_BLOCKS_MAX {
                last.blocks = last.blocks.max(blocks as usize);
                last.members.end = index + 1;
                continue;
            }
        }
        spans.push(Span { at: place, blocks: 1, members: index..index + 1 });
    }
    spans
}

/// The first of `spans` that are read at once: at least one.
fn batch(spans: &[Span]) -> usize {
    let mut blocks = 0;
    let fits = |span: &&Span| {
        blocks += span.blocks;
        blocks <= BATCH_BLOCKS
    };
    spans.iter().take_while(fits).count().max(1)
}

impl Store {
    /// Reads blocks that are given in ascending order, and hands each to `take` by its number. A bounded number are read at
    /// once, while `take` gets those before them. Where a read of several fails, each of them is read by itself, so that each
    /// has its own result.
    pub(crate) fn read_coalesced(
        &self,
        places: &[Block],
        gap_blocks_max: u64,
        take: &mut dyn FnMut(usize, Result<&Page, DeviceError>),
    ) {
        let all = spans(places, gap_blocks_max);
        let mut rest = &all[..];
        // Memory is kept from one batch to the next: new memory costs as much as the reading.
        let mut spare: Vec<Vec<Page>> = Vec::new();
        let mut before: Vec<(&Span, Read)> = Vec::new();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(batch(rest));
            rest = later;
            let mut reads: Vec<Read> = now.iter().map(|span| read_of(span, &mut spare)).collect();
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

    /// Reads many pages in the order in which they lie on the device, with few reads, and hands each to `take` by its
    /// number. Like [`read_from`](Store::read_from), for a caller that reads much and keeps the bytes in a place of its own.
    pub fn read_all(
        &self,
        volume: VolumeId,
        pages: &[(ObjectId, PageNo)],
        take: &mut dyn FnMut(usize, FoundPage<'_>),
    ) {
        let mut wants: Vec<Want> = pages.iter().map(|&(object, page)| Want::new(object, page)).collect();
        let mut placed = self.lookup(volume, &mut wants);
        placed.sort_by_key(|placed| placed.entry.place);
        count(&self.counting.page_reads, placed.len() as u64);
        let places: Vec<Block> = placed.iter().map(|placed| placed.entry.place).collect();
        let mut absent = vec![true; pages.len()];
        self.read_coalesced(&places, GAP_BLOCKS_MAX, &mut |number, found| {
            let (want, entry) = (placed[number].want, &placed[number].entry);
            let (object, page) = pages[want];
            absent[want] = false;
            let intact =
                |bytes| self.intact(object, page, entry, bytes).map(|()| Some((bytes, entry.page_lsn)));
            take(want, found.map_err(StoreError::from).and_then(intact));
        });
        let map = self.map();
        placed.iter().for_each(|placed| map.segments.unpin(placed.entry.place));
        drop(map);
        for (index, want) in wants.into_iter().enumerate().filter(|&(index, _)| absent[index]) {
            take(index, want.found.map(|_| None));
        }
    }
}

/// A read with memory that was used before, where there is some.
fn read_of(span: &Span, spare: &mut Vec<Vec<Page>>) -> Read {
    let mut read = Read::new(span.at, 0);
    read.pages = spare.pop().unwrap_or_default();
    read.pages.truncate(span.blocks);
    let more = span.blocks - read.pages.len();
    Page::extend_vec_zeroed(&mut read.pages, more).expect("memory for pages");
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &[u64]) -> Vec<(u64, usize, Range<usize>)> {
        let places: Vec<Block> = places.iter().map(|&place| Block(place)).collect();
        spans(&places, GAP_BLOCKS_MAX)
            .into_iter()
            .map(|span| (span.at.0, span.blocks, span.members))
            .collect()
    }

    #[test]
    fn near_blocks_share_a_read_and_far_ones_do_not() {
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[7, 8, 8, 12]), [(7, 6, 0..4)]);
        assert_eq!(of(&[7, 8 + GAP_BLOCKS_MAX]), [(7, 2 + GAP_BLOCKS_MAX as usize, 0..2)]);
        assert_eq!(of(&[7, 9 + GAP_BLOCKS_MAX]), [(7, 1, 0..1), (9 + GAP_BLOCKS_MAX, 1, 1..2)]);
    }

    #[test]
    fn a_long_run_is_cut_into_reads_of_at_most_16_mib_and_these_into_batches() {
        let places: Vec<u64> = (0..3 * SPAN_BLOCKS_MAX + 1).collect();
        let blocks: Vec<usize> = of(&places).iter().map(|(_, blocks, _)| *blocks).collect();
        assert_eq!(blocks, [4096, 4096, 4096, 1]);
        let places: Vec<Block> = places.into_iter().map(Block).collect();
        assert_eq!(batch(&spans(&places, GAP_BLOCKS_MAX)), 1);
        assert_eq!(batch(&spans(&places, GAP_BLOCKS_MAX)[3..]), 1);
        let apart: Vec<Block> = (0..10_000).map(|number| Block(2 * GAP_BLOCKS_MAX * number)).collect();
        assert_eq!(batch(&spans(&apart, GAP_BLOCKS_MAX)), BATCH_BLOCKS);
    }
}

//! Reads many blocks with few reads: blocks that lie near each other are read together, and the ones between
//! them are thrown away.

use device::{Block, BlockRead, Page};
use std::ops::Range;
use zerocopy::FromZeros;

/// Unneeded blocks that are read rather than begin another read: 128 KiB, as much as a volume with 1 ms a
/// read and 128 MiB/s reads in that time.
pub(crate) const GAP_BLOCKS_MAX: u64 = 32;

/// Blocks of one read at most: 16 MiB, more than any device needs for its full speed.
const READ_BLOCKS_MAX: u64 = 4096;

/// Blocks read at once, to bound memory: 16 MiB, and as much again for the blocks read before, which are
/// being used.
const BATCH_BLOCKS: usize = 4096;

/// One read of the device, for some of the wanted blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CoalescedRead {
    pub(crate) at: Block,
    pub(crate) blocks: usize,
    /// Indexes of the wanted blocks in it.
    pub(crate) members: Range<usize>,
}

/// The reads for blocks in ascending order. A block may be given twice.
pub(crate) fn coalesce_reads(places: &[Block], gap_blocks_max: u64) -> Vec<CoalescedRead> {
    let mut spans: Vec<CoalescedRead> = Vec::new();
    for (index, &place) in places.iter().enumerate() {
        if let Some(last) = spans.last_mut() {
            let end = last.at.0 + last.blocks as u64;
            let blocks = place.0 + 1 - last.at.0;
            if place.0 <= end + gap_blocks_max && blocks <= READ_BLOCKS_MAX {
                last.blocks = last.blocks.max(blocks as usize);
                last.members.end = index + 1;
                continue;
            }
        }
        spans.push(CoalescedRead { at: place, blocks: 1, members: index..index + 1 });
    }
    spans
}

/// How many of the first reads are made at once: at least one.
pub(crate) fn batch_len(spans: &[CoalescedRead]) -> usize {
    let mut blocks = 0;
    let fits = |span: &&CoalescedRead| {
        blocks += span.blocks;
        blocks <= BATCH_BLOCKS
    };
    spans.iter().take_while(fits).count().max(1)
}

impl CoalescedRead {
    /// A read, with reused memory if there is some.
    pub(crate) fn to_read(&self, spare: &mut Vec<Vec<Page>>) -> BlockRead {
        let mut read = BlockRead::new(self.at, 0);
        read.pages = spare.pop().unwrap_or_default();
        read.pages.truncate(self.blocks);
        let more = self.blocks - read.pages.len();
        Page::extend_vec_zeroed(&mut read.pages, more).expect("memory for pages");
        read
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(places: &[u64]) -> Vec<(u64, usize, Range<usize>)> {
        let places: Vec<Block> = places.iter().map(|&place| Block(place)).collect();
        coalesce_reads(&places, GAP_BLOCKS_MAX)
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
    fn long_runs_are_cut_into_reads_and_batches() {
        let places: Vec<u64> = (0..3 * READ_BLOCKS_MAX + 1).collect();
        let blocks: Vec<usize> = of(&places).iter().map(|(_, blocks, _)| *blocks).collect();
        assert_eq!(blocks, [4096, 4096, 4096, 1]);
        let places: Vec<Block> = places.into_iter().map(Block).collect();
        assert_eq!(batch_len(&coalesce_reads(&places, GAP_BLOCKS_MAX)), 1);
        assert_eq!(batch_len(&coalesce_reads(&places, GAP_BLOCKS_MAX)[3..]), 1);
        let apart: Vec<Block> = (0..10_000).map(|number| Block(2 * GAP_BLOCKS_MAX * number)).collect();
        assert_eq!(batch_len(&coalesce_reads(&apart, GAP_BLOCKS_MAX)), BATCH_BLOCKS);
    }
}

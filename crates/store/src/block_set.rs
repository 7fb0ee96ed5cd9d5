//! A set of blocks.

use crate::superblock::StoreGeometry;
use device::Block;

/// One bit for each block of the device.
#[derive(Debug)]
pub(crate) struct BlockSet(Vec<u64>);

impl BlockSet {
    pub(crate) fn empty(geometry: StoreGeometry) -> BlockSet {
        BlockSet(vec![0; geometry.total_blocks.div_ceil(64) as usize])
    }

    /// Makes room for the blocks of a store that has grown.
    pub(crate) fn grow(&mut self, geometry: StoreGeometry) {
        self.0.resize(geometry.total_blocks.div_ceil(64) as usize, 0);
    }

    /// Adds a block; `true` if it is new.
    pub(crate) fn add(&mut self, at: Block) -> bool {
        let Some(word) = self.0.get_mut((at.0 / 64) as usize) else { return false };
        let bit = 1 << (at.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    pub(crate) fn has(&self, at: Block) -> bool {
        self.0.get((at.0 / 64) as usize).is_some_and(|word| word >> (at.0 % 64) & 1 == 1)
    }

    /// How many blocks of a segment are in the set.
    pub(crate) fn count_in_segment(&self, geometry: StoreGeometry, segment: u32) -> u32 {
        let start = geometry.segment_start(segment).0;
        (start..start + geometry.segment_blocks).filter(|&at| self.has(Block(at))).count() as u32
    }

    /// The last block of a segment that is in the set.
    pub(crate) fn last_in_segment(&self, geometry: StoreGeometry, segment: u32) -> Option<Block> {
        let start = geometry.segment_start(segment).0;
        (start..start + geometry.segment_blocks).rev().map(Block).find(|&at| self.has(at))
    }
}

//! A set of blocks.

use crate::superblock::Geometry;
use device::Block;

/// One bit for each block of the device.
#[derive(Debug)]
pub(crate) struct Blocks(Vec<u64>);

impl Blocks {
    pub(crate) fn none(geometry: &Geometry) -> Blocks {
        Blocks(vec![0; geometry.total_blocks.div_ceil(64) as usize])
    }

    /// Adds a block; `true` if it was not there.
    pub(crate) fn add(&mut self, at: Block) -> bool {
        let Some(word) = self.0.get_mut((at.0 / 64) as usize) else { return false };
        let bit = 1 << (at.0 % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// How many of a segment's blocks are there.
    pub(crate) fn in_segment(&self, geometry: &Geometry, segment: u32) -> u32 {
        let start = geometry.start(segment).0;
        let has = |at: &u64| self.0[(at / 64) as usize] >> (at % 64) & 1 == 1;
        (start..start + geometry.segment_blocks).filter(has).count() as u32
    }
}

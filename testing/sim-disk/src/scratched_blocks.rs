//! A disk with places that cannot be read.

use crate::disk::SimDisk;
use crate::hooked_disk::{DiskHooks, HookedDisk};
use device::{Block, Device, DeviceError, DeviceOperation, Page};
use std::sync::Arc;

/// Blocks of a disk that cannot be read: a read that asks for one of them fails as a whole. They can be written, and stay as
/// unreadable as they were.
pub struct ScratchedBlocks {
    blocks: Vec<u64>,
}

impl ScratchedBlocks {
    /// `disk`, without what is in `blocks`.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(disk: &Arc<SimDisk>, blocks: &[u64]) -> Arc<HookedDisk<ScratchedBlocks>> {
        HookedDisk::new(disk, ScratchedBlocks { blocks: blocks.to_vec() })
    }
}

impl DiskHooks for ScratchedBlocks {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let asked = at.0..at.0 + into.len() as u64;
        match self.blocks.iter().any(|block| asked.contains(block)) {
            true => Err(disk.error(DeviceOperation::Read, at, into.len() as u64, "the medium is scratched")),
            false => disk.read(at, into),
        }
    }
}

//! A disk with unreadable blocks.

use crate::disk::SimDisk;
use crate::hooked_disk::{DiskHooks, HookedDisk};
use device::{Block, Device, DeviceError, DeviceOperation, Page};
use std::sync::Arc;

/// Blocks of a disk that cannot be read: a read that includes one of them fails as a whole. They can be
/// written, and stay unreadable.
pub struct ScratchedBlocks {
    blocks: Vec<u64>,
}

impl ScratchedBlocks {
    /// Wraps `disk`, so that `blocks` cannot be read.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(disk: &Arc<SimDisk>, blocks: &[u64]) -> Arc<HookedDisk<ScratchedBlocks>> {
        HookedDisk::new(disk, ScratchedBlocks { blocks: blocks.to_vec() })
    }
}

impl DiskHooks for ScratchedBlocks {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let asked = at.0..at.0 + into.len() as u64;
        if self.blocks.iter().any(|block| asked.contains(block)) {
            return Err(disk.error(DeviceOperation::Read, at, into.len() as u64, "the medium is scratched"));
        }
        disk.read(at, into)
    }
}

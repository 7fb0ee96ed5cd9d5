//! A disk with places that cannot be read.

use crate::disk::SimDisk;
use crate::hooked::{Hooked, Hooks};
use device::{Block, Device, DeviceError, Operation, Page};
use std::sync::Arc;

/// Blocks of a disk that cannot be read: a read that asks for one of them fails as a whole. They can be written, and stay as
/// unreadable as they were.
pub struct Scratched {
    blocks: Vec<u64>,
}

impl Scratched {
    /// `disk`, without what is in `blocks`.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(disk: &Arc<SimDisk>, blocks: &[u64]) -> Arc<Hooked<Scratched>> {
        Hooked::new(disk, Scratched { blocks: blocks.to_vec() })
    }
}

impl Hooks for Scratched {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let asked = at.0..at.0 + into.len() as u64;
        match self.blocks.iter().any(|block| asked.contains(block)) {
            true => Err(disk.error(Operation::Read, at, into.len() as u64, "the medium is scratched")),
            false => disk.read(at, into),
        }
    }
}

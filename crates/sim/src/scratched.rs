//! A disk with places that cannot be read.

use crate::disk::SimDisk;
use device::{Block, Device, DeviceError, Operation, Page};
use std::sync::Arc;

/// A disk some blocks of which cannot be read: a read that asks for one of them fails as a whole. They can be written, and stay as
/// unreadable as they were.
pub struct Scratched {
    disk: Arc<SimDisk>,
    blocks: Vec<u64>,
}

impl Scratched {
    /// `disk`, without what is in `blocks`.
    pub fn new(disk: &Arc<SimDisk>, blocks: &[u64]) -> Arc<Scratched> {
        Arc::new(Scratched { disk: disk.clone(), blocks: blocks.to_vec() })
    }
}

impl Device for Scratched {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let asked = at.0..at.0 + into.len() as u64;
        match self.blocks.iter().any(|block| asked.contains(block)) {
            true => Err(self.disk.error(Operation::Read, at, into.len() as u64, "the medium is scratched")),
            false => self.disk.read(at, into),
        }
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.disk.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.disk.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

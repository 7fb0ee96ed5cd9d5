//! A disk at whose calls a test does something of its own.

use crate::disk::SimDisk;
use device::{Block, Device, DeviceError, Page};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// What a test does at a disk's calls, each in place of the call itself; it makes that, if at all, when it likes.
pub trait DiskHooks: Send + Sync {
    /// In place of [`Device::read`].
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        disk.read(at, into)
    }

    /// In place of [`Device::write`].
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        disk.write(at, from)
    }

    /// In place of [`Device::flush`].
    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        disk.flush()
    }

    /// In place of [`Device::trim`].
    fn trim(&self, disk: &SimDisk, at: Block, count: u64) -> Result<(), DeviceError> {
        disk.trim(at, count)
    }
}

/// A disk with [`DiskHooks`], to which it derefs.
pub struct HookedDisk<H> {
    /// The disk below.
    pub disk: Arc<SimDisk>,
    hooks: H,
}

impl<H: DiskHooks> HookedDisk<H> {
    /// `disk`, whose calls go through `hooks`.
    pub fn new(disk: &Arc<SimDisk>, hooks: H) -> Arc<HookedDisk<H>> {
        Arc::new(HookedDisk { disk: disk.clone(), hooks })
    }
}

impl<H> Deref for HookedDisk<H> {
    type Target = H;

    fn deref(&self) -> &H {
        &self.hooks
    }
}

impl<H: DiskHooks> Device for HookedDisk<H> {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn grow(&self, blocks: u64) -> Result<(), DeviceError> {
        self.disk.grow(blocks)
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.hooks.read(&self.disk, at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.hooks.write(&self.disk, at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.hooks.flush(&self.disk)
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.hooks.trim(&self.disk, at, count)
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.allocate(at, count)
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        self.disk.allocated()
    }

    fn spare_blocks(&self) -> Option<u64> {
        self.disk.spare_blocks()
    }
}

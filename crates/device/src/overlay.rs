//! A device over another that keeps every write to itself: what is opened through it may recover, begin an
//! incarnation and tidy up, and the media below stay as they were.

use crate::address::Block;
use crate::device::{BlockRead, Device, DeviceError, DeviceOperation};
use crate::page::Page;
use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// Writes are kept in memory, by block, until the overlay is dropped; reads see them. Opening a store writes some
/// dozens of blocks; more than a buffer's worth can never come.
pub struct OverlayDevice<D> {
    below: D,
    written: RwLock<HashMap<Block, Box<Page>>>,
}

impl<D: Device> OverlayDevice<D> {
    /// One that holds nothing yet.
    pub fn new(below: D) -> OverlayDevice<D> {
        OverlayDevice { below, written: RwLock::new(HashMap::new()) }
    }

    fn apply_written(&self, at: Block, into: &mut [Page]) {
        let written = self.written.read().unwrap_or_else(PoisonError::into_inner);
        for (index, page) in into.iter_mut().enumerate() {
            if let Some(newer) = written.get(&at.plus(index as u64)) {
                page.0 = newer.0;
            }
        }
    }

    fn apply_written_to_all(&self, reads: &mut [BlockRead]) {
        for read in reads {
            if read.result.is_err() {
                read.result = self.read_unwritten(read.at, &mut read.pages);
            }
            self.apply_written(read.at, &mut read.pages);
        }
    }

    /// One by one, those blocks that were not written here: what cannot be read below may be one that was.
    fn read_unwritten(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let is_covered = |at| self.written.read().unwrap_or_else(PoisonError::into_inner).contains_key(&at);
        for (index, page) in into.iter_mut().enumerate() {
            let at = at.plus(index as u64);
            if !is_covered(at) {
                self.below.read(at, std::slice::from_mut(page))?;
            }
        }
        Ok(())
    }
}

impl<D: Device> Device for OverlayDevice<D> {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        if self.below.read(at, into).is_err() {
            self.read_unwritten(at, into)?;
        }
        self.apply_written(at, into);
        Ok(())
    }

    fn read_batch(&self, reads: &mut [BlockRead]) {
        self.below.read_batch(reads);
        self.apply_written_to_all(reads);
    }

    fn read_batch_while(&self, reads: &mut [BlockRead], meanwhile: &mut dyn FnMut()) {
        self.below.read_batch_while(reads, meanwhile);
        self.apply_written_to_all(reads);
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let count = from.len() as u64;
        if at.0.checked_add(count).is_none_or(|end| end > self.blocks()) {
            let (device, reason) = (self.name().into(), "past the end".into());
            return Err(DeviceError {
                device,
                operation: DeviceOperation::Write,
                at,
                count,
                errno: 28,
                reason,
            });
        }
        let mut written = self.written.write().unwrap_or_else(PoisonError::into_inner);
        for (index, page) in from.iter().enumerate() {
            written.insert(at.plus(index as u64), Box::new(page.clone()));
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, _at: Block, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn forgets_writes(&self) -> bool {
        true
    }
}

//! A device over another that keeps every write to itself: what is opened through it may recover, begin an
//! incarnation and tidy up, and the media below stay as they were.

use buffer::{Buffer, BufferError};
use device::{Block, Device, DeviceError, Operation, Page, Read};
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};
use store::{Store, VolumeId};

/// Writes are kept in memory, by block, until the overlay is dropped; reads see them. Opening a store writes some
/// dozens of blocks; more than a buffer's worth can never come.
pub(crate) struct Overlay<D> {
    below: D,
    written: RwLock<HashMap<Block, Box<Page>>>,
}

impl<D: Device> Overlay<D> {
    pub(crate) fn new(below: D) -> Overlay<D> {
        Overlay { below, written: RwLock::new(HashMap::new()) }
    }

    fn cover(&self, at: Block, into: &mut [Page]) {
        let written = self.written.read().unwrap_or_else(PoisonError::into_inner);
        for (index, page) in into.iter_mut().enumerate() {
            if let Some(newer) = written.get(&at.plus(index as u64)) {
                page.0 = newer.0;
            }
        }
    }

    fn cover_all(&self, reads: &mut [Read]) {
        reads.iter_mut().for_each(|read| self.cover(read.at, &mut read.pages));
    }
}

impl<D: Device> Device for Overlay<D> {
    fn blocks(&self) -> u64 {
        self.below.blocks()
    }

    fn name(&self) -> &str {
        self.below.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.below.read(at, into)?;
        self.cover(at, into);
        Ok(())
    }

    fn read_batch(&self, reads: &mut [Read]) {
        self.below.read_batch(reads);
        self.cover_all(reads);
    }

    fn read_batch_while(&self, reads: &mut [Read], meanwhile: &mut dyn FnMut()) {
        self.below.read_batch_while(reads, meanwhile);
        self.cover_all(reads);
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let count = from.len() as u64;
        if at.0.checked_add(count).is_none_or(|end| end > self.blocks()) {
            let (device, reason) = (self.name().into(), "past the end".into());
            return Err(DeviceError { device, operation: Operation::Write, at, count, errno: 28, reason });
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
}

/// Blocks of a buffer that is never written to media: what opening a volume to look at it changes.
const BLANK_BLOCKS: u64 = 4096;

/// A device of zeros.
struct Blank;

impl Device for Blank {
    fn blocks(&self) -> u64 {
        BLANK_BLOCKS
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn read(&self, _at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        into.iter_mut().for_each(|page| page.0.fill(0));
        Ok(())
    }

    fn write(&self, _at: Block, _from: &[Page]) -> Result<(), DeviceError> {
        unreachable!("an overlay keeps every write")
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, _at: Block, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// An empty buffer in memory for one volume of a store, to look at a volume that the store has as a whole.
pub(crate) fn blank_buffer(store: &Store, volume: VolumeId) -> Result<Arc<dyn Device>, BufferError> {
    let device: Arc<dyn Device> = Arc::new(Overlay::new(Blank));
    Buffer::format_after(&*device, store.id(), volume.0, store.newest_sequence())?;
    Ok(device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::{check_contract, pages};
    use host::{Access, Disk, Overwrite};

    #[test]
    fn an_overlay_is_a_device_and_what_is_below_stays_as_it_was() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("below");
        let disk = Disk::create(&path, 64 * 4096, Overwrite::No).expect("a file");
        let mut full = pages(64);
        full.iter_mut().for_each(|page| page.0.fill(0xa5));
        disk.write(Block(0), &full).and_then(|()| disk.flush()).expect("filled");
        drop(disk);
        check_contract(&Overlay::new(Disk::open(&path, Access::Read).expect("to look")));
        assert!(std::fs::read(&path).expect("it").iter().all(|&byte| byte == 0xa5));
    }
}

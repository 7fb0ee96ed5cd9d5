//! A buffer in memory, over nothing, to look at a volume that the store has as a whole.

use buffer::{Buffer, BufferError};
use device::{Block, Device, DeviceError, Overlay, Page};
use std::sync::Arc;
use store::{Store, VolumeId};

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
    Buffer::format_after(&*device, store.id(), volume.0, store.newest_lsn())?;
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

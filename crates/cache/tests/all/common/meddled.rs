//! A disk in the middle of whose work others go on, as other threads' do.

use device::{Block, Device, DeviceError, Page};
use sim_disk::SimDisk;
use std::sync::{Arc, Mutex};

/// Called before a device's work.
pub type Meddler = Box<dyn FnMut() + Send>;

/// A disk below which somebody else gets a turn before each of its operations.
pub struct Meddled {
    pub disk: Arc<SimDisk>,
    pub meddler: Arc<Mutex<Option<Meddler>>>,
}

impl Meddled {
    fn meddle(&self) {
        let taken = self.meddler.lock().expect("one thread").take();
        if let Some(mut meddler) = taken {
            meddler();
            *self.meddler.lock().expect("one thread") = Some(meddler);
        }
    }
}

impl Device for Meddled {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.meddle();
        self.disk.read(at, into)
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.meddle();
        self.disk.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.meddle();
        self.disk.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

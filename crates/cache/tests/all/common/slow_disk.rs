//! A disk that takes time.

use super::plain::Machine;
use device::{Block, Device, DeviceError, Page};
use sim_disk::{SimClock, SimDisk};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type Others = Box<dyn FnMut() + Send>;

/// A disk that takes time, in which other threads get on.
pub struct SlowDisk {
    disk: Arc<SimDisk>,
    clock: Arc<SimClock>,
    per_block: Duration,
    per_flush: Duration,
    others: Mutex<Option<Others>>,
}

impl SlowDisk {
    /// Before the machine's store.
    pub fn of(machine: &Machine, per_block: Duration, per_flush: Duration) -> Arc<SlowDisk> {
        let disk = machine.store.clone();
        let clock = machine.clock.clone();
        Arc::new(SlowDisk { disk, clock, per_block, per_flush, others: Mutex::default() })
    }

    /// Meanwhile `others` is called, once for each write and flush.
    pub fn meanwhile(&self, others: impl FnMut() + Send + 'static) {
        *self.others.lock().expect("one thread") = Some(Box::new(others));
    }

    /// From now on nobody gets on meanwhile.
    pub fn alone(&self) {
        *self.others.lock().expect("one thread") = None;
    }

    fn takes(&self, time: Duration) {
        self.clock.advance(time);
        let taken = self.others.lock().expect("one thread").take();
        if let Some(mut others) = taken {
            others();
            *self.others.lock().expect("one thread") = Some(others);
        }
    }
}

impl Device for SlowDisk {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }
    fn name(&self) -> &str {
        self.disk.name()
    }
    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.disk.read(at, into)
    }
    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.takes(self.per_block * from.len() as u32);
        self.disk.write(at, from)
    }
    fn flush(&self) -> Result<(), DeviceError> {
        self.takes(self.per_flush);
        self.disk.flush()
    }
    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.disk.trim(at, count)
    }
}

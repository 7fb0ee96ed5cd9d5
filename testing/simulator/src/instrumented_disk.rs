//! Logs every operation of a disk, and gives other work its turns.

use crate::event_log::{EventLog, MediumRole};
use crate::interleaving::Interleaving;
use device::{Block, Device, DeviceError, DeviceOperation, Page};
use sim_disk::SimDisk;
use std::ops::Range;
use std::sync::Arc;

/// The magics of log blocks: the store's chunks, and the buffer's groups.
const LOGS: [&[u8]; 2] = [b"weir.log", b"weirgrup"];

/// A disk that logs every operation, and gives other work its turns before and after each.
pub(crate) struct InstrumentedDisk {
    disk: Arc<SimDisk>,
    role: MediumRole,
    log: Arc<EventLog>,
    meanwhile: Arc<Interleaving>,
}

impl InstrumentedDisk {
    pub(crate) fn new(
        disk: &Arc<SimDisk>,
        role: MediumRole,
        log: &Arc<EventLog>,
        meanwhile: &Arc<Interleaving>,
    ) -> InstrumentedDisk {
        InstrumentedDisk { disk: disk.clone(), role, log: log.clone(), meanwhile: meanwhile.clone() }
    }

    /// Runs one operation, with turns of other work before and after it.
    fn watch(
        &self,
        operation: DeviceOperation,
        at: Block,
        count: u64,
        work: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        self.meanwhile.turn();
        let rot_met = self.disk.rot_reads();
        let result = work();
        let words = [self.role as u64, operation as u64, at.0, count, u64::from(result.is_ok())];
        let text = || format!("    {:?}: {operation:?} {count} at {at}: {result:?}", self.role);
        self.log.event(text, &words);
        self.log.asked(self.role, operation, result.is_ok());
        let made_up = result.as_ref().is_err_and(|error| error.reason.starts_with("made-up"));
        self.log.made_up(u64::from(made_up || self.disk.rot_reads() > rot_met));
        self.meanwhile.turn();
        result
    }
}

impl Device for InstrumentedDisk {
    fn blocks(&self) -> u64 {
        self.disk.blocks()
    }

    fn name(&self) -> &str {
        self.disk.name()
    }

    fn grow(&self, blocks: u64) -> Result<(), DeviceError> {
        self.watch(DeviceOperation::Grow, Block(0), blocks, || self.disk.grow(blocks))
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        self.watch(DeviceOperation::Read, at, into.len() as u64, || self.disk.read(at, into))
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.log.bytes(Page::bytes(from));
        if LOGS.iter().any(|magic| from[0].0.starts_with(magic)) {
            self.log.wrote(self.role, at, from.len() as u64);
        }
        self.watch(DeviceOperation::Write, at, from.len() as u64, || self.disk.write(at, from))
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.watch(DeviceOperation::Flush, Block(0), 0, || self.disk.flush())
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.watch(DeviceOperation::Trim, at, count, || self.disk.trim(at, count))
    }

    fn allocate(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.watch(DeviceOperation::Allocate, at, count, || self.disk.allocate(at, count))
    }

    fn allocated(&self) -> Option<Vec<Range<Block>>> {
        self.disk.allocated()
    }

    fn spare_blocks(&self) -> Option<u64> {
        self.disk.spare_blocks()
    }
}

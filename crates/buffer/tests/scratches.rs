//! Blocks that cannot be read.

mod model;

use buffer::{BufferError, Record};
use device::{Block, Device, DeviceError, Incarnation, ObjectId, Page, Sequence};
use model::{ID, open};
use sim::{Power, SimDisk};
use std::sync::Arc;

/// A disk with an unreadable block.
struct Scratched(Arc<SimDisk>, u64);

impl Device for Scratched {
    fn blocks(&self) -> u64 {
        self.0.blocks()
    }

    fn name(&self) -> &str {
        self.0.name()
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        match (at.0..at.0 + into.len() as u64).contains(&self.1) {
            // Past the end: an error that the disk knows how to make.
            true => self.0.read(Block(self.0.blocks()), into),
            false => self.0.read(at, into),
        }
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        self.0.write(at, from)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.0.flush()
    }

    fn trim(&self, at: Block, count: u64) -> Result<(), DeviceError> {
        self.0.trim(at, count)
    }
}

#[test]
fn an_unreadable_block_behind_the_log_is_no_reason_to_refuse_it_and_one_in_it_is() {
    let disk = SimDisk::new("buffer", 300, &Power::new(), 1);
    buffer::Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("an empty buffer");
    buffer.begin(Incarnation(1), Sequence(0)).expect("no faults");
    buffer.append(&[Record::Delete { object: ObjectId::default() }]).expect("room");
    buffer.commit().expect("no faults");
    let (_, found) = open(Arc::new(Scratched(disk.clone(), 20))).expect("the scratch is behind the log");
    assert_eq!(found.len(), 1);
    let error = open(Arc::new(Scratched(disk, 3))).err().expect("the scratch is in the log");
    assert!(matches!(error, BufferError::Device(_)), "{error}");
}

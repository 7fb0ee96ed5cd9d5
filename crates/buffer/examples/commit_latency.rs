//! What a commit of one 512 B record costs the processor, on a device that costs nothing, and a million appends.

use buffer::{Buffer, GroupNo, LogRecord};
use device::{Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo, StoreId};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Blocks in memory.
struct Memory(Mutex<Vec<Page>>);

impl Device for Memory {
    fn blocks(&self) -> u64 {
        16_384
    }

    fn name(&self) -> &str {
        "memory"
    }

    fn read(&self, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let at = at.0 as usize;
        into.clone_from_slice(&self.0.lock().expect("one thread")[at..at + into.len()]);
        Ok(())
    }

    fn write(&self, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let at = at.0 as usize;
        self.0.lock().expect("one thread")[at..at + from.len()].clone_from_slice(from);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn trim(&self, _at: Block, _count: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

fn main() {
    let id = StoreId([1; 16]);
    let device: Arc<dyn Device> = Arc::new(Memory(Mutex::new(device::pages(16_384))));
    Buffer::format(&*device, id).expect("memory does not fail");
    let buffer = Buffer::open(device, id, &mut |_| {}).expect("just formatted");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("memory does not fail");
    let record =
        LogRecord::Write { object: ObjectId::default(), page: PageNo(1), start: 0, bytes: &[7; 512] };
    for (what, commit_every) in [("commit each", 1), ("commit every 1000", 1000)] {
        let count = 1_000_000u32;
        let start = Instant::now();
        for done in 1..=count {
            let group = buffer.append(&[record]).expect("space: all is released").group;
            if done % commit_every == 0 {
                buffer.commit().expect("memory does not fail");
                buffer.release(GroupNo(group.0 + 1), 0);
            }
        }
        println!("{what}: {:?} per record", start.elapsed() / count);
    }
    println!("{:?}", buffer.counters());
}

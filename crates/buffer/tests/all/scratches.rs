//! Blocks that cannot be read, and how often the others are.

use crate::model::{ID, open};
use buffer::{BufferError, LogRecord};
use device::{Block, Device, DeviceError, Incarnation, Lsn, ObjectId, Page, PageNo};
use sim_disk::{DiskHooks, HookedDisk, PowerSupply, ScratchedBlocks, SimDisk};
use std::sync::{Arc, Mutex};

/// A buffer of one record, which begins at block 3.
fn with_a_record() -> Arc<SimDisk> {
    let disk = SimDisk::new("buffer", 300, &PowerSupply::new(), 1);
    buffer::Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("no faults");
    buffer.append(&[LogRecord::Delete { object: ObjectId::default() }]).expect("space");
    buffer.commit().expect("no faults");
    disk
}

#[test]
fn an_unreadable_block_behind_the_log_is_no_reason_to_refuse_it_and_one_in_it_is() {
    let disk = with_a_record();
    let (_, found) = open(ScratchedBlocks::new(&disk, &[20])).expect("the scratch is behind the log");
    assert_eq!(found.len(), 1);
    let error = open(ScratchedBlocks::new(&disk, &[3])).err().expect("the scratch is in the log");
    assert!(matches!(error, BufferError::Device(_)), "{error}");
}

#[test]
fn one_unreadable_header_slot_is_survived_and_two_are_an_error_of_the_device() {
    let disk = with_a_record();
    for slot in [[1], [2]] {
        let (_, found) = open(ScratchedBlocks::new(&disk, &slot)).expect("the other one can be read");
        assert_eq!(found.len(), 1, "without slot {slot:?}");
    }
    let error = open(ScratchedBlocks::new(&disk, &[1, 2])).err().expect("no slot can be read");
    assert!(matches!(error, BufferError::Device(_)), "{error}");
}

/// A disk that remembers how often each block was read.
struct Watched(Mutex<Vec<u32>>);

impl DiskHooks for Watched {
    fn read(&self, disk: &SimDisk, at: Block, into: &mut [Page]) -> Result<(), DeviceError> {
        let mut times = self.0.lock().expect("one thread");
        times[at.0 as usize..at.0 as usize + into.len()].iter_mut().for_each(|times| *times += 1);
        disk.read(at, into)
    }
}

#[test]
fn a_long_log_is_read_from_one_end_to_the_other_each_block_once() {
    let disk = SimDisk::new("buffer", 4000, &PowerSupply::new(), 1);
    buffer::Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("no faults");
    // Groups of three blocks, and some of 40 times as many.
    for number in 0..640 {
        let write =
            |page| LogRecord::Write { object: ObjectId::default(), page, start: 0, bytes: &[7; 4096] };
        buffer.append(&[write(PageNo(number)), write(PageNo(number + 1))]).expect("space");
        if number % 200 < 160 || number % 40 == 39 {
            buffer.commit().expect("no faults");
        }
    }
    buffer.commit().expect("no faults");
    let watched = HookedDisk::new(&disk, Watched(Mutex::new(vec![0; 4000])));
    let (_, found) = open(watched.clone()).expect("a good log");
    assert_eq!(found.len(), 640);
    let times = watched.0.lock().expect("one thread");
    // A group that might follow is looked for behind its end. At the ring's start, where the log began, there can be none: what
    // is left of the lap is longer than any two groups.
    assert_eq!(times[3..1700].iter().position(|&times| times != 1), None, "{:?}", &times[3..1700]);
}

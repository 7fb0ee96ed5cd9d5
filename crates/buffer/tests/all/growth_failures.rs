//! A buffer that has grown loses nothing silently when flushes fail or header slots are unreadable.

use crate::growth::{found, put};
use crate::model::ID;
use buffer::Buffer;
use device::{Block, Device, DeviceError, Incarnation, Lsn, Page};
use sim_disk::{BlockDamage, DiskFaults, DiskHooks, DroppedWrites, HookedDisk, PowerSupply, SimDisk};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

fn begun(disk: Arc<dyn Device>) -> Buffer {
    Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = found(disk).expect("a buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("a device without faults");
    buffer
}

/// Steps. 1: the next flush is growth's. 2: that flush is running. 3: a group is written beside it. 4: the
/// flush has failed and dropped the group.
#[derive(Clone)]
struct Race(Arc<AtomicU32>);

impl Race {
    fn reach(&self, step: u32) {
        let begun = Instant::now();
        while self.0.load(SeqCst) < step && begun.elapsed() < Duration::from_millis(100) {
            thread::yield_now();
        }
    }
}

impl DiskHooks for Race {
    fn write(&self, disk: &SimDisk, at: Block, from: &[Page]) -> Result<(), DeviceError> {
        let done = disk.write(at, from);
        if (3..256).contains(&at.0) && self.0.compare_exchange(2, 3, SeqCst, SeqCst).is_ok() {
            self.reach(4);
        }
        done
    }

    fn flush(&self, disk: &SimDisk) -> Result<(), DeviceError> {
        if self.0.compare_exchange(1, 2, SeqCst, SeqCst).is_err() {
            return disk.flush();
        }
        self.reach(3);
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        let failed = disk.flush();
        disk.set_faults(DiskFaults::default());
        self.0.store(4, SeqCst);
        failed
    }
}

#[test]
fn a_commit_beside_a_failed_flush_of_growth_acknowledges_nothing_that_is_lost() {
    let mut lost = 0;
    for seed in 0..20 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("buffer", 256, &power, seed);
        disk.set_dropped(DroppedWrites::AtPowerLoss);
        let race = Race(Arc::default());
        let buffer = begun(HookedDisk::new(&disk, race.clone()));
        race.0.store(1, SeqCst);
        let (committed, grown) = thread::scope(|scope| {
            let grown = scope.spawn(|| buffer.grow(Some(1024)));
            race.reach(2);
            put(&buffer, 1);
            (buffer.commit(), grown.join().expect("no panic"))
        });
        assert!(grown.is_err());
        drop(buffer);
        power.cut();
        disk.crash();
        power.restore();
        lost += u32::from(committed.is_ok() && found(disk).expect("a buffer").1 == 0);
    }
    assert_eq!(lost, 0, "acknowledged commits lost, of 20");
}

#[test]
fn one_unreadable_slot_loses_nothing_silently_after_a_dropped_slot() {
    let mut lost = Vec::new();
    for seed in 0..40 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("buffer", 256, &power, seed);
        disk.set_dropped(DroppedWrites::AtPowerLoss);
        let buffer = begun(disk.clone());
        for page in 0..200 {
            put(&buffer, page);
            buffer.commit().expect("a device without faults");
        }
        // Three writes of zeros, their flush, the slot; and the slot's flush fails.
        disk.set_faults(DiskFaults { once_after: Some(3 + 1 + 1), ..DiskFaults::default() });
        assert!(buffer.grow(Some(1024)).is_err());
        disk.set_faults(DiskFaults::default());
        drop(buffer);
        let (buffer, count) = found(disk.clone()).expect("a buffer");
        assert_eq!(count, 200);
        if buffer.capacity_bytes() < 1000 * 4096 {
            continue;
        }
        buffer.begin_incarnation(Incarnation(2), Lsn(0)).expect("a device without faults");
        for page in 0..200 {
            put(&buffer, page);
            buffer.commit().expect("a device without faults");
        }
        drop(buffer);
        power.cut();
        disk.crash();
        power.restore();
        for slot in [1, 2] {
            let fork = disk.fork(&power, 1);
            fork.damage(Block(slot), BlockDamage::Unreadable);
            match found(fork) {
                Ok((_, 400)) | Err(_) => {}
                Ok((_, count)) => lost.push((seed, slot, count)),
            }
        }
    }
    assert!(lost.is_empty(), "opened without a word, with so many of 400: {lost:?}");
}

/// The number of transactions found, of 400, in a grown ring whose log goes beyond the old ring's end, if
/// only one header slot is readable; `None` if the buffer is refused.
pub(crate) fn found_by_one_slot(slot: u64, opener: impl FnOnce(Arc<dyn Device>) -> Buffer) -> Option<usize> {
    let power = PowerSupply::new();
    let disk = SimDisk::new("buffer", 256, &power, 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let buffer = opener(disk.clone());
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("a device without faults");
    for page in 0..400 {
        if page == 200 {
            buffer.grow(Some(1024)).expect("space");
        }
        put(&buffer, page);
        buffer.commit().expect("a device without faults");
    }
    drop(buffer);
    disk.damage(Block(3 - slot), BlockDamage::Unreadable);
    found(disk).ok().map(|(_, count)| count)
}

#[test]
fn either_header_slot_leads_to_all_of_the_log_in_a_larger_ring() {
    let opener = |disk| found(disk).expect("a buffer").0;
    assert_eq!([1, 2].map(|slot| found_by_one_slot(slot, opener)), [Some(400); 2]);
}

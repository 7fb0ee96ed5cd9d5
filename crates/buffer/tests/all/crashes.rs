//! Random work with crashes at every write and flush, against a plain model.

use crate::model::{ID, Plan, Run, open};
use buffer::{Buffer, LogRecord};
use device::{Device, Incarnation, Lsn, ObjectId};
use sim_disk::{DiskFaults, PowerSupply, SimDisk};
use std::sync::atomic::{AtomicU64, Ordering};

#[test]
fn after_every_crash_exactly_a_prefix_survives_with_all_that_was_durable() {
    let (mut crashes, mut full) = (0, 0);
    for seed in 0..40 {
        let mut run = Run::new(seed, 256 + seed % 7, open);
        let plan = Plan { seed, rounds: 20, operations: 60, faults: DiskFaults::default() };
        run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
        (crashes, full) = (crashes + run.crashes, full + run.full);
    }
    assert!(crashes == 800 && full > 5, "{crashes} crashes, {full} times full: the run tests little");
}

#[test]
fn after_device_errors_exactly_a_prefix_survives_with_all_that_was_durable() {
    for seed in 0..25 {
        let mut run = Run::new(seed, 300, open);
        let faults =
            DiskFaults { read_one_in: 0, write_one_in: 30, flush_one_in: 30, ..DiskFaults::default() };
        let plan = Plan { seed, rounds: 20, operations: 40, faults };
        run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    }
}

#[test]
fn the_ring_wraps_many_times_between_two_crashes() {
    let mut run = Run::new(1, 256, open);
    let plan = Plan { seed: 1, rounds: 2, operations: 10_000, faults: DiskFaults::default() };
    run.go(&plan).unwrap_or_else(|broken| panic!("{broken}"));
    let laps = run.bytes_written / (run.disk.blocks() * 4096);
    assert!(laps > 10, "{laps} laps: the ring hardly wrapped");
}

#[test]
fn what_was_acknowledged_to_any_of_several_committers_survives() {
    for seed in 0..40 {
        let power = PowerSupply::new();
        let disk = SimDisk::new("buffer", 600, &power, seed);
        Buffer::format(&*disk, ID).expect("power is on");
        let (buffer, _) = open(disk.clone()).expect("an empty buffer");
        buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("power is on");
        power.cut_after(seed * 3);
        let acknowledged = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let record = LogRecord::Delete { object: ObjectId::default() };
                    while let Ok(appended) = buffer.append(&[record, record])
                        && buffer.commit().is_ok_and(|durable| durable >= appended.last_lsn)
                    {
                        acknowledged.fetch_max(appended.last_lsn.0, Ordering::Relaxed);
                    }
                });
            }
        });
        disk.crash();
        power.restore();
        let (_, found) = open(disk).expect("a torn end at most");
        let firsts: Vec<u64> = found.iter().map(|one| one.first.0).collect();
        let expected: Vec<u64> = (0..found.len() as u64).map(|index| 1 + 2 * index).collect();
        assert_eq!(firsts, expected, "seed {seed}");
        assert!(2 * found.len() as u64 >= acknowledged.into_inner(), "seed {seed}: acknowledged and lost");
    }
}

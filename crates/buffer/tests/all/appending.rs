//! Appending and committing: limits, LSNs, costs.

use crate::model::{ID, open};
use buffer::{
    Buffer, BufferError, GroupNo, LogRecord, RECORD_OVERHEAD_BYTES, TRANSACTION_OVERHEAD_BYTES, footprint,
};
use device::{Block, Device, Incarnation, Lsn, ObjectId, PageNo, VolumeId};
use sim_disk::{DiskFaults, DroppedWrites, PowerSupply, SimDisk};
use std::sync::Arc;

const OBJECT: ObjectId = VolumeId::MAIN.object(5, 6);

fn write(bytes: &[u8]) -> LogRecord<'_> {
    LogRecord::Write { object: OBJECT, page: PageNo(9), start: 0, bytes }
}

fn begun(blocks: u64) -> (Arc<SimDisk>, Buffer) {
    let disk = SimDisk::new("buffer", blocks, &PowerSupply::new(), 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("an empty buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(100)).expect("a device without faults");
    (disk, buffer)
}

#[test]
fn lsns_go_on_after_the_higher_newest() {
    let (disk, buffer) = begun(300);
    let appended = buffer.append(&[write(b"a"), write(b"b")]).expect("space");
    assert_eq!((appended.first_lsn, appended.last_lsn), (Lsn(101), Lsn(102)));
    assert_eq!(buffer.commit(), Ok(Lsn(102)));
    let (again, found) = open(disk).expect("a buffer");
    assert_eq!((again.newest_lsn(), again.incarnation()), (Lsn(102), Incarnation(1)));
    assert_eq!((found.len(), found[0].first, found[0].group), (1, Lsn(101), appended.group));
    again.begin_incarnation(Incarnation(2), Lsn(7)).expect("a device without faults");
    assert_eq!(again.append(&[write(b"c")]).expect("space").first_lsn, Lsn(103));
}

#[test]
fn a_beginning_is_remembered_even_if_nothing_follows_it() {
    let (disk, buffer) = begun(300);
    buffer.append(&[write(b"a")]).expect("space");
    buffer.commit().expect("no faults");
    let (again, _) = open(disk.clone()).expect("a buffer");
    again.begin_incarnation(Incarnation(5), Lsn(1000)).expect("no faults");
    let (last, found) = open(disk).expect("a buffer");
    assert_eq!((last.incarnation(), last.newest_lsn(), found.len()), (Incarnation(5), Lsn(1000), 1));
}

#[test]
fn release_before_the_beginning_writes_no_slot() {
    let (disk, buffer) = begun(300);
    for _ in 0..100 {
        buffer.append(&[write(&[0; 4096])]).expect("space");
        buffer.commit().expect("no faults");
    }
    let (again, _) = open(disk).expect("a buffer");
    again.release(again.unreleased_groups().end, 0);
    again.commit().expect("nothing to do");
    assert_eq!(again.counters().header_writes, 0);
    again.begin_incarnation(Incarnation(2), Lsn(0)).expect("no faults");
    again.commit().expect("no faults");
    assert_eq!(again.counters().header_writes, 2);
}

#[test]
fn an_empty_transaction_leaves_no_trace() {
    let (disk, buffer) = begun(300);
    let appended = buffer.append(&[]).expect("space");
    assert_eq!((appended.first_lsn, appended.last_lsn), (Lsn(101), Lsn(100)));
    let before = buffer.counters();
    assert_eq!(buffer.commit(), Ok(Lsn(100)));
    assert_eq!(buffer.counters(), before, "an empty commit touched the device");
    assert!(open(disk).expect("a buffer").1.is_empty());
}

#[test]
fn a_small_commit_is_one_block_and_one_flush() {
    let (_, buffer) = begun(300);
    let before = buffer.counters();
    buffer.append(&[write(&[1; 512])]).expect("space");
    assert!(buffer.open_bytes() > 512 && buffer.open_bytes() < 700);
    buffer.commit().expect("no faults");
    let after = buffer.counters();
    assert_eq!(after.bytes_written - before.bytes_written, 4096);
    assert_eq!((after.flushes - before.flushes, after.commits, after.groups), (1, 1, 1));
    assert_eq!(after.bytes_appended, 512 + 48, "the frame of a small write grew");
    assert_eq!(buffer.open_bytes(), 0);
}

#[test]
fn a_group_may_fill_its_blocks_to_the_last_byte() {
    // Records whose group is one byte short of two pages, two pages, and one byte more.
    for (extra, blocks) in [(0, 2), (1, 2), (2, 3)] {
        let (disk, buffer) = begun(300);
        let bytes = vec![3; 2 * 4096 - 80 - 20 - 2 * 28 - 4096 + extra - 1];
        buffer.append(&[write(&[7; 4096]), write(&bytes)]).expect("space");
        let before = buffer.counters().bytes_written;
        buffer.commit().expect("no faults");
        assert_eq!(buffer.counters().bytes_written - before, blocks * 4096);
        let (_, found) = open(disk).expect("a buffer");
        assert_eq!(found[0].records[1].as_record(), write(&bytes));
    }
}

#[test]
fn padding_is_zeros() {
    let (disk, buffer) = begun(300);
    for bytes in [&[9; 3000][..], b"short", b"short"] {
        buffer.append(&[write(bytes)]).expect("space");
        buffer.commit().expect("no faults");
    }
    let mut group = device::pages(1);
    disk.read(Block(5), &mut group).expect("power is on");
    let used = TRANSACTION_OVERHEAD_BYTES as usize + 28 + 5;
    assert!(group[0].0[used - 1] == b't' && group[0].0[used..].iter().all(|&byte| byte == 0));
}

#[test]
fn the_largest_transaction_fits_an_empty_buffer_and_a_larger_one_is_refused() {
    let (disk, buffer) = begun(300);
    let limit = buffer.transaction_bytes_max();
    assert_eq!(limit, 297 / 4 * 4096);
    let count = (limit - TRANSACTION_OVERHEAD_BYTES) / (4096 + RECORD_OVERHEAD_BYTES);
    let page = vec![4; 4096];
    let mut records = vec![write(&page); count as usize];
    assert!(footprint(count, count * 4096) <= limit);
    buffer.append(&records).expect("a quarter of the ring is the limit");
    records.push(write(&page));
    let error = buffer.append(&records).expect_err("over the limit");
    assert!(matches!(error, BufferError::TransactionTooLarge { .. }), "{error}");
    buffer.commit().expect("no faults");
    assert_eq!(open(disk).expect("a buffer").1[0].records.len(), count as usize);
}

#[test]
fn the_space_comes_back_with_the_commit_after_the_release() {
    let (_, buffer) = begun(300);
    let space = buffer.free_bytes();
    assert_eq!(space, buffer.capacity_bytes());
    let page = vec![4; 4096];
    let cost = footprint(1, 4096);
    let mut count = 0;
    while buffer.free_bytes() >= cost {
        buffer.append(&[write(&page)]).expect("space was reserved");
        buffer.commit().expect("no faults");
        count += 1;
    }
    assert!(count > 297 / 2 - 1 - 297 / 4, "only {count} commits of two blocks fitted 297");
    let oldest = buffer.unreleased_groups().start;
    buffer.release(buffer.unreleased_groups().end, 0);
    assert!(buffer.free_bytes() < cost, "space came back before that was durable");
    buffer.commit().expect("no faults");
    assert!(buffer.free_bytes() > space / 2);
    assert!(buffer.unreleased_groups().start > oldest && buffer.unreleased_groups().is_empty());
}

#[test]
fn header_slots_are_rare_while_there_is_space() {
    let (_, buffer) = begun(3203);
    for _ in 0..1000 {
        let group = buffer.append(&[write(b"x")]).expect("space").group;
        buffer.commit().expect("no faults");
        buffer.release(GroupNo(group.0 + 1), 0);
    }
    let counters = buffer.counters();
    assert!(counters.header_writes <= 1 + 1000 / 100 + 1, "{counters:?}");
    assert_eq!(counters.flushes, 2 + 1000, "a header slot had a flush of its own");
}

#[test]
fn relogged_delta_frees_its_old_group() {
    let (disk, buffer) = begun(300);
    let old = buffer.append(&[write(b"old")]).expect("space");
    buffer.commit().expect("no faults");
    let group = buffer.append_relogged(old.last_lsn, &[write(b"old")]).expect("space");
    assert!(group > old.group);
    assert_eq!(buffer.commit(), Ok(old.last_lsn));
    buffer.release(group, 0);
    for _ in 0..100 {
        buffer.append(&[write(&[0; 4096])]).expect("space");
        buffer.commit().expect("no faults");
    }
    let (_, found) = open(disk).expect("a buffer");
    let oldest = (found[0].relogged, found[0].group, found[0].first);
    assert_eq!(oldest, (true, group, old.last_lsn));
}

#[test]
fn many_committers_share_flushes() {
    let (disk, buffer) = begun(3000);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let appended = buffer.append(&[write(b"mine")]).expect("space");
                    assert!(buffer.commit().expect("no faults") >= appended.last_lsn);
                    assert!(buffer.durable_lsn() >= appended.last_lsn);
                }
            });
        }
    });
    assert!(buffer.counters().commits <= 400);
    let (_, found) = open(disk).expect("a buffer");
    let firsts: Vec<u64> = found.iter().map(|one| one.first.0).collect();
    assert_eq!(firsts, (101..501).collect::<Vec<u64>>());
}

#[test]
fn a_failed_flush_is_told_until_the_buffer_is_opened_again() {
    let (disk, buffer) = begun(300);
    buffer.append(&[write(b"x")]).expect("space");
    disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
    let error = buffer.commit().expect_err("the flush fails");
    disk.set_faults(DiskFaults::default());
    assert_eq!(buffer.commit(), Err(error.clone()));
    assert_eq!(buffer.append(&[]), Err(error.clone()));
    assert_eq!(buffer.begin_incarnation(Incarnation(9), Lsn(0)), Err(error));
    assert_eq!(buffer.durable_lsn(), Lsn(100));
    let (again, _) = open(disk).expect("a buffer");
    again.begin_incarnation(Incarnation(2), Lsn(0)).expect("no faults any more");
}

/// How often, of 64 times, a record survives a failed flush, then `keep`, then a power failure. The cache
/// still returns the record to readers after the failed flush.
fn kept_after_a_failed_flush(keep: impl Fn(&Buffer, &SimDisk)) -> usize {
    let survives = |seed: &u64| {
        let (formatted, _) = begun(300);
        let disk = formatted.fork(&PowerSupply::new(), *seed);
        disk.set_dropped(DroppedWrites::AtPowerLoss);
        let (buffer, _) = open(disk.clone()).expect("a buffer");
        buffer.begin_incarnation(Incarnation(2), Lsn(0)).expect("no faults yet");
        buffer.append(&[write(b"x")]).expect("space");
        disk.set_faults(DiskFaults { flush_one_in: 1, ..DiskFaults::default() });
        buffer.commit().expect_err("the flush fails");
        disk.set_faults(DiskFaults::default());
        let (again, found) = open(disk.clone()).expect("a buffer");
        assert_eq!(found.len(), 1, "a cache gives it to readers");
        keep(&again, &disk);
        disk.crash();
        open(disk).expect("a buffer").1.len() == 1
    };
    (0..64).filter(survives).count()
}

#[test]
fn make_durable_saves_groups_of_a_failed_flush() {
    let flushed = kept_after_a_failed_flush(|_, disk| disk.flush().expect("no faults any more"));
    assert!((1..64).contains(&flushed), "a flush alone kept it {flushed} times of 64");
    let made_durable = |buffer: &Buffer, _: &SimDisk| buffer.make_durable().expect("no faults any more");
    assert_eq!(kept_after_a_failed_flush(made_durable), 64);
}

#[test]
#[should_panic(expected = "before an incarnation was begun")]
fn nothing_is_appended_before_the_beginning() {
    let disk = SimDisk::new("buffer", 300, &PowerSupply::new(), 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk).expect("an empty buffer");
    let _ = buffer.append(&[write(b"x")]);
}

#[test]
#[should_panic(expected = "leaves its page")]
fn a_record_that_leaves_its_page_is_a_bug_of_the_caller() {
    let (_, buffer) = begun(300);
    let _ = buffer.append(&[LogRecord::Write { object: OBJECT, page: PageNo(0), start: 4095, bytes: b"ab" }]);
}

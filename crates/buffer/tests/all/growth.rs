//! A buffer that gets larger in use. The model of `crashes.rs` shows that a crash at any write leaves it
//! whole.

use crate::model::{ID, open};
use buffer::{Buffer, BufferError, GroupNo, LogRecord, footprint};
use device::{BLOCK_BYTES, Block, Device, Incarnation, Lsn, Page, PageNo, VolumeId, pages};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

const BYTES: [u8; 3900] = [7; 3900];

fn begun() -> (Arc<SimDisk>, Buffer) {
    let disk = SimDisk::new("buffer", 256, &PowerSupply::new(), 1);
    Buffer::format(&*disk, ID).expect("a device without faults");
    let (buffer, _) = open(disk.clone()).expect("a buffer");
    buffer.begin_incarnation(Incarnation(1), Lsn(0)).expect("a device without faults");
    (disk, buffer)
}

/// Appends a page of about a block.
pub(crate) fn put(buffer: &Buffer, page: u64) {
    let object = VolumeId::MAIN.object(1, 1);
    buffer
        .append(&[LogRecord::Write { object, page: PageNo(page), start: 0, bytes: &BYTES }])
        .expect("space");
}

/// The buffer on a device, and how many transactions are in it.
pub(crate) fn found(device: Arc<dyn Device>) -> Result<(Buffer, usize), BufferError> {
    open(device).map(|(buffer, found)| (buffer, found.len()))
}

/// Appends and commits pages of about a block, one a group, until at most `free` bytes are free. Returns the
/// number of groups.
fn fill(buffer: &Buffer, free: u64) -> u64 {
    let mut groups = 0;
    let cost = footprint(1, BYTES.len() as u64);
    while buffer.free_bytes() >= free + cost {
        put(buffer, groups);
        buffer.commit().expect("a device without faults");
        groups += 1;
    }
    groups
}

#[test]
fn new_blocks_are_used_at_once_by_a_log_in_one_piece() {
    let (disk, buffer) = begun();
    let groups = fill(&buffer, 8192);
    assert!(buffer.free_bytes() < 3 * 4096, "{}", buffer.free_bytes());
    assert_eq!(buffer.grow(Some(1024)), Ok(1024));
    assert!(!buffer.is_growing());
    assert_eq!(buffer.capacity_bytes(), 1021 * 4096);
    assert!(buffer.transaction_bytes_max() > 253 * 1024);
    let more = fill(&buffer, 0);
    assert!(more > 700, "{more} groups in 768 more blocks");
    drop(buffer);
    let (buffer, found) = open(disk).expect("a buffer");
    assert_eq!(found.len() as u64, groups + more);
    assert_eq!(buffer.capacity_bytes(), 1021 * 4096);
}

#[test]
fn wrapped_log_grows_when_it_lies_in_one_piece() {
    let (disk, buffer) = begun();
    fill(&buffer, 40 * 4096);
    buffer.release(GroupNo(buffer.unreleased_groups().end.0 - 10), 0);
    buffer.commit().expect("a device without faults");
    fill(&buffer, 60 * 4096);
    buffer.grow(Some(1024)).expect("space");
    assert!(buffer.is_growing());
    assert_eq!(buffer.capacity_bytes(), 253 * 4096);
    let needed = buffer.unreleased_groups();
    assert!(needed.end.0 - needed.start.0 > 100, "{needed:?}");
    // A cache does the same when it has written everything back.
    buffer.release(needed.end, 0);
    buffer.record_store_batch(0);
    buffer.commit().expect("a device without faults");
    assert!(!buffer.is_growing());
    let groups = fill(&buffer, 0);
    assert!(groups > 900, "{groups} groups in 1021 blocks");
    drop(buffer);
    assert_eq!(open(disk).expect("a buffer").1.len() as u64, groups);
}

#[test]
fn buffer_grows_to_its_device_and_never_shrinks() {
    let (disk, buffer) = begun();
    assert_eq!(buffer.grow(None), Ok(256), "nothing to do");
    disk.grow(300).expect("space");
    assert_eq!(buffer.grow(None), Ok(300));
    assert_eq!(buffer.grow(Some(300)), Ok(300), "a script may run twice");
    let error = buffer.grow(Some(299)).expect_err("smaller");
    assert!(matches!(error, BufferError::ShrinkRefused { blocks: 299, now: 300, .. }), "{error}");
    assert_eq!(buffer.capacity_bytes(), 297 * 4096);
}

/// A buffer whose log is in one piece in a later lap.
fn in_a_later_lap() -> (Arc<SimDisk>, Buffer) {
    let (disk, buffer) = begun();
    for page in 0..280 {
        put(&buffer, page);
        buffer.commit().expect("a device without faults");
        buffer.release(buffer.unreleased_groups().end, 0);
    }
    buffer.record_store_batch(0);
    buffer.commit().expect("a device without faults");
    (disk, buffer)
}

#[test]
fn sealed_groups_move_with_a_later_lap() {
    let (disk, buffer) = in_a_later_lap();
    for page in 0..150 {
        put(&buffer, page);
    }
    buffer.grow(Some(1024)).expect("space");
    assert!(!buffer.is_growing());
    for page in 150..300 {
        put(&buffer, page);
    }
    buffer.commit().expect("a device without faults");
    drop(buffer);
    assert_eq!(found(disk).expect("a buffer").1, 300);
}

#[test]
fn free_space_is_right_at_once_when_a_later_lap_moves() {
    let (_disk, buffer) = in_a_later_lap();
    for page in 0..100 {
        put(&buffer, page);
        buffer.commit().expect("a device without faults");
    }
    buffer.grow(Some(323)).expect("space");
    assert!(!buffer.is_growing());
    let free = buffer.free_bytes() / 4096;
    assert!(free <= 320 - 100, "{free} blocks beside 100 of 320");
}

#[test]
fn new_blocks_are_zeroed_before_use() {
    let (disk, buffer) = begun();
    disk.grow(700).expect("space");
    let old = vec![Page([9; BLOCK_BYTES]); 700 - 256];
    disk.write(Block(256), &old).expect("power is on");
    assert_eq!(buffer.grow(None), Ok(700));
    let mut new = pages(700 - 256);
    disk.read(Block(256), &mut new).expect("power is on");
    assert!(new.iter().all(|page| page.0 == [0; BLOCK_BYTES]));
}

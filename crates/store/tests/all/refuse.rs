//! What `open` and `format` refuse: each with its own error, and every byte as it was.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Page, StoreId};
use sim::{Power, SimDisk};
use std::sync::Arc;
use store::{Layout, Store, StoreError};

fn read(disk: &SimDisk, at: u64) -> Page {
    let mut pages = device::pages(1);
    disk.read(Block(at), &mut pages).expect("a read in range");
    pages[0].clone()
}

fn write(disk: &SimDisk, at: u64, page: Page) {
    disk.write(Block(at), &[page]).expect("a write in range");
    disk.flush().expect("a flush");
}

/// Changes bytes of the superblock, with a checksum that is right again.
fn superblock_with(disk: &SimDisk, at: usize, bytes: &[u8]) {
    block_with(disk, 0, at, bytes);
}

fn block_with(disk: &SimDisk, block: u64, at: usize, bytes: &[u8]) {
    let mut page = read(disk, block);
    page.0[at..at + bytes.len()].copy_from_slice(bytes);
    page.0[12..16].fill(0);
    let crc = crc32c::crc32c(&page.0);
    page.0[12..16].copy_from_slice(&crc.to_le_bytes());
    write(disk, block, page);
}

fn refused(disk: &Arc<SimDisk>) -> StoreError {
    let before: Vec<Page> = (0..disk.blocks()).map(|at| read(disk, at)).collect();
    let error = open(disk).err().expect("it is refused");
    assert!((0..disk.blocks()).all(|at| read(disk, at) == before[at as usize]), "{error}: bytes changed");
    error
}

fn with_store() -> Arc<SimDisk> {
    let (_power, disk, store) = fresh(32, 1);
    drop(store);
    disk
}

#[test]
fn a_device_without_a_store_is_not_one() {
    let disk = disk(100, &Power::new(), 1);
    assert!(matches!(refused(&disk), StoreError::NotAStore { .. }));
    let tiny = SimDisk::new("tiny", 2, &Power::new(), 1);
    assert!(matches!(refused(&tiny), StoreError::NotAStore { .. }));
    write(&disk, 0, Page([b'x'; BLOCK_BYTES]));
    assert!(matches!(refused(&disk), StoreError::NotAStore { .. }));
}

#[test]
fn a_superblock_with_any_bit_flipped_is_damaged() {
    for bit in (0..96 * 8).step_by(7).chain([20_000]) {
        let disk = with_store();
        disk.rot(Block(0), bit);
        assert!(matches!(refused(&disk), StoreError::Damaged { place: Block(0), .. }), "bit {bit}");
    }
}

#[test]
fn another_version_and_an_unknown_feature_are_refused_and_an_optional_one_is_not() {
    let disk = with_store();
    superblock_with(&disk, 8, &3_u32.to_le_bytes());
    assert!(matches!(refused(&disk), StoreError::NewerVersion { found: 3, .. }));
    superblock_with(&disk, 8, &1_u32.to_le_bytes());
    assert!(matches!(refused(&disk), StoreError::OlderVersion { found: 1, .. }));
    let disk = with_store();
    superblock_with(&disk, 40, &4_u64.to_le_bytes());
    assert!(matches!(refused(&disk), StoreError::UnknownFeature { flags: 4, .. }));
    let disk = with_store();
    superblock_with(&disk, 32, &4_u64.to_le_bytes());
    assert!(open(&disk).is_ok());
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for (at, value) in [(64, 0_u32), (64, 17), (68, 1_000_000), (72, 512), (76, 99)] {
        let disk = with_store();
        superblock_with(&disk, at, &value.to_le_bytes());
        assert!(matches!(refused(&disk), StoreError::BadSizes { .. }), "{value} at byte {at}");
    }
}

#[test]
fn a_device_that_ends_before_the_store_does_is_truncated() {
    let disk = with_store();
    let short = SimDisk::new("short", disk.blocks() - 1, &Power::new(), 1);
    (0..short.blocks()).for_each(|at| write(&short, at, read(&disk, at)));
    let error = refused(&short);
    assert!(matches!(error, StoreError::Truncated { .. }), "{error}");
}

#[test]
fn one_damaged_root_is_survived_and_two_are_refused() {
    let disk = with_store();
    disk.rot(Block(1), 999);
    assert!(open(&disk).is_ok());
    disk.rot(Block(2), 999);
    assert!(matches!(refused(&disk), StoreError::Damaged { place: Block(1), .. }));
}

#[test]
fn a_root_whose_log_is_in_a_segment_that_is_not_there_does_not_count() {
    // The segment that the log is in, and the one in which it goes on; 32 are there.
    for (at, segment) in [(80, 32_u32), (80, u32::MAX), (84, 32), (84, u32::MAX)] {
        let disk = with_store();
        for block in [1, 2] {
            assert!(open(&disk).is_ok(), "one of the two is right");
            block_with(&disk, block, at, &segment.to_le_bytes());
        }
        assert!(matches!(refused(&disk), StoreError::Damaged { place: Block(1), .. }), "{segment} at {at}");
    }
}

#[test]
fn a_device_too_small_is_not_formatted_and_the_least_size_is_named() {
    let disk = disk(100, &Power::new(), 1);
    write(&disk, 0, Page([7; BLOCK_BYTES]));
    for segment_blocks in [Some(SEGMENT), None, Some(1), Some(1 << 20)] {
        let layout = Layout { id: StoreId([1; 16]), segment_blocks };
        let error = Store::format(&*disk, &layout).expect_err("too small");
        assert!(matches!(error, StoreError::BadSizes { .. }), "{error}");
        if segment_blocks == Some(SEGMENT) {
            assert!(error.to_string().contains(&(516 * BLOCK_BYTES).to_string()), "{error}");
        }
        assert_eq!(read(&disk, 0), Page([7; BLOCK_BYTES]), "bytes changed");
    }
}

#[test]
fn segments_whose_table_would_fill_more_than_one_of_them_are_not_laid_out() {
    let disk = SimDisk::new("many", 200_000, &Power::new(), 1);
    let layout = |segment_blocks| Layout { id: StoreId([1; 16]), segment_blocks: Some(segment_blocks) };
    let error = Store::format(&*disk, &layout(16)).expect_err("12,000 segments of 64 KiB");
    assert!(matches!(error, StoreError::BadSizes { .. }), "{error}");
    Store::format(&*disk, &layout(32)).expect("half as many, twice as large");
    assert!(open(&disk).is_ok());
}

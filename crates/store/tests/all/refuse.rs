//! Stores that `open` and `format` refuse: each with its own error, and with no byte changed.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Page, StoreId};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{Store, StoreError, StoreLayout, SuperblockRepair};

/// Offset of the format's draft in the superblock.
const DRAFT_AT: usize = 76;

fn read(disk: &SimDisk, at: u64) -> Page {
    let mut pages = device::pages(1);
    disk.read(Block(at), &mut pages).expect("a read in range");
    pages[0].clone()
}

fn write(disk: &SimDisk, at: u64, page: Page) {
    disk.write(Block(at), &[page]).expect("a write in range");
    disk.flush().expect("a flush");
}

/// Changes bytes of the superblock, and corrects the checksum.
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
    let (_power, disk, store) = fresh(48, 1);
    drop(store);
    disk
}

#[test]
fn a_device_without_a_store_is_not_one() {
    let disk = disk(100, &PowerSupply::new(), 1);
    assert!(matches!(refused(&disk), StoreError::NotAStore { .. }));
    let tiny = SimDisk::new("tiny", 2, &PowerSupply::new(), 1);
    assert!(matches!(refused(&tiny), StoreError::NotAStore { .. }));
    write(&disk, 0, Page([b'x'; BLOCK_BYTES]));
    assert!(matches!(refused(&disk), StoreError::NotAStore { .. }));
}

#[test]
fn a_superblock_with_any_bit_flipped_is_damaged() {
    for bit in (0..80 * 8).step_by(7).chain([20_000]) {
        let disk = with_store();
        disk.rot(Block(0), bit);
        assert!(matches!(refused(&disk), StoreError::SuperblockDamaged { .. }), "bit {bit}");
    }
}

#[test]
fn an_older_version_a_newer_one_and_another_draft_are_refused_each_with_its_own_way_out() {
    let disk = with_store();
    superblock_with(&disk, 8, &1_u32.to_le_bytes());
    let old = refused(&disk);
    assert!(matches!(old, StoreError::OldVersion { found: 1, .. }), "{old}");
    let help = old.help().expect("the way out");
    assert!(help.contains("weir 0.1") && help.contains("rsync"), "{help}");
    let disk = with_store();
    superblock_with(&disk, 8, &3_u32.to_le_bytes());
    assert!(matches!(refused(&disk), StoreError::NewerVersion { found: 3, .. }));
    let disk = with_store();
    superblock_with(&disk, DRAFT_AT, &9_u32.to_le_bytes());
    assert!(matches!(refused(&disk), StoreError::OtherDraft { found: 9, .. }));
}

#[test]
fn sizes_that_make_no_sense_are_refused() {
    for (at, value) in [(48, 0_u32), (48, 17), (52, 1_000_000), (56, 512), (60, 99)] {
        let disk = with_store();
        superblock_with(&disk, at, &value.to_le_bytes());
        assert!(matches!(refused(&disk), StoreError::BadSizes { .. }), "{value} at byte {at}");
    }
}

#[test]
fn a_device_that_ends_before_the_store_does_is_truncated() {
    let disk = with_store();
    let short = SimDisk::new("short", disk.blocks() - 1, &PowerSupply::new(), 1);
    (0..short.blocks()).for_each(|at| write(&short, at, read(&disk, at)));
    let error = refused(&short);
    assert!(matches!(error, StoreError::Truncated { .. }), "{error}");
}

#[test]
fn a_root_whose_tables_are_lost_in_both_copies_is_passed_over_and_check_says_so() {
    let disk = with_store();
    let number = |block: u64, at: usize| {
        u64::from_le_bytes(read(&disk, block).0[at..at + 8].try_into().expect("eight bytes"))
    };
    let newest = if number(1, 32) > number(2, 32) { 1 } else { 2 };
    assert_eq!(findings(&open(&disk).expect("a store")), []);
    // Its first extent: the place, and that of the copy.
    [224, 232].into_iter().for_each(|at| disk.rot(Block(number(newest, at)), 100));
    let store = open(&disk).expect("the other root is enough");
    let places: Vec<_> = findings(&store).iter().map(|one| one.place).collect();
    assert_eq!(places, [Some(Block(newest))]);
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
    // The segment of the log, and the one in which it continues; the store has 48.
    for (at, segment) in [(80, 48_u32), (80, u32::MAX), (84, 48), (84, u32::MAX)] {
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
    let disk = disk(100, &PowerSupply::new(), 1);
    write(&disk, 0, Page([7; BLOCK_BYTES]));
    for segment_blocks in [Some(SEGMENT), None, Some(1), Some(1 << 20)] {
        let layout = StoreLayout { id: StoreId([1; 16]), segment_blocks };
        let error = Store::format(&*disk, &layout).expect_err("too small");
        assert!(matches!(error, StoreError::BadSizes { .. }), "{error}");
        if segment_blocks == Some(SEGMENT) {
            assert!(error.to_string().contains(&(772 * BLOCK_BYTES).to_string()), "{error}");
        }
        assert_eq!(read(&disk, 0), Page([7; BLOCK_BYTES]), "bytes changed");
    }
}

#[test]
fn segments_whose_table_would_fill_more_than_one_of_them_are_not_laid_out() {
    let disk = SimDisk::new("many", 200_000, &PowerSupply::new(), 1);
    let layout = |segment_blocks| StoreLayout { id: StoreId([1; 16]), segment_blocks: Some(segment_blocks) };
    let error = Store::format(&*disk, &layout(16)).expect_err("12,000 segments of 64 KiB");
    assert!(matches!(error, StoreError::BadSizes { .. }), "{error}");
    Store::format(&*disk, &layout(32)).expect("half as many, twice as large");
    assert!(open(&disk).is_ok());
}

/// Repairs the superblock, which must be refused without changing a byte. Returns the reason.
fn not_mended(disk: &Arc<SimDisk>) -> StoreError {
    let before: Vec<Page> = (0..disk.blocks()).map(|at| read(disk, at)).collect();
    let error = Store::repair_superblocks(&**disk).expect_err("it is refused");
    assert!((0..disk.blocks()).all(|at| read(disk, at) == before[at as usize]), "{error}: bytes changed");
    error
}

#[test]
fn a_damaged_superblock_is_restored_from_its_copy_also_where_the_device_has_grown() {
    for more in [0, 1, 500] {
        let disk = with_store();
        let (last, grown) =
            (disk.blocks() - 1, SimDisk::new("grown", disk.blocks() + more, &PowerSupply::new(), 1));
        (0..disk.blocks()).for_each(|at| write(&grown, at, read(&disk, at)));
        assert_eq!(read(&grown, 0), read(&grown, last));
        for damage in [Page([0; BLOCK_BYTES]), Page([0xa5; BLOCK_BYTES])] {
            write(&grown, 0, damage);
            let error = refused(&grown);
            assert!(error.help().is_some_and(|help| help.contains("check --repair")), "{error}");
            assert_eq!(Store::repair_superblocks(&*grown), Ok(SuperblockRepair::First(Block(last))));
            assert_eq!(Store::repair_superblocks(&*grown), Ok(SuperblockRepair::Neither));
            assert_eq!(findings(&open(&grown).expect("it is whole")), []);
        }
    }
}

#[test]
fn a_damaged_copy_is_found_by_check_and_mended_from_the_first_also_by_scrub() {
    let disk = with_store();
    let last = disk.blocks() - 1;
    disk.rot(Block(last), 300);
    assert_eq!(findings(&open(&disk).expect("nobody needs it")).len(), 1);
    assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::Copy(Block(last))));
    disk.rot(Block(last), 300);
    let store = open(&disk).expect("nobody needs it");
    assert_eq!(
        store.maintenance().scrub_step(&mut |_| {}).repaired,
        0,
        "nothing is written before an incarnation begins"
    );
    while !store.maintenance().scrub_step(&mut |_| {}).done {}
    store.begin(device::Incarnation(9)).expect("a higher one");
    let mut found = Vec::new();
    let scrubbed = store.maintenance().scrub_step(&mut |finding| found.push(finding));
    assert_eq!((scrubbed.damaged, scrubbed.repaired, found.len()), (1, 1, 1), "{found:?}");
    assert_eq!((read(&disk, last), findings(&store)), (read(&disk, 0), vec![]));
}

#[test]
fn a_first_block_of_another_store_is_found_by_scrub_and_restored_from_the_copy_that_the_roots_name() {
    let disk = with_store();
    let last = disk.blocks() - 1;
    let whole = read(&disk, 0);
    let store = open(&disk).expect("a sound store");
    superblock_with(&disk, 16, b"another");
    let mut found = Vec::new();
    store.maintenance().scrub_step(&mut |finding| found.push(finding));
    assert_eq!(found.iter().map(|finding| finding.place).collect::<Vec<_>>(), [Some(Block(0))], "{found:?}");
    drop(store);
    assert_eq!(Store::repair_superblocks(&*disk), Ok(SuperblockRepair::First(Block(last))));
    assert!(read(&disk, 0) == whole && findings(&open(&disk).expect("it is whole")).is_empty());
}

/// A store with a damaged superblock whose copy is changed like this.
fn with_copy(change: impl FnOnce(&SimDisk, u64)) -> Arc<SimDisk> {
    let disk = with_store();
    change(&disk, disk.blocks() - 1);
    disk.rot(Block(0), 300);
    disk
}

#[test]
fn a_copy_that_is_missing_damaged_anothers_or_of_another_size_restores_nothing() {
    let says = |disk: &Arc<SimDisk>, part: &str| {
        let error = not_mended(disk);
        let place = disk.blocks() - 1;
        let named = error.to_string().contains(&format!("block {place}"));
        assert!(named && error.to_string().contains(part), "{error}: not {part:?}");
    };
    says(&with_copy(|disk, last| write(disk, last, Page([0; BLOCK_BYTES]))), "no copy");
    says(&with_copy(|disk, last| disk.rot(Block(last), 300)), "damaged, too");
    says(&with_copy(|disk, last| block_with(disk, last, 16, b"another")), "is of store 616e6f74686572");
    let larger = |disk: &SimDisk, last: u64| {
        block_with(disk, last, 32, &(4 + 49 * u64::from(SEGMENT)).to_le_bytes());
        block_with(disk, last, 52, &49_u32.to_le_bytes());
    };
    says(&with_copy(larger), &format!("a store of {} blocks", 4 + 49 * u64::from(SEGMENT)));
    let draft = with_copy(|disk, last| block_with(disk, last, DRAFT_AT, &9_u32.to_le_bytes()));
    assert!(matches!(not_mended(&draft), StoreError::OtherDraft { found: 9, .. }));
    let no_roots = with_copy(|disk, _| [1, 2].iter().for_each(|&at| disk.rot(Block(at), 300)));
    assert!(matches!(not_mended(&no_roots), StoreError::NoGoodCopy { place: Block(1), .. }));
    let two = with_copy(|disk, _| block_with(disk, 2, 16, b"another"));
    assert!(not_mended(&two).to_string().contains("of two stores"));
}

#[test]
#[cfg(feature = "planted-bugs")]
fn a_superblock_restored_from_any_copy_is_noticed() {
    let disk = with_copy(|disk, last| block_with(disk, last, 16, b"another"));
    store::plant(Some(store::StoreBug::AnyCopyRestored));
    let mended = Store::repair_superblocks(&*disk);
    store::plant(None);
    assert!(mended.is_ok() && open(&disk).is_err(), "a store of nobody: {mended:?}");
}

#[test]
fn a_format_that_is_cut_off_leaves_the_older_store_none_or_the_new_one_and_nothing_to_restore() {
    let new = StoreLayout { id: StoreId(*b"the new one's id"), segment_blocks: Some(SEGMENT) };
    let mut none = 0;
    for cut in 0..40 {
        let (power, disk, store) = fresh(48, cut);
        let old = store.id();
        drop(store);
        power.cut_after(cut);
        let done = Store::format(&*disk, &new).is_ok();
        power.cut();
        disk.crash();
        power.restore();
        match Store::repair_superblocks(&*disk) {
            Ok(_) => {
                let store = open(&disk).expect("a whole one");
                assert!(store.id() == new.id || (store.id() == old && !done), "cut at {cut}");
                assert_eq!(findings(&store), [], "cut at {cut}");
            }
            Err(error) => {
                assert!(!done && !matches!(error, StoreError::Corrupt { .. }), "cut at {cut}: {error}");
                none += 1;
            }
        }
    }
    assert!(none > 0, "no crash was in the middle");
}

//! Stores of the draft before, as its code wrote them: volume 0 exists, and is called `main`, though nothing on
//! the medium says so.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Lsn, Page, PageNo};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{PageRead, Store, StoreChange, StoredPage, VolumeId};

/// The bytes of two stores, each of 48 segments of 16 blocks. Lines of zeros are left out.
///
/// `empty` was just formatted. `used` has pages in objects 0 and 7 of `main`, and two clones of it: `nightly`
/// before a page of object 7 was overwritten, and `work` after that. The log has all that follows `nightly`.
const IMAGES: &str = include_str!("draft_before.hex");

/// Where the superblock and its copy have their draft.
const DRAFTS_AT: [(u64, usize); 2] = [(0, 76), (771, 76)];

fn image(name: &str, power: &Arc<PowerSupply>) -> Arc<SimDisk> {
    let disk = disk(4 + 48 * 16, power, 1);
    let (_, lines) = IMAGES.split_once(&format!("{name}\n")).expect("one of the two");
    for (offset, bytes) in lines.lines().map_while(|line| line.split_once(':')) {
        let offset = usize::from_str_radix(offset, 16).expect("hex");
        let at = Block((offset / BLOCK_BYTES) as u64);
        let mut page = [block(&disk, at)];
        for (index, byte) in bytes.split_whitespace().enumerate() {
            page[0].0[offset % BLOCK_BYTES + index] = u8::from_str_radix(byte, 16).expect("hex");
        }
        disk.write(at, &page).expect("power is on");
    }
    disk.flush().expect("power is on");
    disk
}

fn block(disk: &SimDisk, at: Block) -> Page {
    let mut page = device::pages(1);
    disk.read(at, &mut page).expect("a read in range");
    page.remove(0)
}

fn drafts(disk: &SimDisk) -> [u8; 2] {
    DRAFTS_AT.map(|(at, byte)| block(disk, Block(at)).0[byte])
}

fn names(store: &Store) -> Vec<(u32, String, Option<VolumeId>)> {
    store.volumes().describe().into_iter().map(|one| (one.id.0, one.name, one.from)).collect()
}

/// The byte that tells a page from others; `None` for a hole.
fn found(store: &Store, volume: u32, slot: u64, number: u64) -> Option<u8> {
    let mut want = [PageRead::new(VolumeId(volume).object(slot, 1), PageNo(number))];
    store.data().read(&mut want);
    match want[0].result.as_ref().expect("a sound disk") {
        StoredPage::Hole => None,
        StoredPage::Page { bytes, .. } => Some(bytes.0[5]),
    }
}

/// Checks that `used` has what was written to it.
fn assert_used(store: &Store, when: &str) {
    let main = Some(VolumeId::MAIN);
    let expected = [(0, "main".into(), None), (1, "nightly".into(), main), (2, "work".into(), main)];
    assert_eq!(names(store), expected, "{when}");
    for volume in 0..3 {
        assert_eq!(found(store, volume, 0, 0), Some(1), "{when}: volume {volume}");
    }
    assert_eq!([0, 1, 2].map(|volume| found(store, volume, 7, 3)), [Some(4), Some(2), Some(4)], "{when}");
    assert_eq!([0, 1, 2].map(|volume| found(store, volume, 7, 4)), [Some(6), None, None], "{when}");
    assert_eq!(findings(store), [], "{when}");
}

#[test]
fn opened_store_has_its_implied_volume() {
    let power = PowerSupply::new();
    let disk = image("empty", &power);
    let before: Vec<Page> = (0..disk.blocks()).map(|at| block(&disk, Block(at))).collect();
    let store = open(&disk).expect("it opens");
    assert_eq!(names(&store), [(0, "main".into(), None)]);
    assert_eq!(findings(&store), []);
    assert!((0..disk.blocks()).all(|at| block(&disk, Block(at)) == before[at as usize]), "bytes changed");
    assert_used(&open(&image("used", &power)).expect("it opens"), "opened");
}

#[test]
fn mounted_store_gets_the_new_draft() {
    let disk = image("used", &PowerSupply::new());
    assert_eq!(drafts(&disk), [5, 5]);
    let store = mount(&disk).expect("it opens");
    assert_eq!(drafts(&disk), [6, 6]);
    assert_used(&store, "mounted");
    drop(store);
    let store = mount(&disk).expect("it opens");
    assert_used(&store, "mounted again");
    store.volumes().rename(VolumeId::MAIN, "old").expect("space");
    store.volumes().delete(VolumeId(1), Lsn(7)).expect("it is there");
    drop(store);
    let store = mount(&disk).expect("it opens");
    let main = Some(VolumeId::MAIN);
    assert_eq!(names(&store), [(0, "old".into(), None), (2, "work".into(), main)]);
    store.volumes().delete(VolumeId::MAIN, Lsn(8)).expect("it is there");
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(names(&store), [(2, "work".into(), main)]);
    assert_eq!(findings(&store), []);
}

#[test]
fn empty_store_works_after_the_first_mount() {
    let disk = image("empty", &PowerSupply::new());
    let store = mount(&disk).expect("it opens");
    let (object, bytes) = (VolumeId::MAIN.object(7, 1), page(9));
    let write = StoreChange::Write { object, page: PageNo(3), bytes, page_lsn: Lsn(1) };
    store.data().apply(&[write]).expect("space");
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(names(&store), [(0, "main".into(), None)]);
    assert_eq!(found(&store, 0, 7, 3), Some(0));
    assert_eq!(findings(&store), []);
}

#[test]
fn crash_in_the_first_mount_leaves_either_draft() {
    let original = image("used", &PowerSupply::new());
    let mut seen = Vec::new();
    for operations in 0.. {
        let power = PowerSupply::new();
        let disk = original.fork(&power, operations);
        power.cut_after(operations);
        let mounted = mount(&disk).is_ok();
        power.cut();
        disk.crash();
        power.restore();
        seen.push(drafts(&disk));
        assert_used(&open(&disk).expect("it opens"), &format!("{operations} operations"));
        assert_used(&mount(&disk).expect("it mounts"), &format!("{operations} operations, mounted"));
        assert_eq!(drafts(&disk), [6, 6]);
        if mounted {
            break;
        }
    }
    seen.dedup();
    assert!([[5, 5], [5, 6], [6, 6]].iter().all(|drafts| seen.contains(drafts)), "{seen:?}");
}

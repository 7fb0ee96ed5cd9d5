//! Pages that are stored as deltas over their bases.

use crate::common::*;
use device::{BLOCK_BYTES, Device, Lsn, ObjectId, PageNo, PageTransfer, TransferKind, VolumeId};
use sim_disk::SimDisk;
use std::sync::Arc;
use store::{
    DeltaBlock, DeltaPacker, DeltaPiece, NewVolume, PageRead, RESERVED_BLOCKS_PER_PAGE, ReservationEstimate,
    ScrubProgress, Store, StoreChange, StoreError, StoreSpace, StoredPage, VolumeMode,
};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
const COPY: ObjectId = VolumeId::MAIN.object(8, 1);

fn whole(object: ObjectId, number: u64, byte: u8, lsn: u64) -> StoreChange {
    let bytes = Arc::new(Box::new(device::Page([byte; BLOCK_BYTES])));
    StoreChange::Write { object, page: PageNo(number), bytes, page_lsn: Lsn(lsn) }
}

/// 100 bytes of each of these pages of one leaf, from `at` on.
fn deltas(numbers: &[u64], at: u16, byte: u8) -> DeltaBlock {
    let mut packer = DeltaPacker::new(ID);
    for &number in numbers {
        assert!(packer.add(PageNo(number), [DeltaPiece::Bytes(at, &[byte; 100])].into_iter()));
    }
    packer.finish().remove(0)
}

fn delta(object: ObjectId, numbers: &[u64], at: u16, byte: u8, lsn: u64) -> StoreChange {
    StoreChange::Deltas { object, block: deltas(numbers, at, byte), page_lsn: Lsn(lsn) }
}

fn found(store: &Store, object: ObjectId, number: u64) -> Result<Option<(Vec<u8>, u64)>, StoreError> {
    let mut wants = [PageRead::new(object, PageNo(number))];
    store.data().read(&mut wants);
    let [want] = wants;
    let mut by_all = None;
    store.data().read_in_device_order(&[(object, PageNo(number))], &mut |_, page| {
        by_all = Some(page.map(|page| page.map(|(bytes, lsn)| (bytes.0.to_vec(), lsn.0))));
    });
    let found = want.result.map(|found| match found {
        StoredPage::Hole => None,
        StoredPage::Page { bytes, page_lsn } => Some((bytes.0.to_vec(), page_lsn.0)),
    });
    assert_eq!(Some(&found), by_all.as_ref(), "both ways of reading find the same");
    found
}

/// The bytes at some positions of a page, and its page LSN.
fn bytes(store: &Store, object: ObjectId, number: u64, at: [usize; 3]) -> Option<([u8; 3], u64)> {
    let found = found(store, object, number).expect("it can be read");
    found.map(|(bytes, lsn)| (at.map(|at| bytes[at]), lsn))
}

/// The store opened again, after the cleaner moved everything.
fn again(disk: &Arc<SimDisk>, store: Store) -> Store {
    drop(store);
    let store = mount(disk).expect("it opens again");
    for _ in 0..10 {
        store.maintenance().clean_round().expect("cleaning");
        store.maintenance().checkpoint_twice().expect("checkpoints");
    }
    assert_eq!(findings(&store), []);
    store
}

#[test]
fn a_page_is_its_base_with_its_deltas_over_it_the_later_ones_over_the_earlier() {
    let (_power, disk, mut store) = fresh(140, 1);
    store.data().apply(&[whole(FILE, 5, 1, 10), whole(FILE, 6, 9, 10)]).expect("space");
    store.data().apply(&[delta(FILE, &[5, 6], 0, 2, 20)]).expect("space");
    store.data().apply(&[delta(FILE, &[5], 50, 3, 30), delta(FILE, &[5], 120, 4, 40)]).expect("space");
    for _ in 0..2 {
        assert_eq!(bytes(&store, FILE, 5, [40, 60, 130]), Some(([2, 3, 4], 40)));
        assert_eq!(bytes(&store, FILE, 5, [119, 219, 220]), Some(([3, 4, 1], 40)));
        assert_eq!(bytes(&store, FILE, 6, [99, 100, 4095]), Some(([2, 9, 9], 20)));
        store = again(&disk, store);
    }
    store.data().apply(&[whole(FILE, 5, 8, 50)]).expect("space");
    assert_eq!(bytes(&store, FILE, 5, [40, 60, 130]), Some(([8; 3], 50)), "nothing is left of them");
    assert_eq!(
        bytes(&store, FILE, 6, [0, 99, 100]),
        Some(([2, 2, 9], 20)),
        "its delta lies in the same block"
    );
    again(&disk, store);
}

#[test]
fn a_delta_where_nothing_was_is_zeros_elsewhere_and_the_page_is_listed() {
    let (_power, disk, store) = fresh(140, 1);
    store.data().apply(&[delta(FILE, &[300], 10, 2, 20)]).expect("space");
    let store = again(&disk, store);
    assert_eq!(bytes(&store, FILE, 300, [9, 10, 110]), Some(([0, 2, 0], 20)));
    let listed = store.data().list(FILE, PageNo(0)..PageNo(1000), 10).expect("readable");
    assert_eq!(listed.pages, [(PageNo(300), Lsn(20))]);
    assert_eq!(store.data().page_lsn(FILE, PageNo(300)), Ok(Some(Lsn(20))));
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(300))]), Ok(1));
    assert_eq!(bytes(&store, FILE, 300, [9, 10, 110]), Some(([0, 2, 0], 20)));
}

#[test]
fn a_cut_takes_the_deltas_of_its_pages_and_leaves_those_beside_them_in_their_block() {
    let (_power, disk, store) = fresh(140, 1);
    store.data().apply(&[whole(FILE, 5, 1, 10), delta(FILE, &[5, 6, 7], 0, 2, 20)]).expect("space");
    store
        .data()
        .apply(&[StoreChange::Punch { object: FILE, pages: PageNo(5)..PageNo(6), lsn: Lsn(30) }])
        .expect("space");
    store
        .data()
        .apply(&[StoreChange::Punch { object: FILE, pages: PageNo(7)..PageNo(8), lsn: Lsn(15) }])
        .expect("space");
    let store = again(&disk, store);
    assert_eq!(bytes(&store, FILE, 5, [0; 3]), None);
    assert_eq!(bytes(&store, FILE, 6, [0, 99, 100]), Some(([2, 2, 0], 20)));
    assert_eq!(bytes(&store, FILE, 7, [0, 99, 100]), Some(([2, 2, 0], 20)), "it is newer than the cut");
    store.data().apply(&[StoreChange::Delete { object: FILE, lsn: Lsn(40) }]).expect("space");
    let store = again(&disk, store);
    assert_eq!(store.volumes().usage().expect("readable").data, 0, "the last delta's block is free, too");
}

#[test]
fn a_page_takes_eight_deltas_and_a_leaf_52_blocks_of_them_until_they_are_folded() {
    let (_power, _disk, store) = fresh(140, 1);
    store.data().apply(&[whole(FILE, 5, 1, 10)]).expect("space");
    for lsn in 20..28 {
        store.data().apply(&[delta(FILE, &[5], lsn as u16, lsn as u8, lsn)]).expect("space");
    }
    let ninth = [whole(FILE, 6, 3, 30), delta(FILE, &[5], 0, 30, 30)];
    assert_eq!(store.data().apply(&ninth), Err(StoreError::DeltasFull { object: FILE, page: PageNo(0) }));
    assert_eq!(bytes(&store, FILE, 6, [0; 3]), None, "nothing of it was applied");
    assert_eq!(store.data().takes_deltas(FILE, &[deltas(&[5], 0, 30)]), Ok(false));
    assert_eq!(store.data().takes_deltas(FILE, &[deltas(&[6], 0, 30)]), Ok(true));
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(127))]), Ok(1));
    assert_eq!(bytes(&store, FILE, 5, [22, 23, 4095]), Some(([22, 23, 1], 27)));
    store.data().apply(&ninth).expect("space");
    assert_eq!(bytes(&store, FILE, 5, [0, 99, 100]), Some(([30, 30, 27], 30)));

    for (lsn, number) in (100..).zip((10..20).cycle().take(51)) {
        store.data().apply(&[delta(FILE, &[number], 0, 7, lsn)]).expect("a leaf takes them");
    }
    let more = [delta(FILE, &[100], 0, 7, 200)];
    assert_eq!(store.data().apply(&more), Err(StoreError::DeltasFull { object: FILE, page: PageNo(0) }));
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(0))]), Ok(11));
    store.data().apply(&more).expect("space");
    assert_eq!(findings(&store), []);
}

#[test]
fn folding_gives_the_blocks_of_deltas_back_and_changes_nothing_that_is_read() {
    let (_power, disk, store) = fresh(140, 1);
    let numbers: Vec<u64> = (0..100).collect();
    store
        .data()
        .apply(&numbers.iter().map(|&number| whole(FILE, number, 1, 10)).collect::<Vec<_>>())
        .expect("space");
    for some in numbers.chunks(30) {
        store.data().apply(&[delta(FILE, some, 0, 2, 20)]).expect("space");
    }
    let read = |store: &Store| numbers.iter().map(|&page| found(store, FILE, page)).collect::<Vec<_>>();
    let before = read(&store);
    assert_eq!(store.volumes().usage().expect("readable").data, 104);
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(3))]), Ok(100));
    assert_eq!(
        (store.volumes().usage().expect("readable").data, store.data().merge_deltas(&[(FILE, PageNo(3))])),
        (100, Ok(0))
    );
    assert!(read(&store) == before);
    assert_eq!(store.counters().pages_delta_merged, 100);
    let store = again(&disk, store);
    assert!(read(&store) == before, "after a start and cleaning, too");
}

/// A store with a page and deltas of `FILE`, which a clone of the volume shares. Returns the clone's file.
fn with_shared_deltas() -> (Arc<SimDisk>, Store, ObjectId) {
    let (_power, disk, store) = fresh(96, 1);
    store.data().apply(&[whole(FILE, 5, 1, 10), delta(FILE, &[5, 6], 0, 2, 20)]).expect("space");
    let new = NewVolume { name: "copy", mode: VolumeMode::Writable, created: 0 };
    let copy = store.volumes().clone_named(VolumeId::MAIN, &new, Lsn(25)).expect("space");
    (disk, store, FILE.in_volume(copy))
}

fn assert_shared_deltas_are_read(store: &Store, theirs: ObjectId) {
    for file in [FILE, theirs] {
        assert_eq!(bytes(store, file, 5, [49, 99, 150]), Some(([2, 2, 1], 20)));
        assert_eq!(bytes(store, file, 6, [0, 99, 100]), Some(([2, 2, 0], 20)));
    }
}

#[test]
fn a_clone_of_a_volume_has_the_deltas_too() {
    let (disk, mut store, theirs) = with_shared_deltas();
    while store.maintenance().idle_merge_step().expect("space") {}
    assert_eq!(store.counters().pages_delta_merged, 0, "idle times leave shared deltas alone");
    assert_shared_deltas_are_read(&store, theirs);
    store.data().apply(&[delta(theirs, &[5], 50, 3, 30)]).expect("space");
    store.data().apply(&[delta(FILE, &[5], 50, 4, 40)]).expect("space");
    for _ in 0..2 {
        assert_eq!(bytes(&store, FILE, 5, [49, 50, 150]), Some(([2, 4, 1], 40)));
        assert_eq!(bytes(&store, theirs, 5, [49, 50, 150]), Some(([2, 3, 1], 30)));
        assert_eq!(bytes(&store, theirs, 6, [0, 99, 100]), Some(([2, 2, 0], 20)));
        while store.maintenance().idle_merge_step().expect("space") {}
        assert_eq!(store.counters().pages_delta_merged, 0);
        store = again(&disk, store);
    }
    store.volumes().delete(theirs.volume, Lsn(50)).expect("space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    let store = again(&disk, store);
    assert_eq!(bytes(&store, FILE, 5, [49, 50, 150]), Some(([2, 4, 1], 40)));
    assert_eq!(bytes(&store, FILE, 6, [0, 99, 100]), Some(([2, 2, 0], 20)));
}

#[test]
fn a_leaf_in_the_way_is_merged_beside_its_clone() {
    let (disk, store, theirs) = with_shared_deltas();
    let space = store.space().now();
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(2));
    let after = store.space().now();
    let more = after.live - space.live;
    assert!((2..=RESERVED_BLOCKS_PER_PAGE).contains(&more), "{more} blocks: two pages, new leaves and nodes");
    let all = |space: &StoreSpace| space.reservable + space.live + space.kept;
    assert_eq!(all(&after), all(&space), "nothing stays set aside");
    let store = again(&disk, store);
    assert_shared_deltas_are_read(&store, theirs);
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(0), "it has no deltas left");
    store.volumes().delete(theirs.volume, Lsn(50)).expect("space");
    while store.maintenance().free_deleted_step().expect("freeing") {}
    let store = again(&disk, store);
    assert_eq!(bytes(&store, FILE, 5, [49, 99, 150]), Some(([2, 2, 1], 20)));
    assert_eq!(bytes(&store, FILE, 6, [0, 99, 100]), Some(([2, 2, 0], 20)));
}

#[test]
fn shared_deltas_stay_where_space_is_tight_or_reserved() {
    let (_disk, store, theirs) = with_shared_deltas();
    let reserved = store.space().now().reservable / RESERVED_BLOCKS_PER_PAGE;
    store.space().reserve(reserved, ReservationEstimate::default()).expect("as much as is there");
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(0), "not even a page could be reserved");
    store.space().release(reserved);
    let space = store.space().now();
    let pages = space.total - space.live - space.kept - space.total / 8;
    for first in (0..pages).step_by(64) {
        let some: Vec<StoreChange> = (first..first + 64).map(|page| whole(COPY, page, 7, 30)).collect();
        apply_with_cleaning(&store, &some).expect("space");
    }
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(0), "an eighth is left");
    assert_shared_deltas_are_read(&store, theirs);
}

#[test]
fn shared_deltas_in_unshared_leaves_stay_where_space_is_reserved() {
    let (_disk, store, theirs) = with_shared_deltas();
    // From here on each volume has nodes of its own, and their blocks are still shared.
    store.data().apply(&[delta(theirs, &[5], 50, 3, 30)]).expect("space");
    store.data().apply(&[delta(FILE, &[5], 50, 4, 40)]).expect("space");
    let space = store.space().now();
    let reserved = space.reservable / RESERVED_BLOCKS_PER_PAGE;
    store.space().reserve(reserved, ReservationEstimate::default()).expect("as much as is there");
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(0), "the old blocks would stay live");
    assert_eq!(store.space().now().live, space.live);
    store.space().release(reserved);
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(2));
    assert_eq!(bytes(&store, FILE, 5, [49, 50, 150]), Some(([2, 4, 1], 40)));
    assert_eq!(bytes(&store, theirs, 5, [49, 50, 150]), Some(([2, 3, 1], 30)));
}

#[test]
fn a_clone_of_pages_brings_their_deltas_whole_leaves_unread_and_those_at_its_edges_folded() {
    let (_power, disk, store) = fresh(96, 1);
    let pages = (0..5).map(|leaf| whole(FILE, 128 * leaf + 3, leaf as u8 + 1, 10));
    store.data().apply(&pages.collect::<Vec<_>>()).expect("space");
    for leaf in 0..5 {
        store.data().apply(&[delta(FILE, &[128 * leaf + 3, 128 * leaf + 100], 0, 9, 20)]).expect("space");
    }
    let transfer = |kind, first, end, at| PageTransfer {
        kind,
        from: FILE,
        first: PageNo(first),
        end: PageNo(end),
        to: COPY,
        at: PageNo(at),
    };
    store
        .data()
        .apply(&[StoreChange::Transfer {
            transfer: transfer(TransferKind::Clone, 50, 400, 50),
            lsn: Lsn(30),
        }])
        .expect("space");
    assert_eq!(store.counters().pages_delta_merged, 2, "page 100, and page 387");
    assert_eq!(bytes(&store, COPY, 3, [0; 3]), None);
    assert_eq!(bytes(&store, COPY, 100, [0, 99, 100]), Some(([9, 9, 0], 20)));
    assert_eq!(bytes(&store, COPY, 131, [0, 99, 100]), Some(([9, 9, 2], 20)));
    assert_eq!(bytes(&store, COPY, 387, [0, 99, 100]), Some(([9, 9, 4], 20)));
    store
        .data()
        .apply(&[StoreChange::Transfer {
            transfer: transfer(TransferKind::Move, 512, 640, 1001),
            lsn: Lsn(40),
        }])
        .expect("space");
    let store = again(&disk, store);
    assert_eq!(bytes(&store, FILE, 515, [0; 3]), None);
    assert_eq!(bytes(&store, COPY, 1004, [0, 99, 100]), Some(([9, 9, 5], 20)), "another place in its leaf");
    assert_eq!(bytes(&store, COPY, 1101, [0, 99, 100]), Some(([9, 9, 0], 20)));
    assert_eq!(bytes(&store, COPY, 131, [0, 99, 100]), Some(([9, 9, 2], 20)));
}

#[test]
fn a_damaged_block_of_deltas_is_an_error_of_its_pages_and_check_and_scrub_name_one() {
    let (_power, disk, store) = fresh(140, 1);
    store
        .data()
        .apply(&[whole(FILE, 4, 1, 10), whole(FILE, 5, 1, 10), whole(FILE, 7, 1, 10)])
        .expect("space");
    store.data().apply(&[delta(FILE, &[5, 6], 0, 0xd5, 20)]).expect("space");
    store.maintenance().checkpoint_twice().expect("checkpoints");
    let is_it = |&at: &device::Block| {
        let mut page = device::pages(1);
        disk.read(at, &mut page).expect("power");
        page[0].0.starts_with(b"weir.dlt")
    };
    let at = disk.written_blocks().into_iter().find(is_it).expect("it is stored");
    disk.rot(at, 77);
    for number in [5, 6] {
        let error = found(&store, FILE, number).expect_err("its delta is damaged").to_string();
        assert!(error.contains(&format!("a delta of page {number} of object {FILE}")), "{error}");
    }
    assert_eq!(bytes(&store, FILE, 4, [0; 3]), Some(([1; 3], 10)));
    let named = |finding: &store::StoreFinding| (finding.object, finding.page, finding.place);
    let expected = [(Some(FILE), Some(PageNo(5)), Some(at))];
    assert_eq!(findings(&store).iter().map(named).collect::<Vec<_>>(), expected);
    let mut scrubbed = Vec::new();
    while !matches!(
        store.maintenance().scrub_step(&mut |finding| scrubbed.push(finding)),
        ScrubProgress { done: true, .. }
    ) {}
    assert_eq!(scrubbed.iter().map(named).collect::<Vec<_>>(), expected);
    assert_eq!(store.data().merge_deltas(&[(FILE, PageNo(5))]), Ok(0), "a damaged page is not folded");
    store.data().apply(&[whole(FILE, 5, 3, 30)]).expect("space");
    assert_eq!(bytes(&store, FILE, 5, [0; 3]), Some(([3; 3], 30)), "written whole it needs none");
}

#[test]
fn what_a_clone_or_a_move_took_of_a_damaged_page_is_lost_and_check_and_scrub_name_it() {
    let (_power, disk, store) = fresh(140, 1);
    store
        .data()
        .apply(&[whole(FILE, 4, 1, 10), whole(FILE, 5, 0x5a, 10), whole(FILE, 6, 1, 10)])
        .expect("space");
    store.data().apply(&[delta(FILE, &[4, 5], 0, 0xd5, 20)]).expect("space");
    let is_it = |&at: &device::Block| {
        let mut page = device::pages(1);
        disk.read(at, &mut page).expect("power");
        page[0].0 == [0x5a; BLOCK_BYTES]
    };
    let at = disk.written_blocks().into_iter().find(is_it).expect("it is stored");
    disk.rot(at, 77);
    let transfer = |kind, to, at| PageTransfer {
        kind,
        from: FILE,
        first: PageNo(4),
        end: PageNo(7),
        to,
        at: PageNo(at),
    };
    store
        .data()
        .apply(&[StoreChange::Transfer { transfer: transfer(TransferKind::Clone, COPY, 4), lsn: Lsn(30) }])
        .expect("space");
    store
        .data()
        .apply(&[StoreChange::Transfer { transfer: transfer(TransferKind::Clone, COPY, 1001), lsn: Lsn(31) }])
        .expect("space");
    let object = ObjectId { slot: 9, ..COPY };
    store
        .data()
        .apply(&[StoreChange::Transfer { transfer: transfer(TransferKind::Move, object, 4), lsn: Lsn(40) }])
        .expect("space");
    for _ in 0..2 {
        for (object, page) in [(COPY, 5), (COPY, 1002), (object, 5)] {
            assert_eq!(bytes(&store, object, page - 1, [0, 99, 100]), Some(([0xd5, 0xd5, 1], 20)));
            let error = found(&store, object, page).expect_err("it was damaged");
            assert!(matches!(error, StoreError::Lost { page: at, .. } if at == PageNo(page)), "{error}");
            assert_eq!(bytes(&store, object, page + 1, [0, 99, 100]), Some(([1, 1, 1], 10)));
        }
    }
    assert_eq!(bytes(&store, FILE, 5, [0; 3]), None);
    store.maintenance().checkpoint_twice().expect("checkpoints");
    drop(store);
    let store = mount(&disk).expect("it opens again");
    let named = |finding: &store::StoreFinding| (finding.object, finding.page, finding.place);
    let lost = [(COPY, 5), (COPY, 1002), (object, 5)];
    let expected = lost.map(|(object, page)| (Some(object), Some(PageNo(page)), None));
    let sorted = |findings: &[store::StoreFinding]| {
        let mut named: Vec<_> = findings.iter().map(named).collect();
        named.sort();
        named
    };
    assert_eq!(sorted(&findings(&store)), expected);
    let mut scrubbed = Vec::new();
    while !matches!(
        store.maintenance().scrub_step(&mut |finding| scrubbed.push(finding)),
        ScrubProgress { done: true, .. }
    ) {}
    assert_eq!(sorted(&scrubbed), expected);
    store.data().apply(&lost.map(|(object, page)| whole(object, page, 3, 50))).expect("space");
    let store = again(&disk, store);
    assert_eq!(bytes(&store, COPY, 1002, [0; 3]), Some(([3; 3], 50)));
}

#[test]
fn who_folds_what_is_owed_for_deltas_meets_no_leaf_that_is_full() {
    let (_power, disk, store) = fresh(2000, 1);
    let mut folded = 0;
    let mut most = 0;
    for round in 0..120 {
        let blocks =
            |leaf: u64| (0..8).map(move |page| 128 * leaf + 8 * (round % 16) + page).collect::<Vec<_>>();
        let vector = (0..40).map(|leaf| delta(FILE, &blocks(leaf), 0, round as u8 + 1, 10 + round));
        store.data().apply(&vector.collect::<Vec<_>>()).expect("each leaf has space for a block");
        let now = store.data().merge_due_deltas().expect("space");
        folded += now;
        most = most.max(now);
    }
    assert!(folded > 0 && most <= 16 * 128, "{folded} pages in all, {most} at once");
    assert_eq!(store.counters().pages_delta_merged, folded);
    let store = again(&disk, store);
    for page in [0, 7, 128 * 39 + 8 * 7 + 3] {
        let round = (0..120).rev().find(|round| round % 16 == page % 128 / 8).expect("one of the last");
        assert_eq!(
            bytes(&store, FILE, page, [0, 99, 100]),
            Some(([round as u8 + 1, round as u8 + 1, 0], 10 + round))
        );
    }
}

#[test]
fn a_round_of_folding_folds_every_leaf_of_every_volume_and_ends_at_once_where_nothing_came_since() {
    let (_power, _disk, store) = fresh(200, 1);
    let new = NewVolume { name: "other", mode: VolumeMode::Writable, created: 0 };
    let other = store.volumes().clone_named(VolumeId::MAIN, &new, Lsn(1)).expect("space");
    let objects = [FILE, VolumeId::MAIN.object(900, 2), other.object(5, 1), other.object(6, 1)];
    for (object, lsn) in objects.into_iter().zip(10..) {
        for leaf in [0, 1, 70, 5000] {
            store.data().apply(&[delta(object, &[128 * leaf + 3], 0, 2, lsn)]).expect("space");
        }
    }
    let mut steps = 0;
    while store.maintenance().idle_merge_step().expect("space") {
        steps += 1;
        assert!(steps < 40, "it does not end");
    }
    assert_eq!(store.counters().pages_delta_merged, 16);
    let nodes = store.counters().node_reads;
    assert_eq!((store.maintenance().idle_merge_step(), store.counters().node_reads), (Ok(false), nodes));
    store.data().apply(&[delta(objects[3], &[9], 0, 2, 100)]).expect("space");
    while store.maintenance().idle_merge_step().expect("space") {}
    assert_eq!(store.counters().pages_delta_merged, 17);
    assert_eq!(findings(&store), []);
}

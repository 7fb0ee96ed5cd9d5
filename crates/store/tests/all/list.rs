//! Listing the pages of an object, some leaves at a time.

use crate::common::*;
use device::{Lsn, ObjectId, PageNo, VolumeId};
use store::{ListedPages, Store, StoreChange};

const OBJECT: ObjectId = VolumeId::MAIN.object(3, 1);

fn write(number: u64) -> StoreChange {
    let page_no = PageNo(number);
    let page_lsn = Lsn(number % 1000 + 1);
    StoreChange::Write { object: OBJECT, page: page_no, bytes: page(number), page_lsn }
}

/// Lists all pages in a range. Returns them, and the most pages of one call.
fn list(store: &Store, from: u64, to: u64, leaves: usize) -> (Vec<u64>, usize) {
    let mut all = Vec::new();
    let mut most = 0;
    let mut at = PageNo(from);
    while at < PageNo(to) {
        let ListedPages { pages, until } =
            store.data().list(OBJECT, at..PageNo(to), leaves).expect("a listing");
        assert!(until > at, "it does not get on");
        assert!(pages.iter().all(|&(page, _)| at <= page && page < until), "outside of {at:?}..{until:?}");
        assert!(pages.iter().all(|&(page, page_lsn)| page_lsn == Lsn(page.0 % 1000 + 1)));
        most = most.max(pages.len());
        all.extend(pages.iter().map(|(page, _)| page.0));
        at = until;
    }
    (all, most)
}

#[test]
fn a_listing_is_every_page_once_in_order_however_small_its_pieces() {
    let (_power, disk, store) = fresh(64, 1);
    // Pages in the middle of a leaf, across the ends of leaves, and far away. Some leaves have none.
    let written: Vec<u64> =
        [0, 5].into_iter().chain(100..300).chain([70_000, 1 << 33, (1 << 35) - 1]).collect();
    let end = 1 << 35;
    for inline in [2, written.len()] {
        let vector: Vec<StoreChange> = written[..inline].iter().map(|&number| write(number)).collect();
        store.data().apply(&vector).expect("space");
        let expected = &written[..inline];
        for leaves in [0, 1, 2, 3, 100] {
            assert_eq!(list(&store, 0, end, leaves).0, expected, "{leaves} leaves at once");
            let part: Vec<u64> =
                expected.iter().copied().filter(|page| (101..70_001).contains(page)).collect();
            assert_eq!(list(&store, 101, 70_001, leaves).0, part, "{leaves} leaves at once");
        }
        assert!(list(&store, 0, end, 1).1 <= 128, "a piece is one leaf");
        let before_a_gap = store.data().list(OBJECT, PageNo(0)..PageNo(69_000), 100).expect("a listing");
        assert_eq!(before_a_gap.until, PageNo(69_000), "there is nothing more to ask for");
    }
    assert_eq!(store.data().list(OBJECT, PageNo(9)..PageNo(9), 1).expect("nothing").pages, []);
    let other = ObjectId { generation: 2, ..OBJECT };
    assert_eq!(store.data().list(other, PageNo(0)..PageNo(end), 1).expect("nothing").until, PageNo(end));
    store.maintenance().checkpoint().expect("a checkpoint");
    drop(store);
    // Now its nodes must be read.
    let store = mount(&disk).expect("it opens again");
    assert_eq!(list(&store, 0, end, 2).0, written);
}

#[test]
fn what_is_available_could_be_written_once_dead_space_is_given_back() {
    let (_power, _disk, store) = fresh(200, 1);
    let before = store.space().now().available();
    let vector: Vec<StoreChange> = (0..500).map(write).collect();
    store.data().apply(&vector).expect("space");
    let written = store.space().now().available();
    assert!(before - written >= 500, "{before} before, {written} after 500 pages");
    for _ in 0..3 {
        store.data().apply(&vector).expect("space");
    }
    assert!(
        store.space().now().available() + 150 > written,
        "what was written over counts as space: {} of {written}",
        store.space().now().available()
    );
    store.space().reserve(10, store::ReservationEstimate::default()).expect("space");
    assert!(store.space().now().available() < written, "what is reserved is no space");
    store.space().release(10);
}

#[test]
fn a_listing_of_more_leaves_than_memory_keeps_comes_to_an_end() {
    let (_power, disk, store) = fresh(1000, 1);
    let leaves = 300;
    for leaf in 0..leaves {
        store.data().apply(&[write(leaf * 128)]).expect("space");
        if leaf % 20 == 0 {
            store.maintenance().checkpoint().expect("a checkpoint");
        }
    }
    drop(store);
    let store = mount(&disk).expect("it opens");
    store.set_cached_nodes_max(64);
    let (all, most) = list(&store, 0, u64::MAX, leaves as usize);
    assert_eq!((all.len(), most), (leaves as usize, leaves as usize));
}

//! Readers beside a writer, checkpoints and the cleaner.

use crate::common::*;
use device::{Lsn, PageNo, SeededRng, VolumeId};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use store::{PageRead, StoreChange, StoredPage};

#[test]
fn readers_always_see_whole_pages_no_older_than_what_was_acknowledged() {
    let (_power, _disk, store) = fresh(128, 1);
    store.set_cached_nodes_max(1);
    let object = VolumeId::MAIN.object(1, 1);
    let pages = 300;
    let acknowledged: Vec<AtomicU64> = (0..pages).map(|_| AtomicU64::new(0)).collect();
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for seed in 0..3 {
            let (store, acknowledged, done) = (&store, &acknowledged, &done);
            scope.spawn(move || {
                let mut random = SeededRng::new(seed);
                while !done.load(Ordering::Acquire) {
                    let number = random.below(pages);
                    let least = acknowledged[number as usize].load(Ordering::Acquire);
                    let mut wants = [PageRead::new(object, PageNo(number))];
                    store.data().read(&mut wants);
                    let found = match &wants[0].result {
                        Ok(StoredPage::Hole) => 0,
                        Ok(StoredPage::Page { bytes, .. }) => stamp(bytes),
                        Err(error) => panic!("page {number}: {error}"),
                    };
                    assert!(found >= least, "page {number}: {found} is older than {least}");
                }
            });
        }
        let mut random = SeededRng::new(9);
        for page_lsn in 1..1500 {
            let number = random.below(pages);
            let (bytes, lsn) = (page(page_lsn), Lsn(page_lsn));
            let change = StoreChange::Write { object, page: PageNo(number), bytes, page_lsn: lsn };
            store.data().apply(&[change]).expect("space");
            acknowledged[number as usize].store(page_lsn, Ordering::Release);
            if page_lsn % 20 == 0 {
                store.maintenance().clean_round().expect("cleaning");
                store.maintenance().checkpoint().expect("a checkpoint");
            }
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!(findings(&store), []);
}

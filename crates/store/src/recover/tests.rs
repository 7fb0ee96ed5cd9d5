//! Recovery from logs that are impossible although their checksums are right.

use super::*;
use crate::change::StoreChange;
use crate::log_entry::{claimed_entry_blocks, decode_chunk, encode_chunk};
use crate::superblock::StoreLayout;
use crate::volume::tests::make_main;
use device::{Incarnation, Lsn, PageNo, VolumeId};
use sim_disk::{PowerSupply, SimDisk};

const ID: StoreId = StoreId([1; 16]);

/// A store whose log has one batch after the root: a page of metadata.
fn with_metadata() -> (Arc<SimDisk>, Block) {
    let disk = SimDisk::new("disk", 4 + 64 * 16, &PowerSupply::new(), 1);
    Store::format(&*disk, &StoreLayout { id: ID, segment_blocks: Some(16) }).expect("large enough");
    let store = Store::open(disk.clone()).expect("a new store");
    store.begin(Incarnation(1)).expect("the first");
    make_main(&store);
    let cursor = store.writer.lock().log().cursor();
    let at = store.shared.medium.geometry().segment_start(cursor.segment).plus(cursor.offset);
    let write = |number, page_lsn| StoreChange::Write {
        object: VolumeId::MAIN.object(0, 1),
        page: PageNo(number),
        bytes: Arc::new(Page::zeroed()),
        page_lsn: Lsn(page_lsn),
    };
    store.data().apply(&[write(1, 1), write(2, 2)]).expect("space");
    (disk, at)
}

/// Lets the chunk at a place say something else, as if it had been written so.
fn rewrite(disk: &SimDisk, at: Block, change: impl Fn(&mut Vec<LogEntry>)) {
    let mut pages = device::pages(1);
    disk.read(at, &mut pages).expect("no faults");
    assert_eq!(claimed_entry_blocks(&pages[0], ID), Some(1));
    let (head, mut entries, _) = decode_chunk(&pages, ID).expect("a chunk");
    change(&mut entries);
    pages[0] = Page::ZERO;
    encode_chunk(&head, &entries, ID, &mut pages);
    disk.write(at, &pages).expect("no faults");
}

fn outcome(change: impl Fn(&mut Block, &mut Block, usize)) -> Result<(), StoreError> {
    let (disk, at) = with_metadata();
    rewrite(&disk, at, |entries| {
        for (number, entry) in entries.iter_mut().enumerate() {
            if let LogEntry::Write { place, copy: Some(copy), .. } = entry {
                change(place, copy, number);
            }
        }
    });
    let opened = Store::open(disk);
    assert_eq!(
        opened.as_ref().ok().map(|store| store.counters().blocks_written),
        opened.as_ref().ok().map(|_| 0)
    );
    opened.map(drop)
}

#[test]
fn a_log_entry_by_which_two_segments_are_a_pair_that_are_none_is_refused_by_name() {
    assert_eq!(outcome(|_, _, _| {}), Ok(()));
    let refused = |outcome: Result<(), StoreError>| {
        let error = outcome.expect_err("it cannot be");
        let text = error.to_string();
        assert!(matches!(error, StoreError::Damaged { .. }) && text.contains("lie in a pair"), "{text}");
        assert!(text.contains("chunk") && text.contains("nothing was changed"), "{text}");
    };
    // The log's own segment; the bytes are right, as the other copy is.
    refused(outcome(|_, copy, _| copy.0 = 3 + (copy.0 - 3) % 16));
    // The second entry has another twin than the first one, which is free.
    refused(outcome(|_, copy, number| copy.0 += 16 * 9 * number as u64));
}

#[test]
fn a_log_entry_whose_places_are_no_twins_is_none() {
    // A block that does not begin a chunk ends the log.
    for change in [|copy: &mut Block| copy.0 += 1, |copy: &mut Block| copy.0 += 1 << 40] {
        assert_eq!(outcome(|_, copy, _| change(copy)), Ok(()));
    }
    assert_eq!(outcome(|place, copy, _| *copy = *place), Ok(()));
}

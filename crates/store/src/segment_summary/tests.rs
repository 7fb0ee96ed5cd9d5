//! Reading the summaries of segments that are whole, damaged, or hold blocks of an earlier use.

use super::*;
use crate::format::DRAFT;
use crate::log_chunk::to_pages;
use crate::log_entry::{ChunkHead, encode_chunk};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;

const GEOMETRY: StoreGeometry = StoreGeometry {
    id: StoreId([7; 16]),
    total_blocks: 4 + 4 * 64,
    segment_blocks: 64,
    segments: 4,
    draft: DRAFT,
};
const SEGMENT: u32 = 1;

fn at(offset: u64) -> Block {
    GEOMETRY.segment_start(SEGMENT).plus(offset)
}

fn owner(number: u64) -> SummaryEntry {
    let object = VolumeId(2).object(5, 6);
    SummaryEntry { object, page: PageNo(number), page_lsn: Lsn(1000 + number), crc: 7 * number as u32 }
}

fn list(number: u64, place: Block, owners: impl Iterator<Item = u64>) -> SummaryBlock {
    let owners = owners.map(|number| Some(owner(number))).collect();
    SummaryBlock { incarnation: Incarnation(3), number, place, entries: owners }
}

fn disk() -> Arc<SimDisk> {
    SimDisk::new("disk", GEOMETRY.total_blocks, &PowerSupply::new(), 1)
}

fn write(disk: &SimDisk, place: Block, page: &Page) {
    disk.write(place, std::slice::from_ref(page)).expect("no faults");
}

/// Writes a list where it says that it is.
fn write_list(disk: &SimDisk, list: &SummaryBlock) {
    write(disk, list.place, &list.encode(GEOMETRY.id));
}

/// Writes the head of a chunk of so many pages.
fn write_chunk(disk: &SimDisk, chunk: u64, place: Block, pages: std::ops::Range<u64>) {
    let entry = |number: u64| {
        let SummaryEntry { object, page, page_lsn, crc } = owner(number);
        LogEntry::Write {
            object,
            page,
            page_lsn,
            place: place.plus(1 + number - pages.start),
            crc,
            copy: None,
        }
    };
    let entries: Vec<LogEntry> = pages.clone().map(entry).collect();
    let head = ChunkHead {
        incarnation: Incarnation(3),
        chunk,
        batch: chunk,
        durable_batch: 0,
        chain_crc: 0,
        next_segment: 2,
        is_last: true,
        origin: crate::log_entry::BatchOrigin::Logged,
        entry_blocks: 1,
        data_blocks: entries.len() as u64,
        index_blocks: 0,
        entries: entries.len(),
    };
    let mut page = to_pages(&[0]);
    encode_chunk(&head, &entries, GEOMETRY.id, &mut page);
    write(disk, place, &page[0]);
}

/// The blocks that have an owner, by their offsets, and the pages that these are.
fn found(disk: &SimDisk) -> Vec<(u64, u64)> {
    let all = segment_summary_entries(disk, GEOMETRY, SEGMENT, at(63));
    let found = all.into_iter().map(|(place, one)| {
        assert_eq!(one, owner(one.page.0));
        (place.0 - at(0).0, one.page.0)
    });
    found.collect()
}

#[test]
fn a_list_reads_back_as_it_was_written_and_what_is_damaged_or_another_s_is_none() {
    let mut list = list(4, at(9), 1..101);
    list.entries[1] = None;
    let page = list.encode(GEOMETRY.id);
    assert_eq!(SummaryBlock::decode(&page, GEOMETRY.id), Some(list));
    assert_eq!(SummaryBlock::decode(&page, StoreId([8; 16])), None);
    let changed = |at: usize, to: u8| {
        let mut page = page.clone();
        page.0[at] = to;
        page
    };
    assert_eq!(SummaryBlock::decode(&changed(200, 0xff), GEOMETRY.id), None);
    for (at, to) in [(56, 101), (64, 2)] {
        let mut page = changed(at, to);
        seal(&mut page.0);
        assert_eq!(
            SummaryBlock::decode(&page, GEOMETRY.id),
            None,
            "more owners than fit, or none of a known kind"
        );
    }
}

#[test]
fn the_blocks_behind_each_list_and_of_each_chunk_have_owners() {
    let disk = disk();
    for (list_at, owners) in [(0, 1..4), (4, 4..5), (6, 5..25)] {
        write_list(&disk, &list(4, at(list_at), owners));
    }
    let moved = (1..4).zip(1..4).chain([(5, 4)]).chain((7..27).zip(5..25));
    assert_eq!(found(&disk), moved.collect::<Vec<_>>());
    let disk = self::disk();
    write_chunk(&disk, 1, at(0), 1..4);
    write_chunk(&disk, 2, at(4), 4..30);
    assert_eq!(found(&disk), (1..4).zip(1..4).chain((5..31).zip(4..30)).collect::<Vec<_>>());
}

#[test]
fn a_damaged_list_or_chunk_costs_the_owners_of_its_own_blocks_only() {
    for chunks in [false, true] {
        for damaged in 0..3 {
            let disk = disk();
            for number in 0..3 {
                let (place, pages) = (at(8 * number), 8 * number..8 * number + 7);
                if chunks {
                    write_chunk(&disk, number, place, pages)
                } else {
                    write_list(&disk, &list(4, place, pages))
                }
            }
            disk.flush().expect("no faults");
            disk.rot(at(8 * damaged), 4000);
            let others = (0..3).filter(|&number| number != damaged);
            let others =
                others.flat_map(|number| (0..7).map(move |page| (8 * number + 1 + page, 8 * number + page)));
            assert_eq!(found(&disk), others.collect::<Vec<_>>());
        }
    }
}

#[test]
fn what_an_earlier_use_of_the_segment_left_is_not_taken_for_what_is_there_now() {
    let now = (1..4).zip(1..4).collect::<Vec<_>>();
    let moved = || {
        let disk = disk();
        write_list(&disk, &list(4, at(0), 1..4));
        disk
    };
    let disk = moved();
    write_list(&disk, &list(3, at(4), 50..60));
    assert_eq!(found(&disk), now);
    let older = SummaryBlock { incarnation: Incarnation(2), ..list(4, at(20), 50..60) };
    write_list(&disk, &older);
    assert_eq!(found(&disk), now);
    let disk = moved();
    write_chunk(&disk, 9, at(4), 50..60);
    assert_eq!(found(&disk), now);
    // For a segment of log: chunks of an earlier use have lower numbers.
    for (number, is_later) in [(1, false), (3, true)] {
        let disk = self::disk();
        write_chunk(&disk, 2, at(0), 1..4);
        write_chunk(&disk, number, at(10), 50..60);
        write_list(&disk, &list(4, at(30), 70..80));
        let later = (11..21).zip(50..60).filter(|_| is_later);
        assert_eq!(found(&disk), now.iter().copied().chain(later).collect::<Vec<_>>());
    }
}

#[test]
fn a_copy_of_a_list_among_a_user_s_bytes_is_none() {
    let disk = disk();
    write_list(&disk, &list(4, at(0), 1..4));
    write(&disk, at(10), &list(4, at(0), 1..4).encode(GEOMETRY.id));
    write(&disk, at(63), &list(4, at(63), 1..4).encode(GEOMETRY.id));
    assert_eq!(found(&disk), [(1, 1), (2, 2), (3, 3)], "nor one that names more than the segment has");
}

#[test]
fn an_owner_is_that_of_the_bytes_with_its_checksum_and_a_scan_looks_no_further_than_it_must() {
    let disk = disk();
    write_list(&disk, &list(4, at(0), 1..4));
    write_list(&disk, &list(4, at(4), 4..7));
    let mut scan = SummaryScan::new(SEGMENT);
    assert_eq!(scan.read_some(&*disk, GEOMETRY, at(3)), Ok(true));
    assert_eq!(scan.entry(at(2), owner(2).crc), Some(owner(2)));
    assert_eq!(scan.entry(at(2), 1), None);
    assert_eq!(scan.entry(at(5), owner(4).crc), None, "not looked for yet");
    assert_eq!(scan.read_some(&*disk, GEOMETRY, at(5)), Ok(true));
    assert_eq!(scan.entry(at(5), owner(4).crc), Some(owner(4)));
}

#[test]
fn a_step_looks_at_32_heads() {
    let disk = disk();
    let mut scan = SummaryScan::new(SEGMENT);
    let steps =
        std::iter::from_fn(|| (scan.read_some(&*disk, GEOMETRY, at(63)) == Ok(false)).then_some(scan.offset));
    assert_eq!(steps.collect::<Vec<_>>(), [32]);
}

#[test]
fn a_head_that_cannot_be_read_is_told_and_costs_who_goes_on_its_own_blocks() {
    let disk = disk();
    for number in 0..3 {
        write_list(&disk, &list(4, at(8 * number), 8 * number..8 * number + 7));
    }
    disk.damage(at(8), sim_disk::BlockDamage::Unreadable);
    let mut scan = SummaryScan::new(SEGMENT);
    assert_eq!(scan.read_some(&*disk, GEOMETRY, at(23)), Err(SummaryUnreadable));
    assert_eq!(scan.read_some(&*disk, GEOMETRY, at(23)), Ok(true));
    let others = (1..8).zip(0..7).chain((17..24).zip(16..23));
    assert_eq!(found(&disk), others.collect::<Vec<_>>());
}

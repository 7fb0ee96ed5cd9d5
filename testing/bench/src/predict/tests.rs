//! A store that is overwritten for ten times its size: it goes on, and costs what its policy predicts.

use super::{Predicted, Written};
use device::{
    BLOCK_BYTES, Incarnation, Lsn, ObjectId, Page, PageNo, SeededRng, SharedPage, StoreId, VolumeId,
};
use sim_disk::{PowerSupply, SimDisk};
use std::sync::Arc;
use store::{CleaningOutcome, Store, StoreChange, StoreLayout};

const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
/// Segments, and blocks of each.
type Sizes = (u32, u64);
const SIZES: Sizes = (512, 32);
/// For a store that is so full that lists of owners, and what is left over at segments' ends, would take all that dies in segments
/// of 32 blocks: of these no victim may be more than nine tenths live.
const LARGE: Sizes = (1024, 64);
/// Pages of a vector at most: a quarter of what write-back writes at once, as the segments are smaller, too.
const VECTOR: u64 = 64;
/// Blocks of log between checkpoints.
const CHECKPOINT: u64 = 4096;

/// Where writes go.
#[derive(Debug, Clone, Copy)]
enum Load {
    Uniform,
    /// Nine of ten writes go to a tenth of the pages.
    Skewed,
}

impl Load {
    fn page(self, random: &mut SeededRng, pages: u64) -> u64 {
        match self {
            Load::Skewed if !random.once_in(10) => random.below(pages / 10),
            _ => random.below(pages),
        }
    }
}

/// All pages in order once, then overwrites of `times` the store's size.
fn pages_of(load: Load, size: u64, pages: u64, times: u64) -> impl Iterator<Item = u64> {
    let mut random = SeededRng::new(7);
    (0..pages).chain((0..times * size).map(move |_| load.page(&mut random, pages)))
}

/// The next vector: no more than are paid for together.
fn vector(all: &mut impl Iterator<Item = u64>, together: u64) -> Option<Vec<u64>> {
    let vector: Vec<u64> = all.take(together.min(VECTOR) as usize).collect();
    (!vector.is_empty()).then_some(vector)
}

/// A new store on a new disk.
fn new_store(blocks: u64, segment_blocks: u64) -> Store {
    let disk = SimDisk::new("disk", blocks, &PowerSupply::new(), 1);
    let layout = StoreLayout { id: StoreId([0x5a; 16]), segment_blocks: Some(segment_blocks as u32) };
    Store::format(&*disk, &layout).expect("large enough");
    let store = Store::open(disk).expect("a new store opens");
    store.begin(Incarnation(store.incarnation().0 + 1)).expect("a new store begins");
    store
}

/// A page full of a stamp.
fn page(stamp: u64) -> SharedPage {
    let mut page = Page([0; BLOCK_BYTES]);
    page.0.chunks_exact_mut(8).for_each(|bytes| bytes.copy_from_slice(&stamp.to_le_bytes()));
    Arc::new(Box::new(page))
}

fn predicted(load: Load, (segments, segment_blocks): Sizes, pages: u64, times: u64) -> Written {
    let mut store = Predicted::new(segments, segment_blocks, pages);
    let mut filled = None;
    let mut all = pages_of(load, u64::from(segments) * segment_blocks, pages, times);
    while let Some(vector) = vector(&mut all, store.together()) {
        store.write(&vector);
        if store.blocks_since_checkpoint() >= CHECKPOINT {
            store.checkpoint();
        }
        store.keep_up();
        if store.written().user >= pages {
            filled.get_or_insert(store.written());
        }
    }
    store.written() - filled.expect("all pages at least")
}

/// Blocks that a real store wrote for as many pages: moved, and all of them.
fn observed(load: Load, (segments, segment_blocks): Sizes, pages: u64, times: u64) -> Observed {
    let store = new_store(4 + u64::from(segments) * segment_blocks, segment_blocks);
    let mut filled = None;
    let (mut page_lsn, mut content) = (0, vec![0; pages as usize]);
    let mut all = pages_of(load, u64::from(segments) * segment_blocks, pages, times);
    while let Some(vector) = vector(&mut all, store.pages_between_cleaning_checks()) {
        let changes: Vec<StoreChange> = vector
            .iter()
            .map(|&number| {
                page_lsn += 1;
                content[number as usize] = page_lsn;
                StoreChange::Write {
                    object: FILE,
                    page: PageNo(number),
                    bytes: page(page_lsn),
                    page_lsn: Lsn(page_lsn),
                }
            })
            .collect();
        store.apply(&changes).unwrap_or_else(|error| panic!("{error}: {:?}", store.space()));
        if store.blocks_since_checkpoint() >= CHECKPOINT {
            store.checkpoint().expect("a checkpoint");
        }
        keep_up(&store);
        if page_lsn >= pages {
            filled.get_or_insert(store.counters());
        }
    }
    let (after, filled) = (store.counters(), filled.expect("all pages at least"));
    let mut findings = Vec::new();
    store.check(&mut |finding| findings.push(finding));
    assert_eq!(findings, []);
    for (number, &stamp) in content.iter().enumerate() {
        let page_lsn = store.page_lsn(FILE, PageNo(number as u64)).expect("readable");
        assert_eq!(page_lsn, Some(Lsn(stamp)), "page {number}");
    }
    Observed {
        moved: after.pages_cleaned - filled.pages_cleaned,
        all: after.blocks_written - filled.blocks_written,
    }
}

/// Cleans as much as is owed.
fn keep_up(store: &Store) {
    let checkpoint_twice = || (0..2).for_each(|_| store.checkpoint().expect("a checkpoint"));
    while store.cleaning_is_due() {
        match store.clean_step().expect("cleaning") {
            CleaningOutcome::Working => {}
            CleaningOutcome::RoundEnded(_) => checkpoint_twice(),
            CleaningOutcome::Idle => return checkpoint_twice(),
            CleaningOutcome::NeedsCheckpoint => {
                checkpoint_twice();
                if store.clean_step().expect("cleaning") == CleaningOutcome::NeedsCheckpoint {
                    store.give_up_round();
                }
            }
        }
    }
}

/// What a real store wrote.
struct Observed {
    moved: u64,
    all: u64,
}

/// Overwrites a store that is `percent` full for `times` its size, and compares.
fn compare(load: Load, sizes: Sizes, percent: u64, times: u64) {
    // A map leaf for 128 pages.
    let pages = u64::from(sizes.0) * sizes.1 * percent / 100 * 128 / 129;
    let predicted = predicted(load, sizes, pages, times);
    let observed = observed(load, sizes, pages, times);
    let per_page = |blocks: u64| blocks as f64 / predicted.user as f64;
    let (data, data_predicted) = (1.0 + per_page(observed.moved), 1.0 + per_page(predicted.moved));
    let (all, all_predicted) = (per_page(observed.all), per_page(predicted.all()));
    println!(
        "{load:?}, {percent} % full, {times} times the size: data {data:.2} (predicted {data_predicted:.2}), \
         with log entries and map {all:.2} (predicted {all_predicted:.2})"
    );
    for (is, should) in [(data, data_predicted), (all, all_predicted)] {
        assert!((is / should - 1.0).abs() < 0.1, "{load:?} at {percent} %: {is:.2}, predicted {should:.2}");
    }
}

#[test]
fn the_log_is_as_long_as_predicted_with_its_entries_and_copies_of_heads() {
    // Segments of a MiB have copies.
    for (segments, segment_blocks) in [(256, 32), (64, 256)] {
        let store = new_store(4 + segments * segment_blocks, segment_blocks);
        let before = store.counters().blocks_written;
        let mut predicted = Predicted::new(segments as u32, segment_blocks, 600);
        for (page_lsn, count) in
            [1, 9, 9, 200, 600, 3, 1, 40, 64, 31, 30, 29, 254, 255, 256].into_iter().enumerate()
        {
            let page_lsn = Lsn(1 + page_lsn as u64);
            let write =
                |number| StoreChange::Write { object: FILE, page: PageNo(number), bytes: page(1), page_lsn };
            store.apply(&(0..count).map(write).collect::<Vec<StoreChange>>()).expect("space");
            predicted.write(&(0..count).collect::<Vec<u64>>());
            let Written { user, entries, .. } = predicted.written();
            assert_eq!(store.counters().blocks_written - before, user + entries, "after {count} pages");
        }
    }
}

#[test]
fn uniform_overwrites_of_a_store_60_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Uniform, SIZES, 60, 10);
}

#[test]
fn uniform_overwrites_of_a_store_80_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Uniform, SIZES, 80, 10);
}

#[test]
fn uniform_overwrites_of_a_store_85_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Uniform, LARGE, 85, 1);
}

#[test]
fn skewed_overwrites_of_a_store_60_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Skewed, SIZES, 60, 10);
}

#[test]
fn skewed_overwrites_of_a_store_80_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Skewed, SIZES, 80, 10);
}

#[test]
fn skewed_overwrites_of_a_store_85_percent_full_cost_what_the_policy_predicts() {
    compare(Load::Skewed, LARGE, 85, 1);
}

//! One bit flipped anywhere gives an error, a repair or a refusal that names the place; never wrong bytes.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Lsn, PageNo, SeededRng};
use sim_disk::{PowerSupply, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{PageRead, Store, StoreChange, StoreError, StoredPage, VolumeId, VolumeMode};

/// The kind of a block, by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Superblock,
    Root,
    Entries,
    Node,
    NodeTable,
    /// Data, and the tables' stream.
    Other,
}

const CASES: u64 = 10_000;

fn class(disk: &SimDisk, at: Block) -> Class {
    let mut pages = device::pages(1);
    disk.read(at, &mut pages).expect("a read in range");
    match &pages[0].0[..8] {
        b"weir.sup" => Class::Superblock,
        b"weir.cpr" => Class::Root,
        b"weir.log" => Class::Entries,
        b"weir.nod" => Class::Node,
        b"weir.tab" => Class::NodeTable,
        _ => Class::Other,
    }
}

/// A store with every structure: trees, inline pages, clones of objects and volumes, moved data, a log to
/// replay.
fn busy() -> (Arc<SimDisk>, Model, Model) {
    let (_power, disk, store) = fresh(200, 5);
    let mut model = Model::default();
    let mut work = Work::new(5);
    let mut cloned = Model::default();
    for step in 0..50 {
        let vector = work.vector(&model);
        store.data().apply(&vector).expect("space");
        model.apply(&vector);
        match step {
            10 | 20 | 45 => store.maintenance().checkpoint().expect("a checkpoint"),
            30 => {
                let lsn = Lsn(work.lsn);
                clone_volume(&store, VolumeId::MAIN, VolumeMode::ReadOnly, lsn).expect("space");
                cloned = model.clone();
            }
            40 => drop(store.maintenance().clean_round().expect("cleaning")),
            _ => {}
        }
    }
    (disk, model, cloned)
}

/// Compares a store with its model. An error must name a place. Returns the number of errors.
fn errors(store: &Store, volume: VolumeId, model: &Model, when: &str) -> u64 {
    let mut errors = 0;
    for (&slot, (generation, held)) in &model.objects {
        let object = volume.object(slot, *generation);
        let mut wants: Vec<PageRead> =
            domain().into_iter().map(|page| PageRead::new(object, PageNo(page))).collect();
        store.data().read(&mut wants);
        for want in wants {
            let found = match want.result {
                Ok(StoredPage::Hole) => None,
                Ok(StoredPage::Page { bytes, page_lsn }) => Some((stamp(&bytes), page_lsn.0)),
                Err(StoreError::Corrupt { place, .. }) => {
                    assert!(place > Block(2), "{when}: an error that names no place");
                    errors += 1;
                    continue;
                }
                Err(error) => panic!("{when}: {error}"),
            };
            assert_eq!(found, held.get(&want.page.0).copied(), "{when}: wrong bytes");
        }
    }
    errors
}

/// The result of a flip.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// The store does not open, and the error names the place.
    Refused,
    /// Some reads fail, and `check` finds it.
    Errors,
    /// All pages are right. The last batch of the log may be missing: a flip in it looks like a batch that
    /// was never completed.
    Harmless,
}

/// Opens a store in which something was flipped, and reads all of it.
fn look(disk: &Arc<SimDisk>, models: &[(VolumeId, &Model)], before_last: &Model, when: &str) -> Outcome {
    let store = match open(disk) {
        Ok(store) => store,
        Err(error) => {
            let text = error.to_string();
            let named = text.contains("block") || text.contains("superblock") || text.contains("store");
            assert!(named, "{when}: {text}");
            return Outcome::Refused;
        }
    };
    // The one case that the format cannot tell apart: damage in the log's last batch.
    let last_is_missing =
        models[0].1.difference(&store).is_some() && before_last.difference(&store).is_none();
    let mut lost = 0;
    for (volume, model) in models {
        let model = if last_is_missing && *volume == VolumeId::MAIN { before_last } else { model };
        lost += errors(&store, *volume, model, when);
    }
    if lost == 0 {
        return Outcome::Harmless;
    }
    assert!(!findings(&store).is_empty(), "{when}: check finds nothing");
    Outcome::Errors
}

#[test]
fn a_flip_anywhere_is_an_error_a_refusal_or_harmless_and_never_wrong_bytes() {
    let (disk, mut model, cloned) = busy();
    // A log of several batches, and the model without the last one.
    let store = mount(&disk).expect("a sound store");
    let mut before = Model::default();
    let mut work = Work::new(77);
    work.lsn = 10_000;
    for _ in 0..8 {
        before = model.clone();
        let vector = work.vector(&model);
        store.data().apply(&vector).expect("space");
        model.apply(&vector);
    }
    drop(store);
    let models = [(VolumeId::MAIN, &model), (VolumeId(1), &cloned)];

    let mut by_class: BTreeMap<Class, Vec<Block>> = BTreeMap::new();
    for at in disk.written_blocks() {
        by_class.entry(class(&disk, at)).or_default().push(at);
    }
    assert_eq!(by_class.len(), 6, "a class is missing: {:?}", by_class.keys());
    let classes: Vec<(Class, Vec<Block>)> = by_class.into_iter().collect();
    let mut random = SeededRng::new(1);
    let mut outcomes: BTreeMap<(Class, Outcome), u64> = BTreeMap::new();
    for case in 0..CASES {
        let (class, blocks) = &classes[(case % classes.len() as u64) as usize];
        let at = blocks[random.below(blocks.len() as u64) as usize];
        let bit = random.below(8 * BLOCK_BYTES as u64) as usize;
        disk.rot(at, bit);
        let outcome = look(&disk, &models, &before, &format!("{class:?} block {at} bit {bit}"));
        disk.rot(at, bit);
        *outcomes.entry((*class, outcome)).or_default() += 1;
    }
    println!("{outcomes:?}");
    let seen = |class, outcome| outcomes.get(&(class, outcome)).copied().unwrap_or(0);
    // The other root replaces a damaged one.
    assert_eq!(seen(Class::Superblock, Outcome::Errors), 0);
    assert_eq!(seen(Class::Root, Outcome::Errors) + seen(Class::Root, Outcome::Refused), 0);
    // A mirrored block is read from its copy.
    for class in [Class::Node, Class::NodeTable] {
        assert_eq!(seen(class, Outcome::Errors) + seen(class, Outcome::Refused), 0, "{class:?}");
    }
    assert!(seen(Class::Entries, Outcome::Refused) > 0);
    assert!(seen(Class::Other, Outcome::Errors) > 0 && seen(Class::Other, Outcome::Refused) == 0);
}

#[test]
fn a_scrub_of_a_store_in_use_finds_every_damaged_block_once_and_names_its_object() {
    let (disk, ..) = busy();
    let store = mount(&disk).expect("a sound store");
    let file = VolumeId::MAIN.object(1000, 1);
    let write = |number: u64, page_lsn: u64| StoreChange::Write {
        object: file,
        page: PageNo(number),
        bytes: page(0xfeed),
        page_lsn: Lsn(page_lsn),
    };
    let all: Vec<StoreChange> = (0..300).map(|number| write(number, 20_000 + number)).collect();
    store.data().apply(&all).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    let mut stamped = device::pages(1);
    let holds = |at: &Block| {
        disk.read(*at, &mut stamped).expect("readable");
        stamped[0] == **page(0xfeed)
    };
    let blocks: Vec<Block> = disk.written_blocks().into_iter().filter(holds).collect();
    assert_eq!(blocks.len(), 300);
    let rotten: Vec<Block> = blocks.into_iter().step_by(97).collect();
    rotten.iter().for_each(|&at| disk.rot(at, 5));
    let mut found = Vec::new();
    let mut steps = 0;
    let mut page_lsn = 30_000;
    let last = loop {
        let so_far = store.maintenance().scrub_step(&mut |finding| found.push(finding));
        steps += 1;
        // Other objects are written during the scrub.
        page_lsn += 1;
        let object = VolumeId::MAIN.object(2000, 1);
        let bytes = page(page_lsn);
        store
            .data()
            .apply(&[StoreChange::Write {
                object,
                page: PageNo(page_lsn % 50),
                bytes,
                page_lsn: Lsn(page_lsn),
            }])
            .expect("space");
        store.maintenance().clean_step().expect("cleaning");
        if so_far.done {
            break so_far;
        }
        assert!(steps < 10_000, "a scrub that does not end");
    };
    assert_eq!(last.damaged, rotten.len() as u64, "{found:?}");
    assert_eq!(found.len(), rotten.len());
    for finding in found {
        assert_eq!(finding.object, Some(file), "{finding}");
        assert!(rotten.contains(&finding.place.expect("a place")), "{finding}");
    }
    assert!(last.blocks >= 300 && steps > 3);
}

#[test]
fn a_node_that_rots_while_memory_has_it_is_written_again() {
    let (_power, disk, store) = fresh(64, 1);
    let file = VolumeId::MAIN.object(1, 1);
    let all: Vec<StoreChange> = (0..200)
        .map(|number| StoreChange::Write {
            object: file,
            page: PageNo(number),
            bytes: page(number),
            page_lsn: Lsn(number + 1),
        })
        .collect();
    store.data().apply(&all).expect("space");
    store.maintenance().checkpoint().expect("a checkpoint");
    let nodes = disk.written_blocks().into_iter().filter(|&at| class(&disk, at) == Class::Node);
    nodes.for_each(|at| disk.rot(at, 999));
    let mut found = Vec::new();
    let mut scrub = || loop {
        let so_far = store.maintenance().scrub_step(&mut |finding| found.push(finding));
        if so_far.done {
            return so_far;
        }
    };
    let first = scrub();
    assert!(first.damaged > 0 && first.rewritten_from_memory == first.damaged, "{first:?}");
    store.maintenance().checkpoint().expect("a checkpoint");
    assert_eq!(scrub().damaged, 0);
    drop(store);
    let store = open(&disk).expect("it opens");
    assert_eq!(findings(&store), []);
    assert_eq!(store.data().page_lsn(file, PageNo(150)), Ok(Some(Lsn(151))));
}

#[test]
fn a_device_cut_off_anywhere_is_refused_or_its_end_is_not_needed() {
    let (disk, ..) = busy();
    let mut content = device::pages(disk.blocks() as usize);
    disk.read(Block(0), &mut content).expect("a read in range");
    for length in (0..disk.blocks()).step_by(37).chain([1, 2, 3, 4, 5, disk.blocks() - 1]) {
        let short = SimDisk::new("short", length, &PowerSupply::new(), 1);
        short.write(Block(0), &content[..length as usize]).expect("power is on");
        short.flush().expect("power is on");
        let Err(error) = open(&short) else { panic!("{length} blocks are enough") };
        assert!(matches!(error, StoreError::Truncated { .. } | StoreError::NotAStore { .. }), "{error}");
    }
}

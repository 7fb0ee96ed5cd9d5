//! Metadata is there twice: no block of it that is damaged or unreadable loses anything, and none stays so.

use crate::common::*;
use device::{BLOCK_BYTES, Block, Device, Incarnation, Lsn, ObjectId, Page, PageNo, Random};
use sim::{Damage, Power, SimDisk};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::{Found, Store, StoreError, VolumeId, VolumeMode, Want};

/// A store with trees of several nodes, a clone, nodes that were compacted and a log to replay.
struct Busy {
    disk: Arc<SimDisk>,
    model: Model,
    cloned: Model,
}

const CLONE: VolumeId = VolumeId(1);

impl Busy {
    fn new(seed: u64) -> Busy {
        let (_power, disk, store) = fresh(140, seed);
        let (mut model, mut work, mut cloned) = (Model::default(), Work::new(seed), Model::default());
        for step in 0..36 {
            let vector = work.vector(&model);
            store.apply(&vector).expect("space");
            model.apply(&vector);
            match step {
                10 | 20 | 33 => store.checkpoint().expect("a checkpoint"),
                25 => {
                    let lsn = Lsn(work.lsn);
                    store.clone_volume(VolumeId::MAIN, CLONE, VolumeMode::ReadOnly, lsn).expect("space");
                    cloned = model.clone();
                }
                _ => {}
            }
        }
        Busy { disk, model, cloned }
    }

    fn fork(&self, seed: u64) -> Arc<SimDisk> {
        self.disk.fork(&Power::new(), seed)
    }

    /// Reads all that the store should have. The errors' number, or what is wrong.
    fn read(&self, store: &Store) -> Result<u64, String> {
        let main = read_all(store, VolumeId::MAIN, &self.model)?;
        Ok(main + read_all(store, CLONE, &self.cloned)?)
    }

    /// What is wrong, if anything is.
    fn missing(&self, store: &Store) -> Option<String> {
        match self.read(store) {
            Ok(0) => None,
            Ok(errors) => Some(format!("{errors} pages cannot be read")),
            Err(wrong) => Some(wrong),
        }
    }
}

fn read_all(store: &Store, volume: VolumeId, model: &Model) -> Result<u64, String> {
    let mut errors = 0;
    for (&slot, (generation, held)) in &model.objects {
        let object = ObjectId { volume, slot, generation: *generation };
        let mut wants: Vec<Want> = domain().into_iter().map(|page| Want::new(object, PageNo(page))).collect();
        store.read(&mut wants);
        for want in wants {
            let found = match want.found {
                Ok(Found::Hole) => None,
                Ok(Found::Page { bytes, page_lsn }) => Some((stamp(&bytes), page_lsn.0)),
                Err(error) => {
                    let text = error.to_string();
                    if !text.contains("block") {
                        return Err(format!("an error that names no place: {text}"));
                    }
                    errors += 1;
                    continue;
                }
            };
            let expected = held.get(&want.page.0).copied();
            if found != expected {
                return Err(format!("object {object} page {}: {found:?}, expected {expected:?}", want.page));
            }
        }
    }
    Ok(errors)
}

fn read(disk: &SimDisk, at: Block) -> Page {
    let mut pages = device::pages(1);
    disk.read(at, &mut pages).expect("a read in range");
    pages[0].clone()
}

fn number(page: &Page, at: usize) -> u64 {
    u64::from_le_bytes(page.0[at..at + 8].try_into().expect("8 bytes"))
}

/// The blocks of the tables' streams that the two roots name, and their copies: see FORMAT.md.
fn stream_blocks(disk: &SimDisk) -> Vec<Block> {
    let mut blocks = Vec::new();
    for root in [1, 2].map(|at| read(disk, Block(at))) {
        for extent in 0..number(&root, 104) & 0xffff_ffff {
            let at = 224 + 24 * extent as usize;
            let [place, copy, count] = [at, at + 8, at + 16].map(|at| number(&root, at));
            blocks.extend([place, copy].into_iter().flat_map(|at| (at..at + count).map(Block)));
        }
    }
    blocks
}

/// All blocks of nodes, of the node table and of the tables' streams, also those that nothing refers to any more.
fn metadata(disk: &SimDisk) -> Vec<Block> {
    let mut blocks = stream_blocks(disk);
    let tagged = |at: &Block| disk.begins_with(*at, b"weir.nod") || disk.begins_with(*at, b"weir.tab");
    blocks.extend(disk.written_blocks().into_iter().filter(tagged));
    blocks.sort();
    blocks.dedup();
    blocks
}

fn segment(at: Block) -> u64 {
    (at.0 - 4) / u64::from(SEGMENT)
}

fn begin(store: &Store) -> Result<(), StoreError> {
    store.begin(Incarnation(store.incarnation().0 + 1))
}

fn scrub(store: &Store) -> u64 {
    loop {
        let so_far = store.scrub_step(&mut |_| {});
        if so_far.done {
            return so_far.repaired;
        }
    }
}

/// Damages blocks at rest, opens, reads, begins, reads and scrubs. What is wrong, if anything is; else whether they were in use, and
/// how many were repaired and not just given up when the incarnation began.
fn at_rest(busy: &Busy, blocks: &[Block], damage: Damage) -> Result<(bool, u64), String> {
    let disk = busy.fork(7);
    blocks.iter().for_each(|&at| disk.damage(at, damage));
    let store = open(&disk).map_err(|error| format!("refused: {error}"))?;
    busy.missing(&store).map_or(Ok(()), Err)?;
    let found = findings(&store);
    if let Some(other) = found.iter().find(|one| one.place.is_none_or(|place| !blocks.contains(&place))) {
        return Err(format!("{other}, which is not damaged"));
    }
    if store.counters().blocks_written > 0 {
        return Err("something was written before an incarnation began".to_owned());
    }
    begin(&store).map_err(|error| format!("not begun: {error}"))?;
    busy.missing(&store).map_or(Ok(()), Err)?;
    scrub(&store);
    busy.missing(&store).map_or(Ok(()), Err)?;
    findings(&store).first().map_or(Ok(()), |finding| Err(finding.to_string()))?;
    let told = (!found.is_empty(), store.counters().metadata_repaired);
    drop(store);
    let again = open(&disk).map_err(|error| format!("refused again: {error}"))?;
    busy.missing(&again).map_or(Ok(told), Err)
}

/// Damages the `index`th block of metadata while a store is open, and reads all. What is wrong, if anything is; else whether there
/// are as many.
fn while_open(busy: &Busy, index: usize, damage: Damage) -> Result<bool, String> {
    let disk = busy.fork(8);
    let store = mount(&disk).map_err(|error| format!("refused: {error}"))?;
    let Some(&at) = metadata(&disk).get(index) else { return Ok(false) };
    disk.damage(at, damage);
    let told = |when: &str, wrong: String| format!("block {at}, {when}: {wrong}");
    let looked = |when| busy.missing(&store).map_or(Ok(()), |wrong| Err(told(when, wrong)));
    looked("read")?;
    scrub(&store);
    // What is cached is read no more.
    drop(store);
    let store = open(&disk).map_err(|error| told("opened again", error.to_string()))?;
    busy.missing(&store).map_or(Ok(()), |wrong| Err(told("opened again", wrong)))?;
    let found = findings(&store);
    found.first().map_or(Ok(true), |finding| Err(told("checked", finding.to_string())))
}

#[test]
fn any_block_of_metadata_that_is_damaged_at_rest_loses_nothing_and_is_repaired() {
    let (mut in_use, mut streams, mut repaired) = (0, 0, 0);
    for seed in 0..3 {
        let busy = Busy::new(seed);
        let stream = stream_blocks(&busy.disk);
        for at in metadata(&busy.disk) {
            for damage in [Damage::Rot(at.0 as usize * 997), Damage::Unreadable] {
                match at_rest(&busy, &[at], damage) {
                    Ok((used, blocks)) => {
                        in_use += u64::from(used);
                        repaired += blocks;
                        streams += u64::from(used && stream.contains(&at));
                    }
                    Err(wrong) => panic!("seed {seed}, block {at}, {damage:?}: {wrong}"),
                }
            }
        }
    }
    println!("{in_use} of metadata, {streams} of streams, {repaired} repaired");
    assert!(in_use > 100 && streams >= 6 && 2 * repaired > in_use, "the test tests little");
}

#[test]
fn any_block_of_metadata_that_is_damaged_while_a_store_is_open_loses_nothing_and_is_repaired() {
    let busy = Busy::new(4);
    for damage in [Damage::Rot(12_345), Damage::Unreadable] {
        let mut index = 0;
        while while_open(&busy, index, damage).unwrap_or_else(|wrong| panic!("{damage:?}: {wrong}")) {
            index += 1;
        }
        assert!(index > 50, "{index} blocks: the test tests little");
    }
}

/// Loses each segment of metadata as a whole. What is wrong, if anything is.
fn without_a_segment(busy: &Busy) -> Result<usize, String> {
    let mut segments: BTreeMap<u64, Vec<Block>> = BTreeMap::new();
    metadata(&busy.disk).into_iter().for_each(|at| segments.entry(segment(at)).or_default().push(at));
    for (number, blocks) in &segments {
        at_rest(busy, blocks, Damage::Unreadable).map_err(|wrong| format!("segment {number}: {wrong}"))?;
    }
    Ok(segments.len())
}

#[test]
fn a_segment_of_metadata_that_is_lost_as_a_whole_is_repaired_from_its_twin() {
    for seed in 0..5 {
        let segments =
            without_a_segment(&Busy::new(seed)).unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        assert!(segments >= 8, "{segments} segments");
    }
}

#[test]
fn of_two_damaged_blocks_all_is_there_or_an_error_names_the_place_and_there_are_never_wrong_bytes() {
    let (mut whole, mut lost, mut refused, mut read_only) = (0, 0, 0, 0);
    for seed in 0..3 {
        let busy = Busy::new(seed);
        let blocks = metadata(&busy.disk);
        let mut random = Random::new(seed);
        for case in 0..400 {
            let one = blocks[random.below(blocks.len() as u64) as usize];
            // In every second case its copy.
            let same = |at: &&Block| **at != one && read(&busy.disk, **at) == read(&busy.disk, one);
            let copy = blocks.iter().find(same).filter(|_| case % 2 == 0);
            let other = copy.copied().unwrap_or(blocks[random.below(blocks.len() as u64) as usize]);
            let disk = busy.fork(case);
            for at in [one, other] {
                let rot = Damage::Rot(random.below(8 * BLOCK_BYTES as u64) as usize);
                disk.damage(at, if random.once_in(2) { rot } else { Damage::Unreadable });
            }
            let when = format!("seed {seed}, blocks {one} and {other}");
            let store = match open(&disk) {
                Ok(store) => store,
                Err(error) => {
                    assert!(error.to_string().contains("block"), "{when}: {error}");
                    let is_node = |at: &Block| busy.disk.begins_with(*at, b"weir.nod");
                    assert!(![one, other].iter().any(is_node), "{when}: nodes refuse nothing: {error}");
                    refused += 1;
                    continue;
                }
            };
            let errors = busy.read(&store).unwrap_or_else(|wrong| panic!("{when}: {wrong}"));
            match errors {
                0 => whole += 1,
                _ => lost += 1,
            }
            assert!(errors == 0 || !findings(&store).is_empty(), "{when}: check finds nothing");
            if let Err(error) = begin(&store) {
                assert!(error.to_string().contains("block"), "{when}: {error}");
                read_only += 1;
            }
            let after = busy.read(&store).unwrap_or_else(|wrong| panic!("{when}: {wrong}"));
            assert_eq!(after, errors, "{when}");
        }
    }
    println!("{whole} whole, {lost} with errors, of these {read_only} read-only, {refused} refused");
    assert!(whole > 300 && lost > 50 && read_only > 10, "the test tests little");
}

#[cfg(feature = "planted-bugs")]
#[test]
fn a_repair_from_the_wrong_copy_is_noticed() {
    let busy = Busy::new(4);
    store::plant(Some(store::PlantedBug::RepairFromWrongCopy));
    let wrong = (0..200).find_map(|index| while_open(&busy, index, Damage::Rot(12_345)).err());
    store::plant(None);
    println!("{}", wrong.expect("it goes unnoticed"));
}

#[cfg(feature = "planted-bugs")]
#[test]
fn copies_in_one_segment_are_noticed() {
    store::plant(Some(store::PlantedBug::CopiesInOneSegment));
    let busy = Busy::new(4);
    let (lost, checked) = (without_a_segment(&busy), findings(&open(&busy.disk).expect("it opens")));
    store::plant(None);
    println!("{}", lost.expect_err("it goes unnoticed"));
    println!("{}", checked.first().expect("check does not notice"));
}

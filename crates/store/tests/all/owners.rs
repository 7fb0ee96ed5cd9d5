//! Each live block of data has an owner in the summary of its segment, also after the cleaner moved the
//! block. `check` compares owners with the map.

use crate::common::*;
use device::{Block, Lsn, ObjectId, PageNo, SeededRng};
use sim_disk::{BlockDamage, PowerSupply, SimDisk};
use std::collections::BTreeSet;
use std::sync::Arc;
use store::{CleaningOutcome, Store, StoreFinding, VolumeId, VolumeMode};

const LIST: &[u8; 8] = b"weir.own";
const CHUNK: &[u8; 8] = b"weir.log";

/// Works, clones and cleans, with crashes. Most live blocks were moved, some of them several times.
fn lived(seed: u64, segments: u64, steps: u64) -> (Arc<PowerSupply>, Arc<SimDisk>, Model) {
    let (power, disk, mut store) = fresh(segments, seed);
    let (mut model, mut work, mut dice) = (Model::default(), Work::new(seed), SeededRng::new(seed));
    let (mut moved, mut clones) = (0, 0);
    for step in 0..steps {
        let vector = work.vector(&model);
        match apply_with_cleaning(&store, &vector) {
            Ok(()) => model.apply(&vector),
            Err(error) => assert!(error.is_full(), "seed {seed} step {step}: {error}"),
        }
        match dice.below(20) {
            0 if clones < 3 => {
                clones += 1;
                work.lsn += 1;
                let _ = clone_volume(&store, VolumeId::MAIN, VolumeMode::ReadOnly, Lsn(work.lsn));
            }
            1 => {
                moved += store.counters().pages_cleaned;
                drop(store);
                power.cut();
                disk.crash();
                power.restore();
                store = mount(&disk).unwrap_or_else(|error| panic!("seed {seed} step {step}: {error}"));
                assert_sound(&store, &model, &format!("seed {seed} step {step}"));
            }
            2..5 => store.maintenance().checkpoint().expect("a sound disk"),
            5..16 => drop(store.maintenance().clean_step().expect("a sound disk")),
            _ => {}
        }
    }
    for _ in 0..6 {
        if store.maintenance().clean_round() != Ok(true) {
            break;
        }
        store.maintenance().checkpoint_twice().expect("a sound disk");
    }
    store.maintenance().checkpoint_twice().expect("a sound disk");
    moved += store.counters().pages_cleaned;
    assert!(moved > 100, "seed {seed}: {moved} blocks were moved");
    assert_sound(&store, &model, &format!("seed {seed}"));
    (power, disk, model)
}

/// The heads of this kind, on the medium, live or not.
fn heads(disk: &SimDisk, magic: &[u8; 8]) -> Vec<Block> {
    disk.written_blocks().into_iter().filter(|&at| disk.begins_with(at, magic)).collect()
}

fn segment(at: Block) -> u64 {
    (at.0 - 3) / u64::from(SEGMENT)
}

/// Whether a finding is that the owner of a block is missing.
fn is_of_owner(finding: &StoreFinding) -> bool {
    finding.place.is_some() && finding.what.contains("does not say whose it is")
}

#[test]
fn every_live_block_of_data_has_its_owner_after_lives_of_cleaning_clones_and_crashes() {
    for seed in 0..12 {
        lived(seed, 110, 200);
    }
}

/// Damages each head of a kind in turn. Returns how many blocks lost their owners.
fn damage_each(disk: &SimDisk, model: &Model, magic: &[u8; 8]) -> u64 {
    let (mut random, mut lost) = (SeededRng::new(1), 0);
    for at in heads(disk, magic) {
        let fork = disk.fork(&PowerSupply::new(), 1);
        fork.rot(at, 64 + random.below(4096 * 8 - 64) as usize);
        // The log's last chunks may be needed.
        let Ok(store) = open(&fork) else { continue };
        if model.difference(&store).is_some() {
            continue;
        }
        let findings = findings(&store);
        lost += findings.len() as u64;
        for finding in findings {
            let behind = finding.place.is_some_and(|block| block > at && segment(block) == segment(at));
            assert!(behind && is_of_owner(&finding), "head {at} damaged: {finding}");
        }
    }
    lost
}

#[test]
fn a_damaged_list_or_chunk_costs_the_owners_of_its_blocks_and_nothing_else() {
    let (_power, disk, model) = lived(0, 113, 200);
    for magic in [LIST, CHUNK] {
        let lost = damage_each(&disk, &model, magic);
        assert!(lost > 10, "{lost} blocks lost their owners");
    }
}

/// Cleans until nothing is left to clean.
fn clean_all(store: &Store) {
    for _ in 0..1000 {
        match store.maintenance().clean_step().expect("a sound disk") {
            CleaningOutcome::Working => {}
            CleaningOutcome::RoundEnded(0) | CleaningOutcome::Idle => return,
            CleaningOutcome::RoundEnded(_) => store.maintenance().checkpoint_twice().expect("space"),
        }
    }
}

#[test]
fn what_lost_its_owner_is_moved_without_one_and_none_is_guessed() {
    let (_power, disk, mut model) = lived(5, 110, 200);
    let mut random = SeededRng::new(1);
    heads(&disk, LIST).into_iter().for_each(|at| disk.rot(at, 64 + random.below(4000) as usize));
    let store = mount(&disk).expect("no list is needed");
    let lost = findings(&store);
    assert!(lost.len() > 20 && lost.iter().all(is_of_owner), "{lost:?}");
    let mut work = Work::new(99);
    work.lsn = 1_000_000;
    for _ in 0..200 {
        let vector = work.vector(&model);
        if apply_with_cleaning(&store, &vector).is_ok() {
            model.apply(&vector);
        }
    }
    clean_all(&store);
    assert!(store.counters().pages_cleaned > 0);
    let now = findings(&store);
    assert!(!now.is_empty() && now.len() <= lost.len(), "{} blocks, {} before", now.len(), lost.len());
    assert!(now.iter().all(is_of_owner), "{now:?}");
    let places = |findings: &[StoreFinding]| findings.iter().map(|one| one.place).collect::<BTreeSet<_>>();
    assert!(!places(&now).is_subset(&places(&lost)), "some of them were moved");
    assert_eq!(model.difference(&store), None);
}

#[test]
fn a_head_that_cannot_be_read_for_a_while_costs_no_owner() {
    const FILE: ObjectId = VolumeId::MAIN.object(7, 1);
    let (_power, disk, store) = fresh(120, 1);
    let write = |number: u64, page_lsn: u64| store::StoreChange::Write {
        object: FILE,
        page: PageNo(number),
        bytes: page(page_lsn),
        page_lsn: Lsn(page_lsn),
    };
    (0..300).for_each(|number| store.data().apply(&[write(number, number + 1)]).expect("space"));
    (0..300)
        .step_by(2)
        .for_each(|number| store.data().apply(&[write(number, number + 1000)]).expect("space"));
    store.maintenance().checkpoint_twice().expect("space");
    heads(&disk, CHUNK).into_iter().for_each(|at| disk.damage(at, BlockDamage::Unreadable));
    let _ = store.maintenance().clean_round();
    disk.heal();
    assert_eq!(store.counters().pages_cleaned, 0, "what cannot be read stays, and what it names");
    assert_eq!(findings(&store), []);
    drop(store);
    let store = mount(&disk).expect("a sound disk");
    assert_eq!(store.maintenance().clean_round(), Ok(true));
    assert!(store.counters().pages_cleaned > 0);
    assert_eq!(findings(&store), []);
}
